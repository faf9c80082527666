/*
 * idle.c: safe points, at which a pause asked for by another thread may take place.
 *
 * The engine keeps the count of idle sections. Sections begun before there is an engine are counted
 * here and handed over when it is loaded; the count and the hand-over are one word, so that a
 * section that begins or ends meanwhile is counted exactly once.
 */
#include "shim.h"

#include <pthread.h>

enum { idle_ends = 0, idle_begins = 1, safe_point = -1 }; /* arguments of engine.idle */

#define HANDED_OVER (-1)
static _Atomic int early; /* idle sections open, before the engine counts them; or HANDED_OVER */

/* Of the threads only the one that forked is in the child, and so only its idle sections. */
static void count_own(void)
{
	int own = this_thread()->idle;

	if (early != HANDED_OVER)
		early = own > 0 ? own : 0; /* a thread may have ended what another began */
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, count_own);
}

/* Adds change to the early count, which does not go below zero. False: it has no say (any more),
 * or it would go below. *count is what it was. */
static bool change_early(int change, int *count)
{
	static pthread_once_t watching = PTHREAD_ONCE_INIT;

	pthread_once(&watching, watch_forks);
	*count = early;
	do {
		if (*count == HANDED_OVER || *count + change < 0)
			return false;
	} while (!atomic_compare_exchange_weak(&early, count, *count + change));
	this_thread()->idle += change;
	return true;
}

void idle_hand_over(void)
{
	int given = 0, now = early;

	/* The engine's count follows ours until ours has no say any more. An end does not wait here:
	 * nobody can have asked for a pause yet. */
	do {
		for (; given < now; given++)
			engine.idle(idle_begins);
		for (; given > now; given--)
			engine.idle(idle_ends);
	} while (!atomic_compare_exchange_strong(&early, &now, HANDED_OVER));
}

static int engine_idle(int what)
{
	if (engine_state() == ENGINE_EXITING)
		return engine_refuse(ENGINE_EXITING);
	engine_enter();
	return engine_leave(engine.idle(what));
}

EXPORT int ebb_idle_begin(void)
{
	int count;

	if (guard_forked())
		return engine_refuse(ENGINE_FORKED);
	return change_early(1, &count) ? EBB_OK : engine_idle(idle_begins);
}

EXPORT int ebb_idle_end(void)
{
	int count;

	if (guard_forked())
		return engine_refuse(ENGINE_FORKED);
	if (change_early(-1, &count))
		return EBB_OK;
	if (count == HANDED_OVER)
		return engine_idle(idle_ends);
	return fail(EBB_ERR_STATE, "no idle section was begun");
}

EXPORT int ebb_safe_point(void)
{
	enum engine_state state = engine_state();

	if (state == ENGINE_FORKED || state == ENGINE_EXITING)
		return engine_refuse(state);
	return state == ENGINE_READY ? engine_idle(safe_point) : EBB_OK; /* without an engine nobody asks */
}
