// Attention of the decode step, on tensor cores: a chunk of a context at a time, of f16 caches and of q8_0 caches.
#pragma once
#include "attend_q8.cuh"

// Up to 8 queries of a KV head, with the norm and rotation of its
// input, the append to the cache, and the joining of the chunks by the block that ends last. Positions come
// through a ring of STAGES in shared memory, 16 a warp, of which there are W; each has a softmax of its own.
// Scores are K (16 positions x dims) times q (dims x 8 heads); sums are V transposed (16 dims x 16
// positions) times weights (positions x 8 heads). Queries and weights are rounded to f16.
template <int HD> struct AttendShared {
    float turn[2][HD / 2];  // cosine and sine of each pair
    const float* turn_of;   // the frequencies that they belong to, at the position of the step; NULL at first
    __half fresh[2][HD];    // key and value of the current position; Q8: in the form of the cache
    float factor[8][MAX_PARTS + 1];  // join: weight of each chunk, and what the sum is multiplied by
    uint32_t is_last;
};

// Two elements of a head, rotated if they are a pair, and multiplied by `after`: of every i below half of HD, so that all elements come.
struct Two { uint32_t at[2]; float v[2]; };
template <int HD> __device__ __forceinline__ Two rotated(const Rotation& rotation, uint32_t hd, uint32_t n_pairs, const float (&turn)[2][HD / 2], const float* line, const float* after, uint32_t i) {
    const bool apart = i < n_pairs && !rotation.interleaved;
    Two r{{apart ? i : 2 * i, apart ? i + n_pairs : 2 * i + 1}, {0.0f, 0.0f}};
    if (r.at[1] >= hd) return r;
    const float v = line[r.at[0]], o = line[r.at[1]];
    if (i < n_pairs) {
        const float cosine = turn[0][i], sine = turn[1][i];
        r.v[0] = __fmul_rn(__fmaf_rn(v, cosine, -__fmul_rn(o, sine)), rotation.magnitude);
        r.v[1] = __fmul_rn(__fmaf_rn(o, cosine, __fmul_rn(v, sine)), rotation.magnitude);
    } else {
        r.v[0] = v;
        r.v[1] = o;
    }
    if (after) {
        r.v[0] = __fmul_rn(r.v[0], after[r.at[0]]);
        r.v[1] = __fmul_rn(r.v[1], after[r.at[1]]);
    }
    return r;
}

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
    auto load = [&](uint32_t t) {
        if (t < n_steps) {
            const uint32_t to = base + t % STAGES * 2 * PLANE;
            const uint32_t rows = min((uint32_t)POSITIONS, min(end, cached) - min(cached, start + t * POSITIONS));
            if constexpr (Q8) copy_q8_tiles<HD, W>(to, plane, row_bytes, rows, [&](uint32_t half) { return tile(t * (POSITIONS / KV_TILE) + half); });
#pragma unroll
            for (uint32_t half = 0; !Q8 && half < POSITIONS / KV_TILE; half++) {
                const uint8_t* from = tile(t * (POSITIONS / KV_TILE) + half) + offset;
#pragma unroll
                for (uint32_t k = 0; k < KV_TILE / STEP; k++) {
                    const uint32_t r = half * KV_TILE + row0 + k * STEP, at = to + swizzled<PIECES>(r, piece);
                    const bool valid = r < rows && inside;
                    copy16(at, from + k * STEP * row_bytes, valid);
                    copy16(at + PLANE, from + plane + k * STEP * row_bytes, valid);
                }
            }
        }
        copies_commit();
    };
    // What the cache holds from the steps before is there already; only the input must be awaited, and what an earlier layer appends.
    if (a.shares) wait_for_producers();
#pragma unroll 1
    for (int t = 0; t < EARLY; t++) load(t);
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
        float* raw = (float*)(tiles + at + PLANE);  // 8 queries, key, value
        const float* from = raw;
        constexpr int N = (10 * HD + THREADS - 1) / THREADS;
        float v[N];
        auto place = [&](int k) {
            const uint32_t h = (thread + k * THREADS) / HD;
            return input + (uint64_t)(h < 8 ? kv_head * group + first_head + h : (h == 8 ? a.n_heads : a.value_head) + kv_head) * hd +
                   (thread + k * THREADS) % HD;
        };
        auto wanted = [&](int k) {
            const uint32_t h = (thread + k * THREADS) / HD, d = (thread + k * THREADS) % HD;
            return d < hd && h < 10 && (h < n_q || (h >= 8 && !a.shares));
        };
#pragma unroll
        for (int k = 0; k < N; k++) v[k] = wanted(k) ? __ldcg(place(k)) : 0.0f;
#pragma unroll
        for (int k = 0; k < N; k++) {
            const uint32_t h = (thread + k * THREADS) / HD, d = (thread + k * THREADS) % HD;
            if (!wanted(k)) continue;
            raw[h * hd + d] = v[k];
        }
        __syncthreads();
        // The loads that matter most are over: the next kernel's may come.
        release_dependents();
        if constexpr (EARLY < STAGES - 1) {
#pragma unroll 1
            for (int t = EARLY; t < STAGES - 1; t++) load(t);
        }
        if (a.q_norm.weight || a.k_norm.weight || a.v_norm.weight) {
            for (uint32_t h = warp; h < 10; h += W) {
                const NormArgs& norm = h < 8 ? a.q_norm : h == 8 ? a.k_norm : a.v_norm;
                if (norm.weight && (h >= 8 || h < n_q)) norm_head(norm, raw + h * hd, hd);
            }
            __syncthreads();
        }
        const float q_scale = __fmul_rn(a.scores.scale, query_factor(a.rotation, length - 1));
        // Of heads from n_q on, scores are of whatever lies there; nobody looks at them.
#pragma unroll 2
        for (uint32_t i = thread; i < n_q * (HD / 2); i += THREADS) {
            const uint32_t h = i / (HD / 2);
            const Two r = rotated<HD>(a.rotation, hd, n_pairs, turn, from + h * hd, a.rotation.after[0], i % (HD / 2));
#pragma unroll
            for (int e = 0; e < 2; e++)
                *(__half*)(tiles + at + swizzled<PIECES>(h, r.at[e] / 8) + r.at[e] % 8 * 2) = __float2half_rn(__fmul_rn(r.v[e], q_scale));
        }
        if constexpr (Q8) {
            if (end == length && !a.shares)
                for (uint32_t i = thread; i < HD / 2; i += THREADS) {
                    const Two r = rotated<HD>(a.rotation, hd, n_pairs, turn, raw + 8 * hd, a.rotation.after[1], i);
                    if (r.at[1] < hd) {
                        raw[8 * hd + r.at[0]] = r.v[0];
                        raw[8 * hd + r.at[1]] = r.v[1];
                    }
                }
        } else if (end == length && !a.shares) {
            const float* value = raw + 9 * hd;
            __half* to = (__half*)(tile((length - 1 - start) / KV_TILE) + (uint64_t)((length - 1) % KV_TILE) * row_bytes);
#pragma unroll 1
            for (uint32_t i = thread; i < HD / 2; i += THREADS) {
                const Two r = rotated<HD>(a.rotation, hd, n_pairs, turn, raw + 8 * hd, a.rotation.after[1], i);
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const uint32_t d = r.at[e], j = 2 * i + e;
                    const __half x = __float2half_rn(r.v[e]), y = __float2half_rn(j < hd ? value[j] : 0.0f);
                    fresh[0][d] = x;
                    fresh[1][j] = y;
                    if (first_head == 0 && d * 2 < row_bytes) to[d] = x;
                    if (first_head == 0 && j * 2 < row_bytes) to[plane / 2 + j] = y;
                }
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
    }
    // Columns 2 * (lane & 3) and the next are this thread's heads.
    float acc[HD / 16][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    for (uint32_t t = 0; t < n_steps; t++) {
        load(t + STAGES - 1);
        copies_wait<STAGES - 1>();
        __syncthreads();
        if (t + 1 == n_steps && end == length && !a.shares) {
            const uint32_t r = (length - 1 - start) % POSITIONS;
            if constexpr (Q8) {
                copy_fresh(tiles + t % STAGES * 2 * PLANE + r * row_bytes, PLANE);
                if (first_head == 0)
                    copy_fresh((uint8_t*)(tile((length - 1 - start) / KV_TILE) + (uint64_t)((length - 1) % KV_TILE) * row_bytes), plane);
            }
#pragma unroll 1
            for (uint32_t i = thread; !Q8 && i < 2 * HD; i += THREADS) {
                uint32_t part = i / HD, d = i % HD;
                *(__half*)(tiles + (t % STAGES * 2 + part) * PLANE + swizzled<PIECES>(r, d / 8) + d % 8 * 2) = fresh[part][d];
            }
            __syncthreads();
        }
        const uint32_t keys = base + t % STAGES * 2 * PLANE, values = keys + PLANE;
        float c[4] = {};
        if constexpr (Q8) {
            score_q8<HD, 1>(&c, &q, tiles, base, keys, row_bytes, groups);
        } else {
            // Two sums, which need not wait for each other.
            float other[4] = {};
#pragma unroll
            for (int kk = 0; kk < HD / 16; kk++) {
                uint32_t k[4];
                load_matrices(k, keys + swizzled<PIECES>(warp * 16 + (lane & 15), kk * 2 + (lane >> 4)));
                mma(kk & 1 ? other : c, k, q[kk][0], q[kk][1]);
            }
#pragma unroll
            for (int e = 0; e < 4; e++) c[e] = __fadd_rn(c[e], other[e]);
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
#pragma unroll
            for (int j = 0; j < HD / 16; j++) {
                acc[j][0] *= keep[0]; acc[j][1] *= keep[1]; acc[j][2] *= keep[0]; acc[j][3] *= keep[1];
                uint32_t v[4];
                uint32_t r = warp * 16 + (lane >> 4) * 8 + (lane & 7);
                load_matrices_transposed(v, values + swizzled<PIECES>(r, j * 2 + (lane >> 3 & 1)));
                mma(acc[j], v, w[0], w[1]);
            }
        }
        __syncthreads();
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
    // Four elements a thread; sizes of heads are multiples of 4.
#pragma unroll 1
    for (uint32_t i = thread * 4; i - lane * 4 < n_q * hd; i += THREADS * 4) {
        const bool inside = i < n_q * hd;
        const uint32_t g = inside ? i / hd : 0, d = inside ? i % hd : 0, head = kv_head * group + first_head + g;
        float largest = -INFINITY, weight = 0.0f, total[4] = {};
        merge_warps<HD, W, 8 * WIDTH>(merge + g * WIDTH, d, largest, weight, total);
        if (whole) {
            const float inverse = 1.0f / with_sink(a.scores, head, largest, weight);
#pragma unroll
            for (int e = 0; e < 4; e++) total[e] = let_through(a, row, head * hd + d + e, __fmul_rn(total[e], inverse));
            store_four(a, ((uint64_t)row * a.n_heads + head) * hd + d, total, inside);
        } else if (inside) store_part(a, row, head, chunk, d, total, largest, weight);
    }
    if (!a.join || chunks.used == 1) return;
    const uint32_t used = chunks.used;
    if (!is_last_of(a.tickets + row * places + place, used, m.is_last)) return;
    // All chunks of as many heads as there is room for come at once.
    const uint32_t stride = part_stride(hd), of_head = used * stride, at_once = min(n_q, STAGES * 2 * PLANE / (of_head * 4));
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
        // Four elements a thread.
#pragma unroll 1
        for (uint32_t i = thread * 4; i - lane * 4 < n * hd; i += THREADS * 4) {
            const bool inside = i < n * hd;
            const uint32_t g = inside ? i / hd : 0, d = inside ? i % hd : 0;
            float total[4] = {};
            join_chunks(parts + g * of_head + d, used, stride, factor[g], total);
#pragma unroll
            for (int e = 0; e < 4; e++) total[e] = let_through(a, row, first_of_all * hd + i + e, __fmul_rn(total[e], factor[g][MAX_PARTS]));
            store_four(a, ((uint64_t)row * a.n_heads + first_of_all) * hd + i, total, inside);
        }
        __syncthreads();
    }
}
