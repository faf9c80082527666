/* As abi_test.c, for NVML: softgpu's declarations beside NVIDIA's. */
#include <stddef.h>

#define NVML_NO_UNVERSIONED_FUNC_DEFS /* a plain name is the oldest form, as in the library */
#include <nvml.h>

#include "ours_nvml.h"

#define SAME_SIZE(type) _Static_assert(sizeof(type) == sizeof(O_##type), #type)
#define SAME_FIELD(type, field) \
	_Static_assert(offsetof(type, field) == offsetof(O_##type, field) && \
			       sizeof(((type *)0)->field) == sizeof(((O_##type *)0)->field), \
		       #type "." #field)

SAME_SIZE(nvmlDevice_t);
SAME_SIZE(nvmlReturn_t);
SAME_SIZE(nvmlMemory_t);
SAME_FIELD(nvmlMemory_t, total);
SAME_FIELD(nvmlMemory_t, free);
SAME_FIELD(nvmlMemory_t, used);
SAME_SIZE(nvmlMemory_v2_t);
SAME_FIELD(nvmlMemory_v2_t, version);
SAME_FIELD(nvmlMemory_v2_t, total);
SAME_FIELD(nvmlMemory_v2_t, reserved);
SAME_FIELD(nvmlMemory_v2_t, free);
SAME_FIELD(nvmlMemory_v2_t, used);
_Static_assert(nvmlMemory_v2 == O_nvmlMemory_v2, "nvmlMemory_v2");
SAME_SIZE(nvmlProcessInfo_v1_t);
SAME_FIELD(nvmlProcessInfo_v1_t, pid);
SAME_FIELD(nvmlProcessInfo_v1_t, usedGpuMemory);
SAME_SIZE(nvmlProcessInfo_v2_t);
SAME_FIELD(nvmlProcessInfo_v2_t, pid);
SAME_FIELD(nvmlProcessInfo_v2_t, usedGpuMemory);
SAME_FIELD(nvmlProcessInfo_v2_t, gpuInstanceId);
SAME_FIELD(nvmlProcessInfo_v2_t, computeInstanceId);
SAME_SIZE(nvmlProcessInfo_t);

/* Made by abi.sh: every return code with its value, and every function, in the types of NVIDIA's header. */
#define SAME_VALUE(name) _Static_assert((int)(name) == (int)(O_##name), #name);
#include "values_nvml.inc"

#include "prototypes_nvml.inc"
