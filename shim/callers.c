/*
 * callers.c: which library makes memory, by the return address of its call.
 *
 * The class of each call site is kept: to find the library takes the loader's lock, which another
 * thread may hold for as long as an import lasts. The tables only grow and have no lock, like those
 * of real.c.
 */
#include "shim.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define CALL_SITES 512 /* a power of two; sites that find no room are resolved at every call */

static struct {
	_Atomic(const void *) caller;
	_Atomic unsigned known; /* class + 1; 0: being resolved by the thread that took the slot */
} call_sites[CALL_SITES];

/* Classes with a name of their own; the rest are file names, never freed. */
static _Atomic(const char *) names[CLASSES] = {
	[CLASS_OTHER] = "other",
	[CLASS_NCCL] = "nccl",
	[CLASS_TRANSPORT] = "transport",
	[CLASS_WORKSPACE] = "workspace",
	[CLASS_POOL] = "pool",
	[CLASS_IMPORTED] = "imported",
	[CLASS_PYTHON] = "python",
};

const char *class_name(unsigned class)
{
	return names[class];
}

static const struct {
	const char *prefix;
	unsigned class;
} libraries[] = {
	{"libnccl", CLASS_NCCL},
	{"libnvshmem", CLASS_TRANSPORT},
	{"libmscclpp", CLASS_TRANSPORT},
	{"libucs.", CLASS_TRANSPORT},
	{"libucp.", CLASS_TRANSPORT},
	{"libuct", CLASS_TRANSPORT},
	{"libmpi", CLASS_TRANSPORT},
	{"libcufile", CLASS_TRANSPORT},
	{"libcublas", CLASS_WORKSPACE},
	{"libcudnn", CLASS_WORKSPACE},
	{"libcusolver", CLASS_WORKSPACE},
	{"libcusparse", CLASS_WORKSPACE},
	{"libcufft", CLASS_WORKSPACE},
	{"libcurand", CLASS_WORKSPACE},
	{"libcutensor", CLASS_WORKSPACE},
	/* Through ctypes: what asked is Python code, which lies in no library. */
	{"libffi", CLASS_PYTHON},
	{"_ctypes", CLASS_PYTHON},
	{"libpython", CLASS_PYTHON},
	{"python", CLASS_PYTHON},
};

static bool begins_with(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* A copy that is good for a line and for JSON, whatever a file or a program calls itself; null: no
 * memory. */
static char *plain_copy(const char *name)
{
	char *copy = strdup(name);

	for (char *at = copy; at != NULL && *at != '\0'; at++)
		if (*at < ' ' || *at > '~' || *at == '"' || *at == '\\')
			*at = '?';
	return copy;
}

/* The number of a file name. */
static unsigned class_of_file(const char *name)
{
	for (size_t i = 0; i < sizeof(libraries) / sizeof(libraries[0]); i++)
		if (begins_with(name, libraries[i].prefix))
			return libraries[i].class;
	char *copy = plain_copy(name);
	for (unsigned class = CLASS_FILES; copy != NULL && class < CLASSES; class++) {
		const char *there = names[class];

		if (there == NULL && atomic_compare_exchange_strong(&names[class], &there, copy))
			return class;
		if (strcmp(there, copy) == 0) {
			free(copy);
			return class;
		}
	}
	free(copy);
	return CLASS_OTHER;
}

static unsigned resolve(const void *caller)
{
	Dl_info info;

	if (dladdr(caller, &info) == 0 || info.dli_fname == NULL)
		return CLASS_OTHER;
	const char *slash = strrchr(info.dli_fname, '/');
	return class_of_file(slash != NULL ? slash + 1 : info.dli_fname);
}

unsigned class_of(const void *caller)
{
	size_t first = ((uintptr_t)caller >> 2) * 0x9E3779B9u;

	for (size_t probe = 0; probe < CALL_SITES; probe++) {
		size_t slot = (first + probe) % CALL_SITES;
		const void *there = call_sites[slot].caller;

		if (there == NULL && atomic_compare_exchange_strong(&call_sites[slot].caller, &there, caller)) {
			unsigned class = resolve(caller);

			call_sites[slot].known = class + 1;
			return class;
		}
		if (there == caller) {
			unsigned known = call_sites[slot].known;

			return known > 0 ? known - 1 : resolve(caller);
		}
	}
	return resolve(caller);
}
