/* copies.c: the rate of the link, by copies between device memory and pinned host memory. */
#include "rank.h"

static struct {
	void *device, *host;
	size_t bytes;
	cuda_stream stream;
} copies;

bool copies_open(size_t bytes)
{
	copies_close();
	copies.bytes = bytes;
	bool ok = saver_region(NULL, NULL) && cuda_ok(cuda.Malloc(&copies.device, bytes), "cudaMalloc") &&
		  cuda_ok(cuda.HostAlloc(&copies.host, bytes, 0), "cudaHostAlloc") &&
		  cuda_ok(cuda.StreamCreateWithFlags(&copies.stream, 1), "cudaStreamCreateWithFlags");
	if (!ok) {
		copies_close();
		return false;
	}
	for (size_t i = 0; i < bytes; i += CHUNK_BYTES)
		random_fill((char *)copies.host + i, bytes - i < CHUNK_BYTES ? bytes - i : CHUNK_BYTES, i);
	double seconds;
	/* The first copy each way makes what the driver makes once. */
	return copies_run(false, bytes, &seconds) && copies_run(true, bytes, &seconds);
}

bool copies_run(bool to_host, size_t bytes, double *seconds)
{
	if (copies.bytes == 0)
		return fail("no buffers are open for copies");
	double begin = now();
	while (bytes > 0) {
		size_t n = bytes < copies.bytes ? bytes : copies.bytes;
		cuda_error error = to_host ? cuda.MemcpyAsync(copies.host, copies.device, n, CUDA_TO_HOST, copies.stream)
					   : cuda.MemcpyAsync(copies.device, copies.host, n, CUDA_TO_DEVICE, copies.stream);
		if (!cuda_ok(error, "cudaMemcpyAsync"))
			return false;
		bytes -= n;
	}
	if (!cuda_ok(cuda.StreamSynchronize(copies.stream), "cudaStreamSynchronize"))
		return false;
	*seconds = now() - begin;
	return true;
}

void copies_close(void)
{
	if (copies.device != NULL)
		cuda.Free(copies.device);
	if (copies.host != NULL)
		cuda.FreeHost(copies.host);
	if (copies.stream != NULL)
		cuda.StreamDestroy(copies.stream);
	copies.device = copies.host = NULL;
	copies.stream = NULL;
	copies.bytes = 0;
}
