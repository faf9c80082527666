/*
 * cuda_abi.h: the part of the CUDA driver's binary interface that ebb calls.
 *
 * Written for this project from the public interface; abi_test.go compiles every type, number
 * and prototype below against NVIDIA's own headers. Nothing of the CUDA SDK is needed to build
 * or to run.
 */
#ifndef EBB_CUDA_ABI_H
#define EBB_CUDA_ABI_H

#include <stddef.h>

/* The test defines this to check the prototypes with NVIDIA's types in place of these. */
#ifndef EBB_CUDA_TYPES_GIVEN

typedef enum cudaError_enum { CUDA_SUCCESS = 0 } CUresult; /* device.Code has the other numbers */
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;

typedef enum CUdevice_attribute_enum {
	CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110
} CUdevice_attribute;

typedef enum CUmemAllocationType_enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1 } CUmemAllocationType;
typedef enum CUmemAllocationHandleType_enum { CU_MEM_HANDLE_TYPE_NONE = 0 } CUmemAllocationHandleType;
typedef enum CUmemPool_attribute_enum {
	CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
	CU_MEMPOOL_ATTR_USED_MEM_CURRENT = 7
} CUmemPool_attribute;
typedef enum CUgraphMem_attribute_enum {
	CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT = 0,
	CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2
} CUgraphMem_attribute;
typedef enum CUmemLocationType_enum { CU_MEM_LOCATION_TYPE_DEVICE = 1 } CUmemLocationType;
typedef enum CUmemAccess_flags_enum {
	CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
	CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3
} CUmemAccess_flags;
typedef enum CUmemAllocationGranularity_flags_enum {
	CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0
} CUmemAllocationGranularity_flags;
typedef enum CUpointer_attribute_enum { CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9 } CUpointer_attribute;
typedef enum CUstreamCaptureMode_enum { CU_STREAM_CAPTURE_MODE_RELAXED = 2 } CUstreamCaptureMode;
typedef enum CUstreamCaptureStatus_enum { CU_STREAM_CAPTURE_STATUS_NONE = 0 } CUstreamCaptureStatus;

enum { CU_STREAM_NON_BLOCKING = 1, CU_EVENT_DISABLE_TIMING = 2 };

#define CU_MEMHOSTALLOC_PORTABLE 0x01
#define CU_MEMHOSTREGISTER_PORTABLE 0x01

typedef struct CUmemLocation_st {
	CUmemLocationType type;
	int id;
} CUmemLocation;

typedef struct CUmemAccessDesc_st {
	CUmemLocation location;
	CUmemAccess_flags flags;
} CUmemAccessDesc;

typedef struct CUmemAllocationProp_st {
	CUmemAllocationType type;
	CUmemAllocationHandleType requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

#endif /* EBB_CUDA_TYPES_GIVEN */

/*
 * Every driver function that ebb calls: F(name in the API, symbol in the library, parameters,
 * arguments), or F0(name, symbol) for a function without parameters. Where a function exists in several versions the symbol is the one that the headers
 * of CUDA 12 and 13 select.
 */
#define EBB_CUDA_FUNCTIONS(F, F0)                                                                               \
	F(cuInit, cuInit, (unsigned int flags), (flags))                                                        \
	F(cuDriverGetVersion, cuDriverGetVersion, (int *version), (version))                                    \
	F(cuGetErrorName, cuGetErrorName, (CUresult error, const char **text), (error, text))                   \
	F(cuGetErrorString, cuGetErrorString, (CUresult error, const char **text), (error, text))               \
	F(cuDeviceGet, cuDeviceGet, (CUdevice * device, int ordinal), (device, ordinal))                        \
	F(cuDeviceGetCount, cuDeviceGetCount, (int *count), (count))                                            \
	F(cuDeviceGetName, cuDeviceGetName, (char *name, int len, CUdevice device), (name, len, device))        \
	F(cuDeviceGetAttribute, cuDeviceGetAttribute,                                                           \
	  (int *value, CUdevice_attribute attribute, CUdevice device), (value, attribute, device))              \
	F(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, (char *id, int len, CUdevice device), (id, len, device))    \
	F(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device),           \
	  (context, device))                                                                                    \
	F(cuCtxGetCurrent, cuCtxGetCurrent, (CUcontext * context), (context))                                   \
	F(cuCtxSetCurrent, cuCtxSetCurrent, (CUcontext context), (context))                                     \
	F0(cuCtxSynchronize, cuCtxSynchronize)                                                                  \
	F(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode),   \
	  (mode))                                                                                               \
	F(cuMemGetInfo, cuMemGetInfo_v2, (size_t *free_bytes, size_t *total_bytes), (free_bytes, total_bytes))  \
	F(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity,                                         \
	  (size_t *bytes, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option),            \
	  (bytes, prop, option))                                                                                \
	F(cuMemAddressReserve, cuMemAddressReserve,                                                             \
	  (CUdeviceptr * ptr, size_t size, size_t align, CUdeviceptr hint, unsigned long long flags),           \
	  (ptr, size, align, hint, flags))                                                                      \
	F(cuMemAddressFree, cuMemAddressFree, (CUdeviceptr ptr, size_t size), (ptr, size))                      \
	F(cuMemCreate, cuMemCreate,                                                                             \
	  (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *prop,                 \
	   unsigned long long flags),                                                                           \
	  (handle, size, prop, flags))                                                                          \
	F(cuMemRelease, cuMemRelease, (CUmemGenericAllocationHandle handle), (handle))                          \
	F(cuMemMap, cuMemMap,                                                                                   \
	  (CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,                    \
	   unsigned long long flags),                                                                           \
	  (ptr, size, offset, handle, flags))                                                                   \
	F(cuMemUnmap, cuMemUnmap, (CUdeviceptr ptr, size_t size), (ptr, size))                                  \
	F(cuMemSetAccess, cuMemSetAccess,                                                                       \
	  (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *access, size_t count),                          \
	  (ptr, size, access, count))                                                                           \
	F(cuMemExportToShareableHandle, cuMemExportToShareableHandle,                                           \
	  (void *dst, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,                      \
	   unsigned long long flags),                                                                           \
	  (dst, handle, type, flags))                                                                           \
	F(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, (CUmemoryPool * pool, CUdevice device),         \
	  (pool, device))                                                                                       \
	F(cuDeviceGetMemPool, cuDeviceGetMemPool, (CUmemoryPool * pool, CUdevice device), (pool, device))       \
	F(cuMemPoolGetAttribute, cuMemPoolGetAttribute,                                                         \
	  (CUmemoryPool pool, CUmemPool_attribute attribute, void *value), (pool, attribute, value))            \
	F(cuMemPoolTrimTo, cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep), (pool, keep))                     \
	F(cuDeviceGetGraphMemAttribute, cuDeviceGetGraphMemAttribute,                                           \
	  (CUdevice device, CUgraphMem_attribute attribute, void *value), (device, attribute, value))           \
	F(cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, (CUdevice device), (device))                              \
	F(cuMemHostAlloc, cuMemHostAlloc, (void **ptr, size_t size, unsigned int flags), (ptr, size, flags))    \
	F(cuMemFreeHost, cuMemFreeHost, (void *ptr), (ptr))                                                     \
	F(cuMemHostRegister, cuMemHostRegister_v2, (void *ptr, size_t size, unsigned int flags),                \
	  (ptr, size, flags))                                                                                   \
	F(cuMemHostUnregister, cuMemHostUnregister, (void *ptr), (ptr))                                         \
	F(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2,                                              \
	  (CUdeviceptr * device, void *ptr, unsigned int flags), (device, ptr, flags))                          \
	F(cuStreamCreate, cuStreamCreate, (CUstream * stream, unsigned int flags), (stream, flags))             \
	F(cuStreamDestroy, cuStreamDestroy_v2, (CUstream stream), (stream))                                     \
	F(cuStreamSynchronize, cuStreamSynchronize, (CUstream stream), (stream))                                \
	F(cuStreamIsCapturing, cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus * status),          \
	  (stream, status))                                                                                     \
	F(cuEventCreate, cuEventCreate, (CUevent * event, unsigned int flags), (event, flags))                  \
	F(cuEventDestroy, cuEventDestroy_v2, (CUevent event), (event))                                          \
	F(cuEventRecord, cuEventRecord, (CUevent event, CUstream stream), (event, stream))                      \
	F(cuEventSynchronize, cuEventSynchronize, (CUevent event), (event))                                     \
	F(cuPointerGetAttribute, cuPointerGetAttribute,                                                         \
	  (void *data, CUpointer_attribute attribute, CUdeviceptr ptr), (data, attribute, ptr))                 \
	F(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void *dst, CUdeviceptr src, size_t size, CUstream stream),  \
	  (dst, src, size, stream))                                                                             \
	F(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2,                                                              \
	  (CUdeviceptr dst, const void *src, size_t size, CUstream stream), (dst, src, size, stream))           \
	F(cuMemsetD8Async, cuMemsetD8Async,                                                                     \
	  (CUdeviceptr dst, unsigned char value, size_t size, CUstream stream), (dst, value, size, stream))     \
	F(cuModuleLoadData, cuModuleLoadData, (CUmodule * module, const void *image), (module, image))          \
	F(cuModuleUnload, cuModuleUnload, (CUmodule module), (module))                                          \
	F(cuModuleGetFunction, cuModuleGetFunction, (CUfunction * function, CUmodule module, const char *name), \
	  (function, module, name))                                                                             \
	F(cuLaunchKernel, cuLaunchKernel,                                                                       \
	  (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,                  \
	   unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,         \
	   CUstream stream, void **params, void **extra),                                                       \
	  (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, params, extra))

#endif
