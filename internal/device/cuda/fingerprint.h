/*
 * fingerprint.h: what the kernel (fingerprint.cu), the same hash on the CPU (fingerprint.c) and softgpu
 * share. internal/fingerprint defines the hash; the structs here are its Key and Part in memory.
 */
#ifndef EBB_FINGERPRINT_H
#define EBB_FINGERPRINT_H

#ifdef __CUDACC__
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#define EBB_FP_INLINE static __device__ __forceinline__
#else
#include <stddef.h>
#include <stdint.h>
#define EBB_FP_INLINE static inline
#endif

enum {
	EBB_FP_CHUNK_BYTES = 16,
	EBB_FP_COLUMNS = 256,
	EBB_FP_ROWS = 64,
	EBB_FP_ROW_BYTES = EBB_FP_COLUMNS * EBB_FP_CHUNK_BYTES,
	EBB_FP_TILE_BYTES = EBB_FP_ROWS * EBB_FP_ROW_BYTES,
	EBB_FP_CHUNK_WORDS = EBB_FP_CHUNK_BYTES / 4,
	EBB_FP_LANES = 4, /* lane j takes its key from word 2j on */
	EBB_FP_KEY_WORDS = EBB_FP_ROWS * EBB_FP_CHUNK_WORDS + 2 * EBB_FP_LANES - 2,
};

#define EBB_FP_PRIME ((1ull << 61) - 1)

struct ebb_fp_key {
	uint32_t words[EBB_FP_KEY_WORDS];
	uint64_t powers[2][7]; /* x^(2^k) */
	uint64_t points[2];
};

/* One tile for the kernel: up to EBB_FP_TILE_BYTES at a multiple of 16. If to is not 0, another multiple of 16, the bytes
 * are copied there too, and those written there are the ones that are hashed. */
struct ebb_fp_tile {
	uint64_t address, to;
	uint64_t bytes, unused;
};

struct ebb_fp_part {
	uint64_t p[2];
	uint64_t any; /* 1 if a byte is not zero, else 0 */
	uint64_t unused;
};

/* v modulo the prime */
EBB_FP_INLINE uint64_t ebb_fp_reduce(uint64_t v)
{
	v = (v & EBB_FP_PRIME) + (v >> 61);
	return v >= EBB_FP_PRIME ? v - EBB_FP_PRIME : v;
}

/* a * b + c modulo the prime, for a, b and c below it */
EBB_FP_INLINE uint64_t ebb_fp_mul_add(uint64_t a, uint64_t b, uint64_t c)
{
#ifdef __CUDACC__
	uint64_t low = a * b, high = __umul64hi(a, b);
#else
	unsigned __int128 product = (unsigned __int128)a * b;
	uint64_t low = (uint64_t)product, high = (uint64_t)(product >> 64);
#endif
	return ebb_fp_reduce((low & EBB_FP_PRIME) + (high << 3 | low >> 61) + c);
}

#ifndef __CUDACC__

/* The part of a tile of n bytes, 0 < n <= EBB_FP_TILE_BYTES, at any address. */
void ebb_fp_tile_part(const struct ebb_fp_key *key, const void *tile, size_t n, struct ebb_fp_part *part);

struct ebb_fp_sum {
	uint64_t v[2];
	uint64_t any;
};

/* The fingerprint of a block of n bytes, n > 0. */
struct ebb_fp_sum ebb_fp_block(const struct ebb_fp_key *key, const void *block, size_t n);

#endif
#endif
