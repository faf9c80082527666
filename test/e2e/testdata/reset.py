"""reset.py API: a program resets its device, by a call of that API: runtime or driver."""

import ctypes
import sys

from gpu import *
from gpu import _check, _hooked

driver = ctypes.CDLL("libcuda.so.1")
ebb = Ebb()


def reset():
    if sys.argv[1] == "runtime":
        _check("cudaDeviceReset", _hooked.cudaDeviceReset())
    else:
        _check("cuDevicePrimaryCtxReset", driver.cuDevicePrimaryCtxReset_v2(0))


memory = {}
for seed, tag in enumerate(("a", "b")):
    with ebb.region(tag=tag, backup="disk"):
        address = malloc(3 * MiB + 5)
    memory[address] = Pattern(seed, 3 * MiB + 5)
    memory[address].write(address)


def check():
    for address, pattern in memory.items():
        pattern.check(address)


for _ in range(2):
    ebb.must_pause()
    reset()
    for address, pattern in memory.items():
        buffer = ctypes.create_string_buffer(1000)
        assert ebb.lib.ebb_read(ctypes.c_void_p(address), ctypes.c_size_t(1000), buffer) == OK
        assert buffer.raw == pattern.base[:1000]
    ebb.must_resume()
    check()
    reset()
    ebb.must_pause()
    ebb.must_resume()
    check()
for address in memory:
    free(address)
reset()
