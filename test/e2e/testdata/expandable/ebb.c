#include "ebb.h"

#include <dlfcn.h>
#include <string.h>

#include "driver.h"

struct ebb ebb;

bool ebb_open(void)
{
	if (!dlsym(RTLD_DEFAULT, "ebb_version"))
		return false;
#define FIND(member, name)                                                                                             \
	do {                                                                                                           \
		void *found = dlsym(RTLD_DEFAULT, #name);                                                              \
		if (!found)                                                                                            \
			die("the preloaded library has no " #name);                                                    \
		memcpy(&ebb.member, &found, sizeof found);                                                             \
	} while (0)
	FIND(pause, ebb_pause);
	FIND(pause_except, ebb_pause_except);
	FIND(resume, ebb_resume);
	FIND(read, ebb_read);
	FIND(last_error, ebb_last_error);
	FIND(set_region, tms_set_interesting_region);
	FIND(set_tag, tms_set_current_tag);
	FIND(set_cpu, tms_set_enable_cpu_backup);
	FIND(set_disk, tms_set_enable_disk_backup);
#undef FIND
	return true;
}

const char *ebb_error(void)
{
	static char text[4096];

	ebb.last_error(text, sizeof text);
	return text;
}
