"""Settings of the calling thread: which of its allocations are managed, and how."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import Iterator, NamedTuple, Optional

from . import _abi
from ._errors import InvalidArgument, WrongState

BACKUPS = ("none", "cpu", "disk")
CPU_BACKENDS = ("pinned", "mmap")


class Settings(NamedTuple):
    """All settings that an allocation takes from its thread."""

    managed: bool
    tag: bytes
    cpu_backup: bool
    disk_backup: bool
    cpu_backend: bytes


def current(lib: ctypes.CDLL) -> Settings:
    return Settings(
        lib.tms_get_interesting_region(),
        lib.tms_get_current_tag(),
        lib.tms_get_enable_cpu_backup(),
        lib.tms_get_enable_disk_backup(),
        lib.tms_get_cpu_backup_backend(),
    )


def apply(lib: ctypes.CDLL, settings: Settings) -> None:
    lib.tms_set_interesting_region(settings.managed)
    lib.tms_set_current_tag(settings.tag)
    lib.tms_set_enable_cpu_backup(settings.cpu_backup)
    lib.tms_set_enable_disk_backup(settings.disk_backup)
    lib.tms_set_cpu_backup_backend(settings.cpu_backend)


def check_region(tag: str, backup: str, cpu_backend: Optional[str]) -> None:
    """Raises InvalidArgument for arguments that make no region."""
    _abi.encode_tag(tag)
    if backup not in BACKUPS:
        raise InvalidArgument(f"backup is one of {', '.join(BACKUPS)}, not {backup!r}")
    if cpu_backend is not None and cpu_backend not in CPU_BACKENDS:
        raise InvalidArgument(f"cpu_backend is one of {', '.join(CPU_BACKENDS)} or None, not {cpu_backend!r}")


@contextlib.contextmanager
def _changed(change: Settings, lib: ctypes.CDLL) -> Iterator[None]:
    """The thread has these settings inside, and its former ones again afterwards."""
    thread = threading.get_ident()
    before = current(lib)
    try:
        apply(lib, change)
        taken = current(lib)
        if taken != change:  # it has written why
            raise InvalidArgument(f"the library refuses {change}, and would take {taken}")
        yield
    finally:
        try:
            # On another thread, that one's settings would be overwritten.
            if threading.get_ident() != thread:
                raise WrongState("a region was entered on one thread and left on another: leave it where it was entered")
            apply(lib, before)
        except WrongState:
            raise
        except BaseException:  # an interruption (Ctrl-C): what is allocated later must not be of this region
            apply(lib, before)
            raise


@contextlib.contextmanager
def region(tag: str = "default", backup: str = "none", cpu_backend: Optional[str] = None) -> Iterator[None]:
    """GPU memory that the calling thread allocates inside is managed: it can be paused.

    tag: str of at most 255 bytes, names the group that pause and resume take.
    backup: what happens to the content while paused. "none": it is lost; "cpu": host memory;
        "disk": files of the disk directory (TMS_DISK_BACKUP_DIR, or as `ebb run` set it).
    cpu_backend: memory of "cpu" backups, "pinned" or "mmap"; None: the thread's present setting.

    Afterwards, also after an exception, the thread has exactly the settings it had before. Regions
    nest; the innermost counts. Other threads are not affected, and neither is memory that exists
    already. With PyTorch use ebb.torch.region: its caching allocator hands out memory that was
    allocated elsewhere. Also usable as a decorator.

    Raises InvalidArgument, NotLoaded; WrongState when left on another thread.
    """
    check_region(tag, backup, cpu_backend)
    lib = _abi.library()
    backend = lib.tms_get_cpu_backup_backend() if cpu_backend is None else cpu_backend.encode()
    inside = Settings(True, _abi.encode_tag(tag), backup == "cpu", backup == "disk", backend)
    with _changed(inside, lib):
        yield


@contextlib.contextmanager
def disable() -> Iterator[None]:
    """GPU memory that the calling thread allocates inside is not managed: no pause takes it away.
    For memory that must stay, such as what is shared with other processes by CUDA IPC or
    registered with NCCL. Restores the thread's settings like region.

    With PyTorch use ebb.torch.disable. Raises NotLoaded; WrongState when left on another thread.
    """
    lib = _abi.library()
    with _changed(current(lib)._replace(managed=False), lib):
        yield
