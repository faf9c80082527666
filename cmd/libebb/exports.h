/*
 * exports.h: what the two layers of this library, exports.c and Go, agree on.
 */
#ifndef EBB_EXPORTS_H
#define EBB_EXPORTS_H

#include "../../abi/ebb_engine.h"
#include "../../internal/device/cuda/cuda_abi.h" /* the driver's structs that owners hand over */

/* Longest error text that is kept of a thread, in bytes with the final zero. */
#define EBB_ERROR_BYTES 4096

/* Makes text, and the JSON object that says the same, the calling thread's last error. The text is
 * cut to EBB_ERROR_BYTES; JSON is kept whole or not at all. */
void ebb_set_last_error(const char *text, size_t len, const char *json, size_t json_len);

/* Calls a function of the shim's. */
void ebb_say_wait(void (*waits)(int32_t what));

#endif
