/* Forked children: they have the parent's memory, but not its threads, and never enter the engine. */
#include "harness.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern struct fake_cudart fake_cudart_13;

static void *parents;

static void child_allocates(void)
{
	void *ptr;

	tms_set_interesting_region(true);
	EXPECT(cudaMalloc(&ptr, 64) == cudaSuccess);
	EXPECT(fake_cudart_13.mallocs == 1 && engine_seen()->mallocs == 1);
	EXPECT(tms_torch_malloc(64, 0, NULL) != NULL);
	EXPECT(fake_cudart_13.mallocs == 2 && engine_seen()->mallocs == 1);
}

static void child_frees(void)
{
	EXPECT(cudaFree(parents) == cudaSuccess);
	EXPECT(fake_cudart_13.last_freed == parents);
	tms_torch_free(parents, 64, 0, NULL);
	EXPECT(fake_cudart_13.frees == 2 && engine_seen()->frees == 0);
}

static void child_calls_ebb(void)
{
	const char *tags[] = {"default"};
	char text[256];

	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_ERR_FORKED);
	EXPECT(ebb_last_error(text, sizeof(text)) > 0 && strstr(text, "was forked from process") != NULL);
	EXPECT(ebb_pause(tags, 1, NULL) == EBB_ERR_FORKED);
	EXPECT(ebb_resume(NULL, 0, 0, NULL) == EBB_ERR_FORKED);
	EXPECT(ebb_status(text, sizeof(text), NULL) == EBB_ERR_FORKED);
	EXPECT(ebb_pause_count("weights", &(uint64_t){0}) == EBB_ERR_FORKED);
	EXPECT(ebb_read(parents, 1, text) == EBB_ERR_FORKED);
	EXPECT(ebb_request_pause(NULL, 0, -1, NULL) == EBB_ERR_FORKED);
	EXPECT(ebb_idle_begin() == EBB_ERR_FORKED && ebb_idle_end() == EBB_ERR_FORKED);
	EXPECT(ebb_safe_point() == EBB_ERR_FORKED);
	EXPECT(ebb_last_error_json(text, sizeof(text)) > 0 && strncmp(text, "{\"code\":5,", 10) == 0);
	EXPECT(tms_get_cpu_backup_pointer(parents, 1) == NULL);
}

static void child_calls_tms(void)
{
	EXPECT(tms_pause(NULL) == EBB_ERR_FORKED);
	EXPECT(tms_resume("default") == EBB_ERR_FORKED);
}

static void child_does_nothing(void)
{
}

static void child_sets(void)
{
	tms_set_interesting_region(true);
	tms_set_current_tag("child's");
	tms_set_disk_backup_dir("/child");
	tms_set_retain_cpu_backup(true);
	set_memory_margin_bytes(1);
	EXPECT(strcmp(tms_get_current_tag(), "child's") == 0);
}

static void grandchild_allocates(void)
{
	EXPECT(in_child(child_allocates) == 0);
	EXPECT(in_child(child_calls_ebb) == 0);
}

static void forks(void (*body)(void))
{
	parents = managed_malloc(64);
	EXPECT(in_child(body) == 0);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK); /* the parent works on */
	EXPECT(in_child(body) == 0);                /* also while paused */
	EXPECT(ebb_resume(NULL, 0, 0, NULL) == EBB_OK);
	EXPECT(cudaFree(parents) == cudaSuccess && engine_seen()->frees == 1);
}

static void allocating_child(void)
{
	forks(child_allocates);
}

static void freeing_child(void)
{
	forks(child_frees);
}

static void child_that_pauses(void)
{
	forks(child_calls_ebb);
}

static void child_that_pauses_by_tms(void)
{
	parents = managed_malloc(64);
	EXPECT(in_child(child_calls_tms) == 0);
}

static void child_that_exits(void)
{
	forks(child_does_nothing);
}

static void child_that_sets(void)
{
	forks(child_sets);
}

static void grandchild(void)
{
	forks(grandchild_allocates);
}

/* clone without fork handlers, as some libraries start processes. */
static void child_of_a_bare_clone(void)
{
	parents = managed_malloc(64);
	pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	EXPECT(pid >= 0);
	if (pid == 0) {
		bool refused = ebb_pause(NULL, 0, NULL) == EBB_ERR_FORKED;
		bool passed = cudaFree(parents) == cudaSuccess && fake_cudart_13.last_freed == parents;

		_exit(refused && passed ? 0 : 1);
	}
	int status;
	EXPECT(waitpid(pid, &status, 0) == pid);
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* In containers a process and its child may both be number 1, each in a pid namespace of its own. */
static bool next_child_is_number_1(void)
{
	return unshare(CLONE_NEWPID) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWPID) == 0;
}

static void number_1_is_refused(void)
{
	EXPECT(getpid() == 1);
	child_calls_ebb();
	_exit(0); /* without a leak check at exit, which would not find its way about in here */
}

static void number_1_loads_and_forks(void)
{
	EXPECT(getpid() == 1);
	parents = managed_malloc(64);
	EXPECT(next_child_is_number_1());
	EXPECT(in_child(number_1_is_refused) == 0);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK);
	_exit(0);
}

static void a_child_with_its_parents_number(void)
{
	if (!next_child_is_number_1())
		return; /* no permission to make one here */
	EXPECT(in_child(number_1_loads_and_forks) == 0);
	_exit(0);
}

static void loads_its_own(void)
{
	void *ptr = managed_malloc(64);

	EXPECT(engine_seen()->starts == 1 && engine_seen()->mallocs == 1);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK);
	EXPECT(cudaFree(ptr) == cudaSuccess && engine_seen()->frees == 1);
}

static void fork_before_any_engine(void)
{
	EXPECT(!tms_get_interesting_region());
	EXPECT(in_child(loads_its_own) == 0);
	EXPECT(engine_seen() == NULL);
	loads_its_own();
}

static void begin_idle(void)
{
	EXPECT(ebb_idle_begin() == EBB_OK);
}

static void only_the_forking_thread_is_idle(void)
{
	managed_malloc(64);
	EXPECT(engine_seen()->idle == 1);
	EXPECT(ebb_idle_end() == EBB_OK && engine_seen()->idle == 0);
}

static void end_idle(void)
{
	EXPECT(ebb_idle_end() == EBB_OK);
}

static void nobody_is_idle(void)
{
	managed_malloc(64);
	EXPECT(engine_seen()->idle == 0);
}

static void idle_while_it_forks(void)
{
	begin_idle();
	in_thread(begin_idle);
	EXPECT(in_child(only_the_forking_thread_is_idle) == 0);
	in_thread(end_idle);
	in_thread(end_idle); /* what this thread began, and so one end more than it has begins */
	EXPECT(ebb_idle_end() == EBB_ERR_STATE);
	in_thread(begin_idle);
	EXPECT(ebb_idle_end() == EBB_OK);
	EXPECT(in_child(nobody_is_idle) == 0);
	in_thread(begin_idle);
	EXPECT(ebb_idle_end() == EBB_OK);
	EXPECT(in_child(begin_idle) == 0); /* of a thread that has ended more than it began */
	EXPECT(engine_seen() == NULL);
}

static _Atomic bool stop;

static void *set_directories(void *unused)
{
	(void)unused;
	while (!stop)
		tms_set_disk_backup_dir("/somewhere");
	return NULL;
}

static void set_directory(void)
{
	tms_set_disk_backup_dir("/child");
	_exit(0); /* a leak checker at exit would report what the thread that is not here had in hand */
}

static void fork_beside_a_thread_that_sets(void)
{
#ifdef __SANITIZE_ADDRESS__
	return; /* its malloc, unlike libc's, may hang after a fork beside a thread that allocates */
#endif
	pthread_t thread;

	/* libc starts a pthread_once anew in a child forked within it; ThreadSanitizer's waits for ever. */
	tms_set_disk_backup_dir("/first");
	EXPECT(pthread_create(&thread, NULL, set_directories, NULL) == 0);
	for (int i = 0; i < 50; i++)
		EXPECT(in_child(set_directory) == 0);
	stop = true;
	EXPECT(pthread_join(thread, NULL) == 0);
}

#define FORKED "process * was forked from process *, which alone can pause and resume its memory"

/* ---- open backup files --------------------------------------------------------------------------- */

static int backup, removed, others[3];

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

static void others_stay_open(void)
{
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		EXPECT(is_open(others[i]));
}

static void child_has_no_backup_open(void)
{
	EXPECT(!is_open(backup) && !is_open(removed));
	others_stay_open();
	_exit(0); /* what the other thread holds is no leak of the child's */
}

static void child_has_all_open(void)
{
	EXPECT(is_open(backup) && is_open(removed));
	others_stay_open();
}

static int open_in(const char *directory, const char *name)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	EXPECT(fd >= 0);
	return fd;
}

static void *pause_in_thread(void *unused)
{
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK);
	return unused;
}

static void fork_beside_a_pause(void)
{
	char directory[] = "/tmp/ebb-fork-test-XXXXXX", path[512];
	static const char *const names[] = {"ebb-1-2-3-4-5.bak", "ebb-1-2-3-4-6.bak", "other.bak", "ebb-1.txt"};
	pthread_t thread;

	EXPECT(mkdtemp(directory) != NULL);
	backup = open_in(directory, names[0]);
	removed = open_in(directory, names[1]);
	others[0] = open_in(directory, names[2]);
	others[1] = open_in(directory, names[3]);
	others[2] = STDERR_FILENO;
	snprintf(path, sizeof(path), "%s/%s", directory, names[1]);
	EXPECT(unlink(path) == 0);

	managed_malloc(1);
	EXPECT(in_child(child_has_all_open) == 0); /* no call is under way: it is not the engine's file */
	EXPECT(pthread_create(&thread, NULL, pause_in_thread, NULL) == 0);
	while (engine_seen()->waiting == 0)
		sched_yield();
	EXPECT(in_child(child_has_no_backup_open) == 0);
	child_has_all_open(); /* in the parent nothing changed */
	engine_seen()->go_on = true;
	EXPECT(pthread_join(thread, NULL) == 0);

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", directory, names[i]);
		unlink(path);
	}
	EXPECT(rmdir(directory) == 0);
}

static int noted_socket, another_file;

static void child_has_no_socket(void)
{
	EXPECT(!is_open(noted_socket) && is_open(another_file));
}

/* As the engine notes it; fd last. */
static void note(size_t slot, int fd, int described)
{
	struct stat st;

	EXPECT(fstat(described, &st) == 0);
	engine_seen()->descriptors[slot].dev = st.st_dev;
	engine_seen()->descriptors[slot].ino = st.st_ino;
	engine_seen()->descriptors[slot].fd = fd;
}

static void fork_beside_a_control_socket(void)
{
	managed_malloc(1);
	noted_socket = socket(AF_UNIX, SOCK_STREAM, 0);
	another_file = open("/dev/null", O_RDONLY);
	EXPECT(noted_socket > 2 && another_file > 2);
	note(EBB_ENGINE_DESCRIPTORS - 1, noted_socket, noted_socket);
	note(0, another_file, noted_socket); /* the program has closed that one, and its number is another file's */
	EXPECT(in_child(child_has_no_socket) == 0);
	EXPECT(is_open(noted_socket) && is_open(another_file)); /* in the parent nothing changed */
}

CASES(
	{.says = "a forked child keeps nothing of the control socket, and everything else",
	 .run = fork_beside_a_control_socket},
	{.says = "a child forked during a pause keeps no backup file open, and everything else",
	 .run = fork_beside_a_pause,
	 .env = {"FAKE_WAITS=1"}},
	{.says = "a forked child allocates from the runtime", .run = allocating_child},
	{.says = "a forked child frees through the runtime", .run = freeing_child},
	{.says = "a forked child that pauses, resumes or asks is refused", .run = child_that_pauses},
	{.says = "a forked child that pauses or resumes by tms_ is refused with a line and goes on",
	 .run = child_that_pauses_by_tms,
	 .env = {"EBB_ON_PAUSE_ERROR=exit"},
	 .lines = {"ebb: pause FAILED, memory not freed: " FORKED, "ebb: resume refused: " FORKED}},
	{.says = "a forked child exits without entering the engine; its parent shuts it down once",
	 .run = child_that_exits,
	 .env = {"FAKE_SAY_SHUTDOWN=1"},
	 .lines = {"fake engine: shutdown"}},
	{.says = "a forked child may change settings", .run = child_that_sets},
	{.says = "a grandchild is a forked child too", .run = grandchild},
	{.says = "a child of a bare clone is known by its process id", .run = child_of_a_bare_clone},
	{.says = "a child with its parent's process id, in another pid namespace, is known too",
	 .run = a_child_with_its_parents_number},
	{.says = "of idle sections begun before any engine, a forked child has those of its one thread",
	 .run = idle_while_it_forks},
	{.says = "a child forked before any engine was loaded loads its own; so does the parent",
	 .run = fork_before_any_engine},
	{.says = "a child forked while another thread changes a setting does not hang",
	 .run = fork_beside_a_thread_that_sets});
