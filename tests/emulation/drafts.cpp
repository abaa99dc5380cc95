// A step whose rows are positions of one session: its rows are readied, their keys and values appended before any attends, and the
// choices of those handed over that are what came next. Each row has the bits of the step that it saves.
#include "cuda_fp16.h"
// One block runs at a time here.
#define __shared__ static
using std::isnan;
#include "attention.cu"
#include "drafts.cu"
#include "rope.cu"
#include "model.h"
#include <cstdio>

constexpr uint32_t ROWS = 5, RING = 16;

int failures = 0;
void check(bool right, const char* what, uint32_t row) {
    if (right) return;
    printf("row %u: %s\n", row, what);
    failures++;
}
void run(uint32_t blocks, uint32_t threads, const std::function<void()>& kernel) {
    const std::string wrong = emulator::run(blocks, threads, (uint32_t)numbers(), kernel);
    check(wrong.empty(), wrong.c_str(), 0);
}

// A session at a position, and its rows.
struct Case {
    Session session{}, rows[ROWS]{};
    uint64_t results[RING] = {}, chosen[RING] = {};
    uint32_t history[400] = {}, asked[ASKED_TOKENS + ROWS];
    Drafts drafts{&session, rows, (uint64_t)chosen, asked};
    const Drafts* table[1] = {&drafts};

    explicit Case(uint32_t position) {
        session.position = position;
        session.token = 77;
        session.sequence = RING - 2;
        session.result_slots = RING;
        session.context = 400;
        session.results = (uint64_t)results;
        session.history = (uint64_t)history;
        session.settings.temperature = 0.5f;
        session.settings.masked = 1;
        session.fixed = session.before = 1000;
        session.chain = 1;
        for (Session& row : rows) {
            row = session;
            row.fixed = 2000 + (&row - rows);
            row.results = (uint64_t)chosen;
            row.settings = Settings{};
        }
        asked[0] = asked[1] = ROWS;
        for (uint32_t i = 0; i < ROWS; i++) asked[ASKED_TOKENS + i] = 100 + i;
    }
    DraftsArgs args() const { return {table}; }
};

void readied_and_handed_over() {
    for (uint32_t right = 0; right < 2 * ROWS; right++) {
        // So many choices are the next row's token, of which so many count.
        const uint32_t counted = right < ROWS ? ROWS : right - ROWS + 1, accepted = right < ROWS ? right : counted - 1;
        Case c(30);
        run(1, 256, [&] { draft_rows(c.args()); });
        for (uint32_t i = 0; i < ROWS; i++) {
            const Session& row = c.rows[i];
            check(row.position == 30 + i && row.token == 100 + i && row.sequence == RING - 2 + i, "not where it belongs", i);
            check(row.fixed == 2000 + i && row.before == 1000 && row.chain == (i ? 0 : ROWS), "another state", i);
            check(c.history[30 + i] == 100 + i && row.settings.temperature == 0.5f && row.settings.masked == 1, "not the session's", i);
            // What the kernels that choose leave.
            const uint32_t token = i < right ? 101 + i : 3;
            const uint64_t result = (uint64_t)((row.sequence + 1) << 8 | CHOSEN) << 32 | token;
            c.chosen[row.sequence % RING] = result;
            c.rows[i].token = token;
        }
        c.asked[1] = counted;
        run(1, 32, [&] { accept_drafts(c.args()); });
        check(c.session.position == 30 + accepted + 1 && c.session.sequence == RING - 2 + accepted + 1, "another number of rows", accepted);
        check(c.session.token == c.rows[accepted].token, "another token", accepted);
        check(c.session.fixed == 2000 + accepted && c.session.before == c.session.fixed && c.rows[accepted].fixed == 1000, "another row's state", accepted);
        for (uint32_t i = 0; i < ROWS; i++) {
            const uint32_t slot = (RING - 2 + i) % RING;
            check(c.results[slot] == (i <= accepted ? c.chosen[slot] : 0), "another result", i);
        }
    }
    // A choice that has failed is the last one, whatever its number.
    Case c(30);
    run(1, 256, [&] { draft_rows(c.args()); });
    for (uint32_t i = 0; i < ROWS; i++) c.chosen[c.rows[i].sequence % RING] = (uint64_t)((c.rows[i].sequence + 1) << 8 | (i == 1 ? INFINITE : CHOSEN)) << 32 | (101 + i);
    run(1, 32, [&] { accept_drafts(c.args()); });
    check(c.session.position == 32, "positions behind a choice that has failed", 1);
}

// An element of a row of a cache.
float stored(const KvLayout& kv, const uint8_t* row, uint32_t i) {
    if (!kv.q8) return (float)((const __half*)row)[i];
    return (float)((const __half*)(row + (kv.head_dim + 31) / 32 * 32))[i / 32] * (int8_t)row[i];
}

// What a row's queries, which are rotated and have their scale, make of the cache in f64: how far that is from `got`, of its length.
double apart_from_f64(const AttendArgs& a, const Session& session, const __half* q, const float* got) {
    double squares = 0.0, all = 0.0;
    for (uint32_t head = 0; head < a.n_heads; head++) {
        const uint32_t dim = a.layout.head_dim, kv_head = head * a.layout.n_kv_heads / a.n_heads;
        std::vector<double> scores(session.position + 1), sum(dim);
        double top = -INFINITY, weight = 0.0;
        for (uint32_t p = 0; p < scores.size(); p++) {
            const uint8_t* key = kv_row(a.layout, &session, false, kv_head, p);
            for (uint32_t i = 0; i < dim; i++) scores[p] += (double)q[head * dim + i] * stored(a.layout, key, i);
            top = std::max(top, scores[p]);
        }
        for (uint32_t p = 0; p < scores.size(); p++) {
            const uint8_t* value = kv_row(a.layout, &session, true, kv_head, p);
            const double w = exp2(scores[p] - top);
            weight += w;
            for (uint32_t i = 0; i < dim; i++) sum[i] += w * stored(a.layout, value, i);
        }
        for (uint32_t i = 0; i < dim; i++) {
            const double want = sum[i] / weight, wrong = want - got[head * dim + i];
            squares += wrong * wrong;
            all += want * want;
        }
    }
    return sqrt(squares / all);
}

// Attention of a network's first layer: rows together beside one step after the other. The cache is f16 or q8_0, and heads may be shorter.
template <bool Q8> void attended(const Network& network, uint32_t position, uint32_t head_dim) {
    Model apart(network), together(network);
    Network n = apart.n;
    n.head_dim = head_dim;
    KvLayout kv = apart.kv;
    kv.head_dim = head_dim;
    kv.q8 = Q8;
    kv.row_bytes = ((Q8 ? (head_dim + 31) / 32 * 34 : head_dim * 2) + 15) / 16 * 16;
    kv.layer_offset = 0;
    kv.tile_bytes = 2 * kv_plane(kv);
    const uint32_t width = n.n_heads * n.head_dim, stride = width + 2 * n.n_kv_heads * n.head_dim;
    const float* qkv = random_floats((size_t)ROWS * stride, 1.0f);
    // The same cache, with room for all rows.
    const uint64_t bytes = (position + ROWS + KV_TILE) / KV_TILE * kv.tile_bytes;
    uint8_t* caches[2];
    for (int i = 0; i < 2; i++) caches[i] = (uint8_t*)allocate<__half>(bytes / 2);
    for (size_t i = 0; i < bytes / 2; i++) ((__half*)caches[0])[i] = (__half)(random_float() * 0.3f);
    // Behind a row's scales there may be anything.
    const uint32_t groups = (head_dim + 31) / 32;
    for (size_t row = 0; Q8 && row < bytes; row += kv.row_bytes) {
        for (uint32_t i = 0; i < groups * 32; i++) caches[0][row + i] = (uint8_t)(i < head_dim ? numbers() % 255 + 129 : 0);
        for (uint32_t i = groups * 32; i < kv.row_bytes; i += 2)
            *(__half*)&caches[0][row + i] = i < groups * 34 ? (__half)((random_float() + 1.0f) * 0.002f) : (__half)NAN;
    }
    memcpy(caches[1], caches[0], bytes);
    AttendArgs a{};
    a.parts = allocate<float>((size_t)n.n_heads * MAX_CHUNKS * part_stride(head_dim));
    a.tickets = apart.tickets;
    a.rotation.inv_freq = random_floats(head_dim / 2, 0.5f, 0.5f);
    a.rotation.magnitude = 1.0f;
    a.rotation.n_pairs = n.head_dim / 2;
    a.layout = kv;
    a.scores.scale = 1.44269504f / sqrtf((float)n.head_dim);
    a.qkv_stride = stride;
    a.n_heads = n.n_heads;
    a.n_chunks = MAX_CHUNKS;
    a.head_parts = a.join = 1;
    a.value_head = n.n_heads + n.n_kv_heads;
    a.value_dim = n.head_dim;
    auto attend = [&](const Session* session, uint32_t row, uint32_t shares) {
        std::vector<float> out(width, NAN);
        AttendArgs of = a;
        const Session* sessions[1] = {session};
        of.sessions = sessions;
        of.qkv = qkv + (size_t)row * stride;
        of.f32 = out.data();
        of.shares = shares;
        run(n.n_kv_heads, 128, [&] {
            if (n.head_dim > 128) attend_tiles<256, Q8 ? 3 : 2, 4, Q8>(of);
            else if (n.head_dim > 64) attend_tiles<128, 3, 4, Q8>(of);
            else attend_tiles<64, 3, 4, Q8>(of);
        });
        return out;
    };
    std::vector<std::vector<float>> alone;
    apart.session.kv = (uint64_t)caches[0];
    for (uint32_t row = 0; row < ROWS; row++) {
        apart.session.position = position + row;
        alone.push_back(attend(&apart.session, row, 0));
    }
    Session rows[ROWS];
    const Session* sessions[ROWS];
    for (uint32_t row = 0; row < ROWS; row++) {
        rows[row] = together.session;
        rows[row].kv = (uint64_t)caches[1];
        rows[row].position = position + row;
        sessions[row] = &rows[row];
    }
    RopeArgs r{};
    r.sessions = sessions;
    r.qkv = qkv;
    r.rotation = a.rotation;
    r.layout = a.layout;
    r.qkv_stride = stride;
    r.n_heads = n.n_heads;
    r.value_head = a.value_head;
    for (r.first_row = 0; r.first_row < ROWS; r.first_row++) run(1, 256, [&] { rope_append(r); });
    check(memcmp(caches[0], caches[1], bytes) == 0, "other keys and values", 0);
    for (uint32_t row = 0; row < ROWS; row++) check(attend(sessions[row], row, 1) == alone[row], "other bits than the step", row);
    // The same in tiles that rows share, queries rotated beforehand.
    __half* queries = allocate<__half>(ROWS * width);
    r.q_f16 = queries;
    r.q_scale = a.scores.scale;
    for (r.first_row = 0; r.first_row < ROWS; r.first_row++)
        run(1, 256, [&] { rope_append(r); });
    a.sessions = sessions;
    a.q16 = queries;
    // Queries, weights, and values are rounded to f16.
    for (uint32_t row = 0; row < ROWS; row++)
        check(apart_from_f64(a, rows[row], queries + row * width, alone[row].data()) < 1e-3, "not what f64 makes of it", row);
    a.rows = ROWS;
    a.parts = allocate<float>((size_t)ROWS * n.n_heads * MAX_CHUNKS * part_stride(n.head_dim));
    a.tickets = allocate<uint32_t>(ROWS * n.n_kv_heads);
    memset(a.tickets, 0, ROWS * n.n_kv_heads * 4);
    a.shares = 1;
    // One row, two, four, or as many as there is room for, by how many blocks there may be.
    for (uint32_t blocks : {1000u, 3 * n.n_kv_heads, 2 * n.n_kv_heads, 1u}) {
        std::vector<float> out(ROWS * width, NAN);
        a.f32 = out.data();
        a.at_once = blocks;
        run(n.n_kv_heads, 128, [&] {
            if (n.head_dim > 128) attend_rows<256, Q8 ? 3 : 2, 4, 8, Q8>(a);
            else if (n.head_dim > 64) attend_rows<128, 3, 4, 16, Q8>(a);
            else attend_rows<64, 3, 4, 16, Q8>(a);
        });
        for (uint32_t row = 0; row < ROWS; row++)
            check(std::equal(alone[row].begin(), alone[row].end(), &out[row * width]), "other bits than the step in shared tiles", row);
    }
}

int main() {
    numbers.seed(1);
    readied_and_handed_over();
    // Within a tile and across its end; in one chunk and in two.
    for (uint32_t position : {3u, 61u, 126u, 200u}) {
        attended<false>(NETWORKS[0], position, 64);
        attended<true>(NETWORKS[0], position, 64);
    }
    attended<false>(NETWORKS[4], 254, 64);
    attended<true>(NETWORKS[4], 254, 64);
    // Heads that lack a group or two, and whose last one is not whole.
    attended<true>(NETWORKS[0], 126, 20);
    attended<true>(NETWORKS[0], 61, 128);
    attended<true>(NETWORKS[0], 130, 80);
    // Of long heads, keys and values take turns in three planes.
    for (uint32_t position : {3u, 61u, 200u}) attended<false>(NETWORKS[0], position, 256);
    attended<false>(NETWORKS[4], 254, 256);
    attended<false>(NETWORKS[0], 130, 176);
    attended<true>(NETWORKS[0], 130, 256);
    printf("%d failures\n", failures);
    return failures > 0;
}
