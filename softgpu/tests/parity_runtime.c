/* As parity.c, for the runtime library: parity_runtime [path of libcudart.so] [path of libcuda.so.1] */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../softgpu_cudart.h"

#define FUNCTIONS(X) \
	X(cudaGetLastError) X(cudaPeekAtLastError) X(cudaGetErrorName) X(cudaGetErrorString) X(cudaGetDriverEntryPointByVersion) \
	X(cudaGetDeviceCount) X(cudaGetDevice) X(cudaSetDevice) X(cudaDeviceSynchronize) X(cudaDeviceReset) X(cudaMemGetInfo) \
	X(cudaMalloc) X(cudaFree) X(cudaMallocHost) X(cudaFreeHost) X(cudaPointerGetAttributes) X(cudaMemcpy) X(cudaMemset) \
	X(cudaMemsetAsync) X(cudaStreamCreate) X(cudaStreamQuery) X(cudaStreamSynchronize) X(cudaEventCreate) \
	X(cudaEventQuery) X(cudaEventRecord) X(cudaLaunchHostFunc) X(cudaStreamBeginCapture) X(cudaStreamEndCapture) \
	X(cudaStreamCreateWithFlags) X(cudaMemcpyAsync) X(cudaHostGetFlags)

static struct {
#define X(f) __typeof__(&f) f;
	FUNCTIONS(X)
#undef X
	void (*set_fault)(const char *);
	__typeof__(&cuCtxGetCurrent) cuCtxGetCurrent;
	__typeof__(&cuCtxSynchronize) cuCtxSynchronize;
	__typeof__(&cuDevicePrimaryCtxGetState) cuDevicePrimaryCtxGetState;
	__typeof__(&cuModuleLoadData) cuModuleLoadData;
	__typeof__(&cuModuleGetFunction) cuModuleGetFunction;
	__typeof__(&cuLaunchKernel) cuLaunchKernel;
} d;

#define Q(what, answer) printf("%s: %lld\n", what, (long long)(answer))

static void c_lazy(void)
{
	CUcontext c = (CUcontext)5;
	int n = -1, dev = -1, act = -1;
	unsigned f;
	Q("count", d.cudaGetDeviceCount(&n));
	Q("get device", d.cudaGetDevice(&dev));
	Q("device", dev);
	Q("get current", d.cuCtxGetCurrent(&c));
	Q("none yet", c == NULL);
	Q("free null", d.cudaFree(NULL));
	d.cuCtxGetCurrent(&c);
	Q("context now", c != NULL);
	Q("primary active", (d.cuDevicePrimaryCtxGetState(0, &f, &act), act));
}

static void c_set_device(void)
{
	CUcontext c = NULL;
	Q("bad device", d.cudaSetDevice(99));
	Q("last error", d.cudaGetLastError());
	Q("last error again", d.cudaGetLastError());
	Q("set device", d.cudaSetDevice(0));
	d.cuCtxGetCurrent(&c);
	Q("makes a context", c != NULL);
}

static void c_memory(void)
{
	void *p = (void *)5, *h;
	unsigned f;
	struct { struct cudaPointerAttributes a; long reserved[8]; } at;
	char b[16];
	Q("zero", d.cudaMalloc(&p, 0));
	Q("null", p == NULL);
	Q("null pointer", d.cudaMalloc(NULL, 10));
	Q("too large", d.cudaMalloc(&p, 1ull << 45));
	Q("peek", d.cudaPeekAtLastError());
	Q("get", d.cudaGetLastError());
	Q("get again", d.cudaGetLastError());
	Q("malloc", d.cudaMalloc(&p, 1000));
	Q("free inside", d.cudaFree((char *)p + 256));
	d.cudaGetLastError();
	memset(&at, 5, sizeof at);
	Q("attributes", d.cudaPointerGetAttributes(&at.a, p));
	Q("type", at.a.type);
	Q("device", at.a.device);
	Q("device pointer", at.a.devicePointer == p);
	Q("host pointer null", at.a.hostPointer == NULL);
	memset(&at, 5, sizeof at);
	Q("attributes of plain", d.cudaPointerGetAttributes(&at.a, b));
	Q("type", at.a.type);
	Q("device", at.a.device);
	Q("device pointer null", at.a.devicePointer == NULL);
	Q("host pointer is it", at.a.hostPointer == (void *)b);
	Q("host", d.cudaMallocHost(&h, 100));
	Q("attributes of pinned", d.cudaPointerGetAttributes(&at.a, h));
	Q("type", at.a.type);
	Q("flags", d.cudaHostGetFlags(&f, h));
	Q("flags value", f);
	Q("flags of plain", d.cudaHostGetFlags(&f, b));
	Q("peek", d.cudaPeekAtLastError());
	d.cudaGetLastError();
	Q("bad kind", d.cudaMemcpy(p, b, 16, 9));
	Q("default kind", d.cudaMemcpy(p, b, 16, 4));
	Q("wrong kind: to host, device given", d.cudaMemcpy(p, b, 16, 2));
	Q("wrong kind: to device, host given", d.cudaMemcpy(b, p, 16, 1));
	Q("host to host", d.cudaMemcpy(b, b + 8, 8, 0));
	Q("free", d.cudaFree(p));
	Q("free twice", d.cudaFree(p));
	Q("free host null", d.cudaFreeHost(NULL));
}

static volatile int open_;
static void hold(void *a) { (void)a; while (!open_) usleep(100); }
static void c_not_ready(void)
{
	cudaStream_t s;
	cudaEvent_t e;
	d.cudaStreamCreate(&s);
	d.cudaEventCreate(&e);
	d.cudaLaunchHostFunc(s, hold, NULL);
	d.cudaEventRecord(e, s);
	Q("query", d.cudaStreamQuery(s));
	Q("last error", d.cudaGetLastError());
	Q("event query", d.cudaEventQuery(e));
	Q("peek", d.cudaPeekAtLastError());
	d.cudaGetLastError();
	open_ = 1;
	Q("synchronize", d.cudaStreamSynchronize(s));
}

static void c_success_keeps_error(void)
{
	void *p;
	d.cudaMalloc(&p, 1ull << 45);
	Q("fine call", d.cudaMalloc(&p, 10));
	Q("peek", d.cudaPeekAtLastError());
}

static void c_reset(void)
{
	void *p;
	size_t a, b;
	CUcontext c;
	Q("malloc", d.cudaMalloc(&p, 1000));
	Q("reset", d.cudaDeviceReset());
	d.cuCtxGetCurrent(&c);
	Q("current null", c == NULL);
	Q("old pointer", d.cudaFree(p));
	Q("info", d.cudaMemGetInfo(&a, &b));
	Q("malloc", d.cudaMalloc(&p, 1000));
}

static const char *trap_ptx =
	"//\n.version 6.0\n.target sm_70\n.address_size 64\n.visible .entry trap_now() {\n .reg .b64 %r;\n"
	" mov.u64 %r, 16;\n st.global.u32 [%r], 1;\n ret;\n}\n";

static void c_sticky(void)
{
	void *p, *q;
	int n;
	CUmodule m;
	CUfunction f;
	d.cudaMalloc(&p, 4096);
	if (d.set_fault) {
		d.set_fault("memset:1:700");
		d.cudaMemsetAsync(p, 1, 16, NULL);
	} else {
		d.cuModuleLoadData(&m, trap_ptx);
		d.cuModuleGetFunction(&f, m, "trap_now");
		d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
	}
	Q("peek before", d.cudaPeekAtLastError());
	Q("synchronize", d.cudaDeviceSynchronize());
	Q("peek", d.cudaPeekAtLastError());
	Q("get", d.cudaGetLastError());
	Q("get again", d.cudaGetLastError());
	Q("peek", d.cudaPeekAtLastError());
	Q("malloc", d.cudaMalloc(&q, 100));
	Q("free", d.cudaFree(p));
	Q("count", d.cudaGetDeviceCount(&n));
	Q("get device", d.cudaGetDevice(&n));
	Q("set device", d.cudaSetDevice(0));
	Q("reset", d.cudaDeviceReset());
	Q("malloc after reset", d.cudaMalloc(&q, 100));
	Q("get", d.cudaGetLastError());
}

static void c_capture(void)
{
	cudaStream_t s;
	cudaGraph_t g;
	void *p;
	d.cudaFree(NULL);
	d.cudaStreamCreateWithFlags(&s, 1);
	Q("begin", d.cudaStreamBeginCapture(s, 0));
	Q("malloc", d.cudaMalloc(&p, 100));
	Q("last error", d.cudaGetLastError());
	Q("end", d.cudaStreamEndCapture(s, &g));
	Q("malloc", d.cudaMalloc(&p, 100));
}

static void c_fork(void)
{
	int st, n;
	void *p;
	d.cudaMalloc(&p, 100);
	fflush(stdout);
	if (fork() == 0) {
		Q("malloc in child", d.cudaMalloc(&p, 100));
		Q("count in child", d.cudaGetDeviceCount(&n));
		Q("free in child", d.cudaFree(p));
		Q("set device in child", d.cudaSetDevice(0));
		_exit(0);
	}
	wait(&st);
	Q("parent", d.cudaMalloc(&p, 100));
}

static void c_names(void)
{
	void *f = (void *)5;
	enum cudaDriverEntryPointQueryResult st = 9;
	printf("%s\n%s\n", d.cudaGetErrorName(700), d.cudaGetErrorString(700));
	printf("%s\n%s\n", d.cudaGetErrorName(2), d.cudaGetErrorString(2));
	printf("%s\n%s\n", d.cudaGetErrorName(201), d.cudaGetErrorString(201));
	printf("%s\n%s\n", d.cudaGetErrorName(21), d.cudaGetErrorString(21));
	printf("%s\n%s\n", d.cudaGetErrorName(12345), d.cudaGetErrorString(12345));
	Q("known", d.cudaGetDriverEntryPointByVersion("cuMemCreate", &f, 12000, 0, &st));
	Q("status", st);
	Q("unknown", d.cudaGetDriverEntryPointByVersion("cuNoSuchCall", &f, 12000, 0, &st));
	Q("status", st);
	Q("null", f == NULL);
	Q("last error", d.cudaGetLastError());
}

static const struct { const char *name; void (*fn)(void); } cases[] = {
#define C(f) {#f, f}
	C(c_lazy), C(c_set_device), C(c_memory), C(c_not_ready), C(c_success_keeps_error), C(c_reset), C(c_sticky), C(c_capture),
	C(c_fork), C(c_names),
};

int main(int argc, char **argv)
{
	void *rt = dlopen(argc > 1 ? argv[1] : "libcudart.so", RTLD_NOW), *dr = dlopen(argc > 2 ? argv[2] : "libcuda.so.1", RTLD_NOW);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!rt || !dr) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
#define X(f) \
	if (!(d.f = (__typeof__(d.f))dlsym(rt, #f))) \
		fprintf(stderr, "missing: %s\n", #f);
	FUNCTIONS(X)
#undef X
#define X(f) d.f = (__typeof__(d.f))dlsym(dr, #f);
	X(cuCtxGetCurrent) X(cuCtxSynchronize) X(cuDevicePrimaryCtxGetState) X(cuModuleLoadData) X(cuModuleGetFunction) X(cuLaunchKernel)
#undef X
	d.set_fault = (void (*)(const char *))dlsym(dr, "softgpu_set_fault");
	for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
		int status;
		printf("== %s\n", cases[i].name + 2);
		fflush(stdout);
		if (fork() == 0) {
			alarm(60);
			cases[i].fn();
			fflush(stdout);
			_exit(0);
		}
		wait(&status);
		if (WIFSIGNALED(status))
			printf("died of signal %d\n", WTERMSIG(status));
	}
	return 0;
}
