/* Stream capture and graphs.
 *
 * While a stream captures, work given to it becomes a node instead. A node follows those its stream had reached, its frontier;
 * an event carries a frontier to another stream, which thereby joins the capture. When the capture ends, every node must lead to
 * the frontier of the stream it began in.
 *
 * What a capture forbids, to whom, and that a refused call also ends the capture: as a real driver answers (capture_matrix in
 * tests/parity.real). */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

struct node {
	struct sg_work work;
	int *follows;
	int nfollows;
};

struct CUgraph_st {
	int refs;
	struct CUctx_st *ctx;
	struct node *nodes; /* in the order they were recorded, which is an order they can run in */
	int nnodes, cap;
};

struct sg_capture {
	uint64_t id; /* never 0 */
	CUstreamCaptureMode mode;
	uint64_t thread; /* that began it */
	bool invalid;
	struct CUstream_st *origin;
	struct CUgraph_st *graph;
	struct sg_capture *next;
};

struct CUgraphExec_st {
	struct CUgraph_st *graph;
};

static struct sg_capture *captures; /* running ones; sg_queue_lock */
static uint64_t last_id;
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* ---- graphs; the count needs sg_queue_lock */

struct CUgraph_st *sg_graph_ref(struct CUgraph_st *g)
{
	pthread_mutex_lock(&sg_queue_lock);
	g->refs++;
	pthread_mutex_unlock(&sg_queue_lock);
	return g;
}

static void drop_graph(struct CUgraph_st *g)
{
	if (--g->refs)
		return;
	for (int i = 0; i < g->nnodes; i++) {
		struct sg_work *w = &g->nodes[i].work;
		if (w->kind == OP_GRAPH)
			drop_graph(w->graph);
		else
			sg_work_free(w);
		free(g->nodes[i].follows);
	}
	free(g->nodes);
	free(g);
}

void sg_graph_unref(struct CUgraph_st *g)
{
	pthread_mutex_lock(&sg_queue_lock);
	drop_graph(g);
	pthread_mutex_unlock(&sg_queue_lock);
}

void sg_graph_run(struct CUctx_st *ctx, struct CUgraph_st *g)
{
	for (int i = 0; i < g->nnodes; i++)
		sg_work_run(ctx, &g->nodes[i].work);
}

static bool add_node(struct CUgraph_st *g, struct sg_work *work, const int *follows, int nfollows)
{
	if (g->nnodes == g->cap) {
		int n = g->cap ? 2 * g->cap : 16;
		struct node *more = realloc(g->nodes, n * sizeof *more);
		if (!more)
			return false;
		g->nodes = more;
		g->cap = n;
	}
	struct node *node = &g->nodes[g->nnodes];
	*node = (struct node){.work = *work, .follows = malloc((nfollows + 1) * sizeof(int)), .nfollows = nfollows};
	if (!node->follows)
		return false;
	if (nfollows)
		memcpy(node->follows, follows, nfollows * sizeof(int));
	g->nnodes++;
	return true;
}

/* ---- frontiers */

static void set_frontier(int **to, int *nto, const int *from, int nfrom)
{
	free(*to);
	*to = NULL;
	*nto = 0;
	if (!nfrom)
		return;
	*to = malloc(nfrom * sizeof(int));
	if (*to) {
		memcpy(*to, from, nfrom * sizeof(int));
		*nto = nfrom;
	}
}

static void merge_frontier(struct CUstream_st *s, const int *from, int nfrom)
{
	for (int i = 0; i < nfrom; i++) {
		bool there = false;
		for (int k = 0; k < s->nfrontier; k++)
			there |= s->frontier[k] == from[i];
		if (there)
			continue;
		int *more = realloc(s->frontier, (s->nfrontier + 1) * sizeof(int));
		if (!more)
			return;
		s->frontier = more;
		s->frontier[s->nfrontier++] = from[i];
	}
}

static bool all_joined(const struct sg_capture *c)
{
	int n = c->graph->nnodes;
	char *reached = calloc(n + 1, 1);
	bool all = reached != NULL;
	if (!all)
		return false;
	for (int i = 0; i < c->origin->nfrontier; i++)
		reached[c->origin->frontier[i]] = 1;
	for (int i = n - 1; i >= 0; i--) /* a node follows earlier ones only */
		for (int k = 0; reached[i] && k < c->graph->nodes[i].nfollows; k++)
			reached[c->graph->nodes[i].follows[k]] = 1;
	for (int i = 0; i < n; i++)
		all &= reached[i];
	free(reached);
	return all;
}

/* ---- captures */

static struct sg_capture *capture_by_id(uint64_t id)
{
	struct sg_capture *c = captures;
	while (c && c->id != id)
		c = c->next;
	return c;
}

static void leave(struct CUstream_st *s)
{
	s->capture = NULL;
	free(s->frontier);
	s->frontier = NULL;
	s->nfrontier = 0;
}

/* Ends it for all its streams. The caller has the graph. */
static void end(struct sg_capture *c)
{
	struct sg_capture **at = &captures;
	for (struct CUstream_st *s = sg_streams(); s; s = s->next)
		if (s->capture == c)
			leave(s);
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	free(c);
}

static void discard(struct sg_capture *c)
{
	struct CUgraph_st *g = c->graph;
	end(c);
	drop_graph(g);
}

/* What this thread's mode lets a capture forbid (cuThreadExchangeStreamCaptureMode). */
static bool forbids(const struct sg_capture *c)
{
	bool mine = c->thread == sg_thread_id();
	if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED || c->mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	if (c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL)
		return true;
	return mine;
}

static CUresult unsafe_locked(void)
{
	CUresult r = CUDA_SUCCESS;
	for (struct sg_capture *c = captures; c; c = c->next)
		if (forbids(c)) {
			c->invalid = true;
			r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	return r;
}

CUresult sg_capture_unsafe(void)
{
	pthread_mutex_lock(&sg_queue_lock);
	CUresult r = unsafe_locked();
	pthread_mutex_unlock(&sg_queue_lock);
	return r;
}

CUresult sg_capture_ctx_sync(struct CUctx_st *ctx)
{
	CUresult r = CUDA_SUCCESS;
	for (struct sg_capture *c = captures; c; c = c->next)
		if (c->graph->ctx == ctx) {
			c->invalid = true;
			r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	return r ? r : unsafe_locked();
}

CUresult sg_capture_legacy(struct CUctx_st *ctx, bool invalidate)
{
	CUresult r = CUDA_SUCCESS;
	for (struct CUstream_st *s = sg_streams(); s; s = s->next)
		if (s->ctx == ctx && s->capture && !(s->flags & CU_STREAM_NON_BLOCKING)) {
			if (invalidate)
				s->capture->invalid = true;
			r = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
		}
	return r;
}

CUresult sg_capture_sync_stream(struct CUstream_st *s)
{
	if (!s->capture)
		return unsafe_locked();
	s->capture->invalid = true;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult sg_capture_add(struct CUstream_st *s, struct sg_work *work)
{
	struct sg_capture *c = s->capture;
	if (work->kind == OP_COPY) { /* a node reads its source when it is launched */
		free(work->copy.staged);
		work->copy.staged = NULL;
	}
	if (c->invalid || !add_node(c->graph, work, s->frontier, s->nfrontier)) {
		CUresult r = c->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_OUT_OF_MEMORY;
		if (work->kind == OP_GRAPH)
			drop_graph(work->graph);
		else
			sg_work_free(work);
		return r;
	}
	int last = c->graph->nnodes - 1;
	set_frontier(&s->frontier, &s->nfrontier, &last, 1);
	return CUDA_SUCCESS;
}

CUresult sg_capture_record(struct CUevent_st *e, struct CUstream_st *s)
{
	if (s->capture->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	e->capture_id = s->capture->id;
	set_frontier(&e->frontier, &e->nfrontier, s->frontier, s->nfrontier);
	return CUDA_SUCCESS;
}

void sg_capture_event_clear(struct CUevent_st *e)
{
	e->capture_id = 0;
	set_frontier(&e->frontier, &e->nfrontier, NULL, 0);
}

CUresult sg_capture_wait(struct CUstream_st *s, struct CUevent_st *e, bool *handled)
{
	struct sg_capture *c = e->capture_id ? capture_by_id(e->capture_id) : NULL;
	if (!s->capture && !e->capture_id)
		return CUDA_SUCCESS;
	*handled = true;
	if (s->capture && s->capture->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (!e->capture_id) {
		if (!e->recorded)
			return CUDA_SUCCESS;
		s->capture->invalid = true; /* a captured stream cannot wait for work outside */
		return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	}
	if (!c) /* its capture is over */
		return s->capture ? CUDA_ERROR_STREAM_CAPTURE_ISOLATION : CUDA_ERROR_INVALID_VALUE;
	if (c->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (s->capture && s->capture != c) {
		s->capture->invalid = c->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_MERGE;
	}
	if (s->is_legacy) {
		c->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	s->capture = c;
	merge_frontier(s, e->frontier, e->nfrontier);
	return CUDA_SUCCESS;
}

CUresult sg_capture_event_used(struct CUevent_st *e)
{
	struct sg_capture *c = e->capture_id ? capture_by_id(e->capture_id) : NULL;
	if (c) {
		c->invalid = true;
		return CUDA_ERROR_CAPTURED_EVENT;
	}
	return e->capture_id ? CUDA_ERROR_INVALID_VALUE : unsafe_locked();
}

void sg_capture_stream_gone(struct CUstream_st *s)
{
	struct sg_capture *c = s->capture;
	if (!c)
		return;
	if (c->origin == s) {
		discard(c);
	} else {
		c->invalid = true;
		leave(s);
	}
}

/* ---- driver calls */

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	GATE(cuThreadExchangeStreamCaptureMode, NEED_INIT);
	if (!mode || (int)*mode < 0 || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	CUstreamCaptureMode was = thread_mode;
	thread_mode = *mode;
	*mode = was;
	return CUDA_SUCCESS;
}

static CUresult begin(struct CUstream_st *s, CUstreamCaptureMode mode)
{
	if (s->is_legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (s->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	struct sg_capture *c = calloc(1, sizeof *c);
	struct CUgraph_st *g = calloc(1, sizeof *g);
	if (!c || !g) {
		free(c);
		free(g);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	g->refs = 1;
	g->ctx = s->ctx;
	*c = (struct sg_capture){.id = ++last_id, .mode = mode, .thread = sg_thread_id(), .origin = s, .graph = g,
				 .next = captures};
	captures = c;
	s->capture = c;
	return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
	GATE(cuStreamBeginCapture_v2, NEED_CTX);
	struct CUstream_st *s;
	if ((int)mode < 0 || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sg_queue_lock);
	CUresult r = sg_stream_of(sg_current(), stream, &s);
	if (!r)
		r = begin(s, mode);
	pthread_mutex_unlock(&sg_queue_lock);
	return r;
}

static CUresult end_capture(struct CUstream_st *s, CUgraph *graph)
{
	struct sg_capture *c = s->capture;
	CUresult r = CUDA_SUCCESS;
	if (!c)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (c->origin != s) {
		c->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	}
	if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != sg_thread_id())
		r = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	else if (c->invalid)
		r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	else if (!all_joined(c))
		r = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	if (r) {
		discard(c);
		return r;
	}
	*graph = c->graph;
	end(c);
	return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	GATE(cuStreamEndCapture, NEED_CTX);
	struct CUstream_st *s;
	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = NULL;
	pthread_mutex_lock(&sg_queue_lock);
	CUresult r = sg_stream_of(sg_current(), stream, &s);
	if (!r)
		r = end_capture(s, graph);
	pthread_mutex_unlock(&sg_queue_lock);
	return r;
}

static CUresult capture_info(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph)
{
	struct CUstream_st *s;
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&sg_queue_lock);
	CUresult r = sg_stream_of(sg_current(), stream, &s);
	if (!r && s->is_legacy)
		r = sg_capture_legacy(s->ctx, false);
	if (!r) {
		*status = !s->capture		? CU_STREAM_CAPTURE_STATUS_NONE
			  : s->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
						: CU_STREAM_CAPTURE_STATUS_ACTIVE;
		if (id && s->capture)
			*id = s->capture->id;
		if (graph && s->capture)
			*graph = s->capture->graph;
	}
	pthread_mutex_unlock(&sg_queue_lock);
	return r;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	GATE(cuStreamIsCapturing, NEED_CTX);
	return capture_info(stream, status, NULL, NULL);
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id)
{
	GATE(cuStreamGetCaptureInfo, NEED_CTX);
	return capture_info(stream, status, id, NULL);
}

/* Nodes are not handles here, so the frontier is not told. */
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
				   const CUgraphNode **deps, size_t *num_deps)
{
	GATE(cuStreamGetCaptureInfo_v2, NEED_CTX);
	if (deps)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (num_deps)
		*num_deps = 0;
	return capture_info(stream, status, id, graph);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
				   const CUgraphNode **deps, const void **edges, size_t *num_deps)
{
	GATE(cuStreamGetCaptureInfo_v3, NEED_CTX);
	if (deps || edges)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (num_deps)
		*num_deps = 0;
	return capture_info(stream, status, id, graph);
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph)
{
	if (!exec || !graph)
		return CUDA_ERROR_INVALID_VALUE;
	*exec = malloc(sizeof **exec);
	if (!*exec)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*exec)->graph = sg_graph_ref(graph); /* nothing here changes a graph, so it can be shared */
	return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	GATE(cuGraphInstantiateWithFlags, NEED_CTX);
	(void)flags;
	return instantiate(exec, graph);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_size)
{
	GATE(cuGraphInstantiate_v2, NEED_CTX);
	if (error_node)
		*error_node = NULL;
	if (log && log_size)
		*log = 0;
	return instantiate(exec, graph);
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	GATE(cuGraphGetNodes, NEED_INIT);
	if (!graph || !count)
		return CUDA_ERROR_INVALID_VALUE;
	if (nodes)
		return CUDA_ERROR_NOT_SUPPORTED;
	*count = graph->nnodes;
	return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	GATE(cuGraphLaunch, NEED_CTX);
	if (!exec)
		return CUDA_ERROR_INVALID_VALUE;
	struct sg_work w = {.kind = OP_GRAPH, .graph = sg_graph_ref(exec->graph)};
	return sg_submit(stream, &w, 0);
}

CUresult cuGraphDestroy(CUgraph graph)
{
	GATE(cuGraphDestroy, NEED_INIT);
	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	sg_graph_unref(graph);
	return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	GATE(cuGraphExecDestroy, NEED_INIT);
	if (!exec)
		return CUDA_ERROR_INVALID_VALUE;
	sg_graph_unref(exec->graph);
	free(exec);
	return CUDA_SUCCESS;
}
