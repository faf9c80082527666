"""What a pause or a resume tells."""

from __future__ import annotations

from typing import NamedTuple


class Result(NamedTuple):
    """What one pause or resume did. Sizes are bytes."""

    allocations: int = 0
    """Allocations whose state changed."""
    bytes: int = 0
    """Their logical bytes."""
    device_bytes: int = 0
    """Physical device memory released or created."""
    host_bytes: int = 0
    """Copied to or from host memory."""
    disk_bytes: int = 0
    """Written to or read from files, padding included."""
    seconds: float = 0.0
    """Wall time of the call."""
    skipped_zero_bytes: int = 0
    """Not moved: all zero."""
    skipped_same_bytes: int = 0
    """Not moved: the backup held the same bytes already."""
    skipped_unused_bytes: int = 0
    """Not moved: said to be unused."""
    kept_bytes: int = 0
    """Logical bytes left on the device, because others use the memory."""
    check_seconds: float = 0.0
    """Of the time: waiting for fingerprints."""
    allocator_changed: str = ""
    """Of a pause with skip_unused: PyTorch's allocator was used meanwhile. "before": nothing was
    skipped. "during": what was allocated during the call may have lost its bytes. Else ""."""
    freed_bytes: int = 0
    """Of a pause: what became free on the devices, as the driver says."""
    missing_bytes: int = 0
    """Of a pause: the part of device_bytes that did not become free."""
