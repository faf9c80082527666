"""endurance_cycles.py RETAIN: 200 cycles of every backup mode, beside memory that comes and goes,
take no more of the host at their end than at their beginning."""

import os
import sys

from endurance_common import *

WARM_UP, CYCLES = 60, 200
# Go's heap and threads settle in the warm-up. After it Go starts a thread now and then, with three
# mappings, and this program keeps its samples. One backup of the smallest memory that passes by,
# forgotten in each cycle, would be 12 MiB.
TOLERANCE = {"resident": 6 * MiB, "shared": 1 * MiB, "mappings": 20, "descriptors": 0, "threads": 5, "disk bytes": 0, "inodes": 0}
SIZES = (511, 70_000, 2 * MiB + 77)

disk = os.environ["E2E_DISK"]
ebb = Ebb()
ebb.lib.tms_set_retain_cpu_backup(sys.argv[1] == "retain")


def make(mode, pattern):
    with ebb.region(tag=mode, **MODES[mode]):
        address = malloc(pattern.size)
    pattern.write(address)
    return mode, address, pattern


def check(memory):
    for mode, address, pattern in memory:
        if mode != "none":
            pattern.check(address)


memory = [make(mode, Pattern(f"{mode} {size}", size)) for mode in MODES for size in SIZES]
passes = {mode: Pattern(mode, 65_537) for mode in MODES}
paused, active = [], []
for cycle in range(WARM_UP + CYCLES):
    passing = [make(mode, pattern) for mode, pattern in passes.items()]
    if cycle % 2:
        assert ebb.must_pause().allocations == len(memory) + len(passing)
    else:
        for mode in MODES:
            assert ebb.must_pause(mode).allocations == len(SIZES) + 1
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
