/*
 * fingerprint.cu: the fingerprint kernel. One block of threads hashes one tile, one thread one column
 * of it. make ptx compiles it to fingerprint.ptx, which is checked in, so that building ebb needs
 * no compiler for GPUs.
 *
 * It runs at the speed of memory: a tile is read once, in loads of 16 bytes that are coalesced to
 * whole rows, with BATCH of them in flight for each thread. All threads use the same words of
 * the key at the same time, so that they come from constant memory, in which arguments lie.
 */
#include "fingerprint.h"

enum { WARP = 32, WARPS = EBB_FP_COLUMNS / WARP, BATCH = 8 };

/* What a thread has of its column. */
struct column {
	uint64_t nh[EBB_FP_LANES];
	uint32_t any;
};

static __device__ __forceinline__ void absorb(column &c, uint4 m, const uint32_t *key)
{
	c.any |= m.x | m.y | m.z | m.w;
#pragma unroll
	for (int lane = 0; lane < EBB_FP_LANES; lane++, key += 2)
		c.nh[lane] += (uint64_t)(m.x + key[0]) * (m.y + key[1]) + (uint64_t)(m.z + key[2]) * (m.w + key[3]);
}

/* The first n bytes of a chunk, 0 < n < 16; the others are cleared. */
static __device__ __forceinline__ uint4 head(uint4 m, int n)
{
	uint32_t w[4] = {m.x, m.y, m.z, m.w};
#pragma unroll
	for (int i = 0; i < 4; i++)
		if (n < 4 * i + 4)
			w[i] = n <= 4 * i ? 0 : w[i] & ((1u << 8 * (n - 4 * i)) - 1);
	return make_uint4(w[0], w[1], w[2], w[3]);
}

/* Writes the first n bytes of a chunk, 0 < n < 16. */
static __device__ void store_head(uint4 *to, uint4 m, int n)
{
	const uint32_t w[4] = {m.x, m.y, m.z, m.w};
#pragma unroll
	for (int i = 0; i < EBB_FP_CHUNK_BYTES; i++)
		if (i < n)
			((unsigned char *)to)[i] = (unsigned char)(w[i / 4] >> 8 * (i % 4));
}

extern "C" __global__ void __launch_bounds__(EBB_FP_COLUMNS, 4)
	ebb_fingerprint(const ebb_fp_key key, const ulonglong2 *tiles, ebb_fp_part *parts)
{
	const ulonglong2 where = tiles[2 * blockIdx.x]; /* a struct ebb_fp_tile, in two loads */
	const int bytes = (int)tiles[2 * blockIdx.x + 1].x;
	const bool copy = where.y != 0;
	const uint4 *from = (const uint4 *)where.x + threadIdx.x;
	uint4 *to = (uint4 *)where.y + threadIdx.x;
	column c = {};

	int row = 0;
	for (; (row + BATCH) * EBB_FP_ROW_BYTES <= bytes; row += BATCH) {
		uint4 m[BATCH];
#pragma unroll
		for (int i = 0; i < BATCH; i++)
			m[i] = __ldcs(from + i * EBB_FP_COLUMNS);
		if (copy)
#pragma unroll
			for (int i = 0; i < BATCH; i++)
				__stcs(to + i * EBB_FP_COLUMNS, m[i]);
		from += BATCH * EBB_FP_COLUMNS;
		to += BATCH * EBB_FP_COLUMNS;
#pragma unroll
		for (int i = 0; i < BATCH; i++)
			absorb(c, m[i], key.words + (row + i) * EBB_FP_CHUNK_WORDS);
	}
	for (; row * EBB_FP_ROW_BYTES < bytes; row++, from += EBB_FP_COLUMNS, to += EBB_FP_COLUMNS) {
		const int left = bytes - row * EBB_FP_ROW_BYTES - (int)threadIdx.x * EBB_FP_CHUNK_BYTES;
		uint4 m = make_uint4(0, 0, 0, 0);
		if (left >= EBB_FP_CHUNK_BYTES) {
			m = __ldcs(from);
			if (copy)
				__stcs(to, m);
		} else if (left > 0) {
			m = head(__ldcs(from), left);
			if (copy)
				store_head(to, m, left);
		}
		absorb(c, m, key.words + row * EBB_FP_CHUNK_WORDS);
	}

	/* Join the columns of each warp, then the warps: every step joins neighbours, the second of them multiplied by
	 * the power of x that its distance is. */
	__shared__ uint64_t warps[2][WARPS];
	const int any = __syncthreads_or(c.any != 0);
#pragma unroll
	for (int q = 0; q < 2; q++) {
		uint64_t v = ebb_fp_mul_add(ebb_fp_reduce(c.nh[2 * q + 1]), key.powers[q][0], ebb_fp_reduce(c.nh[2 * q]));
#pragma unroll
		for (int k = 1; k <= 5; k++)
			v = ebb_fp_mul_add(__shfl_down_sync(0xffffffff, v, 1 << (k - 1)), key.powers[q][k], v);
		if (threadIdx.x % WARP == 0)
			warps[q][threadIdx.x / WARP] = v;
	}
	__syncthreads();
	if (threadIdx.x < 2) {
		const uint64_t x = threadIdx.x ? key.powers[1][6] : key.powers[0][6];
		uint64_t v = 0;
#pragma unroll
		for (int w = WARPS - 1; w >= 0; w--)
			v = ebb_fp_mul_add(v, x, warps[threadIdx.x][w]);
		parts[blockIdx.x].p[threadIdx.x] = v;
		if (threadIdx.x == 0)
			parts[blockIdx.x].any = any ? 1 : 0;
	}
}
