#include "harness.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define HANG_S 120 /* far beyond any case: ends a deadlock */

static int report_fd = STDERR_FILENO;

void expect_failed(const char *file, int line, const char *condition)
{
	dprintf(report_fd, "%s:%d: expected %s\n", file, line, condition);
	_exit(99);
}

const char *beside(const char *name)
{
	static char path[PATH_MAX + 256];
	char self[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (length < 0)
		abort();
	self[length] = '\0';
	snprintf(path, sizeof(path), "%s/%s", dirname(self), name);
	return path;
}

struct fake_engine *engine_seen(void)
{
	void *library = dlopen(beside("libebb-engine.so"), RTLD_NOW | RTLD_NOLOAD);

	return library != NULL ? dlsym(library, "fake_engine") : NULL;
}

static int wait_status(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return INT_MIN;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int in_child(void (*body)(void))
{
	pid_t pid = fork();

	EXPECT(pid >= 0);
	if (pid == 0) {
		alarm(HANG_S / 2); /* a child that hangs ends before its parent does */
		body();
		exit(0);
	}
	return wait_status(pid);
}

static void *thread_main(void *body)
{
	(*(void (**)(void))body)();
	return NULL;
}

void in_thread(void (*body)(void))
{
	pthread_t thread;

	EXPECT(pthread_create(&thread, NULL, thread_main, &body) == 0);
	EXPECT(pthread_join(thread, NULL) == 0);
}

/* ---- running the cases -------------------------------------------------------------------- */

/* Replaces "@/" by the directory of the test programs. */
static void expand(char *to, size_t cap, const char *from)
{
	char directory[PATH_MAX];
	size_t length = 0;

	snprintf(directory, sizeof(directory), "%s", beside(""));
	for (; *from != '\0' && length + 1 < cap; from++) {
		if (from[0] == '@' && from[1] == '/') {
			length += (size_t)snprintf(to + length, cap - length, "%s", directory);
			from++;
		} else {
			to[length++] = *from;
		}
	}
	to[length < cap ? length : cap - 1] = '\0';
}

static _Noreturn void become(const struct test_case *c, const char *number)
{
	static char preload[2 * PATH_MAX], entry[8][2 * PATH_MAX];
	const char *usual = getenv("EBB_TEST_PRELOAD");

	snprintf(preload, sizeof(preload), "%s", usual != NULL ? usual : "");
	for (size_t i = 0; i < sizeof(c->env) / sizeof(c->env[0]) && c->env[i] != NULL; i++) {
		expand(entry[i], sizeof(entry[i]), c->env[i]);
		if (strcmp(entry[i], "LD_PRELOAD=-") == 0)
			preload[0] = '\0';
		else if (strncmp(entry[i], "LD_PRELOAD=", strlen("LD_PRELOAD=")) == 0)
			snprintf(preload + strlen(preload), sizeof(preload) - strlen(preload), ":%s",
				 entry[i] + strlen("LD_PRELOAD="));
		else
			putenv(entry[i]);
	}
	setenv("LD_PRELOAD", preload, 1);
	alarm(HANG_S);
	execl("/proc/self/exe", "case", number, (char *)NULL);
	_exit(98);
}

static bool lines_match(const struct test_case *c, char *text)
{
	size_t wanted = 0;
	char *rest = text;

	for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
		if (*line == '\0' && rest == NULL)
			break; /* the end of the last line */
		char pattern[2 * PATH_MAX];
		if (wanted == sizeof(c->lines) / sizeof(c->lines[0]) || c->lines[wanted] == NULL)
			return false;
		expand(pattern, sizeof(pattern), c->lines[wanted++]);
		if (fnmatch(pattern, line, 0) != 0)
			return false;
	}
	return wanted == sizeof(c->lines) / sizeof(c->lines[0]) || c->lines[wanted] == NULL;
}

static bool passes(size_t index)
{
	const struct test_case *c = &cases[index];
	static char text[1 << 16], kept[sizeof(text)];
	char number[24];
	size_t length = 0;
	int ends[2];

	snprintf(number, sizeof(number), "%zu", index);
	if (pipe2(ends, O_CLOEXEC) != 0)
		abort();
	pid_t pid = fork();
	if (pid < 0)
		abort();
	if (pid == 0) {
		dup2(ends[1], STDERR_FILENO);
		become(c, number);
	}
	close(ends[1]);
	for (ssize_t got; (got = read(ends[0], text + length, sizeof(text) - 1 - length)) > 0;)
		length += (size_t)got;
	close(ends[0]);
	text[length] = '\0';
	int status = wait_status(pid);

	memcpy(kept, text, length + 1);
	bool good = lines_match(c, text) && status == c->exit_status;
	printf("%s %s\n", good ? "ok  " : "FAIL", c->says);
	if (!good) {
		printf("     exit status %d, expected %d; stderr:\n%s", status, c->exit_status, kept);
		for (size_t i = 0; i < sizeof(c->lines) / sizeof(c->lines[0]) && c->lines[i] != NULL; i++)
			printf("     expected: %s\n", c->lines[i]);
	}
	fflush(stdout);
	return good;
}

int main(int argc, char **argv)
{
	int failed = 0;

	if (argc > 1) {
		report_fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 500);
		if (report_fd < 0)
			report_fd = STDERR_FILENO;
		size_t index = strtoul(argv[1], NULL, 10);
		if (index >= case_count)
			return 97;
		cases[index].run();
		return 0;
	}
	for (size_t i = 0; i < case_count; i++)
		failed += !passes(i);
	return failed > 0;
}
