/* Safe points: idle sections are counted from the start of the process, engine or not. */
#include "harness.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void without_an_engine(void)
{
	char text[256];

	EXPECT(ebb_safe_point() == EBB_OK);
	EXPECT(ebb_idle_begin() == EBB_OK && ebb_idle_begin() == EBB_OK);
	EXPECT(ebb_idle_end() == EBB_OK && ebb_idle_end() == EBB_OK);
	EXPECT(ebb_idle_end() == EBB_ERR_STATE);
	EXPECT(ebb_last_error(text, sizeof(text)) > 0 && strstr(text, "no idle section") != NULL);
	EXPECT(ebb_request_pause(NULL, 0, -1, NULL) == EBB_OK);
	EXPECT(engine_seen() == NULL);
	managed_malloc(1);
	EXPECT(engine_seen()->idle == 0);
}

static void with_an_engine(void)
{
	managed_malloc(1);
	EXPECT(ebb_idle_begin() == EBB_OK && engine_seen()->idle == 1);
	EXPECT(ebb_idle_begin() == EBB_OK && engine_seen()->idle == 2);
	EXPECT(ebb_safe_point() == EBB_OK && engine_seen()->safe_points == 1);
	EXPECT(ebb_idle_end() == EBB_OK && ebb_idle_end() == EBB_OK && engine_seen()->idle == 0);
	EXPECT(ebb_idle_end() == EBB_ERR_STATE);
	setenv("FAKE_SAFE_POINT_CODE", "3", 1);
	EXPECT(ebb_safe_point() == EBB_ERR_STATE);
}

static void begin_one(void)
{
	EXPECT(ebb_idle_begin() == EBB_OK);
}

static void begun_before_the_engine(void)
{
	EXPECT(ebb_idle_begin() == EBB_OK);
	in_thread(begin_one);
	EXPECT(ebb_idle_begin() == EBB_OK && ebb_idle_end() == EBB_OK);
	managed_malloc(1);
	EXPECT(engine_seen()->idle == 2);
	EXPECT(ebb_idle_end() == EBB_OK && engine_seen()->idle == 1);
	EXPECT(ebb_idle_end() == EBB_OK && engine_seen()->idle == 0);
}

static void ended_during_the_hand_over(void)
{
	EXPECT(ebb_idle_begin() == EBB_OK && ebb_idle_begin() == EBB_OK);
	setenv("FAKE_IDLE_ENDS", "1", 1);
	managed_malloc(1);
	EXPECT(engine_seen()->idle == 1);
	EXPECT(ebb_idle_end() == EBB_OK && ebb_idle_end() == EBB_ERR_STATE);
}

static void an_engine_that_failed(void)
{
	void *ptr;

	tms_set_interesting_region(true);
	EXPECT(ebb_idle_begin() == EBB_OK);
	EXPECT(cudaMalloc(&ptr, 1) != cudaSuccess);
	EXPECT(ebb_idle_begin() == EBB_OK && ebb_safe_point() == EBB_OK);
	EXPECT(ebb_idle_end() == EBB_OK && ebb_idle_end() == EBB_OK && ebb_idle_end() == EBB_ERR_STATE);
	EXPECT(ebb_request_pause(NULL, 0, 0, NULL) == EBB_ERR_NOT_LOADED);
}

#define THREADS 8
#define ROUNDS 2000

static pthread_barrier_t all_here;

static void *idle_again_and_again(void *load)
{
	pthread_barrier_wait(&all_here);
	for (int i = 0; i < ROUNDS; i++) {
		EXPECT(ebb_idle_begin() == EBB_OK);
		if (load != NULL && i == ROUNDS / 2)
			managed_malloc(1);
		EXPECT(ebb_idle_end() == EBB_OK);
	}
	EXPECT(ebb_idle_begin() == EBB_OK);
	return NULL;
}

static void threads_idle_while_the_engine_loads(void)
{
	pthread_t threads[THREADS];

	EXPECT(pthread_barrier_init(&all_here, NULL, THREADS) == 0);
	for (int i = 0; i < THREADS; i++)
		EXPECT(pthread_create(&threads[i], NULL, idle_again_and_again, i == 0 ? "loads" : NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		EXPECT(pthread_join(threads[i], NULL) == 0);
	EXPECT(engine_seen()->idle == THREADS);
}

static void a_request_is_the_engines(void)
{
	const char *tags[] = {"weights", NULL};
	ebb_result result = {.struct_size = sizeof(result), .bytes = 1};

	managed_malloc(1);
	EXPECT(ebb_request_pause(tags, 1, 1.5, &result) == EBB_OK);
	EXPECT(engine_seen()->requests == 1 && engine_seen()->request_timeout_s == 1.5);
	EXPECT(engine_seen()->ntags == 1 && strcmp(engine_seen()->tags[0], "weights") == 0);
	EXPECT(strcmp(engine_seen()->disk_dir, "/tmp") == 0 && engine_seen()->resume_wait_s == 2.5);
	EXPECT(result.allocations == 7 && result.bytes == 0);
	EXPECT(ebb_request_pause(NULL, 0, -1, NULL) == EBB_OK);
	EXPECT(engine_seen()->request_timeout_s == -1 && engine_seen()->ntags == 0);
	setenv("FAKE_REQUEST_CODE", "18", 1);
	EXPECT(ebb_request_pause(NULL, 0, 0, NULL) == EBB_ERR_TIMEOUT);
	EXPECT(ebb_request_pause(tags, 2, 0, NULL) == EBB_ERR_INVALID);
	EXPECT(ebb_request_pause(NULL, 0, 0.0 / 0.0, NULL) == EBB_ERR_INVALID);
	EXPECT(engine_seen()->requests == 3 && engine_seen()->pauses == 0);
}

static void a_request_of_an_unknown_tag(void)
{
	const char *tags[] = {"weights"};

	EXPECT(ebb_request_pause(tags, 1, -1, NULL) == EBB_ERR_UNKNOWN_TAG);
}

CASES(
	{.says = "without an engine nobody asks for a pause: safe points return at once", .run = without_an_engine},
	{.says = "with an engine idle sections and safe points are the engine's", .run = with_an_engine},
	{.says = "idle sections of any thread that began before the engine count once it is there",
	 .run = begun_before_the_engine},
	{.says = "an idle section that ends while it is handed over has ended", .run = ended_during_the_hand_over},
	{.says = "idle sections begin and end when the engine could not be loaded",
	 .run = an_engine_that_failed,
	 .env = {"EBB_ENGINE=/nowhere"},
	 .lines = {"ebb: cannot load the engine library /nowhere *"}},
	{.says = "sections that begin and end while the engine loads are counted once each",
	 .run = threads_idle_while_the_engine_loads},
	{.says = "a pause that is asked for reaches the engine with its time limit",
	 .run = a_request_is_the_engines,
	 .env = {"EBB_RESUME_WAIT=2.5"}},
	{.says = "a request of a tag that no allocation carries does not wait", .run = a_request_of_an_unknown_tag});
