"""swap_rank.py ADDRESS MIB: a rank that others hand the device over to and from.

It takes MIB of managed memory, fills it, and does what the test at ADDRESS says: the words of commands.py, and

    pid     says which process it is
    where   says how many bytes are active and paused
"""

import os
import sys

from commands import carry_out
from gpu import *

size = int(sys.argv[2]) * MiB
rank = int(os.environ["RANK"])
ebb = Ebb()
memory = {malloc(size // 2): Pattern(2 * rank + i, size // 2) for i in range(2)}
for address, pattern in memory.items():
    pattern.write(address)


def where():
    status = ebb.status()
    return f"{status['bytes_active']} {status['bytes_paused']}"


carry_out(sys.argv[1], rank, ebb, memory, {"where": where, "pid": os.getpid})
