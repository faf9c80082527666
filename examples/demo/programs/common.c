#include "common.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *program_name = "demo";

void die(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	fflush(stdout);
	fprintf(stderr, "%s: ", program_name);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	exit(1);
}

void runtime_check(cudaError_t error, const char *call)
{
	if (error != cudaSuccess)
		die("%s: %s (%d)", call, cudaGetErrorString(error), error);
}

void driver_check(CUresult error, const char *call)
{
	const char *text = "unknown error";
	if (error == 0)
		return;
	cuGetErrorString(error, &text);
	die("%s: %s (%d)", call, text, error);
}

uint64_t parse_number(const char *option, const char *text, uint64_t min, uint64_t max)
{
	char *end;
	errno = 0;
	unsigned long long n = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-' || n < min || n > max)
		die("%s %s: want a whole number from %llu to %llu", option, text, (unsigned long long)min,
		    (unsigned long long)max);
	return n;
}

void event(const char *format, ...)
{
	static int fd = -1;
	const char *path = getenv("DEMO_EVENTS");
	char line[PIPE_BUF + 1];
	va_list args;

	if (!path || !*path)
		return;
	if (fd < 0 && (fd = open(path, O_WRONLY | O_CLOEXEC)) < 0)
		die("open %s for events: %s", path, strerror(errno));
	va_start(args, format);
	int n = vsnprintf(line, sizeof line, format, args);
	va_end(args);
	if (n < 0 || n >= PIPE_BUF)
		die("an event of %d bytes is too long", n);
	line[n++] = '\n';
	if (!write_full(fd, line, (size_t)n))
		die("write event to %s: %s", path, strerror(errno));
}

void json_escape(char *out, size_t cap, const char *text)
{
	size_t n = 0;
	for (; *text && n + 7 < cap; text++) {
		unsigned char c = (unsigned char)*text;
		if (c == '"' || c == '\\')
			n += (size_t)snprintf(out + n, cap - n, "\\%c", c);
		else if (c < 0x20 || c > 0x7e)
			n += (size_t)snprintf(out + n, cap - n, "\\u%04x", c);
		else
			out[n++] = (char)c;
	}
	out[n] = '\0';
}

bool read_full(int fd, void *buf, size_t n)
{
	for (size_t done = 0; done < n;) {
		ssize_t got = read(fd, (char *)buf + done, n - done);
		if (got < 0 && errno == EINTR)
			continue;
		if (got == 0)
			errno = 0;
		if (got <= 0)
			return false;
		done += (size_t)got;
	}
	return true;
}

bool write_full(int fd, const void *buf, size_t n)
{
	for (size_t done = 0; done < n;) {
		ssize_t put = write(fd, (const char *)buf + done, n - done);
		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return false;
		done += (size_t)put;
	}
	return true;
}

double now_seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

CUfunction kernel(CUmodule module, const char *name)
{
	CUfunction fn;
	CUresult error = cuModuleGetFunction(&fn, module, name);
	driver_check(error, name);
	return fn;
}
