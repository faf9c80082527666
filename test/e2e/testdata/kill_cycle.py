"""kill_cycle.py SEED REPORTS: ranks that park and resume. Rank 0 kills itself at a random moment of its
second pause and resume, and keeps in REPORTS/phase-0 what it is doing; the others go on until they are told
to end, and say in REPORTS/<rank> that they had the right content to the end."""

import mmap
import os
import random
import signal
import sys
import threading
import time

from gpu import *

seed, reports = sys.argv[1:]
rank = int(os.environ["RANK"])
rng = random.Random(f"{seed} {rank}")
ended = False
PHASES = ["writes", "pauses", "is parked", "resumes", "checks"]
with open(os.path.join(reports, f"phase-{rank}"), "wb+") as file:
    file.truncate(mmap.PAGESIZE)
    phase = mmap.mmap(file.fileno(), mmap.PAGESIZE)


def end(*_):
    global ended
    ended = True


signal.signal(signal.SIGTERM, end)
ebb = Ebb()
memory = {malloc(size): size for size in (rng.randrange(1, 3 * MiB) for _ in range(4))}


def report(name, text):
    path = os.path.join(reports, name)
    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(text)
    os.rename(path + ".new", path)


def cycle(number, paused=lambda: None):
    """Writes, parks, resumes and checks; returns the time from the pause to the end of the resume."""
    patterns = {address: Pattern(f"{seed} {rank} {number} {address}", size) for address, size in memory.items()}

    def enter(name):
        phase[0] = PHASES.index(name)

    enter("writes")
    for address, pattern in patterns.items():
        pattern.write(address)
    enter("pauses")
    begin = time.monotonic()
    paused()
    ebb.must_pause()
    enter("is parked")
    time.sleep(0.02)
    enter("resumes")
    ebb.must_resume()
    length = time.monotonic() - begin
    enter("checks")
    for address, pattern in patterns.items():
        pattern.check(address)
    return length


def kill_within(length):
    """From now on the process may be killed at any moment, one as likely as another."""
    delay = rng.random() * length

    def kill():
        time.sleep(delay)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=kill).start()


length = cycle(0)
report(f"ready-{rank}", "")
if rank == 0:
    while not all(os.path.exists(os.path.join(reports, f"ready-{other}")) for other in range(int(os.environ["WORLD_SIZE"]))):
        time.sleep(0.001)
    cycle(1, lambda: kill_within(length))
number = 2
while not ended:
    cycle(number)
    number += 1
report(str(rank), "right")
