/*
 * limiter.c: another library that hooks the driver, in the way of those that limit a process's share of a
 * GPU. Its functions are found when a program is linked with the driver or looks it up by dlsym; each
 * counts its calls and goes on to the next function of its name. At the end it says how many there were.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef void *dlsym_fn(void *handle, const char *name);

static _Atomic long calls;

static dlsym_fn *libc_dlsym(void)
{
	return (dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
}

/* Behind this library, or in a driver that was loaded privately. */
static void *next(const char *name)
{
	void *found = libc_dlsym()(RTLD_NEXT, name);

	calls++;
	return found != NULL ? found : libc_dlsym()(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), name);
}

#define HOOK(name, parameters, arguments)                                      \
	int name parameters;                                                   \
	int name parameters                                                    \
	{                                                                      \
		return ((int (*) parameters)next(#name)) arguments;            \
	}

HOOK(cuMemCreate, (uint64_t *handle, size_t size, const void *prop, uint64_t flags), (handle, size, prop, flags))
HOOK(cuMemRelease, (uint64_t handle), (handle))
HOOK(cuMemMap, (uint64_t at, size_t size, size_t offset, uint64_t handle, uint64_t flags), (at, size, offset, handle, flags))
HOOK(cuMemUnmap, (uint64_t at, size_t size), (at, size))
HOOK(cuMemAlloc_v2, (uint64_t *at, size_t size), (at, size))
HOOK(cuMemFree_v2, (uint64_t at), (at))

/* Of the functions in this list the ones above, or those of this name that come first in the process. */
void *dlsym(void *handle, const char *name)
{
	static const struct {
		const char *name;
		void *function;
	} hooked[] = {
		{"cuMemCreate", (void *)cuMemCreate},     {"cuMemRelease", (void *)cuMemRelease},
		{"cuMemMap", (void *)cuMemMap},           {"cuMemUnmap", (void *)cuMemUnmap},
		{"cuMemAlloc_v2", (void *)cuMemAlloc_v2}, {"cuMemFree_v2", (void *)cuMemFree_v2},
	};

	for (size_t i = 0; handle != RTLD_NEXT && i < sizeof(hooked) / sizeof(hooked[0]); i++)
		if (strcmp(hooked[i].name, name) == 0)
			return hooked[i].function;
	return libc_dlsym()(handle, name);
}

__attribute__((destructor)) static void tell(void)
{
	fprintf(stderr, "limiter: %ld calls\n", calls);
}
