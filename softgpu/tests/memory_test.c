#include "test.h"

/* ---- addresses and physical memory */

TEST(memory_that_was_never_mapped_kills_who_touches_it, .dies_of = SIGSEGV)
{
	start_gpu();
	*at(reserve(G)) = 1;
}

TEST(memory_mapped_without_access_kills_who_touches_it, .dies_of = SIGSEGV)
{
	start_gpu();
	CUdeviceptr p = reserve(G);
	OK(cuMemMap(p, G, 0, create(G), 0));
	*at(p) = 1;
}

TEST(memory_that_was_unmapped_kills_who_touches_it, .dies_of = SIGSEGV)
{
	start_gpu();
	CUdeviceptr p = mapped(G);
	*at(p) = 1;
	OK(cuMemUnmap(p, G));
	*at(p) = 1;
}

TEST(memory_with_access_taken_away_kills_who_touches_it, .dies_of = SIGSEGV)
{
	start_gpu();
	CUdeviceptr p = mapped(G);
	*at(p) = 1;
	OK(set_access(p, G, CU_MEM_ACCESS_FLAGS_PROT_NONE));
	*at(p) = 1;
}

TEST(read_only_memory_kills_who_writes_it, .dies_of = SIGSEGV)
{
	start_gpu();
	CUdeviceptr p = mapped(G);
	OK(set_access(p, G, CU_MEM_ACCESS_FLAGS_PROT_READ));
	CHECK(*at(p) == 0);
	*at(p) = 1;
}

TEST(freed_memory_kills_who_touches_it, .dies_of = SIGSEGV)
{
	start_gpu();
	CUdeviceptr p = allocated(8 << 20);
	*at(p) = 1;
	OK(cuMemFree_v2(p));
	*at(p) = 1;
}

TEST(a_forked_child_has_no_device_memory, .children_die = true,
     .skip = UNDER_TSAN ? "its runtime maps memory of its own into the hole that the child has there" : NULL)
{
	start_gpu();
	CUdeviceptr p = mapped(G), q = allocated(4096);
	void *h = pinned(4096);
	CUdeviceptr where[] = {p, q, (uintptr_t)h};
	for (int i = 0; i < 3; i++) {
		int status;
		*at(where[i]) = 1;
		pid_t child = fork();
		if (child == 0) {
			signal(SIGSEGV, SIG_DFL);
			*at(where[i]) = 2;
			_exit(0);
		}
		waitpid(child, &status, 0);
		CHECK(WIFSIGNALED(status));
		CHECK(*at(where[i]) == 1);
	}
}

TEST(one_handle_mapped_twice_is_the_same_memory)
{
	start_gpu();
	CUdeviceptr p = reserve(2 * G);
	CUmemGenericAllocationHandle h = create(G);
	OK(cuMemMap(p, G, 0, h, 0));
	OK(cuMemMap(p + G, G, 0, h, 0));
	OK(set_access(p, 2 * G, 3));
	*at(p + 7) = 42;
	CHECK(*at(p + G + 7) == 42);
}

TEST(bytes_survive_unmap_and_map_elsewhere_as_long_as_the_handle_lives)
{
	start_gpu();
	CUdeviceptr p = reserve(G), q = reserve(G);
	CUmemGenericAllocationHandle h = create(G);
	OK(cuMemMap(p, G, 0, h, 0));
	OK(set_access(p, G, 3));
	*at(p + 9) = 9;
	OK(cuMemUnmap(p, G));
	OK(cuMemMap(q, G, 0, h, 0));
	OK(set_access(q, G, 3));
	CHECK(*at(q + 9) == 9);
}

TEST(new_memory_is_zero)
{
	start_gpu();
	CUdeviceptr p = mapped(G);
	memset((void *)(uintptr_t)p, 0xff, G);
	OK(cuMemUnmap(p, G));
	CUmemGenericAllocationHandle h = create(G);
	OK(cuMemMap(p, G, 0, h, 0));
	OK(set_access(p, G, 3));
	for (size_t i = 0; i < G; i += 64)
		CHECK(*at(p + i) == 0);
}

/* ---- handles */

TEST(release_right_after_map_keeps_the_memory_until_unmap)
{
	start_gpu();
	size_t before = free_memory();
	CUdeviceptr p = reserve(G);
	CUmemGenericAllocationHandle h = create(G);
	OK(cuMemMap(p, G, 0, h, 0));
	OK(cuMemRelease(h));
	OK(set_access(p, G, 3));
	*at(p) = 1;
	CHECK(free_memory() == before - G);
	OK(cuMemUnmap(p, G));
	CHECK(free_memory() == before);
}

TEST(a_handle_released_once_too_often_is_invalid)
{
	start_gpu();
	CUmemGenericAllocationHandle h = create(G);
	OK(cuMemRelease(h));
	EXPECT(cuMemRelease(h), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemRelease(0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemRelease(12345), CUDA_ERROR_INVALID_VALUE);
}

TEST(a_stale_handle_does_not_release_a_new_one)
{
	start_gpu();
	CUmemGenericAllocationHandle old = create(G);
	OK(cuMemRelease(old));
	CUmemGenericAllocationHandle new = create(G);
	CHECK(new != old);
	EXPECT(cuMemRelease(old), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemRelease(new));
}

TEST(retain_gives_the_same_handle_and_one_more_reference)
{
	start_gpu();
	CUmemGenericAllocationHandle h = create(G), k;
	CUdeviceptr p = reserve(G);
	OK(cuMemMap(p, G, 0, h, 0));
	OK(cuMemRetainAllocationHandle(&k, (void *)(uintptr_t)(p + 5)));
	CHECK(k == h);
	OK(cuMemRelease(h));
	OK(cuMemRelease(h));
	EXPECT(cuMemRelease(h), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemRetainAllocationHandle(&k, (void *)(uintptr_t)p)); /* the mapping still knows it */
	OK(cuMemRelease(k));
	OK(cuMemUnmap(p, G));
	EXPECT(cuMemRetainAllocationHandle(&k, (void *)(uintptr_t)p), CUDA_ERROR_INVALID_VALUE);
	CUdeviceptr plain = allocated(G);
	EXPECT(cuMemRetainAllocationHandle(&k, (void *)(uintptr_t)plain), CUDA_ERROR_INVALID_VALUE);
}

TEST(properties_come_back_as_they_were_given, .env = {"SOFTGPU_GPUDIRECT_RDMA=1"})
{
	start_gpu();
	CUmemAllocationProp p = on_device(0), q;
	CUmemGenericAllocationHandle h;
	int rdma;
	OK(cuDeviceGetAttribute(&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0));
	CHECK(rdma == 1);
	p.allocFlags.gpuDirectRDMACapable = 1;
	p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	OK(cuMemCreate(&h, G, &p, 0));
	OK(cuMemGetAllocationPropertiesFromHandle(&q, h));
	CHECK(!memcmp(&p, &q, sizeof p));
}

TEST(rdma_is_refused_where_the_device_does_not_say_it_can)
{
	start_gpu();
	CUmemAllocationProp p = on_device(0);
	CUmemGenericAllocationHandle h;
	p.allocFlags.gpuDirectRDMACapable = 1;
	EXPECT(cuMemCreate(&h, G, &p, 0), CUDA_ERROR_NOT_SUPPORTED);
}

TEST(memory_can_be_shared_through_a_file_descriptor)
{
	start_gpu();
	size_t before = free_memory();
	CUmemAllocationProp p = on_device(0);
	CUmemGenericAllocationHandle h, k;
	int fd;
	EXPECT(cuMemExportToShareableHandle(&fd, create(G), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	       CUDA_ERROR_INVALID_VALUE); /* not asked for at creation */
	p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	OK(cuMemCreate(&h, G, &p, 0));
	OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	OK(cuMemImportFromShareableHandle(&k, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	CHECK(free_memory() == before - 2 * G); /* counted once */
	CUdeviceptr a = reserve(G), b = reserve(G);
	OK(cuMemMap(a, G, 0, h, 0));
	OK(cuMemMap(b, G, 0, k, 0));
	OK(set_access(a, G, 3));
	OK(set_access(b, G, 3));
	*at(a) = 77;
	CHECK(*at(b) == 77);
	EXPECT(cuMemImportFromShareableHandle(&k, (void *)(intptr_t)0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
	       CUDA_ERROR_INVALID_VALUE);
	close(fd);
}

/* ---- what the driver refuses */

TEST(a_mapping_is_of_a_whole_handle)
{
	start_gpu();
	CUdeviceptr p = reserve(8 * G);
	CUmemGenericAllocationHandle h = create(2 * G);
	EXPECT(cuMemMap(p, G, 0, h, 0), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuMemMap(p, 4 * G, 0, h, 0), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuMemMap(p, G, G, h, 0), CUDA_ERROR_NOT_SUPPORTED);
	EXPECT(cuMemMap(p + 4096, 2 * G, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemMap(p + 7 * G, 2 * G, 0, h, 0), CUDA_ERROR_INVALID_VALUE); /* beyond the reservation */
	OK(cuMemMap(p, 2 * G, 0, h, 0));
	EXPECT(cuMemMap(p + G, 2 * G, 0, h, 0), CUDA_ERROR_INVALID_VALUE); /* over a mapping */
	OK(cuMemMap(p + 2 * G, 2 * G, 0, h, 0));
}

TEST(ranges_are_unmapped_by_whole_mappings)
{
	start_gpu();
	CUdeviceptr p = reserve(8 * G);
	OK(cuMemMap(p, 2 * G, 0, create(2 * G), 0));
	OK(cuMemMap(p + 2 * G, 2 * G, 0, create(2 * G), 0));
	EXPECT(cuMemUnmap(p, G), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemUnmap(p + G, G), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemUnmap(p, 3 * G), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemUnmap(p, G / 2), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemUnmap(p, 4 * G));
	OK(cuMemUnmap(p, 8 * G)); /* nothing there: the driver says yes too */
	CUdeviceptr q = allocated(G);
	EXPECT(cuMemUnmap(q, G), CUDA_ERROR_INVALID_VALUE);
}

TEST(a_failed_unmap_leaves_everything_mapped)
{
	start_gpu();
	CUdeviceptr p = reserve(4 * G);
	OK(cuMemMap(p, G, 0, create(G), 0));
	OK(cuMemMap(p + G, 2 * G, 0, create(2 * G), 0));
	OK(set_access(p, 3 * G, 3));
	EXPECT(cuMemUnmap(p, 2 * G), CUDA_ERROR_INVALID_VALUE);
	*at(p) = *at(p + 2 * G) = 1;
}

TEST(access_is_set_on_whole_mappings)
{
	start_gpu();
	CUdeviceptr p = reserve(4 * G);
	unsigned long long flags;
	CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
	EXPECT(set_access(p, G, 3), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemMap(p, 2 * G, 0, create(2 * G), 0));
	OK(cuMemGetAccess(&flags, &here, p));
	CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
	EXPECT(set_access(p, G, 3), CUDA_ERROR_INVALID_VALUE);
	EXPECT(set_access(p, 3 * G, 3), CUDA_ERROR_INVALID_VALUE);
	EXPECT(set_access(p, 2 * G, 2), CUDA_ERROR_INVALID_VALUE);
	OK(set_access(p, 2 * G, 3));
	OK(cuMemGetAccess(&flags, &here, p + G));
	CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	EXPECT(cuMemGetAccess(&flags, &here, p + 2 * G), CUDA_ERROR_INVALID_VALUE);
}

TEST(address_space_is_freed_whole_and_empty)
{
	start_gpu();
	CUdeviceptr p = reserve(4 * G);
	OK(cuMemMap(p, G, 0, create(G), 0));
	EXPECT(cuMemAddressFree(p, 4 * G), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemUnmap(p, G));
	EXPECT(cuMemAddressFree(p, 2 * G), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAddressFree(p + G, 3 * G), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemAddressFree(p, 4 * G));
	EXPECT(cuMemAddressFree(p, 4 * G), CUDA_ERROR_INVALID_VALUE);
}

TEST(reservations_are_aligned_and_take_hints)
{
	start_gpu();
	CUdeviceptr p, q;
	OK(cuMemAddressReserve(&p, G, 64 * G, 0, 0));
	CHECK(p % (64 * G) == 0);
	EXPECT(cuMemAddressReserve(&q, G + 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemAddressReserve(&q, G, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemAddressReserve(&q, G, 0, p, 0)); /* taken: elsewhere */
	CHECK(q != p);
	OK(cuMemAddressFree(p, G));
	OK(cuMemAddressReserve(&q, G, 0, p, 0));
	CHECK(q == p);
}

TEST(granularity_is_2_mib)
{
	start_gpu();
	CHECK(G == 2 << 20);
}

TEST(granularity_can_be_64_kib, .env = {"SOFTGPU_GRANULARITY_KB=64"})
{
	start_gpu();
	CHECK(G == 64 << 10);
	CUdeviceptr p = mapped(G);
	*at(p + G - 1) = 1;
	EXPECT(cuMemMap(p, 4096, 0, 1, 0), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemUnmap(p, G));
}

TEST(granularity_below_64_kib_is_refused, .env = {"SOFTGPU_GRANULARITY_KB=4"})
{
	EXPECT(cuInit(0), CUDA_ERROR_INVALID_VALUE);
}

TEST(many_mappings_in_any_order, .env = {"SOFTGPU_GRANULARITY_KB=64"})
{
	enum { N = 500 };
	static bool there[N];
	unsigned seed = 1;
	start_gpu();
	size_t before = free_memory();
	CUdeviceptr base = reserve(N * G);
	for (int i = 0; i < 5000; i++) {
		seed = seed * 1103515245 + 12345;
		int k = seed >> 16 & 511;
		if (k >= N)
			continue;
		CUdeviceptr p = base + k * G;
		if (there[k]) {
			CHECK(*at(p) == (unsigned char)k);
			OK(cuMemUnmap(p, G));
		} else {
			CUmemGenericAllocationHandle h = create(G);
			OK(cuMemMap(p, G, 0, h, 0));
			OK(cuMemRelease(h));
			OK(set_access(p, G, 3));
			*at(p) = k;
		}
		there[k] = !there[k];
	}
	OK(cuMemUnmap(base, N * G));
	CHECK(free_memory() == before);
	OK(cuMemAddressFree(base, N * G));
}

/* ---- plain allocations */

TEST(allocations_are_known_by_their_start)
{
	start_gpu();
	size_t before = free_memory(), size;
	CUdeviceptr p = allocated(1000), base;
	CHECK(p % 256 == 0);
	OK(cuMemGetAddressRange_v2(&base, &size, p + 999));
	CHECK(base == p && size == 1000);
	EXPECT(cuMemFree_v2(p + 256), CUDA_ERROR_INVALID_VALUE);
	OK(cuMemFree_v2(p));
	EXPECT(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemGetAddressRange_v2(&base, &size, p), CUDA_ERROR_NOT_FOUND);
	OK(cuMemFree_v2(0));
	EXPECT(cuMemAlloc_v2(&p, 0), CUDA_ERROR_INVALID_VALUE);
	EXPECT(cuMemFree_v2(mapped(G)), CUDA_ERROR_INVALID_VALUE);
	CHECK(free_memory() == before - G);
}

TEST(only_plain_allocations_have_an_ipc_handle)
{
	start_gpu();
	CUipcMemHandle h;
	OK(cuIpcGetMemHandle(&h, allocated(4096)));
	EXPECT(cuIpcGetMemHandle(&h, mapped(G)), CUDA_ERROR_INVALID_VALUE);
}

/* ---- several devices */

TEST(memory_belongs_to_its_device, .env = {"SOFTGPU_DEVICES=2", "SOFTGPU_MEM_MB=64"})
{
	start_gpu();
	CUcontext other;
	CUdeviceptr p = reserve(G);
	CUmemGenericAllocationHandle h;
	CUmemAllocationProp prop = on_device(1);
	int ordinal;
	OK(cuMemCreate(&h, G, &prop, 0));
	CHECK(free_memory() == 64 << 20); /* device 0 paid nothing */
	OK(cuDevicePrimaryCtxRetain(&other, 1));
	OK(cuCtxPushCurrent_v2(other));
	CHECK(free_memory() == (64 << 20) - G);
	OK(cuMemMap(p, G, 0, h, 0));
	CUmemAccessDesc a = {{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	OK(cuMemSetAccess(p, G, &a, 1));
	OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
	CHECK(ordinal == 1);
	OK(cuMemsetD8_v2(p, 5, G)); /* by device 1 */
	OK(cuCtxSynchronize());
	OK(cuCtxPopCurrent_v2(NULL));
	EXPECT(cuMemsetD8_v2(p, 6, G), CUDA_ERROR_INVALID_VALUE); /* device 0 was not given access */
	a.location.id = 0;
	a.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
	OK(cuMemSetAccess(p, G, &a, 1));
	unsigned char c = 0;
	OK(cuMemcpyDtoH_v2(&c, p, 1));
	CHECK(c == 5);
	EXPECT(cuMemcpyHtoD_v2(p, &c, 1), CUDA_ERROR_INVALID_VALUE);
	*at(p) = 1; /* the host's rights are those of all devices together */
}
