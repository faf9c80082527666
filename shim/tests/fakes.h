/*
 * fakes.h: what tests see of the stand-ins for the engine, the CUDA runtime and the driver.
 *
 * They record what reaches them and fail when told to, by environment variables that are read at
 * each call, so that a case can set them with setenv.
 */
#ifndef EBB_SHIM_TESTS_FAKES_H
#define EBB_SHIM_TESTS_FAKES_H

#include "../../abi/ebb_engine.h"

#include <stdatomic.h>
#include <stdbool.h>

/*
 * The engine. Entered in any process but the one that started it, it aborts: the real one would
 * hang there. Like Go it raises the soft limit of open files when it starts.
 *   FAKE_START_CODE FAKE_MALLOC_CODE FAKE_FREE_CODE FAKE_PAUSE_CODE FAKE_RESUME_CODE
 *   FAKE_POINTER_CODE FAKE_REQUEST_CODE FAKE_SAFE_POINT_CODE FAKE_READ_CODE
 *                       code that the call fails with
 *   FAKE_START_ALLOCATES   start calls cudaMalloc and cudaFree, as a library that is loaded may
 *   FAKE_IDLE_ENDS         an idle section that begins ends another one, once, as a thread may meanwhile
 *   FAKE_CALLS_WAIT     calls of owners wait likewise; FAKE_DRIVER_WAITS: as in the driver
 *   FAKE_WAITS          pause and resume wait for go_on or shutdown before they do anything
 *   FAKE_CALLS_WAIT     so do malloc, free, peer_access and the vmm calls, after they said that they will
 *   FAKE_SAY_SHUTDOWN   shutdown writes a line to stderr
 *   FAKE_VMM_CODE FAKE_VMM_CU   code that all vmm calls fail with, and the driver's error beside it
 *   FAKE_PEER_CODE      code that peer_access fails with
 *   FAKE_RESET_CODE     code that context_reset fails with when a reset begins
 *   FAKE_STATUS         what status writes
 *   FAKE_START_LOOKS_UP    start looks the driver's functions up, as the real one does
 *   FAKE_START_CALLS       start calls the cuMemRelease that a program finds, with a handle of its own
 */
struct fake_engine {
	_Atomic int starts, mallocs, frees, pauses, resumes, requests, reads, statuses, safe_points, shutdowns;
	_Atomic int idle; /* idle sections open */
	_Atomic int waiting; /* calls that began to wait (FAKE_WAITS) */
	_Atomic int blocked_alarm, blocked_xfsz, blocked_term, cancel_disabled; /* what held in the last pause */
	_Atomic bool go_on;
	_Atomic int malloc_blocked_alarm, malloc_blocked_segv; /* what held in the last malloc */
	_Atomic int waited_blocked_alarm; /* after the driver waited in it (FAKE_DRIVER_WAITS) */
	_Atomic int waiting_blocked_alarm, waiting_blocked_term; /* in the last call that waits (FAKE_CALLS_WAIT) */

	/* What start was given; strings copied, "" for null. */
	uint32_t abi, struct_size;
	int log_fd;
	uint64_t chunk_bytes;
	uint64_t host_bytes;
	int local_ranks;
	bool driver_given, lease_given, identity_given, discard, host_arena;
	uint64_t disk_quota;
	char lease[64], identity[128], disk_dirs[64], leases[64], file_faults[64];
	char job[64], runtime_dir[64], xdg_runtime_dir[64], event_log[64];
	int log_json;
	const ebb_engine_calls *calls;
	ebb_engine_descriptor *descriptors;
	void *allocated_in_start;

	/* What the last malloc was given. */
	char tag[64];
	int backup, cpu_mmap, device;
	size_t size;
	uint64_t margin;

	/* What the last pause or resume was given. */
	size_t ntags;
	char tags[4][64];
	char disk_dir[256];
	int retain_cpu_backup, capture_active;
	int64_t unmanaged;
	double resume_wait_s, request_timeout_s, io_timeout_s;
	uint64_t ask;

	/* What the last read was given. */
	const void *read_from;
	int read_capture_active;

	int free_capture_active;

	/* The classes that the last pause, resume or status was given, and the unused ranges of a pause. */
	size_t nclasses, nunused;
	struct {
		char name[64];
		uint64_t bytes, count;
	} classes[8];
	ebb_range unused[2];

	/* Memory that is mapped by its owner. */
	_Atomic int creates, releases, maps, unmaps, set_accesses, get_accesses, retains, exports, properties, reals,
		address_frees, foreign_maps;
	char why[32];            /* of the last real */
	_Atomic int peer_calls;
	int peer_device, peer_peer, peer_on; /* of the last peer_access */
	_Atomic int resets_begun, resets_done, resets_failed, reset_device; /* device: of the last one */
	_Atomic int state_calls;
	struct {                 /* of the last calls that have them */
		char name[64], dir[256], extra[64];
		uint64_t bytes[2], state, ticket, offset;
		uint32_t segment;
		int device;
		size_t n;
		void *stream;
		const void *buf;
		ebb_state_io io;
	} streamed;
	void *looked_up;         /* cuMemCreate as start found it */
	int call_result;         /* of cuMemRelease */
};

enum { FAKE_REAL_HANDLE = 0x5ea1 }; /* what vmm_real gives */

/* A stream of the fake runtime and driver: cudaStream_t and CUstream point to one. */
struct fake_stream {
	int status;         /* cudaStreamCaptureStatus: 0 none, 1 active, 2 invalidated */
	bool other_thread;  /* the capture was begun by another thread: ending it here fails */
	bool destroy_fails;
};

/* The calls of a capture, the same in runtime and driver. */
static inline int fake_begin_capture(struct fake_stream *s)
{
	if (s->status != 0)
		return 401;
	s->status = 1;
	return 0;
}

static inline int fake_end_capture(struct fake_stream *s, void **graph)
{
	int status = s->status;

	*graph = NULL;
	if (status == 0)
		return 401;
	if (s->other_thread)
		return 908;
	s->status = 0;
	return status == 2 ? 901 : 0;
}

/*
 * The CUDA runtime. Each build of it has its own number, exports its record as
 * fake_cudart_<number>, and hands out pointers that carry the number.
 */
struct fake_cudart {
	_Atomic int mallocs, frees, contexts /* cudaFree(NULL) */, last_errors, host_flags;
	_Atomic int entry_points, ipc_handles, managed_mallocs, peers_enabled, peers_disabled, resets;
	bool uses_driver;   /* cudaMalloc, cudaFree, captures and cudaDeviceReset call the driver, as the real ones do */
	int peer_error;
	_Atomic int version_asked; /* by the last cudaGetDriverEntryPointByVersion; 0: by the other one */
	_Atomic bool per_thread;   /* whether the last hooked call was one of the _ptsz functions */
	void *last_freed;
	int free_error, get_device_error, context_error, begin_error, exchange_error;
	_Atomic int context_mode; /* capture mode of the thread at the last cudaFree(NULL) */
};

/*
 * The driver. Its functions by symbol and those by cuGetProcAddress are not the same, as a real
 * driver's need not be, and those of programs with a default stream per thread are others again.
 */
enum fake_via { VIA_SYMBOL = 1, VIA_PROC, VIA_PROC_PER_THREAD };

struct fake_cuda {
	_Atomic int calls;           /* of functions that the shim hooks, but those for requests */
	_Atomic int virtual_handles; /* handles of the engine's that came here */
	_Atomic int via;             /* how the last of them was found */
	_Atomic int creates, releases, maps, unmaps, set_accesses, get_accesses, exports, imports, retains, properties,
		address_frees, binds, array_maps, allocs, pitches, frees, managed_allocs, pools_created, pools_destroyed, trims,
		range_exports, async_allocs, async_frees,
		ipc_handles, peers_enabled, peers_disabled, begins, ends, destroys, resets;
	_Atomic int last_reset;      /* device of the last reset */
	_Atomic int alloc_v1s;       /* of the functions of 32 bits */
	_Atomic int pushes;          /* contexts that were made current */
	_Atomic int context_moved;   /* device of context 3; 0: 3, as with all others */
	_Atomic uint64_t last_handle, last_address;
	_Atomic uint64_t next;               /* handle or address to be given next; 0: a new one */
	_Atomic int result;                  /* what all functions return */
	_Atomic int requests, version_asked; /* of cuGetProcAddress */
};

/* Errors of the CUDA runtime that the tests speak of. */
enum {
	cudaSuccess = 0,
	cudaErrorInvalidValue = 1,
	cudaErrorMemoryAllocation = 2,
	cudaErrorInitializationError = 3,
	cudaErrorSharedObjectSymbolNotFound = 302,
	cudaErrorSharedObjectInitFailed = 303,
	cudaErrorIllegalState = 401,
	cudaErrorNotSupported = 801,
	cudaErrorStreamCaptureUnsupported = 900,
	cudaErrorStreamCaptureInvalidated = 901,
	cudaErrorStreamCaptureWrongThread = 908,
	cudaErrorUnknown = 999,
};

int cudaMalloc(void **ptr, size_t size);
int cudaFree(void *ptr);
int cudaGetDevice(int *device);
int cudaSetDevice(int device);
int cudaGetLastError(void);
int cudaHostGetFlags(unsigned int *flags, void *host);
int cudaStreamIsCapturing(void *stream, int *status);
int cudaStreamBeginCapture(void *stream, int mode);
int cudaStreamBeginCaptureToGraph(void *stream, void *graph, const void *dependencies, const void *data, size_t count,
				  int mode);
int cudaStreamEndCapture(void *stream, void **graph);
int cudaStreamIsCapturing_ptsz(void *stream, int *status);
int cudaStreamBeginCapture_ptsz(void *stream, int mode);
int cudaStreamBeginCaptureToGraph_ptsz(void *stream, void *graph, const void *dependencies, const void *data,
				       size_t count, int mode);
int cudaStreamEndCapture_ptsz(void *stream, void **graph);
int cudaStreamDestroy(void *stream);
int cudaThreadExchangeStreamCaptureMode(int *mode);
int cudaIpcGetMemHandle(void *handle, void *ptr);
int cudaDeviceReset(void);

int cudaMallocManaged(void **ptr, size_t size, unsigned int flags);
int cudaDeviceEnablePeerAccess(int device, unsigned int flags);
int cudaDeviceDisablePeerAccess(int device);
int cudaRuntimeGetVersion(int *version);

/* Loads the driver at the first call. */
int cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, int *status);
int cudaGetDriverEntryPoint_ptsz(const char *symbol, void **function, unsigned long long flags, int *status);
int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned int version,
				     unsigned long long flags, int *status);
int cudaGetDriverEntryPointByVersion_ptsz(const char *symbol, void **function, unsigned int version,
					  unsigned long long flags, int *status);

#endif
