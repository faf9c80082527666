/* Pinned host memory, and what a pointer is. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_rwlock_t sg_host_lock = PTHREAD_RWLOCK_INITIALIZER;

struct piece {
	uint64_t base, size;
	uint64_t mapped; /* bytes of our own mapping; 0 if the caller's memory was registered */
	unsigned flags;
	struct CUctx_st *ctx;
};

static struct piece *pieces; /* sorted by address */
static int npieces, cap_pieces;

static int piece_at(uint64_t addr)
{
	int lo = 0, hi = npieces;
	while (lo < hi) {
		int mid = (lo + hi) / 2;
		if (pieces[mid].base <= addr)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo - 1;
}

static struct piece *piece_holding(uint64_t addr)
{
	int i = piece_at(addr);
	return i >= 0 && addr - pieces[i].base < pieces[i].size ? &pieces[i] : NULL;
}

static bool add_piece(struct piece p)
{
	if (npieces == cap_pieces) {
		int n = cap_pieces ? 2 * cap_pieces : 32;
		struct piece *more = realloc(pieces, n * sizeof *pieces);
		if (!more)
			return false;
		pieces = more;
		cap_pieces = n;
	}
	int at = piece_at(p.base) + 1;
	memmove(&pieces[at + 1], &pieces[at], (npieces - at) * sizeof *pieces);
	pieces[at] = p;
	npieces++;
	return true;
}

static void remove_piece(struct piece *p)
{
	if (p->mapped)
		munmap((void *)(uintptr_t)p->base, p->mapped);
	memmove(p, p + 1, (npieces - (p - pieces) - 1) * sizeof *pieces);
	npieces--;
}

enum sg_host_kind sg_host_kind_of(uint64_t addr, uint64_t size)
{
	enum sg_host_kind kind = SG_PAGEABLE;
	pthread_rwlock_rdlock(&sg_host_lock);
	struct piece *p = piece_holding(addr);
	if (p)
		kind = addr - p->base + size <= p->size ? SG_PINNED : SG_HOST_SPLIT;
	pthread_rwlock_unlock(&sg_host_lock);
	return kind;
}

bool sg_host_range(uint64_t addr, CUdeviceptr *base, size_t *size)
{
	pthread_rwlock_rdlock(&sg_host_lock);
	struct piece *p = piece_holding(addr);
	if (p && base)
		*base = p->base;
	if (p && size)
		*size = p->size;
	pthread_rwlock_unlock(&sg_host_lock);
	return p != NULL;
}

/* Memory the caller registered is his and stays. */
void sg_host_free_all_of(struct CUctx_st *ctx)
{
	pthread_rwlock_wrlock(&sg_host_lock);
	for (int i = npieces - 1; i >= 0; i--)
		if (pieces[i].ctx == ctx)
			remove_piece(&pieces[i]);
	pthread_rwlock_unlock(&sg_host_lock);
}

static CUresult host_alloc(void **ptr, size_t size, unsigned flags)
{
	size_t page = sysconf(_SC_PAGESIZE), full = (size + page - 1) / page * page;
	CUresult r = sg_capture_unsafe();
	if (r)
		return r;
	if (!ptr || (flags & ~7u))
		return CUDA_ERROR_INVALID_VALUE;
	*ptr = NULL;
	if (!size)
		return CUDA_SUCCESS;
	if (full < size)
		return CUDA_ERROR_OUT_OF_MEMORY;
	void *p = mmap(NULL, full, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	madvise(p, full, MADV_DONTFORK);
	struct piece new = {(uintptr_t)p, size, full, flags | CU_MEMHOSTALLOC_DEVICEMAP, sg_current()};
	pthread_rwlock_wrlock(&sg_host_lock);
	bool added = add_piece(new);
	pthread_rwlock_unlock(&sg_host_lock);
	if (!added) {
		munmap(p, full);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*ptr = p;
	return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **ptr, size_t size, unsigned int flags)
{
	GATE(cuMemHostAlloc, NEED_CTX);
	return host_alloc(ptr, size, flags);
}

CUresult cuMemAllocHost_v2(void **ptr, size_t size)
{
	GATE(cuMemAllocHost_v2, NEED_CTX);
	return host_alloc(ptr, size, 0);
}

/* Waits for the work of its context, which may still use the memory. */
CUresult cuMemFreeHost(void *ptr)
{
	GATE(cuMemFreeHost, NEED_CTX);
	CUresult r = sg_capture_unsafe();
	struct CUctx_st *owner = NULL;
	if (r || !ptr)
		return r;
	pthread_rwlock_rdlock(&sg_host_lock);
	struct piece *p = piece_holding((uintptr_t)ptr);
	bool ours = p && p->base == (uintptr_t)ptr && p->mapped;
	if (ours)
		owner = p->ctx;
	pthread_rwlock_unlock(&sg_host_lock);
	if (!ours)
		return CUDA_ERROR_INVALID_VALUE;
	r = sg_ctx_drain(owner);
	pthread_rwlock_wrlock(&sg_host_lock);
	p = piece_holding((uintptr_t)ptr);
	if (p && p->base == (uintptr_t)ptr && p->mapped)
		remove_piece(p);
	else
		r = CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_unlock(&sg_host_lock);
	return r;
}

/* True if the pages are there at all. */
static bool is_mapped(uint64_t addr, uint64_t size)
{
	uint64_t page = sysconf(_SC_PAGESIZE), start = addr & ~(page - 1);
	return msync((void *)(uintptr_t)start, addr + size - start, MS_ASYNC) == 0;
}

CUresult cuMemHostRegister_v2(void *ptr, size_t size, unsigned int flags)
{
	GATE(cuMemHostRegister_v2, NEED_CTX);
	CUresult r = sg_capture_unsafe();
	uint64_t addr = (uintptr_t)ptr;
	if (r)
		return r;
	if (!ptr || !size || (flags & ~15u) || addr + size < addr || !is_mapped(addr, size))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_rdlock(&sg_mem_lock);
	bool device = sg_mem_overlaps(addr, size);
	pthread_rwlock_unlock(&sg_mem_lock);
	if (device)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&sg_host_lock);
	int last = piece_at(addr + size - 1);
	if (last >= 0 && pieces[last].base + pieces[last].size > addr)
		r = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	else if (!add_piece((struct piece){addr, size, 0, flags | CU_MEMHOSTREGISTER_DEVICEMAP, sg_current()}))
		r = CUDA_ERROR_OUT_OF_MEMORY;
	pthread_rwlock_unlock(&sg_host_lock);
	return r;
}

CUresult cuMemHostUnregister(void *ptr)
{
	GATE(cuMemHostUnregister, NEED_CTX);
	CUresult r = sg_capture_unsafe();
	struct CUctx_st *owner = NULL;
	if (r)
		return r;
	pthread_rwlock_rdlock(&sg_host_lock);
	struct piece *p = piece_holding((uintptr_t)ptr);
	if (!p)
		r = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	else if (p->mapped || p->base != (uintptr_t)ptr)
		r = CUDA_ERROR_INVALID_VALUE;
	else
		owner = p->ctx;
	pthread_rwlock_unlock(&sg_host_lock);
	if (r)
		return r;
	r = sg_ctx_drain(owner);
	pthread_rwlock_wrlock(&sg_host_lock);
	p = piece_holding((uintptr_t)ptr);
	if (p && p->base == (uintptr_t)ptr && !p->mapped)
		remove_piece(p);
	else
		r = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	pthread_rwlock_unlock(&sg_host_lock);
	return r;
}

CUresult cuMemHostGetFlags(unsigned int *flags, void *ptr)
{
	GATE(cuMemHostGetFlags, NEED_CTX);
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_rdlock(&sg_host_lock);
	struct piece *p = piece_holding((uintptr_t)ptr);
	if (p && flags) {
		*flags = p->flags;
		r = CUDA_SUCCESS;
	}
	pthread_rwlock_unlock(&sg_host_lock);
	return r;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *ptr, unsigned int flags)
{
	GATE(cuMemHostGetDevicePointer_v2, NEED_CTX);
	if (!device || flags || !sg_host_range((uintptr_t)ptr, NULL, NULL))
		return CUDA_ERROR_INVALID_VALUE;
	*device = (uintptr_t)ptr; /* one address space */
	return CUDA_SUCCESS;
}

/* ---- what a pointer is */

struct what {
	bool known;
	bool host;
	struct sg_range range; /* for host memory: base, size, device and ctx only */
};

static struct what look(uint64_t addr)
{
	struct what w = {0};
	pthread_rwlock_rdlock(&sg_mem_lock);
	bool reserved = sg_mem_find(addr, &w.range);
	pthread_rwlock_unlock(&sg_mem_lock);
	if (reserved) {
		w.known = w.range.mapped;
		return w;
	}
	pthread_rwlock_rdlock(&sg_host_lock);
	struct piece *p = piece_holding(addr);
	if (p) {
		w.known = w.host = true;
		w.range = (struct sg_range){.base = p->base, .size = p->size, .res_base = p->base, .res_size = p->size,
					    .device = p->ctx->device, .ctx = p->ctx, .mapped = true, .accessible = true};
	}
	pthread_rwlock_unlock(&sg_host_lock);
	return w;
}

/* Writes the attribute; false if the pointer has none such. */
static CUresult attribute(void *data, CUpointer_attribute a, uint64_t ptr, const struct what *w)
{
	const struct sg_range *r = &w->range;
	switch (a) {
	case CU_POINTER_ATTRIBUTE_CONTEXT: /* mapped memory belongs to the process, not to a context */
		*(CUcontext *)data = r->ctx;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)data = w->host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		if (!r->accessible)
			return CUDA_ERROR_INVALID_VALUE;
		*(CUdeviceptr *)data = ptr;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (!w->host && !r->managed)
			return CUDA_ERROR_INVALID_VALUE;
		*(void **)data = (void *)(uintptr_t)ptr;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = r->device;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: /* of the reservation, as the driver says it */
		*(CUdeviceptr *)data = r->res_base;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)data = r->res_size;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(unsigned *)data = 1;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		*(unsigned *)data = 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned *)data = r->managed;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(unsigned *)data = r->plain && !r->pool && !r->managed;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*(uint64_t *)data = r->exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
		*(unsigned *)data = r->rdma;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)data = r->base;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute a, CUdeviceptr ptr)
{
	GATE(cuPointerGetAttribute, NEED_INIT);
	struct what w = look(ptr);
	if (!data || !w.known)
		return CUDA_ERROR_INVALID_VALUE;
	return attribute(data, a, ptr, &w);
}

/* What an unknown pointer gets: 0, but -2 as its device; of a hole in a reservation the reservation is still told. */
static void nothing(void *data, CUpointer_attribute a, const struct what *w)
{
	switch (a) {
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = -2;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)data = w->range.res_base;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)data = w->range.res_size;
		break;
	case CU_POINTER_ATTRIBUTE_CONTEXT:
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*(uint64_t *)data = 0;
		break;
	default:
		*(unsigned *)data = 0;
	}
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr)
{
	GATE(cuPointerGetAttributes, NEED_INIT);
	struct what w = look(ptr);
	if (!count || !attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++)
		if (!w.known || attribute(data[i], attributes[i], ptr, &w))
			nothing(data[i], attributes[i], &w);
	return CUDA_SUCCESS;
}
