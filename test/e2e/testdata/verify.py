"""verify.py EBB DIR…: parks memory in disk directories and has `ebb verify` check it while it is parked: as it is,
with a byte changed in a file, and with that byte put back."""

import json
import os
import subprocess
import sys

from gpu import *

ebb_command, dirs = sys.argv[1], sys.argv[2:]
rank_dirs = os.environ.get("EBB_DISK_DIRS", os.environ["TMS_DISK_BACKUP_DIR"]).split(":")
ebb = Ebb()


def verify():
    done = subprocess.run([ebb_command, "verify", "--json", *dirs], stdout=subprocess.PIPE, check=False)
    found = json.loads(done.stdout)
    return done.returncode, [rank for d in found["disk_dirs"] for rank in d["ranks"]]


memory = {}
with ebb.region(backup="disk"):
    for size in (3 * MiB + 4097, 9 * MiB):
        address = malloc(size)
        memory[address] = Pattern(len(memory), size)
        memory[address].write(address)
assert verify() == (3, []), verify()

ebb.must_pause()
status, ranks = verify()
assert status == 0 and len(ranks) == len(dirs), ranks
assert all(r["outcome"] == "good" and r["pid"] == os.getpid() and r["bytes"] > 0 for r in ranks), ranks
assert sum(r["bytes"] for r in ranks) == 12 * MiB + 4097, ranks

path = max(backup_files(rank_dirs[0]))
path = path if os.path.isabs(path) else os.path.join(rank_dirs[0], path)
with open(path, "r+b") as f:
    was = f.read(1)
    f.seek(0)
    f.write(bytes([was[0] ^ 1]))
    f.flush()
    os.fsync(f.fileno())
    status, ranks = verify()
    bad = [b for r in ranks for b in r["bad"]]
    assert status == 1 and len(bad) == 1 and bad[0]["file"] == path and bad[0]["file_offset"] == 0, (status, bad)
    assert int(bad[0]["address"], 16) in memory and bad[0]["tag"] == "default", bad
    f.seek(0)
    f.write(was)
    f.flush()
    os.fsync(f.fileno())
assert verify()[0] == 0

ebb.must_resume()
assert verify() == (3, []), verify()
for address, pattern in memory.items():
    pattern.check(address)
print("verified")
