"""hog.py CUDART LEAVE_MIB: takes all device memory but LEAVE_MIB, says so, and keeps it until
standard input ends. Uses the CUDA runtime at the path CUDART, without PyTorch."""

import ctypes
import sys

cudart = ctypes.CDLL(sys.argv[1])
available, total, pointer = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()
code = cudart.cudaFree(None) or cudart.cudaMemGetInfo(ctypes.byref(available), ctypes.byref(total))
assert code == 0, code
size = available.value - (int(sys.argv[2]) << 20)
code = cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))
print("ready" if code == 0 else f"cudaMalloc: {code}", flush=True)
sys.stdin.read()
