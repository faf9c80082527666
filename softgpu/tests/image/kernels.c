/* A device image for the tests. */
#include <stdatomic.h>

#include "../../softgpu_kernel.h"

#ifndef SECRET
#define SECRET 1
#endif

struct pair {
	uint64_t dst;
	uint8_t value;
};

SOFTGPU_KERNEL(add, sizeof(uint64_t), sizeof(uint32_t), sizeof(int8_t), sizeof(double))
{
	uint32_t *p = (uint32_t *)(uintptr_t)softgpu_arg(params, 0, uint64_t);
	for (uint32_t i = 0; i < cfg->grid[0] * cfg->block[0]; i++)
		p[i] += softgpu_arg(params, 1, uint32_t) + softgpu_arg(params, 2, int8_t) +
			(uint32_t)softgpu_arg(params, 3, double);
}

SOFTGPU_KERNEL(by_struct, sizeof(struct pair))
{
	struct pair a = softgpu_arg(params, 0, struct pair);
	(void)cfg;
	*(uint8_t *)(uintptr_t)a.dst = a.value;
}

SOFTGPU_KERNEL(tell_launch, sizeof(uint64_t))
{
	*(struct softgpu_launch *)(uintptr_t)softgpu_arg(params, 0, uint64_t) = *cfg;
}

static int ran;
SOFTGPU_KERNEL(no_arguments)
{
	(void)cfg;
	(void)params;
	ran++;
}

SOFTGPU_KERNEL(secret, sizeof(uint64_t))
{
	(void)cfg;
	*(int *)(uintptr_t)softgpu_arg(params, 0, uint64_t) = SECRET + ran * 100;
}

void __attribute__((visibility("default"))) not_a_kernel(void)
{
}
