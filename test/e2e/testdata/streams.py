"""streams.py REPORT FD...: closes descriptors, then does all that makes ebb speak or open files,
and writes to the closed descriptors all the while, as programs do that do not look at errors.
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



def scribble():
    for fd in closed:
        try:
            os.write(fd, b"a line for a stream that was closed\n" * 200)
        except OSError:
            pass


ebb = Ebb()
outside = malloc(MiB)  # not managed: the driver's own affair
unmanaged = Pattern(3, MiB)
unmanaged.write(outside)
with ebb.region(backup="disk"):
    first = malloc(5 * MiB)
pattern = Pattern(1, 5 * MiB)
pattern.write(first)
scribble()
ebb.must_pause()
files = backup_files(disk)
scribble()
ebb.must_resume()
pattern.check(first)

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
scribble()
assert backup_files(disk) == files
ebb.must_resume("default")
pattern.check(first)
other.check(second)
unmanaged.check(outside)
ebb.must_pause("default")
os.unlink(os.path.join(disk, "occupied"))
with open(report, "w", encoding="ascii") as out:
    out.write("done")
