"""waiting.py: while one thread waits in a resume for device memory that another process holds,
other threads pause and resume what they have."""

import os
import subprocess
import sys
import threading

from gpu import *

ebb = Ebb()
large, small = 100 * MiB, 8 * MiB  # of 128
with ebb.region(tag="large", backup="disk"):
    first = malloc(large)
with ebb.region(tag="small", backup="disk"):
    second = malloc(small)
Pattern(1, large).write(first)
Pattern(2, small).write(second)
ebb.must_pause("large")

tenant = subprocess.Popen([sys.executable, os.path.join(os.path.dirname(__file__), "tenant.py"), str(large)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"})
assert tenant.stdout.readline().strip() == "took it"
begins, outcome = threading.Event(), []


def wait_for_memory():
    begins.set()
    outcome.append(ebb.resume("large", timeout=150))


waiter = threading.Thread(target=wait_for_memory)
waiter.start()
begins.wait()
for _ in range(30):
    held = free_memory()
    result = ebb.must_pause("small")
    assert result.allocations == 1 and free_memory() - held == result.device_bytes >= small
    ebb.must_resume("small")
    Pattern(2, small).check(second)
assert not outcome, "the memory was there"
ebb.must_pause("small")
tenant.communicate()
waiter.join()
assert outcome[0][0] == OK and outcome[0][1].allocations == 1, outcome
ebb.must_resume()
Pattern(1, large).check(first)
Pattern(2, small).check(second)
