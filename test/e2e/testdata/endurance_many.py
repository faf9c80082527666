"""endurance_many.py COUNT [fault]: many allocations of one granule are paused and resumed while the
process may have few files open. With a fault in most unmaps the error stays readable.

The software driver keeps a descriptor for each allocation while it is active, a GPU's driver does
not. So that ebb's own need shows, the driver gets the numbers from 200 upwards: what a pause may use
is then below a limit of 256, and a resume may use 128 more than the driver will hold."""

import contextlib
import os
import resource
import sys
import time

from endurance_common import *

COUNT = int(sys.argv[1])
GRANULE, LIMIT, RESERVED, OWN = 65_536, 256, 200, 128
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
if hard != resource.RLIM_INFINITY and hard < COUNT + RESERVED + OWN:
    print("skip: the hard limit of open files is too low for the software driver")
    sys.exit(0)
ebb = Ebb()


@contextlib.contextmanager
def descriptors_for_the_driver():
    """Whoever opens much inside gets high numbers; outside, no number above the limit can be had."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (COUNT + RESERVED + OWN, hard))
    taken = []
    while not taken or taken[-1] < RESERVED:
        taken.append(os.open("/dev/null", os.O_RDONLY))
    try:
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, hard))


def content(i):
    return i.to_bytes(4, "little") * 16


def check():
    # Four pages differ from one allocation to the next.
    for i, address in enumerate(memory):
        assert ctypes.string_at(address, 64) == content(i) and ctypes.string_at(address + GRANULE - 64, 64) == content(i + COUNT), i


memory = []
with descriptors_for_the_driver():
    for i in range(COUNT):
        with ebb.region(tag=f"tag {i % 7}", backup="cpu" if i % 2 else "none" if i % 10 == 0 else "disk"):
            memory.append(malloc(GRANULE))
for i, address in enumerate(memory):
    write(address, content(i))
    write(address + GRANULE - 64, content(i + COUNT))


def restore_unkept():
    for i in range(0, COUNT, 10):
        write(memory[i], content(i))
        write(memory[i] + GRANULE - 64, content(i + COUNT))


if "fault" in sys.argv:
    code, result = ebb.pause()
    assert code == PARTIAL, (code, ebb.error())
    assert 0 < result.allocations < COUNT
    text = ebb.error()
    print(f"error of {len(text)} bytes: {text}")
    assert len(text) < 2000 and str(COUNT - result.allocations - 1)[:2] in text, text
    assert ebb.status()["bytes_active"] == (COUNT - result.allocations) * GRANULE
    assert ebb.lib.tms_pause(None) == PARTIAL  # writes its line
    with descriptors_for_the_driver():
        ebb.must_resume()
    restore_unkept()
    check()
    sys.exit(0)

for cycle in range(2):
    begin = time.monotonic()
    assert ebb.must_pause().allocations == COUNT
    paused = time.monotonic()
    assert len(os.listdir("/proc/self/fd")) < RESERVED
    assert ebb_read(memory[COUNT // 2 + 1], 64) == (OK, content(COUNT // 2 + 1))
    with descriptors_for_the_driver():
        between = time.monotonic()
        assert ebb.must_resume().allocations == COUNT
        end = time.monotonic()
    restore_unkept()
    check()
    print(f"cycle {cycle}: {COUNT} allocations paused in {paused - begin:.2f} s, resumed in {end - between:.2f} s")
begin = time.monotonic()
for address in memory:
    free(address)
print(f"freed in {time.monotonic() - begin:.2f} s")
assert ebb.status()["allocations"] == 0 and backup_files(os.environ["E2E_DISK"]) == {}
