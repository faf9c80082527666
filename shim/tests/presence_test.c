/* A program that hooks the driver itself, and so comes before the preloaded library. */
#include "doors.h"

int cuMemCreate(uint64_t *handle, size_t size, const void *prop, uint64_t flags);

int cuMemCreate(uint64_t *handle, size_t size, const void *prop, uint64_t flags)
{
	(void)size;
	(void)prop;
	(void)flags;
	*handle = 1;
	return 0;
}

static void another_hook_comes_first(void)
{
	tms_set_interesting_region(true);
	tms_set_interesting_region(true);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK);
}

static void a_pause_says_it_too(void)
{
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK && ebb_resume(NULL, 0, 0, NULL) == EBB_OK);
}

static void nothing_is_parked(void)
{
	uint64_t handle;

	EXPECT(cuMemCreate(&handle, 1, on_device, 0) == 0 && ebb_resume(NULL, 0, 0, NULL) == EBB_OK);
}

#define FIRST "ebb: case comes before @/libebb.so and hooks the driver too: *first in LD_PRELOAD"

CASES(
	{.says = "another hook that comes first is named at the first region, once",
	 .run = another_hook_comes_first,
	 .lines = {FIRST}},
	{.says = "or at the first pause", .run = a_pause_says_it_too, .lines = {FIRST}},
	{.says = "but not where nothing is parked", .run = nothing_is_parked});
