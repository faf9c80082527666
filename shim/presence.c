/*
 * presence.c: whether this library's functions are the ones that programs find.
 *
 * Preloaded first, they come before the driver's and before those of other hooks. Loaded later, by
 * PyTorch as an allocator, or behind another hook that does not pass its calls on, they are not found by
 * software that linked or looked up the others, and memory that it makes so is not seen. Of another hook
 * that is found out, and said, as soon as there is a driver. PyTorch's allocator brings all memory of its
 * regions here by itself: not to be preloaded is said where it matters.
 */
#include "doors.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef CUresult create_fn(uint64_t *handle, size_t size, const void *prop, uint64_t flags);

create_fn cuMemCreate;

enum position { NOT_KNOWN, FIRST, BEHIND_A_HOOK, NOT_PRELOADED };

/* What programs find first, in the loader's order. */
struct first {
	create_fn *create;
	dlsym_fn *look_up;
	Dl_info hook; /* with BEHIND_A_HOOK: the one that comes before this library */
};

static enum position find_position(struct first *first)
{
	void *program = dlopen(NULL, RTLD_LAZY); /* the loader's order, without what was loaded privately */

	if (program == NULL)
		return NOT_KNOWN;
	first->create = (create_fn *)loader_dlsym(program, "cuMemCreate");
	first->look_up = (dlsym_fn *)loader_dlsym(program, "dlsym");
	dlclose(program);
	(void)dlerror(); /* the host shall not find our failed look-ups in it */
	if (first->create == NULL || in_driver((void *)first->create))
		return NOT_PRELOADED;
	void *hook = first->create != cuMemCreate ? (void *)first->create
		     : is_hooks_dlsym(first->look_up) ? (void *)first->look_up
						      : NULL;
	if (hook == NULL)
		return FIRST;
	return dladdr(hook, &first->hook) != 0 ? BEHIND_A_HOOK : NOT_PRELOADED;
}

/* Whether what the first hook gets comes here: a call of its cuMemCreate does, which any driver would
 * refuse, and none of ours is looked up by its dlsym as the driver's own. */
static bool passes_on(const struct first *first)
{
	static const int prop[8] = {1, 0, 1, 0}; /* CUmemAllocationProp: pinned memory of device 0 */
	struct thread *t = this_thread();
	uint64_t handle;

	t->probe = PROBE_CALLED;
	first->create(&handle, 1, prop, UINT64_MAX);
	bool arrived = t->probe == PROBE_ARRIVED;
	t->probe = NO_PROBE;
	return arrived && (!is_hooks_dlsym(first->look_up) || !passes_doors_by(first->look_up));
}

bool presence_probed(void)
{
	struct thread *t = this_thread();

	if (t->probe == NO_PROBE)
		return false;
	t->probe = PROBE_ARRIVED;
	return true;
}

static _Atomic enum position position; /* NOT_KNOWN also while it does not matter yet */

static const char *own_path(void)
{
	Dl_info self;

	return dladdr((void *)cuMemCreate, &self) != 0 ? self.dli_fname : "libebb.so";
}

static _Atomic bool said; /* that it is not preloaded */

static void say_not_preloaded(void)
{
	if (!atomic_exchange(&said, true))
		log_line("%s is not preloaded: memory that does not come through its allocation functions is not seen, in "
			 "regions neither; to have all of it managed, start the process with LD_PRELOAD=%s",
			 own_path(), own_path());
}

/* ---- before a region or a pause ------------------------------------------------------------------------- */

static const char *without_spaces(const char *text)
{
	return text + strspn(text, " \t");
}

/* Whether PyTorch is told to make its memory by the driver's calls. */
static bool expandable_segments(void)
{
	static const char *const variables[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
	static const char option[] = "expandable_segments";

	for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
		const char *value = settings_env(variables[i]);
		const char *at = value != NULL ? strstr(value, option) : NULL;

		if (at == NULL)
			continue;
		at = without_spaces(at + strlen(option));
		if (*at == ':' && strncmp(without_spaces(at + 1), "True", strlen("True")) == 0)
			return true;
	}
	return false;
}

void presence_check(void)
{
	struct first first;

	if (position != NOT_KNOWN || guard_forked() || guard_first_copy() != NULL)
		return;
	enum position found = find_position(&first), unknown = NOT_KNOWN;
	if (found == BEHIND_A_HOOK && !driver_loaded())
		return; /* nothing can be made yet */
	if (!atomic_compare_exchange_strong(&position, &unknown, found))
		return;
	if (found == BEHIND_A_HOOK && !passes_on(&first))
		log_line("%s comes before %s, hooks the driver too and does not pass everything on: memory that is made "
			 "past libebb.so is not seen, in regions neither; name libebb.so first in LD_PRELOAD",
			 first.hook.dli_fname, own_path());
	else if (found == NOT_PRELOADED && expandable_segments())
		say_not_preloaded();
}

/* ---- after a pause --------------------------------------------------------------------------------------- */

/* The engine's status, to be freed; null: no memory, or an error that is not the pause's. */
static char *status(void)
{
	ebb_engine_unmanaged classes[CLASSES];
	size_t nclasses = unmanaged_classes(classes), cap = 1 << 14, need = 0;

	for (;;) {
		char *text = malloc(cap);

		if (text == NULL)
			return NULL;
		engine_enter();
		int code = engine.status(text, cap, &need, classes, nclasses);
		engine_leave(EBB_OK); /* the pause's error stays the last one */
		if (code == EBB_OK && need < cap)
			return text;
		free(text);
		if (code != EBB_OK)
			return NULL;
		cap = need + 1;
	}
}

/* Whether the process holds more device memory than contexts take (1 GiB a device) for which nobody
 * accounts: the status has a class for that. */
static bool much_is_not_seen(void)
{
	static const char class[] = "\"name\":\"other\",\"bytes\":";
	char *text = status();
	bool much = false;

	for (char *at = text; at != NULL && (at = strstr(at, class)) != NULL && !much;) {
		at += strlen(class);
		much = strtoull(at, NULL, 10) > 0;
	}
	free(text);
	return much;
}

void presence_check_left(int code)
{
	if (position == NOT_PRELOADED && !said &&
	    (code == EBB_ERR_UNMANAGED || (code == EBB_OK && engine_state() == ENGINE_READY && much_is_not_seen())))
		say_not_preloaded();
}
