/* A kernel for the software driver: adds to every word of an array. */
#include <stdint.h>

#include "softgpu_kernel.h"

SOFTGPU_KERNEL(add, sizeof(uint64_t), sizeof(uint64_t), sizeof(uint32_t))
{
	uint32_t *words = (uint32_t *)(uintptr_t)softgpu_arg(params, 0, uint64_t);
	uint64_t n = softgpu_arg(params, 1, uint64_t);

	(void)cfg;
	for (uint64_t i = 0; i < n; i++)
		words[i] += softgpu_arg(params, 2, uint32_t);
}
