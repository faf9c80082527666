"""lease.py SERVER: a rank whose disk gives no answer when it takes its lease, at its first managed allocation:
that fails, and names the lease. SERVER serves the disk."""

import os
import signal
import sys

from gpu import *

server = int(sys.argv[1])
ebb = Ebb()
os.kill(server, signal.SIGSTOP)
try:
    with ebb.region(backup="disk"):
        malloc(MiB)
except CudaError as error:
    print(error)
else:
    raise AssertionError("memory was managed without a lease")
finally:
    os.kill(server, signal.SIGCONT)
assert ebb.pause()[0] == NOT_LOADED
print(ebb.error())
