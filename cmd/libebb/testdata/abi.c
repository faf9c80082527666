/*
 * A C program that uses libebb-engine.so as libebb.so does: abi LIBRARY DRIVER SCENARIO.
 * Each scenario is a process of its own. It ends with 0, or with 1 and a line that says what was
 * not as it must be. The device is softgpu, whose memory the program reads and writes directly.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ebb_engine.h"
#include "../../../internal/device/cuda/cuda_abi.h"

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			printf("line %d: %s (last error: %s)\n", __LINE__, #condition, last()); \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static ebb_engine_start_fn start;
static ebb_engine_version_fn version;
static ebb_engine_malloc_fn engine_malloc;
static ebb_engine_free_fn engine_free;
static ebb_engine_pause_fn engine_pause;
static ebb_engine_resume_fn engine_resume;
static ebb_engine_backup_pointer_fn backup_pointer;
static ebb_engine_status_fn status;
static ebb_engine_pause_count_fn pause_count;
static ebb_engine_request_pause_fn request_pause;
static ebb_engine_idle_fn idle;
static ebb_engine_read_fn engine_read;
static ebb_engine_last_error_fn last_error;
static ebb_engine_last_error_json_fn last_error_json;
static ebb_engine_shutdown_fn engine_shutdown;
static ebb_engine_vmm_create_fn vmm_create;
static ebb_engine_vmm_release_fn vmm_release;
static ebb_engine_vmm_map_fn vmm_map;
static ebb_engine_vmm_unmap_fn vmm_unmap;
static ebb_engine_vmm_set_access_fn vmm_set_access;
static ebb_engine_vmm_get_access_fn vmm_get_access;
static ebb_engine_vmm_retain_fn vmm_retain;
static ebb_engine_vmm_address_free_fn vmm_address_free;
static ebb_engine_vmm_export_fn vmm_export;
static ebb_engine_vmm_properties_fn vmm_properties;
static ebb_engine_vmm_real_fn vmm_real;
static ebb_engine_peer_access_fn peer_access;
static ebb_engine_state_create_fn state_create;
static ebb_engine_state_block_fn state_block;
static ebb_engine_state_read_fn state_read;
static ebb_engine_state_write_fn state_write;
static ebb_engine_state_wait_fn state_wait;
static ebb_engine_state_read_host_fn state_read_host;
static ebb_engine_state_write_host_fn state_write_host;
static ebb_engine_state_save_fn state_save;
static ebb_engine_state_load_fn state_load;
static ebb_engine_state_close_fn state_close;

static const char *driver;
static const ebb_engine_region cpu = {"default", EBB_BACKUP_CPU, 0};
static const ebb_engine_settings settings = {.disk_dir = "/tmp"};

static const char *last(void)
{
	static char text[4096];
	last_error(text, sizeof text);
	return text;
}

static int says(const char *words)
{
	return strstr(last(), words) != NULL;
}

static ebb_engine_config config(void)
{
	ebb_engine_config c = {.abi = EBB_ENGINE_ABI, .struct_size = sizeof c, .log_fd = -1, .chunk_bytes = 1 << 20, .driver = driver};
	return c;
}

static void begin(void)
{
	ebb_engine_config c = config();
	CHECK(start(&c) == EBB_OK);
}

/* ---- scenarios ------------------------------------------------------------------------- */

static void before_start(void)
{
	void *p = NULL;
	size_t need = 0;
	CHECK(strcmp(version(), "5 " EBB_VERSION) == 0);
	CHECK(version() == version());
	CHECK(last_error(NULL, 0) == 0);
	CHECK(engine_malloc(&p, 1, 0, &cpu, 0) == EBB_ERR_STATE && says("malloc: ") && says("not started"));
	CHECK(p == NULL);
	CHECK(engine_free(&p, 0) == EBB_ERR_STATE && says("free: "));
	CHECK(engine_pause(NULL, 0, &settings, NULL) == EBB_ERR_STATE && says("pause: "));
	CHECK(engine_resume(NULL, 0, &settings, NULL) == EBB_ERR_STATE && says("resume: "));
	CHECK(backup_pointer(&p, 1, &p) == EBB_ERR_STATE && says("backup pointer: "));
	CHECK(status(NULL, 0, &need, NULL, 0) == EBB_ERR_STATE && says("status: "));
	CHECK(request_pause(NULL, 0, -1, &settings, NULL) == EBB_ERR_STATE && says("request pause: "));
	CHECK(idle(1) == EBB_ERR_STATE && says("idle: "));
	CHECK(engine_read(&p, 1, &p, 0) == EBB_ERR_STATE && says("read: "));
	engine_shutdown();
}

static void starting(void)
{
	ebb_engine_config c = config();
	CHECK(start(NULL) == EBB_ERR_INVALID);
	c.abi++;
	CHECK(start(&c) == EBB_ERR_INVALID && says("one build"));
	c = config();
	c.struct_size--;
	CHECK(start(&c) == EBB_ERR_INVALID && says("one build"));
	for (c = config(), c.log_fd = 0; c.log_fd <= 2; c.log_fd++)
		CHECK(start(&c) == EBB_ERR_INVALID && says("belongs to the host"));
	c = config();
	c.driver = "/nowhere/libcuda.so.1";
	CHECK(start(&c) == EBB_ERR_DEVICE && says("start: ") && says("/nowhere/libcuda.so.1"));
	begin(); /* what failed does not stand in the way */
	c = config();
	CHECK(start(&c) == EBB_ERR_STATE && says("already started"));
}

static void round_trip(void)
{
	enum { SIZE = 300000 };
	begin();
	unsigned char *p = NULL;
	CHECK(engine_malloc((void **)&p, SIZE, 0, &cpu, 0) == EBB_OK && p);
	for (int i = 0; i < SIZE; i++)
		p[i] = (unsigned char)(i * 7 + i / 251);

	const char *const tags[] = {"default"};
	ebb_result r = {.struct_size = sizeof r};
	CHECK(engine_pause(tags, 1, &settings, &r) == EBB_OK);
	CHECK(r.struct_size == sizeof r && r.allocations == 1 && r.bytes >= SIZE && r.device_bytes >= SIZE);
	CHECK(r.host_bytes >= SIZE && r.disk_bytes == 0 && r.nanoseconds > 0);

	void *host = NULL;
	CHECK(backup_pointer(p, SIZE, &host) == EBB_OK && host);
	CHECK(((unsigned char *)host)[1000] == (unsigned char)(1000 * 7 + 1000 / 251));

	r = (ebb_result){.struct_size = sizeof r};
	CHECK(engine_resume(NULL, 0, &settings, &r) == EBB_OK && r.allocations == 1);
	for (int i = 0; i < SIZE; i++)
		CHECK(p[i] == (unsigned char)(i * 7 + i / 251));
	CHECK(backup_pointer(p, SIZE, &host) != EBB_OK && host == NULL);

	CHECK(engine_pause(tags, 1, &settings, NULL) == EBB_OK); /* result may be null */
	CHECK(engine_resume(tags, 1, &settings, NULL) == EBB_OK);
	CHECK(engine_free(p, 0) == EBB_OK);
	engine_shutdown();
	engine_shutdown();
}

/* Bytes of managed memory, while it is active and while it is paused; from anywhere within. */
static void reading(void)
{
	enum { SIZE = 300000 };
	static unsigned char copy[SIZE + 1];
	begin();
	unsigned char *p = NULL;
	CHECK(engine_malloc((void **)&p, SIZE, 0, &cpu, 0) == EBB_OK);
	for (int i = 0; i < SIZE; i++)
		p[i] = (unsigned char)(i * 7 + i / 251);
	for (int paused = 0; paused <= 1; paused++) {
		for (int from = 0; from < SIZE; from += 65521) {
			memset(copy, 0, sizeof copy);
			copy[SIZE - from] = 0xa5;
			CHECK(engine_read(p + from, (size_t)(SIZE - from), copy, 0) == EBB_OK);
			for (int i = from; i < SIZE; i++)
				CHECK(copy[i - from] == (unsigned char)(i * 7 + i / 251));
			CHECK(copy[SIZE - from] == 0xa5);
		}
		CHECK(engine_read(p + 1, SIZE, copy, 0) == EBB_ERR_NOT_MANAGED); /* beyond its end */
		CHECK(engine_read(copy, 1, copy, 0) == EBB_ERR_NOT_MANAGED && says("read: "));
		CHECK(engine_read(p, 1, NULL, 0) == EBB_ERR_INVALID && says("buf"));
		CHECK(engine_read(p, SIZE_MAX, copy, 0) == EBB_ERR_INVALID && says("more than any memory"));
		CHECK(engine_read(p, 0, NULL, 0) == EBB_OK);
		if (!paused) {
			CHECK(engine_read(p, 1, copy, 1) == EBB_ERR_CAPTURE);
			CHECK(engine_pause(NULL, 0, &settings, NULL) == EBB_OK);
		} else {
			CHECK(engine_read(p, 1, copy, 1) == EBB_OK); /* no device is asked */
		}
	}
}

static _Atomic int came_back;

static void *asks(void *result)
{
	CHECK(request_pause(NULL, 0, -1, &settings, result) == EBB_OK);
	CHECK(engine_resume(NULL, 0, &settings, NULL) == EBB_OK);
	came_back = 1;
	return NULL;
}

static void safe_points(void)
{
	begin();
	void *p;
	CHECK(engine_malloc(&p, 1 << 20, 0, &cpu, 0) == EBB_OK);
	CHECK(request_pause(NULL, 0, 0, &settings, NULL) == EBB_ERR_TIMEOUT && says("request pause: "));
	CHECK(request_pause(NULL, 0, 0.0 / 0.0, &settings, NULL) == EBB_ERR_INVALID);
	CHECK(request_pause(NULL, 1, 0, &settings, NULL) == EBB_ERR_INVALID && says("tags"));
	CHECK(request_pause(NULL, 0, 0, NULL, NULL) == EBB_ERR_INVALID && says("settings"));
	CHECK(idle(2) == EBB_ERR_INVALID && says("not 2"));
	CHECK(idle(0) == EBB_ERR_STATE && says("idle: "));
	CHECK(idle(-1) == EBB_OK);

	/* The actor uses its memory, which faults while it is paused, but for its safe points. */
	ebb_result r = {.struct_size = sizeof r};
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, asks, &r) == 0);
	while (!came_back) {
		*(volatile char *)p = 1;
		CHECK(idle(-1) == EBB_OK);
		*(volatile char *)p = 1;
		CHECK(idle(1) == EBB_OK && idle(1) == EBB_OK && idle(0) == EBB_OK && idle(0) == EBB_OK);
	}
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(r.struct_size == sizeof r && r.allocations == 1 && r.bytes == 1 << 20);
}

/* A pause of everything that finds nothing, where something must be, is an error. */
static void unmanaged(void)
{
	begin();
	ebb_engine_settings other = settings;
	other.unmanaged = 3;
	CHECK(engine_pause(NULL, 0, &settings, NULL) == EBB_OK);
	CHECK(engine_pause(NULL, 0, &other, NULL) == EBB_ERR_UNMANAGED && says("3 "));
	void *p;
	CHECK(engine_malloc(&p, 1, 0, &cpu, 0) == EBB_OK);
	CHECK(engine_pause(NULL, 0, &other, NULL) == EBB_OK);
	CHECK(engine_pause(NULL, 0, &other, NULL) == EBB_OK); /* a repeat does nothing */
}

/* Pointers that no engine made, also such as no program has, are not managed; that is all. */
static void foreign_pointers(void)
{
	begin();
	void *host = &host;
	const uintptr_t addresses[] = {0, 1, 4095, 0xdeadbeef, (uintptr_t)&host, 0xc000000000, UINTPTR_MAX};
	for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
		CHECK(engine_free((void *)addresses[i], 0) == EBB_ERR_NOT_MANAGED);
		CHECK(backup_pointer((void *)addresses[i], 1, &host) == EBB_ERR_NOT_MANAGED && host == NULL);
	}
}

static void null_arguments(void)
{
	begin();
	void *p = &p;
	size_t need;
	const ebb_engine_region no_tag = {NULL, EBB_BACKUP_CPU, 0}, no_mode = {"default", 7, 0};
	const char *const tags[] = {"default", NULL};
	CHECK(engine_malloc(NULL, 1, 0, &cpu, 0) == EBB_ERR_INVALID && says("ptr"));
	CHECK(engine_malloc(&p, 1, 0, NULL, 0) == EBB_ERR_INVALID && p == NULL);
	CHECK(engine_malloc(&p, 1, 0, &no_tag, 0) == EBB_ERR_INVALID && says("tag"));
	CHECK(engine_malloc(&p, 1, 0, &no_mode, 0) == EBB_ERR_INVALID && says("7"));
	CHECK(engine_pause(NULL, 1, &settings, NULL) == EBB_ERR_INVALID && says("tags"));
	CHECK(engine_pause(tags, 2, &settings, NULL) == EBB_ERR_INVALID && says("tag 1"));
	CHECK(engine_pause(NULL, 0, NULL, NULL) == EBB_ERR_INVALID && says("settings"));
	CHECK(engine_resume(NULL, 0, NULL, NULL) == EBB_ERR_INVALID && says("settings"));
	CHECK(backup_pointer(&p, 1, NULL) == EBB_ERR_INVALID && says("host"));
	CHECK(status(NULL, 10, &need, NULL, 0) == EBB_ERR_INVALID && says("buf"));
}

/* A result is written as far as its struct_size says, in whole fields. */
static void result_size(void)
{
	begin();
	void *p;
	CHECK(engine_malloc(&p, 1 << 20, 0, &cpu, 0) == EBB_OK);
	for (size_t size = 0; size <= sizeof(ebb_result) + 16; size++) {
		unsigned char room[sizeof(ebb_result) + 16], *end = room + sizeof room;
		ebb_result *r = (ebb_result *)room;
		memset(room, 0xa5, sizeof room);
		r->struct_size = size;
		int code = engine_pause(NULL, 0, &settings, r);
		if (size < 8) {
			CHECK(code == EBB_ERR_INVALID && says("struct_size"));
			for (unsigned char *b = room + 8; b < end; b++)
				CHECK(*b == 0xa5);
			continue;
		}
		CHECK(code == EBB_OK && r->struct_size == size);
		size_t written = size < sizeof *r ? size / 8 * 8 : sizeof *r;
		for (unsigned char *b = room + written; b < end; b++)
			CHECK(*b == 0xa5);
		if (written >= 16)
			CHECK(r->allocations == 1);
		if (written == sizeof *r)
			CHECK(r->nanoseconds > 0 && r->nanoseconds < 0xa5a5a5a5a5a5a5a5);
		CHECK(engine_resume(NULL, 0, &settings, NULL) == EBB_OK);
	}
}

static void *fails_once(void *unused)
{
	(void)unused;
	CHECK(last_error(NULL, 0) == 0); /* the error of another thread is not mine */
	CHECK(engine_free(NULL, 0) == EBB_ERR_STATE);
	CHECK(last_error(NULL, 0) > 0);
	return NULL;
}

static void *waits(void *gate)
{
	CHECK(engine_pause(NULL, 0, &settings, NULL) == EBB_ERR_STATE && says("pause: "));
	pthread_barrier_wait(gate); /* both have failed */
	CHECK(says("pause: ") && !says("resume: "));
	return NULL;
}

static size_t last_json(char *text, size_t cap)
{
	size_t len = last_error_json(text, cap);
	CHECK(strlen(text) == (len < cap ? len : cap - 1));
	return len;
}

static void error_json(void)
{
	static char text[20000], cut[8], name[8000], wanted[100];
	last_json(text, sizeof text);
	CHECK(strcmp(text, "{\"code\":0,\"message\":\"\"}") == 0);
	CHECK(last_error_json(NULL, 0) == strlen(text));

	CHECK(engine_malloc(NULL, 1, 0, &cpu, 0) == EBB_ERR_INVALID);
	last_json(text, sizeof text);
	CHECK(strcmp(text, "{\"code\":1,\"message\":\"malloc: ptr is null\"}") == 0);
	CHECK(last_json(cut, sizeof cut) == strlen(text) && strncmp(cut, text, 7) == 0);

	/* A long one is whole, though its text is cut. */
	memset(name, 'n', sizeof name - 1);
	name[0] = '/';
	ebb_engine_config c = config();
	c.driver = name;
	CHECK(start(&c) == EBB_ERR_DEVICE);
	CHECK(last_json(text, sizeof text) > sizeof name && text[strlen(text) - 1] == '}');

	begin();
	void *p;
	CHECK(engine_malloc(&p, (size_t)1 << 40, 0, &cpu, 0) == EBB_ERR_DEVICE_MEMORY);
	last_json(text, sizeof text);
	snprintf(wanted, sizeof wanted, "\"need_bytes\":%zu,", (size_t)1 << 40);
	CHECK(strstr(text, "{\"code\":9,\"message\":\"malloc: ") == text && strstr(text, wanted));
	CHECK(strstr(text, "\"device\":0,") && strstr(text, "\"free_bytes\":"));
}

static void error_text(void)
{
	char text[8];
	CHECK(engine_free(NULL, 0) == EBB_ERR_STATE);
	size_t len = last_error(NULL, 0);
	CHECK(len == strlen(last()) && len > sizeof text && !strchr(last(), '\n'));
	memset(text, 'x', sizeof text);
	CHECK(last_error(text, 7) == len && strlen(text) == 6 && strncmp(text, last(), 6) == 0 && text[7] == 'x');
	CHECK(last_error(text, 1) == len && text[0] == 0);
	text[0] = 'x';
	CHECK(last_error(text, 0) == len && text[0] == 'x');

	/* Two threads that fail at the same time. */
	pthread_t thread;
	pthread_barrier_t gate;
	pthread_barrier_init(&gate, NULL, 2);
	CHECK(pthread_create(&thread, NULL, waits, &gate) == 0);
	CHECK(engine_resume(NULL, 0, &settings, NULL) == EBB_ERR_STATE);
	pthread_barrier_wait(&gate);
	CHECK(says("resume: ") && !says("pause: "));
	CHECK(pthread_join(thread, NULL) == 0);

	/* A text goes with its thread: 4096 threads leave less than a quarter of their texts. */
	enum { THREADS = 4096 };
	struct mallinfo2 before = mallinfo2();
	for (int i = 0; i < THREADS; i++) {
		CHECK(pthread_create(&thread, NULL, fails_once, NULL) == 0);
		CHECK(pthread_join(thread, NULL) == 0);
	}
	struct mallinfo2 after = mallinfo2();
	CHECK(after.uordblks < before.uordblks + THREADS * 1024u);
}

/* A very long text is cut, not lost and not overrun. */
static void long_error(void)
{
	static char name[20000], text[20000];
	memset(name, 'n', sizeof name - 1);
	name[0] = '/';
	ebb_engine_config c = config();
	c.driver = name;
	CHECK(start(&c) == EBB_ERR_DEVICE);
	size_t len = last_error(text, sizeof text);
	CHECK(len == 4095 && strlen(text) == len && strncmp(text, "start: ", 7) == 0);
}

static void status_text(void)
{
	begin();
	size_t need = 0, again = 0;
	CHECK(status(NULL, 0, &need, NULL, 0) == EBB_OK && need > 0);
	char *text = malloc(need + 2);
	CHECK(text);
	memset(text, 'x', need + 2);
	CHECK(status(text, need + 1, &again, NULL, 0) == EBB_OK && again == need && strlen(text) == need && text[need + 1] == 'x');
	CHECK(text[0] == '{' && text[need - 1] == '}');
	memset(text, 'x', need + 2);
	CHECK(status(text, 10, NULL, NULL, 0) == EBB_OK && strlen(text) == 9 && text[10] == 'x');
	CHECK(status(text, SIZE_MAX, NULL, NULL, 0) == EBB_OK && strlen(text) == need);
	free(text);
}

/* A panic is an error code, one line of text, and a stack in the log; the engine goes on. */
static void panics(void)
{
	int log[2];
	CHECK(pipe2(log, O_NONBLOCK) == 0); /* a log without the stack must not hang the test */
	ebb_engine_config c = config();
	c.log_fd = log[1];
	CHECK(start(&c) == EBB_OK);
	const char *const tags[] = {"default"};
	CHECK(engine_pause(tags, SIZE_MAX, &settings, NULL) == EBB_ERR_INTERNAL); /* no such number can be held */
	CHECK(says("pause: ") && says("defect in ebb") && !strchr(last(), '\n'));
	static char text[1 << 16];
	last_json(text, sizeof text);
	CHECK(strncmp(text, "{\"code\":16,\"message\":\"pause: defect in ebb", 40) == 0);
	memset(text, 0, sizeof text);
	CHECK(read(log[0], text, sizeof text - 1) > 0);
	CHECK(strstr(text, "panic in pause") && strstr(text, "goroutine") && strstr(text, "ebbGoPause"));
	CHECK(engine_pause(NULL, 0, &settings, NULL) == EBB_OK);
}

static int count_threads(void)
{
	int n = 0;
	DIR *tasks = opendir("/proc/self/task");
	CHECK(tasks);
	for (struct dirent *d; (d = readdir(tasks));)
		n += d->d_name[0] != '.';
	closedir(tasks);
	return n;
}

/* Prints how many threads the engine has added to the process once memory was allocated. */
static void threads(void)
{
	void *p;
	begin();
	CHECK(engine_malloc(&p, 1, 0, &cpu, 0) == EBB_OK);
	printf("%d\n", count_threads() - 1);
}

/* ---- memory that its owner maps -------------------------------------------------------- */

enum { GRAIN = 64 << 10 };

static const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = 1 /* file descriptor */,
					 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
static const CUmemAccessDesc rw = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

/* The driver's own calls, for address space and for comparison. */
static CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
static CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
static CUresult (*release)(CUmemGenericAllocationHandle);
static CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
static CUresult (*unmap)(CUdeviceptr, size_t);
static CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
static CUresult (*get_access)(unsigned long long *, const CUmemLocation *, CUdeviceptr);
static CUresult (*retain)(CUmemGenericAllocationHandle *, void *);
static CUresult (*properties)(CUmemAllocationProp *, CUmemGenericAllocationHandle);

static void *symbol(void *library, const char *name);

static void take_driver(void)
{
	void *d = dlopen(driver, RTLD_NOW | RTLD_LOCAL);
	CHECK(d);
	*(void **)&reserve = symbol(d, "cuMemAddressReserve");
	*(void **)&create = symbol(d, "cuMemCreate");
	*(void **)&release = symbol(d, "cuMemRelease");
	*(void **)&map = symbol(d, "cuMemMap");
	*(void **)&unmap = symbol(d, "cuMemUnmap");
	*(void **)&set_access = symbol(d, "cuMemSetAccess");
	*(void **)&get_access = symbol(d, "cuMemGetAccess");
	*(void **)&retain = symbol(d, "cuMemRetainAllocationHandle");
	*(void **)&properties = symbol(d, "cuMemGetAllocationPropertiesFromHandle");
}

static void objects(void)
{
	uint64_t h = 7, k = 7, flags = 7, real = 7;
	CUdeviceptr p = 0;
	CUmemAllocationProp q;
	int cu = -1, fd = -1;
	CHECK(vmm_release(EBB_ENGINE_HANDLE, &cu) == EBB_ERR_STATE && says("not started") && cu != 0);
	begin();
	take_driver();
	CHECK(reserve(&p, 2 * GRAIN, 0, 0, 0) == 0);

	CHECK(vmm_create(&h, GRAIN, NULL, 0, &cpu, 0, &cu) == EBB_ERR_INVALID && cu == 1 && h == 7);
	CHECK(vmm_create(NULL, GRAIN, &prop, 0, &cpu, 0, &cu) == EBB_ERR_INVALID && cu == 1);
	CHECK(vmm_create(&h, GRAIN, &prop, 0, NULL, 0, &cu) == EBB_ERR_INVALID && cu == 1);
	CHECK(vmm_create(&h, 1ul << 40, &prop, 0, &cpu, 0, &cu) == EBB_ERR_DEVICE_MEMORY && cu == 2 && h == 7);
	CHECK(vmm_create(&h, GRAIN, &prop, 0, &cpu, 1ul << 40, &cu) == EBB_ERR_DEVICE_MEMORY && cu == 2 && says("margin"));
	CHECK(vmm_create(&h, GRAIN, &prop, 0, &cpu, 0, &cu) == EBB_OK && EBB_ENGINE_IS_HANDLE(h));
	CHECK(vmm_map(p, GRAIN, GRAIN, h, 0, &cu) == EBB_ERR_DEVICE && cu == 801 && says("map: "));
	CHECK(vmm_map(p, GRAIN, 0, h, 0, &cu) == EBB_OK);
	CHECK(vmm_set_access(p, GRAIN, NULL, 1, &cu) == EBB_ERR_INVALID && cu == 1);
	CHECK(vmm_set_access(p, GRAIN, &rw, SIZE_MAX, &cu) == EBB_ERR_INVALID && cu == 1);
	CHECK(vmm_set_access(p, GRAIN, &rw, 1, &cu) == EBB_OK);
	CHECK(vmm_get_access(&flags, &rw.location, p + 9, &cu) == EBB_OK && flags == 3);
	CHECK(vmm_get_access(NULL, &rw.location, p, &cu) == EBB_ERR_INVALID && cu == 1);
	CHECK(vmm_retain(&k, p, &cu) == EBB_OK && k == h);
	CHECK(vmm_retain(NULL, p, &cu) == EBB_ERR_INVALID && cu == 1);
	CHECK(vmm_properties(&q, h, &cu) == EBB_OK && memcmp(&q, &prop, sizeof q) == 0);
	CHECK(vmm_properties(NULL, h, &cu) == EBB_ERR_INVALID && cu == 1);
	CHECK(vmm_address_free(p, 2 * GRAIN, &cu) == EBB_ERR_DEVICE && cu == 1);

	const char *const text = last();
	char before[200];
	snprintf(before, sizeof before, "%s", text);
	CHECK(vmm_unmap(p + GRAIN, GRAIN, &cu) == EBB_ERR_NOT_MANAGED && strcmp(last(), before) == 0);
	CHECK(vmm_release(12345, &cu) == EBB_ERR_NOT_MANAGED && vmm_retain(&k, p + GRAIN, &cu) == EBB_ERR_NOT_MANAGED);

	memset((void *)(uintptr_t)p, 0x5a, GRAIN);
	ebb_result r = {.struct_size = sizeof r};
	CHECK(engine_pause(NULL, 0, &settings, &r) == EBB_OK && r.allocations == 1 && r.device_bytes == GRAIN);
	CHECK(vmm_export(&fd, h, 1, 0, &cu) == EBB_ERR_STATE && cu == 401 && says("paused"));
	CHECK(vmm_real(&real, h, "multicast", &cu) == EBB_ERR_STATE && cu == 401 && real == 7);
	CHECK(engine_resume(NULL, 0, &settings, &r) == EBB_OK && r.allocations == 1);
	for (int i = 0; i < GRAIN; i++)
		CHECK(((unsigned char *)(uintptr_t)p)[i] == 0x5a);

	CHECK(vmm_export(&fd, h, 1, 0, &cu) == EBB_OK && fd >= 0);
	CHECK(vmm_real(&real, h, NULL, &cu) == EBB_ERR_INVALID && vmm_real(&real, h, "multicast", &cu) == EBB_OK);
	CHECK(!EBB_ENGINE_IS_HANDLE(real));
	CHECK(engine_pause(NULL, 0, &settings, &r) == EBB_OK && r.allocations == 0);
	CHECK(vmm_release(h, &cu) == EBB_OK && vmm_release(h, &cu) == EBB_OK);
	CHECK(vmm_release(h, &cu) == EBB_ERR_DEVICE && cu == 1);
	CHECK(vmm_unmap(p, 2 * GRAIN, &cu) == EBB_OK);
	CHECK(peer_access(0, 0, 1) == EBB_ERR_INVALID && says("peer access: "));
	close(fd);
}

static double now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Prints for each call what it takes more than the driver's own, in ns: the median of many rounds, among other memory. */
enum { ROUNDS = 2001, OTHERS = 200 };

static int by_size(const void *a, const void *b)
{
	double d = *(const double *)a - *(const double *)b;
	return (d > 0) - (d < 0);
}

static double median(double *all)
{
	qsort(all, ROUNDS, sizeof *all, by_size);
	return all[ROUNDS / 2];
}

static void overhead(void)
{
	static const char *const names[] = {"create", "map", "set_access", "get_access", "retain", "properties", "release", "unmap", "foreign_unmap"};
	enum { CALLS = sizeof names / sizeof *names };
	static double ours[CALLS][ROUNDS], theirs[CALLS][ROUNDS];
	CUdeviceptr p = 0, q;
	uint64_t h, k, flags;
	CUmemGenericAllocationHandle real, more;
	unsigned long long rights;
	CUmemAllocationProp got;
	int cu;
	begin();
	take_driver();
	CHECK(reserve(&p, (OTHERS + 2) * GRAIN, 0, 0, 0) == 0);
	for (int i = 0; i < OTHERS; i++) {
		CHECK(vmm_create(&h, GRAIN, &prop, 0, &cpu, 0, &cu) == 0 && vmm_map(p + (i + 2ul) * GRAIN, GRAIN, 0, h, 0, &cu) == 0);
		CHECK(vmm_release(h, &cu) == 0);
	}
	q = p + GRAIN;
#define TIMED(where, call)                            \
	do {                                          \
		double start = now_ns();              \
		int result = (int)(call);             \
		(where)[i] = now_ns() - start;        \
		CHECK(result == 0);                   \
	} while (0)
	for (int i = 0; i < ROUNDS; i++) {
		TIMED(ours[0], vmm_create(&h, GRAIN, &prop, 0, &cpu, 0, &cu));
		TIMED(theirs[0], create(&real, GRAIN, &prop, 0));
		TIMED(ours[1], vmm_map(p, GRAIN, 0, h, 0, &cu));
		TIMED(theirs[1], map(q, GRAIN, 0, real, 0));
		TIMED(ours[2], vmm_set_access(p, GRAIN, &rw, 1, &cu));
		TIMED(theirs[2], set_access(q, GRAIN, &rw, 1));
		TIMED(ours[3], vmm_get_access(&flags, &rw.location, p, &cu));
		TIMED(theirs[3], get_access(&rights, &rw.location, q));
		TIMED(ours[4], vmm_retain(&k, p, &cu));
		TIMED(theirs[4], retain(&more, (void *)(uintptr_t)q));
		TIMED(ours[5], vmm_properties(&got, h, &cu));
		TIMED(theirs[5], properties(&got, real));
		TIMED(ours[6], vmm_release(h, &cu));
		TIMED(theirs[6], release(real));
		CHECK(vmm_release(h, &cu) == 0 && release(real) == 0);
		TIMED(ours[7], vmm_unmap(p, GRAIN, &cu));
		TIMED(ours[8], vmm_unmap(q, GRAIN, &cu) == EBB_ERR_NOT_MANAGED ? unmap(q, GRAIN) : CUDA_SUCCESS + 1);
		CHECK(create(&real, GRAIN, &prop, 0) == 0 && map(q, GRAIN, 0, real, 0) == 0 && release(real) == 0);
		TIMED(theirs[7], unmap(q, GRAIN));
		theirs[8][i] = theirs[7][i];
	}
	for (int c = 0; c < CALLS; c++)
		printf("%s %.0f\n", names[c], median(ours[c]) - median(theirs[c]));
}

/* ---------------------------------------------------------------------------------------- */

static int entries(const char *dir)
{
	DIR *d = opendir(dir);
	CHECK(d);
	int n = 0;
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

/* One bucket: two segments that are written from device memory, read back, saved, changed, loaded. */
static void streamed_state(void)
{
	enum { FIRST = 300000, SECOND = 5 };
	static const uint64_t sizes[] = {FIRST, SECOND};
	static const ebb_engine_region slots = {"slots", EBB_BACKUP_NONE, 0};
	char dir[] = "/tmp/ebb-abi-XXXXXX", checkpoint[sizeof dir + 2], name[sizeof checkpoint + 32];
	uint64_t state = 0, ticket = 0, other = 0;
	CHECK(state_close(1) == EBB_ERR_STATE && says("not started"));
	CHECK(mkdtemp(dir));
	snprintf(checkpoint, sizeof checkpoint, "%s/c", dir);
	begin();

	CHECK(state_create("", sizes, 2, 0, dir, &state) == EBB_ERR_INVALID && says("name"));
	CHECK(state_create("adam", sizes, 0, 0, dir, &state) == EBB_ERR_INVALID);
	CHECK(state_create("adam", sizes, 2, 0, dir, &state) == EBB_OK && state);
	CHECK(entries(dir) == 2); /* with all their room */
	CHECK(state_block(state) >= FIRST && state_block(state + 1) == 0);

	unsigned char *slot = NULL;
	CHECK(engine_malloc((void **)&slot, FIRST + 64, 0, &slots, 0) == EBB_OK);
	unsigned char *second = slot + (FIRST + 15) / 16 * 16;
	memset(slot, 1, FIRST);
	memset(second, 2, SECOND);
	ebb_state_io ios[] = {{.segment = 0, .bytes = FIRST, .gpu = slot}, {.segment = 1, .bytes = SECOND, .gpu = second}};
	ebb_state_done done = {.struct_size = sizeof done};
	CHECK(state_write(state, ios, 2, NULL, &ticket) == EBB_OK && ticket);
	CHECK(state_wait(state, ticket, &done) == EBB_OK && done.bytes == FIRST + SECOND && done.disk_bytes == done.bytes);
	CHECK(state_wait(state, ticket, &done) == EBB_ERR_INVALID && says("no request"));

	/* A pause frees the slot, and keeps nothing of it. */
	ebb_result r = {.struct_size = sizeof r};
	uint64_t pauses = 9;
	CHECK(pause_count("slots", &pauses) == EBB_OK && pauses == 0);
	CHECK(engine_pause(NULL, 0, &settings, &r) == EBB_OK && r.allocations == 1 && r.host_bytes + r.disk_bytes == 0);
	CHECK(pause_count("slots", &pauses) == EBB_OK && pauses == 1 && pause_count("no such", &pauses) == EBB_OK && pauses == 0);
	CHECK(pause_count(NULL, &pauses) == EBB_ERR_INVALID && pause_count("slots", NULL) == EBB_ERR_INVALID);
	CHECK(state_read(state, ios, 2, &ticket) == EBB_ERR_STATE && says("resume it first"));
	CHECK(engine_resume(NULL, 0, &settings, NULL) == EBB_OK);
	CHECK(state_read(state, ios, 2, &ticket) == EBB_OK && state_wait(state, ticket, NULL) == EBB_OK);
	for (int i = 0; i < FIRST; i++)
		CHECK(slot[i] == 1);
	CHECK(second[SECOND - 1] == 2);

	unsigned char byte = 9;
	CHECK(state_save(state, checkpoint, "{\"step\": 3}") == EBB_OK);
	CHECK(state_write_host(state, 1, 0, 1, &byte) == EBB_OK && state_read_host(state, 1, 0, 1, &byte) == EBB_OK && byte == 9);
	CHECK(state_load(state, checkpoint) == EBB_OK && state_read_host(state, 1, 0, 1, &byte) == EBB_OK && byte == 2);
	CHECK(state_create("small", sizes, 1, 0, dir, &other) == EBB_OK);
	CHECK(state_load(other, checkpoint) == EBB_ERR_INVALID && says("segments"));
	CHECK(state_close(other) == EBB_OK);

	ios[0].offset = 1;
	CHECK(state_read(state, ios, 1, &ticket) == EBB_ERR_INVALID);
	CHECK(state_close(state) == EBB_OK && state_close(state) == EBB_ERR_INVALID && engine_free(slot, 0) == EBB_OK);
	CHECK(entries(dir) == 1); /* the checkpoint */
	static const char *const files[] = {"manifest.json", "fingerprints.bin", "segment-000000.bin", "segment-000001.bin"};
	for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
		snprintf(name, sizeof name, "%s/%s", checkpoint, files[i]);
		CHECK(unlink(name) == 0);
	}
	CHECK(rmdir(checkpoint) == 0 && rmdir(dir) == 0);
	engine_shutdown();
}

static void *symbol(void *library, const char *name)
{
	void *p = dlsym(library, name);
	if (!p) {
		printf("%s\n", dlerror());
		exit(1);
	}
	return p;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} scenarios[] = {
		{"before start", before_start}, {"starting", starting}, {"round trip", round_trip}, {"reading", reading},
		{"safe points", safe_points}, {"unmanaged", unmanaged}, {"error json", error_json},
		{"foreign pointers", foreign_pointers}, {"null arguments", null_arguments}, {"result size", result_size},
		{"error text", error_text}, {"long error", long_error}, {"status", status_text}, {"panics", panics},
		{"threads", threads}, {"objects", objects}, {"overhead", overhead},
		{"streamed state", streamed_state},
	};
	if (argc != 4)
		return 2;
	void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		printf("%s\n", dlerror());
		return 1;
	}
	driver = argv[2];
#define TAKE(variable, name) *(void **)&variable = symbol(library, "ebb_engine_" name)
	TAKE(start, "start");
	TAKE(version, "version");
	TAKE(engine_malloc, "malloc");
	TAKE(engine_free, "free");
	TAKE(engine_pause, "pause");
	TAKE(engine_resume, "resume");
	TAKE(backup_pointer, "backup_pointer");
	TAKE(status, "status");
	TAKE(pause_count, "pause_count");
	TAKE(request_pause, "request_pause");
	TAKE(idle, "idle");
	TAKE(engine_read, "read");
	TAKE(last_error, "last_error");
	TAKE(last_error_json, "last_error_json");
	TAKE(engine_shutdown, "shutdown");
	TAKE(vmm_create, "vmm_create");
	TAKE(vmm_release, "vmm_release");
	TAKE(vmm_map, "vmm_map");
	TAKE(vmm_unmap, "vmm_unmap");
	TAKE(vmm_set_access, "vmm_set_access");
	TAKE(vmm_get_access, "vmm_get_access");
	TAKE(vmm_retain, "vmm_retain");
	TAKE(vmm_address_free, "vmm_address_free");
	TAKE(vmm_export, "vmm_export");
	TAKE(vmm_properties, "vmm_properties");
	TAKE(vmm_real, "vmm_real");
	TAKE(peer_access, "peer_access");
	TAKE(state_create, "state_create");
	TAKE(state_block, "state_block");
	TAKE(state_read, "state_read");
	TAKE(state_write, "state_write");
	TAKE(state_wait, "state_wait");
	TAKE(state_read_host, "state_read_host");
	TAKE(state_write_host, "state_write_host");
	TAKE(state_save, "state_save");
	TAKE(state_load, "state_load");
	TAKE(state_close, "state_close");
	for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
		if (strcmp(scenarios[i].name, argv[3]) == 0) {
			scenarios[i].run();
			return 0;
		}
	return 2;
}
