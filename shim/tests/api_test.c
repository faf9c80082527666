/* ebb_pause, ebb_resume, ebb_status, ebb_last_error and the backup pointer. */
#include "harness.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void without_an_engine(void)
{
	ebb_result result = {.struct_size = sizeof(result), .bytes = 1, .nanoseconds = 1};
	const char *tags[] = {"weights"};
	char text[256];

	EXPECT(strcmp(ebb_version(), EBB_VERSION) == 0);
	EXPECT(ebb_pause(NULL, 0, &result) == EBB_OK);
	EXPECT(result.struct_size == sizeof(result) && result.bytes == 0 && result.nanoseconds == 0);
	EXPECT(ebb_resume(NULL, 0, -1, &result) == EBB_OK);
	EXPECT(ebb_pause(tags, 1, NULL) == EBB_ERR_UNKNOWN_TAG);
	EXPECT(ebb_last_error(text, sizeof(text)) > 0 && strstr(text, "\"weights\"") != NULL);
	EXPECT(ebb_resume(tags, 1, 0, NULL) == EBB_ERR_UNKNOWN_TAG);
	EXPECT(engine_seen() == NULL);
}

static void status_without_an_engine(void)
{
	char text[512], wanted[64], cut[8];
	size_t need = 0;

	EXPECT(ebb_status(NULL, 0, &need) == EBB_OK && need > 0 && need < sizeof(text));
	EXPECT(ebb_status(text, sizeof(text), NULL) == EBB_OK && strlen(text) == need);
	snprintf(wanted, sizeof(wanted), "{\"version\":\"%s\",\"pid\":%d,", EBB_VERSION, (int)getpid());
	EXPECT(strncmp(text, wanted, strlen(wanted)) == 0);
	EXPECT(strstr(text, "\"allocations\":0,") != NULL && strstr(text, "\"tags\":[],") != NULL);
	EXPECT(ebb_status(cut, sizeof(cut), &need) == EBB_OK);
	EXPECT(need == strlen(text) && strlen(cut) == sizeof(cut) - 1 && strncmp(text, cut, strlen(cut)) == 0);
	EXPECT(engine_seen() == NULL);
}

static void status_is_the_engines(void)
{
	char text[64];
	size_t need;

	managed_malloc(1);
	EXPECT(ebb_status(text, sizeof(text), &need) == EBB_OK);
	EXPECT(strcmp(text, "{\"fake\":true}") == 0 && need == strlen(text));
}

static void pauses_of_a_tag(void)
{
	uint64_t count = 9;

	EXPECT(ebb_pause_count("weights", &count) == EBB_OK && count == 0 && engine_seen() == NULL);
	managed_malloc(1);
	EXPECT(ebb_pause_count("weights", &count) == EBB_OK && count == strlen("weights"));
	EXPECT(ebb_pause_count(NULL, &count) == EBB_ERR_INVALID && ebb_pause_count("weights", NULL) == EBB_ERR_INVALID);
	setenv("FAKE_COUNT_CODE", "16", 1);
	EXPECT(ebb_pause_count("weights", &count) == EBB_ERR_INTERNAL);
}

static void tags_and_results_reach_the_engine(void)
{
	const char *tags[] = {"weights", "kv"};
	ebb_result result = {.struct_size = sizeof(result), .bytes = 1};

	managed_malloc(1);
	EXPECT(ebb_pause(tags, 2, &result) == EBB_OK);
	EXPECT(engine_seen()->ntags == 2);
	EXPECT(strcmp(engine_seen()->tags[0], "weights") == 0 && strcmp(engine_seen()->tags[1], "kv") == 0);
	EXPECT(result.allocations == 7 && result.bytes == 0);
	EXPECT(tms_resume("") == EBB_OK);
	EXPECT(engine_seen()->ntags == 0);
	EXPECT(tms_resume("kv") == EBB_OK);
	EXPECT(engine_seen()->ntags == 1 && strcmp(engine_seen()->tags[0], "kv") == 0);
}

static void arguments_that_make_no_sense(void)
{
	const char *tags[] = {"weights", NULL};
	ebb_result result = {.struct_size = 0};
	char text[8];

	managed_malloc(1);
	EXPECT(ebb_pause(NULL, 2, NULL) == EBB_ERR_INVALID);
	EXPECT(ebb_pause(tags, 2, NULL) == EBB_ERR_INVALID);
	EXPECT(ebb_resume(tags, 2, 0, NULL) == EBB_ERR_INVALID);
	EXPECT(ebb_resume(NULL, 0, NAN, NULL) == EBB_ERR_INVALID);
	EXPECT(ebb_pause(NULL, 0, &result) == EBB_ERR_INVALID);
	EXPECT(ebb_status(NULL, 8, NULL) == EBB_ERR_INVALID);
	EXPECT(ebb_last_error(text, sizeof(text)) > 0);
	EXPECT(engine_seen()->pauses == 0 && engine_seen()->resumes == 0 && engine_seen()->statuses == 0);
}

/* A caller built with an older, shorter ebb_result. */
static void a_shorter_result_is_not_overrun(void)
{
	struct {
		uint64_t struct_size, allocations, not_ours;
	} old = {.struct_size = offsetof(ebb_result, bytes), .allocations = 1, .not_ours = 42};

	EXPECT(ebb_pause(NULL, 0, (ebb_result *)(void *)&old) == EBB_OK);
	EXPECT(old.struct_size == offsetof(ebb_result, bytes) && old.allocations == 0 && old.not_ours == 42);
}

/* A caller built with a newer, longer one. */
static void a_longer_result_is_accepted(void)
{
	struct {
		ebb_result known;
		uint64_t later;
	} newer = {.known = {.struct_size = sizeof(newer), .bytes = 1}, .later = 42};

	EXPECT(ebb_pause(NULL, 0, &newer.known) == EBB_OK);
	EXPECT(newer.known.struct_size == sizeof(newer) && newer.known.bytes == 0 && newer.later == 42);
}

static void waits(void)
{
	managed_malloc(1);
	EXPECT(ebb_resume(NULL, 0, -1, NULL) == EBB_OK);
	EXPECT(engine_seen()->resume_wait_s == 2.5);
	EXPECT(ebb_resume(NULL, 0, 0, NULL) == EBB_OK);
	EXPECT(engine_seen()->resume_wait_s == 0);
	EXPECT(ebb_resume(NULL, 0, 60, NULL) == EBB_OK);
	EXPECT(engine_seen()->resume_wait_s == 60);
	EXPECT(tms_resume(NULL) == EBB_OK);
	EXPECT(engine_seen()->resume_wait_s == 2.5);
}

static void expect_no_error(void)
{
	EXPECT(ebb_last_error(NULL, 0) == 0);
}

static void the_last_error_is_per_thread(void)
{
	const char *tags[] = {"nobody's"};
	char text[256], cut[5];

	EXPECT(ebb_last_error(text, sizeof(text)) == 0 && text[0] == '\0');
	EXPECT(ebb_pause(tags, 1, NULL) == EBB_ERR_UNKNOWN_TAG);
	size_t length = ebb_last_error(text, sizeof(text));
	EXPECT(length == strlen(text) && length > sizeof(cut));
	EXPECT(ebb_last_error(cut, sizeof(cut)) == length);
	EXPECT(strlen(cut) == sizeof(cut) - 1 && strncmp(cut, text, strlen(cut)) == 0);
	EXPECT(ebb_last_error(NULL, 0) == length);
	in_thread(expect_no_error);
}

static size_t json_error(char *text, size_t cap)
{
	size_t length = ebb_last_error_json(text, cap);

	EXPECT(cap == 0 || strlen(text) == (length < cap ? length : cap - 1));
	return length;
}

static void the_last_error_as_json(void)
{
	const char *tags[] = {"a\"b\\c"}, *odd[] = {"\xff|\xc3\xa9|\xe2\x82\xac|\xe2\x82|\xed\xa0\x80|\xc0\xaf|\n"};
	char text[512], cut[5];

	json_error(text, sizeof(text));
	EXPECT(strcmp(text, "{\"code\":0,\"message\":\"\"}") == 0);
	EXPECT(ebb_pause(tags, 1, NULL) == EBB_ERR_UNKNOWN_TAG);
	json_error(text, sizeof(text));
	EXPECT(strcmp(text, "{\"code\":4,\"message\":\"no allocation ever carried the tag \\\"a\\\"b\\\\c\\\"\"}") == 0);
	EXPECT(json_error(cut, sizeof(cut)) == strlen(text) && strncmp(cut, text, 4) == 0);
	EXPECT(ebb_last_error_json(NULL, 0) == strlen(text));

	/* What is no UTF-8 is replaced, byte by byte; what is, stays. */
	EXPECT(ebb_pause(odd, 1, NULL) == EBB_ERR_UNKNOWN_TAG);
	json_error(text, sizeof(text));
	EXPECT(strstr(text, "\"\\ufffd|\xc3\xa9|\xe2\x82\xac|\\ufffd\\ufffd|"
			    "\\ufffd\\ufffd\\ufffd|\\ufffd\\ufffd| \\\"\"}") != NULL);
	EXPECT(ebb_last_error(text, sizeof(text)) > 0 && strchr(text, '\n') == NULL);
}

static void an_error_of_the_engine_as_json(void)
{
	const char *tags[] = {NULL};
	char text[256];

	managed_malloc(1);
	setenv("FAKE_PAUSE_CODE", "11", 1);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_ERR_NO_SPACE);
	json_error(text, sizeof(text));
	EXPECT(strcmp(text, "{\"code\":99,\"fake\":\"pause: FAKE_PAUSE_CODE said so\"}") == 0);
	EXPECT(ebb_pause(tags, 1, NULL) == EBB_ERR_INVALID); /* the shim's own is the last one then */
	json_error(text, sizeof(text));
	EXPECT(strncmp(text, "{\"code\":1,\"message\":\"tag 1 of 1 ", 30) == 0);
}

static void bytes_are_read_by_the_engine(void)
{
	unsigned char bytes[3] = {0};
	void *stream[4] = {0}, *graph;
	void *managed = managed_malloc(64);

	EXPECT(ebb_read((char *)managed + 5, 2, bytes) == EBB_OK);
	EXPECT(engine_seen()->read_from == (char *)managed + 5 && engine_seen()->read_capture_active == 0);
	EXPECT(bytes[0] == 0x5a && bytes[1] == 0x5a && bytes[2] == 0);
	EXPECT(cudaStreamBeginCapture(stream, 0) == cudaSuccess);
	setenv("FAKE_READ_CODE", "6", 1);
	EXPECT(ebb_read(managed, 1, bytes) == EBB_ERR_CAPTURE && engine_seen()->read_capture_active == 1);
	EXPECT(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
}

static void reads_that_make_no_sense(void)
{
	unsigned char byte;
	void *other;

	EXPECT(cudaMalloc(&other, 64) == cudaSuccess);
	EXPECT(ebb_read(other, 1, &byte) == EBB_ERR_NOT_MANAGED); /* nothing is, yet */
	EXPECT(ebb_read(NULL, 1, &byte) == EBB_ERR_INVALID);
	EXPECT(ebb_read(other, 1, NULL) == EBB_ERR_INVALID);
	EXPECT(ebb_read(NULL, 0, NULL) == EBB_OK);
	EXPECT(engine_seen() == NULL);
	managed_malloc(1);
	EXPECT(ebb_read(NULL, 1, &byte) == EBB_ERR_INVALID);
	EXPECT(ebb_read(other, 1, NULL) == EBB_ERR_INVALID);
	EXPECT(ebb_read(other, 0, NULL) == EBB_OK);
	EXPECT(engine_seen()->reads == 0);
}

static void backup_pointers(void)
{
	char text[256];
	uint8_t *gpu = (uint8_t *)0x1000;

	EXPECT(tms_get_cpu_backup_pointer(gpu, 64) == NULL);
	EXPECT(ebb_last_error(text, sizeof(text)) > 0 && strstr(text, "not managed") != NULL);
	uint8_t *managed = managed_malloc(64);
	EXPECT(tms_get_cpu_backup_pointer(managed, 64) == (uint8_t *)(uintptr_t)(0xB0000000u + 64));
	EXPECT(tms_get_cpu_backup_pointer(gpu, 64) == NULL);
	EXPECT(ebb_last_error(text, sizeof(text)) > 0 && strcmp(text, "backup pointer: not managed") == 0);
}

static void no_backup_pointer(void)
{
	char text[256];
	uint8_t *managed = managed_malloc(64);

	setenv("FAKE_POINTER_CODE", "3", 1);
	EXPECT(tms_get_cpu_backup_pointer(managed, 64) == NULL);
	EXPECT(ebb_last_error(text, sizeof(text)) > 0 && strcmp(text, "FAKE_POINTER_CODE said so") == 0);
}

static void unused_ranges_reach_the_engine(void)
{
	const char *tags[] = {"weights"};
	ebb_range unused[] = {{(void *)0x1000, 10}, {(void *)0x2000, 20}};
	ebb_result result = {.struct_size = sizeof(result)};

	EXPECT(ebb_pause_except(NULL, 0, NULL, 0, NULL) == EBB_OK);
	managed_malloc(1);
	const struct fake_engine *engine = engine_seen();
	EXPECT(ebb_pause_except(tags, 1, unused, 2, &result) == EBB_OK && result.allocations == 7);
	EXPECT(engine->ntags == 1 && engine->nunused == 2 && engine->unused[1].ptr == (void *)0x2000);
	EXPECT(engine->unused[0].bytes == 10 && engine->unused[1].bytes == 20);
	EXPECT(ebb_pause(NULL, 0, NULL) == EBB_OK && engine->nunused == 0);
	EXPECT(ebb_pause_except(NULL, 0, NULL, 1, NULL) == EBB_ERR_INVALID && engine->pauses == 2);
}

/* As the engine calls them for the control socket. */
static void calls_of_the_control_socket(void)
{
	const char *tags[] = {"a", "b"};
	char text[256], byte = 0;
	size_t need;
	ebb_result result = {.struct_size = sizeof(result)};

	managed_malloc(1);
	struct fake_engine *engine = engine_seen();
	const ebb_engine_calls *calls = engine->calls;

	EXPECT(calls->status(text, sizeof(text), &need) == EBB_OK && strcmp(text, "{\"fake\":true}") == 0 && need == strlen(text));
	EXPECT(calls->pause(tags, 2, 1.5, 77, &result) == EBB_OK && result.allocations == 7);
	EXPECT(engine->requests == 1 && engine->pauses == 0 && engine->request_timeout_s == 1.5);
	EXPECT(engine->ask == 77 && engine->ntags == 2 && strcmp(engine->tags[1], "b") == 0);
	EXPECT(calls->resume(NULL, 0, 3, 78, &result) == EBB_OK && engine->resumes == 1);
	EXPECT(engine->ask == 78 && engine->ntags == 0 && engine->resume_wait_s == 3);
	EXPECT(calls->resume(NULL, 0, -1, 79, &result) == EBB_OK && engine->resume_wait_s == 2.5);
	EXPECT(calls->read((void *)0x1000, 1, &byte) == EBB_OK && byte == 0x5a);

	EXPECT(calls->read(NULL, 1, &byte) == EBB_ERR_INVALID);
	EXPECT(calls->last_error_json(text, sizeof(text)) > 0 && strncmp(text, "{\"code\":1,", 10) == 0);
	setenv("FAKE_REQUEST_CODE", "18", 1);
	EXPECT(calls->pause(NULL, 0, 0, 80, &result) == EBB_ERR_TIMEOUT);
	EXPECT(calls->last_error_json(text, sizeof(text)) > 0 && strstr(text, "request pause: FAKE_REQUEST_CODE said so") != NULL);

	EXPECT(ebb_resume(NULL, 0, 0, NULL) == EBB_OK && engine->ask == 0); /* the program's own */
	EXPECT(ebb_request_pause(NULL, 0, 0, NULL) == EBB_ERR_TIMEOUT && engine->ask == 0);
}

CASES(
	{.says = "the control socket's calls are the program's, and the engine knows them by their number",
	 .run = calls_of_the_control_socket,
	 .env = {"EBB_RESUME_WAIT=2.5"}},
	{.says = "without an engine there is nothing to pause, and no tag is known", .run = without_an_engine},
	{.says = "without an engine the status says so, and is cut to the room there is",
	 .run = status_without_an_engine},
	{.says = "with an engine the status is the engine's", .run = status_is_the_engines},
	{.says = "the pauses of a tag are the engine's to count; without one there was none", .run = pauses_of_a_tag},
	{.says = "tags and results pass between caller and engine", .run = tags_and_results_reach_the_engine},
	{.says = "the ranges that need not be kept reach the engine", .run = unused_ranges_reach_the_engine},
	{.says = "arguments that make no sense are refused before the engine sees them",
	 .run = arguments_that_make_no_sense},
	{.says = "a shorter result is not written beyond its size", .run = a_shorter_result_is_not_overrun},
	{.says = "a longer result is accepted", .run = a_longer_result_is_accepted},
	{.says = "a negative time to wait, and tms_resume, mean EBB_RESUME_WAIT",
	 .run = waits,
	 .env = {"EBB_RESUME_WAIT=2.5"}},
	{.says = "the last error is per thread, cut to the room there is", .run = the_last_error_is_per_thread},
	{.says = "the last error is one JSON object, whatever bytes it names", .run = the_last_error_as_json},
	{.says = "the JSON of an engine's error is the engine's, until another error comes",
	 .run = an_error_of_the_engine_as_json},
	{.says = "bytes are read by the engine, which knows of captures", .run = bytes_are_read_by_the_engine},
	{.says = "reads that make no sense are refused, with an engine and without", .run = reads_that_make_no_sense},
	{.says = "the backup pointer is the engine's; for memory that is not managed it is null, with a line",
	 .run = backup_pointers,
	 .lines = {"ebb: tms_get_cpu_backup_pointer: 0x1000 is not managed memory: none was allocated yet",
		   "ebb: tms_get_cpu_backup_pointer: not managed"}},
	{.says = "without a backup the pointer is null without a line, and the reason is the last error",
	 .run = no_backup_pointer});
