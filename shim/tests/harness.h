/*
 * harness.h: runs each case in a fresh process with libebb.so preloaded, and compares how the
 * process ended and every line it wrote to stderr with what the case says.
 */
#ifndef EBB_SHIM_TESTS_HARNESS_H
#define EBB_SHIM_TESTS_HARNESS_H

#include "fakes.h"

#include <stddef.h>
#include <sys/types.h>

struct test_case {
	const char *says;       /* the rule that is tested */
	void (*run)(void);
	const char *env[8];     /* NAME=value; "@/" stands for the directory of the test programs;
				   LD_PRELOAD=x: x comes after the usual value, "-": no preload */
	int exit_status;        /* expected; -N: killed by signal N */
	const char *lines[16];  /* patterns (fnmatch, "@/" as above) of all lines on stderr */
};

/* Each test program defines these. */
extern const struct test_case cases[];
extern const size_t case_count;
#define CASES(...)                                      \
	const struct test_case cases[] = {__VA_ARGS__}; \
	const size_t case_count = sizeof(cases) / sizeof(cases[0])

/* Ends the case as failed, naming the condition. Works with stderr closed or replaced. */
#define EXPECT(condition)                                                 \
	do {                                                              \
		if (!(condition))                                         \
			expect_failed(__FILE__, __LINE__, #condition);    \
	} while (0)
_Noreturn void expect_failed(const char *file, int line, const char *condition);

/* The path of a file beside the test programs. Valid until the next call. */
const char *beside(const char *name);

/* The record of the fake engine, or null when no engine is loaded. */
struct fake_engine *engine_seen(void);

/* Runs body in a forked child and returns its exit status, or -N when signal N ended it. */
int in_child(void (*body)(void));

/* Runs body in a thread of its own and waits for it. */
void in_thread(void (*body)(void));

/* Allocates in a region of this thread; expects success. (Inline: one test program is linked with
 * no runtime.) */
static inline void *managed_malloc(size_t size)
{
	void *ptr = NULL;

	tms_set_interesting_region(true);
	EXPECT(cudaMalloc(&ptr, size) == cudaSuccess);
	tms_set_interesting_region(false);
	return ptr;
}

#endif
