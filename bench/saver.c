/* saver.c: the library under test, by torch_memory_saver's names. What only ebb has is used where it
 * is there, to read what it says about itself. */
#include "rank.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
	void (*set_interesting_region)(bool);
	void (*set_current_tag)(const char *);
	void (*set_enable_cpu_backup)(bool);
	void (*set_enable_disk_backup)(bool); /* may be null */
	int (*pause)(const char *);           /* of other libraries: returns nothing */
	int (*resume)(const char *);
	const char *(*version)(void);         /* of ebb alone, as what follows */
	int (*status)(char *, size_t, size_t *);
	int (*pause_except)(const char *const *, size_t, const struct range *, size_t, void *);
	size_t (*last_error)(char *, size_t);
} saver;

void saver_open(void)
{
#define FIND(field, name) *(void **)&saver.field = dlsym(RTLD_DEFAULT, name)
	FIND(set_interesting_region, "tms_set_interesting_region");
	FIND(set_current_tag, "tms_set_current_tag");
	FIND(set_enable_cpu_backup, "tms_set_enable_cpu_backup");
	FIND(set_enable_disk_backup, "tms_set_enable_disk_backup");
	FIND(pause, "tms_pause");
	FIND(resume, "tms_resume");
	FIND(version, "ebb_version");
	FIND(status, "ebb_status");
	FIND(pause_except, "ebb_pause_except");
	FIND(last_error, "ebb_last_error");
#undef FIND
}

bool saver_found(void)
{
	return saver.set_interesting_region != NULL && saver.set_current_tag != NULL &&
	       saver.set_enable_cpu_backup != NULL && saver.pause != NULL && saver.resume != NULL;
}

bool saver_is_ebb(void) { return saver.version != NULL && saver.status != NULL && saver.last_error != NULL; }

bool saver_leaves_unused(void) { return saver.pause_except != NULL; }

bool saver_region(const char *tag, const char *backup)
{
	if (!saver_found())
		return tag == NULL || fail("no library that pauses memory is preloaded");
	if (tag == NULL) {
		saver.set_interesting_region(false);
		return true;
	}
	bool disk = strcmp(backup, "disk") == 0;
	if (disk && saver.set_enable_disk_backup == NULL)
		return fail("the library has no backups on disk (tms_set_enable_disk_backup)");
	saver.set_current_tag(tag);
	saver.set_enable_cpu_backup(strcmp(backup, "cpu") == 0);
	if (saver.set_enable_disk_backup != NULL)
		saver.set_enable_disk_backup(disk);
	saver.set_interesting_region(true);
	return true;
}

/* This process's own memory, 0 where the kernel does not tell. */
static uint64_t host_memory(void)
{
	FILE *status = fopen("/proc/self/status", "re");
	uint64_t sum = 0, kib;
	char line[256];

	if (status == NULL)
		return 0;
	while (fgets(line, sizeof(line), status) != NULL)
		if (sscanf(line, "RssAnon: %" SCNu64, &kib) == 1 || sscanf(line, "RssFile: %" SCNu64, &kib) == 1)
			sum += kib << 10;
	fclose(status);
	return sum;
}

/* Of the pause that is under way. */
static struct {
	struct range *list;
	size_t count;
} unused;

static int pause_but_for_unused(const char *tag)
{
	return saver.pause_except(&tag, tag != NULL ? 1 : 0, unused.list, unused.count, NULL);
}

static bool operate(int (*call)(const char *), const char *name, const char *tag, struct operation *done)
{
	size_t total;
	int code;

	if (!saver_found())
		return fail("no library that pauses memory is preloaded");
	if (!cuda_ok(cuda.DeviceSynchronize(), "cudaDeviceSynchronize") || !cuda_free_memory(&done->free_before, &total))
		return false;
	done->host_before = host_memory();
	done->cpu = cpu_seconds();
	done->begin = now();
	code = call(tag);
	done->end = now();
	done->cpu = cpu_seconds() - done->cpu;
	done->host_after = host_memory();
	if (saver_is_ebb() && code != 0) {
		char text[512] = "";
		saver.last_error(text, sizeof(text));
		return fail("%s: %s", name, text);
	}
	return cuda_free_memory(&done->free_after, &total);
}

bool saver_pause(const char *tag, struct operation *done) { return operate(saver.pause, "tms_pause", tag, done); }

bool saver_pause_except(const char *tag, const char *dead, struct operation *done)
{
	bool ok = saver_leaves_unused() ? memory_ranges(dead, &unused.list, &unused.count)
					     : fail("the library leaves no unused bytes behind (ebb_pause_except)");

	ok = ok && operate(pause_but_for_unused, "ebb_pause_except", tag, done);
	free(unused.list);
	unused.list = NULL;
	return ok;
}

bool saver_resume(const char *tag, struct operation *done) { return operate(saver.resume, "tms_resume", tag, done); }

char *saver_status(void)
{
	size_t need = 0, room;
	char *text = NULL;

	if (!saver_is_ebb())
		return NULL;
	/* It may grow from one call to the next. */
	do {
		room = need + 1;
		char *more = realloc(text, room);
		if (more == NULL || saver.status(more, room, &need) != 0) {
			free(more != NULL ? more : text);
			return NULL;
		}
		text = more;
	} while (need >= room);
	return text;
}
