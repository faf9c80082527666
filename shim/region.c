/*
 * region.c: what each thread keeps for itself: region, tag and backup settings, and what other
 * files keep per thread. Only the owning thread touches its own, so there is no lock here.
 */
#include "shim.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TAG 255 /* bytes, without the zero */

static _Thread_local struct thread self;

/* Frees a thread's strings when it ends. When no key is left they stay until the process ends. */
static pthread_key_t at_thread_end;
static pthread_once_t at_thread_end_once = PTHREAD_ONCE_INIT;
static bool at_thread_end_works;

static void free_thread(void *thread)
{
	struct thread *t = thread;

	free(t->tag);
	free(t->error);
	free(t->error_json);
	/* A later destructor of the same thread may still call us; it finds the defaults. */
	memset(t, 0, sizeof(*t));
}

static void make_key(void)
{
	at_thread_end_works = pthread_key_create(&at_thread_end, free_thread) == 0;
}

void thread_keep(char **where, char *text)
{
	pthread_once(&at_thread_end_once, make_key);
	if (at_thread_end_works)
		pthread_setspecific(at_thread_end, &self);
	free(*where);
	*where = text;
}

struct thread *this_thread(void)
{
	if (!self.ready) {
		const struct settings *start = settings();

		self.managed = start->managed;
		self.cpu_backup = start->cpu_backup;
		self.disk_backup = start->disk_backup;
		self.cpu_mmap = start->cpu_mmap;
		self.ready = true;
	}
	return &self;
}

const char *thread_tag(const struct thread *t)
{
	return t->tag != NULL ? t->tag : "default";
}

/* ---- settings of the thread ------------------------------------------------------------- */

static _Atomic bool was_in_region; /* some thread was in a region that it began itself */

bool regions_used(void)
{
	return was_in_region || settings()->managed;
}

EXPORT void tms_set_interesting_region(bool on)
{
	if (on) {
		was_in_region = true;
		presence_check();
	}
	this_thread()->managed = on;
}

EXPORT bool tms_get_interesting_region(void)
{
	return this_thread()->managed;
}

EXPORT void tms_set_current_tag(const char *tag)
{
	if (tag == NULL) {
		log_line("tms_set_current_tag: null tag, nothing changed");
		return;
	}
	if (strlen(tag) > MAX_TAG) {
		log_line("tms_set_current_tag: a tag of %zu bytes, at most %d are possible, nothing changed: %.40s...",
			 strlen(tag), MAX_TAG, tag);
		return;
	}
	char *copy = strdup(tag);
	if (copy == NULL) {
		log_line("tms_set_current_tag: no memory, nothing changed");
		return;
	}
	thread_keep(&this_thread()->tag, copy);
}

EXPORT const char *tms_get_current_tag(void)
{
	return thread_tag(this_thread());
}

EXPORT void tms_set_enable_cpu_backup(bool on)
{
	this_thread()->cpu_backup = on;
}

EXPORT bool tms_get_enable_cpu_backup(void)
{
	return this_thread()->cpu_backup;
}

EXPORT void tms_set_enable_disk_backup(bool on)
{
	this_thread()->disk_backup = on;
}

EXPORT bool tms_get_enable_disk_backup(void)
{
	return this_thread()->disk_backup;
}

EXPORT void tms_set_cpu_backup_backend(const char *backend)
{
	if (backend == NULL || backend[0] == '\0' || strcmp(backend, "pinned") == 0)
		this_thread()->cpu_mmap = false;
	else if (strcmp(backend, "mmap") == 0)
		this_thread()->cpu_mmap = true;
	else
		log_line("tms_set_cpu_backup_backend: %s is neither pinned nor mmap, nothing changed", backend);
}

EXPORT const char *tms_get_cpu_backup_backend(void)
{
	return this_thread()->cpu_mmap ? "mmap" : "pinned";
}
