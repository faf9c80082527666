/*
 * pool.c: memory that is allocated in the order of a stream (cudaMallocAsync), out of pools of the
 * driver's. It passes on and is counted. The pools that a program makes are known until it destroys them,
 * so that a pause can have their idle memory given back; of the others the driver tells the engine.
 */
#include "doors.h"

#include <pthread.h>
#include <stdlib.h>

typedef CUresult cuMemPoolCreate_fn(CUmemoryPool *pool, const void *props);
typedef CUresult cuMemPoolDestroy_fn(CUmemoryPool pool);
typedef CUresult trim_fn(CUmemoryPool pool, size_t keep);

/* Guards the pools that there are. Held while one is trimmed, so that none is destroyed meanwhile. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUmemoryPool *pools;
static size_t count_of_pools, room;

/* A child forked while another thread is here finds the lock free. */
static void take(void)
{
	pthread_mutex_lock(&lock);
}

static void give(void)
{
	pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
	pthread_atfork(take, give, give);
}

static void begin(void)
{
	static pthread_once_t watching = PTHREAD_ONCE_INIT;

	pthread_once(&watching, watch_forks);
	take();
}

/* Without host memory for it, a pool keeps its idle memory. */
static void add(CUmemoryPool pool)
{
	begin();
	if (count_of_pools == room) {
		size_t more = room == 0 ? 16 : 2 * room;
		CUmemoryPool *list = realloc(pools, more * sizeof(*list));

		if (list != NULL) {
			pools = list;
			room = more;
		}
	}
	if (count_of_pools < room)
		pools[count_of_pools++] = pool;
	give();
}

static bool drop(CUmemoryPool pool)
{
	bool found = false;

	begin();
	for (size_t i = 0; i < count_of_pools && !found; i++) {
		found = pools[i] == pool;
		if (found)
			pools[i] = pools[--count_of_pools];
	}
	give();
	return found;
}

void pools_give_back(void)
{
	static _Atomic(trim_fn *) known;

	if (captures_under_way() > 0)
		return;
	begin();
	trim_fn *trim = known;
	if (count_of_pools > 0 && trim == NULL)
		known = trim = (trim_fn *)driver_function("cuMemPoolTrimTo");
	for (size_t i = 0; i < count_of_pools && trim != NULL; i++)
		trim(pools[i], 0); /* what fails gives nothing back, and is counted as all that is left is */
	give();
}

/* Which pools outlive a reset is not documented. One that is forgotten keeps its idle memory; a handle that is none
 * any more would be the end of the program. */
void pools_were_reset(void)
{
	begin();
	count_of_pools = 0;
	give();
}

static CUresult cuMemPoolCreate_hook(cuMemPoolCreate_fn *real, const void *caller, CUmemoryPool *pool, const void *props)
{
	CUresult result = real(pool, props);

	(void)caller;
	if (result == CUDA_SUCCESS)
		add(*pool);
	return result;
}

static CUresult cuMemPoolDestroy_hook(cuMemPoolDestroy_fn *real, const void *caller, CUmemoryPool pool)
{
	bool known = drop(pool);
	CUresult result = real(pool);

	(void)caller;
	if (result != CUDA_SUCCESS && known)
		add(pool);
	return result;
}

DRIVER_HOOK(cuMemPoolCreate, "cuMemPoolCreate", 11020, LIST(CUmemoryPool *pool, const void *props), LIST(pool, props))
DRIVER_HOOK(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, LIST(CUmemoryPool pool), LIST(pool))

/* ---- allocations ------------------------------------------------------------------------------------- */

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
