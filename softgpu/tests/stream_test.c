/* With SOFTGPU_LATENCY_US=hold nothing runs before somebody waits or asks for it, so "not yet" is no question of time. */
#include "test.h"

#define HOLD "SOFTGPU_LATENCY_US=hold"
/* Reusing a pinned buffer under a running copy is the mistake these tests are about, and the race TSan is there to find. */
#define RACES_ON_PURPOSE .skip = UNDER_TSAN ? "races on purpose" : NULL

static CUstream stream(unsigned flags)
{
	CUstream s;
	OK(cuStreamCreate(&s, flags));
	return s;
}

static CUevent event(void)
{
	CUevent e;
	OK(cuEventCreate(&e, CU_EVENT_DEFAULT));
	return e;
}

static unsigned char byte_of(CUdeviceptr p)
{
	unsigned char c;
	OK(cuMemcpyDtoH_v2(&c, p, 1));
	return c;
}

/* ---- lateness */

TEST(a_copy_not_waited_for_is_not_finished, .env = {HOLD})
{
	start_gpu();
	CUstream s = stream(CU_STREAM_NON_BLOCKING);
	CUdeviceptr p = mapped(G);
	unsigned char *h = pinned(G);
	memset((void *)(uintptr_t)p, 7, G);
	OK(cuMemcpyDtoHAsync_v2(h, p, G, s));
	CHECK(h[0] == 0 && h[G - 1] == 0);
	OK(cuStreamSynchronize(s));
	CHECK(h[0] == 7 && h[G - 1] == 7);
}

TEST(a_fill_not_waited_for_is_not_finished, .env = {HOLD})
{
	start_gpu();
	CUdeviceptr p = mapped(G);
	OK(cuMemsetD8_v2(p, 9, G)); /* of device memory: does not wait, though not called async */
	CHECK(*at(p) == 0);
	OK(cuCtxSynchronize());
	CHECK(*at(p) == 9);
	OK(cuMemsetD32Async(p, 0x01020304, G / 4, NULL));
	OK(cuStreamSynchronize(NULL));
	CHECK(*at(p) == 4 && *at(p + G - 1) == 1);
}

TEST(asking_makes_work_run, .env = {HOLD})
{
	start_gpu();
	CUstream s = stream(CU_STREAM_NON_BLOCKING);
	CUevent e = event();
	CUdeviceptr p = allocated(4096);
	OK(cuMemsetD8Async(p, 1, 4096, s));
	EXPECT(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
	CUresult r;
	while ((r = cuStreamQuery(s)) == CUDA_ERROR_NOT_READY)
		;
	OK(r);
	OK(cuMemsetD8Async(p, 2, 4096, s));
	OK(cuEventRecord(e, s));
	EXPECT(cuEventQuery(e), CUDA_ERROR_NOT_READY);
	while ((r = cuEventQuery(e)) == CUDA_ERROR_NOT_READY)
		;
	OK(r);
	CHECK(byte_of(p) == 2);
}

TEST(work_runs_by_itself_without_hold, RACES_ON_PURPOSE)
{
	start_gpu();
	CUdeviceptr p = mapped(G);
	OK(cuMemsetD8Async(p, 1, G, stream(CU_STREAM_NON_BLOCKING)));
	while (__atomic_load_n((unsigned char *)(uintptr_t)(p + G - 1), __ATOMIC_RELAXED) != 1)
		;
}

TEST(pageable_memory_is_taken_before_the_call_returns, .env = {HOLD})
{
	start_gpu();
	CUdeviceptr p = allocated(4096);
	CUstream s = stream(CU_STREAM_NON_BLOCKING);
	unsigned char *h = malloc(4096);
	memset(h, 1, 4096);
	OK(cuMemcpyHtoDAsync_v2(p, h, 4096, s));
	memset(h, 2, 4096);
	OK(cuStreamSynchronize(s));
	CHECK(byte_of(p) == 1);
}

TEST(pinned_memory_is_read_late, .env = {HOLD}, RACES_ON_PURPOSE)
{
	start_gpu();
	CUdeviceptr p = allocated(4096);
	CUstream s = stream(CU_STREAM_NON_BLOCKING);
	unsigned char *h = pinned(4096);
	memset(h, 1, 4096);
	OK(cuMemcpyHtoDAsync_v2(p, h, 4096, s));
	memset(h, 2, 4096); /* too early: the mistake of a careless pipeline */
	OK(cuStreamSynchronize(s));
	CHECK(byte_of(p) == 2);
}

TEST(registered_memory_is_read_late, .env = {HOLD}, RACES_ON_PURPOSE)
{
	start_gpu();
	CUdeviceptr p = allocated(4096);
	CUstream s = stream(CU_STREAM_NON_BLOCKING);
	unsigned char *h = aligned_alloc(4096, 8192);
	OK(cuMemHostRegister_v2(h, 8192, 0));
	memset(h, 1, 4096);
	OK(cuMemcpyHtoDAsync_v2(p, h, 4096, s));
	memset(h, 2, 4096);
	OK(cuStreamSynchronize(s));
	CHECK(byte_of(p) == 2);
}

TEST(a_copy_to_pageable_memory_returns_when_it_is_done, .env = {HOLD})
{
	start_gpu();
	CUdeviceptr p = mapped(G);
	unsigned char h[64] = {0};
	*at(p) = 5;
	OK(cuMemcpyDtoHAsync_v2(h, p, 64, stream(CU_STREAM_NON_BLOCKING)));
	CHECK(h[0] == 5);
}

/* ---- order */

static volatile int order[8], norder;
static void note(void *arg)
{
	order[norder++] = (int)(intptr_t)arg;
}

TEST(a_stream_runs_in_order)
{
	start_gpu();
	CUstream s = stream(CU_STREAM_NON_BLOCKING);
	for (intptr_t i = 0; i < 8; i++)
		OK(cuLaunchHostFunc(s, note, (void *)i));
	OK(cuStreamSynchronize(s));
	for (int i = 0; i < 8; i++)
		CHECK(order[i] == i);
}

TEST(the_legacy_stream_comes_after_earlier_work_of_blocking_streams, .env = {HOLD})
{
	start_gpu();
	CUstream s = stream(CU_STREAM_DEFAULT);
	CUdeviceptr p = mapped(G);
	OK(cuMemsetD8Async(p, 1, 16, s));
	OK(cuMemsetD8Async(p, 2, 8, NULL));
	OK(cuMemsetD8Async(p, 3, 4, s)); /* and this after the legacy stream's */
	OK(cuStreamSynchronize(s));
	CHECK(*at(p) == 3 && *at(p + 4) == 2 && *at(p + 8) == 1);
}

TEST(synchronising_the_legacy_stream_waits_for_blocking_streams, .env = {HOLD})
{
	start_gpu();
	CUdeviceptr p = mapped(G);
	OK(cuMemsetD8Async(p, 1, 16, stream(CU_STREAM_DEFAULT)));
	OK(cuMemsetD8Async(p + 16, 1, 16, stream(CU_STREAM_NON_BLOCKING)));
	EXPECT(cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
	OK(cuStreamSynchronize(CU_STREAM_LEGACY));
	CHECK(*at(p) == 1);
	CHECK(*at(p + 16) == 0); /* non-blocking: not its business */
	OK(cuCtxSynchronize());
	CHECK(*at(p + 16) == 1);
}

TEST(a_synchronous_copy_waits_for_blocking_streams_only, .env = {HOLD})
{
	start_gpu();
	CUdeviceptr p = mapped(G);
	unsigned char h[32];
	OK(cuMemsetD8Async(p, 1, 16, stream(CU_STREAM_DEFAULT)));
	OK(cuMemsetD8Async(p + 16, 1, 16, stream(CU_STREAM_NON_BLOCKING)));
	OK(cuMemcpyDtoH_v2(h, p, 32));
	CHECK(h[0] == 1 && h[16] == 0);
}

TEST(waiting_for_one_stream_leaves_others_alone, .env = {HOLD})
{
	start_gpu();
	CUdeviceptr p = mapped(G);
	CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
	OK(cuMemsetD8Async(p, 1, 1, a));
	OK(cuMemsetD8Async(p + 1, 1, 1, b));
	OK(cuStreamSynchronize(b));
	CHECK(*at(p) == 0 && *at(p + 1) == 1);
}

TEST(an_event_orders_two_streams, .env = {HOLD})
{
	start_gpu();
	CUdeviceptr p = mapped(G);
	CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
	CUevent e = event();
	OK(cuMemsetD8Async(p, 1, 16, a));
	OK(cuEventRecord(e, a));
	OK(cuMemsetD8Async(p + 16, 1, 16, a)); /* after the event */
	OK(cuStreamWaitEvent(b, e, 0));
	OK(cuMemcpyDtoDAsync_v2(p + 32, p, 16, b));
	OK(cuStreamSynchronize(b));
	CHECK(*at(p + 32) == 1);
	CHECK(*at(p + 16) == 0); /* nobody asked for that */
}

TEST(without_the_event_the_second_stream_runs_first, .env = {HOLD})
{
	start_gpu();
	CUdeviceptr p = mapped(G);
	CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
	OK(cuMemsetD8Async(p, 1, 16, a));
	OK(cuMemcpyDtoDAsync_v2(p + 32, p, 16, b)); /* forgot to wait */
	OK(cuStreamSynchronize(b));
	CHECK(*at(p + 32) == 0);
}

TEST(an_event_means_its_last_record)
{
	start_gpu();
	CUstream s = stream(CU_STREAM_NON_BLOCKING);
	CUevent e = event(), f = event(), never = event(), untimed;
	float ms = -1;
	OK(cuEventQuery(never));
	OK(cuEventSynchronize(never));
	OK(cuStreamWaitEvent(s, never, 0));
	EXPECT(cuEventElapsedTime(&ms, never, never), CUDA_ERROR_INVALID_HANDLE);
	OK(cuEventRecord(e, s));
	OK(cuEventRecord(f, s));
	OK(cuEventSynchronize(f));
	OK(cuEventElapsedTime(&ms, e, f));
	CHECK(ms >= 0);
	OK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
	OK(cuEventRecord(untimed, s));
	OK(cuEventSynchronize(untimed));
	EXPECT(cuEventElapsedTime(&ms, e, untimed), CUDA_ERROR_INVALID_HANDLE);
}

TEST(elapsed_time_of_work_not_done_is_not_ready, .env = {HOLD})
{
	start_gpu();
	CUevent e = event();
	float ms;
	OK(cuEventRecord(e, NULL));
	EXPECT(cuEventElapsedTime(&ms, e, e), CUDA_ERROR_NOT_READY);
	OK(cuEventSynchronize(e));
	OK(cuEventElapsedTime(&ms, e, e));
	CHECK(ms == 0);
}

TEST(each_thread_has_a_default_stream_of_its_own, .env = {HOLD})
{
	start_gpu();
	CUdeviceptr p = mapped(G);
	CUcontext c;
	OK(cuMemsetD8Async(p, 1, 1, CU_STREAM_PER_THREAD));
	OK(cuStreamGetCtx(CU_STREAM_PER_THREAD, &c));
	CHECK(c == ctx);
	OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
	CHECK(*at(p) == 1);
}

TEST(a_destroyed_stream_finishes_its_work)
{
	start_gpu();
	CUstream s = stream(CU_STREAM_NON_BLOCKING);
	CUdeviceptr p = mapped(G);
	OK(cuMemsetD8Async(p, 1, G, s));
	OK(cuStreamDestroy_v2(s));
	EXPECT(cuStreamSynchronize(s), CUDA_ERROR_INVALID_HANDLE);
	EXPECT(cuStreamDestroy_v2(s), CUDA_ERROR_INVALID_HANDLE);
	OK(cuCtxSynchronize());
	CHECK(*at(p + G - 1) == 1);
}

TEST(freeing_waits_for_all_work, .env = {HOLD})
{
	start_gpu();
	CUdeviceptr p = mapped(G), q = allocated(4096);
	OK(cuMemsetD8Async(p, 1, G, stream(CU_STREAM_NON_BLOCKING)));
	OK(cuMemsetD8Async(q, 1, 4096, stream(CU_STREAM_NON_BLOCKING)));
	OK(cuMemFree_v2(q));
	CHECK(*at(p) == 1);
	OK(cuCtxSynchronize());
}

static CUresult from_callback;
static void call_back(void *arg)
{
	(void)arg;
	size_t a, b;
	from_callback = cuMemGetInfo_v2(&a, &b);
}

TEST(a_host_function_may_not_call_the_driver)
{
	start_gpu();
	OK(cuLaunchHostFunc(NULL, call_back, NULL));
	OK(cuCtxSynchronize());
	CHECK(from_callback == CUDA_ERROR_NOT_PERMITTED);
}

static void *sync_it(void *s)
{
	OK(cuCtxSetCurrent(ctx));
	OK(cuStreamSynchronize(s));
	return NULL;
}

TEST(many_threads_many_streams)
{
	enum { THREADS = 8, ROUNDS = 100 };
	start_gpu();
	pthread_t t[THREADS];
	CUstream s[THREADS];
	CUevent e[THREADS];
	CUdeviceptr p = mapped(G);
	for (int i = 0; i < THREADS; i++) {
		s[i] = stream(i & 1);
		e[i] = event();
	}
	for (int r = 0; r < ROUNDS; r++) {
		for (int i = 0; i < THREADS; i++) {
			OK(cuMemsetD8Async(p + i * 4096, r, 4096, s[i]));
			OK(cuEventRecord(e[i], s[i]));
			OK(cuStreamWaitEvent(s[(i + 1) % THREADS], e[i], 0));
		}
		if (r % 10 == 0)
			OK(cuMemsetD8Async(p + THREADS * 4096, r, 64, NULL));
	}
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&t[i], NULL, sync_it, s[i]) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	for (int i = 0; i < THREADS; i++)
		CHECK(*at(p + i * 4096) == ROUNDS - 1);
	OK(cuCtxSynchronize());
}

static void *own_work(void *arg)
{
	int me = (int)(intptr_t)arg;
	OK(cuCtxSetCurrent(ctx));
	CUstream s = stream(CU_STREAM_NON_BLOCKING);
	unsigned char *h = pinned(3 * G);
	for (int r = 0; r < 20; r++) {
		CUdeviceptr p = mapped(G), q = allocated(100000);
		memset(h, me + r, G);
		OK(cuMemcpyHtoDAsync_v2(p, h, G, s));
		OK(cuMemcpyDtoDAsync_v2(q, p, 100000, s));
		OK(cuMemcpyDtoHAsync_v2(h + G, p, G, s));
		OK(cuMemcpyDtoHAsync_v2(h + 2 * G, q, 100000, s));
		OK(cuStreamSynchronize(s));
		CHECK(!memcmp(h, h + G, G) && !memcmp(h, h + 2 * G, 100000));
		OK(cuMemUnmap(p, G));
		OK(cuMemAddressFree(p, G));
		OK(cuMemFree_v2(q));
	}
	OK(cuMemFreeHost(h));
	OK(cuStreamDestroy_v2(s));
	return NULL;
}

TEST(eight_threads_map_copy_and_unmap_at_once, .env = {"SOFTGPU_GRANULARITY_KB=256"})
{
	pthread_t t[8];
	start_gpu();
	size_t before = free_memory();
	for (intptr_t i = 0; i < 8; i++)
		CHECK(pthread_create(&t[i], NULL, own_work, (void *)i) == 0);
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
	CHECK(free_memory() == before);
}

/* ---- wrong addresses */

TEST(a_copy_of_memory_that_is_not_there_is_refused_and_harms_nothing)
{
	start_gpu();
	unsigned char h[64];
	CUdeviceptr hole = reserve(2 * G);
	OK(cuMemMap(hole, G, 0, create(G), 0));
	EXPECT(cuMemcpyDtoH_v2(h, hole, 64), CUDA_ERROR_INVALID_VALUE); /* no access yet */
	OK(set_access(hole, G, 3));
	OK(cuMemcpyDtoH_v2(h, hole, 64));
	EXPECT(cuMemcpyDtoH_v2(h, hole + G - 32, 64), CUDA_ERROR_INVALID_VALUE); /* runs into the hole */
	EXPECT(cuMemcpyHtoDAsync_v2(hole + G, h, 64, NULL), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemsetD8Async(hole, 1, 2 * G, NULL), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemcpyDtoH_v2(h, 4096, 64), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemcpyHtoD_v2(hole, NULL, 64), CUDA_ERROR_INVALID_VALUE);
	OK(cuCtxSynchronize());
}

TEST(memory_taken_away_under_a_copy_poisons_the_context, .env = {HOLD})
{
	start_gpu();
	CUdeviceptr p = mapped(G), q;
	CUstream s = stream(CU_STREAM_NON_BLOCKING);
	unsigned char *h = pinned(G);
	size_t a, b;
	OK(cuMemcpyDtoHAsync_v2(h, p, G, s));
	OK(cuMemUnmap(p, G)); /* too early: it was not waited for */
	EXPECT(cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuMemAlloc_v2(&q, 100), CUDA_ERROR_ILLEGAL_ADDRESS);
	EXPECT(cuMemGetInfo_v2(&a, &b), CUDA_ERROR_ILLEGAL_ADDRESS);
	OK(cuMemRelease(create(G))); /* such memory belongs to no context */
	OK(cuMemAddressFree(p, G));
}

TEST(an_error_is_the_contexts_that_had_it, .env = {HOLD, "SOFTGPU_DEVICES=2"})
{
	start_gpu();
	CUcontext other;
	CUdeviceptr p = mapped(G);
	OK(cuMemsetD8Async(p, 1, G, NULL));
	OK(cuMemUnmap(p, G));
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	OK(cuDevicePrimaryCtxRetain(&other, 1));
	OK(cuCtxSetCurrent(other));
	OK(cuCtxSynchronize());
	allocated(4096);
	OK(cuCtxSetCurrent(ctx));
	EXPECT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST(a_copy_between_devices, .env = {"SOFTGPU_DEVICES=2"})
{
	start_gpu();
	CUcontext other;
	int can;
	CUdeviceptr p = allocated(4096), q;
	OK(cuDeviceCanAccessPeer(&can, 0, 1));
	CHECK(can);
	OK(cuDevicePrimaryCtxRetain(&other, 1));
	EXPECT(cuCtxDisablePeerAccess(other), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
	OK(cuCtxEnablePeerAccess(other, 0));
	EXPECT(cuCtxEnablePeerAccess(other, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
	OK(cuCtxPushCurrent_v2(other));
	q = allocated(4096);
	OK(cuCtxPopCurrent_v2(NULL));
	OK(cuMemsetD8_v2(p, 3, 4096));
	OK(cuMemcpyPeer(q, other, p, ctx, 4096));
	CHECK(*at(q + 4095) == 3);
	OK(cuMemcpyPeerAsync(p, ctx, q, other, 4096, NULL));
	OK(cuCtxSynchronize());
}

TEST(the_link_can_be_slowed_down, .env = {"SOFTGPU_LINK_GBPS=1"})
{
	start_gpu();
	CUdeviceptr p = mapped(32 << 20);
	unsigned char *h = pinned(32 << 20);
	CUevent a = event(), b = event();
	float ms;
	OK(cuEventRecord(a, NULL));
	OK(cuMemcpyDtoHAsync_v2(h, p, 32 << 20, NULL));
	OK(cuEventRecord(b, NULL));
	OK(cuEventSynchronize(b));
	OK(cuEventElapsedTime(&ms, a, b));
	CHECK(ms >= 33); /* 33.5 MB at 1 GB/s: never sooner */
}
