/*
 * disk.c: what the disk does by itself: threads that read or write blocks of files with O_DIRECT.
 * The files have no name, so that none is left behind, however the process ends.
 */
#include "rank.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define PAGE 4096

struct job {
	int fd;
	off_t offset;
	size_t bytes;
};

static struct {
	struct disk_setup setup;
	size_t file_bytes; /* of each file */
	int *fds;          /* of the files; -1: none yet */
	struct job *jobs;
	size_t njobs;
	char *buffers; /* one block for each worker */
} disk;

/* For file systems without nameless files. */
static int make_and_unlink(const char *path)
{
	static unsigned made;
	char name[64];
	int dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), fd;

	if (dir < 0)
		return -1;
	snprintf(name, sizeof(name), "raw-%d-%u", (int)getpid(), made++);
	fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_DIRECT | O_CLOEXEC, 0600);
	if (fd >= 0)
		unlinkat(dir, name, 0);
	close(dir);
	return fd;
}

static bool make_file(const char *dir, size_t bytes, int *fd)
{
	*fd = open(dir, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
	if (*fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT))
		*fd = make_and_unlink(dir);
	if (*fd < 0)
		return fail("a file for O_DIRECT in %s: %s", dir, strerror(errno));
	/* fallocate of the kernel, never an emulation that writes. */
	if (fallocate(*fd, 0, 0, (off_t)bytes) != 0 && errno != EOPNOTSUPP)
		return fail("%zu bytes of room in %s: %s", bytes, dir, strerror(errno));
	return true;
}

static void close_files(void)
{
	for (size_t i = 0; disk.fds != NULL && i < disk.setup.files; i++) {
		if (disk.fds[i] >= 0)
			close(disk.fds[i]);
		disk.fds[i] = -1;
	}
}

/* All files are open at the same time. */
static void allow_files(size_t files)
{
	struct rlimit limit;
	rlim_t want = files + 64;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < want) {
		limit.rlim_cur = want < limit.rlim_max ? want : limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit); /* if refused, opening a file says so */
	}
}

static bool make_files(void)
{
	for (size_t i = 0; i < disk.setup.files; i++)
		if (!make_file(disk.setup.dirs[i % (size_t)disk.setup.ndirs], disk.file_bytes, &disk.fds[i]))
			return false;
	/* File after file, as ebb goes from allocation to allocation; with several directories the
	 * files of a group, one of each, are gone through together. */
	size_t group = (size_t)disk.setup.ndirs, job = 0;
	for (size_t first = 0; first < disk.setup.files; first += group)
		for (size_t offset = 0; offset < disk.file_bytes; offset += disk.setup.block)
			for (size_t i = first; i < first + group && i < disk.setup.files; i++) {
				size_t left = disk.file_bytes - offset;
				disk.jobs[job++] = (struct job){disk.fds[i], (off_t)offset,
								left < disk.setup.block ? left : disk.setup.block};
			}
	return true;
}

bool disk_open(const struct disk_setup *setup)
{
	disk_close();
	disk.setup = *setup;
	if (setup->ndirs < 1 || setup->block % PAGE != 0 || setup->block == 0 || setup->workers < 1 ||
	    setup->workers > MAX_THREADS || setup->bytes == 0 || setup->files < 1)
		return fail("cannot measure %zu bytes in %zu files with %d workers of %zu bytes in %d directories", setup->bytes,
			    setup->files, setup->workers, setup->block, setup->ndirs);
	if (disk.setup.files < (size_t)setup->ndirs)
		disk.setup.files = (size_t)setup->ndirs;
	disk.file_bytes = (setup->bytes / disk.setup.files + PAGE - 1) / PAGE * PAGE;
	disk.njobs = disk.setup.files * ((disk.file_bytes + setup->block - 1) / setup->block);
	allow_files(disk.setup.files);
	disk.fds = malloc(disk.setup.files * sizeof(*disk.fds));
	disk.jobs = calloc(disk.njobs, sizeof(*disk.jobs));
	if (disk.fds == NULL || disk.jobs == NULL)
		return fail("out of host memory");
	for (size_t i = 0; i < disk.setup.files; i++)
		disk.fds[i] = -1;
	size_t bytes = setup->block * (size_t)setup->workers;
	disk.buffers = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (disk.buffers == MAP_FAILED) {
		disk.buffers = NULL;
		return fail("out of host memory");
	}
	madvise(disk.buffers, bytes, MADV_HUGEPAGE);
	random_fill(disk.buffers, bytes, (uint64_t)getpid());
	return true;
}

struct transfer {
	bool all_write, mixed;
	_Atomic(size_t) next, next_read; /* with mixed: next counts what is written */
	_Atomic(size_t) moved;
	atomic_bool failed;
};

static bool move(const struct job *job, bool write, char *buffer)
{
	for (size_t done = 0; done < job->bytes;) {
		ssize_t n = write ? pwrite(job->fd, buffer + done, job->bytes - done, job->offset + (off_t)done)
				  : pread(job->fd, buffer + done, job->bytes - done, job->offset + (off_t)done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return fail("raw %s: %s", write ? "write" : "read", n < 0 ? strerror(errno) : "the file ends early");
		done += (size_t)n;
	}
	return true;
}

static bool worker(int thread, void *arg)
{
	struct transfer *t = arg;
	char *buffer = disk.buffers + (size_t)thread * disk.setup.block;
	/* Mixed: every other worker writes the first half of the jobs, the others read the second. */
	bool write = t->mixed ? thread % 2 == 0 : t->all_write;
	size_t half = disk.njobs / 2, end = t->mixed && write ? half : disk.njobs;

	for (;;) {
		size_t i = t->mixed && !write ? half + atomic_fetch_add(&t->next_read, 1) : atomic_fetch_add(&t->next, 1);
		if (i >= end || t->failed)
			return true;
		if (!move(&disk.jobs[i], write, buffer)) {
			t->failed = true;
			return false;
		}
		t->moved += disk.jobs[i].bytes;
	}
}

bool disk_run(const char *what, int workers, double *begin, double *end, double *cpu, size_t *moved)
{
	struct transfer t = {.all_write = strcmp(what, "fresh") == 0 || strcmp(what, "write") == 0,
			     .mixed = strcmp(what, "mixed") == 0};
	bool fresh = strcmp(what, "fresh") == 0;

	if (!t.all_write && !t.mixed && strcmp(what, "read") != 0)
		return fail("unknown transfer %s", what);
	if (disk.jobs == NULL || (!fresh && disk.fds[0] < 0))
		return fail("there are no files yet to %s", what);
	if (workers < 1 || workers > disk.setup.workers)
		return fail("%d workers were not asked for", workers);
	if (t.mixed && workers < 2)
		return fail("reads and writes at the same time need two workers");
	if (fresh)
		close_files(); /* giving back the room of the old ones is not part of it */
	*cpu = cpu_seconds();
	*begin = now();
	if (fresh && !make_files())
		return false;
	bool ok = on_threads(workers, worker, &t);
	*end = now();
	*cpu = cpu_seconds() - *cpu;
	*moved = t.moved;
	return ok;
}

void disk_close(void)
{
	close_files();
	free(disk.fds);
	free(disk.jobs);
	if (disk.buffers != NULL)
		munmap(disk.buffers, disk.setup.block * (size_t)disk.setup.workers);
	memset(&disk, 0, sizeof(disk));
}
