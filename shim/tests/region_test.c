/* Regions: which allocations are managed, and with which settings. */
#include "harness.h"

#include <string.h>

extern struct fake_cudart fake_cudart_13;

static void outside_regions_everything_is_the_runtimes(void)
{
	void *ptr;

	EXPECT(!tms_get_interesting_region());
	EXPECT(cudaMalloc(&ptr, 100) == cudaSuccess);
	EXPECT(fake_cudart_13.mallocs == 1);
	EXPECT(cudaFree(ptr) == cudaSuccess);
	EXPECT(fake_cudart_13.last_freed == ptr);
	EXPECT(cudaFree(NULL) == cudaSuccess);
	EXPECT(fake_cudart_13.contexts == 1);
	EXPECT(engine_seen() == NULL);
}

static void size_zero_and_null_are_the_runtimes(void)
{
	void *ptr;

	tms_set_interesting_region(true);
	EXPECT(cudaMalloc(&ptr, 0) == cudaSuccess);
	EXPECT(fake_cudart_13.mallocs == 1);
	EXPECT(engine_seen() == NULL);
}

static void a_region_is_managed(void)
{
	void *managed, *other;

	tms_set_interesting_region(true);
	EXPECT(cudaMalloc(&managed, 4096) == cudaSuccess);
	EXPECT(engine_seen()->mallocs == 1 && engine_seen()->size == 4096);
	EXPECT(fake_cudart_13.mallocs == 0);
	tms_set_interesting_region(false);
	EXPECT(cudaMalloc(&other, 4096) == cudaSuccess);
	EXPECT(engine_seen()->mallocs == 1 && fake_cudart_13.mallocs == 1);

	EXPECT(cudaFree(other) == cudaSuccess);
	EXPECT(fake_cudart_13.last_freed == other && engine_seen()->frees == 0);
	EXPECT(cudaFree(managed) == cudaSuccess);
	EXPECT(engine_seen()->frees == 1 && fake_cudart_13.frees == 1);
}

static void settings_are_those_at_the_time(void)
{
	managed_malloc(1);
	EXPECT(strcmp(engine_seen()->tag, "default") == 0);
	EXPECT(engine_seen()->backup == EBB_BACKUP_NONE && engine_seen()->cpu_mmap == 0);
	EXPECT(engine_seen()->margin == 0 && engine_seen()->device == 0);

	tms_set_current_tag("weights");
	tms_set_enable_cpu_backup(true);
	tms_set_cpu_backup_backend("mmap");
	set_memory_margin_bytes(1ull << 40);
	managed_malloc(2);
	EXPECT(strcmp(engine_seen()->tag, "weights") == 0);
	EXPECT(engine_seen()->backup == EBB_BACKUP_CPU && engine_seen()->cpu_mmap == 1);
	EXPECT(engine_seen()->margin == 1ull << 40);

	tms_set_enable_cpu_backup(false);
	tms_set_enable_disk_backup(true);
	EXPECT(cudaSetDevice(3) == cudaSuccess);
	managed_malloc(3);
	EXPECT(engine_seen()->backup == EBB_BACKUP_DISK && engine_seen()->device == 3);
}

static void nested_regions_restore(void)
{
	/* As a Python context manager does it: read, set, put back. */
	tms_set_interesting_region(true);
	tms_set_current_tag("outer");
	const bool was_on = tms_get_interesting_region();
	char outer[16];
	strcpy(outer, tms_get_current_tag());

	tms_set_interesting_region(false);
	tms_set_current_tag("inner");
	EXPECT(!tms_get_interesting_region() && strcmp(tms_get_current_tag(), "inner") == 0);

	tms_set_interesting_region(was_on);
	tms_set_current_tag(outer);
	EXPECT(tms_get_interesting_region() && strcmp(tms_get_current_tag(), "outer") == 0);
	tms_set_current_tag(tms_get_current_tag());
	EXPECT(strcmp(tms_get_current_tag(), "outer") == 0);
}

static void expect_defaults(void)
{
	EXPECT(!tms_get_interesting_region());
	EXPECT(!tms_get_enable_cpu_backup());
	EXPECT(!tms_get_enable_disk_backup());
	EXPECT(!tms_get_retain_cpu_backup());
	EXPECT(strcmp(tms_get_current_tag(), "default") == 0);
	EXPECT(strcmp(tms_get_cpu_backup_backend(), "pinned") == 0);
}

static void expect_thread_defaults_and_change_them(void)
{
	expect_defaults();
	tms_set_interesting_region(true);
	tms_set_current_tag("other thread's");
	tms_set_enable_disk_backup(true);
	tms_set_cpu_backup_backend("mmap");
}

static void settings_are_per_thread(void)
{
	tms_set_interesting_region(true);
	tms_set_current_tag("mine");
	tms_set_enable_cpu_backup(true);
	in_thread(expect_thread_defaults_and_change_them);
	in_thread(expect_thread_defaults_and_change_them);
	EXPECT(tms_get_interesting_region() && tms_get_enable_cpu_backup());
	EXPECT(!tms_get_enable_disk_backup());
	EXPECT(strcmp(tms_get_current_tag(), "mine") == 0);
	EXPECT(strcmp(tms_get_cpu_backup_backend(), "pinned") == 0);
}

static void expect_on(void)
{
	EXPECT(tms_get_interesting_region());
	EXPECT(tms_get_enable_cpu_backup());
	EXPECT(tms_get_enable_disk_backup());
	EXPECT(strcmp(tms_get_cpu_backup_backend(), "mmap") == 0);
}

static void environment_turns_on_for_every_thread(void)
{
	expect_on();
	in_thread(expect_on);
	EXPECT(tms_get_retain_cpu_backup());
}

static void retain_is_of_the_process(void)
{
	tms_set_retain_cpu_backup(true);
	EXPECT(tms_get_retain_cpu_backup());
	managed_malloc(1);
	EXPECT(tms_pause(NULL) == EBB_OK);
	EXPECT(engine_seen()->retain_cpu_backup == 1);
	tms_set_retain_cpu_backup(false);
	EXPECT(tms_pause(NULL) == EBB_OK);
	EXPECT(engine_seen()->retain_cpu_backup == 0);
}

static void bad_values_are_unset(void)
{
	expect_defaults();
	in_thread(expect_defaults);
}

static void null_arguments_change_nothing(void)
{
	tms_set_current_tag("kept");
	tms_set_current_tag(NULL);
	EXPECT(strcmp(tms_get_current_tag(), "kept") == 0);
	tms_set_cpu_backup_backend("mmap");
	tms_set_cpu_backup_backend("hugetlb");
	EXPECT(strcmp(tms_get_cpu_backup_backend(), "mmap") == 0);

	managed_malloc(1);
	tms_set_disk_backup_dir("/kept");
	tms_set_disk_backup_dir(NULL);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK);
	EXPECT(strcmp(engine_seen()->disk_dir, "/kept") == 0);
	EXPECT(tms_get_cpu_backup_pointer(NULL, 1) == NULL);
}

static void the_backend_is_reset(void)
{
	static const char *const resets[] = {"", NULL, "pinned"};

	for (size_t i = 0; i < sizeof(resets) / sizeof(resets[0]); i++) {
		tms_set_cpu_backup_backend("mmap");
		EXPECT(strcmp(tms_get_cpu_backup_backend(), "mmap") == 0);
		tms_set_cpu_backup_backend(resets[i]);
		EXPECT(strcmp(tms_get_cpu_backup_backend(), "pinned") == 0);
	}
}

static void tags_of_odd_bytes(void)
{
	static const char *const odd[] = {"\x01\n\x1b[31m", "\xff\xc0", " ", "\xe6\x97\xa5", "%s%n", "\"\\"};

	for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
		const char *tags[] = {odd[i]};

		tms_set_current_tag(odd[i]);
		EXPECT(strcmp(tms_get_current_tag(), odd[i]) == 0);
		managed_malloc(1);
		EXPECT(strcmp(engine_seen()->tag, odd[i]) == 0);
		EXPECT(ebb_pause(tags, 1, NULL) == EBB_OK && strcmp(engine_seen()->tags[0], odd[i]) == 0);
	}
}

static void long_tags(void)
{
	static char tag[5000];

	memset(tag, 't', 255);
	tms_set_current_tag(tag);
	EXPECT(strlen(tms_get_current_tag()) == 255);
	tag[255] = 'u';
	tms_set_current_tag(tag);
	memset(tag, '\x1b', sizeof(tag) - 1);
	tms_set_current_tag(tag);
	EXPECT(strlen(tms_get_current_tag()) == 255 && tms_get_current_tag()[0] == 't');
	EXPECT(tms_pause(tag) == EBB_OK); /* no allocation carries it */
}

static void default_directory(void)
{
	managed_malloc(1);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK);
	EXPECT(strcmp(engine_seen()->disk_dir, "/tmp") == 0);
}

static void directory_from_environment_until_set(void)
{
	managed_malloc(1);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK);
	EXPECT(strcmp(engine_seen()->disk_dir, "/from/env") == 0);
	tms_set_disk_backup_dir("/from/call");
	EXPECT(ebb_resume(NULL, 0, 0, NULL) == EBB_OK);
	EXPECT(strcmp(engine_seen()->disk_dir, "/from/call") == 0);
}

static void directory_set_before_anything_else(void)
{
	tms_set_disk_backup_dir("/from/call");
	managed_malloc(1);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK);
	EXPECT(strcmp(engine_seen()->disk_dir, "/from/call") == 0);
}

static void torch_allocator_is_always_managed(void)
{
	void *ptr = tms_torch_malloc(512, 0, NULL);

	EXPECT(ptr != NULL && engine_seen()->mallocs == 1 && fake_cudart_13.mallocs == 0);
	tms_torch_free(ptr, 512, 0, NULL);
	EXPECT(engine_seen()->frees == 1 && fake_cudart_13.frees == 0);
	EXPECT(tms_torch_malloc(0, 0, NULL) == NULL);
	EXPECT(tms_torch_malloc(-1, 0, NULL) == NULL);
	tms_torch_free(NULL, 0, 0, NULL);
	EXPECT(engine_seen()->mallocs == 1 && fake_cudart_13.mallocs == 0);
}

static void torch_allocator_takes_the_device_that_is_named(void)
{
	int current = -1;

	EXPECT(cudaSetDevice(1) == cudaSuccess && tms_torch_malloc(512, 3, NULL) != NULL && engine_seen()->device == 3);
	EXPECT(cudaGetDevice(&current) == cudaSuccess && current == 1);
	EXPECT(tms_torch_malloc(512, 1, NULL) != NULL && engine_seen()->device == 1);
}

static void margin_from_environment_until_set(void)
{
	managed_malloc(1);
	EXPECT(engine_seen()->margin == 3u << 20);
	set_memory_margin_bytes(0);
	managed_malloc(2);
	EXPECT(engine_seen()->margin == 0);
}

static void bad_margin_is_none(void)
{
	managed_malloc(1);
	EXPECT(engine_seen()->margin == 0);
}

CASES(
	{.says = "outside regions calls go to the runtime and no engine is loaded",
	 .run = outside_regions_everything_is_the_runtimes},
	{.says = "an allocation of size 0 is the runtime's even in a region", .run = size_zero_and_null_are_the_runtimes},
	{.says = "allocations of a region are the engine's; each pointer is freed where it came from",
	 .run = a_region_is_managed},
	{.says = "tag, backup, backend, margin and device are those at the time of the allocation",
	 .run = settings_are_those_at_the_time},
	{.says = "the margin is EBB_TRAIN_MEMORY_MARGIN_BYTES until a call sets another",
	 .run = margin_from_environment_until_set,
	 .env = {"EBB_TRAIN_MEMORY_MARGIN_BYTES=3145728"}},
	{.says = "a bad margin is named and counts as none",
	 .run = bad_margin_is_none,
	 .env = {"EBB_TRAIN_MEMORY_MARGIN_BYTES=-1"},
	 .lines = {"ebb: EBB_TRAIN_MEMORY_MARGIN_BYTES=-1 is ignored: not a number of bytes"}},
	{.says = "nested regions restore what was", .run = nested_regions_restore},
	{.says = "settings are per thread", .run = settings_are_per_thread},
	{.says = "the environment sets where every thread starts",
	 .run = environment_turns_on_for_every_thread,
	 .env = {"TMS_INIT_ENABLE=1", "TMS_INIT_ENABLE_CPU_BACKUP=yes", "TMS_INIT_ENABLE_DISK_BACKUP=TRUE",
		 "TMS_INIT_CPU_BACKUP_BACKEND=mmap", "TMS_RETAIN_CPU_BACKUP=true"}},
	{.says = "values that mean no, and pinned, are the defaults",
	 .run = expect_defaults,
	 .env = {"TMS_INIT_ENABLE=0", "TMS_INIT_ENABLE_CPU_BACKUP=no", "TMS_INIT_ENABLE_DISK_BACKUP=FALSE",
		 "TMS_INIT_CPU_BACKUP_BACKEND=pinned", "TMS_RETAIN_CPU_BACKUP=NO"}},
	{.says = "an empty variable is unset, silently",
	 .run = expect_defaults,
	 .env = {"TMS_INIT_ENABLE=", "TMS_INIT_ENABLE_CPU_BACKUP=", "TMS_INIT_ENABLE_DISK_BACKUP=",
		 "TMS_INIT_CPU_BACKUP_BACKEND=", "TMS_RETAIN_CPU_BACKUP=", "TMS_DISK_BACKUP_DIR=",
		 "TMS_DISK_BACKUP_CHUNK_MB="}},
	{.says = "a bad value is named once and counts as unset",
	 .run = bad_values_are_unset,
	 .env = {"TMS_INIT_ENABLE=on", "TMS_RETAIN_CPU_BACKUP=2", "TMS_INIT_CPU_BACKUP_BACKEND=hugetlb"},
	 .lines = {"ebb: TMS_INIT_ENABLE=on is ignored: *", "ebb: TMS_INIT_CPU_BACKUP_BACKEND=hugetlb is ignored: *",
		   "ebb: TMS_RETAIN_CPU_BACKUP=2 is ignored: *"}},
	{.says = "keeping CPU backups is a setting of the process, read at each pause", .run = retain_is_of_the_process},
	{.says = "no backend means pinned, whatever the environment says",
	 .run = the_backend_is_reset,
	 .env = {"TMS_INIT_CPU_BACKUP_BACKEND=mmap"}},
	{.says = "null and unknown arguments are named and change nothing",
	 .run = null_arguments_change_nothing,
	 .lines = {"ebb: tms_set_current_tag: null tag, nothing changed",
		   "ebb: tms_set_cpu_backup_backend: hugetlb is neither pinned nor mmap, nothing changed",
		   "ebb: tms_set_disk_backup_dir: null or empty directory, nothing changed",
		   "ebb: tms_get_cpu_backup_pointer: null pointer"}},
	{.says = "a tag may be of any bytes", .run = tags_of_odd_bytes},
	{.says = "a tag of more than 255 bytes is refused with a line, which is clean, and changes nothing",
	 .run = long_tags,
	 .lines = {"ebb: tms_set_current_tag: a tag of 256 bytes, at most 255 are possible, nothing changed: tttttt*",
		   "ebb: tms_set_current_tag: a tag of 4999 bytes, *changed:    *..."}},
	{.says = "disk backups go to /tmp unless told otherwise", .run = default_directory},
	{.says = "the directory is TMS_DISK_BACKUP_DIR until a call sets another",
	 .run = directory_from_environment_until_set,
	 .env = {"TMS_DISK_BACKUP_DIR=/from/env"}},
	{.says = "a directory set by a call wins over the environment, whenever that is read",
	 .run = directory_set_before_anything_else,
	 .env = {"TMS_DISK_BACKUP_DIR=/from/env"}},
	{.says = "PyTorch's allocator functions are managed outside regions too",
	 .run = torch_allocator_is_always_managed},
	{.says = "PyTorch's allocator function takes memory of the device that is named, whichever is current",
	 .run = torch_allocator_takes_the_device_that_is_named});
