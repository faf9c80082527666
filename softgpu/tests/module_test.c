/* The images lie beside the test program: image1.so and image2.so, the same kernels with another secret. */
#include "test.h"

static const char *beside(const char *name)
{
	static char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof path - 100);
	CHECK(n > 0);
	path[n] = 0;
	strcpy(strrchr(path, '/') + 1, name);
	return path;
}

static void *contents(const char *path)
{
	FILE *f = fopen(path, "rb");
	CHECK(f);
	static char text[4 << 20];
	size_t n = fread(text, 1, sizeof text, f);
	CHECK(n > 0 && n < sizeof text);
	fclose(f);
	void *copy = malloc(n);
	return memcpy(copy, text, n);
}

static CUmodule load(const char *name)
{
	CUmodule m;
	OK(cuModuleLoad(&m, beside(name)));
	return m;
}

static CUfunction function(CUmodule m, const char *name)
{
	CUfunction f;
	OK(cuModuleGetFunction(&f, m, name));
	return f;
}

static CUresult launch(CUfunction f, unsigned grid, unsigned block, CUstream s, void **params)
{
	return cuLaunchKernel(f, grid, 1, 1, block, 1, 1, 0, s, params, NULL);
}

TEST(a_kernel_runs_on_device_memory)
{
	start_gpu();
	CUfunction f = function(load("image1.so"), "add");
	CUdeviceptr p = mapped(G);
	uint32_t a = 40;
	int8_t b = -1;
	double c = 3.0;
	OK(launch(f, 4, 32, NULL, (void *[]){&p, &a, &b, &c}));
	OK(launch(f, 2, 32, NULL, (void *[]){&p, &a, &b, &c}));
	OK(cuCtxSynchronize());
	const uint32_t *v = (const uint32_t *)(uintptr_t)p;
	CHECK(v[0] == 84 && v[63] == 84 && v[64] == 42 && v[127] == 42 && v[128] == 0);
}

TEST(a_kernel_runs_late_and_its_arguments_are_copied_at_the_call, .env = {"SOFTGPU_LATENCY_US=hold"})
{
	start_gpu();
	CUfunction f = function(load("image1.so"), "add");
	CUdeviceptr p = mapped(G), given = p;
	uint32_t a = 42;
	int8_t b = 0;
	double c = 0;
	OK(launch(f, 1, 1, NULL, (void *[]){&given, &a, &b, &c}));
	given = 0;
	a = 1;
	CHECK(*at(p) == 0);
	OK(cuCtxSynchronize());
	CHECK(*at(p) == 42);
}

TEST(arguments_can_come_as_one_buffer)
{
	start_gpu();
	CUfunction f = function(load("image1.so"), "add");
	CUdeviceptr p = mapped(G);
	struct {
		uint64_t p;
		uint32_t a;
		int8_t b;
		double c;
	} args = {p, 40, 1, 1};
	size_t size = sizeof args;
	void *extra[] = {(void *)1, &args, (void *)2, &size, NULL};
	OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
	OK(cuCtxSynchronize());
	CHECK(*at(p) == 42);
	struct {
		uint64_t dst;
		uint8_t value;
	} pair = {p + 100, 9};
	OK(launch(function(load("image1.so"), "by_struct"), 1, 1, NULL, (void *[]){&pair}));
	OK(cuCtxSynchronize());
	CHECK(*at(p + 100) == 9);
}

TEST(a_kernel_sees_how_it_was_launched)
{
	start_gpu();
	CUfunction f = function(load("image1.so"), "tell_launch");
	CUdeviceptr p = mapped(G);
	OK(cuLaunchKernel(f, 1, 2, 3, 4, 5, 6, 700, NULL, (void *[]){&p}, NULL));
	OK(cuCtxSynchronize());
	const struct softgpu_launch *l = (const void *)(uintptr_t)p;
	CHECK(l->grid[0] == 1 && l->grid[1] == 2 && l->grid[2] == 3 && l->block[0] == 4 && l->block[1] == 5 &&
	      l->block[2] == 6 && l->shared_bytes == 700 && l->device == 0);
}

TEST(an_image_can_be_given_as_bytes)
{
	CUmodule m;
	start_gpu();
	void *image = contents(beside("image1.so"));
	CUdeviceptr p = mapped(G);
	OK(cuModuleLoadData(&m, image));
	free(image);
	OK(launch(function(m, "secret"), 1, 1, NULL, (void *[]){&p}));
	OK(cuCtxSynchronize());
	CHECK(*at(p) == 1);
	OK(cuModuleUnload(m));
}

TEST(images_with_the_same_names_do_not_mix)
{
	start_gpu();
	CUdeviceptr p = mapped(G);
	CUmodule a = load("image1.so"), b = load("image2.so"), c;
	OK(cuModuleLoadData(&c, contents(beside("image2.so"))));
	OK(launch(function(a, "no_arguments"), 1, 1, NULL, NULL));
	OK(launch(function(a, "secret"), 1, 1, NULL, (void *[]){&p}));
	OK(cuCtxSynchronize());
	CHECK(*at(p) == 101);
	OK(launch(function(b, "secret"), 1, 1, NULL, (void *[]){&p}));
	OK(cuCtxSynchronize());
	CHECK(*at(p) == 2);
	OK(cuModuleUnload(b)); /* c is a load of its own */
	OK(launch(function(c, "secret"), 1, 1, NULL, (void *[]){&p}));
	OK(cuCtxSynchronize());
	CHECK(*at(p) == 2);
}

TEST(unloading_waits_for_kernels, .env = {"SOFTGPU_LATENCY_US=hold"})
{
	start_gpu();
	CUmodule m = load("image1.so");
	CUdeviceptr p = mapped(G);
	OK(launch(function(m, "secret"), 1, 1, NULL, (void *[]){&p}));
	OK(cuModuleUnload(m));
	CHECK(*at(p) == 1);
	EXPECT(cuModuleUnload(m), CUDA_ERROR_INVALID_HANDLE);
}

TEST(kernels_are_captured)
{
	start_gpu();
	CUstream s;
	CUgraph g;
	CUgraphExec x;
	CUdeviceptr p = mapped(G);
	CUfunction f = function(load("image1.so"), "secret");
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(launch(f, 1, 1, s, (void *[]){&p}));
	OK(cuStreamEndCapture(s, &g));
	CHECK(*at(p) == 0);
	OK(cuGraphInstantiateWithFlags(&x, g, 0));
	OK(cuGraphLaunch(x, s));
	OK(cuStreamSynchronize(s));
	CHECK(*at(p) == 1);
}

TEST(launches_are_checked)
{
	start_gpu();
	CUfunction f = function(load("image1.so"), "secret"), none;
	CUdeviceptr p = mapped(G);
	EXPECT(cuModuleGetFunction(&none, load("image1.so"), "nope"), CUDA_ERROR_NOT_FOUND);
	EXPECT(cuModuleGetFunction(&none, load("image1.so"), "not_a_kernel"), CUDA_ERROR_NOT_FOUND);
	EXPECT(launch(f, 0, 1, NULL, (void *[]){&p}), CUDA_ERROR_INVALID_VALUE);
	EXPECT(launch(f, 1, 2000, NULL, (void *[]){&p}), CUDA_ERROR_INVALID_VALUE);
	EXPECT(launch(f, 1, 1, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
	EXPECT(launch(NULL, 1, 1, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
}

static const char ptx[] = "//\n// made by a compiler\n.version 6.3\n.target sm_70\n.address_size 64\n\n"
			  ".visible .entry softgpu_selftest_fill(\n\t.param .u64 p0,\n\t.param .u32 p1,\n\t.param .u32 p2\n)\n"
			  "{ ret; }\n.entry unknown_kernel() { ret; }\n";

TEST(ptx_gets_the_kernels_that_are_built_in)
{
	CUmodule m;
	CUfunction f;
	start_gpu();
	CUdeviceptr p = mapped(G);
	uint32_t value = 0x2a2a2a2a, count = 100;
	OK(cuModuleLoadData(&m, ptx));
	OK(launch(function(m, "softgpu_selftest_fill"), 1, 1, NULL, (void *[]){&p, &value, &count}));
	OK(cuCtxSynchronize());
	CHECK(*at(p + 399) == 42 && *at(p + 400) == 0);
	EXPECT(cuModuleGetFunction(&f, m, "softgpu_selftest"), CUDA_ERROR_NOT_FOUND);
	EXPECT(cuModuleGetFunction(&f, m, "unknown_kernel"), CUDA_ERROR_NO_BINARY_FOR_GPU);
	OK(cuModuleLoadData(&m, ".version 6.3\n.target sm_70\n"));
	EXPECT(cuModuleGetFunction(&f, m, "softgpu_selftest_fill"), CUDA_ERROR_NOT_FOUND); /* not in this text */
}

TEST(what_is_no_image_is_refused)
{
	CUmodule m;
	start_gpu();
	EXPECT(cuModuleLoadData(&m, "garbage"), CUDA_ERROR_INVALID_IMAGE);
	EXPECT(cuModuleLoadData(&m, "x"), CUDA_ERROR_INVALID_IMAGE);
	EXPECT(cuModuleLoadData(&m, ""), CUDA_ERROR_INVALID_IMAGE);
	EXPECT(cuModuleLoadData(&m, NULL), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuModuleLoad(&m, "/nonexistent"), CUDA_ERROR_FILE_NOT_FOUND);
	EXPECT(cuModuleLoadData(&m, "\x50\xed\x55\xba\x01\x00"), CUDA_ERROR_NO_BINARY_FOR_GPU); /* a fat binary */
	unsigned char cubin[64] = {0x7f, 'E', 'L', 'F', 2, 1, 1};
	cubin[16] = 2;
	cubin[18] = 190;
	EXPECT(cuModuleLoadData(&m, cubin), CUDA_ERROR_NO_BINARY_FOR_GPU);
}
