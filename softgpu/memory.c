/* Device memory: physical handles, address ranges, mappings, plain allocations.
 *
 * A handle is a memfd: memory that is really there, once. A reservation is address space that really belongs to it, PROT_NONE. A
 * mapping places a handle's memfd into a reservation, and what no device may access no host thread may touch either. So an
 * address whose memory was taken away answers with SIGSEGV.
 *
 * As the driver does (tests/parity.real), a mapping is always of a whole handle, and ranges are changed by whole mappings. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Writers go first: with eight copying threads a reader-first lock would never let an unmap in. */
pthread_rwlock_t sg_mem_lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

enum { PLAIN_UNIT = 64 << 10 }; /* plain allocations take memory in these units */

/* ---- handles. An id is never used twice, so that a stale one is told from a live one. */

struct handle {
	uint64_t id; /* 0: the slot is free */
	uint64_t size;
	int fd;
	int refs;     /* the caller's: create, retain, import */
	int mappings; /* keep the memory, but not the handle's right to be used */
	bool counted; /* this process pays for it; not if imported */
	CUmemAllocationProp prop;
	int next_free;
};

static struct handle *handles;
static int nhandles, free_handle = -1;
static uint64_t generation;

enum { SLOT_BITS = 24 };

static struct handle *handle_of(uint64_t id)
{
	uint64_t slot = (id & ((1u << SLOT_BITS) - 1));
	if (slot == 0 || slot > (uint64_t)nhandles || handles[slot - 1].id != id)
		return NULL;
	return &handles[slot - 1];
}

static bool grow_handles(void)
{
	int n = nhandles ? 2 * nhandles : 64;
	struct handle *more = n < 1 << SLOT_BITS ? realloc(handles, n * sizeof *handles) : NULL;
	if (!more)
		return false;
	handles = more;
	for (int i = n - 1; i >= nhandles; i--) {
		handles[i].id = 0;
		handles[i].next_free = free_handle;
		free_handle = i;
	}
	nhandles = n;
	return true;
}

/* Takes over the file and the payment. Needs the lock for writing. */
static struct handle *new_handle(uint64_t size, int fd, bool counted, const CUmemAllocationProp *prop)
{
	if (free_handle < 0 && !grow_handles())
		return NULL;
	struct handle *h = &handles[free_handle];
	uint64_t slot = free_handle + 1;
	free_handle = h->next_free;
	*h = (struct handle){.id = ++generation << SLOT_BITS | slot, .size = size, .fd = fd, .refs = 1,
			     .counted = counted, .prop = *prop};
	return h;
}

static void drop_if_unused(struct handle *h)
{
	if (h->refs || h->mappings)
		return;
	close(h->fd);
	if (h->counted)
		sg_node_give(h->prop.location.id, h->size);
	h->id = 0;
	h->next_free = free_handle;
	free_handle = h - handles;
}

/* Bytes of device memory, zeroed as the driver hands them out; paid for at the node by the caller. */
static CUresult new_memory(uint64_t size, int device, int *fd)
{
	static atomic_bool told;
	char name[100];
	snprintf(name, sizeof name, "softgpu:%d:%s", device, sg_config.node);
	*fd = sg_fd_above_std(memfd_create(name, MFD_CLOEXEC));
	/* A program that closed its standard streams may still write to them, but not into memory. */
	if (*fd >= 0 && *fd <= STDERR_FILENO) {
		int above = fcntl(*fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
		close(*fd);
		*fd = above;
	}
	if (*fd >= 0 && ftruncate(*fd, size) == 0)
		return CUDA_SUCCESS;
	if ((errno == EMFILE || errno == ENFILE) && !atomic_exchange(&told, true))
		sg_complain("out of file descriptors, one per handle of device memory: raise ulimit -n");
	if (*fd >= 0)
		close(*fd);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- ranges; both arrays are sorted by address */

struct reservation {
	uint64_t base, size;
};

struct mapping {
	uint64_t base, size;
	uint64_t handle;	/* 0: a plain allocation */
	int device;
	struct CUctx_st *ctx;	/* of a plain allocation */
	struct CUmemPoolHandle_st *pool; /* it is a block of that pool; it has no context then */
	uint64_t asked;		/* its size as the caller gave it */
	bool managed;
	uint8_t access[SG_MAX_DEVICES]; /* CUmemAccess_flags */
};

static struct reservation *res;
static int nres, cap_res;
static struct mapping *maps;
static int nmaps, cap_maps;

/* Index of the last element that starts at or before the address, -1 if none. */
static int res_at(uint64_t addr)
{
	int lo = 0, hi = nres;
	while (lo < hi) {
		int mid = (lo + hi) / 2;
		if (res[mid].base <= addr)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo - 1;
}

static int map_at(uint64_t addr)
{
	int lo = 0, hi = nmaps;
	while (lo < hi) {
		int mid = (lo + hi) / 2;
		if (maps[mid].base <= addr)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo - 1;
}

static struct reservation *res_holding(uint64_t addr)
{
	int i = res_at(addr);
	return i >= 0 && addr - res[i].base < res[i].size ? &res[i] : NULL;
}

static struct mapping *map_holding(uint64_t addr)
{
	int i = map_at(addr);
	return i >= 0 && addr - maps[i].base < maps[i].size ? &maps[i] : NULL;
}

/* The first mapping that ends after the address. */
static int first_map_after(uint64_t addr)
{
	int i = map_at(addr);
	return i >= 0 && addr - maps[i].base < maps[i].size ? i : i + 1;
}

static bool add_reservation(uint64_t base, uint64_t size)
{
	if (nres == cap_res) {
		int n = cap_res ? 2 * cap_res : 64;
		struct reservation *more = realloc(res, n * sizeof *res);
		if (!more)
			return false;
		res = more;
		cap_res = n;
	}
	int at = res_at(base) + 1;
	memmove(&res[at + 1], &res[at], (nres - at) * sizeof *res);
	res[at] = (struct reservation){base, size};
	nres++;
	return true;
}

static void remove_reservation(struct reservation *r)
{
	int at = r - res;
	memmove(r, r + 1, (nres - at - 1) * sizeof *res);
	nres--;
}

static struct mapping *add_mapping(uint64_t base, uint64_t size)
{
	if (nmaps == cap_maps) {
		int n = cap_maps ? 2 * cap_maps : 64;
		struct mapping *more = realloc(maps, n * sizeof *maps);
		if (!more)
			return NULL;
		maps = more;
		cap_maps = n;
	}
	int at = map_at(base) + 1;
	memmove(&maps[at + 1], &maps[at], (nmaps - at) * sizeof *maps);
	maps[at] = (struct mapping){.base = base, .size = size, .asked = size};
	nmaps++;
	return &maps[at];
}

static void remove_mapping(struct mapping *m)
{
	int at = m - maps;
	memmove(m, m + 1, (nmaps - at - 1) * sizeof *maps);
	nmaps--;
}

static void *pointer(uint64_t addr)
{
	return (void *)(uintptr_t)addr;
}

/* Address space nobody may touch; MAP_FIXED over what was mapped there. */
static bool make_void(uint64_t addr, uint64_t size)
{
	return mmap(pointer(addr), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) !=
	       MAP_FAILED;
}

/* New address space, at the hint if that is free. 0 if there is none. */
static uint64_t reserve_space(uint64_t size, uint64_t alignment, uint64_t hint)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	void *p;
	if (hint) {
		p = mmap(pointer(hint), size, PROT_NONE, flags, -1, 0);
		if (p == pointer(hint) && hint % alignment == 0)
			return hint;
		if (p != MAP_FAILED)
			munmap(p, size);
	}
	if (size > UINT64_MAX / 2 || alignment > UINT64_MAX / 4)
		return 0;
	p = mmap(NULL, size + alignment, PROT_NONE, flags, -1, 0);
	if (p == MAP_FAILED)
		return 0;
	uint64_t start = (uintptr_t)p, base = (start + alignment - 1) & ~(alignment - 1);
	if (base > start)
		munmap(p, base - start);
	if (start + alignment > base)
		munmap(pointer(base + size), start + alignment - base);
	return base;
}

static int host_protection(const struct mapping *m)
{
	unsigned all = 0;
	for (int d = 0; d < sg_config.devices; d++)
		all |= m->access[d];
	return (all & 1 ? PROT_READ : 0) | (all & 2 ? PROT_WRITE : 0);
}

/* ---- what others ask; all need sg_mem_lock */

bool sg_mem_find(uint64_t addr, struct sg_range *r)
{
	struct reservation *s = res_holding(addr);
	struct mapping *m = map_holding(addr);
	memset(r, 0, sizeof *r);
	if (!s)
		return false;
	r->res_base = s->base;
	r->res_size = s->size;
	if (!m)
		return true;
	struct handle *h = handle_of(m->handle);
	r->mapped = true;
	r->base = m->base;
	r->size = m->asked;
	r->device = m->device;
	r->plain = !m->handle;
	r->pool = m->pool;
	r->managed = m->managed;
	r->ctx = m->ctx;
	r->accessible = host_protection(m) != PROT_NONE;
	r->exportable = h && h->prop.requestedHandleTypes;
	r->rdma = h && h->prop.allocFlags.gpuDirectRDMACapable;
	if (r->plain)
		r->res_size = m->asked;
	return true;
}

bool sg_mem_is_device(uint64_t addr)
{
	return res_holding(addr) != NULL;
}

bool sg_mem_overlaps(uint64_t addr, uint64_t size)
{
	int i = res_at(addr + size - 1);
	return i >= 0 && res[i].base + res[i].size > addr;
}

/* Plain allocations can be copied by any device, since the driver finds a way; mappings and blocks of pools only by those given
 * access. */
bool sg_mem_accessible(uint64_t addr, uint64_t size, int device, bool write)
{
	uint8_t need = write ? 3 : 1;
	int i = first_map_after(addr);
	for (; size; i++) {
		if (i >= nmaps || maps[i].base > addr)
			return false;
		if ((maps[i].handle || maps[i].pool) && (maps[i].access[device] & need) != need)
			return false;
		/* the tail of the last unit is memory, but not the caller's */
		uint64_t end = maps[i].base + (maps[i].handle ? maps[i].size : maps[i].asked);
		if (end <= addr)
			return false;
		uint64_t n = end - addr < size ? end - addr : size;
		addr += n;
		size -= n;
	}
	return true;
}

/* ---- plain allocations: a reservation, its memory and its mapping in one */

/* Of whole units. The new mapping has its address, sizes, device and rights. */
static CUresult new_plain(int device, uint64_t full, size_t asked, const struct mapping *like, uint64_t *addr)
{
	int fd;
	CUresult r = sg_node_take(device, full);
	if (r)
		return r;
	r = new_memory(full, device, &fd);
	if (r) {
		sg_node_give(device, full);
		return r;
	}
	pthread_rwlock_wrlock(&sg_mem_lock);
	uint64_t base = reserve_space(full, PLAIN_UNIT, 0);
	struct mapping *m = NULL;
	r = CUDA_ERROR_OUT_OF_MEMORY;
	if (base && mmap(pointer(base), full, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED &&
	    add_reservation(base, full)) {
		m = add_mapping(base, full);
		if (!m)
			remove_reservation(res_holding(base));
	}
	if (m) {
		madvise(pointer(base), full, MADV_DONTFORK);
		m->asked = asked;
		m->device = device;
		m->ctx = like->ctx;
		m->pool = like->pool;
		m->managed = like->managed;
		memcpy(m->access, like->access, sizeof m->access);
		m->access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
		*addr = base;
		r = CUDA_SUCCESS;
	}
	pthread_rwlock_unlock(&sg_mem_lock);
	close(fd); /* the mapping keeps the memory */
	if (r) {
		if (base)
			munmap(pointer(base), full);
		sg_node_give(device, full);
	}
	return r;
}

static CUresult alloc_plain(struct CUctx_st *ctx, uint64_t *addr, size_t size, bool managed)
{
	if (!addr || size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (size > sg_config.mem_bytes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	uint64_t full = (size + PLAIN_UNIT - 1) / PLAIN_UNIT * PLAIN_UNIT;
	struct mapping like = {.ctx = ctx, .managed = managed};
	return new_plain(ctx->device, full, size, &like, addr);
}

CUresult sg_mem_alloc(struct CUctx_st *ctx, uint64_t *addr, size_t size)
{
	return alloc_plain(ctx, addr, size, false);
}

/* ---- blocks of pools */

CUresult sg_block_new(struct CUmemPoolHandle_st *pool, int device, uint64_t full, const uint8_t *access, uint64_t *addr)
{
	struct mapping like = {.pool = pool};
	memcpy(like.access, access, sizeof like.access);
	return new_plain(device, full, full, &like, addr);
}

static struct mapping *block_at(uint64_t addr)
{
	struct mapping *m = map_holding(addr);
	return m && m->base == addr && m->pool ? m : NULL;
}

struct CUmemPoolHandle_st *sg_block_pool(uint64_t addr)
{
	struct mapping *m = block_at(addr);
	return m ? m->pool : NULL;
}

bool sg_block_access(uint64_t addr, size_t asked, const uint8_t *access)
{
	struct mapping *m = block_at(addr);
	m->asked = asked;
	memcpy(m->access, access, sizeof m->access);
	return mprotect(pointer(m->base), m->size, host_protection(m)) == 0;
}

static void free_plain(struct mapping *m)
{
	munmap(pointer(m->base), m->size);
	sg_node_give(m->device, m->size);
	remove_reservation(res_holding(m->base));
	remove_mapping(m);
}

void sg_block_drop(uint64_t addr)
{
	free_plain(block_at(addr));
}

CUresult sg_mem_free(uint64_t addr, struct CUctx_st **owner, bool only_look)
{
	pthread_rwlock_wrlock(&sg_mem_lock);
	struct mapping *m = map_holding(addr);
	CUresult r = m && m->base == addr && !m->handle && !m->pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	if (!r && owner)
		*owner = m->ctx;
	if (!r && !only_look)
		free_plain(m);
	pthread_rwlock_unlock(&sg_mem_lock);
	return r;
}

void sg_mem_free_all_of(struct CUctx_st *ctx)
{
	pthread_rwlock_wrlock(&sg_mem_lock);
	for (int i = nmaps - 1; i >= 0; i--)
		if (maps[i].ctx == ctx)
			free_plain(&maps[i]);
	pthread_rwlock_unlock(&sg_mem_lock);
}

CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t size)
{
	GATE(cuMemAlloc_v2, NEED_CTX);
	CUresult r = sg_capture_unsafe();
	uint64_t addr = 0;
	if (!ptr)
		return CUDA_ERROR_INVALID_VALUE;
	if (!r)
		r = sg_mem_alloc(sg_current(), &addr, size);
	if (!r)
		*ptr = addr;
	return r;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	GATE(cuMemAllocPitch_v2, NEED_CTX);
	enum { PITCH = 512 };
	uint64_t addr = 0;
	if (!ptr || !pitch || !width || !height || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	if (width > sg_config.mem_bytes || height > sg_config.mem_bytes / width)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = sg_capture_unsafe();
	size_t row = (width + PITCH - 1) / PITCH * PITCH;
	if (!r)
		r = sg_mem_alloc(sg_current(), &addr, row * height);
	if (!r) {
		*ptr = addr;
		*pitch = row;
	}
	return r;
}

/* Does not move: it is memory of the device, which the host may touch as all of softgpu's. */
CUresult cuMemAllocManaged(CUdeviceptr *ptr, size_t size, unsigned int flags)
{
	GATE(cuMemAllocManaged, NEED_CTX);
	uint64_t addr = 0;
	if (!ptr || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = sg_capture_unsafe();
	if (!r)
		r = alloc_plain(sg_current(), &addr, size, true);
	if (!r)
		*ptr = addr;
	return r;
}

/* Waits for all work of the allocation's context first, as the driver does. */
CUresult cuMemFree_v2(CUdeviceptr ptr)
{
	GATE(cuMemFree_v2, NEED_INIT);
	struct CUctx_st *ctx = sg_current(), *owner = NULL;
	CUresult r;
	if (!ctx)
		return ptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
	if (!atomic_load(&ctx->alive))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (atomic_load(&ctx->sticky))
		return atomic_load(&ctx->sticky);
	r = sg_capture_unsafe();
	if (r || !ptr)
		return r;
	r = sg_mem_free(ptr, &owner, true);
	if (r)
		return sg_pool_free(ptr); /* or none of a pool's */
	r = sg_ctx_drain(owner);
	return r ? r : sg_mem_free(ptr, NULL, false);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	GATE(cuMemGetInfo_v2, NEED_CTX);
	uint64_t f, t;
	if (!free_bytes || !total)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = sg_node_info(sg_current()->device, &f, &t);
	*free_bytes = f;
	*total = t;
	return r;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
	GATE(cuMemGetAddressRange_v2, NEED_INIT);
	struct sg_range r;
	pthread_rwlock_rdlock(&sg_mem_lock);
	bool found = sg_mem_find(ptr, &r) && r.mapped && r.accessible;
	pthread_rwlock_unlock(&sg_mem_lock);
	if (!found && sg_host_range(ptr, base, size))
		return CUDA_SUCCESS;
	if (!found)
		r.base = r.size = 0;
	if (base)
		*base = r.base;
	if (size)
		*size = r.size;
	return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* ---- reservations */

static bool unaligned(uint64_t n)
{
	return n % sg_config.granularity != 0;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags)
{
	GATE(cuMemAddressReserve, NEED_INIT);
	CUresult r = CUDA_SUCCESS;
	if (!ptr || !size || unaligned(size) || unaligned(addr) || flags || (alignment & (alignment - 1)))
		return CUDA_ERROR_INVALID_VALUE;
	if (alignment < sg_config.granularity)
		alignment = sg_config.granularity;
	pthread_rwlock_wrlock(&sg_mem_lock);
	uint64_t base = reserve_space(size, alignment, addr);
	if (!base || !add_reservation(base, size)) {
		if (base)
			munmap(pointer(base), size);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_rwlock_unlock(&sg_mem_lock);
	if (!r)
		*ptr = base;
	return r;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
	GATE(cuMemAddressFree, NEED_INIT);
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&sg_mem_lock);
	struct reservation *s = res_holding(ptr);
	int i = first_map_after(ptr);
	if (s && s->base == ptr && s->size == size && (i >= nmaps || maps[i].base >= ptr + size)) {
		munmap(pointer(ptr), size);
		remove_reservation(s);
		r = CUDA_SUCCESS;
	}
	pthread_rwlock_unlock(&sg_mem_lock);
	return r;
}

/* ---- handles, as the caller sees them */

static CUresult check_prop(const CUmemAllocationProp *p)
{
	if (!p || p->type != CU_MEM_ALLOCATION_TYPE_PINNED || p->location.type == CU_MEM_LOCATION_TYPE_INVALID ||
	    p->location.type > CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
		return CUDA_ERROR_INVALID_VALUE;
	if (p->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	    (p->location.id < 0 || p->location.id >= sg_config.devices))
		return CUDA_ERROR_INVALID_DEVICE;
	return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
				       CUmemAllocationGranularity_flags option)
{
	GATE(cuMemGetAllocationGranularity, NEED_INIT);
	CUresult r = check_prop(prop);
	if (!granularity || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
		return CUDA_ERROR_INVALID_VALUE;
	if (!r)
		*granularity = sg_config.granularity;
	return r;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
		     unsigned long long flags)
{
	GATE(cuMemCreate, NEED_INIT);
	int fd;
	CUresult r = check_prop(prop);
	if (r || !handle || !size || unaligned(size) || flags)
		return r ? r : CUDA_ERROR_INVALID_VALUE;
	if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || (prop->allocFlags.gpuDirectRDMACapable && !sg_config.rdma) ||
	    (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
		return CUDA_ERROR_NOT_SUPPORTED;
	r = sg_node_take(prop->location.id, size);
	if (r)
		return r;
	r = new_memory(size, prop->location.id, &fd);
	if (!r) {
		pthread_rwlock_wrlock(&sg_mem_lock);
		struct handle *h = new_handle(size, fd, true, prop);
		if (h)
			*handle = h->id;
		else
			r = CUDA_ERROR_OUT_OF_MEMORY;
		pthread_rwlock_unlock(&sg_mem_lock);
		if (r)
			close(fd);
	}
	if (r)
		sg_node_give(prop->location.id, size);
	return r;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	GATE(cuMemRelease, NEED_INIT);
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&sg_mem_lock);
	struct handle *h = handle_of(handle);
	if (h && h->refs > 0) {
		h->refs--;
		drop_if_unused(h);
		r = CUDA_SUCCESS;
	}
	pthread_rwlock_unlock(&sg_mem_lock);
	return r;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	GATE(cuMemRetainAllocationHandle, NEED_INIT);
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&sg_mem_lock);
	struct mapping *m = map_holding((uintptr_t)addr);
	if (handle && m && m->handle) {
		handle_of(m->handle)->refs++;
		*handle = m->handle;
		r = CUDA_SUCCESS;
	}
	pthread_rwlock_unlock(&sg_mem_lock);
	return r;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	GATE(cuMemGetAllocationPropertiesFromHandle, NEED_INIT);
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_rdlock(&sg_mem_lock);
	struct handle *h = handle_of(handle);
	if (prop && h && h->refs > 0) {
		*prop = h->prop;
		r = CUDA_SUCCESS;
	}
	pthread_rwlock_unlock(&sg_mem_lock);
	return r;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
				      CUmemAllocationHandleType type, unsigned long long flags)
{
	GATE(cuMemExportToShareableHandle, NEED_INIT);
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	pthread_rwlock_rdlock(&sg_mem_lock);
	struct handle *h = handle_of(handle);
	if (shareable && !flags && h && h->refs > 0 && (h->prop.requestedHandleTypes & type)) {
		int fd = fcntl(h->fd, F_DUPFD_CLOEXEC, 3);
		if (fd >= 0)
			*(int *)shareable = fd;
		r = fd >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
	}
	pthread_rwlock_unlock(&sg_mem_lock);
	return r;
}

/* The memory's name says whose it is: "/memfd:softgpu:DEVICE:NODE (deleted)". -1 if it is none of this node's. */
static int device_of_file(int fd)
{
	char path[64], link[200];
	int device = -1, end = 0;
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(path, link, sizeof link - 1);
	if (n < 0)
		return -1;
	link[n] = 0;
	if (sscanf(link, "/memfd:softgpu:%d:%n", &device, &end) != 1 || !end ||
	    strncmp(link + end, sg_config.node, strlen(sg_config.node)) || device < 0 || device >= sg_config.devices)
		return -1;
	return device;
}

/* The process that made the memory pays for it, also while only importers still hold it. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
					CUmemAllocationHandleType type)
{
	GATE(cuMemImportFromShareableHandle, NEED_INIT);
	struct stat st;
	int given = (int)(intptr_t)os_handle, device;
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	device = device_of_file(given);
	if (!handle || device < 0 || fstat(given, &st) || unaligned(st.st_size))
		return CUDA_ERROR_INVALID_VALUE;
	int fd = fcntl(given, F_DUPFD_CLOEXEC, 3);
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				    .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
	pthread_rwlock_wrlock(&sg_mem_lock);
	struct handle *h = new_handle(st.st_size, fd, false, &prop);
	if (h)
		*handle = h->id;
	pthread_rwlock_unlock(&sg_mem_lock);
	if (!h)
		close(fd);
	return h ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
	GATE(cuIpcGetMemHandle, NEED_CTX);
	struct sg_range r;
	pthread_rwlock_rdlock(&sg_mem_lock);
	bool plain = sg_mem_find(ptr, &r) && r.mapped && r.plain && !r.pool && !r.managed;
	pthread_rwlock_unlock(&sg_mem_lock);
	if (!handle || !plain)
		return CUDA_ERROR_INVALID_VALUE;
	memset(handle, 0, sizeof *handle); /* nothing here can open it: there is no cuIpcOpenMemHandle */
	memcpy(handle->reserved, "softgpu", 8);
	memcpy(handle->reserved + 8, &r.base, sizeof r.base);
	return CUDA_SUCCESS;
}

/* ---- mappings */

static CUresult map_locked(uint64_t ptr, uint64_t size, struct handle *h)
{
	struct reservation *s = res_holding(ptr);
	int i = first_map_after(ptr);
	if (!h) /* one that is released but still mapped will do, as with the driver */
		return CUDA_ERROR_INVALID_VALUE;
	if (size != h->size)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!s || ptr - s->base + size > s->size || (i < nmaps && maps[i].base < ptr + size))
		return CUDA_ERROR_INVALID_VALUE;
	struct mapping *m = add_mapping(ptr, size);
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (mmap(pointer(ptr), size, PROT_NONE, MAP_SHARED | MAP_FIXED, h->fd, 0) == MAP_FAILED) {
		remove_mapping(m);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	madvise(pointer(ptr), size, MADV_DONTFORK);
	m->handle = h->id;
	m->device = h->prop.location.id;
	h->mappings++;
	return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
		  unsigned long long flags)
{
	GATE(cuMemMap, NEED_INIT);
	if (!size || flags || unaligned(ptr))
		return CUDA_ERROR_INVALID_VALUE;
	if (offset) /* the driver maps whole handles only */
		return CUDA_ERROR_NOT_SUPPORTED;
	pthread_rwlock_wrlock(&sg_mem_lock);
	CUresult r = map_locked(ptr, size, handle_of(handle));
	pthread_rwlock_unlock(&sg_mem_lock);
	return r;
}

/* True if mappings in [ptr, ptr+size) lie in it wholly and are no plain allocations. */
static bool whole_mappings(uint64_t ptr, uint64_t size)
{
	for (int i = first_map_after(ptr); i < nmaps && maps[i].base < ptr + size; i++)
		if (maps[i].base < ptr || maps[i].base + maps[i].size > ptr + size || !maps[i].handle)
			return false;
	return true;
}

static CUresult unmap_locked(uint64_t ptr, uint64_t size)
{
	struct reservation *s = res_holding(ptr);
	if (!s || ptr - s->base + size > s->size || !whole_mappings(ptr, size))
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = first_map_after(ptr); i < nmaps && maps[i].base < ptr + size;) {
		struct mapping m = maps[i];
		if (!make_void(m.base, m.size))
			return CUDA_ERROR_UNMAP_FAILED;
		remove_mapping(&maps[i]);
		struct handle *h = handle_of(m.handle);
		h->mappings--;
		drop_if_unused(h);
	}
	return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	GATE(cuMemUnmap, NEED_INIT);
	if (!size || unaligned(ptr) || unaligned(size))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&sg_mem_lock);
	CUresult r = unmap_locked(ptr, size);
	pthread_rwlock_unlock(&sg_mem_lock);
	return r;
}

static bool good_access(const CUmemAccessDesc *d)
{
	return d->location.type == CU_MEM_LOCATION_TYPE_DEVICE && d->location.id >= 0 &&
	       d->location.id < sg_config.devices &&
	       (d->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE || d->flags == CU_MEM_ACCESS_FLAGS_PROT_READ ||
		d->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

/* True if whole mappings cover every byte. */
static bool fully_mapped(uint64_t ptr, uint64_t size)
{
	uint64_t at = ptr;
	for (int i = first_map_after(ptr); i < nmaps && maps[i].base == at && at < ptr + size; i++)
		at += maps[i].size;
	return at == ptr + size && whole_mappings(ptr, size);
}

static CUresult set_access(uint64_t ptr, uint64_t size, const CUmemAccessDesc *desc, size_t count)
{
	if (!fully_mapped(ptr, size))
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = first_map_after(ptr); i < nmaps && maps[i].base < ptr + size; i++) {
		for (size_t k = 0; k < count; k++)
			maps[i].access[desc[k].location.id] = desc[k].flags;
		if (mprotect(pointer(maps[i].base), maps[i].size, host_protection(&maps[i])))
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	GATE(cuMemSetAccess, NEED_INIT);
	if (!size || unaligned(ptr) || unaligned(size) || !desc || !count)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t k = 0; k < count; k++)
		if (!good_access(&desc[k]))
			return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&sg_mem_lock);
	CUresult r = set_access(ptr, size, desc, count);
	pthread_rwlock_unlock(&sg_mem_lock);
	return r;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
	GATE(cuMemGetAccess, NEED_INIT);
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (location->id < 0 || location->id >= sg_config.devices)
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_rwlock_rdlock(&sg_mem_lock);
	struct mapping *m = map_holding(ptr);
	if (m && m->handle) {
		*flags = m->access[location->id];
		r = CUDA_SUCCESS;
	}
	pthread_rwlock_unlock(&sg_mem_lock);
	return r;
}
