/*
 * driver.c: requests for functions of the driver.
 *
 * With expandable segments PyTorch makes its memory by functions of the driver, which it gets here,
 * and no hook of cudaMalloc sees it. What asks for such a function is no proof of that: PyTorch
 * fetches its whole table of driver functions at the first use of any of them (to word an
 * out-of-memory error it does), and fails an internal check when one is missing. So a request is
 * refused only where the environment turns expandable segments on and memory is to be managed.
 * Elsewhere it is answered, and what is mapped by these functions counts as memory that is not
 * managed.
 */
#include "shim.h"

#include <string.h>
#include <strings.h>

typedef int CUresult;
enum { CUDA_SUCCESS = 0, CUDA_ERROR_NOT_SUPPORTED = 801 };
enum { status_not_found = 1 }; /* cudaDriverEntryPointSymbolNotFound */

typedef CUresult mem_create_fn(unsigned long long *handle, size_t size, const void *properties,
			       unsigned long long flags);
typedef CUresult mem_map_fn(uintptr_t ptr, size_t size, size_t offset, unsigned long long handle,
			    unsigned long long flags);
typedef CUresult mem_unmap_fn(uintptr_t ptr, size_t size);

/* The driver's own functions, as the runtime gave them: there is one driver in a process. */
static _Atomic(mem_create_fn *) real_mem_create;
static _Atomic(mem_map_fn *) real_mem_map;
static _Atomic(mem_unmap_fn *) real_mem_unmap;

static _Atomic int64_t mapped;

int64_t driver_mapped_bytes(void)
{
	int64_t now = mapped;

	return now > 0 ? now : 0; /* memory that was mapped by other ways may be unmapped by these */
}

/* ---- expandable segments --------------------------------------------------------------------- */

/* Whether an allocator setting such as "max_split_size_mb:64, expandable_segments:True" says so. */
static bool says_expandable(const char *setting)
{
	static const char key[] = "expandable_segments", yes[] = "true";

	for (const char *at = setting; at != NULL && (at = strstr(at, key)) != NULL;) {
		at += sizeof(key) - 1;
		const char *value = at + strspn(at, " \t");
		if (*value++ != ':')
			continue;
		value += strspn(value, " \t");
		if (strncasecmp(value, yes, sizeof(yes) - 1) == 0)
			return true;
	}
	return false;
}

/* The variable that turns expandable segments on, or null. */
static const char *expandable_by(void)
{
	static const char *const variables[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};

	for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
		if (says_expandable(settings_env(variables[i])))
			return variables[i];
	return NULL;
}

static void refuse(const char *variable)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;

	if (!atomic_flag_test_and_set(&said))
		log_line("%s turns expandable_segments on: PyTorch's memory would not be managed and a pause would not "
			 "free it, so the driver's functions for it are refused; take expandable_segments:True out of "
			 "PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF",
			 variable);
}

/* ---- the functions that are handed out ----------------------------------------------------------- */

/* A process may turn to regions after it fetched its functions: then memory is refused where it
 * was to be managed. */
static CUresult mem_create(unsigned long long *handle, size_t size, const void *properties, unsigned long long flags)
{
	const char *variable = this_thread()->managed && !guard_forked() ? expandable_by() : NULL;

	if (variable != NULL) {
		refuse(variable);
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	return real_mem_create(handle, size, properties, flags);
}

static CUresult mem_map(uintptr_t ptr, size_t size, size_t offset, unsigned long long handle, unsigned long long flags)
{
	CUresult result = real_mem_map(ptr, size, offset, handle, flags);

	if (result == CUDA_SUCCESS)
		mapped += (int64_t)size;
	return result;
}

static CUresult mem_unmap(uintptr_t ptr, size_t size)
{
	CUresult result = real_mem_unmap(ptr, size);

	if (result == CUDA_SUCCESS)
		mapped -= (int64_t)size;
	return result;
}

/* ---- the hooks ------------------------------------------------------------------------------- */

static bool makes_memory(const char *symbol)
{
	return strcmp(symbol, "cuMemAddressReserve") == 0 || strcmp(symbol, "cuMemCreate") == 0 ||
	       strcmp(symbol, "cuMemMap") == 0;
}

static bool is_refused(const char *symbol)
{
	if (!makes_memory(symbol) || guard_forked() || !(regions_used() || engine_state() == ENGINE_READY))
		return false;
	const char *variable = expandable_by();
	if (variable != NULL)
		refuse(variable);
	return variable != NULL;
}

/* Puts ours in the place of a function that was found. */
static void replace(const char *symbol, void **function)
{
	if (strcmp(symbol, "cuMemCreate") == 0) {
		real_mem_create = (mem_create_fn *)*function;
		*function = (void *)mem_create;
	} else if (strcmp(symbol, "cuMemMap") == 0) {
		real_mem_map = (mem_map_fn *)*function;
		*function = (void *)mem_map;
	} else if (strcmp(symbol, "cuMemUnmap") == 0) {
		real_mem_unmap = (mem_unmap_fn *)*function;
		*function = (void *)mem_unmap;
	}
}

/* Whether a request is answered here; it is then answered with no. */
static bool answered(const char *symbol, void **function, int *status)
{
	if (symbol == NULL || function == NULL || !is_refused(symbol))
		return false;
	*function = NULL;
	if (status != NULL)
		*status = status_not_found;
	return true;
}

static cudaError_t found(cudaError_t error, const char *symbol, void **function)
{
	if (error == cudaSuccess && symbol != NULL && function != NULL && *function != NULL)
		replace(symbol, function);
	return error;
}

static cudaError_t entry_point(entry_point_fn *real, const char *name, const char *symbol, void **function,
			       unsigned long long flags, int *status)
{
	if (answered(symbol, function, status))
		return cudaErrorNotSupported;
	return real != NULL ? found(real(symbol, function, flags, status), symbol, function) : real_missing(name);
}

static cudaError_t entry_point_by_version(entry_point_by_version_fn *real, const char *name, const char *symbol,
					  void **function, unsigned int version, unsigned long long flags,
					  int *status)
{
	if (answered(symbol, function, status))
		return cudaErrorNotSupported;
	return real != NULL ? found(real(symbol, function, version, flags, status), symbol, function)
			    : real_missing(name);
}

#define REAL(function) real_for(__builtin_return_address(0))->function, #function

EXPORT cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, int *status)
{
	return entry_point(REAL(cudaGetDriverEntryPoint), symbol, function, flags, status);
}

EXPORT cudaError_t cudaGetDriverEntryPoint_ptsz(const char *symbol, void **function, unsigned long long flags,
						int *status)
{
	return entry_point(REAL(cudaGetDriverEntryPoint_ptsz), symbol, function, flags, status);
}

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned int version,
						    unsigned long long flags, int *status)
{
	return entry_point_by_version(REAL(cudaGetDriverEntryPointByVersion), symbol, function, version, flags, status);
}

EXPORT cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char *symbol, void **function, unsigned int version,
							 unsigned long long flags, int *status)
{
	return entry_point_by_version(REAL(cudaGetDriverEntryPointByVersion_ptsz), symbol, function, version, flags,
				      status);
}
