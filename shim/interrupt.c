/*
 * interrupt.c: keeps what can interrupt a C thread at any instruction away from Go code.
 *
 * Go code runs on stacks of a few KiB that are not the thread's own. A signal handler without
 * SA_ONSTACK would run there and overflow them; Go adds the flag to handlers that exist when it
 * starts, not to later ones. A thread that is cancelled would unwind Go's frames. SIGXFSZ, which a
 * write beyond RLIMIT_FSIZE raises beside its error, would end the process.
 */
#include "shim.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

static bool needs_thread_stack(int number)
{
	struct sigaction action;

	if (sigaction(number, NULL, &action) != 0)
		return false;
	if (action.sa_flags & SA_ONSTACK)
		return false;
	return (action.sa_flags & SA_SIGINFO) != 0 || (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

/* Signals of faults are the thread's own; blocking them would end the process. */
static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};

static bool is_fault(int number)
{
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		if (faults[i] == number)
			return true;
	return false;
}

/* Go never blocks SIGPROF on its own threads. A handler of the host's that came after Go gets the
 * flag that Go gives to those before it; it changes nothing on threads without such a stack. */
static void give_profiling_a_stack(void)
{
	struct sigaction action;

	if (needs_thread_stack(SIGPROF) && sigaction(SIGPROF, NULL, &action) == 0) {
		action.sa_flags |= SA_ONSTACK;
		sigaction(SIGPROF, &action, NULL);
	}
}

void interrupts_hold(struct interrupts *before)
{
	sigset_t held;

	give_profiling_a_stack();

	sigemptyset(&held);
	sigaddset(&held, SIGXFSZ);
	for (int number = 1; number <= SIGRTMAX; number++)
		if (!is_fault(number) && needs_thread_stack(number))
			sigaddset(&held, number);
	pthread_sigmask(SIG_BLOCK, &held, &before->mask);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before->cancel);
	before->size_limit = true;
}

static void hold_all_but_faults(sigset_t *before)
{
	sigset_t held;

	sigfillset(&held);
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		sigdelset(&held, faults[i]);
	pthread_sigmask(SIG_BLOCK, &held, before);
}

void interrupts_hold_briefly(struct interrupts *before)
{
	hold_all_but_faults(&before->mask);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before->cancel);
	before->size_limit = false;
}

void interrupts_let_in(const struct interrupts *before)
{
	pthread_sigmask(SIG_SETMASK, &before->mask, NULL);
}

void interrupts_keep_out(void)
{
	hold_all_but_faults(NULL);
}

/* Those that by themselves end or stop a process. (So do real-time signals, but nobody sends one that is
 * not handled.) To ask for the handler of one costs a system call. */
void interrupts_wait(const struct interrupts *before)
{
	static const int ends_or_stops[] = {SIGHUP,  SIGINT,  SIGQUIT,   SIGUSR1, SIGUSR2, SIGPIPE, SIGALRM, SIGTERM, SIGSTKFLT,
					    SIGXCPU, SIGXFSZ, SIGVTALRM, SIGPROF, SIGIO,   SIGPWR,  SIGSYS,  SIGTSTP, SIGTTIN,
					    SIGTTOU};
	sigset_t let_through;

	sigemptyset(&let_through);
	for (size_t i = 0; i < sizeof(ends_or_stops) / sizeof(ends_or_stops[0]); i++)
		if (!sigismember(&before->mask, ends_or_stops[i]) && !needs_thread_stack(ends_or_stops[i]))
			sigaddset(&let_through, ends_or_stops[i]);
	pthread_sigmask(SIG_UNBLOCK, &let_through, NULL);
}

void interrupts_release(const struct interrupts *before)
{
	static const struct timespec at_once;
	sigset_t raised, size_limit;
	int ignored;

	/* One that a write of this call raised is answered by the write's error. */
	sigemptyset(&size_limit);
	sigaddset(&size_limit, SIGXFSZ);
	if (before->size_limit && !sigismember(&before->mask, SIGXFSZ) && sigpending(&raised) == 0 && sigismember(&raised, SIGXFSZ))
		sigtimedwait(&size_limit, NULL, &at_once);
	pthread_setcancelstate(before->cancel, &ignored);
	pthread_sigmask(SIG_SETMASK, &before->mask, NULL);
}

/* The threads that Go makes inherit the mask of the one that starts it. SIGURG is how Go stops a
 * thread of its own. */
void interrupts_hold_all(sigset_t *before)
{
	sigset_t held;

	sigfillset(&held);
	for (int number = 1; number <= SIGRTMAX; number++)
		if (is_fault(number))
			sigdelset(&held, number);
	sigdelset(&held, SIGURG);
	pthread_sigmask(SIG_BLOCK, &held, before);
}
