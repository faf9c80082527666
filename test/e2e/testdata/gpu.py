"""What the victims of the end-to-end tests share: CUDA and ebb through ctypes.

A victim is an ordinary process with libebb.so preloaded and softgpu as its driver. The hooked
functions are looked up in the global scope, where the preloaded library comes first, as they
are for a program linked with the CUDA runtime. The runtime itself is loaded privately, as
PyTorch's is.
"""

import contextlib
import ctypes
import json
import mmap
import os
import random

MiB = 1 << 20
H2D, D2H = 1, 2

# ebb_code of abi/ebb.h.
OK, INVALID, NOT_MANAGED, STATE, UNKNOWN_TAG, FORKED, CAPTURE, DEVICE, DEVICE_FAULT, DEVICE_MEMORY, \
    HOST_MEMORY, NO_SPACE, IO, CORRUPT, PARTIAL, NOT_LOADED, INTERNAL = range(17)

_cudart = ctypes.CDLL("libcudart.so.13")
_global = ctypes.CDLL(None)
PRELOADED = hasattr(_global, "ebb_version")
_hooked = _global if PRELOADED else _cudart

_hooked.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
_hooked.cudaFree.argtypes = [ctypes.c_void_p]
_cudart.cudaMemcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_cudart.cudaMemGetInfo.argtypes = [ctypes.POINTER(ctypes.c_size_t)] * 2


class CudaError(Exception):
    def __init__(self, call, code):
        super().__init__(f"{call}: {code}")
        self.code = code


def _check(call, code):
    if code != 0:
        raise CudaError(call, code)


def malloc(size):
    """Address of new device memory."""
    pointer = ctypes.c_void_p()
    _check("cudaMalloc", _hooked.cudaMalloc(ctypes.byref(pointer), size))
    return pointer.value


def free(address):
    _check("cudaFree", _hooked.cudaFree(address))


def write(address, data):
    _check("cudaMemcpy", _cudart.cudaMemcpy(address, bytes(data), len(data), H2D))


def read(address, size):
    buffer = ctypes.create_string_buffer(size)
    _check("cudaMemcpy", _cudart.cudaMemcpy(ctypes.addressof(buffer), address, size, D2H))
    return buffer.raw


def free_memory():
    """Device memory, in bytes, that no process holds."""
    available, total = ctypes.c_size_t(), ctypes.c_size_t()
    _check("cudaMemGetInfo", _cudart.cudaMemGetInfo(ctypes.byref(available), ctypes.byref(total)))
    return available.value


class Pattern:
    """Content that differs in every megabyte and from every other pattern."""

    def __init__(self, seed, size):
        self.size = size
        self.base = random.Random(seed).randbytes(MiB)

    def _parts(self):
        for i, begin in enumerate(range(0, self.size, MiB)):
            turn = (i * 4099) % MiB
            yield begin, (self.base[turn:] + self.base[:turn])[:min(MiB, self.size - begin)]

    def write(self, address):
        for begin, part in self._parts():
            write(address + begin, part)

    def check(self, address):
        for begin, part in self._parts():
            assert read(address + begin, len(part)) == part, f"content differs in the MiB at {begin} of {self.size} bytes"


class Result(ctypes.Structure):
    """ebb_result."""
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "struct_size", "allocations", "bytes", "device_bytes", "host_bytes", "disk_bytes", "nanoseconds")]


class Ebb:
    """libebb.so. Only for victims under the preload."""

    def __init__(self):
        lib = self.lib = _global
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
        lib.tms_get_cpu_backup_pointer.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        lib.tms_get_cpu_backup_pointer.restype = ctypes.c_void_p

    @contextlib.contextmanager
    def region(self, tag="default", backup="none", backend="pinned"):
        """Allocations inside are managed, with this tag and backup."""
        self.lib.tms_set_interesting_region(True)
        self.lib.tms_set_current_tag(tag.encode())
        self.lib.tms_set_enable_cpu_backup(backup == "cpu")
        self.lib.tms_set_enable_disk_backup(backup == "disk")
        self.lib.tms_set_cpu_backup_backend(backend.encode())
        try:
            yield
        finally:
            self.lib.tms_set_interesting_region(False)

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
    """{name: size} of the backup files anywhere under directory."""
    found = {}
    for where, _, names in os.walk(directory):
        for name in names:
            if name.endswith(".bak"):
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
