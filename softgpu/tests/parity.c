/* What does the driver answer? One line per question, so that softgpu can be held against a real driver:
 *
 *     parity [path of libcuda.so.1]
 *
 * The answers of a real driver are kept in parity.real; tests/parity.sh compares softgpu's with them. Every case runs in its
 * own process, because some end the process or poison its context. Numbers are CUresult values. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../softgpu_cuda.h"

#define FUNCTIONS(X) \
	X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetProcAddress) X(cuGetProcAddress_v2) X(cuDeviceGet) \
	X(cuDeviceGetCount) X(cuDeviceGetAttribute) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease_v2) \
	X(cuDevicePrimaryCtxReset_v2) X(cuDevicePrimaryCtxGetState) X(cuCtxCreate_v2) X(cuCtxDestroy_v2) \
	X(cuCtxSetCurrent) X(cuCtxGetCurrent) X(cuCtxPushCurrent_v2) X(cuCtxPopCurrent_v2) X(cuCtxGetDevice) \
	X(cuCtxSynchronize) X(cuCtxGetStreamPriorityRange) X(cuMemGetInfo_v2) X(cuMemAlloc_v2) X(cuMemFree_v2) \
	X(cuMemGetAddressRange_v2) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemCreate) X(cuMemRelease) \
	X(cuMemRetainAllocationHandle) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemGetAccess) \
	X(cuMemGetAllocationGranularity) X(cuMemGetAllocationPropertiesFromHandle) X(cuIpcGetMemHandle) \
	X(cuMemHostAlloc) X(cuMemAllocHost_v2) X(cuMemFreeHost) X(cuMemHostRegister_v2) X(cuMemHostUnregister) \
	X(cuMemHostGetFlags) X(cuMemHostGetDevicePointer_v2) X(cuPointerGetAttribute) X(cuPointerGetAttributes) \
	X(cuStreamCreate) X(cuStreamDestroy_v2) X(cuStreamQuery) X(cuStreamSynchronize) X(cuStreamWaitEvent) \
	X(cuStreamGetCtx) X(cuStreamGetFlags) X(cuLaunchHostFunc) X(cuEventCreate) X(cuEventDestroy_v2) \
	X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize) X(cuEventElapsedTime) X(cuMemcpy) X(cuMemcpyAsync) \
	X(cuMemcpyHtoD_v2) X(cuMemcpyHtoDAsync_v2) X(cuMemcpyDtoH_v2) X(cuMemcpyDtoHAsync_v2) X(cuMemcpyDtoD_v2) \
	X(cuMemsetD8_v2) X(cuMemsetD8Async) X(cuMemsetD32_v2) X(cuThreadExchangeStreamCaptureMode) \
	X(cuStreamBeginCapture_v2) X(cuStreamEndCapture) X(cuStreamIsCapturing) X(cuGraphInstantiateWithFlags) \
	X(cuGraphLaunch) X(cuGraphDestroy) X(cuGraphExecDestroy) X(cuGraphGetNodes) X(cuModuleLoad) \
	X(cuModuleLoadData) X(cuModuleUnload) X(cuModuleGetFunction) X(cuLaunchKernel)

static struct {
#define X(f) __typeof__(&f) f;
	FUNCTIONS(X)
#undef X
	void (*set_fault)(const char *);
} d;

#define Q(what, answer) printf("%s: %lld\n", what, (long long)(answer))
static size_t G; /* granularity */
static CUcontext ctx;

static CUmemAllocationProp props(int dev)
{
	CUmemAllocationProp p = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, dev}};
	return p;
}

static void init(void)
{
	CUmemAllocationProp p = props(0);
	if (d.cuInit(0) || d.cuMemGetAllocationGranularity(&G, &p, 0)) {
		printf("no driver\n");
		exit(1);
	}
}

static void with_ctx(void)
{
	init();
	d.cuDevicePrimaryCtxRetain(&ctx, 0);
	d.cuCtxSetCurrent(ctx);
}

static CUmemGenericAllocationHandle create(size_t n)
{
	CUmemGenericAllocationHandle h = 0;
	CUmemAllocationProp p = props(0);
	if (d.cuMemCreate(&h, n, &p, 0))
		printf("create failed\n");
	return h;
}

static CUdeviceptr reserve(size_t n)
{
	CUdeviceptr p = 0;
	if (d.cuMemAddressReserve(&p, n, 0, 0, 0))
		printf("reserve failed\n");
	return p;
}

static CUresult set_access(CUdeviceptr p, size_t n, int flags)
{
	CUmemAccessDesc a = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, flags};
	return d.cuMemSetAccess(p, n, &a, 1);
}

/* n granules mapped by one handle, readable and writable */
static CUdeviceptr mapped(size_t n)
{
	CUdeviceptr p = reserve(n * G);
	CUmemGenericAllocationHandle h = create(n * G);
	d.cuMemMap(p, n * G, 0, h, 0);
	d.cuMemRelease(h);
	set_access(p, n * G, 3);
	return p;
}

static void c_before_init(void)
{
	int n;
	size_t a, b;
	CUcontext c;
	const char *s;
	void *f;
	CUdeviceptr p;
	CUdriverProcAddressQueryResult st;
	Q("version", d.cuDriverGetVersion(&n));
	Q("device count", d.cuDeviceGetCount(&n));
	Q("meminfo", d.cuMemGetInfo_v2(&a, &b));
	Q("get current", d.cuCtxGetCurrent(&c));
	Q("error name", d.cuGetErrorName(2, &s));
	Q("proc address", d.cuGetProcAddress_v2("cuMemCreate", &f, 12000, 0, &st));
	Q("reserve", d.cuMemAddressReserve(&p, 1 << 21, 0, 0, 0));
	Q("init with flags", d.cuInit(1));
}

static void c_no_context(void)
{
	size_t a, b;
	CUdeviceptr p = 0;
	CUdevice dev;
	CUcontext c = (CUcontext)1;
	CUstream s;
	CUevent e;
	void *h;
	unsigned fl;
	int x;
	CUmodule m;
	CUstreamCaptureStatus st;
	CUmemGenericAllocationHandle mh = 0;
	CUmemAllocationProp pr;
	init();
	pr = props(0);
	Q("get current", d.cuCtxGetCurrent(&c));
	Q("current is null", c == NULL);
	Q("pop", d.cuCtxPopCurrent_v2(&c));
	Q("get device", d.cuCtxGetDevice(&dev));
	Q("synchronize", d.cuCtxSynchronize());
	Q("meminfo", d.cuMemGetInfo_v2(&a, &b));
	Q("alloc", d.cuMemAlloc_v2(&p, 100));
	Q("reserve", d.cuMemAddressReserve(&p, G, 0, 0, 0));
	Q("create", d.cuMemCreate(&mh, G, &pr, 0));
	Q("map", d.cuMemMap(p, G, 0, mh, 0));
	Q("set access", set_access(p, G, 3));
	Q("pointer attribute", d.cuPointerGetAttribute(&x, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
	Q("memset of it", d.cuMemsetD8_v2(p, 1, 16));
	Q("unmap", d.cuMemUnmap(p, G));
	Q("release", d.cuMemRelease(mh));
	Q("free address", d.cuMemAddressFree(p, G));
	Q("stream create", d.cuStreamCreate(&s, 0));
	Q("event create", d.cuEventCreate(&e, 0));
	Q("host alloc", d.cuMemHostAlloc(&h, 4096, 0));
	h = aligned_alloc(4096, 4096);
	Q("host register", d.cuMemHostRegister_v2(h, 4096, 0));
	Q("host flags", d.cuMemHostGetFlags(&fl, h));
	Q("sync null stream", d.cuStreamSynchronize(NULL));
	Q("capturing null stream", d.cuStreamIsCapturing(NULL, &st));
	Q("module", d.cuModuleLoadData(&m, "//"));
	Q("free null", d.cuMemFree_v2(0));
	Q("priority range", d.cuCtxGetStreamPriorityRange(&x, &x));
}

static void c_contexts(void)
{
	CUcontext a, b, c;
	unsigned fl;
	int act;
	size_t x, y;
	CUdevice dev = -1;
	init();
	Q("state", d.cuDevicePrimaryCtxGetState(0, &fl, &act));
	Q("active", act);
	Q("release none", d.cuDevicePrimaryCtxRelease_v2(0));
	d.cuDevicePrimaryCtxRetain(&a, 0);
	d.cuDevicePrimaryCtxRetain(&b, 0);
	Q("same", a == b);
	Q("active", (d.cuDevicePrimaryCtxGetState(0, &fl, &act), act));
	d.cuCtxGetCurrent(&c);
	Q("retain makes current", c == a);
	Q("set current", d.cuCtxSetCurrent(a));
	Q("release one", d.cuDevicePrimaryCtxRelease_v2(0));
	Q("meminfo", d.cuMemGetInfo_v2(&x, &y));
	Q("release two", d.cuDevicePrimaryCtxRelease_v2(0));
	Q("active", (d.cuDevicePrimaryCtxGetState(0, &fl, &act), act));
	Q("meminfo of dead current", d.cuMemGetInfo_v2(&x, &y));
	d.cuCtxGetCurrent(&c);
	Q("dead still current", c == a);
	Q("get device of dead", d.cuCtxGetDevice(&dev));
	Q("retain again", d.cuDevicePrimaryCtxRetain(&b, 0));
	Q("same again", a == b);
	Q("meminfo of revived", d.cuMemGetInfo_v2(&x, &y));
	Q("reset", d.cuDevicePrimaryCtxReset_v2(0));
	Q("meminfo after reset", d.cuMemGetInfo_v2(&x, &y));
	Q("release after reset", d.cuDevicePrimaryCtxRelease_v2(0));
	Q("retain unknown device", d.cuDevicePrimaryCtxRetain(&b, 99));
	d.cuCtxSetCurrent(NULL);
	Q("create", d.cuCtxCreate_v2(&a, 0, 0));
	d.cuCtxGetCurrent(&c);
	Q("create makes current", c == a);
	Q("push null", d.cuCtxPushCurrent_v2(NULL));
	Q("push itself", d.cuCtxPushCurrent_v2(a));
	Q("pop", d.cuCtxPopCurrent_v2(&c));
	Q("popped it", c == a);
	d.cuCtxGetCurrent(&c);
	Q("still current", c == a);
	Q("destroy current", d.cuCtxDestroy_v2(a));
	d.cuCtxGetCurrent(&c);
	Q("current after destroy null", c == NULL);
	Q("meminfo after destroy", d.cuMemGetInfo_v2(&x, &y));
}

static void c_primary_objects(void)
{
	CUstream s;
	CUdeviceptr p, q;
	size_t f0, f1, t;
	char buf[16];
	with_ctx();
	d.cuMemGetInfo_v2(&f0, &t);
	d.cuStreamCreate(&s, 0);
	d.cuMemAlloc_v2(&p, 64 << 20);
	q = mapped(4);
	d.cuMemsetD8_v2(q, 7, 16);
	d.cuDevicePrimaryCtxReset_v2(0);
	d.cuDevicePrimaryCtxRetain(&ctx, 0);
	Q("set current", d.cuCtxSetCurrent(ctx));
	Q("free old alloc after reset", d.cuMemFree_v2(p));
	d.cuMemGetInfo_v2(&f1, &t);
	Q("alloc came back", f1 + (32 << 20) > f0);
	Q("vmm memory survives reset", d.cuMemcpyDtoH_v2(buf, q, 16));
	Q("byte", buf[3]);
}

static void c_fork(void)
{
	int n;
	size_t a, b;
	CUcontext c;
	with_ctx();
	fflush(stdout);
	if (fork() == 0) {
		Q("init", d.cuInit(0));
		Q("count", d.cuDeviceGetCount(&n));
		Q("meminfo", d.cuMemGetInfo_v2(&a, &b));
		Q("get current", d.cuCtxGetCurrent(&c));
		Q("set current", d.cuCtxSetCurrent(ctx));
		Q("version", d.cuDriverGetVersion(&n));
		Q("release", d.cuMemRelease(1));
		fflush(stdout);
		_exit(0);
	}
	wait(&n);
	Q("parent", d.cuMemGetInfo_v2(&a, &b));
}

static void c_create(void)
{
	CUmemGenericAllocationHandle h = 0;
	CUmemAllocationProp p;
	with_ctx();
	p = props(0);
	Q("unaligned size", d.cuMemCreate(&h, G / 2, &p, 0));
	Q("zero size", d.cuMemCreate(&h, 0, &p, 0));
	Q("flags", d.cuMemCreate(&h, G, &p, 1));
	p.type = 0;
	Q("type", d.cuMemCreate(&h, G, &p, 0));
	p = props(99);
	Q("device", d.cuMemCreate(&h, G, &p, 0));
	p = props(0);
	p.location.type = 0;
	Q("location", d.cuMemCreate(&h, G, &p, 0));
	p = props(0);
	Q("too large", d.cuMemCreate(&h, 1ull << 45, &p, 0));
	p.requestedHandleTypes = 1;
	Q("posix fd", d.cuMemCreate(&h, G, &p, 0));
	CUmemAllocationProp r;
	Q("props", d.cuMemGetAllocationPropertiesFromHandle(&r, h));
	Q("props type", r.requestedHandleTypes);
	Q("null prop", d.cuMemCreate(&h, G, NULL, 0));
	Q("null handle", d.cuMemCreate(NULL, G, &p, 0));
	p = props(0);
	size_t g;
	Q("recommended", d.cuMemGetAllocationGranularity(&g, &p, 1));
	Q("recommended is minimum", g == G);
	p.location.type = CU_MEM_LOCATION_TYPE_HOST;
	Q("granularity of host memory", d.cuMemGetAllocationGranularity(&g, &p, 0));
}

static void c_refcount(void)
{
	CUmemGenericAllocationHandle h, k = 0;
	CUdeviceptr p;
	with_ctx();
	h = create(G);
	Q("release", d.cuMemRelease(h));
	Q("release twice", d.cuMemRelease(h));
	Q("release zero", d.cuMemRelease(0));
	p = reserve(4 * G);
	h = create(G);
	Q("map", d.cuMemMap(p, G, 0, h, 0));
	Q("map twice", d.cuMemMap(p + G, G, 0, h, 0));
	Q("release", d.cuMemRelease(h));
	Q("retain", d.cuMemRetainAllocationHandle(&k, (void *)(uintptr_t)p));
	Q("same handle", h == k);
	Q("map retained", d.cuMemMap(p + 2 * G, G, 0, k, 0));
	Q("release", d.cuMemRelease(k));
	Q("release twice", d.cuMemRelease(k));
	Q("map released handle", d.cuMemMap(p + 3 * G, G, 0, k, 0));
	Q("unmap all three", d.cuMemUnmap(p, 3 * G));
	Q("retain unmapped", d.cuMemRetainAllocationHandle(&k, (void *)(uintptr_t)p));
	Q("retain wild", d.cuMemRetainAllocationHandle(&k, &k));
	d.cuMemAlloc_v2(&p, G);
	Q("retain of plain allocation", d.cuMemRetainAllocationHandle(&k, (void *)(uintptr_t)p));
	h = create(G);
	p = reserve(G);
	d.cuMemMap(p, G, 0, h, 0);
	d.cuMemRetainAllocationHandle(&k, (void *)(uintptr_t)(p + 5));
	Q("retained twice: first release", d.cuMemRelease(h));
	Q("second", d.cuMemRelease(h));
	Q("third", d.cuMemRelease(h));
}

static void c_map(void)
{
	CUmemGenericAllocationHandle h, h4;
	CUdeviceptr p;
	with_ctx();
	p = reserve(8 * G);
	h = create(G);
	h4 = create(4 * G);
	Q("half size", d.cuMemMap(p, G / 2, 0, h, 0));
	Q("unaligned address", d.cuMemMap(p + 4096, G, 0, h, 0));
	Q("larger than handle", d.cuMemMap(p, 2 * G, 0, h, 0));
	Q("smaller than handle", d.cuMemMap(p, 2 * G, 0, h4, 0));
	d.cuMemUnmap(p, 2 * G);
	Q("at an offset", d.cuMemMap(p, G, G, h4, 0));
	d.cuMemUnmap(p, G);
	Q("at an unaligned offset", d.cuMemMap(p, G, 4096, h4, 0));
	Q("flags", d.cuMemMap(p, G, 0, h, 1));
	Q("zero size", d.cuMemMap(p, 0, 0, h, 0));
	Q("beyond reservation", d.cuMemMap(p + 6 * G, 4 * G, 0, h4, 0));
	Q("not reserved", d.cuMemMap(0x10000000000ull, G, 0, h, 0));
	Q("map", d.cuMemMap(p, 4 * G, 0, h4, 0));
	Q("over a mapping", d.cuMemMap(p + G, G, 0, h, 0));
	Q("beside a mapping", d.cuMemMap(p + 4 * G, G, 0, h, 0));
}

static void c_access(void)
{
	CUmemGenericAllocationHandle h, h4;
	CUdeviceptr p;
	unsigned long long f = 77;
	CUmemLocation l = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
	CUmemAccessDesc two[2] = {{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, 3}, {{CU_MEM_LOCATION_TYPE_DEVICE, 99}, 3}};
	with_ctx();
	p = reserve(8 * G);
	h = create(G);
	h4 = create(4 * G);
	Q("nothing mapped", set_access(p, G, 3));
	d.cuMemMap(p, 4 * G, 0, h4, 0);
	d.cuMemMap(p + 4 * G, G, 0, h, 0);
	Q("get before set", d.cuMemGetAccess(&f, &l, p));
	Q("flags", f);
	Q("part of a mapping", set_access(p, G, 3));
	Q("part starting inside", set_access(p + G, 3 * G, 3));
	Q("unaligned", set_access(p, G / 2, 3));
	Q("both mappings", set_access(p, 5 * G, 3));
	Q("mapped and unmapped", set_access(p, 8 * G, 3));
	Q("get", (f = 77, d.cuMemGetAccess(&f, &l, p + 5)));
	Q("flags", f);
	Q("read only", set_access(p, 4 * G, 1));
	Q("flags", (d.cuMemGetAccess(&f, &l, p), f));
	Q("none", set_access(p, 4 * G, 0));
	Q("flags", (d.cuMemGetAccess(&f, &l, p), f));
	Q("bad flags", set_access(p, 4 * G, 2));
	Q("unknown device", d.cuMemSetAccess(p, 4 * G, two, 2));
	Q("count 0", d.cuMemSetAccess(p, 4 * G, two, 0));
	Q("get unmapped", d.cuMemGetAccess(&f, &l, p + 6 * G));
	l.id = 99;
	Q("get unknown device", d.cuMemGetAccess(&f, &l, p));
}

static void c_unmap(void)
{
	CUdeviceptr p;
	CUmemGenericAllocationHandle h = 0;
	with_ctx();
	p = reserve(8 * G);
	for (int i = 0; i < 2; i++) {
		h = create(2 * G);
		d.cuMemMap(p + i * 3 * G, 2 * G, 0, h, 0); /* 0-1, 3-4 */
		d.cuMemRelease(h);
	}
	Q("front part", d.cuMemUnmap(p, G));
	Q("back part", d.cuMemUnmap(p + G, G));
	Q("nothing there", d.cuMemUnmap(p + 6 * G, G));
	Q("unaligned", d.cuMemUnmap(p, G / 2));
	Q("mapping and half of another", d.cuMemUnmap(p, 4 * G));
	Q("address free while mapped", d.cuMemAddressFree(p, 8 * G));
	Q("across a hole", d.cuMemUnmap(p, 5 * G));
	Q("again", d.cuMemUnmap(p, 5 * G));
	d.cuMemUnmap(p, 2 * G);
	d.cuMemUnmap(p + 3 * G, 2 * G);
	for (int i = 0; i < 2; i++) {
		h = create(2 * G);
		d.cuMemMap(p + i * 2 * G, 2 * G, 0, h, 0);
	}
	Q("mapping and empty tail", d.cuMemUnmap(p, 6 * G));
	d.cuMemUnmap(p, 4 * G);
	d.cuMemMap(p, 2 * G, 0, h, 0);
	d.cuMemMap(p + 2 * G, 2 * G, 0, h, 0);
	Q("two whole ones", d.cuMemUnmap(p, 4 * G));
	Q("address free wrong size", d.cuMemAddressFree(p, 4 * G));
	Q("address free inside", d.cuMemAddressFree(p + G, 7 * G));
	Q("address free", d.cuMemAddressFree(p, 8 * G));
	Q("address free again", d.cuMemAddressFree(p, 8 * G));
	p = mapped(2);
	Q("mem free of vmm memory", d.cuMemFree_v2(p));
	CUdeviceptr a = reserve(G), b = 0;
	h = create(2 * G);
	if (d.cuMemAddressReserve(&b, G, 0, a + G, 0) == 0 && b == a + G)
		Q("map across two reservations", d.cuMemMap(a, 2 * G, 0, h, 0));
}

static void c_reserve(void)
{
	CUdeviceptr p = 0, q = 0;
	with_ctx();
	Q("zero", d.cuMemAddressReserve(&p, 0, 0, 0, 0));
	Q("unaligned", d.cuMemAddressReserve(&p, G + 4096, 0, 0, 0));
	Q("alignment 3", d.cuMemAddressReserve(&p, G, 3, 0, 0));
	Q("alignment 4096", d.cuMemAddressReserve(&p, G, 4096, 0, 0));
	Q("large alignment", d.cuMemAddressReserve(&p, G, 64 * G, 0, 0));
	Q("is aligned", p % (64 * G) == 0);
	Q("flags", d.cuMemAddressReserve(&p, G, 0, 0, 1));
	Q("reserve", d.cuMemAddressReserve(&p, 4 * G, 0, 0, 0));
	Q("taken address as hint", d.cuMemAddressReserve(&q, G, 0, p, 0));
	Q("elsewhere", q != p);
	d.cuMemAddressFree(p, 4 * G);
	Q("free address as hint", d.cuMemAddressReserve(&q, 4 * G, 0, p, 0));
	Q("there", q == p);
	Q("odd hint", d.cuMemAddressReserve(&q, G, 0, p + 16 * G + 5, 0));
	Q("1 TiB", d.cuMemAddressReserve(&q, 1ull << 40, 0, 0, 0));
}

static void attributes(const char *name, CUdeviceptr p)
{
	CUcontext c = (CUcontext)5;
	unsigned type = 77, mappedv = 77, managed = 77;
	int ord = 77;
	CUdeviceptr start = 5;
	size_t size = 5;
	printf("%s\n", name);
	Q(" context", d.cuPointerGetAttribute(&c, CU_POINTER_ATTRIBUTE_CONTEXT, p));
	Q(" context is primary", c == ctx);
	Q(" context is null", c == NULL);
	Q(" type", d.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
	Q(" type value", type);
	Q(" ordinal", d.cuPointerGetAttribute(&ord, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
	Q(" ordinal value", ord);
	Q(" range start", d.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p));
	Q(" pointer minus start", start == 5 ? -1 : (long long)(p - start));
	Q(" range size", d.cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p));
	Q(" size in granules", size / G);
	Q(" mapped", d.cuPointerGetAttribute(&mappedv, CU_POINTER_ATTRIBUTE_MAPPED, p));
	Q(" mapped value", mappedv);
	Q(" managed", d.cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
	Q(" managed value", managed);
	void *hp = (void *)5;
	CUdeviceptr dp = 5;
	Q(" host pointer", d.cuPointerGetAttribute(&hp, CU_POINTER_ATTRIBUTE_HOST_POINTER, p));
	Q(" host pointer same", (CUdeviceptr)(uintptr_t)hp == p);
	Q(" device pointer", d.cuPointerGetAttribute(&dp, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, p));
	Q(" device pointer same", dp == p);
	CUpointer_attribute at[3] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
				     CU_POINTER_ATTRIBUTE_RANGE_SIZE};
	type = 77, ord = 77, size = 7;
	void *out[3] = {&type, &ord, &size};
	Q(" together", d.cuPointerGetAttributes(3, at, out, p));
	Q(" type value", type);
	Q(" ordinal value", ord);
	Q(" size in granules", size / G);
	CUdeviceptr base = 5;
	size = 5;
	Q(" address range", d.cuMemGetAddressRange_v2(&base, &size, p));
	Q(" pointer minus base", base == 5 ? -1 : base == 0 ? -2 : (long long)(p - base));
	Q(" size in granules", size / G);
}

static void c_attributes(void)
{
	CUdeviceptr p;
	void *h;
	with_ctx();
	p = mapped(2);
	attributes("mapped", p + 5);
	CUmemGenericAllocationHandle k = create(G);
	p = reserve(4 * G);
	attributes("reserved", p + G);
	d.cuMemMap(p, G, 0, k, 0);
	attributes("mapped without access", p + 5);
	d.cuMemMap(p + G, G, 0, create(G), 0);
	set_access(p, 2 * G, 3);
	attributes("second of two mappings", p + G + 5);
	d.cuMemAlloc_v2(&p, 2 * G);
	attributes("allocated", p + 5);
	d.cuMemHostAlloc(&h, 2 * G, 0);
	attributes("host allocated", (CUdeviceptr)(uintptr_t)h + 5);
	h = aligned_alloc(G, 2 * G);
	attributes("plain host memory", (CUdeviceptr)(uintptr_t)h + 5);
	d.cuMemHostRegister_v2(h, 2 * G, 0);
	attributes("registered", (CUdeviceptr)(uintptr_t)h + 5);
}

static void c_alloc(void)
{
	CUdeviceptr p = 0;
	CUipcMemHandle ipc;
	with_ctx();
	Q("zero bytes", d.cuMemAlloc_v2(&p, 0));
	Q("too large", d.cuMemAlloc_v2(&p, 1ull << 45));
	Q("alloc", d.cuMemAlloc_v2(&p, 1000));
	Q("aligned to 256", p % 256 == 0);
	Q("ipc handle", d.cuIpcGetMemHandle(&ipc, p));
	Q("unmap of it", d.cuMemUnmap(p, G));
	Q("free inside", d.cuMemFree_v2(p + 256));
	Q("free", d.cuMemFree_v2(p));
	Q("free twice", d.cuMemFree_v2(p));
	Q("free null", d.cuMemFree_v2(0));
	Q("free wild", d.cuMemFree_v2(4096));
	p = mapped(1);
	Q("ipc handle of vmm memory", d.cuIpcGetMemHandle(&ipc, p));
}

static void c_host(void)
{
	void *h = NULL, *k;
	unsigned f = 77;
	CUdeviceptr p = 5, dev;
	with_ctx();
	dev = mapped(2);
	Q("alloc", d.cuMemHostAlloc(&h, 1 << 20, 0));
	Q("flags", d.cuMemHostGetFlags(&f, h));
	Q("flags value", f);
	Q("flags inside", d.cuMemHostGetFlags(&f, (char *)h + 100));
	Q("device pointer", d.cuMemHostGetDevicePointer_v2(&p, h, 0));
	Q("same", p == (CUdeviceptr)(uintptr_t)h);
	Q("unregister allocated", d.cuMemHostUnregister(h));
	Q("free inside", d.cuMemFreeHost((char *)h + 4096));
	Q("free", d.cuMemFreeHost(h));
	Q("free twice", d.cuMemFreeHost(h));
	Q("free null", d.cuMemFreeHost(NULL));
	Q("alloc portable mapped", d.cuMemHostAlloc(&h, 4096, 3));
	Q("flags value", (d.cuMemHostGetFlags(&f, h), f));
	Q("alloc bad flags", d.cuMemHostAlloc(&k, 4096, 0x80));
	Q("alloc zero", d.cuMemHostAlloc(&k, 0, 0));
	h = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	Q("flags of plain memory", d.cuMemHostGetFlags(&f, h));
	Q("unregister plain", d.cuMemHostUnregister(h));
	Q("register", d.cuMemHostRegister_v2(h, 1 << 20, 0));
	Q("flags value", (d.cuMemHostGetFlags(&f, h), f));
	Q("register twice", d.cuMemHostRegister_v2(h, 1 << 20, 0));
	Q("register overlapping", d.cuMemHostRegister_v2((char *)h + (1 << 19), 1 << 20, 0));
	Q("register neighbour", d.cuMemHostRegister_v2((char *)h + (1 << 20), 1 << 20, 1));
	Q("register zero", d.cuMemHostRegister_v2((char *)h + (4 << 20), 0, 0));
	Q("register for a plain head", d.cuMemHostRegister_v2((char *)h + (7 << 20), 1 << 19, 0));
	Q("register unaligned", d.cuMemHostRegister_v2((char *)h + (4 << 20) + 100, 5000, 0));
	Q("register null", d.cuMemHostRegister_v2(NULL, 4096, 0));
	Q("register bad flags", d.cuMemHostRegister_v2((char *)h + (6 << 20), 4096, 0x100));
	Q("free registered", d.cuMemFreeHost(h));
	Q("copy within one piece", d.cuMemcpyHtoD_v2(dev, h, 1 << 20));
	Q("copy over two pieces", d.cuMemcpyHtoD_v2(dev, h, 2 << 20));
	Q("copy over two pieces back", d.cuMemcpyDtoH_v2(h, dev, 2 << 20));
	Q("async copy over two pieces", d.cuMemcpyHtoDAsync_v2(dev, h, 2 << 20, NULL));
	Q("async copy over two pieces back", d.cuMemcpyDtoHAsync_v2(h, dev, 2 << 20, NULL));
	Q("copy from plain head", d.cuMemcpyHtoD_v2(dev, (char *)h + (13 << 19), 1 << 20));
	Q("copy into plain tail", d.cuMemcpyHtoD_v2(dev, (char *)h + (3 << 19), 1 << 20));
	Q("async copy into plain tail", d.cuMemcpyHtoDAsync_v2(dev, (char *)h + (3 << 19), 1 << 20, NULL));
	Q("synchronize", d.cuCtxSynchronize());
	Q("unregister inside", d.cuMemHostUnregister((char *)h + 4096));
	Q("unregister", d.cuMemHostUnregister(h));
	Q("unregister twice", d.cuMemHostUnregister(h));
	CUdeviceptr q;
	d.cuMemAlloc_v2(&q, 4096);
	Q("register device memory", d.cuMemHostRegister_v2((void *)(uintptr_t)q, 4096, 0));
	Q("null pointer", d.cuMemHostGetFlags(&f, NULL));
}

static void bad_copy(const char *name, CUdeviceptr p, size_t n, int async)
{
	static char buf[64 << 20];
	printf("%s\n", name);
	if (async)
		Q(" async copy out", d.cuMemcpyDtoHAsync_v2(buf, p, n, NULL));
	else
		Q(" copy out", d.cuMemcpyDtoH_v2(buf, p, n));
	Q(" synchronize", d.cuCtxSynchronize());
	if (async)
		Q(" async copy in", d.cuMemcpyHtoDAsync_v2(p, buf, n, NULL));
	else
		Q(" copy in", d.cuMemcpyHtoD_v2(p, buf, n));
	Q(" synchronize", d.cuCtxSynchronize());
	CUdeviceptr q;
	Q(" alloc afterwards", d.cuMemAlloc_v2(&q, 100));
}

static void c_bad_copy_reserved(void) { with_ctx(); bad_copy("reserved", reserve(G), 100, 0); }
static void c_bad_copy_reserved_async(void) { with_ctx(); bad_copy("reserved, async", reserve(G), 100, 1); }
static void c_bad_copy_tail(void)
{
	with_ctx();
	CUdeviceptr p = reserve(2 * G);
	d.cuMemMap(p, G, 0, create(G), 0);
	set_access(p, G, 3);
	bad_copy("mapped, then reserved", p, 2 * G, 0);
}
static void c_bad_copy_tail_async(void)
{
	with_ctx();
	CUdeviceptr p = reserve(2 * G);
	d.cuMemMap(p, G, 0, create(G), 0);
	set_access(p, G, 3);
	bad_copy("mapped, then reserved, async", p, 2 * G, 1);
}
static void c_bad_copy_noaccess(void)
{
	with_ctx();
	CUdeviceptr p = reserve(2 * G);
	d.cuMemMap(p, G, 0, create(G), 0);
	bad_copy("mapped without access", p, G, 1);
}
static void c_bad_copy_wild(void) { with_ctx(); bad_copy("wild", 0x1000, 100, 0); }
static void c_bad_copy_freed(void)
{
	CUdeviceptr p;
	with_ctx();
	d.cuMemAlloc_v2(&p, 64 << 20);
	d.cuMemFree_v2(p);
	bad_copy("freed", p, 100, 0);
}
static void c_bad_copy_over_alloc(void)
{
	CUdeviceptr p;
	with_ctx();
	d.cuMemAlloc_v2(&p, 8 << 20);
	bad_copy("beyond the allocation", p, 64 << 20, 0);
}
static void c_bad_memset(void)
{
	with_ctx();
	CUdeviceptr p = reserve(2 * G), q;
	d.cuMemMap(p, G, 0, create(G), 0);
	set_access(p, G, 3);
	Q("async tail", d.cuMemsetD8Async(p, 1, 2 * G, NULL));
	Q("synchronize", d.cuCtxSynchronize());
	Q("alloc", d.cuMemAlloc_v2(&q, 100));
	Q("reserved", d.cuMemsetD8_v2(p + G, 1, 100));
	Q("synchronize", d.cuCtxSynchronize());
}
static void c_bad_memset_noaccess(void)
{
	with_ctx();
	CUdeviceptr p = reserve(2 * G);
	d.cuMemMap(p, G, 0, create(G), 0);
	Q("without access", d.cuMemsetD8Async(p, 1, G, NULL));
	Q("synchronize", d.cuCtxSynchronize());
}
static void c_copies(void)
{
	CUdeviceptr p, q, r;
	char a[64] = "hello", b[64] = {0};
	with_ctx();
	p = reserve(2 * G);
	d.cuMemMap(p, G, 0, create(G), 0);
	d.cuMemMap(p + G, G, 0, create(G), 0);
	set_access(p, 2 * G, 3);
	Q("over two mappings", d.cuMemcpyHtoD_v2(p + G - 3, a, 10));
	Q("back", d.cuMemcpyDtoH_v2(b, p + G - 3, 10));
	Q("equal", memcmp(a, b, 10) == 0);
	Q("zero bytes", d.cuMemcpyHtoD_v2(p, a, 0));
	Q("zero bytes wild", d.cuMemcpyHtoD_v2(0x1000, a, 0));
	Q("null source", d.cuMemcpyHtoD_v2(p, NULL, 10));
	Q("unified host to host", d.cuMemcpy((CUdeviceptr)(uintptr_t)b, (CUdeviceptr)(uintptr_t)a, 10));
	Q("unified device to host", d.cuMemcpy((CUdeviceptr)(uintptr_t)b, p, 10));
	d.cuMemAlloc_v2(&q, 4096);
	Q("alloc to vmm", d.cuMemcpyDtoD_v2(p, q, 4096));
	d.cuMemAlloc_v2(&r, 4096);
	Q("d32 unaligned", d.cuMemsetD32_v2(q + 2, 1, 4));
	d.cuCtxSynchronize();
	set_access(p, 2 * G, 1);
	Q("read only: read", d.cuMemcpyDtoH_v2(b, p, 10));
	Q("read only: write", d.cuMemcpyHtoD_v2(p, a, 10));
	Q("synchronize", d.cuCtxSynchronize());
}

static const char *trap_ptx =
	"//\n.version 6.0\n.target sm_70\n.address_size 64\n.visible .entry trap_now() {\n .reg .b64 %r;\n"
	" mov.u64 %r, 16;\n st.global.u32 [%r], 1;\n ret;\n}\n";

/* one illegal address on the context: a kernel on a GPU, an injected fault on softgpu */
static void poison(void)
{
	CUmodule m;
	CUfunction f;
	static CUdeviceptr p;
	d.cuMemAlloc_v2(&p, 4096);
	if (d.set_fault) {
		d.set_fault("memset:1:700");
		d.cuMemsetD8Async(p, 1, 16, NULL);
	} else {
		if (d.cuModuleLoadData(&m, trap_ptx) || d.cuModuleGetFunction(&f, m, "trap_now"))
			printf("no trap kernel\n");
		d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
	}
}

static void c_sticky(void)
{
	CUdeviceptr p, q, va, al;
	CUmemGenericAllocationHandle h, k;
	CUmemAllocationProp pr;
	CUstream s, s2;
	CUevent e, e2;
	size_t a, b;
	int x;
	void *hp, *h2;
	CUcontext c;
	CUdevice dev;
	unsigned f;
	unsigned long long fl;
	CUmemLocation l = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
	with_ctx();
	pr = props(0);
	va = reserve(4 * G);
	h = create(G);
	d.cuMemMap(va, G, 0, h, 0);
	set_access(va, G, 3);
	k = create(G);
	p = reserve(G);
	d.cuMemAlloc_v2(&al, 100);
	d.cuStreamCreate(&s, 0);
	d.cuEventCreate(&e, 0);
	d.cuMemHostAlloc(&hp, 4096, 0);
	h2 = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	poison();
	Q("synchronize", d.cuCtxSynchronize());
	Q("synchronize again", d.cuCtxSynchronize());
	Q("meminfo", d.cuMemGetInfo_v2(&a, &b));
	Q("alloc", d.cuMemAlloc_v2(&q, 100));
	Q("device count", d.cuDeviceGetCount(&x));
	Q("get current", d.cuCtxGetCurrent(&c));
	Q("set current", d.cuCtxSetCurrent(ctx));
	Q("get device", d.cuCtxGetDevice(&dev));
	Q("primary state", d.cuDevicePrimaryCtxGetState(0, &f, &x));
	Q("retain", d.cuDevicePrimaryCtxRetain(&c, 0));
	Q("device attribute", d.cuDeviceGetAttribute(&x, 75, 0));
	Q("granularity", d.cuMemGetAllocationGranularity(&a, &pr, 0));
	Q("create", d.cuMemCreate(&k, G, &pr, 0));
	Q("reserve", d.cuMemAddressReserve(&q, G, 0, 0, 0));
	Q("map", d.cuMemMap(p, G, 0, k, 0));
	Q("set access", set_access(p, G, 3));
	Q("get access", d.cuMemGetAccess(&fl, &l, va));
	Q("retain handle", d.cuMemRetainAllocationHandle(&k, (void *)(uintptr_t)va));
	Q("unmap", d.cuMemUnmap(va, G));
	Q("release", d.cuMemRelease(h));
	Q("address free", d.cuMemAddressFree(va, 4 * G));
	Q("free", d.cuMemFree_v2(al));
	Q("host alloc", d.cuMemHostAlloc(&h2, 4096, 0));
	Q("host free", d.cuMemFreeHost(hp));
	Q("host register", d.cuMemHostRegister_v2(h2, 1 << 20, 0));
	Q("pointer attribute", d.cuPointerGetAttribute(&x, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, va));
	Q("stream create", d.cuStreamCreate(&s2, 0));
	Q("stream query", d.cuStreamQuery(s));
	Q("stream synchronize", d.cuStreamSynchronize(s));
	Q("event create", d.cuEventCreate(&e2, 0));
	Q("event record", d.cuEventRecord(e, s));
	Q("event query", d.cuEventQuery(e));
	Q("event synchronize", d.cuEventSynchronize(e));
	Q("event destroy", d.cuEventDestroy_v2(e));
	Q("stream destroy", d.cuStreamDestroy_v2(s));
	Q("copy", d.cuMemcpyDtoH_v2(&x, al, 4));
	Q("stream capturing", d.cuStreamIsCapturing(NULL, (CUstreamCaptureStatus *)&x));
	Q("exchange mode", (x = 2, d.cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)&x)));
	CUcontext other;
	Q("new context", d.cuCtxCreate_v2(&other, 0, 0));
	Q("pop current", d.cuCtxPopCurrent_v2(&c));
	Q("reset", d.cuDevicePrimaryCtxReset_v2(0));
	d.cuDevicePrimaryCtxRetain(&ctx, 0);
	d.cuCtxSetCurrent(ctx);
	Q("meminfo after reset", d.cuMemGetInfo_v2(&a, &b));
}

static void c_sticky_vmm_copy(void)
{
	CUdeviceptr p, q;
	char buf[16];
	with_ctx();
	p = mapped(1);
	Q("fine", d.cuMemsetD8_v2(p, 3, 16));
	poison();
	Q("sync", d.cuCtxSynchronize());
	Q("unmap", d.cuMemUnmap(p, G));
	Q("reset", d.cuDevicePrimaryCtxReset_v2(0));
	Q("retain", d.cuDevicePrimaryCtxRetain(&ctx, 0));
	Q("set current", d.cuCtxSetCurrent(ctx));
	Q("alloc after reset", d.cuMemAlloc_v2(&q, 100));
	Q("copy", d.cuMemcpyDtoH_v2(buf, q, 16));
}

/* Much work on a range, and the range taken away at once. */
static void c_taken_away(void)
{
	size_t a, b;
	with_ctx();
	d.cuMemGetInfo_v2(&a, &b);
	size_t n = a / 4 / G;
	CUdeviceptr p = mapped(n), q;
	CUmemGenericAllocationHandle h;
	for (int i = 0; i < 40; i++)
		d.cuMemsetD8Async(p, i, n * G, NULL);
	CUresult busy = d.cuStreamQuery(NULL);
	Q("work is running", busy);
	Q("unmap", d.cuMemUnmap(p, n * G));
	Q("synchronize", d.cuCtxSynchronize());
	Q("alloc", d.cuMemAlloc_v2(&q, 4096));
	h = create(G);
	Q("map there", d.cuMemMap(p, G, 0, h, 0));
}

static void c_access_taken_away(void)
{
	size_t a, b;
	with_ctx();
	d.cuMemGetInfo_v2(&a, &b);
	size_t n = a / 4 / G;
	CUdeviceptr p = mapped(n);
	for (int i = 0; i < 40; i++)
		d.cuMemsetD8Async(p, i, n * G, NULL);
	Q("work is running", d.cuStreamQuery(NULL));
	Q("set access none", set_access(p, n * G, 0));
	Q("synchronize", d.cuCtxSynchronize());
}

static void c_freed_under_work(void)
{
	size_t a, b;
	CUdeviceptr p;
	with_ctx();
	d.cuMemGetInfo_v2(&a, &b);
	d.cuMemAlloc_v2(&p, a / 4);
	for (int i = 0; i < 40; i++)
		d.cuMemsetD8Async(p, i, a / 4, NULL);
	Q("work is running", d.cuStreamQuery(NULL));
	Q("free", d.cuMemFree_v2(p));
	Q("query", d.cuStreamQuery(NULL));
	Q("synchronize", d.cuCtxSynchronize());
}

static void c_streams(void)
{
	CUstream s, nb;
	CUevent e, f, g;
	float ms;
	unsigned fl;
	int lo, hi;
	CUcontext c;
	with_ctx();
	Q("create", d.cuStreamCreate(&s, 0));
	Q("create non-blocking", d.cuStreamCreate(&nb, 1));
	Q("create bad flags", d.cuStreamCreate(&nb, 8));
	Q("flags", (d.cuStreamGetFlags(nb, &fl), fl));
	Q("flags of null", d.cuStreamGetFlags(NULL, &fl));
	Q("flags value", fl);
	Q("ctx of stream", (d.cuStreamGetCtx(s, &c), c == ctx));
	Q("ctx of null", (d.cuStreamGetCtx(NULL, &c), c == ctx));
	Q("range", d.cuCtxGetStreamPriorityRange(&lo, &hi));
	Q("least", lo);
	Q("query idle", d.cuStreamQuery(s));
	Q("query legacy", d.cuStreamQuery(CU_STREAM_LEGACY));
	Q("query per thread", d.cuStreamQuery(CU_STREAM_PER_THREAD));
	d.cuEventCreate(&e, 0);
	d.cuEventCreate(&f, 0);
	d.cuEventCreate(&g, 2);
	Q("event query never recorded", d.cuEventQuery(e));
	Q("event synchronize never recorded", d.cuEventSynchronize(e));
	Q("wait never recorded", d.cuStreamWaitEvent(s, e, 0));
	Q("elapsed never recorded", d.cuEventElapsedTime(&ms, e, f));
	d.cuEventRecord(e, s);
	d.cuEventRecord(f, s);
	d.cuEventRecord(g, s);
	d.cuStreamSynchronize(s);
	Q("elapsed", d.cuEventElapsedTime(&ms, e, f));
	Q("elapsed without timing", d.cuEventElapsedTime(&ms, e, g));
	Q("event bad flags", d.cuEventCreate(&e, 0x40));
	Q("destroy null stream", d.cuStreamDestroy_v2(NULL));
	Q("destroy legacy", d.cuStreamDestroy_v2(CU_STREAM_LEGACY));
	Q("null event", d.cuEventRecord(NULL, s));
	Q("destroy", d.cuStreamDestroy_v2(s));
}

static volatile int gate_open;
static void hold_stream(void *arg) { (void)arg; while (!gate_open) usleep(100); }
static CUresult in_callback;
static void call_driver(void *arg) { (void)arg; size_t a, b; in_callback = d.cuMemGetInfo_v2(&a, &b); }
static void bump(void *arg) { ++*(int *)arg; }

static void c_ordering(void)
{
	CUstream s, nb;
	CUevent e, f;
	float ms;
	int n = 0;
	CUdeviceptr p;
	char *h, out[4];
	with_ctx();
	d.cuStreamCreate(&s, 0);
	d.cuStreamCreate(&nb, 1);
	d.cuEventCreate(&e, 0);
	d.cuEventCreate(&f, 0);
	d.cuMemAlloc_v2(&p, 4096);
	d.cuLaunchHostFunc(s, hold_stream, NULL);
	d.cuEventRecord(e, s);
	Q("query of held stream", d.cuStreamQuery(s));
	Q("query of other stream", d.cuStreamQuery(nb));
	Q("event query", d.cuEventQuery(e));
	Q("elapsed not ready", d.cuEventElapsedTime(&ms, e, e));
	d.cuMemsetD8Async(p, 3, 16, nb);
	Q("non-blocking stream runs", d.cuStreamSynchronize(nb));
	d.cuLaunchHostFunc(nb, bump, &n);
	usleep(200000);
	Q("host function of another stream ran beside one", n);
	Q("legacy waits for blocking stream", d.cuStreamQuery(NULL));
	d.cuEventRecord(f, NULL);
	Q("event on legacy", d.cuEventQuery(f));
	h = malloc(16);
	memset(h, 1, 16);
	Q("pageable async in", d.cuMemcpyHtoDAsync_v2(p, h, 16, s));
	memset(h, 2, 16);
	gate_open = 1;
	Q("sync", d.cuStreamSynchronize(s));
	d.cuMemcpyDtoH_v2(out, p, 4);
	Q("pageable source was staged", out[0] == 1);
	d.cuLaunchHostFunc(s, call_driver, NULL);
	d.cuStreamSynchronize(s);
	Q("driver call in host function", in_callback);
	gate_open = 0;
	void *pin;
	d.cuMemHostAlloc(&pin, 4096, 0);
	memset(pin, 1, 16);
	d.cuLaunchHostFunc(s, hold_stream, NULL);
	d.cuMemcpyHtoDAsync_v2(p, pin, 16, s);
	memset(pin, 2, 16);
	gate_open = 1;
	d.cuStreamSynchronize(s);
	d.cuMemcpyDtoH_v2(out, p, 4);
	Q("pinned source was read late", out[0] == 2);
}

/* capture: every call of the table, by the capturing thread and by another, in every mode */
static CUstream cap, other_stream, blocking;
static CUevent cap_event;
static CUdeviceptr cap_alloc, cap_va, cap_p;
static void *cap_pinned, *cap_plain;
static CUmemGenericAllocationHandle cap_h;
static CUresult op_ctxsync(void) { return d.cuCtxSynchronize(); }
static CUresult op_sync_cap(void) { return d.cuStreamSynchronize(cap); }
static CUresult op_query_cap(void) { return d.cuStreamQuery(cap); }
static CUresult op_sync_other(void) { return d.cuStreamSynchronize(other_stream); }
static CUresult op_query_other(void) { return d.cuStreamQuery(other_stream); }
static CUresult op_sync_legacy(void) { return d.cuStreamSynchronize(NULL); }
static CUresult op_alloc(void) { CUdeviceptr p; return d.cuMemAlloc_v2(&p, 4096); }
static CUresult op_free(void) { return d.cuMemFree_v2(cap_alloc); }
static CUresult op_free_null(void) { return d.cuMemFree_v2(0); }
static CUresult op_create(void) { CUmemGenericAllocationHandle h; CUmemAllocationProp p = props(0); return d.cuMemCreate(&h, G, &p, 0); }
static CUresult op_release(void) { return d.cuMemRelease(cap_h); }
static CUresult op_reserve(void) { CUdeviceptr p; return d.cuMemAddressReserve(&p, G, 0, 0, 0); }
static CUresult op_map(void) { return d.cuMemMap(cap_va + G, G, 0, cap_h, 0); }
static CUresult op_setaccess(void) { return set_access(cap_va, G, 3); }
static CUresult op_unmap(void) { return d.cuMemUnmap(cap_va, G); }
static CUresult op_hostalloc(void) { void *p; return d.cuMemHostAlloc(&p, 4096, 0); }
static CUresult op_hostfree(void) { return d.cuMemFreeHost(cap_pinned); }
static CUresult op_register(void) { return d.cuMemHostRegister_v2(cap_plain, 1 << 20, 0); }
static CUresult op_streamcreate(void) { CUstream s; return d.cuStreamCreate(&s, 1); }
static CUresult op_eventcreate(void) { CUevent e; return d.cuEventCreate(&e, 0); }
static CUresult op_meminfo(void) { size_t a, b; return d.cuMemGetInfo_v2(&a, &b); }
static CUresult op_memcpy(void) { int x; return d.cuMemcpyDtoH_v2(&x, cap_p, 4); }
static CUresult op_memset(void) { return d.cuMemsetD8_v2(cap_p, 1, 16); }
static CUresult op_memset_legacy_async(void) { return d.cuMemsetD8Async(cap_p, 1, 16, NULL); }
static CUresult op_memset_cap(void) { return d.cuMemsetD8Async(cap_p, 1, 16, cap); }
static CUresult op_memset_other(void) { return d.cuMemsetD8Async(cap_p, 1, 16, other_stream); }
static CUresult op_pageable_cap(void) { static char b[16]; return d.cuMemcpyHtoDAsync_v2(cap_p, b, 16, cap); }
static CUresult op_record_other(void) { return d.cuEventRecord(cap_event, other_stream); }
static CUresult op_query_event(void) { return d.cuEventQuery(cap_event); }
static CUresult op_sync_event(void) { return d.cuEventSynchronize(cap_event); }
static CUresult op_module(void) { CUmodule m; return d.cuModuleLoadData(&m, d.set_fault ? "//\n.version 7.0\n.entry softgpu_selftest_fill" : trap_ptx); }
static CUresult op_retain(void) { CUcontext c; return d.cuDevicePrimaryCtxRetain(&c, 0); }
static CUresult op_attr(void) { int x; return d.cuPointerGetAttribute(&x, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, cap_p); }
static CUresult op_capturing(void) { CUstreamCaptureStatus s; return d.cuStreamIsCapturing(NULL, &s); }
static CUresult op_begin_again(void) { return d.cuStreamBeginCapture_v2(cap, 0); }
static CUresult op_end_other(void) { CUgraph g; return d.cuStreamEndCapture(other_stream, &g); }

static const struct { const char *name; CUresult (*fn)(void); } ops[] = {
	{"context synchronize", op_ctxsync}, {"stream synchronize, capturing", op_sync_cap},
	{"stream query, capturing", op_query_cap}, {"stream synchronize, other", op_sync_other},
	{"stream query, other", op_query_other}, {"stream synchronize, legacy", op_sync_legacy},
	{"alloc", op_alloc}, {"free", op_free}, {"free null", op_free_null}, {"create", op_create},
	{"release", op_release}, {"reserve", op_reserve}, {"map", op_map}, {"set access", op_setaccess},
	{"unmap", op_unmap}, {"host alloc", op_hostalloc}, {"host free", op_hostfree}, {"host register", op_register},
	{"stream create", op_streamcreate}, {"event create", op_eventcreate}, {"meminfo", op_meminfo},
	{"memcpy", op_memcpy}, {"memset", op_memset}, {"memset async, legacy", op_memset_legacy_async},
	{"memset async, capturing", op_memset_cap}, {"memset async, other", op_memset_other},
	{"pageable copy, capturing", op_pageable_cap}, {"event record, other", op_record_other},
	{"event query", op_query_event}, {"event synchronize", op_sync_event}, {"module load", op_module},
	{"retain primary", op_retain}, {"pointer attribute", op_attr}, {"is capturing legacy", op_capturing},
	{"begin again", op_begin_again}, {"end on other", op_end_other},
};

struct opcall { int op; CUresult r; };
static void *run_op(void *arg)
{
	struct opcall *c = arg;
	d.cuCtxSetCurrent(ctx);
	c->r = ops[c->op].fn();
	return NULL;
}

static void c_capture_matrix(void)
{
	static const char *modes[] = {"global", "thread-local", "relaxed"};
	with_ctx();
	cap_p = mapped(1);
	cap_plain = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	d.cuStreamCreate(&cap, 1);
	d.cuStreamCreate(&other_stream, 1);
	d.cuEventCreate(&cap_event, 0);
	d.cuEventRecord(cap_event, other_stream);
	d.cuStreamSynchronize(other_stream);
	for (unsigned i = 0; i < sizeof ops / sizeof *ops; i++) {
		printf("%s:", ops[i].name);
		for (int mode = 0; mode < 3; mode++)
			for (int same = 1; same >= 0; same--) {
				CUgraph g = NULL;
				CUstreamCaptureStatus st = 9;
				struct opcall c = {i, 999};
				d.cuMemAlloc_v2(&cap_alloc, 4096);
				d.cuMemHostAlloc(&cap_pinned, 4096, 0);
				cap_h = create(G);
				cap_va = reserve(2 * G);
				d.cuMemMap(cap_va, G, 0, cap_h, 0);
				if (d.cuStreamBeginCapture_v2(cap, mode))
					printf(" (no capture)");
				if (same) {
					c.r = ops[i].fn();
				} else {
					pthread_t t;
					pthread_create(&t, NULL, run_op, &c);
					pthread_join(t, NULL);
				}
				d.cuStreamIsCapturing(cap, &st);
				CUresult e = d.cuStreamEndCapture(cap, &g);
				printf(" %s %s %d/%d/%d", modes[mode], same ? "same" : "other", c.r, st, e);
				if (g)
					d.cuGraphDestroy(g);
				d.cuMemHostUnregister(cap_plain);
				d.cuMemUnmap(cap_va, G);
				d.cuMemUnmap(cap_va + G, G);
				d.cuMemAddressFree(cap_va, 2 * G);
				d.cuMemRelease(cap_h);
			}
		printf("\n");
	}
}

static void c_capture_rules(void)
{
	CUgraph g = NULL;
	CUgraphExec x = NULL;
	CUstreamCaptureStatus st;
	CUstreamCaptureMode m;
	CUdeviceptr p;
	CUevent e, never;
	char out[16] = {0};
	size_t n = 99;
	with_ctx();
	p = mapped(1);
	d.cuStreamCreate(&cap, 1);
	d.cuStreamCreate(&other_stream, 1);
	d.cuStreamCreate(&blocking, 0);
	d.cuEventCreate(&e, 0);
	d.cuEventCreate(&never, 0);
	d.cuMemsetD8_v2(p, 0, 64);
	Q("begin on legacy", d.cuStreamBeginCapture_v2(NULL, 0));
	Q("end without begin", d.cuStreamEndCapture(cap, &g));
	Q("bad mode", d.cuStreamBeginCapture_v2(cap, 7));
	Q("begin", d.cuStreamBeginCapture_v2(cap, 0));
	Q("status", (d.cuStreamIsCapturing(cap, &st), st));
	Q("memset", d.cuMemsetD8Async(p, 5, 16, cap));
	Q("end", d.cuStreamEndCapture(cap, &g));
	Q("status", (d.cuStreamIsCapturing(cap, &st), st));
	Q("nodes", d.cuGraphGetNodes(g, NULL, &n));
	Q("node count", n);
	d.cuCtxSynchronize();
	d.cuMemcpyDtoH_v2(out, p, 16);
	Q("did not run", out[0]);
	Q("instantiate", d.cuGraphInstantiateWithFlags(&x, g, 0));
	Q("destroy graph", d.cuGraphDestroy(g));
	Q("launch", d.cuGraphLaunch(x, cap));
	d.cuStreamSynchronize(cap);
	d.cuMemcpyDtoH_v2(out, p, 16);
	Q("ran", out[0]);
	Q("exec destroy", d.cuGraphExecDestroy(x));
	Q("begin blocking", d.cuStreamBeginCapture_v2(blocking, 2));
	Q("legacy use", d.cuMemsetD8Async(p, 6, 16, NULL));
	Q("status", (d.cuStreamIsCapturing(blocking, &st), st));
	Q("end", d.cuStreamEndCapture(blocking, &g));
	Q("begin blocking", d.cuStreamBeginCapture_v2(blocking, 2));
	Q("is capturing legacy", d.cuStreamIsCapturing(NULL, &st));
	Q("status", (d.cuStreamIsCapturing(blocking, &st), st));
	Q("end", d.cuStreamEndCapture(blocking, &g));
	Q("begin fork and join", d.cuStreamBeginCapture_v2(cap, 2));
	d.cuMemsetD8Async(p, 7, 16, cap);
	Q("record", d.cuEventRecord(e, cap));
	Q("query captured event", d.cuEventQuery(e));
	Q("status", (d.cuStreamIsCapturing(cap, &st), st));
	Q("end", d.cuStreamEndCapture(cap, &g));
	Q("begin fork and join", d.cuStreamBeginCapture_v2(cap, 2));
	d.cuMemsetD8Async(p, 7, 16, cap);
	d.cuEventRecord(e, cap);
	Q("wait", d.cuStreamWaitEvent(other_stream, e, 0));
	Q("other captures", (d.cuStreamIsCapturing(other_stream, &st), st));
	d.cuMemsetD8Async(p + 1, 8, 1, other_stream);
	Q("end other", d.cuStreamEndCapture(other_stream, &g));
	Q("end after that", d.cuStreamEndCapture(cap, &g));
	d.cuStreamBeginCapture_v2(cap, 2);
	d.cuMemsetD8Async(p, 7, 16, cap);
	d.cuEventRecord(e, cap);
	d.cuStreamWaitEvent(other_stream, e, 0);
	d.cuMemsetD8Async(p + 1, 8, 1, other_stream);
	Q("end unjoined", d.cuStreamEndCapture(cap, &g));
	Q("other captures", (d.cuStreamIsCapturing(other_stream, &st), st));
	d.cuStreamBeginCapture_v2(cap, 2);
	d.cuMemsetD8Async(p, 7, 16, cap);
	d.cuEventRecord(e, cap);
	d.cuStreamWaitEvent(other_stream, e, 0);
	d.cuMemsetD8Async(p + 1, 8, 1, other_stream);
	d.cuEventRecord(e, other_stream);
	Q("join", d.cuStreamWaitEvent(cap, e, 0));
	d.cuMemsetD8Async(p + 2, 9, 1, cap);
	g = NULL;
	Q("end joined", d.cuStreamEndCapture(cap, &g));
	Q("nodes", (d.cuGraphGetNodes(g, NULL, &n), n));
	Q("instantiate", d.cuGraphInstantiateWithFlags(&x, g, 0));
	d.cuGraphLaunch(x, cap);
	d.cuStreamSynchronize(cap);
	d.cuMemcpyDtoH_v2(out, p, 16);
	Q("first", out[0]);
	Q("second", out[1]);
	Q("third", out[2]);
	d.cuStreamBeginCapture_v2(cap, 2);
	d.cuEventRecord(e, cap);
	d.cuStreamEndCapture(cap, &g);
	Q("query event of a past capture", d.cuEventQuery(e));
	Q("wait for event of a past capture", d.cuStreamWaitEvent(other_stream, e, 0));
	d.cuStreamBeginCapture_v2(cap, 2);
	d.cuEventRecord(e, cap);
	d.cuStreamWaitEvent(other_stream, e, 0);
	Q("end, other joined without work", d.cuStreamEndCapture(cap, &g));
	d.cuEventRecord(never, other_stream);
	d.cuStreamBeginCapture_v2(cap, 2);
	Q("wait for uncaptured event", d.cuStreamWaitEvent(cap, never, 0));
	Q("status", (d.cuStreamIsCapturing(cap, &st), st));
	Q("end", d.cuStreamEndCapture(cap, &g));
	m = CU_STREAM_CAPTURE_MODE_RELAXED;
	Q("exchange", d.cuThreadExchangeStreamCaptureMode(&m));
	Q("was", m);
	d.cuStreamBeginCapture_v2(cap, 0);
	Q("alloc in relaxed thread", op_alloc());
	Q("status", (d.cuStreamIsCapturing(cap, &st), st));
	Q("context synchronize in relaxed thread", d.cuCtxSynchronize());
	Q("status", (d.cuStreamIsCapturing(cap, &st), st));
	Q("end", d.cuStreamEndCapture(cap, &g));
	m = CU_STREAM_CAPTURE_MODE_GLOBAL;
	d.cuThreadExchangeStreamCaptureMode(&m);
	d.cuStreamBeginCapture_v2(cap, 0);
	Q("context synchronize", d.cuCtxSynchronize());
	Q("memset after invalidation", d.cuMemsetD8Async(p, 1, 16, cap));
	Q("begin after invalidation", d.cuStreamBeginCapture_v2(cap, 0));
	Q("sync after invalidation", d.cuStreamSynchronize(cap));
	Q("end", d.cuStreamEndCapture(cap, &g));
	Q("memset", d.cuMemsetD8Async(p, 1, 16, cap));
	d.cuStreamBeginCapture_v2(cap, 0);
	g = (CUgraph)5;
	Q("end of empty", d.cuStreamEndCapture(cap, &g));
	Q("instantiate empty", d.cuGraphInstantiateWithFlags(&x, g, 0));
	Q("launch empty", d.cuGraphLaunch(x, cap));
}

static void *end_it(void *arg) { CUgraph g; d.cuCtxSetCurrent(ctx); *(CUresult *)arg = d.cuStreamEndCapture(cap, &g); return NULL; }
static void c_capture_threads(void)
{
	CUresult r;
	pthread_t t;
	CUstreamCaptureStatus st;
	CUgraph g;
	with_ctx();
	for (int mode = 0; mode < 3; mode++) {
		d.cuStreamCreate(&cap, 1);
		d.cuStreamBeginCapture_v2(cap, mode);
		pthread_create(&t, NULL, end_it, &r);
		pthread_join(t, NULL);
		Q("end in another thread", r);
		Q("status", (d.cuStreamIsCapturing(cap, &st), st));
		Q("end here", d.cuStreamEndCapture(cap, &g));
	}
	d.cuStreamCreate(&cap, 1);
	d.cuStreamBeginCapture_v2(cap, 2);
	Q("destroy capturing stream", d.cuStreamDestroy_v2(cap));
}

static void c_modules(void)
{
	CUmodule m = NULL;
	CUfunction f;
	with_ctx();
	Q("garbage", d.cuModuleLoadData(&m, "garbage that is no image at all, padded to be safe............"));
	Q("null", d.cuModuleLoadData(&m, NULL));
	Q("missing file", d.cuModuleLoad(&m, "/nonexistent/file.cubin"));
	const char *fill = d.set_fault ? "//\n.version 6.0\n.target sm_70\n.address_size 64\n.visible .entry softgpu_selftest_fill() {}\n" : trap_ptx;
	Q("ptx", d.cuModuleLoadData(&m, fill));
	Q("missing function", d.cuModuleGetFunction(&f, m, "nope"));
	Q("null name", d.cuModuleGetFunction(&f, m, NULL));
	Q("function", d.cuModuleGetFunction(&f, m, d.set_fault ? "softgpu_selftest_fill" : "trap_now"));
	Q("launch zero grid", d.cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	Q("launch huge block", d.cuLaunchKernel(f, 1, 1, 1, 4096, 1, 1, 0, NULL, NULL, NULL));
	Q("launch null", d.cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
	Q("launch no params", d.cuLaunchKernel(f, 1, 1, 1, 1024, 2, 1, 0, NULL, NULL, NULL));
	Q("unload", d.cuModuleUnload(m));
	Q("fatbin magic", d.cuModuleLoadData(&m, "\x50\xed\x55\xba\x01\x00\x10\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"));
	Q("empty ptx", d.cuModuleLoadData(&m, "//\n"));
}

static void c_symbols(void)
{
	void *f = (void *)5;
	CUdriverProcAddressQueryResult st = 9;
	const char *s = NULL;
	init();
	Q("unknown", d.cuGetProcAddress_v2("cuNoSuchCall", &f, 12000, 0, &st));
	Q("status", st);
	Q("null", f == NULL);
	Q("known", d.cuGetProcAddress_v2("cuMemCreate", &f, 12000, 0, &st));
	Q("status", st);
	Q("too old", d.cuGetProcAddress_v2("cuMemCreate", &f, 9000, 0, &st));
	Q("status", st);
	Q("versioned name", d.cuGetProcAddress_v2("cuMemAlloc_v2", &f, 12000, 0, &st));
	Q("base name", d.cuGetProcAddress_v2("cuMemAlloc", &f, 12000, 0, &st));
	Q("same as _v2", f == (void *)d.cuMemAlloc_v2);
	Q("old call, unknown", d.cuGetProcAddress("cuNoSuchCall", &f, 12000, 0));
	Q("error name unknown", d.cuGetErrorName(12345, &s));
	Q("null", s == NULL);
	Q("error name", d.cuGetErrorName(700, &s));
	printf("%s\n", s);
}

static const struct { const char *name; void (*fn)(void); } cases[] = {
#define C(f) {#f, f}
	C(c_before_init), C(c_no_context), C(c_contexts), C(c_primary_objects), C(c_fork), C(c_create), C(c_refcount),
	C(c_map), C(c_access), C(c_unmap), C(c_reserve), C(c_attributes), C(c_alloc), C(c_host),
	C(c_bad_copy_reserved), C(c_bad_copy_reserved_async), C(c_bad_copy_tail), C(c_bad_copy_tail_async),
	C(c_bad_copy_noaccess), C(c_bad_copy_wild), C(c_bad_copy_freed), C(c_bad_copy_over_alloc), C(c_bad_memset),
	C(c_bad_memset_noaccess), C(c_copies), C(c_sticky), C(c_sticky_vmm_copy),
	C(c_taken_away), C(c_access_taken_away), C(c_freed_under_work), C(c_streams), C(c_ordering),
	C(c_capture_matrix), C(c_capture_rules), C(c_capture_threads), C(c_modules), C(c_symbols),
};

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0); /* a case that dies keeps its lines */
	void *lib = dlopen(argc > 1 ? argv[1] : "libcuda.so.1", RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
#define X(f) \
	if (!(d.f = (__typeof__(d.f))dlsym(lib, #f))) \
		fprintf(stderr, "missing: %s\n", #f);
	FUNCTIONS(X)
#undef X
	d.set_fault = (void (*)(const char *))dlsym(lib, "softgpu_set_fault");
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
		fflush(stdout);
	}
	return 0;
}
