"""Allocates, and goes through cycles of pause and resume: argv[1] of them."""

import ctypes
import os
import sys

cuda = ctypes.CDLL("libcudart.so.13")
ebb = ctypes.CDLL(None)
ebb.tms_pause.argtypes = ebb.tms_resume.argtypes = [ctypes.c_char_p]
PART = 1 << 20


def allocate(size: int) -> int:
    memory = ctypes.c_void_p()
    assert cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(size)) == 0
    assert memory.value
    return memory.value


def fill(address: int, size: int, part: bytes) -> None:
    for offset in range(0, size, PART):
        assert cuda.cudaMemcpy(ctypes.c_void_p(address + offset), part, ctypes.c_size_t(PART), 1) == 0


noise, zeros = allocate(16 * PART), allocate(8 * PART)
fill(zeros, 8 * PART, bytes(PART))
for _ in range(int(sys.argv[1])):
    fill(noise, 16 * PART, os.urandom(PART))
    ebb.tms_pause(None)
    ebb.tms_resume(None)
