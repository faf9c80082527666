"""What the victims of the end-to-end tests share: device memory through the CUDA runtime.

A victim is an ordinary process with libebb.so preloaded and softgpu as its driver. The runtime is
loaded privately, as PyTorch's is; the hooked functions are those of the preloaded library.
"""

import ctypes
import random

from ebbtest import *

H2D, D2H = 1, 2

_cudart = ctypes.CDLL("libcudart.so.13")
_hooked = PROCESS if PRELOADED else _cudart

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
