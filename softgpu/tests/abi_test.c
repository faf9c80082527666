/* Compiled once for each of NVIDIA's header sets: softgpu's declarations must say the same. NVIDIA's come in under their own
 * names, softgpu's under names with a prefix, made by abi.sh. */
#include <stddef.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "ours.h"

#define SAME_SIZE(theirs, ours) _Static_assert(sizeof(theirs) == sizeof(ours), #theirs)
#define SAME_FIELD(theirs, ours, field) \
	_Static_assert(offsetof(theirs, field) == offsetof(ours, field) && \
			       sizeof(((theirs *)0)->field) == sizeof(((ours *)0)->field), \
		       #theirs "." #field)

SAME_SIZE(CUdevice, O_CUdevice);
SAME_SIZE(CUdeviceptr, O_CUdeviceptr);
SAME_SIZE(CUmemGenericAllocationHandle, O_CUmemGenericAllocationHandle);
SAME_SIZE(CUuuid, O_CUuuid);
SAME_SIZE(CUipcMemHandle, O_CUipcMemHandle);
SAME_SIZE(CUmemLocation, O_CUmemLocation);
SAME_FIELD(CUmemLocation, O_CUmemLocation, type);
SAME_FIELD(CUmemLocation, O_CUmemLocation, id);
SAME_SIZE(CUmemAllocationProp, O_CUmemAllocationProp);
SAME_FIELD(CUmemAllocationProp, O_CUmemAllocationProp, type);
SAME_FIELD(CUmemAllocationProp, O_CUmemAllocationProp, requestedHandleTypes);
SAME_FIELD(CUmemAllocationProp, O_CUmemAllocationProp, location);
SAME_FIELD(CUmemAllocationProp, O_CUmemAllocationProp, win32HandleMetaData);
SAME_FIELD(CUmemAllocationProp, O_CUmemAllocationProp, allocFlags.compressionType);
SAME_FIELD(CUmemAllocationProp, O_CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
SAME_FIELD(CUmemAllocationProp, O_CUmemAllocationProp, allocFlags.usage);
SAME_SIZE(CUmemAccessDesc, O_CUmemAccessDesc);
SAME_FIELD(CUmemAccessDesc, O_CUmemAccessDesc, location);
SAME_FIELD(CUmemAccessDesc, O_CUmemAccessDesc, flags);
SAME_SIZE(CUmemPoolProps, O_CUmemPoolProps);
SAME_FIELD(CUmemPoolProps, O_CUmemPoolProps, allocType);
SAME_FIELD(CUmemPoolProps, O_CUmemPoolProps, handleTypes);
SAME_FIELD(CUmemPoolProps, O_CUmemPoolProps, location);
SAME_FIELD(CUmemPoolProps, O_CUmemPoolProps, maxSize);
SAME_FIELD(CUmemPoolProps, O_CUmemPoolProps, usage);
SAME_SIZE(CUmulticastObjectProp, O_CUmulticastObjectProp);
SAME_FIELD(CUmulticastObjectProp, O_CUmulticastObjectProp, size);
SAME_SIZE(struct cudaMemPoolProps, struct O_cudaMemPoolProps);
SAME_FIELD(struct cudaMemPoolProps, struct O_cudaMemPoolProps, location);
SAME_FIELD(struct cudaMemPoolProps, struct O_cudaMemPoolProps, maxSize);
SAME_SIZE(struct cudaMemAccessDesc, struct O_cudaMemAccessDesc);
SAME_FIELD(struct cudaPointerAttributes, struct O_cudaPointerAttributes, type);
SAME_FIELD(struct cudaPointerAttributes, struct O_cudaPointerAttributes, device);
SAME_FIELD(struct cudaPointerAttributes, struct O_cudaPointerAttributes, devicePointer);
SAME_FIELD(struct cudaPointerAttributes, struct O_cudaPointerAttributes, hostPointer);

/* SAME_VALUE(name) for every enumerator and constant; made by abi.sh. */
#define SAME_VALUE(name) _Static_assert((long)(name) == (long)(O_##name), #name);
#include "values.inc"

#include "prototypes.inc"
