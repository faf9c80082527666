"""descriptors.py: loading the engine, pausing and resuming leave the limits of open files alone,
for the process and for the children that inherit them."""

import resource
import subprocess

from gpu import *

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
limits = (256, hard)
resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def check(moment):
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits, moment
    seen = subprocess.run(["bash", "-c", "ulimit -Sn; ulimit -Hn"], check=True, capture_output=True, text=True).stdout.split()
    assert seen == [str(limits[0]), "unlimited" if hard == resource.RLIM_INFINITY else str(hard)], (moment, seen)


ebb = Ebb()
check("before the engine is loaded")
# softgpu keeps a descriptor for each allocation; files for all of them would not fit beside these.
with ebb.region(backup="disk"):
    addresses = [malloc(65536) for _ in range(150)]
check("after the engine was loaded")
for i, address in enumerate(addresses):
    write(address, i.to_bytes(4, "little") * 16384)
for _ in range(2):
    ebb.must_pause()
    check("paused")
    ebb.must_resume()
for i, address in enumerate(addresses):
    assert read(address, 65536) == i.to_bytes(4, "little") * 16384, i
check("resumed")
