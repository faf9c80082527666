"""diskfull_filler.py DIRECTORY: another user of a small file system. Its commands come by standard input:
"leave BYTES" takes all but so many, "race BYTES" takes so many at a time until nothing is left, "free" gives
everything back. It answers each with a line; a race with one when it begins and one at its end."""

import errno
import os
import sys

directory = sys.argv[1]
files = []


def room():
    stat = os.statvfs(directory)
    return stat.f_bavail * stat.f_frsize


def take(size):
    """False where there is no room."""
    path = os.path.join(directory, f"filler-{len(files)}")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    files.append(path)
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as err:
        assert err.errno == errno.ENOSPC, err
        return False
    finally:
        os.close(fd)
    return True


def take_in(step):
    while room() >= step and take(step):
        pass


for line in sys.stdin:
    command, *argument = line.split()
    if command == "leave":
        if room() > int(argument[0]):
            take(room() - int(argument[0]))
    elif command == "race":
        print("begins", flush=True)
        take_in(int(argument[0]))
    else:
        while files:
            os.unlink(files.pop())
    print("done", flush=True)
