/*
 * guard.c: which process and which library own the engine.
 *
 * A forked child inherits the engine's memory but none of its threads: a call into Go would
 * hang there. The owner is known by its process id, and a fork marks the child as well: in a new
 * pid namespace a child may have its parent's number.
 *
 * Two copies of this library, say of two installations, would each have a region and an engine of
 * their own: what one manages the other could not pause. The first in the loader's order does the
 * work. (One file loaded by several names is one library; the loader sees to that.) Another library
 * with the functions of torch_memory_saver, that package's own, is taken for a copy.
 */
#include "shim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

static _Atomic pid_t owner; /* 0: nobody yet; never changes afterwards */
static _Atomic bool in_child;

/* A fork copies descriptors and memory one after the other, while other threads go on. No call had
 * a file open at either moment if all that had begun by the later one had ended before. */
static _Thread_local uint64_t ended_before_fork;

static void before_fork(void)
{
	ended_before_fork = engine_calls_ended();
}

static void mark_child(void)
{
	if (!in_child && engine_calls_begun() != ended_before_fork)
		close_inherited_backups();
	if (!in_child)
		close_inherited_sockets();
	in_child = true;
}

bool guard_claim(void)
{
	pid_t nobody = 0;

	if (!atomic_compare_exchange_strong(&owner, &nobody, getpid()))
		return false;
	pthread_atfork(before_fork, NULL, mark_child);
	return true;
}

bool guard_forked(void)
{
	return owner != 0 && (in_child || owner != getpid());
}

pid_t guard_owner(void)
{
	return owner;
}

/* Null: not looked for yet; own_copy: this one; else another's path. Looked for without a lock, by
 * every thread that comes before it is known: the look-up takes the loader's lock. */
static _Atomic(const char *) first_copy;
static const char own_copy[] = "";

/* Whether that function is another file's; which is then told in *its, beside this one's. */
static bool is_elsewhere(const char *function, Dl_info *its, Dl_info *self)
{
	void *first = loader_dlsym(RTLD_DEFAULT, function);

	return first != NULL && dladdr(first, its) != 0 && dladdr((void *)&owner, self) != 0 &&
	       its->dli_fbase != self->dli_fbase;
}

static const char *find_first_copy(void)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	Dl_info its, self;

	if (is_elsewhere("ebb_version", &its, &self)) {
		if (!atomic_flag_test_and_set(&said))
			log_line("%s and %s are two copies of libebb.so in one process, and only the first manages "
				 "memory: take one of them for LD_PRELOAD and for the program",
				 its.dli_fname, self.dli_fname);
	} else if (is_elsewhere("tms_pause", &its, &self)) {
		if (!atomic_flag_test_and_set(&said))
			log_line("%s and %s both park memory in one process, and only the first manages it: take one of them "
				 "for LD_PRELOAD and for the program",
				 its.dli_fname, self.dli_fname);
	} else {
		return own_copy;
	}
	return its.dli_fname; /* stays: such a library is not unloaded */
}

const char *guard_first_copy(void)
{
	const char *copy = first_copy;

	if (copy == NULL)
		first_copy = copy = find_first_copy();
	return copy != own_copy ? copy : NULL;
}
