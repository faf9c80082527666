/* The runtime library: the driver's calls with devices in place of contexts.
 *
 * It finds the driver's functions in libcuda.so.1 itself, as NVIDIA's runtime does, and calls none of its own exported functions:
 * a preloaded library that hooks either sees what the application calls and nothing else. */
#include "softgpu_cudart.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#define DRIVER_FUNCTIONS(X) \
	X(cuInit) X(cuDriverGetVersion) X(cuGetErrorString) X(cuGetProcAddress_v2) X(cuDeviceGetCount) \
	X(cuDeviceGetAttribute) X(cuDeviceGetPCIBusId) X(cuDeviceCanAccessPeer) X(cuDevicePrimaryCtxRetain) \
	X(cuDevicePrimaryCtxReset_v2) X(cuCtxGetCurrent) X(cuCtxSetCurrent) X(cuCtxGetDevice) X(cuCtxSynchronize) \
	X(cuCtxGetStreamPriorityRange) X(cuCtxEnablePeerAccess) X(cuCtxDisablePeerAccess) X(cuMemGetInfo_v2) \
	X(cuMemAlloc_v2) X(cuMemFree_v2) X(cuMemHostAlloc) X(cuMemFreeHost) X(cuMemHostRegister_v2) \
	X(cuMemHostUnregister) X(cuMemHostGetFlags) X(cuMemHostGetDevicePointer_v2) X(cuPointerGetAttributes) \
	X(cuIpcGetMemHandle) X(cuMemcpy) X(cuMemcpyAsync) X(cuMemcpyHtoD_v2) X(cuMemcpyHtoDAsync_v2) \
	X(cuMemcpyDtoH_v2) X(cuMemcpyDtoHAsync_v2) X(cuMemcpyDtoD_v2) X(cuMemcpyDtoDAsync_v2) X(cuMemcpyPeer) \
	X(cuMemcpyPeerAsync) X(cuMemsetD8_v2) X(cuMemsetD8Async) X(cuStreamCreateWithPriority) \
	X(cuStreamDestroy_v2) X(cuStreamQuery) X(cuStreamSynchronize) X(cuStreamWaitEvent) X(cuStreamGetFlags) \
	X(cuStreamGetPriority) X(cuLaunchHostFunc) X(cuEventCreate) X(cuEventDestroy_v2) X(cuEventRecord) \
	X(cuEventRecordWithFlags) X(cuEventQuery) X(cuEventSynchronize) X(cuEventElapsedTime) \
	X(cuStreamBeginCapture_v2) X(cuStreamEndCapture) X(cuStreamIsCapturing) X(cuThreadExchangeStreamCaptureMode) \
	X(cuGraphInstantiateWithFlags) X(cuGraphLaunch) X(cuGraphDestroy) X(cuGraphExecDestroy) \
	X(cuMemAllocPitch_v2) X(cuMemAllocManaged) X(cuMemAllocAsync) X(cuMemAllocFromPoolAsync) X(cuMemFreeAsync) \
	X(cuDeviceGetDefaultMemPool) X(cuDeviceGetMemPool) X(cuDeviceSetMemPool) X(cuMemPoolCreate) X(cuMemPoolDestroy) \
	X(cuMemPoolTrimTo) X(cuMemPoolGetAttribute) X(cuMemPoolSetAttribute) X(cuMemPoolSetAccess) \
	X(cuMemPoolGetAccess) X(cuDeviceGetGraphMemAttribute) X(cuDeviceGraphMemTrim)

CUresult softgpu_runtime_call(const char *name);

static struct {
#define X(f) __typeof__(&f) f;
	DRIVER_FUNCTIONS(X)
	X(softgpu_runtime_call)
#undef X
	bool found;
} d;

enum { MAX_DEVICES = 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* which devices' primary contexts we hold */
static CUcontext held[MAX_DEVICES];
static atomic_bool active[MAX_DEVICES]; /* false again after a reset */
static atomic_int device_count;	       /* once it is known: a forked child can still ask for it */

static _Thread_local cudaError_t last_error;
static _Thread_local int my_device;

static void find_driver(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	bool all = lib != NULL;
#define X(f) all = all && (d.f = (__typeof__(&f))dlsym(lib, #f));
	DRIVER_FUNCTIONS(X)
	X(softgpu_runtime_call)
#undef X
	d.found = all; /* else libcuda.so.1 is missing, or is not softgpu's */
}

/* "Not ready" is an answer, not an error to remember. */
static cudaError_t done(CUresult r)
{
	if (r && r != CUDA_ERROR_NOT_READY)
		last_error = (cudaError_t)r;
	return (cudaError_t)r;
}

static CUresult enter(const char *name)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, find_driver);
	if (!d.found)
		return (CUresult)cudaErrorInsufficientDriver;
	return d.softgpu_runtime_call(name);
}

static CUresult count_devices(void)
{
	int n = 0;
	if (atomic_load(&device_count))
		return CUDA_SUCCESS;
	CUresult r = d.cuInit(0);
	if (!r)
		r = d.cuDeviceGetCount(&n);
	atomic_store(&device_count, n);
	return r;
}

/* The primary context of a device, held once for the process. */
static CUresult hold(int device, CUcontext *ctx)
{
	CUresult r = count_devices();
	if (r)
		return r;
	if (device < 0 || device >= MAX_DEVICES)
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	if (!atomic_load(&active[device]))
		r = d.cuDevicePrimaryCtxRetain(&held[device], device);
	if (!r)
		atomic_store(&active[device], true);
	else if (r >= CUDA_ERROR_ILLEGAL_ADDRESS && r < CUDA_ERROR_NOT_PERMITTED)
		r = CUDA_ERROR_DEVICE_UNAVAILABLE; /* poisoned before a reset */
	*ctx = held[device];
	pthread_mutex_unlock(&lock);
	return r;
}

/* A thread works in the context that is current, the application's own too; else in the primary one of its device, made here. */
static CUresult enter_ctx(const char *name)
{
	CUcontext ctx = NULL;
	CUresult r = enter(name);
	if (!r)
		r = d.cuInit(0);
	if (!r)
		r = d.cuCtxGetCurrent(&ctx);
	if (r || (ctx && (ctx != held[my_device] || atomic_load(&active[my_device]))))
		return r;
	r = hold(my_device, &ctx);
	return r ? r : d.cuCtxSetCurrent(ctx);
}

static CUresult enter_init(const char *name)
{
	CUresult r = enter(name);
	return r ? r : d.cuInit(0);
}

#define ENTER(how, name) \
	do { \
		CUresult enter_result = how(#name); \
		if (enter_result) \
			return done(enter_result); \
	} while (0)

static CUdeviceptr addr(const void *p)
{
	return (CUdeviceptr)(uintptr_t)p;
}

/* ---- errors */

cudaError_t cudaPeekAtLastError(void)
{
	return last_error;
}

cudaError_t cudaGetLastError(void)
{
	cudaError_t e = last_error;
	last_error = cudaSuccess;
	return e;
}

const char *cudaGetErrorName(cudaError_t error)
{
	switch (error) {
#define X(name, value) \
	case name: \
		return #name;
		SOFTGPU_RUNTIME_ERRORS(X)
#undef X
	}
	return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
	const char *text = NULL;
	if (error == cudaErrorInsufficientDriver)
		return "CUDA driver version is insufficient for CUDA runtime version";
	if (error == cudaErrorInvalidMemcpyDirection)
		return "invalid copy direction for memcpy";
	enter("cudaGetErrorString");
	if (!d.found || d.cuGetErrorString((CUresult)error, &text))
		return "unrecognized error code";
	return text;
}

cudaError_t cudaDriverGetVersion(int *version)
{
	ENTER(enter, cudaDriverGetVersion);
	return done(d.cuDriverGetVersion(version));
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
	ENTER(enter, cudaRuntimeGetVersion);
	if (!version)
		return done(CUDA_ERROR_INVALID_VALUE);
	*version = 13000;
	return cudaSuccess;
}

static cudaError_t entry_point(const char *symbol, void **fn, int version, unsigned long long flags,
			       enum cudaDriverEntryPointQueryResult *status)
{
	CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	CUresult r = d.cuGetProcAddress_v2(symbol, fn, version, flags, &found);
	if (status)
		*status = (enum cudaDriverEntryPointQueryResult)found;
	return done(r);
}

cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **fn, unsigned long long flags,
				    enum cudaDriverEntryPointQueryResult *status)
{
	ENTER(enter, cudaGetDriverEntryPoint);
	return entry_point(symbol, fn, 13000, flags, status);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **fn, unsigned int version,
					     unsigned long long flags, enum cudaDriverEntryPointQueryResult *status)
{
	ENTER(enter, cudaGetDriverEntryPointByVersion);
	return entry_point(symbol, fn, (int)version, flags, status);
}

/* ---- devices */

cudaError_t cudaGetDeviceCount(int *count)
{
	ENTER(enter, cudaGetDeviceCount);
	if (!count)
		return done(CUDA_ERROR_INVALID_VALUE);
	CUresult r = count_devices();
	*count = atomic_load(&device_count);
	return done(r);
}

/* Makes no context: a thread that has done nothing yet is on device 0. */
cudaError_t cudaGetDevice(int *device)
{
	ENTER(enter_init, cudaGetDevice);
	CUcontext ctx = NULL;
	if (!device)
		return done(CUDA_ERROR_INVALID_VALUE);
	if (d.cuCtxGetCurrent(&ctx) == CUDA_SUCCESS && ctx)
		return done(d.cuCtxGetDevice(device));
	*device = my_device;
	return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
	ENTER(enter_init, cudaSetDevice);
	CUcontext ctx;
	int count;
	CUresult r = d.cuDeviceGetCount(&count);
	if (!r && (device < 0 || device >= count))
		r = CUDA_ERROR_INVALID_DEVICE;
	if (!r)
		r = hold(device, &ctx);
	if (!r)
		r = d.cuCtxSetCurrent(ctx);
	if (!r)
		my_device = device;
	return done(r);
}

cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device)
{
	ENTER(enter_init, cudaDeviceGetAttribute);
	return done(d.cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device));
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int len, int device)
{
	ENTER(enter_init, cudaDeviceGetPCIBusId);
	return done(d.cuDeviceGetPCIBusId(id, len, device));
}

cudaError_t cudaDeviceSynchronize(void)
{
	ENTER(enter_ctx, cudaDeviceSynchronize);
	return done(d.cuCtxSynchronize());
}

cudaError_t cudaDeviceReset(void)
{
	ENTER(enter_init, cudaDeviceReset);
	pthread_mutex_lock(&lock);
	atomic_store(&active[my_device], false);
	CUresult r = d.cuDevicePrimaryCtxReset_v2(my_device);
	pthread_mutex_unlock(&lock);
	return done(r);
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
	ENTER(enter_init, cudaDeviceCanAccessPeer);
	return done(d.cuDeviceCanAccessPeer(can, device, peer));
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
	ENTER(enter_ctx, cudaDeviceEnablePeerAccess);
	CUcontext ctx;
	CUresult r = hold(peer, &ctx);
	return done(r ? r : d.cuCtxEnablePeerAccess(ctx, flags));
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
	ENTER(enter_ctx, cudaDeviceDisablePeerAccess);
	CUcontext ctx;
	CUresult r = hold(peer, &ctx);
	return done(r ? r : d.cuCtxDisablePeerAccess(ctx));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	ENTER(enter_ctx, cudaDeviceGetStreamPriorityRange);
	return done(d.cuCtxGetStreamPriorityRange(least, greatest));
}

/* ---- memory */

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
	ENTER(enter_ctx, cudaMemGetInfo);
	return done(d.cuMemGetInfo_v2(free_bytes, total));
}

cudaError_t cudaMalloc(void **ptr, size_t size)
{
	ENTER(enter_ctx, cudaMalloc);
	CUdeviceptr p = 0;
	if (!ptr)
		return done(CUDA_ERROR_INVALID_VALUE);
	CUresult r = size ? d.cuMemAlloc_v2(&p, size) : CUDA_SUCCESS;
	if (!r)
		*ptr = (void *)(uintptr_t)p;
	return done(r);
}

/* Waits for the device first, like the real one: the driver's cuMemFree does. */
cudaError_t cudaFree(void *ptr)
{
	ENTER(enter_ctx, cudaFree);
	return done(d.cuMemFree_v2(addr(ptr)));
}

cudaError_t cudaMallocPitch(void **ptr, size_t *pitch, size_t width, size_t height)
{
	ENTER(enter_ctx, cudaMallocPitch);
	CUdeviceptr p = 0;
	if (!ptr || !pitch)
		return done(CUDA_ERROR_INVALID_VALUE);
	CUresult r = width && height ? d.cuMemAllocPitch_v2(&p, pitch, width, height, 4) : CUDA_SUCCESS;
	if (!r)
		*ptr = (void *)(uintptr_t)p;
	return done(r);
}

cudaError_t cudaMallocManaged(void **ptr, size_t size, unsigned int flags)
{
	ENTER(enter_ctx, cudaMallocManaged);
	CUdeviceptr p = 0;
	if (!ptr)
		return done(CUDA_ERROR_INVALID_VALUE);
	CUresult r = d.cuMemAllocManaged(&p, size, flags);
	if (!r)
		*ptr = (void *)(uintptr_t)p;
	return done(r);
}

/* ---- memory pools; no bytes are no memory, as with cudaMalloc */

cudaError_t cudaMallocAsync(void **ptr, size_t size, cudaStream_t stream)
{
	ENTER(enter_ctx, cudaMallocAsync);
	CUdeviceptr p = 0;
	if (!ptr)
		return done(CUDA_ERROR_INVALID_VALUE);
	CUresult r = size ? d.cuMemAllocAsync(&p, size, stream) : CUDA_SUCCESS;
	if (!r)
		*ptr = (void *)(uintptr_t)p;
	return done(r);
}

cudaError_t cudaMallocFromPoolAsync(void **ptr, size_t size, cudaMemPool_t pool, cudaStream_t stream)
{
	ENTER(enter_ctx, cudaMallocFromPoolAsync);
	CUdeviceptr p = 0;
	if (!ptr)
		return done(CUDA_ERROR_INVALID_VALUE);
	CUresult r = size ? d.cuMemAllocFromPoolAsync(&p, size, pool, stream) : CUDA_SUCCESS;
	if (!r)
		*ptr = (void *)(uintptr_t)p;
	return done(r);
}

cudaError_t cudaFreeAsync(void *ptr, cudaStream_t stream)
{
	ENTER(enter_ctx, cudaFreeAsync);
	return done(ptr ? d.cuMemFreeAsync(addr(ptr), stream) : CUDA_SUCCESS);
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
	ENTER(enter_init, cudaDeviceGetDefaultMemPool);
	return done(d.cuDeviceGetDefaultMemPool(pool, device));
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device)
{
	ENTER(enter_init, cudaDeviceGetMemPool);
	return done(d.cuDeviceGetMemPool(pool, device));
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool)
{
	ENTER(enter_init, cudaDeviceSetMemPool);
	return done(d.cuDeviceSetMemPool(device, pool));
}

/* The runtime's structs are the driver's under other names. */
_Static_assert(sizeof(struct cudaMemPoolProps) == sizeof(CUmemPoolProps) &&
		       sizeof(struct cudaMemAccessDesc) == sizeof(CUmemAccessDesc) &&
		       sizeof(struct cudaMemLocation) == sizeof(CUmemLocation),
	       "structs of memory pools");

cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *props)
{
	ENTER(enter_init, cudaMemPoolCreate);
	return done(d.cuMemPoolCreate(pool, (const CUmemPoolProps *)props));
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool)
{
	ENTER(enter_init, cudaMemPoolDestroy);
	return done(d.cuMemPoolDestroy(pool));
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep)
{
	ENTER(enter_init, cudaMemPoolTrimTo);
	return done(d.cuMemPoolTrimTo(pool, keep));
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attr, void *value)
{
	ENTER(enter_init, cudaMemPoolGetAttribute);
	return done(d.cuMemPoolGetAttribute(pool, (CUmemPool_attribute)attr, value));
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attr, void *value)
{
	ENTER(enter_init, cudaMemPoolSetAttribute);
	return done(d.cuMemPoolSetAttribute(pool, (CUmemPool_attribute)attr, value));
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *desc, size_t count)
{
	ENTER(enter_init, cudaMemPoolSetAccess);
	return done(d.cuMemPoolSetAccess(pool, (const CUmemAccessDesc *)desc, count));
}

cudaError_t cudaMemPoolGetAccess(enum cudaMemAccessFlags *flags, cudaMemPool_t pool, struct cudaMemLocation *location)
{
	ENTER(enter_init, cudaMemPoolGetAccess);
	CUmemAccess_flags f = CU_MEM_ACCESS_FLAGS_PROT_NONE;
	CUresult r = flags ? d.cuMemPoolGetAccess(&f, pool, (CUmemLocation *)location) : CUDA_ERROR_INVALID_VALUE;
	if (!r)
		*flags = (enum cudaMemAccessFlags)f;
	return done(r);
}

cudaError_t cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attr, void *value)
{
	ENTER(enter_init, cudaDeviceGetGraphMemAttribute);
	return done(d.cuDeviceGetGraphMemAttribute(device, (CUgraphMem_attribute)attr, value));
}

cudaError_t cudaDeviceGraphMemTrim(int device)
{
	ENTER(enter_init, cudaDeviceGraphMemTrim);
	return done(d.cuDeviceGraphMemTrim(device));
}

/* ---- host memory and pointers */

cudaError_t cudaMallocHost(void **ptr, size_t size)
{
	ENTER(enter_ctx, cudaMallocHost);
	return done(d.cuMemHostAlloc(ptr, size, 0));
}

cudaError_t cudaHostAlloc(void **ptr, size_t size, unsigned int flags)
{
	ENTER(enter_ctx, cudaHostAlloc);
	return done(d.cuMemHostAlloc(ptr, size, flags));
}

cudaError_t cudaFreeHost(void *ptr)
{
	ENTER(enter_ctx, cudaFreeHost);
	return done(d.cuMemFreeHost(ptr));
}

cudaError_t cudaHostRegister(void *ptr, size_t size, unsigned int flags)
{
	ENTER(enter_ctx, cudaHostRegister);
	return done(d.cuMemHostRegister_v2(ptr, size, flags));
}

cudaError_t cudaHostUnregister(void *ptr)
{
	ENTER(enter_ctx, cudaHostUnregister);
	return done(d.cuMemHostUnregister(ptr));
}

cudaError_t cudaHostGetFlags(unsigned int *flags, void *ptr)
{
	ENTER(enter_ctx, cudaHostGetFlags);
	return done(d.cuMemHostGetFlags(flags, ptr));
}

cudaError_t cudaHostGetDevicePointer(void **device, void *ptr, unsigned int flags)
{
	ENTER(enter_ctx, cudaHostGetDevicePointer);
	CUdeviceptr p = 0;
	CUresult r = d.cuMemHostGetDevicePointer_v2(&p, ptr, flags);
	if (!r && device)
		*device = (void *)(uintptr_t)p;
	return done(r);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *ptr)
{
	ENTER(enter_ctx, cudaPointerGetAttributes);
	unsigned type = 0, managed = 0;
	CUdeviceptr dev = 0;
	CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
				       CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER,
				       CU_POINTER_ATTRIBUTE_IS_MANAGED};
	if (!a)
		return done(CUDA_ERROR_INVALID_VALUE);
	void *data[] = {&type, &a->device, &dev, &a->hostPointer, &managed};
	CUresult r = d.cuPointerGetAttributes(5, names, data, addr(ptr));
	if (r)
		return done(r);
	a->type = managed ? cudaMemoryTypeManaged : (enum cudaMemoryType)type; /* the numbers agree; 0 is "unregistered" */
	a->devicePointer = (void *)(uintptr_t)dev;
	if (!type)
		a->hostPointer = (void *)(uintptr_t)ptr;
	return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *ptr)
{
	ENTER(enter_ctx, cudaIpcGetMemHandle);
	return done(d.cuIpcGetMemHandle(handle, addr(ptr)));
}

/* ---- copies and fills */

cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind)
{
	ENTER(enter_ctx, cudaMemcpy);
	switch (kind) {
	case cudaMemcpyHostToDevice:
		return done(d.cuMemcpyHtoD_v2(addr(dst), src, n));
	case cudaMemcpyDeviceToHost:
		return done(d.cuMemcpyDtoH_v2(dst, addr(src), n));
	case cudaMemcpyDeviceToDevice:
		return done(d.cuMemcpyDtoD_v2(addr(dst), addr(src), n));
	case cudaMemcpyHostToHost:
	case cudaMemcpyDefault:
		return done(d.cuMemcpy(addr(dst), addr(src), n));
	}
	return done((CUresult)cudaErrorInvalidMemcpyDirection);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind, cudaStream_t stream)
{
	ENTER(enter_ctx, cudaMemcpyAsync);
	switch (kind) {
	case cudaMemcpyHostToDevice:
		return done(d.cuMemcpyHtoDAsync_v2(addr(dst), src, n, stream));
	case cudaMemcpyDeviceToHost:
		return done(d.cuMemcpyDtoHAsync_v2(dst, addr(src), n, stream));
	case cudaMemcpyDeviceToDevice:
		return done(d.cuMemcpyDtoDAsync_v2(addr(dst), addr(src), n, stream));
	case cudaMemcpyHostToHost:
	case cudaMemcpyDefault:
		return done(d.cuMemcpyAsync(addr(dst), addr(src), n, stream));
	}
	return done((CUresult)cudaErrorInvalidMemcpyDirection);
}

static CUresult hold_both(int a, int b, CUcontext *ca, CUcontext *cb)
{
	CUresult r = hold(a, ca);
	return r ? r : hold(b, cb);
}

cudaError_t cudaMemcpyPeer(void *dst, int dst_device, const void *src, int src_device, size_t n)
{
	ENTER(enter_ctx, cudaMemcpyPeer);
	CUcontext to, from;
	CUresult r = hold_both(dst_device, src_device, &to, &from);
	return done(r ? r : d.cuMemcpyPeer(addr(dst), to, addr(src), from, n));
}

cudaError_t cudaMemcpyPeerAsync(void *dst, int dst_device, const void *src, int src_device, size_t n,
				cudaStream_t stream)
{
	ENTER(enter_ctx, cudaMemcpyPeerAsync);
	CUcontext to, from;
	CUresult r = hold_both(dst_device, src_device, &to, &from);
	return done(r ? r : d.cuMemcpyPeerAsync(addr(dst), to, addr(src), from, n, stream));
}

cudaError_t cudaMemset(void *dst, int value, size_t n)
{
	ENTER(enter_ctx, cudaMemset);
	return done(d.cuMemsetD8_v2(addr(dst), (unsigned char)value, n));
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t n, cudaStream_t stream)
{
	ENTER(enter_ctx, cudaMemsetAsync);
	return done(d.cuMemsetD8Async(addr(dst), (unsigned char)value, n, stream));
}

/* ---- streams and events */

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
	ENTER(enter_ctx, cudaStreamCreate);
	return done(d.cuStreamCreateWithPriority(stream, 0, 0));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
	ENTER(enter_ctx, cudaStreamCreateWithFlags);
	return done(d.cuStreamCreateWithPriority(stream, flags, 0));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority)
{
	ENTER(enter_ctx, cudaStreamCreateWithPriority);
	return done(d.cuStreamCreateWithPriority(stream, flags, priority));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	ENTER(enter_ctx, cudaStreamDestroy);
	return done(d.cuStreamDestroy_v2(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
	ENTER(enter_ctx, cudaStreamQuery);
	return done(d.cuStreamQuery(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	ENTER(enter_ctx, cudaStreamSynchronize);
	return done(d.cuStreamSynchronize(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
	ENTER(enter_ctx, cudaStreamWaitEvent);
	return done(d.cuStreamWaitEvent(stream, event, flags));
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int *flags)
{
	ENTER(enter_ctx, cudaStreamGetFlags);
	return done(d.cuStreamGetFlags(stream, flags));
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
	ENTER(enter_ctx, cudaStreamGetPriority);
	return done(d.cuStreamGetPriority(stream, priority));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *data)
{
	ENTER(enter_ctx, cudaLaunchHostFunc);
	return done(d.cuLaunchHostFunc(stream, fn, data));
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
	ENTER(enter_ctx, cudaEventCreate);
	return done(d.cuEventCreate(event, 0));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
	ENTER(enter_ctx, cudaEventCreateWithFlags);
	return done(d.cuEventCreate(event, flags));
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	ENTER(enter_ctx, cudaEventDestroy);
	return done(d.cuEventDestroy_v2(event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	ENTER(enter_ctx, cudaEventRecord);
	return done(d.cuEventRecord(event, stream));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags)
{
	ENTER(enter_ctx, cudaEventRecordWithFlags);
	return done(d.cuEventRecordWithFlags(event, stream, flags));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
	ENTER(enter_ctx, cudaEventQuery);
	return done(d.cuEventQuery(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	ENTER(enter_ctx, cudaEventSynchronize);
	return done(d.cuEventSynchronize(event));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
	ENTER(enter_ctx, cudaEventElapsedTime);
	return done(d.cuEventElapsedTime(ms, start, end));
}

/* ---- capture and graphs */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
	ENTER(enter_ctx, cudaStreamBeginCapture);
	return done(d.cuStreamBeginCapture_v2(stream, (CUstreamCaptureMode)mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
	ENTER(enter_ctx, cudaStreamEndCapture);
	return done(d.cuStreamEndCapture(stream, graph));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
	ENTER(enter_ctx, cudaStreamIsCapturing);
	CUstreamCaptureStatus s = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult r = d.cuStreamIsCapturing(stream, status ? &s : NULL);
	if (!r)
		*status = (enum cudaStreamCaptureStatus)s;
	return done(r);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
	ENTER(enter_init, cudaThreadExchangeStreamCaptureMode);
	CUstreamCaptureMode m;
	if (!mode)
		return done(CUDA_ERROR_INVALID_VALUE);
	m = (CUstreamCaptureMode)*mode;
	CUresult r = d.cuThreadExchangeStreamCaptureMode(&m);
	*mode = (enum cudaStreamCaptureMode)m;
	return done(r);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
	ENTER(enter_ctx, cudaGraphInstantiate);
	return done(d.cuGraphInstantiateWithFlags(exec, graph, flags));
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
	ENTER(enter_ctx, cudaGraphInstantiateWithFlags);
	return done(d.cuGraphInstantiateWithFlags(exec, graph, flags));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
	ENTER(enter_ctx, cudaGraphLaunch);
	return done(d.cuGraphLaunch(exec, stream));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	ENTER(enter_ctx, cudaGraphDestroy);
	return done(d.cuGraphDestroy(graph));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	ENTER(enter_ctx, cudaGraphExecDestroy);
	return done(d.cuGraphExecDestroy(exec));
}
