"""Pause, resume, read, safe points, status: what the library does with managed memory."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import math
import sys
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from . import _abi
from ._abi import Tags
from ._errors import InvalidArgument, PartialPause, UnsafeConfiguration
from ._result import Result
from ._unused import Range

# Methods of objects that hold device memory which no pause takes, to be called before one.
_before_pauses: List["weakref.WeakMethod[Callable[[], None]]"] = []

# Longer than any wait that is meant; short enough for C's clocks.
_FOREVER_S = 1e9


def version() -> str:
    """Version of the loaded library, for example "0.1.0". Raises NotLoaded."""
    text: bytes = _abi.library().ebb_version()
    return text.decode()


def pause(tags: Tags = None, skip_unused: bool = False) -> Result:
    """Takes managed memory off the GPU, to where its backup says, and returns when the driver has
    the memory back.

    tags: a tag, or several; None: everything; an empty list: nothing.
    skip_unused: leave behind the bytes of memory that PyTorch's caching allocator keeps for reuse
        and no tensor uses; its content is undefined afterwards. Never memory of CUDA graphs, nor
        what waits for a stream. The result says how much, and whether the allocator was used
        meanwhile (allocator_changed). Not while another thread captures a stream.

    Work submitted to the GPU earlier is waited for. Nothing may touch the memory from the call on
    until it is resumed. What is paused already stays as it is. May be called on any thread; pauses
    and resumes are carried out one after the other. Optimizers with streamed state (ebb.optim) give
    their GPU memory back first.

    Raises UnknownTag; NoSpace, OutOfHostMemory, DiskError, DeviceError: nothing was unmapped, the
    program can go on; CaptureActive; Unmanaged; PartialPause: some stayed active (resume repairs
    it); WrittenDuringPause: a stream or thread wrote to the memory, nothing was unmapped;
    ForkedChild; NotLoaded. With skip_unused also UnsafeConfiguration: PyTorch is not there, or its
    allocator does not tell what is unused.
    """
    for reference in list(_before_pauses):
        let_go = reference()
        if let_go is not None:
            let_go()
    if not skip_unused:
        return _move("ebb_pause", tags)
    if "torch" not in sys.modules:
        raise UnsafeConfiguration(
            "skip_unused asks PyTorch's allocator what no tensor uses, and this program has not imported PyTorch"
        )
    result: Result = importlib.import_module("ebb.torch")._pause_skipping_unused(tags)
    return result


def resume(tags: Tags = None, timeout: Optional[float] = None) -> Result:
    """Brings paused memory back to its addresses, with its bytes.

    tags: as for pause.
    timeout: seconds to wait for GPU memory that others hold; 0: not at all; None: EBB_RESUME_WAIT,
        or 0. Nothing is held while waiting.

    All named memory comes back or, after an error, none: it stays paused, and a later resume can
    succeed. May be called on any thread.

    Raises OutOfDeviceMemory (bytes needed and free, who holds them); CorruptBackup; DiskError;
    UnknownTag; CaptureActive; DeviceError; ForkedChild; NotLoaded.
    """
    return _move("ebb_resume", tags, -1.0 if timeout is None else _seconds(timeout))


def request_pause(tags: Tags = None, timeout: Optional[float] = None) -> Result:
    """Pauses at the program's next safe point: when a thread is inside idle() or calls
    safe_point(). For a thread that does not know what the others do with the memory.

    tags: as for pause.
    timeout: seconds to wait for the safe point; None: no limit.

    Returns when the memory is paused. The caller must resume it later; until then idle()
    and safe_point() do not return.

    Raises Timeout: nothing was paused; otherwise like pause.
    """
    return _move("ebb_request_pause", tags, -1.0 if timeout is None else _seconds(timeout))


@contextlib.contextmanager
def paused(tags: Tags = None, timeout: Optional[float] = None, skip_unused: bool = False) -> Iterator[Result]:
    """pause(tags, skip_unused) on entry, which gives the Result; resume(tags, timeout) on exit, also after an
    exception. When entry paused nothing, since all was paused before, exit resumes nothing.

    Raises what pause and resume raise. After a PartialPause what was paused is resumed first.
    """
    named = tags if tags is None or isinstance(tags, str) else list(tags)
    wait = None if timeout is None else _seconds(timeout)
    try:
        result = pause(named, skip_unused)
    except PartialPause:
        resume(named, wait)
        raise
    try:
        yield result
    finally:
        if result.allocations > 0:
            resume(named, wait)


@contextlib.contextmanager
def idle() -> Iterator[None]:
    """Inside, the program does not use its managed memory, so that a pause which was asked for may
    take place. Leaving waits until the memory is back. Nests. A program whose threads use the
    memory on their own brings them together first.

    Ctrl-C is seen after the wait, not during it. Raises ForkedChild, NotLoaded.
    """
    lib = _abi.library()
    _abi.check(lib.ebb_idle_begin())
    try:
        yield
    finally:
        _abi.check(lib.ebb_idle_end())


def safe_point() -> None:
    """Lets a pause that was asked for take place, and returns when the memory is back; at once
    when none was asked for. A training loop calls it between two steps.

    Ctrl-C is seen after the wait, not during it. Raises ForkedChild, NotLoaded.
    """
    _abi.check(_abi.library().ebb_safe_point())


def status() -> Dict[str, Any]:
    """State of this process's GPU memory, as docs/status.md describes it: bytes and seconds. What is
    managed, what of it is kept on the device because others use it (`kept`), and what ebb does not
    manage, by class (`unmanaged`). Never waits for a pause or resume under way. Raises ForkedChild, NotLoaded."""
    lib = _abi.library()
    size, need = 0, ctypes.c_size_t()
    while True:  # it may have grown between two calls
        buffer = ctypes.create_string_buffer(size)
        _abi.check(lib.ebb_status(buffer if size else None, size, ctypes.byref(need)))
        if need.value < size:
            state: Dict[str, Any] = json.loads(buffer.value)
            return state
        size = need.value + 1024


def pause_count(tag: str) -> int:
    """How many pauses so far took memory with this tag off the GPU, be it back by now or not. What was in memory without
    backup is there no more where the number has grown. Costs little. Raises InvalidArgument, ForkedChild, NotLoaded."""
    count = ctypes.c_uint64()
    _abi.check(_abi.library().ebb_pause_count(_abi.encode_tag(tag), ctypes.byref(count)))
    return count.value


def read(source: Any, nbytes: Optional[int] = None) -> bytes:
    """Bytes of managed GPU memory, wherever they are: from the backup while paused, without using
    the GPU, else from the GPU, whose earlier work is waited for.

    source: a contiguous tensor (anything with data_ptr() and nbytes), a storage, or an address.
    nbytes: how many bytes from its beginning; None: all. Needed for an address.

    Takes twice the size in host memory for a moment; read_into does not.

    Raises NotManaged; WrongState: paused, and there is no backup; InvalidArgument: not contiguous,
    or more bytes than there are; CorruptBackup, DiskError, DeviceFault, CaptureActive, ForkedChild,
    NotLoaded.
    """
    address, size = _place(source, nbytes)
    buffer = bytearray(size)
    _read(address, size, buffer)
    return bytes(buffer)


def read_into(source: Any, buffer: Any, nbytes: Optional[int] = None) -> int:
    """read, into an existing buffer: a writable, contiguous bytearray, memoryview, array or NumPy
    array. Returns the number of bytes. Raises InvalidArgument when the buffer is too small or
    cannot be written; else what read raises."""
    address, size = _place(source, nbytes)
    _read(address, size, buffer)
    return size


def _read(address: int, size: int, buffer: Any) -> None:
    try:
        view = memoryview(buffer).cast("B")
    except (TypeError, ValueError) as err:
        raise InvalidArgument(f"the buffer must be a contiguous one of bytes: {err}") from err
    with view:
        if view.readonly or view.nbytes < size:
            kind = "read-only" if view.readonly else f"{view.nbytes} bytes long"
            raise InvalidArgument(f"{size} bytes do not go into a buffer that is {kind}")
        first = ctypes.c_char.from_buffer(view) if size else None
        try:
            _abi.check(_abi.library().ebb_read(address, size, None if first is None else ctypes.byref(first)))
        finally:
            del first  # it keeps the view open


def _place(source: Any, nbytes: Optional[int]) -> Tuple[int, int]:
    """Address and number of bytes to read."""
    if nbytes is not None and (not isinstance(nbytes, int) or isinstance(nbytes, bool) or nbytes < 0):
        raise InvalidArgument(f"nbytes is a number of bytes or None, not {nbytes!r}")
    if isinstance(source, bool):
        raise InvalidArgument("read takes a tensor, a storage or an address, not bool")
    if isinstance(source, int):
        if nbytes is None:
            raise InvalidArgument("an address says nothing about a size: give nbytes")
        if not 0 <= source < 1 << 64:
            raise InvalidArgument(f"{source} is no address")
        return source, nbytes
    if not callable(getattr(source, "data_ptr", None)):
        raise InvalidArgument(f"read takes a tensor, a storage or an address, not {type(source).__name__}")
    contiguous = getattr(source, "is_contiguous", None)
    if callable(contiguous) and not contiguous():
        raise InvalidArgument("the tensor is not contiguous, so its bytes do not lie together: read its untyped_storage()")
    has = getattr(source, "nbytes", None)
    size = has() if callable(has) else has  # a method of a storage, a number of a tensor
    if not isinstance(size, int):
        raise InvalidArgument(f"{type(source).__name__} does not tell its nbytes")
    if nbytes is not None and nbytes > size:
        raise InvalidArgument(f"{nbytes} bytes asked for, the {type(source).__name__} has {size}")
    return int(source.data_ptr()), size if nbytes is None else nbytes


def let_go_before_pauses(method: "weakref.WeakMethod[Callable[[], None]]") -> None:
    """pause() calls it first, as long as its object is there."""
    _before_pauses[:] = [known for known in _before_pauses if known() is not None] + [method]


def pause_except(tags: Tags, unused: Sequence[Range]) -> Result:
    """pause, and bytes of the unused ranges are left behind."""
    array = (_abi.RangeStruct * len(unused))(*(_abi.RangeStruct(*part) for part in unused))
    return _move("ebb_pause_except", tags, array, len(unused))


def _move(function: str, tags: Tags, *arguments: Any) -> Result:
    lib = _abi.library()
    listed = _abi.tag_list(tags)
    if listed is None:
        return Result()
    result = _abi.ResultStruct()
    code = getattr(lib, function)(*listed, *arguments, ctypes.byref(result))
    _abi.check(code, result.plain())
    return result.plain()


def _seconds(timeout: Union[int, float]) -> float:
    try:
        seconds = float(timeout)
    except (TypeError, ValueError) as err:
        raise InvalidArgument(f"timeout is a number of seconds or None, not {timeout!r}") from err
    if math.isnan(seconds) or seconds < 0:
        raise InvalidArgument(f"timeout is a number of seconds from 0 on, or None, not {timeout!r}")
    return min(seconds, _FOREVER_S)
