/*
 * reset.c: resets of devices. What the driver had made in a device's primary context is gone then, and
 * what is known of it has to go too. The engine keeps away from the device meanwhile.
 */
#include "doors.h"

/* Whether the engine was told, and is to be told how it ended. */
static bool begins(int device)
{
	if (engine_state() != ENGINE_READY || this_thread()->inside > 0)
		return false;
	engine_enter();
	return engine_leave(engine.context_reset(device, EBB_RESET_BEGINS)) == EBB_OK;
}

static void ends(int device, bool told, bool done)
{
	if (done) {
		contexts_were_reset();
		captures_were_reset(device);
		unmanaged_were_reset(device);
	}
	if (!told)
		return;
	engine_enter();
	engine_leave(engine.context_reset(device, done ? EBB_RESET_DONE : EBB_RESET_FAILED));
}

typedef CUresult cuDevicePrimaryCtxReset_fn(CUdevice device);
typedef cuDevicePrimaryCtxReset_fn cuDevicePrimaryCtxReset_v2_fn;

static CUresult cuDevicePrimaryCtxReset_hook(cuDevicePrimaryCtxReset_fn *real, const void *caller, CUdevice device)
{
	(void)caller;
	if (this_thread()->passing > 0)
		return real(device);
	bool told = begins(device);
	CUresult result = real(device);
	ends(device, told, result == CUDA_SUCCESS);
	return result;
}
#define cuDevicePrimaryCtxReset_v2_hook cuDevicePrimaryCtxReset_hook

DRIVER_HOOK(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, LIST(CUdevice device), LIST(device))
DRIVER_HOOK(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, LIST(CUdevice device), LIST(device))

EXPORT cudaError_t cudaDeviceReset(void)
{
	const struct real *real = real_for(__builtin_return_address(0));
	int device;

	if (real->cudaDeviceReset == NULL)
		return real_missing("cudaDeviceReset");
	if (real->cudaGetDevice == NULL || real->cudaGetDevice(&device) != cudaSuccess)
		return real->cudaDeviceReset(); /* the driver's hook below it deals with it */
	bool told = begins(device);
	pass_begin();
	cudaError_t error = real->cudaDeviceReset();
	pass_end();
	ends(device, told, error == cudaSuccess);
	return error;
}
