"""exiting.py thread|signal SEED: a process that ends while the engine is at work, with the status
that it chose: 3 from its main thread beside another one's pauses and resumes, 14 from a signal
handler that interrupts the engine's caller itself."""

import ctypes
import random
import signal
import sys
import threading
import time

from gpu import *

kind, rng = sys.argv[1], random.Random(sys.argv[2])
ebb = Ebb()
with ebb.region(backup="disk"):
    memory = [malloc(4 * MiB) for _ in range(2)]
for seed, address in enumerate(memory):
    Pattern(seed, 4 * MiB).write(address)
at_work = threading.Event()


def cycles():
    while True:
        at_work.set()
        ebb.lib.tms_pause(None)
        ebb.lib.tms_resume(None)


if kind == "thread":
    threading.Thread(target=cycles, daemon=True).start()
    at_work.wait()
    time.sleep(rng.uniform(0, 0.4))  # any moment will do
    # As the exit of a C program: no Python code runs before its exit handlers.
    ctypes.PyDLL(None).exit(3)
else:
    libc = ctypes.CDLL(None)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(signal.SIGALRM, ctypes.cast(libc.exit, ctypes.c_void_p))  # exit(SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.02, 0.4))
    cycles()
