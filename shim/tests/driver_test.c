/* Functions of the driver that programs ask the runtime for, as PyTorch does. */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

extern struct fake_cudart fake_cudart_13;

enum { not_supported = 801 }; /* CUDA_ERROR_NOT_SUPPORTED */

static int (*mem_create)(unsigned long long *, size_t, const void *, unsigned long long);
static int (*mem_map)(uintptr_t, size_t, size_t, unsigned long long, unsigned long long);
static int (*mem_unmap)(uintptr_t, size_t);

static void *entry_point(const char *symbol)
{
	void *function = (void *)1;
	int status = 99;

	EXPECT(cudaGetDriverEntryPointByVersion(symbol, &function, 12000, 0, &status) == cudaSuccess);
	EXPECT((function != NULL) == (status == 0));
	return function;
}

/* All at once, as PyTorch does at the first use of any. */
static void fetch_table(void)
{
	EXPECT(entry_point("cuMemAddressReserve") != NULL);
	*(void **)&mem_create = entry_point("cuMemCreate");
	*(void **)&mem_map = entry_point("cuMemMap");
	*(void **)&mem_unmap = entry_point("cuMemUnmap");
}

static void expect_refusals(void)
{
	static const char *const refused[] = {"cuMemAddressReserve", "cuMemCreate", "cuMemMap"};

	for (size_t i = 0; i < 3; i++) {
		void *function = (void *)1;
		int status = 99, asked = fake_cudart_13.entry_points;

		EXPECT(cudaGetDriverEntryPoint(refused[i], &function, 0, &status) == cudaErrorNotSupported);
		EXPECT(function == NULL && status == 1);
		function = (void *)1;
		EXPECT(cudaGetDriverEntryPointByVersion(refused[i], &function, 12000, 0, NULL) ==
		       cudaErrorNotSupported);
		EXPECT(function == NULL && fake_cudart_13.entry_points == asked);
	}
	EXPECT(entry_point("cuMemUnmap") != NULL);
}

static void all_four_reach_the_runtime(void)
{
	void *function = NULL;
	int status;

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

static void a_healthy_process_gets_all(void)
{
	managed_malloc(1);
	tms_set_interesting_region(true);
	fetch_table();
	EXPECT(entry_point("cuNone") == NULL);
	unsigned long long handle = 0;
	EXPECT(mem_create(&handle, 4096, NULL, 0) == 0 && handle == 1);
	EXPECT(mem_map(0x10000, 4096, 0, handle, 0) == 0 && mem_unmap(0x10000, 4096) == 0);
	EXPECT(fake_cudart_13.mem_creates == 1 && fake_cudart_13.mem_maps == 1 && fake_cudart_13.mem_unmaps == 1);
}

static void mapped_memory_is_not_managed(void)
{
	char text[512];

	fetch_table();
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK); /* to have the functions is no memory yet */
	EXPECT(mem_map(0, 4096, 0, 1, 0) != 0);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK);
	EXPECT(mem_map(0x10000, 4096, 0, 1, 0) == 0 && mem_map(0x11000, 8192, 0, 1, 0) == 0);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_ERR_UNMANAGED);
	EXPECT(ebb_last_error(text, sizeof(text)) > 0 && strstr(text, "1 device allocation made") != NULL);
	EXPECT(strstr(text, "expandable_segments") != NULL);
	EXPECT(mem_unmap(0, 1 << 20) != 0);
	EXPECT(mem_unmap(0x10000, 8192) == 0);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_ERR_UNMANAGED);
	EXPECT(mem_unmap(0x12000, 4096) == 0);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK);
}

static void refused_in_a_region(void)
{
	tms_set_interesting_region(true);
	tms_set_interesting_region(false); /* as much as once is enough */
	expect_refusals();
}

static void refused_with_an_engine(void)
{
	EXPECT(tms_torch_malloc(64, 0, NULL) != NULL);
	expect_refusals();
}

static void memory_is_refused_in_a_region_that_came_later(void)
{
	unsigned long long handle;

	fetch_table();
	EXPECT(mem_create(&handle, 4096, NULL, 0) == 0);
	tms_set_interesting_region(true);
	EXPECT(mem_create(&handle, 4096, NULL, 0) == not_supported);
	EXPECT(mem_create(&handle, 4096, NULL, 0) == not_supported);
	tms_set_interesting_region(false);
	EXPECT(mem_create(&handle, 4096, NULL, 0) == 0);
	EXPECT(fake_cudart_13.mem_creates == 2);
}

static void child_gets_all(void)
{
	unsigned long long handle;

	tms_set_interesting_region(true);
	fetch_table();
	EXPECT(mem_create(&handle, 4096, NULL, 0) == 0);
}

static void a_forked_child_is_let_alone(void)
{
	managed_malloc(1);
	EXPECT(in_child(child_gets_all) == 0);
}

static void null_arguments_are_the_runtimes(void)
{
	void *function;

	tms_set_interesting_region(true);
	EXPECT(cudaGetDriverEntryPoint("cuNone", &function, 0, NULL) == cudaSuccess && function == NULL);
	EXPECT(fake_cudart_13.entry_points == 1);
}

#define NAMED(variable) "ebb: " variable " turns expandable_segments on: *PYTORCH_CUDA_ALLOC_CONF*PYTORCH_ALLOC_CONF"

CASES(
	{.says = "each of the four functions reaches its own in the runtime", .run = all_four_reach_the_runtime},
	{.says = "a process without expandable segments gets every function, in regions too",
	 .run = a_healthy_process_gets_all,
	 .env = {"TMS_INIT_ENABLE=1", "PYTORCH_ALLOC_CONF=max_split_size_mb:64",
		 "PYTORCH_CUDA_ALLOC_CONF=backend:native,expandable_segments:False"}},
	{.says = "memory mapped by such functions is memory that is not managed, while it is mapped",
	 .run = mapped_memory_is_not_managed},
	{.says = "with expandable segments a managed process is refused the functions that make memory, with one line",
	 .run = expect_refusals,
	 .env = {"TMS_INIT_ENABLE=1", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"},
	 .lines = {NAMED("PYTORCH_CUDA_ALLOC_CONF")}},
	{.says = "expandable segments are found among other settings, and under the newer name",
	 .run = expect_refusals,
	 .env = {"TMS_INIT_ENABLE=1", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
		 "PYTORCH_ALLOC_CONF=max_split_size_mb:64, expandable_segments : true"},
	 .lines = {NAMED("PYTORCH_ALLOC_CONF")}},
	{.says = "a process in which a thread was in a region is a managed one",
	 .run = refused_in_a_region,
	 .env = {"PYTORCH_ALLOC_CONF=expandable_segments:True"},
	 .lines = {NAMED("PYTORCH_ALLOC_CONF")}},
	{.says = "a process with an engine is a managed one",
	 .run = refused_with_an_engine,
	 .env = {"PYTORCH_ALLOC_CONF=expandable_segments:True"},
	 .lines = {NAMED("PYTORCH_ALLOC_CONF")}},
	{.says = "a process that manages nothing has its expandable segments",
	 .run = mapped_memory_is_not_managed,
	 .env = {"PYTORCH_ALLOC_CONF=expandable_segments:True"}},
	{.says = "functions fetched before the first region make no memory in it, with one line",
	 .run = memory_is_refused_in_a_region_that_came_later,
	 .env = {"PYTORCH_ALLOC_CONF=expandable_segments:True"},
	 .lines = {NAMED("PYTORCH_ALLOC_CONF")}},
	{.says = "a forked child has its expandable segments",
	 .run = a_forked_child_is_let_alone,
	 .env = {"PYTORCH_ALLOC_CONF=expandable_segments:True"}},
	{.says = "unknown functions are the runtime's affair, with no place for a status",
	 .run = null_arguments_are_the_runtimes,
	 .env = {"PYTORCH_ALLOC_CONF=expandable_segments:True"}});
