#include "test.h"

static CUresult try_create(CUmemGenericAllocationHandle *h)
{
	CUmemAllocationProp p = on_device(0);
	return cuMemCreate(h, G, &p, 0);
}

TEST(the_nth_call_fails, .env = {"SOFTGPU_FAULT=cuMemCreate:3:2"})
{
	CUmemGenericAllocationHandle h;
	start_gpu();
	size_t before = free_memory();
	OK(try_create(&h));
	OK(try_create(&h));
	EXPECT(try_create(&h), CUDA_ERROR_OUT_OF_MEMORY);
	OK(try_create(&h));
	CHECK(free_memory() == before - 3 * G); /* the failed call did nothing */
}

TEST(errors_have_names, .env = {"SOFTGPU_FAULT=cuMemMap:1:CUDA_ERROR_OUT_OF_MEMORY"})
{
	start_gpu();
	CUdeviceptr p = reserve(G);
	CUmemGenericAllocationHandle h = create(G);
	EXPECT(cuMemMap(p, G, 0, h, 0), CUDA_ERROR_OUT_OF_MEMORY);
	OK(cuMemMap(p, G, 0, h, 0));
}

TEST(every_call_fails, .env = {"SOFTGPU_FAULT=cuMemUnmap:*:CUDA_ERROR_UNMAP_FAILED"})
{
	start_gpu();
	CUdeviceptr p = mapped(G);
	for (int i = 0; i < 3; i++)
		EXPECT(cuMemUnmap(p, G), CUDA_ERROR_UNMAP_FAILED);
	*at(p) = 1;
}

TEST(all_calls_from_the_nth_on_fail, .env = {"SOFTGPU_FAULT=cuMemCreate:2+:999"})
{
	CUmemGenericAllocationHandle h;
	start_gpu();
	OK(try_create(&h));
	EXPECT(try_create(&h), CUDA_ERROR_UNKNOWN);
	EXPECT(try_create(&h), CUDA_ERROR_UNKNOWN);
}

TEST(several_faults_at_once, .env = {"SOFTGPU_FAULT=cuMemCreate:1:2,cuMemAlloc:2:1,cuMemCreate:3:999"})
{
	CUmemGenericAllocationHandle h;
	CUdeviceptr p;
	start_gpu();
	EXPECT(try_create(&h), 2);
	OK(try_create(&h));
	EXPECT(try_create(&h), 999);
	OK(cuMemAlloc_v2(&p, 100)); /* named without its version */
	EXPECT(cuMemAlloc_v2(&p, 100), 1);
}

TEST(starting_itself_can_fail, .env = {"SOFTGPU_FAULT=cuInit:1:CUDA_ERROR_NO_DEVICE"})
{
	EXPECT(cuInit(0), CUDA_ERROR_NO_DEVICE);
	OK(cuInit(0));
}

TEST(an_executed_copy_can_fail_late, .env = {"SOFTGPU_FAULT=copy:2:CUDA_ERROR_ECC_UNCORRECTABLE", "SOFTGPU_LATENCY_US=hold"})
{
	start_gpu();
	CUdeviceptr p = mapped(G);
	unsigned char *h = pinned(4096);
	OK(cuMemcpyHtoDAsync_v2(p, h, 4096, NULL));
	OK(cuMemcpyHtoDAsync_v2(p, h, 4096, NULL)); /* this one will */
	OK(cuMemcpyHtoDAsync_v2(p, h, 4096, NULL));
	EXPECT(cuStreamSynchronize(NULL), CUDA_ERROR_ECC_UNCORRECTABLE);
	EXPECT(cuMemcpyDtoH_v2(h, p, 1), CUDA_ERROR_ECC_UNCORRECTABLE); /* and stays */
	CHECK(softgpu_call_count("copy") == 2); /* nothing runs after it */
}

TEST(a_test_can_change_its_mind)
{
	CUmemGenericAllocationHandle h;
	start_gpu();
	OK(try_create(&h));
	OK(softgpu_set_fault("cuMemCreate:1:2"));
	EXPECT(try_create(&h), 2); /* counted from there */
	OK(try_create(&h));
	OK(softgpu_set_fault("cuMemCreate:*:2"));
	EXPECT(try_create(&h), 2);
	OK(softgpu_set_fault(""));
	OK(try_create(&h));
	CHECK(softgpu_set_fault("cuNoSuchCall:1:2") == -1);
	CHECK(softgpu_set_fault("cuMemCreate:0:2") == -1);
	CHECK(softgpu_set_fault("cuMemCreate:1:NO_SUCH_ERROR") == -1);
	CHECK(softgpu_set_fault("cuMemCreate:1") == -1);
}

TEST(calls_are_counted)
{
	CUmemGenericAllocationHandle h;
	start_gpu();
	CHECK(softgpu_call_count("cuMemCreate") == 0);
	OK(try_create(&h));
	OK(try_create(&h));
	CHECK(softgpu_call_count("cuMemCreate") == 2);
	OK(cuMemFree_v2(allocated(10)));
	CHECK(softgpu_call_count("cuMemAlloc") == 1 && softgpu_call_count("cuMemAlloc_v2") == 1);
	CHECK(softgpu_call_count("cuNoSuchCall") == -1);
}

TEST(a_call_stops_the_process_and_is_made_when_it_goes_on)
{
	pid_t child = fork();
	if (!child) {
		CUmemGenericAllocationHandle h;
		start_gpu();
		CHECK(softgpu_set_fault("cuMemCreate:2:SIGSTOP") == 0);
		OK(try_create(&h));
		OK(try_create(&h));
		_exit(7);
	}
	int status;
	CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
	kill(child, SIGCONT);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}
