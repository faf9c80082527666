"""Allocates, and goes through cycles of pause and resume: argv[1] of them. With argv[2], a file, it then pauses,
makes the file with its rank in the name, and waits until the file is gone. It ignores SIGUSR1."""

import ctypes
import os
import pathlib
import signal
import sys
import time

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


signal.signal(signal.SIGUSR1, signal.SIG_IGN)
noise, zeros = allocate(16 * PART), allocate(8 * PART)
fill(zeros, 8 * PART, bytes(PART))
for _ in range(int(sys.argv[1])):
    fill(noise, 16 * PART, os.urandom(PART))
    ebb.tms_pause(None)
    ebb.tms_resume(None)
if len(sys.argv) > 2:
    ebb.tms_pause(None)
    there = pathlib.Path(sys.argv[2] + os.environ["RANK"])
    there.touch()
    while there.exists():
        time.sleep(0.01)
    ebb.tms_resume(None)
