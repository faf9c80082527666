/* fake_library.c: a library that makes memory for itself; its file name says what it is. */
#include "fakes.h"

int cuMemAlloc_v2(uint64_t *ptr, size_t size);
int cuMemCreate(uint64_t *handle, size_t size, const void *prop, uint64_t flags);

int library_malloc(void **ptr, size_t size);
int library_mem_alloc(uint64_t *ptr, size_t size);
int library_mem_create(uint64_t *handle, size_t size);

/* Not by tail calls: the hooks must see this library as their caller. */
int library_malloc(void **ptr, size_t size)
{
	volatile int error = cudaMalloc(ptr, size);

	return error;
}

int library_mem_alloc(uint64_t *ptr, size_t size)
{
	volatile int error = cuMemAlloc_v2(ptr, size);

	return error;
}

int library_mem_create(uint64_t *handle, size_t size)
{
	static const int on_device[8] = {1, 0, 1, 0};
	volatile int error = cuMemCreate(handle, size, on_device, 0);

	return error;
}
