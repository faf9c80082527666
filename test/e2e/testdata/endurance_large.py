"""endurance_large.py MODE: 1 GiB in one allocation comes back bit for bit."""

import sys

from endurance_common import *

mode, size = sys.argv[1], 1 << 30
ebb = Ebb()
with ebb.region(tag=mode, **MODES[mode]):
    address = malloc(size)
pattern = Pattern(mode, size)
for _ in range(2):
    pattern.write(address)
    result = ebb.must_pause()
    assert result.bytes == size and result.device_bytes == size, (result.bytes, result.device_bytes)
    # Its first, last and middle bytes, without the device.
    if mode != "none":
        for offset in (0, size // 2 - 5, size - MiB):
            want = b"".join(part for begin, part in pattern._parts() if offset // MiB * MiB <= begin <= offset + MiB)
            assert must_ebb_read(ebb, address + offset, MiB) == want[offset % MiB:offset % MiB + MiB]
    ebb.must_resume()
    if mode != "none":
        pattern.check(address)
free(address)
