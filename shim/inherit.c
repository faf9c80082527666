/*
 * inherit.c: descriptors that a forked child must not keep.
 *
 * Backup files: the engine has backup files open only while a call is under way. A child that another thread
 * forks meanwhile inherits their descriptors, and the room of a file that the parent removes later
 * would stay taken for as long as the child lives, which may be the whole job.
 *
 * The control socket: nobody would answer there, and a connection would not end with its rank. The engine
 * notes its descriptors here. One that it opens or closes at the moment of a fork may stay open in the
 * child, and does no harm: the engine also ends a connection that it closes.
 */
#include "shim.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool ends_with(const char *text, const char *end)
{
	size_t length = strlen(text), tail = strlen(end);

	return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* Whether /proc says of a descriptor that it is a backup file, removed already or not. */
static bool is_backup(int list, const char *descriptor)
{
	char path[PATH_MAX];
	ssize_t length = readlinkat(list, descriptor, path, sizeof(path) - 1);

	if (length < 0)
		return false;
	path[length] = '\0';
	const char *slash = strrchr(path, '/');
	return slash != NULL && strncmp(slash, "/ebb-", strlen("/ebb-")) == 0 &&
	       (ends_with(slash, ".bak") || ends_with(slash, ".bak (deleted)"));
}

/* In a forked child, so only with system calls: other threads may have held any lock of libc's. */
void close_inherited_backups(void)
{
	_Alignas(struct dirent64) char entries[4096];
	int list = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (list < 0)
		return;
	for (long got; (got = syscall(SYS_getdents64, list, entries, sizeof(entries))) > 0;)
		for (long at = 0; at < got;) {
			const struct dirent64 *entry = (const struct dirent64 *)(entries + at);

			if (is_backup(list, entry->d_name))
				close(atoi(entry->d_name));
			at += entry->d_reclen;
		}
	close(list);
}

ebb_engine_descriptor control_descriptors[EBB_ENGINE_DESCRIPTORS];

/* Likewise only with system calls. A number that means another file by now is the program's. */
void close_inherited_sockets(void)
{
	struct stat now;

	for (size_t i = 0; i < EBB_ENGINE_DESCRIPTORS; i++) {
		const ebb_engine_descriptor *noted = &control_descriptors[i];
		int fd = noted->fd;

		if (fd > 0 && fstat(fd, &now) == 0 && now.st_dev == noted->dev && now.st_ino == noted->ino)
			close(fd);
	}
}
