#include "test.h"

static void *fresh_thread(void *arg)
{
	(void)arg;
	CUcontext c = (CUcontext)1;
	CUdeviceptr p;
	CUstream s;
	size_t a, b;
	OK(cuCtxGetCurrent(&c));
	CHECK(c == NULL);
	EXPECT(cuMemAlloc_v2(&p, 100), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuMemGetInfo_v2(&a, &b), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuStreamCreate(&s, 0), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
	OK(cuCtxSetCurrent(ctx));
	OK(cuMemGetInfo_v2(&a, &b));
	return NULL;
}

TEST(a_fresh_thread_has_no_context)
{
	pthread_t t;
	start_gpu();
	CHECK(pthread_create(&t, NULL, fresh_thread, NULL) == 0);
	pthread_join(t, NULL);
}

TEST(nothing_works_before_init_but_version_and_names)
{
	int n;
	const char *s;
	CUcontext c;
	EXPECT(cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
	EXPECT(cuCtxGetCurrent(&c), CUDA_ERROR_NOT_INITIALIZED);
	OK(cuDriverGetVersion(&n));
	CHECK(n == 13000);
	OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &s));
	CHECK(!strcmp(s, "CUDA_ERROR_OUT_OF_MEMORY"));
	OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &s));
	CHECK(!strcmp(s, "out of memory"));
	EXPECT(cuInit(1), CUDA_ERROR_INVALID_VALUE);
}

TEST(mapped_memory_needs_no_context)
{
	CUmemAllocationProp p = on_device(0);
	CUmemGenericAllocationHandle h;
	CUdeviceptr a;
	OK(cuInit(0));
	OK(cuMemGetAllocationGranularity(&G, &p, 0));
	OK(cuMemCreate(&h, G, &p, 0));
	OK(cuMemAddressReserve(&a, G, 0, 0, 0));
	OK(cuMemMap(a, G, 0, h, 0));
	OK(set_access(a, G, 3));
	*at(a) = 1;
	OK(cuMemUnmap(a, G));
}

TEST(contexts_stack)
{
	CUcontext a, b, c;
	CUdevice dev;
	OK(cuInit(0));
	EXPECT(cuCtxPopCurrent_v2(&c), CUDA_ERROR_INVALID_CONTEXT);
	OK(cuCtxCreate_v2(&a, 0, 0)); /* and makes it current */
	OK(cuCtxCreate_v4(&b, NULL, 0, 0));
	OK(cuCtxGetCurrent(&c));
	CHECK(c == b);
	OK(cuCtxGetDevice(&dev));
	CHECK(dev == 0);
	OK(cuCtxPopCurrent_v2(&c));
	CHECK(c == b);
	OK(cuCtxPushCurrent_v2(b));
	OK(cuCtxSetCurrent(NULL)); /* takes the top away */
	OK(cuCtxGetCurrent(&c));
	CHECK(c == a);
	OK(cuCtxDestroy_v2(a));
	OK(cuCtxGetCurrent(&c));
	CHECK(c == NULL);
	EXPECT(cuCtxDestroy_v2(a), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuCtxSetCurrent((CUcontext)0x1234), CUDA_ERROR_INVALID_CONTEXT);
	EXPECT(cuCtxPushCurrent_v2(NULL), CUDA_ERROR_INVALID_VALUE);
}

TEST(the_primary_context_lives_while_retained)
{
	CUcontext a, b;
	unsigned flags;
	int active;
	size_t x, y;
	OK(cuInit(0));
	EXPECT(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	CHECK(!active);
	OK(cuDevicePrimaryCtxRetain(&a, 0));
	OK(cuDevicePrimaryCtxRetain(&b, 0));
	CHECK(a == b);
	OK(cuCtxGetCurrent(&b));
	CHECK(b == NULL); /* retaining makes nothing current */
	OK(cuCtxSetCurrent(a));
	OK(cuDevicePrimaryCtxRelease_v2(0));
	OK(cuMemGetInfo_v2(&x, &y));
	OK(cuDevicePrimaryCtxRelease_v2(0));
	EXPECT(cuMemGetInfo_v2(&x, &y), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	OK(cuDevicePrimaryCtxRetain(&b, 0));
	CHECK(a == b);
	OK(cuMemGetInfo_v2(&x, &y));
	EXPECT(cuDevicePrimaryCtxRetain(&b, 9), CUDA_ERROR_INVALID_DEVICE);
}

TEST(a_reset_frees_what_belongs_to_the_context_and_leaves_mapped_memory)
{
	start_gpu();
	size_t before = free_memory();
	CUdeviceptr mine = mapped(G), plain = allocated(8 << 20);
	CUstream s;
	OK(cuStreamCreate(&s, 0));
	OK(cuMemsetD8_v2(mine, 7, 16));
	OK(cuDevicePrimaryCtxReset_v2(0));
	EXPECT(cuMemFree_v2(plain), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	OK(cuDevicePrimaryCtxRetain(&ctx, 0));
	EXPECT(cuMemFree_v2(plain), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuStreamSynchronize(s), CUDA_ERROR_INVALID_HANDLE);
	CHECK(free_memory() == before - G);
	CHECK(*at(mine) == 7);
}

TEST(a_poisoned_device_does_not_come_back)
{
	start_gpu();
	CUdeviceptr p = allocated(4096);
	CUcontext c;
	OK(softgpu_set_fault("memset:1:CUDA_ERROR_ILLEGAL_ADDRESS"));
	OK(cuMemsetD8_v2(p, 1, 16));
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuCtxCreate_v2(&c, 0, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
	OK(cuDevicePrimaryCtxReset_v2(0));
	EXPECT(cuDevicePrimaryCtxRetain(&c, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(a_context_destroyed_with_work_queued_finishes_it, .env = {"SOFTGPU_LATENCY_US=hold"})
{
	CUcontext a;
	CUstream s;
	OK(cuInit(0));
	CUmemAllocationProp prop = on_device(0);
	OK(cuMemGetAllocationGranularity(&G, &prop, 0));
	OK(cuCtxCreate_v2(&a, 0, 0));
	CUdeviceptr p = mapped(G);
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuMemsetD8Async(p, 1, G, s));
	OK(cuCtxDestroy_v2(a));
	CHECK(*at(p) == 1);
}

/* ---- devices */

TEST(devices_say_who_they_are, .env = {"SOFTGPU_DEVICES=2", "SOFTGPU_MEM_MB=100"})
{
	int n, major, minor, vmm, rdma, numa, dev;
	char name[64], bus[20], other[20];
	size_t total;
	CUuuid a, b;
	OK(cuInit(0));
	OK(cuDeviceGetCount(&n));
	CHECK(n == 2);
	OK(cuDeviceGet(&dev, 1));
	OK(cuDeviceGetName(name, sizeof name, dev));
	CHECK(!strcmp(name, "softgpu 1 (software device)"));
	OK(cuDeviceTotalMem_v2(&total, dev));
	CHECK(total == 100 << 20);
	OK(cuDeviceGetUuid(&a, 0));
	OK(cuDeviceGetUuid_v2(&b, 1));
	CHECK(memcmp(&a, &b, sizeof a));
	OK(cuDeviceGetPCIBusId(bus, sizeof bus, 0));
	OK(cuDeviceGetPCIBusId(other, sizeof other, 1));
	CHECK(strcmp(bus, other));
	OK(cuDeviceGetByPCIBusId(&dev, other));
	CHECK(dev == 1);
	OK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
	OK(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
	CHECK(major == 9 && minor == 0);
	OK(cuDeviceGetAttribute(&vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
	OK(cuDeviceGetAttribute(&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0));
	OK(cuDeviceGetAttribute(&numa, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0));
	CHECK(vmm == 1 && rdma == 0 && numa == -1);
	EXPECT(cuDeviceGet(&dev, 2), CUDA_ERROR_INVALID_DEVICE);
}

TEST(entry_points_are_found_by_name_and_version)
{
	void *f;
	CUdriverProcAddressQueryResult status;
	OK(cuGetProcAddress_v2("cuMemAlloc", &f, 12000, 0, &status));
	CHECK(f == (void *)cuMemAlloc_v2 && status == CU_GET_PROC_ADDRESS_SUCCESS);
	OK(cuGetProcAddress_v2("cuMemAlloc_v2", &f, 12000, 0, &status));
	CHECK(f == (void *)cuMemAlloc_v2);
	OK(cuGetProcAddress_v2("cuCtxCreate", &f, 12000, 0, &status));
	CHECK(f == (void *)cuCtxCreate_v2);
	OK(cuGetProcAddress_v2("cuCtxCreate", &f, 13000, 0, &status));
	CHECK(f == (void *)cuCtxCreate_v4);
	OK(cuGetProcAddress_v2("cuMemCreate", &f, 9000, 0, &status));
	CHECK(!f && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
	OK(cuGetProcAddress_v2("cuNoSuchCall", &f, 12000, 0, &status));
	CHECK(!f && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	EXPECT(cuGetProcAddress("cuNoSuchCall", &f, 12000, 0), CUDA_ERROR_NOT_FOUND);
}

static CUresult at_exit_result;
static CUdeviceptr at_exit_ptr;
static void late(void)
{
	at_exit_result = cuMemFree_v2(at_exit_ptr);
	if (at_exit_result != CUDA_ERROR_DEINITIALIZED)
		_exit(1);
}

TEST(at_the_end_of_the_process_the_driver_is_gone)
{
	atexit(late); /* before cuInit, so it runs after the driver's own */
	start_gpu();
	at_exit_ptr = allocated(4096);
}
