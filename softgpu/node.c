/* Device memory of one node, shared by all processes that name the same SOFTGPU_NODE.
 *
 * A file holds the capacity and one slot per process with what it uses. A process proves that it lives by a POSIX record lock
 * on the byte of its slot: the kernel drops it at any death, SIGKILL too, and a forked child does not inherit it. Any close of
 * the file by a process drops its locks, so it is opened once, here, and never again.
 *
 * The file's byte 0 is the lock for changing it. Slot bytes are only ever tried, never waited for, so nobody can wait in a
 * circle. A killed process may leave its slot half changed: every change is one store, so there is no half.
 *
 * Nobody can remove the file at its own death by SIGKILL, so every process that starts removes those of nodes without a
 * living process. Whoever opened such a file meanwhile sees, once it has the lock, that the file has no name any more, and
 * opens anew.
 *
 * A process that only looks (sg_node_view) opens the file for reading, and only where it has no locks to lose by closing it. */
#include "internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SLOTS = SG_MAX_PROCESSES, MAGIC = 0x53475032, SLOT_BYTE = 4096 }; /* slot i is proven by byte SLOT_BYTE + i */

struct slot {
	_Atomic int64_t pid; /* 0: free. For those who look; liveness is the lock */
	_Atomic uint64_t used[SG_MAX_DEVICES];
	_Atomic uint32_t contexts[SG_MAX_DEVICES];
};

struct table {
	uint32_t magic;
	uint32_t devices;
	uint64_t mem_bytes;
	struct slot slots[SLOTS];
};

static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER; /* record locks do not keep threads apart */
static int file = -1;
static struct table *table;
static int my_slot = -1;
static char directory[3000], path[4096];

static struct flock byte_lock(short type, off_t at)
{
	return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
}

static void lock_node(void)
{
	struct flock l = byte_lock(F_WRLCK, 0);
	pthread_mutex_lock(&threads);
	while (fcntl(file, F_SETLKW, &l) && errno == EINTR)
		;
}

static void unlock_node(void)
{
	struct flock l = byte_lock(F_UNLCK, 0);
	fcntl(file, F_SETLK, &l);
	pthread_mutex_unlock(&threads);
}

/* Locks of one's own never show in F_GETLK, hence `own`. */
static bool slot_lives(int fd, int own, int i)
{
	struct flock l = byte_lock(F_WRLCK, SLOT_BYTE + i);
	if (i == own)
		return true;
	return fcntl(fd, F_GETLK, &l) || l.l_type != F_UNLCK;
}

static void clear_slot(struct slot *s)
{
	for (int d = 0; d < SG_MAX_DEVICES; d++) {
		atomic_store(&s->used[d], 0);
		atomic_store(&s->contexts[d], 0);
	}
	atomic_store(&s->pid, 0);
}

/* Frees the slots of the dead. Returns how many live. */
static int sweep(void)
{
	int live = 0;
	for (int i = 0; i < SLOTS; i++) {
		if (!atomic_load(&table->slots[i].pid))
			continue;
		if (slot_lives(file, my_slot, i))
			live++;
		else
			clear_slot(&table->slots[i]);
	}
	return live;
}

static uint64_t used(int device)
{
	uint64_t sum = 0;
	for (int i = 0; i < SLOTS; i++)
		sum += atomic_load(&table->slots[i].used[device]);
	return sum;
}

static void name_file(void)
{
	struct stat st;
	const char *dir = getenv("XDG_RUNTIME_DIR");
	if (!dir || dir[0] != '/' || strlen(dir) >= sizeof directory || stat(dir, &st) || !S_ISDIR(st.st_mode) ||
	    st.st_uid != geteuid())
		dir = "/dev/shm";
	strcpy(directory, dir);
	snprintf(path, sizeof path, "%s/softgpu-%u-%s", dir, (unsigned)geteuid(), sg_config.node);
}

static void close_file(void)
{
	close(file);
	file = -1;
}

static CUresult open_file(void)
{
	struct stat st;
	name_file();
	file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (file < 0) {
		sg_complain("%s: %s", path, strerror(errno));
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	file = sg_fd_above_std(file); /* before there are locks on it, which the close in there would drop */
	if (fstat(file, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077)) {
		sg_complain("%s: not a private file of this user", path);
		close_file();
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	return CUDA_SUCCESS;
}

/* Needs the node's lock, so that two processes do not size the file at once. */
static CUresult map_file(void)
{
	struct stat st;
	if (fstat(file, &st) ||
	    (st.st_size < (off_t)sizeof *table && ftruncate(file, sizeof *table))) {
		sg_complain("%s: %s", path, strerror(errno));
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (table == MAP_FAILED) {
		table = NULL;
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	madvise(table, sizeof *table, MADV_DONTFORK); /* a child must not touch its parent's account */
	return CUDA_SUCCESS;
}

/* The first process of a node says what the node has. */
static CUresult agree(void)
{
	if (table->magic != MAGIC || sweep() == 0) {
		memset(table, 0, sizeof *table);
		table->devices = sg_config.devices;
		table->mem_bytes = sg_config.mem_bytes;
		table->magic = MAGIC;
	}
	if (table->devices == (uint32_t)sg_config.devices && table->mem_bytes == sg_config.mem_bytes)
		return CUDA_SUCCESS;
	sg_complain("node \"%s\" is in use with %u device(s) of %llu MiB, not %d of %llu MiB: SOFTGPU_DEVICES and "
		    "SOFTGPU_MEM_MB must be the same in all its processes, or name another SOFTGPU_NODE",
		    sg_config.node, table->devices, (unsigned long long)(table->mem_bytes >> 20), sg_config.devices,
		    (unsigned long long)(sg_config.mem_bytes >> 20));
	return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
}

static CUresult claim_slot(void)
{
	for (int i = 0; i < SLOTS; i++) {
		struct flock l = byte_lock(F_WRLCK, SLOT_BYTE + i);
		if (atomic_load(&table->slots[i].pid) || fcntl(file, F_SETLK, &l))
			continue;
		clear_slot(&table->slots[i]);
		atomic_store(&table->slots[i].pid, getpid());
		my_slot = i;
		return CUDA_SUCCESS;
	}
	sg_complain("node \"%s\": all %d process slots are taken", sg_config.node, SLOTS);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Opens the file and has its lock; anew if it was removed in between. */
static CUresult open_and_lock(void)
{
	struct stat st;
	for (;;) {
		CUresult r = open_file();
		if (r)
			return r;
		lock_node();
		if (fstat(file, &st) == 0 && st.st_nlink > 0)
			return CUDA_SUCCESS;
		unlock_node();
		close_file();
	}
}

/* Removes the file of another node if nobody lives there. */
static void remove_if_dead(int dir, const char *name)
{
	struct stat st;
	struct flock change = byte_lock(F_WRLCK, 0);
	struct flock anyone = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SLOT_BYTE, .l_len = SLOTS};
	int fd = openat(dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && fcntl(fd, F_SETLK, &change) == 0 &&
	    fcntl(fd, F_GETLK, &anyone) == 0 && anyone.l_type == F_UNLCK)
		unlinkat(dir, name, 0);
	close(fd);
}

static void remove_dead_nodes(void)
{
	char prefix[64];
	const char *mine = strrchr(path, '/') + 1;
	int n = snprintf(prefix, sizeof prefix, "softgpu-%u-", (unsigned)geteuid());
	DIR *d = opendir(directory);
	if (!d)
		return;
	for (struct dirent *e; (e = readdir(d));)
		if (!strncmp(e->d_name, prefix, n) && strcmp(e->d_name, mine)) /* opening our own again would cost its locks */
			remove_if_dead(dirfd(d), e->d_name);
	closedir(d);
}

CUresult sg_node_join(void)
{
	CUresult r = open_and_lock();
	if (r)
		return r;
	r = map_file();
	if (!r)
		r = agree();
	if (!r)
		r = claim_slot();
	unlock_node();
	if (!r) {
		remove_dead_nodes();
		return r;
	}
	if (table)
		munmap(table, sizeof *table);
	table = NULL;
	close_file();
	return r;
}

void sg_node_stop(void)
{
	/* No thread of this process may have the node then: all other processes would stop with this one. */
	pthread_mutex_lock(&threads);
	raise(SIGSTOP);
	pthread_mutex_unlock(&threads);
}

CUresult sg_node_take(int device, uint64_t bytes)
{
	CUresult r = CUDA_SUCCESS;
	lock_node();
	uint64_t sum = used(device);
	if (bytes > table->mem_bytes || sum > table->mem_bytes - bytes) {
		sweep();
		sum = used(device);
	}
	if (bytes > table->mem_bytes || sum > table->mem_bytes - bytes)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	else
		atomic_fetch_add(&table->slots[my_slot].used[device], bytes);
	unlock_node();
	return r;
}

void sg_node_give(int device, uint64_t bytes)
{
	atomic_fetch_sub(&table->slots[my_slot].used[device], bytes);
}

CUresult sg_node_info(int device, uint64_t *free_bytes, uint64_t *total)
{
	lock_node();
	sweep();
	uint64_t sum = used(device);
	*total = table->mem_bytes;
	*free_bytes = sum > *total ? 0 : *total - sum;
	unlock_node();
	return CUDA_SUCCESS;
}

void sg_node_context(int device, int change)
{
	atomic_fetch_add(&table->slots[my_slot].contexts[device], change);
}

/* ---- looking */

/* Of the living slots. False if there are none: then the node is what the next process makes of it. */
static bool view_table(const struct table *t, int fd, int own, int device, struct softgpu_view *v)
{
	bool lives = false;
	for (int i = 0; i < SLOTS; i++) {
		const struct slot *s = &t->slots[i];
		unsigned pid = atomic_load(&s->pid);
		if (!pid || !slot_lives(fd, own, i))
			continue;
		lives = true;
		uint64_t bytes = atomic_load(&s->used[device]);
		if (!bytes && !atomic_load(&s->contexts[device]))
			continue;
		v->process[v->processes].pid = pid;
		v->process[v->processes++].used = bytes;
		v->used += bytes;
	}
	if (!lives)
		return false;
	v->devices = t->devices;
	v->total = t->mem_bytes;
	return true;
}

/* The same of a file that this process has no locks on. With its change lock for reading, so that nobody makes a slot meanwhile. */
static void view_file(int fd, int device, struct softgpu_view *v)
{
	struct stat st;
	struct flock l = byte_lock(F_RDLCK, 0);
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_size < (off_t)sizeof(struct table))
		return;
	while (fcntl(fd, F_SETLKW, &l))
		if (errno != EINTR)
			return;
	struct table *t = mmap(NULL, sizeof *t, PROT_READ, MAP_SHARED, fd, 0);
	if (t == MAP_FAILED)
		return;
	if (t->magic == MAGIC)
		view_table(t, fd, -1, device, v);
	munmap(t, sizeof *t);
}

CUresult sg_node_view(bool joined, int device, struct softgpu_view *v)
{
	v->devices = sg_config.devices;
	v->total = sg_config.mem_bytes;
	v->used = 0;
	v->processes = 0;
	if (device < 0 || device >= SG_MAX_DEVICES)
		return CUDA_ERROR_INVALID_DEVICE;
	if (joined) {
		lock_node();
		view_table(table, file, my_slot, device, v);
		unlock_node();
	} else {
		name_file();
		int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
		if (fd >= 0) {
			view_file(fd, device, v);
			close(fd);
		}
	}
	return device < v->devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
