/* Declarations of the part of the CUDA runtime API that softgpu provides. Written for this project, like softgpu_cuda.h. */
#ifndef SOFTGPU_CUDART_H
#define SOFTGPU_CUDART_H

#include "softgpu_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* cudaError_t: those of the driver's errors that have a name here; values are the driver's. */
#define SOFTGPU_RUNTIME_ERRORS(X) \
	X(cudaSuccess, 0) \
	X(cudaErrorInvalidValue, 1) \
	X(cudaErrorMemoryAllocation, 2) \
	X(cudaErrorInitializationError, 3) \
	X(cudaErrorCudartUnloading, 4) \
	X(cudaErrorInvalidMemcpyDirection, 21) \
	X(cudaErrorStubLibrary, 34) \
	X(cudaErrorInsufficientDriver, 35) \
	X(cudaErrorDevicesUnavailable, 46) \
	X(cudaErrorNoDevice, 100) \
	X(cudaErrorInvalidDevice, 101) \
	X(cudaErrorInvalidKernelImage, 200) \
	X(cudaErrorDeviceUninitialized, 201) \
	X(cudaErrorMapBufferObjectFailed, 205) \
	X(cudaErrorUnmapBufferObjectFailed, 206) \
	X(cudaErrorAlreadyMapped, 208) \
	X(cudaErrorNoKernelImageForDevice, 209) \
	X(cudaErrorNotMapped, 211) \
	X(cudaErrorECCUncorrectable, 214) \
	X(cudaErrorUnsupportedLimit, 215) \
	X(cudaErrorDeviceAlreadyInUse, 216) \
	X(cudaErrorPeerAccessUnsupported, 217) \
	X(cudaErrorInvalidPtx, 218) \
	X(cudaErrorNvlinkUncorrectable, 220) \
	X(cudaErrorUnsupportedPtxVersion, 222) \
	X(cudaErrorInvalidSource, 300) \
	X(cudaErrorFileNotFound, 301) \
	X(cudaErrorSharedObjectSymbolNotFound, 302) \
	X(cudaErrorSharedObjectInitFailed, 303) \
	X(cudaErrorOperatingSystem, 304) \
	X(cudaErrorInvalidResourceHandle, 400) \
	X(cudaErrorIllegalState, 401) \
	X(cudaErrorSymbolNotFound, 500) \
	X(cudaErrorNotReady, 600) \
	X(cudaErrorIllegalAddress, 700) \
	X(cudaErrorLaunchOutOfResources, 701) \
	X(cudaErrorLaunchTimeout, 702) \
	X(cudaErrorPeerAccessAlreadyEnabled, 704) \
	X(cudaErrorPeerAccessNotEnabled, 705) \
	X(cudaErrorSetOnActiveProcess, 708) \
	X(cudaErrorContextIsDestroyed, 709) \
	X(cudaErrorAssert, 710) \
	X(cudaErrorHostMemoryAlreadyRegistered, 712) \
	X(cudaErrorHostMemoryNotRegistered, 713) \
	X(cudaErrorHardwareStackError, 714) \
	X(cudaErrorIllegalInstruction, 715) \
	X(cudaErrorMisalignedAddress, 716) \
	X(cudaErrorLaunchFailure, 719) \
	X(cudaErrorNotPermitted, 800) \
	X(cudaErrorNotSupported, 801) \
	X(cudaErrorSystemNotReady, 802) \
	X(cudaErrorSystemDriverMismatch, 803) \
	X(cudaErrorStreamCaptureUnsupported, 900) \
	X(cudaErrorStreamCaptureInvalidated, 901) \
	X(cudaErrorStreamCaptureMerge, 902) \
	X(cudaErrorStreamCaptureUnmatched, 903) \
	X(cudaErrorStreamCaptureUnjoined, 904) \
	X(cudaErrorStreamCaptureIsolation, 905) \
	X(cudaErrorStreamCaptureImplicit, 906) \
	X(cudaErrorCapturedEvent, 907) \
	X(cudaErrorStreamCaptureWrongThread, 908) \
	X(cudaErrorTimeout, 909) \
	X(cudaErrorExternalDevice, 911) \
	X(cudaErrorUnknown, 999)

typedef enum cudaError {
#define X(name, value) name = value,
	SOFTGPU_RUNTIME_ERRORS(X)
#undef X
} cudaError_t;

typedef CUstream cudaStream_t;
typedef CUevent cudaEvent_t;
typedef CUgraph cudaGraph_t;
typedef CUgraphExec cudaGraphExec_t;
typedef CUhostFn cudaHostFn_t;
typedef CUipcMemHandle cudaIpcMemHandle_t;
typedef CUmemoryPool cudaMemPool_t;

enum cudaMemcpyKind {
	cudaMemcpyHostToHost = 0,
	cudaMemcpyHostToDevice = 1,
	cudaMemcpyDeviceToHost = 2,
	cudaMemcpyDeviceToDevice = 3,
	cudaMemcpyDefault = 4
};

enum cudaMemoryType {
	cudaMemoryTypeUnregistered = 0,
	cudaMemoryTypeHost = 1,
	cudaMemoryTypeDevice = 2,
	cudaMemoryTypeManaged = 3
};

/* As far as CUDA 12 has it. CUDA 13 appends reserved words, which are left alone. */
struct cudaPointerAttributes {
	enum cudaMemoryType type;
	int device;
	void *devicePointer;
	void *hostPointer;
};

enum cudaMemAllocationType {
	cudaMemAllocationTypeInvalid = 0,
	cudaMemAllocationTypePinned = 1
};

enum cudaMemAllocationHandleType {
	cudaMemHandleTypeNone = 0
};

enum cudaMemLocationType {
	cudaMemLocationTypeInvalid = 0,
	cudaMemLocationTypeDevice = 1
};

struct cudaMemLocation {
	enum cudaMemLocationType type;
	int id;
};

enum cudaMemAccessFlags {
	cudaMemAccessFlagsProtNone = 0,
	cudaMemAccessFlagsProtRead = 1,
	cudaMemAccessFlagsProtReadWrite = 3
};

struct cudaMemAccessDesc {
	struct cudaMemLocation location;
	enum cudaMemAccessFlags flags;
};

struct cudaMemPoolProps {
	enum cudaMemAllocationType allocType;
	enum cudaMemAllocationHandleType handleTypes;
	struct cudaMemLocation location;
	void *win32SecurityAttributes;
	size_t maxSize;
	unsigned short usage;
	unsigned char reserved[54];
};

/* Numbers are those of the driver. */
enum cudaMemPoolAttr {
	cudaMemPoolReuseFollowEventDependencies = 1,
	cudaMemPoolReuseAllowOpportunistic = 2,
	cudaMemPoolReuseAllowInternalDependencies = 3,
	cudaMemPoolAttrReleaseThreshold = 4,
	cudaMemPoolAttrReservedMemCurrent = 5,
	cudaMemPoolAttrReservedMemHigh = 6,
	cudaMemPoolAttrUsedMemCurrent = 7,
	cudaMemPoolAttrUsedMemHigh = 8
};

enum cudaGraphMemAttributeType {
	cudaGraphMemAttrUsedMemCurrent = 0,
	cudaGraphMemAttrUsedMemHigh = 1,
	cudaGraphMemAttrReservedMemCurrent = 2,
	cudaGraphMemAttrReservedMemHigh = 3
};

#define cudaMemAttachGlobal 1
#define cudaMemAttachHost 2

enum cudaStreamCaptureStatus {
	cudaStreamCaptureStatusNone = 0,
	cudaStreamCaptureStatusActive = 1,
	cudaStreamCaptureStatusInvalidated = 2
};

enum cudaStreamCaptureMode {
	cudaStreamCaptureModeGlobal = 0,
	cudaStreamCaptureModeThreadLocal = 1,
	cudaStreamCaptureModeRelaxed = 2
};

enum cudaDriverEntryPointQueryResult {
	cudaDriverEntryPointSuccess = 0,
	cudaDriverEntryPointSymbolNotFound = 1,
	cudaDriverEntryPointVersionNotSufficent = 2 /* NVIDIA's spelling */
};

#define cudaStreamLegacy ((cudaStream_t)0x1)
#define cudaStreamPerThread ((cudaStream_t)0x2)
#define cudaStreamDefault 0
#define cudaStreamNonBlocking 1
#define cudaEventDefault 0
#define cudaEventBlockingSync 1
#define cudaEventDisableTiming 2
#define cudaEventInterprocess 4
#define cudaHostAllocDefault 0
#define cudaHostAllocPortable 1
#define cudaHostAllocMapped 2
#define cudaHostAllocWriteCombined 4
#define cudaHostRegisterDefault 0
#define cudaHostRegisterPortable 1
#define cudaHostRegisterMapped 2
#define cudaHostRegisterIoMemory 4
#define cudaHostRegisterReadOnly 8

cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **fn, unsigned long long flags,
				    enum cudaDriverEntryPointQueryResult *status);
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **fn, unsigned int version,
					     unsigned long long flags, enum cudaDriverEntryPointQueryResult *status);

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device); /* numbers are those of the driver */
cudaError_t cudaDeviceGetPCIBusId(char *id, int len, int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceReset(void);
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer);
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags);
cudaError_t cudaDeviceDisablePeerAccess(int peer);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total);
cudaError_t cudaMalloc(void **ptr, size_t size);
cudaError_t cudaMallocPitch(void **ptr, size_t *pitch, size_t width, size_t height);
cudaError_t cudaMallocManaged(void **ptr, size_t size, unsigned int flags);
cudaError_t cudaFree(void *ptr);
cudaError_t cudaMallocAsync(void **ptr, size_t size, cudaStream_t stream);
cudaError_t cudaMallocFromPoolAsync(void **ptr, size_t size, cudaMemPool_t pool, cudaStream_t stream);
cudaError_t cudaFreeAsync(void *ptr, cudaStream_t stream);
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device);
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device);
cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool);
cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *props);
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool);
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep);
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attr, void *value);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attr, void *value);
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *desc, size_t count);
cudaError_t cudaMemPoolGetAccess(enum cudaMemAccessFlags *flags, cudaMemPool_t pool, struct cudaMemLocation *location);
cudaError_t cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attr, void *value);
cudaError_t cudaDeviceGraphMemTrim(int device);
cudaError_t cudaMallocHost(void **ptr, size_t size);
cudaError_t cudaHostAlloc(void **ptr, size_t size, unsigned int flags);
cudaError_t cudaFreeHost(void *ptr);
cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned int flags);
cudaError_t cudaHostUnregister(void *ptr);
cudaError_t cudaHostGetFlags(unsigned int *flags, void *ptr);
cudaError_t cudaHostGetDevicePointer(void **device, void *ptr, unsigned int flags);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr);
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *ptr);

cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemcpyPeer(void *dst, int dst_device, const void *src, int src_device, size_t n);
cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device, size_t n,
				cudaStream_t stream);
cudaError_t cudaMemset(void *dst, int value, size_t n);
cudaError_t cudaMemsetAsync(void *dst, int value, size_t n, cudaStream_t stream);

cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags);
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int *flags);
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *data);
cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status);
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
