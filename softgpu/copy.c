/* Copies and fills.
 *
 * A call whose addresses are wrong when it is made is refused with INVALID_VALUE and harms nothing, as the driver does. Memory
 * that is taken away between the call and the copy is an ILLEGAL_ADDRESS, which poisons the context. When a call returns:
 *   pageable memory to device, async    at once; the source was taken into a buffer
 *   device to pageable memory, async    when the bytes are there
 *   pinned memory, async                at once; the bytes are read or written late
 *   host memory and a synchronous call  when the bytes are there
 *   device to device, fills             at once, the synchronous calls too: they are in order with later work of the stream */
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CHUNK = 4 << 20, THROTTLED_CHUNK = 256 << 10 };
enum { HOST = -1 };

/* ---- when it runs */

static bool side_ok(int dev, uint64_t addr, uint64_t size, bool write)
{
	return dev == HOST || sg_mem_accessible(addr, size, dev, write);
}

/* Waits until the link of the device would have carried the bytes; transfers of one direction share it. */
static void throttle(int device, bool to_host, uint64_t bytes)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static uint64_t busy_until[SG_MAX_DEVICES][2];
	uint64_t now = sg_now_ns(), until;
	pthread_mutex_lock(&lock);
	uint64_t *busy = &busy_until[device][to_host];
	if (*busy < now)
		*busy = now;
	*busy += (double)bytes * 1e9 / sg_config.link_bytes_per_s;
	until = *busy;
	pthread_mutex_unlock(&lock);
	struct timespec t = {until / 1000000000, until % 1000000000};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL))
		;
}

void sg_copy_run(struct CUctx_st *ctx, const struct sg_work *w)
{
	uint64_t src = w->copy.staged ? (uintptr_t)w->copy.staged : w->copy.src, dst = w->copy.dst, left = w->copy.size;
	int src_dev = w->copy.src_dev, dst_dev = w->copy.dst_dev;
	bool link = sg_config.link_bytes_per_s && (src_dev == HOST) != (dst_dev == HOST);
	CUresult r = sg_fault_op(SG_FAULT_COPY);
	while (!r && left) {
		uint64_t n = link ? THROTTLED_CHUNK : CHUNK;
		if (n > left)
			n = left;
		pthread_rwlock_rdlock(&sg_mem_lock);
		if (side_ok(src_dev, src, n, false) && side_ok(dst_dev, dst, n, true))
			memmove((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, n);
		else
			r = CUDA_ERROR_ILLEGAL_ADDRESS;
		pthread_rwlock_unlock(&sg_mem_lock);
		if (!r && link)
			throttle(src_dev == HOST ? dst_dev : src_dev, dst_dev == HOST, n);
		src += n;
		dst += n;
		left -= n;
	}
	if (r)
		sg_ctx_poison(ctx, r);
}

static void fill(uint64_t dst, uint64_t bytes, uint32_t value, unsigned width)
{
	uint32_t *p = (uint32_t *)(uintptr_t)dst;
	if (width == 1) {
		memset(p, (int)value, bytes);
		return;
	}
	for (uint64_t i = 0; i < bytes / 4; i++)
		p[i] = value;
}

void sg_memset_run(struct CUctx_st *ctx, const struct sg_work *w)
{
	uint64_t dst = w->set.dst, left = w->set.count * w->set.width;
	CUresult r = sg_fault_op(SG_FAULT_MEMSET);
	while (!r && left) {
		uint64_t n = left < CHUNK ? left : CHUNK;
		pthread_rwlock_rdlock(&sg_mem_lock);
		if (side_ok(w->set.dev, dst, n, true))
			fill(dst, n, w->set.value, w->set.width);
		else
			r = CUDA_ERROR_ILLEGAL_ADDRESS;
		pthread_rwlock_unlock(&sg_mem_lock);
		dst += n;
		left -= n;
	}
	if (r)
		sg_ctx_poison(ctx, r);
}

/* ---- when it is called */

enum side { DEVICE_SIDE, ANY_SIDE }; /* what the call's signature says; a device pointer may be pinned host memory */

struct place {
	int dev;       /* HOST: host memory */
	bool pageable;
};

static CUresult locate(uint64_t addr, uint64_t size, enum side side, struct CUctx_st *ctx, bool write, struct place *p)
{
	*p = (struct place){.dev = ctx->device};
	if (!addr || addr + size < addr)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_rdlock(&sg_mem_lock);
	bool device = sg_mem_is_device(addr), ok = device && sg_mem_accessible(addr, size, ctx->device, write);
	pthread_rwlock_unlock(&sg_mem_lock);
	if (device)
		return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	enum sg_host_kind kind = sg_host_kind_of(addr, size);
	p->dev = HOST;
	p->pageable = kind == SG_PAGEABLE;
	if (kind == SG_HOST_SPLIT || (side == DEVICE_SIDE && kind != SG_PINNED))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

struct copy_call {
	uint64_t dst, src, size;
	enum side dst_side, src_side;
	struct CUctx_st *dst_ctx, *src_ctx; /* NULL: the current one */
	CUstream stream;
	bool async;
};

static bool stage(struct sg_work *w)
{
	w->copy.staged = malloc(w->copy.size);
	if (w->copy.staged)
		memcpy(w->copy.staged, (const void *)(uintptr_t)w->copy.src, w->copy.size);
	return w->copy.staged != NULL;
}

static CUresult copy(const struct copy_call *c)
{
	struct place dst, src;
	CUresult r;
	if (!c->size)
		return CUDA_SUCCESS;
	r = locate(c->dst, c->size, c->dst_side, c->dst_ctx ? c->dst_ctx : sg_current(), true, &dst);
	if (!r)
		r = locate(c->src, c->size, c->src_side, c->src_ctx ? c->src_ctx : sg_current(), false, &src);
	if (r)
		return r;
	struct sg_work w = {.kind = OP_COPY, .copy = {c->dst, c->src, c->size, dst.dev, src.dev, NULL}};
	bool host = dst.dev == HOST || src.dev == HOST;
	bool wait = c->async ? dst.pageable : host;
	if (src.pageable && !wait && !stage(&w))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return sg_submit(c->stream, &w, wait ? SG_WAIT : 0);
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n)
{
	GATE(cuMemcpy, NEED_CTX);
	return copy(&(struct copy_call){dst, src, n, ANY_SIDE, ANY_SIDE, NULL, NULL, NULL, false});
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream)
{
	GATE(cuMemcpyAsync, NEED_CTX);
	return copy(&(struct copy_call){dst, src, n, ANY_SIDE, ANY_SIDE, NULL, NULL, stream, true});
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t n)
{
	GATE(cuMemcpyHtoD_v2, NEED_CTX);
	return copy(&(struct copy_call){dst, (uintptr_t)src, n, DEVICE_SIDE, ANY_SIDE, NULL, NULL, NULL, false});
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t n, CUstream stream)
{
	GATE(cuMemcpyHtoDAsync_v2, NEED_CTX);
	return copy(&(struct copy_call){dst, (uintptr_t)src, n, DEVICE_SIDE, ANY_SIDE, NULL, NULL, stream, true});
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t n)
{
	GATE(cuMemcpyDtoH_v2, NEED_CTX);
	return copy(&(struct copy_call){(uintptr_t)dst, src, n, ANY_SIDE, DEVICE_SIDE, NULL, NULL, NULL, false});
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t n, CUstream stream)
{
	GATE(cuMemcpyDtoHAsync_v2, NEED_CTX);
	return copy(&(struct copy_call){(uintptr_t)dst, src, n, ANY_SIDE, DEVICE_SIDE, NULL, NULL, stream, true});
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t n)
{
	GATE(cuMemcpyDtoD_v2, NEED_CTX);
	return copy(&(struct copy_call){dst, src, n, DEVICE_SIDE, DEVICE_SIDE, NULL, NULL, NULL, false});
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream)
{
	GATE(cuMemcpyDtoDAsync_v2, NEED_CTX);
	return copy(&(struct copy_call){dst, src, n, DEVICE_SIDE, DEVICE_SIDE, NULL, NULL, stream, true});
}

static CUresult check_peers(CUcontext dst_ctx, CUcontext src_ctx)
{
	if (!dst_ctx || !src_ctx || !sg_ctx_known(dst_ctx) || !sg_ctx_known(src_ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!atomic_load(&dst_ctx->alive) || !atomic_load(&src_ctx->alive))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return CUDA_SUCCESS;
}

/* In order with all work of all three contexts. */
CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t n)
{
	GATE(cuMemcpyPeer, NEED_CTX);
	CUresult r = check_peers(dst_ctx, src_ctx);
	if (!r)
		r = sg_ctx_drain(dst_ctx);
	if (!r)
		r = sg_ctx_drain(src_ctx);
	if (!r)
		r = copy(&(struct copy_call){dst, src, n, DEVICE_SIDE, DEVICE_SIDE, dst_ctx, src_ctx, NULL, false});
	return r ? r : sg_ctx_drain(sg_current());
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx, size_t n,
			   CUstream stream)
{
	GATE(cuMemcpyPeerAsync, NEED_CTX);
	CUresult r = check_peers(dst_ctx, src_ctx);
	return r ? r
		 : copy(&(struct copy_call){dst, src, n, DEVICE_SIDE, DEVICE_SIDE, dst_ctx, src_ctx, stream, true});
}

static CUresult set(CUdeviceptr dst, uint32_t value, unsigned width, size_t count, CUstream stream, bool async)
{
	struct place p;
	if (!count)
		return CUDA_SUCCESS;
	if (dst % width || count > SIZE_MAX / width)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = locate(dst, count * width, DEVICE_SIDE, sg_current(), true, &p);
	if (r)
		return r;
	struct sg_work w = {.kind = OP_MEMSET, .set = {dst, count, value, width, p.dev}};
	return sg_submit(stream, &w, p.dev == HOST && !async ? SG_WAIT : 0);
}

CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t n)
{
	GATE(cuMemsetD8_v2, NEED_CTX);
	return set(dst, value, 1, n, NULL, false);
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream)
{
	GATE(cuMemsetD8Async, NEED_CTX);
	return set(dst, value, 1, n, stream, true);
}

CUresult cuMemsetD32_v2(CUdeviceptr dst, unsigned int value, size_t n)
{
	GATE(cuMemsetD32_v2, NEED_CTX);
	return set(dst, value, 4, n, NULL, false);
}

CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t n, CUstream stream)
{
	GATE(cuMemsetD32Async, NEED_CTX);
	return set(dst, value, 4, n, stream, true);
}
