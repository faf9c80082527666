"""libebb.so through ctypes: finding it, its functions, its result struct, its errors.

ctypes releases the interpreter lock during each call, so other threads run while one pauses.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import threading
from typing import Any, Dict, Iterable, NoReturn, Optional, Tuple, Union

from ._errors import InvalidArgument, NotLoaded, PartialPause, from_code
from ._result import Result

# A folder of this name is in the path because launchers look for it in LD_PRELOAD.
_IN_FOLDER = pathlib.Path("torch_memory_saver", "libebb.so")


class ResultStruct(ctypes.Structure):
    """ebb_result."""

    _fields_ = [
        ("struct_size", ctypes.c_uint64),
        ("allocations", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("device_bytes", ctypes.c_uint64),
        ("host_bytes", ctypes.c_uint64),
        ("disk_bytes", ctypes.c_uint64),
        ("nanoseconds", ctypes.c_uint64),
        ("skipped_zero_bytes", ctypes.c_uint64),
        ("skipped_same_bytes", ctypes.c_uint64),
        ("skipped_unused_bytes", ctypes.c_uint64),
        ("kept_bytes", ctypes.c_uint64),
        ("check_nanoseconds", ctypes.c_uint64),
        ("freed_bytes", ctypes.c_uint64),
        ("missing_bytes", ctypes.c_uint64),
    ]

    def __init__(self) -> None:
        super().__init__(struct_size=ctypes.sizeof(ResultStruct))

    def plain(self) -> Result:
        return Result(
            self.allocations, self.bytes, self.device_bytes, self.host_bytes, self.disk_bytes, self.nanoseconds / 1e9,
            self.skipped_zero_bytes, self.skipped_same_bytes, self.skipped_unused_bytes, self.kept_bytes,
            self.check_nanoseconds / 1e9, freed_bytes=self.freed_bytes, missing_bytes=self.missing_bytes,
        )


class RangeStruct(ctypes.Structure):
    """ebb_range."""

    _fields_ = [("ptr", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


_tags = ctypes.POINTER(ctypes.c_char_p)
_result = ctypes.POINTER(ResultStruct)
_code = ctypes.c_int

Functions = Dict[str, Tuple[Any, Tuple[Any, ...]]]

# name: (type of the result, types of the arguments), as in abi/ebb.h.
FUNCTIONS: Functions = {
    "ebb_version": (ctypes.c_char_p, ()),
    "ebb_last_error": (ctypes.c_size_t, (ctypes.c_char_p, ctypes.c_size_t)),
    "ebb_last_error_json": (ctypes.c_size_t, (ctypes.c_char_p, ctypes.c_size_t)),
    "ebb_pause": (_code, (_tags, ctypes.c_size_t, _result)),
    "ebb_pause_except": (_code, (_tags, ctypes.c_size_t, ctypes.POINTER(RangeStruct), ctypes.c_size_t, _result)),
    "ebb_resume": (_code, (_tags, ctypes.c_size_t, ctypes.c_double, _result)),
    "ebb_request_pause": (_code, (_tags, ctypes.c_size_t, ctypes.c_double, _result)),
    "ebb_read": (_code, (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)),
    "ebb_idle_begin": (_code, ()),
    "ebb_idle_end": (_code, ()),
    "ebb_safe_point": (_code, ()),
    "ebb_status": (_code, (ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t))),
    "ebb_pause_count": (_code, (ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64))),
    "tms_set_interesting_region": (None, (ctypes.c_bool,)),
    "tms_get_interesting_region": (ctypes.c_bool, ()),
    "tms_set_current_tag": (None, (ctypes.c_char_p,)),
    "tms_get_current_tag": (ctypes.c_char_p, ()),
    "tms_set_enable_cpu_backup": (None, (ctypes.c_bool,)),
    "tms_get_enable_cpu_backup": (ctypes.c_bool, ()),
    "tms_set_enable_disk_backup": (None, (ctypes.c_bool,)),
    "tms_get_enable_disk_backup": (ctypes.c_bool, ()),
    "tms_set_cpu_backup_backend": (None, (ctypes.c_char_p,)),
    "tms_get_cpu_backup_backend": (ctypes.c_char_p, ()),
}

_lock = threading.Lock()
_library: Optional[ctypes.CDLL] = None  # once found; written under _lock


# ---- finding the library ---------------------------------------------------------------------


def library_path() -> str:
    """Absolute path of libebb.so, for LD_PRELOAD: the one that was installed with this package,
    that of the source tree which holds the package, or the one that this process has loaded.

    Raises NotLoaded when there is none.
    """
    package = pathlib.Path(__file__).resolve().parent
    for candidate in (package / "lib" / _IN_FOLDER, package.parents[1] / "dist" / "lib" / _IN_FOLDER):
        if candidate.is_file():
            return str(candidate)
    process = ctypes.CDLL(None)
    if hasattr(process, "ebb_version"):
        return _path_of(process)
    raise NotLoaded(
        "this installation of the Python package ebb carries no libebb.so: install the wheel that "
        "`make wheel` builds, or put the path of dist/lib/torch_memory_saver/libebb.so into LD_PRELOAD"
    )


def _path_of(library: ctypes.CDLL) -> str:
    """The file that holds a loaded library's ebb_version."""
    address = ctypes.cast(library.ebb_version, ctypes.c_void_p).value or 0
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            begin, end = (int(part, 16) for part in fields[0].split(b"-"))
            if begin <= address < end and len(fields) == 6:
                return os.fsdecode(fields[5].rstrip(b"\n"))
    raise NotLoaded("the file of the loaded libebb.so is not in /proc/self/maps")


def library() -> ctypes.CDLL:
    """The library in this process, found once. Raises NotLoaded."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                process = ctypes.CDLL(None)
                if not hasattr(process, "ebb_version"):
                    raise NotLoaded(_not_preloaded())
                _library = declare(process, FUNCTIONS)
    return _library


def load(path: str) -> ctypes.CDLL:
    """Loads the library from a file when it is not in the process. Other functions that allocate
    are then not hooked: only memory of tms_torch_malloc is managed."""
    global _library
    with _lock:
        if _library is None:
            process = ctypes.CDLL(None)
            if not hasattr(process, "ebb_version"):
                try:
                    process = ctypes.CDLL(path)
                except OSError as err:
                    raise NotLoaded(f"cannot load libebb.so: {err}") from err
            _library = declare(process, FUNCTIONS)
        return _library


def _not_preloaded() -> str:
    refused = os.environ.get("EBB_RAY_REFUSED")  # see ray.py
    if refused:
        reason = " ".join(line[len("ebb: "):] if line.startswith("ebb: ") else line for line in refused.splitlines())
        return f"ebb exec refused to start this worker on {os.uname().nodename}, so nothing is managed: {reason}"
    value = os.environ.get("LD_PRELOAD")
    text = f"ebb's library is not loaded in process {os.getpid()} (LD_PRELOAD={'not set' if value is None else repr(value)})"
    try:
        path = library_path()
    except NotLoaded:
        path = "/path/to/libebb.so"
    return f"{text}: start the program with `ebb run --offload-train` or `ebb exec --offload-train`, or with LD_PRELOAD={path}"


def declare(found: ctypes.CDLL, functions: Functions) -> ctypes.CDLL:
    for name, (result, arguments) in functions.items():
        try:
            function = getattr(found, name)
        except AttributeError:
            version = found.ebb_version
            version.restype = ctypes.c_char_p
            raise NotLoaded(
                f"{_path_of(found)} (version {version().decode()}) has no {name}: "
                "it is older than this Python package; install both from one build"
            ) from None
        function.restype = result
        function.argtypes = arguments
    return found


# ---- calls and their errors ------------------------------------------------------------------


def check(code: int, result: Optional[Result] = None) -> None:
    """Raises the exception of a code that is not EBB_OK. On the thread that made the call."""
    if code != 0:
        _raise_last(code, result)


def _raise_last(code: int, result: Optional[Result]) -> NoReturn:
    text = last_error("ebb_last_error").decode(errors="replace") or f"error {code}"
    details: Any = {}
    try:
        details = json.loads(last_error("ebb_last_error_json"))
    except ValueError:
        pass  # the text and the code are there all the same
    error = from_code(code, text, details if isinstance(details, dict) else {})
    if isinstance(error, PartialPause):
        error.result = result
    raise error


def last_error(function: str) -> bytes:
    """What ebb_last_error or ebb_last_error_json says to this thread."""
    call = getattr(library(), function)
    buffer = ctypes.create_string_buffer(call(None, 0) + 1)
    call(buffer, len(buffer))
    return buffer.value


Tags = Union[None, str, Iterable[str]]


def tag_list(tags: Tags) -> Optional[Tuple[Any, int]]:
    """(char *const *, their number) for C. None where no tag is named, so that there is nothing
    to do: C takes an empty list for everything."""
    if tags is None:
        return None, 0
    try:
        several = (tags,) if isinstance(tags, str) else tuple(tags)
    except TypeError:
        raise InvalidArgument(f"tags are a str, several of them, or None, not {tags!r}") from None
    names = [encode_tag(tag) for tag in several]
    if not names:
        return None
    return (ctypes.c_char_p * len(names))(*names), len(names)


def encode_tag(tag: str) -> bytes:
    if not isinstance(tag, str):
        raise InvalidArgument(f"a tag is a str, not {type(tag).__name__}: {tag!r}")
    name = tag.encode("utf-8", "surrogateescape")
    if not name or b"\0" in name:
        raise InvalidArgument(f"a tag is not empty and holds no zero byte: {tag!r}")
    return name
