/*
 * kernels.c: the device code of the demo, as a module that softgpu loads.
 *
 * Each kernel does all of its work in a fixed order, whatever the grid, so that the same input
 * gives the same bits every time. SOFTGPU_KERNEL's arguments are the sizes of the parameters.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "model.h"
#include "softgpu_kernel.h"

#define ARG(type, i) (*(type *)params[i])
enum { PTR = sizeof(void *), U64 = sizeof(uint64_t), F32 = sizeof(float) };

static inline float from_bf16(uint16_t w)
{
	uint32_t u = (uint32_t)w << 16;
	float f;
	memcpy(&f, &u, sizeof f);
	return f;
}

/* Rounds to nearest, ties to even. The demo's weights are finite. */
static inline uint16_t to_bf16(float f)
{
	uint32_t u;
	memcpy(&u, &f, sizeof u);
	return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/* p[0..n) = pseudo-random numbers, uniform in (-scale, scale). */
SOFTGPU_KERNEL(demo_init, PTR, U64, U64, F32)
{
	(void)cfg;
	float *p = ARG(float *, 0);
	uint64_t n = ARG(uint64_t, 1), seed = ARG(uint64_t, 2);
	float scale = ARG(float, 3);

	for (uint64_t i = 0; i < n; i++) {
		uint64_t r = demo_mix(seed ^ i) >> 40; /* 24 bits: exact in a float */
		p[i] = ((float)r / 8388608.0f - 1.0f) * scale;
	}
}

/* w[0..n) = bf16(p[0..n)) */
SOFTGPU_KERNEL(demo_cast, PTR, PTR, U64)
{
	(void)cfg;
	uint16_t *w = ARG(uint16_t *, 0);
	const float *p = ARG(const float *, 1);
	uint64_t n = ARG(uint64_t, 2);

	for (uint64_t i = 0; i < n; i++)
		w[i] = to_bf16(p[i]);
}

/* contexts[batch][DEMO_CONTEXT] to x, h and logits, one row for each character. wide receives
 * the dense parameters as fp32, for this kernel and demo_backward. */
SOFTGPU_KERNEL(demo_forward, PTR, U64, PTR, U64, PTR, PTR, PTR, PTR, PTR)
{
	(void)cfg;
	const uint8_t *contexts = ARG(const uint8_t *, 0);
	uint64_t batch = ARG(uint64_t, 1);
	const uint16_t *table = ARG(const uint16_t *, 2);
	uint64_t rows = ARG(uint64_t, 3);
	const uint16_t *dense = ARG(const uint16_t *, 4);
	float *wide = ARG(float *, 5);
	float *xs = ARG(float *, 6), *hs = ARG(float *, 7), *logits = ARG(float *, 8);

	for (int i = 0; i < DEMO_DENSE; i++)
		wide[i] = from_bf16(dense[i]);

	for (uint64_t t = 0; t < batch; t++) {
		const uint8_t *context = contexts + t * DEMO_CONTEXT;
		float *x = xs + t * DEMO_DIM, *h = hs + t * DEMO_HIDDEN, *y = logits + t * DEMO_VOCAB;

		memset(x, 0, DEMO_DIM * sizeof *x);
		for (int k = 1; k <= DEMO_CONTEXT; k++) {
			const uint16_t *row = table + demo_row(context, k, rows) * DEMO_DIM;
			for (int i = 0; i < DEMO_DIM; i++)
				x[i] += from_bf16(row[i]);
		}
		memcpy(h, wide + DEMO_B1, DEMO_HIDDEN * sizeof *h);
		for (int i = 0; i < DEMO_DIM; i++) {
			const float *w = wide + DEMO_W1 + i * DEMO_HIDDEN;
			for (int j = 0; j < DEMO_HIDDEN; j++)
				h[j] += x[i] * w[j];
		}
		for (int j = 0; j < DEMO_HIDDEN; j++)
			h[j] = tanhf(h[j]);
		memcpy(y, wide + DEMO_B2, DEMO_VOCAB * sizeof *y);
		for (int j = 0; j < DEMO_HIDDEN; j++) {
			const float *w = wide + DEMO_W2 + j * DEMO_VOCAB;
			for (int c = 0; c < DEMO_VOCAB; c++)
				y[c] += h[j] * w[c];
		}
	}
}

/* Cross-entropy: *loss = mean over the batch; logits become the gradient with respect to them. */
SOFTGPU_KERNEL(demo_loss, PTR, U64, PTR, PTR)
{
	(void)cfg;
	const uint8_t *targets = ARG(const uint8_t *, 0);
	uint64_t batch = ARG(uint64_t, 1);
	float *logits = ARG(float *, 2);
	float *loss = ARG(float *, 3);
	double sum = 0;

	for (uint64_t t = 0; t < batch; t++) {
		float *y = logits + t * DEMO_VOCAB, max = y[0], total = 0;
		for (int c = 1; c < DEMO_VOCAB; c++)
			max = y[c] > max ? y[c] : max;
		float target = y[targets[t]] - max;
		for (int c = 0; c < DEMO_VOCAB; c++) {
			y[c] = expf(y[c] - max);
			total += y[c];
		}
		sum += logf(total) - target;
		for (int c = 0; c < DEMO_VOCAB; c++)
			y[c] = (y[c] / total - (c == targets[t] ? 1.0f : 0.0f)) / (float)batch;
	}
	*loss = (float)(sum / (double)batch);
}

/* The gradient of one rank: grad = dx[batch][DEMO_DIM], then that of the dense parameters. dx is
 * the gradient of each of the eight table rows that were summed into x. */
SOFTGPU_KERNEL(demo_backward, U64, PTR, PTR, PTR, PTR, PTR)
{
	(void)cfg;
	uint64_t batch = ARG(uint64_t, 0);
	const float *wide = ARG(const float *, 1);
	const float *xs = ARG(const float *, 2), *hs = ARG(const float *, 3), *dlogits = ARG(const float *, 4);
	float *grad = ARG(float *, 5);
	float *dense = grad + batch * DEMO_DIM;
	float dh[DEMO_HIDDEN];

	memset(dense, 0, DEMO_DENSE * sizeof *dense);
	for (uint64_t t = 0; t < batch; t++) {
		const float *x = xs + t * DEMO_DIM, *h = hs + t * DEMO_HIDDEN, *dy = dlogits + t * DEMO_VOCAB;
		float *dx = grad + t * DEMO_DIM;

		for (int c = 0; c < DEMO_VOCAB; c++)
			dense[DEMO_B2 + c] += dy[c];
		for (int j = 0; j < DEMO_HIDDEN; j++) {
			const float *w = wide + DEMO_W2 + j * DEMO_VOCAB;
			float *dw = dense + DEMO_W2 + j * DEMO_VOCAB, sum = 0;
#pragma omp simd reduction(+ : sum)
			for (int c = 0; c < DEMO_VOCAB; c++) {
				dw[c] += h[j] * dy[c];
				sum += w[c] * dy[c];
			}
			dh[j] = sum * (1.0f - h[j] * h[j]);
			dense[DEMO_B1 + j] += dh[j];
		}
		for (int i = 0; i < DEMO_DIM; i++) {
			const float *w = wide + DEMO_W1 + i * DEMO_HIDDEN;
			float *dw = dense + DEMO_W1 + i * DEMO_HIDDEN, sum = 0;
#pragma omp simd reduction(+ : sum)
			for (int j = 0; j < DEMO_HIDDEN; j++) {
				dw[j] += x[i] * dh[j];
				sum += w[j] * dh[j];
			}
			dx[i] = sum;
		}
	}
}

/* The mean gradient of all ranks. parts holds each rank's output of demo_backward in order of
 * rank, contexts what each of them saw. table_grad was zeroed before. */
SOFTGPU_KERNEL(demo_average, U64, U64, PTR, U64, PTR, PTR, PTR)
{
	(void)cfg;
	uint64_t ranks = ARG(uint64_t, 0), batch = ARG(uint64_t, 1);
	const uint8_t *contexts = ARG(const uint8_t *, 2);
	uint64_t rows = ARG(uint64_t, 3);
	const float *parts = ARG(const float *, 4);
	float *table_grad = ARG(float *, 5), *dense_grad = ARG(float *, 6);
	float share = 1.0f / (float)ranks;

	memset(dense_grad, 0, DEMO_DENSE * sizeof *dense_grad);
	for (uint64_t r = 0; r < ranks; r++) {
		const float *part = parts + r * (batch * DEMO_DIM + DEMO_DENSE);
		for (uint64_t t = 0; t < batch; t++) {
			const uint8_t *context = contexts + (r * batch + t) * DEMO_CONTEXT;
			for (int k = 1; k <= DEMO_CONTEXT; k++) {
				float *g = table_grad + demo_row(context, k, rows) * DEMO_DIM;
				for (int i = 0; i < DEMO_DIM; i++)
					g[i] += part[t * DEMO_DIM + i] * share;
			}
		}
		for (int i = 0; i < DEMO_DENSE; i++)
			dense_grad[i] += part[batch * DEMO_DIM + i] * share;
	}
}

/* Adam with decoupled weight decay on n parameters; w is the bf16 copy that computing uses.
 * scale1 and scale2 undo the moments' bias towards zero at this step. */
SOFTGPU_KERNEL(demo_adam, PTR, PTR, PTR, PTR, PTR, U64, F32, F32, F32, F32)
{
	(void)cfg;
	float *restrict p = ARG(float *, 0);
	const float *restrict g = ARG(const float *, 1);
	float *restrict m = ARG(float *, 2), *restrict v = ARG(float *, 3);
	uint16_t *restrict w = ARG(uint16_t *, 4);
	uint64_t n = ARG(uint64_t, 5);
	float rate = ARG(float, 6), decay = ARG(float, 7), scale1 = ARG(float, 8), scale2 = ARG(float, 9);
	const float beta1 = 0.9f, beta2 = 0.99f, epsilon = 1e-8f;

	for (uint64_t i = 0; i < n; i++) {
		m[i] = beta1 * m[i] + (1 - beta1) * g[i];
		v[i] = beta2 * v[i] + (1 - beta2) * (g[i] * g[i]);
		float step = (m[i] * scale1) / (sqrtf(v[i] * scale2) + epsilon);
		p[i] = p[i] - rate * (step + decay * p[i]);
		w[i] = to_bf16(p[i]);
	}
}

/* *digest = a hash of itself and of the bytes at p: every bit of training state counts. */
SOFTGPU_KERNEL(demo_digest, PTR, U64, PTR)
{
	(void)cfg;
	const unsigned char *p = ARG(const unsigned char *, 0);
	uint64_t bytes = ARG(uint64_t, 1);
	uint64_t *digest = ARG(uint64_t *, 2);
	uint64_t lane[4] = {*digest ^ bytes, 1, 2, 3}, i = 0;

	for (; i + 32 <= bytes; i += 32) {
		uint64_t word[4];
		memcpy(word, p + i, sizeof word);
		for (int k = 0; k < 4; k++) {
			lane[k] = (lane[k] ^ word[k]) * 0x9fb21c651e98df25ull;
			lane[k] ^= lane[k] >> 32;
		}
	}
	for (; i < bytes; i++)
		lane[0] = (lane[0] ^ p[i]) * 0x100000001b3ull;
	for (int k = 1; k < 4; k++)
		lane[0] = demo_mix(lane[0]) ^ lane[k];
	*digest = demo_mix(lane[0]);
}

/* Writes a pattern that differs in every word and for every seed. */
SOFTGPU_KERNEL(demo_fill, PTR, U64, U64)
{
	(void)cfg;
	uint64_t *p = ARG(uint64_t *, 0), words = ARG(uint64_t, 1), seed = ARG(uint64_t, 2);

	for (uint64_t i = 0; i < words; i++)
		p[i] = seed + i * 0x9e3779b97f4a7c15ull;
}

/* *wrong += words that are not what demo_fill wrote. */
SOFTGPU_KERNEL(demo_check, PTR, U64, U64, PTR)
{
	(void)cfg;
	const uint64_t *p = ARG(const uint64_t *, 0);
	uint64_t words = ARG(uint64_t, 1), seed = ARG(uint64_t, 2), count = 0;
	uint64_t *wrong = ARG(uint64_t *, 3);

	for (uint64_t i = 0; i < words; i++)
		count += p[i] != seed + i * 0x9e3779b97f4a7c15ull;
	*wrong += count;
}
