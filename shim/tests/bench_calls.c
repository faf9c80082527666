/*
 * bench_calls.c: times calls of the driver's, as dlsym gives them: bench_calls CALLS [region [beside]]
 * region: what is made is managed, if there is a library to do it. beside: some memory is managed,
 * and what is timed is not. Prints a line "NAME NANOSECONDS" for each call: the fastest of several rounds,
 * which is the one that a busy machine disturbs least; -1 where the driver of the tests has no such call.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 15, GRANULARITY = 2 << 20 };

static void *driver;
static const int prop[8] = {1, 0, 1, 0}, access_desc[3] = {1, 0, 3};
static uint64_t address, handle;

static void *function(const char *name)
{
	void *found = dlsym(driver, name);

	if (found == NULL) {
		fprintf(stderr, "no %s\n", name);
		exit(1);
	}
	return found;
}

static void check(int result, const char *call)
{
	if (result != 0) {
		fprintf(stderr, "%s: %d\n", call, result);
		exit(1);
	}
}

#define FUNCTIONS(X)                                                       \
	X(cuCtxGetDevice, (int *))                                         \
	X(cuMemCreate, (uint64_t *, size_t, const void *, uint64_t))       \
	X(cuMemRelease, (uint64_t))                                        \
	X(cuMemMap, (uint64_t, size_t, size_t, uint64_t, uint64_t))        \
	X(cuMemUnmap, (uint64_t, size_t))                                  \
	X(cuMemSetAccess, (uint64_t, size_t, const void *, size_t))        \
	X(cuMemGetAccess, (uint64_t *, const void *, uint64_t))            \
	X(cuMemRetainAllocationHandle, (uint64_t *, void *))               \
	X(cuMemGetAllocationPropertiesFromHandle, (void *, uint64_t))      \
	X(cuMemAlloc_v2, (uint64_t *, size_t))                             \
	X(cuMemFree_v2, (uint64_t))
/* Not of the driver that does nothing. */
#define MORE_FUNCTIONS(X)                                                  \
	X(cuMemAddressReserve, (uint64_t *, size_t, size_t, uint64_t, uint64_t)) \
	X(cuMemAddressFree, (uint64_t, size_t))                            \
	X(cuMemAllocManaged, (uint64_t *, size_t, unsigned))               \
	X(cuMemAllocAsync, (uint64_t *, size_t, void *))                   \
	X(cuMemFreeAsync, (uint64_t, void *))                              \
	X(cuStreamCreate, (void **, unsigned))                             \
	X(cuStreamDestroy_v2, (void *))                                    \
	X(cuStreamBeginCapture_v2, (void *, int))                          \
	X(cuStreamEndCapture, (void *, void **))                           \
	X(cuGraphDestroy, (void *))                                        \
	X(cuCtxSynchronize, (void))
#define DEFINE(name, parameters) static int(*name) parameters;
FUNCTIONS(DEFINE)
MORE_FUNCTIONS(DEFINE)
#define CALL(name, ...) check(name(__VA_ARGS__), #name)

static void find_functions(void)
{
#define FIND(name, parameters) *(void **)&name = function(#name);
	FUNCTIONS(FIND)
#define FIND_IF(name, parameters) *(void **)&name = dlsym(driver, #name);
	MORE_FUNCTIONS(FIND_IF)
}

/* ---- the calls, those that must be undone in pairs ----------------------------------------------------- */

static void not_listed(void)
{
	int device;

	CALL(cuCtxGetDevice, &device);
}

static void create_release(void)
{
	uint64_t it;

	CALL(cuMemCreate, &it, GRANULARITY, prop, 0);
	CALL(cuMemRelease, it);
}

static void map_unmap(void)
{
	CALL(cuMemMap, address + GRANULARITY, GRANULARITY, 0, handle, 0);
	CALL(cuMemUnmap, address + GRANULARITY, GRANULARITY);
}

static void set_access(void) { CALL(cuMemSetAccess, address, GRANULARITY, access_desc, 1); }

static void get_access(void)
{
	uint64_t flags;

	CALL(cuMemGetAccess, &flags, access_desc, address);
}

static void retain_release(void)
{
	uint64_t again;

	CALL(cuMemRetainAllocationHandle, &again, (void *)(uintptr_t)address);
	CALL(cuMemRelease, again);
}

static void properties(void)
{
	int its[8];

	CALL(cuMemGetAllocationPropertiesFromHandle, its, handle);
}

static void alloc_free(void)
{
	uint64_t ptr;

	CALL(cuMemAlloc_v2, &ptr, GRANULARITY);
	CALL(cuMemFree_v2, ptr);
}

static void reserve_free(void)
{
	uint64_t at;

	CALL(cuMemAddressReserve, &at, GRANULARITY, 0, 0, 0);
	CALL(cuMemAddressFree, at, GRANULARITY);
}

/* What alloc+free has the driver do where memory is managed. */
static void alloc_free_by_hand(void)
{
	uint64_t at, it;

	CALL(cuMemCreate, &it, GRANULARITY, prop, 0);
	CALL(cuMemAddressReserve, &at, GRANULARITY, 0, 0, 0);
	CALL(cuMemMap, at, GRANULARITY, 0, it, 0);
	CALL(cuMemSetAccess, at, GRANULARITY, access_desc, 1);
	CALL(cuCtxSynchronize);
	CALL(cuMemUnmap, at, GRANULARITY);
	CALL(cuMemRelease, it);
	CALL(cuMemAddressFree, at, GRANULARITY);
}

static void managed_free(void)
{
	uint64_t ptr;

	CALL(cuMemAllocManaged, &ptr, GRANULARITY, 1);
	CALL(cuMemFree_v2, ptr);
}

static void *stream;

static void async_alloc_free(void)
{
	static unsigned calls;
	uint64_t ptr;

	CALL(cuMemAllocAsync, &ptr, GRANULARITY, stream);
	CALL(cuMemFreeAsync, ptr, stream);
	if (++calls % 256 == 0 && cuCtxSynchronize != NULL)
		CALL(cuCtxSynchronize); /* what is freed is there again only when the stream has come to it */
}

static void begin_end_capture(void)
{
	void *graph;

	CALL(cuStreamBeginCapture_v2, stream, 2);
	CALL(cuStreamEndCapture, stream, &graph);
	CALL(cuGraphDestroy, graph);
}

static void create_destroy_stream(void)
{
	void *one;

	CALL(cuStreamCreate, &one, 1);
	CALL(cuStreamDestroy_v2, one);
}

static void get_address(void)
{
	static int (*get)(const char *, void **, int, uint64_t, int *);
	void *found;
	int how;

	if (get == NULL)
		*(void **)&get = function("cuGetProcAddress_v2");
	check(get("cuMemMap", &found, 12000, 0, &how), "cuGetProcAddress");
}

/* ---- timing -------------------------------------------------------------------------------------------- */

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void measure(const char *name, bool there, void (*call)(void), long calls)
{
	double best = 0;

	if (!there) {
		printf("%s -1\n", name);
		return;
	}
	for (int round = -1; round < ROUNDS; round++) { /* the first one warms the caches */
		double start = now();

		for (long i = 0; i < calls; i++)
			call();
		double each = (now() - start) / (double)calls;
		if (round >= 0 && (best == 0 || each < best))
			best = each;
	}
	printf("%s %.0f\n", name, best);
}

static void make_context(void)
{
	int (*init)(unsigned), (*retain)(void **, int), (*set)(void *);
	void *context;

	*(void **)&init = dlsym(driver, "cuInit");
	if (init == NULL)
		return; /* a driver of the tests, which needs none */
	*(void **)&retain = function("cuDevicePrimaryCtxRetain");
	*(void **)&set = function("cuCtxSetCurrent");
	check(init(0), "cuInit");
	check(retain(&context, 0), "cuDevicePrimaryCtxRetain");
	check(set(context), "cuCtxSetCurrent");
}

static void reserve(void)
{
	int (*address_reserve)(uint64_t *, size_t, size_t, uint64_t, uint64_t);

	*(void **)&address_reserve = dlsym(driver, "cuMemAddressReserve");
	address = 0x100000000;
	if (address_reserve != NULL)
		check(address_reserve(&address, 16 * GRANULARITY, 0, 0, 0), "cuMemAddressReserve");
}

int main(int argc, char **argv)
{
	long calls = argc > 1 ? strtol(argv[1], NULL, 10) : 20000;
	void (*set_region)(bool);
	bool beside = argc > 3;

	driver = dlopen("libcuda.so.1", RTLD_NOW);
	if (driver == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	find_functions();
	make_context();
	reserve();
	*(void **)&set_region = dlsym(RTLD_DEFAULT, "tms_set_interesting_region");
	if (argc > 2 && set_region != NULL)
		set_region(true);
	CALL(cuMemCreate, &handle, GRANULARITY, prop, 0);
	if (beside) {
		CALL(cuMemMap, address + 8 * GRANULARITY, GRANULARITY, 0, handle, 0);
		if (set_region != NULL)
			set_region(false);
		CALL(cuMemCreate, &handle, GRANULARITY, prop, 0);
	}
	CALL(cuMemMap, address, GRANULARITY, 0, handle, 0);
	measure("not-listed", true, not_listed, calls);
	measure("create+release", true, create_release, calls);
	measure("map+unmap", true, map_unmap, calls);
	measure("set-access", true, set_access, calls);
	measure("get-access", true, get_access, calls);
	measure("retain+release", true, retain_release, calls);
	measure("properties", true, properties, calls);
	measure("alloc+free", true, alloc_free, calls);
	measure("by-hand", cuMemAddressReserve != NULL, alloc_free_by_hand, calls);
	measure("reserve+free", cuMemAddressReserve != NULL, reserve_free, calls);
	bool managed = argc > 2 && !beside && set_region != NULL; /* then it is refused */
	measure("managed+free", cuMemAllocManaged != NULL && !managed, managed_free, calls);
	if (cuStreamCreate != NULL)
		CALL(cuStreamCreate, &stream, 1);
	measure("async+free", cuMemAllocAsync != NULL, async_alloc_free, calls);
	measure("capture", cuGraphDestroy != NULL, begin_end_capture, calls);
	measure("stream", stream != NULL, create_destroy_stream, calls / 10);
	measure("proc-address", dlsym(driver, "cuMemAllocManaged") != NULL, get_address, calls);
	return 0;
}
