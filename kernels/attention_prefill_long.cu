// Attention of a prefill for long heads over f16 caches: tiles of 64 queries against tiles of 32 positions, as
// attention_prefill.cu does it, but that a head's sums are spread over the warps of a block.
#include "flash.cuh"
#include "long.cuh"

// Grid (query tiles, n_heads), 256 threads. For the scores, a warp has 16 queries and 16 positions; for the sums, all 64
// queries and 64 dims.
template <int KEY, bool LATENT> struct FlashLong {
    static constexpr uint32_t QUERIES = 64, POSITIONS = 32, THREADS = 256;
    using Tile = LongTile<KEY, POSITIONS, LATENT>;
    static constexpr uint32_t SCORE_STRIDE = POSITIONS + 4, WEIGHT_STRIDE = POSITIONS * 2 + 16;
    static constexpr uint32_t TILES_AT = QUERIES * Tile::ROW, SCORES_AT = TILES_AT + 2 * Tile::BYTES;
    static constexpr uint32_t WEIGHTS_AT = SCORES_AT + QUERIES * SCORE_STRIDE * 4, KEEP_AT = WEIGHTS_AT + QUERIES * WEIGHT_STRIDE;
    static constexpr uint32_t BYTES = KEEP_AT + QUERIES * 4;

    static __device__ __forceinline__ void run(const FlashArgs& a, uint8_t* shared) {
        const uint32_t thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, base = shared_address(shared);
        const Session* s = a.sessions[0];
        const uint32_t hd = a.layout.head_dim, vd = a.value_dim, head = blockIdx.y, kv_head = head / (a.n_heads / a.layout.n_kv_heads);
        // The last tiles have the most work, so they start first.
        const uint32_t q0 = a.first_row + (gridDim.x - 1 - blockIdx.x) * QUERIES, before = s->position;
        const uint32_t end = before + min(a.rows, q0 + QUERIES), tiles = (end + POSITIONS - 1) / POSITIONS;
        const uint32_t first = first_seen(a.layout, before + q0 + 1) / POSITIONS;
        const uint8_t* cache = kv_base(a.layout, s) + (uint64_t)kv_head * KV_TILE * a.layout.row_bytes;
        auto load = [&](uint32_t t) {
            if (t < tiles) Tile::template load<THREADS>(base + TILES_AT + (t & 1) * Tile::BYTES, a.layout, cache, t * POSITIONS, end);
            copies_commit();
        };
        const bool whole = hd % 8 == 0;
        for (uint32_t i = thread; i < QUERIES * Tile::PIECES; i += THREADS) {
            const uint32_t r = i / Tile::PIECES, c = i % Tile::PIECES, to = swizzled<Tile::PIECES>(r, c);
            const bool there = q0 + r < a.rows;
            const __half* from = a.q + ((uint64_t)(there ? q0 + r : q0) * a.n_heads + head) * hd;
            if (whole) {
                const bool valid = there && c * 8 < hd;
                copy16(base + to, valid ? from + c * 8 : a.q, valid);
            } else {
                for (uint32_t e = 0; e < 8; e++) *(__half*)(shared + to + 2 * e) = there && c * 8 + e < hd ? from[c * 8 + e] : __float2half_rn(0.0f);
            }
        }
        load(first);
        const uint32_t rows = warp / 2 * 16, columns = warp % 2 * 16;
        float* scores = (float*)(shared + SCORES_AT);
        float* keep = (float*)(shared + KEEP_AT);
        float acc[4][8][4] = {};
        // Four threads have a query's softmax, 8 positions each.
        const uint32_t mine = thread / 4, its = thread % 4 * 8;
        float top = -INFINITY, sum = 0.0f;
        for (uint32_t t = first; t < tiles; t++) {
            copies_wait<0>();
            __syncthreads();
            load(t + 1);
            const uint32_t keys = base + TILES_AT + (t & 1) * Tile::BYTES, values = LATENT ? keys : keys + Tile::PLANE;
            float c[2][4] = {};
#pragma unroll 6
            for (uint32_t kk = 0; kk < KEY / 16; kk++) {
                uint32_t q[4], k[4];
                load_matrices(q, base + swizzled<Tile::PIECES>(rows + (lane & 15), kk * 2 + (lane >> 4)));
                load_matrices(k, keys + swizzled<Tile::PIECES>(columns + (lane & 7) + (lane >> 4) * 8, kk * 2 + (lane >> 3 & 1)));
                mma(c[0], q, k[0], k[1]);
                mma(c[1], q, k[2], k[3]);
            }
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    *(float2*)(scores + (rows + (lane >> 2) + half * 8) * SCORE_STRIDE + columns + n * 8 + (lane & 3) * 2) =
                        make_float2(c[n][half * 2], c[n][half * 2 + 1]);
            __syncthreads();
            float x[8], largest = top;
#pragma unroll
            for (int e = 0; e < 8; e++) {
                float v = scores[mine * SCORE_STRIDE + its + e];
                if (a.scores.cap != 0.0f) v = capped(a.scores.cap, v);
                if (hidden(a.layout, before + q0 + mine, t * POSITIONS + its + e)) v = -INFINITY;
                x[e] = v;
                largest = fmaxf(largest, v);
            }
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
            // A row with nothing in sight yet keeps what it has, which is nothing.
            const float kept = largest == -INFINITY ? 1.0f : power_of_2(top - largest);
            top = largest;
            if (largest == -INFINITY) largest = 0.0f;
            sum *= kept;
            uint32_t w[4];
#pragma unroll
            for (int e = 0; e < 8; e += 2) {
                const float u = power_of_2(x[e] - largest), v = power_of_2(x[e + 1] - largest);
                sum += u + v;
                __half2 pair = __floats2half2_rn(u, v);
                w[e / 2] = *(uint32_t*)&pair;
            }
            *(uint4*)(shared + WEIGHTS_AT + mine * WEIGHT_STRIDE + its * 2) = make_uint4(w[0], w[1], w[2], w[3]);
            if (its == 0) keep[mine] = kept;
            __syncthreads();
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const float k = keep[i * 16 + half * 8 + (lane >> 2)];
#pragma unroll
                    for (int j = 0; j < 8; j++) {
                        acc[i][j][half * 2] *= k;
                        acc[i][j][half * 2 + 1] *= k;
                    }
                }
#pragma unroll
            for (uint32_t kk = 0; kk < POSITIONS / 16; kk++) {
                uint32_t p[4][4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    load_matrices(p[i], base + WEIGHTS_AT + (i * 16 + (lane & 15)) * WEIGHT_STRIDE + (kk * 2 + (lane >> 4)) * 16);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    uint32_t v[4];
                    load_matrices_transposed(v, values + swizzled<Tile::PIECES>(kk * 16 + (lane & 15), warp * 8 + j * 2 + (lane >> 4)));
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        mma(acc[i][2 * j], p[i], v[0], v[1]);
                        mma(acc[i][2 * j + 1], p[i], v[2], v[3]);
                    }
                }
            }
        }
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        __syncthreads();
        if (its == 0) keep[mine] = 1.0f / with_sink(a.scores, head, top, sum);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t r = i * 16 + half * 8 + (lane >> 2);
                if (q0 + r >= a.rows) continue;
                const float inverse = keep[r];
                float* to = a.out + ((uint64_t)(q0 + r) * a.n_heads + head) * vd;
#pragma unroll
                for (int j = 0; j < 8; j++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const uint32_t d = warp * 64 + j * 8 + (lane & 3) * 2 + e;
                        if (d < vd) to[d] = acc[i][j][half * 2 + e] * inverse;
                    }
            }
    }
};

// The host knows what shared memory they take (`long_shared` of attention.rs).
#define FLASH(name, bytes, ...)                                                                                          \
    static_assert(FlashLong<__VA_ARGS__>::BYTES == bytes, "as in attention.rs");                                         \
    extern "C" __global__ void __launch_bounds__(256, 1) flash_##name(const __grid_constant__ FlashArgs a) {             \
        DYNAMIC_SHARED(shared);                                                                                          \
        release_dependents();                                                                                            \
        wait_for_producers();                                                                                            \
        FlashLong<__VA_ARGS__>::run(a, shared);                                                                          \
    }
#if !defined(__CUDA_ARCH__) || LARGE_SHARED
FLASH(long, 211200, 512, false)
FLASH(latent, 162048, 576, true)
#endif
