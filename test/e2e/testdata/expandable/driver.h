/*
 * driver.h: how this program ends on an error, and the driver's functions that map memory, got
 * through one of the doors by which allocators get them.
 */
#ifndef EXPANDABLE_DRIVER_H
#define EXPANDABLE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "softgpu_cuda.h"
#include "softgpu_cudart.h"

/* The functions, as the driver declares them. */
#define DRIVER_FUNCTIONS(X)                                                                                            \
	X(cuMemAddressReserve)                                                                                         \
	X(cuMemAddressFree)                                                                                            \
	X(cuMemCreate)                                                                                                 \
	X(cuMemRelease)                                                                                                \
	X(cuMemMap)                                                                                                    \
	X(cuMemUnmap)                                                                                                  \
	X(cuMemSetAccess)                                                                                              \
	X(cuMemGetAccess)                                                                                              \
	X(cuMemGetAllocationGranularity)                                                                               \
	X(cuMemGetAllocationPropertiesFromHandle)                                                                      \
	X(cuMemRetainAllocationHandle)                                                                                 \
	X(cuMemExportToShareableHandle)

struct driver {
#define X(name) __typeof__(&(name)) name;
	DRIVER_FUNCTIONS(X)
#undef X
};
extern struct driver driver;

/* Fills `driver`: "version" (cudaGetDriverEntryPointByVersion, as PyTorch does), "entry"
 * (cudaGetDriverEntryPoint), "proc" (cuGetProcAddress_v2), "dlsym" or "linked". */
void driver_open(const char *door);

/* Prints one line, and what was done last, and ends the process with status 1. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Notes what is about to be done. */
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Ends the process unless the call succeeded. */
#define DRIVER(call) driver_check((call), #call)
#define RUNTIME(call) runtime_check((call), #call)
void driver_check(CUresult error, const char *call);
void runtime_check(cudaError_t error, const char *call);

#endif
