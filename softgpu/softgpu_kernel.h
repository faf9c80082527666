/* How a kernel looks on softgpu.
 *
 * A device image is an ELF shared object for the host, given to cuModuleLoad or cuModuleLoadData. A kernel in it is one C
 * function that runs the whole grid; params[i] points at a copy of the i-th argument, made when the kernel was launched:
 *
 *     #include "softgpu_kernel.h"
 *     SOFTGPU_KERNEL(fill, sizeof(uint64_t), sizeof(uint32_t))
 *     {
 *             uint32_t *p = (uint32_t *)(uintptr_t)softgpu_arg(params, 0, uint64_t);
 *             (void)cfg;
 *             *p = softgpu_arg(params, 1, uint32_t);
 *     }
 *
 * The macro also leaves the sizes of the arguments in the image, since a late launch has to copy them: a GPU's image carries
 * them too. A kernel runs on the thread of its stream and must not call the driver. It sees device memory at its own
 * address. If it touches memory that is not mapped, the process dies of SIGSEGV: nothing is recovered. */
#ifndef SOFTGPU_KERNEL_H
#define SOFTGPU_KERNEL_H

#include <stdint.h>

struct softgpu_launch {
	uint32_t grid[3];
	uint32_t block[3];
	uint32_t shared_bytes;
	int32_t device;
};

typedef void softgpu_kernel_fn(const struct softgpu_launch *cfg, void **params);

/* Sizes of a kernel's arguments, ended by 0. */
#define SOFTGPU_PARAMS(name) name##_softgpu_params

#define SOFTGPU_KERNEL(name, ...) \
	__attribute__((visibility("default"))) softgpu_kernel_fn name; \
	__attribute__((visibility("default"))) extern const uint32_t SOFTGPU_PARAMS(name)[]; \
	const uint32_t SOFTGPU_PARAMS(name)[] = {__VA_ARGS__ __VA_OPT__(,) 0}; \
	void name(const struct softgpu_launch *cfg, void **params)

#define softgpu_arg(params, i, type) (*(const type *)(params)[i])

#endif
