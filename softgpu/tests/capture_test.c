#include "test.h"

static CUstream s;
static CUdeviceptr p;

static void start_capture(CUstreamCaptureMode mode)
{
	start_gpu();
	p = mapped(G);
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuStreamBeginCapture_v2(s, mode));
}

static CUstreamCaptureStatus status_of(CUstream stream)
{
	CUstreamCaptureStatus st;
	OK(cuStreamIsCapturing(stream, &st));
	return st;
}

/* The capture was invalidated, and ending it says so and ends it. */
static void expect_invalidated(void)
{
	CUgraph g = (CUgraph)1;
	CHECK(status_of(s) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
	EXPECT(cuMemsetD8Async(p, 1, 1, s), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	EXPECT(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	CHECK(g == NULL && status_of(s) == CU_STREAM_CAPTURE_STATUS_NONE);
	OK(cuMemsetD8Async(p, 1, 1, s));
	OK(cuStreamSynchronize(s));
}

/* ---- replay */

TEST(captured_work_runs_when_the_graph_is_launched)
{
	CUgraph g;
	CUgraphExec x;
	size_t n;
	start_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
	OK(cuMemsetD8Async(p, 5, 16, s));
	OK(cuMemcpyDtoDAsync_v2(p + 16, p, 16, s));
	OK(cuStreamEndCapture(s, &g));
	OK(cuGraphGetNodes(g, NULL, &n));
	CHECK(n == 2);
	OK(cuCtxSynchronize());
	CHECK(*at(p) == 0);
	OK(cuGraphInstantiateWithFlags(&x, g, 0));
	OK(cuGraphDestroy(g));
	for (int i = 0; i < 3; i++) {
		OK(cuMemsetD8Async(p, 0, 64, s));
		OK(cuGraphLaunch(x, s));
		OK(cuStreamSynchronize(s));
		CHECK(*at(p) == 5 && *at(p + 31) == 5);
	}
	OK(cuGraphLaunch(x, s));
	OK(cuGraphExecDestroy(x)); /* a launch already queued still runs */
	OK(cuStreamSynchronize(s));
}

TEST(a_captured_copy_reads_its_source_when_launched)
{
	CUgraph g;
	CUgraphExec x;
	static unsigned char h[16];
	start_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
	memset(h, 1, 16);
	OK(cuMemcpyHtoDAsync_v2(p, h, 16, s));
	OK(cuStreamEndCapture(s, &g));
	OK(cuGraphInstantiate_v2(&x, g, NULL, NULL, 0));
	memset(h, 2, 16);
	OK(cuGraphLaunch(x, s));
	OK(cuStreamSynchronize(s));
	CHECK(*at(p) == 2);
}

TEST(a_graph_outlives_pause_at_the_same_address)
{
	CUgraph g;
	CUgraphExec x;
	start_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
	OK(cuMemsetD8Async(p, 5, 16, s));
	OK(cuStreamEndCapture(s, &g));
	OK(cuGraphInstantiateWithFlags(&x, g, 0));
	OK(cuMemUnmap(p, G));
	OK(cuMemMap(p, G, 0, create(G), 0));
	OK(set_access(p, G, 3));
	OK(cuGraphLaunch(x, s));
	OK(cuStreamSynchronize(s));
	CHECK(*at(p) == 5);
}

TEST(a_graph_launched_while_its_memory_is_away_poisons_the_context)
{
	CUgraph g;
	CUgraphExec x;
	start_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
	OK(cuMemsetD8Async(p, 5, 16, s));
	OK(cuStreamEndCapture(s, &g));
	OK(cuGraphInstantiateWithFlags(&x, g, 0));
	OK(cuMemUnmap(p, G));
	OK(cuGraphLaunch(x, s));
	EXPECT(cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(another_stream_joins_through_an_event_and_must_come_back)
{
	CUgraph g;
	CUgraphExec x;
	CUstream o;
	CUevent e;
	start_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
	OK(cuStreamCreate(&o, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&e, 0));
	OK(cuMemsetD8Async(p, 1, 1, s));
	OK(cuEventRecord(e, s));
	OK(cuStreamWaitEvent(o, e, 0));
	CHECK(status_of(o) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
	OK(cuMemsetD8Async(p + 1, 2, 1, o));
	OK(cuEventRecord(e, o));
	OK(cuStreamWaitEvent(s, e, 0));
	OK(cuStreamEndCapture(s, &g));
	CHECK(status_of(o) == CU_STREAM_CAPTURE_STATUS_NONE);
	OK(cuGraphInstantiateWithFlags(&x, g, 0));
	OK(cuGraphLaunch(x, s));
	OK(cuStreamSynchronize(s));
	CHECK(*at(p) == 1 && *at(p + 1) == 2);
	/* and once more, without coming back */
	OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cuEventRecord(e, s));
	OK(cuStreamWaitEvent(o, e, 0));
	OK(cuMemsetD8Async(p + 1, 2, 1, o));
	EXPECT(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
	CHECK(status_of(o) == CU_STREAM_CAPTURE_STATUS_NONE);
}

/* ---- refusal */

TEST(synchronising_the_context_invalidates_a_capture_of_any_mode)
{
	for (int mode = 0; mode < 3; mode++) {
		start_capture(mode);
		EXPECT(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
		expect_invalidated();
	}
}

TEST(synchronising_the_capturing_stream_invalidates)
{
	start_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
	EXPECT(cuStreamSynchronize(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	expect_invalidated();
	OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	EXPECT(cuStreamQuery(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	expect_invalidated();
}

TEST(allocating_in_global_mode_invalidates)
{
	CUdeviceptr q;
	start_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
	EXPECT(cuMemAlloc_v2(&q, 100), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	expect_invalidated();
}

TEST(freeing_in_global_mode_invalidates)
{
	start_gpu();
	CUdeviceptr q = allocated(4096);
	start_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
	EXPECT(cuMemFree_v2(q), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	expect_invalidated();
	OK(cuMemFree_v2(q)); /* it was not freed */
}

TEST(pinning_in_global_mode_invalidates)
{
	void *h;
	start_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
	EXPECT(cuMemHostAlloc(&h, 4096, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	expect_invalidated();
}

TEST(a_relaxed_capture_allows_allocating)
{
	CUgraph g;
	start_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
	OK(cuMemFree_v2(allocated(4096)));
	OK(cuMemFreeHost(pinned(4096)));
	CHECK(status_of(s) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
	OK(cuStreamEndCapture(s, &g));
}

TEST(a_thread_in_relaxed_mode_may_allocate_in_any_capture)
{
	CUgraph g;
	CUstreamCaptureMode m = CU_STREAM_CAPTURE_MODE_RELAXED;
	start_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
	OK(cuThreadExchangeStreamCaptureMode(&m));
	CHECK(m == CU_STREAM_CAPTURE_MODE_GLOBAL);
	OK(cuMemFree_v2(allocated(4096)));
	OK(cuThreadExchangeStreamCaptureMode(&m));
	CHECK(m == CU_STREAM_CAPTURE_MODE_RELAXED);
	OK(cuStreamEndCapture(s, &g));
}

static CUresult result;
static void *allocate(void *arg)
{
	CUdeviceptr q;
	(void)arg;
	OK(cuCtxSetCurrent(ctx));
	result = cuMemAlloc_v2(&q, 4096);
	return NULL;
}

static CUresult allocate_elsewhere(void)
{
	pthread_t t;
	CHECK(pthread_create(&t, NULL, allocate, NULL) == 0);
	pthread_join(t, NULL);
	return result;
}

TEST(a_global_capture_forbids_other_threads_too_a_thread_local_one_does_not)
{
	CUgraph g;
	start_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
	EXPECT(allocate_elsewhere(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	expect_invalidated();
	OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	OK(allocate_elsewhere());
	CHECK(status_of(s) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
	OK(cuStreamEndCapture(s, &g));
}

TEST(mapping_memory_is_allowed_in_any_capture)
{
	CUgraph g;
	start_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
	CUdeviceptr q = mapped(G);
	OK(cuMemUnmap(q, G));
	OK(cuMemAddressFree(q, G));
	free_memory();
	OK(cuStreamEndCapture(s, &g));
}

TEST(the_legacy_stream_is_barred_while_a_blocking_stream_captures)
{
	CUstream b;
	CUgraph g;
	CUstreamCaptureStatus st;
	start_gpu();
	p = mapped(G);
	OK(cuStreamCreate(&b, CU_STREAM_DEFAULT));
	OK(cuStreamBeginCapture_v2(b, CU_STREAM_CAPTURE_MODE_RELAXED));
	EXPECT(cuStreamIsCapturing(NULL, &st), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	CHECK(status_of(b) == CU_STREAM_CAPTURE_STATUS_ACTIVE); /* asking harms nothing */
	EXPECT(cuMemsetD8Async(p, 1, 1, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	EXPECT(cuStreamEndCapture(b, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	EXPECT(cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

TEST(events_inside_and_outside_do_not_mix)
{
	CUevent inside, outside;
	start_gpu();
	OK(cuEventCreate(&inside, 0));
	OK(cuEventCreate(&outside, 0));
	OK(cuEventRecord(outside, NULL));
	start_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
	EXPECT(cuStreamWaitEvent(s, outside, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
	expect_invalidated();
	OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cuEventRecord(inside, s));
	EXPECT(cuEventQuery(inside), CUDA_ERROR_CAPTURED_EVENT);
	expect_invalidated();
}

static void *end_it(void *arg)
{
	OK(cuCtxSetCurrent(ctx));
	result = cuStreamEndCapture(s, arg);
	return NULL;
}

TEST(only_the_thread_that_began_may_end_unless_relaxed)
{
	CUgraph g;
	pthread_t t;
	start_capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	CHECK(pthread_create(&t, NULL, end_it, &g) == 0);
	pthread_join(t, NULL);
	EXPECT(result, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
	CHECK(status_of(s) == CU_STREAM_CAPTURE_STATUS_NONE);
	OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	CHECK(pthread_create(&t, NULL, end_it, &g) == 0);
	pthread_join(t, NULL);
	OK(result);
}

TEST(captures_begin_and_end_in_pairs)
{
	CUgraph g;
	uint64_t id = 0;
	CUstreamCaptureStatus st;
	start_gpu();
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	EXPECT(cuStreamEndCapture(s, &g), CUDA_ERROR_ILLEGAL_STATE);
	EXPECT(cuStreamBeginCapture_v2(s, 7), CUDA_ERROR_INVALID_VALUE);
	OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	EXPECT(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
	OK(cuStreamGetCaptureInfo(s, &st, &id));
	CHECK(st == CU_STREAM_CAPTURE_STATUS_ACTIVE && id != 0);
	OK(cuStreamGetCaptureInfo_v2(s, &st, &id, &g, NULL, NULL));
	CHECK(g != NULL);
	OK(cuStreamEndCapture(s, &g));
	OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuStreamDestroy_v2(s)); /* ends it */
	OK(cuMemFree_v2(allocated(4096)));
}
