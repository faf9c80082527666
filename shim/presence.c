/*
 * presence.c: whether this library's functions are the ones that programs find.
 *
 * Preloaded first, they come before the driver's and before those of other hooks. Loaded later, by
 * PyTorch as an allocator, or behind another hook, they are not found by software that linked or
 * looked up the others, and memory that it makes so is not seen. Behind another hook that is said at
 * once. PyTorch's allocator brings all memory of its regions here by itself: not to be preloaded is
 * said where it matters.
 */
#include "doors.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

CUresult cuMemCreate(uint64_t *handle, size_t size, const void *prop, uint64_t flags);

enum position { NOT_KNOWN, FIRST, BEHIND_A_HOOK, NOT_PRELOADED };

/* Where this library is in the loader's order. *before: what comes before it. */
static enum position find_position(Dl_info *before)
{
	void *program = dlopen(NULL, RTLD_LAZY); /* the loader's order, without what was loaded privately */

	if (program == NULL)
		return NOT_KNOWN;
	void *first = loader_dlsym(program, "cuMemCreate");
	dlclose(program);
	(void)dlerror(); /* the host shall not find our failed look-ups in it */
	if (first == (void *)cuMemCreate)
		return FIRST;
	return first != NULL && !in_driver(first) && dladdr(first, before) != 0 ? BEHIND_A_HOOK : NOT_PRELOADED;
}

static _Atomic enum position position;

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
	static atomic_flag checked = ATOMIC_FLAG_INIT;
	Dl_info before;

	if (guard_forked() || guard_first_copy() != NULL || atomic_flag_test_and_set(&checked))
		return;
	position = find_position(&before);
	if (position == BEHIND_A_HOOK)
		log_line("%s comes before %s and hooks the driver too: memory that is made through it is not seen, in "
			 "regions neither; name libebb.so first in LD_PRELOAD",
			 before.dli_fname, own_path());
	else if (position == NOT_PRELOADED && expandable_segments())
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
