// Attention of the decode step, on tensor cores: a chunk of a context at a time, of f16 caches and of q8_0 caches.
#pragma once
#include "attend_input.cuh"
#include "attend_q8.cuh"

// Up to 8 queries of a KV head, with the norm and rotation of its
// input, the append to the cache, and the joining of the chunks by the block that ends last. Positions come
// through a ring of STAGES in shared memory, 16 a warp, of which there are W; each has a softmax of its own.
// Scores are K (16 positions x dims) times q (dims x 8 heads); sums are V transposed (16 dims x 16
// positions) times weights (positions x 8 heads). Queries and weights are rounded to f16.
template <int HD> struct AttendShared {
    float turn[2][HD / 2];  // cosine and sine of each pair
    const float* turn_of;   // the frequencies that they belong to, at the position of the step; NULL at first
    alignas(16) __half fresh[2][HD];  // key and value of the current position; Q8: in the form of the cache
    alignas(16) float norms[3][HD];   // weights of the norms of queries, keys and values
    float factor[8][MAX_PARTS + 1];  // join: weight of each chunk, and what the sum is multiplied by
    uint32_t is_last;
};

// Whether keys and values have three planes in turns, in place of two stages of both: a block fits beside one of the product before it (`Tiles::shared` of
// attention.rs).
template <int HD, int STAGES, bool Q8> constexpr bool three_planes() { return HD == 256 && STAGES == 2 && !Q8; }

// Chunk `chunk` of the queries of part `place` (of `places`) of session `s`, whose input row is `row`, by
// W warps.
template <int HD, int STAGES, int W, bool Q8>
__device__ __forceinline__ void attend_chunk(const AttendArgs& a, const Session* s, const Chunks& chunks, uint32_t row, uint32_t place,
                                             uint32_t places, uint32_t chunk, uint8_t* tiles, AttendShared<HD>& m) {
    constexpr int PIECES = HD / 8, THREADS = 32 * W, POSITIONS = 16 * W, PLANE = POSITIONS * (Q8 ? Q8_ROW<HD> : HD * 2);
    static_assert(POSITIONS % KV_TILE == 0);
    auto& turn = m.turn;
    auto& fresh = m.fresh;
    auto& factor = m.factor;
    const uint32_t thread = threadIdx.x;
    const int lane = thread & 31, warp = thread >> 5;
    const uint32_t hd = a.layout.head_dim, group = a.n_heads / a.layout.n_kv_heads;
    const uint32_t kv_head = place / a.head_parts, first_head = place % a.head_parts * 8;
    const uint32_t n_q = min(8u, group - first_head);
    const uint32_t length = chunks.length, start = chunks.begin + chunk * chunks.per, end = min(length, start + chunks.per);
    const uint32_t base = shared_address(tiles), row_bytes = a.layout.row_bytes, ring = a.layout.ring;
    const uint8_t* cache = kv_base(a.layout, s) + (uint64_t)kv_head * KV_TILE * row_bytes;
    const uint64_t plane = kv_plane(a.layout);
    const uint32_t groups = (hd + 31) / 32;  // Q8: of a row
    const uint32_t first_tile = ring ? start / KV_TILE % ring : start / KV_TILE, n_steps = (end - start + POSITIONS - 1) / POSITIONS;
    // A chunk is shorter than a ring.
    auto tile = [&](uint32_t t) { return cache + (first_tile + t - (ring && first_tile + t >= ring ? ring : 0)) * a.layout.tile_bytes; };
    // Positions whose keys and values the cache holds.
    const uint32_t cached = length - 1 + a.shares;
    // Q8: the current position's row of keys to `to`, and that of values `apart` bytes behind it.
    auto copy_fresh = [&](uint8_t* to, uint64_t apart) {
        for (uint32_t i = thread / 2; i < 17 * groups; i += THREADS / 2)
            ((uint16_t*)(to + (thread % 2 ? apart : 0)))[i] = ((const uint16_t*)fresh[thread % 2])[i];
    };
    // Stages that are asked for before the input is there. More of them keep the input waiting, which comes behind them.
    constexpr int EARLY = Q8 && STAGES > 3 ? 2 : STAGES - 1;
    // A thread copies one piece of every STEP-th row.
    constexpr uint32_t STEP = THREADS / PIECES;
    static_assert(KV_TILE % STEP == 0);
    const uint32_t piece = thread % PIECES, row0 = thread / PIECES;
    const bool inside = piece * 16 < row_bytes;
    const uint32_t offset = row0 * row_bytes + (inside ? piece * 16 : 0);
    // Where keys (0) or values (1) of a step are. Of three planes, each is asked for when the one three before it is read.
    constexpr bool THREE = three_planes<HD, STAGES, Q8>();
    auto plane_at = [&](uint32_t t, uint32_t which) { return THREE ? (2 * t + which) % 3 * PLANE : (t % STAGES * 2 + which) * PLANE; };
    // Of THREE, keys or values alone.
    auto load = [&](uint32_t t, uint32_t which = 0) {
        if (t < n_steps) {
            const uint32_t to = base + plane_at(t, which);
            const uint32_t rows = min((uint32_t)POSITIONS, min(end, cached) - min(cached, start + t * POSITIONS));
            if constexpr (Q8) copy_q8_tiles<HD, W>(to, plane, row_bytes, rows, [&](uint32_t half) { return tile(t * (POSITIONS / KV_TILE) + half); });
#pragma unroll
            for (uint32_t half = 0; !Q8 && half < POSITIONS / KV_TILE; half++) {
                const uint8_t* from = tile(t * (POSITIONS / KV_TILE) + half) + offset + (which ? plane : 0);
#pragma unroll
                for (uint32_t k = 0; k < KV_TILE / STEP; k++) {
                    const uint32_t r = half * KV_TILE + row0 + k * STEP, at = to + swizzled<PIECES>(r, piece);
                    const bool valid = r < rows && inside;
                    copy16(at, from + k * STEP * row_bytes, valid);
                    if (!THREE) copy16(at + PLANE, from + plane + k * STEP * row_bytes, valid);
                }
            }
        }
        copies_commit();
    };
    // What the cache holds from the steps before is there already; only the input must be awaited, and what an earlier layer appends.
    if (a.shares) wait_for_producers();
#pragma unroll 1
    for (int t = 0; t < EARLY; t++) load(t);
    if constexpr (THREE) load(0, 1);
    // So may the norms' weights.
    const bool has_norms = a.q_norm.weight || a.k_norm.weight || a.v_norm.weight;
    if (has_norms) {
#pragma unroll 1
        for (uint32_t i = thread; i < 3 * (HD / 4); i += THREADS) {
            const uint32_t which = i / (HD / 4), d = i % (HD / 4) * 4;
            const float* weight = which == 0 ? a.q_norm.weight : which == 1 ? a.k_norm.weight : a.v_norm.weight;
            if (weight && d < hd) copy16(shared_address(&m.norms[which][d]), weight + d, true);
        }
    }
    const float* inv_freq = frequencies(a.rotation, s);
    const uint32_t n_pairs = a.rotation.n_pairs;
    if (m.turn_of != inv_freq) {
#pragma unroll 1
        for (uint32_t i = thread; i < n_pairs; i += THREADS)
            sincosf(__fmul_rn((float)(length - 1), inv_freq[i]), &turn[1][i], &turn[0][i]);
        __syncthreads();
        if (thread == 0) m.turn_of = inv_freq;
    }
    wait_for_producers();
    __syncthreads();
    const float* input = a.qkv + (uint64_t)row * a.qkv_stride;
    // Queries, by way of the last stage, which is not in use yet.
    uint32_t q[HD / 16][2];
    {
        const uint32_t at = (STAGES - 1) * 2 * PLANE;
        float* raw = (float*)(tiles + at + (THREE ? 8 * HD * 2 : PLANE));  // 8 queries, key, value
        // Sizes of heads are multiples of 4.
        constexpr uint32_t FOURS = HD / 4, AT_ONCE = THREADS / FOURS;
        const uint32_t h0 = thread / FOURS, d = thread % FOURS * 4;
        if (d < hd) {
            const float* from = input + (uint64_t)(kv_head * group + first_head + h0) * hd + d;
            uint32_t to = shared_address(raw) + (h0 * hd + d) * 4;
            for (uint32_t h = h0; h < n_q; h += AT_ONCE, from += AT_ONCE * hd, to += AT_ONCE * hd * 4) copy16(to, from, true);
            if (h0 < 2 && !a.shares) copy16(shared_address(raw) + ((8 + h0) * hd + d) * 4, input + (uint64_t)((h0 ? a.value_head : a.n_heads) + kv_head) * hd + d, true);
        }
        copies_commit();
        copies_wait<0>();
        __syncthreads();
        // The loads that matter most are over: the next kernel's may come.
        release_dependents();
        if constexpr (EARLY < STAGES - 1) {
#pragma unroll 1
            for (int t = EARLY; t < STAGES - 1; t++) load(t);
        }
        if (has_norms) {
            norm_heads<HD, W>(a, m.norms, raw, hd, n_q);
            __syncthreads();
        }
        const float q_scale = __fmul_rn(a.scores.scale, query_factor(a.rotation, length - 1));
        // Of heads from n_q on, scores are of whatever lies there; nobody looks at them.
        constexpr uint32_t PAIRS = HD / 2;
        const uint32_t i = thread % PAIRS;
        const TurnedPair pair(a.rotation, hd, turn, i);
#pragma unroll 2
        for (uint32_t h = thread / PAIRS; h < n_q; h += THREADS / PAIRS) {
            const float2 r = pair.of(raw + h * hd, a.rotation.after[0]);
            *(__half*)(tiles + at + swizzled<PIECES>(h, pair.at[0] / 8) + pair.at[0] % 8 * 2) = __float2half_rn(__fmul_rn(r.x, q_scale));
            *(__half*)(tiles + at + swizzled<PIECES>(h, pair.at[1] / 8) + pair.at[1] % 8 * 2) = __float2half_rn(__fmul_rn(r.y, q_scale));
        }
        if (end == length && !a.shares && thread < PAIRS) {
            float* key = raw + 8 * hd;
            const float2 r = pair.of(key, a.rotation.after[1]);
            if constexpr (Q8) {
                if (pair.inside) {
                    key[pair.at[0]] = r.x;
                    key[pair.at[1]] = r.y;
                }
            } else {
                fresh[0][pair.at[0]] = __float2half_rn(r.x);
                fresh[0][pair.at[1]] = __float2half_rn(r.y);
                const float2 value = 2 * i < hd ? *(const float2*)(raw + 9 * hd + 2 * i) : make_float2(0.0f, 0.0f);
                *(__half2*)&fresh[1][2 * i] = __floats2half2_rn(value.x, value.y);
            }
        }
        __syncthreads();
        if constexpr (Q8) {
            load_query_q8<HD>(q, tiles + at, lane >> 2);
            // The key and the value by turns.
            if (end == length && !a.shares)
                for (uint32_t i = warp; i < 2 * ((HD + 127) / 128); i += W)
                    store_four_groups((uint8_t*)fresh[i & 1], raw + (8 + (i & 1)) * hd, i / 2 * 4, groups, hd);
        } else {
#pragma unroll
            for (int kk = 0; kk < HD / 16; kk += 2) {
                uint32_t r[4];
                load_matrices(r, base + at + swizzled<PIECES>(lane & 7, kk * 2 + (lane >> 3)));
                q[kk][0] = r[0]; q[kk][1] = r[1]; q[kk + 1][0] = r[2]; q[kk + 1][1] = r[3];
            }
        }
        __syncthreads();
        if constexpr (THREE) load(1);
    }
    // Tiles of a matrix that a warp asks for before it multiplies them: of long heads, the compiler would take them one by one.
    constexpr int TOGETHER = HD > 128 ? 8 : 1;
    // Columns 2 * (lane & 3) and the next are this thread's heads.
    float acc[HD / 16][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    for (uint32_t t = 0; t < n_steps; t++) {
        const bool is_last = t + 1 == n_steps && end == length && !a.shares;
        const uint32_t r = (length - 1 - start) % POSITIONS;
        // A piece of the current position's key or value, to the tile and to the cache.
        auto put_fresh = [&](uint32_t which, uint32_t c) {
            const uint4 v = *(const uint4*)&fresh[which][c * 8];
            *(uint4*)(tiles + plane_at(t, which) + swizzled<PIECES>(r, c)) = v;
            uint8_t* to = (uint8_t*)tile((length - 1 - start) / KV_TILE) + (uint64_t)((length - 1) % KV_TILE) * row_bytes;
            if (first_head == 0 && c * 16 < row_bytes) *(uint4*)(to + which * plane + c * 16) = v;
        };
        if constexpr (!THREE) load(t + STAGES - 1);
        copies_wait<THREE ? 2 : STAGES - 1>();
        __syncthreads();
        if (is_last) {
            if constexpr (Q8) {
                copy_fresh(tiles + t % STAGES * 2 * PLANE + r * row_bytes, PLANE);
                if (first_head == 0)
                    copy_fresh((uint8_t*)(tile((length - 1 - start) / KV_TILE) + (uint64_t)((length - 1) % KV_TILE) * row_bytes), plane);
            }
            if (!Q8 && thread < (THREE ? 1 : 2) * PIECES) put_fresh(thread / PIECES, thread % PIECES);
            __syncthreads();
        }
        const uint32_t keys = base + plane_at(t, 0), values = base + plane_at(t, 1);
        float c[4] = {};
        if constexpr (Q8) {
            score_q8<HD, 1>(&c, &q, tiles, base, keys, row_bytes, groups);
        } else {
            // Two sums, which need not wait for each other.
            float other[4] = {};
#pragma unroll
            for (int first = 0; first < HD / 16; first += TOGETHER) {
                uint32_t k[TOGETHER][4];
#pragma unroll
                for (int i = 0; i < TOGETHER; i++) load_matrices(k[i], keys + swizzled<PIECES>(warp * 16 + (lane & 15), (first + i) * 2 + (lane >> 4)));
#pragma unroll
                for (int i = 0; i < TOGETHER; i++) mma((first + i) & 1 ? other : c, k[i], q[first + i][0], q[first + i][1]);
            }
#pragma unroll
            for (int e = 0; e < 4; e++) c[e] = __fadd_rn(c[e], other[e]);
        }
        if constexpr (THREE) {
            // All have read the keys.
            __syncthreads();
            load(t + 1, 1);
        }
        // Q8, if there are registers for it: what the weights are made of keeps a warp waiting, so the values become f16 meanwhile.
        constexpr bool AHEAD = HD <= 128;
        uint32_t v8[HD / 32][2][4];
        if constexpr (Q8 && AHEAD) {
            const Q8Values<HD> of(tiles, base, values, row_bytes, groups);
#pragma unroll
            for (int g = 0; g < HD / 32; g++) of.group(v8[g], g);
        }
        if (a.scores.cap != 0.0f)
#pragma unroll
            for (int e = 0; e < 4; e++) c[e] = capped(a.scores.cap, c[e]);
        // Positions from `first` to `end`; those before wrap around.
        const uint32_t p = start + t * POSITIONS + warp * 16 + (lane >> 2) - chunks.first, seen = end - chunks.first;
        if (p >= seen) c[0] = c[1] = -INFINITY;
        if (p + 8 >= seen) c[2] = c[3] = -INFINITY;
        uint32_t w[2];
        float keep[2];
#pragma unroll
        for (int e = 0; e < 2; e++) keep[e] = weigh_scores(c[e], c[e + 2], top[e], sum[e]);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            __half2 pair = __floats2half2_rn(c[2 * h], c[2 * h + 1]);
            w[h] = transposed(*(uint32_t*)&pair);
        }
        if constexpr (Q8) {
            const Q8Values<HD> of(tiles, base, values, row_bytes, groups);
#pragma unroll
            for (int g = 0; g < HD / 32; g++) {
                if constexpr (!AHEAD) of.group(v8[g], g);
                add_values_q8<HD, 1>(&acc, &w, &keep, v8[g], g);
            }
        } else {
            if constexpr (THREE) {
                copies_wait<2>();
                __syncthreads();
                if (is_last) {
                    if (thread < PIECES) put_fresh(1, thread);
                    __syncthreads();
                }
            }
            const uint32_t r = warp * 16 + (lane >> 4) * 8 + (lane & 7);
#pragma unroll
            for (int first = 0; first < HD / 16; first += TOGETHER) {
                uint32_t v[TOGETHER][4];
#pragma unroll
                for (int i = 0; i < TOGETHER; i++) load_matrices_transposed(v[i], values + swizzled<PIECES>(r, (first + i) * 2 + (lane >> 3 & 1)));
#pragma unroll
                for (int i = 0; i < TOGETHER; i++) {
                    float (&sums)[4] = acc[first + i];
                    sums[0] *= keep[0]; sums[1] *= keep[1]; sums[2] *= keep[0]; sums[3] *= keep[1];
                    mma(sums, v[i], w[0], w[1]);
                }
            }
        }
        __syncthreads();
        if constexpr (THREE) load(t + 2);
    }
    copies_wait<0>();
    __syncthreads();
    // [warp][head][WIDTH]: the warps are merged in a fixed order.
    float* merge = (float*)tiles;
    constexpr int WIDTH = MERGE_WIDTH<HD>;
#pragma unroll
    for (int e = 0; e < 2; e++) store_column<HD, Q8>(acc, e, top[e], sum[e], merge + (warp * 8 + (lane & 3) * 2 + e) * WIDTH);
    __syncthreads();
    const bool whole = a.join && chunks.used == 1;
    // Four elements of each of its heads a thread; whole warps go on.
    const uint32_t d = thread * 4 % HD, first_of_warp = warp * 128 / HD, of_warp = HD < 128 ? lane * 4 / HD : 0;
#pragma unroll 2
    for (uint32_t first = first_of_warp; first < n_q; first += THREADS * 4 / HD) {
        const bool inside = d < hd && first + of_warp < n_q;
        const uint32_t g = inside ? first + of_warp : first, head = kv_head * group + first_head + g;
        const Gate4 gate(a, row, head * hd + d, whole && inside);
        float largest = -INFINITY, weight = 0.0f, total[4] = {};
        merge_warps<HD, W, 8 * WIDTH>(merge + g * WIDTH, d, largest, weight, total);
        if (whole) {
            const float inverse = 1.0f / with_sink(a.scores, head, largest, weight);
#pragma unroll
            for (int e = 0; e < 4; e++) total[e] = gate.lets_through(e, __fmul_rn(total[e], inverse));
            store_four(a, ((uint64_t)row * a.n_heads + head) * hd + d, total, inside);
        } else if (inside) store_part(a, row, head, chunk, d, total, largest, weight);
    }
    if (!a.join || chunks.used == 1) return;
    const uint32_t used = chunks.used;
    if (!is_last_of(a.tickets + row * places + place, used, m.is_last)) return;
    // All chunks of as many heads as there is room for come at once.
    const uint32_t stride = part_stride(hd), of_head = used * stride, at_once = min(n_q, (THREE ? 3 : STAGES * 2) * PLANE / (of_head * 4));
    const float* parts = (const float*)tiles;
#pragma unroll 1
    for (uint32_t first = 0; first < n_q; first += at_once) {
        const uint32_t n = min(at_once, n_q - first), first_of_all = kv_head * group + first_head + first;
        const float* from = a.parts + ((uint64_t)row * a.n_heads + first_of_all) * a.n_chunks * stride;
#pragma unroll 1
        for (uint32_t g = 0; g < n; g++)
#pragma unroll 4
            for (uint32_t i = thread * 4; i < of_head; i += THREADS * 4)
                copy16(base + (g * of_head + i) * 4, from + (uint64_t)g * a.n_chunks * stride + i, true);
        copies_commit();
        copies_wait<0>();
        __syncthreads();
        for (uint32_t g = warp; g < n; g += W) weigh_chunks(a, first_of_all + g, parts + g * of_head + hd, used, stride, factor[g]);
        __syncthreads();
#pragma unroll 1
        for (uint32_t its = first_of_warp; its < n; its += THREADS * 4 / HD) {
            const bool inside = d < hd && its + of_warp < n;
            const uint32_t g = inside ? its + of_warp : its;
            const uint32_t e0 = (first_of_all + g) * hd + d;
            const Gate4 gate(a, row, e0, inside);
            float total[4] = {};
            if (inside) join_chunks(parts + g * of_head + d, used, stride, factor[g], total);
#pragma unroll
            for (int e = 0; e < 4; e++) total[e] = gate.lets_through(e, __fmul_rn(total[e], factor[g][MAX_PARTS]));
            store_four(a, (uint64_t)row * a.n_heads * hd + e0, total, inside);
        }
        __syncthreads();
    }
}
