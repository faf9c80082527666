/*
 * peer.c: which devices may use the memory of which others.
 *
 * What the driver grants so for its own allocations, the engine grants for managed ones. Access that is
 * enabled before there is an engine is noted here and handed over when it is loaded.
 */
#include "doors.h"

enum { MAX_DEVICES = 64 };

/* Bit d of wanted[p]: device p may use the memory of device d. told: what the engine knows. */
static _Atomic uint64_t wanted[MAX_DEVICES], told[MAX_DEVICES];

/* Makes the engine's knowledge of one pair that of ours. */
static void tell(int device, int peer)
{
	uint64_t bit = (uint64_t)1 << device;

	if (engine_state() != ENGINE_READY || this_thread()->inside > 0)
		return;
	for (;;) {
		bool on = (wanted[peer] & bit) != 0;
		uint64_t before = on ? atomic_fetch_or(&told[peer], bit) : atomic_fetch_and(&told[peer], ~bit);

		if (((before & bit) != 0) == on)
			return;
		engine_enter_briefly();
		int code = engine_leave(engine.peer_access(device, peer, on));
		if (code != EBB_OK && engine_state() != ENGINE_EXITING)
			log_line("access of device %d to managed memory of device %d could not be turned %s: %s", peer, device,
				 on ? "on" : "off", last_error());
	}
}

/* Returns whether it was on before. */
static bool note(int device, int peer, bool on)
{
	if (device < 0 || device >= MAX_DEVICES || peer < 0 || peer >= MAX_DEVICES || guard_forked())
		return false;
	uint64_t bit = (uint64_t)1 << device;
	uint64_t before = on ? atomic_fetch_or(&wanted[peer], bit) : atomic_fetch_and(&wanted[peer], ~bit);
	tell(device, peer);
	return (before & bit) != 0;
}

void peer_hand_over(void)
{
	for (int peer = 0; peer < MAX_DEVICES; peer++)
		for (int device = 0; device < MAX_DEVICES && wanted[peer] != 0; device++)
			tell(device, peer);
}

/* ---- the runtime's calls ------------------------------------------------------------------------------- */

/* The current device gets access to the other one's memory, or loses it: managed memory first, since
 * what the engine undoes must be in order still. */
EXPORT cudaError_t cudaDeviceEnablePeerAccess(int device, unsigned int flags)
{
	const struct real *real = real_for(__builtin_return_address(0));
	int current;

	if (real->cudaDeviceEnablePeerAccess == NULL)
		return real_missing("cudaDeviceEnablePeerAccess");
	pass_begin();
	cudaError_t error = real->cudaDeviceEnablePeerAccess(device, flags);
	pass_end();
	if (error == cudaSuccess && real->cudaGetDevice != NULL && real->cudaGetDevice(&current) == cudaSuccess)
		note(device, current, true);
	return error;
}

EXPORT cudaError_t cudaDeviceDisablePeerAccess(int device)
{
	const struct real *real = real_for(__builtin_return_address(0));
	int current;

	if (real->cudaDeviceDisablePeerAccess == NULL)
		return real_missing("cudaDeviceDisablePeerAccess");
	bool known = real->cudaGetDevice != NULL && real->cudaGetDevice(&current) == cudaSuccess;
	bool was_on = known && note(device, current, false);
	pass_begin();
	cudaError_t error = real->cudaDeviceDisablePeerAccess(device);
	pass_end();
	if (error != cudaSuccess && was_on)
		note(device, current, true);
	return error;
}

/* ---- the driver's calls --------------------------------------------------------------------------------- */

typedef CUresult cuCtxEnablePeerAccess_fn(CUcontext context, unsigned flags);
typedef CUresult cuCtxDisablePeerAccess_fn(CUcontext context);

typedef CUresult get_device_fn(CUdevice *device);
typedef CUresult push_fn(CUcontext context);
typedef CUresult pop_fn(CUcontext *context);

/* The devices of the current context and of another one. */
static bool devices_of(CUcontext other, CUdevice *current, CUdevice *its)
{
	get_device_fn *get_device = (get_device_fn *)driver_function("cuCtxGetDevice");
	push_fn *push = (push_fn *)driver_function("cuCtxPushCurrent_v2");
	pop_fn *pop = (pop_fn *)driver_function("cuCtxPopCurrent_v2");

	if (get_device == NULL || push == NULL || pop == NULL || get_device(current) != CUDA_SUCCESS ||
	    push(other) != CUDA_SUCCESS)
		return false;
	bool known = get_device(its) == CUDA_SUCCESS;
	return pop(&other) == CUDA_SUCCESS && known;
}

static CUresult cuCtxEnablePeerAccess_hook(cuCtxEnablePeerAccess_fn *real, const void *caller, CUcontext context,
					   unsigned flags)
{
	CUresult result = real(context, flags);
	CUdevice current, its;

	(void)caller;
	if (result == CUDA_SUCCESS && this_thread()->passing == 0 && devices_of(context, &current, &its))
		note(its, current, true);
	return result;
}

static CUresult cuCtxDisablePeerAccess_hook(cuCtxDisablePeerAccess_fn *real, const void *caller, CUcontext context)
{
	CUdevice current, its;
	bool was_on = this_thread()->passing == 0 && devices_of(context, &current, &its) && note(its, current, false);
	CUresult result = real(context);

	(void)caller;
	if (result != CUDA_SUCCESS && was_on)
		note(its, current, true);
	return result;
}

DRIVER_HOOK(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", 4000, LIST(CUcontext context, unsigned flags),
	    LIST(context, flags))
DRIVER_HOOK(cuCtxDisablePeerAccess, "cuCtxDisablePeerAccess", 4000, LIST(CUcontext context), LIST(context))
