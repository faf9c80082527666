/*
 * multicast.c: calls that tie physical memory to something else than an address range of the process:
 * multicast objects, files for other devices, logical endpoints, sparse arrays.
 *
 * They need the driver's own handle, and what they tie would not follow a pause: such memory is kept
 * on the device from then on.
 */
#include "doors.h"

#include <stdlib.h>
#include <string.h>

/* A handle of the engine's is memory, never one of these objects. */
static bool is_no_object(uint64_t handle)
{
	return EBB_ENGINE_IS_HANDLE(handle);
}

/* ---- multicast -------------------------------------------------------------------------------------- */

typedef CUresult cuMulticastAddDevice_fn(uint64_t object, CUdevice device);
typedef CUresult cuMulticastUnbind_fn(uint64_t object, CUdevice device, size_t offset, size_t size);
typedef CUresult cuMulticastBindMem_fn(uint64_t object, size_t offset, uint64_t handle, size_t handle_offset,
				       size_t size, uint64_t flags);
typedef CUresult cuMulticastBindMem_v2_fn(uint64_t object, CUdevice device, size_t offset, uint64_t handle,
					  size_t handle_offset, size_t size, uint64_t flags);
typedef CUresult cuMulticastBindAddr_fn(uint64_t object, size_t offset, CUdeviceptr address, size_t size,
					uint64_t flags);
typedef CUresult cuMulticastBindAddr_v2_fn(uint64_t object, CUdevice device, size_t offset, CUdeviceptr address,
					   size_t size, uint64_t flags);

static CUresult cuMulticastAddDevice_hook(cuMulticastAddDevice_fn *real, const void *caller, uint64_t object,
					  CUdevice device)
{
	(void)caller;
	return is_no_object(object) ? CUDA_ERROR_INVALID_HANDLE : real(object, device);
}

static CUresult cuMulticastUnbind_hook(cuMulticastUnbind_fn *real, const void *caller, uint64_t object,
				       CUdevice device, size_t offset, size_t size)
{
	(void)caller;
	return is_no_object(object) ? CUDA_ERROR_INVALID_HANDLE : real(object, device, offset, size);
}

static CUresult cuMulticastBindMem_hook(cuMulticastBindMem_fn *real, const void *caller, uint64_t object,
					size_t offset, uint64_t handle, size_t handle_offset, size_t size,
					uint64_t flags)
{
	CUresult result;

	(void)caller;
	if (is_no_object(object))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!vmm_real_handle(&handle, "multicast", "cuMulticastBindMem", &result))
		return result;
	return real(object, offset, handle, handle_offset, size, flags);
}

static CUresult cuMulticastBindMem_v2_hook(cuMulticastBindMem_v2_fn *real, const void *caller, uint64_t object,
					   CUdevice device, size_t offset, uint64_t handle, size_t handle_offset,
					   size_t size, uint64_t flags)
{
	CUresult result;

	(void)caller;
	if (is_no_object(object))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!vmm_real_handle(&handle, "multicast", "cuMulticastBindMem_v2", &result))
		return result;
	return real(object, device, offset, handle, handle_offset, size, flags);
}

/* Memory of the engine's own allocations has no handle that could be kept. */
static bool may_bind(const char *function, CUdeviceptr address, const char *why, CUresult *result)
{
	if (!vmm_keep(address, why, function, result))
		return false;
	if (*result == CUDA_SUCCESS || !is_managed((const void *)(uintptr_t)address))
		return true;
	log_line("%s: %p is managed memory that cannot be bound: allocate it outside the region (with ebb.disable(): in "
		 "Python, tms_set_interesting_region(false) in C)",
		 function, (void *)(uintptr_t)address);
	*result = CUDA_ERROR_NOT_SUPPORTED;
	return false;
}

static CUresult cuMulticastBindAddr_hook(cuMulticastBindAddr_fn *real, const void *caller, uint64_t object,
					 size_t offset, CUdeviceptr address, size_t size, uint64_t flags)
{
	CUresult result;

	(void)caller;
	if (is_no_object(object))
		return CUDA_ERROR_INVALID_HANDLE;
	return may_bind("cuMulticastBindAddr", address, "multicast", &result)
		       ? real(object, offset, address, size, flags)
		       : result;
}

static CUresult cuMulticastBindAddr_v2_hook(cuMulticastBindAddr_v2_fn *real, const void *caller, uint64_t object,
					    CUdevice device, size_t offset, CUdeviceptr address, size_t size,
					    uint64_t flags)
{
	CUresult result;

	(void)caller;
	if (is_no_object(object))
		return CUDA_ERROR_INVALID_HANDLE;
	return may_bind("cuMulticastBindAddr_v2", address, "multicast", &result)
		       ? real(object, device, offset, address, size, flags)
		       : result;
}

DRIVER_HOOK(cuMulticastAddDevice, "cuMulticastAddDevice", 12010, LIST(uint64_t object, CUdevice device),
	    LIST(object, device))
DRIVER_HOOK(cuMulticastUnbind, "cuMulticastUnbind", 12010,
	    LIST(uint64_t object, CUdevice device, size_t offset, size_t size),
	    LIST(object, device, offset, size))
DRIVER_HOOK(cuMulticastBindMem, "cuMulticastBindMem", 12010,
	    LIST(uint64_t object, size_t offset, uint64_t handle, size_t handle_offset, size_t size, uint64_t flags),
	    LIST(object, offset, handle, handle_offset, size, flags))
DRIVER_HOOK(cuMulticastBindMem_v2, "cuMulticastBindMem", 13010,
	    LIST(uint64_t object, CUdevice device, size_t offset, uint64_t handle, size_t handle_offset, size_t size,
		 uint64_t flags),
	    LIST(object, device, offset, handle, handle_offset, size, flags))
DRIVER_HOOK(cuMulticastBindAddr, "cuMulticastBindAddr", 12010,
	    LIST(uint64_t object, size_t offset, CUdeviceptr address, size_t size, uint64_t flags),
	    LIST(object, offset, address, size, flags))
DRIVER_HOOK(cuMulticastBindAddr_v2, "cuMulticastBindAddr", 13010,
	    LIST(uint64_t object, CUdevice device, size_t offset, CUdeviceptr address, size_t size, uint64_t flags),
	    LIST(object, device, offset, address, size, flags))

/* ---- files of memory (dma-buf), for other devices ------------------------------------------------------ */

typedef CUresult cuMemGetHandleForAddressRange_fn(void *handle, CUdeviceptr address, size_t size, int type,
						  uint64_t flags);

/* A range may be of many mappings, none smaller than this. */
static const size_t smallest_mapping = 64 << 10;

static CUresult cuMemGetHandleForAddressRange_hook(cuMemGetHandleForAddressRange_fn *real, const void *caller,
						   void *handle, CUdeviceptr address, size_t size, int type,
						   uint64_t flags)
{
	CUresult result;

	(void)caller;
	if (!may_bind("cuMemGetHandleForAddressRange", address, "exported", &result))
		return result;
	for (size_t at = smallest_mapping; at < size; at += smallest_mapping)
		if (!vmm_keep(address + at, "exported", "cuMemGetHandleForAddressRange", &result))
			return result;
	return real(handle, address, size, type, flags);
}

DRIVER_HOOK(cuMemGetHandleForAddressRange, "cuMemGetHandleForAddressRange", 11070,
	    LIST(void *handle, CUdeviceptr address, size_t size, int type, uint64_t flags),
	    LIST(handle, address, size, type, flags))

/* ---- logical endpoints ------------------------------------------------------------------------------ */

typedef CUresult cuLogicalEndpointBindMem_fn(uint32_t endpoint, CUdevice device, uint64_t offset, uint64_t handle,
					     uint64_t handle_offset, uint64_t size, uint64_t flags);
typedef CUresult cuLogicalEndpointBindAddr_fn(uint32_t endpoint, CUdevice device, uint64_t offset, void *address,
					      uint64_t size, uint64_t flags);

static CUresult cuLogicalEndpointBindMem_hook(cuLogicalEndpointBindMem_fn *real, const void *caller, uint32_t endpoint,
					      CUdevice device, uint64_t offset, uint64_t handle,
					      uint64_t handle_offset, uint64_t size, uint64_t flags)
{
	CUresult result;

	(void)caller;
	return vmm_real_handle(&handle, "endpoint", "cuLogicalEndpointBindMem", &result)
		       ? real(endpoint, device, offset, handle, handle_offset, size, flags)
		       : result;
}

static CUresult cuLogicalEndpointBindAddr_hook(cuLogicalEndpointBindAddr_fn *real, const void *caller,
					       uint32_t endpoint, CUdevice device, uint64_t offset, void *address,
					       uint64_t size, uint64_t flags)
{
	CUresult result;

	(void)caller;
	return may_bind("cuLogicalEndpointBindAddr", (uintptr_t)address, "endpoint", &result)
		       ? real(endpoint, device, offset, address, size, flags)
		       : result;
}

DRIVER_HOOK(cuLogicalEndpointBindMem, "cuLogicalEndpointBindMem", 13030,
	    LIST(uint32_t endpoint, CUdevice device, uint64_t offset, uint64_t handle, uint64_t handle_offset,
		 uint64_t size, uint64_t flags),
	    LIST(endpoint, device, offset, handle, handle_offset, size, flags))
DRIVER_HOOK(cuLogicalEndpointBindAddr, "cuLogicalEndpointBindAddr", 13030,
	    LIST(uint32_t endpoint, CUdevice device, uint64_t offset, void *address, uint64_t size, uint64_t flags),
	    LIST(endpoint, device, offset, address, size, flags))

/* ---- sparse arrays ------------------------------------------------------------------------------------ */

/* CUarrayMapInfo. */
struct array_map {
	int resource_type;
	void *resource;
	int subresource_type;
	uint64_t subresource[4];
	int operation; /* operation_map, or unmap, which has no handle */
	int handle_type;
	uint64_t handle;
	uint64_t offset;
	unsigned device_mask, flags, reserved[2];
};
_Static_assert(sizeof(struct array_map) == 96, "it is laid out as the driver's");

enum { operation_map = 1 };

typedef CUresult cuMemMapArrayAsync_fn(struct array_map *list, unsigned count, CUstream stream);
typedef cuMemMapArrayAsync_fn cuMemMapArrayAsync_ptsz_fn;

static bool needs_real_handle(const struct array_map *map)
{
	return map->operation == operation_map && EBB_ENGINE_IS_HANDLE(map->handle);
}

static CUresult cuMemMapArrayAsync_hook(cuMemMapArrayAsync_fn *real, const void *caller, struct array_map *list,
					unsigned count, CUstream stream)
{
	CUresult result = CUDA_SUCCESS;
	bool any = false;

	(void)caller;
	for (unsigned i = 0; list != NULL && i < count; i++)
		any = any || needs_real_handle(&list[i]);
	if (!any)
		return real(list, count, stream);

	struct array_map *copy = malloc(count * sizeof(*copy));
	if (copy == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(copy, list, count * sizeof(*copy));
	bool all = true;
	for (unsigned i = 0; i < count && all; i++)
		if (needs_real_handle(&copy[i]))
			all = vmm_real_handle(&copy[i].handle, "array", "cuMemMapArrayAsync", &result);
	if (all)
		result = real(copy, count, stream);
	free(copy);
	return result;
}
#define cuMemMapArrayAsync_ptsz_hook cuMemMapArrayAsync_hook

DRIVER_HOOK(cuMemMapArrayAsync, "cuMemMapArrayAsync", 11010,
	    LIST(struct array_map *list, unsigned count, CUstream stream),
	    LIST(list, count, stream))
DRIVER_HOOK(cuMemMapArrayAsync_ptsz, NULL, 0, LIST(struct array_map *list, unsigned count, CUstream stream),
	    LIST(list, count, stream))
