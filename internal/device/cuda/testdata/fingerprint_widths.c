/*
 * Prints the parts of tiles of many lengths, at an odd address, as computed with each width of vectors that fingerprint.c
 * was compiled with and this CPU has: one line for each tile, the widths' results in turn.
 */
#include "../fingerprint.c"

#include <stdio.h>

static uint64_t state = 88172645463325252ull;

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

int main(void)
{
	static const struct width *const widths[] = {
		&any_cpu,
#ifdef __SSE2__
		&avx2,
#endif
	};
	static unsigned char tile[EBB_FP_TILE_BYTES + 1];
	static struct ebb_fp_key key;
	for (int i = 0; i < EBB_FP_KEY_WORDS; i++)
		key.words[i] = (uint32_t)next();
	for (int q = 0; q < 2; q++)
		for (int k = 0; k < 2; k++)
			key.powers[q][k] = ebb_fp_reduce(next());
	for (size_t i = 0; i < sizeof tile; i++)
		tile[i] = (unsigned char)next();
	for (size_t n = 1; n <= EBB_FP_TILE_BYTES; n += n < 100 || n > EBB_FP_TILE_BYTES - 9 ? 1 : n / 7) {
		printf("%zu", n);
		for (size_t w = 0; w < sizeof widths / sizeof *widths && (w == 0 || best() == widths[w]); w++) {
			struct ebb_fp_part part;
			tile_part(widths[w], &key, tile + 1, n, &part);
			printf(" %llx/%llx/%d", (unsigned long long)part.p[0], (unsigned long long)part.p[1], (int)part.any);
		}
		printf("\n");
	}
	return 0;
}
