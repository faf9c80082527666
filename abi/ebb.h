/*
 * ebb.h: the C contract of libebb.so.
 *
 * libebb.so is preloaded (LD_PRELOAD) or loaded by PyTorch as a pluggable allocator. It
 * manages GPU memory allocated inside a region, and can pause it (bytes go to host memory or
 * disk, physical memory goes back to the driver) and resume it (same addresses, same bytes).
 *
 * Two families of functions:
 *   tms_*   the names and meanings of torch_memory_saver, so that software built for it runs
 *           unchanged. Its callers ignore results; see tms_pause and tms_resume.
 *   ebb_*   return a code; the text of the calling thread's last error is in ebb_last_error.
 *
 * Threads: every function may be called from any thread at any time. Region, tag and backup
 * settings are per thread and are fixed for an allocation when it is made. Pauses and resumes
 * are carried out one after the other.
 * Fork: a forked child cannot use the parent's CUDA state. In it, hooked functions pass to
 * the real runtime and ebb_* return EBB_ERR_FORKED.
 * Exit: once exit(3) has begun, ebb_* return EBB_ERR_STATE, allocations are the real runtime's, and
 * managed memory is left for the end of the process to free.
 * Sizes are bytes, times are seconds unless a name says otherwise.
 * A pointer parameter may be null only where that is said.
 */
#ifndef EBB_H
#define EBB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Result codes. Stable; new ones are added at the end. */
typedef enum ebb_code {
	EBB_OK = 0,
	EBB_ERR_INVALID = 1,       /* an argument makes no sense */
	EBB_ERR_NOT_MANAGED = 2,   /* the pointer is not memory that ebb manages */
	EBB_ERR_STATE = 3,         /* not possible in the allocation's present state */
	EBB_ERR_UNKNOWN_TAG = 4,   /* no allocation ever carried this tag */
	EBB_ERR_FORKED = 5,        /* called in a forked child */
	EBB_ERR_CAPTURE = 6,       /* a CUDA stream capture is under way */
	EBB_ERR_DEVICE = 7,        /* the driver refused a call */
	EBB_ERR_DEVICE_FAULT = 8,  /* the device had failed before: an earlier error of the actor */
	EBB_ERR_DEVICE_MEMORY = 9, /* not enough device memory */
	EBB_ERR_HOST_MEMORY = 10,  /* not enough host memory */
	EBB_ERR_NO_SPACE = 11,     /* not enough room in the disk directory (space, inodes, quota) */
	EBB_ERR_IO = 12,           /* reading or writing a backup file failed */
	EBB_ERR_CORRUPT = 13,      /* a backup is gone, replaced, cut, or holds other bytes than were saved */
	EBB_ERR_PARTIAL = 14,      /* paused in part: some allocations stayed active */
	EBB_ERR_NOT_LOADED = 15,   /* the engine library could not be loaded */
	EBB_ERR_INTERNAL = 16,     /* a defect in ebb */
	EBB_ERR_UNMANAGED = 17,    /* nothing is managed, and the process holds other device memory */
	EBB_ERR_TIMEOUT = 18,      /* a deadline passed; of a disk: EBB_IO_TIMEOUT, and it can be tried again */
	EBB_ERR_WRITTEN = 19       /* the memory was written to while it was being paused */
} ebb_code;

/* Where the bytes of an allocation go while it is paused. */
typedef enum ebb_backup {
	EBB_BACKUP_NONE = 0, /* nowhere: content is undefined after resume */
	EBB_BACKUP_CPU = 1,  /* host memory */
	EBB_BACKUP_DISK = 2  /* files of the disk directory */
} ebb_backup;

/* What one pause or resume did. The caller sets struct_size; fields beyond it are not written. */
typedef struct ebb_result {
	uint64_t struct_size;    /* in: sizeof(ebb_result) */
	uint64_t allocations;    /* allocations whose state changed */
	uint64_t bytes;          /* their logical bytes */
	uint64_t device_bytes;   /* physical device memory released or created */
	uint64_t host_bytes;     /* bytes copied to or from host memory */
	uint64_t disk_bytes;     /* bytes written to or read from files, padding included */
	uint64_t nanoseconds;    /* wall time of the call */
	uint64_t skipped_zero_bytes;   /* not moved: all zero */
	uint64_t skipped_same_bytes;   /* not moved: the backup held the same bytes already */
	uint64_t skipped_unused_bytes; /* not moved: unused (ebb_pause_except), content undefined after resume */
	uint64_t kept_bytes;           /* logical bytes left on the device: others use it, or a write from it failed */
	uint64_t check_nanoseconds;    /* of nanoseconds: waiting for fingerprints */
	uint64_t freed_bytes;          /* of a pause: that became free on the devices, as the driver says */
	uint64_t missing_bytes;        /* of a pause: of device_bytes, neither free nor taken by others, as NVML tells */
} ebb_result;

/* Device memory [ptr, ptr + bytes). */
typedef struct ebb_range {
	const void *ptr;
	size_t bytes;
} ebb_range;

/* ---- ebb's own functions ------------------------------------------------------------- */

/* Version of the library, for example "0.1.0". Never null, never freed. */
const char *ebb_version(void);

/* Copies the calling thread's last error text (no newline, zero-terminated, cut to cap) into
 * buf and returns the length of the whole text. buf may be null when cap is 0. */
size_t ebb_last_error(char *buf, size_t cap);

/*
 * The calling thread's last error as one JSON object: {"code": 9, "message": "..."} and, where
 * known, "device", "need_bytes", "free_bytes", "dir", and "holders": [{"pid", "bytes", "name"}],
 * the processes that hold memory of the device. Same rules for buf as ebb_last_error.
 */
size_t ebb_last_error_json(char *buf, size_t cap);

/*
 * Takes the memory of all allocations that carry one of the tags off the GPU. ntags 0: all
 * allocations. Returns once the driver has the memory back.
 * What is already paused stays as it is; nothing to do is EBB_OK. But where no memory is managed
 * and the process holds other device memory, a pause of all is EBB_ERR_UNMANAGED.
 * The caller must not touch the memory from any stream or thread during the call or until a
 * resume. Where the driver loads ebb's kernels, what is written during the call is saved too or found
 * (EBB_ERR_WRITTEN), if it comes before the last check of the bytes; what is written between that check
 * and the moment in which the memory is unmapped is lost. Elsewhere no such write is found. Work
 * submitted earlier is waited for, through the devices' primary contexts (the runtime's) and the calling
 * thread's current one. On any error but EBB_ERR_PARTIAL nothing was unmapped and the actor can go on.
 * result may be null.
 */
int ebb_pause(const char *const *tags, size_t ntags, ebb_result *result);

/*
 * ebb_pause, and the bytes of the unused ranges need not be kept: where whole blocks of memory lie
 * in them, the content is undefined after the resume. Ranges may overlap, and may reach outside of
 * managed memory. A block that is seen to be written to during the call is kept all the same. nunused 0:
 * ebb_pause.
 */
int ebb_pause_except(const char *const *tags, size_t ntags, const ebb_range *unused, size_t nunused,
		     ebb_result *result);

/*
 * Brings the memory back to its addresses with its bytes. timeout_s: how long to wait for
 * device memory held by others; 0: fail at once, negative: the default (EBB_RESUME_WAIT, 0).
 * On error everything named stays paused and a later resume can succeed. result may be null.
 */
int ebb_resume(const char *const *tags, size_t ntags, double timeout_s, ebb_result *result);

/*
 * Copies n bytes of managed memory at gpu_ptr to host memory: from the backup while it is
 * paused (without using the GPU), from the device otherwise, where work submitted earlier is
 * waited for. [gpu_ptr, gpu_ptr + n) must lie in one allocation, or in memory that its owner
 * mapped without holes. Paused memory with backup
 * EBB_BACKUP_NONE has no bytes: EBB_ERR_STATE. n 0 does nothing.
 */
int ebb_read(const void *gpu_ptr, size_t n, void *buf);

/*
 * Safe points. A pause asked for by another thread (ebb_request_pause) takes effect only while
 * the actor is idle, that is between ebb_idle_begin and ebb_idle_end, or inside ebb_safe_point.
 * ebb_idle_end and ebb_safe_point return when the actor may use its memory: they wait while
 * such a pause is under way and until all that such pauses took is resumed, or freed; what the
 * program paused otherwise is not waited for. Calls nest. The actor is idle while any section is
 * open: a program whose threads use the memory on their own brings them together first.
 */
int ebb_idle_begin(void);
int ebb_idle_end(void);
/* Lets a pause that was asked for take place, if there is one; returns at once if not. */
int ebb_safe_point(void);
/*
 * ebb_pause at the actor's next safe point. timeout_s: how long to wait for it; after that
 * EBB_ERR_TIMEOUT, and nothing was paused. negative: no limit. The caller, not the actor, must
 * call ebb_resume later. Where all that is named is paused already, and where a tag is not known, it
 * returns at once.
 */
int ebb_request_pause(const char *const *tags, size_t ntags, double timeout_s, ebb_result *result);

/* Writes the state of this process's memory as one JSON object (docs/status.md) into buf, cut
 * to cap and zero-terminated. *need, if not null, is set to the full length without the zero. */
int ebb_status(char *buf, size_t cap, size_t *need);

/* How many pauses so far took memory with this tag off the GPU, be it back by now or not; 0 for a tag that no
 * allocation ever carried. Memory without backup has kept its content where the number is what it was. Never waits
 * for a pause or resume under way: one that is may have taken the memory a moment before it counts. */
int ebb_pause_count(const char *tag, uint64_t *count);

/* ---- streamed state --------------------------------------------------------------------- */

/*
 * A state is a set of flat arrays, its segments, that live in files and pass through the GPU part by
 * part: optimizer state that is never on the device as a whole. Its files lie in the rank's disk
 * directories (EBB_STATE_DIRS, else those of disk backups) and go with the process. No pause touches
 * them.
 * Requests are carried out beside the caller, those of one direction in the order in which they were
 * made, reads and writes at the same time. One that concerns a segment of an earlier request waits for
 * that one, whichever way it goes.
 * Host memory: the chunk (EBB_STATE_CHUNK_MB), which all states of the process share, whatever their
 * size. Device memory: the caller's only.
 */

/* A part of a segment, and the device memory that it is read to or written from. */
typedef struct ebb_state_io {
	uint32_t segment;
	uint32_t reserved; /* 0 */
	uint64_t offset;   /* in the segment: a multiple of ebb_state_block */
	uint64_t bytes;    /* a multiple of ebb_state_block, or up to the end of the segment */
	void *gpu;         /* a multiple of 16; all of a request are of one device */
} ebb_state_io;

/* What a request did. The caller sets struct_size; fields beyond it are not written. */
typedef struct ebb_state_done {
	uint64_t struct_size;        /* in: sizeof(ebb_state_done) */
	uint64_t bytes;              /* that were asked for */
	uint64_t disk_bytes;         /* of these, read from or written to files */
	uint64_t skipped_zero_bytes; /* of these, not moved: all zero */
	uint64_t nanoseconds;        /* from when its turn came (a write's stream had come so far) to its end */
	uint64_t wait_nanoseconds;   /* that ebb_state_wait waited for it */
} ebb_state_done;

/*
 * Makes a state. All room in the disk directories is taken at once, or none: EBB_ERR_NO_SPACE tells how
 * much was needed and is there. Every byte is zero at first, for which nothing is written. name is for
 * people: 1 to 255 printable characters. segment_bytes: 1 to 2^63 - 4096 each.
 */
int ebb_state_create(const char *name, const uint64_t *segment_bytes, size_t nsegments, uint64_t *state);

/* The unit of offsets in a state, a power of two; 0: there is no such state. */
uint64_t ebb_state_block(uint64_t state);

/*
 * Begin to read to, and to write from, device memory. *ticket is for ebb_state_wait; until then the
 * device memory must stay and be used by nobody else (during a write it may be read). A read begins at
 * once: work of the device that uses the memory must be over. A write begins when the work that is in
 * stream now is done; null: the legacy default stream.
 * EBB_ERR_STATE while the rank's memory is paused. A pause or free of managed memory that a request uses
 * waits for its end.
 * A write that fails leaves the parts that it concerned without content, until they are written
 * again: reading them is EBB_ERR_CORRUPT. What is read is compared with what was written: EBB_ERR_CORRUPT
 * names state, segment, offset and file where it differs.
 */
int ebb_state_read(uint64_t state, const ebb_state_io *ios, size_t n, uint64_t *ticket);
int ebb_state_write(uint64_t state, const ebb_state_io *ios, size_t n, void *stream, uint64_t *ticket);

/* Waits for the end of a request and returns its error. Once for each ticket. done may be null. */
int ebb_state_wait(uint64_t state, uint64_t ticket, ebb_state_done *done);

/* The same to and from host memory, at once and without a device. offset is a multiple of
 * ebb_state_block, bytes any number. */
int ebb_state_read_host(uint64_t state, uint32_t segment, uint64_t offset, uint64_t bytes, void *buf);
int ebb_state_write_host(uint64_t state, uint32_t segment, uint64_t offset, uint64_t bytes, const void *buf);

/*
 * Writes a checkpoint (docs/streaming.md): the directory dir, with a file for each segment and
 * manifest.json. extra: one JSON value that is kept as "extra" in the manifest; null: none. It is made
 * under another name beside dir and put in place as a whole: a checkpoint that is there stays until
 * then, and is removed afterwards. Where the file system can, files share their blocks with the state's.
 * Where it is not certain which of the two has the place after an error, nothing is removed and the error
 * names both. A directory that is there and no checkpoint is refused.
 */
int ebb_state_save(uint64_t state, const char *dir, const char *extra);

/* Fills a state from a checkpoint. EBB_ERR_INVALID: it is of a state with other segments, and nothing
 * was changed. After any other error parts of the state may have no content, or that of the
 * checkpoint; it can be loaded again. */
int ebb_state_load(uint64_t state, const char *dir);

/* Waits for all requests of the state and gives up its files. Tickets that nobody waited for are gone. */
int ebb_state_close(uint64_t state);

/* ---- torch_memory_saver's functions --------------------------------------------------- */

/* Whether allocations of the calling thread are managed. Initially TMS_INIT_ENABLE. */
void tms_set_interesting_region(bool on);
bool tms_get_interesting_region(void);

/* Tag of the calling thread's next allocations, of any bytes. Initially "default". A null tag and
 * one of more than 255 bytes are refused with one line on stderr and change nothing. The returned
 * pointer is valid until the thread sets another tag or ends. */
void tms_set_current_tag(const char *tag);
const char *tms_get_current_tag(void);

/* Backup of the calling thread's next allocations. Initially TMS_INIT_ENABLE_CPU_BACKUP and
 * TMS_INIT_ENABLE_DISK_BACKUP. With both on, the allocation fails: the two exclude each other. */
void tms_set_enable_cpu_backup(bool on);
bool tms_get_enable_cpu_backup(void);
void tms_set_enable_disk_backup(bool on);
bool tms_get_enable_disk_backup(void);

/* Memory that holds CPU backups made from now on by the calling thread's allocations: "pinned"
 * (page-locked, the default) or "mmap" (plain memory). Initially TMS_INIT_CPU_BACKUP_BACKEND.
 * Null and "" mean "pinned", whatever TMS_INIT_CPU_BACKUP_BACKEND says. Anything else is refused with
 * one line and changes nothing. */
void tms_set_cpu_backup_backend(const char *backend);
const char *tms_get_cpu_backup_backend(void);

/* Whether CPU backups are kept after a resume, for the next pause to use again. Process-wide.
 * Initially TMS_RETAIN_CPU_BACKUP. */
void tms_set_retain_cpu_backup(bool on);
bool tms_get_retain_cpu_backup(void);

/* Directory of disk backups, process-wide; taken at the first pause of an allocation.
 * Initially TMS_DISK_BACKUP_DIR, or /tmp. */
void tms_set_disk_backup_dir(const char *dir);

/* Device memory, in bytes, that allocations must leave free; an allocation that would not
 * reports cudaErrorMemoryAllocation. Initially EBB_TRAIN_MEMORY_MARGIN_BYTES, or 0. */
void set_memory_margin_bytes(uint64_t bytes);

/*
 * Pause and resume of one tag, or of everything (null or empty tag). Return 0 or an ebb_code;
 * existing callers ignore it, therefore:
 * A pause that fails writes one line, "ebb: pause FAILED, memory not freed: ..." (EBB_ERR_PARTIAL:
 * "ebb: pause PARTIAL, part of the memory not freed: ..."), and the process goes on
 * (EBB_ON_PAUSE_ERROR=exit: ends with status 70).
 * A resume that cannot be completed by its deadline writes one line and ends the process with
 * status 71: its memory is gone and every later use would fault. Use ebb_resume to handle it.
 * One refused because of a stream capture only writes its line: it can be called again.
 * A tag that no allocation carries is no error here.
 * Once the process's exit has begun, neither writes a line or changes the exit status.
 */
int tms_pause(const char *tag);
int tms_resume(const char *tag);

/* Host copy of managed memory with CPU backup: valid while paused, and after resume while
 * backups are retained. It must not be written to while the memory is paused: a resume finds such bytes
 * (EBB_ERR_CORRUPT) or, where the memory was all zero, passes them over. What is written to a retained
 * copy at other times is overwritten by the next pause, which from the first such pointer on copies all
 * of the allocation. Null otherwise, with the reason in ebb_last_error; for memory that is not
 * managed also with one line on stderr. */
uint8_t *tms_get_cpu_backup_pointer(const uint8_t *gpu_ptr, uint64_t size);

/* Allocation functions for torch.cuda.memory.CUDAPluggableAllocator. Always managed, whatever
 * the region. tms_torch_malloc takes memory of the device that is named, and returns null when there is
 * none, the device cannot be used or size is not positive. */
void *tms_torch_malloc(ssize_t size, int device, void *stream);
void tms_torch_free(void *ptr, ssize_t size, int device, void *stream);

#ifdef __cplusplus
}
#endif
#endif
