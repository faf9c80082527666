"""tenant.py BYTES: takes device memory, says so, and keeps it until standard input ends."""

import sys

from gpu import *

try:
    address = malloc(int(sys.argv[1]))
except CudaError as err:
    assert err.code == 2, err
    print("out of memory", flush=True)
else:
    Pattern(7, int(sys.argv[1])).write(address)
    print("took it", flush=True)
sys.stdin.read()
