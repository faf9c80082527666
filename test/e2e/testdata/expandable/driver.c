#include "driver.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct driver driver;

/* What was done last, oldest first from `said` on. */
enum { REMEMBERED = 40 };
static char notes[REMEMBERED][160];
static unsigned said;

void note(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(notes[said++ % REMEMBERED], sizeof notes[0], format, args);
	va_end(args);
}

void die(const char *format, ...)
{
	va_list args;

	fprintf(stderr, "expandable: ");
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, "\nafter\n");
	for (unsigned i = said > REMEMBERED ? said - REMEMBERED : 0; i < said; i++)
		fprintf(stderr, "  %s\n", notes[i % REMEMBERED]);
	exit(1);
}

void driver_check(CUresult error, const char *call)
{
	const char *text = "unknown error";

	if (error == CUDA_SUCCESS)
		return;
	cuGetErrorString(error, &text);
	die("%s: %s (%d)", call, text, error);
}

void runtime_check(cudaError_t error, const char *call)
{
	if (error != cudaSuccess)
		die("%s: %s (%d)", call, cudaGetErrorString(error), (int)error);
}

static void *by_version(const char *name)
{
	void *found = NULL;
	enum cudaDriverEntryPointQueryResult status;

	RUNTIME(cudaGetDriverEntryPointByVersion(name, &found, 12000, 0, &status));
	return status == cudaDriverEntryPointSuccess ? found : NULL;
}

static void *by_entry(const char *name)
{
	void *found = NULL;
	enum cudaDriverEntryPointQueryResult status;

	RUNTIME(cudaGetDriverEntryPoint(name, &found, 0, &status));
	return status == cudaDriverEntryPointSuccess ? found : NULL;
}

static void *by_proc(const char *name)
{
	void *found = NULL;
	CUdriverProcAddressQueryResult status;

	DRIVER(cuGetProcAddress_v2(name, &found, 12000, 0, &status));
	return status == CU_GET_PROC_ADDRESS_SUCCESS ? found : NULL;
}

static void *by_dlsym(const char *name)
{
	static void *library;

	if (!library && !(library = dlopen("libcuda.so.1", RTLD_NOW)))
		die("%s", dlerror());
	return dlsym(library, name);
}

static void open_through(void *(*find)(const char *), const char *door)
{
#define X(name)                                                                                                        \
	{                                                                                                              \
		void *found = find(#name);                                                                             \
		if (!found)                                                                                            \
			die("no " #name " through door %s", door);                                                     \
		memcpy(&driver.name, &found, sizeof found);                                                            \
	}
	DRIVER_FUNCTIONS(X)
#undef X
}

void driver_open(const char *door)
{
	if (!strcmp(door, "version"))
		open_through(by_version, door);
	else if (!strcmp(door, "entry"))
		open_through(by_entry, door);
	else if (!strcmp(door, "proc"))
		open_through(by_proc, door);
	else if (!strcmp(door, "dlsym"))
		open_through(by_dlsym, door);
	else if (!strcmp(door, "linked")) {
#define X(name) driver.name = name;
		DRIVER_FUNCTIONS(X)
#undef X
	} else
		die("no door is named %s", door);
}
