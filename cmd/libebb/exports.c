/*
 * exports.c: the functions of ebb_engine.h, with exactly its types. Each calls its Go twin (ebbGo…).
 * The functions that need no engine, version and last error, are here as a whole.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exports.h"

#include "_cgo_export.h"

/* ---- last error ------------------------------------------------------------------------ */

/* A thread's last error lies on the heap, behind a key whose destructor frees it when the thread
 * ends. (Not _Thread_local: Go libraries use static TLS, and a C library has little of it left for
 * libraries loaded later.) */
struct last_error {
	char *json; /* null: no memory for it */
	size_t json_len, len;
	char text[EBB_ERROR_BYTES];
};

static const char no_error[] = "{\"code\":0,\"message\":\"\"}";

static pthread_key_t key;
static int key_made;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;

static void free_error(void *error)
{
	struct last_error *e = error;
	free(e->json);
	free(e);
}

static void make_key(void)
{
	key_made = pthread_key_create(&key, free_error) == 0;
}

static struct last_error *thread_error(void)
{
	pthread_once(&key_once, make_key);
	return key_made ? pthread_getspecific(key) : NULL;
}

void ebb_set_last_error(const char *text, size_t len, const char *json, size_t json_len)
{
	struct last_error *e = thread_error();
	if (!e && key_made && (e = calloc(1, sizeof *e)) && pthread_setspecific(key, e) != 0) {
		free(e);
		e = NULL;
	}
	if (!e)
		return; /* no memory for the text: the code has to do */
	e->len = len < EBB_ERROR_BYTES ? len : EBB_ERROR_BYTES - 1;
	memcpy(e->text, text, e->len);
	e->text[e->len] = 0;
	free(e->json);
	e->json_len = json_len;
	if ((e->json = malloc(json_len)))
		memcpy(e->json, json, json_len);
}

/* text holds nothing that JSON would escape. */
static int refuse(const char *text)
{
	char json[128];
	int len = snprintf(json, sizeof json, "{\"code\":%d,\"message\":\"%s\"}", EBB_ERR_INVALID, text);
	ebb_set_last_error(text, strlen(text), json, (size_t)len);
	return EBB_ERR_INVALID;
}

/* Copies text, cut to cap and zero-terminated, and returns its whole length. */
static size_t give_text(char *buf, size_t cap, const char *text, size_t len)
{
	if (buf && cap > 0) {
		size_t n = len < cap ? len : cap - 1;
		memcpy(buf, text, n);
		buf[n] = 0;
	}
	return len;
}

size_t ebb_engine_last_error(char *buf, size_t cap)
{
	const struct last_error *e = thread_error();
	return e ? give_text(buf, cap, e->text, e->len) : give_text(buf, cap, "", 0);
}

size_t ebb_engine_last_error_json(char *buf, size_t cap)
{
	const struct last_error *e = thread_error();
	return e && e->json ? give_text(buf, cap, e->json, e->json_len)
			    : give_text(buf, cap, no_error, sizeof no_error - 1);
}

/* ---- version --------------------------------------------------------------------------- */

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

/* "1u" as a number of the text: without its suffix. */
static char version[sizeof TEXT(EBB_ENGINE_ABI) " " EBB_VERSION];
static pthread_once_t version_once = PTHREAD_ONCE_INIT;

static void make_version(void)
{
	snprintf(version, sizeof version, "%u %s", EBB_ENGINE_ABI, EBB_VERSION);
}

const char *ebb_engine_version(void)
{
	pthread_once(&version_once, make_version);
	return version;
}

/* ---- the engine ------------------------------------------------------------------------ */

void ebb_say_wait(void (*waits)(int32_t what))
{
	waits(EBB_ENGINE_WAITS);
}

int ebb_call_status(const ebb_engine_calls *calls, char *buf, size_t cap, size_t *need)
{
	return calls->status(buf, cap, need);
}

int ebb_call_pause(const ebb_engine_calls *calls, char **tags, size_t ntags, double timeout_s, uint64_t ask,
		   ebb_result *result)
{
	return calls->pause((const char *const *)tags, ntags, timeout_s, ask, result);
}

int ebb_call_resume(const ebb_engine_calls *calls, char **tags, size_t ntags, double timeout_s, uint64_t ask,
		    ebb_result *result)
{
	return calls->resume((const char *const *)tags, ntags, timeout_s, ask, result);
}

int ebb_call_read(const ebb_engine_calls *calls, uint64_t gpu, size_t n, void *buf)
{
	return calls->read((const void *)gpu, n, buf);
}

size_t ebb_call_last_error_json(const ebb_engine_calls *calls, char *buf, size_t cap)
{
	return calls->last_error_json(buf, cap);
}

void ebb_note_descriptor(ebb_engine_descriptor *slot, int fd, uint64_t dev, uint64_t ino)
{
	__atomic_store_n(&slot->fd, 0, __ATOMIC_SEQ_CST);
	__atomic_store_n(&slot->dev, dev, __ATOMIC_SEQ_CST);
	__atomic_store_n(&slot->ino, ino, __ATOMIC_SEQ_CST);
	if (fd > 0)
		__atomic_store_n(&slot->fd, fd, __ATOMIC_SEQ_CST);
}

int ebb_engine_start(const ebb_engine_config *config)
{
	return ebbGoStart((ebb_engine_config *)config);
}

int ebb_engine_malloc(void **ptr, size_t size, int device, const ebb_engine_region *region, uint64_t margin)
{
	if (!ptr)
		return refuse("malloc: ptr is null");
	uintptr_t address = 0;
	int code = ebbGoMalloc(&address, size, device, (ebb_engine_region *)region, margin);
	*ptr = (void *)address;
	return code;
}

int ebb_engine_free(void *ptr, int capture_active)
{
	return ebbGoFree((uintptr_t)ptr, capture_active);
}

/* A caller built against another version has a shorter or longer ebb_result: only whole fields
 * that it has are written, and struct_size stays as it set it. */
static int knows_result(const ebb_result *result)
{
	return !result || result->struct_size >= sizeof result->struct_size;
}

static void give_result(ebb_result *result, const ebb_result *all)
{
	if (!result)
		return;
	size_t field = sizeof result->struct_size; /* every field has this size */
	size_t n = result->struct_size < sizeof *all ? result->struct_size / field * field : sizeof *all;
	memcpy((char *)result + field, (const char *)all + field, n - field);
}

int ebb_engine_pause(const char *const *tags, size_t ntags, const ebb_engine_settings *settings, ebb_result *result)
{
	if (!knows_result(result))
		return refuse("pause: result.struct_size is not set");
	ebb_result all = {0};
	int code = ebbGoPause((char **)tags, ntags, (ebb_engine_settings *)settings, &all);
	give_result(result, &all);
	return code;
}

int ebb_engine_resume(const char *const *tags, size_t ntags, const ebb_engine_settings *settings, ebb_result *result)
{
	if (!knows_result(result))
		return refuse("resume: result.struct_size is not set");
	ebb_result all = {0};
	int code = ebbGoResume((char **)tags, ntags, (ebb_engine_settings *)settings, &all);
	give_result(result, &all);
	return code;
}

int ebb_engine_request_pause(const char *const *tags, size_t ntags, double timeout_s,
			     const ebb_engine_settings *settings, ebb_result *result)
{
	if (!knows_result(result))
		return refuse("request pause: result.struct_size is not set");
	ebb_result all = {0};
	int code = ebbGoRequestPause((char **)tags, ntags, timeout_s, (ebb_engine_settings *)settings, &all);
	give_result(result, &all);
	return code;
}

int ebb_engine_idle(int begin)
{
	return ebbGoIdle(begin);
}

int ebb_engine_read(const void *gpu, size_t n, void *buf, int capture_active)
{
	if (!buf && n > 0)
		return refuse("read: buf is null");
	return ebbGoRead((uintptr_t)gpu, n, buf, capture_active);
}

int ebb_engine_backup_pointer(const void *gpu, uint64_t size, void **host)
{
	if (!host)
		return refuse("backup pointer: host is null");
	*host = NULL;
	return ebbGoBackupPointer((uintptr_t)gpu, size, host);
}

int ebb_engine_status(char *buf, size_t cap, size_t *need, const ebb_engine_unmanaged *classes, size_t nclasses)
{
	if (!buf && cap > 0)
		return refuse("status: buf is null");
	return ebbGoStatus(buf, cap, need, (ebb_engine_unmanaged *)classes, nclasses);
}

int ebb_engine_pause_count(const char *tag, uint64_t *count)
{
	if (!tag || !count)
		return refuse("pause count: tag or count are null");
	return ebbGoPauseCount((char *)tag, count);
}

void ebb_engine_shutdown(void)
{
	ebbGoShutdown();
}

/* ---- memory that its owner maps -------------------------------------------------------- */

int ebb_engine_vmm_create(uint64_t *handle, size_t size, const void *prop, uint64_t flags,
			  const ebb_engine_region *region, uint64_t margin, int *cu)
{
	return ebbGoVMMCreate(handle, size, (void *)prop, flags, (ebb_engine_region *)region, margin, cu);
}

int ebb_engine_vmm_release(uint64_t handle, int *cu)
{
	return ebbGoVMMRelease(handle, cu);
}

int ebb_engine_vmm_map(uint64_t addr, size_t size, size_t offset, uint64_t handle, uint64_t flags, int *cu)
{
	return ebbGoVMMMap(addr, size, offset, handle, flags, cu);
}

int ebb_engine_vmm_unmap(uint64_t addr, size_t size, int *cu)
{
	return ebbGoVMMUnmap(addr, size, cu);
}

int ebb_engine_vmm_set_access(uint64_t addr, size_t size, const void *desc, size_t count, int *cu)
{
	return ebbGoVMMSetAccess(addr, size, (void *)desc, count, cu);
}

int ebb_engine_vmm_get_access(uint64_t *flags, const void *location, uint64_t addr, int *cu)
{
	return ebbGoVMMGetAccess(flags, (void *)location, addr, cu);
}

int ebb_engine_vmm_retain(uint64_t *handle, uint64_t addr, int *cu)
{
	return ebbGoVMMRetain(handle, addr, cu);
}

int ebb_engine_vmm_address_free(uint64_t addr, size_t size, int *cu)
{
	return ebbGoVMMAddressFree(addr, size, cu);
}

int ebb_engine_vmm_export(void *shareable, uint64_t handle, int type, uint64_t flags, int *cu)
{
	return ebbGoVMMExport(shareable, handle, type, flags, cu);
}

int ebb_engine_vmm_properties(void *prop, uint64_t handle, int *cu)
{
	return ebbGoVMMProperties(prop, handle, cu);
}

int ebb_engine_vmm_real(uint64_t *real, uint64_t handle, const char *why, int *cu)
{
	return ebbGoVMMReal(real, handle, (char *)why, cu);
}

int ebb_engine_peer_access(int device, int peer, int on)
{
	return ebbGoPeerAccess(device, peer, on);
}

int ebb_engine_context_reset(int device, int step)
{
	return ebbGoContextReset(device, step);
}

/* ---- streamed state -------------------------------------------------------------------- */

int ebb_engine_state_create(const char *name, const uint64_t *segment_bytes, size_t nsegments, int device,
			    const char *disk_dir, uint64_t *state)
{
	return ebbGoStateCreate((char *)name, (uint64_t *)segment_bytes, nsegments, device, (char *)disk_dir, state);
}

uint64_t ebb_engine_state_block(uint64_t state)
{
	return ebbGoStateBlock(state);
}

int ebb_engine_state_read(uint64_t state, const ebb_state_io *ios, size_t n, uint64_t *ticket)
{
	return ebbGoStateRead(state, (ebb_state_io *)ios, n, ticket);
}

int ebb_engine_state_write(uint64_t state, const ebb_state_io *ios, size_t n, void *stream, uint64_t *ticket)
{
	return ebbGoStateWrite(state, (ebb_state_io *)ios, n, (uintptr_t)stream, ticket);
}

/* Only whole fields that the caller has are written, as of an ebb_result. */
int ebb_engine_state_wait(uint64_t state, uint64_t ticket, ebb_state_done *done)
{
	if (done && done->struct_size < sizeof done->struct_size)
		return refuse("state wait: done.struct_size is not set");
	ebb_state_done all = {0};
	int code = ebbGoStateWait(state, ticket, &all);
	if (done) {
		size_t field = sizeof done->struct_size;
		size_t n = done->struct_size < sizeof all ? done->struct_size / field * field : sizeof all;
		memcpy((char *)done + field, (const char *)&all + field, n - field);
	}
	return code;
}

int ebb_engine_state_read_host(uint64_t state, uint32_t segment, uint64_t offset, uint64_t bytes, void *buf)
{
	if (!buf && bytes > 0)
		return refuse("state read: buf is null");
	return ebbGoStateHost(state, segment, offset, bytes, buf, 0);
}

int ebb_engine_state_write_host(uint64_t state, uint32_t segment, uint64_t offset, uint64_t bytes, const void *buf)
{
	if (!buf && bytes > 0)
		return refuse("state write: buf is null");
	return ebbGoStateHost(state, segment, offset, bytes, (void *)buf, 1);
}

int ebb_engine_state_save(uint64_t state, const char *dir, const char *extra)
{
	return ebbGoStateSave(state, (char *)dir, (char *)extra);
}

int ebb_engine_state_load(uint64_t state, const char *dir)
{
	return ebbGoStateLoad(state, (char *)dir);
}

int ebb_engine_state_close(uint64_t state)
{
	return ebbGoStateClose(state);
}

/* ---- the contract ---------------------------------------------------------------------- */

#define AS_DECLARED(name)                                                                         \
	_Static_assert(__builtin_types_compatible_p(__typeof__(&ebb_engine_##name), ebb_engine_##name##_fn), \
		       "ebb_engine_" #name " differs from ebb_engine.h")
AS_DECLARED(start);
AS_DECLARED(version);
AS_DECLARED(malloc);
AS_DECLARED(free);
AS_DECLARED(pause);
AS_DECLARED(resume);
AS_DECLARED(request_pause);
AS_DECLARED(idle);
AS_DECLARED(read);
AS_DECLARED(backup_pointer);
AS_DECLARED(status);
AS_DECLARED(pause_count);
AS_DECLARED(last_error);
AS_DECLARED(last_error_json);
AS_DECLARED(shutdown);
AS_DECLARED(vmm_create);
AS_DECLARED(vmm_release);
AS_DECLARED(vmm_map);
AS_DECLARED(vmm_unmap);
AS_DECLARED(vmm_set_access);
AS_DECLARED(vmm_get_access);
AS_DECLARED(vmm_retain);
AS_DECLARED(vmm_address_free);
AS_DECLARED(vmm_export);
AS_DECLARED(vmm_properties);
AS_DECLARED(vmm_real);
AS_DECLARED(peer_access);
AS_DECLARED(context_reset);
AS_DECLARED(state_create);
AS_DECLARED(state_block);
AS_DECLARED(state_read);
AS_DECLARED(state_write);
AS_DECLARED(state_wait);
AS_DECLARED(state_read_host);
AS_DECLARED(state_write_host);
AS_DECLARED(state_save);
AS_DECLARED(state_load);
AS_DECLARED(state_close);
