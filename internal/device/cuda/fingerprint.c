/* The fingerprint on the CPU: see fingerprint.h. */
#include "fingerprint.h"

#include <string.h>

#ifdef __SSE2__
#include <immintrin.h>
#endif

enum { BATCH = 8 }; /* rows that are read side by side */

/* NH of all columns. A vector has two sums for each of its chunks, which NH adds up in the end; the vectors of
 * the lanes 0 to 3 of the first chunks lie first, then those of the chunks after them. */
struct columns {
	uint64_t nh[EBB_FP_COLUMNS * EBB_FP_LANES * 2] __attribute__((aligned(64)));
};

#ifdef __SSE2__

#define NAME(x) x##_avx2
#define BYTES 32
#define MUL(a, b) _mm256_mul_epu32((__m256i)(a), (__m256i)(b))
#define TARGET __attribute__((target("avx2")))
#include "fingerprint_rows.h"

#define NAME(x) x##_any
#define BYTES 16
#define MUL(a, b) _mm_mul_epu32((__m128i)(a), (__m128i)(b))
#define TARGET
#include "fingerprint_rows.h"

#else

#define NAME(x) x##_any
#define BYTES 16
#define MUL(a, b) (((a) & 0xffffffff) * ((b) & 0xffffffff))
#define TARGET
#include "fingerprint_rows.h"

#endif

/* A way to absorb rows. */
struct width {
	uint64_t (*absorb_batch)(struct columns *c, const unsigned char *at, const uint32_t *key);
	uint64_t (*absorb_row)(struct columns *c, const unsigned char *at, const uint32_t *key);
	int shift; /* a vector holds 1 << shift chunks */
};

static const struct width any_cpu = {absorb_batch_any, absorb_row_any, 0};

#ifdef __SSE2__
static const struct width avx2 = {absorb_batch_avx2, absorb_row_avx2, 1};
static const struct width *best(void) { return __builtin_cpu_supports("avx2") ? &avx2 : &any_cpu; }
#else
static const struct width *best(void) { return &any_cpu; }
#endif

/* NH of one lane of a column, modulo the prime. */
static inline uint64_t lane_of(const struct columns *c, int shift, int column, int lane)
{
	int vector = (column >> shift) * EBB_FP_LANES + lane, place = column & ((1 << shift) - 1);
	const uint64_t *sums = c->nh + 2 * ((vector << shift) + place);
	return ebb_fp_reduce(sums[0] + sums[1]);
}

static void tile_part(const struct width *width, const struct ebb_fp_key *key, const void *tile, size_t n,
		      struct ebb_fp_part *part)
{
	struct columns c = {0};
	const unsigned char *at = tile;
	const uint32_t *words = key->words;
	uint64_t any = 0, p[2] = {0};

	for (; n >= BATCH * EBB_FP_ROW_BYTES; n -= BATCH * EBB_FP_ROW_BYTES) {
		any |= width->absorb_batch(&c, at, words);
		at += BATCH * EBB_FP_ROW_BYTES;
		words += BATCH * EBB_FP_CHUNK_WORDS;
	}
	for (; n >= EBB_FP_ROW_BYTES; n -= EBB_FP_ROW_BYTES) {
		any |= width->absorb_row(&c, at, words);
		at += EBB_FP_ROW_BYTES;
		words += EBB_FP_CHUNK_WORDS;
	}
	if (n) {
		unsigned char last[EBB_FP_ROW_BYTES] = {0};
		memcpy(last, at, n);
		any |= width->absorb_row(&c, last, words);
	}
	for (int column = EBB_FP_COLUMNS - 1; column >= 0; column--)
		for (int q = 0; q < 2; q++) {
			const uint64_t *x = key->powers[q];
			uint64_t even = lane_of(&c, width->shift, column, 2 * q), odd = lane_of(&c, width->shift, column, 2 * q + 1);
			p[q] = ebb_fp_mul_add(p[q], x[1], ebb_fp_mul_add(odd, x[0], even));
		}
	*part = (struct ebb_fp_part){.p = {p[0], p[1]}, .any = any != 0};
}

void ebb_fp_tile_part(const struct ebb_fp_key *key, const void *tile, size_t n, struct ebb_fp_part *part)
{
	tile_part(best(), key, tile, n, part);
}

struct ebb_fp_sum ebb_fp_block(const struct ebb_fp_key *key, const void *block, size_t n)
{
	struct ebb_fp_sum sum = {.v = {n, n}};
	for (size_t at = 0; at < n; at += EBB_FP_TILE_BYTES) {
		struct ebb_fp_part part;
		size_t left = n - at;
		ebb_fp_tile_part(key, (const char *)block + at, left < EBB_FP_TILE_BYTES ? left : EBB_FP_TILE_BYTES, &part);
		for (int q = 0; q < 2; q++)
			sum.v[q] = ebb_fp_mul_add(sum.v[q], key->points[q], part.p[q]);
		sum.any |= part.any;
	}
	return sum;
}
