/*
 * model.h: the language model that training, rollout and kernels share.
 *
 * It predicts the next character from the DEMO_CONTEXT characters before it:
 *
 *   x      = sum over k = 1..8 of table[hash(last k characters)]     DEMO_DIM numbers
 *   h      = tanh(x W1 + b1)                                         DEMO_HIDDEN
 *   logits = h W2 + b2                                               DEMO_VOCAB
 *
 * Nearly all parameters are rows of the hashed table: a step reads only eight rows for each
 * character, so that a few hundred megabytes of training state cost little arithmetic. The
 * optimizer, though, updates every row at every step (Adam with decoupled weight decay), so
 * master weights change everywhere between two pauses. Moments are zero for rows that no context
 * has met yet, and the table's gradient is zero outside the rows of the last step, as it is for
 * a dense gradient of an embedding in any framework.
 *
 * Weights used for computing are bf16; the master copy, gradients and both moments are fp32.
 */
#ifndef DEMO_MODEL_H
#define DEMO_MODEL_H

#include <stdint.h>

enum {
	DEMO_CONTEXT = 8,
	DEMO_DIM = 128,
	DEMO_HIDDEN = 256,
	DEMO_VOCAB = 96, /* newline, then the 95 printable ASCII characters */
};

/* Places of the small tensors within the one dense parameter vector. */
enum {
	DEMO_W1 = 0, /* [DEMO_DIM][DEMO_HIDDEN] */
	DEMO_B1 = DEMO_W1 + DEMO_DIM * DEMO_HIDDEN,
	DEMO_W2 = DEMO_B1 + DEMO_HIDDEN, /* [DEMO_HIDDEN][DEMO_VOCAB] */
	DEMO_B2 = DEMO_W2 + DEMO_HIDDEN * DEMO_VOCAB,
	DEMO_DENSE = DEMO_B2 + DEMO_VOCAB,
};

/* What rank 0 sends a rollout on its standard input, followed by the bf16 table and then the
 * bf16 dense parameters. */
struct demo_weights_header {
	uint64_t magic;
	uint64_t rows;
};
#define DEMO_WEIGHTS_MAGIC 0x3173746867696577ull

/* A fixed pseudo-random function (splitmix64): the same on every rank and in every run. */
static inline uint64_t demo_mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

/* The table row of the last `order` characters of a context. */
static inline uint64_t demo_row(const uint8_t *context, int order, uint64_t rows)
{
	uint64_t h = (uint64_t)order;
	for (int i = DEMO_CONTEXT - order; i < DEMO_CONTEXT; i++)
		h = demo_mix(h ^ ((uint64_t)context[i] << 56));
	return h % rows;
}

/* Character to id and back; -1: not a character of the model. */
static inline int demo_id(unsigned char c)
{
	if (c == '\n')
		return 0;
	return c >= 0x20 && c <= 0x7e ? c - 0x20 + 1 : -1;
}

static inline char demo_char(int id)
{
	return id == 0 ? '\n' : (char)(id - 1 + 0x20);
}

#endif
