/* Device images and kernels. See softgpu_kernel.h for how an image of one's own looks. */
#define _GNU_SOURCE
#include "internal.h"

#include <ctype.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FATBIN_MAGIC = 0xba55ed50, FATBIN_WRAPPER_MAGIC = 0x466243b1, EM_CUDA_MACHINE = 190, MAX_PARAMS = 256 };

struct CUfunc_st {
	struct CUmod_st *module;
	char *name;
	softgpu_kernel_fn *fn;
	const uint32_t *params;
	struct CUfunc_st *next;
};

struct CUmod_st {
	struct CUctx_st *ctx;
	void *lib;  /* an ELF image, loaded */
	int fd;	    /* kept while loaded: the loader tells images apart by their path, and this is in it */
	char *ptx;  /* or PTX */
	struct CUfunc_st *functions; /* sg_ctx_lock */
	struct CUmod_st *next;
};

/* ---- images */

/* The image's length is in its own headers: the end of whatever lies last. */
static size_t elf_size(const Elf64_Ehdr *e)
{
	const char *base = (const char *)e;
	const Elf64_Phdr *ph = (const Elf64_Phdr *)(base + e->e_phoff);
	const Elf64_Shdr *sh = (const Elf64_Shdr *)(base + e->e_shoff);
	size_t end = e->e_shoff ? e->e_shoff + (size_t)e->e_shnum * e->e_shentsize : 0;
	for (int i = 0; i < e->e_phnum; i++)
		if (ph[i].p_offset + ph[i].p_filesz > end)
			end = ph[i].p_offset + ph[i].p_filesz;
	for (int i = 0; e->e_shoff && i < e->e_shnum; i++)
		if (sh[i].sh_type != SHT_NOBITS && sh[i].sh_offset + sh[i].sh_size > end)
			end = sh[i].sh_offset + sh[i].sh_size;
	return end;
}

static CUresult load_fd(struct CUmod_st *m)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", m->fd);
	m->lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (m->lib)
		return CUDA_SUCCESS;
	sg_complain("device image: %s", dlerror());
	return CUDA_ERROR_INVALID_IMAGE;
}

static CUresult write_all(int fd, const char *p, size_t n)
{
	while (n) {
		ssize_t k = write(fd, p, n);
		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			return CUDA_ERROR_OUT_OF_MEMORY;
		p += k;
		n -= k;
	}
	return CUDA_SUCCESS;
}

static CUresult load_elf(struct CUmod_st *m, const void *image)
{
	const Elf64_Ehdr *e = image;
	if (e->e_machine == EM_CUDA_MACHINE) /* a cubin: code for a GPU */
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	if (e->e_ident[EI_CLASS] != ELFCLASS64 || e->e_type != ET_DYN)
		return CUDA_ERROR_INVALID_IMAGE;
	m->fd = sg_fd_above_std(memfd_create("softgpu-image", MFD_CLOEXEC));
	if (m->fd < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult r = write_all(m->fd, image, elf_size(e));
	return r ? r : load_fd(m);
}

static CUresult load_image(struct CUmod_st *m, const void *image)
{
	const unsigned char *b = image;
	uint32_t magic;
	if (b[0] == 0x7f && b[1] == 'E' && b[2] == 'L' && b[3] == 'F')
		return load_elf(m, image);
	if ((b[0] == '/' && b[1] == '/') || !strncmp(image, ".version", 8)) {
		m->ptx = strdup(image);
		if (!m->ptx)
			return CUDA_ERROR_OUT_OF_MEMORY;
		return strstr(m->ptx, ".version") ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
	}
	memcpy(&magic, image, b[0] && b[1] && b[2] ? 4 : 1); /* a short text may end here */
	if (b[0] && b[1] && b[2] && (magic == FATBIN_MAGIC || magic == FATBIN_WRAPPER_MAGIC))
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	return CUDA_ERROR_INVALID_IMAGE;
}

/* A file that is ELF is loaded from where it lies, through a descriptor of its own; PTX is read. */
static CUresult load_file(struct CUmod_st *m, const char *path)
{
	struct stat st;
	CUresult r;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return CUDA_ERROR_FILE_NOT_FOUND;
	char *text = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? calloc(1, st.st_size + sizeof(Elf64_Ehdr)) : NULL;
	if (!text || read(fd, text, st.st_size) != st.st_size)
		r = CUDA_ERROR_INVALID_IMAGE;
	else
		r = load_image(m, text);
	free(text);
	close(fd);
	return r;
}

static void unload(struct CUmod_st *m)
{
	for (struct CUfunc_st *f = m->functions, *next; f; f = next) {
		next = f->next;
		free(f->name);
		free(f);
	}
	if (m->lib)
		dlclose(m->lib);
	if (m->fd >= 0)
		close(m->fd);
	free(m->ptx);
	free(m);
}

static CUresult load(CUmodule *module, const void *image, const char *path)
{
	if (!module || (!image && !path))
		return CUDA_ERROR_INVALID_VALUE;
	struct CUmod_st *m = calloc(1, sizeof *m);
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->fd = -1;
	m->ctx = sg_current();
	CUresult r = path ? load_file(m, path) : load_image(m, image);
	if (r) {
		unload(m);
		return r;
	}
	pthread_mutex_lock(&sg_ctx_lock);
	m->next = m->ctx->modules;
	m->ctx->modules = m;
	pthread_mutex_unlock(&sg_ctx_lock);
	*module = m;
	return CUDA_SUCCESS;
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
	GATE(cuModuleLoad, NEED_CTX);
	return load(module, NULL, path);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	GATE(cuModuleLoadData, NEED_CTX);
	return load(module, image, NULL);
}

/* Takes it off its context's list; false if it is not there. */
static bool take_off(struct CUctx_st *ctx, struct CUmod_st *m)
{
	pthread_mutex_lock(&sg_ctx_lock);
	struct CUmod_st **at = &ctx->modules;
	while (*at && *at != m)
		at = &(*at)->next;
	bool found = *at != NULL;
	if (found)
		*at = m->next;
	pthread_mutex_unlock(&sg_ctx_lock);
	return found;
}

/* Waits for the context first: a kernel of the module may be queued. */
CUresult cuModuleUnload(CUmodule module)
{
	GATE(cuModuleUnload, NEED_CTX);
	CUresult r = sg_ctx_drain(sg_current());
	if (r)
		return r;
	if (!module || !take_off(sg_current(), module))
		return CUDA_ERROR_INVALID_HANDLE;
	unload(module);
	return CUDA_SUCCESS;
}

void sg_modules_unload_all_of(struct CUctx_st *ctx)
{
	while (ctx->modules) {
		struct CUmod_st *m = ctx->modules;
		if (take_off(ctx, m))
			unload(m);
	}
}

/* ---- functions */

/* True if the PTX text has ".entry NAME". */
static bool ptx_has_entry(const char *ptx, const char *name)
{
	size_t n = strlen(name);
	for (const char *p = ptx; (p = strstr(p, ".entry")); ) {
		p += strlen(".entry");
		while (isspace((unsigned char)*p))
			p++;
		if (!strncmp(p, name, n) && !isalnum((unsigned char)p[n]) && p[n] != '_' && p[n] != '$')
			return true;
	}
	return false;
}

static CUresult find_in_ptx(struct CUfunc_st *f)
{
	if (!ptx_has_entry(f->module->ptx, f->name))
		return CUDA_ERROR_NOT_FOUND;
	for (const struct sg_builtin *b = sg_builtins; b->name; b++)
		if (!strcmp(b->name, f->name)) {
			f->fn = b->fn;
			f->params = b->params;
			return CUDA_SUCCESS;
		}
	sg_complain("PTX kernel \"%s\": no such kernel is built in, and PTX itself cannot be run", f->name);
	return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

static CUresult find_in_elf(struct CUfunc_st *f)
{
	char sizes[512];
	if (snprintf(sizes, sizeof sizes, "%s_softgpu_params", f->name) >= (int)sizeof sizes)
		return CUDA_ERROR_NOT_FOUND;
	f->fn = (softgpu_kernel_fn *)dlsym(f->module->lib, f->name);
	f->params = dlsym(f->module->lib, sizes);
	if (f->fn && !f->params)
		sg_complain("kernel \"%s\": the image does not say its parameters; see SOFTGPU_KERNEL", f->name);
	return f->fn && f->params ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static struct CUfunc_st *find_known(struct CUmod_st *m, const char *name)
{
	struct CUfunc_st *f = m->functions;
	while (f && strcmp(f->name, name))
		f = f->next;
	return f;
}

CUresult cuModuleGetFunction(CUfunction *fn, CUmodule module, const char *name)
{
	GATE(cuModuleGetFunction, NEED_CTX);
	CUresult r = CUDA_SUCCESS;
	if (!fn || !name || !*name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!module)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&sg_ctx_lock);
	struct CUfunc_st *f = find_known(module, name);
	if (!f) {
		f = calloc(1, sizeof *f);
		char *copy = strdup(name);
		if (!f || !copy) {
			free(copy);
			r = CUDA_ERROR_OUT_OF_MEMORY;
		} else {
			*f = (struct CUfunc_st){.module = module, .name = copy};
			r = module->ptx ? find_in_ptx(f) : find_in_elf(f);
		}
		if (r) {
			if (f)
				free(f->name);
			free(f);
		} else {
			f->next = module->functions;
			module->functions = f;
		}
	}
	pthread_mutex_unlock(&sg_ctx_lock);
	if (!r)
		*fn = f;
	return r;
}

/* ---- launches */

/* Arguments as one buffer, in the layout of a C struct (the "extra" form of cuLaunchKernel). */
static const void *from_buffer(void **extra, const uint32_t *sizes, int which)
{
	const char *buffer = NULL;
	size_t offset = 0;
	for (; *extra; extra += 2)
		if (*extra == (void *)1) /* CU_LAUNCH_PARAM_BUFFER_POINTER */
			buffer = extra[1];
	for (int i = 0; i <= which; i++) {
		uint32_t align = sizes[i] & -sizes[i]; /* the largest power of two in it */
		if (align > 16)
			align = 16;
		offset = (offset + align - 1) / align * align;
		if (i < which)
			offset += sizes[i];
	}
	return buffer ? buffer + offset : NULL;
}

/* Copies the arguments, as a launch does: the caller may reuse his at once. */
static CUresult copy_params(const struct CUfunc_st *f, void **params, void **extra, void ***out)
{
	size_t bytes = 0;
	int n = 0;
	*out = NULL;
	for (; f->params[n] && n < MAX_PARAMS; n++)
		bytes += (f->params[n] + 15) & ~15u;
	if (!n)
		return CUDA_SUCCESS;
	if (!params == !extra)
		return CUDA_ERROR_INVALID_VALUE;
	size_t head = (n * sizeof(void *) + 15) & ~(size_t)15;
	char *block = malloc(head + bytes), *at = block + head;
	if (!block)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (int i = 0; i < n; i++) {
		const void *from = params ? params[i] : from_buffer(extra, f->params, i);
		if (!from) {
			free(block);
			return CUDA_ERROR_INVALID_VALUE;
		}
		((void **)block)[i] = memcpy(at, from, f->params[i]);
		at += (f->params[i] + 15) & ~15u;
	}
	*out = (void **)block;
	return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction fn, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
			unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **params,
			void **extra)
{
	GATE(cuLaunchKernel, NEED_CTX);
	struct CUctx_st *ctx = sg_current();
	void **copy;
	if (!fn)
		return CUDA_ERROR_INVALID_HANDLE;
	if (fn->module->ctx != ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!gx || !gy || !gz || !bx || !by || !bz || gy > 65535 || gz > 65535 || bx > 1024 || by > 1024 || bz > 64 ||
	    (uint64_t)bx * by * bz > 1024 || shared > 227 << 10)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = copy_params(fn, params, extra, &copy);
	if (r)
		return r;
	struct sg_work w = {.kind = OP_KERNEL,
			    .kernel = {fn->fn, {{gx, gy, gz}, {bx, by, bz}, shared, ctx->device}, copy}};
	return sg_submit(stream, &w, SG_SAME_CTX);
}
