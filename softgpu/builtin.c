/* Kernels that PTX images get by the name of their .entry: PTX itself is not run, so each has its twin in C here. */
#include "internal.h"

/* softgpu_selftest_fill(uint32_t *dst, uint32_t value, uint32_t count): for softgpu's own tests */
SOFTGPU_KERNEL(softgpu_selftest_fill, sizeof(uint64_t), sizeof(uint32_t), sizeof(uint32_t))
{
	uint32_t *dst = (uint32_t *)(uintptr_t)softgpu_arg(params, 0, uint64_t);
	(void)cfg;
	for (uint32_t i = 0; i < softgpu_arg(params, 2, uint32_t); i++)
		dst[i] = softgpu_arg(params, 1, uint32_t);
}

#define BUILTIN(name) {#name, name, SOFTGPU_PARAMS(name)}

const struct sg_builtin sg_builtins[] = {
	BUILTIN(softgpu_selftest_fill),
	{NULL, NULL, NULL},
};
