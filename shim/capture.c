/*
 * capture.c: knows whether a stream capture is under way in the process.
 *
 * While a stream is captured, most synchronising calls are forbidden, and one that is made anyway
 * spoils the capture. The engine refuses to pause or free then, before it touches the device.
 */
#include "shim.h"

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

/* Streams on which captures began here: a stream that is destroyed while it is captured ends a
 * capture if the capture began on it, and not if it joined one. Without room one is not known. */
static _Atomic(cudaStream_t) origins[64];

static void remember(cudaStream_t stream)
{
	for (size_t i = 0; i < sizeof(origins) / sizeof(origins[0]); i++) {
		cudaStream_t nobody = NULL;

		if (atomic_compare_exchange_strong(&origins[i], &nobody, stream))
			return;
	}
}

static bool forget(cudaStream_t stream)
{
	for (size_t i = 0; i < sizeof(origins) / sizeof(origins[0]) && stream != NULL; i++) {
		cudaStream_t it = stream;

		if (atomic_compare_exchange_strong(&origins[i], &it, NULL))
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
	/* Not below zero: the capture may have begun through the driver, unseen. */
	int now = captures;

	while (now > 0 && !atomic_compare_exchange_weak(&captures, &now, now - 1))
		;
}

static bool is_capturing(is_capturing_fn *ask, cudaStream_t stream)
{
	int status = capture_none;

	return ask != NULL && ask(stream, &status) == cudaSuccess && status != capture_none;
}

static cudaError_t begin(begin_capture_fn *real, const char *name, cudaStream_t stream, int mode)
{
	if (real == NULL)
		return real_missing(name);
	begins();
	return began(stream, real(stream, mode));
}

static cudaError_t begin_to_graph(begin_capture_to_graph_fn *real, const char *name, cudaStream_t stream,
				  cudaGraph_t graph, const void *dependencies, const void *dependency_data,
				  size_t count, int mode)
{
	if (real == NULL)
		return real_missing(name);
	begins();
	return began(stream, real(stream, graph, dependencies, dependency_data, count, mode));
}

/* An end that reports an error has ended a capture that had become invalid, and has not ended one
 * that belongs to another thread or stream: only the stream's own status tells. */
static cudaError_t end(end_capture_fn *real, const char *name, is_capturing_fn *ask, cudaStream_t stream,
		       cudaGraph_t *graph)
{
	if (real == NULL)
		return real_missing(name);
	bool was_capturing = is_capturing(ask, stream);
	cudaError_t error = real(stream, graph);
	if (error == cudaSuccess || (was_capturing && !is_capturing(ask, stream))) {
		forget(stream);
		ended();
	}
	return error;
}

/* ---- the hooks ------------------------------------------------------------------------------- */

#define REAL(function) real_for(__builtin_return_address(0))->function, #function

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int mode)
{
	return begin(REAL(cudaStreamBeginCapture), stream, mode);
}

EXPORT cudaError_t cudaStreamBeginCapture_ptsz(cudaStream_t stream, int mode)
{
	return begin(REAL(cudaStreamBeginCapture_ptsz), stream, mode);
}

EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const void *dependencies,
						 const void *dependency_data, size_t count, int mode)
{
	return begin_to_graph(REAL(cudaStreamBeginCaptureToGraph), stream, graph, dependencies, dependency_data, count,
			      mode);
}

EXPORT cudaError_t cudaStreamBeginCaptureToGraph_ptsz(cudaStream_t stream, cudaGraph_t graph, const void *dependencies,
						      const void *dependency_data, size_t count, int mode)
{
	return begin_to_graph(REAL(cudaStreamBeginCaptureToGraph_ptsz), stream, graph, dependencies, dependency_data,
			      count, mode);
}

EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
	const struct real *real = real_for(__builtin_return_address(0));

	return end(REAL(cudaStreamEndCapture), real->cudaStreamIsCapturing, stream, graph);
}

EXPORT cudaError_t cudaStreamEndCapture_ptsz(cudaStream_t stream, cudaGraph_t *graph)
{
	const struct real *real = real_for(__builtin_return_address(0));

	return end(REAL(cudaStreamEndCapture_ptsz), real->cudaStreamIsCapturing_ptsz, stream, graph);
}

EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	const struct real *real = real_for(__builtin_return_address(0));

	if (real->cudaStreamDestroy == NULL)
		return real_missing("cudaStreamDestroy");
	bool was_capturing = captures > 0 && is_capturing(real->cudaStreamIsCapturing, stream);
	cudaError_t error = real->cudaStreamDestroy(stream);
	if (error == cudaSuccess && was_capturing && forget(stream))
		ended();
	return error;
}
