"""diskfull.py: the disk directory is on a file system with too little room. A pause fails with one
line and the process goes on; once less has to be parked, pausing works."""

import os

from gpu import *

disk = os.environ["TMS_DISK_BACKUP_DIR"]
ebb = Ebb()
with ebb.region(tag="small", backup="disk"):
    small = malloc(4 * MiB)
with ebb.region(tag="large", backup="disk"):
    large = malloc(200 * MiB)
with ebb.region(tag="host", backup="cpu"):
    host = malloc(4 * MiB)
memory = {small: Pattern(1, 4 * MiB), large: Pattern(2, 200 * MiB), host: Pattern(3, 4 * MiB)}
for address, pattern in memory.items():
    pattern.write(address)


def check():
    for address, pattern in memory.items():
        pattern.check(address)


room = os.statvfs(disk).f_bfree
held = free_memory()
for _ in range(2):
    code, _ = ebb.pause()
    assert code == NO_SPACE, (code, ebb.error())
    text = ebb.error()
    assert "\n" not in text and disk in text and "need" in text and "free" in text, text
    assert free_memory() == held and ebb.status()["bytes_paused"] == 0
    check()
assert ebb.lib.tms_pause(None) == NO_SPACE
check()
assert backup_files(disk) == {}, "files of a pause that failed"
assert os.statvfs(disk).f_bfree == room, "room of a pause that failed"

ebb.must_pause("small", "host")
ebb.must_resume()
check()
free(large)
del memory[large]
ebb.must_pause()
ebb.must_resume()
check()
