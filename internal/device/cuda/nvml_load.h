/*
 * nvml_load.h: the few functions of NVML that say which processes hold memory of a device, and its name.
 * Names, numbers and layouts are those of NVML's C API. Included by nvml.go only.
 */
#ifndef EBB_NVML_LOAD_H
#define EBB_NVML_LOAD_H

#include <stdio.h>
#include <stdlib.h>

#include "find.h"

#define EBB_NVML_INSUFFICIENT_SIZE 7
#define EBB_NVML_NOT_AVAILABLE (~0ULL) /* a size that is not known */

struct ebb_nvml_process { /* nvmlProcessInfo_v2_t */
	unsigned int pid;
	unsigned long long used_bytes;
	unsigned int gpu_instance, compute_instance;
};

struct ebb_nvml {
	int (*init)(void);
	int (*by_bus_id)(const char *bus_id, void **device);
	int (*processes)(void *device, unsigned int *count, struct ebb_nvml_process *list);
	int (*name)(unsigned int pid, char *name, unsigned int length);
	int (*uuid)(void *device, char *uuid, unsigned int length);
};

/* Loads and initialises the library, for good; null with the reason in why on failure. */
static inline struct ebb_nvml *ebb_nvml_load(const char *library, char *why, size_t cap)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		snprintf(why, cap, "%s", dlerror());
		return NULL;
	}
	struct ebb_nvml *nvml = calloc(1, sizeof *nvml);
	if (nvml) {
		ebb_dlsym *find = ebb_libc_dlsym();
		*(void **)&nvml->init = find(handle, "nvmlInit_v2");
		*(void **)&nvml->by_bus_id = find(handle, "nvmlDeviceGetHandleByPciBusId_v2");
		*(void **)&nvml->processes = find(handle, "nvmlDeviceGetComputeRunningProcesses_v3");
		*(void **)&nvml->name = find(handle, "nvmlSystemGetProcessName");
		*(void **)&nvml->uuid = find(handle, "nvmlDeviceGetUUID");
		int code = -1;
		if (nvml->init && nvml->by_bus_id && nvml->processes && nvml->name && nvml->uuid && (code = nvml->init()) == 0)
			return nvml;
		snprintf(why, cap, code < 0 ? "%s lacks a function" : "%s: nvmlInit_v2 returned %d", library, code);
	} else {
		snprintf(why, cap, "out of memory");
	}
	free(nvml);
	dlclose(handle);
	return NULL;
}

static inline int ebb_nvml_by_bus_id(const struct ebb_nvml *n, const char *bus_id, void **device)
{
	return n->by_bus_id(bus_id, device);
}

static inline int ebb_nvml_processes(const struct ebb_nvml *n, void *device, unsigned int *count, struct ebb_nvml_process *list)
{
	return n->processes(device, count, list);
}

static inline int ebb_nvml_name(const struct ebb_nvml *n, unsigned int pid, char *name, unsigned int length)
{
	return n->name(pid, name, length);
}

static inline int ebb_nvml_uuid(const struct ebb_nvml *n, void *device, char *uuid, unsigned int length)
{
	return n->uuid(device, uuid, length);
}

#endif
