"""terminated.py WHY: SIGTERM comes for a thread that waits inside the engine, in cudaFree, as long as
it takes: for the device, whose work does not end, or for a pause, whose disk gives no answer. While it
waits for a pause, what has a handler that must not run in Go code waits too, and while it waits for the
device, in the driver, nothing does. SIGTERM has no handler, and ends the process."""

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


def sleeps():
    """Whether the main thread is off the processor, and how often it went off it by itself."""
    with open(f"/proc/self/task/{threading.main_thread().native_id}/status", encoding="ascii") as status:
        fields = {name: value for name, _, value in (line.rstrip().partition(":\t") for line in status)}
    return fields["State"].startswith("S"), fields["voluntary_ctxt_switches"]


def waits_for_the_pause():
    held = held_back()
    return signal.SIGALRM in held and signal.SIGTERM not in held


def waits_for_the_device():
    """It sleeps through many looks, and holds nothing back."""
    first = sleeps()
    return first[0] and all(sleeps() == first for _ in range(1000)) and signal.SIGALRM not in held_back()


def terminate():
    while not (waits_for_the_device if waits_for == "device" else waits_for_the_pause)():
        pass
    # A thread of softgpu or of this program might take a signal that is the process's.
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
