/* Everything once, and given back. Built with the address sanitizer, the process fails at its end if anything is lost. */
#include "test.h"

static void use_streams(void)
{
	CUstream s, o;
	CUevent e;
	CUdeviceptr p = mapped(G), q = allocated(4096);
	unsigned char *h = pinned(4096), *plain = calloc(1, 4096);
	OK(cuStreamCreate(&s, 0));
	OK(cuStreamCreate(&o, 1));
	OK(cuEventCreate(&e, 0));
	OK(cuMemcpyHtoDAsync_v2(q, plain, 4096, s));
	OK(cuEventRecord(e, s));
	OK(cuStreamWaitEvent(o, e, 0));
	OK(cuMemcpyDtoDAsync_v2(p, q, 4096, o));
	OK(cuStreamSynchronize(o)); /* non-blocking: the next copy would not wait for it */
	OK(cuMemcpyDtoH_v2(plain, p, 4096));
	OK(cuMemsetD8_v2((uintptr_t)h, 1, 4096));
	EXPECT(cuMemcpyHtoDAsync_v2(p, NULL, 10, s), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemcpyHtoDAsync_v2(p, plain, 10, o), CUDA_SUCCESS);
	OK(cuStreamDestroy_v2(s));
	OK(cuStreamDestroy_v2(o));
	OK(cuEventDestroy_v2(e));
	OK(cuMemFreeHost(h));
	OK(cuMemFree_v2(q));
	OK(cuMemUnmap(p, G));
	OK(cuMemAddressFree(p, G));
	free(plain);
}

static void use_graphs(void)
{
	CUstream s;
	CUgraph g, outer;
	CUgraphExec x, y;
	static unsigned char plain[64];
	CUdeviceptr p = allocated(4096);
	OK(cuStreamCreate(&s, 1));
	OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuMemcpyHtoDAsync_v2(p, plain, 64, s));
	OK(cuMemsetD8Async(p, 1, 64, s));
	OK(cuStreamEndCapture(s, &g));
	OK(cuGraphInstantiateWithFlags(&x, g, 0));
	OK(cuGraphDestroy(g));
	OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuGraphLaunch(x, s)); /* a graph in a graph */
	OK(cuStreamEndCapture(s, &outer));
	OK(cuGraphExecDestroy(x));
	OK(cuGraphInstantiateWithFlags(&y, outer, 0));
	OK(cuGraphDestroy(outer));
	OK(cuGraphLaunch(y, s));
	OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL)); /* and one that comes to nothing */
	OK(cuGraphLaunch(y, s));
	OK(cuMemsetD8Async(p, 1, 64, s));
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	EXPECT(cuGraphLaunch(y, s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	EXPECT(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	OK(cuGraphExecDestroy(y));
	OK(cuStreamDestroy_v2(s));
	OK(cuMemFree_v2(p));
}

static void use_modules(void)
{
	CUmodule m;
	CUfunction f;
	CUdeviceptr p = allocated(4096);
	uint32_t value = 1, count = 1;
	OK(cuModuleLoadData(&m, "//\n.version 6.3\n.entry softgpu_selftest_fill() {}"));
	OK(cuModuleGetFunction(&f, m, "softgpu_selftest_fill"));
	EXPECT(cuModuleGetFunction(&f, m, "nope"), CUDA_ERROR_NOT_FOUND);
	OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&p, &value, &count}, NULL));
	OK(cuModuleUnload(m));
	EXPECT(cuModuleLoadData(&m, "garbage"), CUDA_ERROR_INVALID_IMAGE);
	OK(cuMemFree_v2(p));
}

static void *use_everything(void *arg)
{
	(void)arg;
	OK(cuCtxSetCurrent(ctx));
	OK(cuStreamQuery(CU_STREAM_PER_THREAD));
	use_streams();
	return NULL;
}

TEST(what_is_given_back_is_not_lost, .env = {"ASAN_OPTIONS=detect_leaks=1"})
{
	pthread_t t;
	start_gpu();
	size_t before = free_memory();
	for (int i = 0; i < 3; i++) {
		use_streams();
		use_graphs();
		use_modules();
		CHECK(pthread_create(&t, NULL, use_everything, NULL) == 0);
		pthread_join(t, NULL);
	}
	CHECK(free_memory() == before);
	OK(cuDevicePrimaryCtxRelease_v2(0));
}
