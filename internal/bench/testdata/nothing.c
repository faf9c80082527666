/* A library of torch_memory_saver's names that pauses nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>

int cudaMalloc(void **p, size_t size) { return ((int (*)(void **, size_t))dlsym(RTLD_NEXT, "cudaMalloc"))(p, size); }
int cudaFree(void *p) { return ((int (*)(void *))dlsym(RTLD_NEXT, "cudaFree"))(p); }
void tms_set_interesting_region(bool on) { (void)on; }
void tms_set_current_tag(const char *tag) { (void)tag; }
void tms_set_enable_cpu_backup(bool on) { (void)on; }
void tms_set_enable_disk_backup(bool on) { (void)on; }
void tms_pause(const char *tag) { (void)tag; }
void tms_resume(const char *tag) { (void)tag; }
