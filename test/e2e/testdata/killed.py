"""killed.py SEED: parks and resumes until a second thread kills the process, at a moment that
depends on SEED: somewhere in the first pauses and resumes."""

import os
import random
import signal
import sys
import threading

from gpu import *

rng = random.Random(sys.argv[1])
ebb = Ebb()
with ebb.region(backup="disk"):
    for _ in range(6):
        size = rng.randrange(1, 6 * MiB)
        Pattern(size, size).write(malloc(size))
begun = threading.Event()


def kill():
    begun.wait()
    threading.Event().wait(rng.random() * 0.2)
    os.kill(os.getpid(), signal.SIGKILL)


threading.Thread(target=kill, daemon=True).start()
while True:
    begun.set()
    ebb.must_pause()
    ebb.must_resume()
