/* Memory that its owner maps, and the driver's plain allocations, through every door. */
#include "doors.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

extern struct fake_cudart fake_cudart_13;

static const uint64_t at = 0x10000000;

static const struct driver *d;

static void use_all(void (*body)(void))
{
	for (enum door door = 0; door < DOORS; door++) {
		d = open_door(door);
		body();
	}
}

static void in_region(void (*body)(void))
{
	tms_set_interesting_region(true);
	body();
	tms_set_interesting_region(false);
}

/* ---- managed -------------------------------------------------------------------------------------- */

static void map_and_unmap(void)
{
	struct fake_engine before;
	uint64_t handle = 0, again = 0, flags = 0;
	int prop[8] = {0};

	tms_set_current_tag("weights");
	tms_set_enable_cpu_backup(true);
	EXPECT(d->cuMemCreate(&handle, 20 << 20, on_device, 0) == 0 && EBB_ENGINE_IS_HANDLE(handle));
	struct fake_engine *engine = engine_seen();
	EXPECT(engine->size == 20 << 20 && engine->backup == EBB_BACKUP_CPU && strcmp(engine->tag, "weights") == 0);
	tms_set_interesting_region(false); /* what it is was fixed when it was made */
	memcpy(&before, engine, sizeof(before));
	EXPECT(d->cuMemMap(at, 20 << 20, 0, handle, 0) == 0 && engine->maps == before.maps + 1);
	EXPECT(d->cuMemSetAccess(at, 20 << 20, on_device, 1) == 0 && engine->set_accesses == before.set_accesses + 1);
	EXPECT(d->cuMemGetAccess(&flags, on_device, at + 1) == 0 && flags == 3);
	EXPECT(d->cuMemRetainAllocationHandle(&again, (void *)at) == 0 && EBB_ENGINE_IS_HANDLE(again));
	EXPECT(d->cuMemRelease(again) == 0 && engine->releases == before.releases + 1);
	EXPECT(d->cuMemGetAllocationPropertiesFromHandle(prop, handle) == 0);
	EXPECT(engine->properties == before.properties + 1);
	EXPECT(d->cuMemExportToShareableHandle(&flags, handle, 1, 0) == 0 && engine->exports == before.exports + 1);
	EXPECT(d->cuMemAddressFree(at, 64 << 20) == 1 && engine->address_frees == before.address_frees + 1);
	EXPECT(d->cuMemUnmap(at, 20 << 20) == 0 && engine->unmaps == before.unmaps + 1);
	EXPECT(d->cuMemRelease(handle) == 0 && engine->releases == before.releases + 2);
	tms_set_interesting_region(true);
}

static void map_and_unmap_through_all(void)
{
	use_all(map_and_unmap);
}

static void managed_through_every_door(void)
{
	load_driver();
	in_region(map_and_unmap_through_all);
	EXPECT(driver_seen()->calls == 0 && driver_seen()->virtual_handles == 0);
	EXPECT(engine_seen()->creates == DOORS);
}

static void allocate_and_free(void)
{
	struct fake_engine *engine;
	uint64_t ptr = 0;
	size_t pitch = 0;

	EXPECT(d->cuMemAlloc(&ptr, 3000) == 0 && ptr != 0);
	engine = engine_seen();
	EXPECT(engine->size == 3000 && engine->device == 1 && engine->backup == EBB_BACKUP_NONE);
	int frees = engine->frees;
	EXPECT(d->cuIpcGetMemHandle(&pitch, ptr) == 801);
	EXPECT(d->cuMemFree(ptr) == 0 && engine->frees == frees + 1);
	EXPECT(d->cuMemAllocPitch(&ptr, &pitch, 1000, 10, 4) == 0 && pitch == 1024 && engine->size == 10240);
	EXPECT(d->cuMemFree(ptr) == 0 && engine->frees == frees + 2);
	EXPECT(d->cuMemAlloc(&ptr, 3000) == 0 && d->cuMemFreeAsync(ptr, NULL) == 0 && engine->frees == frees + 3);
}

static void allocate_and_free_through_all(void)
{
	use_all(allocate_and_free);
}

static void allocations_through_every_door(void)
{
	in_region(allocate_and_free_through_all);
	EXPECT(driver_seen()->calls == 0);
}

/* ---- not managed ----------------------------------------------------------------------------------- */

static void everything_is_the_drivers(void)
{
	struct fake_cuda *cuda = driver_seen();
	uint64_t handle = 0, ptr = 0, flags;
	struct fake_stream stream = {0};
	void *graph;
	size_t pitch;
	int calls = cuda->calls;

	EXPECT(d->cuMemCreate(&handle, 4096, on_device, 0) == 0 && handle != 0 && !EBB_ENGINE_IS_HANDLE(handle));
	EXPECT(d->cuMemMap(at, 4096, 0, handle, 0) == 0 && cuda->last_handle == handle);
	EXPECT(d->cuMemSetAccess(at, 4096, on_device, 1) == 0 && cuda->last_address == at);
	EXPECT(d->cuMemGetAccess(&flags, on_device, at) == 0);
	EXPECT(d->cuMemExportToShareableHandle(&flags, handle, 1, 0) == 0);
	EXPECT(d->cuMemRetainAllocationHandle(&handle, (void *)at) == 0);
	EXPECT(d->cuMemGetAllocationPropertiesFromHandle(&flags, handle) == 0);
	EXPECT(d->cuMemUnmap(at, 4096) == 0 && d->cuMemRelease(handle) == 0 && d->cuMemRelease(handle) == 0);
	EXPECT(d->cuMemImportFromShareableHandle(&handle, NULL, 1) == 0 && d->cuMemRelease(handle) == 0);
	EXPECT(d->cuMemAddressFree(at, 4096) == 0);
	EXPECT(cuda->calls == calls + 13);
	EXPECT(d->cuMemAlloc(&ptr, 4096) == 0 && d->cuMemFree(ptr) == 0 && cuda->last_address == ptr);
	EXPECT(d->cuMemAllocPitch(&ptr, &pitch, 1, 1, 4) == 0 && pitch == 256 && d->cuMemFree(ptr) == 0);
	EXPECT(d->cuMemAllocManaged(&ptr, 4096, 1) == 0 && d->cuMemFree(ptr) == 0);
	EXPECT(d->cuIpcGetMemHandle(&flags, ptr) == 0);
	EXPECT(d->cuMemAllocAsync(&ptr, 4096, NULL) == 0 && d->cuMemFreeAsync(ptr, NULL) == 0);
	EXPECT(d->cuMemAllocFromPoolAsync(&ptr, 4096, NULL, NULL) == 0 && d->cuMemFreeAsync(ptr, NULL) == 0);
	EXPECT(d->cuMemPoolCreate(&graph, NULL) == 0 && d->cuMemPoolDestroy(graph) == 0);
	EXPECT(d->cuMemGetHandleForAddressRange(&flags, at, 4096, 1, 0) == 0);
	EXPECT(d->cuMulticastAddDevice(handle, 0) == 0 && d->cuMulticastUnbind(handle, 0, 0, 0) == 0);
	EXPECT(d->cuCtxEnablePeerAccess((void *)2, 0) == 0 && d->cuCtxDisablePeerAccess((void *)2) == 0);
	EXPECT(d->cuStreamBeginCapture(&stream, 0) == 0 && d->cuStreamEndCapture(&stream, &graph) == 0);
	EXPECT(d->cuStreamBeginCaptureToGraph(&stream, NULL, NULL, NULL, 0, 0) == 0 && d->cuStreamDestroy(&stream) == 0);
	EXPECT(cuda->calls == calls + 35);
}

static void outside_a_region(void)
{
	use_all(everything_is_the_drivers);
	EXPECT(engine_seen() == NULL);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK); /* and nothing is left to be counted */
}

static void outside_a_region_beside_managed_memory(void)
{
	tms_set_interesting_region(true);
	uint64_t handle;
	EXPECT(open_door(LINKED)->cuMemCreate(&handle, 4096, on_device, 0) == 0);
	EXPECT(open_door(LINKED)->cuMemMap(at + (1 << 20), 4096, 0, handle, 0) == 0);
	tms_set_interesting_region(false);
	use_all(everything_is_the_drivers);
	EXPECT(engine_seen()->creates == 1 && engine_seen()->foreign_maps == DOORS);
}

static void child_in_a_region(void)
{
	uint64_t handle;

	tms_set_interesting_region(true);
	use_all(everything_is_the_drivers);
	/* A handle of the parent's is refused here as the driver refuses all in a child. */
	EXPECT(d->cuMemMap(at, 4096, 0, ((uint64_t)EBB_ENGINE_HANDLE << 48) + 1, 0) == 3);
	EXPECT(d->cuMemRelease(((uint64_t)EBB_ENGINE_HANDLE << 48) + 1) == 3);
	EXPECT(d->cuMemCreate(&handle, 4096, on_device, 0) == 0 && driver_seen()->virtual_handles == 0);
}

static void in_a_forked_child(void)
{
	uint64_t handle;

	tms_set_interesting_region(true);
	EXPECT(open_door(BY_DLSYM)->cuMemCreate(&handle, 4096, on_device, 0) == 0);
	EXPECT(open_door(BY_DLSYM)->cuMemMap(at, 4096, 0, handle, 0) == 0);
	EXPECT(in_child(child_in_a_region) == 0);
}

static void nothing_is_created(void)
{
	uint64_t handle = 7, ptr = 8;
	size_t pitch;

	EXPECT(d->cuMemCreate(&handle, 4096, on_device, 0) == 303 && handle == 7);
	EXPECT(d->cuMemAlloc(&ptr, 4096) == 303 && ptr == 8);
	EXPECT(d->cuMemAllocPitch(&ptr, &pitch, 8, 8, 4) == 303 && ptr == 8);
	handle = ((uint64_t)EBB_ENGINE_HANDLE << 48) + 5;
	EXPECT(d->cuMemMap(at, 4096, 0, handle, 0) == 1 && d->cuMemRelease(handle) == 1);
	EXPECT(d->cuMemExportToShareableHandle(&ptr, handle, 1, 0) == 1);
	EXPECT(d->cuMemGetAllocationPropertiesFromHandle(&ptr, handle) == 1);
	EXPECT(driver_seen()->calls == 0);
}

static void the_engine_is_missing(void)
{
	load_driver();
	tms_set_interesting_region(true);
	use_all(nothing_is_created);
	tms_set_interesting_region(false);
	use_all(everything_is_the_drivers);
}

static uint64_t made_before_exit;

static void at_exit(void)
{
	uint64_t handle, flags;

	for (enum door door = 0; door < DOORS; door++) {
		d = open_door(door);
		everything_is_the_drivers();
		EXPECT(d->cuMemMap(at, 4096, 0, made_before_exit, 0) == 4);
		EXPECT(d->cuMemExportToShareableHandle(&flags, made_before_exit, 1, 0) == 4);
		EXPECT(d->cuMemRelease(made_before_exit) == 0);
		driver_seen()->result = 1; /* as it says of an address where only paused memory was */
		EXPECT(d->cuMemUnmap(at, 4096) == 4 && d->cuMemSetAccess(at, 4096, on_device, 1) == 4);
		EXPECT(d->cuMemCreate(&handle, 4096, on_device, 0) == 1);
		driver_seen()->result = 0;
	}
	EXPECT(engine_seen()->releases == 0 && engine_seen()->unmaps == 0 && engine_seen()->maps == 1);
	EXPECT(driver_seen()->virtual_handles == 0);
}

static void while_the_process_exits(void)
{
	load_driver();
	EXPECT(atexit(at_exit) == 0); /* before the engine's own, so that it runs after that */
	tms_set_interesting_region(true);
	EXPECT(open_door(BY_PROC)->cuMemCreate(&made_before_exit, 4096, on_device, 0) == 0);
	EXPECT(open_door(BY_PROC)->cuMemMap(at + (1 << 20), 4096, 0, made_before_exit, 0) == 0);
	exit(5);
}

/* ---- which function is called ----------------------------------------------------------------------------- */

static int via(enum door door)
{
	uint64_t ptr;

	EXPECT(open_door(door)->cuMemAllocAsync(&ptr, 64, NULL) == 0);
	return driver_seen()->via;
}

static void the_function_that_was_found(void)
{
	EXPECT(via(LINKED) == VIA_SYMBOL && via(BY_DLSYM) == VIA_SYMBOL && via(BY_DLSYM_OF_USER) == VIA_SYMBOL);
	EXPECT(via(BY_PROC) == VIA_PROC && via(BY_PROC_V1) == VIA_PROC && via(BY_VERSION) == VIA_PROC);
	EXPECT(via(BY_PROC_PER_THREAD) == VIA_PROC_PER_THREAD && via(BY_ENTRY_PER_THREAD) == VIA_PROC_PER_THREAD);
	EXPECT(via(BY_PROC) == VIA_PROC && via(LINKED) == VIA_SYMBOL);
	/* The same function of the driver is one of ours, whoever asks. */
	EXPECT(through(BY_PROC, "cuMemCreate", NULL) == through(BY_VERSION, "cuMemCreate", NULL));
	EXPECT(through(BY_PROC, "cuMemCreate", NULL) != through(BY_DLSYM, NULL, "cuMemCreate"));
}

static void *proc(const char *name, int version)
{
	int (*get)(const char *, void **, int, uint64_t, int *);
	void *function = (void *)1;

	*(void **)&get = dlsym(load_driver(), "cuGetProcAddress_v2");
	return get(name, &function, version, 0, NULL) == 0 ? function : NULL;
}

static void versions_of_a_name(void)
{
	unsigned small;

	/* Of 32 bits: left alone. */
	int (*alloc_v1)(unsigned *, unsigned) = (int (*)(unsigned *, unsigned))proc("cuMemAlloc", 3000);
	EXPECT(alloc_v1(&small, 4) == 0 && small == 7 && driver_seen()->alloc_v1s == 1 && driver_seen()->calls == 0);
	EXPECT(proc("cuMemAlloc", 2) == NULL);
	/* With and without a device. */
	int (*bind)(uint64_t, size_t, uint64_t, size_t, size_t, uint64_t);
	int (*bind_v2)(uint64_t, int, size_t, uint64_t, size_t, size_t, uint64_t);
	*(void **)&bind = proc("cuMulticastBindMem", 12080);
	*(void **)&bind_v2 = proc("cuMulticastBindMem", 99000); /* the driver has none so new */
	EXPECT(bind(1, 2, 3, 4, 5, 6) == 0 && driver_seen()->last_handle == 3);
	EXPECT(bind_v2(1, 2, 3, 4, 5, 6, 7) == 0 && driver_seen()->last_handle == 4);
	EXPECT(driver_seen()->version_asked == 99000);
	int (*get_v1)(const char *, void **, int, uint64_t);
	void *function;
	*(void **)&get_v1 = proc("cuGetProcAddress", 11040);
	EXPECT(get_v1("cuMemRelease", &function, 11040, 0) == 0 && function == proc("cuMemRelease", 11040));
}

static void other_functions_are_let_alone(void)
{
	void *function = (void *)1;
	int status;

	EXPECT(proc("cuCtxSetCurrent", 12000) == dlsym(load_driver(), "cuCtxSetCurrent"));
	EXPECT(proc("cuNone", 12000) == NULL);
	EXPECT(cudaGetDriverEntryPoint("cuNone", &function, 0, &status) == cudaSuccess && function == NULL && status == 1);
	EXPECT(cudaGetDriverEntryPointByVersion("cuNone", &function, 12000, 0, NULL) == cudaSuccess && function == NULL);
}

static void the_runtimes_four(void)
{
	void *function;
	int status;

	load_driver();
	EXPECT(cudaGetDriverEntryPoint("cuMemCreate", &function, 0, &status) == cudaSuccess && function != NULL);
	EXPECT(fake_cudart_13.version_asked == 0 && !fake_cudart_13.per_thread);
	EXPECT(cudaGetDriverEntryPointByVersion("cuMemCreate", &function, 12080, 0, &status) == cudaSuccess);
	EXPECT(fake_cudart_13.version_asked == 12080 && !fake_cudart_13.per_thread);
	EXPECT(cudaGetDriverEntryPointByVersion_ptsz("cuMemCreate", &function, 12090, 0, &status) == cudaSuccess);
	EXPECT(fake_cudart_13.version_asked == 12090 && fake_cudart_13.per_thread);
	EXPECT(cudaGetDriverEntryPoint_ptsz("cuNone", &function, 0, &status) == cudaSuccess);
	EXPECT(fake_cudart_13.version_asked == 0 && fake_cudart_13.per_thread && function == NULL && status == 1);
	EXPECT(fake_cudart_13.entry_points == 4);
}

static void the_engine_gets_the_drivers_functions(void)
{
	void *ours = dlsym(load_driver(), "cuMemCreate");

	managed_malloc(1);
	EXPECT(engine_seen()->looked_up != NULL && engine_seen()->looked_up != ours);
	EXPECT(((int (*)(uint64_t *, size_t, const void *, uint64_t))engine_seen()->looked_up)(
		       &(uint64_t){0}, 1, on_device, 0) == 0);
	EXPECT(driver_seen()->creates == 1 && engine_seen()->creates == 0);
}

static void the_engine_gets_them_past_another_hook(void)
{
	_Atomic int *hooked = dlsym(RTLD_DEFAULT, "hooked_creates");

	the_engine_gets_the_drivers_functions();
	EXPECT(*hooked == 0);
}

static void the_engines_own_calls_pass(void)
{
	load_driver();
	managed_malloc(1);
	EXPECT(engine_seen()->call_result == 0);
	EXPECT(driver_seen()->releases == 1 && driver_seen()->virtual_handles == 1 && engine_seen()->releases == 0);
}

static void old_driver(void)
{
	void *function = (void *)1;
	int status;

	void *driver = dlopen(beside("old/libcuda.so.1"), RTLD_NOW | RTLD_LOCAL);
	EXPECT(driver != NULL);
	EXPECT(dlsym(driver, "cuMemMap") == NULL && dlerror() != NULL);
	EXPECT(cudaGetDriverEntryPointByVersion("cuMemCreate", &function, 12000, 0, &status) == cudaSuccess);
	EXPECT(function == NULL && status == 1);
	EXPECT(cudaGetDriverEntryPointByVersion("cuMemAlloc", &function, 12000, 0, &status) == cudaSuccess);
	EXPECT(function != NULL && status == 0);
}

static void old_driver_of_a_managed_process(void)
{
	tms_set_interesting_region(true);
	old_driver();
	old_driver();
}

static void no_driver(void)
{
	uint64_t handle;
	int (*create)(uint64_t *, size_t, const void *, uint64_t);

	*(void **)&create = dlsym(RTLD_DEFAULT, "cuMemCreate");
	EXPECT(create(&handle, 1, on_device, 0) == 302 && create(&handle, 1, on_device, 0) == 302);
	load_driver();
	EXPECT(create(&handle, 1, on_device, 0) == 0);
}

#define IPC "ebb: cuIpcGetMemHandle: 0x* is managed memory*outside the region*ebb.disable()*"

CASES(
	{.says = "memory created in a region is the engine's, and its handle never reaches the driver, by no door",
	 .run = managed_through_every_door},
	{.says = "cuMemAlloc and cuMemAllocPitch in a region are managed, through every door",
	 .run = allocations_through_every_door,
	 .lines = {IPC, IPC, IPC, IPC, IPC, IPC, IPC, IPC, IPC, IPC, IPC, IPC, IPC}},
	{.says = "outside regions every call is the driver's, through every door, and loads nothing",
	 .run = outside_a_region},
	{.says = "outside regions every call is the driver's, also where there is managed memory",
	 .run = outside_a_region_beside_managed_memory},
	{.says = "in a forked child every call is the driver's, and a handle of the parent's is refused",
	 .run = in_a_forked_child},
	{.says = "without an engine nothing is created in a region, and the rest is the driver's",
	 .run = the_engine_is_missing,
	 .env = {"EBB_ENGINE=/nonexistent/engine.so"},
	 .lines = {"ebb: cannot load the engine library /nonexistent/engine.so*"}},
	{.says = "while the process exits calls are the driver's, and managed memory is left to its end",
	 .run = while_the_process_exits,
	 .exit_status = 5},
	{.says = "the function that is called is the one that was found", .run = the_function_that_was_found},
	{.says = "a name means the function of the version that is asked for", .run = versions_of_a_name},
	{.says = "functions that are not hooked, and unknown ones, are the driver's affair",
	 .run = other_functions_are_let_alone},
	{.says = "each of the runtime's four requests reaches its own in the runtime", .run = the_runtimes_four},
	{.says = "the engine's look-ups get the driver's own functions",
	 .run = the_engine_gets_the_drivers_functions,
	 .env = {"FAKE_START_LOOKS_UP=1"}},
	{.says = "also where another library hooks dlsym, and gives functions of its own",
	 .run = the_engine_gets_them_past_another_hook,
	 .env = {"FAKE_START_LOOKS_UP=1", "LD_PRELOAD=@/libdriverhook.so"}},
	{.says = "or the first ones of the process, which are the library's",
	 .run = the_engine_gets_them_past_another_hook,
	 .env = {"FAKE_START_LOOKS_UP=1", "LD_PRELOAD=@/liblimiter.so"}},
	{.says = "a call of the engine's that comes to a hook goes on to the driver, whatever its handle",
	 .run = the_engines_own_calls_pass,
	 .env = {"FAKE_START_CALLS=1"}},
	{.says = "what an old driver lacks is answered with no, and a managed process is told once",
	 .run = old_driver_of_a_managed_process,
	 .lines = {"ebb: the driver has no cuMemMap, without which no memory can be managed: update the driver"}},
	{.says = "what an old driver lacks is nobody else's concern", .run = old_driver},
	{.says = "without a driver calls fail with a line; a driver loaded later is found",
	 .run = no_driver,
	 .lines = {"ebb: cuMemCreate was called, but no loaded driver (libcuda.so.1) has it"}});
