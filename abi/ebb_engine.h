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

#define EBB_ENGINE_ABI 5u
#define EBB_VERSION "0.1.0"

/*
 * A descriptor that the engine keeps for its control socket, and that a forked child closes if it still is that
 * file. fd is written before and after the others: 0 while there is none.
 */
#define EBB_ENGINE_DESCRIPTORS 35u
typedef struct ebb_engine_descriptor {
	int32_t fd; /* atomically */
	uint64_t dev, ino;
} ebb_engine_descriptor;

/*
 * ebb's own functions, which the control socket calls on threads of the engine: guards and settings are the
 * shim's. All set the error of the calling thread, which last_error_json gives. ask comes back in
 * ebb_engine_settings.
 */
typedef struct ebb_engine_calls {
	int (*status)(char *buf, size_t cap, size_t *need);
	int (*pause)(const char *const *tags, size_t ntags, double timeout_s, uint64_t ask, ebb_result *result);
	int (*resume)(const char *const *tags, size_t ntags, double timeout_s, uint64_t ask, ebb_result *result);
	int (*read)(const void *gpu, size_t n, void *buf);
	size_t (*last_error_json)(char *buf, size_t cap);
} ebb_engine_calls;

/* Settings that the engine takes when it starts; strings are copied. */
typedef struct ebb_engine_config {
	uint32_t abi;          /* EBB_ENGINE_ABI of the shim */
	uint32_t struct_size;  /* sizeof(ebb_engine_config) */
	int32_t log_fd;        /* descriptor >= 3 for log lines, or -1: no log */
	int32_t discard;       /* EBB_DISCARD=1: blocks of backup files are given back before the files are removed */
	uint64_t chunk_bytes;  /* size of the pinned staging buffer */
	const char *driver;    /* driver library; null: "libcuda.so.1" */
	const char *lease;     /* EBB_LEASE: lease file to lock, or null */
	const char *identity;  /* "role=actor cell=0 rank=3", prefix of log lines; may be null */
	uint64_t host_bytes;   /* EBB_HOST_MB: host memory that disk backups take before files; 0: none */
	int32_t host_arena;    /* EBB_HOST_ARENA=1: CPU backups lie in host memory that is kept between pauses */
	int32_t local_ranks;   /* LOCAL_WORLD_SIZE: ranks that share the node's memory; 0: not known */
	const char *disk_dirs; /* EBB_DISK_DIRS: "a:b:c", of which the first is settings.disk_dir; null: only that one */
	const char *leases;    /* EBB_DISK_LEASES: their lease files "x:y:z", of which the first is lease; null: only that */
	uint64_t disk_quota;   /* EBB_DISK_QUOTA_BYTES: room that all ranks together take in each disk directory; 0: no limit */
	double io_timeout_s;   /* EBB_IO_TIMEOUT: seconds that a disk may give no answer; 0: for ever */
	const char *file_faults; /* EBB_FAULT_FILES: file calls that are to fail, for tests; null: none */
	/* Called with an ebb_engine_wait by malloc, free, peer_access and the vmm calls, on their thread. May be null. */
	void (*waits)(int32_t what);
	const char *job;             /* EBB_JOB, or null */
	const char *runtime_dir;     /* EBB_RUNTIME_DIR, or null */
	const char *xdg_runtime_dir; /* XDG_RUNTIME_DIR, or null */
	const char *event_log;       /* EBB_EVENT_LOG: file that events are appended to, or null */
	int32_t log_json;            /* EBB_LOG_FORMAT=json: log lines are JSON */
	const ebb_engine_calls *calls; /* copied; null: no control socket (EBB_CONTROL=0) */
	ebb_engine_descriptor *descriptors; /* EBB_ENGINE_DESCRIPTORS of them, for ever; null: nobody asks */
	const char *state_dirs;      /* EBB_STATE_DIRS: directories of streamed state "a:b"; null: those of disk backups */
	const char *state_leases;    /* EBB_STATE_LEASES: their lease files, where they have their own; null: none */
	uint64_t state_chunk_bytes;  /* EBB_STATE_CHUNK_MB: size of the pinned staging buffers of streamed state */
} ebb_engine_config;

/* How a call of an owner's waits. */
typedef enum ebb_engine_wait {
	EBB_ENGINE_WAITS = 0,           /* from now on it may: for a pause or resume, one another, a disk */
	EBB_ENGINE_WAITS_IN_DRIVER = 1, /* the driver waits for the device: until the next one no Go code runs on the thread */
	EBB_ENGINE_WAITED_IN_DRIVER = 2,
} ebb_engine_wait;

/* host_bytes of EBB_HOST_MB=auto: the engine chooses, by what node and cgroup leave. */
#define EBB_HOST_AUTO UINT64_MAX

/* Settings of one allocation, from the calling thread's region. */
typedef struct ebb_engine_region {
	const char *tag;
	int32_t backup;   /* ebb_backup */
	int32_t cpu_mmap; /* CPU backend: 0 pinned, 1 mmap */
} ebb_engine_region;

/* Device memory that passed the hooks unmanaged and is live now, of one class: "nccl", "managed", a
 * library's name … */
typedef struct ebb_engine_unmanaged {
	const char *name;
	uint64_t bytes;
	uint64_t count;
} ebb_engine_unmanaged;

/* Settings of the process that pause and resume read anew each time. */
typedef struct ebb_engine_settings {
	const char *disk_dir;
	int32_t retain_cpu_backup;
	int32_t capture_active; /* number of stream captures under way in the process */
	int64_t unmanaged;      /* live device allocations that passed the hooks unmanaged */
	double resume_wait_s;
	const ebb_range *unused; /* ranges whose bytes a pause need not keep (ebb_pause_except) */
	size_t nunused;
	const ebb_engine_unmanaged *classes;
	size_t nclasses;
	uint64_t ask; /* the request of the control socket that this call is; 0: the program's own */
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
typedef int (*ebb_engine_status_fn)(char *buf, size_t cap, size_t *need, const ebb_engine_unmanaged *classes,
				    size_t nclasses);
typedef int (*ebb_engine_pause_count_fn)(const char *tag, uint64_t *count);
typedef size_t (*ebb_engine_last_error_fn)(char *buf, size_t cap);
/* The same error as the JSON object of ebb_last_error_json. */
typedef size_t (*ebb_engine_last_error_json_fn)(char *buf, size_t cap);
/* Active memory is not read during a capture: the device would have to be waited for. */
typedef int (*ebb_engine_read_fn)(const void *gpu, size_t n, void *buf, int capture_active);
/* begin: 1 ebb_idle_begin, 0 ebb_idle_end, -1 ebb_safe_point. */
typedef int (*ebb_engine_idle_fn)(int begin);
typedef int (*ebb_engine_request_pause_fn)(const char *const *tags, size_t ntags, double timeout_s,
					   const ebb_engine_settings *settings, ebb_result *result);

/*
 * The driver's virtual memory calls, for memory that its owner maps itself (cuMemCreate). The
 * owner gets a virtual handle: its top 16 bits are EBB_ENGINE_HANDLE, which no value of a driver
 * has, and it means nothing to the driver. Real handles come and go with pause and resume.
 *
 * All take what the driver's call takes and mean the same in every state; a call on memory that is
 * part of a pause or resume under way waits for its end. EBB_ERR_NOT_MANAGED, without an error
 * text: the call concerns no managed memory, and the caller passes it on to the driver, unchanged.
 * After any other error *cu is the CUresult that the owner is to be given. cu is never null.
 *
 * While the memory is paused:
 *   unmap                  the mapping is forgotten
 *   map, set_access        recorded, and carried out by the resume
 *   release                with no reference and no mapping left, memory and backup are gone
 *   retain, properties, get_access   as ever
 *   export, real           refused: CUDA_ERROR_ILLEGAL_STATE
 * None waits for the device, as the driver's do not, so a stream capture does not matter.
 */
#define EBB_ENGINE_HANDLE 0xEBB0u
#define EBB_ENGINE_IS_HANDLE(handle) ((uint64_t)(handle) >> 48 == EBB_ENGINE_HANDLE)

/* prop: CUmemAllocationProp. EBB_ERR_NOT_MANAGED for memory that is no device's, and for tile
 * pools. EBB_ERR_DEVICE_MEMORY, with CUDA_ERROR_OUT_OF_MEMORY, also where fewer than margin bytes
 * would stay free on the device. *handle is written only with EBB_OK. */
typedef int (*ebb_engine_vmm_create_fn)(uint64_t *handle, size_t size, const void *prop, uint64_t flags,
					const ebb_engine_region *region, uint64_t margin, int *cu);
typedef int (*ebb_engine_vmm_release_fn)(uint64_t handle, int *cu);
/* For every cuMemMap, also of the driver's handles: an address where paused memory is mapped is
 * refused as an occupied one is. */
typedef int (*ebb_engine_vmm_map_fn)(uint64_t addr, size_t size, size_t offset, uint64_t handle, uint64_t flags,
				     int *cu);
/* A range over managed and other mappings is done here, as a whole. */
typedef int (*ebb_engine_vmm_unmap_fn)(uint64_t addr, size_t size, int *cu);
/* desc: CUmemAccessDesc[count]. A range over managed and other mappings is done here, as a whole. */
typedef int (*ebb_engine_vmm_set_access_fn)(uint64_t addr, size_t size, const void *desc, size_t count, int *cu);
/* location: CUmemLocation. */
typedef int (*ebb_engine_vmm_get_access_fn)(uint64_t *flags, const void *location, uint64_t addr, int *cu);
typedef int (*ebb_engine_vmm_retain_fn)(uint64_t *handle, uint64_t addr, int *cu);
/* Before cuMemAddressFree: refused where paused memory is mapped in the range, as the driver
 * refuses a range with mappings; else EBB_ERR_NOT_MANAGED, and the caller passes it on. */
typedef int (*ebb_engine_vmm_address_free_fn)(uint64_t addr, size_t size, int *cu);
/* From now on the memory is kept: a pause leaves it on the device, since others use it. */
typedef int (*ebb_engine_vmm_export_fn)(void *shareable, uint64_t handle, int type, uint64_t flags, int *cu);
/* prop: CUmemAllocationProp, as it was given to create. */
typedef int (*ebb_engine_vmm_properties_fn)(void *prop, uint64_t handle, int *cu);
/* The driver's handle, for calls that need it (binding to multicast). From now on the memory is
 * kept; why is the word that status and log give for it ("multicast"). */
typedef int (*ebb_engine_vmm_real_fn)(uint64_t *real, uint64_t handle, const char *why, int *cu);
/* After cudaDeviceEnablePeerAccess and cuCtxEnablePeerAccess (on 1), or before their opposites
 * (on 0): peer may use what ebb_engine_malloc has made and makes on device. Memory of create has
 * the access lists of its owner. */
typedef int (*ebb_engine_peer_access_fn)(int device, int peer, int on);

/*
 * Before and after a reset of a device's primary context (cuDevicePrimaryCtxReset, cudaDeviceReset), which
 * ends all that the driver had made in it: streams, kernels, what was pinned. BEGINS waits for pauses,
 * resumes and reads under way, and those that come wait for the end, which is one of the other two and
 * may come from another thread. EBB_ERR_STATE: the reset would free the only copy of paused bytes, and
 * must not be made; nothing has begun. Managed memory stays, with its bytes or its backup.
 */
enum { EBB_RESET_BEGINS = 0, EBB_RESET_DONE = 1, EBB_RESET_FAILED = 2 };
typedef int (*ebb_engine_context_reset_fn)(int device, int step);

/*
 * Streamed state: what ebb.h says of the functions without "engine". device: that of the calling thread's
 * context, -1: it has none. disk_dir: the directory of disk backups.
 */
typedef int (*ebb_engine_state_create_fn)(const char *name, const uint64_t *segment_bytes, size_t nsegments, int device,
					  const char *disk_dir, uint64_t *state);
typedef uint64_t (*ebb_engine_state_block_fn)(uint64_t state);
typedef int (*ebb_engine_state_read_fn)(uint64_t state, const ebb_state_io *ios, size_t n, uint64_t *ticket);
typedef int (*ebb_engine_state_write_fn)(uint64_t state, const ebb_state_io *ios, size_t n, void *stream,
					 uint64_t *ticket);
typedef int (*ebb_engine_state_wait_fn)(uint64_t state, uint64_t ticket, ebb_state_done *done);
typedef int (*ebb_engine_state_read_host_fn)(uint64_t state, uint32_t segment, uint64_t offset, uint64_t bytes, void *buf);
typedef int (*ebb_engine_state_write_host_fn)(uint64_t state, uint32_t segment, uint64_t offset, uint64_t bytes,
					      const void *buf);
typedef int (*ebb_engine_state_save_fn)(uint64_t state, const char *dir, const char *extra);
typedef int (*ebb_engine_state_load_fn)(uint64_t state, const char *dir);
typedef int (*ebb_engine_state_close_fn)(uint64_t state);

/* At process exit: removes the process's backup files. Touches no device. Idempotent. */
typedef void (*ebb_engine_shutdown_fn)(void);

#endif
