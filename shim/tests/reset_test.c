/* Resets of devices: what the driver had made in a context is gone. */
#include "doors.h"

#include <dlfcn.h>
#include <string.h>

extern struct fake_cudart fake_cudart_13;

static struct fake_stream a, b;

static int captures_seen(void)
{
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK);
	return engine_seen()->capture_active;
}

static int allocations_seen(void)
{
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK);
	return (int)engine_seen()->unmanaged;
}

static void set_context(uintptr_t device)
{
	((int (*)(void *))dlsym(load_driver(), "cuCtxSetCurrent"))((void *)device);
}

static void captures_of_the_device_end(void)
{
	managed_malloc(1);
	for (enum door door = 0; door < DOORS; door++) {
		const struct driver *d = open_door(door);

		a = b = (struct fake_stream){0};
		set_context(2);
		EXPECT(d->cuStreamBeginCapture(&a, 0) == 0);
		set_context(1);
		EXPECT(cudaStreamBeginCapture(&b, 0) == 0 && captures_seen() == 2);
		EXPECT(d->cuDevicePrimaryCtxReset(2) == 0 && driver_seen()->last_reset == 2 && captures_seen() == 1);
		EXPECT(d->cuDevicePrimaryCtxReset(2) == 0 && captures_seen() == 1);
		driver_seen()->result = 1;
		EXPECT(d->cuDevicePrimaryCtxReset(1) == 1 && captures_seen() == 1);
		driver_seen()->result = 0;
		EXPECT(d->cuDevicePrimaryCtxReset(1) == 0 && captures_seen() == 0);
	}
}

static void allocations_of_the_device_end(void)
{
	const struct driver *d = open_door(BY_PROC);
	uint64_t ptr, handle;

	managed_malloc(1);
	EXPECT(d->cuMemAlloc(&ptr, 100) == 0 && d->cuMemAlloc(&ptr, 100) == 0);
	EXPECT(d->cuMemCreate(&handle, 4096, on_device, 0) == 0);
	set_context(2);
	EXPECT(d->cuMemAllocAsync(&ptr, 100, NULL) == 0 && allocations_seen() == 4);
	/* Memory of cuMemCreate is the process's, and stays. */
	EXPECT(d->cuDevicePrimaryCtxReset(1) == 0 && allocations_seen() == 2);
	EXPECT(d->cuDevicePrimaryCtxReset(2) == 0 && allocations_seen() == 1);
	EXPECT(d->cuMemRelease(handle) == 0 && allocations_seen() == 0);
}

static void the_runtimes_context_is_made_anew(void)
{
	managed_malloc(1);
	managed_malloc(1);
	EXPECT(fake_cudart_13.contexts == 1);
	EXPECT(cudaDeviceReset() == cudaSuccess && fake_cudart_13.resets == 1);
	managed_malloc(1);
	managed_malloc(1);
	EXPECT(fake_cudart_13.contexts == 2);
}

static bool engine_was_told(int device, int begun, int done, int failed)
{
	const struct fake_engine *engine = engine_seen();

	return engine->reset_device == device && engine->resets_begun == begun && engine->resets_done == done &&
	       engine->resets_failed == failed;
}

static void the_engine_is_told(void)
{
	managed_malloc(1);
	for (enum door door = 0; door < DOORS; door++) {
		EXPECT(open_door(door)->cuDevicePrimaryCtxReset(3) == 0);
		EXPECT(engine_was_told(3, (int)door + 1, (int)door + 1, 0));
	}
	driver_seen()->result = 1;
	EXPECT(open_door(BY_PROC)->cuDevicePrimaryCtxReset(2) == 1 && engine_was_told(2, DOORS + 1, DOORS, 1));
	driver_seen()->result = 0;
	int (*v1)(int) = (int (*)(int))dlsym(load_driver(), "cuDevicePrimaryCtxReset");
	EXPECT(v1(1) == 0 && engine_was_told(1, DOORS + 2, DOORS + 1, 1));
}

static void the_runtimes_reset_is_told_once(void)
{
	managed_malloc(1);
	load_driver();
	EXPECT(cudaSetDevice(2) == cudaSuccess && cudaDeviceReset() == cudaSuccess && engine_was_told(2, 1, 1, 0));
	fake_cudart_13.uses_driver = true;
	EXPECT(cudaDeviceReset() == cudaSuccess && engine_was_told(2, 2, 2, 0) && driver_seen()->resets == 1);
	driver_seen()->result = 1;
	EXPECT(cudaDeviceReset() == 1 && engine_was_told(2, 3, 2, 1));
	driver_seen()->result = 0;
	fake_cudart_13.get_device_error = 1; /* the driver's call below it is told of */
	EXPECT(cudaDeviceReset() == cudaSuccess && engine_was_told(2, 4, 3, 1));
}

static void a_reset_that_the_engine_refuses_is_not_made(void)
{
	managed_malloc(1);
	EXPECT(open_door(BY_PROC)->cuDevicePrimaryCtxReset(1) == 401 && driver_seen()->resets == 0);
	EXPECT(cudaDeviceReset() == 401 && fake_cudart_13.resets == 0);
	EXPECT(engine_seen()->resets_begun == 0 && engine_seen()->resets_done == 0 && engine_seen()->resets_failed == 0);
}

static void without_an_engine(void)
{
	EXPECT(open_door(LINKED)->cuDevicePrimaryCtxReset(1) == 0 && cudaDeviceReset() == cudaSuccess);
	EXPECT(engine_seen() == NULL && driver_seen()->resets == 1);
}

static void reset_in_child(void)
{
	EXPECT(open_door(BY_PROC)->cuDevicePrimaryCtxReset(1) == 0 && cudaDeviceReset() == cudaSuccess);
}

static void in_a_forked_child(void)
{
	managed_malloc(1);
	EXPECT(in_child(reset_in_child) == 0);
}

CASES(
	{.says = "the engine is told before and after a reset, through every door", .run = the_engine_is_told},
	{.says = "of one by the runtime it is told once", .run = the_runtimes_reset_is_told_once},
	{.says = "one that the engine refuses is not made",
	 .run = a_reset_that_the_engine_refuses_is_not_made,
	 .env = {"FAKE_RESET_CODE=5"},
	 .lines = {"ebb: the reset of device 1 is refused: FAKE_RESET_CODE said so",
		   "ebb: the reset of device 0 is refused: FAKE_RESET_CODE said so"}},
	{.says = "without an engine a reset is the driver's affair", .run = without_an_engine},
	{.says = "in a forked child too", .run = in_a_forked_child},
	{.says = "captures on streams of a device end with its context, through every door",
	 .run = captures_of_the_device_end},
	{.says = "allocations that are not managed end with their device's context", .run = allocations_of_the_device_end},
	{.says = "after a reset an allocation makes the runtime's context again", .run = the_runtimes_context_is_made_anew});
