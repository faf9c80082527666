"""commanded.py: a rank with managed memory that is commanded from outside. It does what it reads, a
word a line, and answers with a line:

  safe      comes to a safe point
  check     compares its memory
  idle, go  begins and ends an idle section
  close     closes every descriptor that it did not open, but for those of drivers and runtimes
  fork      answers with the pid of a child that was forked and goes on
  exit
"""

import os
import sys

from gpu import *

free_memory()  # the driver is ready, with the descriptors that it needs, and ebb's engine is not
life, mine = os.pipe()  # children live until this process has ended
known = {int(fd) for fd in os.listdir("/proc/self/fd")}
ebb = Ebb()
with ebb.region("model", "disk"):
    address = malloc(8 * MiB)
pattern = Pattern("commanded", 8 * MiB)
pattern.write(address)
print(f"ready {address:#x}", flush=True)


def close_unknown():
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            if fd not in known and not os.readlink(f"/proc/self/fd/{fd}").startswith(("anon_inode:", "/memfd:softgpu")):
                os.close(fd)
        except OSError:
            pass


def fork():
    there, lives = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(mine)
        os.write(lives, b"x")  # what a fork does in the child is done
        os.read(life, 1)
        os._exit(0)
    os.read(there, 1)
    return pid


for line in sys.stdin:
    word = line.strip()
    if word == "safe":
        ebb.lib.ebb_safe_point()
    elif word == "check":
        pattern.check(address)
    elif word == "idle":
        ebb.lib.ebb_idle_begin()
    elif word == "go":
        ebb.lib.ebb_idle_end()
    elif word == "close":
        close_unknown()
    elif word == "fork":
        word = f"fork {fork()}"
    elif word == "exit":
        break
    print("did", word, flush=True)
