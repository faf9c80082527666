"""swap_rank.py ADDRESS MIB: a rank that others hand the device over to and from.

It takes MIB of managed memory, fills it, and is idle (ebb_idle_begin) while it waits for the next word
from the test that listens at ADDRESS:

    check   waits until the memory may be used, and says whether it holds what was written
    busy    is no longer idle, and comes to no safe point
    idle    is idle again
    pid     says which process it is
    where   says how many bytes are active and paused
    quit    ends
"""

import os
import socket
import sys

from gpu import *

host, port = sys.argv[1].rsplit(":", 1)
size = int(sys.argv[2]) * MiB
rank = int(os.environ["RANK"])
ebb = Ebb()
addresses = [malloc(size // 2), malloc(size // 2)]
patterns = [Pattern(2 * rank + i, size // 2) for i in range(2)]
for address, pattern in zip(addresses, patterns):
    pattern.write(address)
idle = False


def be_idle(wanted):
    global idle
    if wanted != idle:
        code = ebb.lib.ebb_idle_begin() if wanted else ebb.lib.ebb_idle_end()
        assert code == OK, ebb.error()
        idle = wanted


def check():
    be_idle(False)
    for address, pattern in zip(addresses, patterns):
        pattern.check(address)
    be_idle(True)
    return "intact"


def where():
    status = ebb.status()
    return f"{status['bytes_active']} {status['bytes_paused']}"


with socket.create_connection((host, int(port))) as connection, connection.makefile("rw", encoding="ascii") as test:
    be_idle(True)
    print(rank, file=test, flush=True)
    for line in test:
        word = line.strip()
        if word == "quit":
            break
        answer = {"check": check, "where": where, "pid": os.getpid, "busy": lambda: be_idle(False), "idle": lambda: be_idle(True)}[word]()
        print(answer or "ok", file=test, flush=True)
    be_idle(False)
