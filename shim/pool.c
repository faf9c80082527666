/*
 * pool.c: memory that is allocated in the order of a stream (cudaMallocAsync), out of pools of the
 * driver's. It passes on and is counted.
 */
#include "doors.h"

typedef CUresult cuMemAllocAsync_fn(CUdeviceptr *ptr, size_t size, CUstream stream);
typedef cuMemAllocAsync_fn cuMemAllocAsync_ptsz_fn;
typedef CUresult cuMemAllocFromPoolAsync_fn(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream);
typedef cuMemAllocFromPoolAsync_fn cuMemAllocFromPoolAsync_ptsz_fn;
typedef CUresult cuMemFreeAsync_fn(CUdeviceptr ptr, CUstream stream);
typedef cuMemFreeAsync_fn cuMemFreeAsync_ptsz_fn;

/* What is allocated while a stream is captured is memory of the graph: it comes and goes with its
 * launches, not here. */
static void count(CUresult result, const CUdeviceptr *ptr, size_t size)
{
	if (result == CUDA_SUCCESS && captures_under_way() == 0)
		unmanaged_allocated(*ptr, size, CLASS_POOL);
}

static CUresult cuMemAllocAsync_hook(cuMemAllocAsync_fn *real, const void *caller, CUdeviceptr *ptr, size_t size,
				     CUstream stream)
{
	CUresult result = real(ptr, size, stream);

	(void)caller;
	count(result, ptr, size);
	return result;
}
#define cuMemAllocAsync_ptsz_hook cuMemAllocAsync_hook

static CUresult cuMemAllocFromPoolAsync_hook(cuMemAllocFromPoolAsync_fn *real, const void *caller, CUdeviceptr *ptr,
					     size_t size, CUmemoryPool pool, CUstream stream)
{
	CUresult result = real(ptr, size, pool, stream);

	(void)caller;
	count(result, ptr, size);
	return result;
}
#define cuMemAllocFromPoolAsync_ptsz_hook cuMemAllocFromPoolAsync_hook

/* It frees memory of cudaMalloc too; the engine waits for the work that uses it. */
static CUresult cuMemFreeAsync_hook(cuMemFreeAsync_fn *real, const void *caller, CUdeviceptr ptr, CUstream stream)
{
	struct unmanaged taken = unmanaged_take(ptr);
	CUresult result;

	(void)caller;
	if (taken.bytes == 0 && this_thread()->passing == 0 && engine_free((void *)(uintptr_t)ptr, &result))
		return result;
	result = real(ptr, stream);
	if (result != CUDA_SUCCESS)
		unmanaged_allocated(ptr, taken.bytes, taken.class);
	return result;
}
#define cuMemFreeAsync_ptsz_hook cuMemFreeAsync_hook

DRIVER_HOOK(cuMemAllocAsync, "cuMemAllocAsync", 11020, LIST(CUdeviceptr *ptr, size_t size, CUstream stream),
	    LIST(ptr, size, stream))
DRIVER_HOOK(cuMemAllocAsync_ptsz, NULL, 0, LIST(CUdeviceptr *ptr, size_t size, CUstream stream),
	    LIST(ptr, size, stream))
DRIVER_HOOK(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020,
	    LIST(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream),
	    LIST(ptr, size, pool, stream))
DRIVER_HOOK(cuMemAllocFromPoolAsync_ptsz, NULL, 0,
	    LIST(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream),
	    LIST(ptr, size, pool, stream))
DRIVER_HOOK(cuMemFreeAsync, "cuMemFreeAsync", 11020, LIST(CUdeviceptr ptr, CUstream stream), LIST(ptr, stream))
DRIVER_HOOK(cuMemFreeAsync_ptsz, NULL, 0, LIST(CUdeviceptr ptr, CUstream stream), LIST(ptr, stream))
