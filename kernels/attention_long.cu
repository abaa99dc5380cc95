// Attention of the decode step for long heads over f16 caches. Keys and values are in the cache already.
#include "attend.cuh"
#include "long.cuh"

// A chunk of a context for up to 8 * TILES queries of a KV head, by 8 warps. Scores are K (16 positions x dims) times q (dims
// x 8 heads): a warp has 16 positions and a part of the dims, and the parts' sums meet in shared memory, where each warp
// does the softmax of TILES heads. Sums are V transposed (16 dims x 16 positions) times weights: a warp has 64 dims
// of all positions. Tiles come through a ring of STAGES.
template <int KEY, int TILE, int STAGES, int TILES, bool LATENT> struct AttendLong {
    using Tile = LongTile<KEY, TILE, LATENT>;
    static constexpr uint32_t THREADS = 256, HEADS = 8 * TILES, BY_POSITION = TILE / 16, BY_DIM = 8 / BY_POSITION;
    static constexpr uint32_t STEPS = KEY / 16 / BY_DIM;  // of a warp's part of the scores
    static constexpr uint32_t SCORE_STRIDE = TILE + 4, WEIGHT_STRIDE = TILE * 2 + 16;
    static constexpr uint32_t TILES_AT = HEADS * Tile::ROW, SCORES_AT = TILES_AT + STAGES * Tile::BYTES;
    static constexpr uint32_t WEIGHTS_AT = SCORES_AT + BY_DIM * HEADS * SCORE_STRIDE * 4, KEEP_AT = WEIGHTS_AT + HEADS * WEIGHT_STRIDE;
    static constexpr uint32_t BYTES = KEEP_AT + HEADS * 4;
    static_assert(STEPS % 2 == 0 && KEY / 16 % BY_DIM == 0);

    // Fragments of TILES times 8 rows of `stride` bytes, 16 columns from `column` on; rows of queries are swizzled.
    static __device__ __forceinline__ void queries(uint32_t (&b)[TILES][2], uint32_t base, uint32_t step) {
        const uint32_t lane = threadIdx.x & 31;
        static_assert(TILES % 2 == 0);
#pragma unroll
        for (int n = 0; n < TILES; n += 2) {
            uint32_t r[4];
            load_matrices(r, base + swizzled<Tile::PIECES>(n * 8 + (lane & 7) + (lane >> 4) * 8, step * 2 + (lane >> 3 & 1)));
            b[n][0] = r[0]; b[n][1] = r[1]; b[n + 1][0] = r[2]; b[n + 1][1] = r[3];
        }
    }
    static __device__ __forceinline__ void weights(uint32_t (&b)[TILES][2], uint32_t base, uint32_t step) {
        const uint32_t lane = threadIdx.x & 31;
#pragma unroll
        for (int n = 0; n < TILES; n += 2) {
            uint32_t r[4];
            load_matrices(r, base + (n * 8 + (lane & 7) + (lane >> 4) * 8) * WEIGHT_STRIDE + (step * 2 + (lane >> 3 & 1)) * 16);
            b[n][0] = r[0]; b[n][1] = r[1]; b[n + 1][0] = r[2]; b[n + 1][1] = r[3];
        }
    }

    static __device__ __forceinline__ void chunk(const AttendArgs& a, const Session* s, const Chunks& chunks, uint32_t row, uint32_t place,
                                                 uint32_t number, uint8_t* shared) {
        const uint32_t thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, base = shared_address(shared);
        const uint32_t hd = a.layout.head_dim, vd = a.value_dim, group = a.n_heads / a.layout.n_kv_heads;
        const uint32_t kv_head = place / a.head_parts, first_head = place % a.head_parts * HEADS, n_q = min(HEADS, group - first_head);
        const uint32_t start = chunks.begin + number * chunks.per, end = min(chunks.length, start + chunks.per);
        const uint32_t n_steps = (end - start + TILE - 1) / TILE;
        const uint8_t* cache = kv_base(a.layout, s) + (uint64_t)kv_head * KV_TILE * a.layout.row_bytes;
        auto load = [&](uint32_t t) {
            if (t < n_steps) Tile::template load<THREADS>(base + TILES_AT + t % STAGES * Tile::BYTES, a.layout, cache, start + t * TILE, end);
            copies_commit();
        };
        // Queries, with zeros for what is none.
        const __half* from = a.q16 + ((uint64_t)row * a.n_heads + kv_head * group + first_head) * hd;
        const bool whole = hd % 8 == 0;
#pragma unroll 2
        for (uint32_t i = thread; i < HEADS * Tile::PIECES; i += THREADS) {
            const uint32_t h = i / Tile::PIECES, c = i % Tile::PIECES, to = swizzled<Tile::PIECES>(h, c);
            if (whole) {
                const bool valid = h < n_q && c * 8 < hd;
                copy16(base + to, valid ? from + h * hd + c * 8 : from, valid);
            } else {
                for (uint32_t e = 0; e < 8; e++)
                    *(__half*)(shared + to + 2 * e) = h < n_q && c * 8 + e < hd ? from[h * hd + c * 8 + e] : __float2half_rn(0.0f);
            }
        }
#pragma unroll 1
        for (int t = 0; t < STAGES - 1; t++) load(t);
        const uint32_t part = warp / BY_POSITION, position = warp % BY_POSITION * 16;
        float* scores = (float*)(shared + SCORES_AT);
        float* keep = (float*)(shared + KEEP_AT);
        float acc[4][TILES][4] = {}, top[TILES], sum[TILES];
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            top[n] = -INFINITY;
            sum[n] = 0.0f;
        }
        for (uint32_t t = 0; t < n_steps; t++) {
            copies_wait<STAGES - 2>();
            __syncthreads();
            load(t + STAGES - 1);
            const uint32_t keys = base + TILES_AT + t % STAGES * Tile::BYTES, values = LATENT ? keys : keys + Tile::PLANE;
            float c[TILES][4] = {};
#pragma unroll
            for (uint32_t kk = 0; kk < STEPS; kk++) {
                const uint32_t step = part * STEPS + kk;
                uint32_t k[4], q[TILES][2];
                load_matrices(k, keys + swizzled<Tile::PIECES>(position + (lane & 15), step * 2 + (lane >> 4)));
                queries(q, base, step);
#pragma unroll
                for (int n = 0; n < TILES; n++) mma(c[n], k, q[n][0], q[n][1]);
            }
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    scores[(part * HEADS + n * 8 + (lane & 3) * 2 + (e & 1)) * SCORE_STRIDE + position + (lane >> 2) + (e >> 1) * 8] = c[n][e];
            __syncthreads();
            // The softmax of heads n * 8 + warp.
            constexpr uint32_t EACH = TILE / 32;
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                const uint32_t h = n * 8 + warp;
                float x[EACH], largest = top[n];
#pragma unroll
                for (uint32_t e = 0; e < EACH; e++) {
                    const uint32_t at = lane + e * 32, p = start + t * TILE + at - chunks.first;
                    float v = scores[h * SCORE_STRIDE + at];
#pragma unroll
                    for (uint32_t i = 1; i < BY_DIM; i++) v = __fadd_rn(v, scores[(i * HEADS + h) * SCORE_STRIDE + at]);
                    if (a.scores.cap != 0.0f) v = capped(a.scores.cap, v);
                    // Positions before the first wrap around.
                    if (p >= end - chunks.first) v = -INFINITY;
                    x[e] = v;
                    largest = fmaxf(largest, v);
                }
                largest = warp_max(largest);
                const float kept = largest == -INFINITY ? 1.0f : exp2f(top[n] - largest);
                top[n] = largest;
                if (largest == -INFINITY) largest = 0.0f;
                float weight = 0.0f;
#pragma unroll
                for (uint32_t e = 0; e < EACH; e++) {
                    const float w = exp2f(x[e] - largest);
                    weight = __fadd_rn(weight, w);
                    *(__half*)(shared + WEIGHTS_AT + h * WEIGHT_STRIDE + (lane + e * 32) * 2) = __float2half_rn(w);
                }
                sum[n] = __fmaf_rn(sum[n], kept, weight);
                if (lane == 0) keep[h] = kept;
            }
            __syncthreads();
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                const float2 k = *(const float2*)(keep + n * 8 + (lane & 3) * 2);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    acc[j][n][0] *= k.x; acc[j][n][1] *= k.y; acc[j][n][2] *= k.x; acc[j][n][3] *= k.y;
                }
            }
#pragma unroll
            for (uint32_t kk = 0; kk < TILE / 16; kk++) {
                uint32_t w[TILES][2];
                weights(w, base + WEIGHTS_AT, kk);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    uint32_t v[4];
                    load_matrices_transposed(v, values + swizzled<Tile::PIECES>(kk * 16 + (lane >> 4) * 8 + (lane & 7), warp * 8 + j * 2 + (lane >> 3 & 1)));
#pragma unroll
                    for (int n = 0; n < TILES; n++) mma(acc[j][n], v, w[n][0], w[n][1]);
                }
            }
        }
        copies_wait<0>();
        const uint64_t first = (uint64_t)row * a.n_heads + kv_head * group + first_head;
        const uint32_t stride = part_stride(vd);
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint32_t h = n * 8 + (lane & 3) * 2 + e;
                if (h >= n_q) continue;
                float* to = a.parts + ((first + h) * a.n_chunks + number) * stride;
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const uint32_t d = warp * 64 + j * 16 + half * 8 + (lane >> 2);
                        if (d < vd) to[d] = acc[j][n][half * 2 + e];
                    }
            }
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            const float weight = warp_sum(sum[n]);
            const uint32_t h = n * 8 + warp;
            if (lane != 0 || h >= n_q) continue;
            float* to = a.parts + ((first + h) * a.n_chunks + number) * stride;
            to[vd] = top[n];
            to[vd + 1] = weight;
        }
        __syncthreads();
    }
};

// Grid (n_kv_heads * head_parts, batch, blocks that share the chunks of a context), 256 threads.
template <class Attend> __device__ __forceinline__ void attend_long(const AttendArgs& a) {
    DYNAMIC_SHARED(shared);
    release_dependents();
    wait_for_producers();
    const Session* s = a.sessions[blockIdx.y];
    const Chunks chunks = chunks_of(a, s, blockIdx.y);
    for (uint32_t c = blockIdx.z; c < chunks.used; c += gridDim.z) Attend::chunk(a, s, chunks, blockIdx.y, blockIdx.x, c, shared);
}
// The host knows what shared memory they take (`long_shared` of attention.rs).
#define ATTEND(name, bytes, ...)                                                                                         \
    static_assert(AttendLong<__VA_ARGS__>::BYTES == bytes, "as in attention.rs");                                        \
    extern "C" __global__ void __launch_bounds__(256, 1) attend_##name(const __grid_constant__ AttendArgs a) {           \
        attend_long<AttendLong<__VA_ARGS__>>(a);                                                                         \
    }
#if !defined(__CUDA_ARCH__) || LARGE_SHARED
ATTEND(long_2, 223552, 512, 32, 3, 2, false)
ATTEND(latent_2, 176960, 576, 64, 2, 2, true)
ATTEND(latent_4, 206464, 576, 64, 2, 4, true)
#endif

using PartFactors = float[MAX_PARTS + 1];

// Joins the chunks of long heads, whose values are a multiple of 128 elements. Grid (n_heads, batch), 128 threads.
extern "C" __global__ void __launch_bounds__(128) attend_join(const __grid_constant__ AttendArgs a) {
    STATIC_SHARED(PartFactors, factor);
    release_dependents();
    wait_for_producers();
    const uint32_t head = blockIdx.x, row = blockIdx.y, vd = a.value_dim, stride = part_stride(vd), lane = threadIdx.x & 31;
    const uint32_t used = chunks_of(a, a.sessions[row], row).used;
    const float* from = a.parts + ((uint64_t)row * a.n_heads + head) * a.n_chunks * stride;
    if (threadIdx.x < 32) {
        float largest = -INFINITY;
        for (uint32_t c = lane; c < used; c += 32) largest = fmaxf(largest, from[c * stride + vd]);
        largest = warp_max(largest);
        float weight = 0.0f;
        for (uint32_t c = lane; c < used; c += 32) {
            const float f = exp2f(from[c * stride + vd] - largest);
            factor[c] = f;
            weight = __fmaf_rn(f, from[c * stride + vd + 1], weight);
        }
        weight = warp_sum(weight);
        if (lane == 0) factor[MAX_PARTS] = 1.0f / with_sink(a.scores, head, largest, weight);
    }
    __syncthreads();
    for (uint32_t d = threadIdx.x * 4; d - lane * 4 < vd; d += 512) {
        const bool inside = d < vd;
        float total[4] = {};
        if (inside) {
#pragma unroll 8
            for (uint32_t c = 0; c < used; c++) {
                const float4 v = *(const float4*)(from + c * stride + d);
                const float f = factor[c];
                total[0] = __fmaf_rn(f, v.x, total[0]);
                total[1] = __fmaf_rn(f, v.y, total[1]);
                total[2] = __fmaf_rn(f, v.z, total[2]);
                total[3] = __fmaf_rn(f, v.w, total[3]);
            }
#pragma unroll
            for (int e = 0; e < 4; e++) total[e] = let_through(a, row, head * vd + d + e, __fmul_rn(total[e], factor[MAX_PARTS]));
        }
        store_four(a, ((uint64_t)row * a.n_heads + head) * vd + d, total, inside);
    }
}
