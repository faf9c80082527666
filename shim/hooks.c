/*
 * hooks.c: cudaMalloc and cudaFree, the allocation functions for PyTorch, and what else is asked of
 * memory.
 *
 * Callers arrive holding what they hold (PyTorch its allocator's mutex, often Python's GIL), so
 * nothing here waits for anything but the engine.
 *
 * The real runtime remembers the last error of each thread for cudaGetLastError. It cannot be
 * set from outside: after a refusal that comes from ebb, cudaGetLastError and cudaPeekAtLastError
 * report what they did before. Callers that test the returned value, as PyTorch does, see no
 * difference.
 */
#include "shim.h"

enum { capture_mode_relaxed = 2 }; /* cudaStreamCaptureModeRelaxed */

/* Error of the runtime for a code of the engine. */
static cudaError_t cuda_error(int code)
{
	switch (code) {
	case EBB_OK:
		return cudaSuccess;
	case EBB_ERR_INVALID:
	case EBB_ERR_NOT_MANAGED:
		return cudaErrorInvalidValue;
	case EBB_ERR_DEVICE_MEMORY:
	case EBB_ERR_HOST_MEMORY:
		return cudaErrorMemoryAllocation;
	case EBB_ERR_STATE:
		return cudaErrorIllegalState;
	case EBB_ERR_CAPTURE:
		return cudaErrorStreamCaptureUnsupported;
	case EBB_ERR_NOT_LOADED:
		return cudaErrorSharedObjectInitFailed;
	default:
		return cudaErrorUnknown;
	}
}

/*
 * Programs rely on a runtime call making the device's context current on their thread; the engine
 * leaves contexts alone, so the real runtime is made to do it: cudaFree(NULL) does nothing else.
 * During a capture, of this or another thread, it counts among the calls that would spoil one,
 * unless the calling thread's capture mode is relaxed: so it is, for this call. A runtime that
 * cannot do that is not asked for a context then.
 */
static cudaError_t make_context(const struct real *real, int device)
{
	struct thread *t = this_thread();
	uint64_t bit = device >= 0 && device < 64 ? (uint64_t)1 << device : 0;
	int mode = capture_mode_relaxed;

	if ((t->contexts & bit) != 0)
		return cudaSuccess;
	if (real->cudaFree == NULL)
		return real_missing("cudaFree");
	bool exchanged = real->cudaThreadExchangeStreamCaptureMode != NULL &&
			 real->cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess;
	if (!exchanged && captures_under_way() > 0)
		return cudaSuccess;
	cudaError_t error = real->cudaFree(NULL);
	if (exchanged)
		real->cudaThreadExchangeStreamCaptureMode(&mode);
	if (error == cudaSuccess)
		t->contexts |= bit;
	return error;
}

static cudaError_t unmanaged_malloc(const struct real *real, void **ptr, size_t size);

static cudaError_t managed_malloc(const struct real *real, void **ptr, size_t size)
{
	struct thread *t = this_thread();
	int device;

	if (t->cpu_backup && t->disk_backup) {
		log_line("an allocation of %zu bytes is refused: CPU backup and disk backup are both on and "
			 "exclude each other; turn one off (tms_set_enable_cpu_backup, "
			 "tms_set_enable_disk_backup or their TMS_INIT_ variables)",
			 size);
		return cudaErrorInvalidValue;
	}
	if (real->cudaGetDevice == NULL)
		return real_missing("cudaGetDevice");
	cudaError_t error = real->cudaGetDevice(&device);
	if (error == cudaSuccess)
		error = make_context(real, device);
	if (error != cudaSuccess)
		return error;
	enum engine_state state = engine_load();
	if (state == ENGINE_EXITING)
		return unmanaged_malloc(real, ptr, size); /* no pause comes any more */
	if (state != ENGINE_READY)
		return cudaErrorSharedObjectInitFailed; /* never unmanaged instead: a pause would not free it */

	ebb_engine_region region = {
		.tag = thread_tag(t),
		.backup = t->cpu_backup ? EBB_BACKUP_CPU : t->disk_backup ? EBB_BACKUP_DISK : EBB_BACKUP_NONE,
		.cpu_mmap = t->cpu_mmap,
	};
	engine_enter();
	int code = engine.malloc(ptr, size, device, &region, settings_margin());
	engine_leave(code);
	/* Too little device memory is everyday: callers free their caches and try again. */
	if (code != EBB_OK && code != EBB_ERR_DEVICE_MEMORY && engine_state() != ENGINE_EXITING)
		log_line("an allocation of %zu bytes on device %d failed: %s", size, device, last_error_of("malloc"));
	return cuda_error(code);
}

/* ---- memory that is not managed: counted, so that a pause that would free nothing can say so ---- */

static _Atomic int64_t unmanaged;

int64_t unmanaged_allocations(void)
{
	return unmanaged + (driver_mapped_bytes() > 0);
}

static cudaError_t unmanaged_malloc(const struct real *real, void **ptr, size_t size)
{
	if (real->cudaMalloc == NULL)
		return real_missing("cudaMalloc");
	cudaError_t error = real->cudaMalloc(ptr, size);
	if (error == cudaSuccess && size > 0)
		unmanaged++;
	return error;
}

static cudaError_t unmanaged_free(const struct real *real, void *ptr)
{
	if (real->cudaFree == NULL)
		return real_missing("cudaFree");
	cudaError_t error = real->cudaFree(ptr);
	if (error == cudaSuccess && ptr != NULL) {
		/* Not below zero: memory of cudaMallocManaged, say, was not counted. */
		int64_t now = unmanaged;
		while (now > 0 && !atomic_compare_exchange_weak(&unmanaged, &now, now - 1))
			;
	}
	return error;
}

/* ---- the hooks ------------------------------------------------------------------------------- */

static cudaError_t any_malloc(const struct real *real, void **ptr, size_t size, bool managed)
{
	if (managed && size > 0 && ptr != NULL && this_thread()->inside == 0 && engine_state() != ENGINE_FORKED)
		return managed_malloc(real, ptr, size);
	return unmanaged_malloc(real, ptr, size);
}

static bool is_managed(const void *ptr)
{
	enum engine_state state = engine_state();
	void *host;

	if (ptr == NULL || this_thread()->inside > 0 || (state != ENGINE_READY && state != ENGINE_EXITING))
		return false;
	engine_enter();
	int code = engine.backup_pointer(ptr, 1, &host);
	engine_leave(EBB_OK); /* having no backup is no error here */
	return code != EBB_ERR_NOT_MANAGED;
}

static cudaError_t any_free(const void *caller, void *ptr)
{
	enum engine_state state = engine_state();

	if (ptr != NULL && this_thread()->inside == 0 && state == ENGINE_READY) {
		engine_enter();
		int code = engine.free(ptr, captures_under_way());
		/* Most pointers are the real runtime's, and that is no error. */
		engine_leave(code == EBB_ERR_NOT_MANAGED ? EBB_OK : code);
		if (code != EBB_OK && code != EBB_ERR_NOT_MANAGED && engine_state() != ENGINE_EXITING)
			log_line("freeing %p failed: %s", ptr, last_error_of("free"));
		if (code != EBB_ERR_NOT_MANAGED)
			return cuda_error(code);
	}
	/* It ends with the process; to free it would mean to wait for a pause under way. */
	if (state == ENGINE_EXITING && is_managed(ptr))
		return cudaSuccess;
	return unmanaged_free(real_for(caller), ptr);
}

EXPORT cudaError_t cudaMalloc(void **ptr, size_t size)
{
	/* As another copy's real function this one must not manage what that one leaves alone. */
	bool managed = this_thread()->managed && guard_first_copy() == NULL;

	return any_malloc(real_for(__builtin_return_address(0)), ptr, size, managed);
}

EXPORT cudaError_t cudaFree(void *ptr)
{
	return any_free(__builtin_return_address(0), ptr);
}

/* PyTorch has made the device current before it calls its allocator. */
EXPORT void *tms_torch_malloc(ssize_t size, int device, void *stream)
{
	void *ptr = NULL;

	(void)device;
	(void)stream;
	if (size <= 0)
		return NULL;
	if (any_malloc(real_for(__builtin_return_address(0)), &ptr, (size_t)size, true) != cudaSuccess)
		return NULL;
	return ptr;
}

EXPORT void tms_torch_free(void *ptr, ssize_t size, int device, void *stream)
{
	(void)size;
	(void)device;
	(void)stream;
	if (ptr != NULL)
		any_free(__builtin_return_address(0), ptr);
}

/* The driver exports plain allocations only, and what another process had opened would not follow a
 * pause. */
EXPORT cudaError_t cudaIpcGetMemHandle(void *handle, void *ptr)
{
	const struct real *real = real_for(__builtin_return_address(0));

	if (is_managed(ptr)) {
		log_line("cudaIpcGetMemHandle: %p is managed memory, which other processes cannot open: allocate what "
			 "is shared outside the region (with ebb.disable(): in Python, "
			 "tms_set_interesting_region(false) in C)",
			 ptr);
		return cudaErrorNotSupported;
	}
	return real->cudaIpcGetMemHandle != NULL ? real->cudaIpcGetMemHandle(handle, ptr)
						 : real_missing("cudaIpcGetMemHandle");
}

/* ---- passed on unchanged: software looks these up in this library -------------------------- */

EXPORT cudaError_t cudaGetLastError(void)
{
	const struct real *real = real_for(__builtin_return_address(0));

	return real->cudaGetLastError != NULL ? real->cudaGetLastError() : real_missing("cudaGetLastError");
}

EXPORT cudaError_t cudaHostGetFlags(unsigned int *flags, void *host)
{
	const struct real *real = real_for(__builtin_return_address(0));

	return real->cudaHostGetFlags != NULL ? real->cudaHostGetFlags(flags, host)
					      : real_missing("cudaHostGetFlags");
}
