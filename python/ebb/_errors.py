"""Exceptions: one class for each meaning. `Error.code` is the ebb_code of abi/ebb.h, or 0 where
the package itself refuses."""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple, Type

from ._result import Result


class Holder(NamedTuple):
    """A process that holds memory of a device."""

    pid: int
    bytes: int
    name: str


class Error(RuntimeError):
    """Anything that ebb refuses or fails to do. The text says what was done to which object, and
    where there is a remedy, which.

    code: int, the ebb_code of abi/ebb.h; 0 when the package itself refused.
    """

    code: int = 0

    def __init__(self, message: str, details: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(message)
        self._take(details or {})

    def _take(self, details: Mapping[str, Any]) -> None:
        """Keeps what the library told beside the text."""
        if "code" in details:
            self.code = int(details["code"])


class InvalidArgument(Error, ValueError):
    """An argument makes no sense."""

    code = 1


class NotManaged(Error):
    """The address is not in memory that ebb manages."""

    code = 2


class WrongState(Error):
    """Not possible in the present state, for example reading paused memory that has no backup."""

    code = 3


class UnknownTag(Error):
    """No allocation ever carried the tag."""

    code = 4


class ForkedChild(Error):
    """Called in a forked child. Only the process that allocated memory can pause and resume it."""

    code = 5


class CaptureActive(Error):
    """A CUDA stream capture is under way: end it first."""

    code = 6


class DeviceError(Error):
    """The driver refused a call."""

    code = 7


class DeviceFault(Error):
    """The device had failed before: an earlier error of the program."""

    code = 8


class OutOfDeviceMemory(Error):
    """Not enough memory on a device; nothing changed, and the call can be repeated.

    needed, free: bytes. device: its number. None where the library could not tell.
    holders: other processes that hold memory of the device, as far as they can be seen.
    """

    code = 9
    needed: Optional[int]
    free: Optional[int]
    device: Optional[int]
    holders: Tuple[Holder, ...]

    def _take(self, details: Mapping[str, Any]) -> None:
        super()._take(details)
        self.needed = details.get("need_bytes")
        self.free = details.get("free_bytes")
        self.device = details.get("device")
        self.holders = tuple(
            Holder(int(h["pid"]), int(h["bytes"]), str(h.get("name", ""))) for h in details.get("holders") or ()
        )


class OutOfHostMemory(Error):
    """Not enough host memory. Nothing was unmapped.

    needed, free: bytes. None where the library could not tell.
    """

    code = 10
    needed: Optional[int]
    free: Optional[int]

    def _take(self, details: Mapping[str, Any]) -> None:
        super()._take(details)
        self.needed = details.get("need_bytes")
        self.free = details.get("free_bytes")


class NoSpace(Error):
    """Not enough room in the disk directory (space, inodes or quota). Nothing was unmapped.

    needed, free: bytes. directory: its path. None where the library could not tell.
    """

    code = 11
    needed: Optional[int]
    free: Optional[int]
    directory: Optional[str]

    def _take(self, details: Mapping[str, Any]) -> None:
        super()._take(details)
        self.needed = details.get("need_bytes")
        self.free = details.get("free_bytes")
        self.directory = details.get("dir")


class DiskError(Error):
    """Reading or writing a backup file failed."""

    code = 12


class CorruptBackup(Error):
    """A backup does not hold what was written, or is gone. The memory stays paused."""

    code = 13


class PartialPause(Error):
    """Paused in part: some allocations stayed active. A resume repairs it.

    result: what was paused; None where that is not known.
    """

    code = 14
    result: Optional[Result] = None


class NotLoaded(Error):
    """ebb's library is not in this process, or its engine could not be loaded. Nothing is managed."""

    code = 15


class InternalError(Error):
    """A defect in ebb, or a code that this package does not know (then `code` says which)."""

    code = 16


class Unmanaged(Error):
    """Nothing is managed, but the process holds device memory: a pause would free none of it."""

    code = 17


class Timeout(Error, TimeoutError):
    """A deadline passed."""

    code = 18


class WrittenDuringPause(Error):
    """The memory was written to while it was being paused; nothing was paused. Let the work that
    writes finish first."""

    code = 19


class StateError(Error):
    """A step of an optimizer with streamed state stopped part-way: some parameters are updated, others not. Call
    step() again with the same gradients; it continues where it stopped. `__cause__` is the error that stopped it."""


class UnsafeConfiguration(Error):
    """What was asked for is not possible with this process's PyTorch: it is missing, too old, or
    uses another allocator."""


CLASSES: Dict[int, Type[Error]] = {
    cls.code: cls
    for cls in (
        InvalidArgument,
        NotManaged,
        WrongState,
        UnknownTag,
        ForkedChild,
        CaptureActive,
        DeviceError,
        DeviceFault,
        OutOfDeviceMemory,
        OutOfHostMemory,
        NoSpace,
        DiskError,
        CorruptBackup,
        PartialPause,
        NotLoaded,
        InternalError,
        Unmanaged,
        Timeout,
        WrittenDuringPause,
    )
}


def from_code(code: int, message: str, details: Mapping[str, Any]) -> Error:
    """The exception for an ebb_code."""
    error = CLASSES.get(code, InternalError)(message, details)
    error.code = code
    return error
