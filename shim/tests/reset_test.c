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

CASES(
	{.says = "captures on streams of a device end with its context, through every door",
	 .run = captures_of_the_device_end},
	{.says = "allocations that are not managed end with their device's context", .run = allocations_of_the_device_end},
	{.says = "after a reset an allocation makes the runtime's context again", .run = the_runtimes_context_is_made_anew});
