"""hold.py MIB: holds all device memory but so much, without ebb, until its standard input ends."""

import sys

from gpu import *

write(malloc(MiB), bytes(MiB))  # the context is made
malloc(free_memory() - int(sys.argv[1]) * MiB)
print("holds", flush=True)
sys.stdin.read()
