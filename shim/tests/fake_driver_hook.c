/*
 * fake_driver_hook.c: another library that hooks the driver, cuMemCreate and cuMemRelease, linked and
 * through dlsym. Built twice: what its dlsym gives is its own function, or, as that of a library that does
 * not bind to itself, the first one in the process of that name.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

_Atomic int hooked_creates, hooked_releases;

int cuMemCreate(uint64_t *handle, size_t size, const void *prop, uint64_t flags);
int cuMemRelease(uint64_t handle);

static void *next_dlsym(void *handle, const char *name)
{
	static void *(*next)(void *, const char *);

	if (next == NULL)
		*(void **)&next = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
	return next(handle, name);
}

static void *in_driver(const char *name)
{
	return next_dlsym(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), name);
}

int cuMemCreate(uint64_t *handle, size_t size, const void *prop, uint64_t flags)
{
	int (*create)(uint64_t *, size_t, const void *, uint64_t);

	hooked_creates++;
	*(void **)&create = in_driver("cuMemCreate");
	return create(handle, size, prop, flags);
}

int cuMemRelease(uint64_t handle)
{
	int (*release)(uint64_t);

	hooked_releases++;
	*(void **)&release = in_driver("cuMemRelease");
	return release(handle);
}

/* The sanitizers' libraries ask dlsym before strcmp is ready. */
static int same(const char *a, const char *b)
{
	while (*a != '\0' && *a == *b) {
		a++;
		b++;
	}
	return *a == *b;
}

void *dlsym(void *handle, const char *name)
{
	if (handle != RTLD_NEXT && same(name, "cuMemCreate"))
		return (void *)cuMemCreate;
	if (handle != RTLD_NEXT && same(name, "cuMemRelease"))
		return (void *)cuMemRelease;
	return next_dlsym(handle, name);
}
