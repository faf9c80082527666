/* fake_engine.c: stands in for libebb-engine.so. See fakes.h. */
#include "fakes.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#ifndef FAKE_ABI
#define FAKE_ABI EBB_ENGINE_ABI
#endif

#define MANAGED_BASE 0xE0000000u
#define MAX_MANAGED 64

struct fake_engine fake_engine;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the record and managed */
static bool managed[MAX_MANAGED];
static pid_t home;
static _Thread_local char error[128];

static void check_process(void)
{
	static const char text[] = "fake engine: entered in a forked child\n";

	if (home == getpid())
		return;
	(void)!write(STDERR_FILENO, text, sizeof(text) - 1);
	abort();
}

/* Like the real one's, an error says first which call it is of. */
static int told_to_fail_in(const char *call, const char *variable)
{
	const char *code = getenv(variable);

	if (code == NULL)
		return EBB_OK;
	snprintf(error, sizeof(error), "%s%s said so", call, variable);
	return atoi(code);
}

static int told_to_fail(const char *variable)
{
	return told_to_fail_in("", variable);
}

static void copy(char *to, size_t cap, const char *from)
{
	snprintf(to, cap, "%s", from != NULL ? from : "");
}

const char *ebb_engine_version(void)
{
	static char text[32];

	snprintf(text, sizeof(text), "%u 9.9.9", (unsigned)FAKE_ABI);
	return text;
}

int ebb_engine_start(const ebb_engine_config *config)
{
	struct rlimit files;

	home = getpid();
	fake_engine.starts++;
	fake_engine.abi = config->abi;
	fake_engine.struct_size = config->struct_size;
	fake_engine.log_fd = config->log_fd;
	fake_engine.chunk_bytes = config->chunk_bytes;
	fake_engine.driver_given = config->driver != NULL;
	fake_engine.lease_given = config->lease != NULL;
	fake_engine.identity_given = config->identity != NULL;
	copy(fake_engine.lease, sizeof(fake_engine.lease), config->lease);
	copy(fake_engine.identity, sizeof(fake_engine.identity), config->identity);

	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	if (getenv("FAKE_START_ALLOCATES") != NULL) {
		int (*hook)(void **, size_t) = (int (*)(void **, size_t))dlsym(RTLD_DEFAULT, "cudaMalloc");
		int (*unhook)(void *) = (int (*)(void *))dlsym(RTLD_DEFAULT, "cudaFree");

		if (hook(&fake_engine.allocated_in_start, 64) != 0 || unhook(fake_engine.allocated_in_start) != 0)
			return EBB_ERR_INTERNAL;
	}
	return told_to_fail("FAKE_START_CODE");
}

int ebb_engine_malloc(void **ptr, size_t size, int device, const ebb_engine_region *region, uint64_t margin)
{
	check_process();
	int code = told_to_fail_in("malloc: ", "FAKE_MALLOC_CODE");
	if (code != EBB_OK)
		return code;
	pthread_mutex_lock(&lock);
	int slot = fake_engine.mallocs++ % MAX_MANAGED;
	managed[slot] = true;
	fake_engine.size = size;
	fake_engine.device = device;
	fake_engine.margin = margin;
	fake_engine.backup = region->backup;
	fake_engine.cpu_mmap = region->cpu_mmap;
	copy(fake_engine.tag, sizeof(fake_engine.tag), region->tag);
	pthread_mutex_unlock(&lock);
	*ptr = (void *)(uintptr_t)(MANAGED_BASE + 4096u * (unsigned)slot);
	return EBB_OK;
}

int ebb_engine_free(void *ptr, int capture_active)
{
	uintptr_t slot = ((uintptr_t)ptr - MANAGED_BASE) / 4096;
	int code = EBB_ERR_NOT_MANAGED;

	check_process();
	pthread_mutex_lock(&lock);
	fake_engine.free_capture_active = capture_active;
	if (slot < MAX_MANAGED && managed[slot]) {
		code = capture_active ? EBB_ERR_CAPTURE : told_to_fail_in("free: ", "FAKE_FREE_CODE");
		if (code == EBB_OK) {
			managed[slot] = false;
			fake_engine.frees++;
		}
	}
	pthread_mutex_unlock(&lock);
	if (code == EBB_ERR_NOT_MANAGED)
		copy(error, sizeof(error), "not managed");
	if (code == EBB_ERR_CAPTURE)
		copy(error, sizeof(error), "a capture is under way");
	return code;
}

/* Inside the engine until told to go on, or shut down. */
static void wait_inside(void)
{
	if (getenv("FAKE_WAITS") == NULL)
		return;
	fake_engine.waiting++;
	while (fake_engine.shutdowns == 0 && !fake_engine.go_on)
		usleep(1000);
}

static int move(const char *const *tags, size_t ntags, const ebb_engine_settings *settings, ebb_result *result,
		const char *call, const char *code_variable)
{
	check_process();
	pthread_mutex_lock(&lock);
	fake_engine.ntags = ntags;
	for (size_t i = 0; i < ntags && i < 4; i++)
		copy(fake_engine.tags[i], sizeof(fake_engine.tags[i]), tags[i]);
	copy(fake_engine.disk_dir, sizeof(fake_engine.disk_dir), settings->disk_dir);
	fake_engine.retain_cpu_backup = settings->retain_cpu_backup;
	fake_engine.capture_active = settings->capture_active;
	fake_engine.unmanaged = settings->unmanaged;
	fake_engine.resume_wait_s = settings->resume_wait_s;
	pthread_mutex_unlock(&lock);
	int code = told_to_fail_in(call, code_variable);
	if (code == EBB_OK && result != NULL)
		result->allocations = 7;
	return code;
}

int ebb_engine_pause(const char *const *tags, size_t ntags, const ebb_engine_settings *settings, ebb_result *result)
{
	sigset_t mask;
	int state;

	pthread_sigmask(SIG_BLOCK, NULL, &mask);
	fake_engine.blocked_alarm = sigismember(&mask, SIGALRM);
	fake_engine.blocked_xfsz = sigismember(&mask, SIGXFSZ);
	fake_engine.blocked_term = sigismember(&mask, SIGTERM);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	fake_engine.cancel_disabled = state == PTHREAD_CANCEL_DISABLE;
	pthread_setcancelstate(state, &state);
	fake_engine.pauses++;
	wait_inside();
	return move(tags, ntags, settings, result, "pause: ", "FAKE_PAUSE_CODE");
}

int ebb_engine_resume(const char *const *tags, size_t ntags, const ebb_engine_settings *settings, ebb_result *result)
{
	fake_engine.resumes++;
	wait_inside();
	return move(tags, ntags, settings, result, "resume: ", "FAKE_RESUME_CODE");
}

int ebb_engine_request_pause(const char *const *tags, size_t ntags, double timeout_s,
			     const ebb_engine_settings *settings, ebb_result *result)
{
	fake_engine.requests++;
	fake_engine.request_timeout_s = timeout_s;
	return move(tags, ntags, settings, result, "request pause: ", "FAKE_REQUEST_CODE");
}

int ebb_engine_idle(int begin)
{
	check_process();
	switch (begin) {
	case 1:
		fake_engine.idle++;
		if (getenv("FAKE_IDLE_ENDS") != NULL) {
			unsetenv("FAKE_IDLE_ENDS");
			return ((int (*)(void))dlsym(RTLD_DEFAULT, "ebb_idle_end"))();
		}
		return EBB_OK;
	case 0:
		if (--fake_engine.idle >= 0)
			return EBB_OK;
		fake_engine.idle++;
		copy(error, sizeof(error), "nobody is idle");
		return EBB_ERR_STATE;
	default:
		fake_engine.safe_points++;
		return told_to_fail("FAKE_SAFE_POINT_CODE");
	}
}

int ebb_engine_read(const void *gpu, size_t n, void *buf, int capture_active)
{
	check_process();
	fake_engine.read_from = gpu;
	fake_engine.read_capture_active = capture_active;
	fake_engine.reads++;
	int code = told_to_fail("FAKE_READ_CODE");
	if (code == EBB_OK)
		memset(buf, 0x5a, n);
	return code;
}

int ebb_engine_backup_pointer(const void *gpu, uint64_t size, void **host)
{
	uintptr_t slot = ((uintptr_t)gpu - MANAGED_BASE) / 4096;

	check_process();
	int code = told_to_fail("FAKE_POINTER_CODE");
	if (code == EBB_OK && (slot >= MAX_MANAGED || !managed[slot])) {
		copy(error, sizeof(error), "backup pointer: not managed");
		return EBB_ERR_NOT_MANAGED;
	}
	if (code == EBB_OK)
		*host = (void *)(uintptr_t)(0xB0000000u + size);
	return code;
}

int ebb_engine_status(char *buf, size_t cap, size_t *need, const ebb_engine_unmanaged *classes, size_t nclasses)
{
	(void)classes;
	(void)nclasses;
	check_process();
	fake_engine.statuses++;
	int length = snprintf(buf, cap, "{\"fake\":true}");
	if (need != NULL)
		*need = (size_t)length;
	return EBB_OK;
}

size_t ebb_engine_last_error(char *buf, size_t cap)
{
	return (size_t)snprintf(buf, cap, "%s", error);
}

size_t ebb_engine_last_error_json(char *buf, size_t cap)
{
	return (size_t)snprintf(buf, cap, "{\"code\":99,\"fake\":\"%s\"}", error);
}

#ifndef FAKE_INCOMPLETE
void ebb_engine_shutdown(void)
{
	static const char text[] = "fake engine: shutdown\n";

	check_process();
	fake_engine.shutdowns++;
	if (getenv("FAKE_SAY_SHUTDOWN") != NULL)
		(void)!write(STDERR_FILENO, text, sizeof(text) - 1);
}
#endif
