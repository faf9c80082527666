/*
 * A library of torch_memory_saver's names under which a resumed actor has lost a byte. It gives back
 * as much device memory as the actor has, but other memory, which it took beside it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

static void *memory, *beside;
static size_t bytes;
static bool managed;

static int take(void **p, size_t size) { return ((int (*)(void **, size_t))dlsym(RTLD_NEXT, "cudaMalloc"))(p, size); }
static int give(void *p) { return ((int (*)(void *))dlsym(RTLD_NEXT, "cudaFree"))(p); }

int cudaMalloc(void **p, size_t size)
{
	int code = take(p, size);

	if (code != 0 || !managed)
		return code;
	memory = *p;
	bytes = size;
	return take(&beside, size);
}

int cudaFree(void *p) { return give(p); }
void tms_set_interesting_region(bool on) { managed = on; }
void tms_set_current_tag(const char *tag) { (void)tag; }
void tms_set_enable_cpu_backup(bool on) { (void)on; }
void tms_set_enable_disk_backup(bool on) { (void)on; }

void tms_pause(const char *tag)
{
	(void)tag;
	if (give(beside) != 0)
		abort();
}

void tms_resume(const char *tag)
{
	int (*set)(void *, int, size_t) = (int (*)(void *, int, size_t))dlsym(RTLD_NEXT, "cudaMemset");
	int (*get)(void *, const void *, size_t, int) =
		(int (*)(void *, const void *, size_t, int))dlsym(RTLD_NEXT, "cudaMemcpy");
	unsigned char byte;

	(void)tag;
	if (take(&beside, bytes) != 0 || get(&byte, (char *)memory + bytes / 2, 1, 2) != 0 ||
	    set((char *)memory + bytes / 2, byte ^ 1, 1) != 0)
		abort();
}
