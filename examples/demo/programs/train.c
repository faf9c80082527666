/*
 * train.c: one rank of a data-parallel training job, an ordinary program of the CUDA runtime.
 *
 * It trains the character model of model.h on a text with Adam; forward, backward and optimizer
 * step are kernels on device memory, and the ranks average their gradients over TCP.
 *
 * It knows ebb by two functions. Between the phases of training it leaves its memory alone while it
 * waits for what the rollout generates, and says so: ebb_idle_begin and ebb_idle_end, which are there
 * when a library with them was preloaded. What happens meanwhile is others' business: `ebb swap` parks
 * the memory, a rollout engine has the device, and the memory is back when ebb_idle_end returns.
 * Without the library it trains straight through: the same phases, the same steps.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common.h"
#include "model.h"
#include "net.h"

enum { BATCH = 256 }; /* characters per rank and step */

static const float LEARNING_RATE = 4e-3f, WEIGHT_DECAY = 0.01f;

struct options {
	const char *corpus, *kernels;
	const char *weights; /* where rank 0 leaves the weights for the rollout */
	const char *rollouts; /* FIFO from which rank 0 reads a line for each rollout */
	int cycles, steps; /* cycles + 1 phases of so many steps */
	uint64_t megabytes; /* training state of one rank, in MB, about */
};

struct corpus {
	uint8_t *ids;
	uint64_t size;
};

/* Parameters that are updated together, with all that training keeps of them. */
struct group {
	uint64_t n;
	float *master, *grad, *m, *v;
	uint16_t *weights; /* bf16, what forward and backward read */
};

struct kernels {
	CUmodule module;
	CUfunction init, cast, forward, loss, backward, average, adam, digest;
};

struct trainer {
	struct options opt;
	struct corpus corpus;
	struct net net;
	int rank, world;
	int step; /* steps done */
	struct kernels k;
	cudaStream_t stream;
	uint64_t rows, allocations, allocated;

	/* Device memory. */
	struct group table, dense;
	uint8_t *contexts, *targets; /* contexts: of all ranks */
	float *wide, *x, *h, *logits;
	float *part;  /* this rank's gradient */
	float *parts; /* every rank's */
	float *loss;
	uint64_t *digest;

	/* Pinned host memory. */
	uint8_t *host_contexts, *host_targets;
	float *host_part, *host_parts, *host_loss;
	uint64_t *host_digest;

	/* The preloaded library, or null. */
	int (*idle_begin)(void);
	int (*idle_end)(void);
};

/* ---- setting up ------------------------------------------------------------------------ */

static struct options parse(int argc, char **argv)
{
	static const struct option known[] = {
		{"corpus", required_argument, NULL, 'c'}, {"kernels", required_argument, NULL, 'k'},
		{"weights", required_argument, NULL, 'w'}, {"rollouts", required_argument, NULL, 'r'},
		{"cycles", required_argument, NULL, 'n'}, {"steps", required_argument, NULL, 's'},
		{"megabytes", required_argument, NULL, 'm'},
		{NULL, 0, NULL, 0},
	};
	struct options opt = {.cycles = 4, .steps = 10, .megabytes = 360};
	int c;

	while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
		switch (c) {
		case 'c': opt.corpus = optarg; break;
		case 'k': opt.kernels = optarg; break;
		case 'w': opt.weights = optarg; break;
		case 'r': opt.rollouts = optarg; break;
		case 'n': opt.cycles = (int)parse_number("--cycles", optarg, 1, 1000); break;
		case 's': opt.steps = (int)parse_number("--steps", optarg, 1, 100000); break;
		case 'm': opt.megabytes = parse_number("--megabytes", optarg, 1, 1000000); break;
		default: exit(2);
		}
	}
	if (!opt.corpus || !opt.kernels || !opt.weights || !opt.rollouts || optind != argc)
		die("usage: demo-train --corpus FILE --kernels MODULE --weights FILE --rollouts FIFO [--cycles N] "
		    "[--steps N] [--megabytes N]");
	return opt;
}

static struct corpus read_corpus(const char *path)
{
	struct corpus c;
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &st))
		die("open %s: %s", path, strerror(errno));
	c.size = (uint64_t)st.st_size;
	if (c.size <= DEMO_CONTEXT)
		die("%s: a text of %llu characters is too short", path, (unsigned long long)c.size);
	if (!(c.ids = malloc(c.size)) || !read_full(fd, c.ids, c.size))
		die("read %s: %s", path, errno ? strerror(errno) : "it became shorter");
	close(fd);
	for (uint64_t i = 0; i < c.size; i++) {
		int id = demo_id(c.ids[i]);
		if (id < 0)
			die("%s: byte %llu is no printable ASCII character", path, (unsigned long long)i);
		c.ids[i] = (uint8_t)id;
	}
	return c;
}

static int environment_number(const char *name, int fallback, int max)
{
	const char *text = getenv(name);
	return text && *text ? (int)parse_number(name, text, 0, (uint64_t)max) : fallback;
}

static const char *environment_text(const char *name, const char *fallback)
{
	const char *text = getenv(name);
	return text && *text ? text : fallback;
}

static void *device_memory(struct trainer *t, uint64_t size)
{
	void *p;
	RUNTIME(cudaMalloc(&p, size));
	t->allocations++;
	t->allocated += size;
	return p;
}

static void *pinned_memory(uint64_t size)
{
	void *p;
	RUNTIME(cudaMallocHost(&p, size));
	return p;
}

static void load_kernels(struct trainer *t)
{
	struct kernels *k = &t->k;
	DRIVER(cuModuleLoad(&k->module, t->opt.kernels));
	k->init = kernel(k->module, "demo_init");
	k->cast = kernel(k->module, "demo_cast");
	k->forward = kernel(k->module, "demo_forward");
	k->loss = kernel(k->module, "demo_loss");
	k->backward = kernel(k->module, "demo_backward");
	k->average = kernel(k->module, "demo_average");
	k->adam = kernel(k->module, "demo_adam");
	k->digest = kernel(k->module, "demo_digest");
}

/* Random numbers in the master copy, the same on every rank; zero elsewhere. */
static void make_group(struct trainer *t, struct group *g, uint64_t n, uint64_t seed, float scale)
{
	uint64_t bytes = n * sizeof(float);
	g->n = n;
	g->weights = device_memory(t, n * sizeof *g->weights);
	g->master = device_memory(t, bytes);
	g->grad = device_memory(t, bytes);
	g->m = device_memory(t, bytes);
	g->v = device_memory(t, bytes);
	LAUNCH(t->k.init, t->stream, &g->master, &n, &seed, &scale);
	LAUNCH(t->k.cast, t->stream, &g->weights, &g->master, &n);
	RUNTIME(cudaMemsetAsync(g->grad, 0, bytes, t->stream));
	RUNTIME(cudaMemsetAsync(g->m, 0, bytes, t->stream));
	RUNTIME(cudaMemsetAsync(g->v, 0, bytes, t->stream));
}

static uint64_t part_size(void)
{
	return BATCH * DEMO_DIM + DEMO_DENSE;
}

static void make_memory(struct trainer *t)
{
	/* A row has four fp32 copies and a bf16 one. */
	t->rows = t->opt.megabytes * 1000000 / (DEMO_DIM * 18);
	make_group(t, &t->table, t->rows * DEMO_DIM, 1, 0.2f);
	make_group(t, &t->dense, DEMO_DENSE, 2, 0.08f);

	uint64_t world = (uint64_t)t->world, contexts = world * BATCH * DEMO_CONTEXT;
	uint64_t part = part_size() * sizeof(float);
	t->contexts = device_memory(t, contexts);
	t->targets = device_memory(t, BATCH);
	t->wide = device_memory(t, DEMO_DENSE * sizeof(float));
	t->x = device_memory(t, BATCH * DEMO_DIM * sizeof(float));
	t->h = device_memory(t, BATCH * DEMO_HIDDEN * sizeof(float));
	t->logits = device_memory(t, BATCH * DEMO_VOCAB * sizeof(float));
	t->part = device_memory(t, part);
	t->parts = device_memory(t, part * world);
	t->loss = device_memory(t, sizeof *t->loss);
	t->digest = device_memory(t, sizeof *t->digest);

	t->host_contexts = pinned_memory(contexts);
	t->host_targets = pinned_memory(BATCH);
	t->host_part = pinned_memory(part);
	t->host_parts = pinned_memory(part * world);
	t->host_loss = pinned_memory(sizeof *t->host_loss);
	t->host_digest = pinned_memory(sizeof *t->host_digest);
}

static void free_memory(struct trainer *t)
{
	void *device[] = {
		t->table.weights, t->table.master, t->table.grad, t->table.m, t->table.v, t->dense.weights,
		t->dense.master, t->dense.grad, t->dense.m, t->dense.v, t->contexts, t->targets, t->wide,
		t->x, t->h, t->logits, t->part, t->parts, t->loss, t->digest,
	};
	void *pinned[] = {
		t->host_contexts, t->host_targets, t->host_part, t->host_parts, t->host_loss, t->host_digest,
	};
	for (size_t i = 0; i < sizeof device / sizeof *device; i++)
		RUNTIME(cudaFree(device[i]));
	for (size_t i = 0; i < sizeof pinned / sizeof *pinned; i++)
		RUNTIME(cudaFreeHost(pinned[i]));
}

/* ---- training -------------------------------------------------------------------------- */

/* The characters that every rank looks at in this step: a function of step and rank alone. */
static void draw_batch(struct trainer *t)
{
	for (int r = 0; r < t->world; r++) {
		for (int i = 0; i < BATCH; i++) {
			uint64_t draw = (((uint64_t)t->step * NET_MAX_RANKS) + (uint64_t)r) * BATCH + (uint64_t)i;
			uint64_t at = demo_mix(draw) % (t->corpus.size - DEMO_CONTEXT);
			memcpy(t->host_contexts + (r * BATCH + i) * DEMO_CONTEXT, t->corpus.ids + at, DEMO_CONTEXT);
			if (r == t->rank)
				t->host_targets[i] = t->corpus.ids[at + DEMO_CONTEXT];
		}
	}
}

static void adam(struct trainer *t, struct group *g)
{
	float rate = LEARNING_RATE, decay = WEIGHT_DECAY;
	float scale1 = (float)(1 / (1 - pow(0.9, t->step + 1))), scale2 = (float)(1 / (1 - pow(0.99, t->step + 1)));
	LAUNCH(t->k.adam, t->stream, &g->master, &g->grad, &g->m, &g->v, &g->weights, &g->n, &rate, &decay, &scale1,
	       &scale2);
}

static void train_step(struct trainer *t)
{
	uint64_t batch = BATCH, world = (uint64_t)t->world, part = part_size() * sizeof(float);
	uint8_t *mine = t->contexts + t->rank * BATCH * DEMO_CONTEXT;

	draw_batch(t);
	RUNTIME(cudaMemcpyAsync(t->contexts, t->host_contexts, world * BATCH * DEMO_CONTEXT, cudaMemcpyHostToDevice,
				t->stream));
	RUNTIME(cudaMemcpyAsync(t->targets, t->host_targets, BATCH, cudaMemcpyHostToDevice, t->stream));
	LAUNCH(t->k.forward, t->stream, &mine, &batch, &t->table.weights, &t->rows, &t->dense.weights, &t->wide, &t->x,
	       &t->h, &t->logits);
	LAUNCH(t->k.loss, t->stream, &t->targets, &batch, &t->logits, &t->loss);
	LAUNCH(t->k.backward, t->stream, &batch, &t->wide, &t->x, &t->h, &t->logits, &t->part);
	RUNTIME(cudaMemcpyAsync(t->host_part, t->part, part, cudaMemcpyDeviceToHost, t->stream));
	RUNTIME(cudaMemcpyAsync(t->host_loss, t->loss, sizeof *t->loss, cudaMemcpyDeviceToHost, t->stream));
	RUNTIME(cudaStreamSynchronize(t->stream));

	net_all_gather(&t->net, t->host_part, part, t->host_parts);

	RUNTIME(cudaMemcpyAsync(t->parts, t->host_parts, part * world, cudaMemcpyHostToDevice, t->stream));
	RUNTIME(cudaMemsetAsync(t->table.grad, 0, t->table.n * sizeof(float), t->stream));
	LAUNCH(t->k.average, t->stream, &world, &batch, &t->contexts, &t->rows, &t->parts, &t->table.grad,
	       &t->dense.grad);
	adam(t, &t->table);
	adam(t, &t->dense);
	/* Not waited for: the next step's wait covers it, and so must a pause. */

	printf("step %d loss %a (%.4f)\n", t->step, *t->host_loss, *t->host_loss);
	event("{\"event\":\"loss\",\"rank\":%d,\"step\":%d,\"loss\":\"%a\"}", t->rank, t->step, *t->host_loss);
	t->step++;
}

static void digest_group(struct trainer *t, struct group *g)
{
	uint64_t wide = g->n * sizeof(float), narrow = g->n * sizeof *g->weights;
	LAUNCH(t->k.digest, t->stream, &g->weights, &narrow, &t->digest);
	LAUNCH(t->k.digest, t->stream, &g->master, &wide, &t->digest);
	LAUNCH(t->k.digest, t->stream, &g->grad, &wide, &t->digest);
	LAUNCH(t->k.digest, t->stream, &g->m, &wide, &t->digest);
	LAUNCH(t->k.digest, t->stream, &g->v, &wide, &t->digest);
}

/* Reports a hash of all training state, which must be the same on every rank, and the same
 * whether or not the memory was away since the last report. */
static void report_digest(struct trainer *t)
{
	RUNTIME(cudaMemsetAsync(t->digest, 0, sizeof *t->digest, t->stream));
	digest_group(t, &t->table);
	digest_group(t, &t->dense);
	RUNTIME(cudaMemcpyAsync(t->host_digest, t->digest, sizeof *t->digest, cudaMemcpyDeviceToHost, t->stream));
	RUNTIME(cudaStreamSynchronize(t->stream));
	event("{\"event\":\"digest\",\"rank\":%d,\"step\":%d,\"digest\":\"%016llx\"}", t->rank, t->step,
	      (unsigned long long)*t->host_digest);
}

/* ---- between the phases ------------------------------------------------------------------ */

static void report_memory(struct trainer *t, int cycle, const char *when)
{
	size_t available, total;
	if (t->rank != 0)
		return;
	RUNTIME(cudaMemGetInfo(&available, &total));
	event("{\"event\":\"memory\",\"rank\":0,\"cycle\":%d,\"when\":\"%s\",\"used\":%zu,\"total\":%zu}", cycle, when,
	      total - available, total);
}

static void write_part(struct trainer *t, int fd, const uint16_t *device, uint64_t bytes)
{
	void *host = malloc(bytes);
	if (!host)
		die("no host memory for a copy of the weights");
	RUNTIME(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, t->stream));
	RUNTIME(cudaStreamSynchronize(t->stream));
	if (!write_full(fd, host, bytes))
		die("write %s: %s", t->opt.weights, strerror(errno));
	free(host);
}

/* Leaves the current weights for the rollout engine. */
static void save_weights(struct trainer *t)
{
	struct demo_weights_header header = {.magic = DEMO_WEIGHTS_MAGIC, .rows = t->rows};
	int fd = open(t->opt.weights, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	if (fd < 0 || !write_full(fd, &header, sizeof header))
		die("write %s: %s", t->opt.weights, strerror(errno));
	write_part(t, fd, t->table.weights, t->table.n * sizeof(uint16_t));
	write_part(t, fd, t->dense.weights, t->dense.n * sizeof(uint16_t));
	if (close(fd))
		die("write %s: %s", t->opt.weights, strerror(errno));
}

/* Waits until the rollout of this cycle has been made: a line says so. */
static void wait_for_rollout(struct trainer *t, int cycle)
{
	static FILE *rollouts;
	char line[64];

	if (!rollouts && !(rollouts = fopen(t->opt.rollouts, "re")))
		die("open %s: %s", t->opt.rollouts, strerror(errno));
	if (!fgets(line, sizeof line, rollouts) || atoi(line) != cycle)
		die("%s: no word about rollout %d", t->opt.rollouts, cycle);
}

static void let_others_have_the_device(struct trainer *t, int cycle)
{
	int code;

	if (t->rank == 0)
		save_weights(t);
	net_barrier(&t->net);
	report_memory(t, cycle, "before");
	net_barrier(&t->net);

	if ((code = t->idle_begin()))
		die("ebb_idle_begin: %d", code);
	event("{\"event\":\"idle\",\"rank\":%d,\"cycle\":%d}", t->rank, cycle);
	if (t->rank == 0)
		wait_for_rollout(t, cycle);
	net_barrier(&t->net); /* rank 0 has what the rollout made */
	if ((code = t->idle_end()))
		die("ebb_idle_end: %d", code);

	net_barrier(&t->net);
	report_memory(t, cycle, "after");
}

int main(int argc, char **argv)
{
	struct trainer t = {0};
	int devices;

	program_name = "demo-train";
	signal(SIGPIPE, SIG_IGN);
	setvbuf(stdout, NULL, _IOLBF, 0);
	t.opt = parse(argc, argv);
	t.corpus = read_corpus(t.opt.corpus);
	t.rank = environment_number("RANK", 0, NET_MAX_RANKS - 1);
	t.world = environment_number("WORLD_SIZE", 1, NET_MAX_RANKS);
	if (t.rank >= t.world)
		die("RANK %d does not fit WORLD_SIZE %d", t.rank, t.world);

	*(void **)&t.idle_begin = dlsym(RTLD_DEFAULT, "ebb_idle_begin");
	*(void **)&t.idle_end = dlsym(RTLD_DEFAULT, "ebb_idle_end");
	bool parking = t.idle_begin && t.idle_end;

	RUNTIME(cudaGetDeviceCount(&devices));
	if (devices < 1)
		die("no device");
	RUNTIME(cudaSetDevice(environment_number("LOCAL_RANK", t.rank, NET_MAX_RANKS - 1) % devices));
	RUNTIME(cudaStreamCreateWithFlags(&t.stream, cudaStreamNonBlocking));
	load_kernels(&t);
	make_memory(&t);
	net_open(&t.net, t.rank, t.world, environment_text("MASTER_ADDR", "127.0.0.1"),
		 environment_text("MASTER_PORT", "29500"));
	event("{\"event\":\"start\",\"rank\":%d,\"parking\":%s,\"allocations\":%llu,\"allocated\":%llu}", t.rank,
	      parking ? "true" : "false", (unsigned long long)t.allocations, (unsigned long long)t.allocated);

	for (int phase = 0; phase <= t.opt.cycles; phase++) {
		if (phase > 0 && parking)
			let_others_have_the_device(&t, phase);
		report_digest(&t);
		for (int i = 0; i < t.opt.steps; i++)
			train_step(&t);
	}
	report_digest(&t);

	net_close(&t.net);
	free_memory(&t);
	free(t.corpus.ids);
	RUNTIME(cudaStreamDestroy(t.stream));
	DRIVER(cuModuleUnload(t.k.module));
	event("{\"event\":\"end\",\"rank\":%d}", t.rank);
	return 0;
}
