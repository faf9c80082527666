/*
 * engine.c: loads the engine library, once, at the first managed allocation.
 *
 * States: unclaimed -> loading -> ready or failed. The thread that claims the engine (guard.c)
 * loads it, holding no lock; the others wait for the outcome. load_lock guards only that wait.
 */
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* A thread that runs a library constructor holds the loader's lock, which the loading thread
 * needs: its wait would never end, so each wait does. Loading takes milliseconds. */
#define LOAD_WAIT_S 60

struct engine engine;

static _Atomic int outcome = ENGINE_ABSENT; /* ENGINE_READY or ENGINE_FAILED once decided */
static char *failure;                       /* why it is ENGINE_FAILED; set before outcome */

/* The exit of the process has begun. What other threads do meanwhile fails or not, and neither may
 * be heard of or change the exit status. */
static _Atomic bool exiting;

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t load_done = PTHREAD_COND_INITIALIZER;

enum engine_state engine_state(void)
{
	if (guard_forked())
		return ENGINE_FORKED;
	if (guard_first_copy() != NULL)
		return ENGINE_FAILED;
	enum engine_state state = (enum engine_state)atomic_load(&outcome);
	return state == ENGINE_READY && exiting ? ENGINE_EXITING : state;
}

static _Atomic uint64_t begun, ended;

uint64_t engine_calls_begun(void)
{
	return begun;
}

uint64_t engine_calls_ended(void)
{
	return ended;
}

static void enter(void (*hold)(struct interrupts *))
{
	struct thread *t = this_thread();
	int depth = t->inside++;

	begun++;
	if (depth == 0) {
		hold(&t->before);
	} else if (t->open) { /* from a signal handler, while the engine waits in the driver */
		struct interrupts open;

		hold(&open);
		t->opened = open;
		t->open_depth = depth;
		t->open = false;
	}
}

void engine_enter(void)
{
	enter(interrupts_hold);
}

void engine_enter_briefly(void)
{
	enter(interrupts_hold_briefly);
}

/* The engine says on this thread how its call waits. */
static void call_waits(int32_t what)
{
	struct thread *t = this_thread();

	if (t->inside == 0 || t->before.size_limit) /* not entered briefly */
		return;
	switch (what) {
	case EBB_ENGINE_WAITS:
		interrupts_wait(&t->before);
		break;
	case EBB_ENGINE_WAITS_IN_DRIVER:
		t->open = true;
		interrupts_let_in(&t->before);
		break;
	case EBB_ENGINE_WAITED_IN_DRIVER:
		interrupts_keep_out();
		t->open = false;
		break;
	}
}

int engine_leave(int code)
{
	if (code != EBB_OK && exiting)
		code = engine_refuse(ENGINE_EXITING);
	else if (code != EBB_OK)
		fail_as_engine(code);
	struct thread *t = this_thread();

	ended++;
	if (--t->inside > 0 && t->inside == t->open_depth) {
		struct interrupts opened = t->opened;

		t->open_depth = 0;
		t->open = true;
		interrupts_release(&opened);
	} else if (t->inside == 0) {
		struct interrupts before = t->before; /* a handler that runs now may enter the engine itself */
		interrupts_release(&before);
	}
	return code;
}

int engine_refuse(enum engine_state state)
{
	if (state == ENGINE_FORKED)
		return fail(EBB_ERR_FORKED,
			    "process %d was forked from process %d, which alone can pause and resume its memory",
			    (int)getpid(), (int)guard_owner());
	if (state == ENGINE_EXITING)
		return fail(EBB_ERR_STATE, "the process is exiting");
	if (guard_first_copy() != NULL)
		return fail(EBB_ERR_NOT_LOADED,
			    "this is not the process's first copy of libebb.so, which is %s: call that one",
			    guard_first_copy());
	return fail(EBB_ERR_NOT_LOADED, "%s", failure != NULL ? failure : "the engine is not loaded");
}

/* ---- loading -------------------------------------------------------------------------------- */

static bool give_up(const char *format, ...) PRINTF_LIKE(1, 2);

static bool give_up(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	if (vasprintf(&failure, format, arguments) < 0)
		failure = NULL;
	va_end(arguments);
	return false;
}

/* The path of this library with links resolved. False: it cannot be told. */
static bool own_path(char path[PATH_MAX])
{
	Dl_info self;

	return dladdr((void *)&engine, &self) != 0 && self.dli_fname != NULL &&
	       realpath(self.dli_fname, path) != NULL;
}

/* Where the engine library is: EBB_ENGINE, else beside this library. */
static bool engine_path(char path[PATH_MAX])
{
	static const char name[] = "libebb-engine.so";
	const char *given = settings_env("EBB_ENGINE");

	if (given != NULL)
		return snprintf(path, PATH_MAX, "%s", given) < PATH_MAX;
	if (!own_path(path))
		return false;
	char *file = strrchr(path, '/') + 1;
	if ((size_t)(path + PATH_MAX - file) < sizeof(name))
		return false;
	memcpy(file, name, sizeof(name));
	return true;
}

static bool find_functions(void *library, const char *path)
{
	const struct {
		const char *name;
		void **where;
	} functions[] = {
		{"ebb_engine_version", (void **)&engine.version},
		{"ebb_engine_start", (void **)&engine.start},
		{"ebb_engine_malloc", (void **)&engine.malloc},
		{"ebb_engine_free", (void **)&engine.free},
		{"ebb_engine_pause", (void **)&engine.pause},
		{"ebb_engine_resume", (void **)&engine.resume},
		{"ebb_engine_backup_pointer", (void **)&engine.backup_pointer},
		{"ebb_engine_status", (void **)&engine.status},
		{"ebb_engine_pause_count", (void **)&engine.pause_count},
		{"ebb_engine_last_error", (void **)&engine.last_error},
		{"ebb_engine_last_error_json", (void **)&engine.last_error_json},
		{"ebb_engine_read", (void **)&engine.read},
		{"ebb_engine_idle", (void **)&engine.idle},
		{"ebb_engine_request_pause", (void **)&engine.request_pause},
		{"ebb_engine_vmm_create", (void **)&engine.vmm_create},
		{"ebb_engine_vmm_release", (void **)&engine.vmm_release},
		{"ebb_engine_vmm_map", (void **)&engine.vmm_map},
		{"ebb_engine_vmm_unmap", (void **)&engine.vmm_unmap},
		{"ebb_engine_vmm_set_access", (void **)&engine.vmm_set_access},
		{"ebb_engine_vmm_get_access", (void **)&engine.vmm_get_access},
		{"ebb_engine_vmm_retain", (void **)&engine.vmm_retain},
		{"ebb_engine_vmm_address_free", (void **)&engine.vmm_address_free},
		{"ebb_engine_vmm_export", (void **)&engine.vmm_export},
		{"ebb_engine_vmm_properties", (void **)&engine.vmm_properties},
		{"ebb_engine_vmm_real", (void **)&engine.vmm_real},
		{"ebb_engine_peer_access", (void **)&engine.peer_access},
		{"ebb_engine_context_reset", (void **)&engine.context_reset},
		{"ebb_engine_state_create", (void **)&engine.state_create},
		{"ebb_engine_state_block", (void **)&engine.state_block},
		{"ebb_engine_state_read", (void **)&engine.state_read},
		{"ebb_engine_state_write", (void **)&engine.state_write},
		{"ebb_engine_state_wait", (void **)&engine.state_wait},
		{"ebb_engine_state_read_host", (void **)&engine.state_read_host},
		{"ebb_engine_state_write_host", (void **)&engine.state_write_host},
		{"ebb_engine_state_save", (void **)&engine.state_save},
		{"ebb_engine_state_load", (void **)&engine.state_load},
		{"ebb_engine_state_close", (void **)&engine.state_close},
		{"ebb_engine_shutdown", (void **)&engine.shutdown},
	};

	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		*functions[i].where = loader_dlsym(library, functions[i].name);
		if (*functions[i].where == NULL)
			return give_up("engine library %s has no %s: it is not that of libebb.so %s", path,
				       functions[i].name, EBB_VERSION);
	}
	return true;
}

static bool check_version(const char *path)
{
	char *rest;
	const char *version = engine.version();
	unsigned long abi = strtoul(version, &rest, 10);

	if (abi == EBB_ENGINE_ABI)
		return true;
	return give_up("engine library %s has ABI %lu (version%s), libebb.so needs ABI %u (version %s): "
		       "install both from one build",
		       path, abi, rest, EBB_ENGINE_ABI, EBB_VERSION);
}

/* "role=actor cell=0 rank=3", as far as known; empty when nothing is. */
static void describe_rank(char *text, size_t cap)
{
	static const struct {
		const char *key, *variable;
	} parts[] = {{"role", "EBB_ROLE"}, {"cell", "EBB_CELL"}, {"rank", "EBB_RANK"}};
	size_t length = 0;

	text[0] = '\0';
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		const char *value = settings_env(parts[i].variable);

		if (value == NULL || length >= cap)
			continue;
		length += (size_t)snprintf(text + length, cap - length, "%s%s=%s", length > 0 ? " " : "",
					   parts[i].key, value);
	}
}

static bool start(const char *path)
{
	char identity[256];
	/* The engine logs to a descriptor of its own: the host may close or replace 2, and Go ends
	 * the process when a write to 1 or 2 meets a broken pipe. -1 when stderr is closed. */
	int log_fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);

	describe_rank(identity, sizeof(identity));
	ebb_engine_config config = {
		.abi = EBB_ENGINE_ABI,
		.struct_size = sizeof(config),
		.log_fd = log_fd,
		.discard = settings()->discard,
		.chunk_bytes = settings()->chunk_bytes,
		.lease = settings_env("EBB_LEASE"),
		.identity = identity[0] != '\0' ? identity : NULL,
		.host_bytes = settings()->host_bytes,
		.host_arena = settings()->host_arena,
		.local_ranks = settings()->local_ranks,
		.disk_dirs = settings_env("EBB_DISK_DIRS"),
		.leases = settings_env("EBB_DISK_LEASES"),
		.disk_quota = settings()->disk_quota,
		.io_timeout_s = settings()->io_timeout_s,
		.file_faults = settings_env("EBB_FAULT_FILES"),
		.waits = call_waits,
		.job = settings_env("EBB_JOB"),
		.runtime_dir = settings_env("EBB_RUNTIME_DIR"),
		.xdg_runtime_dir = settings_env("XDG_RUNTIME_DIR"),
		.event_log = settings_env("EBB_EVENT_LOG"),
		.log_json = log_is_json,
		.calls = settings()->control ? &control_calls : NULL,
		.descriptors = control_descriptors,
		.state_dirs = settings_env("EBB_STATE_DIRS"),
		.state_leases = settings_env("EBB_STATE_LEASES"),
		.state_chunk_bytes = settings()->state_chunk_bytes,
	};
	int code = engine.start(&config);
	if (code == EBB_OK)
		return true;

	char reason[1024] = "";
	engine.last_error(reason, sizeof(reason));
	if (log_fd >= 0)
		close(log_fd);
	return give_up("engine library %s did not start: error %d: %s", path, code, reason);
}

/* Where the engine library lies in memory; nowhere until it is loaded. Every call of a hook asks, which
 * must not wait for the loader's lock. */
static _Atomic uintptr_t engine_begin, engine_size;

bool engine_contains(const void *code)
{
	return (uintptr_t)code - engine_begin < engine_size;
}

/* Of the object around the engine's functions. */
static int note_place(struct dl_phdr_info *object, size_t size, void *unused)
{
	uintptr_t begin = UINTPTR_MAX, end = 0, inside = (uintptr_t)engine.version;

	(void)size;
	(void)unused;
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[i];
		uintptr_t from = object->dlpi_addr + part->p_vaddr, to = from + part->p_memsz;

		if (part->p_type != PT_LOAD)
			continue;
		begin = from < begin ? from : begin;
		end = to > end ? to : end;
	}
	if (inside < begin || inside >= end)
		return 0;
	engine_begin = begin;
	engine_size = end - begin;
	return 1;
}

static bool load(void)
{
	char path[PATH_MAX];

	if (!engine_path(path))
		return give_up("cannot tell where the engine library is: set EBB_ENGINE to its path");
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (library == NULL)
		return give_up("cannot load the engine library %s for libebb.so %s: %s: put the one of the "
			       "same version beside libebb.so, or set EBB_ENGINE to its path",
			       path, EBB_VERSION, dlerror());
	if (!find_functions(library, path) || !check_version(path))
		return false;
	dl_iterate_phdr(note_place, NULL);
	return start(path);
}

/* Go raises the soft limit of open files for itself while it starts. The host and its children
 * (select, code that closes every possible descriptor) must see what they had. */
static bool load_keeping_limits(void)
{
	struct rlimit before, now;
	bool known = getrlimit(RLIMIT_NOFILE, &before) == 0;
	sigset_t mask;

	interrupts_hold_all(&mask);
	bool loaded = load();
	pthread_sigmask(SIG_SETMASK, &mask, NULL);

	if (known && getrlimit(RLIMIT_NOFILE, &now) == 0 && now.rlim_cur != before.rlim_cur) {
		now.rlim_cur = before.rlim_cur;
		setrlimit(RLIMIT_NOFILE, &now);
	}
	return loaded;
}

void engine_shutdown(void)
{
	/* In a forked child the engine is not ours. A signal handler that interrupted an engine call on
	 * this thread and calls exit cannot enter it again: the files stay until the rank's supervisor,
	 * or whoever cleans the directory next, removes them. */
	bool usable = engine_state() == ENGINE_READY && this_thread()->inside == 0;

	exiting = true;
	if (!usable)
		return;
	engine_enter();
	engine.shutdown();
	engine_leave(EBB_OK);
}

static void load_as_owner(void)
{
	/* Whatever loading calls back into the hooks on this thread passes to the real runtime. */
	engine_enter();
	bool loaded = load_keeping_limits();
	if (loaded)
		idle_hand_over();
	engine_leave(EBB_OK);

	if (loaded)
		atexit(engine_shutdown);
	else
		log_line("%s", failure != NULL ? failure : "cannot load the engine library: no memory");

	pthread_mutex_lock(&load_lock);
	outcome = loaded ? ENGINE_READY : ENGINE_FAILED;
	pthread_cond_broadcast(&load_done);
	pthread_mutex_unlock(&load_lock);
	/* After the outcome, so that what another thread notes meanwhile is told by it or by us. */
	if (loaded)
		peer_hand_over();
}

static enum engine_state wait_for_owner(void)
{
	struct timespec deadline;
	int rc = 0;

	clock_gettime(CLOCK_MONOTONIC, &deadline);
	deadline.tv_sec += LOAD_WAIT_S;
	pthread_mutex_lock(&load_lock);
	while (outcome == ENGINE_ABSENT && rc == 0)
		rc = pthread_cond_clockwait(&load_done, &load_lock, CLOCK_MONOTONIC, &deadline);
	enum engine_state state = (enum engine_state)atomic_load(&outcome);
	pthread_mutex_unlock(&load_lock);

	if (state == ENGINE_ABSENT) {
		log_line("another thread has been loading the engine library for %d seconds; is managed memory "
			 "allocated in a library's constructor?",
			 LOAD_WAIT_S);
		state = ENGINE_FAILED;
	}
	return state;
}

enum engine_state engine_load(void)
{
	if (guard_first_copy() == NULL && guard_claim())
		load_as_owner();
	enum engine_state state = engine_state();
	return state == ENGINE_ABSENT ? wait_for_owner() : state;
}
