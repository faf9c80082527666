/*
 * rollout.c: the other tenant of the GPU. It receives the actor's current weights on standard
 * input, takes nearly all device memory that it can get, and generates some text.
 *
 * The model is too small to need a cache of keys and values. The memory that a rollout engine
 * would use for one is taken here all the same, filled with a pattern before generating and
 * checked afterwards: status 0 means that at least nine tenths of the device were really had.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "common.h"
#include "model.h"

enum { CHARACTERS = 240, MAX_BLOCKS = 65536 };
static const uint64_t LARGE_BLOCK = 64 << 20, SMALL_BLOCK = 2 << 20;
static const double TEMPERATURE = 0.6;

struct block {
	uint64_t *memory, words, seed;
};

struct cache {
	struct block *blocks;
	size_t count;
	uint64_t bytes;
};

struct model {
	uint64_t rows;
	uint16_t *table, *dense; /* device */
	uint64_t bytes;
};

/* Device memory that generating one character after another needs. */
struct workspace {
	float wide[DEMO_DENSE], x[DEMO_DIM], h[DEMO_HIDDEN], logits[DEMO_VOCAB];
	uint8_t context[DEMO_CONTEXT];
	uint64_t wrong;
};

static void *device_memory(uint64_t size)
{
	void *p;
	RUNTIME(cudaMalloc(&p, size));
	return p;
}

static void receive(void *device, uint64_t size, cudaStream_t stream)
{
	void *host;
	if (!(host = malloc(size)))
		die("no host memory for %llu bytes of weights", (unsigned long long)size);
	if (!read_full(0, host, size))
		die("read the weights: %s", errno ? strerror(errno) : "they end early");
	RUNTIME(cudaMemcpyAsync(device, host, size, cudaMemcpyHostToDevice, stream));
	RUNTIME(cudaStreamSynchronize(stream));
	free(host);
}

static struct model receive_model(cudaStream_t stream)
{
	struct demo_weights_header header;
	struct model m;

	if (!read_full(0, &header, sizeof header) || header.magic != DEMO_WEIGHTS_MAGIC || header.rows == 0)
		die("standard input holds no weights");
	uint64_t table = header.rows * DEMO_DIM * sizeof *m.table, dense = DEMO_DENSE * sizeof *m.dense;
	m = (struct model){.rows = header.rows, .bytes = table + dense};
	m.table = device_memory(table);
	m.dense = device_memory(dense);
	receive(m.table, table, stream);
	receive(m.dense, dense, stream);
	return m;
}

/* Takes blocks of a size until the device has no more. */
static void take_blocks(struct cache *c, uint64_t size, uint64_t cycle)
{
	void *p;
	cudaError_t error = cudaSuccess;

	while (c->count < MAX_BLOCKS && (error = cudaMalloc(&p, size)) == cudaSuccess) {
		c->blocks[c->count] = (struct block){p, size / sizeof(uint64_t), demo_mix(cycle << 32 | c->count)};
		c->count++;
		c->bytes += size;
	}
	if (error != cudaSuccess && error != cudaErrorMemoryAllocation)
		runtime_check(error, "cudaMalloc of a block");
	cudaGetLastError(); /* a full device is what this looks for, not a failure */
}

static uint64_t wrong_words(struct cache *c, struct workspace *ws, CUfunction check, cudaStream_t stream)
{
	uint64_t *device = &ws->wrong, host = 0;

	RUNTIME(cudaMemsetAsync(device, 0, sizeof *device, stream));
	for (size_t i = 0; i < c->count; i++)
		LAUNCH(check, stream, &c->blocks[i].memory, &c->blocks[i].words, &c->blocks[i].seed, &device);
	RUNTIME(cudaMemcpyAsync(&host, device, sizeof host, cudaMemcpyDeviceToHost, stream));
	RUNTIME(cudaStreamSynchronize(stream));
	return host;
}

/* Draws an id from softmax(logits / TEMPERATURE). */
static int sample(const float *logits, uint64_t random)
{
	double p[DEMO_VOCAB], max = logits[0], total = 0, at;

	for (int c = 1; c < DEMO_VOCAB; c++)
		max = logits[c] > max ? logits[c] : max;
	for (int c = 0; c < DEMO_VOCAB; c++)
		total += p[c] = exp((logits[c] - max) / TEMPERATURE);
	at = (double)(random >> 11) / 9007199254740992.0 * total;
	for (int c = 0; c < DEMO_VOCAB; c++)
		if ((at -= p[c]) < 0)
			return c;
	return DEMO_VOCAB - 1;
}

static void generate(struct model *m, struct workspace *ws, CUfunction forward, cudaStream_t stream, uint64_t cycle,
		     char *text)
{
	static const char prime[DEMO_CONTEXT + 1] = "The boat";
	uint8_t context[DEMO_CONTEXT], *device_context = ws->context;
	float *wide = ws->wide, *x = ws->x, *h = ws->h, *device_logits = ws->logits, logits[DEMO_VOCAB];
	uint64_t one = 1;

	memcpy(text, prime, DEMO_CONTEXT);
	for (int i = 0; i < DEMO_CONTEXT; i++)
		context[i] = (uint8_t)demo_id((unsigned char)prime[i]);
	for (int n = DEMO_CONTEXT; n < CHARACTERS; n++) {
		RUNTIME(cudaMemcpyAsync(device_context, context, sizeof context, cudaMemcpyHostToDevice, stream));
		LAUNCH(forward, stream, &device_context, &one, &m->table, &m->rows, &m->dense, &wide, &x, &h,
		       &device_logits);
		RUNTIME(cudaMemcpyAsync(logits, device_logits, sizeof logits, cudaMemcpyDeviceToHost, stream));
		RUNTIME(cudaStreamSynchronize(stream));
		int id = sample(logits, demo_mix(cycle << 32 | (uint64_t)n));
		memmove(context, context + 1, DEMO_CONTEXT - 1);
		context[DEMO_CONTEXT - 1] = (uint8_t)id;
		text[n] = demo_char(id);
	}
	text[CHARACTERS] = '\0';
}

int main(int argc, char **argv)
{
	static const struct option known[] = {
		{"kernels", required_argument, NULL, 'k'}, {"cycle", required_argument, NULL, 'n'}, {NULL, 0, NULL, 0},
	};
	const char *kernels = NULL;
	char text[CHARACTERS + 1], escaped[2 * CHARACTERS];
	uint64_t cycle = 0, wrong;
	size_t available, total, left;
	struct cache cache = {0};
	cudaStream_t stream;
	CUmodule module;
	int c;

	program_name = "demo-rollout";
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* the actor that asked for it is gone: nobody wants the result */
	while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
		switch (c) {
		case 'k': kernels = optarg; break;
		case 'n': cycle = parse_number("--cycle", optarg, 0, 1000000); break;
		default: exit(2);
		}
	}
	if (!kernels || optind != argc)
		die("usage: demo-rollout --kernels MODULE [--cycle N] < weights");

	RUNTIME(cudaSetDevice(0));
	RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	DRIVER(cuModuleLoad(&module, kernels));
	CUfunction fill = kernel(module, "demo_fill"), check = kernel(module, "demo_check");
	CUfunction forward = kernel(module, "demo_forward");

	RUNTIME(cudaMemGetInfo(&available, &total));
	struct model model = receive_model(stream);
	struct workspace *workspace = device_memory(sizeof *workspace);
	if (!(cache.blocks = calloc(MAX_BLOCKS, sizeof *cache.blocks)))
		die("no host memory for a list of blocks");
	take_blocks(&cache, LARGE_BLOCK, cycle);
	take_blocks(&cache, SMALL_BLOCK, cycle);
	uint64_t had = model.bytes + sizeof *workspace + cache.bytes;
	if (had < total / 10 * 9)
		die("the device gave %llu of its %zu bytes; %zu were free at the start", (unsigned long long)had, total,
		    available);

	for (size_t i = 0; i < cache.count; i++)
		LAUNCH(fill, stream, &cache.blocks[i].memory, &cache.blocks[i].words, &cache.blocks[i].seed);
	generate(&model, workspace, forward, stream, cycle, text);
	if ((wrong = wrong_words(&cache, workspace, check, stream)) != 0)
		die("%llu words of the cache do not hold what was written to them", (unsigned long long)wrong);
	RUNTIME(cudaMemGetInfo(&left, &total));

	for (char *p = text; *p; p++)
		if (*p == '\n')
			*p = ' ';
	json_escape(escaped, sizeof escaped, text);
	event("{\"event\":\"rollout\",\"cycle\":%llu,\"bytes\":%llu,\"used\":%zu,\"free_before\":%zu,\"total\":%zu,"
	      "\"sample\":\"%s\"}",
	      (unsigned long long)cycle, (unsigned long long)had, total - left, available, total, escaped);
	printf("rollout %llu: %s\n", (unsigned long long)cycle, text);

	for (size_t i = 0; i < cache.count; i++)
		RUNTIME(cudaFree(cache.blocks[i].memory));
	free(cache.blocks);
	RUNTIME(cudaFree(workspace));
	RUNTIME(cudaFree(model.table));
	RUNTIME(cudaFree(model.dense));
	RUNTIME(cudaStreamDestroy(stream));
	DRIVER(cuModuleUnload(module));
	return 0;
}
