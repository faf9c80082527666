/* log.c: one line to stderr, whatever state stderr is in. */
#include "shim.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/*
 * write(2) that cannot raise SIGPIPE. The signal of a broken pipe goes to the writing thread, so
 * it is blocked there and taken back out of the pending set, unless one was pending before.
 */
static void write_quietly(int fd, const char *text, size_t length)
{
	sigset_t pipe_signal, pending, before;

	sigemptyset(&pipe_signal);
	sigaddset(&pipe_signal, SIGPIPE);
	sigpending(&pending);
	bool was_pending = sigismember(&pending, SIGPIPE) == 1;
	if (pthread_sigmask(SIG_BLOCK, &pipe_signal, &before) != 0)
		return;

	/* One call, so that lines of several ranks on one pipe do not mix. A line that does not
	 * go out whole is not worth waiting for. */
	if (write(fd, text, length) < 0 && errno == EPIPE && !was_pending) {
		const struct timespec at_once = {0, 0};
		while (sigtimedwait(&pipe_signal, NULL, &at_once) < 0 && errno == EINTR)
			;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void log_line(const char *format, ...)
{
	static const char prefix[] = "ebb: ";
	char line[PIPE_BUF]; /* what one write to a pipe keeps together */
	size_t room = sizeof(line) - 1; /* for the newline */
	size_t length = sizeof(prefix) - 1;
	int saved_errno = errno;
	va_list arguments;

	memcpy(line, prefix, length);
	va_start(arguments, format);
	int wanted = vsnprintf(line + length, room - length, format, arguments);
	va_end(arguments);
	if (wanted > 0) {
		size_t fits = room - length - 1;
		length += (size_t)wanted < fits ? (size_t)wanted : fits;
	}
	for (size_t i = 0; i < length; i++)
		if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
			line[i] = ' '; /* a name that the line quotes must not steer a terminal */
	line[length++] = '\n';
	write_quietly(STDERR_FILENO, line, length);
	errno = saved_errno;
}
