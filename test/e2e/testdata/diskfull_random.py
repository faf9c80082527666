"""diskfull_random.py SEED FAILURES FILLED: the file system of a disk directory fills at a random byte of a pause,
before it or while it runs. The pause fails, the memory is as it was, and of the pause nothing is left; the
next one, with room, works. FILLED is a directory of the file system that fills. Ends when so many pauses failed."""

import collections
import ctypes
import json
import os
import random
import subprocess
import sys

from gpu import *

seed, failures, filled = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dirs = os.environ.get("EBB_DISK_DIRS", os.environ["TMS_DISK_BACKUP_DIR"]).split(":")
rng = random.Random(seed)
ebb = Ebb()
ebb.lib.ebb_last_error_json.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
ebb.lib.ebb_last_error_json.restype = ctypes.c_size_t
ALIGN, MOST = 4096, 3 * MiB
HOST = int(os.environ.get("EBB_HOST_MB") or 0) * MiB  # what may go to host memory instead
memory, fresh = {}, set()  # fresh: those that have no file yet


class Filler:
    def __init__(self):
        environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        self.process = subprocess.Popen([sys.executable, os.path.join(os.path.dirname(__file__), "diskfull_filler.py"), filled],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def tell(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answers(self, answer="done"):
        assert self.process.stdout.readline() == answer + "\n"

    def does(self, command):
        self.tell(command)
        self.answers()


def allocate():
    with ebb.region(backup=rng.choice(["disk"] * 5 + ["cpu"])):
        disk = ebb.lib.tms_get_enable_disk_backup()
        size = rng.randrange(1, MOST)
        address = malloc(size)
    memory[address] = None
    write(address, size)
    if disk:
        fresh.add(address)


def write(address, size):
    memory[address] = Pattern(rng.getrandbits(64), size)
    memory[address].write(address)


def check():
    for address, pattern in memory.items():
        pattern.check(address)


def files():
    """Names, sizes and blocks of the files that there are."""
    return {name: (os.lstat(os.path.join(where, name)).st_size, os.lstat(os.path.join(where, name)).st_blocks)
            for directory in dirs for where, _, names in os.walk(directory) for name in names if name.endswith(".bak")}


def details():
    buffer = ctypes.create_string_buffer(8192)
    assert ebb.lib.ebb_last_error_json(buffer, len(buffer)) < len(buffer)
    return json.loads(buffer.value)


def need():
    """Bytes that a pause takes anew."""
    return sum((memory[address].size + ALIGN - 1) // ALIGN * ALIGN for address in fresh)


filler = Filler()
done = collections.Counter()
while done["failed"] < failures:
    for address in list(memory):
        if rng.random() < 0.5:
            free(address)
            del memory[address]
            fresh.discard(address)
        elif rng.random() < 0.5:
            write(address, memory[address].size)
    while len(memory) < 5 or need() <= HOST:
        allocate()
    before, held = files(), free_memory()
    racing = rng.random() < 0.5
    if racing:  # what there is now and what there will be is the seed's, what comes first the scheduler's
        filler.does(f"leave {need() + rng.randrange(2 * MOST)}")
        filler.tell(f"race {rng.choice([ALIGN, 16 * ALIGN, 64 * ALIGN])}")
        filler.answers("begins")
    else:
        filler.does(f"leave {rng.randrange(need() - HOST)}")
    code, _ = ebb.pause()
    if racing:
        filler.answers()
    if code == OK:
        assert racing, "a pause found room where there was none"
        done["fit"] += 1
    else:
        error = ebb.error()
        assert code == NO_SPACE and "\n" not in error and any(directory in error for directory in dirs), (code, error)
        told = details()
        assert set(told["dir"].split(", ")) <= set(dirs) and 0 < told["need_bytes"] <= need() and told["free_bytes"] >= 0, (told, need())
        assert ebb.status()["bytes_paused"] == 0 and free_memory() == held
        assert files() == before, (before, files())
        check()
        done["failed"] += 1
        done["while it ran"] += racing
        filler.does("free")
        ebb.must_pause()
    fresh.clear()
    filler.does("free")
    ebb.must_resume()
    check()
for address in memory:
    free(address)
assert files() == {}, files()
print(dict(done), flush=True)
