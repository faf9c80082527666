/* Stream captures: counted, so that the engine can refuse what would spoil them. */
#include "doors.h"

#include <dlfcn.h>
#include <string.h>

extern struct fake_cudart fake_cudart_13;

static struct fake_stream a, b;
static void *graph;

/* What the engine is told: the number of captures under way. */
static int captures_seen(void)
{
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK);
	return engine_seen()->capture_active;
}

static void captures_are_counted(void)
{
	managed_malloc(1);
	EXPECT(captures_seen() == 0);
	EXPECT(cudaStreamBeginCapture(&a, 0) == cudaSuccess);
	EXPECT(captures_seen() == 1);
	EXPECT(cudaStreamBeginCaptureToGraph(&b, NULL, NULL, NULL, 0, 0) == cudaSuccess);
	EXPECT(captures_seen() == 2);
	EXPECT(cudaStreamEndCapture(&a, &graph) == cudaSuccess);
	EXPECT(cudaStreamEndCapture(&b, &graph) == cudaSuccess);
	EXPECT(captures_seen() == 0);
}

static void failed_calls_do_not_count(void)
{
	managed_malloc(1);
	fake_cudart_13.begin_error = 1;
	EXPECT(cudaStreamBeginCapture(&a, 0) == 1);
	EXPECT(cudaStreamBeginCaptureToGraph(&a, NULL, NULL, NULL, 0, 0) == 1);
	EXPECT(captures_seen() == 0);
	fake_cudart_13.begin_error = 0;

	EXPECT(cudaStreamBeginCapture(&a, 0) == cudaSuccess);
	EXPECT(cudaStreamBeginCapture(&a, 0) == cudaErrorIllegalState); /* it is being captured */
	EXPECT(captures_seen() == 1);
	EXPECT(cudaStreamEndCapture(&b, &graph) == cudaErrorIllegalState); /* it is not */
	EXPECT(captures_seen() == 1);
	a.other_thread = true;
	EXPECT(cudaStreamEndCapture(&a, &graph) == cudaErrorStreamCaptureWrongThread);
	EXPECT(captures_seen() == 1);
	a.other_thread = false;
	EXPECT(cudaStreamEndCapture(&a, &graph) == cudaSuccess);
	EXPECT(captures_seen() == 0);
}

static void an_invalidated_capture_ends(void)
{
	managed_malloc(1);
	EXPECT(cudaStreamBeginCapture(&a, 0) == cudaSuccess);
	a.status = 2;
	EXPECT(captures_seen() == 1);
	EXPECT(cudaStreamEndCapture(&a, &graph) == cudaErrorStreamCaptureInvalidated);
	EXPECT(captures_seen() == 0);
}

static void the_count_never_goes_below_zero(void)
{
	managed_malloc(1);
	a.status = 1; /* begun through the driver */
	EXPECT(cudaStreamEndCapture(&a, &graph) == cudaSuccess);
	EXPECT(captures_seen() == 0);
	EXPECT(cudaStreamBeginCapture(&a, 0) == cudaSuccess);
	EXPECT(captures_seen() == 1);
}

static void programs_with_a_stream_per_thread(void)
{
	managed_malloc(1);
	EXPECT(cudaStreamBeginCapture_ptsz(&a, 0) == cudaSuccess && fake_cudart_13.per_thread);
	fake_cudart_13.per_thread = false;
	EXPECT(cudaStreamBeginCaptureToGraph_ptsz(&b, NULL, NULL, NULL, 0, 0) == cudaSuccess);
	EXPECT(fake_cudart_13.per_thread && captures_seen() == 2);
	EXPECT(cudaStreamBeginCapture_ptsz(&b, 0) == cudaErrorIllegalState && captures_seen() == 2);
	fake_cudart_13.per_thread = false;
	EXPECT(cudaStreamEndCapture_ptsz(&a, &graph) == cudaSuccess && fake_cudart_13.per_thread);
	EXPECT(captures_seen() == 1);
	b.status = 2;
	EXPECT(cudaStreamEndCapture_ptsz(&b, &graph) == cudaErrorStreamCaptureInvalidated);
	EXPECT(captures_seen() == 0);
}

static void destroying_a_stream_ends_its_capture(void)
{
	managed_malloc(1);
	EXPECT(cudaStreamDestroy(&a) == cudaSuccess);
	EXPECT(cudaStreamBeginCapture(&a, 0) == cudaSuccess);
	EXPECT(cudaStreamDestroy(&b) == cudaSuccess); /* nothing was captured on it */
	EXPECT(captures_seen() == 1);
	b.status = 1; /* it joined the capture */
	EXPECT(cudaStreamDestroy(&b) == cudaSuccess);
	EXPECT(captures_seen() == 1);
	a.destroy_fails = true;
	EXPECT(cudaStreamDestroy(&a) == cudaErrorInvalidValue);
	EXPECT(captures_seen() == 1);
	a.destroy_fails = false;
	EXPECT(cudaStreamDestroy(&a) == cudaSuccess);
	EXPECT(captures_seen() == 0);
	EXPECT(cudaStreamDestroy(&a) == cudaSuccess);
	EXPECT(captures_seen() == 0);

	/* A capture that ended is not ended once more by the stream's end. */
	a = b = (struct fake_stream){0};
	EXPECT(cudaStreamBeginCapture(&a, 0) == cudaSuccess && cudaStreamEndCapture(&a, &graph) == cudaSuccess);
	EXPECT(cudaStreamBeginCapture(&b, 0) == cudaSuccess);
	a.status = 1; /* it joined the other one */
	EXPECT(cudaStreamDestroy(&a) == cudaSuccess && captures_seen() == 1);
}

static int (*recapture(const char *symbol))(void *, int, void *, void *, void *)
{
	return (int (*)(void *, int, void *, void *, void *))dlsym(load_driver(), symbol);
}

static void through_the_driver(const struct driver *d)
{
	a = b = (struct fake_stream){0};
	EXPECT(captures_seen() == 0);
	EXPECT(d->cuStreamBeginCapture(&a, 0) == 0 && captures_seen() == 1);
	EXPECT(d->cuStreamBeginCapture(&a, 0) == 401 && captures_seen() == 1);
	EXPECT(d->cuStreamBeginCaptureToGraph(&b, NULL, NULL, NULL, 0, 0) == 0 && captures_seen() == 2);
	b.status = 2;
	EXPECT(d->cuStreamEndCapture(&b, &graph) == 901 && captures_seen() == 1); /* invalid, and over */
	EXPECT(d->cuStreamEndCapture(&b, &graph) == 401 && captures_seen() == 1);
	EXPECT(d->cuStreamEndCapture(&a, &graph) == 0 && captures_seen() == 0);
	EXPECT(d->cuStreamBeginCapture(&a, 0) == 0 && d->cuStreamDestroy(&b) == 0 && captures_seen() == 1);
	EXPECT(d->cuStreamDestroy(&a) == 0 && captures_seen() == 0);
	/* The other API may end what one began. */
	a.status = 0;
	EXPECT(d->cuStreamBeginCapture(&a, 0) == 0 && cudaStreamEndCapture(&a, &graph) == 0 && captures_seen() == 0);
	EXPECT(cudaStreamBeginCapture(&a, 0) == 0 && captures_seen() == 1);
	EXPECT(d->cuStreamEndCapture(&a, &graph) == 0 && captures_seen() == 0);
	EXPECT(cudaStreamBeginCapture(&a, 0) == 0 && d->cuStreamDestroy(&a) == 0 && captures_seen() == 0);
}

static void through_every_door_to_the_driver(void)
{
	managed_malloc(1);
	for (enum door door = 0; door < DOORS; door++)
		through_the_driver(open_door(door));
	EXPECT(captures_seen() == 0);

	a = (struct fake_stream){0};
	EXPECT(recapture("cuStreamBeginRecaptureToGraph")(&a, 0, NULL, NULL, NULL) == 0 && captures_seen() == 1);
	EXPECT(recapture("cuStreamBeginRecaptureToGraph")(&a, 0, NULL, NULL, NULL) == 401 && captures_seen() == 1);
	EXPECT(recapture("cuStreamBeginRecaptureToGraph_ptsz")(&b, 0, NULL, NULL, NULL) == 0 && captures_seen() == 2);
	EXPECT(cudaStreamEndCapture(&a, &graph) == 0 && cudaStreamEndCapture(&b, &graph) == 0 && captures_seen() == 0);
}

static void a_runtime_that_calls_the_driver(void)
{
	managed_malloc(1);
	load_driver();
	fake_cudart_13.uses_driver = true;
	EXPECT(cudaStreamBeginCapture(&a, 0) == 0 && driver_seen()->begins == 1 && captures_seen() == 1);
	EXPECT(cudaStreamBeginCapture(&a, 0) == 401 && captures_seen() == 1);
	EXPECT(cudaStreamEndCapture(&a, &graph) == 0 && driver_seen()->ends == 1 && captures_seen() == 0);
	EXPECT(cudaStreamBeginCapture(&a, 0) == 0 && captures_seen() == 1);
	EXPECT(cudaStreamDestroy(&a) == 0 && driver_seen()->destroys == 1 && captures_seen() == 0);
}

static void the_stream_of_a_thread(void)
{
	int (*begin)(void *, int) = (int (*)(void *, int))dlsym(load_driver(), "cuStreamBeginCapture_v2_ptsz");
	int (*end)(void *, void **) = (int (*)(void *, void **))dlsym(load_driver(), "cuStreamEndCapture_ptsz");
	const struct driver *d = open_door(BY_PROC_PER_THREAD);

	managed_malloc(1);
	EXPECT(begin(NULL, 0) == 0 && captures_seen() == 1 && begin((void *)2, 0) == 401 && captures_seen() == 1);
	EXPECT(end((void *)2, &graph) == 0 && captures_seen() == 0);
	EXPECT(d->cuStreamBeginCapture(NULL, 0) == 0 && captures_seen() == 1);
	EXPECT(end(NULL, &graph) == 0 && captures_seen() == 0);
	/* The one of the whole device cannot be captured. */
	EXPECT(open_door(BY_DLSYM)->cuStreamBeginCapture(NULL, 0) == 900 && captures_seen() == 0);
}

static void capture_twice(void)
{
	for (int i = 0; i < 2; i++)
		EXPECT(cudaStreamBeginCapture(&a, 0) == cudaSuccess &&
		       cudaStreamEndCapture(&a, &graph) == cudaSuccess);
}

static void captures_with_managed_memory(void)
{
	capture_twice();
	managed_malloc(1);
	capture_twice();
}

static void captures_with_nccl(void)
{
	capture_twice();
	managed_malloc(1);
	EXPECT(dlopen(beside("libnccl.so.2"), RTLD_NOW | RTLD_LOCAL) != NULL);
	capture_twice();
}

static void captures_with_nccl_alone(void)
{
	EXPECT(dlopen(beside("libnccl.so.2"), RTLD_NOW | RTLD_LOCAL) != NULL);
	capture_twice();
}

static void managed_memory_is_not_freed_in_a_capture(void)
{
	void *managed = managed_malloc(1), *other;
	char text[64];

	EXPECT(cudaMalloc(&other, 1) == cudaSuccess);
	EXPECT(cudaStreamBeginCapture(&a, 0) == cudaSuccess);
	EXPECT(cudaFree(managed) == cudaErrorStreamCaptureUnsupported);
	EXPECT(engine_seen()->free_capture_active == 1);
	EXPECT(ebb_last_error(text, sizeof(text)) > 0 && strstr(text, "capture") != NULL);
	EXPECT(fake_cudart_13.frees == 0);
	EXPECT(cudaFree(other) == cudaSuccess); /* the runtime decides about its own */
	EXPECT(fake_cudart_13.last_freed == other);
	EXPECT(cudaStreamEndCapture(&a, &graph) == cudaSuccess);
	EXPECT(cudaFree(managed) == cudaSuccess);
	EXPECT(engine_seen()->frees == 1);
}

static int capture_mode(void)
{
	int mode = 0, unused;

	EXPECT(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
	unused = mode;
	EXPECT(cudaThreadExchangeStreamCaptureMode(&unused) == cudaSuccess);
	return mode;
}

static void allocate_in_strict_mode(void)
{
	int mode = 1;

	EXPECT(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
	managed_malloc(1);
	EXPECT(capture_mode() == 1);
}

static void a_context_is_made_in_a_capture(void)
{
	EXPECT(cudaStreamBeginCapture(&a, 0) == cudaSuccess);
	managed_malloc(1);
	EXPECT(fake_cudart_13.contexts == 1 && fake_cudart_13.context_mode == 2);
	EXPECT(capture_mode() == 0);
	in_thread(allocate_in_strict_mode);
	EXPECT(fake_cudart_13.contexts == 2 && fake_cudart_13.context_mode == 2);
	EXPECT(cudaStreamEndCapture(&a, &graph) == cudaSuccess);
	managed_malloc(1);
	EXPECT(fake_cudart_13.contexts == 2);
}

static void no_context_is_made_where_that_would_spoil_a_capture(void)
{
	fake_cudart_13.exchange_error = cudaErrorNotSupported;
	EXPECT(cudaStreamBeginCapture(&a, 0) == cudaSuccess);
	managed_malloc(1);
	EXPECT(fake_cudart_13.contexts == 0);
	EXPECT(cudaStreamEndCapture(&a, &graph) == cudaSuccess);
	managed_malloc(1);
	EXPECT(fake_cudart_13.contexts == 1);
}

static void tms_calls_in_a_capture(void)
{
	managed_malloc(1);
	EXPECT(cudaStreamBeginCapture(&a, 0) == cudaSuccess);
	EXPECT(tms_pause(NULL) == EBB_ERR_CAPTURE && engine_seen()->capture_active == 1);
	EXPECT(tms_resume(NULL) == EBB_ERR_CAPTURE && engine_seen()->capture_active == 1);
}

#define NCCL "ebb: a graph is captured * set NCCL_GRAPH_REGISTER=0"

CASES(
	{.says = "captures under way are counted", .run = captures_are_counted},
	{.says = "a begin or an end that fails leaves the count as it is", .run = failed_calls_do_not_count},
	{.says = "ending an invalidated capture ends it, though it reports an error", .run = an_invalidated_capture_ends},
	{.says = "captures of programs with a default stream per thread are counted, by their own functions",
	 .run = programs_with_a_stream_per_thread},
	{.says = "destroying the stream of a capture ends it; destroying one that joined does not",
	 .run = destroying_a_stream_ends_its_capture},
	{.says = "captures of the driver's are counted, through every door, whichever API begins and ends them",
	 .run = through_every_door_to_the_driver},
	{.says = "a capture of a runtime that calls the driver counts once", .run = a_runtime_that_calls_the_driver},
	{.says = "so are those of a thread's own stream, by each of its names", .run = the_stream_of_a_thread},
	{.says = "a capture with managed memory and NCCL is warned of, once",
	 .run = captures_with_nccl,
	 .lines = {NCCL}},
	{.says = "a capture with managed memory is warned of where NCCL is told to register",
	 .run = captures_with_managed_memory,
	 .env = {"NCCL_GRAPH_REGISTER=1"},
	 .lines = {NCCL}},
	{.says = "without NCCL there is no warning", .run = captures_with_managed_memory},
	{.says = "without managed memory there is no warning",
	 .run = captures_with_nccl_alone,
	 .env = {"NCCL_GRAPH_REGISTER=1"}},
	{.says = "where NCCL is told not to register there is no warning",
	 .run = captures_with_nccl,
	 .env = {"NCCL_GRAPH_REGISTER=0"}},
	{.says = "in a job of one process there is no warning, unless NCCL is told to register",
	 .run = captures_with_nccl,
	 .env = {"WORLD_SIZE=1"}},
	{.says = "the count never goes below zero", .run = the_count_never_goes_below_zero},
	{.says = "freeing managed memory during a capture is refused with the runtime's error",
	 .run = managed_memory_is_not_freed_in_a_capture,
	 .lines = {"ebb: freeing 0x* failed: a capture is under way"}},
	{.says = "during a capture a new thread gets its context in relaxed mode, and has its own mode again",
	 .run = a_context_is_made_in_a_capture},
	{.says = "no context is made during a capture where that would spoil it",
	 .run = no_context_is_made_where_that_would_spoil_a_capture},
	{.says = "a pause or resume that a capture forbids is one line and no exit",
	 .run = tms_calls_in_a_capture,
	 .env = {"FAKE_PAUSE_CODE=6", "FAKE_RESUME_CODE=6"},
	 .lines = {"ebb: pause FAILED, memory not freed: FAKE_PAUSE_CODE said so",
		   "ebb: resume refused: FAKE_RESUME_CODE said so"}});
