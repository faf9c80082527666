"""Parks the GPU memory of a program in host memory or on disk, and brings it back bit for bit.

    with ebb.region(tag="actor", backup="disk"):
        ...                     # GPU memory allocated here is managed
    with ebb.paused():
        ...                     # it is off the GPU here
    ...                         # the same bytes at the same addresses

The library libebb.so must be preloaded: start the program with `ebb run --offload-train`, or with
LD_PRELOAD set to what `python3 -m ebb preload-path` prints. Without it every function
raises NotLoaded.

Sizes are bytes, times are seconds. Every function may be called on any thread; region and disable
change only the calling one. For PyTorch see ebb.torch. Everything raised is an Error.
"""

from __future__ import annotations

from ._abi import library_path
from ._errors import (
    CaptureActive,
    CorruptBackup,
    DeviceError,
    DeviceFault,
    DiskError,
    Error,
    ForkedChild,
    Holder,
    InternalError,
    InvalidArgument,
    NoSpace,
    NotLoaded,
    NotManaged,
    OutOfDeviceMemory,
    OutOfHostMemory,
    PartialPause,
    StateError,
    Timeout,
    UnknownTag,
    Unmanaged,
    UnsafeConfiguration,
    WrongState,
    WrittenDuringPause,
)
from ._memory import idle, pause, pause_count, paused, read, read_into, request_pause, resume, safe_point, status, version
from ._region import disable, region
from ._result import Result
from ._version import __version__

__all__ = [
    "CaptureActive",
    "CorruptBackup",
    "DeviceError",
    "DeviceFault",
    "DiskError",
    "Error",
    "ForkedChild",
    "Holder",
    "InternalError",
    "InvalidArgument",
    "NoSpace",
    "NotLoaded",
    "NotManaged",
    "OutOfDeviceMemory",
    "OutOfHostMemory",
    "PartialPause",
    "Result",
    "StateError",
    "Timeout",
    "UnknownTag",
    "Unmanaged",
    "UnsafeConfiguration",
    "WrongState",
    "WrittenDuringPause",
    "__version__",
    "disable",
    "idle",
    "library_path",
    "pause",
    "pause_count",
    "paused",
    "read",
    "read_into",
    "region",
    "request_pause",
    "resume",
    "safe_point",
    "status",
    "version",
]
