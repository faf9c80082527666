/* The gate of every call: counts, injected faults, and the refusals all calls share. */
#include "internal.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What can be counted and made to fail: driver calls, runtime calls, executed operations; in this order. */
static const char *const names[] = {
#define CALL(symbol, name, since) #symbol,
#include "calls.def"
#undef CALL
#define RUNTIME_CALL(name) #name,
#include "runtime_calls.def"
#undef RUNTIME_CALL
	"copy", "memset", "kernel",
};
/* The name without its version, so that "cuMemAlloc" means cuMemAlloc_v2 too. */
static const char *const base_names[] = {
#define CALL(symbol, name, since) #name,
#include "calls.def"
#undef CALL
};

enum { NNAMES = sizeof names / sizeof *names, FIRST_OP = NNAMES - SG_OP_FAULTS, MAX_FAULTS = 64 };

static atomic_llong counts[NNAMES];

struct fault {
	char call[64];
	uint64_t from, to; /* occurrences, counted from 1 */
	uint64_t seen;
	CUresult error;
	int signal; /* in place of an error; 0: none */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fault faults[MAX_FAULTS];
static int nfaults;
static bool loaded;	   /* the environment was read, or a test has spoken */
static atomic_bool active; /* so that a call without faults takes no lock */

static bool names_call(const char *spec, int id)
{
	return !strcmp(spec, names[id]) || (id < SG_DRIVER_CALLS && !strcmp(spec, base_names[id]));
}

static bool known_call(const char *spec)
{
	for (int i = 0; i < NNAMES; i++)
		if (names_call(spec, i))
			return true;
	return false;
}

static int signal_by_name(const char *s)
{
	return !strcmp(s, "SIGSTOP") ? SIGSTOP : !strcmp(s, "SIGKILL") ? SIGKILL : !strcmp(s, "SIGTERM") ? SIGTERM : 0;
}

static bool parse_error(const char *s, struct fault *f)
{
	char *end;
	long n = strtol(s, &end, 10);
	if (end != s && *end == 0) {
		f->error = n;
		return n > 0 && n < 1000;
	}
	f->signal = signal_by_name(s);
	if (f->signal)
		return true;
	f->error = sg_error_by_name(s);
	return f->error > 0 && f->error <= CUDA_ERROR_UNKNOWN;
}

static bool parse_occurrence(const char *s, struct fault *f)
{
	char *end;
	if (!strcmp(s, "*")) {
		f->from = 1;
		f->to = UINT64_MAX;
		return true;
	}
	f->from = f->to = strtoull(s, &end, 10);
	if (end == s || f->from == 0)
		return false;
	if (!strcmp(end, "+")) {
		f->to = UINT64_MAX;
		return true;
	}
	return *end == 0;
}

/* CALL:OCCURRENCE:ERROR; writes into the text. */
static bool parse_one(char *text, struct fault *f)
{
	char *save, *call = strtok_r(text, ":", &save), *occ = strtok_r(NULL, ":", &save),
		    *err = strtok_r(NULL, ":", &save);
	memset(f, 0, sizeof *f);
	if (!call || !occ || !err || strlen(call) >= sizeof f->call || !known_call(call))
		return false;
	strcpy(f->call, call);
	return parse_occurrence(occ, f) && parse_error(err, f);
}

/* Needs lock. */
static int load(const char *spec)
{
	struct fault parsed[MAX_FAULTS];
	int n = 0, result = 0;
	char *copy = strdup(spec ? spec : ""), *save;
	if (!copy)
		return -1;
	for (char *one = strtok_r(copy, ",", &save); one; one = strtok_r(NULL, ",", &save))
		if (n == MAX_FAULTS || !parse_one(one, &parsed[n++])) {
			result = -1;
			break;
		}
	free(copy);
	if (result)
		return result;
	memcpy(faults, parsed, n * sizeof *parsed);
	nfaults = n;
	loaded = true;
	atomic_store(&active, n > 0);
	return 0;
}

int softgpu_set_fault(const char *spec)
{
	pthread_mutex_lock(&lock);
	int result = load(spec);
	pthread_mutex_unlock(&lock);
	return result;
}

int64_t softgpu_call_count(const char *call)
{
	int64_t sum = 0;
	if (!known_call(call))
		return -1;
	for (int i = 0; i < NNAMES; i++)
		if (names_call(call, i))
			sum += atomic_load(&counts[i]);
	return sum;
}

/* The first call of the process reads SOFTGPU_FAULT, so that cuInit itself can be made to fail. */
static void load_environment(void)
{
	pthread_mutex_lock(&lock);
	if (!loaded) {
		const char *spec = getenv("SOFTGPU_FAULT");
		if (spec && load(spec))
			sg_complain("SOFTGPU_FAULT: cannot read \"%s\"; want CALL:OCCURRENCE:ERROR[,...]", spec);
		loaded = true;
	}
	pthread_mutex_unlock(&lock);
}

/* To this thread, so that what cannot be blocked takes effect here; but others to the process, since the
 * thread may block them. */
static void send_signal(int signal)
{
	if (signal == SIGTERM)
		kill(getpid(), signal);
	else if (signal == SIGSTOP)
		sg_node_stop();
	else
		raise(signal);
}

static CUresult apply(int id)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	CUresult error = CUDA_SUCCESS;
	int signal = 0;
	pthread_once(&once, load_environment);
	atomic_fetch_add_explicit(&counts[id], 1, memory_order_relaxed);
	if (!atomic_load(&active))
		return CUDA_SUCCESS;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < nfaults; i++) {
		struct fault *f = &faults[i];
		if (!names_call(f->call, id))
			continue;
		f->seen++;
		if (!error && !signal && f->seen >= f->from && f->seen <= f->to) {
			error = f->error;
			signal = f->signal;
		}
	}
	pthread_mutex_unlock(&lock);
	if (signal)
		send_signal(signal);
	return error;
}

static CUresult check_ctx(void)
{
	struct CUctx_st *ctx = sg_current();
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	CUresult sticky = atomic_load(&ctx->sticky);
	if (!atomic_load(&ctx->alive))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return sticky;
}

CUresult sg_gate(enum sg_call call, enum sg_need need)
{
	CUresult result = CUDA_SUCCESS;
	if (need != NEED_NOTHING)
		result = sg_in_stream ? CUDA_ERROR_NOT_PERMITTED : sg_usable();
	if (!result)
		result = apply(call);
	if (!result && need == NEED_CTX)
		result = check_ctx();
	return result;
}

CUresult sg_fault_op(enum sg_op_fault kind)
{
	return apply(FIRST_OP + kind);
}

CUresult softgpu_runtime_call(const char *name)
{
	for (int i = SG_DRIVER_CALLS; i < FIRST_OP; i++)
		if (!strcmp(name, names[i]))
			return apply(i);
	return CUDA_SUCCESS;
}
