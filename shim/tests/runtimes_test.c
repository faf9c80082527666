/*
 * Which CUDA runtime a call reaches. This program is linked neither with a runtime nor with
 * libebb.so: everything is loaded at run time, as in a Python process.
 */
#include "harness.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef int malloc_fn(void **, size_t);
typedef int free_fn(void *);
typedef int error_fn(void);

static void *load(const char *name, int flags)
{
	void *library = dlopen(beside(name), RTLD_NOW | flags);

	EXPECT(library != NULL);
	return library;
}

/* A function as this program, which is linked with nothing, would find it. */
static void *global(const char *name)
{
	void *function = dlsym(RTLD_DEFAULT, name);

	EXPECT(function != NULL);
	return function;
}

static bool is_of(void *ptr, unsigned runtime)
{
	return (uintptr_t)ptr >> 24 == runtime;
}

static void no_runtime(void)
{
	void *ptr;
	malloc_fn *allocate = global("cudaMalloc");
	free_fn *release = global("cudaFree");
	error_fn *error = global("cudaGetLastError");

	EXPECT(allocate(&ptr, 1) == cudaErrorSharedObjectSymbolNotFound);
	EXPECT(release(&ptr) == cudaErrorSharedObjectSymbolNotFound);
	EXPECT(error() == cudaErrorSharedObjectSymbolNotFound);
	/* One that is loaded later is found. */
	load("libcudart.so.13", RTLD_LOCAL);
	EXPECT(allocate(&ptr, 1) == cudaSuccess && is_of(ptr, 13));
}

static void managed_memory_needs_a_runtime(void)
{
	void *ptr;
	malloc_fn *allocate = global("cudaMalloc");

	EXPECT(allocate(&ptr, 1) == cudaErrorSharedObjectSymbolNotFound);
	EXPECT(engine_seen() == NULL);
}

static void private_runtime(void)
{
	void *ptr;

	load("libcudart.so.13", RTLD_LOCAL);
	EXPECT(dlsym(RTLD_DEFAULT, "cudaSetDevice") == NULL); /* it is private indeed */
	EXPECT(((malloc_fn *)global("cudaMalloc"))(&ptr, 1) == cudaSuccess && is_of(ptr, 13));
	EXPECT(((free_fn *)global("cudaFree"))(ptr) == cudaSuccess);
	struct fake_cudart *record = dlsym(load("libcudart.so.13", RTLD_LOCAL), "fake_cudart_13");
	EXPECT(record != NULL && record->mallocs == 1 && record->last_freed == ptr);
}

static void global_runtime(void)
{
	void *ptr;

	load("libcudart.so.12", RTLD_GLOBAL);
	EXPECT(((malloc_fn *)global("cudaMalloc"))(&ptr, 1) == cudaSuccess && is_of(ptr, 12));
}

static void each_caller_has_its_own_runtime(int flags)
{
	void *ptr;
	void *uses_12 = load("libcaller12.so", flags);
	void *uses_13 = load("libcaller13.so", flags);
	malloc_fn *malloc_12 = dlsym(uses_12, "caller_malloc_12");
	malloc_fn *malloc_13 = dlsym(uses_13, "caller_malloc_13");
	error_fn *error_12 = dlsym(uses_12, "caller_last_error_12");
	error_fn *error_13 = dlsym(uses_13, "caller_last_error_13");

	for (int i = 0; i < 3; i++) {
		EXPECT(malloc_12(&ptr, 1) == cudaSuccess && is_of(ptr, 12));
		EXPECT(malloc_13(&ptr, 1) == cudaSuccess && is_of(ptr, 13));
		EXPECT(error_12() == 12 && error_13() == 13);
	}
}

static void two_private_runtimes(void)
{
	each_caller_has_its_own_runtime(RTLD_LOCAL);
}

static void two_global_runtimes(void)
{
	each_caller_has_its_own_runtime(RTLD_GLOBAL);
}

static void one_global_one_private_runtime(void)
{
	load("libcudart.so.13", RTLD_GLOBAL);
	each_caller_has_its_own_runtime(RTLD_LOCAL);
}

static void a_runtime_loaded_later_does_not_take_over(void)
{
	void *ptr;
	malloc_fn *malloc_12 = dlsym(load("libcaller12.so", RTLD_LOCAL), "caller_malloc_12");

	EXPECT(malloc_12(&ptr, 1) == cudaSuccess && is_of(ptr, 12));
	malloc_fn *malloc_13 = dlsym(load("libcaller13.so", RTLD_LOCAL), "caller_malloc_13");
	EXPECT(malloc_12(&ptr, 1) == cudaSuccess && is_of(ptr, 12));
	EXPECT(malloc_13(&ptr, 1) == cudaSuccess && is_of(ptr, 13));
}

static void renamed_runtime(void)
{
	void *ptr;

	load("libcudart-0a1b2c3d.so.13", RTLD_LOCAL);
	EXPECT(((malloc_fn *)global("cudaMalloc"))(&ptr, 1) == cudaSuccess && is_of(ptr, 13));
}

/* As PyTorch loads a pluggable allocator: by path, privately, nothing preloaded. */
static void loaded_not_preloaded(void)
{
	void *(*allocate)(ssize_t, int, void *);
	void (*release)(void *, ssize_t, int, void *);

	void *runtime = load("libcudart.so.13", RTLD_LOCAL);
	void *ebb = load("libebb.so", RTLD_LOCAL);
	struct fake_cudart *record = dlsym(runtime, "fake_cudart_13");
	*(void **)&allocate = dlsym(ebb, "tms_torch_malloc");
	*(void **)&release = dlsym(ebb, "tms_torch_free");

	void *ptr = allocate(64, 0, NULL);
	EXPECT(ptr != NULL && engine_seen()->mallocs == 1);
	EXPECT(record->mallocs == 0 && record->contexts == 1);
	release(ptr, 64, 0, NULL);
	EXPECT(engine_seen()->frees == 1 && record->frees == 0);

	/* Its own cudaMalloc hook, looked up by name, finds the runtime and not itself. */
	malloc_fn *hook = (malloc_fn *)dlsym(ebb, "cudaMalloc");
	EXPECT(hook(&ptr, 1) == cudaSuccess && is_of(ptr, 13));
}

/* As PyTorch does: all memory of the region comes by tms_torch_malloc. */
static struct fake_engine *paused_as_an_allocator(int code)
{
	void *ebb = load("libebb.so", RTLD_LOCAL);
	void (*set_region)(bool) = (void (*)(bool))dlsym(ebb, "tms_set_interesting_region");
	int (*pause)(const char *const *, size_t, ebb_result *), (*resume)(const char *);
	void *(*allocate)(ssize_t, int, void *);

	*(void **)&allocate = dlsym(ebb, "tms_torch_malloc");
	*(void **)&pause = dlsym(ebb, "ebb_pause");
	*(void **)&resume = dlsym(ebb, "tms_resume");
	load("libcudart.so.13", RTLD_LOCAL);
	load("libcuda.so.1", RTLD_GLOBAL);
	set_region(true);
	EXPECT(allocate(64, 0, NULL) != NULL);
	for (int i = 0; i < 2; i++)
		EXPECT(pause(NULL, 0, NULL) == code && resume(NULL) == EBB_OK);
	return engine_seen();
}

static void an_allocator_that_is_not_preloaded(void)
{
	EXPECT(paused_as_an_allocator(EBB_OK)->statuses == 2);
}

static void one_that_has_said_so(void)
{
	EXPECT(paused_as_an_allocator(EBB_OK)->statuses < 2);
}

static void one_that_manages_nothing(void)
{
	paused_as_an_allocator(EBB_ERR_UNMANAGED);
}

/* A status longer than any that is expected. */
static void one_with_a_long_status(void)
{
	static char text[1 << 16];

	memset(text, ' ', sizeof(text) - 1);
	memcpy(text + sizeof(text) - 64, "{\"name\":\"other\",\"bytes\":7,", strlen("{\"name\":\"other\",\"bytes\":7,"));
	setenv("FAKE_STATUS", text, 1);
	paused_as_an_allocator(EBB_OK);
}

static void beside_another_library_that_parks(void)
{
	void *ptr;

	load("libtms.so", RTLD_GLOBAL);
	load("libcudart.so.13", RTLD_LOCAL);
	void *ebb = load("libebb.so", RTLD_LOCAL);
	void (*set_region)(bool) = (void (*)(bool))dlsym(ebb, "tms_set_interesting_region");
	malloc_fn *hook = (malloc_fn *)dlsym(ebb, "cudaMalloc");

	set_region(true);
	EXPECT(hook(&ptr, 64) == cudaSuccess && is_of(ptr, 13) && engine_seen() == NULL);
}

static void loaded_again_by_a_second_name(void)
{
	void *by_link = load("torch_memory_saver/libebb.so", RTLD_LOCAL);

	EXPECT(dlsym(by_link, "cudaMalloc") == dlsym(RTLD_DEFAULT, "cudaMalloc"));
}

/* As it lies in the folder of a Python package: links of that package's names, and no engine. */
static void loaded_by_the_names_of_a_package(void)
{
	void (*set_region)(bool), *allocated;
	bool (*get_region)(void);
	int (*pause)(const char *);

	load("libcudart.so.13", RTLD_LOCAL);
	void *preloaded = dlopen(NULL, RTLD_NOW);
	void *by_cu12 = load("package/torch_memory_saver_hook_mode_preload_cu12.abi3.so", RTLD_LOCAL);
	void *by_cu13 = load("package/torch_memory_saver_hook_mode_torch_cu13.abi3.so", RTLD_LOCAL);
	EXPECT(by_cu12 == by_cu13);
	EXPECT(dlsym(preloaded, "cudaMalloc") == dlsym(by_cu13, "cudaMalloc"));

	*(void **)&set_region = dlsym(by_cu12, "tms_set_interesting_region");
	*(void **)&get_region = dlsym(by_cu13, "tms_get_interesting_region");
	*(void **)&pause = dlsym(by_cu13, "tms_pause");
	set_region(true);
	EXPECT(get_region());
	EXPECT(((malloc_fn *)global("cudaMalloc"))(&allocated, 64) == cudaSuccess);
	EXPECT(engine_seen()->mallocs == 1 && pause(NULL) == EBB_OK && engine_seen()->pauses == 1);
}

static void loaded_by_a_link_not_preloaded(void)
{
	void *(*allocate)(ssize_t, int, void *);

	load("libcudart.so.13", RTLD_LOCAL);
	void *ebb = load("package/torch_memory_saver_hook_mode_torch_cu13.abi3.so", RTLD_LOCAL);
	EXPECT(ebb == load("package/torch_memory_saver_hook_mode_preload_cu12.abi3.so", RTLD_LOCAL));
	*(void **)&allocate = dlsym(ebb, "tms_torch_malloc");
	EXPECT(allocate(64, 0, NULL) != NULL && engine_seen()->mallocs == 1); /* found beside the file itself */
}

static void a_second_copy(void)
{
	int (*pause)(const char *const *, size_t, ebb_result *), (*begin)(void);
	size_t (*error)(char *, size_t);
	void *(*allocate)(ssize_t, int, void *), *ptr;
	void (*set_region)(bool);
	char text[1024];

	load("libcudart.so.13", RTLD_LOCAL);
	void *copy = load("copy/libebb.so", RTLD_LOCAL);
	EXPECT(dlsym(copy, "cudaMalloc") != global("cudaMalloc"));
	*(void **)&pause = dlsym(copy, "ebb_pause");
	*(void **)&error = dlsym(copy, "ebb_last_error");
	*(void **)&allocate = dlsym(copy, "tms_torch_malloc");
	*(void **)&set_region = dlsym(copy, "tms_set_interesting_region");
	*(void **)&begin = dlsym(copy, "ebb_idle_begin");

	EXPECT(pause(NULL, 0, NULL) == EBB_ERR_NOT_LOADED);
	EXPECT(error(text, sizeof(text)) > 0 && strstr(text, beside("libebb.so")) != NULL);
	EXPECT(allocate(64, 0, NULL) == NULL); /* never memory that no pause would free */
	set_region(true);
	EXPECT(((malloc_fn *)dlsym(copy, "cudaMalloc"))(&ptr, 64) == cudaSuccess && is_of(ptr, 13));
	EXPECT(begin() == EBB_OK);
	EXPECT(engine_seen() == NULL);

	/* The first one works. */
	((void (*)(bool))global("tms_set_interesting_region"))(true);
	EXPECT(((malloc_fn *)global("cudaMalloc"))(&ptr, 64) == cudaSuccess && engine_seen()->mallocs == 1);
}

static void two_preloaded_copies(void)
{
	void *ptr;

	load("libcudart.so.13", RTLD_GLOBAL);
	EXPECT(((malloc_fn *)global("cudaMalloc"))(&ptr, 64) == cudaSuccess && engine_seen()->mallocs == 1);
	((void (*)(bool))global("tms_set_interesting_region"))(false);
	EXPECT(((malloc_fn *)global("cudaMalloc"))(&ptr, 64) == cudaSuccess && is_of(ptr, 13));
	EXPECT(engine_seen()->mallocs == 1);
}

/* The library itself under a runtime's name: its hook must not take itself for the real function. */
static void loaded_by_a_runtimes_name(void)
{
	void *ptr;
	malloc_fn *hook = (malloc_fn *)dlsym(load("libcudart.so.99", RTLD_LOCAL), "cudaMalloc");

	EXPECT(hook(&ptr, 1) == cudaErrorSharedObjectSymbolNotFound);
	load("libcudart.so.13", RTLD_LOCAL);
	EXPECT(hook(&ptr, 1) == cudaSuccess && is_of(ptr, 13));
}

static void an_interposer_stays_in_the_chain(void)
{
	void *ptr;

	load("libcudart.so.13", RTLD_GLOBAL);
	EXPECT(((malloc_fn *)global("cudaMalloc"))(&ptr, 1) == cudaSuccess && is_of(ptr, 77));
}

#define NOT_PRELOADED "ebb: @/libebb.so is not preloaded: *start the process with LD_PRELOAD=@/libebb.so"

CASES(
	{.says = "without a runtime calls fail with a line; a runtime loaded later is found",
	 .run = no_runtime,
	 .lines = {"ebb: cudaMalloc was called, but no loaded CUDA runtime (libcudart) has it"}},
	{.says = "without a runtime nothing is managed either",
	 .run = managed_memory_needs_a_runtime,
	 .env = {"TMS_INIT_ENABLE=1"},
	 .lines = {"ebb: cudaGetDevice was called, but no loaded CUDA runtime (libcudart) has it"}},
	{.says = "a privately loaded runtime is found", .run = private_runtime},
	{.says = "a runtime under a package's own name is found", .run = renamed_runtime},
	{.says = "a globally loaded runtime is found", .run = global_runtime},
	{.says = "with two private runtimes each caller reaches the one it is linked with", .run = two_private_runtimes},
	{.says = "with two global runtimes each caller reaches the one it is linked with", .run = two_global_runtimes},
	{.says = "with a global and a private runtime each caller reaches the one it is linked with",
	 .run = one_global_one_private_runtime},
	{.says = "a runtime loaded later does not take over earlier callers",
	 .run = a_runtime_loaded_later_does_not_take_over},
	{.says = "loaded by path, not preloaded, it works as PyTorch's allocator",
	 .run = loaded_not_preloaded,
	 .env = {"LD_PRELOAD=-"}},
	{.says = "not preloaded it says nothing of it where all memory of regions comes to it",
	 .run = an_allocator_that_is_not_preloaded,
	 .env = {"LD_PRELOAD=-", "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64,expandable_segments:False",
		 "FAKE_STATUS={\"name\":\"context\",\"bytes\":1000},{\"name\":\"other\",\"bytes\":0}"}},
	{.says = "not preloaded it says so where PyTorch is told to pass it by",
	 .run = one_that_has_said_so,
	 .env = {"LD_PRELOAD=-", "PYTORCH_ALLOC_CONF=max_split_size_mb:64, expandable_segments : True"},
	 .lines = {NOT_PRELOADED}},
	{.says = "by the older variable too",
	 .run = one_that_has_said_so,
	 .env = {"LD_PRELOAD=-", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"},
	 .lines = {NOT_PRELOADED}},
	{.says = "not preloaded it says so when a pause leaves much behind that nobody accounts for, once",
	 .run = one_that_has_said_so,
	 .env = {"LD_PRELOAD=-", "FAKE_STATUS={\"name\":\"context\",\"bytes\":1073741824,\"count\":1},"
				 "{\"name\":\"other\",\"bytes\":1,\"count\":0}"},
	 .lines = {NOT_PRELOADED}},
	{.says = "however long the status is", .run = one_with_a_long_status, .env = {"LD_PRELOAD=-"}, .lines = {NOT_PRELOADED}},
	{.says = "not preloaded it says so when a pause finds nothing that is managed",
	 .run = one_that_manages_nothing,
	 .env = {"LD_PRELOAD=-", "FAKE_PAUSE_CODE=17"},
	 .lines = {NOT_PRELOADED}},
	{.says = "behind another library that parks memory it manages none, and says so",
	 .run = beside_another_library_that_parks,
	 .env = {"LD_PRELOAD=-"},
	 .lines = {"ebb: @/libtms.so and @/libebb.so both park memory in one process, *"}},
	{.says = "loaded by the link as well as by its own path it is one library", .run = loaded_again_by_a_second_name},
	{.says = "preloaded by one name and loaded by a package's names it is one library with one state",
	 .run = loaded_by_the_names_of_a_package,
	 .env = {"LD_PRELOAD=@/package/torch_memory_saver_hook_mode_preload_cu12.abi3.so"}},
	{.says = "loaded by a package's link, not preloaded, it finds the engine beside the file",
	 .run = loaded_by_a_link_not_preloaded,
	 .env = {"LD_PRELOAD=-"}},
	{.says = "a second copy of the file manages nothing, passes calls on and names the first",
	 .run = a_second_copy,
	 .lines = {"ebb: @/libebb.so and @/copy/libebb.so are two copies of libebb.so in one process*"}},
	{.says = "two preloaded copies: the first manages, what it leaves alone stays unmanaged",
	 .run = two_preloaded_copies,
	 .env = {"LD_PRELOAD=@/copy/libebb.so", "TMS_INIT_ENABLE=1"},
	 .lines = {"ebb: @/libebb.so and @/copy/libebb.so are two copies of libebb.so in one process*"}},
	{.says = "loaded under the name of a runtime it does not call itself",
	 .run = loaded_by_a_runtimes_name,
	 .env = {"LD_PRELOAD=-"},
	 .lines = {"ebb: cudaMalloc was called, but no loaded CUDA runtime (libcudart) has it"}},
	{.says = "another preloaded hook of cudaMalloc stays in the chain",
	 .run = an_interposer_stays_in_the_chain,
	 .env = {"LD_PRELOAD=@/libhook77.so"}});
