/*
 * driver.c: requests for functions of the driver, by which most programs come to them: the CUDA
 * runtime, linked statically or not, asks cuGetProcAddress, PyTorch asks the runtime.
 *
 * The driver answers; ours takes the place of a hooked function that it found. A request that it
 * answers with no stays so.
 */
#include "doors.h"

/* ---- which version is asked for --------------------------------------------------------------- */

typedef CUresult driver_version_fn(int *version);

/* The driver's version, such as 12080. A request for a newer version gets what the driver has. */
static int driver_version(void)
{
	static _Atomic int known;
	int version = known;

	if (version == 0) {
		driver_version_fn *ask = (driver_version_fn *)driver_function("cuDriverGetVersion");

		if (ask == NULL || ask(&version) != CUDA_SUCCESS)
			return 0;
		known = version;
	}
	return version;
}

/* Puts ours in the place of a function that was found. */
static void replace(bool answered, const char *name, void **function, int version)
{
	struct door *newest = name != NULL ? door_of_name(name, INT32_MAX) : NULL;

	if (newest == NULL || function == NULL)
		return;
	if (!answered || *function == NULL) {
		driver_lacks(newest);
		return;
	}
	int has = driver_version();
	struct door *door = door_of_name(name, has > 0 && has < version ? has : version);
	if (door != NULL)
		*function = door_open(door, *function);
}

/* ---- the driver's requests ------------------------------------------------------------------------ */

typedef CUresult cuGetProcAddress_fn(const char *name, void **function, int version, uint64_t flags);
typedef CUresult cuGetProcAddress_v2_fn(const char *name, void **function, int version, uint64_t flags, int *status);
typedef cuGetProcAddress_v2_fn cuGetProcAddress_v2_ptsz_fn;

static CUresult cuGetProcAddress_hook(cuGetProcAddress_fn *real, const void *caller, const char *name,
				      void **function, int version, uint64_t flags)
{
	CUresult result = real(name, function, version, flags);

	(void)caller;
	if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_FOUND)
		replace(result == CUDA_SUCCESS, name, function, version);
	return result;
}

static CUresult cuGetProcAddress_v2_hook(cuGetProcAddress_v2_fn *real, const void *caller, const char *name,
					 void **function, int version, uint64_t flags, int *status)
{
	CUresult result = real(name, function, version, flags, status);

	(void)caller;
	if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_FOUND)
		replace(result == CUDA_SUCCESS, name, function, version);
	return result;
}
#define cuGetProcAddress_v2_ptsz_hook cuGetProcAddress_v2_hook

DRIVER_HOOK(cuGetProcAddress, "cuGetProcAddress", 11030,
	    LIST(const char *name, void **function, int version, uint64_t flags),
	    LIST(name, function, version, flags))
DRIVER_HOOK(cuGetProcAddress_v2, "cuGetProcAddress", 12000,
	    LIST(const char *name, void **function, int version, uint64_t flags, int *status),
	    LIST(name, function, version, flags, status))
DRIVER_HOOK(cuGetProcAddress_v2_ptsz, NULL, 0,
	    LIST(const char *name, void **function, int version, uint64_t flags, int *status),
	    LIST(name, function, version, flags, status))

/* ---- the runtime's requests ----------------------------------------------------------------------- */

/* The runtime asks for its own version where none is given. */
static int runtime_version(const struct real *real)
{
	int version;

	if (real->cudaRuntimeGetVersion == NULL || real->cudaRuntimeGetVersion(&version) != cudaSuccess)
		return INT32_MAX;
	return version;
}

static cudaError_t entry_point(const struct real *real, entry_point_fn *its, const char *function_name,
			       const char *name, void **function, unsigned long long flags, int *status)
{
	if (its == NULL)
		return real_missing(function_name);
	cudaError_t error = its(name, function, flags, status);
	if (error == cudaSuccess)
		replace(true, name, function, runtime_version(real));
	return error;
}

static cudaError_t entry_point_by_version(entry_point_by_version_fn *its, const char *function_name,
					  const char *name, void **function, unsigned int version,
					  unsigned long long flags, int *status)
{
	if (its == NULL)
		return real_missing(function_name);
	cudaError_t error = its(name, function, version, flags, status);
	if (error == cudaSuccess)
		replace(true, name, function, (int)version);
	return error;
}

#define REAL(function) real->function, #function

EXPORT cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, int *status)
{
	const struct real *real = real_for(__builtin_return_address(0));

	return entry_point(real, REAL(cudaGetDriverEntryPoint), symbol, function, flags, status);
}

EXPORT cudaError_t cudaGetDriverEntryPoint_ptsz(const char *symbol, void **function, unsigned long long flags,
						int *status)
{
	const struct real *real = real_for(__builtin_return_address(0));

	return entry_point(real, REAL(cudaGetDriverEntryPoint_ptsz), symbol, function, flags, status);
}

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned int version,
						    unsigned long long flags, int *status)
{
	const struct real *real = real_for(__builtin_return_address(0));

	return entry_point_by_version(REAL(cudaGetDriverEntryPointByVersion), symbol, function, version, flags,
				      status);
}

EXPORT cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char *symbol, void **function, unsigned int version,
							 unsigned long long flags, int *status)
{
	const struct real *real = real_for(__builtin_return_address(0));

	return entry_point_by_version(REAL(cudaGetDriverEntryPointByVersion_ptsz), symbol, function, version, flags,
				      status);
}
