/*
 * guard.c: which process owns the engine.
 *
 * A forked child inherits the engine's memory but none of its threads: a call into Go would
 * hang there. The owner is known by its process id, and a fork marks the child as well: in a new
 * pid namespace a child may have its parent's number.
 */
#include "shim.h"

#include <pthread.h>
#include <unistd.h>

static _Atomic pid_t owner; /* 0: nobody yet; never changes afterwards */
static _Atomic bool in_child;

static void mark_child(void)
{
	in_child = true;
}

bool guard_claim(void)
{
	pid_t nobody = 0;

	if (!atomic_compare_exchange_strong(&owner, &nobody, getpid()))
		return false;
	pthread_atfork(NULL, NULL, mark_child);
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
