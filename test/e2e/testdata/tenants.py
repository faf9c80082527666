"""tenants.py MODE: paused memory is really free. A second process, without ebb, takes it; a
resume meanwhile fails, changes nothing, and succeeds once the memory is there again.
MODE is the backup, or "tms" for the reference function, which ends the process instead."""

import os
import subprocess
import sys
import threading

from gpu import *

mode = sys.argv[1]
ebb = Ebb()
size = 100 * MiB  # of 128
before = free_memory()
with ebb.region(backup="disk" if mode == "tms" else mode):
    memory = {malloc(size // 4): i for i in range(4)}
for address, seed in memory.items():
    Pattern(seed, size // 4).write(address)
assert free_memory() <= before - size


class Tenant:
    """A process that takes nearly all device memory, until it is told to go."""

    def __init__(self):
        environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        self.process = subprocess.Popen([sys.executable, os.path.join(os.path.dirname(__file__), "tenant.py"), str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.answer = self.process.stdout.readline().strip()

    def leave(self):
        self.process.communicate()


tenant = Tenant()
assert tenant.answer == "out of memory", "the active process's memory was given away"
tenant.leave()

held = free_memory()
result = ebb.must_pause()
assert free_memory() - held == result.device_bytes >= size, (free_memory(), held, result.device_bytes)

tenant = Tenant()
assert tenant.answer == "took it", tenant.answer
if mode == "tms":
    ebb.lib.tms_resume(None)
    print("tms_resume returned")
    sys.exit(1)
for timeout in (0, 0.05):
    left = free_memory()
    code, _ = ebb.resume(timeout=timeout)
    assert code == DEVICE_MEMORY, (code, ebb.error())
    assert "bytes" in ebb.error() or "MiB" in ebb.error(), ebb.error()
    assert free_memory() == left, "a resume that failed holds device memory"
    assert ebb.status()["bytes_active"] == 0
tenant.leave()
ebb.must_resume()
if mode != "none":
    for address, seed in memory.items():
        Pattern(seed, size // 4).check(address)

# A resume that is given time waits for the tenant to leave.
ebb.must_pause()
tenant = Tenant()
leave = threading.Thread(target=tenant.leave)
leave.start()
ebb.must_resume(timeout=120)
leave.join()
if mode != "none":
    for address, seed in memory.items():
        Pattern(seed, size // 4).check(address)
