/* Declarations of the part of NVML (NVIDIA Management Library) that softgpu provides: what a device has, and who holds it.
 *
 * Written for this project: names, numbers and struct layouts are those of the public binary interface of CUDA 12 and 13.
 * tests/abi.sh compiles them against NVIDIA's own header, where that can be fetched, and fails on any difference. */
#ifndef SOFTGPU_NVML_H
#define SOFTGPU_NVML_H

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

typedef struct nvmlDevice_st *nvmlDevice_t;

/* nvmlReturn_t: NAME, value, text of nvmlErrorString. */
#define SOFTGPU_NVML_RETURNS(X) \
	X(NVML_SUCCESS, 0, "Success") \
	X(NVML_ERROR_UNINITIALIZED, 1, "Uninitialized") \
	X(NVML_ERROR_INVALID_ARGUMENT, 2, "Invalid Argument") \
	X(NVML_ERROR_NOT_SUPPORTED, 3, "Not Supported") \
	X(NVML_ERROR_NO_PERMISSION, 4, "Insufficient Permissions") \
	X(NVML_ERROR_NOT_FOUND, 6, "Not Found") \
	X(NVML_ERROR_INSUFFICIENT_SIZE, 7, "Insufficient Size") \
	X(NVML_ERROR_DRIVER_NOT_LOADED, 9, "Driver Not Loaded") \
	X(NVML_ERROR_FUNCTION_NOT_FOUND, 13, "Function Not Found") \
	X(NVML_ERROR_MEMORY, 20, "Insufficient Memory") \
	X(NVML_ERROR_UNKNOWN, 999, "Unknown Error")

typedef enum {
#define X(name, value, text) name = value,
	SOFTGPU_NVML_RETURNS(X)
#undef X
} nvmlReturn_t;

typedef struct {
	unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
	unsigned int version; /* nvmlMemory_v2, set by the caller */
	unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

#define nvmlMemory_v2 (unsigned int)(sizeof(nvmlMemory_v2_t) | 2u << 24)

typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
	unsigned int pid;
	unsigned long long usedGpuMemory;
	unsigned int gpuInstanceId, computeInstanceId; /* 0xffffffff: not partitioned */
} nvmlProcessInfo_v2_t;

typedef nvmlProcessInfo_v2_t nvmlProcessInfo_t;

nvmlReturn_t nvmlInit(void);
nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlShutdown(void);
const char *nvmlErrorString(nvmlReturn_t result);
nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length);
nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length);
nvmlReturn_t nvmlDeviceGetCount(unsigned int *deviceCount);
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount);
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *pciBusId, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *infoCount, nvmlProcessInfo_v1_t *infos);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *infoCount, nvmlProcessInfo_v2_t *infos);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount, nvmlProcessInfo_t *infos);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
