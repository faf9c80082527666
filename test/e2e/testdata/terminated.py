"""terminated.py WHY: SIGTERM comes for a thread that waits inside the engine, in cudaFree, as long as
it takes: for the device, whose work does not end, or for a pause, whose disk gives no answer. What has
a handler that must not run in Go code waits too; SIGTERM has none, and ends the process."""

import ctypes
import os
import signal
import sys
import threading

from gpu import *

waits_for = sys.argv[1]
disk = os.environ["E2E_DISK"]
ebb = Ebb()
with ebb.region(backup="disk"):
    address = malloc(MiB)
Pattern(1, MiB).write(address)
never = threading.Event()


def held_back():
    """The signals that the main thread holds back."""
    with open(f"/proc/self/task/{threading.main_thread().native_id}/status", encoding="ascii") as status:
        mask = next(int(line.split()[1], 16) for line in status if line.startswith("SigBlk:"))
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def terminate():
    # A thread of softgpu or of this program might take a signal that is the process's.
    while not (signal.SIGALRM in (held := held_back()) and signal.SIGTERM not in held):
        pass
    signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)
    never.wait()


# A handler of C that is not for a stack of its own, as Python's are.
libc = ctypes.CDLL(None)
libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
libc.signal(signal.SIGALRM, ctypes.cast(libc.abs, ctypes.c_void_p))

match waits_for:
    case "device":
        endless = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: never.wait())
        assert ctypes.CDLL("libcudart.so.13").cudaLaunchHostFunc(None, endless, None) == 0
    case "pause":
        threading.Thread(target=ebb.pause, daemon=True).start()
        while not backup_files(disk):
            pass
threading.Thread(target=terminate, daemon=True).start()
print("frees", flush=True)
free(address)
print("freed")
