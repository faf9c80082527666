/* Memory that its owner maps: errors, calls that need the driver's handle, peers, captures, threads. */
#include "doors.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

extern struct fake_cudart fake_cudart_13;

static const uint64_t at = 0x10000000;

static uint64_t create(const struct driver *d)
{
	uint64_t handle = 0;

	tms_set_interesting_region(true);
	EXPECT(d->cuMemCreate(&handle, 4096, on_device, 0) == 0 && EBB_ENGINE_IS_HANDLE(handle));
	tms_set_interesting_region(false);
	return handle;
}

static int create_with(const char *code, const char *cu)
{
	uint64_t handle;

	setenv("FAKE_VMM_CODE", code, 1);
	setenv("FAKE_VMM_CU", cu, 1);
	tms_set_interesting_region(true);
	int result = open_door(BY_PROC)->cuMemCreate(&handle, 4096, on_device, 0);
	tms_set_interesting_region(false);
	unsetenv("FAKE_VMM_CODE");
	unsetenv("FAKE_VMM_CU");
	return result;
}

static void errors_of_the_engine(void)
{
	EXPECT(create_with("9", "2") == 2);   /* too little memory is everyday */
	EXPECT(create_with("7", "101") == 101); /* what the driver said is the owner's affair */
	EXPECT(create_with("1", "1") == 1);
	EXPECT(create_with("3", "401") == 401);
	EXPECT(create_with("16", "0") == 999);
	EXPECT(driver_seen()->calls == 0);
}

static void errors_of_other_calls(void)
{
	const struct driver *d = open_door(BY_PROC);
	uint64_t handle = create(d), flags;
	char text[64];

	EXPECT(d->cuMemMap(at, 4096, 0, handle, 0) == 0);
	setenv("FAKE_VMM_CODE", "3", 1);
	setenv("FAKE_VMM_CU", "401", 1);
	EXPECT(d->cuMemExportToShareableHandle(&flags, handle, 1, 0) == 401);
	EXPECT(ebb_last_error(text, sizeof(text)) > 0 && strcmp(text, "FAKE_VMM_CODE said so") == 0);
	setenv("FAKE_VMM_CODE", "7", 1);
	setenv("FAKE_VMM_CU", "1", 1);
	EXPECT(d->cuMemMap(at, 4096, 0, handle, 0) == 1 && d->cuMemUnmap(at, 4096) == 1);
	EXPECT(d->cuMemSetAccess(at, 4096, on_device, 1) == 1 && d->cuMemGetAccess(&flags, on_device, at) == 1);
	EXPECT(d->cuMemRetainAllocationHandle(&flags, (void *)at) == 1 && d->cuMemAddressFree(at, 4096) == 1);
	EXPECT(d->cuMemRelease(handle) == 1 && d->cuMemGetAllocationPropertiesFromHandle(&flags, handle) == 1);
	EXPECT(driver_seen()->calls == 0);
}

static void addresses_of_others_leave_no_error(void)
{
	const struct driver *d = open_door(BY_PROC);
	char text[8];

	create(d);
	EXPECT(d->cuMemUnmap(at, 4096) == 0 && d->cuMemSetAccess(at, 4096, on_device, 1) == 0);
	EXPECT(ebb_last_error(text, sizeof(text)) == 0 && driver_seen()->calls == 2);
}

static void paused_addresses_are_occupied(void)
{
	const struct driver *d = open_door(BY_PROC);
	uint64_t handle = create(d), others;

	EXPECT(d->cuMemMap(at, 4096, 0, handle, 0) == 0);
	EXPECT(d->cuMemCreate(&others, 4096, on_device, 0) == 0 && d->cuMemMap(at, 4096, 0, others, 0) == 1);
	EXPECT(driver_seen()->maps == 0);
	EXPECT(d->cuMemMap(at + 4096, 4096, 0, others, 0) == 0 && driver_seen()->maps == 1);
}

static void what_is_no_devices_memory(void)
{
	const struct driver *d = open_door(BY_PROC);
	uint64_t handle;

	tms_set_interesting_region(true);
	EXPECT(d->cuMemCreate(&handle, 4096, in_host_memory, 0) == 0 && !EBB_ENGINE_IS_HANDLE(handle));
	EXPECT(driver_seen()->creates == 1 && engine_seen()->creates == 0);
}

static void both_backups(void)
{
	uint64_t number;
	size_t pitch;

	tms_set_interesting_region(true);
	EXPECT(open_door(BY_PROC)->cuMemCreate(&number, 4096, on_device, 0) == 1);
	EXPECT(open_door(BY_PROC)->cuMemAlloc(&number, 4096) == 1);
	EXPECT(open_door(BY_PROC)->cuMemAllocPitch(&number, &pitch, 4, 4, 4) == 1);
	EXPECT(engine_seen() == NULL && driver_seen()->calls == 0);
}

static void arguments_that_make_no_sense(void)
{
	const struct driver *d = open_door(BY_DLSYM);
	uint64_t ptr;
	size_t pitch;

	driver_seen()->result = 1; /* the driver is asked, and says so */
	tms_set_interesting_region(true);
	EXPECT(d->cuMemCreate(NULL, 4096, on_device, 0) == 1 && d->cuMemCreate(&ptr, 4096, NULL, 0) == 1);
	EXPECT(d->cuMemAlloc(NULL, 4096) == 1 && d->cuMemAlloc(&ptr, 0) == 1);
	EXPECT(d->cuMemAllocPitch(&ptr, &pitch, 4, 4, 5) == 1 && d->cuMemAllocPitch(&ptr, NULL, 4, 4, 4) == 1);
	EXPECT(d->cuMemAllocPitch(&ptr, &pitch, SIZE_MAX, 1, 4) == 1 && d->cuMemAllocPitch(&ptr, &pitch, 4, 0, 4) == 1);
	EXPECT(d->cuMemAllocPitch(&ptr, &pitch, SIZE_MAX / 2, 3, 4) == 1 && d->cuMemFree(0) == 1);
	EXPECT(driver_seen()->calls == 10 && engine_seen() == NULL);
}

static void migrating_memory(void)
{
	const struct driver *d = open_door(BY_DLSYM);
	uint64_t number;
	void *ptr;

	EXPECT(cudaMallocManaged(&ptr, 64, 1) == cudaSuccess && fake_cudart_13.managed_mallocs == 1);
	EXPECT(d->cuMemAllocManaged(&number, 64, 1) == 0);
	tms_set_interesting_region(true);
	EXPECT(cudaMallocManaged(&ptr, 64, 1) == cudaErrorNotSupported && d->cuMemAllocManaged(&number, 65, 1) == 801);
	EXPECT(fake_cudart_13.managed_mallocs == 1 && driver_seen()->managed_allocs == 1 && engine_seen() == NULL);
}

static void without_a_context(void)
{
	int (*set)(void *);
	uint64_t ptr;

	*(void **)&set = dlsym(load_driver(), "cuCtxSetCurrent");
	EXPECT(set(NULL) == 0);
	tms_set_interesting_region(true);
	EXPECT(open_door(BY_PROC)->cuMemAlloc(&ptr, 64) == 201 && engine_seen() == NULL);
	EXPECT(set((void *)3) == 0 && open_door(BY_PROC)->cuMemAlloc(&ptr, 64) == 0 && engine_seen()->device == 3);
}

/* ---- calls that need the driver's handle ---------------------------------------------------------------------- */

static void *function(const char *name)
{
	void *found = dlsym(load_driver(), name);

	EXPECT(found != NULL);
	return found;
}

static void bound_to_multicast(void)
{
	uint64_t handle = create(open_door(BY_PROC));
	int (*bind)(uint64_t, size_t, uint64_t, size_t, size_t, uint64_t);
	int (*bind_v2)(uint64_t, int, size_t, uint64_t, size_t, size_t, uint64_t);
	int (*endpoint)(unsigned, int, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

	*(void **)&bind = function("cuMulticastBindMem");
	*(void **)&bind_v2 = function("cuMulticastBindMem_v2");
	*(void **)&endpoint = function("cuLogicalEndpointBindMem");
	EXPECT(bind(1, 0, handle, 0, 4096, 0) == 0 && driver_seen()->last_handle == FAKE_REAL_HANDLE);
	EXPECT(engine_seen()->reals == 1 && strcmp(engine_seen()->why, "multicast") == 0);
	EXPECT(bind_v2(1, 0, 0, handle, 0, 4096, 0) == 0 && driver_seen()->last_handle == FAKE_REAL_HANDLE);
	EXPECT(endpoint(1, 0, 0, handle, 0, 4096, 0) == 0 && driver_seen()->last_handle == FAKE_REAL_HANDLE);
	EXPECT(engine_seen()->reals == 3 && strcmp(engine_seen()->why, "endpoint") == 0);
	EXPECT(bind(1, 0, 77, 0, 4096, 0) == 0 && driver_seen()->last_handle == 77 && engine_seen()->reals == 3);
	setenv("FAKE_VMM_CODE", "3", 1);
	setenv("FAKE_VMM_CU", "401", 1);
	EXPECT(bind(1, 0, handle, 0, 4096, 0) == 401 && driver_seen()->binds == 4);
}

static void memory_is_no_multicast_object(void)
{
	const struct driver *d = open_door(BY_PROC);
	uint64_t handle = create(d);
	int (*bind)(uint64_t, size_t, uint64_t, size_t, size_t, uint64_t);
	int (*bind_address)(uint64_t, size_t, uint64_t, size_t, uint64_t);

	*(void **)&bind = function("cuMulticastBindMem");
	*(void **)&bind_address = function("cuMulticastBindAddr");
	EXPECT(d->cuMulticastAddDevice(handle, 0) == 400 && d->cuMulticastUnbind(handle, 0, 0, 0) == 400);
	EXPECT(bind(handle, 0, 5, 0, 4096, 0) == 400 && bind_address(handle, 0, at, 4096, 0) == 400);
	EXPECT(driver_seen()->calls == 0);
}

static void bound_by_address(void)
{
	const struct driver *d = open_door(BY_PROC);
	uint64_t handle = create(d);
	int (*bind)(uint64_t, size_t, uint64_t, size_t, uint64_t);
	int (*bind_v2)(uint64_t, int, size_t, uint64_t, size_t, uint64_t);
	int (*endpoint)(unsigned, int, uint64_t, void *, uint64_t, uint64_t);

	*(void **)&bind = function("cuMulticastBindAddr");
	*(void **)&bind_v2 = function("cuMulticastBindAddr_v2");
	*(void **)&endpoint = function("cuLogicalEndpointBindAddr");
	EXPECT(d->cuMemMap(at, 4096, 0, handle, 0) == 0);
	EXPECT(bind(1, 0, at, 4096, 0) == 0 && engine_seen()->reals == 1 && strcmp(engine_seen()->why, "multicast") == 0);
	EXPECT(engine_seen()->retains == 1 && engine_seen()->releases == 1);
	EXPECT(bind_v2(1, 0, 0, at, 4096, 0) == 0 && endpoint(1, 0, 0, (void *)at, 4096, 0) == 0);
	EXPECT(engine_seen()->reals == 3 && driver_seen()->binds == 3);
	EXPECT(bind(1, 0, at + 8192, 4096, 0) == 0 && engine_seen()->reals == 3 && driver_seen()->binds == 4);
	/* Memory of an allocation has no handle to keep. */
	EXPECT(bind(1, 0, (uintptr_t)managed_malloc(64), 64, 0) == 801 && driver_seen()->binds == 4);
}

/* A dma-buf: of every mapping in the range the memory is kept. */
static void exported_by_address(void)
{
	const struct driver *d = open_door(BY_PROC);
	uint64_t first = create(d), second = create(d);
	int fd;

	EXPECT(d->cuMemMap(at, 64 << 10, 0, first, 0) == 0 && d->cuMemMap(at + (64 << 10), 64 << 10, 0, second, 0) == 0);
	EXPECT(d->cuMemGetHandleForAddressRange(&fd, at, 128 << 10, 1, 0) == 0 && driver_seen()->range_exports == 1);
	EXPECT(engine_seen()->reals == 2 && strcmp(engine_seen()->why, "exported") == 0);
	EXPECT(d->cuMemGetHandleForAddressRange(&fd, at + (1 << 20), 64 << 10, 1, 0) == 0 && engine_seen()->reals == 2);
	/* Memory of an allocation has no handle to keep. */
	EXPECT(d->cuMemGetHandleForAddressRange(&fd, (uintptr_t)managed_malloc(64), 64, 1, 0) == 801);
	EXPECT(driver_seen()->range_exports == 2);
}

static void sparse_arrays(void)
{
	const struct driver *d = open_door(BY_PROC_PER_THREAD);
	struct {
		int words[14], operation, type;
		uint64_t handle, rest[3];
	} list[2] = {{.operation = 1}, {.operation = 1}};
	_Static_assert(sizeof(list[0]) == 96, "it is laid out as the driver's");

	list[0].handle = 5;
	list[1].handle = 6;
	EXPECT(d->cuMemMapArrayAsync(list, 2, NULL) == 0 && driver_seen()->last_handle == 6);
	uint64_t handle = list[1].handle = create(d);
	EXPECT(d->cuMemMapArrayAsync(list, 2, NULL) == 0 && driver_seen()->last_handle == FAKE_REAL_HANDLE);
	EXPECT(list[1].handle == handle && engine_seen()->reals == 1 && strcmp(engine_seen()->why, "array") == 0);
	EXPECT(driver_seen()->via == VIA_PROC_PER_THREAD);
	setenv("FAKE_VMM_CODE", "3", 1);
	setenv("FAKE_VMM_CU", "401", 1);
	EXPECT(d->cuMemMapArrayAsync(list, 2, NULL) == 401 && driver_seen()->array_maps == 2);
}

/* ---- peers ------------------------------------------------------------------------------------------------------ */

static bool told(int calls, int device, int peer, int on)
{
	const struct fake_engine *e = engine_seen();

	return e->peer_calls == calls && e->peer_device == device && e->peer_peer == peer && e->peer_on == on;
}

static void peers_of_the_runtime(void)
{
	managed_malloc(1);
	EXPECT(cudaSetDevice(2) == cudaSuccess && cudaDeviceEnablePeerAccess(5, 0) == cudaSuccess && told(1, 5, 2, 1));
	EXPECT(cudaDeviceEnablePeerAccess(5, 0) == cudaSuccess && engine_seen()->peer_calls == 1);
	EXPECT(cudaDeviceDisablePeerAccess(5) == cudaSuccess && told(2, 5, 2, 0));
	fake_cudart_13.peer_error = 704;
	EXPECT(cudaDeviceEnablePeerAccess(5, 0) == 704 && engine_seen()->peer_calls == 2);
	fake_cudart_13.peer_error = cudaSuccess;
	EXPECT(cudaDeviceEnablePeerAccess(5, 0) == cudaSuccess && told(3, 5, 2, 1));
	fake_cudart_13.peer_error = 705;
	EXPECT(cudaDeviceDisablePeerAccess(5) == 705 && told(5, 5, 2, 1)); /* taken away, and given back */
	EXPECT(fake_cudart_13.peers_enabled == 4 && fake_cudart_13.peers_disabled == 2);
}

static void peers_of_the_driver(void)
{
	const struct driver *d = open_door(BY_PROC);

	managed_malloc(1);
	EXPECT(d->cuCtxEnablePeerAccess((void *)3, 0) == 0 && told(1, 3, 1, 1));
	EXPECT(d->cuCtxDisablePeerAccess((void *)3) == 0 && told(2, 3, 1, 0));
	int device;
	int (*get)(int *);
	*(void **)&get = dlsym(load_driver(), "cuCtxGetDevice");
	EXPECT(get(&device) == 0 && device == 1); /* the caller's context is current still */
	/* The address of a context that was destroyed is that of a new one. */
	EXPECT(d->cuCtxEnablePeerAccess((void *)3, 0) == 0 && told(3, 3, 1, 1));
	driver_seen()->context_moved = 4;
	EXPECT(d->cuCtxEnablePeerAccess((void *)3, 0) == 0 && told(4, 4, 1, 1));
	EXPECT(d->cuCtxDisablePeerAccess((void *)3) == 0 && told(5, 4, 1, 0));
}

/* To make a destroyed context current corrupts the heap. */
static void contexts_that_may_be_destroyed(void)
{
	const struct driver *d = open_door(BY_PROC);

	managed_malloc(1);
	EXPECT(d->cuCtxEnablePeerAccess((void *)3, 0) == 0 && driver_seen()->pushes == 1);
	driver_seen()->result = 201;
	EXPECT(d->cuCtxEnablePeerAccess((void *)5, 0) == 201 && driver_seen()->pushes == 1); /* it is none, perhaps */
	EXPECT(d->cuCtxDisablePeerAccess((void *)3) == 201 && told(3, 3, 1, 1)); /* taken away, and given back */
	EXPECT(d->cuCtxDisablePeerAccess((void *)7) == 201 && engine_seen()->peer_calls == 3);
	driver_seen()->result = 0;
	EXPECT(d->cuCtxDisablePeerAccess((void *)3) == 0 && told(4, 3, 1, 0));
	EXPECT(d->cuCtxDisablePeerAccess((void *)7) == 0 && engine_seen()->peer_calls == 4);
	EXPECT(driver_seen()->pushes == 1);
}

static void peers_of_before(void)
{
	EXPECT(cudaSetDevice(1) == cudaSuccess && cudaDeviceEnablePeerAccess(2, 0) == cudaSuccess);
	EXPECT(cudaDeviceEnablePeerAccess(4, 0) == cudaSuccess && cudaDeviceDisablePeerAccess(4) == cudaSuccess);
	EXPECT(engine_seen() == NULL);
	managed_malloc(1);
	EXPECT(told(1, 2, 1, 1));
}

static void a_peer_that_is_refused(void)
{
	managed_malloc(1);
	EXPECT(cudaDeviceEnablePeerAccess(2, 0) == cudaSuccess && told(1, 2, 0, 1));
	/* It is tried again with the next one, */
	EXPECT(cudaDeviceEnablePeerAccess(3, 0) == cudaSuccess && engine_seen()->peer_calls == 3);
	/* and at a pause, until it is done. */
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK && engine_seen()->peer_calls == 5);
	unsetenv("FAKE_PEER_CODE");
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK && engine_seen()->peer_calls == 7);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK && engine_seen()->peer_calls == 7);
	/* What could not be turned off is on still, and is turned off later. */
	setenv("FAKE_PEER_CODE", "7", 1);
	EXPECT(cudaDeviceDisablePeerAccess(2) == cudaSuccess && told(8, 2, 0, 0));
	unsetenv("FAKE_PEER_CODE");
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK && told(9, 2, 0, 0));
	EXPECT(cudaDeviceDisablePeerAccess(3) == cudaSuccess && told(10, 3, 0, 0));
}

/* ---- captures, threads ----------------------------------------------------------------------------------------- */

static void in_a_capture(void)
{
	const struct driver *d = open_door(BY_PROC);
	static struct fake_stream stream;
	uint64_t ptr, handle = create(d);
	void *graph;

	tms_set_interesting_region(true);
	EXPECT(d->cuMemAlloc(&ptr, 64) == 0);
	EXPECT(cudaStreamBeginCapture(&stream, 0) == cudaSuccess);
	EXPECT(d->cuMemFree(ptr) == 900 && engine_seen()->frees == 0);
	EXPECT(d->cuMemMap(at, 4096, 0, handle, 0) == 0 && d->cuMemUnmap(at, 4096) == 0); /* as the driver's */
	EXPECT(cudaStreamEndCapture(&stream, &graph) == cudaSuccess && d->cuMemFree(ptr) == 0);
	EXPECT(driver_seen()->calls == 0);
}

enum { THREADS = 16, ROUNDS = 100 };

static const struct driver *shared;

static void *map_and_unmap(void *number)
{
	uint64_t handle, mine = at + ((uintptr_t)number << 20);

	tms_set_interesting_region(true);
	for (int i = 0; i < ROUNDS; i++) {
		EXPECT(shared->cuMemCreate(&handle, 4096, on_device, 0) == 0);
		EXPECT(shared->cuMemMap(mine, 4096, 0, handle, 0) == 0 && shared->cuMemRelease(handle) == 0);
		EXPECT(shared->cuMemSetAccess(mine, 4096, on_device, 1) == 0 && shared->cuMemUnmap(mine, 4096) == 0);
	}
	return NULL;
}

static void threads_that_come_at_once(void)
{
	pthread_t threads[THREADS];

	shared = open_door(BY_PROC);
	for (uintptr_t i = 0; i < THREADS; i++)
		EXPECT(pthread_create(&threads[i], NULL, map_and_unmap, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		EXPECT(pthread_join(threads[i], NULL) == 0);
	EXPECT(engine_seen()->starts == 1 && engine_seen()->creates == THREADS * ROUNDS && driver_seen()->calls == 0);
}

#define BOTH "ebb: an allocation of * bytes is refused: CPU backup and disk backup are both on *"
#define MIGRATES(function, bytes) "ebb: " function ": " bytes " bytes of memory that moves * outside the region*ebb.disable()*"

#define REFUSED(device, way) \
	"ebb: access of device 0 to managed memory of device " device " could not be turned " way ": FAKE_PEER_CODE said so"

CASES(
	{.says = "errors of the engine are the driver's nearest, with a line where only ebb refuses",
	 .run = errors_of_the_engine,
	 .lines = {"ebb: cuMemCreate failed: FAKE_VMM_CODE said so", "ebb: cuMemCreate failed: FAKE_VMM_CODE said so"}},
	{.says = "every call tells its owner the driver's error",
	 .run = errors_of_other_calls,
	 .lines = {"ebb: cuMemExportToShareableHandle failed: FAKE_VMM_CODE said so"}},
	{.says = "calls on addresses of others leave no error behind", .run = addresses_of_others_leave_no_error},
	{.says = "another's memory is not mapped where the engine refuses it", .run = paused_addresses_are_occupied},
	{.says = "what the engine does not manage, as host memory, the driver creates", .run = what_is_no_devices_memory},
	{.says = "with CPU and disk backup both on, each allocation is refused with a line",
	 .run = both_backups,
	 .env = {"TMS_INIT_ENABLE_CPU_BACKUP=1", "TMS_INIT_ENABLE_DISK_BACKUP=1"},
	 .lines = {BOTH, BOTH, BOTH}},
	{.says = "arguments that make no sense are the driver's to refuse", .run = arguments_that_make_no_sense},
	{.says = "memory that moves between host and device is refused in a region, with the way",
	 .run = migrating_memory,
	 .lines = {MIGRATES("cudaMallocManaged", "64"), MIGRATES("cuMemAllocManaged", "65")}},
	{.says = "cuMemAlloc is for the current context's device, and needs one", .run = without_a_context},
	{.says = "calls that need the driver's handle get it, and the memory is kept from then on",
	 .run = bound_to_multicast,
	 .lines = {"ebb: cuMulticastBindMem failed: FAKE_VMM_CODE said so"}},
	{.says = "a handle of memory is no multicast object", .run = memory_is_no_multicast_object},
	{.says = "memory whose range is exported as a file is kept, an allocation is refused by name",
	 .run = exported_by_address,
	 .lines = {"ebb: cuMemGetHandleForAddressRange: * is managed memory that cannot be bound: *"}},
	{.says = "memory that is bound by its address is kept",
	 .run = bound_by_address,
	 .lines = {"ebb: cuMulticastBindAddr: 0x* is managed memory that cannot be bound: * outside the region *"}},
	{.says = "arrays get the driver's handles in a copy of their list",
	 .run = sparse_arrays,
	 .lines = {"ebb: cuMemMapArrayAsync failed: FAKE_VMM_CODE said so"}},
	{.says = "the engine is told of peers that the runtime enables and disables", .run = peers_of_the_runtime},
	{.says = "the engine is told of peers that the driver enables and disables", .run = peers_of_the_driver},
	{.says = "of contexts only those that the driver just accepted are made current",
	 .run = contexts_that_may_be_destroyed},
	{.says = "peers that were enabled before are told to a new engine", .run = peers_of_before},
	{.says = "access that the engine cannot give is told, and tried again with the next one and at a pause",
	 .run = a_peer_that_is_refused,
	 .env = {"FAKE_PEER_CODE=7"},
	 .lines = {REFUSED("2", "on"), REFUSED("2", "on"), REFUSED("3", "on"), REFUSED("2", "on"), REFUSED("3", "on"),
		   REFUSED("2", "off")}},
	{.says = "during a capture managed memory is not freed, but mapped and unmapped as the driver does it",
	 .run = in_a_capture,
	 .lines = {"ebb: freeing 0x* failed: a capture is under way"}},
	{.says = "threads that come at once load one engine, and each has its memory", .run = threads_that_come_at_once});
