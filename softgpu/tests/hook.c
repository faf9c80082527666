/* A preloaded library that hooks the runtime's and the driver's allocation, as an interposer does. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "../softgpu_cudart.h"

int hook_runtime_calls, hook_driver_calls;

__attribute__((visibility("default"))) int hook_count(int driver)
{
	return driver ? hook_driver_calls : hook_runtime_calls;
}

cudaError_t cudaMalloc(void **ptr, size_t size)
{
	cudaError_t (*real)(void **, size_t) = (cudaError_t(*)(void **, size_t))dlsym(RTLD_NEXT, "cudaMalloc");
	hook_runtime_calls++;
	return real(ptr, size);
}

CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t size)
{
	CUresult (*real)(CUdeviceptr *, size_t) = (CUresult(*)(CUdeviceptr *, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
	hook_driver_calls++;
	return real(ptr, size);
}

CUresult cuInit(unsigned int flags)
{
	CUresult (*real)(unsigned int) = (CUresult(*)(unsigned int))dlsym(RTLD_NEXT, "cuInit");
	hook_driver_calls++;
	return real(flags);
}
