/* A program that hooks the driver itself, and so comes before the preloaded library. */
#include "doors.h"

#include <dlfcn.h>

int cuMemCreate(uint64_t *handle, size_t size, const void *prop, uint64_t flags);

static bool passes_on;

int cuMemCreate(uint64_t *handle, size_t size, const void *prop, uint64_t flags)
{
	int (*next)(uint64_t *, size_t, const void *, uint64_t);

	*(void **)&next = dlsym(RTLD_NEXT, "cuMemCreate");
	if (passes_on)
		return next(handle, size, prop, flags);
	*handle = 1;
	return 0;
}

static void a_hook_that_keeps_calls(void)
{
	load_driver();
	tms_set_interesting_region(true);
	tms_set_interesting_region(true);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK);
}

static void a_pause_says_it_too(void)
{
	load_driver();
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK && ebb_resume(NULL, 0, 0, NULL) == EBB_OK);
}

static void before_there_is_a_driver(void)
{
	tms_set_interesting_region(true);
	load_driver();
	tms_set_interesting_region(true);
	tms_set_interesting_region(true);
}

static void nothing_is_parked(void)
{
	uint64_t handle;

	load_driver();
	EXPECT(cuMemCreate(&handle, 1, on_device, 0) == 0 && ebb_resume(NULL, 0, 0, NULL) == EBB_OK);
}

static void a_hook_that_passes_calls_on(void)
{
	uint64_t handle = 0;

	load_driver();
	passes_on = true;
	tms_set_interesting_region(true);
	EXPECT(engine_seen() == NULL && driver_seen()->creates == 0); /* to find it out makes nothing */
	EXPECT(cuMemCreate(&handle, 4096, on_device, 0) == 0 && EBB_ENGINE_IS_HANDLE(handle));
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK);
}

#define FIRST "ebb: case comes before @/libebb.so, hooks the driver too and does not pass everything on: *first in LD_PRELOAD"

CASES(
	{.says = "another hook that comes first and keeps calls is named at the first region, once",
	 .run = a_hook_that_keeps_calls,
	 .lines = {FIRST}},
	{.says = "or at the first pause", .run = a_pause_says_it_too, .lines = {FIRST}},
	{.says = "but not before there is a driver", .run = before_there_is_a_driver, .lines = {FIRST}},
	{.says = "nor where nothing is parked", .run = nothing_is_parked},
	{.says = "of one that passes calls on nothing is said, and what comes through it is managed",
	 .run = a_hook_that_passes_calls_on});
