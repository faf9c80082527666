"""ownership.py SEED PIDS: one rank of many jobs on the same disk directories. It parks and resumes, and
finds only its own files where its rank's are: the same ones in every cycle, nobody else's, and while it is
parked nobody touches them. PIDS is a directory for its number, by which the test finds it."""

import os
import random
import sys
import time

from gpu import *

seed, pids = sys.argv[1:]
who = f"{seed} {os.environ['EBB_JOB']} {os.environ['EBB_ROLE']} {os.environ['EBB_CELL']} {os.environ['EBB_RANK']} {os.getpid()}"
rng = random.Random(who)
dirs = (os.environ.get("EBB_DISK_DIRS") or os.environ["TMS_DISK_BACKUP_DIR"]).split(":")


def start_time():
    with open("/proc/self/stat", encoding="ascii") as stat:
        return stat.read().rsplit(")", 1)[1].split()[19]


own = f"-{os.getpid()}-{start_time()}-"  # in the names of this process's files


def files():
    """What the kernel says of everything in the rank directories."""
    found = {}
    for directory in dirs:
        for name in os.listdir(directory):
            assert own in name and name.endswith(".bak"), f"{directory} of {who} holds {name}"
            st = os.lstat(os.path.join(directory, name))
            assert st.st_nlink == 1 and st.st_mode & 0o777 == 0o600, (name, st)
            found[os.path.join(directory, name)] = (st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_blocks)
    return found


def numbers(found):
    return {path: (device, inode) for path, (device, inode, *_) in found.items()}


with open(os.path.join(pids, str(os.getpid())), "w", encoding="ascii"):
    pass
ebb = Ebb()
memory = {malloc(size): size for size in (rng.randrange(1, 500_000) for _ in range(rng.randrange(1, 5)))}
inodes = {}
for cycle in range(rng.randrange(1, 12)):
    for address, size in memory.items():
        if cycle == 0 or rng.random() < 0.7:
            pattern = Pattern(f"{who} {cycle} {address}", size)
            pattern.write(address)
            memory[address] = size
            inodes.setdefault("patterns", {})[address] = pattern
    ebb.must_pause()
    parked = files()
    assert parked, f"{who} has parked nothing"
    assert inodes.setdefault("files", numbers(parked)) == numbers(parked), (inodes["files"], parked)
    time.sleep(rng.random() * 0.05)  # the longer it is parked, the more others do meanwhile
    assert files() == parked, (parked, files())
    ebb.must_resume()
    for address, pattern in inodes["patterns"].items():
        pattern.check(address)
    print(f"{who}: cycle", flush=True)

match rng.choice(["normal", "parked", "freed", "at once", "failed"]):
    case "parked":
        ebb.must_pause()
    case "freed":
        for address in memory:
            free(address)
    case "at once":
        ebb.must_pause()
        os._exit(0)
    case "failed":
        ebb.must_pause()
        sys.exit(5)
