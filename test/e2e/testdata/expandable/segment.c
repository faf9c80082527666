#include "segment.h"

#include <stdlib.h>

enum { MOST_DEVICES = 8 };

void segment_open(struct segment *s, int device, size_t piece_bytes, size_t pieces, bool shareable)
{
	*s = (struct segment){.device = device,
			      .shareable = shareable,
			      .access = 1u << device,
			      .piece_bytes = piece_bytes,
			      .pieces = pieces,
			      .piece = calloc(pieces, sizeof(struct piece))};
	if (!s->piece)
		die("no memory for %zu pieces", pieces);
	DRIVER(driver.cuMemAddressReserve(&s->base, piece_bytes * pieces, 0, 0, 0));
}

void segment_close(struct segment *s)
{
	segment_shrink(s, 0, s->pieces, false);
	DRIVER(driver.cuMemAddressFree(s->base, s->piece_bytes * s->pieces));
	free(s->piece);
}

CUdeviceptr segment_at(const struct segment *s, size_t piece) { return s->base + piece * s->piece_bytes; }

size_t segment_next(const struct segment *s, size_t from, size_t end, bool mapped)
{
	while (from < end && s->piece[from].mapped != mapped)
		from++;
	return from;
}

/* Sets the access of all devices over the pieces of [begin, end), device by device. */
static void set_access(const struct segment *s, size_t begin, size_t end)
{
	for (int device = 0; device < MOST_DEVICES; device++) {
		if (!(s->access & 1u << device))
			continue;
		const CUmemAccessDesc desc = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
					      .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
		DRIVER(driver.cuMemSetAccess(segment_at(s, begin), (end - begin) * s->piece_bytes, &desc, 1));
	}
}

static void release(struct piece *p)
{
	DRIVER(driver.cuMemRelease(p->handle));
	p->held = false;
}

/* Creates the objects of [begin, end), or none. */
static bool create(struct segment *s, size_t begin, size_t end)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = s->shareable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, s->device},
	};

	for (size_t i = begin; i < end; i++) {
		CUresult error = driver.cuMemCreate(&s->piece[i].handle, s->piece_bytes, &prop, 0);
		if (error == CUDA_ERROR_OUT_OF_MEMORY) {
			while (i > begin)
				release(&s->piece[--i]);
			return false;
		}
		driver_check(error, "cuMemCreate");
		s->piece[i].held = true;
	}
	return true;
}

static void map(struct segment *s, size_t begin, size_t end)
{
	for (size_t i = begin; i < end; i++) {
		DRIVER(driver.cuMemMap(segment_at(s, i), s->piece_bytes, 0, s->piece[i].handle, 0));
		s->piece[i].mapped = true;
	}
	set_access(s, begin, end);
}

bool segment_grow(struct segment *s, size_t begin, size_t end, bool early)
{
	size_t from, to;

	for (from = begin; (from = segment_next(s, from, end, false)) < end; from = to) {
		to = segment_next(s, from, end, true);
		if (!create(s, from, to)) {
			/* Runs that were created before this one go back too. */
			for (size_t i = begin; i < from; i++)
				if (!s->piece[i].mapped)
					release(&s->piece[i]);
			return false;
		}
	}
	for (from = begin; (from = segment_next(s, from, end, false)) < end; from = to) {
		to = segment_next(s, from, end, true);
		map(s, from, to);
		for (size_t i = from; early && i < to; i++)
			release(&s->piece[i]);
	}
	return true;
}

void segment_shrink(struct segment *s, size_t begin, size_t end, bool at_once)
{
	size_t from, to;

	for (from = begin; (from = segment_next(s, from, end, true)) < end; from = to) {
		to = at_once ? segment_next(s, from, end, false) : from + 1;
		DRIVER(driver.cuMemUnmap(segment_at(s, from), (to - from) * s->piece_bytes));
		for (size_t i = from; i < to; i++) {
			if (s->piece[i].held)
				release(&s->piece[i]);
			s->piece[i] = (struct piece){.mapped = false};
		}
	}
}

void segment_move(struct segment *s, size_t begin, size_t end, size_t to)
{
	size_t n = end - begin;

	for (size_t i = 0; i < n; i++) {
		DRIVER(driver.cuMemUnmap(segment_at(s, begin + i), s->piece_bytes));
		s->piece[to + i] = s->piece[begin + i];
		s->piece[begin + i] = (struct piece){.mapped = false};
	}
	map(s, to, to + n);
}

void segment_share_with(struct segment *s, int device)
{
	size_t from, to;

	s->access |= 1u << device;
	for (from = 0; (from = segment_next(s, from, s->pieces, true)) < s->pieces; from = to) {
		to = segment_next(s, from, s->pieces, false);
		set_access(s, from, to);
	}
}
