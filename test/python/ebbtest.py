"""What the Python of the end-to-end and the GPU tests shares: libebb.so through ctypes, and what
the kernel says about this process's memory and files. Standard library only.

Functions are looked up in the global scope, where a preloaded library comes first, as they are
for a program linked with the CUDA runtime.
"""

import contextlib
import ctypes
import json
import mmap
import os

MiB = 1 << 20

# ebb_code of abi/ebb.h.
OK, INVALID, NOT_MANAGED, STATE, UNKNOWN_TAG, FORKED, CAPTURE, DEVICE, DEVICE_FAULT, DEVICE_MEMORY, \
    HOST_MEMORY, NO_SPACE, IO, CORRUPT, PARTIAL, NOT_LOADED, INTERNAL, UNMANAGED, TIMEOUT, WRITTEN = range(20)

PROCESS = ctypes.CDLL(None)
PRELOADED = hasattr(PROCESS, "ebb_version")


class Result(ctypes.Structure):
    """ebb_result."""
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "struct_size", "allocations", "bytes", "device_bytes", "host_bytes", "disk_bytes", "nanoseconds",
        "skipped_zero_bytes", "skipped_same_bytes", "skipped_unused_bytes", "kept_bytes", "check_nanoseconds")]


class Ebb:
    """libebb.so. Only for victims under the preload."""

    def __init__(self):
        lib = self.lib = PROCESS
        strings = ctypes.POINTER(ctypes.c_char_p)
        lib.ebb_pause.argtypes = [strings, ctypes.c_size_t, ctypes.c_void_p]
        lib.ebb_resume.argtypes = [strings, ctypes.c_size_t, ctypes.c_double, ctypes.c_void_p]
        lib.ebb_status.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]
        lib.ebb_last_error.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        lib.ebb_last_error.restype = ctypes.c_size_t
        for name in ("tms_pause", "tms_resume", "tms_set_current_tag", "tms_set_disk_backup_dir", "tms_set_cpu_backup_backend"):
            getattr(lib, name).argtypes = [ctypes.c_char_p]
        for name in ("tms_set_interesting_region", "tms_set_enable_cpu_backup", "tms_set_enable_disk_backup", "tms_set_retain_cpu_backup"):
            getattr(lib, name).argtypes = [ctypes.c_bool]
            getattr(lib, name).restype = None
        for name in ("interesting_region", "enable_cpu_backup", "enable_disk_backup"):
            getattr(lib, "tms_get_" + name).restype = ctypes.c_bool
        for name in ("current_tag", "cpu_backup_backend"):
            getattr(lib, "tms_get_" + name).restype = ctypes.c_char_p
        lib.tms_get_cpu_backup_pointer.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        lib.tms_get_cpu_backup_pointer.restype = ctypes.c_void_p

    @contextlib.contextmanager
    def region(self, tag="default", backup="none", backend="pinned"):
        """Allocations inside are managed, with this tag and backup."""
        names = ("interesting_region", "current_tag", "enable_cpu_backup", "enable_disk_backup", "cpu_backup_backend")
        before = [(name, getattr(self.lib, "tms_get_" + name)()) for name in names]
        self.lib.tms_set_interesting_region(True)
        self.lib.tms_set_current_tag(tag.encode())
        self.lib.tms_set_enable_cpu_backup(backup == "cpu")
        self.lib.tms_set_enable_disk_backup(backup == "disk")
        self.lib.tms_set_cpu_backup_backend(backend.encode())
        try:
            yield
        finally:
            for name, value in before:
                getattr(self.lib, "tms_set_" + name)(value)

    def pause(self, *tags):
        """(code, Result) of ebb_pause."""
        result = Result(struct_size=ctypes.sizeof(Result))
        return self.lib.ebb_pause(self._tags(tags), len(tags), ctypes.byref(result)), result

    def resume(self, *tags, timeout=0.0):
        """(code, Result) of ebb_resume."""
        result = Result(struct_size=ctypes.sizeof(Result))
        return self.lib.ebb_resume(self._tags(tags), len(tags), timeout, ctypes.byref(result)), result

    def must_pause(self, *tags):
        code, result = self.pause(*tags)
        assert code == OK, f"pause: {code}: {self.error()}"
        return result

    def must_resume(self, *tags, timeout=0.0):
        code, result = self.resume(*tags, timeout=timeout)
        assert code == OK, f"resume: {code}: {self.error()}"
        return result

    def error(self):
        buffer = ctypes.create_string_buffer(4096)
        self.lib.ebb_last_error(buffer, len(buffer))
        return buffer.value.decode()

    def status(self):
        need = ctypes.c_size_t()
        assert self.lib.ebb_status(None, 0, ctypes.byref(need)) == OK, self.error()
        buffer = ctypes.create_string_buffer(need.value + 4096)
        assert self.lib.ebb_status(buffer, len(buffer), None) == OK, self.error()
        return json.loads(buffer.value)

    @staticmethod
    def _tags(tags):
        return (ctypes.c_char_p * max(1, len(tags)))(*[tag.encode() for tag in tags])


def backup_files(directory):
    """{name: size} of the backup files anywhere under directory. One that goes while this comes to it is not there: what a
    call that hangs has held is removed when the disk answers it, beside whatever else is done."""
    found = {}
    for where, _, names in os.walk(directory):
        for name in names:
            if name.endswith(".bak"):
                with contextlib.suppress(FileNotFoundError):
                    found[name] = os.stat(os.path.join(where, name)).st_size
    return found


def page_cache_bytes(path):
    """How much of a file the kernel holds in memory."""
    size = os.stat(path).st_size
    if size == 0:
        return 0
    page = mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    fd = os.open(path, os.O_RDONLY)
    try:
        where = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    finally:
        os.close(fd)
    assert where != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    try:
        resident = ctypes.create_string_buffer((size + page - 1) // page)
        assert libc.mincore(where, size, resident) == 0, os.strerror(ctypes.get_errno())
        return page * sum(byte & 1 for byte in resident.raw)
    finally:
        libc.munmap(where, size)


def private_memory():
    """RssAnon + RssFile of this process, in bytes: what it takes from the host, page cache of others and softgpu's own memory left out."""
    total = 0
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(("RssAnon:", "RssFile:")):
                total += int(line.split()[1]) * 1024
    return total
