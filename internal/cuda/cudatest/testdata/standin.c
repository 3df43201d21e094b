// A stand-in for libcuda and libcublasLt. Device memory is the host's. As on a card, work is queued: a stream's copies, fills
// and kernels happen when something waits for them and no earlier, so that a missing wait shows as wrong data. Calls need
// the context current to their thread. Launches are checked against the limits of an RTX 3060. A captured stream's work becomes a
// graph; a replay queues copies of its nodes as they are then.
//
// The update's kernels compute what they should (float16 weights stay as they were); the loss and the embedding's gradient are toys that depend on the tokens
// alone; products and sums into gradients are zeros, which overwrite where they should; every other kernel computes nothing.
// So a run has losses and parameters that tell whether all happened in order.
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long word;
typedef int result;
enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NO_CONTEXT = 201, ILLEGAL_ADDRESS = 700, TOO_MANY = 701, CAPTURING = 900 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static __thread void *current; // the thread's context
static word total = 12ull << 30, taken, others;
static result broken; // what a failed kernel leaves behind: every later call answers it
static char failing[64];

static int refused;    // what capturing a stream answers
static word replays;   // of graphs

// What tests change: the memory that others hold, the kernel that fails when it runs, whether streams can be captured; and
// what they ask: how often a graph was replayed.
void standin_others(word n) { others = n; }
void standin_fail(const char *kernel) { strncpy(failing, kernel, sizeof failing - 1); }
void standin_refuse(int code) { refused = code; }
word standin_replays(void) { return replays; }

typedef struct { word shared; char name[64]; } function;
typedef struct stream stream;
typedef struct { stream *at; word recorded, done; } event;
typedef struct work work;
struct work {
    enum { COPY, FILL, KERNEL, RECORD } kind;
    char *dst, *src;
    word n;      // bytes; of a kernel its blocks
    word args[24]; // of a kernel; of a record its number
    void *owned; // freed with the work
    function *f;
    event *e;
    work *next;
    work *origin; // of a node that can be run, the one that it was made from
};
typedef struct graph { work *head, **tail, *last; int destroyed; } graph; // never freed, so that its use after the end shows
typedef struct { work *head; graph *from; } executable;
struct stream { work *head, **tail; stream *next; graph *capture; };
static int executables;
enum { NODE = 5000 }; // bytes of the card that a graph's node takes
static stream *streams;

typedef struct block block;
struct block { char *p; word n; int host; block *next; };
static block *blocks;

static block *find(const void *p) {
    for (block *b = blocks; b; b = b->next)
        if ((char *)p >= b->p && (char *)p < b->p + b->n) return b;
    return 0;
}

static float f32(word w) { float f; memcpy(&f, &w, 4); return f; }

// Entry of adamw.cu.
typedef struct { void *param, *master; float *m, *v; void *grad; long long n; int first, half; } entry;
// grad is an element of a gradient; one of 16 bits counts as bfloat16.
static float grad(entry *e, long long i) { return e->half ? f32((word)((unsigned short *)e->grad)[i] << 16) : ((float *)e->grad)[i]; }

// A parameter's value: whole in its master or in itself; or in two halves, as adamw.cu's Value has it.
static float whole(entry *e, long long i) { return ((float *)(e->master ? e->master : e->param))[i]; }
static void set_whole(entry *e, long long i, float x) { ((float *)(e->master ? e->master : e->param))[i] = x; }
static float halves(entry *e, long long i) { return f32((unsigned)(((unsigned short *)e->param)[i] << 16) + ((short *)e->master)[i]); }
static void set_halves(entry *e, long long i, float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    ((unsigned short *)e->param)[i] = (bits + 0x8000) >> 16;
    ((unsigned short *)e->master)[i] = bits;
}

static void update(word *a, float (*value)(entry *, long long), void (*set)(entry *, long long, float)) {
    entry *table = (entry *)a[0];
    float norm = *(float *)a[1];
    float lr = f32(a[3]), step = f32(a[4]), root = f32(a[5]), b1 = f32(a[6]), b2 = f32(a[7]), eps = f32(a[8]), decay = f32(a[9]), clip = f32(a[10]);
    if (!isfinite(norm)) return;
    float scale = 1 / f32(a[11]);
    if (clip > 0) scale *= fminf(1, clip / (norm + 1e-6f));
    for (entry *e = table; e < table + a[2]; e++)
        for (long long i = 0; i < e->n; i++) {
            float g = grad(e, i) * scale, w = value(e, i);
            e->m[i] = b1 * e->m[i] + (1 - b1) * g;
            e->v[i] = b2 * e->v[i] + (1 - b2) * g * g;
            w -= lr * decay * w;
            w -= step * (e->m[i] / (sqrtf(e->v[i]) / root + eps));
            set(e, i, w);
        }
}
static void adamw(word *a, word blocks) { update(a, whole, set_whole); }
static void adamw_split(word *a, word blocks) { update(a, halves, set_halves); }
static void norm_partial(word *a, word blocks) {
    entry *table = (entry *)a[1];
    for (word b = 0; b < blocks; b++) ((float *)a[0])[b] = 0;
    for (entry *e = table; e < table + a[2]; e++)
        for (long long i = 0; i < e->n; i++) ((float *)a[0])[e->first] += grad(e, i) * grad(e, i);
}
static void norm_final(word *a, word blocks) {
    float s = 0;
    for (int i = 0; i < (int)a[2]; i++) s += ((float *)a[1])[i];
    *(float *)a[0] = sqrtf(s) / f32(a[3]);
}
static void loss(word *a, word blocks) {
    for (int n = 0; n < (int)a[3]; n++) ((float *)a[0])[n] = 1 + 0.01f * ((int *)a[2])[n];
}
static void loss_sum(word *a, word blocks) {
    for (int i = 0; i < (int)a[2]; i++) *(float *)a[0] += ((float *)a[1])[i];
}
static void encoder_backward_wte(word *a, word vocab) {
    int C = a[8];
    float kept = (unsigned)a[10] ? 1 + 0.1f * ((a[13] * 31 + a[12]) % 7) : 1; // of a Dropout: threshold and scale, site, sample, seed
    for (int n = 0; n < (int)a[6]; n++) {
        float *row = (float *)a[0] + ((unsigned *)a[3])[n] % vocab * C; // a test may run it on tokens that nothing wrote
        for (int c = 0; c < C; c++) row[c] += 0.001f * (c % 7 + 1) * (n % 3 + 1) * kept;
    }
}

static void zeros(word p, word n, int size) { if (p) memset((void *)p, 0, n * size); }
static void encoder_backward_wpe(word *a, word blocks) { if (a[5]) zeros(a[0], a[3] * a[4], 4); }
static void layernorm_backward_weight(word *a, word blocks) { if (a[5]) zeros(a[0], a[4], 4), zeros(a[1], a[4], 4); }
static void bias_backward_sum(word *a, word blocks) { if (a[4]) zeros(a[0], a[3], 4); }
static void matmul_reduce(word *a, word blocks) { if (!a[5]) zeros(a[0], a[3], 2), zeros(a[1], a[3], 4); }
static void matmul_f32(word *a, word blocks) { if (!a[11]) zeros(a[0], a[4] * a[5], 4); }
// matmul_tn's argument is a Job: out, bias, sum, a, b, M and N, K and K of a split, accumulate.
static void matmul_tn(word *a, word blocks) {
    word mn = (a[5] & 0xffffffff) * (a[5] >> 32);
    if (!a[7]) zeros(a[0], mn, 2), zeros(a[2], mn, 4);
}

// Kernels that compute, by how their names begin, how many arguments they read, and how many words the last one has where not one.
static const struct { const char *name; void (*run)(word *, word); int args, words; } kernels[] = {
    {"adamw_split", adamw_split, 12}, {"adamw", adamw, 12}, {"norm_partial", norm_partial, 3}, {"norm_final", norm_final, 4},
    {"loss_warps", loss, 7}, {"loss_blocks", loss, 7}, {"loss_held", loss, 7}, {"loss_sum", loss_sum, 3}, {"encoder_backward_wte", encoder_backward_wte, 11, 4},
    {"encoder_backward_wpe", encoder_backward_wpe, 6}, {"layernorm_backward_weight", layernorm_backward_weight, 6},
    {"bias_backward_sum", bias_backward_sum, 5}, {"matmul_reduce", matmul_reduce, 6}, {"matmul_f32", matmul_f32, 12},
    {"matmul_tn", matmul_tn, 1, 8},
};
static int computes(function *f) {
    for (int i = 0; i < (int)(sizeof kernels / sizeof *kernels); i++)
        if (!strncmp(f->name, kernels[i].name, strlen(kernels[i].name))) return i;
    return -1;
}

// step does a stream's oldest work.
static void step(stream *s) {
    work *w = s->head;
    if (!(s->head = w->next)) s->tail = &s->head;
    if (w->kind == RECORD) w->e->done = w->args[0];
    else if (!broken) switch (w->kind) {
    case COPY: memcpy(w->dst, w->src, w->n); break;
    case FILL: memset(w->dst, (int)w->args[0], w->n); break;
    default:
        if (!strcmp(w->f->name, failing)) broken = ILLEGAL_ADDRESS;
        else if (computes(w->f) >= 0) kernels[computes(w->f)].run(w->args, w->n);
    }
    free(w->owned);
    free(w);
}
static void drain(stream *s) { while (s->head) step(s); }
static int idle(void) {
    for (stream *s = streams; s; s = s->next) if (s->head) return 0;
    return 1;
}

static work *queue(stream *s, int kind) {
    work *w = calloc(1, sizeof *w);
    w->kind = kind;
    if (s->capture) {
        *s->capture->tail = s->capture->last = w;
        s->capture->tail = &w->next;
        return w;
    }
    *s->tail = w;
    s->tail = &w->next;
    return w;
}
static int capturing(void) {
    for (stream *s = streams; s; s = s->next) if (s->capture) return 1;
    return 0;
}

// Every call but the first few holds the mutex and needs a context.
static result enter(void) { pthread_mutex_lock(&mutex); return !current ? NO_CONTEXT : broken; }
static result leave(result r) { pthread_mutex_unlock(&mutex); return r; }
#define CALL(...) { result r = enter(); if (!r) { __VA_ARGS__ } return leave(r); }

result cuInit(unsigned f) { return OK; }
result cuDriverGetVersion(int *v) { *v = 12040; return OK; }
result cuGetErrorName(result e, const char **p) {
    *p = e == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : e == TOO_MANY ? "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" : e == NO_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT"
       : e == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : e == CAPTURING ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" : "CUDA_ERROR_INVALID_VALUE";
    return OK;
}
result cuGetErrorString(result e, const char **p) { *p = e == OUT_OF_MEMORY ? "out of memory" : e == TOO_MANY ? "beyond the card's limits" : "not allowed"; return OK; }
result cuDeviceGetCount(int *n) { *n = 1; return OK; }
result cuDeviceGet(int *d, int i) { *d = i; return OK; }
result cuDeviceGetName(char *s, int n, int d) { strncpy(s, "Stand-in 3060", n); return OK; }
result cuDeviceGetAttribute(int *v, int a, int d) {
    *v = a == 75 ? 8 : a == 76 ? 6 : a == 16 ? 28 : a == 97 ? 99 << 10 : 0;
    return OK;
}
result cuDeviceTotalMem_v2(word *n, int d) { *n = total; return OK; }
result cuDeviceGetUuid(char *u, int d) { memset(u, 7, 16); return OK; }
result cuDevicePrimaryCtxRetain(void **c, int d) { *c = &total; return OK; }
result cuDevicePrimaryCtxRelease_v2(int d) { return OK; }
result cuCtxSetCurrent(void *c) { current = c; return OK; }
result cuCtxSynchronize(void) CALL(for (stream *s = streams; s; s = s->next) drain(s); r = broken;)
result cuMemGetInfo_v2(word *f, word *t) CALL(*f = total - taken - others; *t = total;)

static result take(void **p, word n, int host) {
    if (capturing()) return CAPTURING;
    if (!host && taken + others + n > total || posix_memalign(p, 256, n)) return OUT_OF_MEMORY;
    block *b = malloc(sizeof *b);
    *b = (block){*p, n, host, blocks};
    blocks = b;
    if (!host) taken += n;
    return OK;
}
// Memory that queued work or a graph may still touch must not be given back.
static result give(void *p, int host) {
    for (block **b = &blocks; *b; b = &(*b)->next) {
        block *found = *b;
        if (found->p != p || found->host != host) continue;
        if (!idle() || executables) return INVALID;
        *b = found->next;
        if (!host) taken -= found->n;
        free(p);
        free(found);
        return OK;
    }
    return INVALID;
}
result cuMemAlloc_v2(void **p, word n) CALL(r = take(p, n, 0);)
result cuMemFree_v2(void *p) CALL(r = give(p, 0);)
result cuMemAllocHost_v2(void **p, word n) CALL(r = take(p, n, 1);)
result cuMemFreeHost(void *p) CALL(r = give(p, 1);)

// Page-locked memory is read and written when the copy happens, other memory at once.
result cuMemcpyHtoDAsync_v2(void *d, const void *s, word n, stream *st) CALL(
    if (st->capture && !find(s)) return leave(CAPTURING);
    work *w = queue(st, COPY);
    w->dst = d; w->src = (char *)s; w->n = n;
    if (!find(s)) w->src = w->owned = memcpy(malloc(n), s, n);)
result cuMemcpyDtoHAsync_v2(void *d, const void *s, word n, stream *st) CALL(
    if (st->capture && !find(d)) return leave(CAPTURING);
    work *w = queue(st, COPY);
    w->dst = d; w->src = (char *)s; w->n = n;
    if (!find(d)) drain(st);)
result cuMemsetD8Async(void *d, unsigned char v, word n, stream *st) CALL(
    work *w = queue(st, FILL);
    w->dst = d; w->args[0] = v; w->n = n;)

result cuStreamCreate(stream **s, unsigned f) CALL(
    *s = calloc(1, sizeof **s);
    (*s)->tail = &(*s)->head;
    (*s)->next = streams;
    streams = *s;)
result cuStreamDestroy_v2(stream *s) CALL(
    if (s->head) return leave(INVALID);
    stream **p = &streams;
    while (*p != s) p = &(*p)->next;
    *p = s->next;
    free(s);)
result cuStreamSynchronize(stream *s) CALL(if (s->capture) return leave(CAPTURING); drain(s); r = broken;)
result cuEventCreate(event **e, unsigned f) CALL(*e = calloc(1, sizeof **e);)
result cuEventDestroy_v2(event *e) CALL(if (e->done < e->recorded) return leave(INVALID); free(e);)
result cuEventRecord(event *e, stream *s) CALL(
    if (s->capture) return leave(CAPTURING);
    work *w = queue(s, RECORD);
    w->e = e; w->args[0] = ++e->recorded;
    e->at = s;)
result cuEventSynchronize(event *e) CALL(while (e->done < e->recorded) step(e->at); r = broken;)
result cuEventElapsedTime(float *ms, event *a, event *b) CALL(if (b->done < b->recorded) return leave(INVALID); *ms = 1;)
result cuModuleLoadData(void **m, const void *image) CALL(*m = m; if (!image || !*(const char *)image) r = INVALID;)
result cuModuleUnload(void *m) { return OK; }
result cuModuleGetFunction(function **f, void *m, const char *name) CALL(
    *f = calloc(1, sizeof **f);
    (*f)->shared = 48 << 10;
    strncpy((*f)->name, name, sizeof (*f)->name - 1);
    if (!*name) r = INVALID;)
result cuFuncSetAttribute(function *f, int a, int v) CALL(if (a != 8 || v > 99 << 10) return leave(INVALID); f->shared = v;)
// give_args copies what the kernel reads of its arguments.
static void give_args(work *w, void **params) {
    int k = computes(w->f);
    for (int i = 0; k >= 0 && i < kernels[k].args; i++)
        memcpy(&w->args[i], params[i], i == kernels[k].args - 1 && kernels[k].words ? 8 * kernels[k].words : 8);
}
result cuLaunchKernel(function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                      stream *st, void **params, void **extra) CALL(
    if (!gx || gx > 2147483647u || !gy || gy > 65535 || !gz || gz > 65535 || !bx || bx > 1024 || bx % 32 || shared > f->shared) return leave(TOO_MANY);
    if (!params || !params[0]) return leave(INVALID);
    work *w = queue(st, KERNEL);
    w->f = f; w->n = gx;
    give_args(w, params);)

// Graphs. A node is known by its place in the graph that was captured, which must be there as long as it is asked for.
typedef struct { function *f; unsigned grid[3], block[3], shared; void **params, **extra; void *kern, *ctx; } node_params;
result cuStreamBeginCapture_v2(stream *s, int mode) CALL(
    if (refused || s->capture || mode != 1) return leave(refused ? refused : INVALID);
    s->capture = calloc(1, sizeof *s->capture);
    s->capture->tail = &s->capture->head;)
result cuStreamEndCapture(stream *s, graph **g) CALL(if (!s->capture) return leave(INVALID); *g = s->capture; s->capture = 0;)
result cuStreamGetCaptureInfo_v2(stream *s, int *status, word *id, graph **g, work ***nodes, word *n) CALL(
    if (!s->capture) return leave(INVALID);
    *status = 1; *nodes = &s->capture->last; *n = s->capture->last != 0;)
result cuGraphGetNodes(graph *g, work **nodes, word *n) CALL(*n = 0; for (work *w = g->head; w; w = w->next) ++*n;)
result cuGraphInstantiateWithFlags(executable **e, graph *g, word flags) CALL(
    if (g->destroyed) return leave(INVALID);
    *e = calloc(1, sizeof **e);
    (*e)->from = g;
    work **tail = &(*e)->head;
    for (work *w = g->head; w; w = w->next) {
        *tail = memcpy(malloc(sizeof *w), w, sizeof *w);
        (*tail)->origin = w; (*tail)->next = 0;
        tail = &(*tail)->next;
        taken += NODE;
    }
    executables++;)
result cuGraphExecKernelNodeSetParams_v2(executable *e, work *node, const node_params *p) CALL(
    work *w = e->head;
    while (w && w->origin != node) w = w->next;
    if (!w || e->from->destroyed || w->kind != KERNEL || w->f != p->f || w->n != p->grid[0] || p->shared > p->f->shared) return leave(INVALID);
    give_args(w, p->params);)
result cuGraphLaunch(executable *e, stream *s) CALL(
    for (work *w = e->head; w; w = w->next) {
        work *q = queue(s, w->kind);
        work *next = q->next;
        *q = *w;
        q->next = next;
    }
    replays++;)
result cuGraphExecDestroy(executable *e) CALL(
    if (!idle()) return leave(INVALID);
    for (work *w = e->head; w; w = w->next) taken -= NODE;
    e->head = 0;
    executables--;)
result cuGraphDestroy(graph *g) CALL(if (g->destroyed) return leave(INVALID); g->destroyed = 1;)

// libcublasLt: one algorithm for everything, whose products are zeros. A layout is the bytes of its matrix.
result cublasLtCreate(word *h) { *h = 1; return OK; }
result cublasLtDestroy(word h) { return OK; }
word cublasLtGetVersion(void) { return 120400; }
result cublasLtMatmulDescCreate(word *d, int c, int s) { *d = 1; return OK; }
result cublasLtMatmulDescSetAttribute(word d, int a, const void *p, word n) { return OK; }
result cublasLtMatrixLayoutCreate(word *d, int t, word r, word c, word ld) { *d = r * c * (t ? 2 : 4); return *d ? OK : INVALID; }
result cublasLtMatmulPreferenceCreate(word *p) { *p = 1; return OK; }
result cublasLtMatmulPreferenceDestroy(word p) { return OK; }
result cublasLtMatmulPreferenceSetAttribute(word p, int a, const void *b, word n) { return OK; }
result cublasLtMatmulAlgoGetHeuristic(word h, word d, word A, word B, word C, word D, word p, int n, char *r, int *found) {
    memset(r, 0, 96 * n);
    *found = 1;
    return OK;
}
result cublasLtMatmul(word h, word d, const void *al, const void *A, word a, const void *B, word b, const void *be, const void *C, word c,
                      void *D, word dd, const void *algo, void *ws, word n, stream *st) CALL(
    if (!A || !B || !D || !algo || n && !ws) return leave(INVALID);
    if (*(const float *)be) return leave(OK);
    work *w = queue(st, FILL);
    w->dst = D; w->n = dd;)
const char *cublasLtGetStatusName(result s) { return "CUBLAS_STATUS_INVALID_VALUE"; }
const char *cublasLtGetStatusString(result s) { return "an operand is missing"; }
