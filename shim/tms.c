/*
 * tms.c: pause and resume under torch_memory_saver's names.
 *
 * Their callers ignore results, so what goes wrong is said on stderr, and a process whose memory
 * cannot come back ends here rather than fault at a random place later. The two _exit calls of
 * this file are the only ones in ebb that end the host process.
 */
#include "shim.h"

#include <unistd.h>

enum { exit_pause_failed = 70, exit_resume_failed = 71 };

/* One tag, or everything for a null or empty one. */
static size_t tag_list(const char *tag, const char *list[1])
{
	list[0] = tag;
	return tag != NULL && tag[0] != '\0' ? 1 : 0;
}

EXPORT int tms_pause(const char *tag)
{
	const char *tags[1];
	size_t count = tag_list(tag, tags);
	int code = ebb_pause(tags, count, NULL);

	if (code == EBB_ERR_UNKNOWN_TAG)
		return EBB_OK;
	if (code != EBB_OK) {
		log_line("pause FAILED, memory not freed: %s", last_error());
		if (settings()->exit_on_pause_error && code != EBB_ERR_FORKED)
			_exit(exit_pause_failed);
	}
	return code;
}

EXPORT int tms_resume(const char *tag)
{
	const char *tags[1];
	size_t count = tag_list(tag, tags);
	int code = ebb_resume(tags, count, -1, NULL);

	if (code == EBB_ERR_UNKNOWN_TAG)
		return EBB_OK;
	/* In neither case is memory of this process paused, so it can go on. */
	if (code == EBB_ERR_FORKED || code == EBB_ERR_NOT_LOADED) {
		log_line("resume refused: %s", last_error());
	} else if (code != EBB_OK) {
		log_line("resume FAILED, the process cannot go on: %s", last_error());
		_exit(exit_resume_failed);
	}
	return code;
}

EXPORT uint8_t *tms_get_cpu_backup_pointer(const uint8_t *gpu_ptr, uint64_t size)
{
	void *host = NULL;

	if (gpu_ptr == NULL) {
		log_line("tms_get_cpu_backup_pointer: null pointer");
		fail(EBB_ERR_INVALID, "null pointer");
		return NULL;
	}
	enum engine_state state = engine_state();
	if (state == ENGINE_ABSENT) {
		fail(EBB_ERR_NOT_MANAGED, "%p is not managed memory: none was allocated yet", (const void *)gpu_ptr);
		return NULL;
	}
	if (state != ENGINE_READY) {
		engine_refuse(state);
		return NULL;
	}
	engine_enter();
	if (engine_leave(engine.backup_pointer(gpu_ptr, size, &host)) != EBB_OK)
		return NULL;
	return host;
}
