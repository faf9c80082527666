"""execs.py: a rank that is replaced by another program of its own (exec) while memory of it is parked. The
process is the same one to everybody, and the files of the former program are nobody's: they go when the new
program first parks something there."""

import os
import sys

from gpu import *

disk = os.environ["TMS_DISK_BACKUP_DIR"]
ebb = Ebb()
with ebb.region(backup="disk"):
    memory = [malloc(4 * MiB) for _ in range(3)]
for seed, address in enumerate(memory):
    Pattern(seed, 4 * MiB).write(address)
before = set(backup_files(disk))
if len(sys.argv) == 1:
    assert not before
    ebb.must_pause()
    assert len(backup_files(disk)) == 3
    os.execv(sys.executable, [sys.executable, sys.argv[0], "again"])
assert len(before) == 3, before
ebb.must_pause()
assert list(backup_files(disk).values()) == [4 * MiB] * 3, (before, backup_files(disk))
ebb.must_resume()
for seed, address in enumerate(memory):
    Pattern(seed, 4 * MiB).check(address)
print("execed", os.getpid())
