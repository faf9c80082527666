/* softgpu's driver library, seen from inside.
 *
 * One file per concept:
 *   driver.c   initialisation, errors, devices, entry points by name        fault.c    the gate of every call, injected faults
 *   node.c     device memory shared by all processes of a node              context.c  contexts and what belongs to them
 *   memory.c   handles, address ranges, mappings, plain allocations          host.c     pinned host memory, pointer attributes
 *   pool.c     memory pools, allocations in stream order
 *   stream.c   queues, their threads, events                                copy.c     copies and fills
 *   capture.c  stream capture and graphs                                    module.c   device images, kernels
 *   builtin.c  kernels that PTX images get by name
 *
 * Locks, outermost first. A thread takes them in this order only, and none of them is held while a host function or a kernel of
 * the caller's runs (but for the lock that lets one host function run at a time, see stream.c):
 *   1. sg_ctx_lock    contexts: which live, reference counts, modules
 *   2. sg_mem_lock    (reader/writer) handles, reservations, mappings. Held for reading while bytes of device memory are moved,
 *                     chunk by chunk, so that an unmap waits for the chunk in flight and the next one sees the hole
 *   3. sg_host_lock   (reader/writer) pinned host memory
 *   4. sg_queue_lock  streams, operations, events, captures
 *   5. the node's lock (node.c): this process's threads, then all processes of the node
 *   6. the fault table's lock (fault.c)
 * Waiting for work to finish is done with no lock but sg_queue_lock, which the wait gives up. */
#ifndef SOFTGPU_INTERNAL_H
#define SOFTGPU_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "softgpu_cuda.h"
#include "softgpu_kernel.h"
#include "softgpu_test.h"
#include "view.h"

/* ---- driver.c */

struct sg_config {
	int devices;
	uint64_t mem_bytes;	 /* per device */
	uint64_t granularity;
	uint64_t latency_ns;	 /* how long an operation waits before it starts by itself */
	bool hold;		 /* it never starts by itself */
	uint64_t link_bytes_per_s; /* between host and device, per direction; 0: no limit */
	int rdma;
	char node[65];
};
extern struct sg_config sg_config;

/* One line on stderr. For what a return code cannot say. */
void sg_complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint64_t sg_now_ns(void);
/* The descriptor, moved away from 0 to 2: a program that closed its standard streams may still write to them. */
int sg_fd_above_std(int fd);
CUresult sg_error_by_name(const char *name); /* CUDA_ERROR_UNKNOWN + 1 if there is none */

/* ---- fault.c */

enum sg_call {
#define CALL(symbol, name, since) CALL_##symbol,
#include "calls.def"
#undef CALL
	SG_DRIVER_CALLS
};

enum sg_need { NEED_NOTHING, NEED_INIT, NEED_CTX };

/* Every exported driver call starts here: counts it, applies injected faults, and refuses it where the library is not
 * initialised, the process is a forked child or at its end, no context is current, or the context carries an error. */
CUresult sg_gate(enum sg_call call, enum sg_need need);
#define GATE(call, need) \
	do { \
		CUresult gate_result = sg_gate(CALL_##call, need); \
		if (gate_result) \
			return gate_result; \
	} while (0)

/* State of the library as the gate needs it: CUDA_SUCCESS when initialised and usable in this process. */
CUresult sg_usable(void);

enum sg_op_fault { SG_FAULT_COPY, SG_FAULT_MEMSET, SG_FAULT_KERNEL, SG_OP_FAULTS };
/* Counts one executed operation; the error it shall end with. */
CUresult sg_fault_op(enum sg_op_fault kind);
/* Gate of the runtime library. */
__attribute__((visibility("default"))) CUresult softgpu_runtime_call(const char *name);

/* ---- node.c */

CUresult sg_node_join(void); /* with sg_config; explains a refusal on stderr */
CUresult sg_node_take(int device, uint64_t bytes);
void sg_node_give(int device, uint64_t bytes);
CUresult sg_node_info(int device, uint64_t *free_bytes, uint64_t *total);
void sg_node_stop(void); /* stops this process */
void sg_node_context(int device, int change); /* how many contexts more or less this process has there */
/* Devices, memory and processes of the view. Where this process has not joined the node, none of its threads may join meanwhile. */
CUresult sg_node_view(bool joined, int device, struct softgpu_view *view);

/* ---- context.c */

struct CUctx_st {
	int device;
	bool primary;
	atomic_bool alive;
	atomic_int sticky; /* the error that poisoned it, else 0 */
	unsigned flags;
	unsigned peers;		     /* devices whose peer access is enabled; sg_ctx_lock */
	struct CUstream_st *legacy;  /* sg_queue_lock */
	struct CUmod_st *modules;    /* sg_ctx_lock */
	struct CUctx_st *next;
};

extern pthread_mutex_t sg_ctx_lock;
void sg_ctx_init(void);
struct CUctx_st *sg_current(void); /* of this thread; NULL if none */
bool sg_ctx_known(const struct CUctx_st *ctx);
void sg_ctx_poison(struct CUctx_st *ctx, CUresult error);
uint64_t sg_thread_id(void); /* never 0, never used again */

/* ---- memory.c */

extern pthread_rwlock_t sg_mem_lock;

struct sg_range { /* what lies at an address; filled by sg_mem_find */
	uint64_t base, size;	   /* the mapping or allocation */
	uint64_t res_base, res_size; /* the reservation around it */
	int device;		   /* that owns the physical memory */
	bool mapped;
	bool plain;		   /* from cuMemAlloc */
	bool accessible;	   /* by some device */
	bool exportable, rdma, managed;
	struct CUctx_st *ctx;	   /* of a plain allocation */
	struct CUmemPoolHandle_st *pool; /* of a block */
};
/* False if no reservation holds the address. Needs sg_mem_lock. */
bool sg_mem_find(uint64_t addr, struct sg_range *r);
bool sg_mem_is_device(uint64_t addr);			       /* needs sg_mem_lock */
bool sg_mem_overlaps(uint64_t addr, uint64_t size);	       /* needs sg_mem_lock */
/* True if every byte is mapped and the device may read (or write) it. Needs sg_mem_lock. */
bool sg_mem_accessible(uint64_t addr, uint64_t size, int device, bool write);
CUresult sg_mem_alloc(struct CUctx_st *ctx, uint64_t *addr, size_t size);
CUresult sg_mem_free(uint64_t addr, struct CUctx_st **owner, bool only_look);
void sg_mem_free_all_of(struct CUctx_st *ctx);
/* Blocks of a pool: memory of a device, of whole granules. All but the first need sg_mem_lock for writing. */
CUresult sg_block_new(struct CUmemPoolHandle_st *pool, int device, uint64_t full, const uint8_t *access, uint64_t *addr);
struct CUmemPoolHandle_st *sg_block_pool(uint64_t addr); /* NULL: no block begins there */
bool sg_block_access(uint64_t addr, size_t asked, const uint8_t *access);
void sg_block_drop(uint64_t addr);

/* ---- pool.c */

CUresult sg_pool_free(uint64_t addr);		 /* at once, once the device is done; INVALID_VALUE if it is no block */
void sg_pool_freed(uint64_t addr);		 /* its turn in the stream has come */
void sg_pool_synchronized(struct CUctx_st *ctx); /* gives back what pools hold beyond their thresholds */

/* ---- host.c */

enum sg_host_kind { SG_PAGEABLE, SG_PINNED, SG_HOST_SPLIT };
/* SG_HOST_SPLIT: starts in one registered piece and ends outside it. */
enum sg_host_kind sg_host_kind_of(uint64_t addr, uint64_t size);
bool sg_host_range(uint64_t addr, CUdeviceptr *base, size_t *size); /* the pinned piece there, if any */
void sg_host_free_all_of(struct CUctx_st *ctx);

/* ---- stream.c */

enum sg_op_kind { OP_NOTHING, OP_COPY, OP_MEMSET, OP_HOSTFN, OP_KERNEL, OP_GRAPH, OP_FREE };

struct sg_work { /* what an operation does; a graph node holds one too */
	enum sg_op_kind kind;
	union {
		struct {
			uint64_t dst, src, size;
			int dst_dev, src_dev; /* whose access rights count; -1: host memory */
			void *staged;	      /* the source's bytes, taken at the call; freed with the operation */
		} copy;
		struct {
			uint64_t dst, count;
			uint32_t value, width;
			int dev;
		} set;
		struct {
			CUhostFn fn;
			void *arg;
		} host;
		struct {
			softgpu_kernel_fn *fn;
			struct softgpu_launch cfg;
			void **params; /* one block of memory with the arguments behind the pointers */
		} kernel;
		struct CUgraph_st *graph; /* a reference */
		uint64_t freed;		  /* address of a pool's block */
	};
};

/* One queued piece of work. Lives until nobody refers to it; `stream` may be used only while it is not done. */
struct sg_op {
	int refs;
	bool done;
	uint64_t seq;	 /* within its stream */
	uint64_t due_ns; /* when it starts without being asked for */
	uint64_t done_ns;
	struct CUstream_st *stream;
	struct sg_op **deps;
	int ndeps;
	struct sg_work work;
	struct sg_op *next;
};

struct CUstream_st {
	uint32_t magic; /* streams and events are never returned to the heap, so a stale handle can be told */
	struct CUctx_st *ctx;
	unsigned flags;
	int priority;
	bool is_legacy;
	uint64_t owner_thread; /* of a per-thread default stream, else 0 */
	struct sg_op *head, *tail; /* not yet done; the head may be running */
	struct sg_op *last;	   /* a reference to what was submitted last */
	uint64_t seq;
	uint64_t wanted; /* operations up to here are asked for and start at once */
	bool closing;	 /* the thread ends when the queue is empty */
	bool blocked;	 /* its thread waits for another stream */
	pthread_cond_t wake;
	struct sg_capture *capture;
	int *frontier; /* while capturing: the nodes a next one follows */
	int nfrontier;
	struct CUstream_st *next; /* of all, or of the pool */
};

struct CUevent_st {
	uint32_t magic;
	unsigned flags;
	struct CUctx_st *ctx;
	struct sg_op *recorded; /* NULL: never */
	uint64_t capture_id; /* not 0: recorded while that capture ran */
	int *frontier;
	int nfrontier;
	struct CUevent_st *next;
};

extern pthread_mutex_t sg_queue_lock;
extern _Thread_local bool sg_in_stream; /* this thread runs a host function or a kernel: no driver calls */
void sg_stream_init(void);
/* Streams of all contexts; needs sg_queue_lock. */
struct CUstream_st *sg_streams(void);
/* The stream of a handle (default ones too, made on demand). Needs sg_queue_lock. */
CUresult sg_stream_of(struct CUctx_st *ctx, CUstream handle, struct CUstream_st **stream);
/* The device of a stream that does not capture; NOT_SUPPORTED if it does. */
CUresult sg_stream_device(CUstream handle, int *device);
/* Queues the work on a stream, or records it if the stream captures; takes the work's memory in any case. SG_WAIT: returns
 * when it has run, with the context's error; never for a capture. */
enum sg_submit_flags { SG_WAIT = 1, SG_SAME_CTX = 2 /* the stream must belong to the current context */ };
CUresult sg_submit(CUstream handle, struct sg_work *work, int flags);
CUresult sg_ctx_drain(struct CUctx_st *ctx); /* waits for all its work; its sticky error */
void sg_ctx_close_streams(struct CUctx_st *ctx);
void sg_work_free(struct sg_work *work);
void sg_work_run(struct CUctx_st *ctx, const struct sg_work *work);

/* ---- copy.c */

void sg_copy_run(struct CUctx_st *ctx, const struct sg_work *work);
void sg_memset_run(struct CUctx_st *ctx, const struct sg_work *work);

/* ---- capture.c; all need sg_queue_lock, except sg_capture_unsafe */

/* Calls that a capture may forbid; a refused one invalidates the capture. */
CUresult sg_capture_unsafe(void);
/* Calls that reach into every stream of a context. */
CUresult sg_capture_ctx_sync(struct CUctx_st *ctx);
/* The legacy stream may not be used while a blocking stream captures. */
CUresult sg_capture_legacy(struct CUctx_st *ctx, bool invalidate);
CUresult sg_capture_sync_stream(struct CUstream_st *stream); /* synchronise or query it */
CUresult sg_capture_add(struct CUstream_st *stream, struct sg_work *work);
CUresult sg_capture_record(struct CUevent_st *event, struct CUstream_st *stream);
CUresult sg_capture_wait(struct CUstream_st *stream, struct CUevent_st *event, bool *handled);
CUresult sg_capture_event_used(struct CUevent_st *event); /* query or synchronise */
void sg_capture_event_clear(struct CUevent_st *event);
void sg_capture_stream_gone(struct CUstream_st *stream);
void sg_graph_run(struct CUctx_st *ctx, struct CUgraph_st *graph);
struct CUgraph_st *sg_graph_ref(struct CUgraph_st *graph);
void sg_graph_unref(struct CUgraph_st *graph);

/* ---- module.c */

void sg_modules_unload_all_of(struct CUctx_st *ctx);
struct sg_builtin { /* a kernel known by the name of its PTX entry */
	const char *name;
	softgpu_kernel_fn *fn;
	const uint32_t *params; /* sizes, ended by 0 */
};
extern const struct sg_builtin sg_builtins[]; /* builtin.c; ended by a NULL name */

#endif
