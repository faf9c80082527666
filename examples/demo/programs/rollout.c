/*
 * rollout.c: the other tenant of the GPU, a rollout engine that sleeps and wakes.
 *
 *   demo-rollout serve FOLDER KERNELS   the engine: listens on FOLDER/engine until it is ended
 *   demo-rollout ask FOLDER WORD        says a word to it: sleep, wake, status or generate
 *
 * The second form is what `ebb swap --engine-command` calls. To wake, the engine loads the weights that the
 * actor left in FOLDER/weights, and takes nearly all device memory that it can get. To generate, it makes some
 * text. To sleep, it gives everything back.
 *
 * The model is too small to need a cache of keys and values. The memory that a rollout engine would use for
 * one is taken here all the same, filled with a pattern before generating and checked afterwards. An engine that
 * gets less than nine tenths of the device ends with an error.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
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

static void load(int fd, void *device, uint64_t size, cudaStream_t stream)
{
	void *host;
	if (!(host = malloc(size)))
		die("no host memory for %llu bytes of weights", (unsigned long long)size);
	if (!read_full(fd, host, size))
		die("read the weights: %s", errno ? strerror(errno) : "they end early");
	RUNTIME(cudaMemcpyAsync(device, host, size, cudaMemcpyHostToDevice, stream));
	RUNTIME(cudaStreamSynchronize(stream));
	free(host);
}

static struct model load_model(cudaStream_t stream)
{
	struct demo_weights_header header;
	struct model m;
	int fd = open("weights", O_RDONLY | O_CLOEXEC);

	if (fd < 0 || !read_full(fd, &header, sizeof header) || header.magic != DEMO_WEIGHTS_MAGIC || header.rows == 0)
		die("the actor left no weights");
	uint64_t table = header.rows * DEMO_DIM * sizeof *m.table, dense = DEMO_DENSE * sizeof *m.dense;
	m = (struct model){.rows = header.rows, .bytes = table + dense};
	m.table = device_memory(table);
	m.dense = device_memory(dense);
	load(fd, m.table, table, stream);
	load(fd, m.dense, dense, stream);
	close(fd);
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

struct engine {
	cudaStream_t stream;
	CUmodule module;
	CUfunction fill, check, forward;

	uint64_t cycle; /* times that it was woken */
	bool awake;
	struct cache cache;
	struct model model;
	struct workspace *workspace;
};

static struct engine start(const char *kernels)
{
	struct engine e = {0};

	RUNTIME(cudaSetDevice(0));
	RUNTIME(cudaStreamCreateWithFlags(&e.stream, cudaStreamNonBlocking));
	DRIVER(cuModuleLoad(&e.module, kernels));
	e.fill = kernel(e.module, "demo_fill");
	e.check = kernel(e.module, "demo_check");
	e.forward = kernel(e.module, "demo_forward");
	if (!(e.cache.blocks = calloc(MAX_BLOCKS, sizeof *e.cache.blocks)))
		die("no host memory for a list of blocks");
	return e;
}

static uint64_t held(struct engine *e)
{
	return e->model.bytes + sizeof *e->workspace + e->cache.bytes;
}

static void wake(struct engine *e)
{
	size_t available, total;

	e->cycle++;
	RUNTIME(cudaMemGetInfo(&available, &total));
	event("{\"event\":\"memory\",\"rank\":0,\"cycle\":%llu,\"when\":\"while\",\"used\":%zu,\"total\":%zu}",
	      (unsigned long long)e->cycle, total - available, total);
	e->model = load_model(e->stream);
	e->workspace = device_memory(sizeof *e->workspace);
	take_blocks(&e->cache, LARGE_BLOCK, e->cycle);
	take_blocks(&e->cache, SMALL_BLOCK, e->cycle);
	if (held(e) < total / 10 * 9)
		die("the device gave %llu of its %zu bytes; %zu were free at the start", (unsigned long long)held(e), total,
		    available);
	for (size_t i = 0; i < e->cache.count; i++)
		LAUNCH(e->fill, e->stream, &e->cache.blocks[i].memory, &e->cache.blocks[i].words, &e->cache.blocks[i].seed);
	RUNTIME(cudaStreamSynchronize(e->stream));
	e->awake = true;
}

static void make_text(struct engine *e)
{
	char text[CHARACTERS + 1], escaped[2 * CHARACTERS];
	size_t left, total;
	uint64_t wrong;

	generate(&e->model, e->workspace, e->forward, e->stream, e->cycle, text);
	if ((wrong = wrong_words(&e->cache, e->workspace, e->check, e->stream)) != 0)
		die("%llu words of the cache do not hold what was written to them", (unsigned long long)wrong);
	RUNTIME(cudaMemGetInfo(&left, &total));
	for (char *p = text; *p; p++)
		if (*p == '\n')
			*p = ' ';
	json_escape(escaped, sizeof escaped, text);
	event("{\"event\":\"rollout\",\"cycle\":%llu,\"bytes\":%llu,\"used\":%zu,\"total\":%zu,\"sample\":\"%s\"}",
	      (unsigned long long)e->cycle, (unsigned long long)held(e), total - left, total, escaped);
	printf("rollout %llu: %s\n", (unsigned long long)e->cycle, text);
}

static void sleep_now(struct engine *e)
{
	for (size_t i = 0; i < e->cache.count; i++)
		RUNTIME(cudaFree(e->cache.blocks[i].memory));
	e->cache.count = e->cache.bytes = 0;
	RUNTIME(cudaFree(e->workspace));
	RUNTIME(cudaFree(e->model.table));
	RUNTIME(cudaFree(e->model.dense));
	e->awake = false;
}

/* Does what a word says and returns the answer. A word that changes nothing is none of an error. */
static const char *obey(struct engine *e, const char *word)
{
	if (!strcmp(word, "status"))
		return e->awake ? "awake" : "asleep";
	if (!strcmp(word, "wake")) {
		if (!e->awake)
			wake(e);
	} else if (!strcmp(word, "sleep")) {
		if (e->awake)
			sleep_now(e);
	} else if (!strcmp(word, "generate")) {
		if (!e->awake)
			return "refused: it is asleep";
		make_text(e);
	} else {
		return "refused: it knows sleep, wake, status and generate";
	}
	return "done";
}

/* ---- words over a socket ----------------------------------------------------------------- */

enum { WORD = 64 };

static const struct sockaddr_un ADDRESS = {.sun_family = AF_UNIX, .sun_path = "engine"};

static int new_socket(void)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		die("make a socket: %s", strerror(errno));
	return fd;
}

_Noreturn static void serve(const char *kernels)
{
	prctl(PR_SET_PDEATHSIG, SIGTERM); /* whoever started it is gone: nobody wants it */
	struct engine e = start(kernels);
	int listening = new_socket();

	if (bind(listening, (const struct sockaddr *)&ADDRESS, sizeof ADDRESS) || listen(listening, 8))
		die("listen: %s", strerror(errno));
	event("{\"event\":\"engine\"}");
	for (;;) {
		char word[WORD + 1] = {0};
		int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			die("accept: %s", strerror(errno));
		if (recv(fd, word, WORD, 0) > 0) {
			const char *answer = obey(&e, word);
			(void)!send(fd, answer, strlen(answer), MSG_NOSIGNAL); /* who asks may be gone */
		}
		close(fd);
	}
}

static int ask(const char *word)
{
	char answer[WORD + 1] = {0};
	int fd = new_socket();

	if (connect(fd, (const struct sockaddr *)&ADDRESS, sizeof ADDRESS) || send(fd, word, strlen(word), MSG_NOSIGNAL) < 0)
		die("no engine listens: %s", strerror(errno));
	if (recv(fd, answer, WORD, 0) <= 0)
		die("the engine ended while it was asked to %s", word);
	puts(answer);
	return strncmp(answer, "refused", 7) ? 0 : 1;
}

int main(int argc, char **argv)
{
	program_name = "demo-rollout";
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc != 4 || (strcmp(argv[1], "serve") && strcmp(argv[1], "ask")))
		die("usage: demo-rollout serve FOLDER KERNELS | demo-rollout ask FOLDER sleep|wake|status|generate");
	/* From inside, the path of the socket is short, as it must be. */
	if (chdir(argv[2]))
		die("enter %s: %s", argv[2], strerror(errno));
	if (!strcmp(argv[1], "serve"))
		serve(argv[3]);
	return ask(argv[3]);
}
