/* Device memory that is not managed: counted by the library that made it. */
#include "doors.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern struct fake_cudart fake_cudart_13;

static const uint64_t at = 0x10000000;
static const char own[] = "case"; /* what this program calls itself */

/* What the engine is told: bytes of a class; its allocations in *count. */
static uint64_t bytes_of(const char *class, uint64_t *count)
{
	char text[64];
	size_t need;

	EXPECT(ebb_status(text, sizeof(text), &need) == EBB_OK);
	const struct fake_engine *engine = engine_seen();
	*count = 0;
	for (size_t i = 0; i < engine->nclasses; i++)
		if (strcmp(engine->classes[i].name, class) == 0) {
			*count = engine->classes[i].count;
			return engine->classes[i].bytes;
		}
	return 0;
}

static bool holds(const char *class, uint64_t bytes, uint64_t count)
{
	uint64_t its_count;

	return bytes_of(class, &its_count) == bytes && its_count == count;
}

static void *library(const char *name, const char *function)
{
	void *handle = dlopen(beside(name), RTLD_NOW | RTLD_LOCAL);

	EXPECT(handle != NULL);
	return dlsym(handle, function);
}

typedef int malloc_fn(void **ptr, size_t size);
typedef int mem_alloc_fn(uint64_t *ptr, size_t size);
typedef int mem_create_fn(uint64_t *handle, size_t size);

static void classes(void)
{
	const struct driver *d = open_door(BY_PROC);
	void *a, *b;
	uint64_t c, e, f, g, h;
	size_t pitch;

	managed_malloc(1);
	EXPECT(engine_seen() != NULL);
	EXPECT(cudaMalloc(&a, 100) == cudaSuccess && d->cuMemAlloc(&c, 200) == 0 && holds(own, 300, 2));
	EXPECT(((malloc_fn *)library("libcublas.so.12", "library_malloc"))(&b, 1000) == cudaSuccess);
	EXPECT(((mem_alloc_fn *)library("libcublas.so.12", "library_mem_alloc"))(&e, 24) == 0);
	EXPECT(holds("workspace", 1024, 2));
	EXPECT(((mem_create_fn *)library("libnccl.so.9", "library_mem_create"))(&f, 4096) == 0);
	EXPECT(holds("nccl", 4096, 1) && holds(own, 300, 2));
	EXPECT(((mem_create_fn *)library("libstrange.so", "library_mem_create"))(&g, 64) == 0);
	EXPECT(holds("libstrange.so", 64, 1));
	EXPECT(((mem_alloc_fn *)library("libffi.so.8", "library_mem_alloc"))(&h, 32) == 0 && holds("python", 32, 1));
	EXPECT(d->cuMemFree(h) == 0 && holds("python", 0, 0));
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK && engine_seen()->unmanaged == 6 && engine_seen()->nclasses == 4);

	EXPECT(cudaFree(b) == cudaSuccess && d->cuMemFree(e) == 0 && holds("workspace", 0, 0));
	EXPECT(d->cuMemRelease(f) == 0 && holds("nccl", 0, 0) && d->cuMemRelease(g) == 0);
	EXPECT(cudaFree(a) == cudaSuccess && cudaFree((void *)(uintptr_t)c) == cudaSuccess);
	EXPECT(d->cuMemAllocPitch(&c, &pitch, 100, 10, 4) == 0 && holds(own, pitch * 10, 1));
	EXPECT(d->cuMemFree(c) == 0);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK && engine_seen()->unmanaged == 0 && engine_seen()->nclasses == 0);
}

static void pools(void)
{
	const struct driver *d = open_door(BY_VERSION_PER_THREAD);
	static struct fake_stream stream;
	uint64_t a, b, c;
	void *graph;

	managed_malloc(1);
	EXPECT(d->cuMemAllocAsync(&a, 100, NULL) == 0 && d->cuMemAllocFromPoolAsync(&b, 200, NULL, NULL) == 0);
	EXPECT(holds("pool", 300, 2));
	EXPECT(d->cuMemFreeAsync(a, NULL) == 0 && cudaFree((void *)(uintptr_t)b) == cudaSuccess && holds("pool", 0, 0));
	/* A graph's memory comes with its launches. */
	EXPECT(cudaStreamBeginCapture(&stream, 0) == cudaSuccess);
	EXPECT(d->cuMemAllocAsync(&c, 100, &stream) == 0 && holds("pool", 0, 0));
	EXPECT(cudaStreamEndCapture(&stream, &graph) == cudaSuccess);
	/* One that is refused is not counted, and one whose end is refused still is. */
	EXPECT(d->cuMemAllocAsync(&a, 100, NULL) == 0);
	driver_seen()->result = 1;
	EXPECT(d->cuMemAllocAsync(&b, 100, NULL) == 1 && d->cuMemFreeAsync(a, NULL) == 1 && holds("pool", 100, 1));
}

/* Idle memory of pools goes with a pause: of those that the program made and has not destroyed. */
static void pools_of_the_program(void)
{
	const struct driver *d = open_door(BY_PROC);
	struct fake_cuda *driver = driver_seen();
	void *pool[20], *graph;
	static struct fake_stream stream;

	managed_malloc(1);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK && driver->trims == 0);
	for (int i = 0; i < 20; i++)
		EXPECT(d->cuMemPoolCreate(&pool[i], NULL) == 0);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK && driver->trims == 20);
	EXPECT(ebb_resume(NULL, 0, 0, NULL) == EBB_OK && driver->trims == 20);
	for (int i = 0; i < 19; i++)
		EXPECT(d->cuMemPoolDestroy(pool[i]) == 0);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK && driver->trims == 21 && driver->last_address == (uintptr_t)pool[19]);
	/* One whose end is refused is there still, and one whose begin was never was. */
	driver->result = 1;
	EXPECT(d->cuMemPoolDestroy(pool[19]) == 1 && d->cuMemPoolCreate(&pool[0], NULL) == 1);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK && driver->trims == 22);
	driver->result = 0;
	EXPECT(cudaStreamBeginCapture(&stream, 0) == cudaSuccess);
	ebb_pause(NULL, 0, NULL);
	EXPECT(driver->trims == 22 && cudaStreamEndCapture(&stream, &graph) == cudaSuccess);
	/* After a reset of a device the driver is given no handle from before it. */
	EXPECT(ebb_resume(NULL, 0, 0, NULL) == EBB_OK && d->cuDevicePrimaryCtxReset(0) == 0);
	EXPECT(d->cuMemPoolCreate(&pool[0], NULL) == 0 && ebb_pause(NULL, 0, NULL) == EBB_OK && driver->trims == 23);
}

static void failed_calls_change_nothing(void)
{
	const struct driver *d = open_door(BY_DLSYM);
	uint64_t a, b;
	void *c;

	managed_malloc(1);
	EXPECT(d->cuMemAlloc(&a, 100) == 0 && cudaMalloc(&c, 10) == cudaSuccess);
	driver_seen()->result = 1;
	fake_cudart_13.free_error = 1;
	EXPECT(d->cuMemAlloc(&b, 100) == 1 && d->cuMemFree(a) == 1 && cudaFree(c) == 1);
	EXPECT(d->cuMemCreate(&b, 100, on_device, 0) == 1 && d->cuMemImportFromShareableHandle(&b, NULL, 1) == 1);
	EXPECT(holds(own, 110, 2) && holds("imported", 0, 0));
}

/* Made by the driver and ended by a way that is not hooked, its address is the engine's next. */
static void an_address_that_was_anothers(void)
{
	const struct driver *d = open_door(BY_PROC);
	uint64_t ptr;

	void *managed = managed_malloc(1);
	EXPECT(cudaFree(managed) == cudaSuccess && engine_seen()->frees == 1);
	driver_seen()->next = (uintptr_t)managed + 4096; /* the fake engine's next address */
	EXPECT(d->cuMemAlloc(&ptr, 100) == 0 && holds(own, 100, 1));
	EXPECT(managed_malloc(1) == (void *)(uintptr_t)ptr && holds(own, 0, 0));
	EXPECT(cudaFree((void *)(uintptr_t)ptr) == cudaSuccess && engine_seen()->frees == 2);
	EXPECT(driver_seen()->frees == 0 && fake_cudart_13.frees == 0);
}

/* As a runtime does it that is linked as a library. */
static void once_where_the_runtime_calls_the_driver(void)
{
	void *a = NULL, *b = NULL;

	managed_malloc(1);
	load_driver();
	fake_cudart_13.uses_driver = true;
	EXPECT(cudaMalloc(&a, 100) == cudaSuccess && holds(own, 100, 1) && driver_seen()->allocs == 1);
	tms_set_interesting_region(true);
	/* Nor is it managed below a call that decided otherwise. */
	EXPECT(((malloc_fn *)library("libnccl.so.9", "library_malloc"))(&b, 50) == cudaSuccess);
	tms_set_interesting_region(false);
	EXPECT(holds("nccl", 50, 1) && holds(own, 100, 1) && engine_seen()->mallocs == 1);
	EXPECT(cudaFree(a) == cudaSuccess && cudaFree(b) == cudaSuccess && driver_seen()->frees == 2);
	EXPECT(holds(own, 0, 0) && holds("nccl", 0, 0));
}

/* ---- memory that its owner maps ----------------------------------------------------------------------- */

static void held_while_it_has_a_handle_or_a_mapping(void)
{
	const struct driver *d = open_door(BY_PROC);
	uint64_t a, b;

	managed_malloc(1);
	EXPECT(d->cuMemCreate(&a, 4096, on_device, 0) == 0 && holds(own, 4096, 1));
	EXPECT(d->cuMemMap(at, 4096, 0, a, 0) == 0 && d->cuMemMap(at + 8192, 4096, 0, a, 0) == 0);
	EXPECT(d->cuMemRelease(a) == 0 && holds(own, 4096, 1));
	EXPECT(d->cuMemUnmap(at, 4096) == 0 && holds(own, 4096, 1));
	EXPECT(d->cuMemUnmap(at + 8192, 4096) == 0 && holds(own, 0, 0));

	EXPECT(d->cuMemCreate(&a, 4096, on_device, 0) == 0 && d->cuMemMap(at, 4096, 0, a, 0) == 0);
	EXPECT(d->cuMemUnmap(at, 4096) == 0 && holds(own, 4096, 1));
	EXPECT(d->cuMemMap(at, 4096, 0, a, 0) == 0);
	EXPECT(d->cuMemRetainAllocationHandle(&b, (void *)at) == 0 && a == b);
	EXPECT(d->cuMemRelease(a) == 0 && d->cuMemUnmap(at, 4096) == 0 && holds(own, 4096, 1));
	EXPECT(d->cuMemRelease(b) == 0 && holds(own, 0, 0));
	EXPECT(d->cuMemCreate(&a, 4096, in_host_memory, 0) == 0 && holds(own, 0, 0));
}

static void ranges_of_several_mappings(void)
{
	const struct driver *d = open_door(BY_PROC);
	uint64_t handles[4], managed;

	tms_set_interesting_region(true);
	EXPECT(d->cuMemCreate(&managed, 4096, on_device, 0) == 0 && d->cuMemMap(at, 4096, 0, managed, 0) == 0);
	tms_set_interesting_region(false);
	for (int i = 0; i < 4; i++) {
		EXPECT(d->cuMemCreate(&handles[i], 4096, on_device, 0) == 0);
		EXPECT(d->cuMemMap(at + 4096 * (1 + i), 4096, 0, handles[i], 0) == 0 && d->cuMemRelease(handles[i]) == 0);
	}
	EXPECT(holds(own, 4 * 4096, 4));
	EXPECT(d->cuMemUnmap(at + 3 * 4096, 2 * 4096) == 0 && holds(own, 2 * 4096, 2));
	EXPECT(d->cuMemUnmap(at, 3 * 4096) == 0 && holds(own, 0, 0)); /* managed memory comes first in it */
	EXPECT(engine_seen()->unmaps == 1 && driver_seen()->unmaps == 1);
}

/* As an owner does that unmaps all of an address range of which it mapped parts. */
static void a_range_with_holes(void)
{
	const struct driver *d = open_door(BY_PROC);
	uint64_t handle, beyond;

	managed_malloc(1);
	for (uint64_t i = 0; i < 40; i++) { /* mapped at every third place, and not at the first */
		EXPECT(d->cuMemCreate(&handle, 4096, on_device, 0) == 0);
		EXPECT(d->cuMemMap(at + 4096 * (1 + 3 * i), 4096, 0, handle, 0) == 0 && d->cuMemRelease(handle) == 0);
	}
	EXPECT(d->cuMemCreate(&beyond, 4096, on_device, 0) == 0);
	EXPECT(d->cuMemMap(at - 4096, 4096, 0, beyond, 0) == 0 && d->cuMemMap(at + 4096 * 120, 4096, 0, beyond, 0) == 0);
	EXPECT(d->cuMemRelease(beyond) == 0 && holds(own, 41 * 4096, 41));
	EXPECT(d->cuMemUnmap(at, 60 * 4096) == 0 && holds(own, 21 * 4096, 21));
	EXPECT(d->cuMemUnmap(at, 120 * 4096) == 0 && holds(own, 4096, 1));
	EXPECT(d->cuMemUnmap(at - 4096, 4096) == 0 && holds(own, 4096, 1));
	EXPECT(d->cuMemUnmap(at + 4096 * 120, 4096) == 0 && holds(own, 0, 0));
}

static void imports(void)
{
	const struct driver *d = open_door(BY_PROC);
	uint64_t a;

	EXPECT(d->cuMemImportFromShareableHandle(&a, NULL, 1) == 0);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK); /* it is not this process's to free */
	managed_malloc(1);
	EXPECT(holds("imported", 0, 1));
	EXPECT(d->cuMemMap(at, 4096, 8192, a, 0) == 0 && holds("imported", 12288, 1));
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK && engine_seen()->unmanaged == 0);
	EXPECT(d->cuMemRelease(a) == 0 && d->cuMemUnmap(at, 4096) == 0 && holds("imported", 0, 0));
}

/* ---- libraries in a region --------------------------------------------------------------------------------- */

static void libraries_in_a_region(void)
{
	void *ptr;
	uint64_t number;

	load_driver();
	tms_set_interesting_region(true);
	EXPECT(((malloc_fn *)library("libnccl.so.9", "library_malloc"))(&ptr, 1) == cudaSuccess);
	EXPECT(((mem_alloc_fn *)library("libnccl.so.9", "library_mem_alloc"))(&number, 1) == 0);
	EXPECT(((mem_create_fn *)library("libnccl.so.9", "library_mem_create"))(&number, 1) == 0);
	EXPECT(((mem_alloc_fn *)library("libcublas.so.12", "library_mem_alloc"))(&number, 1) == 0);
	EXPECT(engine_seen() == NULL);
	tms_set_enable_disk_backup(true);
	EXPECT(((mem_alloc_fn *)library("libnccl.so.9", "library_mem_alloc"))(&number, 1) == 0 && engine_seen() == NULL);
	EXPECT(((mem_alloc_fn *)library("libcublas.so.12", "library_mem_alloc"))(&number, 1) == 0);
	EXPECT(((mem_create_fn *)library("libstrange.so", "library_mem_create"))(&number, 1) == 0);
	EXPECT(engine_seen()->mallocs == 1 && engine_seen()->creates == 1);
	EXPECT(holds("nccl", 4, 4) && holds("workspace", 1, 1));
}

/* ---- without an engine ---------------------------------------------------------------------------------------- */

static void a_pause_that_would_free_nothing(void)
{
	const struct driver *d = open_door(BY_VERSION);
	uint64_t a, b, c;
	char text[512];

	EXPECT(d->cuMemCreate(&a, 4096, on_device, 0) == 0 && d->cuMemAlloc(&b, 1) == 0);
	EXPECT(d->cuMemAllocAsync(&c, 1, NULL) == 0);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_ERR_UNMANAGED);
	EXPECT(ebb_last_error(text, sizeof(text)) > 0 && strstr(text, "3 device allocations made") != NULL);
	EXPECT(d->cuMemRelease(a) == 0 && d->cuMemFree(b) == 0 && d->cuMemFreeAsync(c, NULL) == 0);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK);
}

static void the_status_without_an_engine(void)
{
	const struct driver *d = open_door(BY_VERSION);
	uint64_t a, b, c;
	char text[1024];
	size_t need;

	EXPECT(ebb_status(text, sizeof(text), &need) == EBB_OK && need == strlen(text));
	EXPECT(strstr(text, "\"unmanaged\":{\"total\":0,\"measured\":false,\"classes\":[]}}") != NULL);
	EXPECT(d->cuMemAlloc(&a, 100) == 0 && d->cuMemAlloc(&b, 200) == 0 && d->cuMemAllocAsync(&c, 7, NULL) == 0);
	EXPECT(ebb_status(text, sizeof(text), &need) == EBB_OK && need == strlen(text));
	EXPECT(strstr(text, "\"unmanaged\":{\"total\":307,\"measured\":false,\"classes\":["
			    "{\"name\":\"pool\",\"bytes\":7,\"count\":1},"
			    "{\"name\":\"case\",\"bytes\":300,\"count\":2}]}}") != NULL);
	EXPECT(ebb_status(NULL, 0, &need) == EBB_OK && need == strlen(text) && engine_seen() == NULL);
}

static void names_that_are_no_json(void)
{
	char name[64];
	void *ptr;

	snprintf(name, sizeof(name), "odd\"name\\.so");
	unlink(beside(name));
	EXPECT(symlink("libstrange.so", beside(name)) == 0);
	EXPECT(((malloc_fn *)library(name, "library_malloc"))(&ptr, 3) == cudaSuccess);
	EXPECT(unlink(beside(name)) == 0);
	managed_malloc(1);
	EXPECT(holds("odd?name?.so", 3, 1));
}

/* ---- threads and forks -------------------------------------------------------------------------------------- */

enum { THREADS = 8, ROUNDS = 400, MOST = 64 };

static const struct driver *shared;
static _Atomic bool over;
static _Atomic unsigned made; /* by make_until_over */

static void *make_and_free(void *first)
{
	uint64_t live[MOST];
	size_t n = 0;
	uint64_t state = (uintptr_t)first;

	for (int i = 0; i < ROUNDS; i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		if (n < MOST && (n == 0 || (state >> 40) % 3 != 0))
			EXPECT(shared->cuMemAlloc(&live[n++], 64) == 0);
		else
			EXPECT(shared->cuMemFree(live[--n]) == 0);
	}
	while (n > 0)
		EXPECT(shared->cuMemFree(live[--n]) == 0);
	return NULL;
}

static void counts_of_many_threads(void)
{
	pthread_t threads[THREADS];
	uint64_t ptr;

	managed_malloc(1);
	shared = open_door(BY_PROC);
	EXPECT(shared->cuMemAlloc(&ptr, 5) == 0);
	for (uintptr_t i = 0; i < THREADS; i++)
		EXPECT(pthread_create(&threads[i], NULL, make_and_free, (void *)(i + 1)) == 0);
	for (int i = 0; i < THREADS; i++)
		EXPECT(pthread_join(threads[i], NULL) == 0);
	EXPECT(holds(own, 5, 1));
}

static void *make_until_over(void *unused)
{
	uint64_t ptr;

	for (; !over; made++)
		EXPECT(shared->cuMemAlloc(&ptr, 64) == 0 && shared->cuMemFree(ptr) == 0);
	return unused;
}

static void child_allocates(void)
{
	uint64_t ptr;

	EXPECT(shared->cuMemAlloc(&ptr, 64) == 0 && shared->cuMemFree(ptr) == 0);
	_exit(0);
}

static void a_fork_meanwhile(void)
{
	pthread_t thread;
	uint64_t ptr;

	shared = open_door(BY_PROC);
	/* What is done once is done before: ThreadSanitizer's pthread_once does not see a fork meanwhile. */
	EXPECT(shared->cuMemAlloc(&ptr, 1) == 0);
	EXPECT(pthread_create(&thread, NULL, make_until_over, NULL) == 0);
	/* AddressSanitizer's malloc, unlike libc's, may hang after a fork beside a thread that allocates, which this one
	 * does at its first call, for the name of its library. */
	while (made == 0)
		sched_yield();
	for (int i = 0; i < 50; i++)
		EXPECT(in_child(child_allocates) == 0);
	over = true;
	EXPECT(pthread_join(thread, NULL) == 0);
}

CASES(
	{.says = "memory counts under the library that made it, from its making to its end", .run = classes},
	{.says = "a pause has the idle memory of pools that the program made given back", .run = pools_of_the_program},
	{.says = "memory of pools is a class of its own, that of graphs is not counted", .run = pools},
	{.says = "calls that fail change no count", .run = failed_calls_change_nothing},
	{.says = "an address that becomes the engine's is no longer counted, and is freed there",
	 .run = an_address_that_was_anothers},
	{.says = "an allocation of a runtime that calls the hooked driver is one, and managed by both or neither",
	 .run = once_where_the_runtime_calls_the_driver},
	{.says = "memory of cuMemCreate is held while it has a handle or a mapping",
	 .run = held_while_it_has_a_handle_or_a_mapping},
	{.says = "a range of several mappings, managed ones among them, is unmapped as one",
	 .run = ranges_of_several_mappings},
	{.says = "a range with holes in it is unmapped whole", .run = a_range_with_holes},
	{.says = "imported memory counts apart, as much of it as was mapped", .run = imports},
	{.says = "in a region, memory of communication libraries is never managed, that of mathematical ones with a backup",
	 .run = libraries_in_a_region},
	{.says = "a pause that would free nothing is an error, whatever function made the memory",
	 .run = a_pause_that_would_free_nothing},
	{.says = "without an engine the status says what is held", .run = the_status_without_an_engine},
	{.says = "a library's name is made fit for the status", .run = names_that_are_no_json},
	{.says = "the counts of many threads add up", .run = counts_of_many_threads},
	{.says = "a child that is forked meanwhile can allocate", .run = a_fork_meanwhile});
