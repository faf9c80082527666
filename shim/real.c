/*
 * real.c: finds the real CUDA runtime behind the hooks.
 *
 * Usually it is the next definition in the loader's order (RTLD_NEXT), which also keeps other
 * preloaded hooks in the chain. A runtime that was loaded privately (RTLD_LOCAL, as Python does)
 * is not in that order and is looked up among the loaded objects. When two runtimes are loaded,
 * each keeps its own state, so a call must reach the one its caller was linked with.
 *
 * The answer is kept per call site, so that a call costs one table look-up: the loader's functions
 * take its lock, which another thread may hold for as long as an import lasts. The tables only
 * grow and are read and written without a lock, which also makes them safe in a forked child.
 */
#include "shim.h"

#include <dlfcn.h>
#include <elf.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RUNTIMES 8
#define CALL_SITES 256 /* a power of two; sites that find no room are resolved at every call */

static struct {
	_Atomic(const void *) caller;
	_Atomic(const struct real *) real; /* null: being resolved by the thread that took the slot */
} call_sites[CALL_SITES];

static _Atomic(struct real *) all_real; /* every struct real, linked by next; never freed */
static const struct real none;

/* ---- loaded runtimes ----------------------------------------------------------------------- */

struct runtimes {
	int count;
	char paths[MAX_RUNTIMES][PATH_MAX];
};

static const char *file_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash != NULL ? slash + 1 : path;
}

static bool is_runtime_name(const char *name)
{
	/* libcudart.so.13, and libcudart-9335f6a2.so.12 as Python packages rename theirs. */
	return strncmp(name, "libcudart", strlen("libcudart")) == 0;
}

static int note_runtime(struct dl_phdr_info *object, size_t size, void *list)
{
	struct runtimes *found = list;

	(void)size;
	if (found->count < MAX_RUNTIMES && is_runtime_name(file_name(object->dlpi_name)) &&
	    strlen(object->dlpi_name) < PATH_MAX)
		strcpy(found->paths[found->count++], object->dlpi_name);
	return 0;
}

/* The string of the object's first dynamic entry of that kind that names a CUDA runtime. */
static const char *runtime_in_dynamic(const struct link_map *object, ElfW(Sxword) tag)
{
	const char *strings = NULL;

	for (const ElfW(Dyn) *entry = object->l_ld; entry->d_tag != DT_NULL; entry++)
		if (entry->d_tag == DT_STRTAB)
			/* glibc relocates this in place on most machines, not on all. */
			strings = (const char *)(entry->d_un.d_ptr < object->l_addr
							 ? entry->d_un.d_ptr + object->l_addr
							 : entry->d_un.d_ptr);
	if (strings == NULL)
		return NULL;
	for (const ElfW(Dyn) *entry = object->l_ld; entry->d_tag != DT_NULL; entry++)
		if (entry->d_tag == tag && is_runtime_name(strings + entry->d_un.d_val))
			return strings + entry->d_un.d_val;
	return NULL;
}

/* A function of the runtime behind handle; null when it has none or it is this library's hook. */
static void *function_of(void *handle, const char *name)
{
	void *function = loader_dlsym(handle, name);
	Dl_info found, self;

	if (function == NULL)
		return NULL;
	if (dladdr(function, &found) != 0 && dladdr((void *)&none, &self) != 0 &&
	    found.dli_fbase == self.dli_fbase)
		return NULL;
	return function;
}

/* A handle of a runtime that is loaded already; null when it is none after all. Taking it keeps the
 * runtime loaded. */
static void *open_loaded(const char *path)
{
	void *handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);

	if (handle != NULL && function_of(handle, "cudaMalloc") == NULL) {
		dlclose(handle);
		return NULL;
	}
	return handle;
}

/* The loaded runtime that the object around this address is linked with, or is itself. */
static void *runtime_of(const void *caller, const struct runtimes *loaded)
{
	struct link_map *object;
	Dl_info info;

	if (dladdr1(caller, &info, (void **)&object, RTLD_DL_LINKMAP) == 0 || object == NULL)
		return NULL;
	if (is_runtime_name(file_name(object->l_name)))
		return open_loaded(object->l_name);
	const char *needed = runtime_in_dynamic(object, DT_NEEDED);
	if (needed == NULL)
		return NULL;
	for (int i = 0; i < loaded->count; i++) {
		void *handle = open_loaded(loaded->paths[i]);
		struct link_map *runtime = handle;

		if (handle == NULL)
			continue;
		const char *soname = runtime_in_dynamic(runtime, DT_SONAME);
		if (soname != NULL && strcmp(soname, needed) == 0)
			return handle;
		dlclose(handle);
	}
	return NULL;
}

/* ---- the runtime of a caller ------------------------------------------------------------------- */

static const struct real *functions_of(void *handle)
{
	for (struct real *known = all_real; known != NULL; known = known->next)
		if (known->handle == handle)
			return known;

	struct real *real = calloc(1, sizeof(*real));
	if (real == NULL)
		return &none;
	real->handle = handle;
#define FIND(name) *(void **)&real->name = function_of(handle, #name)
	FIND(cudaMalloc);
	FIND(cudaFree);
	FIND(cudaGetDevice);
	FIND(cudaSetDevice);
	FIND(cudaGetLastError);
	FIND(cudaHostGetFlags);
	FIND(cudaIpcGetMemHandle);
	FIND(cudaMallocManaged);
	FIND(cudaDeviceEnablePeerAccess);
	FIND(cudaDeviceDisablePeerAccess);
	FIND(cudaDeviceReset);
	FIND(cudaRuntimeGetVersion);
	FIND(cudaStreamDestroy);
	FIND(cudaThreadExchangeStreamCaptureMode);
	FIND(cudaStreamIsCapturing);
	FIND(cudaStreamIsCapturing_ptsz);
	FIND(cudaStreamBeginCapture);
	FIND(cudaStreamBeginCapture_ptsz);
	FIND(cudaStreamBeginCaptureToGraph);
	FIND(cudaStreamBeginCaptureToGraph_ptsz);
	FIND(cudaStreamEndCapture);
	FIND(cudaStreamEndCapture_ptsz);
	FIND(cudaGetDriverEntryPoint);
	FIND(cudaGetDriverEntryPoint_ptsz);
	FIND(cudaGetDriverEntryPointByVersion);
	FIND(cudaGetDriverEntryPointByVersion_ptsz);
#undef FIND
	/* Two threads may add the same runtime at once: a second entry does no harm. */
	real->next = all_real;
	while (!atomic_compare_exchange_weak(&all_real, &real->next, real))
		;
	return real;
}

static const struct real *resolve(const void *caller)
{
	struct runtimes *loaded = calloc(1, sizeof(*loaded));
	void *handle = NULL;

	if (loaded == NULL)
		return &none;
	/* dlopen within dl_iterate_phdr would take the loader's locks in the wrong order. */
	dl_iterate_phdr(note_runtime, loaded);
	if (loaded->count > 1)
		handle = runtime_of(caller, loaded);
	if (handle == NULL && function_of(RTLD_NEXT, "cudaMalloc") != NULL)
		handle = RTLD_NEXT;
	for (int i = 0; i < loaded->count && handle == NULL; i++)
		handle = open_loaded(loaded->paths[i]);
	free(loaded);
	(void)dlerror(); /* the host shall not find our failed look-ups in it */
	return handle != NULL ? functions_of(handle) : &none;
}

const struct real *real_for(const void *caller)
{
	size_t first = ((uintptr_t)caller >> 2) * 0x9E3779B9u;

	for (size_t probe = 0; probe < CALL_SITES; probe++) {
		size_t slot = (first + probe) % CALL_SITES;
		const void *there = call_sites[slot].caller;

		if (there == caller) {
			const struct real *real = call_sites[slot].real;
			return real != NULL ? real : resolve(caller);
		}
		if (there != NULL)
			continue;
		const struct real *real = resolve(caller);
		/* Without a runtime yet, look again at the next call. */
		if (real != &none && atomic_compare_exchange_strong(&call_sites[slot].caller, &there, caller))
			call_sites[slot].real = real;
		return real;
	}
	return resolve(caller);
}

cudaError_t real_missing(const char *function)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;

	if (!atomic_flag_test_and_set(&said))
		log_line("%s was called, but no loaded CUDA runtime (libcudart) has it", function);
	return cudaErrorSharedObjectSymbolNotFound;
}
