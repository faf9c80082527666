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

_Atomic bool log_is_json;

#define MAX_MEMBER 100    /* bytes of what names the rank: none is longer */
#define REST_OF_JSON 1000 /* bytes that follow a message at most: four members, some of whose bytes are escaped, and the pid */

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

/* Appends what fits of a text; the line keeps room for its end. */
static size_t put(char *line, size_t length, size_t room, const char *text)
{
	size_t n = strlen(text);

	if (length + n > room)
		n = room - length;
	memcpy(line + length, text, n);
	return length + n;
}

/* Appends a text as the inside of a string of JSON. What is no UTF-8 becomes a question mark. */
static size_t put_quoted(char *line, size_t length, size_t room, const char *text)
{
	while (*text != '\0') {
		size_t n = utf8_length((const unsigned char *)text);
		char escaped[8] = {'?'};

		if (n > 0)
			snprintf(escaped, sizeof(escaped), "%s%.*s", *text == '"' || *text == '\\' ? "\\" : "", (int)n, text);
		if (length + strlen(escaped) > room)
			break;
		length = put(line, length, room, escaped);
		text += n > 0 ? n : 1;
	}
	return length;
}

/* The members of a JSON line that follow its message. */
static size_t put_rank(char *line, size_t length, size_t room)
{
	static const struct {
		const char *key, *variable;
	} members[] = {{"job", "EBB_JOB"}, {"role", "EBB_ROLE"}, {"cell", "EBB_CELL"}, {"rank", "EBB_RANK"}};
	char pid[32];

	for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
		const char *value = settings_env(members[i].variable);

		if (value == NULL || strlen(value) > MAX_MEMBER)
			continue;
		length = put(line, length, room, ",\"");
		length = put(line, length, room, members[i].key);
		length = put(line, length, room, "\":\"");
		length = put_quoted(line, length, room, value);
		length = put(line, length, room, "\"");
	}
	snprintf(pid, sizeof(pid), ",\"pid\":%d}", (int)getpid());
	return put(line, length, room, pid);
}

/* The line of EBB_LOG_FORMAT=json, as the engine writes them. */
static size_t make_json(char *line, size_t room, const char *text)
{
	char stamp[40] = "", head[128];
	struct timespec now;
	struct tm utc;

	clock_gettime(CLOCK_REALTIME, &now);
	if (gmtime_r(&now.tv_sec, &utc) != NULL)
		strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &utc);
	snprintf(head, sizeof(head), "{\"time\":\"%s.%06ldZ\",\"level\":\"warn\",\"msg\":\"", stamp, now.tv_nsec / 1000);
	size_t length = put(line, 0, room, head);
	length = put_quoted(line, length, room - REST_OF_JSON, text);
	length = put(line, length, room, "\"");
	return put_rank(line, length, room);
}

static size_t make_text(char *line, size_t room, const char *text)
{
	return put(line, put(line, 0, room, "ebb: "), room, text);
}

void log_line(const char *format, ...)
{
	char text[PIPE_BUF], line[PIPE_BUF]; /* what one write to a pipe keeps together */
	int saved_errno = errno;
	va_list arguments;

	va_start(arguments, format);
	int wanted = vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	if (wanted < 0)
		text[0] = '\0';
	for (char *at = text; *at != '\0'; at++)
		if ((unsigned char)*at < ' ' || *at == 0x7f)
			*at = ' '; /* a name that the line quotes must not steer a terminal */
	size_t length = (log_is_json ? make_json : make_text)(line, sizeof(line) - 1, text);
	line[length++] = '\n';
	write_quietly(STDERR_FILENO, line, length);
	errno = saved_errno;
}
