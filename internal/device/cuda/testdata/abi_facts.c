/*
 * Prints what the binary interface of the driver looks like to a C compiler, one fact per line.
 * abi_test.go compiles it twice, with cuda_abi.h alone and (-DNVIDIA) with NVIDIA's cuda.h in
 * place of its types, and compares. In the second form the prototypes and the chosen versions of
 * the functions are checked while compiling, and more numbers are printed, which Go code uses.
 */
#include <stdio.h>

#ifdef NVIDIA
#include <cuda.h>
#define EBB_CUDA_TYPES_GIVEN
#endif
#include "cuda_abi.h"

#ifdef NVIDIA
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x) /* of what the headers make of the name: cuMemGetInfo is a macro there */
/* No macro in between: it would expand the symbol too. */
#define F(name, symbol, params, args)                                                      \
	_Static_assert(__builtin_strcmp(TEXT(name), #symbol) == 0,                         \
		       "the headers select another version than " #symbol);                \
	_Static_assert(__builtin_types_compatible_p(__typeof__(&symbol), CUresult(*) params), \
		       "the prototype of " #symbol " differs");
#define F0(name, symbol)                                                                  \
	_Static_assert(__builtin_strcmp(TEXT(name), #symbol) == 0,                        \
		       "the headers select another version than " #symbol);               \
	_Static_assert(__builtin_types_compatible_p(__typeof__(&symbol), CUresult(*)(void)), \
		       "the prototype of " #symbol " differs");
EBB_CUDA_FUNCTIONS(F, F0)
#endif

#define NUMBER(name) printf("%s %lld\n", #name, (long long)(name))
#define SIZE(type) printf("sizeof(%s) %zu\n", #type, sizeof(type))
#define MEMBER(type, member) \
	printf("%s.%s %zu %zu\n", #type, #member, offsetof(type, member), sizeof(((type *)0)->member))

int main(void)
{
	SIZE(CUresult);
	SIZE(CUdevice);
	SIZE(CUdeviceptr);
	SIZE(CUmemGenericAllocationHandle);
	SIZE(CUcontext);
	SIZE(CUstream);
	SIZE(CUmodule);
	SIZE(CUfunction);
	SIZE(CUdevice_attribute);
	SIZE(CUmemAllocationGranularity_flags);
	SIZE(CUstreamCaptureMode);
	SIZE(CUstreamCaptureStatus);

	SIZE(CUmemoryPool);
	SIZE(CUmemPool_attribute);
	SIZE(CUgraphMem_attribute);

	SIZE(CUmemLocation);
	MEMBER(CUmemLocation, type);
	MEMBER(CUmemLocation, id);

	SIZE(CUmemAccessDesc);
	MEMBER(CUmemAccessDesc, location);
	MEMBER(CUmemAccessDesc, flags);

	SIZE(CUmemAllocationProp);
	MEMBER(CUmemAllocationProp, type);
	MEMBER(CUmemAllocationProp, requestedHandleTypes);
	MEMBER(CUmemAllocationProp, location);
	MEMBER(CUmemAllocationProp, win32HandleMetaData);
	MEMBER(CUmemAllocationProp, allocFlags);
	MEMBER(CUmemAllocationProp, allocFlags.compressionType);
	MEMBER(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
	MEMBER(CUmemAllocationProp, allocFlags.usage);

	NUMBER(CUDA_SUCCESS);
	NUMBER(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
	NUMBER(CU_MEM_ALLOCATION_TYPE_PINNED);
	NUMBER(CU_MEM_HANDLE_TYPE_NONE);
	NUMBER(CU_MEM_LOCATION_TYPE_DEVICE);
	NUMBER(CU_MEM_ACCESS_FLAGS_PROT_READ);
	NUMBER(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	NUMBER(CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	NUMBER(CU_STREAM_CAPTURE_MODE_RELAXED);
	NUMBER(CU_STREAM_CAPTURE_STATUS_NONE);
	NUMBER(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
	NUMBER(CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
	NUMBER(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
	NUMBER(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
	NUMBER(CU_STREAM_NON_BLOCKING);
	NUMBER(CU_EVENT_DISABLE_TIMING);
	NUMBER(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
	NUMBER(CU_MEMHOSTALLOC_PORTABLE);
	NUMBER(CU_MEMHOSTREGISTER_PORTABLE);
#ifdef NVIDIA
	NUMBER(CUDA_ERROR_INVALID_VALUE);
	NUMBER(CUDA_ERROR_OUT_OF_MEMORY);
	NUMBER(CUDA_ERROR_NOT_INITIALIZED);
	NUMBER(CUDA_ERROR_DEINITIALIZED);
	NUMBER(CUDA_ERROR_INVALID_DEVICE);
	NUMBER(CUDA_ERROR_ILLEGAL_STATE);
	NUMBER(CUDA_ERROR_NOT_SUPPORTED);
	NUMBER(CUDA_ERROR_UNKNOWN);
#endif
	return 0;
}
