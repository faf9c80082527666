/* Kernels that PTX images get by the name of their .entry: PTX itself is not run, so each has its twin in C here. */
#include "internal.h"

#include <string.h>

#include "../internal/device/cuda/fingerprint.h"

/* softgpu_selftest_fill(uint32_t *dst, uint32_t value, uint32_t count): for softgpu's own tests */
SOFTGPU_KERNEL(softgpu_selftest_fill, sizeof(uint64_t), sizeof(uint32_t), sizeof(uint32_t))
{
	uint32_t *dst = (uint32_t *)(uintptr_t)softgpu_arg(params, 0, uint64_t);
	(void)cfg;
	for (uint32_t i = 0; i < softgpu_arg(params, 2, uint32_t); i++)
		dst[i] = softgpu_arg(params, 1, uint32_t);
}

/* ebb's fingerprint kernel: a block of threads for each tile (internal/device/cuda/fingerprint.cu). */
SOFTGPU_KERNEL(ebb_fingerprint, sizeof(struct ebb_fp_key), sizeof(uint64_t), sizeof(uint64_t))
{
	const struct ebb_fp_tile *tiles = (const struct ebb_fp_tile *)(uintptr_t)softgpu_arg(params, 1, uint64_t);
	struct ebb_fp_part *parts = (struct ebb_fp_part *)(uintptr_t)softgpu_arg(params, 2, uint64_t);
	for (uint32_t i = 0; i < cfg->grid[0]; i++) {
		const void *tile = (const void *)(uintptr_t)tiles[i].address;
		if (tiles[i].to)
			tile = memcpy((void *)(uintptr_t)tiles[i].to, tile, tiles[i].bytes);
		ebb_fp_tile_part(params[0], tile, tiles[i].bytes, &parts[i]);
	}
}

#define BUILTIN(name) {#name, name, SOFTGPU_PARAMS(name)}

const struct sg_builtin sg_builtins[] = {
	BUILTIN(softgpu_selftest_fill),
	BUILTIN(ebb_fingerprint),
	{NULL, NULL, NULL},
};
