/* Contexts: one primary per device, others on demand; which one is current in a thread.
 *
 * A context's memory is never given back: a destroyed one stays behind as a stone that says CONTEXT_IS_DESTROYED, as the driver
 * does. The primary context keeps its address for good and can live again after its last release. */
#include "internal.h"

#include <stdlib.h>

pthread_mutex_t sg_ctx_lock = PTHREAD_MUTEX_INITIALIZER;

static struct CUctx_st primaries[SG_MAX_DEVICES];
static int primary_refs[SG_MAX_DEVICES];
static int lost[SG_MAX_DEVICES]; /* the error that poisoned it before a reset: it does not come back in this process */
static struct CUctx_st *others;

enum { MAX_DEPTH = 64 };
static _Thread_local struct {
	struct CUctx_st *stack[MAX_DEPTH];
	int depth;
} current;

void sg_ctx_init(void)
{
	for (int d = 0; d < sg_config.devices; d++) {
		primaries[d].device = d;
		primaries[d].primary = true;
	}
}

struct CUctx_st *sg_current(void)
{
	return current.depth ? current.stack[current.depth - 1] : NULL;
}

uint64_t sg_thread_id(void)
{
	static atomic_ullong next = 1;
	static _Thread_local uint64_t id;
	if (!id)
		id = atomic_fetch_add(&next, 1);
	return id;
}

void sg_ctx_poison(struct CUctx_st *ctx, CUresult error)
{
	int none = 0;
	atomic_compare_exchange_strong(&ctx->sticky, &none, (int)error);
}

static bool known_locked(const struct CUctx_st *ctx)
{
	if (ctx >= primaries && ctx < primaries + sg_config.devices)
		return true;
	for (struct CUctx_st *c = others; c; c = c->next)
		if (c == ctx)
			return true;
	return false;
}

bool sg_ctx_known(const struct CUctx_st *ctx)
{
	pthread_mutex_lock(&sg_ctx_lock);
	bool known = known_locked(ctx);
	pthread_mutex_unlock(&sg_ctx_lock);
	return known;
}

/* Ends what belongs to the context. VMM handles and mappings belong to the process and stay. Runs without sg_ctx_lock, since
 * work still queued may call back; `alive` is already false, so nothing new is queued. */
static void teardown(struct CUctx_st *ctx)
{
	sg_ctx_close_streams(ctx);
	sg_modules_unload_all_of(ctx);
	sg_mem_free_all_of(ctx);
	sg_host_free_all_of(ctx);
}

/* ---- primary contexts */

static bool bad_device(CUdevice dev)
{
	return dev < 0 || dev >= sg_config.devices;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
	GATE(cuDevicePrimaryCtxRetain, NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sg_ctx_lock);
	CUresult r = lost[dev];
	if (!r) {
		if (!atomic_load(&primaries[dev].alive))
			atomic_store(&primaries[dev].sticky, 0);
		if (!atomic_exchange(&primaries[dev].alive, true))
			sg_node_context(dev, 1);
		primary_refs[dev]++;
		*ctx = &primaries[dev];
	}
	pthread_mutex_unlock(&sg_ctx_lock);
	return r;
}

static void kill_primary(CUdevice dev) /* gives up sg_ctx_lock */
{
	bool was = atomic_exchange(&primaries[dev].alive, false);
	if (was)
		lost[dev] = atomic_load(&primaries[dev].sticky);
	primaries[dev].peers = 0;
	pthread_mutex_unlock(&sg_ctx_lock);
	if (was) {
		teardown(&primaries[dev]);
		sg_node_context(dev, -1);
	}
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	GATE(cuDevicePrimaryCtxRelease_v2, NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&sg_ctx_lock);
	if (primary_refs[dev] == 0) {
		pthread_mutex_unlock(&sg_ctx_lock);
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	if (--primary_refs[dev] > 0)
		pthread_mutex_unlock(&sg_ctx_lock);
	else
		kill_primary(dev);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	GATE(cuDevicePrimaryCtxReset_v2, NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&sg_ctx_lock);
	kill_primary(dev);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
	GATE(cuDevicePrimaryCtxSetFlags_v2, NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&sg_ctx_lock);
	primaries[dev].flags = flags;
	pthread_mutex_unlock(&sg_ctx_lock);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	GATE(cuDevicePrimaryCtxGetState, NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sg_ctx_lock);
	*flags = primaries[dev].flags;
	*active = atomic_load(&primaries[dev].alive);
	pthread_mutex_unlock(&sg_ctx_lock);
	return CUDA_SUCCESS;
}

/* ---- further contexts */

static CUresult push(struct CUctx_st *ctx)
{
	if (current.depth == MAX_DEPTH)
		return CUDA_ERROR_OUT_OF_MEMORY;
	current.stack[current.depth++] = ctx;
	return CUDA_SUCCESS;
}

static CUresult create(CUcontext *out, unsigned int flags, CUdevice dev)
{
	struct CUctx_st *ctx;
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	/* an error that poisoned the device's primary context keeps the device from this process */
	CUresult sticky = atomic_load(&primaries[dev].sticky);
	if (sticky)
		return sticky;
	ctx = calloc(1, sizeof *ctx);
	if (!ctx)
		return CUDA_ERROR_OUT_OF_MEMORY;
	ctx->device = dev;
	ctx->flags = flags;
	atomic_store(&ctx->alive, true);
	CUresult r = push(ctx);
	if (r) {
		free(ctx);
		return r;
	}
	pthread_mutex_lock(&sg_ctx_lock);
	ctx->next = others;
	others = ctx;
	pthread_mutex_unlock(&sg_ctx_lock);
	sg_node_context(dev, 1);
	*out = ctx;
	return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	GATE(cuCtxCreate_v2, NEED_INIT);
	return create(ctx, flags, dev);
}

CUresult cuCtxCreate_v4(CUcontext *ctx, void *params, unsigned int flags, CUdevice dev)
{
	GATE(cuCtxCreate_v4, NEED_INIT);
	if (params) /* execution affinity and graphics interop: not here */
		return CUDA_ERROR_NOT_SUPPORTED;
	return create(ctx, flags, dev);
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	GATE(cuCtxDestroy_v2, NEED_INIT);
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sg_ctx_known(ctx) || ctx->primary || !atomic_exchange(&ctx->alive, false))
		return CUDA_ERROR_INVALID_CONTEXT;
	teardown(ctx);
	sg_node_context(ctx->device, -1);
	if (sg_current() == ctx)
		current.depth--;
	return CUDA_SUCCESS;
}

/* ---- the current context of a thread */

CUresult cuCtxSetCurrent(CUcontext ctx)
{
	GATE(cuCtxSetCurrent, NEED_INIT);
	if (!ctx) {
		if (current.depth)
			current.depth--;
		return CUDA_SUCCESS;
	}
	if (!sg_ctx_known(ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!current.depth)
		return push(ctx);
	current.stack[current.depth - 1] = ctx;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *ctx)
{
	GATE(cuCtxGetCurrent, NEED_INIT);
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	*ctx = sg_current();
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	GATE(cuCtxPushCurrent_v2, NEED_INIT);
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	return sg_ctx_known(ctx) ? push(ctx) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxPopCurrent_v2(CUcontext *ctx)
{
	GATE(cuCtxPopCurrent_v2, NEED_INIT);
	if (!current.depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	current.depth--;
	if (ctx)
		*ctx = current.stack[current.depth];
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *dev)
{
	GATE(cuCtxGetDevice, NEED_INIT);
	if (!dev)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sg_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	*dev = sg_current()->device;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
	GATE(cuCtxGetFlags, NEED_CTX);
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = sg_current()->flags;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
	GATE(cuCtxGetApiVersion, NEED_INIT);
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	if (!ctx)
		ctx = sg_current();
	if (!ctx || !sg_ctx_known(ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	*version = 3020; /* the version of the context interface, as the driver answers it */
	return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
	GATE(cuCtxSynchronize, NEED_CTX);
	pthread_mutex_lock(&sg_queue_lock);
	CUresult r = sg_capture_ctx_sync(sg_current());
	pthread_mutex_unlock(&sg_queue_lock);
	if (!r)
		r = sg_ctx_drain(sg_current());
	if (!r)
		sg_pool_synchronized(sg_current());
	return r;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	GATE(cuCtxGetStreamPriorityRange, NEED_CTX);
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	GATE(cuCtxEnablePeerAccess, NEED_CTX);
	struct CUctx_st *ctx = sg_current();
	CUresult r = CUDA_SUCCESS;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!peer || !sg_ctx_known(peer) || !atomic_load(&peer->alive))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (peer->device == ctx->device)
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	pthread_mutex_lock(&sg_ctx_lock);
	if (ctx->peers & 1u << peer->device)
		r = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	ctx->peers |= 1u << peer->device;
	pthread_mutex_unlock(&sg_ctx_lock);
	return r;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	GATE(cuCtxDisablePeerAccess, NEED_CTX);
	struct CUctx_st *ctx = sg_current();
	CUresult r = CUDA_SUCCESS;
	if (!peer || !sg_ctx_known(peer))
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&sg_ctx_lock);
	if (!(ctx->peers & 1u << peer->device))
		r = CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	ctx->peers &= ~(1u << peer->device);
	pthread_mutex_unlock(&sg_ctx_lock);
	return r;
}
