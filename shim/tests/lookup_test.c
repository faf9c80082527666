/* dlsym: what is answered by the library, and all that must be as without it. */
#include "doors.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const char *file_of(const void *address)
{
	Dl_info info;

	EXPECT(address != NULL && dladdr(address, &info) != 0);
	const char *slash = strrchr(info.dli_fname, '/');
	return slash != NULL ? slash + 1 : info.dli_fname;
}

static bool is_of(const void *address, const char *file)
{
	return strcmp(file_of(address), file) == 0;
}

static void *user(const char *name)
{
	void *library = dlopen(beside("libdriveruser.so"), RTLD_NOW | RTLD_LOCAL);

	EXPECT(library != NULL);
	return dlsym(library, name);
}

typedef void *find_fn(const char *name);

static void next_and_default_depend_on_the_caller(void)
{
	find_fn *next = (find_fn *)user("next_after_user"), *by_default = (find_fn *)user("default_of_user");

	/* Behind the user comes the driver, behind this program the preloaded library. */
	EXPECT(is_of(next("cuMemRelease"), "libcuda.so.1"));
	EXPECT(is_of(dlsym(RTLD_NEXT, "cuMemRelease"), "libebb.so"));
	EXPECT(is_of(by_default("cuMemRelease"), "libebb.so"));
	EXPECT(is_of(by_default("driver_user"), "libdriveruser.so")); /* in nobody else's default */
	EXPECT(dlsym(RTLD_DEFAULT, "driver_user") == NULL && dlerror() != NULL);
	EXPECT(next("driver_user") == NULL && dlerror() != NULL);
}

static void default_of_a_private_driver(void)
{
	load_driver();
	EXPECT(dlsym(RTLD_DEFAULT, "cuDriverGetVersion") == NULL && dlerror() != NULL);
	EXPECT(is_of(dlsym(RTLD_DEFAULT, "cuMemMap"), "libebb.so"));
}

static void only_the_drivers_functions(void)
{
	void *driver = load_driver();
	void *runtime = dlopen(beside("libcudart.so.13"), RTLD_NOW | RTLD_LOCAL);

	EXPECT(is_of(dlsym(driver, "cuMemMap"), "libebb.so"));
	EXPECT(is_of(dlsym(driver, "cuCtxSetCurrent"), "libcuda.so.1"));
	EXPECT(is_of(dlsym(driver, "fake_cuda"), "libcuda.so.1"));
	EXPECT(is_of(dlsym(runtime, "cudaMalloc"), "libcudart.so.13"));
	EXPECT(is_of(user("cuMemMap"), "libebb.so") && is_of(user("driver_user"), "libdriveruser.so"));
	EXPECT(is_of(dlsym(dlopen(NULL, RTLD_NOW), "cuMemMap"), "libebb.so"));
	EXPECT(dlsym(dlopen(beside("libebb.so"), RTLD_NOW), "cuMemMap") == dlsym(RTLD_DEFAULT, "cuMemMap"));
}

/* A failed look-up leaves the text of the very look-up, a good one none. */
static void errors_are_the_loaders(void)
{
	void *driver = load_driver();
	void *runtime = dlopen(beside("libcudart.so.13"), RTLD_NOW | RTLD_LOCAL);
	const char *text;

	EXPECT(dlerror() == NULL);
	EXPECT(dlsym(driver, "cuNone") == NULL && (text = dlerror()) != NULL && strstr(text, "cuNone") != NULL);
	EXPECT(dlsym(runtime, "cuMemMap") == NULL && (text = dlerror()) != NULL);
	EXPECT(strstr(text, "cuMemMap") != NULL && strstr(text, "libcudart.so.13") != NULL && dlerror() == NULL);
	EXPECT(dlsym(driver, "cuMemMap") != NULL && dlerror() == NULL);
	EXPECT(dlsym(driver, "cuCtxSetCurrent") != NULL && dlerror() == NULL);
}

static void another_hook_stays_in_the_chain(void)
{
	_Atomic int *count = dlsym(RTLD_DEFAULT, "hooked_releases");

	EXPECT(open_door(BY_DLSYM)->cuMemRelease(5) == 0 && *count == 1);
	EXPECT(open_door(LINKED)->cuMemRelease(6) == 0 && *count == 2);
	EXPECT(driver_seen()->releases == 2 && driver_seen()->last_handle == 6);
	EXPECT(is_of(dlsym(RTLD_DEFAULT, "cuMemRelease"), "libebb.so") && is_of(dlsym(RTLD_DEFAULT, "cudaMalloc"), "libebb.so"));
	EXPECT(strcmp(file_of(dlsym(RTLD_DEFAULT, "hooked_releases")), "libebb.so") != 0);
	/* What is ours is kept from it too. */
	EXPECT(open_door(BY_DLSYM)->cuMemRelease((uint64_t)EBB_ENGINE_HANDLE << 48) == 1 && *count == 2);
}

static void *look_up(void *unused)
{
	for (int i = 0; i < 200; i++)
		EXPECT(through((enum door)(i % DOORS), "cuMemRelease", "cuMemRelease") != NULL);
	return unused;
}

static void threads_find_the_same(void)
{
	pthread_t threads[8];

	open_door(BY_DLSYM_OF_USER); /* loads all there is to be loaded */
	for (int i = 0; i < 8; i++)
		EXPECT(pthread_create(&threads[i], NULL, look_up, NULL) == 0);
	for (int i = 0; i < 8; i++)
		EXPECT(pthread_join(threads[i], NULL) == 0);
	EXPECT(open_door(BY_PROC)->cuMemRelease(1) == 0 && driver_seen()->via == VIA_PROC);
	EXPECT(open_door(BY_DLSYM)->cuMemRelease(1) == 0 && driver_seen()->via == VIA_SYMBOL);
}

CASES(
	{.says = "RTLD_NEXT and RTLD_DEFAULT answer the library that asks", .run = next_and_default_depend_on_the_caller},
	{.says = "RTLD_DEFAULT finds no more of a private driver than without", .run = default_of_a_private_driver},
	{.says = "only hooked functions of the driver are answered, in its library and in those linked with it",
	 .run = only_the_drivers_functions},
	{.says = "dlerror tells of look-ups what it does without", .run = errors_are_the_loaders},
	{.says = "another hook of the driver, preloaded behind, stays in the chain",
	 .run = another_hook_stays_in_the_chain,
	 .env = {"LD_PRELOAD=@/libdriverhook.so"}},
	{.says = "also one whose dlsym gives the first function of a name, which is the library's",
	 .run = another_hook_stays_in_the_chain,
	 .env = {"LD_PRELOAD=@/liblimiter.so"}},
	{.says = "threads that look up at once find the same", .run = threads_find_the_same});
