"""operated.py ADDRESS: a rank that an operator looks at and commands from outside.

It makes memory of three tags: "weights" with disk backup, a third of it zero, "cache" with backup in host memory, and
"scratch" without backup. Then it is idle (ebb_idle_begin) while it waits for the next word from the test that listens at
ADDRESS:

    check   waits until the memory may be used, and says whether it holds what was written
    busy    is no longer idle, and comes to no safe point
    idle    is idle again
    pid     says its process
    pause   pauses by itself, without anybody's asking
    resume  resumes by itself
    quit    ends
"""

import os
import socket
import sys

from gpu import *

host, port = sys.argv[1].rsplit(":", 1)
rank = int(os.environ["RANK"])
ebb = Ebb()
memory = {}


def make(tag, backup, size, zero=0):
    """Managed memory of size bytes, of which the first ones are zero."""
    with ebb.region(tag, backup):
        address = malloc(size)
    write(address, bytes(size))
    pattern = Pattern(16 * rank + len(memory), size - zero)
    pattern.write(address + zero)
    if backup != "none":
        memory[address + zero] = pattern


make("weights", "disk", 12 * MiB, zero=4 * MiB)
make("weights", "disk", 3 * MiB + 4097)
make("cache", "cpu", 6 * MiB)
make("scratch", "none", 2 * MiB)
idle = False


def be_idle(wanted):
    global idle
    if wanted != idle:
        code = ebb.lib.ebb_idle_begin() if wanted else ebb.lib.ebb_idle_end()
        assert code == OK, ebb.error()
        idle = wanted


def check():
    be_idle(False)
    for address, pattern in memory.items():
        pattern.check(address)
    be_idle(True)
    return "intact"


with socket.create_connection((host, int(port))) as connection, connection.makefile("rw", encoding="ascii") as test:
    be_idle(True)
    print(rank, file=test, flush=True)
    for line in test:
        word = line.strip()
        if word == "quit":
            break
        answer = {"check": check, "busy": lambda: be_idle(False), "idle": lambda: be_idle(True), "pid": lambda: str(os.getpid()),
                  "pause": lambda: str(ebb.must_pause().bytes), "resume": lambda: str(ebb.must_resume().bytes)}[word]()
        print(answer or "ok", file=test, flush=True)
    be_idle(False)
