/* NVML: what the devices have, and who holds it.
 *
 * Reads nothing itself. The driver library has the node's file open, and closing it here would drop that library's locks; so it is
 * asked, and loaded for that where the process has no other use for it. */
#include "softgpu_nvml.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "view.h"

struct nvmlDevice_st {
	char nothing; /* a handle is an address in `handles` */
};

static struct nvmlDevice_st handles[SG_MAX_DEVICES];
static __typeof__(&softgpu_view) view_of;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* changes of the two below */
static atomic_int users; /* nvmlInit without its nvmlShutdown */
static atomic_int device_count; /* as the last nvmlInit found it */

#define NEED_INIT() \
	do { \
		if (!atomic_load(&users)) \
			return NVML_ERROR_UNINITIALIZED; \
	} while (0)

/* ---- start and end */

static void find_driver(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (lib)
		view_of = (__typeof__(&softgpu_view))dlsym(lib, "softgpu_view"); /* NULL: it is another driver's */
}

nvmlReturn_t nvmlInit_v2(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct softgpu_view v;
	nvmlReturn_t r = NVML_SUCCESS;
	pthread_once(&once, find_driver);
	if (!view_of)
		return NVML_ERROR_DRIVER_NOT_LOADED;
	pthread_mutex_lock(&lock);
	if (view_of(0, &v))
		r = NVML_ERROR_UNKNOWN;
	else {
		atomic_store(&device_count, v.devices);
		atomic_fetch_add(&users, 1);
	}
	pthread_mutex_unlock(&lock);
	return r;
}

nvmlReturn_t nvmlInit(void)
{
	return nvmlInit_v2();
}

nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t r = NVML_SUCCESS;
	pthread_mutex_lock(&lock);
	if (atomic_load(&users))
		atomic_fetch_sub(&users, 1);
	else
		r = NVML_ERROR_UNINITIALIZED;
	pthread_mutex_unlock(&lock);
	return r;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
	switch (result) {
#define X(name, value, text) \
	case name: \
		return text;
		SOFTGPU_NVML_RETURNS(X)
#undef X
	}
	return "Unknown Error";
}

/* ---- the system */

static nvmlReturn_t give_text(const char *text, char *out, unsigned int length)
{
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(text) >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(out, text);
	return NVML_SUCCESS;
}

/* Of the series that came with CUDA 13.0, which cuDriverGetVersion says. */
nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	NEED_INIT();
	return give_text("580.0.0", version, length);
}

/* The first word of the process's command line, cut to what fits. */
nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	NEED_INIT();
	char path[32];
	if (!name || !length)
		return NVML_ERROR_INVALID_ARGUMENT;
	snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NVML_ERROR_NOT_FOUND;
	ssize_t n = read(fd, name, length - 1);
	close(fd);
	if (n <= 0) /* it is about to end */
		return NVML_ERROR_NOT_FOUND;
	name[n] = 0;
	return NVML_SUCCESS;
}

/* ---- devices */

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
	NEED_INIT();
	if (!deviceCount)
		return NVML_ERROR_INVALID_ARGUMENT;
	*deviceCount = atomic_load(&device_count);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *deviceCount)
{
	return nvmlDeviceGetCount_v2(deviceCount);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	NEED_INIT();
	if (!device || index >= (unsigned)atomic_load(&device_count))
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = &handles[index];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static nvmlReturn_t look(nvmlDevice_t device, struct softgpu_view *v)
{
	NEED_INIT();
	if (device < handles || device >= handles + atomic_load(&device_count))
		return NVML_ERROR_INVALID_ARGUMENT;
	return view_of(device - handles, v) ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

/* domain:bus:device.function, domain:bus:device or bus:device.function */
static bool parse_bus_id(const char *id, unsigned *domain, unsigned *bus, unsigned *dev)
{
	unsigned function = 0;
	if (sscanf(id, "%x:%x:%x.%x", domain, bus, dev, &function) < 3) {
		*domain = 0;
		if (sscanf(id, "%x:%x.%x", bus, dev, &function) < 3)
			return false;
	}
	return function == 0;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device)
{
	NEED_INIT();
	unsigned domain, bus, dev;
	struct softgpu_view v;
	if (!pciBusId || !device || !parse_bus_id(pciBusId, &domain, &bus, &dev))
		return NVML_ERROR_INVALID_ARGUMENT;
	for (int i = 0; i < atomic_load(&device_count); i++) {
		nvmlReturn_t r = look(&handles[i], &v);
		if (r)
			return r;
		if (domain == 0 && bus == v.bus && dev == 0) {
			*device = &handles[i];
			return NVML_SUCCESS;
		}
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *pciBusId, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(pciBusId, device);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	struct softgpu_view v;
	nvmlReturn_t r = look(device, &v);
	return r ? r : give_text(v.name, name, length);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	struct softgpu_view v;
	char text[48], *p = text;
	nvmlReturn_t r = look(device, &v);
	if (r)
		return r;
	p += sprintf(p, "GPU-");
	for (int i = 0; i < 16; i++)
		p += sprintf(p, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", (unsigned char)v.uuid.bytes[i]);
	return give_text(text, uuid, length);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	struct softgpu_view v;
	nvmlReturn_t r = look(device, &v);
	if (r)
		return r;
	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	*memory = (nvmlMemory_t){.total = v.total, .free = v.total - v.used, .used = v.used};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	struct softgpu_view v;
	nvmlReturn_t r = look(device, &v);
	if (r)
		return r;
	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (memory->version != nvmlMemory_v2)
		return NVML_ERROR_FUNCTION_NOT_FOUND;
	*memory = (nvmlMemory_v2_t){.version = nvmlMemory_v2, .total = v.total, .free = v.total - v.used, .used = v.used};
	return NVML_SUCCESS;
}

/* ---- processes */

/* The processes of a device, if the caller has room for all of them; *count says how many there are. */
static nvmlReturn_t look_at_processes(nvmlDevice_t device, struct softgpu_view *v, unsigned int *count, const void *infos)
{
	nvmlReturn_t r = look(device, v);
	if (r)
		return r;
	if (!count || (*count && !infos && v->processes))
		return NVML_ERROR_INVALID_ARGUMENT;
	unsigned int room = *count;
	*count = v->processes;
	return room < *count ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *infoCount, nvmlProcessInfo_v1_t *infos)
{
	struct softgpu_view v;
	nvmlReturn_t r = look_at_processes(device, &v, infoCount, infos);
	for (int i = 0; !r && i < v.processes; i++)
		infos[i] = (nvmlProcessInfo_v1_t){v.process[i].pid, v.process[i].used};
	return r;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *infoCount, nvmlProcessInfo_v2_t *infos)
{
	struct softgpu_view v;
	nvmlReturn_t r = look_at_processes(device, &v, infoCount, infos);
	for (int i = 0; !r && i < v.processes; i++)
		infos[i] = (nvmlProcessInfo_v2_t){v.process[i].pid, v.process[i].used, -1u, -1u};
	return r;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount, nvmlProcessInfo_t *infos)
{
	return nvmlDeviceGetComputeRunningProcesses_v2(device, infoCount, infos);
}
