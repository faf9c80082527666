"""plan_actor.py: 16 MiB, of which a step writes the first half anew. Its steps are counted in the file
steps-RANK; it ends when the file stop is there."""

import ctypes
import os

cuda = ctypes.CDLL("libcudart.so")
ebb = ctypes.CDLL(None)
size, part = 16 << 20, 1 << 20
memory = ctypes.c_void_p()
assert cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(size)) == 0
assert cuda.cudaMemset(memory, 0, ctypes.c_size_t(size)) == 0

step = 0
while not os.path.exists("stop"):
    for offset in range(0, size // 2, part):
        assert cuda.cudaMemcpy(ctypes.c_void_p(memory.value + offset), os.urandom(part), ctypes.c_size_t(part), 1) == 0
    step += 1
    with open("steps-" + os.environ["RANK"], "w") as file:
        file.write(str(step))
    assert ebb.ebb_safe_point() == 0
