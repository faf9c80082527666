/*
 * rank.h: ebb-bench-rank, one process that `ebb bench` measures.
 *
 * It obeys commands, one a line on standard input, and answers each with one line on descriptor 3:
 * "ok key=value …" or "error TEXT". A command is a word and arguments "key=value". internal/bench
 * is the other end. The library under test is preloaded and used by torch_memory_saver's names, so
 * that any library with those names runs the same script.
 *
 *   main.c    the commands
 *   cuda.c    the CUDA runtime, found with dlopen
 *   saver.c   the library under test: regions, pause, resume, status
 *   memory.c  an actor's allocations: random bytes, checksums
 *   disk.c    raw O_DIRECT reads and writes
 *   copies.c  raw copies between device and pinned host memory
 *   random.c  random bytes, hashes
 *
 * Sizes are bytes, times are seconds. Functions that can fail return false and leave one line in
 * failure.
 */
#ifndef RANK_H
#define RANK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The text of the last error, of whichever thread failed first in a command. */
extern char failure[1024];
bool fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

double now(void);         /* CLOCK_MONOTONIC */
double cpu_seconds(void); /* user and system time of this process */

#define CHUNK_BYTES ((size_t)8 << 20) /* unit in which content is made and hashed */
#define MAX_THREADS 64

/*
 * Runs work on count threads, at most MAX_THREADS, and waits for them. work takes the thread's
 * number; false of one of them makes the result false.
 */
bool on_threads(int count, bool (*work)(int thread, void *arg), void *arg);
int fill_threads(void); /* how many threads make and hash content */

/* ---- cuda.c ------------------------------------------------------------------------------------ */

typedef int cuda_error;
typedef struct CUstream_st *cuda_stream;
enum { CUDA_TO_DEVICE = 1, CUDA_TO_HOST = 2 };

struct cuda {
	/* Looked up as a program linked with the runtime finds them: a preloaded library comes first. */
	cuda_error (*Malloc)(void **, size_t);
	cuda_error (*Free)(void *);
	/* Of the runtime itself. */
	cuda_error (*SetDevice)(int);
	cuda_error (*GetDeviceCount)(int *);
	cuda_error (*MemGetInfo)(size_t *, size_t *);
	cuda_error (*HostAlloc)(void **, size_t, unsigned);
	cuda_error (*FreeHost)(void *);
	cuda_error (*MemcpyAsync)(void *, const void *, size_t, int, cuda_stream);
	cuda_error (*MemsetAsync)(void *, int, size_t, cuda_stream);
	cuda_error (*StreamCreateWithFlags)(cuda_stream *, unsigned);
	cuda_error (*StreamSynchronize)(cuda_stream);
	cuda_error (*StreamDestroy)(cuda_stream);
	cuda_error (*DeviceSynchronize)(void);
	cuda_error (*RuntimeGetVersion)(int *);
	cuda_error (*DriverGetVersion)(int *);
	const char *(*GetErrorString)(cuda_error); /* may be null */
};
extern struct cuda cuda;
extern int cuda_device;

/* Loads the first of the runtimes that finds a device, and takes the device. */
bool cuda_open(const char *const *runtimes, int count, int device);
bool cuda_ok(cuda_error error, const char *what);
bool cuda_free_memory(size_t *available, size_t *total);

/* ---- saver.c ----------------------------------------------------------------------------------- */

void saver_open(void);
bool saver_found(void); /* the names of torch_memory_saver are there */
bool saver_is_ebb(void);
bool saver_leaves_unused(void); /* it has ebb_pause_except */
/* What the calling thread allocates from now on: backup "disk", "cpu" or "none"; null tag: nothing
 * of it is managed. */
bool saver_region(const char *tag, const char *backup);

struct operation {
	double begin, end;                /* of the call */
	double cpu;                       /* CPU seconds in it */
	size_t free_before, free_after;   /* the driver's free device memory */
	uint64_t host_before, host_after; /* this process's own host memory (RssAnon and RssFile) */
};
/* Device memory, as ebb_range of ebb.h. */
struct range {
	const void *address;
	size_t bytes;
};

/* tag null: everything. */
bool saver_pause(const char *tag, struct operation *done);
/* The bytes of the memory with the tag dead need not be kept. */
bool saver_pause_except(const char *tag, const char *dead, struct operation *done);
bool saver_resume(const char *tag, struct operation *done);
char *saver_status(void); /* JSON, to be freed; null where the library has none */

/* ---- memory.c ---------------------------------------------------------------------------------- */

bool memory_allocate(const char *tag, const char *backup, size_t bytes, size_t pieces);
bool memory_allocate_adamw(const char *tag, const char *backup, size_t bytes, size_t *made, size_t *zero);
/* New random bytes everywhere but in gradients, which are set to zero. */
bool memory_fill(const char *tag, uint64_t seed);
/* New random bytes in one of every so many chunks. */
bool memory_touch(const char *tag, uint64_t seed, size_t every, size_t *touched);
bool memory_checksum(const char *tag, uint64_t *sum);
/* Where the memory of a tag is: count ranges, to be freed. */
bool memory_ranges(const char *tag, struct range **list, size_t *count);
bool memory_free(const char *tag);

/* ---- disk.c ------------------------------------------------------------------------------------ */

struct disk_setup {
	const char *const *dirs;
	int ndirs;
	size_t bytes, files, block;
	int workers; /* at most */
};
bool disk_open(const struct disk_setup *setup);
/* what: fresh (new files, preallocated, written), write (in place), read, mixed (one half is written
 * while the other is read). */
bool disk_run(const char *what, int workers, double *begin, double *end, double *cpu, size_t *moved);
void disk_close(void);

/* ---- copies.c ---------------------------------------------------------------------------------- */

bool copies_open(size_t bytes);
bool copies_run(bool to_host, size_t bytes, double *seconds);
void copies_close(void);

/* ---- random.c ---------------------------------------------------------------------------------- */

uint64_t mix(uint64_t value);
/* p begins at a multiple of 64; n may be any number, and the memory reaches to the next multiple. */
void random_fill(void *p, size_t n, uint64_t seed);
/* Depends on every byte and its place; not made to withstand anybody. The bytes from n to the next
 * multiple of 64 are set to zero. */
uint64_t hash_bytes(void *p, size_t n);

#endif
