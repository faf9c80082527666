#include "doors.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

const int on_device[8] = {1, 0, 1, 0}, in_host_memory[8] = {1, 0, 3, 0};

typedef int get_v1_fn(const char *, void **, int, uint64_t);
typedef int get_v2_fn(const char *, void **, int, uint64_t, int *);

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

void *load_driver(void)
{
	static _Atomic(void *) driver;

	if (driver == NULL)
		driver = dlopen(beside("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL);
	EXPECT(driver != NULL);
	return driver;
}

static void *load_user(void)
{
	static _Atomic(void *) user;

	if (user == NULL)
		user = dlopen(beside("libdriveruser.so"), RTLD_NOW | RTLD_LOCAL);
	EXPECT(user != NULL);
	return user;
}

struct fake_cuda *driver_seen(void)
{
	return dlsym(load_driver(), "fake_cuda");
}

static void *symbol(const char *name)
{
	void *function = dlsym(load_driver(), name);

	EXPECT(function != NULL);
	return function;
}

static void *get_v1(get_v1_fn *get, const char *name)
{
	void *function = (void *)1;

	return get(name, &function, 12080, 0) == 0 ? function : NULL;
}

static void *get_v2(get_v2_fn *get, const char *name)
{
	void *function = (void *)1;
	int status = 99;
	int error = get(name, &function, 12080, 0, &status);

	EXPECT((error == 0) == (status == 0));
	return error == 0 ? function : NULL;
}

typedef int entry_fn(const char *, void **, unsigned long long, int *);
typedef int entry_by_version_fn(const char *, void **, unsigned, unsigned long long, int *);

static void *entry(entry_fn *get, const char *name, unsigned long long flags)
{
	void *function = (void *)1;
	int status = 99;

	EXPECT(get(name, &function, flags, &status) == cudaSuccess && (function != NULL) == (status == 0));
	return function;
}

static void *entry_by_version(entry_by_version_fn *get, const char *name, unsigned long long flags)
{
	void *function = (void *)1;
	int status = 99;

	EXPECT(get(name, &function, 12080, flags, &status) == cudaSuccess && (function != NULL) == (status == 0));
	return function;
}

void *through(enum door door, const char *name, const char *versioned)
{
	load_driver();
	switch (door) {
	case LINKED:
		return dlsym(RTLD_DEFAULT, versioned);
	case BY_DLSYM:
		return dlsym(load_driver(), versioned);
	case BY_DLSYM_OF_USER:
		return dlsym(load_user(), versioned);
	case BY_PROC:
		return get_v2((get_v2_fn *)symbol("cuGetProcAddress_v2"), name);
	case BY_PROC_LINKED:
		return get_v2(cuGetProcAddress_v2, name);
	case BY_PROC_V1:
		return get_v1((get_v1_fn *)symbol("cuGetProcAddress"), name);
	case BY_PROC_PER_THREAD:
		return get_v2((get_v2_fn *)symbol("cuGetProcAddress_v2_ptsz"), name);
	case BY_PROC_OF_PROC:
		return get_v2((get_v2_fn *)through(BY_PROC, "cuGetProcAddress", NULL), name);
	case BY_ENTRY:
		return entry(cudaGetDriverEntryPoint, name, 0);
	case BY_ENTRY_PER_THREAD:
		return entry(cudaGetDriverEntryPoint_ptsz, name, 2);
	case BY_VERSION:
		return entry_by_version(cudaGetDriverEntryPointByVersion, name, 0);
	case BY_VERSION_PER_THREAD:
		return entry_by_version(cudaGetDriverEntryPointByVersion_ptsz, name, 2);
	case BY_PROC_OF_ENTRY:
		return get_v2((get_v2_fn *)through(BY_ENTRY, "cuGetProcAddress", NULL), name);
	default:
		EXPECT(!"a door");
		return NULL;
	}
}

const struct driver *open_door(enum door door)
{
	static struct driver driver;

#define FIND(function, version, type, parameters)                                        \
	*(void **)&driver.function = through(door, #function, #function #version);       \
	EXPECT(driver.function != NULL);
	DRIVER_CALLS(FIND)
#undef FIND
	return &driver;
}
