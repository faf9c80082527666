#include "test.h"

/* Work waits until somebody asks for it, so that what is said of order shows. */
#define HELD .env = {"SOFTGPU_LATENCY_US=hold"}

static CUstream stream(void)
{
	CUstream s;
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	return s;
}

static CUmemoryPool standard(void)
{
	CUmemoryPool p;
	OK(cuDeviceGetDefaultMemPool(&p, 0));
	return p;
}

static uint64_t attribute(CUmemoryPool p, CUmemPool_attribute a)
{
	uint64_t n = ~0ull;
	OK(cuMemPoolGetAttribute(p, a, &n));
	return n;
}

#define RESERVED(p) attribute(p, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
#define USED(p) attribute(p, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)

static void keep_all(CUmemoryPool p)
{
	uint64_t all = ~0ull;
	OK(cuMemPoolSetAttribute(p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
}

TEST(memory_of_a_pool_is_memory_of_the_device)
{
	start_gpu();
	size_t before = free_memory(), size;
	CUdeviceptr p, base;
	int ordinal, managed, type;
	OK(cuMemAllocAsync(&p, 1000, stream()));
	CHECK(free_memory() == before - G && RESERVED(standard()) == G && USED(standard()) == G);
	OK(cuMemsetD8_v2(p, 7, 1000));
	OK(cuCtxSynchronize());
	CHECK(*at(p + 999) == 7);
	OK(cuMemGetAddressRange_v2(&base, &size, p + 5));
	CHECK(base == p && size == 1000);
	OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
	OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
	CHECK(ordinal == 0 && managed == 0 && type == CU_MEMORYTYPE_DEVICE);
	EXPECT(cuMemcpyDtoD_v2(p, p + 500, 1000), CUDA_ERROR_INVALID_VALUE); /* beyond its end */
	CUipcMemHandle ipc;
	EXPECT(cuIpcGetMemHandle(&ipc, p), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree_v2(p));
	OK(cuCtxSynchronize());
	CHECK(free_memory() == before && RESERVED(standard()) == 0);
}

TEST(memory_is_freed_when_its_stream_comes_to_it, HELD)
{
	start_gpu();
	keep_all(standard());
	CUstream s = stream();
	CUdeviceptr p, q;
	OK(cuMemAllocAsync(&p, G, s));
	OK(cuMemsetD8Async(p, 5, G, s));
	OK(cuMemFreeAsync(p, s));
	CHECK(USED(standard()) == G); /* nothing of it has run */
	OK(cuMemAllocAsync(&q, G, s));
	CHECK(q != p);
	OK(cuStreamSynchronize(s));
	CHECK(USED(standard()) == G && RESERVED(standard()) == 2 * G);
	OK(cuMemAllocAsync(&q, G, s));
	CHECK(q == p); /* now it is free */
	OK(cuMemsetD8_v2(q, 6, G));
}

TEST(freed_memory_of_a_pool_kills_who_touches_it, .dies_of = SIGSEGV)
{
	start_gpu();
	keep_all(standard());
	CUstream s = stream();
	CUdeviceptr p;
	OK(cuMemAllocAsync(&p, G, s));
	*at(p) = 1;
	OK(cuMemFreeAsync(p, s));
	OK(cuStreamSynchronize(s));
	EXPECT(cuMemsetD8_v2(p, 1, 1), CUDA_ERROR_INVALID_VALUE);
	*at(p) = 1;
}

TEST(a_pool_keeps_its_threshold_and_gives_back_the_rest_when_somebody_waits)
{
	start_gpu();
	size_t before = free_memory();
	CUstream s = stream();
	CUdeviceptr p[4];
	uint64_t threshold = 2 * G, zero = 0, one = 1;
	OK(cuMemPoolSetAttribute(standard(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	CHECK(attribute(standard(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) == threshold);
	for (int i = 0; i < 4; i++)
		OK(cuMemAllocAsync(&p[i], G, s));
	for (int i = 0; i < 4; i++)
		OK(cuMemFreeAsync(p[i], s));
	OK(cuStreamSynchronize(s));
	CHECK(RESERVED(standard()) == 2 * G && free_memory() == before - 2 * G);
	CHECK(attribute(standard(), CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 4 * G);
	CHECK(attribute(standard(), CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 4 * G);
	EXPECT(cuMemPoolSetAttribute(standard(), CU_MEMPOOL_ATTR_USED_MEM_HIGH, &one), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemPoolSetAttribute(standard(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &zero), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemPoolSetAttribute(standard(), CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
	CHECK(attribute(standard(), CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 0);
	OK(cuMemPoolTrimTo(standard(), G));
	CHECK(RESERVED(standard()) == G);
	OK(cuMemPoolTrimTo(standard(), 0));
	CHECK(RESERVED(standard()) == 0 && free_memory() == before);
}

TEST(trimming_leaves_what_is_in_use)
{
	start_gpu();
	keep_all(standard());
	CUstream s = stream();
	CUdeviceptr p, q;
	OK(cuMemAllocAsync(&p, 3 * G, s));
	OK(cuMemAllocAsync(&q, G, s));
	OK(cuMemFreeAsync(p, s));
	OK(cuStreamSynchronize(s));
	CHECK(RESERVED(standard()) == 4 * G);
	OK(cuMemPoolTrimTo(standard(), 0));
	CHECK(RESERVED(standard()) == G && USED(standard()) == G);
	*at(q) = 1;
}

TEST(a_pool_of_ones_own)
{
	start_gpu();
	size_t before = free_memory();
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, .maxSize = 2 * G};
	CUmemoryPool pool, now;
	CUdeviceptr p, q;
	CUstream s = stream();
	OK(cuMemPoolCreate(&pool, &props));
	OK(cuMemAllocFromPoolAsync(&p, G, pool, s));
	CHECK(RESERVED(pool) == G && RESERVED(standard()) == 0);
	OK(cuDeviceGetMemPool(&now, 0));
	CHECK(now == standard());
	OK(cuDeviceSetMemPool(0, pool));
	OK(cuDeviceGetMemPool(&now, 0));
	CHECK(now == pool);
	OK(cuMemAllocAsync(&q, G, s));
	CHECK(RESERVED(pool) == 2 * G);
	EXPECT(cuMemAllocAsync(&q, G, s), CUDA_ERROR_OUT_OF_MEMORY); /* its largest size */
	OK(cuMemFreeAsync(p, s));
	OK(cuMemPoolDestroy(pool));
	EXPECT(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemPoolTrimTo(pool, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAllocFromPoolAsync(&p, G, pool, s), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemPoolDestroy(standard()), CUDA_ERROR_INVALID_VALUE);
	OK(cuDeviceGetMemPool(&now, 0));
	CHECK(now == standard());
	*at(q) = 1; /* in use, and therefore still there */
	OK(cuMemFreeAsync(q, s));
	OK(cuStreamSynchronize(s));
	CHECK(free_memory() == before);
}

TEST(what_pools_refuse)
{
	start_gpu();
	CUstream s = stream();
	CUdeviceptr p;
	CUmemoryPool pool;
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 9}};
	uint64_t n;
	EXPECT(cuMemAllocAsync(&p, 0, s), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAllocAsync(NULL, G, s), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAllocAsync(&p, 1ull << 45, s), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT(cuMemAllocFromPoolAsync(&p, G, NULL, s), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemFreeAsync(4096, s), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemFreeAsync(mapped(G), s), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemAllocAsync(&p, G, s));
	EXPECT(cuMemFreeAsync(p + 512, s), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFreeAsync(p, s));
	EXPECT(cuMemFreeAsync(p, s), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemPoolCreate(&pool, &props), CUDA_ERROR_INVALID_DEVICE);
	props.allocType = 0;
	EXPECT(cuMemPoolCreate(&pool, &props), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuDeviceGetDefaultMemPool(&pool, 9), CUDA_ERROR_INVALID_DEVICE);
	EXPECT(cuMemPoolGetAttribute(standard(), 99, &n), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemPoolGetAttribute((CUmemoryPool)&n, 5, &n), CUDA_ERROR_INVALID_VALUE);
}

TEST(memory_in_a_capture_is_refused)
{
	start_gpu();
	CUstream s = stream();
	CUdeviceptr p, q;
	CUgraph graph;
	uint64_t n = 7;
	OK(cuMemAllocAsync(&q, G, s));
	OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	EXPECT(cuMemAllocAsync(&p, G, s), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuMemFreeAsync(q, s), CUDA_ERROR_NOT_SUPPORTED);
	OK(cuStreamEndCapture(s, &graph));
	OK(cuMemFreeAsync(q, s));
	OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &n));
	CHECK(n == 0);
	EXPECT(cuDeviceGetGraphMemAttribute(0, 9, &n), CUDA_ERROR_INVALID_VALUE);
	OK(cuDeviceGraphMemTrim(0));
	EXPECT(cuDeviceGraphMemTrim(9), CUDA_ERROR_INVALID_DEVICE);
}

TEST(a_pool_is_its_devices_until_others_are_let_in, .env = {"SOFTGPU_DEVICES=2"})
{
	start_gpu();
	CUcontext second;
	CUstream s = stream();
	CUdeviceptr p, q;
	unsigned char c = 0;
	CUmemAccess_flags f;
	CUmemLocation there = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
	CUmemAccessDesc let_in = {there, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	OK(cuMemAllocAsync(&p, G, s));
	OK(cuMemsetD8_v2(p, 9, G));
	OK(cuCtxSynchronize());
	OK(cuDevicePrimaryCtxRetain(&second, 1));
	OK(cuCtxSetCurrent(second));
	EXPECT(cuMemcpyDtoH_v2(&c, p, 1), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemPoolGetAccess(&f, standard(), &there));
	CHECK(f == CU_MEM_ACCESS_FLAGS_PROT_NONE);
	OK(cuMemPoolSetAccess(standard(), &let_in, 1));
	OK(cuMemPoolGetAccess(&f, standard(), &there));
	CHECK(f == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	OK(cuMemcpyDtoH_v2(&c, p, 1)); /* what was there before too */
	CHECK(c == 9);
	OK(cuCtxSetCurrent(ctx));
	OK(cuMemAllocAsync(&q, G, s));
	OK(cuMemsetD8_v2(q, 8, G));
	OK(cuCtxSynchronize());
	OK(cuCtxSetCurrent(second));
	OK(cuMemcpyDtoH_v2(&c, q, 1));
	CHECK(c == 8);
	let_in.location.id = 0;
	let_in.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
	EXPECT(cuMemPoolSetAccess(standard(), &let_in, 1), CUDA_ERROR_INVALID_VALUE);
}

/* ---- other allocations */

TEST(managed_memory_counts_on_the_device_and_can_be_touched_by_the_host)
{
	start_gpu();
	size_t before = free_memory();
	CUdeviceptr p;
	unsigned managed;
	CUipcMemHandle ipc;
	EXPECT(cuMemAllocManaged(&p, G, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAllocManaged(&p, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemAllocManaged(&p, G, CU_MEM_ATTACH_GLOBAL));
	CHECK(free_memory() == before - G);
	OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
	CHECK(managed == 1);
	void *host;
	OK(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, p));
	CHECK((uintptr_t)host == p);
	EXPECT(cuIpcGetMemHandle(&ipc, p), CUDA_ERROR_INVALID_VALUE);
	memset(host, 3, G);
	unsigned char c;
	OK(cuMemcpyDtoH_v2(&c, p + 9, 1));
	CHECK(c == 3);
	OK(cuMemFree_v2(p));
	CHECK(free_memory() == before);
}

TEST(rows_of_a_pitched_allocation_begin_at_multiples_of_the_pitch)
{
	start_gpu();
	CUdeviceptr p, base;
	size_t pitch, size;
	OK(cuMemAllocPitch_v2(&p, &pitch, 1000, 50, 4));
	OK(cuMemGetAddressRange_v2(&base, &size, p));
	CHECK(pitch >= 1000 && pitch % 512 == 0 && size == pitch * 50);
	OK(cuMemFree_v2(p));
	EXPECT(cuMemAllocPitch_v2(&p, &pitch, 1000, 50, 3), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAllocPitch_v2(&p, &pitch, 0, 50, 4), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAllocPitch_v2(&p, &pitch, ~0ull, 50, 4), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT(cuMemAllocPitch_v2(&p, &pitch, 1ull << 30, 1ull << 40, 4), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST(a_device_alone_has_no_multicast)
{
	start_gpu();
	CUmulticastObjectProp props = {.numDevices = 1, .size = G};
	CUmemGenericAllocationHandle h;
	int can;
	OK(cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0));
	CHECK(can == 0);
	EXPECT(cuMulticastCreate(&h, &props), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuMulticastCreate(&h, NULL), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMulticastAddDevice(create(G), 0), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuMulticastBindMem(create(G), 0, create(G), 0, G, 0), CUDA_ERROR_NOT_SUPPORTED);
}

static void *allocate_and_free(void *none)
{
	(void)none;
	OK(cuCtxSetCurrent(ctx));
	CUstream s = stream();
	for (int i = 0; i < 200; i++) {
		CUdeviceptr p;
		OK(cuMemAllocAsync(&p, (i % 3 + 1) * G, s));
		OK(cuMemsetD8Async(p, i, G, s));
		OK(cuMemFreeAsync(p, s));
		if (i % 7 == 0)
			OK(cuStreamSynchronize(s));
	}
	OK(cuStreamSynchronize(s));
	return NULL;
}

TEST(threads_allocate_and_free_side_by_side, .env = {"SOFTGPU_GRANULARITY_KB=64", "SOFTGPU_LATENCY_US=0"})
{
	start_gpu();
	size_t before = free_memory();
	pthread_t t[4];
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&t[i], NULL, allocate_and_free, NULL) == 0);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	OK(cuCtxSynchronize());
	CHECK(free_memory() == before && USED(standard()) == 0);
}
