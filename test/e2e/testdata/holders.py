"""holders.py HOLDERS: other processes hold the device memory that a resume needs. Within its deadline the resume
says how many bytes are needed and free, and who holds how many; it takes nothing. Once they are gone it succeeds.
HOLDERS is how many share the memory."""

import json
import os
import subprocess
import sys
import threading

from endurance_common import *

ebb = Ebb()
ebb.lib.ebb_last_error_json.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
ebb.lib.ebb_last_error_json.restype = ctypes.c_size_t
GRANULARITY = 64 * 1024
memory = {}
for mode, arguments in MODES.items():
    for size in (6 * MiB, 5 * MiB + 4097, 777):
        with ebb.region(tag=mode, **arguments):
            address = malloc(size)
        memory[address] = mode, Pattern(f"{mode} {size}", size)
        memory[address][1].write(address)
physical = sum((pattern.size + GRANULARITY - 1) // GRANULARITY * GRANULARITY for _, pattern in memory.values())


class Holder:
    def __init__(self, size):
        self.size = size
        environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        self.process = subprocess.Popen([sys.executable, os.path.join(os.path.dirname(__file__), "tenant.py"), str(size)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout.readline() == "took it\n"

    def leave(self):
        self.process.communicate()


def details():
    buffer = ctypes.create_string_buffer(8192)
    assert ebb.lib.ebb_last_error_json(buffer, len(buffer)) < len(buffer)
    return json.loads(buffer.value)


def parked():
    for address, (mode, pattern) in memory.items():
        if mode != "none":
            assert must_ebb_read(ebb, address, pattern.size) == b"".join(part for _, part in pattern._parts()), mode


for cycle in range(2):
    ebb.must_pause()
    empty = free_memory()
    # Some of it is free: memory that was created before the first refusal must be given back. In the
    # second cycle the smallest piece is all that is missing.
    left = physical // 2 // GRANULARITY * GRANULARITY if cycle == 0 else physical - GRANULARITY
    rest = empty - left
    holders = [Holder(rest // number // GRANULARITY * GRANULARITY) for number in range(int(sys.argv[1]), 1, -1)]
    holders.append(Holder(rest - sum(one.size for one in holders)))
    for timeout in (0, 0.2):
        before, files = free_memory(), backup_files(os.environ["E2E_DISK"])
        assert GRANULARITY < before < physical, (before, physical)
        code, _ = ebb.resume(timeout=timeout)
        assert code == DEVICE_MEMORY, (code, ebb.error())
        got = details()
        assert (got["need_bytes"], got["free_bytes"]) == (physical, before), (got, physical, before)
        assert {(one["pid"], one["bytes"]) for one in got["holders"]} == {(one.process.pid, one.size) for one in holders}, got
        for one in holders:
            assert f"pid {one.process.pid}" in ebb.error(), ebb.error()
        assert free_memory() == before, "a resume that failed holds device memory"
        assert ebb.status()["bytes_active"] == 0 and backup_files(os.environ["E2E_DISK"]) == files
        parked()
    if cycle == 0:
        for one in holders:
            one.leave()
        ebb.must_resume()
    else:  # they leave while it waits
        leaving = [threading.Thread(target=one.leave) for one in holders]
        for thread in leaving:
            thread.start()
        ebb.must_resume(timeout=120)
        for thread in leaving:
            thread.join()
    for address, (mode, pattern) in memory.items():
        if mode != "none":
            pattern.check(address)
    assert free_memory() == empty - physical
