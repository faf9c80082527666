/* main.c: the commands of ebb-bench-rank; rank.h tells what it is. */
#include "rank.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define REPLIES 3 /* the descriptor of the answers */
#define MAX_DIRS 64
#define MAX_RUNTIMES 16

static struct {
	const char *runtimes[MAX_RUNTIMES]; /* CUDA runtimes to try */
	int nruntimes;
	const char *dirs[MAX_DIRS]; /* of raw files */
	int ndirs;
	int device; /* -1: none is used */
} given = {.device = -1};

/* ---- helpers ------------------------------------------------------------------------------------ */

char failure[1024];

bool fail(const char *format, ...)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	va_list args;

	pthread_mutex_lock(&lock);
	va_start(args, format);
	vsnprintf(failure, sizeof(failure), format, args);
	va_end(args);
	pthread_mutex_unlock(&lock);
	return false;
}

double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

double cpu_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

int fill_threads(void)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	return cpus < 1 ? 1 : cpus > 8 ? 8 : (int)cpus;
}

struct thread {
	pthread_t id;
	int number;
	bool (*work)(int, void *);
	void *arg;
	bool ok;
};

static void *thread_main(void *p)
{
	struct thread *t = p;

	t->ok = t->work(t->number, t->arg);
	return NULL;
}

bool on_threads(int count, bool (*work)(int thread, void *arg), void *arg)
{
	struct thread threads[MAX_THREADS];
	int started = 0;
	bool ok = true;

	for (; started < count && ok; started++) {
		threads[started] = (struct thread){.number = started, .work = work, .arg = arg};
		int error = pthread_create(&threads[started].id, NULL, thread_main, &threads[started]);
		if (error != 0) {
			ok = fail("starting a thread: %s", strerror(error));
			break;
		}
	}
	for (int i = 0; i < started; i++) {
		pthread_join(threads[i].id, NULL);
		ok = threads[i].ok && ok;
	}
	return ok;
}

static void reply(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void reply(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vdprintf(REPLIES, format, args);
	va_end(args);
}

/* ---- arguments of a command ---------------------------------------------------------------------- */

struct arguments {
	int count;
	char *text[16];
};

static const char *text_of(const struct arguments *a, const char *key)
{
	size_t n = strlen(key);

	for (int i = 0; i < a->count; i++)
		if (strncmp(a->text[i], key, n) == 0 && a->text[i][n] == '=')
			return a->text[i] + n + 1;
	return NULL;
}

static bool need_text(const struct arguments *a, const char *key, const char **value)
{
	*value = text_of(a, key);
	return *value != NULL || fail("%s=… is missing", key);
}

static bool need_number(const struct arguments *a, const char *key, uint64_t *value)
{
	const char *text = text_of(a, key);
	char *end;

	if (text == NULL)
		return fail("%s=… is missing", key);
	errno = 0;
	*value = strtoull(text, &end, 10);
	return (errno == 0 && end != text && *end == 0 && *text != '-') || fail("%s=%s is no number", key, text);
}

/* ---- commands ------------------------------------------------------------------------------------ */

static bool do_hello(const struct arguments *a)
{
	size_t available = 0, total = 0;
	int runtime = 0, driver = 0;

	(void)a;
	if (given.device >= 0) {
		if (!cuda_open(given.runtimes, given.nruntimes, given.device) || !cuda_free_memory(&available, &total))
			return false;
		cuda.RuntimeGetVersion(&runtime);
		cuda.DriverGetVersion(&driver);
	}
	reply("ok pid=%d saver=%d ebb=%d except=%d free=%zu total=%zu runtime=%d driver=%d\n", (int)getpid(),
	      saver_found(), saver_is_ebb(), saver_leaves_unused(), available, total, runtime, driver);
	return true;
}

static bool do_alloc(const struct arguments *a)
{
	const char *tag, *backup;
	uint64_t bytes, pieces;

	if (!need_text(a, "tag", &tag) || !need_text(a, "backup", &backup) || !need_number(a, "bytes", &bytes) ||
	    !need_number(a, "pieces", &pieces) || !memory_allocate(tag, backup, bytes, pieces))
		return false;
	reply("ok bytes=%" PRIu64 "\n", bytes);
	return true;
}

static bool do_adamw(const struct arguments *a)
{
	const char *tag, *backup;
	uint64_t bytes;
	size_t made, zero;

	if (!need_text(a, "tag", &tag) || !need_text(a, "backup", &backup) || !need_number(a, "bytes", &bytes) ||
	    !memory_allocate_adamw(tag, backup, bytes, &made, &zero))
		return false;
	reply("ok bytes=%zu zero=%zu\n", made, zero);
	return true;
}

static bool do_fill(const struct arguments *a)
{
	const char *tag;
	uint64_t seed;
	double begin = now();

	if (!need_text(a, "tag", &tag) || !need_number(a, "seed", &seed) || !memory_fill(tag, seed))
		return false;
	reply("ok seconds=%.9f\n", now() - begin);
	return true;
}

static bool do_touch(const struct arguments *a)
{
	const char *tag;
	uint64_t seed, every;
	size_t touched;

	if (!need_text(a, "tag", &tag) || !need_number(a, "seed", &seed) || !need_number(a, "every", &every) ||
	    !memory_touch(tag, seed, every, &touched))
		return false;
	reply("ok bytes=%zu\n", touched);
	return true;
}

static bool do_checksum(const struct arguments *a)
{
	const char *tag;
	uint64_t sum;

	if (!need_text(a, "tag", &tag) || !memory_checksum(tag, &sum))
		return false;
	reply("ok sum=%016" PRIx64 "\n", sum);
	return true;
}

static bool do_free(const struct arguments *a)
{
	const char *tag;

	if (!need_text(a, "tag", &tag) || !memory_free(tag))
		return false;
	reply("ok\n");
	return true;
}

static void reply_operation(const struct operation *o)
{
	reply("ok begin=%.9f end=%.9f cpu=%.6f free_before=%zu free_after=%zu host_before=%" PRIu64 " host_after=%" PRIu64 "\n",
	      o->begin, o->end, o->cpu, o->free_before, o->free_after, o->host_before, o->host_after);
}

static bool do_pause(const struct arguments *a)
{
	struct operation o;
	const char *tag = text_of(a, "tag"), *dead = text_of(a, "dead");

	if (!(dead != NULL ? saver_pause_except(tag, dead, &o) : saver_pause(tag, &o)))
		return false;
	reply_operation(&o);
	return true;
}

static bool do_resume(const struct arguments *a)
{
	struct operation o;

	if (!saver_resume(text_of(a, "tag"), &o))
		return false;
	reply_operation(&o);
	return true;
}

static bool do_status(const struct arguments *a)
{
	char *status = saver_status();

	(void)a;
	if (status == NULL)
		return fail("the library has no ebb_status");
	reply("ok %s\n", status);
	free(status);
	return true;
}

static bool do_disk_open(const struct arguments *a)
{
	uint64_t bytes, files, block, workers;

	if (!need_number(a, "bytes", &bytes) || !need_number(a, "files", &files) || !need_number(a, "block", &block) ||
	    !need_number(a, "workers", &workers))
		return false;
	struct disk_setup setup = {given.dirs, given.ndirs, bytes, files, block, (int)workers};
	if (!disk_open(&setup))
		return false;
	reply("ok\n");
	return true;
}

static bool do_disk(const struct arguments *a)
{
	const char *op;
	uint64_t workers;
	double begin, end, cpu;
	size_t moved;

	if (!need_text(a, "op", &op) || !need_number(a, "workers", &workers) ||
	    !disk_run(op, (int)workers, &begin, &end, &cpu, &moved))
		return false;
	reply("ok begin=%.9f end=%.9f cpu=%.6f bytes=%zu\n", begin, end, cpu, moved);
	return true;
}

static bool do_disk_close(const struct arguments *a)
{
	(void)a;
	disk_close();
	reply("ok\n");
	return true;
}

static bool do_copies_open(const struct arguments *a)
{
	uint64_t bytes;

	if (!need_number(a, "bytes", &bytes) || !copies_open(bytes))
		return false;
	reply("ok\n");
	return true;
}

static bool do_copy(const struct arguments *a)
{
	const char *to;
	uint64_t bytes;
	double seconds;

	if (!need_text(a, "to", &to) || !need_number(a, "bytes", &bytes) ||
	    !copies_run(strcmp(to, "host") == 0, bytes, &seconds))
		return false;
	reply("ok seconds=%.9f\n", seconds);
	return true;
}

static bool do_copies_close(const struct arguments *a)
{
	(void)a;
	copies_close();
	reply("ok\n");
	return true;
}

static const struct {
	const char *word;
	bool (*run)(const struct arguments *);
} commands[] = {
	{"hello", do_hello},
	{"alloc", do_alloc},
	{"adamw", do_adamw},
	{"fill", do_fill},
	{"touch", do_touch},
	{"checksum", do_checksum},
	{"free", do_free},
	{"pause", do_pause},
	{"resume", do_resume},
	{"status", do_status},
	{"disk_open", do_disk_open},
	{"disk", do_disk},
	{"disk_close", do_disk_close},
	{"copies_open", do_copies_open},
	{"copy", do_copy},
	{"copies_close", do_copies_close},
};

static bool obey(char *line)
{
	struct arguments a = {0};
	char *rest, *word = strtok_r(line, " \n", &rest);

	if (word == NULL)
		return fail("an empty command");
	for (char *text; (text = strtok_r(NULL, " \n", &rest)) != NULL; a.text[a.count++] = text)
		if (a.count == (int)(sizeof(a.text) / sizeof(*a.text)))
			return fail("%s has too many arguments", word);
	for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++)
		if (strcmp(commands[i].word, word) == 0)
			return commands[i].run(&a);
	return fail("unknown command %s", word);
}

/* ---- main ---------------------------------------------------------------------------------------- */

static int usage(void)
{
	fprintf(stderr, "usage: ebb-bench-rank [--device N --runtime LIBCUDART…] [--dir DIR…] 3>answers\n"
			"ebb bench starts it.\n");
	return 2;
}

static bool take(const char *value, const char **list, int *count, int room)
{
	if (*count == room)
		return false;
	list[(*count)++] = value;
	return true;
}

int main(int argc, char **argv)
{
	char *line = NULL;
	size_t room = 0;

	for (int i = 1; i < argc; i += 2) {
		const char *flag = argv[i], *value = argv[i + 1]; /* argv ends with null */
		bool ok = value != NULL;

		if (ok && strcmp(flag, "--device") == 0)
			given.device = atoi(value);
		else if (ok && strcmp(flag, "--runtime") == 0)
			ok = take(value, given.runtimes, &given.nruntimes, MAX_RUNTIMES);
		else if (ok && strcmp(flag, "--dir") == 0)
			ok = take(value, given.dirs, &given.ndirs, MAX_DIRS);
		else
			ok = false;
		if (!ok)
			return usage();
	}
	if (fcntl(REPLIES, F_GETFD) < 0)
		return usage();
	fcntl(REPLIES, F_SETFD, FD_CLOEXEC);
	/* Where nobody reads the answers any more, the input ends too, and then the process. */
	signal(SIGPIPE, SIG_IGN);
	saver_open();
	while (getline(&line, &room, stdin) > 0) {
		if (!obey(line)) {
			for (char *c = failure; *c != 0; c++)
				if (*c == '\n')
					*c = ' ';
			reply("error %s\n", failure);
		}
	}
	free(line);
	return 0;
}
