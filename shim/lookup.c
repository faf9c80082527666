/*
 * lookup.c: look-ups of driver functions by symbol. dlsym.S asks here what dlsym is to answer.
 *
 * A look-up is answered here only when it is one for a hooked function of the driver, in the
 * driver's library or in one that leads to it. RTLD_DEFAULT and RTLD_NEXT find the exported symbols by
 * themselves (but with RTLD_DEFAULT another hook may come between), and all other look-ups are none of
 * our business. The engine's own get the driver's functions, and no other hook's: those would come back
 * to ours.
 */
#include "doors.h"

#include <dlfcn.h>
#include <string.h>

/* The sanitizers' own libraries look functions up before they are ready to be called back. */
#define NOT_INSTRUMENTED __attribute__((no_sanitize("address", "thread", "undefined")))

static const char *const dlsym_versions[] = {
	"GLIBC_2.34",
#if defined(__x86_64__)
	"GLIBC_2.2.5",
#else
	"GLIBC_2.17",
#endif
};

static void *finds_nothing(void *handle, const char *name)
{
	(void)handle;
	(void)name;
	return NULL;
}

static _Atomic(dlsym_fn *) libc_dlsym, next_dlsym;

/* The C library's. */
NOT_INSTRUMENTED static dlsym_fn *find_libc_dlsym(void)
{
	dlsym_fn *its = libc_dlsym;

	for (size_t i = 0; its == NULL && i < sizeof(dlsym_versions) / sizeof(dlsym_versions[0]); i++)
		its = (dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", dlsym_versions[i]);
	if (its == NULL)
		its = finds_nothing;
	libc_dlsym = its;
	return its;
}

/* The one that comes after ours: another hook's, which has no version, or the C library's. */
NOT_INSTRUMENTED static dlsym_fn *find_next_dlsym(void)
{
	dlsym_fn *next = next_dlsym;

	if (next == NULL)
		next = (dlsym_fn *)find_libc_dlsym()(RTLD_NEXT, "dlsym");
	if (next == NULL)
		next = find_libc_dlsym();
	next_dlsym = next;
	return next;
}

void *loader_dlsym(void *handle, const char *name)
{
	return find_libc_dlsym()(handle, name);
}

bool is_hooks_dlsym(dlsym_fn *function)
{
	return function != NULL && function != dlsym && function != find_libc_dlsym();
}

/* ---- the driver's library ---------------------------------------------------------------------- */

#define DRIVER_FILE "libcuda.so"

static void *open_driver(void)
{
	return dlopen(DRIVER_FILE ".1", RTLD_LAZY | RTLD_NOLOAD);
}

bool driver_loaded(void)
{
	void *driver = open_driver();

	if (driver != NULL)
		dlclose(driver);
	return driver != NULL;
}

bool in_driver(const void *address)
{
	Dl_info info;

	if (dladdr(address, &info) == 0 || info.dli_fname == NULL)
		return false;
	const char *slash = strrchr(info.dli_fname, '/');
	return strncmp(slash != NULL ? slash + 1 : info.dli_fname, DRIVER_FILE, strlen(DRIVER_FILE)) == 0;
}

static bool in_this_library(const void *address)
{
	Dl_info info, self;

	return dladdr(address, &info) != 0 && dladdr((void *)&next_dlsym, &self) != 0 &&
	       info.dli_fbase == self.dli_fbase;
}

static bool is_driver(void *handle)
{
	void *driver = open_driver();

	if (driver != NULL)
		dlclose(driver); /* it stays: the program has it open */
	return driver == handle && handle != NULL;
}

void *driver_function(const char *symbol)
{
	dlsym_fn *find = find_libc_dlsym();
	void *function = find(RTLD_NEXT, symbol);

	if (function == NULL || in_this_library(function)) {
		/* A driver that was loaded privately, as the runtime does, is not in the loader's order. */
		void *driver = open_driver();

		function = driver != NULL ? find(driver, symbol) : NULL;
		if (driver != NULL)
			dlclose(driver);
		if (function != NULL && in_this_library(function))
			function = NULL;
		(void)dlerror(); /* the host shall not find our failed look-ups in it */
	}
	return function;
}

/* A device's number in the driver is its ordinal. */
typedef CUresult context_device_fn(int *device);

CUresult context_device(int *device)
{
	static _Atomic(context_device_fn *) ask;
	context_device_fn *known = ask;

	if (known == NULL)
		ask = known = (context_device_fn *)driver_function("cuCtxGetDevice");
	return known != NULL ? known(device) : CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;
}

int current_device(void)
{
	int device;

	return context_device(&device) == CUDA_SUCCESS ? device : -1;
}

bool passes_doors_by(dlsym_fn *find)
{
	void *driver = open_driver();
	bool passes = false;

	for (size_t i = 0; driver != NULL && i < door_count && !passes; i++)
		passes = in_driver(find(driver, doors[i]->symbol));
	if (driver != NULL)
		dlclose(driver);
	(void)dlerror();
	return passes;
}

/* ---- answers ------------------------------------------------------------------------------------ */

/* Ours for a look-up of a hooked function in the driver's library, or null: the look-up goes on. */
static void *answer(dlsym_fn *find, void *handle, const char *name, const void *caller)
{
	struct door *door = door_of_symbol(name);

	if (door == NULL || in_driver(caller))
		return NULL;
	void *found = find(handle, name);
	if (found == NULL) {
		if (is_driver(handle))
			driver_lacks(door);
		return NULL; /* asked again by the jump, which leaves dlerror as it should be */
	}
	/* What another hook has put in the driver's place is still a function of the driver's. */
	if (in_this_library(found) || (!in_driver(found) && !is_driver(handle)))
		return NULL;
	return door_open(door, found);
}

/* Ours where it is the first of the process, which another hook's dlsym might not say. */
static void *first_of_process(dlsym_fn *next, const char *name)
{
	dlsym_fn *find = find_libc_dlsym();

	if (next == find)
		return NULL;
	void *first = find(RTLD_DEFAULT, name);
	(void)dlerror();
	return first != NULL && in_this_library(first) ? first : NULL;
}

/* What dlsym.S goes by: the answer, or null and the function to jump to. */
struct choice {
	void *answer;
	dlsym_fn *next;
};

__attribute__((visibility("hidden"))) struct choice dlsym_choose(void *handle, const char *name, const void *caller);

NOT_INSTRUMENTED struct choice dlsym_choose(void *handle, const char *name, const void *caller)
{
	struct choice choice = {.next = find_next_dlsym()};

	if (handle == RTLD_NEXT || name == NULL || name[0] != 'c' || name[1] != 'u')
		return choice;
	if (engine_contains(caller))
		choice.next = find_libc_dlsym();
	else if (handle == RTLD_DEFAULT)
		choice.answer = first_of_process(choice.next, name);
	else
		choice.answer = answer(choice.next, handle, name, caller);
	return choice;
}
