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
/* Calls one of ebb's own functions. An address is a number, since it may be anything. */
int ebb_call_status(const ebb_engine_calls *calls, char *buf, size_t cap, size_t *need);
int ebb_call_pause(const ebb_engine_calls *calls, char **tags, size_t ntags, double timeout_s, uint64_t ask,
		   ebb_result *result);
int ebb_call_resume(const ebb_engine_calls *calls, char **tags, size_t ntags, double timeout_s, uint64_t ask,
		    ebb_result *result);
int ebb_call_read(const ebb_engine_calls *calls, uint64_t gpu, size_t n, void *buf);
size_t ebb_call_last_error_json(const ebb_engine_calls *calls, char *buf, size_t cap);

/* Notes a descriptor in a slot; fd below 0: there is none. */
void ebb_note_descriptor(ebb_engine_descriptor *slot, int fd, uint64_t dev, uint64_t ino);

#endif
