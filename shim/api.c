/* api.c: ebb's own functions. They return codes; nothing here writes to stderr or exits. */
#include "shim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

EXPORT const char *ebb_version(void)
{
	return EBB_VERSION;
}

static int check_arguments(const char *const *tags, size_t ntags, const ebb_result *result)
{
	if (tags == NULL && ntags > 0)
		return fail(EBB_ERR_INVALID, "%zu tags, but no list of them", ntags);
	for (size_t i = 0; i < ntags; i++)
		if (tags[i] == NULL)
			return fail(EBB_ERR_INVALID, "tag %zu of %zu is null", i + 1, ntags);
	if (result != NULL && result->struct_size < sizeof(result->struct_size))
		return fail(EBB_ERR_INVALID, "struct_size of the result is %llu: set it to sizeof(ebb_result)",
			    (unsigned long long)result->struct_size);
	return EBB_OK;
}

static void clear_result(ebb_result *result)
{
	if (result == NULL)
		return;
	uint64_t size = result->struct_size;
	memset(result, 0, size < sizeof(*result) ? (size_t)size : sizeof(*result));
	result->struct_size = size;
}

/* Without an engine nothing is managed: everything there is, none, is paused and resumed. */
static int nothing_to_move(const char *const *tags, size_t ntags)
{
	if (ntags == 0)
		return EBB_OK;
	return fail(EBB_ERR_UNKNOWN_TAG, "no allocation ever carried the tag \"%s\"", tags[0]);
}

static int nothing_to_pause(const char *const *tags, size_t ntags)
{
	long long others = unmanaged_allocations();

	if (ntags > 0 || others == 0)
		return nothing_to_move(tags, ntags);
	return fail(EBB_ERR_UNMANAGED,
		    "no memory is managed, so none would be freed, but the process holds %lld device allocation%s "
		    "made outside a region: allocate in a region (tms_set_interesting_region, ebb.region) or start "
		    "the process with TMS_INIT_ENABLE=1, with TMS_INIT_ENABLE_CPU_BACKUP=1 or "
		    "TMS_INIT_ENABLE_DISK_BACKUP=1 (without one a pause keeps no content)",
		    others, others == 1 ? "" : "s");
}

enum move { move_pause, move_request_pause, move_resume };

/* The ranges whose bytes a pause need not keep. */
struct unused {
	const ebb_range *ranges;
	size_t count;
};

/* wait_s: how long to wait for the device memory of a resume, or for the safe point of a request. ask: the request of the
 * control socket, or 0. */
static int move(enum move what, const char *const *tags, size_t ntags, struct unused unused, double wait_s,
		uint64_t ask, ebb_result *result)
{
	int code = check_arguments(tags, ntags, result);

	if (code != EBB_OK)
		return code;
	clear_result(result);
	if (what != move_resume)
		presence_check();
	enum engine_state state = engine_state();
	/* Memory that passed no hook is seen by the engine only, which asks NVML. */
	if (state == ENGINE_ABSENT && what != move_resume && ntags == 0 && unmanaged_allocations() == 0 &&
	    driver_loaded() && engine_load() == ENGINE_READY)
		state = ENGINE_READY;
	if (state == ENGINE_ABSENT)
		return what == move_resume ? nothing_to_move(tags, ntags) : nothing_to_pause(tags, ntags);
	if (state != ENGINE_READY)
		return engine_refuse(state);
	if (what != move_resume)
		peer_catch_up();

	char *dir = settings_disk_dir();
	if (dir == NULL)
		return fail(EBB_ERR_HOST_MEMORY, "no host memory for the name of the disk directory");
	ebb_engine_unmanaged classes[CLASSES];
	ebb_engine_settings now = {
		.disk_dir = dir,
		.retain_cpu_backup = settings_retain_cpu_backup(),
		.capture_active = captures_under_way(),
		.unmanaged = unmanaged_allocations(),
		.resume_wait_s = what == move_resume ? wait_s : settings()->resume_wait_s,
		.unused = unused.ranges,
		.nunused = unused.count,
		.classes = classes,
		.nclasses = unmanaged_classes(classes),
		.ask = ask,
	};
	engine_enter();
	if (what == move_request_pause)
		code = engine.request_pause(tags, ntags, wait_s, &now, result);
	else
		code = (what == move_resume ? engine.resume : engine.pause)(tags, ntags, &now, result);
	code = engine_leave(code);
	free(dir);
	if (what != move_resume && code == EBB_OK)
		pools_give_back(); /* their work is done: the pause has waited for it */
	if (what != move_resume)
		presence_check_left(code);
	return code;
}

static const struct unused all_used;

EXPORT int ebb_pause(const char *const *tags, size_t ntags, ebb_result *result)
{
	return move(move_pause, tags, ntags, all_used, 0, 0, result);
}

EXPORT int ebb_pause_except(const char *const *tags, size_t ntags, const ebb_range *unused, size_t nunused,
			    ebb_result *result)
{
	if (unused == NULL && nunused > 0)
		return fail(EBB_ERR_INVALID, "%zu unused ranges, but no list of them", nunused);
	return move(move_pause, tags, ntags, (struct unused){unused, nunused}, 0, 0, result);
}

static int request_pause(const char *const *tags, size_t ntags, double timeout_s, uint64_t ask, ebb_result *result)
{
	if (isnan(timeout_s))
		return fail(EBB_ERR_INVALID, "the time to wait is not a number");
	return move(move_request_pause, tags, ntags, all_used, timeout_s, ask, result);
}

EXPORT int ebb_request_pause(const char *const *tags, size_t ntags, double timeout_s, ebb_result *result)
{
	return request_pause(tags, ntags, timeout_s, 0, result);
}

static int resume(const char *const *tags, size_t ntags, double timeout_s, uint64_t ask, ebb_result *result)
{
	if (isnan(timeout_s))
		return fail(EBB_ERR_INVALID, "the time to wait is not a number");
	return move(move_resume, tags, ntags, all_used, timeout_s < 0 ? settings()->resume_wait_s : timeout_s, ask, result);
}

EXPORT int ebb_resume(const char *const *tags, size_t ntags, double timeout_s, ebb_result *result)
{
	return resume(tags, ntags, timeout_s, 0, result);
}

static int read_memory(const void *gpu_ptr, size_t n, void *buf)
{
	enum engine_state state = engine_state();

	if (state != ENGINE_ABSENT && state != ENGINE_READY)
		return engine_refuse(state);
	if (n == 0)
		return EBB_OK;
	if (gpu_ptr == NULL || buf == NULL)
		return fail(EBB_ERR_INVALID, "null pointer: %zu bytes cannot be read from %p to %p", n, gpu_ptr, buf);
	if (state == ENGINE_ABSENT)
		return fail(EBB_ERR_NOT_MANAGED, "%p is not managed memory: none was allocated yet", gpu_ptr);
	engine_enter();
	return engine_leave(engine.read(gpu_ptr, n, buf, captures_under_way()));
}

EXPORT int ebb_read(const void *gpu_ptr, size_t n, void *buf)
{
	return read_memory(gpu_ptr, n, buf);
}

/* The status of a process without an engine, to be freed: nothing is managed. Null: no memory. */
static char *status_of_nothing(void)
{
	ebb_engine_unmanaged classes[CLASSES];
	size_t n = unmanaged_classes(classes);
	uint64_t total = 0;
	char *text = NULL;
	size_t length;
	FILE *out = open_memstream(&text, &length);

	if (out == NULL)
		return NULL;
	for (size_t i = 0; i < n; i++)
		total += classes[i].bytes;
	fprintf(out,
		"{\"version\":\"%s\",\"pid\":%d,\"allocations\":0,\"bytes_active\":0,"
		"\"bytes_paused\":0,\"staging_bytes\":0,\"tags\":[],"
		"\"unmanaged\":{\"total\":%llu,\"measured\":false,\"classes\":[",
		EBB_VERSION, (int)getpid(), (unsigned long long)total);
	for (size_t i = 0; i < n; i++)
		fprintf(out, "%s{\"name\":\"%s\",\"bytes\":%llu,\"count\":%llu}", i > 0 ? "," : "", classes[i].name,
			(unsigned long long)classes[i].bytes, (unsigned long long)classes[i].count);
	fprintf(out, "]}}");
	if (fclose(out) == 0)
		return text;
	free(text);
	return NULL;
}

static int status(char *buf, size_t cap, size_t *need)
{
	if (buf == NULL && cap > 0)
		return fail(EBB_ERR_INVALID, "room for %zu bytes of status, but no buffer", cap);
	enum engine_state state = engine_state();
	if (state == ENGINE_READY) {
		ebb_engine_unmanaged classes[CLASSES];
		size_t nclasses = unmanaged_classes(classes);

		engine_enter();
		return engine_leave(engine.status(buf, cap, need, classes, nclasses));
	}
	if (state != ENGINE_ABSENT)
		return engine_refuse(state);

	char *json = status_of_nothing();
	if (json == NULL)
		return fail(EBB_ERR_HOST_MEMORY, "no host memory for the status");
	if (cap > 0)
		snprintf(buf, cap, "%s", json);
	if (need != NULL)
		*need = strlen(json);
	free(json);
	return EBB_OK;
}

EXPORT int ebb_status(char *buf, size_t cap, size_t *need)
{
	return status(buf, cap, need);
}

EXPORT int ebb_pause_count(const char *tag, uint64_t *count)
{
	if (tag == NULL || count == NULL)
		return fail(EBB_ERR_INVALID, "null pointer: tag or count");
	*count = 0;
	enum engine_state state = engine_state();
	if (state == ENGINE_ABSENT)
		return EBB_OK; /* nothing is managed, and nothing was paused */
	if (state != ENGINE_READY)
		return engine_refuse(state);
	engine_enter_briefly();
	return engine_leave(engine.pause_count(tag, count));
}

/* Not by the exported names, which another library may have too. */
const ebb_engine_calls control_calls = {
	.status = status,
	.pause = request_pause,
	.resume = resume,
	.read = read_memory,
	.last_error_json = last_error_json,
};
