/* The fingerprint on the CPU: see fingerprint.h. */
#include "fingerprint.h"

#include <string.h>

/* NH of all columns: the value of lane j of column c is nh[j][c]. */
struct columns {
	uint64_t nh[EBB_FP_LANES][EBB_FP_COLUMNS];
};

/* Adds one row to the columns. */
static void absorb(struct columns *c, const unsigned char *row, const uint32_t *key)
{
	for (int column = 0; column < EBB_FP_COLUMNS; column++) {
		uint32_t m[EBB_FP_CHUNK_WORDS];
		memcpy(m, row + column * EBB_FP_CHUNK_BYTES, sizeof m);
		for (int lane = 0; lane < EBB_FP_LANES; lane++) {
			const uint32_t *k = key + 2 * lane;
			c->nh[lane][column] += (uint64_t)(m[0] + k[0]) * (m[1] + k[1]) + (uint64_t)(m[2] + k[2]) * (m[3] + k[3]);
		}
	}
}

/* The value of the polynomial at x whose coefficients are those of two lanes, column by column. */
static uint64_t evaluate(const uint64_t *even, const uint64_t *odd, const uint64_t *powers)
{
	uint64_t v = 0;
	for (int c = EBB_FP_COLUMNS - 1; c >= 0; c--)
		v = ebb_fp_mul_add(v, powers[1], ebb_fp_mul_add(ebb_fp_reduce(odd[c]), powers[0], ebb_fp_reduce(even[c])));
	return v;
}

void ebb_fp_tile_part(const struct ebb_fp_key *key, const void *tile, size_t n, struct ebb_fp_part *part)
{
	struct columns c = {0};
	const unsigned char *row = tile;
	const uint32_t *words = key->words;
	uint64_t any = 0;

	for (size_t i = 0; i < n; i++)
		any |= row[i];
	for (; n >= EBB_FP_ROW_BYTES; n -= EBB_FP_ROW_BYTES, row += EBB_FP_ROW_BYTES, words += EBB_FP_CHUNK_WORDS)
		absorb(&c, row, words);
	if (n) {
		unsigned char last[EBB_FP_ROW_BYTES] = {0};
		memcpy(last, row, n);
		absorb(&c, last, words);
	}
	part->p[0] = evaluate(c.nh[0], c.nh[1], key->powers[0]);
	part->p[1] = evaluate(c.nh[2], c.nh[3], key->powers[1]);
	part->any = any != 0;
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
