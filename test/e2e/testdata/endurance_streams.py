"""endurance_streams.py BACKUP IMAGE: a pause that comes right behind copies and kernels on non-blocking
streams, 1,000 times, holds the last write of every stream. IMAGE has the kernel add."""

import ctypes
import os
import sys

from endurance_common import *

REPETITIONS, SIZE, STREAMS = 1000, 64 * 1024, 3
held = os.environ["SOFTGPU_LATENCY_US"] == "hold"
ebb = Ebb()
add = Kernel(sys.argv[2], "add")
with ebb.region(**MODES[sys.argv[1]]):
    memory = [malloc(SIZE) for _ in range(STREAMS)]
    behind = [malloc(SIZE) for _ in range(STREAMS)]
streams = [non_blocking_stream() for _ in range(STREAMS)]
# Pinned, so that the call returns before the bytes are read. The driver reads the last ones last.
first, last = pinned_buffer(SIZE), pinned_buffer(SIZE)


def content(repetition, what):
    return (repetition * 16 + what).to_bytes(4, "little") * (SIZE // 4)


waiting = 0
for address in memory + behind:
    write(address, bytes(SIZE))
for repetition in range(1, REPETITIONS + 1):
    ctypes.memmove(first, content(repetition, 1), SIZE)
    ctypes.memmove(last, content(repetition, 2), SIZE)
    for address, other, stream in zip(memory, behind, streams):
        copy_async(address, first, SIZE, H2D, stream)
        copy_async(address, last, SIZE, H2D, stream)
        add.launch(stream, ctypes.c_uint64(address), ctypes.c_uint64(SIZE // 4), ctypes.c_uint32(3))
        copy_async(other, address, SIZE, D2D, stream)
        add.launch(stream, ctypes.c_uint64(address), ctypes.c_uint64(SIZE // 4), ctypes.c_uint32(4))
    # The software driver's device memory can be seen without waiting for anything.
    done = [ctypes.string_at(address, 4) == content(repetition, 9)[:4] for address in memory]
    waiting += STREAMS - sum(done)
    assert not (held and any(done)), "the driver did not hold its work: this test shows nothing"
    ebb.must_pause()
    # What the program does with its own buffers after the pause changes nothing.
    ctypes.memset(first, 0xEE, SIZE)
    ctypes.memset(last, 0xEE, SIZE)
    if repetition % 10 == 0:
        for address, other in zip(memory, behind):
            assert must_ebb_read(ebb, address, SIZE) == content(repetition, 9), f"repetition {repetition}: the backup lacks the kernel's write"
            assert must_ebb_read(ebb, other, SIZE) == content(repetition, 5), f"repetition {repetition}: the backup lacks the copy"
    ebb.must_resume()
    for address, other in zip(memory, behind):
        assert ctypes.string_at(address, SIZE) == content(repetition, 9), f"repetition {repetition}: the kernel's write is lost"
        assert ctypes.string_at(other, SIZE) == content(repetition, 5), f"repetition {repetition}: the copy is lost"
print(f"{waiting} of {REPETITIONS * STREAMS} streams had work left when the pause came")
