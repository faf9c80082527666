"""Streamed state: flat arrays that live in files and pass through the GPU part by part (abi/ebb.h). ebb.optim
is built on it; it knows nothing of PyTorch."""

from __future__ import annotations

import ctypes
import json
import os
import threading
import weakref
from typing import Any, NamedTuple, Optional, Sequence, Union

from . import _abi
from ._errors import InvalidArgument, WrongState


class Part(NamedTuple):
    """A part of a segment, and the device memory that it is read to or written from."""

    segment: int
    offset: int
    """In the segment, in bytes: a multiple of State.block."""
    bytes: int
    """A multiple of State.block, or up to the end of the segment."""
    address: int
    """Of device memory, a multiple of 16."""


class Done(NamedTuple):
    """What one request did."""

    bytes: int = 0
    """That were asked for."""
    disk_bytes: int = 0
    """Of these, read from or written to files."""
    skipped_zero_bytes: int = 0
    """Of these, not moved: all zero."""
    seconds: float = 0.0
    """From when its turn came to its end."""
    wait_seconds: float = 0.0
    """That wait waited for it."""


Ticket = ctypes.c_uint64
"""Of a request; 0 is none."""


class PartStruct(ctypes.Structure):
    """ebb_state_io."""

    _fields_ = [
        ("segment", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("gpu", ctypes.c_void_p),
    ]


class DoneStruct(ctypes.Structure):
    """ebb_state_done."""

    _fields_ = [
        ("struct_size", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("disk_bytes", ctypes.c_uint64),
        ("skipped_zero_bytes", ctypes.c_uint64),
        ("nanoseconds", ctypes.c_uint64),
        ("wait_nanoseconds", ctypes.c_uint64),
    ]


_code, _u32, _u64, _void = ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
_number, _parts = ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(PartStruct)

# name: (type of the result, types of the arguments), as in abi/ebb.h.
FUNCTIONS: _abi.Functions = {
    "ebb_state_create": (_code, (ctypes.c_char_p, _number, ctypes.c_size_t, _number)),
    "ebb_state_block": (_u64, (_u64,)),
    "ebb_state_read": (_code, (_u64, _parts, ctypes.c_size_t, _number)),
    "ebb_state_write": (_code, (_u64, _parts, ctypes.c_size_t, _void, _number)),
    "ebb_state_wait": (_code, (_u64, _u64, ctypes.POINTER(DoneStruct))),
    "ebb_state_read_host": (_code, (_u64, _u32, _u64, _u64, _void)),
    "ebb_state_write_host": (_code, (_u64, _u32, _u64, _u64, _void)),
    "ebb_state_save": (_code, (_u64, ctypes.c_char_p, ctypes.c_char_p)),
    "ebb_state_load": (_code, (_u64, ctypes.c_char_p)),
    "ebb_state_close": (_code, (_u64,)),
}

_lock = threading.Lock()
_library: Optional[ctypes.CDLL] = None  # with these functions declared; written under _lock


def library() -> ctypes.CDLL:
    """The library in this process, whose functions of streamed state can be called. Raises NotLoaded."""
    global _library
    if _library is None:  # afterwards without the lock: what handles a signal may come here from within
        found = _abi.library()
        with _lock:
            if _library is None:
                _library = _abi.declare(found, FUNCTIONS)
    return _library


Path = Union[str, "os.PathLike[str]"]


def _close(lib: ctypes.CDLL, number: ctypes.c_uint64) -> None:
    if number.value:
        lib.ebb_state_close(number)


class State:
    """A set of flat arrays, its segments, in files of the rank's disk directories. All zero at first, for which
    nothing is written. The files go with close(), with the object, or with the process.

    name: str of 1 to 255 bytes, for people. segment_bytes: the size of each segment.

    All room on disk is taken at once, or none. Offsets and sizes are bytes. Every method may be called on any
    thread. Raises NoSpace, DiskError, InvalidArgument, ForkedChild, NotLoaded.
    """

    def __init__(self, name: str, segment_bytes: Sequence[int]) -> None:
        lib = library()
        sizes = (ctypes.c_uint64 * len(segment_bytes))(*segment_bytes)
        number = ctypes.c_uint64()
        self.name = name
        self.segment_bytes = tuple(segment_bytes)
        self._closing = False
        # A forked child has the object too, and no part in its files: there the engine refuses.
        self._close = weakref.finalize(self, _close, lib, number)
        self._close.atexit = False  # type: ignore[misc]  # the engine removes its files itself
        try:
            _abi.check(lib.ebb_state_create(name.encode(), sizes, len(sizes), ctypes.byref(number)))
            self._number: int = number.value
            self.block: int = lib.ebb_state_block(self._number)
            """The unit of offsets in a segment."""
        except BaseException:  # interrupted (Ctrl-C), when the state is there already: whoever keeps the error has no state
            self._close()
            raise

    def read(self, parts: Sequence[Part], ticket: Optional[Ticket] = None) -> int:
        """Begins to read to device memory, and gives the ticket for wait. Until then nobody may use that memory;
        work of the GPU that uses it must have ended.

        ticket: is set to it, even where an interruption (Ctrl-C) takes the result away.

        Raises WrongState while the rank's memory is paused; InvalidArgument.
        """
        return self._begin("ebb_state_read", parts, ticket)

    def write(self, parts: Sequence[Part], stream: int = 0, ticket: Optional[Ticket] = None) -> int:
        """Begins to write from device memory once the work that is in the stream now is done, and gives the ticket
        for wait. Until then the memory may be read only. stream: a CUDA stream; 0: the legacy default one.

        Raises what read raises.
        """
        return self._begin("ebb_state_write", parts, ticket, stream)

    def wait(self, ticket: int) -> Done:
        """Waits for the end of a request, once for each, and raises its error. DiskError, NoSpace, Timeout after a
        write: the parts that it concerned have no content until they are written again. CorruptBackup: what was
        read is not what was written."""
        done = DoneStruct(struct_size=ctypes.sizeof(DoneStruct))
        _abi.check(library().ebb_state_wait(self._number, ticket, ctypes.byref(done)))
        return Done(done.bytes, done.disk_bytes, done.skipped_zero_bytes, done.nanoseconds / 1e9, done.wait_nanoseconds / 1e9)

    def read_host(self, segment: int, offset: int, buffer: Any) -> None:
        """Fills a writable buffer of bytes from a segment. Returns when it is done."""
        self._host("ebb_state_read_host", segment, offset, buffer)

    def write_host(self, segment: int, offset: int, buffer: Any) -> None:
        """Writes a buffer of bytes, which must be a writable one, to a segment. Returns when it is done."""
        self._host("ebb_state_write_host", segment, offset, buffer)

    def save(self, folder: Path, extra: Any = None) -> None:
        """Writes a checkpoint (docs/streaming.md) in a folder of its own, put in place as a whole. extra: a JSON
        value, kept in its manifest.json under "extra"."""
        text = None if extra is None else json.dumps(extra).encode()
        _abi.check(library().ebb_state_save(self._open(), os.fsencode(folder), text))

    def load(self, folder: Path) -> None:
        """Fills the state from a checkpoint. InvalidArgument: it is of a state with other segments, and nothing was
        changed. After any other error it can be loaded again."""
        _abi.check(library().ebb_state_load(self._open(), os.fsencode(folder)))

    def close(self) -> None:
        """Waits for all requests and gives up the files. Closing again does nothing."""
        if self._close.alive:
            self._closing = True  # said before it is so: an interruption (Ctrl-C) leaves no state that is only half there
            code = library().ebb_state_close(self._number)
            self._close.detach()  # not before: where an interruption (Ctrl-C) comes in between, the next one closes
            if code != InvalidArgument.code:  # that an interrupted one did it
                _abi.check(code)

    @property
    def closed(self) -> bool:
        return self._closing or not self._close.alive

    def _open(self) -> int:
        if self.closed:
            raise WrongState(f"the state {self.name!r} is closed")
        return self._number

    def _begin(self, function: str, parts: Sequence[Part], ticket: Optional[Ticket], *arguments: Any) -> int:
        array = (PartStruct * len(parts))(*(PartStruct(p.segment, 0, p.offset, p.bytes, p.address) for p in parts))
        ticket = Ticket() if ticket is None else ticket
        call = getattr(library(), function)
        _abi.check(call(self._open(), array, len(array), *arguments, ctypes.byref(ticket)))
        return ticket.value

    def _host(self, function: str, segment: int, offset: int, buffer: Any) -> None:
        try:
            view = memoryview(buffer).cast("B")
        except (TypeError, ValueError) as err:
            raise InvalidArgument(f"the buffer must be a contiguous one of bytes: {err}") from err
        with view:
            if view.readonly:
                raise InvalidArgument("the buffer must be a writable one: a bytearray, or an array")
            if not view.nbytes:
                return
            first = ctypes.c_char.from_buffer(view)
            try:
                _abi.check(getattr(library(), function)(self._open(), segment, offset, view.nbytes, ctypes.byref(first)))
            finally:
                del first  # it keeps the view open
