/* Streams: a queue and a thread each. Events.
 *
 * An operation starts when three things hold: it is the first of its stream; what it depends on in other streams is done; and
 * it is due or wanted. It becomes due some time after it was queued (never, with SOFTGPU_LATENCY_US=hold), and wanted when
 * somebody waits or asks for it, or for something that depends on it. So work runs late, as on a GPU, and a caller that forgets
 * to wait sees work not done. */
#include "internal.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

pthread_mutex_t sg_queue_lock = PTHREAD_MUTEX_INITIALIZER;
_Thread_local bool sg_in_stream;

enum { STREAM_MAGIC = 0x5347534d, EVENT_MAGIC = 0x53474556 };

static pthread_cond_t done = PTHREAD_COND_INITIALIZER; /* an operation was done, or a stream's thread has left */
static struct CUstream_st *streams, *stream_pool;
static struct CUevent_st *event_pool;
static pthread_key_t thread_end; /* closes a thread's default streams */

struct CUstream_st *sg_streams(void)
{
	return streams;
}

/* ---- operations; all of this needs sg_queue_lock */

static void op_unref(struct sg_op *op)
{
	if (--op->refs == 0)
		free(op);
}

static struct sg_op *op_ref(struct sg_op *op)
{
	op->refs++;
	return op;
}

/* Everything up to that operation of its stream shall start now, and what it depends on. */
static void want(struct sg_op *op)
{
	struct CUstream_st *s = op->stream;
	uint64_t before;
	if (op->done || s->wanted >= op->seq)
		return;
	before = s->wanted;
	s->wanted = op->seq;
	for (struct sg_op *o = s->head; o && o->seq <= op->seq; o = o->next)
		for (int i = 0; o->seq > before && i < o->ndeps; i++)
			want(o->deps[i]);
	pthread_cond_signal(&s->wake);
}

/* Takes over a reference, which keeps the operation while the lock is given up. */
static void wait_for(struct sg_op *op)
{
	want(op);
	while (!op->done)
		pthread_cond_wait(&done, &sg_queue_lock);
	op_unref(op);
}

static bool add_dep(struct sg_op *op, struct sg_op *on)
{
	if (!on || on->done)
		return true;
	struct sg_op **more = realloc(op->deps, (op->ndeps + 1) * sizeof *more);
	if (!more)
		return false;
	op->deps = more;
	op->deps[op->ndeps++] = op_ref(on);
	return true;
}

static void drop_deps(struct sg_op *op)
{
	for (int i = 0; i < op->ndeps; i++)
		op_unref(op->deps[i]);
	free(op->deps);
	op->deps = NULL;
	op->ndeps = 0;
}

static bool is_blocking(const struct CUstream_st *s)
{
	return !s->is_legacy && !(s->flags & CU_STREAM_NON_BLOCKING);
}

/* The legacy stream comes after all earlier work of the blocking streams, and these after its earlier work. */
static bool add_legacy_deps(struct sg_op *op, struct CUstream_st *s)
{
	if (s->is_legacy) {
		for (struct CUstream_st *o = streams; o; o = o->next)
			if (o->ctx == s->ctx && is_blocking(o) && !add_dep(op, o->last))
				return false;
		return true;
	}
	return !is_blocking(s) || !s->ctx->legacy || add_dep(op, s->ctx->legacy->last);
}

/* Takes the work's memory only if it succeeds. */
static struct sg_op *enqueue(struct CUstream_st *s, const struct sg_work *work, struct sg_op *after)
{
	struct sg_op *op = calloc(1, sizeof *op);
	if (!op)
		return NULL;
	if (!add_legacy_deps(op, s) || !add_dep(op, after)) {
		drop_deps(op);
		free(op);
		return NULL;
	}
	op->refs = 2; /* the queue's and s->last's */
	op->seq = ++s->seq;
	op->stream = s;
	op->work = *work;
	op->due_ns = sg_now_ns() + sg_config.latency_ns;
	if (s->last)
		op_unref(s->last);
	s->last = op;
	if (s->tail)
		s->tail->next = op;
	else
		s->head = op;
	s->tail = op;
	pthread_cond_signal(&s->wake);
	return op;
}

/* ---- the thread of a stream */

static bool deps_done(struct sg_op *op)
{
	for (int i = 0; i < op->ndeps; i++)
		if (!op->deps[i]->done)
			return false;
	return true;
}

/* False after it has waited a while: look again. */
static bool may_start(struct CUstream_st *s, struct sg_op *op)
{
	if (op->seq > s->wanted && sg_config.hold) {
		pthread_cond_wait(&s->wake, &sg_queue_lock);
		return false;
	}
	if (op->seq > s->wanted && op->due_ns > sg_now_ns()) {
		struct timespec at = {op->due_ns / 1000000000, op->due_ns % 1000000000};
		pthread_cond_timedwait(&s->wake, &sg_queue_lock, &at);
		return false;
	}
	if (!deps_done(op)) {
		s->blocked = true;
		pthread_cond_wait(&s->wake, &sg_queue_lock);
		s->blocked = false;
		return false;
	}
	return true;
}

static void run_head(struct CUstream_st *s, struct sg_op *op)
{
	struct CUctx_st *ctx = s->ctx;
	pthread_mutex_unlock(&sg_queue_lock);
	sg_work_run(ctx, &op->work);
	sg_work_free(&op->work);
	pthread_mutex_lock(&sg_queue_lock);
	op->done_ns = sg_now_ns();
	op->done = true;
	s->head = op->next;
	if (!s->head)
		s->tail = NULL;
	drop_deps(op);
	op_unref(op);
	pthread_cond_broadcast(&done);
	for (struct CUstream_st *o = streams; o; o = o->next)
		if (o->blocked)
			pthread_cond_signal(&o->wake);
}

/* From here on nothing knows the stream but the pool. */
static void retire(struct CUstream_st *s)
{
	struct CUstream_st **at = &streams;
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	if (s->ctx->legacy == s)
		s->ctx->legacy = NULL;
	if (s->last)
		op_unref(s->last);
	s->last = NULL;
	s->magic = 0;
	s->next = stream_pool;
	stream_pool = s;
	pthread_cond_broadcast(&done);
}

static void *stream_thread(void *arg)
{
	struct CUstream_st *s = arg;
	pthread_mutex_lock(&sg_queue_lock);
	for (;;) {
		if (s->head) {
			if (may_start(s, s->head))
				run_head(s, s->head);
		} else if (s->closing) {
			break;
		} else {
			pthread_cond_wait(&s->wake, &sg_queue_lock);
		}
	}
	retire(s);
	pthread_mutex_unlock(&sg_queue_lock);
	return NULL;
}

/* Signals of the host program are none of this thread's business. */
static bool start_thread(struct CUstream_st *s)
{
	sigset_t all, before;
	pthread_t t;
	pthread_attr_t attr;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	bool ok = pthread_create(&t, &attr, stream_thread, s) == 0;
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return ok;
}

/* ---- streams */

static struct CUstream_st *new_stream(struct CUctx_st *ctx, unsigned flags, int priority)
{
	struct CUstream_st *s = stream_pool;
	if (s) {
		stream_pool = s->next;
	} else {
		pthread_condattr_t attr;
		s = calloc(1, sizeof *s);
		if (!s)
			return NULL;
		pthread_condattr_init(&attr);
		pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
		pthread_cond_init(&s->wake, &attr);
		pthread_condattr_destroy(&attr);
	}
	s->ctx = ctx;
	s->flags = flags;
	s->priority = priority;
	s->is_legacy = s->closing = s->blocked = false;
	s->owner_thread = s->seq = s->wanted = 0;
	s->capture = NULL;
	s->magic = STREAM_MAGIC;
	s->next = streams;
	streams = s;
	if (!start_thread(s)) {
		retire(s);
		return NULL;
	}
	return s;
}

static void close_stream(struct CUstream_st *s)
{
	sg_capture_stream_gone(s);
	s->magic = 0;
	s->closing = true;
	if (s->last)
		want(s->last);
	pthread_cond_signal(&s->wake);
}

static void close_default_streams(void *id)
{
	pthread_mutex_lock(&sg_queue_lock);
	for (struct CUstream_st *s = streams; s; s = s->next)
		if (s->owner_thread == (uintptr_t)id && !s->closing)
			close_stream(s);
	pthread_mutex_unlock(&sg_queue_lock);
}

static struct CUstream_st *per_thread_stream(struct CUctx_st *ctx)
{
	uint64_t me = sg_thread_id();
	for (struct CUstream_st *s = streams; s; s = s->next)
		if (s->ctx == ctx && s->owner_thread == me && !s->closing)
			return s;
	struct CUstream_st *s = new_stream(ctx, CU_STREAM_DEFAULT, 0);
	if (s) {
		s->owner_thread = me;
		pthread_setspecific(thread_end, (void *)(uintptr_t)me);
	}
	return s;
}

CUresult sg_stream_of(struct CUctx_st *ctx, CUstream handle, struct CUstream_st **stream)
{
	*stream = NULL;
	if (handle && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
		if (handle->magic != STREAM_MAGIC)
			return CUDA_ERROR_INVALID_HANDLE;
		*stream = handle;
		return CUDA_SUCCESS;
	}
	if (!atomic_load(&ctx->alive))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (handle == CU_STREAM_PER_THREAD) {
		*stream = per_thread_stream(ctx);
	} else {
		if (!ctx->legacy) {
			ctx->legacy = new_stream(ctx, CU_STREAM_DEFAULT, 0);
			if (ctx->legacy)
				ctx->legacy->is_legacy = true;
		}
		*stream = ctx->legacy;
	}
	return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void sg_stream_init(void)
{
	pthread_key_create(&thread_end, close_default_streams);
}

/* Nothing new arrives: the context is no longer alive. */
void sg_ctx_close_streams(struct CUctx_st *ctx)
{
	bool any;
	pthread_mutex_lock(&sg_queue_lock);
	do {
		any = false;
		for (struct CUstream_st *s = streams; s; s = s->next) {
			if (s->ctx != ctx)
				continue;
			any = true;
			if (!s->closing)
				close_stream(s);
		}
		if (any)
			pthread_cond_wait(&done, &sg_queue_lock);
	} while (any);
	pthread_mutex_unlock(&sg_queue_lock);
}

/* Waits for the last operations that the streams have now and that `which` selects. */
static void drain(struct CUctx_st *ctx, bool (*which)(const struct CUstream_st *))
{
	struct sg_op **last;
	int n = 0, i = 0;
	for (struct CUstream_st *s = streams; s; s = s->next)
		n++;
	last = calloc(n + 1, sizeof *last);
	for (struct CUstream_st *s = streams; s; s = s->next) {
		if (s->ctx != ctx || !s->last || s->last->done || (which && !which(s)))
			continue;
		want(s->last); /* all at once, so that they run side by side */
		if (last)
			last[i++] = op_ref(s->last);
	}
	for (int k = 0; k < i; k++)
		wait_for(last[k]);
	free(last);
}

static bool legacy_sees(const struct CUstream_st *s)
{
	return s->is_legacy || is_blocking(s);
}

CUresult sg_ctx_drain(struct CUctx_st *ctx)
{
	pthread_mutex_lock(&sg_queue_lock);
	drain(ctx, NULL);
	pthread_mutex_unlock(&sg_queue_lock);
	return atomic_load(&ctx->sticky);
}

/* ---- work */

/* The driver has one thread for host functions, whatever their streams: one that waits for another waits for ever. */
static pthread_mutex_t host_functions = PTHREAD_MUTEX_INITIALIZER;

void sg_work_run(struct CUctx_st *ctx, const struct sg_work *work)
{
	CUresult fault;
	if (atomic_load(&ctx->sticky)) /* nothing runs on a poisoned context */
		return;
	switch (work->kind) {
	case OP_NOTHING:
		break;
	case OP_COPY:
		sg_copy_run(ctx, work);
		break;
	case OP_MEMSET:
		sg_memset_run(ctx, work);
		break;
	case OP_HOSTFN:
		pthread_mutex_lock(&host_functions);
		sg_in_stream = true;
		work->host.fn(work->host.arg);
		sg_in_stream = false;
		pthread_mutex_unlock(&host_functions);
		break;
	case OP_KERNEL:
		fault = sg_fault_op(SG_FAULT_KERNEL);
		if (fault) {
			sg_ctx_poison(ctx, fault);
			break;
		}
		sg_in_stream = true;
		work->kernel.fn(&work->kernel.cfg, work->kernel.params);
		sg_in_stream = false;
		break;
	case OP_GRAPH:
		sg_graph_run(ctx, work->graph);
		break;
	case OP_FREE:
		sg_pool_freed(work->freed);
		break;
	}
}

void sg_work_free(struct sg_work *work)
{
	if (work->kind == OP_COPY)
		free(work->copy.staged);
	if (work->kind == OP_KERNEL)
		free(work->kernel.params);
	if (work->kind == OP_GRAPH)
		sg_graph_unref(work->graph);
	work->kind = OP_NOTHING;
}

CUresult sg_stream_device(CUstream handle, int *device)
{
	struct CUstream_st *s;
	pthread_mutex_lock(&sg_queue_lock);
	CUresult r = sg_stream_of(sg_current(), handle, &s);
	if (!r && s->capture)
		r = CUDA_ERROR_NOT_SUPPORTED;
	if (!r)
		*device = s->ctx->device;
	pthread_mutex_unlock(&sg_queue_lock);
	return r;
}

static CUresult submit_locked(CUstream handle, struct sg_work *work, int flags, struct CUctx_st **ran_on, bool *taken)
{
	struct CUstream_st *s;
	struct CUctx_st *ctx = sg_current();
	CUresult r = sg_stream_of(ctx, handle, &s);
	if (r)
		return r;
	if ((flags & SG_SAME_CTX) && s->ctx != ctx)
		return CUDA_ERROR_INVALID_HANDLE;
	if (atomic_load(&s->ctx->sticky))
		return atomic_load(&s->ctx->sticky);
	if (s->capture) {
		*taken = true;
		return sg_capture_add(s, work);
	}
	if (s->is_legacy) {
		r = sg_capture_legacy(s->ctx, true);
		if (r)
			return r;
	}
	struct sg_op *op = enqueue(s, work, NULL);
	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*taken = true;
	*ran_on = s->ctx;
	if (flags & SG_WAIT)
		wait_for(op_ref(op));
	return CUDA_SUCCESS;
}

CUresult sg_submit(CUstream handle, struct sg_work *work, int flags)
{
	struct CUctx_st *ran_on = NULL;
	bool taken = false;
	pthread_mutex_lock(&sg_queue_lock);
	CUresult r = submit_locked(handle, work, flags, &ran_on, &taken);
	pthread_mutex_unlock(&sg_queue_lock);
	if (!taken)
		sg_work_free(work);
	if (!r && ran_on && (flags & SG_WAIT))
		r = atomic_load(&ran_on->sticky);
	return r;
}

/* ---- driver calls: streams */

static CUresult create(CUstream *stream, unsigned flags, int priority)
{
	struct CUctx_st *ctx = sg_current();
	if (!stream || (flags & ~CU_STREAM_NON_BLOCKING))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sg_queue_lock);
	struct CUstream_st *s = atomic_load(&ctx->alive) ? new_stream(ctx, flags, priority) : NULL;
	pthread_mutex_unlock(&sg_queue_lock);
	if (!s)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*stream = s;
	return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	GATE(cuStreamCreate, NEED_CTX);
	return create(stream, flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
	GATE(cuStreamCreateWithPriority, NEED_CTX);
	return create(stream, flags, priority > 0 ? 0 : priority < -5 ? -5 : priority);
}

/* Work still queued is done first; the call does not wait for it. */
CUresult cuStreamDestroy_v2(CUstream stream)
{
	GATE(cuStreamDestroy_v2, NEED_CTX);
	CUresult r = CUDA_SUCCESS;
	if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&sg_queue_lock);
	if (stream->magic != STREAM_MAGIC)
		r = CUDA_ERROR_INVALID_HANDLE;
	else
		close_stream(stream);
	pthread_mutex_unlock(&sg_queue_lock);
	return r;
}

/* What both waiting and asking are refused for. Needs sg_queue_lock. */
static CUresult may_sync(CUstream handle, struct CUstream_st **s)
{
	CUresult r = sg_stream_of(sg_current(), handle, s);
	if (!r)
		r = sg_capture_sync_stream(*s);
	if (!r && (*s)->is_legacy)
		r = sg_capture_legacy((*s)->ctx, true);
	return r;
}

CUresult cuStreamSynchronize(CUstream stream)
{
	GATE(cuStreamSynchronize, NEED_CTX);
	struct CUstream_st *s;
	struct CUctx_st *ctx = NULL;
	pthread_mutex_lock(&sg_queue_lock);
	CUresult r = may_sync(stream, &s);
	if (!r) {
		ctx = s->ctx;
		if (s->is_legacy)
			drain(ctx, legacy_sees);
		else if (s->last)
			wait_for(op_ref(s->last));
	}
	pthread_mutex_unlock(&sg_queue_lock);
	if (!r)
		sg_pool_synchronized(ctx);
	return r ? r : (CUresult)atomic_load(&ctx->sticky);
}

/* Asking is also wanting: else a caller that polls would wait for ever. */
static bool idle(struct CUstream_st *s)
{
	if (!s->last || s->last->done)
		return true;
	want(s->last);
	return false;
}

CUresult cuStreamQuery(CUstream stream)
{
	GATE(cuStreamQuery, NEED_CTX);
	struct CUstream_st *s;
	pthread_mutex_lock(&sg_queue_lock);
	CUresult r = may_sync(stream, &s);
	if (!r && !idle(s))
		r = CUDA_ERROR_NOT_READY;
	if (!r && s->is_legacy)
		for (struct CUstream_st *o = streams; o; o = o->next)
			if (o->ctx == s->ctx && legacy_sees(o) && !idle(o))
				r = CUDA_ERROR_NOT_READY;
	if (!r)
		r = atomic_load(&s->ctx->sticky);
	pthread_mutex_unlock(&sg_queue_lock);
	return r;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
	GATE(cuStreamWaitEvent, NEED_CTX);
	struct CUstream_st *s;
	struct sg_work nothing = {.kind = OP_NOTHING};
	bool handled = false;
	if (!event || flags > 1)
		return event ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&sg_queue_lock);
	CUresult r = sg_stream_of(sg_current(), stream, &s);
	if (!r && event->magic != EVENT_MAGIC)
		r = CUDA_ERROR_INVALID_HANDLE;
	if (!r)
		r = sg_capture_wait(s, event, &handled);
	if (!r && !handled && s->is_legacy)
		r = sg_capture_legacy(s->ctx, true);
	if (!r && !handled && event->recorded && !event->recorded->done && !enqueue(s, &nothing, event->recorded))
		r = CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_unlock(&sg_queue_lock);
	return r;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *ctx)
{
	GATE(cuStreamGetCtx, NEED_CTX);
	struct CUstream_st *s;
	if (!ctx)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sg_queue_lock);
	CUresult r = sg_stream_of(sg_current(), stream, &s);
	if (!r)
		*ctx = s->ctx;
	pthread_mutex_unlock(&sg_queue_lock);
	return r;
}

CUresult cuStreamGetFlags(CUstream stream, unsigned int *flags)
{
	GATE(cuStreamGetFlags, NEED_CTX);
	struct CUstream_st *s;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sg_queue_lock);
	CUresult r = sg_stream_of(sg_current(), stream, &s);
	if (!r)
		*flags = s->flags;
	pthread_mutex_unlock(&sg_queue_lock);
	return r;
}

CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
	GATE(cuStreamGetPriority, NEED_CTX);
	struct CUstream_st *s;
	if (!priority)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sg_queue_lock);
	CUresult r = sg_stream_of(sg_current(), stream, &s);
	if (!r)
		*priority = s->priority;
	pthread_mutex_unlock(&sg_queue_lock);
	return r;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *data)
{
	GATE(cuLaunchHostFunc, NEED_CTX);
	struct sg_work w = {.kind = OP_HOSTFN, .host = {fn, data}};
	return fn ? sg_submit(stream, &w, 0) : CUDA_ERROR_INVALID_VALUE;
}

/* ---- driver calls: events */

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
	GATE(cuEventCreate, NEED_CTX);
	if (!event || (flags & ~7u) || ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sg_queue_lock);
	struct CUevent_st *e = event_pool;
	if (e)
		event_pool = e->next;
	else
		e = calloc(1, sizeof *e);
	if (e) {
		memset(e, 0, sizeof *e);
		e->magic = EVENT_MAGIC;
		e->flags = flags;
		e->ctx = sg_current();
	}
	pthread_mutex_unlock(&sg_queue_lock);
	*event = e;
	return e ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void forget_record(struct CUevent_st *e)
{
	if (e->recorded)
		op_unref(e->recorded);
	e->recorded = NULL;
	sg_capture_event_clear(e);
}

CUresult cuEventDestroy_v2(CUevent event)
{
	GATE(cuEventDestroy_v2, NEED_CTX);
	CUresult r = CUDA_ERROR_INVALID_HANDLE;
	if (!event)
		return r;
	pthread_mutex_lock(&sg_queue_lock);
	if (event->magic == EVENT_MAGIC) {
		forget_record(event);
		event->magic = 0;
		event->next = event_pool;
		event_pool = event;
		r = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&sg_queue_lock);
	return r;
}

static CUresult record_locked(CUevent event, CUstream stream)
{
	struct CUstream_st *s;
	struct sg_work nothing = {.kind = OP_NOTHING};
	CUresult r = sg_stream_of(sg_current(), stream, &s);
	if (r)
		return r;
	if (event->magic != EVENT_MAGIC || event->ctx != s->ctx)
		return CUDA_ERROR_INVALID_HANDLE;
	if (s->capture)
		return sg_capture_record(event, s);
	if (s->is_legacy) {
		r = sg_capture_legacy(s->ctx, true);
		if (r)
			return r;
	}
	struct sg_op *op = enqueue(s, &nothing, NULL);
	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	forget_record(event);
	event->recorded = op_ref(op);
	return CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream stream)
{
	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&sg_queue_lock);
	CUresult r = record_locked(event, stream);
	pthread_mutex_unlock(&sg_queue_lock);
	return r;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	GATE(cuEventRecord, NEED_CTX);
	return record(event, stream);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
	GATE(cuEventRecordWithFlags, NEED_CTX);
	return flags > 1 ? CUDA_ERROR_INVALID_VALUE : record(event, stream);
}

/* Waits for the record, or asks for it. */
static CUresult event_sync(CUevent event, bool wait)
{
	struct CUctx_st *ctx = NULL;
	if (!event)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&sg_queue_lock);
	CUresult r = event->magic == EVENT_MAGIC ? sg_capture_event_used(event) : CUDA_ERROR_INVALID_HANDLE;
	if (!r) {
		struct sg_op *op = event->recorded;
		ctx = event->ctx;
		if (op && !op->done && wait) {
			wait_for(op_ref(op));
		} else if (op && !op->done) {
			want(op);
			r = CUDA_ERROR_NOT_READY;
		}
	}
	pthread_mutex_unlock(&sg_queue_lock);
	return r ? r : (CUresult)atomic_load(&ctx->sticky);
}

CUresult cuEventQuery(CUevent event)
{
	GATE(cuEventQuery, NEED_CTX);
	return event_sync(event, false);
}

CUresult cuEventSynchronize(CUevent event)
{
	GATE(cuEventSynchronize, NEED_CTX);
	CUresult r = event_sync(event, true);
	if (!r)
		sg_pool_synchronized(sg_current());
	return r;
}

static CUresult elapsed(float *ms, CUevent start, CUevent end)
{
	CUresult r = CUDA_SUCCESS;
	if (!ms)
		return CUDA_ERROR_INVALID_VALUE;
	if (!start || !end)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&sg_queue_lock);
	if (start->magic != EVENT_MAGIC || end->magic != EVENT_MAGIC || !start->recorded || !end->recorded ||
	    ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
		r = CUDA_ERROR_INVALID_HANDLE;
	else if (!start->recorded->done || !end->recorded->done)
		r = CUDA_ERROR_NOT_READY;
	else
		*ms = ((double)end->recorded->done_ns - (double)start->recorded->done_ns) / 1e6;
	pthread_mutex_unlock(&sg_queue_lock);
	return r;
}

CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
	GATE(cuEventElapsedTime, NEED_CTX);
	return elapsed(ms, start, end);
}

CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end)
{
	GATE(cuEventElapsedTime_v2, NEED_CTX);
	return elapsed(ms, start, end);
}
