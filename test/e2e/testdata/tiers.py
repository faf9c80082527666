"""tiers.py BUDGET_MIB CYCLES KIND: disk backups over a budget of host memory and several directories, as the
launcher set them up. Grows in the first cycle. BUDGET_MIB auto: all of it fits into host memory. KIND killed:
dies while parked."""

import os
import signal
import sys

from gpu import *

budget, cycles, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dirs = os.environ.get("EBB_DISK_DIRS", os.environ["TMS_DISK_BACKUP_DIR"]).split(":")
ebb = Ebb()
memory = {}


def grow(count):
    with ebb.region(backup="disk"):
        for _ in range(count):
            size = (3 + 5 * len(memory)) * MiB + 4097 * len(memory)
            address = malloc(size)
            memory[address] = Pattern(len(memory), size)
            memory[address].write(address)


grow(4)
for cycle in range(cycles):
    total = sum(pattern.size for pattern in memory.values())
    ebb.must_pause()
    status = ebb.status()
    # Whole blocks lie here or there.
    host = status["host"]["bytes"]
    sizes = [sum(backup_files(d).values()) for d in dirs]
    if budget == "auto":
        assert host >= total and not any(sizes), (total, host, sizes)
    else:
        assert 0 < host <= int(budget) * MiB and all(sizes), (host, sizes)
        assert host + sum(sizes) >= total, (total, host, sizes)
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    ebb.must_resume()
    for address, pattern in memory.items():
        pattern.check(address)
        pattern = memory[address] = Pattern(pattern.size + cycle, pattern.size)
        pattern.write(address)
    if cycle == 0:
        grow(2)
print("host", status["host"], "disks", sizes)
