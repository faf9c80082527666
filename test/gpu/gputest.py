"""What the GPU tests share: device memory through the CUDA runtime that PyTorch loaded, and hashes of
device memory; with it come reporting.py and ebbtest.py.
"""

import ctypes
import os
import threading

import torch

from ebbtest import *
from reporting import *

# What streams and code that ebb loads at its first pause may take of the device.
DRIVER_OWN = 32 * MiB
GiB = 1 << 30


def library(name):
    """Path of a library that this process has loaded."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if os.path.basename(path).startswith(name):
                return path
    raise LookupError(f"{name} is not loaded")


torch.cuda.init()
CUDART = library("libcudart.so")
if PRELOADED:
    PROCESS.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
    PROCESS.cudaFree.argtypes = [ctypes.c_void_p]


def malloc(size):
    """Address of new device memory from the hooked cudaMalloc."""
    pointer = ctypes.c_void_p()
    code = PROCESS.cudaMalloc(ctypes.byref(pointer), size)
    if code != 0:
        raise MemoryError(f"cudaMalloc of {size} bytes: {code}")
    return pointer.value


def free(address):
    code = PROCESS.cudaFree(address)
    assert code == 0, f"cudaFree: {code}"


def view(address, size, dtype=torch.uint8):
    """A tensor over device memory that somebody else owns."""
    typestr = {torch.uint8: "|u1", torch.int64: "<i8", torch.float32: "<f4"}[dtype]
    count = size // torch.empty((), dtype=dtype).element_size()

    class Interface:
        __cuda_array_interface__ = {"shape": (count,), "typestr": typestr, "data": (address, False), "version": 2}

    tensor = torch.as_tensor(Interface(), device="cuda")
    assert tensor.data_ptr() == address
    return tensor


def fill_random(tensor, seed):
    """Random bytes, some gigabytes per second."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    flat = tensor.view(torch.uint8)
    for part in flat.split(256 * MiB):
        part.copy_(torch.randint(0, 256, (part.numel(),), dtype=torch.uint8, device="cuda", generator=generator))


def fingerprint(tensor):
    """A number that depends on every byte of a contiguous tensor and on its place. Integer
    arithmetic only, so that it is the same each time."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    whole = flat.numel() // 8 * 8
    total = sum(int(byte) << (8 * i) for i, byte in enumerate(flat[whole:].tolist()))
    place = 1
    for part in flat[:whole].view(torch.int64).split(32 * MiB):
        weights = torch.arange(place, place + part.numel(), dtype=torch.int64, device="cuda")
        weights.mul_(-7046029254386353131).bitwise_or_(1)  # odd, so that no bit is lost
        total += int((part ^ (part >> 29)).mul_(weights).sum())
        place += part.numel()
    return total % (1 << 64)


class HostMemory:
    """How far pauses and resumes make this process's own memory grow. Only what grows inside
    `with` counts: PyTorch loads code of its own at other times."""

    def __init__(self):
        self.kept = 0  # growth that earlier windows left
        self.peak = 0  # highest growth at any moment

    def __enter__(self):
        self._begin, self._done = private_memory(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self):
        while not self._done.wait(0.002):
            self.peak = max(self.peak, self.kept + private_memory() - self._begin)

    def __exit__(self, *_):
        self._done.set()
        self._thread.join()
        self.kept += private_memory() - self._begin
        self.peak = max(self.peak, self.kept)
