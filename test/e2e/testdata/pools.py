"""pools.py: memory pools that the program has made itself, one by the runtime and one by the driver, keep
what was freed into them (their threshold is without limit). A pause has it given back. A pool that is
destroyed is forgotten, and one whose memory is in use keeps it."""

from gpu import *
from gpu import _check, _cudart

ebb = Ebb()
with ebb.region(tag="t", backup="disk"):
    managed = malloc(4 * MiB)
pattern = Pattern(1, 4 * MiB)
pattern.write(managed)

pool_of_runtime, pool_of_driver, destroyed = (ctypes.c_void_p() for _ in range(3))
props = (ctypes.c_int * 32)(1, 0, 1, 0)  # pinned, no handles, on device 0
driver = ctypes.CDLL(None)  # the hooked symbols, as those of a program that is linked with the driver
_check("cudaMemPoolCreate", _cudart.cudaMemPoolCreate(ctypes.byref(pool_of_runtime), props))
for pool in (pool_of_driver, destroyed):
    _check("cuMemPoolCreate", driver.cuMemPoolCreate(ctypes.byref(pool), props))
for pool in (pool_of_runtime, pool_of_driver, destroyed):
    threshold = ctypes.c_uint64(2**64 - 1)
    _check("cudaMemPoolSetAttribute", _cudart.cudaMemPoolSetAttribute(pool, 4, ctypes.byref(threshold)))


def pooled(pool, size):
    pointer = ctypes.c_void_p()
    _check("cudaMallocFromPoolAsync", _cudart.cudaMallocFromPoolAsync(ctypes.byref(pointer), ctypes.c_size_t(size), pool, None))
    return pointer


size = 8 * MiB
idle = [pooled(pool, size) for pool in (pool_of_runtime, pool_of_driver, destroyed)]
used = pooled(pool_of_driver, size)
for pointer in idle:
    _check("cudaFreeAsync", _cudart.cudaFreeAsync(pointer, None))
_check("cudaDeviceSynchronize", _cudart.cudaDeviceSynchronize())
_check("cuMemPoolDestroy", driver.cuMemPoolDestroy(destroyed))
before = free_memory()
ebb.must_pause()
assert free_memory() == before + 4 * MiB + 2 * size, (free_memory(), before)
ebb.must_resume()
pattern.check(managed)
write(used.value, b"in use")
assert read(used.value, 6) == b"in use"
_check("cudaFreeAsync", _cudart.cudaFreeAsync(used, None))
for pool in (pool_of_runtime, pool_of_driver):
    _check("cudaMemPoolDestroy", _cudart.cudaMemPoolDestroy(pool))
ebb.must_pause()
ebb.must_resume()
pattern.check(managed)
