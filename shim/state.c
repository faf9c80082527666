/* state.c: streamed state. The engine does all of it; what is here is who may call it. */
#include "shim.h"

#include <stdlib.h>

/* The engine, for a call on a state that is there already. */
static int enter_state(void)
{
	enum engine_state state = engine_state();

	if (state == ENGINE_ABSENT)
		return fail(EBB_ERR_INVALID, "there is no streamed state: none was made yet");
	if (state != ENGINE_READY)
		return engine_refuse(state);
	engine_enter();
	return EBB_OK;
}

EXPORT int ebb_state_create(const char *name, const uint64_t *segment_bytes, size_t nsegments, uint64_t *state)
{
	if (name == NULL || segment_bytes == NULL || state == NULL)
		return fail(EBB_ERR_INVALID, "null pointer: name, segment_bytes or state");
	enum engine_state loaded = engine_load();
	if (loaded != ENGINE_READY)
		return engine_refuse(loaded);
	char *dir = settings_disk_dir();
	if (dir == NULL)
		return fail(EBB_ERR_HOST_MEMORY, "no host memory for the name of the disk directory");
	int device = current_device();

	engine_enter();
	int code = engine_leave(engine.state_create(name, segment_bytes, nsegments, device, dir, state));
	free(dir);
	return code;
}

EXPORT uint64_t ebb_state_block(uint64_t state)
{
	if (engine_state() != ENGINE_READY)
		return 0;
	engine_enter();
	uint64_t block = engine.state_block(state);
	engine_leave(EBB_OK);
	return block;
}

static int check_request(const ebb_state_io *ios, size_t n, const uint64_t *ticket)
{
	if ((ios == NULL && n > 0) || ticket == NULL)
		return fail(EBB_ERR_INVALID, "null pointer: ios or ticket");
	return EBB_OK;
}

EXPORT int ebb_state_read(uint64_t state, const ebb_state_io *ios, size_t n, uint64_t *ticket)
{
	int code = check_request(ios, n, ticket);

	if (code != EBB_OK || (code = enter_state()) != EBB_OK)
		return code;
	return engine_leave(engine.state_read(state, ios, n, ticket));
}

EXPORT int ebb_state_write(uint64_t state, const ebb_state_io *ios, size_t n, void *stream, uint64_t *ticket)
{
	int code = check_request(ios, n, ticket);

	if (code != EBB_OK || (code = enter_state()) != EBB_OK)
		return code;
	return engine_leave(engine.state_write(state, ios, n, stream, ticket));
}

EXPORT int ebb_state_wait(uint64_t state, uint64_t ticket, ebb_state_done *done)
{
	if (done != NULL && done->struct_size < sizeof(done->struct_size))
		return fail(EBB_ERR_INVALID, "struct_size of done is %llu: set it to sizeof(ebb_state_done)",
			    (unsigned long long)done->struct_size);
	int code = enter_state();
	return code != EBB_OK ? code : engine_leave(engine.state_wait(state, ticket, done));
}

EXPORT int ebb_state_read_host(uint64_t state, uint32_t segment, uint64_t offset, uint64_t bytes, void *buf)
{
	if (buf == NULL && bytes > 0)
		return fail(EBB_ERR_INVALID, "null pointer: buf");
	int code = enter_state();
	return code != EBB_OK ? code : engine_leave(engine.state_read_host(state, segment, offset, bytes, buf));
}

EXPORT int ebb_state_write_host(uint64_t state, uint32_t segment, uint64_t offset, uint64_t bytes, const void *buf)
{
	if (buf == NULL && bytes > 0)
		return fail(EBB_ERR_INVALID, "null pointer: buf");
	int code = enter_state();
	return code != EBB_OK ? code : engine_leave(engine.state_write_host(state, segment, offset, bytes, buf));
}

EXPORT int ebb_state_save(uint64_t state, const char *dir, const char *extra)
{
	if (dir == NULL)
		return fail(EBB_ERR_INVALID, "null pointer: dir");
	int code = enter_state();
	return code != EBB_OK ? code : engine_leave(engine.state_save(state, dir, extra));
}

EXPORT int ebb_state_load(uint64_t state, const char *dir)
{
	if (dir == NULL)
		return fail(EBB_ERR_INVALID, "null pointer: dir");
	int code = enter_state();
	return code != EBB_OK ? code : engine_leave(engine.state_load(state, dir));
}

EXPORT int ebb_state_close(uint64_t state)
{
	int code = enter_state();
	return code != EBB_OK ? code : engine_leave(engine.state_close(state));
}
