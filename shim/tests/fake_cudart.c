/* fake_cudart.c: stands in for libcudart.so.<RUNTIME>. See fakes.h. */
#include "fakes.h"

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define RECORD JOIN(fake_cudart_, RUNTIME)

struct fake_cudart RECORD;

static _Thread_local int current_device;

int cudaMalloc(void **ptr, size_t size)
{
	(void)size;
	*ptr = (void *)(uintptr_t)((RUNTIME << 24) + ++RECORD.mallocs);
	return cudaSuccess;
}

int cudaFree(void *ptr)
{
	if (ptr == NULL) {
		RECORD.contexts++;
		return RECORD.context_error;
	}
	RECORD.frees++;
	RECORD.last_freed = ptr;
	return cudaSuccess;
}

int cudaGetDevice(int *device)
{
	*device = current_device;
	return RECORD.get_device_error;
}

int cudaSetDevice(int device)
{
	current_device = device;
	return cudaSuccess;
}

int cudaGetLastError(void)
{
	RECORD.last_errors++;
	return RUNTIME;
}

int cudaHostGetFlags(unsigned int *flags, void *host)
{
	(void)host;
	RECORD.host_flags++;
	*flags = RUNTIME;
	return cudaSuccess;
}

int cudaStreamIsCapturing(void *stream, int *status)
{
	*status = ((struct fake_stream *)stream)->status;
	return cudaSuccess;
}

static int begin_capture(void *stream)
{
	struct fake_stream *s = stream;

	if (RECORD.begin_error != cudaSuccess)
		return RECORD.begin_error;
	if (s->status != 0)
		return cudaErrorIllegalState;
	s->status = 1;
	return cudaSuccess;
}

int cudaStreamBeginCapture(void *stream, int mode)
{
	(void)mode;
	return begin_capture(stream);
}

int cudaStreamBeginCaptureToGraph(void *stream, void *graph, const void *dependencies, const void *data, size_t count,
				  int mode)
{
	(void)graph;
	(void)dependencies;
	(void)data;
	(void)count;
	(void)mode;
	return begin_capture(stream);
}

int cudaStreamEndCapture(void *stream, void **graph)
{
	struct fake_stream *s = stream;
	int status = s->status;

	*graph = NULL;
	if (status == 0)
		return cudaErrorIllegalState;
	if (s->other_thread)
		return cudaErrorStreamCaptureWrongThread;
	s->status = 0;
	return status == 2 ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}
