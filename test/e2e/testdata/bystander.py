"""bystander.py PARKED STOP: parks its memory, makes the file PARKED, and resumes when there is a file STOP.
It must find everything as it was."""

import os
import sys
import time

from gpu import *

parked, stop = sys.argv[1:]
directory = os.environ["TMS_DISK_BACKUP_DIR"]


def files():
    def look(name):
        st = os.lstat(os.path.join(directory, name))
        return st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_blocks
    return {name: look(name) for name in sorted(os.listdir(directory))}


ebb = Ebb()
memory = {malloc(size): Pattern(f"bystander {size}", size) for size in (100, 700_001, 3 * MiB)}
for address, pattern in memory.items():
    pattern.write(address)
ebb.must_pause()
before = files()
assert len(before) == len(memory), before
with open(parked, "w", encoding="ascii"):
    pass
while not os.path.exists(stop):
    time.sleep(0.005)
assert files() == before, (before, files())
ebb.must_resume()
for address, pattern in memory.items():
    pattern.check(address)
