/*
 * reset.c: resets of devices. What the driver had made in a device's primary context is gone then;
 * what is known of it has to go too.
 */
#include "doors.h"

/* After the reset: before it, another thread could have it all made again for nothing. */
static void was_reset(int device)
{
	contexts_were_reset();
	captures_were_reset(device);
	unmanaged_were_reset(device);
}

typedef CUresult cuDevicePrimaryCtxReset_fn(CUdevice device);
typedef cuDevicePrimaryCtxReset_fn cuDevicePrimaryCtxReset_v2_fn;

static CUresult cuDevicePrimaryCtxReset_hook(cuDevicePrimaryCtxReset_fn *real, const void *caller, CUdevice device)
{
	CUresult result = real(device);

	(void)caller;
	if (result == CUDA_SUCCESS && this_thread()->passing == 0)
		was_reset(device);
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
	bool known = real->cudaGetDevice != NULL && real->cudaGetDevice(&device) == cudaSuccess;
	pass_begin();
	cudaError_t error = real->cudaDeviceReset();
	pass_end();
	if (error == cudaSuccess && known)
		was_reset(device);
	return error;
}
