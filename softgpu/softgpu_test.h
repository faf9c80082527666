/* Exported by libcuda.so.1 of softgpu and by no other driver: for tests. */
#ifndef SOFTGPU_TEST_H
#define SOFTGPU_TEST_H

#include <stdint.h>

#pragma GCC visibility push(default)

/* Replaces what SOFTGPU_FAULT said; occurrences are counted from here on. NULL or "" takes all faults away. Returns 0, or
 * -1 for a spec it cannot read, and then changes nothing. */
int softgpu_set_fault(const char *spec);

/* How often a call was made in this process: "cuMemMap", "cudaMalloc"; also "copy", "memset" and "kernel", counted when
 * they run. -1 for an unknown name. */
int64_t softgpu_call_count(const char *call);

#pragma GCC visibility pop

#endif
