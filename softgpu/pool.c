/* Memory pools, and allocations in the order of a stream.
 *
 * A pool takes memory from its device block by block, of whole granules, and keeps what is freed for the next allocation. A block
 * is freed when the stream comes to it: until then its bytes are there, from then on an access to it faults. What a pool keeps
 * beyond its threshold (0 at first) goes back at the next wait for a stream, an event or a context, or by cuMemPoolTrimTo.
 *
 * A block can be used at once, not only when its stream comes to the allocation, and is used again only once it is free: never
 * earlier in the order of one stream. Allocations in a capture are refused: there is no memory of graphs.
 *
 * All of it is under sg_mem_lock. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

enum { POOL_MAGIC = 0x504f4f4c };

struct block {
	uint64_t addr, size;
	bool used, freed; /* freed: and the stream has not come to it */
};

struct CUmemPoolHandle_st { /* never returned to the heap, so that a stale one can be told */
	uint32_t magic; /* 0: destroyed */
	int device;
	bool standard;
	int reuse[3];
	uint64_t threshold, max_size;
	uint64_t reserved, reserved_high, used, used_high;
	uint8_t access[SG_MAX_DEVICES];
	struct block *blocks;
	int nblocks, cap_blocks;
	struct CUmemPoolHandle_st *next;
};

static struct CUmemPoolHandle_st standard[SG_MAX_DEVICES], *others;
static struct CUmemPoolHandle_st *current[SG_MAX_DEVICES]; /* NULL: the standard one */

static void init_pool(struct CUmemPoolHandle_st *p, int device)
{
	p->magic = POOL_MAGIC;
	p->device = device;
	p->access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	for (int i = 0; i < 3; i++)
		p->reuse[i] = 1;
}

static struct CUmemPoolHandle_st *standard_of(int device)
{
	if (!standard[device].magic) {
		init_pool(&standard[device], device);
		standard[device].standard = true;
	}
	return &standard[device];
}

static struct CUmemPoolHandle_st *current_of(int device)
{
	return current[device] ? current[device] : standard_of(device);
}

static bool bad_pool(const struct CUmemPoolHandle_st *pool)
{
	if (pool >= standard && pool < standard + SG_MAX_DEVICES)
		return !pool->magic;
	for (const struct CUmemPoolHandle_st *p = others; p; p = p->next)
		if (p == pool)
			return !p->magic;
	return true;
}

static bool bad_device(CUdevice dev)
{
	return dev < 0 || dev >= sg_config.devices;
}

static uint64_t rounded(uint64_t n, uint64_t unit)
{
	return (n + unit - 1) / unit * unit;
}

static void drop(struct CUmemPoolHandle_st *p, int i)
{
	sg_block_drop(p->blocks[i].addr);
	p->reserved -= p->blocks[i].size;
	p->blocks[i] = p->blocks[--p->nblocks];
}

static void trim(struct CUmemPoolHandle_st *p, uint64_t keep)
{
	for (int i = p->nblocks - 1; i >= 0 && p->reserved > keep; i--)
		if (!p->blocks[i].used)
			drop(p, i);
}

static struct block *find(struct CUmemPoolHandle_st *p, uint64_t addr)
{
	for (int i = 0; i < p->nblocks; i++)
		if (p->blocks[i].addr == addr)
			return &p->blocks[i];
	return NULL;
}

/* The smallest free block that is large enough. */
static struct block *reuse(struct CUmemPoolHandle_st *p, uint64_t size)
{
	struct block *best = NULL;
	for (int i = 0; i < p->nblocks; i++) {
		struct block *b = &p->blocks[i];
		if (!b->used && b->size >= size && (!best || b->size < best->size))
			best = b;
	}
	return best;
}

static void count_use(struct CUmemPoolHandle_st *p, int64_t bytes)
{
	p->used += bytes;
	if (p->used > p->used_high)
		p->used_high = p->used;
}

static bool room_for_block(struct CUmemPoolHandle_st *p)
{
	if (p->nblocks < p->cap_blocks)
		return true;
	int n = p->cap_blocks ? 2 * p->cap_blocks : 16;
	struct block *more = realloc(p->blocks, n * sizeof *more);
	if (!more)
		return false;
	p->blocks = more;
	p->cap_blocks = n;
	return true;
}

/* Takes the lock itself, and gives it up while memory is made. */
static CUresult allocate(struct CUmemPoolHandle_st *p, size_t size, uint64_t *addr)
{
	uint64_t full = rounded(size, sg_config.granularity);
	uint8_t access[SG_MAX_DEVICES];
	pthread_rwlock_wrlock(&sg_mem_lock);
	CUresult r = bad_pool(p) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	struct block *b = r ? NULL : reuse(p, full);
	if (b) {
		b->used = true;
		b->freed = false;
		*addr = b->addr;
		r = sg_block_access(b->addr, size, p->access) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
		count_use(p, b->size);
	} else if (!r && p->max_size && p->reserved + full > p->max_size) {
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	memcpy(access, p->access, sizeof access);
	int device = p->device;
	pthread_rwlock_unlock(&sg_mem_lock);
	if (b || r)
		return r;

	r = sg_block_new(p, device, full, access, addr);
	if (r)
		return r;
	pthread_rwlock_wrlock(&sg_mem_lock);
	if (room_for_block(p)) {
		p->blocks[p->nblocks++] = (struct block){.addr = *addr, .size = full, .used = true};
		p->reserved += full;
		if (p->reserved > p->reserved_high)
			p->reserved_high = p->reserved;
		count_use(p, full);
		sg_block_access(*addr, size, p->access);
	} else {
		sg_block_drop(*addr);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_rwlock_unlock(&sg_mem_lock);
	return r;
}

static void free_locked(struct CUmemPoolHandle_st *p, struct block *b)
{
	static const uint8_t nobody[SG_MAX_DEVICES];
	b->used = b->freed = false;
	p->used -= b->size;
	sg_block_access(b->addr, b->size, nobody);
	if (!p->magic) /* the pool is gone, and went on for this block only */
		trim(p, 0);
}

void sg_pool_freed(uint64_t addr)
{
	pthread_rwlock_wrlock(&sg_mem_lock);
	struct CUmemPoolHandle_st *p = sg_block_pool(addr);
	struct block *b = p ? find(p, addr) : NULL;
	if (b && b->used)
		free_locked(p, b);
	pthread_rwlock_unlock(&sg_mem_lock);
}

/* True if a block is in use there and not about to be freed; then it is, if `take` says so. */
static bool to_be_freed(uint64_t addr, bool take)
{
	pthread_rwlock_wrlock(&sg_mem_lock);
	struct CUmemPoolHandle_st *p = sg_block_pool(addr);
	struct block *b = p ? find(p, addr) : NULL;
	bool ok = b && b->used && !b->freed;
	if (b && ok)
		b->freed = take;
	pthread_rwlock_unlock(&sg_mem_lock);
	return ok;
}

CUresult sg_pool_free(uint64_t addr)
{
	if (!to_be_freed(addr, true))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = sg_ctx_drain(sg_current());
	sg_pool_freed(addr);
	return r;
}

void sg_pool_synchronized(struct CUctx_st *ctx)
{
	bool more = false;
	pthread_rwlock_rdlock(&sg_mem_lock);
	more = standard[ctx->device].reserved > standard[ctx->device].threshold;
	for (struct CUmemPoolHandle_st *p = others; p && !more; p = p->next)
		more = p->device == ctx->device && p->reserved > p->threshold;
	pthread_rwlock_unlock(&sg_mem_lock);
	if (!more)
		return;
	pthread_rwlock_wrlock(&sg_mem_lock);
	trim(&standard[ctx->device], standard[ctx->device].threshold);
	for (struct CUmemPoolHandle_st *p = others; p; p = p->next)
		if (p->device == ctx->device)
			trim(p, p->threshold);
	pthread_rwlock_unlock(&sg_mem_lock);
}

/* ---- driver calls: allocations */

static CUresult alloc_async(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream)
{
	int device;
	uint64_t addr = 0;
	if (!ptr || !size)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = sg_stream_device(stream, &device);
	if (!r && size > sg_config.mem_bytes)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (r)
		return r;
	if (!pool) {
		pthread_rwlock_wrlock(&sg_mem_lock);
		pool = current_of(device);
		pthread_rwlock_unlock(&sg_mem_lock);
	}
	r = allocate(pool, size, &addr);
	if (!r)
		*ptr = addr;
	return r;
}

CUresult cuMemAllocAsync(CUdeviceptr *ptr, size_t size, CUstream stream)
{
	GATE(cuMemAllocAsync, NEED_CTX);
	return alloc_async(ptr, size, NULL, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream)
{
	GATE(cuMemAllocFromPoolAsync, NEED_CTX);
	return pool ? alloc_async(ptr, size, pool, stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
	GATE(cuMemFreeAsync, NEED_CTX);
	int device;
	struct sg_work w = {.kind = OP_FREE, .freed = ptr};
	CUresult r = sg_stream_device(stream, &device);
	if (!r && !to_be_freed(ptr, true))
		r = CUDA_ERROR_INVALID_VALUE;
	return r ? r : sg_submit(stream, &w, 0);
}

/* ---- driver calls: pools */

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice dev)
{
	GATE(cuDeviceGetDefaultMemPool, NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&sg_mem_lock);
	*pool = standard_of(dev);
	pthread_rwlock_unlock(&sg_mem_lock);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
	GATE(cuDeviceGetMemPool, NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&sg_mem_lock);
	*pool = current_of(dev);
	pthread_rwlock_unlock(&sg_mem_lock);
	return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
	GATE(cuDeviceSetMemPool, NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_rwlock_wrlock(&sg_mem_lock);
	CUresult r = bad_pool(pool) || pool->device != dev ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	if (!r)
		current[dev] = pool;
	pthread_rwlock_unlock(&sg_mem_lock);
	return r;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	GATE(cuMemPoolCreate, NEED_INIT);
	if (!pool || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE || props->handleTypes)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (bad_device(props->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	struct CUmemPoolHandle_st *p = calloc(1, sizeof *p);
	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	init_pool(p, props->location.id);
	p->max_size = props->maxSize;
	pthread_rwlock_wrlock(&sg_mem_lock);
	p->next = others;
	others = p;
	pthread_rwlock_unlock(&sg_mem_lock);
	*pool = p;
	return CUDA_SUCCESS;
}

/* Blocks in use stay until they are freed. */
CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	GATE(cuMemPoolDestroy, NEED_INIT);
	pthread_rwlock_wrlock(&sg_mem_lock);
	CUresult r = bad_pool(pool) || pool->standard ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	if (!r) {
		pool->magic = 0;
		trim(pool, 0);
		if (current[pool->device] == pool)
			current[pool->device] = NULL;
	}
	pthread_rwlock_unlock(&sg_mem_lock);
	return r;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	GATE(cuMemPoolTrimTo, NEED_INIT);
	pthread_rwlock_wrlock(&sg_mem_lock);
	CUresult r = bad_pool(pool) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	if (!r)
		trim(pool, keep);
	pthread_rwlock_unlock(&sg_mem_lock);
	return r;
}

static CUresult get_attribute(struct CUmemPoolHandle_st *p, CUmemPool_attribute a, void *value)
{
	switch (a) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		*(int *)value = p->reuse[a - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		*(uint64_t *)value = p->threshold;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		*(uint64_t *)value = p->reserved;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		*(uint64_t *)value = p->reserved_high;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		*(uint64_t *)value = p->used;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		*(uint64_t *)value = p->used_high;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	GATE(cuMemPoolGetAttribute, NEED_INIT);
	pthread_rwlock_rdlock(&sg_mem_lock);
	CUresult r = !value || bad_pool(pool) ? CUDA_ERROR_INVALID_VALUE : get_attribute(pool, attr, value);
	pthread_rwlock_unlock(&sg_mem_lock);
	return r;
}

/* The high marks can be set back to 0, and then are what is current. */
static CUresult set_attribute(struct CUmemPoolHandle_st *p, CUmemPool_attribute a, const void *value)
{
	switch (a) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		p->reuse[a - CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(const int *)value != 0;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		p->threshold = *(const uint64_t *)value;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		if (*(const uint64_t *)value)
			return CUDA_ERROR_INVALID_VALUE;
		if (a == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
			p->used_high = p->used;
		else
			p->reserved_high = p->reserved;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
	GATE(cuMemPoolSetAttribute, NEED_INIT);
	pthread_rwlock_wrlock(&sg_mem_lock);
	CUresult r = !value || bad_pool(pool) ? CUDA_ERROR_INVALID_VALUE : set_attribute(pool, attr, value);
	pthread_rwlock_unlock(&sg_mem_lock);
	return r;
}

static bool good_access(const struct CUmemPoolHandle_st *p, const CUmemAccessDesc *d)
{
	if (d->location.type != CU_MEM_LOCATION_TYPE_DEVICE || bad_device(d->location.id))
		return false;
	if (d->location.id == p->device) /* cannot be taken from the owner */
		return d->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	return d->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || d->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

/* Holds for what is allocated and for what will be. */
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *desc, size_t count)
{
	GATE(cuMemPoolSetAccess, NEED_INIT);
	pthread_rwlock_wrlock(&sg_mem_lock);
	CUresult r = bad_pool(pool) || !desc ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	for (size_t i = 0; !r && i < count; i++)
		if (!good_access(pool, &desc[i]))
			r = CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; !r && i < count; i++)
		pool->access[desc[i].location.id] = desc[i].flags;
	for (int i = 0; !r && i < pool->nblocks; i++)
		if (pool->blocks[i].used && !sg_block_access(pool->blocks[i].addr, pool->blocks[i].size, pool->access))
			r = CUDA_ERROR_OUT_OF_MEMORY;
	pthread_rwlock_unlock(&sg_mem_lock);
	return r;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)
{
	GATE(cuMemPoolGetAccess, NEED_INIT);
	pthread_rwlock_rdlock(&sg_mem_lock);
	CUresult r = !flags || !location || bad_pool(pool) || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
				     bad_device(location->id)
			     ? CUDA_ERROR_INVALID_VALUE
			     : CUDA_SUCCESS;
	if (!r)
		*flags = pool->access[location->id];
	pthread_rwlock_unlock(&sg_mem_lock);
	return r;
}

/* ---- driver calls: memory of graphs, of which there is none */

CUresult cuDeviceGetGraphMemAttribute(CUdevice dev, CUgraphMem_attribute attr, void *value)
{
	GATE(cuDeviceGetGraphMemAttribute, NEED_INIT);
	if (bad_device(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!value || attr < CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT || attr > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
		return CUDA_ERROR_INVALID_VALUE;
	*(uint64_t *)value = 0;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice dev)
{
	GATE(cuDeviceGraphMemTrim, NEED_INIT);
	return bad_device(dev) ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

/* ---- driver calls: multicast, which a device alone does not have */

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop)
{
	GATE(cuMulticastCreate, NEED_INIT);
	return handle && prop ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice dev)
{
	GATE(cuMulticastAddDevice, NEED_INIT);
	(void)handle;
	(void)dev;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t offset, CUmemGenericAllocationHandle memory,
			    size_t memory_offset, size_t size, unsigned long long flags)
{
	GATE(cuMulticastBindMem, NEED_INIT);
	(void)handle;
	(void)offset;
	(void)memory;
	(void)memory_offset;
	(void)size;
	(void)flags;
	return CUDA_ERROR_NOT_SUPPORTED;
}
