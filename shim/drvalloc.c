/*
 * drvalloc.c: the driver's plain allocations. What a thread allocates so in a region is managed as
 * memory of cudaMalloc is, with which a CUDA runtime that is linked statically comes here.
 */
#include "doors.h"

/* ---- allocating and freeing ---------------------------------------------------------------------------- */

typedef CUresult cuMemAlloc_v2_fn(CUdeviceptr *ptr, size_t size);
typedef CUresult cuMemAllocPitch_v2_fn(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height,
				       unsigned element);
typedef CUresult cuMemFree_v2_fn(CUdeviceptr ptr);

/* False: not for the engine to allocate. */
static bool allocate(CUdeviceptr *ptr, size_t size, CUresult *result)
{
	ebb_engine_region unused;
	CUdevice device;
	void *address;

	if (!allocation_region(&unused, size)) {
		*result = CUDA_ERROR_INVALID_VALUE;
		return true;
	}
	*result = context_device(&device);
	if (*result != CUDA_SUCCESS)
		return true;
	enum engine_state state = engine_load();
	if (state == ENGINE_EXITING)
		return false; /* no pause comes any more */
	*result = state == ENGINE_READY ? engine_allocate(&address, size, device)
					: CUDA_ERROR_SHARED_OBJECT_INIT_FAILED; /* never unmanaged instead */
	if (*result == CUDA_SUCCESS)
		*ptr = (uintptr_t)address;
	return true;
}

static CUresult cuMemAlloc_v2_hook(cuMemAlloc_v2_fn *real, const void *caller, CUdeviceptr *ptr, size_t size)
{
	CUresult result;

	if (ptr != NULL && size > 0 && managed_here(caller) && allocate(ptr, size, &result))
		return result;
	result = real(ptr, size);
	if (result == CUDA_SUCCESS && this_thread()->passing == 0)
		unmanaged_allocated(*ptr, size, class_of(caller));
	return result;
}

/* Rows begin where the driver lets them begin on every device. */
enum { PITCH = 512 };

static CUresult cuMemAllocPitch_v2_hook(cuMemAllocPitch_v2_fn *real, const void *caller, CUdeviceptr *ptr,
					size_t *pitch, size_t width, size_t height, unsigned element)
{
	CUresult result;
	size_t row, size;
	bool valid = ptr != NULL && pitch != NULL && width > 0 && (element == 4 || element == 8 || element == 16) &&
		     !__builtin_add_overflow(width, PITCH - 1, &row) &&
		     !__builtin_mul_overflow(row / PITCH * PITCH, height, &size) && size > 0;

	if (valid && managed_here(caller) && allocate(ptr, size, &result)) {
		if (result == CUDA_SUCCESS)
			*pitch = row / PITCH * PITCH;
		return result;
	}
	result = real(ptr, pitch, width, height, element);
	if (result == CUDA_SUCCESS && this_thread()->passing == 0)
		unmanaged_allocated(*ptr, *pitch * height, class_of(caller));
	return result;
}

static CUresult cuMemFree_v2_hook(cuMemFree_v2_fn *real, const void *caller, CUdeviceptr ptr)
{
	CUresult result;

	(void)caller;
	if (this_thread()->passing > 0)
		return real(ptr);
	struct unmanaged taken = unmanaged_take(ptr);
	if (taken.bytes == 0 && engine_free((void *)(uintptr_t)ptr, &result))
		return result;
	result = real(ptr);
	if (result != CUDA_SUCCESS)
		unmanaged_allocated(ptr, taken.bytes, taken.class);
	return result;
}

DRIVER_HOOK(cuMemAlloc_v2, "cuMemAlloc", 3020, LIST(CUdeviceptr *ptr, size_t size), LIST(ptr, size))
DRIVER_HOOK(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020,
	    LIST(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned element),
	    LIST(ptr, pitch, width, height, element))
DRIVER_HOOK(cuMemFree_v2, "cuMemFree", 3020, LIST(CUdeviceptr ptr), LIST(ptr))

/* ---- memory that moves by itself ------------------------------------------------------------------------ */

typedef CUresult cuMemAllocManaged_fn(CUdeviceptr *ptr, size_t size, unsigned flags);

/* The driver moves such memory between host and device as it is used; it has no place to be parked
 * from, and it would come out of a pause of everything else as it went in: unmanaged. */
static bool refuses_migrating(const void *caller, const char *function, size_t size)
{
	if (!managed_here(caller))
		return false;
	log_line("%s: %zu bytes of memory that moves between host and device cannot be managed: allocate it outside the "
		 "region (with ebb.disable(): in Python, tms_set_interesting_region(false) in C)",
		 function, size);
	return true;
}

static CUresult cuMemAllocManaged_hook(cuMemAllocManaged_fn *real, const void *caller, CUdeviceptr *ptr, size_t size,
				       unsigned flags)
{
	return refuses_migrating(caller, "cuMemAllocManaged", size) ? CUDA_ERROR_NOT_SUPPORTED
								    : real(ptr, size, flags);
}

DRIVER_HOOK(cuMemAllocManaged, "cuMemAllocManaged", 6000, LIST(CUdeviceptr *ptr, size_t size, unsigned flags),
	    LIST(ptr, size, flags))

EXPORT cudaError_t cudaMallocManaged(void **ptr, size_t size, unsigned int flags)
{
	const void *caller = __builtin_return_address(0);
	const struct real *real = real_for(caller);

	if (refuses_migrating(caller, "cudaMallocManaged", size))
		return cudaErrorNotSupported;
	return real->cudaMallocManaged != NULL ? real->cudaMallocManaged(ptr, size, flags)
					       : real_missing("cudaMallocManaged");
}

/* ---- memory for other processes -------------------------------------------------------------------------- */

typedef CUresult cuIpcGetMemHandle_fn(void *handle, CUdeviceptr ptr);

static CUresult cuIpcGetMemHandle_hook(cuIpcGetMemHandle_fn *real, const void *caller, void *handle, CUdeviceptr ptr)
{
	(void)caller;
	return refuses_ipc("cuIpcGetMemHandle", (const void *)(uintptr_t)ptr) ? CUDA_ERROR_NOT_SUPPORTED
									      : real(handle, ptr);
}

DRIVER_HOOK(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010, LIST(void *handle, CUdeviceptr ptr), LIST(handle, ptr))
