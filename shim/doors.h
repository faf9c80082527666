/*
 * doors.h: functions of the driver that are hooked, and the doors that lead to them.
 *
 * A program comes to a driver function by linking with it, by dlsym, by cuGetProcAddress or by
 * cudaGetDriverEntryPoint, and a driver may give another address at each of these doors and for
 * each kind of stream. A function of ours that is handed out calls the very function that was found
 * there. So each hooked function has a few copies of ours, each with the driver's function behind
 * it; copy 0 is the exported symbol, which programs are linked with.
 */
#ifndef EBB_SHIM_DOORS_H
#define EBB_SHIM_DOORS_H

#include "shim.h"

typedef uint64_t CUdeviceptr;
typedef void *CUcontext;
typedef void *CUstream;
typedef void *CUmemoryPool;
typedef int CUdevice;

enum { DOOR_COPIES = 6 };

struct door {
	const char *symbol;          /* what dlsym and the linker call it */
	const char *name;            /* what cuGetProcAddress calls it; null: it is not told from another by name */
	int since;                   /* the first CUDA version in which the name means this symbol */
	_Atomic(void *) real[DOOR_COPIES];
	void *ours[DOOR_COPIES];
};

/* Every hooked function; each is defined by DRIVER_HOOK in the file of its concept. */
#define HOOKED(X) \
	X(cuGetProcAddress) X(cuGetProcAddress_v2) X(cuGetProcAddress_v2_ptsz) \
	X(cuMemCreate) X(cuMemRelease) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemGetAccess) \
	X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle) X(cuMemRetainAllocationHandle) \
	X(cuMemGetAllocationPropertiesFromHandle) X(cuMemAddressFree) \
	X(cuMulticastAddDevice) X(cuMulticastUnbind) X(cuMulticastBindMem) X(cuMulticastBindMem_v2) \
	X(cuMulticastBindAddr) X(cuMulticastBindAddr_v2) X(cuLogicalEndpointBindMem) X(cuLogicalEndpointBindAddr) \
	X(cuMemMapArrayAsync) X(cuMemMapArrayAsync_ptsz) \
	X(cuMemAlloc_v2) X(cuMemAllocPitch_v2) X(cuMemFree_v2) X(cuMemAllocManaged) X(cuIpcGetMemHandle) \
	X(cuMemGetHandleForAddressRange) \
	X(cuMemPoolCreate) X(cuMemPoolDestroy) X(cuMemAllocAsync) X(cuMemAllocAsync_ptsz) X(cuMemAllocFromPoolAsync) X(cuMemAllocFromPoolAsync_ptsz) \
	X(cuMemFreeAsync) X(cuMemFreeAsync_ptsz) \
	X(cuCtxEnablePeerAccess) X(cuCtxDisablePeerAccess) \
	X(cuStreamBeginCapture_v2) X(cuStreamBeginCapture_v2_ptsz) \
	X(cuStreamBeginCaptureToGraph) X(cuStreamBeginCaptureToGraph_ptsz) \
	X(cuStreamBeginRecaptureToGraph) X(cuStreamBeginRecaptureToGraph_ptsz) \
	X(cuStreamEndCapture) X(cuStreamEndCapture_ptsz) X(cuStreamDestroy_v2) \
	X(cuDevicePrimaryCtxReset) X(cuDevicePrimaryCtxReset_v2)

#define DECLARE_DOOR(function) extern struct door function##_door;
HOOKED(DECLARE_DOOR)
#undef DECLARE_DOOR

extern struct door *const doors[];
extern const size_t door_count;

/* The hooked function of that symbol, or of that name and version; null: it is none. */
struct door *door_of_symbol(const char *symbol);
struct door *door_of_name(const char *name, int version);
/* The copy of ours to hand out for a function that was found. */
void *door_open(struct door *door, void *found);
/* The driver's function behind a copy. Null behind copy 0 where no loaded driver has it. */
void *door_real(struct door *door, size_t copy);
/* Whether this dlsym gives the driver's own where ours should be. */
bool passes_doors_by(dlsym_fn *find);
/* Tells a process that manages memory, once, that its driver lacks a function that this needs. */
void driver_lacks(const struct door *door);
/* Says once that the driver lacks a function, and returns the error for it. */
CUresult driver_missing(const char *symbol);

#define LIST(...) __VA_ARGS__

#define DOOR_COPY(function, copy, parameters, arguments)                                                    \
	static CUresult function##_copy##copy(parameters)                                                   \
	{                                                                                                   \
		function##_fn *real = (function##_fn *)atomic_load(&function##_door.real[copy]);            \
		const void *caller = __builtin_return_address(0);                                           \
                                                                                                            \
		return engine_contains(caller) ? real(arguments) : function##_hook(real, caller, arguments); \
	}

/*
 * Defines a function's copies. Before it stand its type, function_fn, and what all copies do:
 *   static CUresult function_hook(function_fn *real, const void *caller, parameters)
 * The engine's own calls, should one come here, go on to the driver.
 */
#define DRIVER_HOOK(function, its_name, its_since, parameters, arguments)                                   \
	DOOR_COPY(function, 1, LIST(parameters), LIST(arguments))                                           \
	DOOR_COPY(function, 2, LIST(parameters), LIST(arguments))                                           \
	DOOR_COPY(function, 3, LIST(parameters), LIST(arguments))                                           \
	DOOR_COPY(function, 4, LIST(parameters), LIST(arguments))                                           \
	DOOR_COPY(function, 5, LIST(parameters), LIST(arguments))                                           \
	EXPORT CUresult function(parameters);                                                               \
	EXPORT CUresult function(parameters)                                                                \
	{                                                                                                   \
		function##_fn *real = (function##_fn *)door_real(&function##_door, 0);                      \
		const void *caller = __builtin_return_address(0);                                           \
                                                                                                            \
		if (real == NULL)                                                                           \
			return driver_missing(#function);                                                   \
		return engine_contains(caller) ? real(arguments) : function##_hook(real, caller, arguments); \
	}                                                                                                   \
	struct door function##_door = {                                                                     \
		.symbol = #function,                                                                        \
		.name = its_name,                                                                           \
		.since = its_since,                                                                         \
		.ours = {(void *)function, (void *)function##_copy1, (void *)function##_copy2,              \
			 (void *)function##_copy3, (void *)function##_copy4, (void *)function##_copy5},     \
	};

/* ---- vmm.c ------------------------------------------------------------------------------------------ */

/* Turns a handle of the engine's into the driver's, for a call that needs that; the memory is kept from
 * then on, for the reason why. Other handles stay as they are. False: *result is the answer. */
bool vmm_real_handle(uint64_t *handle, const char *why, const char *function, CUresult *result);
/* Keeps memory of the engine that is mapped at this address: *result is CUDA_SUCCESS then. True also where
 * none is; false: *result is the answer. */
bool vmm_keep(CUdeviceptr address, const char *why, const char *function, CUresult *result);

#endif
