"""order.py: any order of calls is safe. Repeats do nothing, impossible things are errors."""

import os

from gpu import *

ebb = Ebb()
disk = os.environ["E2E_DISK"]


def make(seed, tag="a", backup="disk", size=3 * MiB):
    with ebb.region(tag=tag, backup=backup):
        address = malloc(size)
    pattern = Pattern(seed, size)
    pattern.write(address)
    return address, pattern


# Before there is anything.
assert ebb.pause()[0] == OK
assert ebb.resume()[0] == OK
assert ebb.pause("nobody")[0] == UNKNOWN_TAG
assert ebb.resume("nobody")[0] == UNKNOWN_TAG
assert "nobody" in ebb.error(), ebb.error()
assert ebb.lib.tms_pause(b"nobody") == OK
assert ebb.lib.tms_resume(b"nobody") == OK

address, pattern = make(1)
assert ebb.must_resume().allocations == 0, "resume of active memory"
assert ebb.must_pause().allocations == 1
files = backup_files(disk)
assert ebb.must_pause().allocations == 0, "second pause"
assert ebb.must_pause("a").allocations == 0, "second pause by tag"
assert backup_files(disk) == files

# Allocate while paused: new memory is active, and is paused by the next pause.
second, other = make(2)
other.check(second)
assert ebb.must_pause().allocations == 1
third, host = make(3, tag="b", backup="cpu")
assert ebb.must_resume("a").allocations == 2
assert ebb.must_resume("a").allocations == 0, "second resume"
pattern.check(address)
other.check(second)
host.check(third)

# Free while paused: the file goes at once, the rest comes back.
ebb.must_pause()
held = free_memory()
free(second)
assert len(backup_files(disk)) == 1, backup_files(disk)
free(third)
assert free_memory() == held, "paused memory holds no device memory"
assert ebb.must_resume().allocations == 1
pattern.check(address)

# Freed tags stay known: pausing them is nothing to do.
assert ebb.must_pause("b").allocations == 0

# What is not managed.
assert ebb.lib.tms_get_cpu_backup_pointer(0xdead000, 16) is None
assert ebb.error() != ""
free(address)
assert backup_files(disk) == {}

# Sizes that cannot be.
ebb.lib.tms_set_interesting_region(True)
for size in (1 << 62, (1 << 64) - 1):
    try:
        malloc(size)
        raise AssertionError(f"{size} bytes were allocated")
    except CudaError as err:
        assert err.code == 2, err.code  # cudaErrorMemoryAllocation
    after, other = make(4)
    other.check(after)
    free(after)
    ebb.lib.tms_set_interesting_region(True)
