"""endurance_resident.py BACKEND RETAIN: what the cpu target holds of the host before, during and
after a cycle of 512 MiB."""

import ctypes
import sys

from endurance_common import *

backend, retain = sys.argv[1], sys.argv[2] == "retain"
SIZES = [64 * MiB] * 7 + [64 * MiB - 4097, 4097]
PARKED = sum(SIZES)
SLACK = 64 * MiB
assert PARKED == 512 * MiB
ebb = Ebb()
ebb.lib.tms_set_retain_cpu_backup(retain)
with ebb.region(backup="cpu", backend=backend):
    memory = [(malloc(size), Pattern(seed, size)) for seed, size in enumerate(SIZES)]


def same(pointer, pattern):
    return all(ctypes.string_at(pointer + begin, len(part)) == part for begin, part in pattern._parts())


def pointers():
    return [ebb.lib.tms_get_cpu_backup_pointer(address, pattern.size) for address, pattern in memory]


for cycle in range(2):
    # What is not new does not move.
    memory = [(address, Pattern(100 * cycle + i, pattern.size)) for i, (address, pattern) in enumerate(memory)]
    for address, pattern in memory:
        pattern.write(address)
        pattern.check(address)  # resident, as far as device memory of the software driver is
    before = resident()
    private = resident("RssAnon", "RssFile")
    assert ebb.must_pause().host_bytes == PARKED
    assert all(same(pointer, pattern) for pointer, (_, pattern) in zip(pointers(), memory, strict=True))
    if not (retain and cycle):  # it is there from the first cycle on
        assert resident("RssAnon", "RssFile") - private >= PARKED - SLACK, "the backup is nowhere"
    assert ebb.status()["host_bytes"] >= PARKED
    ebb.must_resume()
    for address, pattern in memory:
        pattern.check(address)
    grown = resident() - before
    print(f"cycle {cycle}: resident memory grew by {grown / MiB:.1f} MiB, parked were {PARKED / MiB:.0f} MiB")
    if retain:
        assert cycle or grown >= PARKED - SLACK, "the backup that is to be kept is gone"
        assert grown <= (0 if cycle else PARKED) + SLACK, "more than one backup is kept"
        assert all(same(pointer, pattern) for pointer, (_, pattern) in zip(pointers(), memory, strict=True))
        assert ebb.status()["host_bytes"] >= PARKED
    else:
        assert grown <= SLACK, "the backup is still held"
        assert pointers() == [None] * len(memory)
        assert ebb.status()["host_bytes"] == 0, ebb.status()
before = resident()
for address, _ in memory:
    free(address)
released = before - resident()
assert released >= (2 if retain else 1) * PARKED - SLACK, f"freed memory is held: {released / MiB:.1f} MiB came back"
