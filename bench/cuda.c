/* cuda.c: the CUDA runtime, of whichever version is there. */
#include "rank.h"

#include <dlfcn.h>

struct cuda cuda;
int cuda_device;

bool cuda_ok(cuda_error error, const char *what)
{
	if (error == 0)
		return true;
	const char *text = cuda.GetErrorString != NULL ? cuda.GetErrorString(error) : NULL;
	return fail("%s: CUDA error %d%s%s", what, error, text != NULL ? ", " : "", text != NULL ? text : "");
}

/* Whether the runtime finds a device. A runtime newer than the driver does not. */
static bool works(const char *path)
{
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	cuda_error (*count_devices)(int *);
	cuda_error error;
	int count = 0;

	if (handle == NULL)
		return fail("%s", dlerror());
	*(void **)&count_devices = dlsym(handle, "cudaGetDeviceCount");
	if (count_devices == NULL) {
		dlclose(handle);
		return fail("%s is no CUDA runtime: it has no cudaGetDeviceCount", path);
	}
	error = count_devices(&count);
	if (error == 0 && count > 0)
		return true; /* the handle keeps it loaded */
	dlclose(handle);
	return fail("%s finds no device (cudaGetDeviceCount: error %d, %d devices)", path, error, count);
}

bool cuda_open(const char *const *runtimes, int count, int device)
{
	void *runtime = NULL;

	for (int i = 0; i < count && runtime == NULL; i++)
		if (works(runtimes[i]))
			/* Where a program linked with the runtime has it: for the library under test. */
			runtime = dlopen(runtimes[i], RTLD_NOW | RTLD_GLOBAL);
	if (runtime == NULL)
		return false;
#define FIND(name) \
	if ((*(void **)&cuda.name = dlsym(runtime, "cuda" #name)) == NULL) \
		return fail("the CUDA runtime has no cuda" #name)
	FIND(SetDevice);
	FIND(GetDeviceCount);
	FIND(MemGetInfo);
	FIND(HostAlloc);
	FIND(FreeHost);
	FIND(MemcpyAsync);
	FIND(MemsetAsync);
	FIND(StreamCreateWithFlags);
	FIND(StreamSynchronize);
	FIND(StreamDestroy);
	FIND(DeviceSynchronize);
	FIND(RuntimeGetVersion);
	FIND(DriverGetVersion);
#undef FIND
	*(void **)&cuda.GetErrorString = dlsym(runtime, "cudaGetErrorString");
	*(void **)&cuda.Malloc = dlsym(RTLD_DEFAULT, "cudaMalloc");
	*(void **)&cuda.Free = dlsym(RTLD_DEFAULT, "cudaFree");
	if (cuda.Malloc == NULL || cuda.Free == NULL)
		return fail("the CUDA runtime has no cudaMalloc or no cudaFree");
	cuda_device = device;
	return cuda_ok(cuda.SetDevice(device), "cudaSetDevice");
}

bool cuda_free_memory(size_t *available, size_t *total)
{
	return cuda_ok(cuda.MemGetInfo(available, total), "cudaMemGetInfo");
}
