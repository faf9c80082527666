/*
 * segment.h: a range of addresses that grows and shrinks by pieces of physical memory, as the
 * expandable segments of PyTorch's allocator do: the range is reserved once, far larger than what
 * is used; each piece is one object of the driver, mapped at its offset; access is set over runs
 * of pieces; a piece's handle is released when it is unmapped, or right after it was mapped.
 */
#ifndef EXPANDABLE_SEGMENT_H
#define EXPANDABLE_SEGMENT_H

#include "driver.h"

struct piece {
	CUmemGenericAllocationHandle handle; /* valid while held */
	bool mapped;
	bool held;   /* the handle was not released yet */
	bool paused; /* its memory is off the device */
	bool kept;   /* shared with others, so that no pause takes it */
};

struct segment {
	int device;
	bool shareable;  /* handles can be exported as file descriptors */
	unsigned access; /* bit per device that may use the memory */
	size_t piece_bytes, pieces;
	CUdeviceptr base;
	struct piece *piece;
};

void segment_open(struct segment *s, int device, size_t piece_bytes, size_t pieces, bool shareable);
void segment_close(struct segment *s);

/* Gives every piece of [begin, end) memory. False when the device has too little: then nothing
 * has changed. early: handles of new pieces are released as soon as they are mapped. */
bool segment_grow(struct segment *s, size_t begin, size_t end, bool early);
/* Takes the memory of the mapped pieces of [begin, end). at_once: runs of pieces by one call. */
void segment_shrink(struct segment *s, size_t begin, size_t end, bool at_once);
/* Maps the objects of [begin, end), whose handles are held, at [to, ...) instead. */
void segment_move(struct segment *s, size_t begin, size_t end, size_t to);
/* Lets a further device use the memory, that of later pieces included. */
void segment_share_with(struct segment *s, int device);

/* First piece at or after `from` and before `end` of which mapped is as given; else end. */
size_t segment_next(const struct segment *s, size_t from, size_t end, bool mapped);
CUdeviceptr segment_at(const struct segment *s, size_t piece);

#endif
