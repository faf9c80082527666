#include "test.h"

TEST(pinned_memory_is_known_by_its_pieces)
{
	unsigned flags;
	CUdeviceptr dev;
	start_gpu();
	unsigned char *h = pinned(1 << 20), *plain = aligned_alloc(4096, 4096);
	OK(cuMemHostGetFlags(&flags, h + 100));
	CHECK(flags == CU_MEMHOSTALLOC_DEVICEMAP);
	OK(cuMemHostGetDevicePointer_v2(&dev, h, 0));
	CHECK(dev == (uintptr_t)h);
	EXPECT(cuMemHostGetFlags(&flags, plain), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemFreeHost(h + 4096), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemHostUnregister(h), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFreeHost(h));
	EXPECT(cuMemFreeHost(h), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFreeHost(NULL));
}

TEST(memory_is_registered_once)
{
	start_gpu();
	unsigned char *h = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT(cuMemHostUnregister(h), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	OK(cuMemHostRegister_v2(h, 1 << 20, 0));
	EXPECT(cuMemHostRegister_v2(h, 1 << 20, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	EXPECT(cuMemHostRegister_v2(h + (1 << 19), 1 << 20, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	OK(cuMemHostRegister_v2(h + (1 << 20), 1 << 20, 0));
	EXPECT(cuMemHostUnregister(h + 4096), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemFreeHost(h), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemHostUnregister(h));
	EXPECT(cuMemHostUnregister(h), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	EXPECT(cuMemHostRegister_v2((void *)(uintptr_t)allocated(4096), 4096, 0), CUDA_ERROR_INVALID_VALUE);
	munmap(h, 8 << 20);
	EXPECT(cuMemHostRegister_v2(h, 1 << 20, 0), CUDA_ERROR_INVALID_VALUE); /* nothing there */
}

TEST(no_copy_spans_two_registered_pieces)
{
	start_gpu();
	CUdeviceptr p = mapped(2 * G);
	unsigned char *h = mmap(NULL, 8 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	OK(cuMemHostRegister_v2(h, 1 << 20, 0));
	OK(cuMemHostRegister_v2(h + (1 << 20), 1 << 20, 0));
	OK(cuMemcpyHtoD_v2(p, h, 1 << 20));
	EXPECT(cuMemcpyHtoD_v2(p, h, 2 << 20), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemcpyDtoHAsync_v2(h, p, 2 << 20, NULL), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemcpyDtoHAsync_v2(h + (3 << 19), p, 1 << 20, NULL), CUDA_ERROR_INVALID_VALUE); /* into plain memory */
	OK(cuCtxSynchronize());
}

TEST(pinned_memory_is_also_a_device_pointer)
{
	start_gpu();
	unsigned char *h = pinned(4096), *k = pinned(4096);
	OK(cuMemsetD8_v2((uintptr_t)h, 4, 4096));
	CHECK(h[4095] == 4);
	OK(cuMemcpyHtoD_v2((uintptr_t)k, h, 4096));
	CHECK(k[4095] == 4);
	unsigned char plain[16];
	EXPECT(cuMemsetD8_v2((uintptr_t)plain, 4, 16), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemcpy((uintptr_t)plain, (uintptr_t)h, 16));
	CHECK(plain[15] == 4);
}

TEST(pointers_say_what_they_are)
{
	start_gpu();
	CUdeviceptr m = mapped(2 * G), a = allocated(1000), start;
	unsigned char *h = pinned(4096), plain[8];
	unsigned type = 0;
	int ordinal = 0;
	size_t size = 0;
	CUcontext c = (CUcontext)1;
	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, m + 5));
	CHECK(type == CU_MEMORYTYPE_DEVICE);
	OK(cuPointerGetAttribute(&c, CU_POINTER_ATTRIBUTE_CONTEXT, m));
	CHECK(c == NULL); /* mapped memory belongs to no context */
	OK(cuPointerGetAttribute(&c, CU_POINTER_ATTRIBUTE_CONTEXT, a));
	CHECK(c == ctx);
	OK(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, a + 10));
	OK(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, a + 10));
	CHECK(start == a && size == 1000);
	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)h));
	CHECK(type == CU_MEMORYTYPE_HOST);
	EXPECT(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)plain), CUDA_ERROR_INVALID_VALUE);
	CUpointer_attribute what[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
	void *to[] = {&type, &ordinal};
	OK(cuPointerGetAttributes(2, what, to, (uintptr_t)plain));
	CHECK(type == 0 && ordinal == -2);
	OK(cuMemUnmap(m, 2 * G));
	EXPECT(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, m), CUDA_ERROR_INVALID_VALUE);
}
