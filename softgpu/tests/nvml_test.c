#include "test.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "../softgpu_nvml.h"

enum { MIB = 1 << 20, ROOM = 16 };

static nvmlDevice_t dev0;

static void start_nvml(void)
{
	OK(nvmlInit_v2());
	OK(nvmlDeviceGetHandleByIndex_v2(0, &dev0));
}

/* Bytes that the process holds on the device, -1 if it is not listed, with the number of listed ones. */
static long long held(nvmlDevice_t d, pid_t pid, unsigned *listed)
{
	nvmlProcessInfo_t list[ROOM];
	long long bytes = -1;
	*listed = ROOM;
	OK(nvmlDeviceGetComputeRunningProcesses_v3(d, listed, list));
	for (unsigned i = 0; i < *listed; i++)
		if (list[i].pid == (unsigned)pid)
			bytes = list[i].usedGpuMemory;
	return bytes;
}

#define HELD(d, pid, bytes, of) \
	do { \
		unsigned listed_; \
		long long held_ = held(d, pid, &listed_); \
		if (held_ != (long long)(bytes) || listed_ != (of)) { \
			fprintf(stderr, "%s:%d: %lld bytes, %u listed\n", __FILE__, __LINE__, held_, listed_); \
			_exit(1); \
		} \
	} while (0)

/* Takes 32 MiB: a handle, its mapping and a plain allocation; then lives until told otherwise. */
TEST(holder, .helper = true)
{
	start_gpu();
	mapped(16 * MIB);
	allocated(16 * MIB);
	tell(1, 'h');
	hear(0);
}

/* A context and no memory. */
TEST(idler, .helper = true)
{
	start_gpu();
	tell(1, 'h');
	hear(0);
}

/* No context. */
TEST(bystander, .helper = true)
{
	OK(cuInit(0));
	tell(1, 'h');
	hear(0);
}

static struct peer started(const char *name)
{
	struct peer p = start_peer(name);
	CHECK(hear(p.from) == 'h');
	return p;
}

TEST(a_process_that_only_asks_sees_who_holds_what)
{
	start_nvml();
	HELD(dev0, 0, -1, 0);
	struct peer a = started("holder"), b = started("idler"), c = started("bystander");
	HELD(dev0, a.pid, 32 * MIB, 2);
	HELD(dev0, b.pid, 0, 2);
	HELD(dev0, c.pid, -1, 2);
	kill_peer(a); /* SIGKILL: it could say nothing */
	HELD(dev0, a.pid, -1, 1);
	tell(b.to, 'x');
	waitpid(b.pid, NULL, 0);
	HELD(dev0, b.pid, -1, 0);
	kill_peer(c);
}

TEST(memory_is_the_nodes)
{
	nvmlMemory_t m;
	nvmlMemory_v2_t v = {.version = nvmlMemory_v2};
	setenv("SOFTGPU_MEM_MB", "64", 1);
	struct peer a = started("holder");
	unsetenv("SOFTGPU_MEM_MB"); /* the node's living processes say what it has */
	start_nvml();
	OK(nvmlDeviceGetMemoryInfo(dev0, &m));
	CHECK(m.total == 64 * MIB && m.used == 32 * MIB && m.free == 32 * MIB);
	OK(nvmlDeviceGetMemoryInfo_v2(dev0, &v));
	CHECK(v.total == 64 * MIB && v.used == 32 * MIB && v.free == 32 * MIB && v.reserved == 0);
	kill_peer(a);
	OK(nvmlDeviceGetMemoryInfo(dev0, &m));
	CHECK(m.total == 4096ull * MIB && m.used == 0); /* and without them, the settings */
}

TEST(each_device_has_its_own_holders, .env = {"SOFTGPU_DEVICES=3"})
{
	unsigned count;
	nvmlDevice_t one, two, also;
	CUcontext c;
	start_nvml();
	start_gpu(); /* on device 0 */
	OK(nvmlDeviceGetCount_v2(&count));
	CHECK(count == 3);
	OK(nvmlDeviceGetHandleByIndex_v2(1, &one));
	OK(nvmlDeviceGetHandleByIndex_v2(2, &two));
	OK(nvmlDeviceGetHandleByPciBusId_v2("0000:F1:00.0", &also));
	CHECK(also == one);
	OK(cuCtxCreate_v2(&c, 0, 1));
	allocated(4 * MIB);
	HELD(dev0, getpid(), 0, 1);
	HELD(one, getpid(), 4 * MIB, 1);
	HELD(two, getpid(), -1, 0);
	OK(cuCtxDestroy_v2(c)); /* its allocations go with it */
	HELD(one, getpid(), -1, 0);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	HELD(dev0, getpid(), -1, 0);
}

TEST(memory_without_a_context_is_listed)
{
	start_gpu();
	create(8 * MIB);
	OK(cuDevicePrimaryCtxRelease_v2(0));
	start_nvml();
	HELD(dev0, getpid(), 8 * MIB, 1);
}

/* Every context of a process counts: the last one to go ends its listing. */
TEST(contexts_are_counted)
{
	CUcontext c;
	start_gpu();
	start_nvml();
	OK(cuCtxCreate_v2(&c, 0, 0));
	OK(cuDevicePrimaryCtxReset_v2(0));
	HELD(dev0, getpid(), 0, 1);
	OK(cuCtxDestroy_v2(c));
	HELD(dev0, getpid(), -1, 0);
	OK(cuDevicePrimaryCtxRetain(&c, 0));
	HELD(dev0, getpid(), 0, 1);
}

/* The reason for going through the driver library: the close of a second descriptor would drop its locks, and the next process to
 * look would take this one for dead. */
TEST(asking_keeps_the_askers_own_account, .env = {"SOFTGPU_MEM_MB=64"})
{
	start_gpu();
	allocated(8 * MIB);
	start_nvml();
	HELD(dev0, getpid(), 8 * MIB, 1);
	struct peer a = started("holder"); /* whose start sweeps the dead */
	HELD(dev0, getpid(), 8 * MIB, 2);
	HELD(dev0, a.pid, 32 * MIB, 2);
	CHECK(free_memory() == 24 * MIB);
	OK(nvmlShutdown());
	OK(nvmlInit_v2());
	struct peer b = started("idler");
	HELD(dev0, getpid(), 8 * MIB, 3);
	CHECK(free_memory() == 24 * MIB);
	kill_peer(a);
	kill_peer(b);
	HELD(dev0, getpid(), 8 * MIB, 1);
}

TEST(asking_before_the_start_keeps_the_account_too, .env = {"SOFTGPU_MEM_MB=64"})
{
	struct peer a = started("holder");
	start_nvml();
	HELD(dev0, a.pid, 32 * MIB, 1);
	start_gpu();
	allocated(8 * MIB);
	HELD(dev0, getpid(), 8 * MIB, 2);
	kill_peer(a);
	struct peer b = started("idler");
	HELD(dev0, getpid(), 8 * MIB, 2);
	kill_peer(b);
}

static atomic_bool stop;

static void *ask_until_told(void *arg)
{
	unsigned listed;
	(void)arg;
	while (!atomic_load(&stop))
		held(dev0, 0, &listed);
	return NULL;
}

TEST(one_thread_starts_the_driver_while_others_ask)
{
	pthread_t t[4];
	start_nvml();
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&t[i], NULL, ask_until_told, NULL) == 0);
	start_gpu();
	allocated(8 * MIB);
	atomic_store(&stop, true);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	struct peer a = started("idler"); /* would sweep this process if its lock were gone */
	HELD(dev0, getpid(), 8 * MIB, 2);
	kill_peer(a);
}

static int files_of(const char *name)
{
	int n = 0;
	DIR *d = opendir(getenv("XDG_RUNTIME_DIR"));
	CHECK(d);
	for (struct dirent *e; (e = readdir(d));)
		n += strstr(e->d_name, name) != NULL;
	closedir(d);
	return n;
}

TEST(who_only_asks_does_not_count)
{
	char name[80];
	snprintf(name, sizeof name, "%s", getenv("SOFTGPU_NODE"));
	start_nvml();
	HELD(dev0, 0, -1, 0);
	CHECK(files_of(name) == 0); /* asking makes no node */
	struct peer a = started("holder");
	HELD(dev0, a.pid, 32 * MIB, 1);
	kill_peer(a);
	HELD(dev0, a.pid, -1, 0);
	setenv("SOFTGPU_NODE", "test-nvml-other", 1); /* whose first process removes the files of the dead */
	struct peer b = started("idler");
	CHECK(files_of(name) == 0);
	kill_peer(b);
}

TEST(a_forked_child_can_ask_and_does_not_disturb_its_parent)
{
	int status;
	start_gpu();
	allocated(8 * MIB);
	start_nvml();
	pid_t parent = getpid(), child = fork();
	if (child == 0) {
		HELD(dev0, parent, 8 * MIB, 1);
		HELD(dev0, getpid(), -1, 1);
		exit(0);
	}
	waitpid(child, &status, 0);
	CHECK(status == 0);
	struct peer a = started("idler");
	HELD(dev0, parent, 8 * MIB, 2);
	kill_peer(a);
}

/* Listing a dead parent as living would be easy in its child, which shares its memory of who it was. */
TEST(a_forked_child_does_not_list_its_dead_parent)
{
	int fd[2], back[2];
	char c;
	CHECK(pipe(fd) == 0 && pipe(back) == 0);
	pid_t parent = fork();
	if (parent == 0) {
		start_gpu();
		allocated(8 * MIB);
		start_nvml();
		pid_t me = getpid();
		if (fork() == 0) {
			tell(fd[1], 'r');
			CHECK(hear(back[0]) == 'g');
			HELD(dev0, me, -1, 0);
			tell(fd[1], 'k');
			_exit(0);
		}
		for (;;)
			pause();
	}
	CHECK(read(fd[0], &c, 1) == 1 && c == 'r');
	kill(parent, SIGKILL);
	waitpid(parent, NULL, 0);
	close(fd[1]);
	tell(back[1], 'g');
	CHECK(hear(fd[0]) == 'k');
}

TEST(room_for_too_few_is_refused_with_the_number)
{
	nvmlProcessInfo_t list[2];
	nvmlProcessInfo_v1_t old[2];
	unsigned count = 0;
	struct peer a = started("holder"), b = started("idler");
	start_nvml();
	EXPECT(nvmlDeviceGetComputeRunningProcesses_v3(dev0, &count, NULL), NVML_ERROR_INSUFFICIENT_SIZE);
	CHECK(count == 2);
	count = 1;
	EXPECT(nvmlDeviceGetComputeRunningProcesses_v3(dev0, &count, list), NVML_ERROR_INSUFFICIENT_SIZE);
	CHECK(count == 2);
	OK(nvmlDeviceGetComputeRunningProcesses_v2(dev0, &count, list));
	CHECK(count == 2 && list[0].pid == (unsigned)a.pid && list[1].pid == (unsigned)b.pid);
	OK(nvmlDeviceGetComputeRunningProcesses(dev0, &count, old));
	CHECK(old[0].pid == (unsigned)a.pid && old[0].usedGpuMemory == 32 * MIB && old[1].pid == (unsigned)b.pid);
	kill_peer(a);
	kill_peer(b);
}

TEST(the_device_is_the_drivers)
{
	CUuuid u;
	char id[32], name[64], text[96], want[96], nvml_name[96];
	nvmlDevice_t d;
	start_gpu();
	start_nvml();
	OK(cuDeviceGetPCIBusId(id, sizeof id, 0));
	OK(nvmlDeviceGetHandleByPciBusId_v2(id, &d));
	CHECK(d == dev0);
	OK(cuDeviceGetName(name, sizeof name, 0));
	OK(nvmlDeviceGetName(d, nvml_name, sizeof nvml_name));
	CHECK(strcmp(name, nvml_name) == 0);
	OK(cuDeviceGetUuid_v2(&u, 0));
	OK(nvmlDeviceGetUUID(d, text, sizeof text));
#define B(i) (unsigned char)u.bytes[i]
	snprintf(want, sizeof want, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", B(0), B(1), B(2), B(3), B(4),
		 B(5), B(6), B(7), B(8), B(9), B(10), B(11), B(12), B(13), B(14), B(15));
	CHECK(strcmp(text, want) == 0);
}

TEST(a_process_is_named_as_it_was_started)
{
	char name[64];
	struct peer a = started("idler");
	start_nvml();
	OK(nvmlSystemGetProcessName(a.pid, name, sizeof name));
	CHECK(strcmp(name, "test") == 0);
	kill_peer(a);
	EXPECT(nvmlSystemGetProcessName(a.pid, name, sizeof name), NVML_ERROR_NOT_FOUND);
}

TEST(settings_that_are_wrong_are_an_error, .env = {"SOFTGPU_DEVICES=none"})
{
	unsigned count;
	EXPECT(nvmlInit_v2(), NVML_ERROR_UNKNOWN);
	EXPECT(nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
}

TEST(a_foreign_file_in_place_of_the_nodes_is_not_read)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/softgpu-%u-%s", getenv("XDG_RUNTIME_DIR"), geteuid(), getenv("SOFTGPU_NODE"));
	CHECK(mkfifo(path, 0600) == 0); /* would block who opens it to read */
	start_nvml();
	HELD(dev0, 0, -1, 0);
	CHECK(unlink(path) == 0 && symlink("/etc/passwd", path) == 0);
	HELD(dev0, 0, -1, 0);
	CHECK(unlink(path) == 0);
	int fd = open(path, O_CREAT | O_WRONLY, 0600); /* a node whose first process has not sized it yet */
	CHECK(fd >= 0 && write(fd, "x", 1) == 1 && close(fd) == 0);
	HELD(dev0, 0, -1, 0);
	CHECK(unlink(path) == 0);
}
