/*
 * ebb.h's functions, as far as the process has them: without the preloaded library the program
 * runs too, and pauses nothing.
 */
#ifndef EXPANDABLE_EBB_H
#define EXPANDABLE_EBB_H

#include "../../../../abi/ebb.h"

struct ebb {
	__typeof__(&ebb_pause) pause;
	__typeof__(&ebb_pause_except) pause_except;
	__typeof__(&ebb_resume) resume;
	__typeof__(&ebb_read) read;
	__typeof__(&ebb_last_error) last_error;
	__typeof__(&tms_set_interesting_region) set_region;
	__typeof__(&tms_set_current_tag) set_tag;
	__typeof__(&tms_set_enable_cpu_backup) set_cpu;
	__typeof__(&tms_set_enable_disk_backup) set_disk;
};
extern struct ebb ebb;

/* False when the library is not loaded. */
bool ebb_open(void);
/* The calling thread's last error; valid until the next call. */
const char *ebb_error(void);

#endif
