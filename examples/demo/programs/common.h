/*
 * common.h: what the training program and the rollout share: errors, events, kernels.
 */
#ifndef DEMO_COMMON_H
#define DEMO_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_api.h"

/* Name that messages begin with; set once at the start of main. */
extern const char *program_name;

/* Prints one line on stderr and ends the process with status 1. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Ends the process unless the call succeeded. */
#define RUNTIME(call) runtime_check((call), #call)
#define DRIVER(call) driver_check((call), #call)
void runtime_check(cudaError_t error, const char *call);
void driver_check(CUresult error, const char *call);

/* A whole decimal number in [min, max], or the process ends naming the option. */
uint64_t parse_number(const char *option, const char *text, uint64_t min, uint64_t max);

/* Writes one line of JSON to the FIFO that DEMO_EVENTS names; without it, nowhere. Lines are at
 * most PIPE_BUF bytes, so that those of several processes never mix. */
void event(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Copies text into out as the inside of a JSON string, cut to fit. */
void json_escape(char *out, size_t cap, const char *text);

/* Reads or writes exactly n bytes; false on error (errno) or end of file (errno 0). */
bool read_full(int fd, void *buf, size_t n);
bool write_full(int fd, const void *buf, size_t n);

double now_seconds(void); /* monotonic */

/* A kernel of the module, and its launch as one block. Parameters are given by address. */
CUfunction kernel(CUmodule module, const char *name);
#define LAUNCH(fn, stream, ...)                                                                                        \
	DRIVER(cuLaunchKernel((fn), 1, 1, 1, 1, 1, 1, 0, (stream), (void *[]){__VA_ARGS__, NULL}, NULL))

#endif
