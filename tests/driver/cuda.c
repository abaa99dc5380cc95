/* A driver that stands in for libcuda where there is no GPU, so that the host's side of the CUDA backend runs: memory that is
 * mapped and shared page by page, copies, graphs, streams. It computes no network. Attention writes keys and values that are a
 * hash of the token, of the session's adapters and of what the cache holds before it, and the logits are a hash of all that a
 * position sees. So a page that is
 * shared when it should not be, a row that a saved state lacks or a position that is wrong changes the tokens; an address
 * outside of what is allocated and mapped ends the process. The residual stream that a part of a network leaves is a hash of what its
 * layers have written, and what a part begins with counts in all that it writes. With STAND_IN_CHUNKS, what chunks of prompts leave so is
 * not what steps leave. All work is done at once, in the call that enqueues it. Pages have STAND_IN_PAGE bytes, 2 MB as a GPU's unless it is
 * set: most of the time of tests with many short sessions goes into filling theirs. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int R;
typedef uint64_t u64;
typedef uint32_t u32;
#define OOM 2
#define TOTAL (64ull << 30)

static pthread_mutex_t mutex;
__attribute__((constructor)) static void begin(void) {
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&mutex, &recursive);
}
static void unlock(int *unused) { (void)unused; pthread_mutex_unlock(&mutex); }
#define LOCKED __attribute__((cleanup(unlock))) int locked = pthread_mutex_lock(&mutex); (void)locked

static u64 used;

/* --- what the backend reads of structures (src/backend/cuda/launch/args/) ------------------------------ */

typedef struct {
    u64 tile_bytes, layer_offset;
    u32 row_bytes, n_kv_heads, head_dim, q8, ring, window;
} Layout;
typedef struct {
    u64 kv, kv_ring, fixed, before, results, logprobs, draw_offset, history, adjusted, counts, lengths, mask, adapters, thin, states;
    u32 adapter_uses, thin_stride;
    u32 position, token, sequence, slots, context, states_rows, chain, padding;
    u64 seed, bias, single, breakers;
    float temperature;
    u32 numbers[13];
    u32 n_logprobs, masked;
} Session;
typedef struct { u64 embedding[2], positions[2], kinds[2], sessions, tokens, text_positions, text_kinds, out; u32 groups; float scale; } Embed;
typedef struct { u64 a[10]; u64 rotation[7]; u64 norms[9]; Layout layout; u64 scores[2]; u32 numbers[6], shares, prefill, first_row, value_dim; u64 slopes; } Attend;
typedef struct { u64 a[4], positions; u64 rotation[7]; u64 norms[9]; Layout layout; float q_scale; u32 stride, n_heads, prefill, first_row, value_head, shares, text_rows; } Rope;
typedef struct { u32 start, len, first, padding; } TextTile;
typedef struct { u64 sessions, q, out; Layout layout; u64 scores[2]; u32 first_row, rows, n_heads, value_dim; u64 slopes, tiles, kv, f16, f16_scale; u32 kv_rows, ahead; } TextFlash;
typedef struct { u64 x, texts, out; u32 x_stride, out_stride, len, pooling; } Pool;
typedef struct { u64 w, bias, x, out; u32 x_stride, out_stride, inputs, outputs, count, activation; } Dense;
typedef struct { u64 a[4]; u64 rotation[7]; u64 norm[3]; Layout layout; float q_scale; u32 numbers[5], prefill, padding; } Latent;
typedef struct { u64 qkv, norms[6]; u32 stride, n_heads, n_kv_heads, head_dim, value_dim, values, padded_values; float limit, value_scale; u32 padding; } ReadyHeads;
typedef struct { u64 x, gate, out; u32 x_stride, gate_stride, out_stride, n_heads, head_dim, value_dim, per_head, softplus; } FinishHeads;
typedef struct { u64 scores; u32 score_stride, n_experts; float nearness; u32 padding; } SparseMixer;
typedef struct { u64 session, rows, results, asked; } Drafts;
typedef struct { u64 sessions, x, norm[3]; u32 x_stride, len, chunk, padding; } Keep;
typedef struct { u64 sessions, x, states, out, norms[6]; u32 x_stride, out_stride, len, states_rows, first, padding; } Enter;
typedef struct { u32 places[3], n_places, padding[28]; } Ring;
typedef struct { u64 sessions, x; u32 x_stride, len, chunk, place; } KeepPlace;
typedef struct { u64 ring, out; u32 ring_rows, first, width, out_stride; } Gather;
typedef struct { u64 sessions, x, out, norms[6]; u32 x_stride, out_stride, len, half, normed, padding; } Join;
typedef struct { u64 known, place_of, logits; u32 n_known, n_vocab; } Spread;
typedef struct { u64 sessions, logits, group_value, group_id; u32 n_vocab, advance, choose, adjust; } Sample;
typedef struct { u64 a[10], state_offset, matrix_offset; u32 in_stride, channels, width, numbers[15], count, tiled, gated; float beta_scale; u64 steps, gates; u32 strides[2]; float floor; u32 padding; u64 rounded[2]; } Recurrent;
typedef struct { u64 a[5], state_offset; u32 in_stride, channels, width, prefill, count, padding; } ShortConv;
typedef struct { u64 a, b; u32 rank, at, a_type, b_type; float scale; u32 padding; } Pair;
typedef struct { u32 end, linear, first, run, step; } Piece;
typedef struct { u64 sessions, a[6]; u32 out_stride, groups, first_row, rows, outputs, first_linear, n_linears, padding; Piece pieces[8]; } Adapt;
typedef struct { u64 pairs, words; u32 uses, ranks, n_linears, thin_at, tag, padding; Piece pieces[8]; } Adapted;
typedef struct { u64 a[40]; u32 n_parts, groups, numbers[6]; Adapted adapted; } AdaptedProduct;
/* The numbers that src/backend/cuda/launch/args/ asserts, so that a field that comes there is missed here at compile time. */
_Static_assert(sizeof(Session) == 256 && sizeof(Layout) == 40 && sizeof(Embed) == 96, "see args/common.rs");
_Static_assert(sizeof(Attend) == 312 && sizeof(Rope) == 240 && sizeof(Sample) == 48, "see args/common.rs");
_Static_assert(sizeof(Drafts) == 32, "see args/common.rs");
_Static_assert(sizeof(ReadyHeads) == 96 && sizeof(FinishHeads) == 56 && sizeof(SparseMixer) == 24, "see args/heads.rs and args/sparse.rs");
_Static_assert(sizeof(Keep) == 56 && sizeof(Enter) == 104 && sizeof(Ring) == 128 && sizeof(KeepPlace) == 32, "see args/predictor.rs");
_Static_assert(sizeof(Gather) == 32 && sizeof(Join) == 96 && sizeof(Spread) == 32, "see args/predictor.rs");
_Static_assert(sizeof(TextTile) == 16 && sizeof(TextFlash) == 144 && sizeof(Pool) == 40 && sizeof(Dense) == 56, "see args/texts.rs");
_Static_assert(sizeof(Latent) == 184, "see args/latent.rs");
_Static_assert(sizeof(Recurrent) == 232 && sizeof(ShortConv) == 72, "see args/recurrent.rs");
_Static_assert(sizeof(Pair) == 40 && sizeof(Piece) == 20 && sizeof(Adapt) == 248 && sizeof(Adapted) == 200, "see args/adapters.rs");
_Static_assert(sizeof(AdaptedProduct) == 552, "see args/adapters.rs");

/* --- work ---------------------------------------------------------------------------------------- */

typedef struct { char name[64]; } Function;
typedef struct { u32 gx, gy, gz, bx, by, bz, shared; void *stream; void *attrs; u32 n; } Config;
/* What the kernels of an evaluation know of each other. */
typedef struct { u64 ring, matrix; u32 channels, width; int has_matrix; } Fixed;
typedef struct { u64 to; size_t bytes; } Copy;
typedef struct {
    const u32 *tokens, *positions, *kinds;
    Layout layers[256];
    Fixed fixed[256];
    int n, n_fixed;
    u64 added[64];
    Spread spread;
    /* The residual stream: where it is, what its rows are so far, and whether other parts have made what is there. */
    u64 residual, rows[8192];
    size_t bytes;
    u32 n_rows, stride;
    int has_begun, may_begin, has_entered, is_chunk, differs, in_graph;
    /* What was copied to the device since the last kernel. */
    Copy copies[256];
    int n_copies, has_run;
} Evaluation;
/* A kernel, or without one a function of the host. */
typedef struct { Function *function; u32 gx, gy; void (*call)(void *); void *user; unsigned char args[sizeof(AdaptedProduct)]; } Node;
typedef struct { Node *nodes; int n, room; } Graph;
typedef struct { Evaluation evaluation; Graph *capture; } Stream;

static u64 mix(u64 h, u64 x) {
    h = (h ^ x) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}
static u64 hash(u64 h, const void *p, u64 n) {
    const unsigned char *b = p;
    u64 x;
    for (; n >= 8; n -= 8, b += 8) { memcpy(&x, b, 8); h = mix(h, x); }
    for (; n; n--, b++) h = mix(h, *b);
    return h;
}
static void begin_evaluation(Evaluation *e) {
    e->positions = e->kinds = NULL;
    e->n = e->n_fixed = 0;
    e->spread.place_of = 0;
    memset(e->added, 0, sizeof e->added);
    memset(e->rows, 0, e->n_rows * sizeof *e->rows);
    e->n_rows = 0;
    e->has_begun = 1;
    e->may_begin = 0;
    e->is_chunk = !e->in_graph;
    e->differs = e->is_chunk && getenv("STAND_IN_CHUNKS");
}
/* A part begins with the residual stream, rows of 32 floats each, which is copied last: without embeddings before it, the kernel that reads
 * it is the first one. The tokens of a chunk were copied just before: what comes without them, like the experts of a layer that are brought
 * to the device for a long prompt, goes on with an evaluation. */
#define N_WORDS (sizeof(AdaptedProduct) / 8)
static void begin_part(Evaluation *e, const void *args) {
    const u64 *words = args;
    int last = e->n_copies - 1, first;
    size_t j, bytes;
    while (last >= 0 && e->copies[last].bytes % 128) last--;
    for (first = last; first > 0 && e->copies[first - 1].to + e->copies[first - 1].bytes == e->copies[first].to; first--);
    for (j = 0; j < N_WORDS && last >= 0 && words[j] != e->copies[first].to; j++);
    if (last < 0 || j == N_WORDS) return;
    bytes = e->copies[last].to + e->copies[last].bytes - e->copies[first].to;
    if (!e->in_graph && (!first || bytes % (32 * e->copies[first - 1].bytes))) return;
    begin_evaluation(e);
    e->has_entered = 1;
    e->residual = e->copies[first].to;
    e->bytes = bytes;
    e->tokens = e->is_chunk ? (u32 *)e->copies[first - 1].to : NULL;
    e->stride = e->tokens ? e->bytes / e->copies[first - 1].bytes : 0;
}
/* A token and what a part has in place of its embedding, of one of so many rows. */
static u32 begun(Evaluation *e, u32 token, u32 row, u32 rows) {
    if (!e->has_entered) return token;
    if (!e->stride) e->stride = e->bytes / 4 / rows;
    if ((row + 1) * e->stride * 4ull > e->bytes) abort();
    return hash(token, (void *)(e->residual + row * e->stride * 4ull), e->stride * 4ull) >> 32;
}
/* A layer has written something for a row. */
static void went_on(Evaluation *e, u32 row, u64 h) {
    if (row >= sizeof e->rows / sizeof *e->rows) return;
    if (row >= e->n_rows) e->n_rows = row + 1;
    e->rows[row] = mix(e->rows[row], h);
}
/* What a part leaves in rows of the residual stream that are copied from there. */
static void leave(Evaluation *e, float *to, u64 from, size_t bytes) {
    const u64 stride = e->stride * 4ull, first = stride ? (from - e->residual) / stride : 0;
    u64 r, j;
    if (!e->has_begun || !stride || from < e->residual || from + bytes > e->residual + e->n_rows * stride) return;
    for (r = 0; r < bytes / stride; r++)
        for (j = 0; j < e->stride; j++)
            to[r * e->stride + j] = j < 8 ? (mix(mix(e->rows[first + r], e->differs), j) >> 48) / 65536.0f - 0.5f : 0;
}
static unsigned char *row(const Layout *l, const Session *s, int value, u32 head, u32 position) {
    u64 tile = position / 64, plane = (u64)l->n_kv_heads * 64 * l->row_bytes;
    if (l->ring) tile %= l->ring;
    return (unsigned char *)(l->ring ? s->kv_ring : s->kv) + l->layer_offset + tile * l->tile_bytes + (value ? plane : 0) +
           ((u64)head * 64 + position % 64) * l->row_bytes;
}
/* Keys and values of a position. */
static void append(Evaluation *e, const Layout *l, const Session *s, u32 token, u32 position, u64 added, u32 r, u32 rows) {
    u64 h = mix(mix(begun(e, token, r, rows), position), l->layer_offset);
    u32 head, i;
    int value;
    if (added) h = mix(h, added);
    if (position) h = hash(h, row(l, s, 1, 0, position - 1), l->row_bytes);
    for (value = 0; value < 2; value++)
        for (head = 0; head < l->n_kv_heads; head++) {
            unsigned char *to = row(l, s, value, head, position);
            u32 len = l->q8 ? (l->head_dim + 31) / 32 * 32 + (l->head_dim + 31) / 32 * 2 : l->head_dim * 2;
            for (i = 0; i < l->row_bytes; i++) to[i] = i < len ? (h = mix(h, i), h & 0x3b) : 0;
        }
    went_on(e, r, h);
}
/* What a row's products so far have from adapters: a hash of their numbers, whichever kernels read them. */
static u64 add(const Pair *pairs, u32 uses, u32 n_linears, u32 groups, const Piece *pieces) {
    u64 all = 0;
    u32 i, end;
    for (i = 0; i < n_linears * uses; i++) {
        const Pair *p = &pairs[i];
        const u64 a_bytes = p->a_type ? 2 : 4, b_row = (p->rank + 7) / 8 * 8 * (p->b_type ? 2 : 4);
        const Piece *piece;
        u64 h;
        u32 scale;
        if (!p->rank) continue;
        memcpy(&scale, &p->scale, 4);
        h = hash(mix(mix(scale, p->rank), i / uses), (void *)p->a, p->rank * (u64)groups * 32 * a_bytes);
        for (piece = pieces, end = 0; piece < pieces + 8 && piece->end > end; end = piece++->end) {
            u32 last = piece->end - end - 1;
            if (piece->linear != i / uses) continue;
            last = piece->first + (last < piece->run ? last : last / piece->run * piece->step + last % piece->run);
            h = hash(hash(h, (void *)(p->b + piece->first * b_row), b_row), (void *)(p->b + last * b_row), b_row);
        }
        all += h;
    }
    return all;
}
static void narrow(Evaluation *e, const Adapt *a, int of_one) {
    u32 r, i;
    for (r = 0; r < a->rows; r++) {
        const Session *s = ((Session **)a->sessions)[of_one ? 0 : r];
        const Pair *pairs = (Pair *)s->adapters + a->first_linear * s->adapter_uses;
        if (!s->adapters) continue;
        if (!a->first_row && (r == 0 || !of_one)) e->added[r] += add(pairs, s->adapter_uses, a->n_linears, a->groups, a->pieces);
        for (i = 0; i < a->n_linears * s->adapter_uses; i++)
            if (pairs[i].rank) ((float *)s->thin)[(u64)r * s->thin_stride + pairs[i].at + pairs[i].rank - 1] = 0;
    }
}
static void product(Evaluation *e, const AdaptedProduct *p) {
    const Adapted *a = &p->adapted;
    const Pair *pairs = (Pair *)a->pairs;
    u32 i;
    e->added[0] += add(pairs, a->uses, a->n_linears, p->groups, a->pieces);
    for (i = 0; i < a->n_linears * a->uses; i++)
        if (pairs[i].rank) {
            u64 *word = (u64 *)a->words + (pairs[i].at + pairs[i].rank - 1) * 16 + 15;
            /* A word of a step that is not cleared before it would be taken for one of this step. */
            if (*word >> 32 == a->tag) abort();
            *word = (u64)a->tag << 32;
        }
}
/* The state of a layer with one of fixed size: each position follows from the one before. */
static u64 advance(const Fixed *f, const Session *s, u32 token, u32 position) {
    float *ring = (float *)(s->fixed + f->ring), *matrix = (float *)(s->fixed + f->matrix);
    u32 c;
    for (c = 0; c < f->channels; c++) {
        float *of = ring + (u64)c * f->width, before = position ? of[(position - 1) % f->width] : 0;
        of[position % f->width] = mix(mix(mix(token, position), c + f->ring), (u64)before) >> 44;
    }
    if (f->has_matrix) *matrix = mix(mix(mix(token, position), f->matrix), (u64)*matrix) >> 44;
    return mix(f->channels ? (u64)ring[position % f->width] : 0, f->has_matrix ? (u64)*matrix : 0);
}
/* Rows of a chain go on from each other, and leave a state each. */
static void recur(Evaluation *e, Fixed f, u64 sessions, u32 prefill, u32 count, u32 batch, int chains) {
    const u32 n = prefill ? count : batch;
    u32 r;
    e->fixed[e->n_fixed++] = f;
    for (r = 0; r < n; r++) {
        Session *s = ((Session **)sessions)[prefill ? 0 : r];
        const u32 token = begun(e, prefill ? e->tokens[r] : s->token, r, n);
        if (chains) {
            const u64 before = s->chain ? s->before : ((Session **)sessions)[r - 1]->fixed;
            if (s->chain > batch - r) abort();
            if (before != s->fixed) {
                memcpy((void *)(s->fixed + f.ring), (void *)(before + f.ring), (u64)f.channels * f.width * 4);
                if (f.has_matrix) *(float *)(s->fixed + f.matrix) = *(float *)(before + f.matrix);
            }
        } else if (s->before != s->fixed) abort();
        went_on(e, r, advance(&f, s, token, s->position + (prefill ? r : 0)));
    }
}
static u64 seen(const Evaluation *e, const Session *s, u64 added) {
    u64 h = mix(s->token, s->position + added);
    int layer, value;
    /* A layer that shares another's is seen as often as it attends. */
    for (layer = 0; layer < e->n; layer++) {
        const Layout *l = &e->layers[layer];
        u32 end = s->position + 1, p = end > l->window ? end - l->window : 0, head;
        for (; p < end; p++)
            for (value = 0; value < 2; value++)
                for (head = 0; head < l->n_kv_heads; head++) h = hash(h, row(l, s, value, head, p), l->row_bytes);
    }
    for (layer = 0; layer < e->n_fixed; layer++) {
        const Fixed *f = &e->fixed[layer];
        const float *ring = (float *)(s->fixed + f->ring);
        u32 c;
        for (c = 0; c < f->channels; c++) h = mix(h, (u64)ring[(u64)c * f->width + s->position % f->width]);
        if (f->has_matrix) h = mix(h, (u64)*(float *)(s->fixed + f->matrix));
    }
    return h;
}
static void end_step(const Evaluation *e, const Sample *a, u32 batch) {
    u32 r, j;
    for (r = 0; r < batch; r++) {
        Session *s = ((Session **)a->sessions)[r];
        /* A part that does not end its network has none. */
        float *logits = a->logits ? (float *)a->logits + (u64)r * a->n_vocab : NULL;
        if (a->advance) {
            u64 h = seen(e, s, e->added[r]);
            for (j = 0; j < a->n_vocab && logits; j++) {
                const int known = !e->spread.place_of || ((u32 *)e->spread.place_of)[j] < e->spread.n_known;
                logits[j] = known ? (mix(h, j) >> 40) * 1e-6f : -1.0f / 0.0f;
            }
            ((u32 *)s->history)[s->position++] = s->token;
        }
        if (a->choose) {
            u32 best = ~0u;
            float most = 0;
            for (j = 0; j < a->n_vocab; j++) {
                float x = logits[j];
                if (s->masked && !(((u32 *)s->mask)[j / 32] >> j % 32 & 1)) continue;
                if (s->temperature != 0) x += s->temperature * (mix(mix(s->seed, s->position + s->draw_offset), j) >> 42) * 1e-6f;
                if (best == ~0u || x > most) { most = x; best = j; }
            }
            if (s->n_logprobs) {
                unsigned char *entry = (unsigned char *)s->logprobs + s->sequence % s->slots * 536;
                memset(entry, 0, 24);
                *(u64 *)entry = 1ull << 40;
            }
            s->token = best;
            s->sequence++;
            ((u64 *)s->results)[(s->sequence - 1) % s->slots] = (u64)(s->sequence & 0xffffff) << 40 | best;
        }
    }
}
static float *ring_row(u64 ring, u32 rows, u32 position, u32 width) { return (float *)(ring + sizeof(Ring)) + (u64)(position % rows) * width; }
/* Hidden states of rows: their numbers are the position and a hash of what it sees. */
static void keep_states(const Evaluation *e, const Keep *a, u32 rows) {
    u32 r, i;
    for (r = 0; r < rows; r++) {
        Session s = *((Session **)a->sessions)[a->chunk ? 0 : r];
        float *to;
        u64 h;
        if (!s.states || ((Ring *)s.states)->n_places || r + s.states_rows < a->chunk) continue;
        if (a->chunk) s.position += r, s.token = e->tokens[r];
        h = seen(e, &s, e->added[a->chunk ? 0 : r]);
        to = ring_row(s.states, s.states_rows, s.position, a->len);
        for (i = 0; i < a->len; i++) to[i] = i ? (mix(h, i) >> 40) * 1e-6f : s.position;
    }
}
/* The same between layers. */
static void keep_place(const Evaluation *e, const KeepPlace *a, u32 rows) {
    u32 r, p, i;
    for (r = 0; r < rows; r++) {
        Session s = *((Session **)a->sessions)[a->chunk ? 0 : r];
        const Ring *ring = (Ring *)s.states;
        u64 h;
        if (!ring || r + s.states_rows < a->chunk) continue;
        if (a->chunk) s.position += r, s.token = e->tokens[r];
        h = mix(seen(e, &s, e->added[a->chunk ? 0 : r]), a->place);
        for (p = 0; p < ring->n_places; p++) {
            float *to = ring_row(s.states, s.states_rows, s.position, ring->n_places * a->len) + p * a->len;
            if (ring->places[p] != a->place) continue;
            for (i = 0; i < a->len; i++) to[i] = i ? (mix(h, i) >> 40) * 1e-6f : s.position;
        }
    }
}
/* States of a chunk of a head that reads several are of positions that follow each other, and of the same one at all places. */
static void gather_states(const Gather *a, u32 rows) {
    const Ring *ring = (Ring *)a->ring;
    float last = 0;
    u32 r, p;
    for (r = 0; r < rows; r++) {
        const float *state = ring_row(a->ring, a->ring_rows, a->first + r, a->width);
        if (ring->n_places != 3 || a->width > a->out_stride) abort();
        for (p = 0; p < 3; p++)
            if (state[p * (a->width / 3)] != (r ? last + 1 : *state)) abort();
        last = *state;
        memcpy((float *)a->out + (u64)r * a->out_stride, state, a->width * 4ull);
    }
}
/* A step of such a head goes on from its session's own state. */
static void join_head(Evaluation *e, const Join *a, u32 rows) {
    u32 r;
    for (r = 0; r < rows; r++) {
        const Session *s;
        ((float *)a->out)[(u64)r * a->out_stride + 2 * a->len - 1] = ((float *)a->x)[(u64)r * a->x_stride + a->len - 1];
        if (a->half) continue;
        s = ((Session **)a->sessions)[r];
        if (!s->states || ((Ring *)s->states)->n_places != 1) abort();
        e->added[r] += hash(1, ring_row(s->states, s->states_rows, s->position + s->states_rows - 1, a->len), a->len * 4ull);
    }
}
/* What a head makes of its own state counts; those of a chunk are of positions that follow each other. */
static void enter_head(Evaluation *e, const Enter *a, u32 rows) {
    u32 r;
    float last = 0;
    for (r = 0; r < rows; r++) {
        const Session *s = ((Session **)a->sessions)[a->states ? 0 : r];
        const u32 n = a->states ? a->states_rows : s->states_rows, at = a->states ? a->first + r : s->position + n - 1;
        const float *state = ring_row(a->states ? a->states : s->states, n, at, a->len);
        if (a->states && r && *state != last + 1) abort();
        last = *state;
        if (!a->states) e->added[r] += hash(1, state, a->len * 4ull);
        ((float *)a->out)[(u64)r * a->out_stride + 2 * a->len - 1] = 0;
    }
}
/* What begins and ends a step whose rows are positions of one session. */
static void draft_rows(const Drafts *d) {
    Session *s = (Session *)d->session, *rows = (Session *)d->rows;
    const u32 *asked = (const u32 *)d->asked;
    u32 i;
    for (i = 0; i < asked[0]; i++) {
        u64 kept[] = {rows[i].results, rows[i].adjusted, rows[i].counts, rows[i].lengths, rows[i].mask}, fixed = rows[i].fixed;
        rows[i] = *s;
        rows[i].fixed = fixed;
        rows[i].before = s->fixed;
        rows[i].chain = i ? 0 : asked[0];
        rows[i].results = kept[0], rows[i].adjusted = kept[1], rows[i].counts = kept[2], rows[i].lengths = kept[3], rows[i].mask = kept[4];
        rows[i].position += i;
        rows[i].sequence += i;
        rows[i].token = asked[2 + i];
        ((u32 *)s->history)[rows[i].position] = asked[2 + i];
    }
}
static void accept_drafts(const Drafts *d) {
    Session *s = (Session *)d->session, *rows = (Session *)d->rows;
    const u32 *asked = (const u32 *)d->asked;
    u32 i, right = 1;
    for (i = 0; i < asked[1] && right; i++) {
        u64 result = ((u64 *)d->results)[s->sequence % s->slots];
        ((u64 *)s->results)[s->sequence % s->slots] = result;
        right = i + 1 < asked[1] && (u32)result == asked[3 + i];
        s->token = (u32)result;
        s->position++;
        s->sequence++;
        if (!right) {
            const u64 fixed = s->fixed;
            s->fixed = s->before = rows[i].fixed;
            rows[i].fixed = fixed;
        }
    }
}
/* Rows of whole texts: the ends of what a row has of keys and values. */
static void place_texts(Evaluation *e, const Rope *a, u32 rows) {
    const Session *s = *(Session **)a->a[0];
    u32 r, line;
    for (r = 0; r < rows; r++) {
        if (e->positions[r] > r || e->kinds[r] > 1) abort();
        for (line = 0; line < 2 * a->layout.n_kv_heads; line++) {
            unsigned char *row = (unsigned char *)s->kv + ((u64)line * a->text_rows + r) * a->layout.row_bytes;
            row[0] = row[a->layout.row_bytes - 1] = (unsigned char)e->tokens[r];
        }
    }
}
static void attend_in_texts(const TextFlash *a, u32 tiles) {
    u32 i;
    for (i = 0; i < tiles; i++) {
        const TextTile *t = (TextTile *)a->tiles + i;
        const u64 last = (u64)(t->start + t->len) * a->n_heads;
        if (!t->len || t->first >= t->len || t->start + t->len > a->kv_rows) abort();
        if (a->f16) {
            /* The last row's tile of 128 rows, and its scale. */
            const u64 tile = (t->start + t->len - 1) / 128 + 1;
            ((float *)a->f16_scale)[t->start + t->len - 1] = ((uint16_t *)a->q)[last * a->layout.head_dim - 1];
            ((uint16_t *)a->f16)[tile * 128 * a->n_heads * a->layout.head_dim - 1] = 1;
        } else {
            ((float *)a->out)[last * a->value_dim - 1] = ((uint16_t *)a->q)[last * a->layout.head_dim - 1];
        }
    }
}
/* Vectors follow from the tokens of a text. */
static void pool_texts(const Evaluation *e, const Pool *a, u32 texts) {
    u32 t, i;
    for (t = 0; t < texts; t++) {
        const u32 *span = (u32 *)a->texts + 2 * t;
        float *out = (float *)a->out + (u64)t * a->out_stride;
        u64 h = mix(hash(a->pooling, e->tokens + span[0], span[1] * 4ull), e->added[0]);
        h = hash(h, e->positions + span[0], span[1] * 4ull);
        for (i = 0; i < a->len; i++) out[i] = ((mix(h, i) >> 40) + 1) * 1e-6f;
    }
}
static void dense_texts(const Dense *a) {
    u32 t, i;
    for (t = 0; t < a->count; t++) {
        u64 h = hash(a->activation, (float *)a->x + (u64)t * a->x_stride, a->inputs * 4ull);
        h = mix(h, ((u32 *)a->w)[(u64)a->inputs * a->outputs - 1]);
        for (i = 0; i < a->outputs; i++) ((float *)a->out)[(u64)t * a->out_stride + i] = (mix(h, i) >> 40) * 1e-6f;
    }
}
/* The ends of rows before and behind attention. */
static void ready_heads(const ReadyHeads *a, u32 rows) {
    float *row = (float *)a->qkv + (u64)(rows - 1) * a->stride;
    const u32 values = (a->n_heads + a->n_kv_heads) * a->head_dim, end = a->padded_values + a->n_kv_heads * a->head_dim;
    if (end > a->stride || a->value_dim > a->head_dim || a->padded_values % a->head_dim) abort();
    if (a->n_kv_heads && (a->values != values || (a->padded_values != values && a->padded_values < values + a->n_kv_heads * a->value_dim))) abort();
    if (a->norms[0] && !((float *)a->norms[0])[a->n_heads * a->head_dim - 1]) abort();
    if (a->norms[3] && !((float *)a->norms[3])[a->n_kv_heads * a->head_dim - 1]) abort();
    row[end - 1] = 0;
}
static void finish_heads(const FinishHeads *a, u32 rows) {
    const u64 last = rows - 1, len = a->n_heads * a->value_dim, gates = a->per_head ? a->n_heads : len;
    float v = ((float *)a->x)[last * a->x_stride + a->n_heads * a->head_dim - 1];
    if (len > a->out_stride || a->n_heads * a->head_dim > a->x_stride || a->value_dim > a->head_dim) abort();
    /* Gates are behind the results, which take the place of the queries, or in other rows than these. */
    if (a->gate >= a->out && a->gate < a->out + a->out_stride * 4ull) {
        if (a->gate < a->out + len * 4 || a->gate + gates * 4 > a->out + a->gate_stride * 4ull) abort();
    } else if (a->gate && gates > a->gate_stride) abort();
    if (a->gate) v = ((float *)a->gate)[last * a->gate_stride + gates - 1];
    ((float *)a->out)[last * a->out_stride + len - 1] = v;
}
static void sparse_mixer(const SparseMixer *a, u32 rows) {
    if (a->n_experts < 2 || a->score_stride < a->n_experts) abort();
    ((float *)a->scores)[(u64)(rows - 1) * a->score_stride + a->n_experts - 1] = 0;
}
typedef struct { u64 at, n; u32 value, padding; } Fill;
static Function fill_function = {"fill"};
static void run_fill(const Fill *f) {
    u64 i;
    for (i = 0; i < f->n; i++) ((u32 *)f->at)[i] = f->value;
}
static int starts(const char *n, const char *p) { return strncmp(n, p, strlen(p)) == 0; }
static void run(Evaluation *e, const Function *f, u32 gx, u32 gy, const void *args) {
    u32 r;
    e->has_run = 1;
    if (e->may_begin && strcmp(f->name, "embed")) begin_part(e, args);
    if (!strcmp(f->name, "embed")) {
        begin_evaluation(e);
        e->has_entered = 0;
        e->tokens = (const u32 *)((const Embed *)args)->tokens;
        e->positions = (const u32 *)((const Embed *)args)->text_positions;
        e->kinds = (const u32 *)((const Embed *)args)->text_kinds;
        e->residual = ((const Embed *)args)->out;
        e->stride = ((const Embed *)args)->groups * 32;
    } else if (starts(f->name, "attend_tiles") || starts(f->name, "attend_wide")) {
        const Attend *a = args;
        e->layers[e->n++] = a->layout;
        for (r = 0; r < gy && !a->shares; r++) {
            Session *s = ((Session **)a->a[0])[r];
            append(e, &a->layout, s, s->token, s->position, e->added[r], r, gy);
        }
    } else if (!strcmp(f->name, "rope_append") && ((const Rope *)args)->positions) {
        place_texts(e, args, gy);
    } else if (starts(f->name, "flash_texts")) {
        attend_in_texts(args, starts(f->name, "flash_texts_wgmma") ? gy : gx);
    } else if (!strcmp(f->name, "pool_texts")) {
        pool_texts(e, args, gy);
    } else if (!strcmp(f->name, "dense_texts")) {
        dense_texts(args);
    } else if (!strcmp(f->name, "rope_append")) {
        const Rope *a = args;
        /* Without queries, attention follows. */
        if (!a->first_row && (a->a[2] || a->a[3])) e->layers[e->n++] = a->layout;
        for (r = 0; r < gy && !a->shares; r++) {
            Session *s = ((Session **)a->a[0])[a->prefill ? 0 : r];
            u32 at = a->first_row + r;
            if (a->prefill) append(e, &a->layout, s, e->tokens[at], s->position + at, e->added[0], at, gy);
            else append(e, &a->layout, s, s->token, s->position, e->added[r], r, gy);
        }
    } else if (!strcmp(f->name, "latent_place")) {
        const Latent *a = args;
        e->layers[e->n++] = a->layout;
        for (r = 0; r < gy; r++) {
            Session *s = ((Session **)a->a[0])[a->prefill ? 0 : r];
            if (a->prefill) append(e, &a->layout, s, e->tokens[r], s->position + r, e->added[0], r, gy);
            else append(e, &a->layout, s, s->token, s->position, e->added[r], r, gy);
        }
    } else if (starts(f->name, "recurrent_step_") || starts(f->name, "recurrent_batch_") || starts(f->name, "recurrent_chain_") || starts(f->name, "recurrent_scan_")) {
        const Recurrent *a = args;
        Fixed x = {a->state_offset, a->state_offset + a->matrix_offset, a->channels, a->width, 1};
        recur(e, x, a->a[0], starts(f->name, "recurrent_scan_"), a->count, gy, starts(f->name, "recurrent_chain_"));
    } else if (!strcmp(f->name, "short_conv") || !strcmp(f->name, "short_conv_chain")) {
        const ShortConv *a = args;
        Fixed x = {a->state_offset, 0, a->channels, a->width, 0};
        recur(e, x, a->a[0], a->prefill, a->count, gy, f->name[10] != 0);
    } else if (!strcmp(f->name, "ready_heads")) {
        ready_heads(args, gy);
    } else if (!strcmp(f->name, "finish_heads")) {
        finish_heads(args, gy);
    } else if (!strcmp(f->name, "sparse_mixer")) {
        sparse_mixer(args, gx);
    } else if (!strcmp(f->name, "keep_states")) {
        keep_states(e, args, gx);
    } else if (!strcmp(f->name, "enter_head")) {
        enter_head(e, args, gy);
    } else if (!strcmp(f->name, "keep_place")) {
        keep_place(e, args, gx);
    } else if (!strcmp(f->name, "gather_states")) {
        gather_states(args, gx);
    } else if (!strcmp(f->name, "join_head")) {
        join_head(e, args, gx);
    } else if (!strcmp(f->name, "spread_logits")) {
        e->spread = *(const Spread *)args;
    } else if (f == &fill_function) {
        run_fill(args);
    } else if (!strcmp(f->name, "lora_down") || !strcmp(f->name, "lora_down_8")) {
        narrow(e, args, !strcmp(f->name, "lora_down_8"));
    } else if (starts(f->name, "product_adapted_") || starts(f->name, "product_spread_adapted_")) {
        product(e, args);
    } else if (!strcmp(f->name, "draft_rows") || !strcmp(f->name, "accept_drafts")) {
        for (r = 0; r < gx; r++) if ((*(const Drafts ***)args)[r]) (f->name[0] == 'd' ? draft_rows : accept_drafts)((*(const Drafts ***)args)[r]);
    } else if (!strcmp(f->name, "finish") || !strcmp(f->name, "draw")) {
        end_step(e, args, f->name[0] == 'f' ? gx : gy);
    }
}

R cuModuleLoadData(void **m, const void *i) { (void)i; *m = (void *)0x22; return 0; }
R cuModuleUnload(void *m) { (void)m; return 0; }
/* Whether the file that STAND_IN_KERNELS names lists a kernel, a line `file name` each; without the variable, every kernel is there. */
static int is_kernel(const char *name) {
    const char *path = getenv("STAND_IN_KERNELS");
    FILE *list = path ? fopen(path, "r") : NULL;
    char listed[128];
    int found = !path;
    while (list && !found && fscanf(list, "%*s %127s", listed) == 1) found = !strcmp(listed, name);
    if (list) fclose(list);
    return found;
}
R cuModuleGetFunction(void **f, void *m, const char *n) {
    (void)m;
    if (!is_kernel(n)) return 500; /* CUDA_ERROR_NOT_FOUND */
    Function *x = calloc(1, sizeof *x);
    strncpy(x->name, n, 63);
    *f = x;
    return 0;
}
R cuFuncSetAttribute(void *f, int a, int v) { (void)f, (void)a, (void)v; return 0; }
R cuStreamCreateWithPriority(void **s, u32 f, int p) { (void)f, (void)p; *s = calloc(1, sizeof(Stream)); return 0; }
R cuStreamDestroy_v2(void *s) { LOCKED; free(s); return 0; }
R cuStreamSynchronize(void *s) { LOCKED; (void)s; return 0; }
R cuStreamQuery(void *s) { LOCKED; (void)s; return 0; }
R cuCtxSynchronize(void) { LOCKED; return 0; }
R cuStreamBeginCapture_v2(Stream *s, int m) { (void)m; s->capture = calloc(1, sizeof(Graph)); return 0; }
R cuStreamEndCapture(Stream *s, void **g) { *g = s->capture; s->capture = NULL; return 0; }
/* Told of functions of the host's that graphs are made with (1) and that go with them (-1). */
void (*stand_in_graphs)(void (*call)(void *), void *user, int more);
static void tell(const Graph *g, int more) {
    int i;
    for (i = 0; i < g->n && stand_in_graphs; i++)
        if (!g->nodes[i].function) stand_in_graphs(g->nodes[i].call, g->nodes[i].user, more);
}
R cuGraphInstantiateWithFlags(void **e, Graph *g, u64 f) {
    Graph *copy = malloc(sizeof *copy);
    (void)f;
    *copy = *g;
    copy->nodes = malloc(sizeof(Node) * (g->n + 1));
    memcpy(copy->nodes, g->nodes, sizeof(Node) * g->n);
    tell(copy, 1);
    *e = copy;
    return 0;
}
/* Whether a stream records what is enqueued. */
int stand_in_captures(Stream *s) { return s->capture != NULL; }
R cuGraphDestroy(Graph *g) { free(g->nodes); free(g); return 0; }
R cuGraphExecDestroy(Graph *g) { tell(g, -1); return cuGraphDestroy(g); }
R cuGraphLaunch(Graph *g, Stream *s) {
    Evaluation *e = &s->evaluation;
    int i;
    LOCKED;
    e->in_graph = 1;
    for (i = 0; i < g->n; i++) {
        const Node *node = &g->nodes[i];
        if (node->function) run(e, node->function, node->gx, node->gy, node->args);
        else node->call(node->user);
    }
    e->in_graph = 0;
    return 0;
}
static Node *new_node(Graph *g, Function *f) {
    if (g->n == g->room) g->nodes = realloc(g->nodes, sizeof(Node) * (g->room = g->room * 2 + 64));
    g->nodes[g->n].function = f;
    return &g->nodes[g->n++];
}
R cuLaunchHostFunc(Stream *s, void (*f)(void *), void *user) {
    if (s->capture) {
        Node *node = new_node(s->capture, NULL);
        node->call = f;
        node->user = user;
    } else {
        f(user);
    }
    return 0;
}
R cuLaunchKernelEx(const Config *c, Function *f, void **params, void **extra) {
    Stream *s = c->stream;
    LOCKED;
    (void)extra;
    if (s->capture) {
        Node *node = new_node(s->capture, f);
        node->gx = c->gx;
        node->gy = c->gy;
        /* As long as any structure that is read here, and on the stack of the caller, which is deeper than that. */
        memcpy(node->args, params[0], sizeof node->args);
    } else {
        run(&s->evaluation, f, c->gx, c->gy, params[0]);
    }
    return 0;
}

/* --- devices ------------------------------------------------------------------------------------- */

R cuInit(u32 f) { (void)f; return 0; }
R cuDriverGetVersion(int *v) { *v = 12090; return 0; }
static int number(const char *variable, int otherwise) {
    const char *text = getenv(variable);
    return text ? atoi(text) : otherwise;
}
R cuDeviceGet(int *d, int i) { *d = i; return 0; }
R cuDeviceGetCount(int *n) { *n = number("STAND_IN_DEVICES", 1); return 0; }
R cuDeviceCanAccessPeer(int *can, int d, int other) { (void)d, (void)other; *can = number("STAND_IN_PEERS", 0); return 0; }
R cuCtxEnablePeerAccess(void *c, u32 f) { (void)c, (void)f; return 0; }
R cuDeviceGetName(char *n, int l, int d) { (void)d; strncpy(n, "stand-in", l); return 0; }
R cuDeviceTotalMem_v2(size_t *b, int d) { (void)d; *b = TOTAL; return 0; }
R cuDeviceGetAttribute(int *v, int a, int d) {
    (void)d;
    *v = a == 75 ? 9 : a == 76 ? 0 : a == 16 ? 132 : a == 97 ? 232448 : 0;
    return 0;
}
R cuDevicePrimaryCtxGetState(int d, u32 *f, int *a) { (void)d; *f = 0; *a = 1; return 0; }
R cuDevicePrimaryCtxRetain(void **c, int d) { (void)d; *c = (void *)0x11; return 0; }
R cuDevicePrimaryCtxRelease_v2(int d) { (void)d; return 0; }
R cuCtxPushCurrent_v2(void *c) { (void)c; return 0; }
R cuCtxPopCurrent_v2(void **c) { *c = NULL; return 0; }
R cuCtxGetDevice(int *d) { *d = 0; return 0; }
R cuGetErrorString(R c, const char **t) { *t = c == OOM ? "out of memory" : "an error of the stand-in"; return 0; }
R cuGetErrorName(R c, const char **t) { return cuGetErrorString(c, t); }

/* --- memory -------------------------------------------------------------------------------------- */

typedef struct { int fd; int references; size_t bytes; } Physical;
/* What is mapped where. */
static struct { u64 at; size_t bytes; Physical *physical; } maps[1 << 16];

static void release(Physical *p) {
    if (--p->references == 0) {
        used -= p->bytes;
        close(p->fd);
        free(p);
    }
}
R cuMemGetInfo_v2(size_t *f, size_t *t) { LOCKED; *f = TOTAL - used; *t = TOTAL; return 0; }
static void *map_host(size_t n) {
    size_t bytes = (n + 8191) / 4096 * 4096 + 4096;
    /* The size is kept before the memory, and what is not written is no number. */
    unsigned char *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) return NULL;
    *(size_t *)m = bytes;
    mprotect(m + bytes - 4096, 4096, PROT_NONE);
    memset(m + 4096, 0x7e, n);
    return m + 4096;
}
static void unmap_host(void *p) { munmap((char *)p - 4096, *(size_t *)((char *)p - 4096)); }
static size_t host_bytes(void *p) { return *(size_t *)((char *)p - 4096); }
R cuMemAlloc_v2(u64 *a, size_t n) {
    LOCKED;
    void *m = map_host(n);
    if (!m) return OOM;
    used += host_bytes(m);
    *a = (u64)m;
    return 0;
}
R cuMemFree_v2(u64 a) { LOCKED; used -= host_bytes((void *)a); unmap_host((void *)a); return 0; }
R cuMemHostAlloc(void **p, size_t n, u32 f) { (void)f; *p = map_host(n); return *p ? 0 : OOM; }
R cuMemFreeHost(void *p) { unmap_host(p); return 0; }
R cuMemHostGetDevicePointer_v2(u64 *a, void *p, u32 f) { (void)f; *a = (u64)p; return 0; }
#define PAGE ((u64)number("STAND_IN_PAGE", 2 << 20))
R cuMemGetAllocationGranularity(size_t *g, void *p, int o) { (void)p, (void)o; *g = PAGE; return 0; }
R cuMemAddressReserve(u64 *a, size_t n, size_t al, u64 ad, u64 f) {
    unsigned char *m = mmap(NULL, n + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    u64 at = ((u64)m + PAGE - 1) / PAGE * PAGE;
    (void)al, (void)ad, (void)f;
    if (m == MAP_FAILED) return OOM;
    munmap(m, at - (u64)m);
    munmap((void *)(at + n), (u64)m + PAGE - at);
    *a = at;
    return 0;
}
R cuMemAddressFree(u64 a, size_t n) { munmap((void *)a, n); return 0; }
R cuMemCreate(u64 *h, size_t n, void *prop, u64 f) {
    LOCKED;
    Physical *p = malloc(sizeof *p);
    void *m;
    (void)prop, (void)f;
    p->fd = memfd_create("page", 0);
    p->references = 1;
    p->bytes = n;
    if (p->fd < 0 || n % PAGE || ftruncate(p->fd, n)) abort();
    m = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
    if (n <= 16 * PAGE) memset(m, 0x7e, n);
    munmap(m, n);
    used += n;
    *h = (u64)p;
    return 0;
}
R cuMemRelease(u64 h) { LOCKED; release((Physical *)h); return 0; }
R cuMemMap(u64 a, size_t n, size_t o, u64 h, u64 f) {
    LOCKED;
    Physical *p = (Physical *)h;
    int i = 0;
    (void)f;
    if (o || n != p->bytes) abort();
    if (mmap((void *)a, n, PROT_NONE, MAP_SHARED | MAP_FIXED, p->fd, 0) != (void *)a) abort();
    while (maps[i].physical) i++;
    maps[i].at = a;
    maps[i].bytes = n;
    maps[i].physical = p;
    p->references++;
    return 0;
}
R cuMemSetAccess(u64 a, size_t n, void *d, size_t c) {
    (void)d, (void)c;
    return mprotect((void *)a, n, PROT_READ | PROT_WRITE) ? 1 : 0;
}
R cuMemUnmap(u64 a, size_t n) {
    LOCKED;
    int i;
    size_t found = 0;
    for (i = 0; i < 1 << 16; i++)
        if (maps[i].physical && maps[i].at >= a && maps[i].at < a + n) {
            found += maps[i].bytes;
            release(maps[i].physical);
            maps[i].physical = NULL;
        }
    if (found != n) abort();
    if (mmap((void *)a, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != (void *)a) abort();
    return 0;
}
R cuMemcpyHtoDAsync_v2(u64 to, const void *p, size_t n, Stream *s) {
    LOCKED;
    memcpy((void *)to, p, n);
    if (s && !s->capture) {
        Evaluation *e = &s->evaluation;
        const Copy copy = {to, n};
        if (e->has_run) e->n_copies = e->has_run = 0;
        e->may_begin = 1;
        if (e->n_copies < 256) e->copies[e->n_copies++] = copy;
    }
    return 0;
}
R cuMemcpyHtoD_v2(u64 to, const void *p, size_t n) { LOCKED; memcpy((void *)to, p, n); return 0; }
R cuMemcpyDtoHAsync_v2(void *p, u64 a, size_t n, Stream *s) {
    LOCKED;
    memcpy(p, (void *)a, n);
    if (s && !s->capture) leave(&s->evaluation, p, a, n);
    return 0;
}
R cuMemcpyDtoH_v2(void *p, u64 a, size_t n) { LOCKED; memcpy(p, (void *)a, n); return 0; }
/* A planted defect, to show that the tests see one: copies of pages do nothing. */
R cuMemcpyDtoDAsync_v2(u64 to, u64 a, size_t n, void *s) {
    LOCKED;
    (void)s;
    if (n < 1 << 16 || !getenv("STAND_IN_DEFECT")) memcpy((void *)to, (void *)a, n);
    return 0;
}
R cuMemsetD32Async(u64 a, u32 v, size_t n, void *s) {
    const Fill fill = {a, n, v, 0};
    LOCKED;
    if (s && ((Stream *)s)->capture) memcpy(new_node(((Stream *)s)->capture, &fill_function)->args, &fill, sizeof fill);
    else run_fill(&fill);
    return 0;
}
R cuMemsetD8_v2(u64 a, unsigned char v, size_t n) { LOCKED; memset((void *)a, v, n); return 0; }

/* --- events -------------------------------------------------------------------------------------- */

R cuStreamWaitEvent(void *s, void *e, u32 f) { (void)s, (void)e, (void)f; return 0; }
R cuEventCreate(void **e, u32 f) { (void)f; *e = (void *)0x33; return 0; }
R cuEventDestroy_v2(void *e) { (void)e; return 0; }
R cuEventRecord(void *e, void *s) { (void)e, (void)s; return 0; }
R cuEventSynchronize(void *e) { (void)e; return 0; }
R cuEventQuery(void *e) { (void)e; return 0; }
R cuEventElapsedTime(float *ms, void *a, void *b) { (void)a, (void)b; *ms = 1; return 0; }
