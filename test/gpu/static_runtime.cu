/* A program whose CUDA runtime is linked statically (nvcc -cudart static): no hook of cudaMalloc can
 * see its allocations, but those of the driver can. Parks them, and compares. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime.h>

#include "ebb.h"

static const size_t bytes = 256u << 20;

#define MUST(call)                                                                                                     \
	do {                                                                                                           \
		int code = (int)(call);                                                                                \
		if (code != 0) {                                                                                       \
			printf("%s: %d\n", #call, code);                                                               \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

__global__ void fill(unsigned *words, size_t n)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (size_t)blockDim.x)
		words[i] = (unsigned)i * 2654435761u;
}

__global__ void count_wrong(const unsigned *words, size_t n, unsigned long long *wrong)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * (size_t)blockDim.x)
		if (words[i] != (unsigned)i * 2654435761u)
			atomicAdd(wrong, 1ull);
}

template <typename F> static F *find(const char *name)
{
	void *found = dlsym(RTLD_DEFAULT, name);
	if (!found) {
		printf("%s is not preloaded\n", name);
		exit(1);
	}
	return (F *)found;
}

int main()
{
	unsigned *words;
	unsigned long long *wrong, differ;
	size_t before, paused, total;
	ebb_result result = {sizeof result};

	find<decltype(tms_set_interesting_region)>("tms_set_interesting_region")(true);
	find<decltype(tms_set_enable_cpu_backup)>("tms_set_enable_cpu_backup")(true);
	MUST(cudaMalloc(&words, bytes));
	find<decltype(tms_set_interesting_region)>("tms_set_interesting_region")(false);
	MUST(cudaMalloc(&wrong, sizeof *wrong));
	MUST(cudaMemset(wrong, 0, sizeof *wrong));
	fill<<<256, 256>>>(words, bytes / sizeof *words);
	MUST(cudaDeviceSynchronize());
	MUST(cudaMemGetInfo(&before, &total));
	MUST(find<decltype(ebb_pause)>("ebb_pause")(NULL, 0, &result));
	MUST(cudaMemGetInfo(&paused, &total));
	MUST(find<decltype(ebb_resume)>("ebb_resume")(NULL, 0, 0, NULL));
	count_wrong<<<256, 256>>>(words, bytes / sizeof *words, wrong);
	MUST(cudaMemcpy(&differ, wrong, sizeof differ, cudaMemcpyDeviceToHost));
	printf("%llu MiB parked, %lld MiB free again, %llu words differ\n", (unsigned long long)(result.bytes >> 20),
	       ((long long)paused - (long long)before) >> 20, differ);
	MUST(cudaFree(words));
	return differ == 0 && result.bytes >= bytes && paused >= before + bytes - (64u << 20) ? 0 : 1;
}
