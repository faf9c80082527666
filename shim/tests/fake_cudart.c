/* fake_cudart.c: stands in for libcudart.so.<RUNTIME>. See fakes.h. */
#include "fakes.h"

#include <string.h>

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define RECORD JOIN(fake_cudart_, RUNTIME)

struct fake_cudart RECORD;

static _Thread_local int current_device;
static _Thread_local int capture_mode; /* 0 global, 2 relaxed */

int cudaMalloc(void **ptr, size_t size)
{
	(void)size;
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
	struct fake_stream *s = stream;

	if (RECORD.begin_error != cudaSuccess)
		return RECORD.begin_error;
	if (s->status != 0)
		return cudaErrorIllegalState;
	s->status = 1;
	return cudaSuccess;
}

static int end_capture(void *stream, void **graph)
{
	struct fake_stream *s = stream;
	int status = s->status;

	*graph = NULL;
	if (status == 0)
		return cudaErrorIllegalState;
	if (s->other_thread)
		return cudaErrorStreamCaptureWrongThread;
	s->status = 0;
	return status == 2 ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
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
	return ((struct fake_stream *)stream)->destroy_fails ? cudaErrorInvalidValue : cudaSuccess;
}

/* ---- functions of the driver ----------------------------------------------------------------- */

static int mem_create(unsigned long long *handle, size_t size, const void *properties, unsigned long long flags)
{
	(void)size;
	(void)properties;
	(void)flags;
	*handle = (unsigned long long)++RECORD.mem_creates;
	return 0;
}

/* No memory can be mapped at address 0. */
static int mem_map(uintptr_t ptr, size_t size, size_t offset, unsigned long long handle, unsigned long long flags)
{
	(void)size;
	(void)offset;
	(void)handle;
	(void)flags;
	RECORD.mem_maps += ptr != 0;
	return ptr != 0 ? 0 : 1;
}

static int mem_unmap(uintptr_t ptr, size_t size)
{
	(void)size;
	RECORD.mem_unmaps += ptr != 0;
	return ptr != 0 ? 0 : 1;
}

static void mem_address_reserve(void)
{
}

static int entry_point(const char *symbol, void **function, int *status)
{
	static const struct {
		const char *symbol;
		void *function;
	} functions[] = {
		{"cuMemCreate", (void *)mem_create},
		{"cuMemMap", (void *)mem_map},
		{"cuMemUnmap", (void *)mem_unmap},
		{"cuMemAddressReserve", (void *)mem_address_reserve},
	};

	RECORD.entry_points++;
	*function = NULL;
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++)
		if (strcmp(symbol, functions[i].symbol) == 0)
			*function = functions[i].function;
	if (status != NULL)
		*status = *function != NULL ? 0 : 1;
	return cudaSuccess;
}

#define ENTRY_POINT(suffix, is_per_thread)                                                                       \
	int cudaGetDriverEntryPoint##suffix(const char *symbol, void **function, unsigned long long flags,       \
					    int *status)                                                         \
	{                                                                                                        \
		(void)flags;                                                                                     \
		RECORD.version_asked = 0;                                                                        \
		RECORD.per_thread = is_per_thread;                                                               \
		return entry_point(symbol, function, status);                                                    \
	}                                                                                                        \
	int cudaGetDriverEntryPointByVersion##suffix(const char *symbol, void **function, unsigned int version,  \
						     unsigned long long flags, int *status)                      \
	{                                                                                                        \
		(void)flags;                                                                                     \
		RECORD.version_asked = (int)version;                                                             \
		RECORD.per_thread = is_per_thread;                                                               \
		return entry_point(symbol, function, status);                                                    \
	}
ENTRY_POINT(, false)
ENTRY_POINT(_ptsz, true)
