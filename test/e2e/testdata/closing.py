"""closing.py: a host that closes descriptors which it did not open, standard output among them, at
every moment of a cycle, and opens files of its own under the numbers that become free.
It spares the driver's, and those that are no files: no runtime of a language survives the loss of
its events."""

import ctypes
import os

from gpu import *

disk = os.environ["E2E_DISK"]
free_memory()  # the driver is ready, with the descriptors that it needs, and ebb's engine is not
known = {int(fd) for fd in os.listdir("/proc/self/fd")}
ebb = Ebb()
own = {}  # descriptor: (path, what was written)


def close_the_unknown():
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in known and fd not in own:
            try:
                if not os.readlink(f"/proc/self/fd/{fd}").startswith(("anon_inode:", "/memfd:softgpu")):
                    os.close(fd)
            except OSError:
                pass  # it was that of the list itself


def open_own(count):
    for _ in range(count):
        path = os.path.join(disk, f"own{len(own)}")
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o600)
        own[fd] = (path, bytearray())


def write_own():
    for fd, (_, written) in own.items():
        line = f"a line for descriptor {fd}\n".encode() * 50
        assert os.write(fd, line) == len(line)
        written += line


def check_own():
    for fd, (path, written) in own.items():
        assert os.path.samestat(os.fstat(fd), os.stat(path)), (fd, path)
        with open(path, "rb") as file:
            assert file.read() == written, path


with ebb.region(backup="disk"):
    memory = {malloc(size): Pattern(size, size) for size in (511, 3 * MiB + 1)}
for address, pattern in memory.items():
    pattern.write(address)
ebb.must_pause()
files = backup_files(disk)

for fd in (0, 1):
    os.close(fd)
open_own(2)
assert set(own) == {0, 1}, own
for _ in range(4):
    write_own()
    close_the_unknown()
    open_own(8)
    write_own()
    ebb.must_resume()
    for address, pattern in memory.items():
        pattern.check(address)
    write_own()
    close_the_unknown()
    open_own(1)
    ebb.must_pause()
    # Something to say, for a log whose descriptor was closed and is another's now.
    ebb.lib.tms_set_disk_backup_dir(os.path.join(disk, "own0", "dir").encode())
    with ebb.region(tag="stuck", backup="disk"):
        stuck = malloc(MiB)
    assert ebb.lib.tms_pause(b"stuck") != OK
    free(stuck)
    ebb.lib.tms_set_disk_backup_dir(disk.encode())
    check_own()
    assert backup_files(disk) == files
ebb.must_resume()
for address, pattern in memory.items():
    pattern.check(address)
check_own()

# The C library writes what its streams hold after ebb's exit handler, which closes and unlocks what
# is ebb's: all of it must arrive.
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
libc.fputs.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
for fd in own:
    stream = libc.fdopen(fd, b"w")
    assert stream is not None
    assert libc.fputs(b"the last line\n", stream) >= 0
