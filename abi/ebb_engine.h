/*
 * ebb_engine.h: what the C shim (libebb.so) and the Go engine (libebb-engine.so) agree on.
 * Private: both are built from one tree and refuse each other when EBB_ENGINE_ABI differs.
 *
 * The shim has checked before every call that it runs in the process that loaded the engine
 * (never a forked child). The engine never exits, never panics through an export, never
 * writes to file descriptors 0 to 2, and never changes the caller's CUDA context.
 */
#ifndef EBB_ENGINE_H
#define EBB_ENGINE_H

#include "ebb.h"

#define EBB_ENGINE_ABI 2u
#define EBB_VERSION "0.1.0"

/* Settings that the engine takes when it starts; strings are copied. */
typedef struct ebb_engine_config {
	uint32_t abi;          /* EBB_ENGINE_ABI of the shim */
	uint32_t struct_size;  /* sizeof(ebb_engine_config) */
	int32_t log_fd;        /* descriptor >= 3 for log lines, or -1: no log */
	int32_t reserved;
	uint64_t chunk_bytes;  /* size of the pinned staging buffer */
	const char *driver;    /* driver library; null: "libcuda.so.1" */
	const char *lease;     /* EBB_LEASE: lease file to lock, or null */
	const char *identity;  /* "role=actor cell=0 rank=3", prefix of log lines; may be null */
} ebb_engine_config;

/* Settings of one allocation, from the calling thread's region. */
typedef struct ebb_engine_region {
	const char *tag;
	int32_t backup;   /* ebb_backup */
	int32_t cpu_mmap; /* CPU backend: 0 pinned, 1 mmap */
} ebb_engine_region;

/* Settings of the process that pause and resume read anew each time. */
typedef struct ebb_engine_settings {
	const char *disk_dir;
	int32_t retain_cpu_backup;
	int32_t capture_active; /* number of stream captures under way in the process */
	int64_t unmanaged;      /* live device allocations that passed the hooks unmanaged */
	double resume_wait_s;
} ebb_engine_settings;

/*
 * The engine's exports. All return an ebb_code and set the calling thread's error text, which
 * ebb_engine_last_error copies, unless said otherwise.
 */

/* Once, before anything else; a second call is EBB_ERR_STATE. */
typedef int (*ebb_engine_start_fn)(const ebb_engine_config *config);
/* "ABI VERSION", for example "1 0.1.0"; static. The one call allowed before start. */
typedef const char *(*ebb_engine_version_fn)(void);
/* Creates managed memory on a device ordinal. margin: bytes that must stay free on the device.
 * EBB_ERR_DEVICE_MEMORY when there is too little. */
typedef int (*ebb_engine_malloc_fn)(void **ptr, size_t size, int device, const ebb_engine_region *region,
				    uint64_t margin);
/* EBB_ERR_NOT_MANAGED when ptr is not the base of managed memory: the caller passes it on to
 * the real runtime. Waits while ptr is part of a pause or resume under way. */
typedef int (*ebb_engine_free_fn)(void *ptr, int capture_active);
typedef int (*ebb_engine_pause_fn)(const char *const *tags, size_t ntags, const ebb_engine_settings *settings,
				   ebb_result *result);
typedef int (*ebb_engine_resume_fn)(const char *const *tags, size_t ntags, const ebb_engine_settings *settings,
				    ebb_result *result);
typedef int (*ebb_engine_backup_pointer_fn)(const void *gpu, uint64_t size, void **host);
typedef int (*ebb_engine_status_fn)(char *buf, size_t cap, size_t *need);
typedef size_t (*ebb_engine_last_error_fn)(char *buf, size_t cap);
/* The same error as the JSON object of ebb_last_error_json. */
typedef size_t (*ebb_engine_last_error_json_fn)(char *buf, size_t cap);
/* Active memory is not read during a capture: the device would have to be waited for. */
typedef int (*ebb_engine_read_fn)(const void *gpu, size_t n, void *buf, int capture_active);
/* begin: 1 ebb_idle_begin, 0 ebb_idle_end, -1 ebb_safe_point. */
typedef int (*ebb_engine_idle_fn)(int begin);
typedef int (*ebb_engine_request_pause_fn)(const char *const *tags, size_t ntags, double timeout_s,
					   const ebb_engine_settings *settings, ebb_result *result);
/* At process exit: removes the process's backup files. Touches no device. Idempotent. */
typedef void (*ebb_engine_shutdown_fn)(void);

#endif
