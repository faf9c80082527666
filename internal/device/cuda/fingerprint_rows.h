/*
 * fingerprint_rows.h: the loop of fingerprint.c, for one width of vectors. Included once for each:
 *
 *   NAME(x)     the name x has in this inclusion
 *   BYTES       of a vector: one chunk, or several
 *   MUL(a, b)   products of the lower halves of 64-bit elements
 *   TARGET      attributes of the functions
 */

typedef uint32_t NAME(words) __attribute__((vector_size(BYTES), aligned(4), may_alias));
typedef uint32_t NAME(data) __attribute__((vector_size(BYTES), aligned(1), may_alias)); /* it may lie anywhere */
typedef uint64_t NAME(sums) __attribute__((vector_size(BYTES), aligned(8), may_alias));

/* Adds rows to the columns; the OR of all their words. */
TARGET static inline __attribute__((always_inline)) uint64_t NAME(absorb)(struct columns *c, const unsigned char *at,
									  const uint32_t *key, const int rows)
{
	NAME(words) k[2 * BATCH + 2], any = {0};
	NAME(sums) *nh = (NAME(sums) *)c->nh;

	for (int i = 0; i < 2 * rows + 2; i++)
		for (int w = 0; w < BYTES / 4; w++)
			k[i][w] = key[2 * i + w % EBB_FP_CHUNK_WORDS];
	for (int n = EBB_FP_ROW_BYTES / BYTES; n > 0; n--, at += BYTES, nh += EBB_FP_LANES) {
		NAME(sums) nh0 = nh[0], nh1 = nh[1], nh2 = nh[2], nh3 = nh[3], s;
#pragma GCC unroll 8
		for (int row = 0; row < rows; row++) {
			NAME(words) m = *(const NAME(data) *)(at + row * EBB_FP_ROW_BYTES);
			any |= m;
			s = (NAME(sums))(m + k[2 * row]), nh0 += (NAME(sums))MUL(s, s >> 32);
			s = (NAME(sums))(m + k[2 * row + 1]), nh1 += (NAME(sums))MUL(s, s >> 32);
			s = (NAME(sums))(m + k[2 * row + 2]), nh2 += (NAME(sums))MUL(s, s >> 32);
			s = (NAME(sums))(m + k[2 * row + 3]), nh3 += (NAME(sums))MUL(s, s >> 32);
		}
		nh[0] = nh0, nh[1] = nh1, nh[2] = nh2, nh[3] = nh3;
	}
	uint64_t all = 0;
	for (int w = 0; w < BYTES / 4; w++)
		all |= any[w];
	return all;
}

TARGET static uint64_t NAME(absorb_batch)(struct columns *c, const unsigned char *at, const uint32_t *key)
{
	return NAME(absorb)(c, at, key, BATCH);
}

TARGET static uint64_t NAME(absorb_row)(struct columns *c, const unsigned char *at, const uint32_t *key)
{
	return NAME(absorb)(c, at, key, 1);
}

#undef NAME
#undef BYTES
#undef MUL
#undef TARGET
