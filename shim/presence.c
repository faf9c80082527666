/*
 * presence.c: whether this library's functions are the ones that programs find.
 *
 * Preloaded first, they come before the driver's and before those of other hooks. Loaded later, by
 * PyTorch as an allocator, or behind another hook, they are not found by software that linked or
 * looked up the others, and memory that it makes so is not seen.
 */
#include "doors.h"

#include <dlfcn.h>

CUresult cuMemCreate(uint64_t *handle, size_t size, const void *prop, uint64_t flags);

static void check(void)
{
	Dl_info its, self;
	void *program = dlopen(NULL, RTLD_LAZY); /* the loader's order, without what was loaded privately */

	if (program == NULL || dladdr((void *)cuMemCreate, &self) == 0)
		return;
	void *first = loader_dlsym(program, "cuMemCreate");
	dlclose(program);
	(void)dlerror(); /* the host shall not find our failed look-ups in it */
	if (first == (void *)cuMemCreate)
		return;
	if (first != NULL && !in_driver(first) && dladdr(first, &its) != 0)
		log_line("%s comes before %s and hooks the driver too: memory that is made through it is not seen, in "
			 "regions neither; name libebb.so first in LD_PRELOAD",
			 its.dli_fname, self.dli_fname);
	else
		log_line("%s is not preloaded: memory that does not come through its allocation functions is not seen, in "
			 "regions neither; to have all of it managed, start the process with LD_PRELOAD=%s",
			 self.dli_fname, self.dli_fname);
}

void presence_check(void)
{
	static atomic_flag checked = ATOMIC_FLAG_INIT;

	if (!guard_forked() && guard_first_copy() == NULL && !atomic_flag_test_and_set(&checked))
		check();
}
