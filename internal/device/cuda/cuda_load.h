/*
 * cuda_load.h: loads a driver library and calls it. Included by the Go package's preamble only,
 * therefore all static.
 */
#ifndef EBB_CUDA_LOAD_H
#define EBB_CUDA_LOAD_H

#include <stdio.h>
#include <stdlib.h>

#include "cuda_abi.h"
#include "find.h"

/* A loaded library: its handle and the address of every function that ebb calls. */
struct ebb_cuda {
	void *library;
#define FIELD(name, symbol, params, args) CUresult(*name) params;
#define FIELD0(name, symbol) CUresult (*name)(void);
	EBB_CUDA_FUNCTIONS(FIELD, FIELD0)
#undef FIELD
#undef FIELD0
};

/* call_NAME(table, ...): the trampolines. cgo cannot call a function pointer by itself. */
#define UNPACK(...) __VA_ARGS__
#define CALL(name, symbol, params, args)                                             \
	static inline CUresult call_##name(const struct ebb_cuda *cuda, UNPACK params) \
	{                                                                            \
		return cuda->name args;                                              \
	}
#define CALL0(name, symbol)                                               \
	static inline CUresult call_##name(const struct ebb_cuda *cuda) \
	{                                                                 \
		return cuda->name();                                      \
	}
EBB_CUDA_FUNCTIONS(CALL, CALL0)
#undef CALL
#undef CALL0
#undef UNPACK

/*
 * Loads the library and finds every function in it: in that library, never by a search of the
 * whole process or by what somebody else makes of the look-up (find.h), so that a function which someone
 * interposed is not taken for the driver's.
 * On failure returns null with the loader's words in why and, when the library was found but a
 * function was not, that function's symbol in *missing.
 * One C call, because dlerror speaks of the calling thread.
 */
static inline struct ebb_cuda *ebb_cuda_load(const char *library, char *why, size_t cap, const char **missing)
{
	*missing = NULL;
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		snprintf(why, cap, "%s", dlerror());
		return NULL;
	}
	struct ebb_cuda *cuda = calloc(1, sizeof *cuda);
	if (!cuda) {
		snprintf(why, cap, "out of memory");
		dlclose(handle);
		return NULL;
	}
	cuda->library = handle;

	static const char *const symbols[] = {
#define SYMBOL(name, symbol, params, args) #symbol,
#define SYMBOL0(name, symbol) #symbol,
		EBB_CUDA_FUNCTIONS(SYMBOL, SYMBOL0)
#undef SYMBOL
#undef SYMBOL0
	};
	void **const fields[] = {
#define PLACE(name, symbol, params, args) (void **)&cuda->name,
#define PLACE0(name, symbol) (void **)&cuda->name,
		EBB_CUDA_FUNCTIONS(PLACE, PLACE0)
#undef PLACE
#undef PLACE0
	};
	ebb_dlsym *find = ebb_libc_dlsym();
	for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
		*fields[i] = find(handle, symbols[i]);
		if (!*fields[i]) {
			const char *text = dlerror();
			snprintf(why, cap, "%s", text ? text : "the symbol is null");
			*missing = symbols[i];
			dlclose(handle);
			free(cuda);
			return NULL;
		}
	}
	return cuda;
}

/* softgpu's own function (softgpu/softgpu_test.h), which no other driver has. */
enum fault_result { FAULT_SET, FAULT_UNREADABLE, FAULT_NOT_SOFTGPU };

static inline enum fault_result set_software_fault(const struct ebb_cuda *cuda, const char *spec)
{
	int (*set)(const char *spec);
	*(void **)&set = ebb_find(cuda->library, "softgpu_set_fault");
	if (!set)
		return FAULT_NOT_SOFTGPU;
	return set(spec) == 0 ? FAULT_SET : FAULT_UNREADABLE;
}

/* How often the i-th of the calls that can be made to fail was made in this process, and its name: those of the driver that
 * ebb makes, then the work that is done when its turn comes. -1: there is no such call, or the driver is not softgpu. */
static inline long long software_calls(const struct ebb_cuda *cuda, size_t i, const char **name)
{
	static const char *const calls[] = {
#define SYMBOL(name, symbol, params, args) #symbol,
#define SYMBOL0(name, symbol) #symbol,
		EBB_CUDA_FUNCTIONS(SYMBOL, SYMBOL0)
#undef SYMBOL
#undef SYMBOL0
		"copy", "memset", "kernel",
	};
	int64_t (*count)(const char *call);
	*(void **)&count = ebb_find(cuda->library, "softgpu_call_count");
	if (!count || i >= sizeof calls / sizeof *calls)
		return -1;
	*name = calls[i];
	return count(calls[i]);
}

/* A further context on a device, as programs of the driver's API make them. For tests; 0 or a CUresult, -1 when the driver
 * is not softgpu. */
static inline int new_software_context(const struct ebb_cuda *cuda, CUcontext *context, int device)
{
	CUresult (*create)(CUcontext *, unsigned int, CUdevice);
	*(void **)&create = ebb_find(cuda->library, "cuCtxCreate_v2");
	if (!ebb_find(cuda->library, "softgpu_set_fault") || !create)
		return -1;
	return (int)create(context, 0, device);
}

/* A reset of a device's primary context, as programs may make it. For tests; as above. */
static inline int reset_software_device(const struct ebb_cuda *cuda, int device)
{
	CUresult (*reset)(CUdevice);
	*(void **)&reset = ebb_find(cuda->library, "cuDevicePrimaryCtxReset_v2");
	if (!ebb_find(cuda->library, "softgpu_set_fault") || !reset)
		return -1;
	return (int)reset(device);
}

/* Begins the capture of a stream, and ends it without keeping the graph. For tests; as above. */
static inline int capture_software_stream(const struct ebb_cuda *cuda, CUstream stream, int begins)
{
	CUresult (*begin)(CUstream, int);
	CUresult (*end)(CUstream, void **);
	CUresult (*destroy)(void *);
	*(void **)&begin = ebb_find(cuda->library, "cuStreamBeginCapture_v2");
	*(void **)&end = ebb_find(cuda->library, "cuStreamEndCapture");
	*(void **)&destroy = ebb_find(cuda->library, "cuGraphDestroy");
	if (!ebb_find(cuda->library, "softgpu_set_fault") || !begin || !end || !destroy)
		return -1;
	if (begins)
		return (int)begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	void *graph = NULL;
	int code = (int)end(stream, &graph);
	return code || !graph ? code : (int)destroy(graph);
}

/* Memory in stream order from the device's default pool, and its end, on the legacy stream of the current context. For tests; as
 * above. size 0: frees *ptr. */
static inline int software_alloc_async(const struct ebb_cuda *cuda, CUdeviceptr *ptr, size_t size)
{
	CUresult (*allocate)(CUdeviceptr *, size_t, CUstream);
	CUresult (*release)(CUdeviceptr, CUstream);
	*(void **)&allocate = ebb_find(cuda->library, "cuMemAllocAsync");
	*(void **)&release = ebb_find(cuda->library, "cuMemFreeAsync");
	if (!ebb_find(cuda->library, "softgpu_set_fault") || !allocate || !release)
		return -1;
	return (int)(size ? allocate(ptr, size, NULL) : release(*ptr, NULL));
}

#endif
