"""What the tests of two GPUs share: CUDA without PyTorch, ranks that meet, and a deadline for each step.
Standard library only. MULTI_CUDART is the path of the CUDA runtime."""

import ctypes
import faulthandler
import json
import os
import socket
import time

from ebbtest import *
from reporting import *

GiB = 1 << 30
# What streams and code that ebb loads at its first pause may take of a device.
DRIVER_OWN = 32 * MiB
STEP = 60  # seconds that a step of a test has

RANK, LOCAL_RANK, WORLD = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 1)))


def deadline(seconds=STEP):
    """From here on this process has so long, until the next call; then it says where it hangs, and ends.
    It is ended by a thread that needs neither Python's lock nor the GPU."""
    faulthandler.dump_traceback_later(seconds, exit=True)


class Meeting:
    """The ranks of one node, which exchange small values through a socket: host memory only, so that
    they meet even when their GPUs hang."""

    def __init__(self, path):
        if RANK == 0:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(path)
                server.listen(WORLD)
                server.settimeout(2 * STEP)
                others = [server.accept()[0] for _ in range(WORLD - 1)]
            os.unlink(path)
        else:
            others = [self._connected(path)]
        for other in others:
            other.settimeout(2 * STEP)
        self.files = [other.makefile("rw", encoding="utf-8") for other in others]

    @staticmethod
    def _connected(path):
        end = time.monotonic() + 2 * STEP
        while True:
            it = socket.socket(socket.AF_UNIX)
            try:
                it.connect(path)
                return it
            except OSError:  # rank 0 is not there yet
                it.close()
                if time.monotonic() >= end:
                    raise
                time.sleep(0.01)

    @staticmethod
    def _send(file, value):
        file.write(json.dumps(value) + "\n")
        file.flush()

    @staticmethod
    def _receive(file):
        line = file.readline()
        if not line:
            raise ConnectionError("another rank has ended")
        return json.loads(line)

    def exchange(self, value=None):
        """The values of all ranks, in the order of the ranks. Returns in all of them at about the same moment."""
        if RANK != 0:
            self._send(self.files[0], [RANK, value])
            return self._receive(self.files[0])
        values = [value] + [None] * (WORLD - 1)
        for file in self.files:
            rank, theirs = self._receive(file)
            values[rank] = theirs
        for file in self.files:
            self._send(file, values)
        return values


class CudaError(Exception):
    pass


class Cuda:
    """CUDA as a program linked with it sees it: a preloaded library's functions come first. The runtime's
    functions are global, the driver's are looked up in its library."""

    H2D, D2H, DEFAULT = 1, 2, 4

    def __init__(self):
        ctypes.CDLL(os.environ["MULTI_CUDART"], mode=ctypes.RTLD_GLOBAL)
        self.driver = ctypes.CDLL("libcuda.so.1")
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        PROCESS.cudaMalloc.argtypes = [pointer, size]
        PROCESS.cudaFree.argtypes = [pointer]
        PROCESS.cudaMemcpy.argtypes = [pointer, pointer, size, ctypes.c_int]

    def __call__(self, name, *arguments):
        """Calls a function, which must succeed."""
        code = getattr(PROCESS if name.startswith("cuda") else self.driver, name)(*arguments)
        if code != 0:
            raise CudaError(f"{name}: {code}")

    def device(self, number):
        """Makes a device current, with its context."""
        self("cudaSetDevice", number)
        self("cudaFree", None)

    def count(self):
        n = ctypes.c_int()
        self("cudaGetDeviceCount", ctypes.byref(n))
        return n.value

    def malloc(self, size):
        address = ctypes.c_void_p()
        self("cudaMalloc", ctypes.byref(address), size)
        return address.value

    def copy(self, to, source, size, kind):
        self("cudaMemcpy", to, source, size, kind)

    def free_memory(self):
        """Bytes that nobody holds of the current device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value


class Content:
    """Random bytes on devices, other ones with each write, and a record of where which are."""

    PART = 64 * MiB
    SLACK = 16 * MiB

    def __init__(self, cuda, part=PART):
        self.cuda, self.part = cuda, part
        self.random = (ctypes.c_char * (part + self.SLACK)).from_buffer_copy(os.urandom(part + self.SLACK))
        self.back = (ctypes.c_char * part)()
        self.libc = ctypes.CDLL(None)
        self.libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self.turn = 0
        self.known = {}  # (address, bytes): address of the same bytes in self.random

    def write(self, address, size):
        for begin in range(0, size, self.part):
            length = min(self.part, size - begin)
            # No two of a million turns begin at the same place.
            self.turn += 1
            source = ctypes.addressof(self.random) + self.turn * 16 * 4099 % self.SLACK
            self.cuda.copy(address + begin, source, length, Cuda.H2D)
            self.known[address + begin, length] = source

    def wrong(self):
        """Places whose bytes are not those that were written."""
        places = []
        for (address, length), source in self.known.items():
            self.cuda.copy(ctypes.addressof(self.back), address, length, Cuda.D2H)
            if self.libc.memcmp(ctypes.addressof(self.back), source, length) != 0:
                places.append(hex(address))
        return places
