"""frozen.py DISK CONTROL READS: a rank whose disk freezes during a pause, during a resume (READS true: the
disk freezes for reads too) and at its exit. What is to be done to the disk is asked for by a file in CONTROL."""

import itertools
import os
import sys
import threading
import time

from gpu import *

disk, control, reads = sys.argv[1], sys.argv[2], sys.argv[3] == "true"
ebb = Ebb()
asked = itertools.count()


def ask(what):
    path = os.path.join(control, f"{next(asked)}-{what}")
    open(path, "w").close()
    while not os.path.exists(path + ".done"):
        time.sleep(0.01)


def until(so):
    while not so():
        time.sleep(0.01)


def hangs(move):
    """A pause or resume that has no answer, while other calls go on. Its error line."""
    over, rounds = threading.Event(), 0

    def others():
        nonlocal rounds
        while not over.is_set():
            with ebb.region(tag="other"):
                free(malloc(2 * MiB))
            ebb.status()
            rounds += 1

    thread = threading.Thread(target=others)
    thread.start()
    code, _ = move("t")
    error = ebb.error()
    over.set()
    thread.join()
    assert code == TIMEOUT and disk in error, (code, error)
    assert rounds > 1, "other calls waited for the disk"
    quarantined = ebb.status()["quarantined"]
    assert quarantined["threads"] > 0 and quarantined["paths"][0].startswith(disk), quarantined
    print(error)
    print(quarantined)


def thaw():
    ask("thaw")
    until(lambda: ebb.status()["quarantined"]["threads"] == 0)


size = 40 * MiB + 4097
with ebb.region(tag="t", backup="disk"):
    address = malloc(size)
for seed in range(2):  # the first pause, and one that overwrites files
    pattern = Pattern(seed, size)
    pattern.write(address)
    ask("freeze")
    hangs(ebb.pause)
    assert ebb.status()["bytes_active"] == size
    pattern.check(address)
    thaw()
    pattern = Pattern(10 + seed, size)
    pattern.write(address)
    ebb.must_pause("t")
    ebb.must_resume("t")
    pattern.check(address)

if reads:
    ebb.must_pause("t")
    ask("freeze")
    hangs(ebb.resume)
    assert ebb.status()["bytes_paused"] == size
    thaw()
    ebb.must_resume("t")
    pattern.check(address)

until(lambda: len(backup_files(disk)) == 1)  # those that were given up have gone
ebb.must_pause("t")
ask("freeze")
