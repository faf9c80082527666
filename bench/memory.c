/* memory.c: an actor's device memory. Content is made on the host and copied, by several threads
 * with a stream and a pinned buffer each, so that it needs no kernel. */
#include "rank.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct part {
	char tag[64];
	char *address; /* device memory */
	size_t bytes;
	bool zero; /* gradients between steps */
};
static struct part *parts;
static size_t nparts;

static bool add(const char *tag, size_t bytes, bool zero)
{
	struct part *more = realloc(parts, (nparts + 1) * sizeof(*parts));
	struct part *p;

	if (more == NULL)
		return fail("out of host memory");
	parts = more;
	p = &parts[nparts];
	memset(p, 0, sizeof(*p));
	strncpy(p->tag, tag, sizeof(p->tag) - 1);
	p->bytes = bytes;
	p->zero = zero;
	if (!cuda_ok(cuda.Malloc((void **)&p->address, bytes), "cudaMalloc"))
		return false;
	nparts++;
	return true;
}

bool memory_allocate(const char *tag, const char *backup, size_t bytes, size_t pieces)
{
	bool made = true;

	if (pieces == 0 || bytes / pieces == 0)
		return fail("%zu bytes cannot be cut into %zu pieces", bytes, pieces);
	if (!saver_region(tag, backup))
		return false;
	for (size_t i = 0; i < pieces && made; i++)
		made = add(tag, bytes / pieces + (i == 0 ? bytes % pieces : 0), false);
	return saver_region(NULL, NULL) && made;
}

/* Bytes a parameter: bf16 weight, fp32 gradient, fp32 master weight and the two moments. */
static const struct {
	size_t bytes;
	bool zero;
} adamw[] = {{2, false}, {4, true}, {4, false}, {4, false}, {4, false}};
enum { ADAMW_BYTES = 18 };

bool memory_allocate_adamw(const char *tag, const char *backup, size_t bytes, size_t *made, size_t *zero)
{
	/* Whole units of 2 MiB of each kind, as an allocator's segments have. */
	const size_t unit = (size_t)2 << 20, largest = (size_t)256 << 20;
	size_t parameters = bytes / ADAMW_BYTES / unit * unit;
	bool ok = true;

	if (parameters == 0)
		parameters = unit;
	if (!saver_region(tag, backup))
		return false;
	*made = *zero = 0;
	for (size_t kind = 0; kind < sizeof(adamw) / sizeof(*adamw); kind++)
		for (size_t left = parameters * adamw[kind].bytes; left > 0 && ok;) {
			size_t piece = left < largest ? left : largest;
			ok = add(tag, piece, adamw[kind].zero);
			*made += piece;
			*zero += adamw[kind].zero ? piece : 0;
			left -= piece;
		}
	return saver_region(NULL, NULL) && ok;
}

/* One pass over all chunks of a tag. */
struct pass {
	const char *tag;
	enum { FILL, TOUCH, CHECKSUM } what;
	uint64_t seed;
	size_t every;
	_Atomic(size_t) next; /* chunk to take, counted over all parts of the tag */
	_Atomic(uint64_t) sum;
	_Atomic(size_t) touched;
};

/* The chunk of that number; false when there is none. */
static bool chunk_of(const struct pass *pass, size_t number, struct part **part, size_t *offset, size_t *bytes)
{
	for (size_t i = 0; i < nparts; i++) {
		size_t chunks = (parts[i].bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;

		if (strcmp(parts[i].tag, pass->tag) != 0)
			continue;
		if (number < chunks) {
			*part = &parts[i];
			*offset = number * CHUNK_BYTES;
			*bytes = parts[i].bytes - *offset < CHUNK_BYTES ? parts[i].bytes - *offset : CHUNK_BYTES;
			return true;
		}
		number -= chunks;
	}
	return false;
}

static bool treat(struct pass *pass, size_t number, struct part *part, size_t offset, size_t bytes, void *buffer,
		  cuda_stream stream)
{
	char *address = part->address + offset;

	if (pass->what == CHECKSUM) {
		if (!cuda_ok(cuda.MemcpyAsync(buffer, address, bytes, CUDA_TO_HOST, stream), "cudaMemcpyAsync") ||
		    !cuda_ok(cuda.StreamSynchronize(stream), "cudaStreamSynchronize"))
			return false;
		atomic_fetch_add(&pass->sum, mix(mix(number) ^ hash_bytes(buffer, bytes)));
		return true;
	}
	if (pass->what == TOUCH && (part->zero || number % pass->every != 0))
		return true;
	if (part->zero)
		return cuda_ok(cuda.MemsetAsync(address, 0, bytes, stream), "cudaMemsetAsync") &&
		       cuda_ok(cuda.StreamSynchronize(stream), "cudaStreamSynchronize");
	random_fill(buffer, bytes, mix(pass->seed) ^ number);
	atomic_fetch_add(&pass->touched, bytes);
	return cuda_ok(cuda.MemcpyAsync(address, buffer, bytes, CUDA_TO_DEVICE, stream), "cudaMemcpyAsync") &&
	       cuda_ok(cuda.StreamSynchronize(stream), "cudaStreamSynchronize");
}

/* What each thread copies with, kept from pass to pass: pinning it takes longer than a pass. */
static struct {
	cuda_stream stream;
	void *buffer;
} copiers[MAX_THREADS];

static bool pass_thread(int thread, void *arg)
{
	struct pass *pass = arg;
	struct part *part;
	size_t number, offset, bytes;
	cuda_stream *stream = &copiers[thread].stream;
	void **buffer = &copiers[thread].buffer;
	bool ok = cuda_ok(cuda.SetDevice(cuda_device), "cudaSetDevice");

	if (ok && *stream == NULL)
		ok = cuda_ok(cuda.StreamCreateWithFlags(stream, 1), "cudaStreamCreateWithFlags");
	if (ok && *buffer == NULL)
		ok = cuda_ok(cuda.HostAlloc(buffer, CHUNK_BYTES, 0), "cudaHostAlloc");
	while (ok && chunk_of(pass, number = atomic_fetch_add(&pass->next, 1), &part, &offset, &bytes))
		ok = treat(pass, number, part, offset, bytes, *buffer, *stream);
	return ok;
}

static bool run(struct pass *pass)
{
	struct part *part;
	size_t offset, bytes;

	if (!chunk_of(pass, 0, &part, &offset, &bytes))
		return fail("nothing is allocated with tag %s", pass->tag);
	return on_threads(fill_threads(), pass_thread, pass) &&
	       cuda_ok(cuda.DeviceSynchronize(), "cudaDeviceSynchronize");
}

bool memory_fill(const char *tag, uint64_t seed)
{
	struct pass pass = {.tag = tag, .what = FILL, .seed = seed};

	return run(&pass);
}

bool memory_touch(const char *tag, uint64_t seed, size_t every, size_t *touched)
{
	struct pass pass = {.tag = tag, .what = TOUCH, .seed = seed, .every = every};

	if (every == 0)
		return fail("every=0 touches nothing");
	if (!run(&pass))
		return false;
	*touched = pass.touched;
	return true;
}

bool memory_checksum(const char *tag, uint64_t *sum)
{
	struct pass pass = {.tag = tag, .what = CHECKSUM};

	if (!run(&pass))
		return false;
	*sum = pass.sum;
	return true;
}

bool memory_ranges(const char *tag, struct range **list, size_t *count)
{
	*count = 0;
	*list = calloc(nparts + 1, sizeof(**list));
	if (*list == NULL)
		return fail("out of host memory");
	for (size_t i = 0; i < nparts; i++)
		if (strcmp(parts[i].tag, tag) == 0)
			(*list)[(*count)++] = (struct range){parts[i].address, parts[i].bytes};
	return *count > 0 || fail("nothing is allocated with tag %s", tag);
}

bool memory_free(const char *tag)
{
	size_t kept = 0;
	bool ok = true;

	for (size_t i = 0; i < nparts; i++) {
		if (strcmp(parts[i].tag, tag) != 0)
			parts[kept++] = parts[i];
		else
			ok = cuda_ok(cuda.Free(parts[i].address), "cudaFree") && ok;
	}
	nparts = kept;
	return ok;
}
