/* How the process ends, and what can go wrong on stderr without ending it. */
#include "doors.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern struct fake_cudart fake_cudart_13;

static void normal_exit(void)
{
	managed_malloc(1);
	exit(5);
}

static void immediate_exit(void)
{
	managed_malloc(1);
	_exit(5);
}

static void exit_without_engine(void)
{
	tms_pause(NULL);
	exit(5);
}

static void exit_after_failed_start(void)
{
	EXPECT(tms_torch_malloc(1, 0, NULL) == NULL);
	EXPECT(engine_seen()->starts == 1);
	exit(5);
}

static void pause_goes_on(void)
{
	managed_malloc(1);
	EXPECT(tms_pause("weights") == EBB_ERR_NO_SPACE);
	EXPECT(engine_seen()->ntags == 1 && strcmp(engine_seen()->tags[0], "weights") == 0);
	exit(5);
}

static void pause_exits(void)
{
	managed_malloc(1);
	tms_pause(NULL);
	EXPECT(!"reached");
}

static void pause_in_part_goes_on(void)
{
	managed_malloc(1);
	EXPECT(tms_pause(NULL) == EBB_ERR_PARTIAL);
	exit(5);
}

/* ---- exit while the engine is at work ---------------------------------------------------------- */

static pthread_t other;
static int code_of_other;

/* Runs in an exit handler that comes after the library's own, so that what the other thread does
 * once its engine call fails is still seen. */
static void wait_for_other(void)
{
	EXPECT(pthread_join(other, NULL) == 0);
	EXPECT(code_of_other == EBB_ERR_STATE);
}

static void *pause_in_thread(void *unused)
{
	code_of_other = tms_pause(NULL);
	return unused;
}

static void *resume_in_thread(void *unused)
{
	code_of_other = tms_resume(NULL);
	return unused;
}

static void *ebb_pause_in_thread(void *unused)
{
	char text[64];

	code_of_other = ebb_pause(NULL, 0, NULL);
	EXPECT(ebb_last_error(text, sizeof(text)) > 0 && strcmp(text, "the process is exiting") == 0);
	return unused;
}

static void exit_beside(void *(*body)(void *))
{
	EXPECT(atexit(wait_for_other) == 0);
	managed_malloc(1);
	EXPECT(pthread_create(&other, NULL, body, NULL) == 0);
	while (engine_seen()->waiting == 0)
		sched_yield();
	exit(5);
}

static void exit_beside_a_pause(void)
{
	exit_beside(pause_in_thread);
}

static void exit_beside_a_resume(void)
{
	exit_beside(resume_in_thread);
}

static void exit_beside_an_ebb_pause(void)
{
	exit_beside(ebb_pause_in_thread);
}

static void *managed, *unmanaged;

static void call_everything(void)
{
	char text[64];
	void *ptr;

	EXPECT(engine_seen()->shutdowns == 1);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_ERR_STATE);
	EXPECT(ebb_last_error(text, sizeof(text)) > 0 && strcmp(text, "the process is exiting") == 0);
	EXPECT(ebb_resume(NULL, 0, 1, NULL) == EBB_ERR_STATE && ebb_request_pause(NULL, 0, 1, NULL) == EBB_ERR_STATE);
	EXPECT(ebb_status(text, sizeof(text), NULL) == EBB_ERR_STATE && ebb_read(managed, 1, text) == EBB_ERR_STATE);
	EXPECT(ebb_idle_begin() == EBB_ERR_STATE && ebb_idle_end() == EBB_ERR_STATE);
	EXPECT(ebb_safe_point() == EBB_ERR_STATE);
	EXPECT(tms_pause(NULL) == EBB_ERR_STATE && tms_resume(NULL) == EBB_ERR_STATE);
	EXPECT(tms_get_cpu_backup_pointer(managed, 1) == NULL);
	EXPECT(engine_seen()->pauses == 0 && engine_seen()->resumes == 0 && engine_seen()->reads == 0);

	tms_set_interesting_region(true);
	EXPECT(cudaMalloc(&ptr, 64) == cudaSuccess && cudaFree(ptr) == cudaSuccess);
	EXPECT(engine_seen()->mallocs == 1 && fake_cudart_13.last_freed == ptr);
	EXPECT(cudaFree(managed) == cudaSuccess && engine_seen()->frees == 0 && fake_cudart_13.last_freed == ptr);
	EXPECT(cudaFree(unmanaged) == cudaSuccess && fake_cudart_13.last_freed == unmanaged);
}

static void calls_after_the_exit_began(void)
{
	EXPECT(atexit(call_everything) == 0);
	EXPECT(cudaMalloc(&unmanaged, 64) == cudaSuccess);
	managed = managed_malloc(64);
	exit(5);
}

static void exit_at_alarm(int unused)
{
	(void)unused;
	exit(5);
}

static void *interrupt_main(void *main_thread)
{
	while (engine_seen()->waiting == 0)
		sched_yield();
	pthread_kill(*(pthread_t *)main_thread, SIGALRM);
	return NULL;
}

static void exit_in_a_signal_handler(void)
{
	static pthread_t self;

	self = pthread_self();
	managed_malloc(1);
	/* A handler with a stack of its own, as Go makes of those it finds and CPython sets its own up;
	 * without SA_ONSTACK it would wait for the end of the call. */
	struct sigaction at_alarm = {.sa_handler = exit_at_alarm, .sa_flags = SA_ONSTACK};
	EXPECT(sigaction(SIGALRM, &at_alarm, NULL) == 0);
	EXPECT(pthread_create(&other, NULL, interrupt_main, &self) == 0 && pthread_detach(other) == 0);
	tms_pause(NULL);
	EXPECT(!"reached");
}

static volatile sig_atomic_t alarms;

static void count_alarm(int unused)
{
	(void)unused;
	alarms++;
}

/* Go code runs on small stacks: a handler without a stack of its own must not run there. */
static void plain_handler_waits(void)
{
	managed_malloc(1);
	EXPECT(signal(SIGALRM, count_alarm) != SIG_ERR);
	sigset_t mask;

	EXPECT(tms_pause(NULL) == EBB_OK);
	EXPECT(engine_seen()->blocked_alarm && engine_seen()->blocked_xfsz && !engine_seen()->blocked_term);
	EXPECT(pthread_sigmask(SIG_BLOCK, NULL, &mask) == 0 && !sigismember(&mask, SIGALRM) && !sigismember(&mask, SIGXFSZ));
	raise(SIGALRM);
	EXPECT(alarms == 1);
	exit(0);
}

/* One that has such a stack interrupts as ever. */
static void stacked_handler_does_not_wait(void)
{
	managed_malloc(1);
	struct sigaction at_alarm = {.sa_handler = count_alarm, .sa_flags = SA_ONSTACK};

	EXPECT(sigaction(SIGALRM, &at_alarm, NULL) == 0);
	EXPECT(tms_pause(NULL) == EBB_OK);
	EXPECT(!engine_seen()->blocked_alarm);
	exit(0);
}

/* So it is in calls too short to look at every handler. */
static void plain_handler_waits_for_a_short_call(void)
{
	sigset_t mask;

	EXPECT(signal(SIGALRM, count_alarm) != SIG_ERR);
	managed_malloc(1);
	EXPECT(engine_seen()->malloc_blocked_alarm && !engine_seen()->malloc_blocked_segv);
	EXPECT(pthread_sigmask(SIG_BLOCK, NULL, &mask) == 0 && !sigismember(&mask, SIGALRM));
	exit(0);
}

/* Such a call may have to wait, for a pause or for the device, as long as it takes. */
static void *terminate_from_outside(void *unused)
{
	while (engine_seen()->waiting == 0)
		sched_yield();
	EXPECT(engine_seen()->waiting_blocked_alarm && !engine_seen()->waiting_blocked_term);
	kill(getpid(), SIGTERM); /* not for this thread, which holds back all signals */
	return unused;
}

static void terminate_while_it_waits(void)
{
	sigset_t all, before;

	EXPECT(signal(SIGALRM, count_alarm) != SIG_ERR);
	sigfillset(&all);
	EXPECT(pthread_sigmask(SIG_BLOCK, &all, &before) == 0);
	EXPECT(pthread_create(&other, NULL, terminate_from_outside, NULL) == 0);
	EXPECT(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
	setenv("FAKE_CALLS_WAIT", "1", 1);
}

static void terminated_in_a_free(void)
{
	void *ptr = managed_malloc(1);

	terminate_while_it_waits();
	cudaFree(ptr);
	EXPECT(!"reached");
}

static void terminated_in_an_unmap(void)
{
	const struct driver *d = open_door(BY_PROC);
	uint64_t handle;

	tms_set_interesting_region(true);
	EXPECT(d->cuMemCreate(&handle, 4096, on_device, 0) == 0 && d->cuMemMap(0x10000000, 4096, 0, handle, 0) == 0);
	terminate_while_it_waits();
	d->cuMemUnmap(0x10000000, 4096);
	EXPECT(!"reached");
}

static void *let_it_go_on(void *unused)
{
	while (engine_seen()->waiting == 0)
		sched_yield();
	engine_seen()->go_on = true;
	return unused;
}

static void all_is_as_before_after_a_wait(void)
{
	sigset_t before, after;
	void *ptr = managed_malloc(1);

	EXPECT(signal(SIGALRM, count_alarm) != SIG_ERR);
	EXPECT(pthread_create(&other, NULL, let_it_go_on, NULL) == 0);
	EXPECT(pthread_sigmask(SIG_BLOCK, NULL, &before) == 0);
	setenv("FAKE_CALLS_WAIT", "1", 1);
	EXPECT(cudaFree(ptr) == cudaSuccess && engine_seen()->waiting == 1);
	EXPECT(pthread_sigmask(SIG_BLOCK, NULL, &after) == 0);
	for (int number = 1; number <= SIGRTMAX; number++)
		EXPECT(sigismember(&before, number) == sigismember(&after, number));
	raise(SIGALRM);
	EXPECT(alarms == 1 && pthread_join(other, NULL) == 0);
	exit(0);
}

/* While the driver waits for the device, handlers run as without ebb, and can call it. */
static struct fake_engine *seen; /* engine_seen, for several threads */

static void status_at_alarm(int unused)
{
	char text[8];
	size_t need;
	sigset_t before, after;
	int error = errno;

	(void)unused;
	EXPECT(pthread_sigmask(SIG_BLOCK, NULL, &before) == 0);
	EXPECT(ebb_status(text, sizeof(text), &need) == EBB_OK);
	EXPECT(pthread_sigmask(SIG_BLOCK, NULL, &after) == 0);
	EXPECT(sigismember(&before, SIGTERM) == sigismember(&after, SIGTERM));
	alarms++;
	seen->go_on = true;
	errno = error;
}

static pthread_t main_thread;

static void *alarm_while_it_waits(void *unused)
{
	while (seen->waiting == 0)
		sched_yield();
	EXPECT(pthread_kill(main_thread, SIGALRM) == 0);
	return unused;
}

static void handlers_run_while_the_driver_waits(void)
{
	sigset_t before, after;
	void *ptr = managed_malloc(1);

	EXPECT(signal(SIGALRM, status_at_alarm) != SIG_ERR);
	EXPECT(pthread_sigmask(SIG_BLOCK, NULL, &before) == 0);
	setenv("FAKE_CALLS_WAIT", "1", 1);
	setenv("FAKE_DRIVER_WAITS", "1", 1);
	main_thread = pthread_self();
	seen = engine_seen();
	EXPECT(pthread_create(&other, NULL, alarm_while_it_waits, NULL) == 0);
	EXPECT(cudaFree(ptr) == cudaSuccess && alarms == 1 && pthread_join(other, NULL) == 0);
	EXPECT(!seen->waiting_blocked_alarm && seen->waited_blocked_alarm);
	EXPECT(pthread_sigmask(SIG_BLOCK, NULL, &after) == 0);
	for (int number = 1; number <= SIGRTMAX; number++)
		EXPECT(sigismember(&before, number) == sigismember(&after, number));
	exit(0);
}

static void cancelling_waits(void)
{
	int state;

	managed_malloc(1);
	EXPECT(tms_pause(NULL) == EBB_OK);
	EXPECT(engine_seen()->cancel_disabled);
	EXPECT(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state) == 0 && state == PTHREAD_CANCEL_ENABLE);
	exit(0);
}

static void resume_exits(void)
{
	managed_malloc(1);
	EXPECT(tms_pause(NULL) == EBB_OK);
	tms_resume(NULL);
	EXPECT(!"reached");
}

static void ebb_functions_only_return(void)
{
	char text[64];

	managed_malloc(1);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_ERR_IO);
	EXPECT(ebb_last_error(text, sizeof(text)) > 0 && strcmp(text, "pause: FAKE_PAUSE_CODE said so") == 0);
	EXPECT(ebb_resume(NULL, 0, 0, NULL) == EBB_ERR_DEVICE_MEMORY);
	EXPECT(ebb_last_error(text, sizeof(text)) > 0 && strcmp(text, "resume: FAKE_RESUME_CODE said so") == 0);
	exit(5);
}

static void unknown_tag_is_fine(void)
{
	managed_malloc(1);
	EXPECT(tms_pause("nobody's") == EBB_OK);
	EXPECT(tms_resume("nobody's") == EBB_OK);
	EXPECT(engine_seen()->pauses == 1 && engine_seen()->resumes == 1);
}

/* Everything that may write a line. */
static void say_much(void)
{
	tms_set_current_tag(NULL);
	setenv("FAKE_MALLOC_CODE", "16", 1);
	tms_set_interesting_region(true);
	void *ptr;
	EXPECT(cudaMalloc(&ptr, 1) == cudaErrorUnknown);
	unsetenv("FAKE_MALLOC_CODE");
	EXPECT(tms_pause(NULL) == EBB_ERR_IO);
}

static void closed_outputs(void)
{
	close(STDOUT_FILENO);
	close(STDERR_FILENO);
	say_much();
	EXPECT(engine_seen()->log_fd == -1);
	exit(5);
}

static void break_stderr(void)
{
	int ends[2];

	EXPECT(pipe(ends) == 0);
	EXPECT(dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
	EXPECT(dup2(ends[1], STDOUT_FILENO) == STDOUT_FILENO);
	close(ends[0]);
	close(ends[1]);
}

static void broken_pipe(void)
{
	sigset_t pending;

	break_stderr();
	say_much();
	/* And no signal stays behind to strike later. */
	EXPECT(sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 0);
	sigset_t blocked;
	EXPECT(sigprocmask(SIG_BLOCK, NULL, &blocked) == 0 && sigismember(&blocked, SIGPIPE) == 0);
	exit(5);
}

static void pending_signal_is_kept(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGPIPE);
	EXPECT(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	EXPECT(raise(SIGPIPE) == 0);
	break_stderr();
	say_much();
	EXPECT(sigpending(&set) == 0 && sigismember(&set, SIGPIPE) == 1);
	exit(5);
}

static void full_pipe_with_nonblocking_end(void)
{
	int ends[2];
	static char filler[4096];

	EXPECT(pipe2(ends, O_NONBLOCK) == 0);
	EXPECT(dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
	while (write(STDERR_FILENO, filler, sizeof(filler)) > 0)
		;
	say_much();
	exit(5);
}

static void one_line_whatever_the_text(void)
{
	char backend[6000];

	tms_set_cpu_backup_backend("two\nlines");
	memset(backend, 'x', sizeof(backend) - 1);
	backend[sizeof(backend) - 1] = '\0';
	tms_set_cpu_backup_backend(backend);
}

static void bad_settings(void)
{
	managed_malloc(1);
	EXPECT(tms_resume(NULL) == EBB_OK);
	EXPECT(engine_seen()->resume_wait_s == 0);
	EXPECT(tms_pause(NULL) == EBB_ERR_IO);
}

CASES(
	{.says = "the engine is shut down once at exit",
	 .run = normal_exit,
	 .env = {"FAKE_SAY_SHUTDOWN=1"},
	 .exit_status = 5,
	 .lines = {"fake engine: shutdown"}},
	{.says = "_exit skips the shutdown", .run = immediate_exit, .env = {"FAKE_SAY_SHUTDOWN=1"}, .exit_status = 5},
	{.says = "without an engine nothing is shut down",
	 .run = exit_without_engine,
	 .env = {"FAKE_SAY_SHUTDOWN=1"},
	 .exit_status = 5},
	{.says = "an engine that did not start is not shut down",
	 .run = exit_after_failed_start,
	 .env = {"FAKE_SAY_SHUTDOWN=1", "FAKE_START_CODE=7"},
	 .exit_status = 5,
	 .lines = {"ebb: engine library * did not start: *"}},
	{.says = "a failed tms_pause writes one line and goes on",
	 .run = pause_goes_on,
	 .env = {"FAKE_PAUSE_CODE=11"},
	 .exit_status = 5,
	 .lines = {"ebb: pause FAILED, memory not freed: FAKE_PAUSE_CODE said so"}},
	{.says = "a pause in part says so and goes on",
	 .run = pause_in_part_goes_on,
	 .env = {"FAKE_PAUSE_CODE=14"},
	 .exit_status = 5,
	 .lines = {"ebb: pause PARTIAL, part of the memory not freed: FAKE_PAUSE_CODE said so"}},
	{.says = "a pause in part has failed too",
	 .run = pause_exits,
	 .env = {"FAKE_PAUSE_CODE=14", "EBB_ON_PAUSE_ERROR=exit"},
	 .exit_status = 70,
	 .lines = {"ebb: pause PARTIAL, part of the memory not freed: FAKE_PAUSE_CODE said so"}},
	{.says = "a pause that another thread's exit makes fail says nothing and leaves the exit status",
	 .run = exit_beside_a_pause,
	 .env = {"FAKE_WAITS=1", "FAKE_PAUSE_CODE=12", "EBB_ON_PAUSE_ERROR=exit"},
	 .exit_status = 5},
	{.says = "a resume that another thread's exit makes fail says nothing and leaves the exit status",
	 .run = exit_beside_a_resume,
	 .env = {"FAKE_WAITS=1", "FAKE_RESUME_CODE=9"},
	 .exit_status = 5},
	{.says = "an ebb_pause that another thread's exit makes fail says that the process is exiting",
	 .run = exit_beside_an_ebb_pause,
	 .env = {"FAKE_WAITS=1", "FAKE_PAUSE_CODE=12"},
	 .exit_status = 5},
	{.says = "once the exit has begun nothing of ebb's works, and nothing stands in the way",
	 .run = calls_after_the_exit_began,
	 .env = {"EBB_ON_PAUSE_ERROR=exit"},
	 .exit_status = 5},
	{.says = "a signal handler that interrupted the engine may call exit",
	 .run = exit_in_a_signal_handler,
	 .env = {"FAKE_WAITS=1", "FAKE_SAY_SHUTDOWN=1"},
	 .exit_status = 5},
	{.says = "a signal handler without a stack of its own waits for the end of an engine call", .run = plain_handler_waits},
	{.says = "one with a stack of its own interrupts it", .run = stacked_handler_does_not_wait},
	{.says = "it waits for a short call too, a fault does not", .run = plain_handler_waits_for_a_short_call},
	{.says = "handlers run while the driver waits for the device in cudaFree, and can call ebb",
	 .run = handlers_run_while_the_driver_waits},
	{.says = "SIGTERM ends a process that waits in cudaFree", .run = terminated_in_a_free, .exit_status = -SIGTERM},
	{.says = "SIGTERM ends a process that waits in cuMemUnmap",
	 .run = terminated_in_an_unmap,
	 .exit_status = -SIGTERM},
	{.says = "after a call that waited every signal comes as before", .run = all_is_as_before_after_a_wait},
	{.says = "a thread in an engine call is not cancelled there", .run = cancelling_waits},
	{.says = "a failed tms_pause ends the process with 70 when asked to, and removes its files first",
	 .run = pause_exits,
	 .env = {"FAKE_PAUSE_CODE=11", "EBB_ON_PAUSE_ERROR=exit", "FAKE_SAY_SHUTDOWN=1"},
	 .exit_status = 70,
	 .lines = {"ebb: pause FAILED, memory not freed: FAKE_PAUSE_CODE said so", "fake engine: shutdown"}},
	{.says = "a failed tms_resume ends the process with 71, and removes its files first",
	 .run = resume_exits,
	 .env = {"FAKE_RESUME_CODE=9", "FAKE_SAY_SHUTDOWN=1"},
	 .exit_status = 71,
	 .lines = {"ebb: resume FAILED, the process cannot go on: FAKE_RESUME_CODE said so", "fake engine: shutdown"}},
	{.says = "ebb_pause and ebb_resume return their errors, write nothing and never exit",
	 .run = ebb_functions_only_return,
	 .env = {"FAKE_PAUSE_CODE=12", "FAKE_RESUME_CODE=9", "EBB_ON_PAUSE_ERROR=exit"},
	 .exit_status = 5},
	{.says = "a tag that no allocation carries is no error for tms_pause and tms_resume",
	 .run = unknown_tag_is_fine,
	 .env = {"FAKE_PAUSE_CODE=4", "FAKE_RESUME_CODE=4", "EBB_ON_PAUSE_ERROR=exit"}},
	{.says = "closed stdout and stderr end nothing",
	 .run = closed_outputs,
	 .env = {"FAKE_PAUSE_CODE=12"},
	 .exit_status = 5},
	{.says = "a broken pipe on stdout and stderr ends nothing and leaves no signal",
	 .run = broken_pipe,
	 .env = {"FAKE_PAUSE_CODE=12"},
	 .exit_status = 5},
	{.says = "a SIGPIPE that was pending before is still pending",
	 .run = pending_signal_is_kept,
	 .env = {"FAKE_PAUSE_CODE=12"},
	 .exit_status = 5},
	{.says = "a full pipe drops lines",
	 .run = full_pipe_with_nonblocking_end,
	 .env = {"FAKE_PAUSE_CODE=12"},
	 .exit_status = 5},
	{.says = "a message is one line, however long its parts",
	 .run = one_line_whatever_the_text,
	 .lines = {"ebb: tms_set_cpu_backup_backend: two lines is neither *",
		   "ebb: tms_set_cpu_backup_backend: xxx*xxx"}},
	{.says = "bad values of EBB_ON_PAUSE_ERROR and EBB_RESUME_WAIT are named and count as unset",
	 .run = bad_settings,
	 .env = {"FAKE_PAUSE_CODE=12", "EBB_ON_PAUSE_ERROR=panic", "EBB_RESUME_WAIT=10s"},
	 .lines = {"ebb: EBB_ON_PAUSE_ERROR=panic is ignored: *", "ebb: EBB_RESUME_WAIT=10s is ignored: *",
		   "ebb: pause FAILED, memory not freed: FAKE_PAUSE_CODE said so"}});
