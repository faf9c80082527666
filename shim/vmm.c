/*
 * vmm.c: memory that its owner creates and maps itself, as expandable segments do.
 *
 * What a thread creates in a region is the engine's: its owner gets a handle of the engine's, which
 * is told by its top bits and never reaches the driver. Calls with other handles go straight on.
 * For addresses the engine is asked, once there is anything of its own that could be there.
 */
#include "doors.h"

static _Atomic bool any_created; /* some memory was created by the engine */

/* ---- asking the engine ----------------------------------------------------------------------------- */

/* Whether the engine can be asked about memory of its own; else *answer is what the owner of such
 * memory is to be told. */
static bool can_ask(CUresult *answer)
{
	switch (engine_state()) {
	case ENGINE_READY:
		*answer = CUDA_ERROR_NOT_READY;
		return this_thread()->inside == 0;
	case ENGINE_FORKED:
		*answer = CUDA_ERROR_NOT_INITIALIZED; /* the driver's, in a forked child */
		return false;
	case ENGINE_EXITING:
		*answer = CUDA_ERROR_DEINITIALIZED;
		return false;
	default:
		*answer = CUDA_ERROR_INVALID_VALUE; /* nobody was given this handle */
		return false;
	}
}

static bool can_ask_of_address(void)
{
	CUresult unused;

	return any_created && this_thread()->passing == 0 && can_ask(&unused);
}

/* Ends a call that was entered. What the driver might have answered is the caller's affair; what
 * only ebb answers is said. */
static CUresult leave(int code, int cu, const char *function)
{
	/* Not to concern managed memory is no error. */
	engine_leave(code == EBB_ERR_NOT_MANAGED ? EBB_OK : code);
	if (code == EBB_OK)
		return CUDA_SUCCESS;
	if (code != EBB_ERR_NOT_MANAGED && code != EBB_ERR_INVALID && code != EBB_ERR_DEVICE &&
	    code != EBB_ERR_DEVICE_MEMORY && engine_state() != ENGINE_EXITING)
		log_line("%s failed: %s", function, last_error());
	return cu != CUDA_SUCCESS ? cu : cuda_error(code);
}

/* At exit the engine unmaps nothing and is not asked: memory that it has paused is unknown to the
 * driver, and the owner's goodbye to it is in order. */
static CUresult passed_on(CUresult result)
{
	return result != CUDA_SUCCESS && any_created && engine_state() == ENGINE_EXITING ? CUDA_ERROR_DEINITIALIZED
											   : result;
}

/* ---- handles ---------------------------------------------------------------------------------------- */

typedef CUresult cuMemCreate_fn(uint64_t *handle, size_t size, const void *prop, uint64_t flags);
typedef CUresult cuMemRelease_fn(uint64_t handle);
typedef CUresult cuMemExportToShareableHandle_fn(void *shareable, uint64_t handle, int type, uint64_t flags);
typedef CUresult cuMemImportFromShareableHandle_fn(uint64_t *handle, void *shareable, int type);
typedef CUresult cuMemRetainAllocationHandle_fn(uint64_t *handle, void *address);
typedef CUresult cuMemGetAllocationPropertiesFromHandle_fn(void *prop, uint64_t handle);

/* False: not for the engine to create. */
static bool create(uint64_t *handle, size_t size, const void *prop, uint64_t flags, CUresult *result)
{
	ebb_engine_region region;
	int cu = CUDA_SUCCESS;

	if (!allocation_region(&region, size)) {
		*result = CUDA_ERROR_INVALID_VALUE;
		return true;
	}
	enum engine_state state = engine_load();
	if (state == ENGINE_EXITING)
		return false; /* no pause comes any more */
	if (state != ENGINE_READY) {
		*result = CUDA_ERROR_SHARED_OBJECT_INIT_FAILED; /* never unmanaged instead */
		return true;
	}
	/* Before it can be mapped, so that no call on its address passes the engine by. */
	any_created = true;
	engine_enter_briefly();
	int code = engine.vmm_create(handle, size, prop, flags, &region, settings_margin(), &cu);
	*result = leave(code, cu, "cuMemCreate");
	return code != EBB_ERR_NOT_MANAGED;
}

enum { location_device = 1, location_of_prop = 2 }; /* CUmemAllocationProp: the third of its ints */

static CUresult cuMemCreate_hook(cuMemCreate_fn *real, const void *caller, uint64_t *handle, size_t size,
				 const void *prop, uint64_t flags)
{
	CUresult result;

	if (presence_probed())
		return CUDA_ERROR_INVALID_VALUE;
	if (handle != NULL && prop != NULL && managed_here(caller) && create(handle, size, prop, flags, &result))
		return result;
	result = real(handle, size, prop, flags);
	if (result == CUDA_SUCCESS && ((const int *)prop)[location_of_prop] == location_device)
		unmanaged_created(*handle, size, class_of(caller));
	return result;
}

static CUresult cuMemRelease_hook(cuMemRelease_fn *real, const void *caller, uint64_t handle)
{
	CUresult result;
	int cu = CUDA_SUCCESS;

	(void)caller;
	if (!EBB_ENGINE_IS_HANDLE(handle)) {
		unmanaged_released(handle);
		return real(handle);
	}
	if (!can_ask(&result))
		return result == CUDA_ERROR_DEINITIALIZED ? CUDA_SUCCESS : result; /* it ends with the process */
	engine_enter_briefly();
	int code = engine.vmm_release(handle, &cu);
	return leave(code, cu, "cuMemRelease");
}

static CUresult cuMemExportToShareableHandle_hook(cuMemExportToShareableHandle_fn *real, const void *caller,
						  void *shareable, uint64_t handle, int type, uint64_t flags)
{
	CUresult result;
	int cu = CUDA_SUCCESS;

	(void)caller;
	if (!EBB_ENGINE_IS_HANDLE(handle))
		return real(shareable, handle, type, flags);
	if (!can_ask(&result))
		return result;
	engine_enter_briefly();
	int code = engine.vmm_export(shareable, handle, type, flags, &cu);
	return leave(code, cu, "cuMemExportToShareableHandle");
}

static CUresult cuMemImportFromShareableHandle_hook(cuMemImportFromShareableHandle_fn *real, const void *caller,
						    uint64_t *handle, void *shareable, int type)
{
	CUresult result = real(handle, shareable, type);

	(void)caller;
	if (result == CUDA_SUCCESS)
		unmanaged_created(*handle, 0, CLASS_IMPORTED);
	return result;
}

static CUresult cuMemRetainAllocationHandle_hook(cuMemRetainAllocationHandle_fn *real, const void *caller,
						 uint64_t *handle, void *address)
{
	int cu = CUDA_SUCCESS;

	(void)caller;
	if (handle != NULL && can_ask_of_address()) {
		engine_enter_briefly();
		int code = engine.vmm_retain(handle, (uintptr_t)address, &cu);
		CUresult result = leave(code, cu, "cuMemRetainAllocationHandle");
		if (code != EBB_ERR_NOT_MANAGED)
			return result;
	}
	CUresult result = passed_on(real(handle, address));
	if (result == CUDA_SUCCESS)
		unmanaged_retained(*handle);
	return result;
}

static CUresult cuMemGetAllocationPropertiesFromHandle_hook(cuMemGetAllocationPropertiesFromHandle_fn *real,
							    const void *caller, void *prop, uint64_t handle)
{
	CUresult result;
	int cu = CUDA_SUCCESS;

	(void)caller;
	if (!EBB_ENGINE_IS_HANDLE(handle))
		return real(prop, handle);
	if (!can_ask(&result))
		return result;
	engine_enter_briefly();
	int code = engine.vmm_properties(prop, handle, &cu);
	return leave(code, cu, "cuMemGetAllocationPropertiesFromHandle");
}

DRIVER_HOOK(cuMemCreate, "cuMemCreate", 10020,
	    LIST(uint64_t *handle, size_t size, const void *prop, uint64_t flags),
	    LIST(handle, size, prop, flags))
DRIVER_HOOK(cuMemRelease, "cuMemRelease", 10020, LIST(uint64_t handle), LIST(handle))
DRIVER_HOOK(cuMemExportToShareableHandle, "cuMemExportToShareableHandle", 10020,
	    LIST(void *shareable, uint64_t handle, int type, uint64_t flags),
	    LIST(shareable, handle, type, flags))
DRIVER_HOOK(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020,
	    LIST(uint64_t *handle, void *shareable, int type),
	    LIST(handle, shareable, type))
DRIVER_HOOK(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000,
	    LIST(uint64_t *handle, void *address),
	    LIST(handle, address))
DRIVER_HOOK(cuMemGetAllocationPropertiesFromHandle, "cuMemGetAllocationPropertiesFromHandle", 10020,
	    LIST(void *prop, uint64_t handle),
	    LIST(prop, handle))

/* ---- addresses --------------------------------------------------------------------------------------- */

typedef CUresult cuMemMap_fn(CUdeviceptr address, size_t size, size_t offset, uint64_t handle, uint64_t flags);
typedef CUresult cuMemUnmap_fn(CUdeviceptr address, size_t size);
typedef CUresult cuMemSetAccess_fn(CUdeviceptr address, size_t size, const void *desc, size_t count);
typedef CUresult cuMemGetAccess_fn(uint64_t *flags, const void *location, CUdeviceptr address);
typedef CUresult cuMemAddressFree_fn(CUdeviceptr address, size_t size);

/* The engine is asked about other handles too: their addresses may be those of paused memory. */
static CUresult cuMemMap_hook(cuMemMap_fn *real, const void *caller, CUdeviceptr address, size_t size, size_t offset,
			      uint64_t handle, uint64_t flags)
{
	CUresult result;
	int cu = CUDA_SUCCESS;

	(void)caller;
	if (EBB_ENGINE_IS_HANDLE(handle) ? can_ask(&result) : can_ask_of_address()) {
		engine_enter_briefly();
		int code = engine.vmm_map(address, size, offset, handle, flags, &cu);
		result = leave(code, cu, "cuMemMap");
		if (code == EBB_ERR_NOT_MANAGED && !EBB_ENGINE_IS_HANDLE(handle))
			result = real(address, size, offset, handle, flags);
	} else if (!EBB_ENGINE_IS_HANDLE(handle)) {
		result = real(address, size, offset, handle, flags);
	}
	if (result == CUDA_SUCCESS)
		unmanaged_mapped(address, size, offset, handle);
	return result;
}

static CUresult cuMemUnmap_hook(cuMemUnmap_fn *real, const void *caller, CUdeviceptr address, size_t size)
{
	int code = EBB_ERR_NOT_MANAGED, cu = CUDA_SUCCESS;
	CUresult result = CUDA_SUCCESS;

	(void)caller;
	if (can_ask_of_address()) {
		engine_enter_briefly();
		code = engine.vmm_unmap(address, size, &cu);
		result = leave(code, cu, "cuMemUnmap");
	}
	if (code == EBB_ERR_NOT_MANAGED)
		result = passed_on(real(address, size));
	if (result == CUDA_SUCCESS)
		unmanaged_unmapped(address, size);
	return result;
}

static CUresult cuMemSetAccess_hook(cuMemSetAccess_fn *real, const void *caller, CUdeviceptr address, size_t size,
				    const void *desc, size_t count)
{
	int cu = CUDA_SUCCESS;

	(void)caller;
	if (can_ask_of_address()) {
		engine_enter_briefly();
		int code = engine.vmm_set_access(address, size, desc, count, &cu);
		CUresult result = leave(code, cu, "cuMemSetAccess");
		if (code != EBB_ERR_NOT_MANAGED)
			return result;
	}
	return passed_on(real(address, size, desc, count));
}

static CUresult cuMemGetAccess_hook(cuMemGetAccess_fn *real, const void *caller, uint64_t *flags, const void *location,
				    CUdeviceptr address)
{
	int cu = CUDA_SUCCESS;

	(void)caller;
	if (can_ask_of_address()) {
		engine_enter_briefly();
		int code = engine.vmm_get_access(flags, location, address, &cu);
		CUresult result = leave(code, cu, "cuMemGetAccess");
		if (code != EBB_ERR_NOT_MANAGED)
			return result;
	}
	return passed_on(real(flags, location, address));
}

static CUresult cuMemAddressFree_hook(cuMemAddressFree_fn *real, const void *caller, CUdeviceptr address, size_t size)
{
	int cu = CUDA_SUCCESS;

	(void)caller;
	if (can_ask_of_address()) {
		engine_enter_briefly();
		int code = engine.vmm_address_free(address, size, &cu);
		CUresult result = leave(code, cu, "cuMemAddressFree");
		if (code != EBB_ERR_NOT_MANAGED)
			return result;
	}
	return real(address, size);
}

DRIVER_HOOK(cuMemMap, "cuMemMap", 10020,
	    LIST(CUdeviceptr address, size_t size, size_t offset, uint64_t handle, uint64_t flags),
	    LIST(address, size, offset, handle, flags))
DRIVER_HOOK(cuMemUnmap, "cuMemUnmap", 10020, LIST(CUdeviceptr address, size_t size), LIST(address, size))
DRIVER_HOOK(cuMemSetAccess, "cuMemSetAccess", 10020,
	    LIST(CUdeviceptr address, size_t size, const void *desc, size_t count),
	    LIST(address, size, desc, count))
DRIVER_HOOK(cuMemGetAccess, "cuMemGetAccess", 10020,
	    LIST(uint64_t *flags, const void *location, CUdeviceptr address),
	    LIST(flags, location, address))
DRIVER_HOOK(cuMemAddressFree, "cuMemAddressFree", 10020, LIST(CUdeviceptr address, size_t size), LIST(address, size))

/* ---- for other files ---------------------------------------------------------------------------------- */

bool vmm_real_handle(uint64_t *handle, const char *why, const char *function, CUresult *result)
{
	int cu = CUDA_SUCCESS;

	if (!EBB_ENGINE_IS_HANDLE(*handle))
		return true;
	if (!can_ask(result))
		return false;
	engine_enter_briefly();
	int code = engine.vmm_real(handle, *handle, why, &cu);
	*result = leave(code, cu, function);
	return *result == CUDA_SUCCESS;
}

bool vmm_keep(CUdeviceptr address, const char *why, const char *function, CUresult *result)
{
	uint64_t handle, real;
	int cu = CUDA_SUCCESS;

	*result = CUDA_ERROR_INVALID_VALUE;
	if (!can_ask_of_address())
		return true;
	engine_enter_briefly();
	int code = engine.vmm_retain(&handle, address, &cu);
	if (code == EBB_OK) {
		int ignored;

		code = engine.vmm_real(&real, handle, why, &cu);
		engine.vmm_release(handle, &ignored);
	}
	*result = leave(code, cu, function);
	return code == EBB_OK || code == EBB_ERR_NOT_MANAGED;
}
