"""Regions for PyTorch, whose caching allocator stands between a tensor and cudaMalloc.

A region alone would not do: the allocator hands out memory that it has cached, from before the
region or from another one, and keeps freed memory of this one for others. So each (device, tag,
backup) has a torch.cuda.MemPool of its own, used by all regions of that kind, one after the other:

    import ebb.torch
    with ebb.torch.region(tag="weights", backup="disk"):
        model = Model().cuda()

Only the calling thread's allocations, on one device, go to the pool. Backward passes allocate on
threads of autograd: gradients are managed where the process manages everything (`ebb run
--offload-train`), or where they are made in advance. Inside a CUDA graph capture, and inside
somebody else's use_mem_pool, PyTorch uses that pool instead. Begin a capture outside of regions:
inside one its memory comes from the region's pool.

Freed memory stays in its pool, and is parked with it, until empty_cache() of this module; that of
torch.cuda does not reach pools. ebb.pause(skip_unused=True) leaves its bytes behind. PyTorch is
imported at the first use. Written for PyTorch 2.11, with expandable segments or without.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import threading
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Union

from . import _abi, _memory, _region, _unused
from ._abi import Tags
from ._errors import CaptureActive, UnsafeConfiguration, WrongState
from ._result import Result

Device = Union[None, int, str, Any]


class _Key(NamedTuple):
    """What memory of one pool has in common. tag None: not managed."""

    device: int
    tag: Optional[str]
    backup: str
    cpu_backend: str


# Guards _idle, _own, _allocator and _chosen. Nothing is called under it that could wait for a thread.
_lock = threading.Lock()
# Pools that no open region uses. Several to a key when threads were in such regions at one time:
# PyTorch lets only one thread at a time allocate to a pool.
_idle: Dict[_Key, List[Any]] = {}
# Ids of all pools that were made here, also of those that only tensors still use. PyTorch gives no id twice.
_own: Set[_unused.PoolId] = set()
# The pluggable allocator, kept for ever: memory of its pools is freed through it, even late.
_allocator: Optional[Any] = None
_chosen = False  # pools exist, so the way of allocating is settled


class _Use:
    """The calling thread allocates to a pool, between begin and end."""

    def __init__(self, torch: Any, key: _Key, pool: Any) -> None:
        self.key, self.pool = key, pool
        self._torch = torch
        self._using: Any = None

    def begin(self) -> None:
        self._using = self._torch.cuda.use_mem_pool(self.pool, device=self.key.device)
        self._using.__enter__()

    def end(self) -> None:
        self._using.__exit__(None, None, None)


class _OpenPools(threading.local):
    """What this thread's regions use, outermost first. Only the last one is begun."""

    def __init__(self) -> None:
        self.stack: List[_Use] = []


_open = _OpenPools()


@contextlib.contextmanager
def region(
    tag: str = "default", backup: str = "none", cpu_backend: Optional[str] = None, device: Device = None
) -> Iterator[None]:
    """ebb.region whose tensors come from a memory pool of this device, tag and backup.

    tag, backup, cpu_backend: as for ebb.region.
    device: the device whose allocations are meant, as PyTorch names it; None: the current one.
        Tensors of other devices are not to be made inside.

    Nests; the innermost counts. A pool lives as long as this module or a tensor needs it.
    Raises what ebb.region raises, and UnsafeConfiguration when PyTorch has no such pools.
    """
    _region.check_region(tag, backup, cpu_backend)
    torch = _torch()
    backend = _abi.library().tms_get_cpu_backup_backend().decode() if cpu_backend is None else cpu_backend
    key = _Key(_index(torch, device), tag, backup, backend if backup == "cpu" else "")
    with _region.region(tag, backup, cpu_backend), _pool(torch, key):
        yield


@contextlib.contextmanager
def disable(device: Device = None) -> Iterator[None]:
    """ebb.disable whose tensors come from a pool that holds nothing managed, also where the whole
    process is managed. device: as for region. Not for the pluggable allocator: its memory is
    always managed, so there tensors made inside come from PyTorch's own allocator.
    """
    torch = _torch()
    lib = _abi.library()
    key = _Key(_index(torch, device), None, "", "")
    with _region._changed(_region.current(lib)._replace(managed=False), lib), _pool(torch, key):
        yield


def use_pluggable_allocator() -> None:
    """From now on regions allocate through torch.cuda.memory.CUDAPluggableAllocator and ebb's
    tms_torch_malloc. For programs that cannot be started with LD_PRELOAD: the library is loaded
    here. Then stream captures are not seen: do not pause during one.

    Call it before the first region; calling it again does nothing. Raises NotLoaded, and WrongState
    after the first region.
    """
    global _allocator
    torch = _torch()
    path = _abi.library_path()
    _abi.load(path)
    with _lock:
        if _allocator is not None:
            return
        if _chosen:
            raise WrongState("use_pluggable_allocator comes too late: regions have allocated without it")
        allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "tms_torch_malloc", "tms_torch_free")
        # Pools refer to it without owning it, and may go after it when the interpreter ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(allocator.allocator()))
        _allocator = allocator


def empty_cache() -> None:
    """Gives cached memory of all pools that no open region uses back to the driver, then calls
    torch.cuda.empty_cache(). Tensors keep their memory; it goes back some time after they are
    gone, at the latest with the next call. Worth its time before a pause: cached memory is parked
    like any other.
    """
    torch = _torch()
    with _lock:
        dropped = list(_idle.values())
        _idle.clear()
    del dropped  # PyTorch empties a pool when its object goes
    torch.cuda.empty_cache()


# ---- memory that no tensor uses --------------------------------------------------------------


def _pause_skipping_unused(tags: Tags) -> Result:
    """ebb.pause(tags, skip_unused=True)."""
    torch = _torch()
    if not torch.cuda.is_initialized():
        return _memory.pause(tags)
    backend = torch.cuda.get_allocator_backend()
    if backend != "native":
        raise UnsafeConfiguration(
            f"skip_unused asks PyTorch's own allocator what no tensor uses; this process allocates with {backend}"
        )
    if torch.cuda.is_current_stream_capturing():
        raise CaptureActive("a CUDA stream capture is under way: end it before a pause")

    def counters() -> Any:
        return _unused.counters(torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count()))

    # What the snapshot tells holds as long as the counters stay, which everybody who uses the
    # allocator changes. They are looked at again when the device has finished, since waiting for
    # it takes longest, and after the pause.
    before = counters()
    with _lock:
        own = set(_own)
    unused = _unused.ranges(torch.cuda.memory_snapshot(), own)
    for device in range(torch.cuda.device_count()):
        if torch.cuda.memory_reserved(device) > 0:
            torch.cuda.synchronize(device)
    if counters() != before:
        return _memory.pause(tags)._replace(allocator_changed="before")
    result = _memory.pause_except(tags, unused)
    return result._replace(allocator_changed="" if counters() == before else "during")


# ---- pools -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _pool(torch: Any, key: _Key) -> Iterator[None]:
    """This thread allocates to a pool of the key inside, and to its former one afterwards."""
    stack = _open.stack
    outer = stack[-1] if stack else None
    if outer is not None and outer.key == key:
        yield  # it is the one in use
        return
    suspended = next((use.pool for use in stack if use.key == key), None)
    pool = _take(torch, key) if suspended is None else suspended
    use = _Use(torch, key, pool)
    try:
        # PyTorch takes the first pool that was begun and not ended: the outer one must end.
        with _ended(outer):
            use.begin()
            stack.append(use)
            try:
                yield
            finally:
                stack.pop()
                use.end()
    finally:
        if suspended is None:
            with _lock:
                _idle.setdefault(key, []).append(pool)


@contextlib.contextmanager
def _ended(use: Optional[_Use]) -> Iterator[None]:
    """The pool is not used inside."""
    if use is None:
        yield
        return
    use.end()
    try:
        yield
    finally:
        use.begin()


def _take(torch: Any, key: _Key) -> Any:
    """A pool of the key that nobody uses; the caller gives it back to _idle."""
    global _chosen
    with _lock:
        _chosen = True
        if _idle.get(key):
            return _idle[key].pop()
        allocator = None if key.tag is None else _allocator
    with torch.cuda.device(key.device):
        pool = torch.cuda.MemPool() if allocator is None else torch.cuda.MemPool(allocator.allocator())
    with _lock:
        _own.add(tuple(pool.id))
    return pool


def _index(torch: Any, device: Device) -> int:
    if device is None:
        return int(torch.cuda.current_device())
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return int(torch.cuda.current_device() if index is None else index)


def _torch() -> Any:
    """PyTorch, if it has what is needed."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as err:
        raise UnsafeConfiguration(f"ebb.torch needs PyTorch, which cannot be imported: {err}") from err
    needed = (
        (torch.cuda, "MemPool"),
        (torch.cuda, "use_mem_pool"),
        (torch._C, "_cuda_beginAllocateCurrentThreadToPool"),  # older pools take in all threads
    )
    for place, name in needed:
        if not hasattr(place, name):
            raise UnsafeConfiguration(
                f"PyTorch {torch.__version__} has no {place.__name__}.{name}: ebb.torch is written for PyTorch 2.11"
            )
    return torch
