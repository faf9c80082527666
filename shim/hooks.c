/*
 * hooks.c: cudaMalloc and cudaFree, the allocation functions for PyTorch, and what else is asked of
 * memory; and what the driver's allocations share with them.
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

cudaError_t cuda_error(int code)
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

/* Below a call of the real runtime's the driver's functions are called, and these are hooked too. */
void pass_begin(void)
{
	this_thread()->passing++;
}

void pass_end(void)
{
	this_thread()->passing--;
}

/* ---- what is managed ------------------------------------------------------------------------------- */

/*
 * Libraries that give their memory to other GPUs or to the network register its physical pages, which
 * no pause can carry over: theirs is never managed. What a mathematical library keeps for itself has
 * content that nobody thought of when a region was said to lose its content.
 */
static bool may_be_managed(const struct thread *t, unsigned class)
{
	if (class == CLASS_NCCL || class == CLASS_TRANSPORT)
		return false;
	return class != CLASS_WORKSPACE || t->cpu_backup || t->disk_backup;
}

/* Whether what is allocated now on this thread may become the engine's. */
static bool can_manage(const struct thread *t)
{
	enum engine_state state = engine_state();

	return t->inside == 0 && t->passing == 0 && state != ENGINE_FORKED && state != ENGINE_EXITING;
}

bool managed_here(const void *caller)
{
	const struct thread *t = this_thread();

	/* As another copy's real function a hook must not manage what that one leaves alone. */
	return t->managed && can_manage(t) && guard_first_copy() == NULL && may_be_managed(t, class_of(caller));
}

bool allocation_region(ebb_engine_region *region, size_t size)
{
	const struct thread *t = this_thread();

	if (t->cpu_backup && t->disk_backup) {
		log_line("an allocation of %zu bytes is refused: CPU backup and disk backup are both on and "
			 "exclude each other; turn one off (tms_set_enable_cpu_backup, "
			 "tms_set_enable_disk_backup or their TMS_INIT_ variables)",
			 size);
		return false;
	}
	*region = (ebb_engine_region){
		.tag = thread_tag(t),
		.backup = t->cpu_backup ? EBB_BACKUP_CPU : t->disk_backup ? EBB_BACKUP_DISK : EBB_BACKUP_NONE,
		.cpu_mmap = t->cpu_mmap,
	};
	return true;
}

cudaError_t engine_allocate(void **ptr, size_t size, int device)
{
	ebb_engine_region region;

	if (!allocation_region(&region, size))
		return cudaErrorInvalidValue;
	engine_enter_briefly();
	int code = engine.malloc(ptr, size, device, &region, settings_margin());
	engine_leave(code);
	/* What was counted at this address has ended by a way that is not hooked. */
	if (code == EBB_OK)
		unmanaged_take((uintptr_t)*ptr);
	/* Too little device memory is everyday: callers free their caches and try again. */
	if (code != EBB_OK && code != EBB_ERR_DEVICE_MEMORY && engine_state() != ENGINE_EXITING)
		log_line("an allocation of %zu bytes on device %d failed: %s", size, device, last_error_of("malloc"));
	return cuda_error(code);
}

bool is_managed(const void *ptr)
{
	enum engine_state state = engine_state();
	void *host;

	if (ptr == NULL || this_thread()->inside > 0 || (state != ENGINE_READY && state != ENGINE_EXITING))
		return false;
	engine_enter_briefly();
	int code = engine.backup_pointer(ptr, 1, &host);
	engine_leave(EBB_OK); /* having no backup is no error here */
	return code != EBB_ERR_NOT_MANAGED;
}

bool engine_free(void *ptr, cudaError_t *error)
{
	enum engine_state state = engine_state();

	if (ptr != NULL && this_thread()->inside == 0 && state == ENGINE_READY) {
		engine_enter_briefly();
		int code = engine.free(ptr, captures_under_way());
		/* Most pointers are the real runtime's, and that is no error. */
		engine_leave(code == EBB_ERR_NOT_MANAGED ? EBB_OK : code);
		if (code != EBB_OK && code != EBB_ERR_NOT_MANAGED && engine_state() != ENGINE_EXITING)
			log_line("freeing %p failed: %s", ptr, last_error_of("free"));
		*error = cuda_error(code);
		return code != EBB_ERR_NOT_MANAGED;
	}
	/* It ends with the process; to free it would mean to wait for a pause under way. */
	*error = cudaSuccess;
	return state == ENGINE_EXITING && is_managed(ptr);
}

/* ---- cudaMalloc ------------------------------------------------------------------------------------- */

static _Atomic unsigned resets_so_far;

void contexts_were_reset(void)
{
	resets_so_far++;
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
	unsigned resets = resets_so_far;

	if (t->resets != resets)
		t->contexts = 0;
	t->resets = resets;
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

static cudaError_t unmanaged_malloc(const struct real *real, const void *caller, void **ptr, size_t size)
{
	if (real->cudaMalloc == NULL)
		return real_missing("cudaMalloc");
	pass_begin();
	cudaError_t error = real->cudaMalloc(ptr, size);
	pass_end();
	if (error == cudaSuccess)
		unmanaged_allocated((uintptr_t)*ptr, size, class_of(caller));
	return error;
}

static cudaError_t unmanaged_free(const struct real *real, void *ptr)
{
	if (real->cudaFree == NULL)
		return real_missing("cudaFree");
	pass_begin();
	cudaError_t error = real->cudaFree(ptr);
	pass_end();
	return error;
}

static cudaError_t managed_malloc(const struct real *real, const void *caller, void **ptr, size_t size)
{
	ebb_engine_region unused;
	int device;

	if (!allocation_region(&unused, size))
		return cudaErrorInvalidValue;
	if (real->cudaGetDevice == NULL)
		return real_missing("cudaGetDevice");
	cudaError_t error = real->cudaGetDevice(&device);
	if (error == cudaSuccess)
		error = make_context(real, device);
	if (error != cudaSuccess)
		return error;
	enum engine_state state = engine_load();
	if (state == ENGINE_EXITING)
		return unmanaged_malloc(real, caller, ptr, size); /* no pause comes any more */
	if (state != ENGINE_READY)
		return cudaErrorSharedObjectInitFailed; /* never unmanaged instead: a pause would not free it */
	return engine_allocate(ptr, size, device);
}

static cudaError_t any_malloc(const void *caller, void **ptr, size_t size, bool managed)
{
	const struct real *real = real_for(caller);

	return managed && size > 0 && ptr != NULL ? managed_malloc(real, caller, ptr, size)
						  : unmanaged_malloc(real, caller, ptr, size);
}

static cudaError_t any_free(const void *caller, void *ptr)
{
	struct unmanaged taken = unmanaged_take((uintptr_t)ptr);
	cudaError_t error;

	/* What is counted is not managed: the engine need not be asked. */
	if (taken.bytes == 0 && engine_free(ptr, &error))
		return error;
	error = unmanaged_free(real_for(caller), ptr);
	if (error != cudaSuccess)
		unmanaged_allocated((uintptr_t)ptr, taken.bytes, taken.class);
	return error;
}

EXPORT cudaError_t cudaMalloc(void **ptr, size_t size)
{
	const void *caller = __builtin_return_address(0);

	return any_malloc(caller, ptr, size, managed_here(caller));
}

EXPORT cudaError_t cudaFree(void *ptr)
{
	return any_free(__builtin_return_address(0), ptr);
}

/* PyTorch has made the device current before it calls its allocator. For others it is made current for as long. */
EXPORT void *tms_torch_malloc(ssize_t size, int device, void *stream)
{
	const void *caller = __builtin_return_address(0);
	const struct real *real = real_for(caller);
	void *ptr = NULL;
	int before = device;

	(void)stream;
	if (size <= 0)
		return NULL;
	if (real->cudaSetDevice != NULL && real->cudaGetDevice != NULL && real->cudaGetDevice(&before) != cudaSuccess)
		before = device; /* what fails here fails below, where it is an answer */
	if (before != device && real->cudaSetDevice(device) != cudaSuccess) {
		log_line("tms_torch_malloc: device %d cannot be used: there is no such device, or it is at fault", device);
		return NULL;
	}
	cudaError_t error = any_malloc(caller, &ptr, (size_t)size, can_manage(this_thread()));
	if (before != device)
		real->cudaSetDevice(before);
	return error == cudaSuccess ? ptr : NULL;
}

EXPORT void tms_torch_free(void *ptr, ssize_t size, int device, void *stream)
{
	(void)size;
	(void)device;
	(void)stream;
	if (ptr != NULL)
		any_free(__builtin_return_address(0), ptr);
}

/* ---- memory for other processes ---------------------------------------------------------------------- */

/* The driver exports plain allocations only, and what another process had opened would not follow a
 * pause. */
bool refuses_ipc(const char *function, const void *ptr)
{
	if (!is_managed(ptr))
		return false;
	log_line("%s: %p is managed memory, which other processes cannot open: allocate what is shared outside the "
		 "region (with ebb.disable(): in Python, tms_set_interesting_region(false) in C)",
		 function, ptr);
	return true;
}

EXPORT cudaError_t cudaIpcGetMemHandle(void *handle, void *ptr)
{
	const struct real *real = real_for(__builtin_return_address(0));

	if (refuses_ipc("cudaIpcGetMemHandle", ptr))
		return cudaErrorNotSupported;
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
