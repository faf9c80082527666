/* Questions to NVML and its answers, one a line. Recorded from a real one as parity_nvml.real; softgpu's must say the same. What
 * depends on the machine (sizes, names, other processes) is asked about, not shown. */
#include <ctype.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../softgpu_nvml.h"

#define FUNCTIONS(X) \
	X(nvmlInit) X(nvmlInit_v2) X(nvmlShutdown) X(nvmlErrorString) X(nvmlSystemGetDriverVersion) X(nvmlSystemGetProcessName) \
	X(nvmlDeviceGetCount_v2) X(nvmlDeviceGetHandleByIndex_v2) X(nvmlDeviceGetHandleByPciBusId_v2) X(nvmlDeviceGetName) \
	X(nvmlDeviceGetUUID) X(nvmlDeviceGetMemoryInfo) X(nvmlDeviceGetMemoryInfo_v2) \
	X(nvmlDeviceGetComputeRunningProcesses_v2) X(nvmlDeviceGetComputeRunningProcesses_v3)

static struct {
#define X(f) __typeof__(&f) f;
	FUNCTIONS(X)
#undef X
} n;

#define ASK(call) printf("%s: %d\n", #call, (int)n.call)
#define SAY(what) printf("%s: %d\n", #what, (int)(what))

static bool hex_in_groups(const char *s) /* 8-4-4-4-12 */
{
	for (int i = 0; i < 36; i++)
		if (i == 8 || i == 13 || i == 18 || i == 23 ? s[i] != '-' : !isxdigit(s[i]) || isupper(s[i]))
			return false;
	return s[36] == 0;
}

static void before_init(void)
{
	unsigned count = 0;
	nvmlDevice_t d = NULL;
	char text[128];
	ASK(nvmlShutdown());
	ASK(nvmlDeviceGetCount_v2(&count));
	ASK(nvmlDeviceGetCount_v2(NULL));
	ASK(nvmlDeviceGetHandleByIndex_v2(0, &d));
	ASK(nvmlSystemGetDriverVersion(text, sizeof text));
	ASK(nvmlSystemGetProcessName(getpid(), text, sizeof text));
}

static void init(void)
{
	unsigned count = 0;
	ASK(nvmlInit_v2());
	ASK(nvmlInit());
	ASK(nvmlShutdown());
	ASK(nvmlDeviceGetCount_v2(&count));
	SAY(count > 0);
	ASK(nvmlDeviceGetCount_v2(NULL));
	ASK(nvmlShutdown());
	ASK(nvmlShutdown());
	ASK(nvmlDeviceGetCount_v2(&count));
	ASK(nvmlInit_v2());
}

static nvmlDevice_t handles(void)
{
	nvmlDevice_t d = NULL, e = NULL;
	unsigned count = 0;
	n.nvmlDeviceGetCount_v2(&count);
	ASK(nvmlDeviceGetHandleByIndex_v2(0, &d));
	SAY(d != NULL);
	ASK(nvmlDeviceGetHandleByIndex_v2(0, &e));
	SAY(d == e);
	ASK(nvmlDeviceGetHandleByIndex_v2(0, NULL));
	ASK(nvmlDeviceGetHandleByIndex_v2(count, &e));
	ASK(nvmlDeviceGetHandleByIndex_v2(-1u, &e));
	SAY(d == e);
	ASK(nvmlDeviceGetHandleByPciBusId_v2(NULL, &e));
	ASK(nvmlDeviceGetHandleByPciBusId_v2("", &e));
	ASK(nvmlDeviceGetHandleByPciBusId_v2("x", &e));
	ASK(nvmlDeviceGetHandleByPciBusId_v2("0000:00", &e));
	ASK(nvmlDeviceGetHandleByPciBusId_v2("0000:7e:1d.0", &e));
	ASK(nvmlDeviceGetHandleByPciBusId_v2("00000000:7E:1D.0", &e));
	ASK(nvmlDeviceGetHandleByPciBusId_v2("7e:1d.0", &e));
	ASK(nvmlDeviceGetHandleByPciBusId_v2("0000:7e:1d", &e));
	ASK(nvmlDeviceGetHandleByPciBusId_v2("0000:7e:1d.0", NULL));
	return d;
}

/* The device by the id that the driver gives it, in each form. */
static void by_bus_id(nvmlDevice_t d)
{
	int (*init)(unsigned), (*get)(char *, int, int);
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
	char id[64] = "", form[96];
	nvmlDevice_t e = NULL;
	int domain = 0, bus = 0, device = 0;
	if (!cuda || !(*(void **)&init = dlsym(cuda, "cuInit")) || !(*(void **)&get = dlsym(cuda, "cuDeviceGetPCIBusId")))
		return;
	init(0);
	get(id, sizeof id, 0);
	sscanf(id, "%x:%x:%x", &domain, &bus, &device);
#define FORM(...) \
	snprintf(form, sizeof form, __VA_ARGS__); \
	printf("by bus id in the form %s: %d\n", #__VA_ARGS__, n.nvmlDeviceGetHandleByPciBusId_v2(form, &e))
	FORM("%s", id);
	SAY(e == d);
	FORM("%04x:%02x:%02x.0", domain, bus, device);
	FORM("%08X:%02X:%02X.0", domain, bus, device);
	FORM("%x:%x:%x.%x", domain, bus, device, 0);
	FORM("%x:%x:%x", domain, bus, device);
	FORM("%x:%x.%x", bus, device, 0);
	FORM("%x:%x", bus, device);
	FORM("%04x:%02x:%02x.1", domain, bus, device);
	FORM("%04x:%02x:%02x.0", domain + 1, bus, device);
}

static void texts(nvmlDevice_t d, const char *argv0)
{
	char t[256];
	ASK(nvmlDeviceGetName(d, NULL, 96));
	ASK(nvmlDeviceGetName(NULL, t, 96));
	ASK(nvmlDeviceGetName(d, t, 0));
	ASK(nvmlDeviceGetName(d, t, 1));
	ASK(nvmlDeviceGetName(d, t, 96));
	SAY(strlen(t) > 0);
	ASK(nvmlDeviceGetUUID(d, NULL, 96));
	ASK(nvmlDeviceGetUUID(NULL, t, 96));
	ASK(nvmlDeviceGetUUID(d, t, 0));
	ASK(nvmlDeviceGetUUID(d, t, 40));
	ASK(nvmlDeviceGetUUID(d, t, 41));
	SAY(strncmp(t, "GPU-", 4) == 0 && hex_in_groups(t + 4));
	ASK(nvmlSystemGetDriverVersion(NULL, 80));
	ASK(nvmlSystemGetDriverVersion(t, 0));
	ASK(nvmlSystemGetDriverVersion(t, 3));
	ASK(nvmlSystemGetDriverVersion(t, 80));
	SAY(atoi(t) >= 500);
	ASK(nvmlSystemGetProcessName(getpid(), NULL, 80));
	ASK(nvmlSystemGetProcessName(getpid(), t, 0));
	ASK(nvmlSystemGetProcessName(0, t, 80));
	ASK(nvmlSystemGetProcessName(0x7fffffff, t, 80));
	memset(t, 'z', sizeof t);
	ASK(nvmlSystemGetProcessName(getpid(), t, 6));
	SAY((int)strnlen(t, 20));
	memset(t, 'z', sizeof t);
	ASK(nvmlSystemGetProcessName(getpid(), t, 256));
	SAY(strcmp(t, argv0) == 0);
}

static void memory(nvmlDevice_t d)
{
	nvmlMemory_t m = {0};
	nvmlMemory_v2_t v = {0};
	ASK(nvmlDeviceGetMemoryInfo(NULL, &m));
	ASK(nvmlDeviceGetMemoryInfo(d, NULL));
	ASK(nvmlDeviceGetMemoryInfo(d, &m));
	SAY(m.total > 0);
	SAY(m.free + m.used == m.total);
	ASK(nvmlDeviceGetMemoryInfo_v2(d, NULL));
	ASK(nvmlDeviceGetMemoryInfo_v2(d, &v));
	v.version = 2;
	ASK(nvmlDeviceGetMemoryInfo_v2(d, &v));
	v.version = nvmlMemory_v2;
	ASK(nvmlDeviceGetMemoryInfo_v2(NULL, &v));
	ASK(nvmlDeviceGetMemoryInfo_v2(d, &v));
	SAY(v.version == nvmlMemory_v2);
	SAY(v.total == m.total);
	SAY(v.free + v.used + v.reserved == v.total);
}

static void processes(nvmlDevice_t d)
{
	nvmlProcessInfo_t list[64];
	unsigned count = 0;
	ASK(nvmlDeviceGetComputeRunningProcesses_v3(d, NULL, NULL));
	ASK(nvmlDeviceGetComputeRunningProcesses_v3(d, &count, NULL));
	SAY(count);
	count = 64;
	ASK(nvmlDeviceGetComputeRunningProcesses_v3(d, &count, NULL));
	SAY(count);
	count = 64;
	ASK(nvmlDeviceGetComputeRunningProcesses_v3(d, &count, list));
	SAY(count);
	count = 64;
	ASK(nvmlDeviceGetComputeRunningProcesses_v2(d, &count, list));
}

/* With a context of one's own. */
static void holding(nvmlDevice_t d)
{
	nvmlProcessInfo_t list[64] = {0};
	unsigned count = 0;
	int (*retain)(void **, int), (*release)(int), (*set)(void *);
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *ctx;
	if (!cuda || !(*(void **)&retain = dlsym(cuda, "cuDevicePrimaryCtxRetain")) ||
	    !(*(void **)&release = dlsym(cuda, "cuDevicePrimaryCtxRelease_v2")) || !(*(void **)&set = dlsym(cuda, "cuCtxSetCurrent")))
		return;
	retain(&ctx, 0);
	set(ctx);
	ASK(nvmlDeviceGetComputeRunningProcesses_v3(d, &count, NULL));
	SAY(count);
	count = 64;
	ASK(nvmlDeviceGetComputeRunningProcesses_v3(d, &count, list));
	SAY(count);
	SAY(list[0].pid == (unsigned)getpid());
	SAY(list[0].gpuInstanceId == 0xffffffff && list[0].computeInstanceId == 0xffffffff);
	release(0);
	count = 64;
	ASK(nvmlDeviceGetComputeRunningProcesses_v3(d, &count, list));
	SAY(count);
}

int main(int argc, char **argv)
{
	(void)argc;
	setvbuf(stdout, NULL, _IOLBF, 0);
	void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (!lib) {
		printf("%s\n", dlerror());
		return 1;
	}
#define X(f) \
	if (!(n.f = (__typeof__(&f))dlsym(lib, #f))) \
		printf("no %s\n", #f);
	FUNCTIONS(X)
#undef X
	before_init();
	init();
	nvmlDevice_t d = handles();
	texts(d, argv[0]);
	memory(d);
	processes(d);
	by_bus_id(d);
	processes(d); /* the driver is initialised, and has no context */
	holding(d);
#define X(name, value, text) printf("%s: %s\n", #name, n.nvmlErrorString(name));
	SOFTGPU_NVML_RETURNS(X)
#undef X
	printf("another: %s\n", n.nvmlErrorString(12345));
	return 0;
}
