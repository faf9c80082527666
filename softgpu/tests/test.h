/* A test program runs every TEST in a process of its own, freshly executed, on a node of its own. */
#ifndef SOFTGPU_TESTS_TEST_H
#define SOFTGPU_TESTS_TEST_H

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../softgpu_cuda.h"
#include "../softgpu_kernel.h"
#include "../softgpu_test.h"

struct test {
	const char *name;
	void (*fn)(void);
	const char *env[6];  /* "NAME=value" */
	int dies_of;	     /* the signal that must end it */
	bool children_die;   /* of SIGSEGV */
	bool helper;	     /* only started by another test */
	const char *skip;    /* why it cannot run in this build */
	struct test *next;
};

static struct test *tests, **tests_end = &tests;

static inline void test_register(struct test *t)
{
	*tests_end = t;
	tests_end = &t->next;
}

#define TEST(fn_, ...) \
	static void fn_(void); \
	static struct test test_##fn_ = {.name = #fn_, .fn = fn_, ##__VA_ARGS__}; \
	__attribute__((constructor)) static void register_##fn_(void) { test_register(&test_##fn_); } \
	static void fn_(void)

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#else
#define UNDER_TSAN 0
#endif

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #what); \
			_exit(1); \
		} \
	} while (0)

#define EXPECT(call, want) \
	do { \
		int got_ = (int)(call), want_ = (int)(want); \
		if (got_ != want_) { \
			fprintf(stderr, "%s:%d: %s: got %d, want %d (%s)\n", __FILE__, __LINE__, #call, got_, want_, #want); \
			_exit(1); \
		} \
	} while (0)

#define OK(call) EXPECT(call, 0)

/* Another process on the same node: a helper TEST of this program, which hears us on its stdin and answers on its stdout. */
struct peer {
	pid_t pid;
	int to, from;
};

static inline struct peer start_peer(const char *name)
{
	int to[2], from[2];
	struct peer p;
	CHECK(pipe(to) == 0 && pipe(from) == 0);
	p.pid = fork();
	if (p.pid == 0) {
		dup2(to[0], 0);
		dup2(from[1], 1);
		close(to[0]);
		close(to[1]);
		close(from[0]);
		close(from[1]);
		execl("/proc/self/exe", "test", name, NULL);
		_exit(127);
	}
	close(to[0]);
	close(from[1]);
	p.to = to[1];
	p.from = from[0];
	return p;
}

/* One byte each way. A peer that died answers 0. */
static inline void tell(int fd, char c)
{
	CHECK(write(fd, &c, 1) == 1);
}

static inline char hear(int fd)
{
	char c;
	return read(fd, &c, 1) == 1 ? c : 0;
}

static inline void kill_peer(struct peer p)
{
	kill(p.pid, SIGKILL);
	waitpid(p.pid, NULL, 0);
	close(p.to);
	close(p.from);
}

/* ---- the GPU, in short */

static size_t G; /* granularity */
static CUcontext ctx;

static inline CUmemAllocationProp on_device(int dev)
{
	return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .location = {CU_MEM_LOCATION_TYPE_DEVICE, dev}};
}

static inline void start_gpu(void)
{
	CUmemAllocationProp p = on_device(0);
	OK(cuInit(0));
	OK(cuMemGetAllocationGranularity(&G, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	OK(cuDevicePrimaryCtxRetain(&ctx, 0));
	OK(cuCtxSetCurrent(ctx));
}

static inline CUmemGenericAllocationHandle create(size_t n)
{
	CUmemGenericAllocationHandle h;
	CUmemAllocationProp p = on_device(0);
	OK(cuMemCreate(&h, n, &p, 0));
	return h;
}

static inline CUdeviceptr reserve(size_t n)
{
	CUdeviceptr p;
	OK(cuMemAddressReserve(&p, n, 0, 0, 0));
	return p;
}

static inline CUresult set_access(CUdeviceptr p, size_t n, CUmemAccess_flags flags)
{
	CUmemAccessDesc a = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, flags};
	return cuMemSetAccess(p, n, &a, 1);
}

/* n bytes in one handle at a fresh address, readable and writable; unmapping it frees the memory */
static inline CUdeviceptr mapped(size_t n)
{
	CUdeviceptr p = reserve(n);
	CUmemGenericAllocationHandle h = create(n);
	OK(cuMemMap(p, n, 0, h, 0));
	OK(cuMemRelease(h));
	OK(set_access(p, n, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
	return p;
}

static inline CUdeviceptr allocated(size_t n)
{
	CUdeviceptr p;
	OK(cuMemAlloc_v2(&p, n));
	return p;
}

static inline unsigned char *pinned(size_t n)
{
	void *p;
	OK(cuMemHostAlloc(&p, n, 0));
	return p;
}

static inline size_t free_memory(void)
{
	size_t f, t;
	OK(cuMemGetInfo_v2(&f, &t));
	return f;
}

/* As a GPU's kernel would: through the address itself. */
static inline volatile unsigned char *at(CUdeviceptr p)
{
	return (volatile unsigned char *)(uintptr_t)p;
}

/* ---- running */

/* Most tests leave the GPU as it is; leak_test.c is the one that cleans up and looks for leaks. */
#if defined(__SANITIZE_ADDRESS__)
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
	return "detect_leaks=0";
}
#elif defined(__SANITIZE_THREAD__)
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "atexit_sleep_ms=0"; /* else every process takes a second to end */
}
#endif

static inline void run_here(struct test *t)
{
	alarm(120); /* a hang is a failure; nothing else depends on time */
	t->fn();
	fflush(stdout);
	exit(0);
}

static inline void set_environment(struct test *t)
{
	char node[64];
	snprintf(node, sizeof node, "test-%d", getpid());
	setenv("SOFTGPU_NODE", node, 1);
	for (int i = 0; i < 6 && t->env[i]; i++)
		putenv((char *)t->env[i]);
	if (t->dies_of || t->children_die) { /* the sanitizers would turn the signal into an exit status */
		setenv("ASAN_OPTIONS", "handle_segv=0", 1);
		setenv("TSAN_OPTIONS", "handle_segv=0", 1);
	}
}

static inline bool run(struct test *t)
{
	int status;
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		set_environment(t);
		execl("/proc/self/exe", "test", t->name, NULL);
		_exit(127);
	}
	waitpid(pid, &status, 0);
	bool ok = t->dies_of ? WIFSIGNALED(status) && WTERMSIG(status) == t->dies_of
			     : WIFEXITED(status) && WEXITSTATUS(status) == 0;
	if (ok)
		printf("  ok    %s\n", t->name);
	else if (WIFSIGNALED(status))
		printf("  FAIL  %s (signal %d)\n", t->name, WTERMSIG(status));
	else
		printf("  FAIL  %s (status %d)\n", t->name, WEXITSTATUS(status));
	return ok;
}

int main(int argc, char **argv)
{
	bool ok = true;
	for (struct test *t = tests; t; t = t->next) {
		if (argc > 1 && !strcmp(argv[1], t->name))
			run_here(t);
		if (argc > 1 || t->helper)
			continue;
		if (t->skip)
			printf("  skip  %s: %s\n", t->name, t->skip);
		else
			ok &= run(t);
	}
	return argc > 1 || !ok;
}

#endif
