"""Memory that PyTorch's caching allocator holds and no tensor uses, read from what it tells of
itself. Pure functions of torch.cuda.memory_snapshot() and torch.cuda.memory_stats()."""

from __future__ import annotations

from typing import AbstractSet, Any, Dict, Iterable, List, NamedTuple, Tuple

PoolId = Tuple[int, int]

# The pool of everything that names none.
DEFAULT_POOL: PoolId = (0, 0)

# Each of these changes when the allocator hands out memory, takes it back, or gets it from the driver.
_COUNTERS = tuple(
    f"{what}.all.{way}" for what in ("allocation", "active", "segment") for way in ("allocated", "freed")
)


class Range(NamedTuple):
    """Device memory."""

    address: int
    bytes: int


def ranges(snapshot: Iterable[Dict[str, Any]], own_pools: AbstractSet[PoolId]) -> List[Range]:
    """What nothing needs, in order of address, neighbours together.

    snapshot: segments of all devices. own_pools: private pools in which nothing is captured.

    Only blocks that are free for reuse: one that waits for a stream is still read or written.
    Nothing of a pool that may be a graph's: its kernels use memory that PyTorch counts as free. A
    segment that does not name its pool may be one of those.
    """
    free: List[Range] = []
    for segment in snapshot:
        pool = tuple(segment.get("segment_pool_id") or ())
        if pool != DEFAULT_POOL and pool not in own_pools:
            continue
        address = int(segment["address"])
        for block in segment["blocks"]:
            address = int(block.get("address", address))  # PyTorch 2.0 tells only sizes
            if block["state"] == "inactive":
                free.append(Range(address, int(block["size"])))
            address += int(block["size"])
    merged: List[Range] = []
    for address, size in sorted(free):
        if merged and merged[-1].address + merged[-1].bytes == address:
            merged[-1] = Range(merged[-1].address, merged[-1].bytes + size)
        else:
            merged.append(Range(address, size))
    return merged


def counters(stats: Iterable[Dict[str, Any]]) -> Tuple[Tuple[int, ...], ...]:
    """Numbers that differ after the allocator did anything. stats: memory_stats() of every device."""
    return tuple(tuple(int(device.get(name, 0)) for name in _COUNTERS) for device in stats)
