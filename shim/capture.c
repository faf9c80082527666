/*
 * capture.c: knows whether a stream capture is under way in the process.
 *
 * While a stream is captured, most synchronising calls are forbidden, and one that is made anyway
 * spoils the capture. The engine refuses to pause or free then, before it touches the device.
 */
#include "shim.h"

enum { capture_none = 0 }; /* cudaStreamCaptureStatusNone */

static _Atomic int captures;

int captures_under_way(void)
{
	return captures;
}

/* The count goes up before the call, so that a pause never slips in between, and back down when
 * no capture began. */
static cudaError_t began(cudaError_t error)
{
	if (error != cudaSuccess)
		captures--;
	return error;
}

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int mode)
{
	const struct real *real = real_for(__builtin_return_address(0));

	if (real->cudaStreamBeginCapture == NULL)
		return real_missing("cudaStreamBeginCapture");
	captures++;
	return began(real->cudaStreamBeginCapture(stream, mode));
}

EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const void *dependencies,
						 const void *dependency_data, size_t count, int mode)
{
	const struct real *real = real_for(__builtin_return_address(0));

	if (real->cudaStreamBeginCaptureToGraph == NULL)
		return real_missing("cudaStreamBeginCaptureToGraph");
	captures++;
	return began(real->cudaStreamBeginCaptureToGraph(stream, graph, dependencies, dependency_data, count, mode));
}

static bool is_capturing(const struct real *real, cudaStream_t stream)
{
	int status = capture_none;

	return real->cudaStreamIsCapturing != NULL && real->cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
	       status != capture_none;
}

/* An end that reports an error has ended a capture that had become invalid, and has not ended one
 * that belongs to another thread or stream: only the stream's own status tells. */
EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
	const struct real *real = real_for(__builtin_return_address(0));

	if (real->cudaStreamEndCapture == NULL)
		return real_missing("cudaStreamEndCapture");
	bool was_capturing = is_capturing(real, stream);
	cudaError_t error = real->cudaStreamEndCapture(stream, graph);
	if (error == cudaSuccess || (was_capturing && !is_capturing(real, stream))) {
		/* Not below zero: the capture may have begun through the driver, unseen. */
		int now = captures;
		while (now > 0 && !atomic_compare_exchange_weak(&captures, &now, now - 1))
			;
	}
	return error;
}
