/*
 * find.h: looks up functions of a library that was opened.
 *
 * Other libraries of the process may come before the C library with a dlsym of their own: libebb.so
 * does, and so do those that limit a process's share of a GPU. For a function of the driver's they
 * give one of theirs, or the first of that name in the process, which is libebb.so's: ebb would be
 * answered by its own hooks. So the C library's dlsym is asked, and finds what is in the library that
 * was opened or in those that it needs.
 */
#ifndef EBB_FIND_H
#define EBB_FIND_H

#include <dlfcn.h>
#include <stddef.h>

typedef void *ebb_dlsym(void *library, const char *symbol);

/* In these files glibc has it, under these versions: since 2.34 in its main one. */
static inline ebb_dlsym *ebb_libc_dlsym(void)
{
	static const char *const files[] = {"libc.so.6", "libdl.so.2"};
	static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
	ebb_dlsym *found = NULL;

	for (size_t f = 0; f < sizeof files / sizeof *files && !found; f++) {
		void *file = dlopen(files[f], RTLD_LAZY | RTLD_NOLOAD);
		for (size_t v = 0; file && v < sizeof versions / sizeof *versions && !found; v++)
			*(void **)&found = dlvsym(file, "dlsym", versions[v]);
		if (file)
			dlclose(file);
	}
	dlerror(); /* the host shall not find our failed look-ups in it */
	return found ? found : dlsym;
}

/* Null with the loader's words in dlerror: not found. */
static inline void *ebb_find(void *library, const char *symbol)
{
	ebb_dlsym *find = ebb_libc_dlsym();

	return find(library, symbol);
}

#endif
