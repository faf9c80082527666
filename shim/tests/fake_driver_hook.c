/* fake_driver_hook.c: another library that hooks the driver: cuMemRelease, linked and through dlsym. */
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

_Atomic int hooked_releases;

int cuMemRelease(uint64_t handle);

static void *next_dlsym(void *handle, const char *name)
{
	static void *(*next)(void *, const char *);

	if (next == NULL)
		*(void **)&next = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
	return next(handle, name);
}

int cuMemRelease(uint64_t handle)
{
	int (*release)(uint64_t);

	hooked_releases++;
	*(void **)&release = next_dlsym(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), "cuMemRelease");
	return release(handle);
}

void *dlsym(void *handle, const char *name)
{
	/* In this order: the sanitizers' libraries ask before strcmp is ready. */
	if (handle != RTLD_NEXT && handle != RTLD_DEFAULT && strcmp(name, "cuMemRelease") == 0)
		return (void *)cuMemRelease;
	return next_dlsym(handle, name);
}
