/* random.c: bytes that do not compress, and a hash, both at several bytes a cycle. */
#include "rank.h"

#include <string.h>

/* Two 64-bit words side by side: what every x86-64 and arm64 has in one register. */
typedef uint64_t lanes __attribute__((vector_size(16), may_alias, aligned(16)));

/* The finaliser of splitmix64: neighbouring values give unrelated results. */
uint64_t mix(uint64_t value)
{
	value += 0x9E3779B97F4A7C15u;
	value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
	value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
	return value ^ (value >> 31);
}

static lanes seeded(uint64_t seed) { return (lanes){mix(seed), mix(~seed) | 1}; }

/* Four generators xorshift128+ of two lanes each. */
void random_fill(void *p, size_t n, uint64_t seed)
{
	lanes *out = p;
	lanes a[4], b[4];

	for (unsigned i = 0; i < 4; i++) {
		a[i] = seeded(mix(seed) + 2 * i);
		b[i] = seeded(mix(seed) + 2 * i + 1);
	}
	for (size_t done = 0; done < n; done += 64)
		for (int i = 0; i < 4; i++) {
			lanes next = a[i] ^ (a[i] << 23);

			*out++ = a[i] + b[i];
			a[i] = b[i];
			b[i] = next ^ b[i] ^ (next >> 18) ^ (b[i] >> 5);
		}
}

uint64_t hash_bytes(void *p, size_t n)
{
	const lanes *in = p;
	lanes state[4];
	uint64_t sum = mix(n);

	for (unsigned i = 0; i < 4; i++)
		state[i] = seeded(i);
	memset((char *)p + n, 0, (64 - n % 64) % 64);
	/* Each step is a bijection of the state, so that a difference in one word is never lost. */
	for (size_t done = 0; done < n; done += 64)
		for (int i = 0; i < 4; i++) {
			state[i] ^= *in++;
			state[i] += state[i] << 7;
			state[i] ^= state[i] >> 9;
		}
	for (int i = 0; i < 4; i++)
		sum = mix(mix(sum ^ state[i][0]) ^ state[i][1]);
	return sum;
}
