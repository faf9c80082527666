/* Initialisation, errors, devices, entry points by name. */
#define _GNU_SOURCE
#include "internal.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct sg_config sg_config;

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
/* One page that a forked child sees zeroed, whatever forked it: NULL before cuInit, then 1 in this process only. */
static _Atomic(atomic_int *) alive;
static atomic_bool at_end;

void sg_complain(const char *format, ...)
{
	char line[512];
	va_list args;
	int n = snprintf(line, sizeof line, "softgpu: ");
	va_start(args, format);
	n += vsnprintf(line + n, sizeof line - n - 1, format, args);
	va_end(args);
	if (n > (int)sizeof line - 2)
		n = sizeof line - 2;
	line[n++] = '\n';
	if (write(2, line, n) < 0)
		return; /* nobody to tell */
}

uint64_t sg_now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

int sg_fd_above_std(int fd)
{
	if (fd < 0 || fd > STDERR_FILENO)
		return fd;
	int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	close(fd);
	return above;
}

CUresult sg_usable(void)
{
	atomic_int *a = atomic_load(&alive);
	if (atomic_load(&at_end))
		return CUDA_ERROR_DEINITIALIZED;
	return a && atomic_load(a) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

/* ---- configuration */

static CUresult number(const char *name, uint64_t fallback, uint64_t min, uint64_t max, uint64_t *out)
{
	const char *s = getenv(name);
	char *end;
	*out = fallback;
	if (!s || !*s)
		return CUDA_SUCCESS;
	*out = strtoull(s, &end, 10);
	if (*end == 0 && s[0] != '-' && *out >= min && *out <= max)
		return CUDA_SUCCESS;
	sg_complain("%s=%s: want a number from %llu to %llu", name, s, (unsigned long long)min, (unsigned long long)max);
	return CUDA_ERROR_INVALID_VALUE;
}

static CUresult read_node(void)
{
	const char *s = getenv("SOFTGPU_NODE");
	if (!s || !*s)
		s = "default";
	if (strlen(s) >= sizeof sg_config.node ||
	    strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != strlen(s)) {
		sg_complain("SOFTGPU_NODE=%s: want up to 64 of a-z A-Z 0-9 . _ -", s);
		return CUDA_ERROR_INVALID_VALUE;
	}
	strcpy(sg_config.node, s);
	return CUDA_SUCCESS;
}

static CUresult read_link(void)
{
	const char *s = getenv("SOFTGPU_LINK_GBPS");
	char *end = "";
	double gbps = s && *s ? strtod(s, &end) : 0;
	if (*end || !(gbps >= 0 && gbps <= 1e6)) {
		sg_complain("SOFTGPU_LINK_GBPS=%s: want a rate in GB/s", s);
		return CUDA_ERROR_INVALID_VALUE;
	}
	sg_config.link_bytes_per_s = gbps * 1e9;
	return CUDA_SUCCESS;
}

static CUresult read_config(void)
{
	uint64_t devices = 0, mb = 0, kb = 0, us = 0, rdma = 0;
	CUresult r = number("SOFTGPU_DEVICES", 1, 1, SG_MAX_DEVICES, &devices);
	const char *latency = getenv("SOFTGPU_LATENCY_US");
	if (!r)
		r = number("SOFTGPU_MEM_MB", 4096, 1, 1 << 24, &mb);
	if (!r)
		r = number("SOFTGPU_GRANULARITY_KB", 2048, 64, 1 << 20, &kb);
	if (!r && (kb & (kb - 1))) {
		sg_complain("SOFTGPU_GRANULARITY_KB=%llu: want a power of two", (unsigned long long)kb);
		r = CUDA_ERROR_INVALID_VALUE;
	}
	sg_config.hold = latency && !strcmp(latency, "hold");
	if (!r && !sg_config.hold)
		r = number("SOFTGPU_LATENCY_US", 50, 0, 60000000, &us);
	if (!r)
		r = number("SOFTGPU_GPUDIRECT_RDMA", 0, 0, 1, &rdma);
	if (!r)
		r = read_link();
	if (!r)
		r = read_node();
	sg_config.devices = devices;
	sg_config.mem_bytes = mb << 20;
	sg_config.granularity = kb << 10;
	sg_config.latency_ns = us * 1000;
	sg_config.rdma = rdma;
	return r;
}

static void end_of_process(void)
{
	atomic_store(&at_end, true);
}

static CUresult init_once(void)
{
	size_t page = sysconf(_SC_PAGESIZE);
	CUresult r = read_config();
	if (!r)
		r = sg_node_join();
	if (r)
		return r;
	atomic_int *a = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (a == MAP_FAILED || madvise(a, page, MADV_WIPEONFORK))
		return CUDA_ERROR_OPERATING_SYSTEM;
	sg_ctx_init();
	sg_stream_init();
	atexit(end_of_process);
	atomic_store(a, 1);
	atomic_store(&alive, a);
	return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int flags)
{
	GATE(cuInit, NEED_NOTHING);
	CUresult r = CUDA_SUCCESS;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&init_lock);
	if (!atomic_load(&alive))
		r = init_once();
	pthread_mutex_unlock(&init_lock);
	return r ? r : sg_usable();
}

/* 13.0: the newest calls here (cuCtxCreate_v4, cuStreamGetCaptureInfo_v3) belong to it, and a runtime of CUDA 12 or 13 accepts
 * any driver that is not older than itself. */
CUresult cuDriverGetVersion(int *version)
{
	GATE(cuDriverGetVersion, NEED_NOTHING);
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = 13000;
	return CUDA_SUCCESS;
}

/* ---- errors */

static const struct {
	CUresult error;
	const char *name, *text;
} errors[] = {
#define X(name, value, text) {name, #name, text},
	SOFTGPU_ERRORS(X)
#undef X
};

CUresult sg_error_by_name(const char *name)
{
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (!strcmp(errors[i].name, name))
			return errors[i].error;
	return CUDA_ERROR_UNKNOWN + 1;
}

static CUresult describe(CUresult error, const char **out, bool want_name)
{
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = NULL;
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].error == error)
			*out = want_name ? errors[i].name : errors[i].text;
	return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult error, const char **name)
{
	GATE(cuGetErrorName, NEED_NOTHING);
	return describe(error, name, true);
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
	GATE(cuGetErrorString, NEED_NOTHING);
	return describe(error, text, false);
}

/* ---- entry points by name */

static const struct {
	const char *name;
	void *fn;
	int since;
} entries[] = {
#define CALL(symbol, name, since) {#name, (void *)symbol, since},
#include "calls.def"
#undef CALL
};

static const struct {
	const char *symbol;
	void *fn;
} symbols[] = {
#define CALL(symbol, name, since) {#symbol, (void *)symbol},
#include "calls.def"
#undef CALL
};

/* "cuMemAlloc" gives the newest form the asked version knows, "cuMemAlloc_v2" that very one. The flags, which choose between
 * legacy and per-thread default stream, are ignored: the legacy one is given. */
static CUdriverProcAddressQueryResult find_entry(const char *name, int version, void **fn)
{
	CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	*fn = NULL;
	for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
		if (strcmp(entries[i].name, name))
			continue;
		if (entries[i].since <= version)
			*fn = entries[i].fn;
		else if (!*fn)
			status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
	}
	for (size_t i = 0; !*fn && i < sizeof symbols / sizeof *symbols; i++)
		if (!strcmp(symbols[i].symbol, name) && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
			*fn = symbols[i].fn;
	return *fn ? CU_GET_PROC_ADDRESS_SUCCESS : status;
}

CUresult cuGetProcAddress(const char *symbol, void **fn, int version, uint64_t flags)
{
	GATE(cuGetProcAddress, NEED_NOTHING);
	(void)flags;
	if (!symbol || !fn)
		return CUDA_ERROR_INVALID_VALUE;
	return find_entry(symbol, version, fn) ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **fn, int version, uint64_t flags,
			     CUdriverProcAddressQueryResult *status)
{
	GATE(cuGetProcAddress_v2, NEED_NOTHING);
	CUdriverProcAddressQueryResult found;
	(void)flags;
	if (!symbol || !fn)
		return CUDA_ERROR_INVALID_VALUE;
	found = find_entry(symbol, version, fn);
	if (!status)
		return found ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
	*status = found;
	return CUDA_SUCCESS;
}

/* ---- devices */

enum { FIRST_BUS = 0xf0 }; /* PCI bus of device 0; each has one of its own */

static bool bad_device(CUdevice dev)
{
	return dev < 0 || dev >= sg_config.devices;
}

static void name_device(char *name, size_t len, CUdevice dev)
{
	snprintf(name, len, "softgpu %d (software device)", dev);
}

/* The same in every process of the node, different between nodes and devices. */
static void make_uuid(CUuuid *uuid, CUdevice dev)
{
	uint64_t hash = 0xcbf29ce484222325ull; /* FNV-1a of the node's name */
	for (const char *p = sg_config.node; *p; p++)
		hash = (hash ^ (unsigned char)*p) * 0x100000001b3ull;
	memcpy(uuid->bytes, "softgpu", 7);
	uuid->bytes[7] = (char)dev;
	memcpy(uuid->bytes + 8, &hash, 8);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	GATE(cuDeviceGet, NEED_INIT);
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	if (bad_device(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
	GATE(cuDeviceGetCount, NEED_INIT);
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = sg_config.devices;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	GATE(cuDeviceGetName, NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!name || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	name_device(name, len, dev);
	return CUDA_SUCCESS;
}

static CUresult device_uuid(CUuuid *uuid, CUdevice dev)
{
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	make_uuid(uuid, dev);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
	GATE(cuDeviceGetUuid, NEED_INIT);
	return device_uuid(uuid, dev);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	GATE(cuDeviceGetUuid_v2, NEED_INIT);
	return device_uuid(uuid, dev);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	GATE(cuDeviceTotalMem_v2, NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = sg_config.mem_bytes;
	return CUDA_SUCCESS;
}

static int attribute(CUdevice_attribute a, CUdevice dev)
{
	switch (a) {
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
		return 1024;
	case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
		return 64;
	case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
		return 0x7fffffff;
	case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
	case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
		return 65535;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
		return 49152;
	case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
		return 65536;
	case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
		return 32;
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
		return 2048;
	case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
		return 2;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		return 9;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		return 0;
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
		return FIRST_BUS + dev;
	case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
		return -1;
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
		return sg_config.rdma;
	case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
	case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
	case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
	case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
	case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
	case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
		return 1;
	default:
		return 0;
	}
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attrib, CUdevice dev)
{
	GATE(cuDeviceGetAttribute, NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!value || (int)attrib < 1 || (int)attrib > 200)
		return CUDA_ERROR_INVALID_VALUE;
	*value = attribute(attrib, dev);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice dev)
{
	GATE(cuDeviceGetPCIBusId, NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!id || len < 13)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(id, len, "0000:%02X:00.0", FIRST_BUS + dev);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *id)
{
	GATE(cuDeviceGetByPCIBusId, NEED_INIT);
	char mine[24];
	if (!dev || !id)
		return CUDA_ERROR_INVALID_VALUE;
	for (int d = 0; d < sg_config.devices; d++) {
		snprintf(mine, sizeof mine, "0000:%02x:00.0", FIRST_BUS + d);
		if (!strcasecmp(mine, id) || !strcasecmp(mine + 5, id)) {
			*dev = d;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
	GATE(cuDeviceCanAccessPeer, NEED_INIT);
	if (bad_device(dev) || bad_device(peer))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!can)
		return CUDA_ERROR_INVALID_VALUE;
	*can = dev != peer;
	return CUDA_SUCCESS;
}

/* ---- what NVML tells */

/* A forked child cannot join any more, so it needs no lock against that, and init_lock may be held in it for good. */
CUresult softgpu_view(int device, struct softgpu_view *view)
{
	atomic_int *a = atomic_load(&alive);
	bool may_join = !a;
	CUresult r = CUDA_SUCCESS;
	if (may_join) {
		pthread_mutex_lock(&init_lock);
		a = atomic_load(&alive);
		r = a ? CUDA_SUCCESS : read_config();
	}
	if (!r)
		r = sg_node_view(a && atomic_load(a), device, view);
	if (!r) {
		name_device(view->name, sizeof view->name, device);
		make_uuid(&view->uuid, device);
		view->bus = FIRST_BUS + device;
	}
	if (may_join)
		pthread_mutex_unlock(&init_lock);
	return r;
}
