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
	/* The exit has a status of its own, and what fails now is no news. */
	if (code == EBB_OK || engine_state() == ENGINE_EXITING)
		return code;
	if (code == EBB_ERR_PARTIAL)
		log_line("pause PARTIAL, part of the memory not freed: %s", last_error_of("pause"));
	else
		log_line("pause FAILED, memory not freed: %s", last_error_of("pause"));
	if (settings()->exit_on_pause_error && code != EBB_ERR_FORKED) {
		engine_shutdown();
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
	if (code == EBB_OK || engine_state() == ENGINE_EXITING)
		return code;
	/* No memory of a forked child or of a process without an engine is paused; after a capture the
	 * resume can be asked for again. All can go on. */
	if (code == EBB_ERR_FORKED || code == EBB_ERR_NOT_LOADED || code == EBB_ERR_CAPTURE) {
		log_line("resume refused: %s", last_error_of("resume"));
		return code;
	}
	log_line("resume FAILED, the process cannot go on: %s", last_error_of("resume"));
	engine_shutdown();
	_exit(exit_resume_failed);
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
	int code;
	if (state == ENGINE_READY) {
		engine_enter();
		code = engine_leave(engine.backup_pointer(gpu_ptr, size, &host));
	} else if (state == ENGINE_ABSENT) {
		code = fail(EBB_ERR_NOT_MANAGED, "%p is not managed memory: none was allocated yet",
			    (const void *)gpu_ptr);
	} else {
		code = engine_refuse(state);
	}
	/* Having no backup is an answer; asking for memory that is not managed is a mistake. */
	if (code == EBB_ERR_NOT_MANAGED)
		log_line("tms_get_cpu_backup_pointer: %s", last_error_of("backup pointer"));
	return code == EBB_OK ? host : NULL;
}
