/* fake_caller.c: a library that is linked with one particular CUDA runtime and allocates. */
#include "fakes.h"

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)

int JOIN(caller_malloc_, RUNTIME)(void **ptr, size_t size)
{
	volatile int error = cudaMalloc(ptr, size);

	return error; /* not a tail call: the hook must see this library as its caller */
}

int JOIN(caller_last_error_, RUNTIME)(void)
{
	volatile int error = cudaGetLastError();

	return error;
}
