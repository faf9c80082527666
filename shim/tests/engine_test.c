/* Loading the engine. */
#include "harness.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

extern struct fake_cudart fake_cudart_13;

static int malloc_in_region(void)
{
	void *ptr = NULL;

	tms_set_interesting_region(true);
	int error = cudaMalloc(&ptr, 64);
	tms_set_interesting_region(false);
	return error;
}

static void an_engine_that_cannot_be_used(void)
{
	char text[4096];
	void *ptr;

	EXPECT(malloc_in_region() == cudaErrorSharedObjectInitFailed);
	EXPECT(malloc_in_region() == cudaErrorSharedObjectInitFailed);
	EXPECT(tms_torch_malloc(64, 0, NULL) == NULL);
	EXPECT(fake_cudart_13.mallocs == 0);

	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_ERR_NOT_LOADED);
	EXPECT(ebb_last_error(text, sizeof(text)) > 0 && strstr(text, "engine library") != NULL);
	EXPECT(ebb_resume(NULL, 0, 0, NULL) == EBB_ERR_NOT_LOADED);
	EXPECT(ebb_status(text, sizeof(text), NULL) == EBB_ERR_NOT_LOADED);
	EXPECT(tms_get_cpu_backup_pointer((uint8_t *)0x1000, 1) == NULL);

	EXPECT(cudaMalloc(&ptr, 64) == cudaSuccess); /* unmanaged memory works on */
	EXPECT(cudaFree(ptr) == cudaSuccess);
	EXPECT(fake_cudart_13.mallocs == 1 && fake_cudart_13.frees == 1);
}

static void nothing_can_be_paused_or_lost(void)
{
	EXPECT(malloc_in_region() == cudaErrorSharedObjectInitFailed);
	EXPECT(tms_pause(NULL) == EBB_ERR_NOT_LOADED);
	EXPECT(tms_resume(NULL) == EBB_ERR_NOT_LOADED);
}

static void what_start_is_given(void)
{
	managed_malloc(1);
	EXPECT(engine_seen()->abi == EBB_ENGINE_ABI);
	EXPECT(engine_seen()->struct_size == sizeof(ebb_engine_config));
	EXPECT(engine_seen()->chunk_bytes == 256ull << 20);
	EXPECT(!engine_seen()->driver_given && !engine_seen()->lease_given && !engine_seen()->identity_given &&
	       !engine_seen()->discard);
}

static void what_start_is_given_by_a_launcher(void)
{
	managed_malloc(1);
	EXPECT(engine_seen()->chunk_bytes == 16ull << 20);
	EXPECT(strcmp(engine_seen()->lease, "/d/.ebb/x.lease") == 0);
	EXPECT(strcmp(engine_seen()->identity, "role=actor cell=0 rank=3") == 0);
	EXPECT(engine_seen()->discard);
}

static void a_partly_known_rank(void)
{
	managed_malloc(1);
	EXPECT(strcmp(engine_seen()->identity, "rank=3") == 0);
}

static void the_host_memory_of_a_launcher(void)
{
	managed_malloc(1);
	EXPECT(engine_seen()->host_bytes == 4096ull << 20 && engine_seen()->host_arena);
	EXPECT(engine_seen()->local_ranks == 8);
	EXPECT(strcmp(engine_seen()->disk_dirs, "/a/r:/b/r") == 0);
	EXPECT(strcmp(engine_seen()->leases, "/a/l:/b/l") == 0);
}

static void host_memory_that_the_engine_chooses(void)
{
	managed_malloc(1);
	EXPECT(engine_seen()->host_bytes == EBB_HOST_AUTO);
}

static void a_quota_and_faults(void)
{
	managed_malloc(1);
	EXPECT(engine_seen()->disk_quota == 5000000000ull);
	EXPECT(strcmp(engine_seen()->file_faults, "pwrite:17:EIO") == 0);
}

static void no_quota(void)
{
	managed_malloc(1);
	EXPECT(engine_seen()->disk_quota == 0 && engine_seen()->file_faults[0] == '\0');
}

static void what_the_control_socket_needs(void)
{
	managed_malloc(1);
	EXPECT(strcmp(engine_seen()->job, "j") == 0 && strcmp(engine_seen()->runtime_dir, "/r") == 0);
	EXPECT(strcmp(engine_seen()->xdg_runtime_dir, "/x") == 0 && strcmp(engine_seen()->event_log, "/e") == 0);
	EXPECT(engine_seen()->log_json && engine_seen()->calls != NULL && engine_seen()->descriptors != NULL);
}

static void a_control_socket_by_default(void)
{
	managed_malloc(1);
	EXPECT(engine_seen()->calls != NULL && !engine_seen()->log_json);
	EXPECT(engine_seen()->job[0] == '\0' && engine_seen()->runtime_dir[0] == '\0' && engine_seen()->event_log[0] == '\0');
}

static void no_control_socket(void)
{
	managed_malloc(1);
	EXPECT(engine_seen()->calls == NULL);
}

static void the_default_deadline_of_disks(void)
{
	managed_malloc(1);
	EXPECT(engine_seen()->io_timeout_s == 120);
}

static void a_deadline_of_disks(void)
{
	managed_malloc(1);
	EXPECT(engine_seen()->io_timeout_s == 2.5);
}

static void no_deadline_of_disks(void)
{
	managed_malloc(1);
	EXPECT(engine_seen()->io_timeout_s == 0);
}

static void no_host_memory(void)
{
	managed_malloc(1);
	EXPECT(engine_seen()->host_bytes == 0 && !engine_seen()->host_arena && engine_seen()->local_ranks == 0);
	EXPECT(engine_seen()->disk_dirs[0] == '\0' && engine_seen()->leases[0] == '\0');
}

static void the_default_chunk(void)
{
	managed_malloc(1);
	EXPECT(engine_seen()->chunk_bytes == 256ull << 20);
}

static void log_descriptor(void)
{
	struct stat ours, given;

	managed_malloc(1);
	int fd = engine_seen()->log_fd;
	EXPECT(fd >= 3);
	EXPECT((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
	EXPECT(fstat(STDERR_FILENO, &ours) == 0 && fstat(fd, &given) == 0);
	EXPECT(ours.st_dev == given.st_dev && ours.st_ino == given.st_ino);
}

static void soft_limit_of_open_files_is_unchanged(void)
{
	struct rlimit files, after;

	EXPECT(getrlimit(RLIMIT_NOFILE, &files) == 0);
	EXPECT(files.rlim_max > 600);
	files.rlim_cur = 600;
	EXPECT(setrlimit(RLIMIT_NOFILE, &files) == 0);
	(void)malloc_in_region();
	EXPECT(getrlimit(RLIMIT_NOFILE, &after) == 0);
	EXPECT(after.rlim_cur == 600 && after.rlim_max == files.rlim_max);
	EXPECT(engine_seen()->starts == 1); /* whether or not it succeeded */
}

static void calls_back_while_it_loads(void)
{
	managed_malloc(1);
	EXPECT(engine_seen()->allocated_in_start != NULL);
	EXPECT(fake_cudart_13.mallocs == 1 && fake_cudart_13.last_freed == engine_seen()->allocated_in_start);
	EXPECT(engine_seen()->mallocs == 1 && engine_seen()->starts == 1);
}

#define THREADS 16

static pthread_barrier_t all_here;
static void *pointers[THREADS];

static void *allocate_together(void *slot)
{
	pthread_barrier_wait(&all_here);
	set_memory_margin_bytes(1 << 20); /* the process's settings may change beside it */
	tms_set_retain_cpu_backup(true);
	tms_set_disk_backup_dir("/somewhere");
	*(void **)slot = managed_malloc(64);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK && ebb_resume(NULL, 0, 0, NULL) == EBB_OK);
	return NULL;
}

static void many_threads_load_one_engine(void)
{
	pthread_t threads[THREADS];

	EXPECT(pthread_barrier_init(&all_here, NULL, THREADS) == 0);
	for (int i = 0; i < THREADS; i++)
		EXPECT(pthread_create(&threads[i], NULL, allocate_together, &pointers[i]) == 0);
	for (int i = 0; i < THREADS; i++)
		EXPECT(pthread_join(threads[i], NULL) == 0);
	EXPECT(engine_seen()->starts == 1 && engine_seen()->mallocs == THREADS);
	EXPECT(fake_cudart_13.mallocs == 0);
	for (int i = 0; i < THREADS; i++) {
		EXPECT(pointers[i] != NULL);
		for (int j = 0; j < i; j++)
			EXPECT(pointers[i] != pointers[j]);
	}
}

static void *fail_together(void *unused)
{
	(void)unused;
	pthread_barrier_wait(&all_here);
	EXPECT(malloc_in_region() == cudaErrorSharedObjectInitFailed);
	return NULL;
}

static void many_threads_share_one_failure(void)
{
	pthread_t threads[THREADS];

	EXPECT(pthread_barrier_init(&all_here, NULL, THREADS) == 0);
	for (int i = 0; i < THREADS; i++)
		EXPECT(pthread_create(&threads[i], NULL, fail_together, NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		EXPECT(pthread_join(threads[i], NULL) == 0);
	EXPECT(fake_cudart_13.mallocs == 0);
}

static void the_engine_is_private(void)
{
	managed_malloc(1);
	EXPECT(dlsym(RTLD_DEFAULT, "ebb_engine_start") == NULL);
}

static void nothing_loads_without_a_managed_allocation(void)
{
	char text[512];
	void *ptr;

	EXPECT(cudaMalloc(&ptr, 1) == cudaSuccess && cudaFree(ptr) == cudaSuccess);
	tms_set_interesting_region(true);
	tms_set_current_tag("weights");
	EXPECT(tms_pause(NULL) == EBB_OK && tms_resume(NULL) == EBB_OK);
	EXPECT(tms_pause("weights") == EBB_OK && tms_resume("weights") == EBB_OK);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK && ebb_resume(NULL, 0, 1, NULL) == EBB_OK);
	EXPECT(ebb_status(text, sizeof(text), NULL) == EBB_OK);
	EXPECT(tms_get_cpu_backup_pointer((uint8_t *)0x1000, 1) == NULL);
	EXPECT(engine_seen() == NULL);
}

#define TWO_MISSING(path) "ebb: cannot load the engine library " path " for libebb.so 0.1.0: *"

#define JSON_LINE(text)                                                                     \
	"{\"time\":\"20*-*-*T*:*:*.*Z\",\"level\":\"warn\",\"msg\":\"" text \
	"\",\"job\":\"j\",\"role\":\"actor\",\"rank\":\"3\",\"pid\":*}"

CASES(
	{.says = "no engine is loaded before the first managed allocation",
	 .run = nothing_loads_without_a_managed_allocation,
	 .lines = {"ebb: tms_get_cpu_backup_pointer: 0x1000 is not managed memory: none was allocated yet"}},
	{.says = "a missing engine fails allocations, is named once with the version it is missing for",
	 .run = an_engine_that_cannot_be_used,
	 .env = {"EBB_ENGINE=/nowhere/libebb-engine.so"},
	 .lines = {TWO_MISSING("/nowhere/libebb-engine.so")}},
	{.says = "an engine of another ABI is refused, both versions named",
	 .run = an_engine_that_cannot_be_used,
	 .env = {"EBB_ENGINE=@/engine-abi99.so"},
	 .lines = {"ebb: engine library @/engine-abi99.so has ABI 99 (version 9.9.9), libebb.so needs ABI 5 "
		   "(version 0.1.0): *"}},
	{.says = "an engine that lacks a function is refused",
	 .run = an_engine_that_cannot_be_used,
	 .env = {"EBB_ENGINE=@/engine-incomplete.so"},
	 .lines = {"ebb: engine library @/engine-incomplete.so has no ebb_engine_shutdown: *"}},
	{.says = "an engine that does not start is named with its reason",
	 .run = an_engine_that_cannot_be_used,
	 .env = {"FAKE_START_CODE=7"},
	 .lines = {"ebb: engine library @/libebb-engine.so did not start: error 7: FAKE_START_CODE said so"}},
	{.says = "without a usable engine pause fails and resume goes on: nothing was paused",
	 .run = nothing_can_be_paused_or_lost,
	 .env = {"EBB_ENGINE=/nowhere"},
	 .lines = {TWO_MISSING("/nowhere"), "ebb: pause FAILED, memory not freed: cannot load *",
		   "ebb: resume refused: cannot load *"}},
	{.says = "start is given the shim's ABI and the defaults", .run = what_start_is_given},
	{.says = "start is given what a launcher set",
	 .run = what_start_is_given_by_a_launcher,
	 .env = {"TMS_DISK_BACKUP_CHUNK_MB=16", "EBB_LEASE=/d/.ebb/x.lease", "EBB_ROLE=actor", "EBB_CELL=0",
		 "EBB_RANK=3", "EBB_DISCARD=1"}},
	{.says = "a rank is described as far as it is known",
	 .run = a_partly_known_rank,
	 .env = {"EBB_ROLE=", "EBB_RANK=3"}},
	{.says = "a chunk of 0 is named, the default is used",
	 .run = the_default_chunk,
	 .env = {"TMS_DISK_BACKUP_CHUNK_MB=0"},
	 .lines = {"ebb: TMS_DISK_BACKUP_CHUNK_MB=0 is ignored, 256 is used: *"}},
	{.says = "a chunk with a unit is named, the default is used",
	 .run = the_default_chunk,
	 .env = {"TMS_DISK_BACKUP_CHUNK_MB=64M"},
	 .lines = {"ebb: TMS_DISK_BACKUP_CHUNK_MB=64M is ignored, 256 is used: *"}},
	{.says = "a negative chunk is named, the default is used",
	 .run = the_default_chunk,
	 .env = {"TMS_DISK_BACKUP_CHUNK_MB=-16"},
	 .lines = {"ebb: TMS_DISK_BACKUP_CHUNK_MB=-16 is ignored, 256 is used: *"}},
	{.says = "a chunk beyond reason is named, the default is used",
	 .run = the_default_chunk,
	 .env = {"TMS_DISK_BACKUP_CHUNK_MB=99999999999999999999"},
	 .lines = {"ebb: TMS_DISK_BACKUP_CHUNK_MB=99999999999999999999 is ignored, 256 is used: *"}},
	{.says = "the engine is told of host memory, ranks and several disk directories",
	 .run = the_host_memory_of_a_launcher,
	 .env = {"EBB_HOST_MB=4096", "EBB_HOST_ARENA=1", "LOCAL_WORLD_SIZE=8", "EBB_DISK_DIRS=/a/r:/b/r", "EBB_DISK_LEASES=/a/l:/b/l"}},
	{.says = "the engine is told to choose its host memory",
	 .run = host_memory_that_the_engine_chooses,
	 .env = {"EBB_HOST_MB=auto"}},
	{.says = "without these variables, or with empty ones, there is no host memory for disk backups",
	 .run = no_host_memory,
	 .env = {"EBB_HOST_MB=", "EBB_DISK_DIRS=", "LOCAL_WORLD_SIZE="}},
	{.says = "the engine is told of a quota and of faults",
	 .run = a_quota_and_faults,
	 .env = {"EBB_DISK_QUOTA_BYTES=5000000000", "EBB_FAULT_FILES=pwrite:17:EIO"}},
	{.says = "without these variables there are none", .run = no_quota, .env = {"EBB_FAULT_FILES="}},
	{.says = "a quota that is no number is named, there is none",
	 .run = no_quota,
	 .env = {"EBB_DISK_QUOTA_BYTES=5GB"},
	 .lines = {"ebb: EBB_DISK_QUOTA_BYTES=5GB is ignored: *"}},
	{.says = "the engine is told what the control socket, events and log need",
	 .run = what_the_control_socket_needs,
	 .env = {"EBB_JOB=j", "EBB_RUNTIME_DIR=/r", "XDG_RUNTIME_DIR=/x", "EBB_EVENT_LOG=/e", "EBB_LOG_FORMAT=json", "EBB_CONTROL=1"}},
	{.says = "by default there is a control socket, and the log is text",
	 .run = a_control_socket_by_default,
	 .env = {"EBB_CONTROL=", "EBB_RUNTIME_DIR=", "EBB_EVENT_LOG=", "EBB_JOB="}},
	{.says = "the control socket can be turned off", .run = no_control_socket, .env = {"EBB_CONTROL=0"}},
	{.says = "lines are JSON where that is wanted, whatever they name",
	 .run = nothing_can_be_paused_or_lost,
	 .env = {"EBB_LOG_FORMAT=json", "EBB_ENGINE=/no\\where\"\xff\xc3\xa9", "EBB_JOB=j", "EBB_ROLE=actor", "EBB_RANK=3", "EBB_IO_TIMEOUT=-1"},
	 .lines = {JSON_LINE("EBB_IO_TIMEOUT=-1 is ignored: not a number of seconds"),
		   JSON_LINE("cannot load the engine library /no\\\\\\\\where\\\\\"[?]\xc3\xa9 for libebb.so *"),
		   JSON_LINE("pause FAILED, memory not freed: *"), JSON_LINE("resume *")}},
	{.says = "a format of the log that is none is named",
	 .run = a_control_socket_by_default,
	 .env = {"EBB_LOG_FORMAT=xml"},
	 .lines = {"ebb: EBB_LOG_FORMAT=xml is ignored: neither text nor json"}},
	{.says = "a disk may give no answer for two minutes", .run = the_default_deadline_of_disks},
	{.says = "another deadline of disks", .run = a_deadline_of_disks, .env = {"EBB_IO_TIMEOUT=2.5"}},
	{.says = "disks are waited for without end", .run = no_deadline_of_disks, .env = {"EBB_IO_TIMEOUT=0"}},
	{.says = "a deadline of disks that is no number is named, the default is used",
	 .run = the_default_deadline_of_disks,
	 .env = {"EBB_IO_TIMEOUT=-1"},
	 .lines = {"ebb: EBB_IO_TIMEOUT=-1 is ignored: *"}},
	{.says = "a number of ranks that is none is not known",
	 .run = no_host_memory,
	 .env = {"LOCAL_WORLD_SIZE=some"}},
	{.says = "host memory that is no number is named, none is used",
	 .run = no_host_memory,
	 .env = {"EBB_HOST_MB=4GiB"},
	 .lines = {"ebb: EBB_HOST_MB=4GiB is ignored: *"}},
	{.says = "negative host memory is named, none is used",
	 .run = no_host_memory,
	 .env = {"EBB_HOST_MB=-1"},
	 .lines = {"ebb: EBB_HOST_MB=-1 is ignored: *"}},
	{.says = "host memory beyond reason is named, none is used",
	 .run = no_host_memory,
	 .env = {"EBB_HOST_MB=99999999999999999999"},
	 .lines = {"ebb: EBB_HOST_MB=99999999999999999999 is ignored: *"}},
	{.says = "the engine logs to its own copy of stderr, which children do not inherit", .run = log_descriptor},
	{.says = "the soft limit of open files survives an engine that raises it",
	 .run = soft_limit_of_open_files_is_unchanged},
	{.says = "the soft limit of open files survives an engine that raises it and fails",
	 .run = soft_limit_of_open_files_is_unchanged,
	 .env = {"FAKE_START_CODE=16"},
	 .lines = {"ebb: engine library * did not start: *"}},
	{.says = "calls that loading makes on the same thread pass to the runtime",
	 .run = calls_back_while_it_loads,
	 .env = {"FAKE_START_ALLOCATES=1", "TMS_INIT_ENABLE=1"}},
	{.says = "16 threads that allocate at once load one engine", .run = many_threads_load_one_engine},
	{.says = "16 threads that allocate at once share one failure and one line",
	 .run = many_threads_share_one_failure,
	 .env = {"EBB_ENGINE=/nowhere"},
	 .lines = {TWO_MISSING("/nowhere")}},
	{.says = "the engine's symbols are not visible to the process", .run = the_engine_is_private},
	{.says = "libebb.so listed twice in LD_PRELOAD is one library",
	 .run = many_threads_load_one_engine,
	 .env = {"LD_PRELOAD=@/libebb.so:@/torch_memory_saver/libebb.so"}});
