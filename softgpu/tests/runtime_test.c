#include "test.h"

#include <dlfcn.h>

#include "../softgpu_cudart.h"

TEST(the_first_call_makes_the_context)
{
	int n = 0, dev = -1, active;
	unsigned flags;
	void *p;
	CUcontext c = (CUcontext)1;
	OK(cudaGetDeviceCount(&n));
	OK(cudaGetDevice(&dev));
	CHECK(n == 1 && dev == 0);
	OK(cuCtxGetCurrent(&c));
	CHECK(c == NULL); /* not yet */
	OK(cudaMalloc(&p, 100));
	OK(cuCtxGetCurrent(&c));
	CHECK(c != NULL);
	OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
	CHECK(active);
	OK(cudaFree(p));
}

TEST(a_thread_works_on_the_device_it_set, .env = {"SOFTGPU_DEVICES=2"})
{
	int dev;
	void *p;
	struct cudaPointerAttributes a;
	OK(cudaSetDevice(1));
	OK(cudaGetDevice(&dev));
	CHECK(dev == 1);
	OK(cudaMalloc(&p, 100));
	OK(cudaPointerGetAttributes(&a, p));
	CHECK(a.type == cudaMemoryTypeDevice && a.device == 1 && a.devicePointer == p);
	EXPECT(cudaSetDevice(2), cudaErrorInvalidDevice);
	OK(cudaGetDevice(&dev));
	CHECK(dev == 1);
}

TEST(an_applications_own_context_is_used)
{
	CUcontext mine, c;
	void *p;
	OK(cuInit(0));
	OK(cuCtxCreate_v2(&mine, 0, 0));
	OK(cudaMalloc(&p, 100));
	OK(cuPointerGetAttribute(&c, CU_POINTER_ATTRIBUTE_CONTEXT, (uintptr_t)p));
	CHECK(c == mine);
}

TEST(allocations, .env = {"SOFTGPU_MEM_MB=16"})
{
	void *p = (void *)1;
	size_t before, after, total;
	OK(cudaMemGetInfo(&before, &total));
	CHECK(total == 16 << 20);
	OK(cudaMalloc(&p, 0));
	CHECK(p == NULL);
	OK(cudaFree(NULL));
	EXPECT(cudaMalloc(&p, 32 << 20), cudaErrorMemoryAllocation);
	OK(cudaMalloc(&p, 8 << 20));
	OK(cudaFree(p));
	EXPECT(cudaFree(p), cudaErrorInvalidValue);
	OK(cudaMemGetInfo(&after, &total));
	CHECK(after == before);
}

TEST(copies)
{
	char a[64] = "hello", b[64] = "";
	void *p, *q, *h;
	OK(cudaMalloc(&p, 64));
	OK(cudaMalloc(&q, 64));
	OK(cudaMallocHost(&h, 64));
	OK(cudaMemcpy(p, a, 64, cudaMemcpyHostToDevice));
	OK(cudaMemcpy(q, p, 64, cudaMemcpyDeviceToDevice));
	OK(cudaMemcpyAsync(h, q, 64, cudaMemcpyDefault, NULL));
	OK(cudaDeviceSynchronize());
	OK(cudaMemcpy(b, h, 64, cudaMemcpyHostToHost));
	CHECK(!strcmp(b, "hello"));
	OK(cudaMemset(p, 'x', 3));
	OK(cudaMemcpy(b, p, 64, cudaMemcpyDeviceToHost));
	CHECK(!strcmp(b, "xxxlo"));
	EXPECT(cudaMemcpy(p, a, 64, 9), cudaErrorInvalidMemcpyDirection);
	EXPECT(cudaMemcpy(p, a, 64, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
}

TEST(free_waits_for_the_device, .env = {"SOFTGPU_LATENCY_US=hold"})
{
	char *p, *q;
	cudaStream_t s;
	OK(cudaMalloc((void **)&p, 4096));
	OK(cudaMalloc((void **)&q, 4096));
	OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	OK(cudaMemsetAsync(p, 1, 4096, s));
	CHECK(*at((uintptr_t)p) == 0);
	OK(cudaFree(q));
	CHECK(*at((uintptr_t)p) == 1);
}

TEST(the_last_error_is_told_once)
{
	void *p;
	cudaStream_t s;
	EXPECT(cudaMalloc(&p, 1ull << 45), cudaErrorMemoryAllocation);
	OK(cudaMalloc(&p, 100)); /* a success does not take it away */
	EXPECT(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
	EXPECT(cudaGetLastError(), cudaErrorMemoryAllocation);
	OK(cudaGetLastError());
	OK(cudaStreamCreate(&s));
}

TEST(not_ready_is_no_error_to_remember, .env = {"SOFTGPU_LATENCY_US=hold"})
{
	void *p;
	OK(cudaMalloc(&p, 100));
	OK(cudaMemsetAsync(p, 1, 100, NULL));
	EXPECT(cudaStreamQuery(NULL), cudaErrorNotReady);
	OK(cudaPeekAtLastError());
	OK(cudaDeviceSynchronize());
}

TEST(a_poisoned_context_answers_every_call_with_its_error)
{
	void *p, *q;
	OK(cudaMalloc(&p, 100));
	OK(softgpu_set_fault("memset:1:700"));
	OK(cudaMemsetAsync(p, 1, 100, NULL));
	EXPECT(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
	EXPECT(cudaGetLastError(), cudaErrorIllegalAddress);
	EXPECT(cudaMalloc(&q, 100), cudaErrorIllegalAddress);
	EXPECT(cudaFree(p), cudaErrorIllegalAddress);
	EXPECT(cudaGetLastError(), cudaErrorIllegalAddress);
	OK(cudaDeviceReset());
	EXPECT(cudaMalloc(&q, 100), cudaErrorDevicesUnavailable);
}

TEST(a_reset_device_starts_anew)
{
	void *p;
	OK(cudaMalloc(&p, 100));
	OK(cudaDeviceReset());
	EXPECT(cudaFree(p), cudaErrorInvalidValue);
	OK(cudaMalloc(&p, 100));
}

TEST(runtime_calls_can_be_made_to_fail, .env = {"SOFTGPU_FAULT=cudaMalloc:2:2"})
{
	void *p;
	OK(cudaMalloc(&p, 100));
	EXPECT(cudaMalloc(&p, 100), cudaErrorMemoryAllocation);
	OK(cudaMalloc(&p, 100));
	CHECK(softgpu_call_count("cudaMalloc") == 3 && softgpu_call_count("cuMemAlloc") == 2);
}

TEST(allocating_while_capturing_is_refused)
{
	void *p;
	cudaStream_t s;
	cudaGraph_t g;
	enum cudaStreamCaptureStatus st;
	OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
	EXPECT(cudaMalloc(&p, 100), cudaErrorStreamCaptureUnsupported);
	OK(cudaStreamIsCapturing(s, &st));
	CHECK(st == cudaStreamCaptureStatusInvalidated);
	EXPECT(cudaStreamEndCapture(s, &g), cudaErrorStreamCaptureInvalidated);
	OK(cudaMalloc(&p, 100));
}

TEST(graphs)
{
	void *p;
	cudaStream_t s;
	cudaGraph_t g;
	cudaGraphExec_t x;
	unsigned char c;
	OK(cudaMalloc(&p, 100));
	OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
	OK(cudaMemsetAsync(p, 3, 100, s));
	OK(cudaStreamEndCapture(s, &g));
	OK(cudaGraphInstantiate(&x, g, 0));
	OK(cudaGraphLaunch(x, s));
	OK(cudaStreamSynchronize(s));
	OK(cudaMemcpy(&c, p, 1, cudaMemcpyDeviceToHost));
	CHECK(c == 3);
	OK(cudaGraphExecDestroy(x));
	OK(cudaGraphDestroy(g));
}

TEST(events_and_names)
{
	cudaEvent_t a, b;
	float ms = -1;
	OK(cudaEventCreate(&a));
	OK(cudaEventCreateWithFlags(&b, cudaEventDefault));
	OK(cudaEventRecord(a, NULL));
	OK(cudaEventRecord(b, NULL));
	OK(cudaEventSynchronize(b));
	OK(cudaEventElapsedTime(&ms, a, b));
	CHECK(ms >= 0);
	CHECK(!strcmp(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress"));
	CHECK(!strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory"));
	CHECK(!strcmp(cudaGetErrorName(12345), "unrecognized error code"));
}

TEST(driver_entry_points)
{
	void *f;
	enum cudaDriverEntryPointQueryResult st;
	OK(cudaGetDriverEntryPointByVersion("cuMemCreate", &f, 12000, 0, &st));
	CHECK(f == (void *)cuMemCreate && st == cudaDriverEntryPointSuccess);
	OK(cudaGetDriverEntryPoint("cuMemAlloc", &f, 0, &st));
	CHECK(f == (void *)cuMemAlloc_v2);
	OK(cudaGetDriverEntryPoint("cuNoSuchCall", &f, 0, &st));
	CHECK(!f && st == cudaDriverEntryPointSymbolNotFound);
}

TEST(a_forked_child_is_refused)
{
	int status;
	void *p;
	OK(cudaMalloc(&p, 100));
	pid_t child = fork();
	if (child == 0) {
		int n;
		EXPECT(cudaMalloc(&p, 100), cudaErrorInitializationError);
		EXPECT(cudaFree(p), cudaErrorInitializationError);
		OK(cudaGetDeviceCount(&n)); /* it is remembered */
		_exit(0);
	}
	waitpid(child, &status, 0);
	CHECK(status == 0);
	OK(cudaFree(p));
}

/* ---- hooks. These run again with hook.so preloaded. */

TEST(hooked, .helper = true)
{
	int (*count)(int) = (int (*)(int))dlsym(RTLD_DEFAULT, "hook_count");
	void *p, *h;
	CUdeviceptr q;
	CHECK(count);
	OK(cudaMalloc(&p, 100));
	OK(cudaMallocHost(&h, 100));
	CHECK(count(0) == 1);
	CHECK(count(1) == 0); /* what the runtime calls inside is nobody's business */
	OK(cuMemAlloc_v2(&q, 100));
	CHECK(count(1) == 1);
	tell(1, 'k');
}

TEST(a_preloaded_hook_sees_the_applications_calls_and_no_others,
     .skip =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	     "a sanitizer's runtime must be loaded first"
#else
	     NULL
#endif
)
{
	char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof path - 100);
	CHECK(n > 0);
	path[n] = 0;
	strcpy(strrchr(path, '/') + 1, "hook.so");
	setenv("LD_PRELOAD", path, 1);
	struct peer p = start_peer("hooked");
	CHECK(hear(p.from) == 'k');
	waitpid(p.pid, NULL, 0);
}

TEST(memory_pools_by_the_runtime)
{
	size_t before, now, total;
	void *p = NULL, *q = NULL;
	cudaMemPool_t pool, mine;
	cudaStream_t s;
	uint64_t n = 0;
	struct cudaMemPoolProps props = {.allocType = cudaMemAllocationTypePinned, .location = {cudaMemLocationTypeDevice, 0}};
	enum cudaMemAccessFlags flags;
	struct cudaPointerAttributes a;
	OK(cudaStreamCreate(&s));
	OK(cudaMemGetInfo(&before, &total));
	OK(cudaMallocAsync(&p, 0, s));
	CHECK(p == NULL);
	OK(cudaFreeAsync(NULL, s));
	OK(cudaMallocAsync(&p, 1000, s));
	OK(cudaDeviceGetDefaultMemPool(&pool, 0));
	OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &n));
	CHECK(n > 0);
	OK(cudaMemsetAsync(p, 1, 1000, s));
	OK(cudaFreeAsync(p, s));
	OK(cudaMemPoolCreate(&mine, &props));
	OK(cudaMallocFromPoolAsync(&q, 1000, mine, s));
	OK(cudaMemPoolGetAccess(&flags, mine, &props.location));
	CHECK(flags == cudaMemAccessFlagsProtReadWrite);
	n = ~0ull;
	OK(cudaMemPoolSetAttribute(mine, cudaMemPoolAttrReleaseThreshold, &n));
	OK(cudaFreeAsync(q, s));
	OK(cudaDeviceSynchronize());
	OK(cudaMemGetInfo(&now, &total));
	CHECK(now < before); /* the threshold keeps it */
	OK(cudaMemPoolTrimTo(mine, 0));
	OK(cudaMemGetInfo(&now, &total));
	CHECK(now == before);
	OK(cudaDeviceSetMemPool(0, mine));
	OK(cudaDeviceGetMemPool(&pool, 0));
	CHECK(pool == mine);
	OK(cudaMemPoolDestroy(mine));
	OK(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &n));
	OK(cudaDeviceGraphMemTrim(0));
	CHECK(n == 0);

	OK(cudaMallocManaged(&p, 5000, cudaMemAttachGlobal));
	OK(cudaPointerGetAttributes(&a, p));
	CHECK(a.type == cudaMemoryTypeManaged && a.devicePointer == p && a.hostPointer == p);
	OK(cudaFree(p));
	size_t pitch = 0;
	OK(cudaMallocPitch(&p, &pitch, 100, 7));
	CHECK(pitch >= 100);
	OK(cudaFree(p));
}
