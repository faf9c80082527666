"""operated.py ADDRESS: a rank that an operator looks at and commands from outside.

It makes memory of three tags: "weights" with disk backup, a third of it zero, "cache" with backup in host memory, and
"scratch" without backup. Then it does what the test at ADDRESS says: the words of commands.py, and

    pid     says its process
    pause   pauses by itself, without anybody's asking
    resume  resumes by itself
"""

import os
import sys

from commands import carry_out
from gpu import *

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

carry_out(sys.argv[1], rank, ebb, memory, {
    "pid": os.getpid, "pause": lambda: ebb.must_pause().bytes, "resume": lambda: ebb.must_resume().bytes,
})
