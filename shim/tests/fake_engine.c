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

/* Inside the engine until told to go on, or shut down. */
static void wait_inside(const char *variable)
{
	if (getenv(variable) == NULL)
		return;
	fake_engine.waiting++;
	while (fake_engine.shutdowns == 0 && !fake_engine.go_on)
		usleep(1000);
}

static void (*waits)(int32_t what); /* what start was given */

/* As a call of the memory's owner does, for a pause or for the device. */
static void owner_waits(void)
{
	sigset_t mask;

	if (getenv("FAKE_CALLS_WAIT") == NULL)
		return;
	int32_t how = getenv("FAKE_DRIVER_WAITS") != NULL ? EBB_ENGINE_WAITS_IN_DRIVER : EBB_ENGINE_WAITS;

	waits(how);
	pthread_sigmask(SIG_BLOCK, NULL, &mask);
	fake_engine.waiting_blocked_alarm = sigismember(&mask, SIGALRM);
	fake_engine.waiting_blocked_term = sigismember(&mask, SIGTERM);
	wait_inside("FAKE_CALLS_WAIT");
	if (how == EBB_ENGINE_WAITS_IN_DRIVER) {
		waits(EBB_ENGINE_WAITED_IN_DRIVER);
		pthread_sigmask(SIG_BLOCK, NULL, &mask);
		fake_engine.waited_blocked_alarm = sigismember(&mask, SIGALRM);
	}
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
	waits = config->waits;
	fake_engine.starts++;
	fake_engine.abi = config->abi;
	fake_engine.struct_size = config->struct_size;
	fake_engine.log_fd = config->log_fd;
	fake_engine.chunk_bytes = config->chunk_bytes;
	fake_engine.discard = config->discard;
	fake_engine.driver_given = config->driver != NULL;
	fake_engine.lease_given = config->lease != NULL;
	fake_engine.identity_given = config->identity != NULL;
	fake_engine.host_bytes = config->host_bytes;
	fake_engine.io_timeout_s = config->io_timeout_s;
	fake_engine.host_arena = config->host_arena;
	fake_engine.local_ranks = config->local_ranks;
	copy(fake_engine.disk_dirs, sizeof(fake_engine.disk_dirs), config->disk_dirs);
	copy(fake_engine.leases, sizeof(fake_engine.leases), config->leases);
	fake_engine.disk_quota = config->disk_quota;
	copy(fake_engine.file_faults, sizeof(fake_engine.file_faults), config->file_faults);
	copy(fake_engine.lease, sizeof(fake_engine.lease), config->lease);
	copy(fake_engine.identity, sizeof(fake_engine.identity), config->identity);
	copy(fake_engine.job, sizeof(fake_engine.job), config->job);
	copy(fake_engine.runtime_dir, sizeof(fake_engine.runtime_dir), config->runtime_dir);
	copy(fake_engine.xdg_runtime_dir, sizeof(fake_engine.xdg_runtime_dir), config->xdg_runtime_dir);
	copy(fake_engine.event_log, sizeof(fake_engine.event_log), config->event_log);
	fake_engine.log_json = config->log_json;
	fake_engine.calls = config->calls;
	fake_engine.descriptors = config->descriptors;

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
	if (getenv("FAKE_START_LOOKS_UP") != NULL) {
		void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

		fake_engine.looked_up = driver != NULL ? dlsym(driver, "cuMemCreate") : NULL;
	}
	if (getenv("FAKE_START_CALLS") != NULL) {
		int (*release)(uint64_t) = (int (*)(uint64_t))dlsym(RTLD_DEFAULT, "cuMemRelease");

		fake_engine.call_result = release((uint64_t)EBB_ENGINE_HANDLE << 48);
	}
	return told_to_fail("FAKE_START_CODE");
}

int ebb_engine_malloc(void **ptr, size_t size, int device, const ebb_engine_region *region, uint64_t margin)
{
	check_process();
	sigset_t mask;
	int code = told_to_fail_in("malloc: ", "FAKE_MALLOC_CODE");

	if (code != EBB_OK)
		return code;
	owner_waits();
	pthread_sigmask(SIG_BLOCK, NULL, &mask);
	fake_engine.malloc_blocked_alarm = sigismember(&mask, SIGALRM);
	fake_engine.malloc_blocked_segv = sigismember(&mask, SIGSEGV);
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
	owner_waits();
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


/* With the lock held. */
static void note_classes(const ebb_engine_unmanaged *classes, size_t n)
{
	fake_engine.nclasses = n;
	for (size_t i = 0; i < n && i < 8; i++) {
		copy(fake_engine.classes[i].name, sizeof(fake_engine.classes[i].name), classes[i].name);
		fake_engine.classes[i].bytes = classes[i].bytes;
		fake_engine.classes[i].count = classes[i].count;
	}
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
	fake_engine.ask = settings->ask;
	fake_engine.nunused = settings->nunused;
	for (size_t i = 0; i < settings->nunused && i < 2; i++)
		fake_engine.unused[i] = settings->unused[i];
	note_classes(settings->classes, settings->nclasses);
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
	wait_inside("FAKE_WAITS");
	return move(tags, ntags, settings, result, "pause: ", "FAKE_PAUSE_CODE");
}

int ebb_engine_resume(const char *const *tags, size_t ntags, const ebb_engine_settings *settings, ebb_result *result)
{
	fake_engine.resumes++;
	wait_inside("FAKE_WAITS");
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
	check_process();
	pthread_mutex_lock(&lock);
	note_classes(classes, nclasses);
	pthread_mutex_unlock(&lock);
	fake_engine.statuses++;
	const char *text = getenv("FAKE_STATUS");
	int length = snprintf(buf, cap, "%s", text != NULL ? text : "{\"fake\":true}");
	if (need != NULL)
		*need = (size_t)length;
	return EBB_OK;
}

int ebb_engine_pause_count(const char *tag, uint64_t *count)
{
	check_process();
	*count = strlen(tag);
	return told_to_fail("FAKE_COUNT_CODE");
}

/* ---- memory that is mapped by its owner ------------------------------------------------------- */

#define MAX_OBJECTS 64
#define HANDLE_BITS ((uint64_t)EBB_ENGINE_HANDLE << 48)

static int references[MAX_OBJECTS]; /* by number; guarded by lock */
static struct {
	uint64_t addr, size;
} mappings[MAX_OBJECTS];

static int vmm_fails(int *cu)
{
	check_process();
	owner_waits();
	*cu = getenv("FAKE_VMM_CU") != NULL ? atoi(getenv("FAKE_VMM_CU")) : 0;
	return told_to_fail("FAKE_VMM_CODE");
}

static bool is_object(uint64_t handle)
{
	uint64_t number = handle - HANDLE_BITS;

	return EBB_ENGINE_IS_HANDLE(handle) && number < MAX_OBJECTS && references[number] > 0;
}

/* A handle must be an object's; with the lock held. */
static int check_object(uint64_t handle, int *cu)
{
	if (is_object(handle))
		return EBB_OK;
	copy(error, sizeof(error), "no such handle");
	*cu = 1;
	return EBB_ERR_INVALID;
}

static bool is_mapped(uint64_t addr, uint64_t size)
{
	for (size_t i = 0; i < MAX_OBJECTS; i++)
		if (mappings[i].size > 0 && mappings[i].addr < addr + size && addr < mappings[i].addr + mappings[i].size)
			return true;
	return false;
}

int ebb_engine_vmm_create(uint64_t *handle, size_t size, const void *prop, uint64_t flags,
			  const ebb_engine_region *region, uint64_t margin, int *cu)
{
	int number = 1, code = vmm_fails(cu);

	(void)flags;
	if (code != EBB_OK)
		return code;
	if (((const int *)prop)[2] != 1)
		return EBB_ERR_NOT_MANAGED;
	pthread_mutex_lock(&lock);
	while (references[number] > 0)
		number++;
	references[number] = 1;
	*handle = HANDLE_BITS + (uint64_t)number;
	fake_engine.size = size;
	fake_engine.margin = margin;
	fake_engine.backup = region->backup;
	copy(fake_engine.tag, sizeof(fake_engine.tag), region->tag);
	fake_engine.creates++;
	pthread_mutex_unlock(&lock);
	return EBB_OK;
}

int ebb_engine_vmm_release(uint64_t handle, int *cu)
{
	int code = vmm_fails(cu);

	pthread_mutex_lock(&lock);
	if (code == EBB_OK && (code = check_object(handle, cu)) == EBB_OK) {
		references[handle - HANDLE_BITS]--;
		fake_engine.releases++;
	}
	pthread_mutex_unlock(&lock);
	return code;
}

int ebb_engine_vmm_map(uint64_t addr, size_t size, size_t offset, uint64_t handle, uint64_t flags, int *cu)
{
	int code = vmm_fails(cu);

	(void)offset;
	(void)flags;
	if (code != EBB_OK)
		return code;
	pthread_mutex_lock(&lock);
	if (is_mapped(addr, size)) {
		*cu = 1;
		code = EBB_ERR_INVALID;
	} else if (!EBB_ENGINE_IS_HANDLE(handle)) {
		fake_engine.foreign_maps++;
		code = EBB_ERR_NOT_MANAGED;
	} else if ((code = check_object(handle, cu)) == EBB_OK) {
		size_t i = 0;

		while (mappings[i].size > 0)
			i++;
		mappings[i].addr = addr;
		mappings[i].size = size;
		fake_engine.maps++;
	}
	pthread_mutex_unlock(&lock);
	return code;
}

int ebb_engine_vmm_unmap(uint64_t addr, size_t size, int *cu)
{
	int code = vmm_fails(cu);

	if (code != EBB_OK)
		return code;
	pthread_mutex_lock(&lock);
	code = is_mapped(addr, size) ? EBB_OK : EBB_ERR_NOT_MANAGED;
	for (size_t i = 0; i < MAX_OBJECTS; i++)
		if (mappings[i].size > 0 && mappings[i].addr >= addr && mappings[i].addr < addr + size)
			mappings[i].size = 0;
	fake_engine.unmaps += code == EBB_OK;
	pthread_mutex_unlock(&lock);
	return code;
}

static int of_address(uint64_t addr, uint64_t size, _Atomic int *count, int *cu)
{
	int code = vmm_fails(cu);

	if (code != EBB_OK)
		return code;
	pthread_mutex_lock(&lock);
	code = is_mapped(addr, size) ? EBB_OK : EBB_ERR_NOT_MANAGED;
	*count += code == EBB_OK;
	pthread_mutex_unlock(&lock);
	return code;
}

int ebb_engine_vmm_set_access(uint64_t addr, size_t size, const void *desc, size_t count, int *cu)
{
	(void)desc;
	(void)count;
	return of_address(addr, size, &fake_engine.set_accesses, cu);
}

int ebb_engine_vmm_get_access(uint64_t *flags, const void *location, uint64_t addr, int *cu)
{
	int code = of_address(addr, 1, &fake_engine.get_accesses, cu);

	(void)location;
	if (code == EBB_OK)
		*flags = 3;
	return code;
}

int ebb_engine_vmm_retain(uint64_t *handle, uint64_t addr, int *cu)
{
	int code = of_address(addr, 1, &fake_engine.retains, cu);

	if (code == EBB_OK) {
		pthread_mutex_lock(&lock);
		references[1]++; /* one for all */
		*handle = HANDLE_BITS + 1;
		pthread_mutex_unlock(&lock);
	}
	return code;
}

int ebb_engine_vmm_address_free(uint64_t addr, size_t size, int *cu)
{
	int code = of_address(addr, size, &fake_engine.address_frees, cu);

	if (code != EBB_OK)
		return code;
	*cu = 1;
	return EBB_ERR_INVALID;
}

static int of_handle(uint64_t handle, _Atomic int *count, int *cu)
{
	int code = vmm_fails(cu);

	pthread_mutex_lock(&lock);
	if (code == EBB_OK && (code = check_object(handle, cu)) == EBB_OK)
		++*count;
	pthread_mutex_unlock(&lock);
	return code;
}

int ebb_engine_vmm_export(void *shareable, uint64_t handle, int type, uint64_t flags, int *cu)
{
	(void)shareable;
	(void)type;
	(void)flags;
	return of_handle(handle, &fake_engine.exports, cu);
}

int ebb_engine_vmm_properties(void *prop, uint64_t handle, int *cu)
{
	(void)prop;
	return of_handle(handle, &fake_engine.properties, cu);
}

int ebb_engine_vmm_real(uint64_t *real, uint64_t handle, const char *why, int *cu)
{
	int code = of_handle(handle, &fake_engine.reals, cu);

	pthread_mutex_lock(&lock);
	copy(fake_engine.why, sizeof(fake_engine.why), why);
	pthread_mutex_unlock(&lock);
	if (code == EBB_OK)
		*real = FAKE_REAL_HANDLE;
	return code;
}

int ebb_engine_peer_access(int device, int peer, int on)
{
	check_process();
	owner_waits();
	pthread_mutex_lock(&lock);
	fake_engine.peer_calls++;
	fake_engine.peer_device = device;
	fake_engine.peer_peer = peer;
	fake_engine.peer_on = on;
	pthread_mutex_unlock(&lock);
	return told_to_fail("FAKE_PEER_CODE");
}

int ebb_engine_context_reset(int device, int step)
{
	check_process();
	fake_engine.reset_device = device;
	if (step == EBB_RESET_BEGINS) {
		int code = told_to_fail("FAKE_RESET_CODE");

		fake_engine.resets_begun += code == EBB_OK;
		return code;
	}
	++*(step == EBB_RESET_DONE ? &fake_engine.resets_done : &fake_engine.resets_failed);
	return EBB_OK;
}

/* ---- streamed state ------------------------------------------------------------------------------ */

static int state_call(uint64_t state)
{
	check_process();
	fake_engine.state_calls++;
	fake_engine.streamed.state = state;
	return told_to_fail("FAKE_STATE_CODE");
}

int ebb_engine_state_create(const char *name, const uint64_t *segment_bytes, size_t nsegments, int device,
			    const char *disk_dir, uint64_t *state)
{
	int code = state_call(0);

	copy(fake_engine.streamed.name, sizeof(fake_engine.streamed.name), name);
	copy(fake_engine.streamed.dir, sizeof(fake_engine.streamed.dir), disk_dir);
	for (size_t i = 0; i < nsegments && i < 2; i++)
		fake_engine.streamed.bytes[i] = segment_bytes[i];
	fake_engine.streamed.n = nsegments;
	fake_engine.streamed.device = device;
	if (code == EBB_OK)
		*state = 7;
	return code;
}

uint64_t ebb_engine_state_block(uint64_t state)
{
	state_call(state);
	return 4096;
}

int ebb_engine_state_read(uint64_t state, const ebb_state_io *ios, size_t n, uint64_t *ticket)
{
	int code = state_call(state);

	fake_engine.streamed.io = ios[0];
	fake_engine.streamed.n = n;
	*ticket = 8;
	return code;
}

int ebb_engine_state_write(uint64_t state, const ebb_state_io *ios, size_t n, void *stream, uint64_t *ticket)
{
	fake_engine.streamed.stream = stream;
	return ebb_engine_state_read(state, ios, n, ticket);
}

int ebb_engine_state_wait(uint64_t state, uint64_t ticket, ebb_state_done *done)
{
	int code = state_call(state);

	fake_engine.streamed.ticket = ticket;
	if (done != NULL)
		done->bytes = 9;
	return code;
}

int ebb_engine_state_write_host(uint64_t state, uint32_t segment, uint64_t offset, uint64_t bytes, const void *buf)
{
	int code = state_call(state);

	fake_engine.streamed.segment = segment;
	fake_engine.streamed.offset = offset;
	fake_engine.streamed.bytes[0] = bytes;
	fake_engine.streamed.buf = buf;
	return code;
}

int ebb_engine_state_read_host(uint64_t state, uint32_t segment, uint64_t offset, uint64_t bytes, void *buf)
{
	return ebb_engine_state_write_host(state, segment, offset, bytes, buf);
}

int ebb_engine_state_load(uint64_t state, const char *dir)
{
	int code = state_call(state);

	copy(fake_engine.streamed.dir, sizeof(fake_engine.streamed.dir), dir);
	return code;
}

int ebb_engine_state_save(uint64_t state, const char *dir, const char *extra)
{
	copy(fake_engine.streamed.extra, sizeof(fake_engine.streamed.extra), extra != NULL ? extra : "");
	return ebb_engine_state_load(state, dir);
}

int ebb_engine_state_close(uint64_t state)
{
	return state_call(state);
}

/* ---- errors ------------------------------------------------------------------------------------- */

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
