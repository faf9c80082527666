#include "test.h"

#include <dirent.h>
#include <sys/stat.h>

enum { MIB = 1 << 20 };

TEST(memory_is_counted)
{
	start_gpu();
	size_t free_bytes, total;
	OK(cuMemGetInfo_v2(&free_bytes, &total));
	CHECK(total == 4096ull * MIB && free_bytes == total);
	CUmemGenericAllocationHandle h = create(8 * MIB);
	CHECK(free_memory() == total - 8 * MIB);
	OK(cuMemRelease(h));
	CHECK(free_memory() == total);
}

TEST(memory_runs_out, .env = {"SOFTGPU_MEM_MB=16"})
{
	start_gpu();
	CUmemAllocationProp p = on_device(0);
	CUmemGenericAllocationHandle a = create(10 * MIB), b;
	CUdeviceptr q;
	EXPECT(cuMemCreate(&b, 8 * MIB, &p, 0), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT(cuMemAlloc_v2(&q, 7 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	EXPECT(cuMemAlloc_v2(&q, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemRelease(a));
	OK(cuMemCreate(&b, 16 * MIB, &p, 0));
	CHECK(free_memory() == 0);
}

/* Takes 32 MiB: a handle, its mapping and a plain allocation; then lives until told otherwise. */
TEST(holder, .helper = true)
{
	start_gpu();
	mapped(16 * MIB);
	allocated(16 * MIB);
	tell(1, 'h');
	hear(0);
}

TEST(processes_share_one_capacity, .env = {"SOFTGPU_MEM_MB=64"})
{
	start_gpu();
	struct peer a = start_peer("holder");
	CHECK(hear(a.from) == 'h');
	CHECK(free_memory() == 32 * MIB);
	CUdeviceptr q;
	EXPECT(cuMemAlloc_v2(&q, 33 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
	struct peer b = start_peer("holder");
	CHECK(hear(b.from) == 'h');
	CHECK(free_memory() == 0);
	EXPECT(cuMemAlloc_v2(&q, MIB), CUDA_ERROR_OUT_OF_MEMORY);
	kill_peer(a);
	kill_peer(b);
}

TEST(memory_of_a_killed_process_comes_back, .env = {"SOFTGPU_MEM_MB=64"})
{
	start_gpu();
	struct peer a = start_peer("holder");
	CHECK(hear(a.from) == 'h');
	kill_peer(a); /* SIGKILL: it could say nothing */
	allocated(64 * MIB); /* without asking for free memory first */
}

TEST(memory_of_a_process_that_ended_comes_back, .env = {"SOFTGPU_MEM_MB=64"})
{
	start_gpu();
	struct peer a = start_peer("holder");
	CHECK(hear(a.from) == 'h');
	tell(a.to, 'x');
	waitpid(a.pid, NULL, 0);
	CHECK(free_memory() == 64 * MIB);
}

TEST(a_killed_process_with_a_living_child_gives_its_memory_back, .env = {"SOFTGPU_MEM_MB=64"})
{
	int fd[2];
	CHECK(pipe(fd) == 0);
	pid_t parent = fork();
	if (parent == 0) {
		start_gpu();
		allocated(64 * MIB);
		pid_t mine = fork();
		if (mine)
			CHECK(write(fd[1], &mine, sizeof mine) == sizeof mine);
		for (;;)
			pause();
	}
	pid_t grandchild;
	CHECK(read(fd[0], &grandchild, sizeof grandchild) == sizeof grandchild);
	kill(parent, SIGKILL);
	waitpid(parent, NULL, 0);
	start_gpu();
	CHECK(free_memory() == 64 * MIB);
	kill(grandchild, SIGKILL);
}

TEST(a_node_with_other_capacity_is_refused, .env = {"SOFTGPU_MEM_MB=64"})
{
	struct peer a = start_peer("holder");
	CHECK(hear(a.from) == 'h');
	setenv("SOFTGPU_MEM_MB", "128", 1);
	EXPECT(cuInit(0), CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
	setenv("SOFTGPU_MEM_MB", "64", 1);
	setenv("SOFTGPU_DEVICES", "2", 1);
	EXPECT(cuInit(0), CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
	setenv("SOFTGPU_DEVICES", "1", 1);
	OK(cuInit(0));
	kill_peer(a);
}

TEST(a_node_without_living_processes_can_be_made_anew, .env = {"SOFTGPU_MEM_MB=64"})
{
	struct peer a = start_peer("holder");
	CHECK(hear(a.from) == 'h');
	kill_peer(a);
	setenv("SOFTGPU_MEM_MB", "128", 1);
	start_gpu();
	CHECK(free_memory() == 128 * MIB);
}

TEST(nodes_of_different_names_do_not_share)
{
	struct peer a = start_peer("holder");
	CHECK(hear(a.from) == 'h');
	char other[80];
	snprintf(other, sizeof other, "%s-other", getenv("SOFTGPU_NODE"));
	setenv("SOFTGPU_NODE", other, 1);
	start_gpu();
	CHECK(free_memory() == 4096ull * MIB);
	kill_peer(a);
}

TEST(names_that_are_no_file_names_are_refused, .env = {"SOFTGPU_NODE=../x"})
{
	EXPECT(cuInit(0), CUDA_ERROR_INVALID_VALUE);
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

TEST(the_nodes_file_is_private_and_files_of_the_dead_are_removed)
{
	char path[4096], name[80];
	struct stat st;
	struct peer a = start_peer("holder"), b;
	CHECK(hear(a.from) == 'h');
	snprintf(name, sizeof name, "%s", getenv("SOFTGPU_NODE"));
	snprintf(path, sizeof path, "%s/softgpu-%u-%s", getenv("XDG_RUNTIME_DIR"), geteuid(), name);
	CHECK(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
	setenv("SOFTGPU_NODE", "test-removes-1", 1);
	b = start_peer("holder");
	CHECK(hear(b.from) == 'h');
	CHECK(files_of(name) == 1); /* it lives */
	kill_peer(a);
	kill_peer(b);
	setenv("SOFTGPU_NODE", "test-removes-2", 1);
	start_gpu();
	CHECK(files_of(name) == 0 && files_of("test-removes-1") == 0 && files_of("test-removes-2") == 1);
}

TEST(a_foreign_file_in_its_place_is_not_followed)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/softgpu-%u-%s", getenv("XDG_RUNTIME_DIR"), geteuid(), getenv("SOFTGPU_NODE"));
	CHECK(symlink("/etc/passwd", path) == 0);
	EXPECT(cuInit(0), CUDA_ERROR_OPERATING_SYSTEM);
	CHECK(unlink(path) == 0);
	OK(cuInit(0));
}

/* Starts, takes everything, gives it back, again and again, until told otherwise. */
TEST(churner, .helper = true)
{
	start_gpu();
	tell(1, 'h');
	CUmemAllocationProp p = on_device(0);
	for (;;) {
		CUmemGenericAllocationHandle h;
		CUresult r = cuMemCreate(&h, 32 * MIB, &p, 0);
		CHECK(r == CUDA_SUCCESS || r == CUDA_ERROR_OUT_OF_MEMORY);
		if (!r)
			OK(cuMemRelease(h));
	}
}

TEST(accounts_stay_right_when_processes_are_killed_at_any_moment, .env = {"SOFTGPU_MEM_MB=64"})
{
	start_gpu();
	for (int i = 0; i < 20; i++) {
		struct peer a = start_peer("churner"), b = start_peer("churner");
		CHECK(hear(a.from) == 'h' && hear(b.from) == 'h');
		for (int k = 0; k < 50; k++)
			CHECK(free_memory() <= 64 * MIB);
		kill_peer(a);
		kill_peer(b);
		CHECK(free_memory() == 64 * MIB);
	}
}

TEST(a_program_without_standard_streams_does_not_write_into_device_memory)
{
	int out = dup(1), err = dup(2);
	close(0);
	close(1);
	close(2);
	start_gpu();
	CUdeviceptr p = mapped(G);
	for (int fd = 0; fd < 3; fd++)
		if (write(fd, "x", 1) != -1)
			_exit(1);
	dup2(out, 1);
	dup2(err, 2);
	CHECK(*at(p) == 0);
}

/* ---- fork */

TEST(a_forked_child_is_refused_and_does_not_disturb_its_parent)
{
	int status, n;
	start_gpu();
	CUdeviceptr p = allocated(8 * MIB);
	size_t before = free_memory();
	CUmemGenericAllocationHandle h = create(8 * MIB);
	pid_t child = fork();
	if (child == 0) {
		size_t a, b;
		CUcontext c;
		CUstream s;
		EXPECT(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
		EXPECT(cuMemGetInfo_v2(&a, &b), CUDA_ERROR_NOT_INITIALIZED);
		EXPECT(cuCtxGetCurrent(&c), CUDA_ERROR_NOT_INITIALIZED);
		EXPECT(cuMemFree_v2(p), CUDA_ERROR_NOT_INITIALIZED);
		EXPECT(cuMemRelease(h), CUDA_ERROR_NOT_INITIALIZED);
		EXPECT(cuStreamCreate(&s, 0), CUDA_ERROR_NOT_INITIALIZED);
		OK(cuDriverGetVersion(&n));
		exit(0); /* with handlers: they must not touch the node */
	}
	waitpid(child, &status, 0);
	CHECK(status == 0);
	CHECK(free_memory() == before - 8 * MIB);
	*at(p) = 1;
	struct peer other = start_peer("holder"); /* whose start sweeps the dead */
	CHECK(hear(other.from) == 'h');
	CHECK(free_memory() == before - 40 * MIB);
	kill_peer(other);
	CHECK(free_memory() == before - 8 * MIB);
}

TEST(a_child_forked_before_the_parent_started_can_start)
{
	int status;
	pid_t child = fork();
	if (child == 0) {
		start_gpu();
		*at(allocated(4096)) = 1;
		_exit(0);
	}
	waitpid(child, &status, 0);
	CHECK(status == 0);
	start_gpu();
	CHECK(free_memory() == 4096ull * MIB);
}

static void *take_and_give(void *arg)
{
	(void)arg;
	CUmemAllocationProp p = on_device(0);
	for (int i = 0; i < 300; i++) {
		CUmemGenericAllocationHandle h;
		OK(cuMemCreate(&h, 2 * MIB, &p, 0));
		OK(cuMemRelease(h));
	}
	return NULL;
}

TEST(accounts_stay_right_with_many_threads)
{
	pthread_t t[8];
	start_gpu();
	size_t before = free_memory();
	for (int i = 0; i < 8; i++)
		CHECK(pthread_create(&t[i], NULL, take_and_give, NULL) == 0);
	for (int i = 0; i < 8; i++)
		pthread_join(t[i], NULL);
	CHECK(free_memory() == before);
}
