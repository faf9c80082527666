/*
 * peer.c: which devices may use the memory of which others.
 *
 * What the driver grants so for its own allocations, the engine grants for managed ones. Access that is
 * enabled before there is an engine is noted here and handed over when it is loaded.
 */
#include "doors.h"

#include <stdlib.h>

enum { MAX_DEVICES = 64 };

/* Bit d of wanted[p]: device p may use the memory of device d. told: what the engine knows. */
static _Atomic uint64_t wanted[MAX_DEVICES], told[MAX_DEVICES];
static _Atomic bool refused; /* the engine could not do all that is wanted */

/* Makes the engine's knowledge of one pair that of ours. What it cannot do is tried again with the
 * next pair and at the next pause. */
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
		if (code == EBB_OK)
			continue;
		if (on)
			atomic_fetch_and(&told[peer], ~bit);
		else
			atomic_fetch_or(&told[peer], bit);
		refused = true;
		if (engine_state() != ENGINE_EXITING)
			log_line("access of device %d to managed memory of device %d could not be turned %s: %s", peer, device,
				 on ? "on" : "off", last_error());
		return;
	}
}

/* Returns whether it was on before. */
static bool note(int device, int peer, bool on)
{
	if (device < 0 || device >= MAX_DEVICES || peer < 0 || peer >= MAX_DEVICES || guard_forked())
		return false;
	uint64_t bit = (uint64_t)1 << device;
	peer_catch_up();
	uint64_t before = on ? atomic_fetch_or(&wanted[peer], bit) : atomic_fetch_and(&wanted[peer], ~bit);
	tell(device, peer);
	return (before & bit) != 0;
}

void peer_hand_over(void)
{
	for (int peer = 0; peer < MAX_DEVICES; peer++)
		for (int device = 0; device < MAX_DEVICES && wanted[peer] != told[peer]; device++)
			tell(device, peer);
}

void peer_catch_up(void)
{
	if (refused && engine_state() == ENGINE_READY && this_thread()->inside == 0) {
		refused = false;
		peer_hand_over();
	}
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

typedef CUresult push_fn(CUcontext context);
typedef CUresult pop_fn(CUcontext *context);

/* The devices of contexts that access was enabled to. Only grows: contexts come and go at the same few
 * addresses. A driver that is handed a destroyed context may corrupt the heap, so one that was not just
 * accepted by the driver is only looked up here. */
struct known {
	struct known *next;
	CUcontext context;
	_Atomic CUdevice device;
};
static _Atomic(struct known *) all_known;

static struct known *known_context(CUcontext context)
{
	struct known *known = all_known;

	while (known != NULL && known->context != context)
		known = known->next;
	return known;
}

static void remember(CUcontext context, CUdevice device)
{
	struct known *known = known_context(context);

	if (known != NULL) {
		known->device = device; /* the address may be that of a new context */
		return;
	}
	known = calloc(1, sizeof(*known));
	if (known == NULL)
		return; /* disabling the access is not seen then: it stays */
	known->context = context;
	known->device = device;
	known->next = all_known;
	while (!atomic_compare_exchange_weak(&all_known, &known->next, known))
		;
}

/* The device of a context that is known to exist. */
static bool device_of(CUcontext context, CUdevice *device)
{
	push_fn *push = (push_fn *)driver_function("cuCtxPushCurrent_v2");
	pop_fn *pop = (pop_fn *)driver_function("cuCtxPopCurrent_v2");

	if (push == NULL || pop == NULL || push(context) != CUDA_SUCCESS)
		return false;
	*device = current_device();
	return pop(&context) == CUDA_SUCCESS && *device >= 0;
}

static CUresult cuCtxEnablePeerAccess_hook(cuCtxEnablePeerAccess_fn *real, const void *caller, CUcontext context,
					   unsigned flags)
{
	CUresult result = real(context, flags);
	CUdevice its;

	(void)caller;
	if (result != CUDA_SUCCESS || this_thread()->passing > 0 || !device_of(context, &its))
		return result;
	remember(context, its);
	note(its, current_device(), true);
	return result;
}

static CUresult cuCtxDisablePeerAccess_hook(cuCtxDisablePeerAccess_fn *real, const void *caller, CUcontext context)
{
	const struct known *known = this_thread()->passing == 0 ? known_context(context) : NULL;
	CUdevice current = current_device(), its = known != NULL ? known->device : -1;
	bool was_on = note(its, current, false);
	CUresult result = real(context);

	(void)caller;
	if (result != CUDA_SUCCESS && was_on)
		note(its, current, true);
	return result;
}

DRIVER_HOOK(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", 4000, LIST(CUcontext context, unsigned flags),
	    LIST(context, flags))
DRIVER_HOOK(cuCtxDisablePeerAccess, "cuCtxDisablePeerAccess", 4000, LIST(CUcontext context), LIST(context))
