/*
 * doors.h: the ways by which programs come to functions of the driver, and these functions as each
 * way gives them.
 */
#ifndef EBB_SHIM_TESTS_DOORS_H
#define EBB_SHIM_TESTS_DOORS_H

#include "harness.h"

#define DRIVER_CALLS(X)                                                                                        \
	X(cuMemCreate, , int, (uint64_t *, size_t, const void *, uint64_t))                                    \
	X(cuMemRelease, , int, (uint64_t))                                                                     \
	X(cuMemMap, , int, (uint64_t, size_t, size_t, uint64_t, uint64_t))                                     \
	X(cuMemUnmap, , int, (uint64_t, size_t))                                                               \
	X(cuMemSetAccess, , int, (uint64_t, size_t, const void *, size_t))                                     \
	X(cuMemGetAccess, , int, (uint64_t *, const void *, uint64_t))                                         \
	X(cuMemExportToShareableHandle, , int, (void *, uint64_t, int, uint64_t))                              \
	X(cuMemImportFromShareableHandle, , int, (uint64_t *, void *, int))                                    \
	X(cuMemRetainAllocationHandle, , int, (uint64_t *, void *))                                            \
	X(cuMemGetAllocationPropertiesFromHandle, , int, (void *, uint64_t))                                   \
	X(cuMemAddressFree, , int, (uint64_t, size_t))                                                         \
	X(cuMulticastAddDevice, , int, (uint64_t, int))                                                        \
	X(cuMulticastUnbind, , int, (uint64_t, int, size_t, size_t))                                           \
	X(cuMemMapArrayAsync, , int, (void *, unsigned, void *))                                               \
	X(cuMemAlloc, _v2, int, (uint64_t *, size_t))                                                          \
	X(cuMemAllocPitch, _v2, int, (uint64_t *, size_t *, size_t, size_t, unsigned))                         \
	X(cuMemFree, _v2, int, (uint64_t))                                                                     \
	X(cuMemAllocManaged, , int, (uint64_t *, size_t, unsigned))                                            \
	X(cuIpcGetMemHandle, , int, (void *, uint64_t))                                                        \
	X(cuMemPoolCreate, , int, (void **, const void *))                                                     \
	X(cuMemPoolDestroy, , int, (void *))                                                                   \
	X(cuMemGetHandleForAddressRange, , int, (void *, uint64_t, size_t, int, uint64_t))                     \
	X(cuMemAllocAsync, , int, (uint64_t *, size_t, void *))                                                \
	X(cuMemAllocFromPoolAsync, , int, (uint64_t *, size_t, void *, void *))                                \
	X(cuMemFreeAsync, , int, (uint64_t, void *))                                                           \
	X(cuCtxEnablePeerAccess, , int, (void *, unsigned))                                                    \
	X(cuCtxDisablePeerAccess, , int, (void *))                                                             \
	X(cuStreamBeginCapture, _v2, int, (void *, int))                                                       \
	X(cuStreamBeginCaptureToGraph, , int, (void *, void *, const void *, const void *, size_t, int))       \
	X(cuStreamEndCapture, , int, (void *, void **))                                                        \
	X(cuStreamDestroy, _v2, int, (void *))                                                                 \
	X(cuDevicePrimaryCtxReset, _v2, int, (int))

struct driver {
#define MEMBER(name, version, type, parameters) type(*name) parameters;
	DRIVER_CALLS(MEMBER)
#undef MEMBER
};

enum door {
	LINKED,              /* the symbols that a program is linked with */
	BY_DLSYM,            /* in the driver's library */
	BY_DLSYM_OF_USER,    /* in a library that is linked with the driver's */
	BY_PROC,             /* cuGetProcAddress_v2, found by dlsym */
	BY_PROC_LINKED,      /* the same, linked */
	BY_PROC_V1,          /* cuGetProcAddress, as of CUDA 11 */
	BY_PROC_PER_THREAD,  /* cuGetProcAddress_v2_ptsz */
	BY_PROC_OF_PROC,     /* cuGetProcAddress, found through itself */
	BY_ENTRY,            /* cudaGetDriverEntryPoint */
	BY_ENTRY_PER_THREAD,
	BY_VERSION,          /* cudaGetDriverEntryPointByVersion */
	BY_VERSION_PER_THREAD,
	BY_PROC_OF_ENTRY,    /* cuGetProcAddress, found through cudaGetDriverEntryPoint */
	DOORS
};

/* The driver, loaded privately, and its record. */
void *load_driver(void);
struct fake_cuda *driver_seen(void);
/* A function through a door; null: not found. symbol: its name and version. */
void *through(enum door door, const char *name, const char *symbol);
/* All functions through a door; expects that none is missing. */
const struct driver *open_door(enum door door);

/* CUmemAllocationProp of pinned memory on a device, and in host memory. */
extern const int on_device[8], in_host_memory[8];

#endif
