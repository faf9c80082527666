/* fake_cudart.c: stands in for libcudart.so.<RUNTIME>. See fakes.h. */
#include "fakes.h"

#include <dlfcn.h>
#include <string.h>

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define RECORD JOIN(fake_cudart_, RUNTIME)

struct fake_cudart RECORD;

static _Thread_local int current_device;
static _Thread_local int capture_mode; /* 0 global, 2 relaxed */

/* ---- the driver, found as NVIDIA's runtime finds it ------------------------------------------------ */

typedef int get_proc_address_fn(const char *name, void **function, int version, unsigned long long flags, int *status);

static get_proc_address_fn *find_driver(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	return driver != NULL ? (get_proc_address_fn *)dlsym(driver, "cuGetProcAddress_v2") : NULL;
}

static void *driver_function(const char *name)
{
	get_proc_address_fn *get = find_driver();
	void *function = NULL;
	int status;

	return get != NULL && get(name, &function, 12000, 0, &status) == 0 ? function : NULL;
}

int cudaMalloc(void **ptr, size_t size)
{
	if (RECORD.uses_driver)
		return ((int (*)(uint64_t *, size_t))driver_function("cuMemAlloc"))((uint64_t *)ptr, size);
	*ptr = (void *)(uintptr_t)((RUNTIME << 24) + ++RECORD.mallocs);
	return cudaSuccess;
}

int cudaFree(void *ptr)
{
	if (ptr == NULL) {
		RECORD.contexts++;
		RECORD.context_mode = capture_mode;
		return RECORD.context_error;
	}
	RECORD.frees++;
	RECORD.last_freed = ptr;
	return RECORD.uses_driver ? ((int (*)(uint64_t))driver_function("cuMemFree"))((uintptr_t)ptr) : RECORD.free_error;
}

int cudaMallocManaged(void **ptr, size_t size, unsigned int flags)
{
	(void)size;
	(void)flags;
	*ptr = (void *)(uintptr_t)((RUNTIME << 24) + 0x800000 + ++RECORD.managed_mallocs);
	return cudaSuccess;
}

int cudaDeviceEnablePeerAccess(int device, unsigned int flags)
{
	(void)device;
	(void)flags;
	RECORD.peers_enabled++;
	return RECORD.peer_error;
}

int cudaDeviceDisablePeerAccess(int device)
{
	(void)device;
	RECORD.peers_disabled++;
	return RECORD.peer_error;
}

int cudaDeviceReset(void)
{
	RECORD.resets++;
	return RECORD.uses_driver ? ((int (*)(int))driver_function("cuDevicePrimaryCtxReset"))(current_device) : cudaSuccess;
}

int cudaRuntimeGetVersion(int *version)
{
	*version = 1000 * RUNTIME;
	return cudaSuccess;
}

int cudaGetDevice(int *device)
{
	*device = current_device;
	return RECORD.get_device_error;
}

int cudaSetDevice(int device)
{
	current_device = device;
	return cudaSuccess;
}

int cudaGetLastError(void)
{
	RECORD.last_errors++;
	return RUNTIME;
}

int cudaHostGetFlags(unsigned int *flags, void *host)
{
	(void)host;
	RECORD.host_flags++;
	*flags = RUNTIME;
	return cudaSuccess;
}

int cudaIpcGetMemHandle(void *handle, void *ptr)
{
	(void)handle;
	(void)ptr;
	RECORD.ipc_handles++;
	return cudaSuccess;
}

/* ---- captures -------------------------------------------------------------------------------- */

static int begin_capture(void *stream)
{
	if (RECORD.begin_error != cudaSuccess)
		return RECORD.begin_error;
	if (RECORD.uses_driver)
		return ((int (*)(void *, int))driver_function("cuStreamBeginCapture"))(stream, 0);
	return fake_begin_capture(stream);
}

static int end_capture(void *stream, void **graph)
{
	if (RECORD.uses_driver)
		return ((int (*)(void *, void **))driver_function("cuStreamEndCapture"))(stream, graph);
	return fake_end_capture(stream, graph);
}

#define CAPTURE(suffix, is_per_thread)                                                                   \
	int cudaStreamIsCapturing##suffix(void *stream, int *status)                                     \
	{                                                                                                \
		*status = ((struct fake_stream *)stream)->status;                                        \
		return cudaSuccess;                                                                      \
	}                                                                                                \
	int cudaStreamBeginCapture##suffix(void *stream, int mode)                                       \
	{                                                                                                \
		(void)mode;                                                                              \
		RECORD.per_thread = is_per_thread;                                                       \
		return begin_capture(stream);                                                            \
	}                                                                                                \
	int cudaStreamBeginCaptureToGraph##suffix(void *stream, void *graph, const void *dependencies,   \
						  const void *data, size_t count, int mode)              \
	{                                                                                                \
		(void)graph;                                                                             \
		(void)dependencies;                                                                      \
		(void)data;                                                                              \
		(void)count;                                                                             \
		(void)mode;                                                                              \
		RECORD.per_thread = is_per_thread;                                                       \
		return begin_capture(stream);                                                            \
	}                                                                                                \
	int cudaStreamEndCapture##suffix(void *stream, void **graph)                                     \
	{                                                                                                \
		RECORD.per_thread = is_per_thread;                                                       \
		return end_capture(stream, graph);                                                       \
	}
CAPTURE(, false)
CAPTURE(_ptsz, true)

int cudaThreadExchangeStreamCaptureMode(int *mode)
{
	int before = capture_mode;

	if (RECORD.exchange_error != cudaSuccess)
		return RECORD.exchange_error;
	capture_mode = *mode;
	*mode = before;
	return cudaSuccess;
}

int cudaStreamDestroy(void *stream)
{
	if (RECORD.uses_driver)
		return ((int (*)(void *))driver_function("cuStreamDestroy"))(stream);
	return ((struct fake_stream *)stream)->destroy_fails ? cudaErrorInvalidValue : cudaSuccess;
}

/* ---- requests for functions of the driver ---------------------------------------------------------- */

static int entry_point(const char *symbol, void **function, int version, unsigned long long flags, int *status)
{
	get_proc_address_fn *get = find_driver();
	int its;

	RECORD.entry_points++;
	*function = NULL;
	int error = get != NULL ? get(symbol, function, version, flags, &its) : 500;
	if (status != NULL)
		*status = *function != NULL ? 0 : 1;
	return error == 500 ? cudaSuccess : error;
}

#define ENTRY_POINT(suffix, is_per_thread)                                                                       \
	int cudaGetDriverEntryPoint##suffix(const char *symbol, void **function, unsigned long long flags,       \
					    int *status)                                                         \
	{                                                                                                        \
		RECORD.version_asked = 0;                                                                        \
		RECORD.per_thread = is_per_thread;                                                               \
		return entry_point(symbol, function, 1000 * RUNTIME, flags, status);                             \
	}                                                                                                        \
	int cudaGetDriverEntryPointByVersion##suffix(const char *symbol, void **function, unsigned int version,  \
						     unsigned long long flags, int *status)                      \
	{                                                                                                        \
		RECORD.version_asked = (int)version;                                                             \
		RECORD.per_thread = is_per_thread;                                                               \
		return entry_point(symbol, function, (int)version, flags, status);                               \
	}
ENTRY_POINT(, false)
ENTRY_POINT(_ptsz, true)
