/* settings.c: settings of the whole process, from the environment and from calls. */
#include "shim.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_CHUNK_MB 256
#define DEFAULT_IO_TIMEOUT_S 120
#define MAX_CHUNK_MB (1 << 20) /* 1 TiB */
#define MAX_HOST_MB (1 << 30)  /* 1 PiB */
#define MAX_RANKS 4096

static struct settings from_env;
static pthread_once_t from_env_once = PTHREAD_ONCE_INIT;

static _Atomic bool retain_cpu_backup;
static _Atomic uint64_t margin_bytes;

/* Guards disk_dir. Held over no call but malloc's and free's. */
static pthread_mutex_t disk_dir_lock = PTHREAD_MUTEX_INITIALIZER;
static char *disk_dir; /* null: DEFAULT_DISK_DIR */

#define DEFAULT_DISK_DIR "/tmp"

const char *settings_env(const char *name)
{
	const char *value = getenv(name);

	return value != NULL && value[0] != '\0' ? value : NULL;
}

static bool env_bool(const char *name)
{
	static const char *const yes[] = {"1", "true", "TRUE", "yes", "YES"};
	static const char *const no[] = {"0", "false", "FALSE", "no", "NO"};
	const char *value = settings_env(name);

	if (value == NULL)
		return false;
	for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++) {
		if (strcmp(value, yes[i]) == 0)
			return true;
		if (strcmp(value, no[i]) == 0)
			return false;
	}
	log_line("%s=%s is ignored: neither 1, true, yes nor 0, false, no", name, value);
	return false;
}

/* The same, with what holds where the variable is unset. */
static bool env_bool_or(const char *name, bool otherwise)
{
	return settings_env(name) != NULL ? env_bool(name) : otherwise;
}

/* Which of two words the variable holds: false for the first and when unset. */
static bool env_choice(const char *name, const char *first, const char *second)
{
	const char *value = settings_env(name);

	if (value == NULL || strcmp(value, first) == 0)
		return false;
	if (strcmp(value, second) == 0)
		return true;
	log_line("%s=%s is ignored: neither %s nor %s", name, value, first, second);
	return false;
}

static uint64_t env_chunk_bytes(const char *name)
{
	const char *value = settings_env(name);
	unsigned long long mb = DEFAULT_CHUNK_MB;

	if (value != NULL) {
		char *end;

		errno = 0;
		mb = strtoull(value, &end, 10);
		if (value[0] < '0' || value[0] > '9' || *end != '\0' || errno != 0 || mb == 0 ||
		    mb > MAX_CHUNK_MB) {
			log_line("%s=%s is ignored, %d is used: not a number of MiB from 1 to %d", name, value,
				 DEFAULT_CHUNK_MB, MAX_CHUNK_MB);
			mb = DEFAULT_CHUNK_MB;
		}
	}
	return (uint64_t)mb << 20;
}

/* Host memory that disk backups take before files; EBB_HOST_AUTO: the engine chooses. */
static uint64_t env_host_bytes(void)
{
	static const char name[] = "EBB_HOST_MB";
	const char *value = settings_env(name);
	char *end;

	if (value == NULL)
		return 0;
	if (strcmp(value, "auto") == 0)
		return EBB_HOST_AUTO;
	errno = 0;
	unsigned long long mb = strtoull(value, &end, 10);
	if (value[0] < '0' || value[0] > '9' || *end != '\0' || errno != 0 || mb > MAX_HOST_MB) {
		log_line("%s=%s is ignored: neither auto nor a number of MiB up to %d", name, value, MAX_HOST_MB);
		return 0;
	}
	return (uint64_t)mb << 20;
}

/* Ranks of this node, or 0: the variable is other launchers' too, and what is no number says nothing. */
static int32_t env_local_ranks(void)
{
	const char *value = settings_env("LOCAL_WORLD_SIZE");
	char *end;

	if (value == NULL)
		return 0;
	long ranks = strtol(value, &end, 10);
	return *end == '\0' && ranks >= 1 && ranks <= MAX_RANKS ? (int32_t)ranks : 0;
}

static double env_seconds(const char *name, double otherwise)
{
	const char *value = settings_env(name);
	char *end;

	if (value == NULL)
		return otherwise;
	double seconds = strtod(value, &end);
	if (*end != '\0' || !isfinite(seconds) || seconds < 0) {
		log_line("%s=%s is ignored: not a number of seconds", name, value);
		return otherwise;
	}
	return seconds;
}

/* A number of bytes; 0 when unset. */
static uint64_t env_bytes(const char *name)
{
	const char *value = settings_env(name);
	char *end;

	if (value == NULL)
		return 0;
	errno = 0;
	unsigned long long bytes = strtoull(value, &end, 10);
	if (value[0] < '0' || value[0] > '9' || *end != '\0' || errno != 0) {
		log_line("%s=%s is ignored: not a number of bytes", name, value);
		return 0;
	}
	return bytes;
}

static void lock_disk_dir(void)
{
	pthread_mutex_lock(&disk_dir_lock);
}

static void unlock_disk_dir(void)
{
	pthread_mutex_unlock(&disk_dir_lock);
}

static void read_environment(void)
{
	log_is_json = env_choice("EBB_LOG_FORMAT", "text", "json"); /* first: it is how the others complain */
	from_env.managed = env_bool("TMS_INIT_ENABLE");
	from_env.cpu_backup = env_bool("TMS_INIT_ENABLE_CPU_BACKUP");
	from_env.disk_backup = env_bool("TMS_INIT_ENABLE_DISK_BACKUP");
	from_env.cpu_mmap = env_choice("TMS_INIT_CPU_BACKUP_BACKEND", "pinned", "mmap");
	from_env.exit_on_pause_error = env_choice("EBB_ON_PAUSE_ERROR", "continue", "exit");
	from_env.discard = env_bool("EBB_DISCARD");
	from_env.chunk_bytes = env_chunk_bytes("TMS_DISK_BACKUP_CHUNK_MB");
	from_env.state_chunk_bytes = env_chunk_bytes("EBB_STATE_CHUNK_MB");
	from_env.host_bytes = env_host_bytes();
	from_env.host_arena = env_bool("EBB_HOST_ARENA");
	from_env.local_ranks = env_local_ranks();
	from_env.disk_quota = env_bytes("EBB_DISK_QUOTA_BYTES");
	from_env.resume_wait_s = env_seconds("EBB_RESUME_WAIT", 0);
	from_env.io_timeout_s = env_seconds("EBB_IO_TIMEOUT", DEFAULT_IO_TIMEOUT_S);
	from_env.control = env_bool_or("EBB_CONTROL", true);
	retain_cpu_backup = env_bool("TMS_RETAIN_CPU_BACKUP");
	margin_bytes = env_bytes("EBB_TRAIN_MEMORY_MARGIN_BYTES"); /* ebb's launcher sets it */

	const char *dir = settings_env("TMS_DISK_BACKUP_DIR");
	disk_dir = dir != NULL ? strdup(dir) : NULL;

	/* A child forked while another thread sets the directory finds the lock free. */
	pthread_atfork(lock_disk_dir, unlock_disk_dir, unlock_disk_dir);
}

/* Every access to a setting comes through here first, so that a call never loses to the
 * environment's initial value. */
const struct settings *settings(void)
{
	pthread_once(&from_env_once, read_environment);
	return &from_env;
}

char *settings_disk_dir(void)
{
	settings();
	lock_disk_dir();
	char *copy = strdup(disk_dir != NULL ? disk_dir : DEFAULT_DISK_DIR);
	unlock_disk_dir();
	return copy;
}

EXPORT void tms_set_disk_backup_dir(const char *dir)
{
	if (dir == NULL || dir[0] == '\0') {
		log_line("tms_set_disk_backup_dir: null or empty directory, nothing changed");
		return;
	}
	char *copy = strdup(dir);
	if (copy == NULL) {
		log_line("tms_set_disk_backup_dir: no memory, nothing changed");
		return;
	}
	settings();
	lock_disk_dir();
	char *old = disk_dir;
	disk_dir = copy;
	unlock_disk_dir();
	free(old);
}

bool settings_retain_cpu_backup(void)
{
	settings();
	return retain_cpu_backup;
}

EXPORT bool tms_get_retain_cpu_backup(void)
{
	return settings_retain_cpu_backup();
}

EXPORT void tms_set_retain_cpu_backup(bool on)
{
	settings();
	retain_cpu_backup = on;
}

uint64_t settings_margin(void)
{
	settings();
	return margin_bytes;
}

EXPORT void set_memory_margin_bytes(uint64_t bytes)
{
	settings();
	margin_bytes = bytes;
}
