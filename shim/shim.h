/*
 * shim.h: what the parts of libebb.so share.
 *
 * The library is preloaded into every process of a job, so outside managed regions it must be
 * as good as absent: no constructor, no dependency but libc, nothing loaded, nothing started.
 * The Go engine is loaded at the first managed allocation and is entered only in the process
 * that loaded it.
 *
 * Locks: no lock of this library is held over dlopen, dlsym, a call to the real runtime or a
 * call to the engine. A hook may run inside a library constructor, with the dynamic loader's
 * lock held, so a lock held over a loader call could be waited for by its own holder.
 */
#ifndef EBB_SHIM_H
#define EBB_SHIM_H

#include "../abi/ebb_engine.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define PRINTF_LIKE(text, first) __attribute__((format(printf, text, first)))

/* ---- log.c: lines for the user -------------------------------------------------------- */

/* Writes "ebb: " and the text as one line to stderr. Never blocks a signal for longer than the
 * write, never raises SIGPIPE, and says nothing when stderr is closed. Keeps errno. */
void log_line(const char *format, ...) PRINTF_LIKE(1, 2);

/* Whether lines are JSON; false until the settings are read, which may have lines of their own. */
extern _Atomic bool log_is_json;

/* ---- settings.c: settings of the process ------------------------------------------------ */

/* Settings from the environment, read once, at first use. */
struct settings {
	bool managed;     /* these four: where each thread starts */
	bool cpu_backup;
	bool disk_backup;
	bool cpu_mmap;
	bool exit_on_pause_error;
	bool discard; /* give blocks of backup files back before the files are removed */
	bool host_arena; /* CPU backups lie in host memory that is kept */
	uint64_t chunk_bytes;
	uint64_t state_chunk_bytes;
	uint64_t host_bytes; /* that disk backups take before files, or EBB_HOST_AUTO */
	int32_t local_ranks; /* 0: not known */
	uint64_t disk_quota; /* 0: none */
	double resume_wait_s;
	double io_timeout_s; /* that a disk may give no answer; 0: for ever */
	bool control; /* a control socket is served */
};

const struct settings *settings(void);

/* The variable's value, or null when it is unset or empty. */
const char *settings_env(const char *name);

/* A copy of the directory of disk backups, to be freed by the caller; null: no memory. */
char *settings_disk_dir(void);
bool settings_retain_cpu_backup(void);
uint64_t settings_margin(void);

/* ---- interrupt.c: signals and cancellation stay out of Go code --------------------------------- */

struct interrupts {
	sigset_t mask;
	int cancel;
	bool size_limit; /* the call may write files: a SIGXFSZ that it raises is taken back */
};

/* From here to the release no handler that would run on Go's stack interrupts the calling thread,
 * and it cannot be cancelled. */
void interrupts_hold(struct interrupts *before);
void interrupts_release(const struct interrupts *before);
/* The same at the price of one system call: all signals but those of faults are held back. Before such
 * a call waits, it lets those through that end or stop the process and have no handler to be held back. */
void interrupts_hold_briefly(struct interrupts *before);
void interrupts_wait(const struct interrupts *before);
/* While such a call is in the driver, and not in Go code, on the thread's own stack, nothing needs to be held
 * back; then all is again. */
void interrupts_let_in(const struct interrupts *before);
void interrupts_keep_out(void);
/* Blocks all signals but those of faults, for the threads that are made meanwhile; the caller
 * restores the mask. */
void interrupts_hold_all(sigset_t *before);

/* ---- region.c: settings of the calling thread --------------------------------------------- */

struct thread {
	bool ready;          /* the fields below hold the process's defaults or what was set since */
	bool managed;
	bool cpu_backup;
	bool disk_backup;
	bool cpu_mmap;
	int inside;          /* > 0: within an engine call or its loading; hooks pass through */
	int passing;         /* > 0: within a call of the real runtime's, made by a hook that has dealt with
				memory: hooks of the driver below it pass through */
	struct interrupts before; /* of the outermost of these */
	bool open;           /* the driver waits for the device: signals are handled, as before the call */
	int open_depth;      /* > 0: that many calls are outside of the one that a handler made then */
	struct interrupts opened; /* of that one */
	enum { NO_PROBE, PROBE_CALLED, PROBE_ARRIVED } probe; /* see presence.c */
	int idle;            /* idle sections begun here and not ended, before an engine counts them */
	uint64_t contexts;   /* bit d: the real runtime's context exists here for device d */
	unsigned resets;     /* resets of devices that contexts knows of */
	char *tag;           /* owned; null: "default" */
	char *error;         /* owned, like the next one; null: no error yet */
	char *error_json;
};

struct thread *this_thread(void);
/* Whether any thread is or was in a region. */
bool regions_used(void);
const char *thread_tag(const struct thread *t);
/* Makes text the value of one of this thread's owned strings. */
void thread_keep(char **where, char *text);

/* ---- error.c: the calling thread's last error ------------------------------------------------ */

/* Records the calling thread's last error and returns code. */
int fail(int code, const char *format, ...) PRINTF_LIKE(2, 3);
/* Makes the engine's last error of this thread the calling thread's, and returns code. */
int fail_as_engine(int code);
/* The calling thread's last error, "" when there was none. Valid until the next error. */
const char *last_error(void);
/* Length of the UTF-8 sequence that text starts with; 0: it is none. */
size_t utf8_length(const unsigned char *text);
/* What ebb_last_error_json does. */
size_t last_error_json(char *buf, size_t cap);
/* The same as last_error for a line that names the call already: without the "call: " it begins with, if it does. */
const char *last_error_of(const char *call);

/* ---- guard.c: which process and which library own the engine ------------------------------------------------- */

/* Makes this process the owner. False when it, or the process it was forked from, had one. */
bool guard_claim(void);
/* Whether the owner is another process: this one was forked from it. */
bool guard_forked(void);
pid_t guard_owner(void);
/* The path of another copy of this library that comes before this one in the process, or null. */
const char *guard_first_copy(void);

/* ---- inherit.c ---------------------------------------------------------------------------------- */

/* In a forked child: closes the backup files that the engine had open in the parent. */
void close_inherited_backups(void);
/* The same with the descriptors of the control socket, which the engine notes there. */
void close_inherited_sockets(void);
extern ebb_engine_descriptor control_descriptors[EBB_ENGINE_DESCRIPTORS];

/* ---- api.c ---------------------------------------------------------------------------------------- */

/* ebb's own functions, as the control socket calls them. */
extern const ebb_engine_calls control_calls;

/* ---- engine.c: the engine library ------------------------------------------------------------- */

enum engine_state {
	ENGINE_ABSENT, /* not asked for yet, or another thread is loading it: no managed memory */
	ENGINE_READY,
	ENGINE_FAILED, /* could not be loaded; stays so */
	ENGINE_FORKED, /* loaded by the process this one was forked from; must not be entered */
	ENGINE_EXITING, /* the process's exit has begun; not entered any more */
};

/* The engine's functions. Valid while the state is ENGINE_READY. Every call lies between
 * engine_enter and engine_leave. */
struct engine {
	ebb_engine_version_fn version;
	ebb_engine_start_fn start;
	ebb_engine_malloc_fn malloc;
	ebb_engine_free_fn free;
	ebb_engine_pause_fn pause;
	ebb_engine_resume_fn resume;
	ebb_engine_backup_pointer_fn backup_pointer;
	ebb_engine_status_fn status;
	ebb_engine_pause_count_fn pause_count;
	ebb_engine_last_error_fn last_error;
	ebb_engine_last_error_json_fn last_error_json;
	ebb_engine_read_fn read;
	ebb_engine_idle_fn idle;
	ebb_engine_request_pause_fn request_pause;
	ebb_engine_vmm_create_fn vmm_create;
	ebb_engine_vmm_release_fn vmm_release;
	ebb_engine_vmm_map_fn vmm_map;
	ebb_engine_vmm_unmap_fn vmm_unmap;
	ebb_engine_vmm_set_access_fn vmm_set_access;
	ebb_engine_vmm_get_access_fn vmm_get_access;
	ebb_engine_vmm_retain_fn vmm_retain;
	ebb_engine_vmm_address_free_fn vmm_address_free;
	ebb_engine_vmm_export_fn vmm_export;
	ebb_engine_vmm_properties_fn vmm_properties;
	ebb_engine_vmm_real_fn vmm_real;
	ebb_engine_peer_access_fn peer_access;
	ebb_engine_context_reset_fn context_reset;
	ebb_engine_state_create_fn state_create;
	ebb_engine_state_block_fn state_block;
	ebb_engine_state_read_fn state_read;
	ebb_engine_state_write_fn state_write;
	ebb_engine_state_wait_fn state_wait;
	ebb_engine_state_read_host_fn state_read_host;
	ebb_engine_state_write_host_fn state_write_host;
	ebb_engine_state_save_fn state_save;
	ebb_engine_state_load_fn state_load;
	ebb_engine_state_close_fn state_close;
	ebb_engine_shutdown_fn shutdown;
};

extern struct engine engine;

enum engine_state engine_state(void);
/* Loads the engine if no thread did. Never returns ENGINE_ABSENT. */
enum engine_state engine_load(void);

/* Number of engine calls begun, and of those ended, in the process so far. */
uint64_t engine_calls_begun(void);
uint64_t engine_calls_ended(void);

/* Removes the process's files, for an exit that runs no handlers. */
void engine_shutdown(void);

void engine_enter(void);
/* The same for a call that moves no bytes: cheaper, but all signals wait until it has ended or the
 * engine has said that it waits itself. */
void engine_enter_briefly(void);
/* Ends a call. Takes over the engine's error text when code is not EBB_OK; returns code. A call
 * that fails when the process's exit has begun is refused like one that comes later. */
int engine_leave(int code);

/* Whether this code is the engine's, which gets the driver's own functions when it looks them up. */
bool engine_contains(const void *code);

/* Records why the engine cannot be used and returns the code: state is not ENGINE_READY. */
int engine_refuse(enum engine_state state);

/* ---- idle.c: safe points ----------------------------------------------------------------------- */

/* Hands the idle sections that were begun before there was an engine over to it. Once, by the
 * thread that loads it, before any other may ask it for a pause. */
void idle_hand_over(void);

/* ---- real.c: the real CUDA runtime -------------------------------------------------------------- */

/* Errors of the runtime and of the driver have the same numbers. */
typedef int cudaError_t;
typedef int CUresult;
typedef void *cudaStream_t;
typedef void *cudaGraph_t;

enum {
	cudaSuccess = 0,
	cudaErrorInvalidValue = 1,
	cudaErrorMemoryAllocation = 2,
	cudaErrorSharedObjectSymbolNotFound = 302,
	cudaErrorSharedObjectInitFailed = 303,
	cudaErrorIllegalState = 401,
	cudaErrorNotSupported = 801,
	cudaErrorStreamCaptureUnsupported = 900,
	cudaErrorUnknown = 999,

	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_DEINITIALIZED = 4,
	CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND = 302,
	CUDA_ERROR_SHARED_OBJECT_INIT_FAILED = 303,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_ILLEGAL_STATE = 401,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_NOT_SUPPORTED = 801,
};

typedef cudaError_t is_capturing_fn(cudaStream_t, int *status);
typedef cudaError_t begin_capture_fn(cudaStream_t, int mode);
typedef cudaError_t begin_capture_to_graph_fn(cudaStream_t, cudaGraph_t, const void *dependencies,
					      const void *dependency_data, size_t count, int mode);
typedef cudaError_t end_capture_fn(cudaStream_t, cudaGraph_t *);
typedef cudaError_t entry_point_fn(const char *symbol, void **function, unsigned long long flags, int *status);
typedef cudaError_t entry_point_by_version_fn(const char *symbol, void **function, unsigned int version,
					      unsigned long long flags, int *status);

/* Functions of one CUDA runtime; null where it has none of that name. */
struct real {
	struct real *next;
	void *handle;
	cudaError_t (*cudaMalloc)(void **, size_t);
	cudaError_t (*cudaFree)(void *);
	cudaError_t (*cudaGetDevice)(int *);
	cudaError_t (*cudaSetDevice)(int);
	cudaError_t (*cudaGetLastError)(void);
	cudaError_t (*cudaHostGetFlags)(unsigned int *, void *);
	cudaError_t (*cudaIpcGetMemHandle)(void *, void *);
	cudaError_t (*cudaMallocManaged)(void **, size_t, unsigned int flags);
	cudaError_t (*cudaDeviceEnablePeerAccess)(int peer, unsigned int flags);
	cudaError_t (*cudaDeviceDisablePeerAccess)(int peer);
	cudaError_t (*cudaDeviceReset)(void);
	cudaError_t (*cudaRuntimeGetVersion)(int *);
	cudaError_t (*cudaStreamDestroy)(cudaStream_t);
	cudaError_t (*cudaThreadExchangeStreamCaptureMode)(int *mode);
	/* Those with _ptsz belong to programs in which stream 0 is a stream of the calling thread. */
	is_capturing_fn *cudaStreamIsCapturing, *cudaStreamIsCapturing_ptsz;
	begin_capture_fn *cudaStreamBeginCapture, *cudaStreamBeginCapture_ptsz;
	begin_capture_to_graph_fn *cudaStreamBeginCaptureToGraph, *cudaStreamBeginCaptureToGraph_ptsz;
	end_capture_fn *cudaStreamEndCapture, *cudaStreamEndCapture_ptsz;
	entry_point_fn *cudaGetDriverEntryPoint, *cudaGetDriverEntryPoint_ptsz;
	entry_point_by_version_fn *cudaGetDriverEntryPointByVersion, *cudaGetDriverEntryPointByVersion_ptsz;
};

/* The runtime that the code at this return address uses. Never null and never this library: with
 * no runtime loaded, all its functions are null. */
const struct real *real_for(const void *caller);
/* Says once that the runtime lacks a function, and returns the error for it. */
cudaError_t real_missing(const char *function);

/* ---- lookup.c: the driver ------------------------------------------------------------------------ */

typedef void *dlsym_fn(void *handle, const char *name);

/* The loader's answer, in which ours and other hooks have no part. */
void *loader_dlsym(void *handle, const char *name);
/* Whether this dlsym is another hook's. */
bool is_hooks_dlsym(dlsym_fn *function);
/* Whether the process has the GPU's driver: only then can it hold device memory. */
bool driver_loaded(void);
/* Whether the file that this address lies in is the driver's. */
bool in_driver(const void *address);
/* The driver's own function; null: no loaded driver has it. */
void *driver_function(const char *symbol);
/* The device of the calling thread's context, as the driver answers; the same, -1: it has none. */
CUresult context_device(int *device);
int current_device(void);

/* ---- callers.c: who makes memory ------------------------------------------------------------------ */

/* Memory that is not managed is counted by the library that made it. Small numbers, by which
 * class_name gives the name. */
enum {
	CLASS_OTHER,    /* of libraries for which there is no number left */
	CLASS_NCCL,
	CLASS_TRANSPORT, /* of other libraries that give memory to other GPUs or to the network */
	CLASS_WORKSPACE, /* of the mathematical libraries */
	CLASS_POOL,     /* of cudaMallocAsync */
	CLASS_IMPORTED, /* of another process */
	CLASS_PYTHON,   /* of Python code that calls the driver or the runtime through ctypes */
	CLASS_FILES,    /* from here on: by the file name of the library */
	CLASSES = 32
};

/* The class of the code at this return address. */
unsigned class_of(const void *caller);
const char *class_name(unsigned class);

/* ---- unmanaged.c: device memory that is not managed ------------------------------------------------ */

struct unmanaged {
	uint64_t bytes; /* 0: not counted */
	unsigned class;
};

/* An allocation is known by its address. It is entered after the call that made it and taken out
 * before the one that frees it, since then another thread may get the address; to be entered again
 * where that fails. */
void unmanaged_allocated(uint64_t address, uint64_t bytes, unsigned class);
struct unmanaged unmanaged_take(uint64_t address);
/* Allocations of a device are gone, since its context was reset. */
void unmanaged_were_reset(int device);
/* Memory of cuMemCreate is held while it has a handle or a mapping. bytes 0: not known until mapped. */
void unmanaged_created(uint64_t handle, uint64_t bytes, unsigned class);
void unmanaged_retained(uint64_t handle);
void unmanaged_released(uint64_t handle); /* before the call that does it */
void unmanaged_mapped(uint64_t address, uint64_t bytes, uint64_t offset, uint64_t handle);
void unmanaged_unmapped(uint64_t address, uint64_t bytes);

/* Number of such allocations that the process holds, as far as they passed the hooks. */
int64_t unmanaged_allocations(void);
/* Writes what is held now, by class, and returns the number of classes, at most CLASSES. */
size_t unmanaged_classes(ebb_engine_unmanaged list[CLASSES]);

/* ---- hooks.c --------------------------------------------------------------------------------------- */

/* Whether memory that this code asks for now on this thread is to be managed. */
bool managed_here(const void *caller);
/* What the engine is to know of an allocation of this thread. False: it is refused, and a line is said. */
bool allocation_region(ebb_engine_region *region, size_t size);
/* Allocates and frees managed memory. The engine is ready. */
cudaError_t engine_allocate(void **ptr, size_t size, int device);
/* False: this memory is not managed, the caller passes it on; else *error is the answer. */
bool engine_free(void *ptr, cudaError_t *error);
/* Whether ptr lies in managed memory. */
bool is_managed(const void *ptr);
/* Whether other processes are not let into this memory, since it is managed; says so in a line. */
bool refuses_ipc(const char *function, const void *ptr);
/* Error of the runtime, and of the driver, for a code of the engine. */
cudaError_t cuda_error(int code);
/* Around calls of the real runtime in which hooks of the driver shall pass through. */
void pass_begin(void);
void pass_end(void);
/* Contexts that the real runtime had made are gone. */
void contexts_were_reset(void);

/* ---- peer.c ------------------------------------------------------------------------------------------ */

/* Tells a new engine which devices may use the memory of which others. */
void peer_hand_over(void);
/* Tells the engine again what it could not do. */
void peer_catch_up(void);

/* ---- presence.c: whether the hooks are reached -------------------------------------------------------- */

/* Where this library is not first in the loader's order, they say once in the process what is not seen:
 * before a region or a pause, and after a pause that ended with that code. */
void presence_check(void);
void presence_check_left(int code);
/* In cuMemCreate: whether it was called to find out where calls go, and does nothing else. */
bool presence_probed(void);

/* ---- capture.c ---------------------------------------------------------------------------------- */

/* Number of stream captures under way in the process. */
int captures_under_way(void);
/* Captures on streams of a device are gone, since its context was reset. */
void captures_were_reset(int device);

/* ---- pool.c ------------------------------------------------------------------------------------------ */

/* After a pause: has the driver give back the idle memory of the pools that the program has made. */
void pools_give_back(void);
/* A device was reset, and pools of it may have gone with its context: none is known any more. */
void pools_were_reset(void);

#endif
