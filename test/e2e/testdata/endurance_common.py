"""What the endurance victims share beyond gpu.py: every backup mode, reads, what a process takes
from its host, and work on streams."""

import ctypes
import os
import statistics

from gpu import *
from gpu import _check, _cudart

D2D = 3

# Arguments of Ebb.region for every backup mode.
MODES = {"disk": dict(backup="disk"), "pinned": dict(backup="cpu"), "mmap": dict(backup="cpu", backend="mmap"), "none": dict(backup="none")}

PROCESS.ebb_read.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
_cudart.cudaHostAlloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_uint]
_cudart.cudaStreamCreateWithFlags.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint]
_cudart.cudaMemcpyAsync.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]


def ebb_read(address, size):
    """(code, bytes) of ebb_read."""
    buffer = ctypes.create_string_buffer(size)
    return PROCESS.ebb_read(address, size, buffer), buffer.raw


def must_ebb_read(ebb, address, size):
    code, data = ebb_read(address, size)
    assert code == OK, f"ebb_read: {code}: {ebb.error()}"
    return data


def pinned_buffer(size):
    """Address of page-locked host memory: copies from it are left to the stream."""
    pointer = ctypes.c_void_p()
    _check("cudaHostAlloc", _cudart.cudaHostAlloc(ctypes.byref(pointer), size, 0))
    return pointer.value


def non_blocking_stream():
    stream = ctypes.c_void_p()
    _check("cudaStreamCreateWithFlags", _cudart.cudaStreamCreateWithFlags(ctypes.byref(stream), 1))
    return stream


def copy_async(to, source, size, kind, stream):
    _check("cudaMemcpyAsync", _cudart.cudaMemcpyAsync(to, source, size, kind, stream))


class Kernel:
    """A kernel of a device image. Arguments of a launch are ctypes values."""

    def __init__(self, image, name):
        free(malloc(1))  # the thread has the device's primary context from here on
        self.driver = ctypes.CDLL("libcuda.so.1")
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        _check("cuModuleLoad", self.driver.cuModuleLoad(ctypes.byref(module), os.fsencode(image)))
        _check("cuModuleGetFunction", self.driver.cuModuleGetFunction(ctypes.byref(self.function), module, name.encode()))

    def launch(self, stream, *arguments):
        pointers = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(argument) for argument in arguments])
        _check("cuLaunchKernel", self.driver.cuLaunchKernel(self.function, 1, 1, 1, 1, 1, 1, 0, stream, pointers, None))


def resident(*kinds):
    """Bytes that are resident in this process: RssAnon, RssFile, RssShmem; all three without kinds."""
    kinds = kinds or ("RssAnon", "RssFile", "RssShmem")
    with open("/proc/self/status", encoding="ascii") as status:
        return sum(int(line.split()[1]) * 1024 for line in status if line.split(":")[0] in kinds)


def usage(directory):
    """What this process takes from its host now, and its files below a directory."""
    bytes_on_disk = inodes = 0
    for where, folders, files in os.walk(directory):
        for name in folders + files:
            bytes_on_disk += os.lstat(os.path.join(where, name)).st_blocks * 512
            inodes += 1
    with open("/proc/self/maps", encoding="utf-8") as maps:
        mappings = sum(1 for _ in maps)
    return {
        "resident": resident("RssAnon", "RssFile"),
        "shared": resident("RssShmem"),
        "mappings": mappings,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "disk bytes": bytes_on_disk,
        "inodes": inodes,
    }


def must_be_flat(moment, samples, tolerance, ends=20):
    """The medians of the first and of the last samples (dicts of usage) differ by no more than
    the tolerance of each kind."""
    for kind, most in tolerance.items():
        first, last = (statistics.median(sample[kind] for sample in part) for part in (samples[:ends], samples[-ends:]))
        print(f"{moment}: {kind} {first:.0f} -> {last:.0f}")
        assert abs(last - first) <= most, f"{moment}: {kind} went from {first:.0f} to {last:.0f}, more than {most} apart"
