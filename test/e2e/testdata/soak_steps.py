"""soak_steps.py SEED REPORTS TERM FILES PAUSE RESUME: ranks that park and resume, once at least, until they are
told to end.
In rank 0 file calls get the faults FILES, driver calls the faults PAUSE while its second pause runs and RESUME
while its second resume runs. TERM is what rank 0 does at SIGTERM: it dies ("dies"), or ends when it has checked
its memory ("ends"), as the others do.

REPORTS gets pid-<rank>, cycles-<rank> (how many it has made) and <rank> ("right": all was right to the end)."""

import ctypes
import os
import random
import signal
import sys

from gpu import *

seed, reports, term, files, pause, resume = sys.argv[1:]
rank = int(os.environ["RANK"])
rng = random.Random(f"{seed} {rank}")
ended = False


def end(*_):
    global ended
    ended = True


def report(name, text):
    path = os.path.join(reports, name)
    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(text)
    os.rename(path + ".new", path)


def during(faults, call):
    if rank == 0 and faults:
        assert driver.softgpu_set_fault(faults.encode()) == 0, faults
    call()
    assert driver.softgpu_set_fault(None) == 0


if rank != 0 or term == "ends":
    signal.signal(signal.SIGTERM, end)
if rank == 0 and files:
    os.environ["EBB_FAULT_FILES"] = files  # before the engine is loaded
ebb = Ebb()
driver = ctypes.CDLL("libcuda.so.1")
memory = {malloc(size): size for size in (rng.randrange(MiB, 3 * MiB) for _ in range(3))}
report(f"pid-{rank}", str(os.getpid()))
cycle = 0
while cycle == 0 or not ended:
    patterns = {address: Pattern(f"{seed} {rank} {cycle} {address}", size) for address, size in memory.items()}
    for address, pattern in patterns.items():
        pattern.write(address)
    during(pause if cycle == 1 else "", ebb.must_pause)
    during(resume if cycle == 1 else "", ebb.must_resume)
    for address, pattern in patterns.items():
        pattern.check(address)
    cycle += 1
    report(f"cycles-{rank}", str(cycle))
for address in memory:
    free(address)
report(str(rank), "right")
