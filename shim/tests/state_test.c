/* Streamed state: calls reach the engine with what they were given, and where there is none they say so. */
#include "harness.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const uint64_t sizes[] = {3, 4};

static uint64_t make(void)
{
	uint64_t state = 0;

	EXPECT(ebb_state_create("adam", sizes, 2, &state) == EBB_OK && state == 7);
	return state;
}

static bool error_says(const char *words)
{
	char text[256];

	return ebb_last_error(text, sizeof(text)) > 0 && strstr(text, words) != NULL;
}

static void without_a_state(void)
{
	ebb_state_io io = {.bytes = 1};
	uint64_t ticket;
	char byte = 0;

	EXPECT(ebb_state_block(7) == 0);
	EXPECT(ebb_state_read(7, &io, 1, &ticket) == EBB_ERR_INVALID && error_says("none was made yet"));
	EXPECT(ebb_state_write(7, &io, 1, NULL, &ticket) == EBB_ERR_INVALID);
	EXPECT(ebb_state_wait(7, 1, NULL) == EBB_ERR_INVALID);
	EXPECT(ebb_state_read_host(7, 0, 0, 1, &byte) == EBB_ERR_INVALID);
	EXPECT(ebb_state_write_host(7, 0, 0, 1, &byte) == EBB_ERR_INVALID);
	EXPECT(ebb_state_save(7, "/x", NULL) == EBB_ERR_INVALID);
	EXPECT(ebb_state_load(7, "/x") == EBB_ERR_INVALID);
	EXPECT(ebb_state_close(7) == EBB_ERR_INVALID);
	EXPECT(engine_seen() == NULL);
}

static void every_call(void)
{
	int somewhere;
	ebb_state_io io = {.segment = 1, .offset = 2, .bytes = 3, .gpu = &somewhere};
	ebb_state_done done = {.struct_size = sizeof(done)};
	uint64_t ticket = 0;

	uint64_t state = make();
	struct fake_engine *seen = engine_seen();
	EXPECT(strcmp(seen->streamed.name, "adam") == 0 && strcmp(seen->streamed.dir, "/disk") == 0);
	EXPECT(seen->streamed.n == 2 && seen->streamed.bytes[0] == 3 && seen->streamed.bytes[1] == 4);
	EXPECT(seen->streamed.device == -1);
	EXPECT(ebb_state_block(state) == 4096 && seen->streamed.state == 7);
	EXPECT(ebb_state_read(state, &io, 1, &ticket) == EBB_OK && ticket == 8);
	EXPECT(memcmp(&seen->streamed.io, &io, sizeof(io)) == 0 && seen->streamed.n == 1);
	EXPECT(ebb_state_write(state, &io, 1, &done, &ticket) == EBB_OK && seen->streamed.stream == &done);
	EXPECT(ebb_state_wait(state, ticket, &done) == EBB_OK && done.bytes == 9 && seen->streamed.ticket == 8);
	EXPECT(ebb_state_wait(state, ticket, NULL) == EBB_OK);
	EXPECT(ebb_state_read_host(state, 1, 2, 3, &done) == EBB_OK && seen->streamed.buf == &done);
	EXPECT(ebb_state_write_host(state, 5, 6, 7, &io) == EBB_OK && seen->streamed.buf == &io);
	EXPECT(seen->streamed.segment == 5 && seen->streamed.offset == 6 && seen->streamed.bytes[0] == 7);
	EXPECT(ebb_state_save(state, "/c", "{}") == EBB_OK && strcmp(seen->streamed.extra, "{}") == 0);
	EXPECT(ebb_state_load(state, "/d") == EBB_OK && strcmp(seen->streamed.dir, "/d") == 0);
	EXPECT(ebb_state_close(state) == EBB_OK && seen->state_calls == 11);
}

static void null_pointers(void)
{
	ebb_state_io io = {.bytes = 1};
	ebb_state_done done = {0};
	uint64_t state = make(), ticket;

	EXPECT(ebb_state_create(NULL, sizes, 2, &state) == EBB_ERR_INVALID);
	EXPECT(ebb_state_create("adam", NULL, 2, &state) == EBB_ERR_INVALID);
	EXPECT(ebb_state_create("adam", sizes, 2, NULL) == EBB_ERR_INVALID);
	EXPECT(ebb_state_read(state, NULL, 1, &ticket) == EBB_ERR_INVALID);
	EXPECT(ebb_state_read(state, &io, 1, NULL) == EBB_ERR_INVALID);
	EXPECT(ebb_state_write(state, NULL, 1, NULL, &ticket) == EBB_ERR_INVALID);
	EXPECT(ebb_state_wait(state, 8, &done) == EBB_ERR_INVALID && error_says("struct_size"));
	EXPECT(ebb_state_read_host(state, 0, 0, 1, NULL) == EBB_ERR_INVALID);
	EXPECT(ebb_state_write_host(state, 0, 0, 1, NULL) == EBB_ERR_INVALID);
	EXPECT(ebb_state_save(state, NULL, NULL) == EBB_ERR_INVALID);
	EXPECT(ebb_state_load(state, NULL) == EBB_ERR_INVALID);
	EXPECT(engine_seen()->state_calls == 1);
}

static void errors_are_the_engines(void)
{
	uint64_t state = make();

	setenv("FAKE_STATE_CODE", "12", 1);
	EXPECT(ebb_state_close(state) == EBB_ERR_IO && error_says("FAKE_STATE_CODE said so"));
	EXPECT(ebb_state_create("adam", sizes, 2, &state) == EBB_ERR_IO);
}

static void in_a_forked_child(void)
{
	uint64_t state = make(), other;
	pid_t child = fork();

	if (child == 0) {
		bool refused = ebb_state_create("adam", sizes, 2, &other) == EBB_ERR_FORKED &&
			       ebb_state_close(state) == EBB_ERR_FORKED && ebb_state_block(state) == 0;
		_exit(refused ? 0 : 1);
	}
	int status;
	EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	EXPECT(engine_seen()->state_calls == 1);
}

CASES(
	{.says = "without a state nothing is loaded, and every call says so", .run = without_a_state},
	{.says = "every call reaches the engine with what it was given",
	 .run = every_call,
	 .env = {"TMS_DISK_BACKUP_DIR=/disk", "EBB_STATE_CHUNK_MB=3", "EBB_STATE_DIRS=/a:/b"}},
	{.says = "null pointers are refused here", .run = null_pointers},
	{.says = "errors are the engine's", .run = errors_are_the_engines},
	{.says = "a forked child is refused", .run = in_a_forked_child});
