/* Managed allocation and free: refusals, the runtime's errors, contexts. */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

extern struct fake_cudart fake_cudart_13;

static int malloc_in_region(void)
{
	void *ptr = NULL;

	tms_set_interesting_region(true);
	int error = cudaMalloc(&ptr, 4096);
	tms_set_interesting_region(false);
	return error;
}

static void both_backups_are_refused(void)
{
	tms_set_enable_cpu_backup(true);
	tms_set_enable_disk_backup(true);
	EXPECT(malloc_in_region() == cudaErrorInvalidValue);
	EXPECT(tms_torch_malloc(64, 0, NULL) == NULL);
	EXPECT(engine_seen() == NULL && fake_cudart_13.mallocs == 0);
}

static void both_backups_do_not_matter_outside(void)
{
	void *ptr;

	EXPECT(cudaMalloc(&ptr, 1) == cudaSuccess);
	EXPECT(fake_cudart_13.mallocs == 1);
}

static int malloc_with_code(const char *code)
{
	setenv("FAKE_MALLOC_CODE", code, 1);
	return malloc_in_region();
}

static void too_little_device_memory_is_silent(void)
{
	EXPECT(malloc_with_code("9") == cudaErrorMemoryAllocation);
	EXPECT(tms_torch_malloc(64, 0, NULL) == NULL);
	EXPECT(fake_cudart_13.mallocs == 0);
	unsetenv("FAKE_MALLOC_CODE");
	EXPECT(malloc_in_region() == cudaSuccess);
}

static void other_failures_have_a_line_each(void)
{
	char text[64];

	EXPECT(malloc_with_code("10") == cudaErrorMemoryAllocation);
	EXPECT(malloc_with_code("1") == cudaErrorInvalidValue);
	EXPECT(malloc_with_code("6") == cudaErrorStreamCaptureUnsupported);
	EXPECT(malloc_with_code("3") == cudaErrorIllegalState);
	EXPECT(malloc_with_code("16") == cudaErrorUnknown);
	EXPECT(fake_cudart_13.mallocs == 0);
	EXPECT(ebb_last_error(text, sizeof(text)) == strlen("malloc: FAKE_MALLOC_CODE said so"));
	EXPECT(strcmp(text, "malloc: FAKE_MALLOC_CODE said so") == 0);
}

static void errors_of_the_runtime_come_first(void)
{
	fake_cudart_13.get_device_error = 100; /* cudaErrorNoDevice */
	EXPECT(malloc_in_region() == 100);
	fake_cudart_13.get_device_error = cudaSuccess;
	fake_cudart_13.context_error = 46; /* cudaErrorDevicesUnavailable */
	EXPECT(malloc_in_region() == 46);
	EXPECT(engine_seen() == NULL);
	fake_cudart_13.context_error = cudaSuccess;
	EXPECT(malloc_in_region() == cudaSuccess);
}

static void allocate(void)
{
	managed_malloc(1);
}

static void context_is_made_once_per_thread_and_device(void)
{
	managed_malloc(1);
	managed_malloc(1);
	EXPECT(fake_cudart_13.contexts == 1);
	EXPECT(cudaSetDevice(1) == cudaSuccess);
	managed_malloc(1);
	managed_malloc(1);
	EXPECT(fake_cudart_13.contexts == 2);
	in_thread(allocate);
	EXPECT(fake_cudart_13.contexts == 3);
}

static void a_failed_free_is_told(void)
{
	void *ptr = managed_malloc(1);

	setenv("FAKE_FREE_CODE", "7", 1);
	EXPECT(cudaFree(ptr) == cudaErrorUnknown);
	EXPECT(fake_cudart_13.frees == 0);
	unsetenv("FAKE_FREE_CODE");
	EXPECT(cudaFree(ptr) == cudaSuccess);
	EXPECT(engine_seen()->frees == 1);
}

static void a_free_of_other_memory_leaves_no_error(void)
{
	char text[8];

	managed_malloc(1);
	EXPECT(cudaFree((void *)0x1234) == cudaSuccess);
	EXPECT(fake_cudart_13.last_freed == (void *)0x1234);
	EXPECT(ebb_last_error(text, sizeof(text)) == 0 && text[0] == '\0');
}

static void freed_twice_is_the_runtimes_affair(void)
{
	void *ptr = managed_malloc(1);

	EXPECT(cudaFree(ptr) == cudaSuccess);
	EXPECT(cudaFree(ptr) == cudaSuccess); /* the real runtime reports an invalid value */
	EXPECT(fake_cudart_13.last_freed == ptr && engine_seen()->frees == 1);
}

static void forwarded_functions_reach_the_runtime(void)
{
	unsigned int flags = 0;

	EXPECT(cudaGetLastError() == 13);
	EXPECT(cudaHostGetFlags(&flags, NULL) == cudaSuccess && flags == 13);
	EXPECT(fake_cudart_13.last_errors == 1 && fake_cudart_13.host_flags == 1);
}

static void ipc_of_managed_memory(void)
{
	char *managed = managed_malloc(64), text[8];
	unsigned char handle[64];
	void *other;

	EXPECT(cudaMalloc(&other, 64) == cudaSuccess);
	EXPECT(cudaIpcGetMemHandle(handle, managed) == cudaErrorNotSupported);
	setenv("FAKE_POINTER_CODE", "3", 1); /* as it is without a backup */
	EXPECT(cudaIpcGetMemHandle(handle, managed + 63) == cudaErrorNotSupported);
	unsetenv("FAKE_POINTER_CODE");
	EXPECT(fake_cudart_13.ipc_handles == 0);
	EXPECT(cudaIpcGetMemHandle(handle, other) == cudaSuccess);
	EXPECT(cudaIpcGetMemHandle(handle, NULL) == cudaSuccess); /* the real one reports it */
	EXPECT(fake_cudart_13.ipc_handles == 2);
	EXPECT(ebb_last_error(text, sizeof(text)) == 0);
}

static void ipc_without_managed_memory(void)
{
	unsigned char handle[64];
	void *other;

	EXPECT(cudaMalloc(&other, 64) == cudaSuccess);
	EXPECT(cudaIpcGetMemHandle(handle, other) == cudaSuccess && fake_cudart_13.ipc_handles == 1);
	EXPECT(engine_seen() == NULL);
}

static void nothing_managed_and_other_memory(void)
{
	const char *tags[] = {"weights"};
	void *a, *b;
	char text[512];

	EXPECT(cudaMalloc(&a, 64) == cudaSuccess && cudaMalloc(&b, 64) == cudaSuccess);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_ERR_UNMANAGED);
	EXPECT(ebb_last_error(text, sizeof(text)) > 0 && strstr(text, "2 device allocations made") != NULL);
	EXPECT(strstr(text, "made outside a region: ") != NULL && strstr(text, "TMS_INIT_ENABLE=1") != NULL);
	/* By itself the variable would have the pause lose every byte. */
	EXPECT(strstr(text, "TMS_INIT_ENABLE_CPU_BACKUP=1 or TMS_INIT_ENABLE_DISK_BACKUP=1") != NULL);
	EXPECT(ebb_request_pause(NULL, 0, -1, NULL) == EBB_ERR_UNMANAGED);
	EXPECT(tms_pause(NULL) == EBB_ERR_UNMANAGED);
	EXPECT(tms_pause("") == EBB_ERR_UNMANAGED);
	EXPECT(ebb_pause(tags, 1, NULL) == EBB_ERR_UNKNOWN_TAG);
	EXPECT(tms_pause("weights") == EBB_OK);
	EXPECT(ebb_resume(NULL, 0, 0, NULL) == EBB_OK && tms_resume(NULL) == EBB_OK);
	EXPECT(engine_seen() == NULL);
}

static void other_memory_is_counted(void)
{
	void *a, *b;

	EXPECT(cudaMalloc(&a, 64) == cudaSuccess && cudaMalloc(&b, 0) == cudaSuccess);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_ERR_UNMANAGED);
	EXPECT(cudaFree(NULL) == cudaSuccess);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_ERR_UNMANAGED);
	EXPECT(cudaFree(a) == cudaSuccess);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK);
	EXPECT(cudaFree((void *)0x1234) == cudaSuccess); /* made by a function that is not hooked */
	EXPECT(cudaMalloc(&a, 64) == cudaSuccess);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_ERR_UNMANAGED);
}

static void the_engine_is_told_of_other_memory(void)
{
	void *other, *managed;

	EXPECT(cudaMalloc(&other, 64) == cudaSuccess);
	managed = managed_malloc(64);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK && engine_seen()->unmanaged == 1);
	EXPECT(cudaFree(managed) == cudaSuccess);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK && engine_seen()->unmanaged == 1);
	EXPECT(cudaFree(other) == cudaSuccess);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK && engine_seen()->unmanaged == 0);
}

#define UNMANAGED "ebb: pause FAILED, memory not freed: no memory is managed*TMS_INIT_ENABLE=1*"
#define NO_IPC "ebb: cudaIpcGetMemHandle: 0x* is managed memory*outside the region*ebb.disable()*"
#define REFUSED "ebb: an allocation of 4096 bytes on device 0 failed: FAKE_MALLOC_CODE said so"

CASES(
	{.says = "with CPU and disk backup both on, each allocation is refused with a line",
	 .run = both_backups_are_refused,
	 .lines = {"ebb: an allocation of 4096 bytes is refused: CPU backup and disk backup are both on *",
		   "ebb: an allocation of 64 bytes is refused: CPU backup and disk backup are both on *"}},
	{.says = "both backups on do not matter outside regions",
	 .run = both_backups_do_not_matter_outside,
	 .env = {"TMS_INIT_ENABLE_CPU_BACKUP=1", "TMS_INIT_ENABLE_DISK_BACKUP=1"}},
	{.says = "too little device memory is cudaErrorMemoryAllocation without a line: callers retry",
	 .run = too_little_device_memory_is_silent},
	{.says = "other failures are the runtime's nearest error, with a line each, never unmanaged memory",
	 .run = other_failures_have_a_line_each,
	 .lines = {REFUSED, REFUSED, REFUSED, REFUSED, REFUSED}},
	{.says = "errors of the runtime are returned as they are, before an engine is loaded",
	 .run = errors_of_the_runtime_come_first},
	{.says = "the runtime makes its context once per thread and device",
	 .run = context_is_made_once_per_thread_and_device},
	{.says = "a free that fails is told and is not passed to the runtime",
	 .run = a_failed_free_is_told,
	 .lines = {"ebb: freeing 0x* failed: FAKE_FREE_CODE said so"}},
	{.says = "freeing memory that is not managed leaves no error behind",
	 .run = a_free_of_other_memory_leaves_no_error},
	{.says = "a second free of managed memory is passed to the runtime", .run = freed_twice_is_the_runtimes_affair},
	{.says = "CUDA IPC of managed memory, from anywhere within, is refused with a line that names the way",
	 .run = ipc_of_managed_memory,
	 .lines = {NO_IPC, NO_IPC}},
	{.says = "CUDA IPC of other memory is the runtime's, and loads no engine", .run = ipc_without_managed_memory},
	{.says = "a pause of everything that finds nothing managed, but other memory, is an error with a remedy",
	 .run = nothing_managed_and_other_memory,
	 .lines = {UNMANAGED, UNMANAGED}},
	{.says = "memory that is not managed counts from its allocation to its end", .run = other_memory_is_counted},
	{.says = "the engine is told of memory that is not managed", .run = the_engine_is_told_of_other_memory},
	{.says = "cudaGetLastError and cudaHostGetFlags are passed on", .run = forwarded_functions_reach_the_runtime});
