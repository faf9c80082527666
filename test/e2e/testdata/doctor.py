"""doctor.py: a rank with managed memory that waits until its standard input ends."""

import sys

from gpu import *

ebb = Ebb()
with ebb.region(tag="actor", backup="disk"):
    memory = malloc(4 * MiB)
print("up", flush=True)
sys.stdin.read()
