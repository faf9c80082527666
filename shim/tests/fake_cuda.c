/* fake_cuda.c: stands in for libcuda.so.1. See fakes.h. With OLD it has no virtual memory calls. */
#include "fakes.h"

#include <string.h>

struct fake_cuda fake_cuda;

enum { NOT_FOUND = 500 };

typedef unsigned long long u64;

static _Atomic u64 last_number = 0x1000; /* of handles and addresses */

static int called(int via, _Atomic int *count)
{
	fake_cuda.calls++;
	fake_cuda.via = via;
	++*count;
	return fake_cuda.result;
}

static int with_handle(int via, _Atomic int *count, u64 handle)
{
	fake_cuda.virtual_handles += EBB_ENGINE_IS_HANDLE(handle);
	fake_cuda.last_handle = handle;
	return called(via, count);
}

static int with_address(int via, _Atomic int *count, u64 address)
{
	fake_cuda.last_address = address;
	return called(via, count);
}

static int gives(int via, _Atomic int *count, u64 *number)
{
	int result = called(via, count);

	if (result == 0)
		*number = fake_cuda.next != 0 ? fake_cuda.next : (last_number += 0x1000);
	return result;
}

static int gives_pitch(int via, u64 *ptr, size_t *pitch)
{
	int result = gives(via, &fake_cuda.pitches, ptr);

	if (result == 0)
		*pitch = 256;
	return result;
}

#define LIST(...) __VA_ARGS__

/* A function by symbol, and another one for requests. */
#define CALL(name, parameters, does)                    \
	static int name##_proc(parameters)              \
	{                                               \
		const int via = VIA_PROC;               \
		return does;                            \
	}                                               \
	int name(parameters)                            \
	{                                               \
		const int via = VIA_SYMBOL;             \
		return does;                            \
	}

#define STREAM_CALL(name, parameters, does)             \
	CALL(name, LIST(parameters), does)              \
	int name##_ptsz(parameters)                     \
	{                                               \
		const int via = VIA_PROC_PER_THREAD;    \
		return does;                            \
	}

#pragma GCC diagnostic ignored "-Wunused-parameter"

#ifndef OLD
CALL(cuMemCreate, LIST(u64 *handle, size_t size, const void *prop, u64 flags), gives(via, &fake_cuda.creates, handle))
CALL(cuMemRelease, LIST(u64 handle), with_handle(via, &fake_cuda.releases, handle))
CALL(cuMemMap, LIST(u64 address, size_t size, size_t offset, u64 handle, u64 flags),
     with_handle(via, &fake_cuda.maps, handle))
CALL(cuMemUnmap, LIST(u64 address, size_t size), with_address(via, &fake_cuda.unmaps, address))
CALL(cuMemSetAccess, LIST(u64 address, size_t size, const void *desc, size_t count),
     with_address(via, &fake_cuda.set_accesses, address))
CALL(cuMemGetAccess, LIST(u64 *flags, const void *location, u64 address),
     with_address(via, &fake_cuda.get_accesses, address))
CALL(cuMemExportToShareableHandle, LIST(void *shareable, u64 handle, int type, u64 flags),
     with_handle(via, &fake_cuda.exports, handle))
CALL(cuMemImportFromShareableHandle, LIST(u64 *handle, void *shareable, int type),
     gives(via, &fake_cuda.imports, handle))
CALL(cuMemRetainAllocationHandle, LIST(u64 *handle, void *address),
     (*handle = fake_cuda.last_handle, with_address(via, &fake_cuda.retains, (uintptr_t)address)))
CALL(cuMemGetAllocationPropertiesFromHandle, LIST(void *prop, u64 handle),
     with_handle(via, &fake_cuda.properties, handle))
CALL(cuMemAddressFree, LIST(u64 address, size_t size), with_address(via, &fake_cuda.address_frees, address))
#endif

CALL(cuMulticastAddDevice, LIST(u64 object, int device), with_handle(via, &fake_cuda.binds, object))
CALL(cuMulticastUnbind, LIST(u64 object, int device, size_t offset, size_t size),
     with_handle(via, &fake_cuda.binds, object))
CALL(cuMulticastBindMem, LIST(u64 object, size_t offset, u64 handle, size_t handle_offset, size_t size, u64 flags),
     with_handle(via, &fake_cuda.binds, handle))
CALL(cuMulticastBindMem_v2,
     LIST(u64 object, int device, size_t offset, u64 handle, size_t handle_offset, size_t size, u64 flags),
     with_handle(via, &fake_cuda.binds, handle))
CALL(cuMulticastBindAddr, LIST(u64 object, size_t offset, u64 address, size_t size, u64 flags),
     with_address(via, &fake_cuda.binds, address))
CALL(cuMulticastBindAddr_v2, LIST(u64 object, int device, size_t offset, u64 address, size_t size, u64 flags),
     with_address(via, &fake_cuda.binds, address))
CALL(cuLogicalEndpointBindMem,
     LIST(unsigned endpoint, int device, u64 offset, u64 handle, u64 handle_offset, u64 size, u64 flags),
     with_handle(via, &fake_cuda.binds, handle))
CALL(cuLogicalEndpointBindAddr, LIST(unsigned endpoint, int device, u64 offset, void *address, u64 size, u64 flags),
     with_address(via, &fake_cuda.binds, (uintptr_t)address))

/* Only the last handle is looked at; it lies 64 bytes behind the entry's begin. */
static u64 handle_in(const char *list, unsigned count)
{
	u64 handle;

	memcpy(&handle, list + 96 * (count - 1) + 64, sizeof(handle));
	return handle;
}
STREAM_CALL(cuMemMapArrayAsync, LIST(void *list, unsigned count, void *stream),
	    with_handle(via, &fake_cuda.array_maps, handle_in(list, count)))

CALL(cuMemAlloc_v2, LIST(u64 *ptr, size_t size), gives(via, &fake_cuda.allocs, ptr))
CALL(cuMemAllocPitch_v2, LIST(u64 *ptr, size_t *pitch, size_t width, size_t height, unsigned element),
     gives_pitch(via, ptr, pitch))
CALL(cuMemFree_v2, LIST(u64 ptr), with_address(via, &fake_cuda.frees, ptr))
CALL(cuMemAllocManaged, LIST(u64 *ptr, size_t size, unsigned flags), gives(via, &fake_cuda.managed_allocs, ptr))
CALL(cuIpcGetMemHandle, LIST(void *handle, u64 ptr), with_address(via, &fake_cuda.ipc_handles, ptr))
STREAM_CALL(cuMemAllocAsync, LIST(u64 *ptr, size_t size, void *stream), gives(via, &fake_cuda.async_allocs, ptr))
STREAM_CALL(cuMemAllocFromPoolAsync, LIST(u64 *ptr, size_t size, void *pool, void *stream),
	    gives(via, &fake_cuda.async_allocs, ptr))
STREAM_CALL(cuMemFreeAsync, LIST(u64 ptr, void *stream), with_address(via, &fake_cuda.async_frees, ptr))
CALL(cuMemPoolCreate, LIST(void **pool, const void *props), gives(via, &fake_cuda.pools_created, (u64 *)pool))
CALL(cuMemPoolDestroy, LIST(void *pool), with_address(via, &fake_cuda.pools_destroyed, (uintptr_t)pool))
CALL(cuMemGetHandleForAddressRange, LIST(void *handle, u64 address, size_t size, int type, u64 flags),
     with_address(via, &fake_cuda.range_exports, address))
CALL(cuCtxEnablePeerAccess, LIST(void *context, unsigned flags), called(via, &fake_cuda.peers_enabled))
CALL(cuCtxDisablePeerAccess, LIST(void *context), called(via, &fake_cuda.peers_disabled))

CALL(cuMemPoolTrimTo, LIST(void *pool, size_t keep), with_address(via, &fake_cuda.trims, (uintptr_t)pool))

/* ---- captures ---------------------------------------------------------------------------------------------- */

static _Thread_local struct fake_stream thread_stream; /* CU_STREAM_PER_THREAD, or 0 by the functions for that */

static struct fake_stream *stream_of(int via, void *stream)
{
	return stream == (void *)2 || (stream == NULL && via == VIA_PROC_PER_THREAD) ? &thread_stream : stream;
}

static int begins(int via, void *stream)
{
	int result = called(via, &fake_cuda.begins);

	return result != 0 || stream_of(via, stream) == NULL ? 900 : fake_begin_capture(stream_of(via, stream));
}

static int ends(int via, void *stream, void **graph)
{
	called(via, &fake_cuda.ends);
	return stream_of(via, stream) == NULL ? 900 : fake_end_capture(stream_of(via, stream), graph);
}

static int destroys(int via, struct fake_stream *stream)
{
	called(via, &fake_cuda.destroys);
	return stream->destroy_fails ? 1 : 0;
}

static int resets(int via, int device)
{
	fake_cuda.last_reset = device;
	return called(via, &fake_cuda.resets);
}

STREAM_CALL(cuStreamBeginCapture_v2, LIST(void *stream, int mode), begins(via, stream))
STREAM_CALL(cuStreamBeginCaptureToGraph,
	    LIST(void *stream, void *graph, const void *dependencies, const void *data, size_t count, int mode),
	    begins(via, stream))
STREAM_CALL(cuStreamBeginRecaptureToGraph, LIST(void *stream, int mode, void *graph, void *callback, void *data),
	    begins(via, stream))
STREAM_CALL(cuStreamEndCapture, LIST(void *stream, void **graph), ends(via, stream, graph))
CALL(cuStreamDestroy_v2, LIST(void *stream), destroys(via, stream))
CALL(cuDevicePrimaryCtxReset, LIST(int device), resets(via, device))
CALL(cuDevicePrimaryCtxReset_v2, LIST(int device), resets(via, device))

int cuStreamIsCapturing(void *stream, int *status)
{
	*status = stream_of(VIA_SYMBOL, stream)->status;
	return 0;
}

int cuMemAlloc(unsigned *ptr, unsigned size)
{
	(void)size;
	*ptr = 7;
	fake_cuda.alloc_v1s++;
	return 0;
}

/* ---- contexts: the value is the device's number ----------------------------------------------------------- */

static _Thread_local uintptr_t stack[4] = {1};
static _Thread_local int top;

int cuCtxGetDevice(int *device)
{
	if (stack[top] == 0)
		return 201; /* CUDA_ERROR_INVALID_CONTEXT */
	*device = stack[top] == 3 && fake_cuda.context_moved != 0 ? fake_cuda.context_moved : (int)stack[top];
	return 0;
}

int cuCtxSetCurrent(void *context)
{
	stack[top] = (uintptr_t)context;
	return 0;
}

int cuCtxPushCurrent_v2(void *context)
{
	fake_cuda.pushes++;
	stack[++top] = (uintptr_t)context;
	return 0;
}

int cuCtxPopCurrent_v2(void **context)
{
	*context = (void *)stack[top--];
	return 0;
}

/* ---- requests ------------------------------------------------------------------------------------------------ */

int cuDriverGetVersion(int *version)
{
	*version = 13050;
	return 0;
}

int cuGetProcAddress(const char *name, void **function, int version, u64 flags);
int cuGetProcAddress_v2(const char *name, void **function, int version, u64 flags, int *status);
static int get_v1(const char *name, void **function, int version, u64 flags);
static int get_v2(const char *name, void **function, int version, u64 flags, int *status);

/* The newest function of a name comes first. */
static const struct {
	const char *name;
	int since;
	void *function, *per_thread;
} functions[] = {
#define BY_NAME(name, since) {#name, since, (void *)name##_proc, NULL}
#define BY_STREAM(name, since) {#name, since, (void *)name##_proc, (void *)name##_ptsz}
	{"cuGetProcAddress", 12000, (void *)get_v2, NULL},
	{"cuGetProcAddress", 11030, (void *)get_v1, NULL},
#ifndef OLD
	BY_NAME(cuMemCreate, 10020),
	BY_NAME(cuMemRelease, 10020),
	BY_NAME(cuMemMap, 10020),
	BY_NAME(cuMemUnmap, 10020),
	BY_NAME(cuMemSetAccess, 10020),
	BY_NAME(cuMemGetAccess, 10020),
	BY_NAME(cuMemExportToShareableHandle, 10020),
	BY_NAME(cuMemImportFromShareableHandle, 10020),
	BY_NAME(cuMemRetainAllocationHandle, 11000),
	BY_NAME(cuMemGetAllocationPropertiesFromHandle, 10020),
	BY_NAME(cuMemAddressFree, 10020),
#endif
	BY_NAME(cuMulticastAddDevice, 12010),
	BY_NAME(cuMulticastUnbind, 12010),
	{"cuMulticastBindMem", 13010, (void *)cuMulticastBindMem_v2_proc, NULL},
	BY_NAME(cuMulticastBindMem, 12010),
	{"cuMulticastBindAddr", 13010, (void *)cuMulticastBindAddr_v2_proc, NULL},
	BY_NAME(cuMulticastBindAddr, 12010),
	BY_NAME(cuLogicalEndpointBindMem, 13030),
	BY_NAME(cuLogicalEndpointBindAddr, 13030),
	BY_STREAM(cuMemMapArrayAsync, 11010),
	{"cuMemAlloc", 3020, (void *)cuMemAlloc_v2_proc, NULL},
	{"cuMemAlloc", 2000, (void *)cuMemAlloc, NULL},
	{"cuMemAllocPitch", 3020, (void *)cuMemAllocPitch_v2_proc, NULL},
	{"cuMemFree", 3020, (void *)cuMemFree_v2_proc, NULL},
	BY_NAME(cuMemAllocManaged, 6000),
	BY_NAME(cuIpcGetMemHandle, 4010),
	BY_NAME(cuMemPoolCreate, 11020),
	BY_NAME(cuMemPoolDestroy, 11020),
	BY_NAME(cuMemPoolTrimTo, 11020),
	BY_NAME(cuMemGetHandleForAddressRange, 11070),
	BY_STREAM(cuMemAllocAsync, 11020),
	BY_STREAM(cuMemAllocFromPoolAsync, 11020),
	BY_STREAM(cuMemFreeAsync, 11020),
	BY_NAME(cuCtxEnablePeerAccess, 4000),
	BY_NAME(cuCtxDisablePeerAccess, 4000),
	{"cuStreamBeginCapture", 10010, (void *)cuStreamBeginCapture_v2_proc, (void *)cuStreamBeginCapture_v2_ptsz},
	BY_STREAM(cuStreamBeginCaptureToGraph, 12030),
	BY_STREAM(cuStreamBeginRecaptureToGraph, 13030),
	BY_STREAM(cuStreamEndCapture, 10000),
	{"cuStreamDestroy", 4000, (void *)cuStreamDestroy_v2_proc, NULL},
	{"cuDevicePrimaryCtxReset", 11000, (void *)cuDevicePrimaryCtxReset_v2_proc, NULL},
	{"cuDevicePrimaryCtxReset", 7000, (void *)cuDevicePrimaryCtxReset_proc, NULL},
	{"cuCtxSetCurrent", 4000, (void *)cuCtxSetCurrent, NULL},
};

enum { PER_THREAD_DEFAULT_STREAM = 2 };

static int get(const char *name, void **function, int version, u64 flags)
{
	fake_cuda.requests++;
	fake_cuda.version_asked = version;
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++)
		if (strcmp(functions[i].name, name) == 0 && functions[i].since <= version) {
			*function = (flags & PER_THREAD_DEFAULT_STREAM) != 0 && functions[i].per_thread != NULL
					    ? functions[i].per_thread
					    : functions[i].function;
			return 0;
		}
	return NOT_FOUND; /* and *function is left as it is */
}

static int get_v1(const char *name, void **function, int version, u64 flags)
{
	return get(name, function, version, flags);
}

static int get_v2(const char *name, void **function, int version, u64 flags, int *status)
{
	int error = get(name, function, version, flags);

	if (status != NULL)
		*status = error != 0;
	return error;
}

int cuGetProcAddress(const char *name, void **function, int version, u64 flags)
{
	return get(name, function, version, flags);
}

int cuGetProcAddress_v2(const char *name, void **function, int version, u64 flags, int *status)
{
	return get_v2(name, function, version, flags, status);
}

int cuGetProcAddress_v2_ptsz(const char *name, void **function, int version, u64 flags, int *status)
{
	return get_v2(name, function, version, flags | PER_THREAD_DEFAULT_STREAM, status);
}
