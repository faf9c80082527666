/*
 * reset.c: resets of devices. What the driver had made in a device's primary context is gone then, and
 * what is known of it has to go too. The engine keeps away from the device meanwhile.
 */
#include "doors.h"

enum reset { RESET_UNKNOWN, RESET_TOLD, RESET_REFUSED };

/* Tells the engine, if there is one; it is then to be told how the reset ended. It refuses one that would
 * take the only copy of paused bytes with it. */
static enum reset begins(int device)
{
	if (engine_state() != ENGINE_READY || this_thread()->inside > 0)
		return RESET_UNKNOWN;
	engine_enter();
	int code = engine_leave(engine.context_reset(device, EBB_RESET_BEGINS));
	if (code == EBB_OK)
		return RESET_TOLD;
	if (engine_state() == ENGINE_EXITING)
		return RESET_UNKNOWN;
	log_line("the reset of device %d is refused: %s", device, last_error_of("reset of a device"));
	return RESET_REFUSED;
}

static void ends(int device, enum reset was, bool done)
{
	if (done) {
		contexts_were_reset();
		captures_were_reset(device);
		unmanaged_were_reset(device);
		pools_were_reset();
	}
	if (was != RESET_TOLD)
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
	enum reset was = begins(device);
	if (was == RESET_REFUSED)
		return CUDA_ERROR_ILLEGAL_STATE;
	CUresult result = real(device);
	ends(device, was, result == CUDA_SUCCESS);
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
	enum reset was = begins(device);
	if (was == RESET_REFUSED)
		return cudaErrorIllegalState;
	pass_begin();
	cudaError_t error = real->cudaDeviceReset();
	pass_end();
	ends(device, was, error == cudaSuccess);
	return error;
}
