/*
 * capture.c: knows whether a stream capture is under way in the process.
 *
 * While a stream is captured, most synchronising calls are forbidden, and one that is made anyway
 * spoils the capture. The engine refuses to pause or free then, before it touches the device.
 *
 * Captures begin and end through the runtime or through the driver, and one that begins through one
 * may end through the other. A call of the runtime's counts once: the driver's below it pass.
 */
#include "doors.h"

#include <link.h>
#include <string.h>

enum { capture_none = 0 }; /* cudaStreamCaptureStatusNone */

static _Atomic int captures;

int captures_under_way(void)
{
	return captures;
}

/* ---- captures that would hang after a resume -------------------------------------------------- */

static int is_nccl(struct dl_phdr_info *object, size_t size, void *unused)
{
	const char *slash = strrchr(object->dlpi_name, '/');

	(void)size;
	(void)unused;
	return strncmp(slash != NULL ? slash + 1 : object->dlpi_name, "libnccl.so", strlen("libnccl.so")) == 0;
}

/*
 * NCCL registers the buffers of captured collectives with other GPUs, by default and once per
 * graph. After a resume the registration still means the memory that was given back, and a replay
 * hangs. NCCL is loaded with PyTorch, so by itself it says little where the job is one process.
 */
static bool nccl_may_register(void)
{
	const char *registers = settings_env("NCCL_GRAPH_REGISTER");
	const char *world = settings_env("WORLD_SIZE");

	if (registers != NULL)
		return strcmp(registers, "0") != 0;
	return (world == NULL || strcmp(world, "1") != 0) && dl_iterate_phdr(is_nccl, NULL) != 0;
}

static void warn_of_nccl(void)
{
	static atomic_flag looked = ATOMIC_FLAG_INIT;

	if (engine_state() == ENGINE_READY && !atomic_flag_test_and_set(&looked) && nccl_may_register())
		log_line("a graph is captured in a process with managed memory and NCCL: a replay after a resume can "
			 "hang in collectives whose buffers NCCL registered; set NCCL_GRAPH_REGISTER=0");
}

/* ---- the count ------------------------------------------------------------------------------- */

/* Streams on which captures began here, and the devices that were current: a stream that is destroyed
 * while it is captured ends a capture if the capture began on it, and not if it joined one. Without room
 * one is not known. */
static struct {
	_Atomic(cudaStream_t) stream;
	_Atomic int device; /* -1: not known */
} origins[64];

enum { MAX_ORIGINS = sizeof(origins) / sizeof(origins[0]) };

/* CU_STREAM_PER_THREAD. A stream 0 that can be captured is that of the thread. */
#define STREAM_PER_THREAD ((cudaStream_t)2)

static cudaStream_t named(cudaStream_t stream)
{
	return stream != NULL ? stream : STREAM_PER_THREAD;
}

static void remember(cudaStream_t stream)
{
	int device = current_device();

	for (size_t i = 0; i < MAX_ORIGINS; i++) {
		cudaStream_t nobody = NULL;

		if (atomic_compare_exchange_strong(&origins[i].stream, &nobody, named(stream))) {
			origins[i].device = device;
			return;
		}
	}
}

static bool forget(cudaStream_t stream)
{
	for (size_t i = 0; i < MAX_ORIGINS; i++) {
		cudaStream_t it = named(stream);

		if (atomic_compare_exchange_strong(&origins[i].stream, &it, NULL))
			return true;
	}
	return false;
}

/* Before the call that begins one, so that a pause never slips in between. */
static void begins(void)
{
	warn_of_nccl();
	captures++;
}

static cudaError_t began(cudaStream_t stream, cudaError_t error)
{
	if (error == cudaSuccess)
		remember(stream);
	else
		captures--;
	return error;
}

static void ended(void)
{
	/* Not below zero: the capture may have begun unseen. */
	int now = captures;

	while (now > 0 && !atomic_compare_exchange_weak(&captures, &now, now - 1))
		;
}

void captures_were_reset(int device)
{
	for (size_t i = 0; i < MAX_ORIGINS; i++) {
		cudaStream_t stream = origins[i].stream;

		if (stream != NULL && origins[i].device == device &&
		    atomic_compare_exchange_strong(&origins[i].stream, &stream, NULL))
			ended();
	}
}

static bool is_capturing(is_capturing_fn *ask, cudaStream_t stream)
{
	int status = capture_none;

	return ask != NULL && ask(stream, &status) == cudaSuccess && status != capture_none;
}

static cudaError_t begin(begin_capture_fn *real, cudaStream_t stream, int mode)
{
	begins();
	pass_begin();
	cudaError_t error = real(stream, mode);
	pass_end();
	return began(stream, error);
}

static cudaError_t begin_to_graph(begin_capture_to_graph_fn *real, cudaStream_t stream, cudaGraph_t graph,
				  const void *dependencies, const void *dependency_data, size_t count, int mode)
{
	begins();
	pass_begin();
	cudaError_t error = real(stream, graph, dependencies, dependency_data, count, mode);
	pass_end();
	return began(stream, error);
}

/* An end that reports an error has ended a capture that had become invalid, and has not ended one
 * that belongs to another thread or stream: only the stream's own status tells. */
static cudaError_t end(end_capture_fn *real, is_capturing_fn *ask, cudaStream_t stream, cudaGraph_t *graph)
{
	bool was_capturing = is_capturing(ask, stream);
	pass_begin();
	cudaError_t error = real(stream, graph);
	pass_end();
	if (error == cudaSuccess || (was_capturing && !is_capturing(ask, stream))) {
		forget(stream);
		ended();
	}
	return error;
}

static cudaError_t destroy(cudaError_t (*real)(cudaStream_t), is_capturing_fn *ask, cudaStream_t stream)
{
	bool was_capturing = captures > 0 && is_capturing(ask, stream);
	pass_begin();
	cudaError_t error = real(stream);
	pass_end();
	if (error == cudaSuccess && was_capturing && forget(stream))
		ended();
	return error;
}

/* ---- the runtime's calls ------------------------------------------------------------------------ */

/* Calls one of the four above with a function of the runtime's that the caller uses. */
#define OF_RUNTIME(function, call, ...)                                                  \
	do {                                                                             \
		const struct real *real = real_for(__builtin_return_address(0));         \
                                                                                         \
		return real->function != NULL ? call(real->function, __VA_ARGS__)        \
					      : real_missing(#function);                 \
	} while (0)

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int mode)
{
	OF_RUNTIME(cudaStreamBeginCapture, begin, stream, mode);
}

EXPORT cudaError_t cudaStreamBeginCapture_ptsz(cudaStream_t stream, int mode)
{
	OF_RUNTIME(cudaStreamBeginCapture_ptsz, begin, stream, mode);
}

EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const void *dependencies,
						 const void *dependency_data, size_t count, int mode)
{
	OF_RUNTIME(cudaStreamBeginCaptureToGraph, begin_to_graph, stream, graph, dependencies, dependency_data, count,
		   mode);
}

EXPORT cudaError_t cudaStreamBeginCaptureToGraph_ptsz(cudaStream_t stream, cudaGraph_t graph, const void *dependencies,
						      const void *dependency_data, size_t count, int mode)
{
	OF_RUNTIME(cudaStreamBeginCaptureToGraph_ptsz, begin_to_graph, stream, graph, dependencies, dependency_data,
		   count, mode);
}

EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
	OF_RUNTIME(cudaStreamEndCapture, end, real->cudaStreamIsCapturing, stream, graph);
}

EXPORT cudaError_t cudaStreamEndCapture_ptsz(cudaStream_t stream, cudaGraph_t *graph)
{
	OF_RUNTIME(cudaStreamEndCapture_ptsz, end, real->cudaStreamIsCapturing_ptsz, stream, graph);
}

EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	OF_RUNTIME(cudaStreamDestroy, destroy, real->cudaStreamIsCapturing, stream);
}

/* ---- the driver's calls ------------------------------------------------------------------------- */

typedef begin_capture_fn cuStreamBeginCapture_v2_fn, cuStreamBeginCapture_v2_ptsz_fn;
typedef begin_capture_to_graph_fn cuStreamBeginCaptureToGraph_fn, cuStreamBeginCaptureToGraph_ptsz_fn;
typedef CUresult cuStreamBeginRecaptureToGraph_fn(CUstream stream, int mode, cudaGraph_t graph, void *callback,
						  void *data);
typedef cuStreamBeginRecaptureToGraph_fn cuStreamBeginRecaptureToGraph_ptsz_fn;
typedef end_capture_fn cuStreamEndCapture_fn, cuStreamEndCapture_ptsz_fn;
typedef CUresult cuStreamDestroy_v2_fn(CUstream stream);

/* Whether a hook of the runtime's deals with this call. */
static bool passes(void)
{
	return this_thread()->passing > 0;
}

/* Like the driver's function, for streams of all programs: 0 is the thread's. */
static CUresult is_capturing_here(CUstream stream, int *status)
{
	static _Atomic(is_capturing_fn *) ask;
	is_capturing_fn *known = ask;

	if (known == NULL)
		ask = known = (is_capturing_fn *)driver_function("cuStreamIsCapturing");
	return known != NULL ? known(named(stream), status) : driver_missing("cuStreamIsCapturing");
}

static CUresult cuStreamBeginCapture_v2_hook(cuStreamBeginCapture_v2_fn *real, const void *caller, CUstream stream,
					     int mode)
{
	(void)caller;
	return passes() ? real(stream, mode) : begin(real, stream, mode);
}
#define cuStreamBeginCapture_v2_ptsz_hook cuStreamBeginCapture_v2_hook

static CUresult cuStreamBeginCaptureToGraph_hook(cuStreamBeginCaptureToGraph_fn *real, const void *caller,
						 CUstream stream, cudaGraph_t graph, const void *dependencies,
						 const void *dependency_data, size_t count, int mode)
{
	(void)caller;
	return passes() ? real(stream, graph, dependencies, dependency_data, count, mode)
			: begin_to_graph(real, stream, graph, dependencies, dependency_data, count, mode);
}
#define cuStreamBeginCaptureToGraph_ptsz_hook cuStreamBeginCaptureToGraph_hook

static CUresult cuStreamBeginRecaptureToGraph_hook(cuStreamBeginRecaptureToGraph_fn *real, const void *caller,
						   CUstream stream, int mode, cudaGraph_t graph, void *callback,
						   void *data)
{
	(void)caller;
	if (passes())
		return real(stream, mode, graph, callback, data);
	begins();
	return began(stream, real(stream, mode, graph, callback, data));
}
#define cuStreamBeginRecaptureToGraph_ptsz_hook cuStreamBeginRecaptureToGraph_hook

static CUresult cuStreamEndCapture_hook(cuStreamEndCapture_fn *real, const void *caller, CUstream stream,
					cudaGraph_t *graph)
{
	(void)caller;
	return passes() ? real(stream, graph) : end(real, is_capturing_here, stream, graph);
}
#define cuStreamEndCapture_ptsz_hook cuStreamEndCapture_hook

static CUresult cuStreamDestroy_v2_hook(cuStreamDestroy_v2_fn *real, const void *caller, CUstream stream)
{
	(void)caller;
	return passes() ? real(stream) : destroy(real, is_capturing_here, stream);
}

DRIVER_HOOK(cuStreamBeginCapture_v2, "cuStreamBeginCapture", 10010, LIST(CUstream stream, int mode),
	    LIST(stream, mode))
DRIVER_HOOK(cuStreamBeginCapture_v2_ptsz, NULL, 0, LIST(CUstream stream, int mode), LIST(stream, mode))
DRIVER_HOOK(cuStreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph", 12030,
	    LIST(CUstream stream, cudaGraph_t graph, const void *dependencies, const void *dependency_data,
		 size_t count, int mode),
	    LIST(stream, graph, dependencies, dependency_data, count, mode))
DRIVER_HOOK(cuStreamBeginCaptureToGraph_ptsz, NULL, 0,
	    LIST(CUstream stream, cudaGraph_t graph, const void *dependencies, const void *dependency_data,
		 size_t count, int mode),
	    LIST(stream, graph, dependencies, dependency_data, count, mode))
DRIVER_HOOK(cuStreamBeginRecaptureToGraph, "cuStreamBeginRecaptureToGraph", 13030,
	    LIST(CUstream stream, int mode, cudaGraph_t graph, void *callback, void *data),
	    LIST(stream, mode, graph, callback, data))
DRIVER_HOOK(cuStreamBeginRecaptureToGraph_ptsz, NULL, 0,
	    LIST(CUstream stream, int mode, cudaGraph_t graph, void *callback, void *data),
	    LIST(stream, mode, graph, callback, data))
DRIVER_HOOK(cuStreamEndCapture, "cuStreamEndCapture", 10000, LIST(CUstream stream, cudaGraph_t *graph),
	    LIST(stream, graph))
DRIVER_HOOK(cuStreamEndCapture_ptsz, NULL, 0, LIST(CUstream stream, cudaGraph_t *graph), LIST(stream, graph))
DRIVER_HOOK(cuStreamDestroy_v2, "cuStreamDestroy", 4000, LIST(CUstream stream), LIST(stream))
