"""discarded.py PARKED END: parks bytes that are known again on a raw drive, makes the file PARKED, waits until it
is gone, and ends as END says: "exits", "is killed", or "and ebb are killed"."""

import os
import signal
import sys
import time

from gpu import *

parked, end = sys.argv[1:]
ebb = Ebb()
address = malloc(2 * MiB)
write(address, (b"parked bytes!" * (2 * MiB // 13 + 1))[:2 * MiB])
ebb.must_pause()
with open(parked, "w", encoding="ascii"):
    pass
while os.path.exists(parked):
    time.sleep(0.001)
if end == "and ebb are killed":
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)  # and with it this process
if end == "is killed":
    os.kill(os.getpid(), signal.SIGKILL)
