/*
 * expandable DOOR SEED STEPS: random calls of an allocator with expandable segments, with pauses
 * and resumes between them, against a model of what every allocation holds.
 *
 *     expandable version 17 2000
 *
 * Each segment has a tag and a backup of its own. Contents are compared after every resume, and
 * while paused through ebb_read. Without the preloaded library nothing is paused, and the rest is
 * the same. Ends with status 0 when all held.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ebb.h"
#include "segment.h"

enum { SEGMENTS = 6, MOST = 48, PIECES = 96, ROUND = 512, MOST_DEVICES = 2 };

enum backup { DISK, CPU, NONE };

/* A segment, with what ebb is told about it. */
struct tagged {
	struct segment segment;
	char tag[8];
	enum backup backup;
};

/* Memory that a tensor uses: bytes of a segment, and what they must be. */
struct memory {
	struct tagged *of;
	size_t offset, bytes;
	uint64_t seed;
	bool filled; /* with one word of 32 bits */
};

static struct tagged segments[SEGMENTS];
static struct memory memories[MOST];
static size_t count;
static bool have_ebb;
static int devices;
static cudaStream_t streams[MOST_DEVICES];
static size_t largest; /* bytes of an allocation at most */
static uint64_t *expected, *found;

static struct {
	unsigned grown, cached, retried, refused, freed, shrunk, moved, exported, granted;
	unsigned paused, in_part, with_unused, resumed, short_of_memory;
} did;

/* ---- randomness ------------------------------------------------------------------------------ */

static uint64_t random_state;

static uint64_t random_word(void)
{
	uint64_t z = random_state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static size_t below(size_t n) { return random_word() % n; }
static bool chance(unsigned percent) { return below(100) < percent; }

/* ---- allocations and their content ----------------------------------------------------------- */

static CUdeviceptr address(const struct memory *m) { return m->of->segment.base + m->offset; }
static size_t first_piece(const struct memory *m) { return m->offset / m->of->segment.piece_bytes; }
static size_t end_piece(const struct memory *m)
{
	return (m->offset + m->bytes - 1) / m->of->segment.piece_bytes + 1;
}

/* Whether some of its memory is off the device. */
static bool is_paused(const struct memory *m)
{
	for (size_t i = first_piece(m); i < end_piece(m); i++)
		if (m->of->segment.piece[i].paused)
			return true;
	return false;
}

static const char *name(const struct memory *m)
{
	static char text[128];

	snprintf(text, sizeof text, "%zu bytes at %s+%zu%s", m->bytes, m->of->tag, m->offset,
		 is_paused(m) ? ", paused" : "");
	return text;
}

static void content(const struct memory *m, uint64_t *words)
{
	uint64_t word = (uint32_t)m->seed;

	for (size_t i = 0; i < m->bytes / sizeof *words; i++)
		words[i] = m->filled ? word << 32 | word : (m->seed + i) * 0x9e3779b97f4a7c15;
}

/* New content. Filling is left to a stream that the default one does not wait for. */
static void write_memory(struct memory *m)
{
	int device = m->of->segment.device;

	m->seed = random_word();
	m->filled = chance(40);
	note("write %s%s", name(m), m->filled ? ", by a stream" : "");
	RUNTIME(cudaSetDevice(device));
	if (m->filled) {
		DRIVER(cuMemsetD32Async(address(m), (unsigned)m->seed, m->bytes / 4, (CUstream)streams[device]));
		return;
	}
	content(m, expected);
	RUNTIME(cudaStreamSynchronize(streams[device])); /* it may still fill these bytes */
	RUNTIME(cudaMemcpy((void *)(uintptr_t)address(m), expected, m->bytes, cudaMemcpyHostToDevice));
}

static void compare(const struct memory *m, const char *what)
{
	content(m, expected);
	for (size_t i = 0; i < m->bytes / sizeof *found; i++)
		if (found[i] != expected[i])
			die("%s %s: byte %zu is of %#llx, want %#llx", what, name(m), i * sizeof *found,
			    (unsigned long long)found[i], (unsigned long long)expected[i]);
}

static void check_memory(const struct memory *m)
{
	int device = m->of->segment.device;

	RUNTIME(cudaSetDevice(device));
	RUNTIME(cudaStreamSynchronize(streams[device]));
	RUNTIME(cudaMemcpy(found, (void *)(uintptr_t)address(m), m->bytes, cudaMemcpyDeviceToHost));
	compare(m, "content of");
}

/* The same through ebb_read, piece by piece: each is an object of its own. */
static void read_memory(const struct memory *m)
{
	size_t piece_bytes = m->of->segment.piece_bytes;

	RUNTIME(cudaSetDevice(m->of->segment.device));
	for (size_t done = 0, n; done < m->bytes; done += n) {
		n = piece_bytes - (m->offset + done) % piece_bytes;
		if (n > m->bytes - done)
			n = m->bytes - done;
		const void *at = (const void *)(uintptr_t)(address(m) + done);
		int code = ebb.read(at, n, (char *)found + done);
		if (code != EBB_OK)
			die("ebb_read of %zu bytes at %zu of %s: %d: %s", n, done, name(m), code, ebb_error());
	}
	compare(m, "ebb_read of");
}

/* ---- what the allocator does ----------------------------------------------------------------- */

static bool overlaps(const struct tagged *t, size_t begin, size_t end)
{
	for (size_t i = 0; i < count; i++)
		if (memories[i].of == t && memories[i].offset < end && memories[i].offset + memories[i].bytes > begin)
			return true;
	return false;
}

static bool piece_is_used(const struct tagged *t, size_t piece)
{
	size_t bytes = t->segment.piece_bytes;

	return overlaps(t, piece * bytes, (piece + 1) * bytes);
}

/* Lowest offset of free bytes, none of them paused; SIZE_MAX where there is no room. */
static size_t room(const struct tagged *t, size_t bytes)
{
	const struct segment *s = &t->segment;
	size_t step = s->piece_bytes / 4;

	for (size_t at = 0; at + bytes <= s->pieces * s->piece_bytes; at += step) {
		bool fits = !overlaps(t, at, at + bytes);
		for (size_t i = at / s->piece_bytes; fits && i <= (at + bytes - 1) / s->piece_bytes; i++)
			fits = !s->piece[i].paused;
		if (fits)
			return at;
	}
	return SIZE_MAX;
}

/* Takes memory that no allocation uses from a segment: all of it, or some. */
static void shrink(struct tagged *t, unsigned percent)
{
	struct segment *s = &t->segment;
	bool at_once = chance(50);

	RUNTIME(cudaSetDevice(s->device));
	RUNTIME(cudaDeviceSynchronize()); /* what a stream still fills */
	for (size_t begin = 0, end; begin < s->pieces; begin = end) {
		end = begin + 1;
		if (!s->piece[begin].mapped || piece_is_used(t, begin) || !chance(percent))
			continue;
		while (at_once && end < s->pieces && s->piece[end].mapped && !piece_is_used(t, end))
			end++;
		note("unmap pieces %zu to %zu of %s%s", begin, end, t->tag, s->piece[begin].paused ? ", paused" : "");
		segment_shrink(s, begin, end, at_once);
		did.shrunk++;
	}
}

static bool grow(struct tagged *t, size_t begin, size_t end)
{
	if (have_ebb) {
		ebb.set_tag(t->tag);
		ebb.set_cpu(t->backup == CPU);
		ebb.set_disk(t->backup == DISK);
	}
	RUNTIME(cudaSetDevice(t->segment.device));
	return segment_grow(&t->segment, begin, end, chance(30));
}

static void allocate(void)
{
	if (count == MOST)
		return;
	struct tagged *t = &segments[below(SEGMENTS)];
	struct segment *s = &t->segment;
	size_t bytes = chance(50) ? ROUND * (1 + below(64)) : ROUND * (1 + below(largest / ROUND));
	size_t at = room(t, bytes);
	if (at == SIZE_MAX)
		return;
	struct memory m = {.of = t, .offset = at, .bytes = bytes};
	size_t begin = first_piece(&m), end = end_piece(&m);
	bool cached = segment_next(s, begin, end, false) == end;

	note("allocate %s, pieces %zu to %zu", name(&m), begin, end);
	if (!grow(t, begin, end)) {
		/* What is kept for reuse goes back, then once more, as PyTorch does it. */
		note("out of memory");
		for (size_t i = 0; i < SEGMENTS; i++)
			shrink(&segments[i], 100);
		if (!grow(t, begin, end)) {
			did.refused++;
			return;
		}
		did.retried++;
	}
	cached ? did.cached++ : did.grown++;
	memories[count] = m;
	write_memory(&memories[count++]);
}

static void release(size_t i)
{
	note("free %s", name(&memories[i]));
	memories[i] = memories[--count];
	did.freed++;
}

/* Maps the objects of an allocation elsewhere: its bytes go with them. */
static void move(void)
{
	if (!count)
		return;
	struct memory *m = &memories[below(count)];
	struct segment *s = &m->of->segment;
	size_t begin = first_piece(m), end = end_piece(m), to = below(s->pieces);

	for (size_t i = 0; i < count; i++)
		if (&memories[i] != m && memories[i].of == m->of && first_piece(&memories[i]) < end &&
		    end_piece(&memories[i]) > begin)
			return;
	if (to + (end - begin) > s->pieces || segment_next(s, to, to + (end - begin), true) < to + (end - begin))
		return;
	for (size_t i = begin; i < end; i++)
		if (!s->piece[i].held)
			return;
	note("move %s to piece %zu", name(m), to);
	RUNTIME(cudaSetDevice(s->device));
	RUNTIME(cudaDeviceSynchronize());
	segment_move(s, begin, end, to);
	m->offset = m->offset + to * s->piece_bytes - begin * s->piece_bytes;
	did.moved++;
}

static void grant(void)
{
	struct tagged *t = &segments[below(SEGMENTS)];
	struct segment *s = &t->segment;
	size_t piece = segment_next(s, below(s->pieces), s->pieces, true);
	int other = (s->device + 1) % devices;
	const CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, other};
	unsigned long long flags = 0;

	if (devices < 2 || piece == s->pieces)
		return;
	if (!(s->access & 1u << other)) {
		note("device %d may use %s", other, t->tag);
		segment_share_with(s, other);
		did.granted++;
	}
	note("access of device %d to piece %zu of %s", other, piece, t->tag);
	DRIVER(driver.cuMemGetAccess(&flags, &location, segment_at(s, piece)));
	if (flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
		die("device %d has access %llu to piece %zu of %s", other, flags, piece, t->tag);
}

/* The handle of a mapped piece once more, its properties, and its release. */
static void retain(void)
{
	struct tagged *t = &segments[below(SEGMENTS)];
	struct segment *s = &t->segment;
	size_t piece = segment_next(s, below(s->pieces), s->pieces, true);
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp prop;

	if (piece == s->pieces)
		return;
	note("retain piece %zu of %s", piece, t->tag);
	DRIVER(driver.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)segment_at(s, piece)));
	DRIVER(driver.cuMemGetAllocationPropertiesFromHandle(&prop, handle));
	if (prop.location.id != s->device || prop.type != CU_MEM_ALLOCATION_TYPE_PINNED)
		die("piece %zu of %s: properties of device %d, type %d", piece, t->tag, prop.location.id, (int)prop.type);
	DRIVER(driver.cuMemRelease(handle));
}

/* Gives a piece to others, as CUDA IPC of such a segment does: it must stay from then on. */
static void export(void)
{
	struct tagged *t = &segments[below(SEGMENTS)];
	struct segment *s = &t->segment;
	size_t piece = segment_next(s, below(s->pieces), s->pieces, true);
	int fd;

	if (!s->shareable || piece == s->pieces || !s->piece[piece].held || s->piece[piece].paused)
		return;
	note("export piece %zu of %s", piece, t->tag);
	DRIVER(driver.cuMemExportToShareableHandle(&fd, s->piece[piece].handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	close(fd);
	s->piece[piece].kept = true;
	did.exported++;
}

/* ---- pause and resume ------------------------------------------------------------------------ */

static size_t device_free(int device)
{
	size_t available, total;

	RUNTIME(cudaSetDevice(device));
	RUNTIME(cudaMemGetInfo(&available, &total));
	return available;
}

static bool anything_mapped(const struct tagged *only)
{
	for (size_t i = 0; i < SEGMENTS; i++)
		if ((!only || only == &segments[i]) &&
		    segment_next(&segments[i].segment, 0, PIECES, true) < PIECES)
			return true;
	return false;
}

/* What the allocator keeps and nobody uses, as ranges of whole pieces, neighbours together. */
static size_t unused_ranges(ebb_range *ranges)
{
	size_t n = 0;

	for (size_t i = 0; i < SEGMENTS; i++) {
		const struct segment *s = &segments[i].segment;
		for (size_t p = 0, end; p < s->pieces; p = end) {
			for (end = p; end < s->pieces && s->piece[end].mapped && !s->piece[end].paused &&
				      !piece_is_used(&segments[i], end);)
				end++;
			if (end > p)
				ranges[n++] = (ebb_range){(void *)(uintptr_t)segment_at(s, p), (end - p) * s->piece_bytes};
			else
				end++;
		}
	}
	return n;
}

/* Marks what a pause of one segment, or of all, takes away. */
static void take_away(const struct tagged *only, size_t freed[MOST_DEVICES], size_t *pieces, size_t *kept)
{
	for (size_t i = 0; i < SEGMENTS; i++) {
		struct segment *s = &segments[i].segment;
		if (only && only != &segments[i])
			continue;
		for (size_t p = 0; p < s->pieces; p++) {
			struct piece *piece = &s->piece[p];
			if (!piece->mapped || piece->paused)
				continue;
			if (piece->kept) {
				*kept += s->piece_bytes;
				continue;
			}
			piece->paused = true;
			freed[s->device] += s->piece_bytes;
			++*pieces;
		}
	}
}

/* Pauses one segment or everything, and tells, at times, what is unused. */
static void pause_some(void)
{
	static ebb_range ranges[SEGMENTS * PIECES];
	const struct tagged *only = chance(30) ? &segments[below(SEGMENTS)] : NULL;
	const char *tags[] = {only ? only->tag : NULL};
	size_t before[MOST_DEVICES], freed[MOST_DEVICES] = {0}, pieces = 0, kept = 0;
	size_t unused = chance(40) ? unused_ranges(ranges) : 0;
	ebb_result result = {.struct_size = sizeof result};

	if (!have_ebb || !anything_mapped(only))
		return;
	for (int d = 0; d < devices; d++)
		before[d] = device_free(d);
	take_away(only, freed, &pieces, &kept);
	note("pause %s: %zu pieces, %zu bytes kept, %zu ranges unused", only ? only->tag : "everything", pieces, kept, unused);
	int code = unused ? ebb.pause_except(tags, only ? 1 : 0, ranges, unused, &result)
			  : ebb.pause(tags, only ? 1 : 0, &result);
	if (code != EBB_OK)
		die("pause: %d: %s", code, ebb_error());
	if (result.allocations != pieces || result.kept_bytes != kept)
		die("paused %llu allocations and kept %llu bytes, want %zu and %zu", (unsigned long long)result.allocations,
		    (unsigned long long)result.kept_bytes, pieces, kept);
	for (int d = 0; d < devices; d++)
		if (device_free(d) != before[d] + freed[d])
			die("device %d has %zu bytes free, had %zu, and %zu were paused", d, device_free(d), before[d], freed[d]);
	did.paused++;
	did.in_part += only != NULL;
	did.with_unused += unused > 0;
}

/* Makes room for a resume: frees an allocation, since more was allocated while paused than the
 * device has, and gives back what no allocation uses. */
static void make_room(void)
{
	if (count)
		release(below(count));
	for (size_t i = 0; i < SEGMENTS; i++)
		shrink(&segments[i], 100);
	did.short_of_memory++;
}

static void resume_all(void)
{
	note("resume");
	int code = have_ebb ? ebb.resume(NULL, 0, 0, NULL) : EBB_OK;
	while (code == EBB_ERR_DEVICE_MEMORY && count) {
		note("%.120s", ebb_error());
		make_room();
		code = ebb.resume(NULL, 0, 0, NULL);
	}
	if (code != EBB_OK)
		die("resume: %d: %s", code, ebb_error());
	for (size_t i = 0; i < count; i++)
		if (memories[i].of->backup == NONE && is_paused(&memories[i]))
			write_memory(&memories[i]);
	for (size_t i = 0; i < SEGMENTS; i++)
		for (size_t p = 0; p < PIECES; p++)
			segments[i].segment.piece[p].paused = false;
	for (size_t i = 0; i < count; i++)
		check_memory(&memories[i]);
	did.resumed++;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void check_or_read(void)
{
	if (!count)
		return;
	const struct memory *m = &memories[below(count)];
	if (!is_paused(m))
		check_memory(m);
	else if (m->of->backup != NONE)
		read_memory(m);
}

static void step(void)
{
	size_t which = below(100);

	if (which < 30)
		allocate();
	else if (which < 46 && count)
		release(below(count));
	else if (which < 54 && count) {
		struct memory *m = &memories[below(count)];
		if (!is_paused(m))
			write_memory(m);
	} else if (which < 64)
		check_or_read();
	else if (which < 72)
		shrink(&segments[below(SEGMENTS)], 1 + (unsigned)below(100));
	else if (which < 78)
		move();
	else if (which < 80)
		grant();
	else if (which < 83)
		retain();
	else if (which < 85)
		export();
	else if (which < 93)
		pause_some();
	else
		resume_all();
}

static void open_segments(void)
{
	const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	size_t granularity;

	DRIVER(driver.cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
	for (size_t i = 0; i < SEGMENTS; i++) {
		struct tagged *t = &segments[i];
		RUNTIME(cudaSetDevice((int)i % devices));
		/* Small and large pieces: at a granularity of 2 MiB those of PyTorch. */
		segment_open(&t->segment, (int)i % devices, granularity * (i / 2 % 2 ? 10 : 1), PIECES, i == 1 || i == 2);
		snprintf(t->tag, sizeof t->tag, "pool%zu", i);
		t->backup = i == 5 ? NONE : i % 3 == 1 ? CPU : DISK;
	}
	largest = 40 * granularity;
	if (!(expected = malloc(largest)) || !(found = malloc(largest)))
		die("no memory for %zu bytes", largest);
}

/* A first cycle, which loads what ebb needs for good. */
static void warm_up(void)
{
	for (size_t i = 0; i < SEGMENTS; i++)
		if (!grow(&segments[i], 0, 1))
			die("no room for the first pieces");
	if (have_ebb && (ebb.pause(NULL, 0, NULL) != EBB_OK || ebb.resume(NULL, 0, 0, NULL) != EBB_OK))
		die("the first cycle: %s", ebb_error());
	for (size_t i = 0; i < SEGMENTS; i++)
		shrink(&segments[i], 100);
}

int main(int argc, char **argv)
{
	size_t begin[MOST_DEVICES];

	if (argc != 4)
		die("usage: expandable DOOR SEED STEPS");
	RUNTIME(cudaGetDeviceCount(&devices));
	if (devices > MOST_DEVICES)
		devices = MOST_DEVICES;
	for (int d = 0; d < devices; d++) {
		RUNTIME(cudaSetDevice(d));
		RUNTIME(cudaStreamCreateWithFlags(&streams[d], cudaStreamNonBlocking));
	}
	random_state = strtoull(argv[2], NULL, 10);
	driver_open(argv[1]);
	have_ebb = ebb_open();
	if (have_ebb)
		ebb.set_region(true);
	open_segments();
	warm_up();
	for (int d = 0; d < devices; d++)
		begin[d] = device_free(d);

	for (unsigned long steps = strtoul(argv[3], NULL, 10); steps > 0; steps--)
		step();

	resume_all();
	while (count)
		release(count - 1);
	for (size_t i = 0; i < SEGMENTS; i++)
		segment_close(&segments[i].segment);
	for (int d = 0; d < devices; d++)
		if (device_free(d) != begin[d])
			die("device %d has %zu bytes free at the end, %zu at the beginning", d, device_free(d), begin[d]);
	printf("grown %u, cached %u, retried %u, refused %u, freed %u, unmapped %u, moved %u, exported %u, granted %u; "
	       "paused %u (in part %u, unused told %u), resumed %u, short of memory %u\n",
	       did.grown, did.cached, did.retried, did.refused, did.freed, did.shrunk, did.moved, did.exported, did.granted,
	       did.paused, did.in_part, did.with_unused, did.resumed, did.short_of_memory);
	return 0;
}
