"""endurance_cycles.py RETAIN: 200 cycles of every backup mode, beside memory that comes and goes,
take no more of the host at their end than at their beginning."""

import os
import sys

from endurance_common import *

WARM_UP, CYCLES = 20, 200
# Go gives memory back when it sees fit, and Python's arenas move: that much is no leak of 200 cycles
# that each move 20 MiB. Everything else is counted exactly.
TOLERANCE = {"resident": 4 * MiB, "shared": 1 * MiB, "mappings": 8, "descriptors": 0, "threads": 2, "disk bytes": 0, "inodes": 0}

disk = os.environ["E2E_DISK"]
ebb = Ebb()
ebb.lib.tms_set_retain_cpu_backup(sys.argv[1] == "retain")


def make(mode, seed, size):
    with ebb.region(tag=mode, **MODES[mode]):
        address = malloc(size)
    pattern = Pattern(seed, size)
    pattern.write(address)
    return mode, address, pattern


def check(memory):
    for mode, address, pattern in memory:
        if mode != "none":
            pattern.check(address)


memory = [make(mode, f"{mode} {size}", size) for mode in MODES for size in (511, 2 * MiB, 2 * MiB + 77)]
paused, active = [], []
for cycle in range(WARM_UP + CYCLES):
    passing = [make(mode, cycle, MiB + 1) for mode in MODES]
    if cycle % 2:
        assert ebb.must_pause().allocations == len(memory) + len(passing)
    else:
        for mode in MODES:
            assert ebb.must_pause(mode).allocations == 4
    paused.append(usage(disk))
    # Half of what passes by is freed paused.
    for _, address, _ in passing[cycle % 2::2]:
        free(address)
    if cycle % 3:
        ebb.must_resume()
    else:
        for mode in reversed(MODES):
            ebb.must_resume(mode)
    check(memory)
    check(passing[1 - cycle % 2::2])
    for _, address, _ in passing[1 - cycle % 2::2]:
        free(address)
    active.append(usage(disk))

must_be_flat("paused", paused[WARM_UP:], TOLERANCE)
must_be_flat("active", active[WARM_UP:], TOLERANCE)
for _, address, _ in memory:
    free(address)
