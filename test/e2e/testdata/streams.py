"""streams.py REPORT FD...: closes descriptors, then does all that makes ebb speak or open files.
Ends by writing "done" to the file REPORT."""

import os
import signal
import sys

from gpu import *

report, closed = sys.argv[1], [int(fd) for fd in sys.argv[2:]]
disk = os.environ["E2E_DISK"]
if os.environ.get("E2E_SIGPIPE") == "default":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
for fd in closed:
    os.close(fd)

ebb = Ebb()
with ebb.region(backup="disk"):
    first = malloc(5 * MiB)
pattern = Pattern(1, 5 * MiB)
pattern.write(first)
ebb.must_pause()
files = backup_files(disk)
ebb.must_resume()

# No directory can be made below a regular file, so this one cannot be paused.
with open(os.path.join(disk, "occupied"), "wb"):
    pass
ebb.lib.tms_set_disk_backup_dir(os.path.join(disk, "occupied", "dir").encode())
with ebb.region(tag="stuck", backup="disk"):
    second = malloc(2 * MiB)
other = Pattern(2, 2 * MiB)
other.write(second)
for _ in range(3):
    assert ebb.lib.tms_pause(b"stuck") != OK
    assert ebb.pause("stuck")[0] not in (OK, PARTIAL)
    other.check(second)

ebb.lib.tms_set_current_tag(None)  # refused with a line
ebb.lib.tms_set_cpu_backup_backend(b"nonsense")  # likewise
ebb.must_pause("default")
assert backup_files(disk) == files
ebb.must_resume("default")
pattern.check(first)
other.check(second)
ebb.must_pause("default")
os.unlink(os.path.join(disk, "occupied"))
with open(report, "w", encoding="ascii") as out:
    out.write("done")
