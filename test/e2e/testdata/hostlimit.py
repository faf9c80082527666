"""hostlimit.py: this process is in a memory cgroup that leaves too little for its CPU backups. A pause
is refused with the numbers, by name of the cgroup, and the process goes on; what fits is parked.

hostlimit.py BACKEND CGROUP"""

import sys

from gpu import *

backend, cgroup = sys.argv[1:]
ebb = Ebb()
memory = {}
for tag, size in ("small", 24 * MiB), ("large", 240 * MiB):
    with ebb.region(tag=tag, backup="cpu", backend=backend):
        address = malloc(size)
    memory[address] = Pattern(tag, size)
    memory[address].write(address)


def check():
    for address, pattern in memory.items():
        pattern.check(address)


held = free_memory()
for _ in range(2):
    code, _ = ebb.pause()
    assert code == HOST_MEMORY, (code, ebb.error())
    text = ebb.error()
    assert "\n" not in text and f"cgroup {cgroup} allows 512.0 MiB" in text and "needed" in text and "left" in text, text
    assert free_memory() == held and ebb.status()["bytes_paused"] == 0
    check()
print(text)
ebb.must_pause("small")
ebb.must_resume()
check()
