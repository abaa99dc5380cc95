// Latent attention, but for the attention itself: queries into the space of the latent vectors and what heads gather
// out of it, by a matrix of each head; keys into the cache.
#include "args_latent.h"
#include "blocks.cuh"
#include "mma.cuh"
#include "rope.cuh"

constexpr uint32_t PARTS = 8;          // of a block, one a warp

// The rotated pair `i` of a line.
struct Pair { uint32_t at[2]; float v[2]; };
__device__ __forceinline__ Pair rotated(const Rotation& r, const float* inv_freq, uint32_t position, const float* line, uint32_t i) {
    Pair p;
    p.at[0] = r.interleaved ? 2 * i : i;
    p.at[1] = r.interleaved ? 2 * i + 1 : i + r.n_pairs;
    const float u = line[p.at[0]], v = line[p.at[1]];
    float sine, cosine;
    sincosf(__fmul_rn((float)position, inv_freq[i]), &sine, &cosine);
    p.v[0] = __fmul_rn(__fmaf_rn(u, cosine, -__fmul_rn(v, sine)), r.magnitude);
    p.v[1] = __fmul_rn(__fmaf_rn(v, cosine, __fmul_rn(u, sine)), r.magnitude);
    return p;
}

using Key = float[MAX_LATENT_KEY];

// Grid (parts that share the heads and the key, rows), 32 * PARTS threads.
extern "C" __global__ void __launch_bounds__(32 * PARTS) latent_place(const __grid_constant__ LatentArgs a) {
    STATIC_SHARED(Key, line);
    release_dependents();
    wait_for_producers();
    const uint32_t row = blockIdx.y, lane = threadIdx.x & 31, part = blockIdx.x * PARTS + threadIdx.x / 32;
    const Session* s = a.sessions[a.prefill ? 0 : row];
    const uint32_t position = s->position + (a.prefill ? row : 0);
    const float* inv_freq = frequencies(a.rotation, s);
    if (part < a.n_heads) {
        float* plain = a.q + (uint64_t)row * a.q_stride + (uint64_t)part * (a.plain + 2 * a.rotation.n_pairs);
        const float* from = plain + a.plain;
        const float factor = query_factor(a.rotation, position), q_scale = __fmul_rn(a.q_scale, factor);
        if (factor != 1.0f)
            for (uint32_t i = lane; i < a.plain; i += 32) plain[i] = __fmul_rn(plain[i], factor);
        __half* to = a.q16 + ((uint64_t)row * a.n_heads + part) * a.layout.head_dim + a.rank;
        for (uint32_t i = lane; i < a.rotation.n_pairs; i += 32) {
            const Pair p = rotated(a.rotation, inv_freq, position, from, i);
            to[p.at[0]] = __float2half_rn(__fmul_rn(p.v[0], q_scale));
            to[p.at[1]] = __float2half_rn(__fmul_rn(p.v[1], q_scale));
        }
    } else if (part == a.n_heads) {
        const float* from = a.kv + (uint64_t)row * a.kv_stride;
        for (uint32_t i = lane; i < a.rank; i += 32) line[i] = from[i];
        for (uint32_t i = lane; i < a.rotation.n_pairs; i += 32) {
            const Pair p = rotated(a.rotation, inv_freq, position, from + a.rank, i);
            line[a.rank + p.at[0]] = p.v[0];
            line[a.rank + p.at[1]] = p.v[1];
        }
        __syncwarp();
        if (a.norm.weight) {
            norm_head(a.norm, line, a.rank);
            __syncwarp();
        }
        const bool fours = a.layout.head_dim % 4 == 0;
        // A value is as long as a key; what it has beyond the latent vector is not used.
        for (uint32_t v = 0; v < 2; v++) store_head(a.layout, kv_row(a.layout, s, v, 0, position), line, fours);
    }
}

constexpr uint32_t PRODUCT_COLUMNS = 128;  // of inputs at a time

// The power of two that brings a row's largest value to 2^10..2^11, far from both ends of f16.
__device__ __forceinline__ int exponent_of(float largest) {
    const int e = (int)(__float_as_uint(largest) >> 23) - 127 - 10;
    return largest > 0.0f && e < 100 ? max(e, -100) : 0;
}
__device__ __forceinline__ float two_to(int e) { return __uint_as_float((uint32_t)(127 + e) << 23); }

struct HeadShared {
    __half x[HEAD_ROWS * PRODUCT_COLUMNS];
    __half w[64 * PRODUCT_COLUMNS];
    int exponent[HEAD_ROWS];
};
static_assert(sizeof(HeadShared) == 33024, "as HEAD_SHARED of attention/long.rs");

// Grid (ceil(rows / N), n_heads, ceil(count / HEAD_ROWS)), 128 threads: a warp has 16 rows of inputs, which are rounded to f16
// as those of a prefill's products are.
template <int N> __device__ __forceinline__ void head_product(const HeadProductArgs& a, HeadShared& m) {
    release_dependents();
    wait_for_producers();
    constexpr uint32_t PIECES = PRODUCT_COLUMNS / 8;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, head = blockIdx.y, n0 = blockIdx.x * N, m0 = blockIdx.z * HEAD_ROWS;
    const uint32_t count = min(HEAD_ROWS, a.count - m0), n = min((uint32_t)N, a.rows - n0);
    const float* x = a.x + (uint64_t)m0 * a.x_stride + (uint64_t)head * a.x_head;
    for (uint32_t r = warp; r < count; r += 4) {
        float largest = 0.0f;
        for (uint32_t i = lane; i < a.len; i += 32) largest = fmaxf(largest, fabsf(x[(uint64_t)r * a.x_stride + i]));
        largest = warp_max(largest);
        if (lane == 0) m.exponent[r] = exponent_of(largest);
    }
    __syncthreads();
    const uint32_t xs = shared_address(m.x), ws = shared_address(m.w);
    const Slices c = slices_of(a.type, a.groups);
    float acc[N / 8][4] = {};
    for (uint32_t k0 = 0; k0 < a.groups * 32; k0 += PRODUCT_COLUMNS) {
        for (uint32_t i = threadIdx.x; i < HEAD_ROWS * PRODUCT_COLUMNS; i += 128) {
            const uint32_t r = i / PRODUCT_COLUMNS, k = i % PRODUCT_COLUMNS;
            const bool there = r < count && k0 + k < a.len;
            const float v = there ? x[(uint64_t)r * a.x_stride + k0 + k] * two_to(-m.exponent[r]) : 0.0f;
            *(__half*)((uint8_t*)m.x + swizzled<PIECES>(r, k / 8) + k % 8 * 2) = __float2half_rn(v);
        }
        for (uint32_t i = threadIdx.x; i < N * (PRODUCT_COLUMNS / 32); i += 128) {
            const uint32_t r = i % N, at = i / N, group = k0 / 32 + at;
            float v[32];
            if (r < n && group < a.groups) {
                const uint32_t s = group / c.full, g = group % c.full, of = s + 1 == c.count ? c.last : c.full;
                const uint64_t row = (uint64_t)head * a.rows + n0 + r;
                for_type(a.type, [&]<uint32_t T>() {
                    group_values<T>(a.matrix + slice_offset(T, c, s, a.matrix_rows) + row * record_bytes(T, of), g, of, v);
                });
            } else {
#pragma unroll
                for (int e = 0; e < 32; e++) v[e] = 0.0f;
            }
#pragma unroll
            for (uint32_t p = 0; p < 4; p++) {
                uint32_t h[4];
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    __half2 pair = __floats2half2_rn(v[p * 8 + e * 2], v[p * 8 + e * 2 + 1]);
                    h[e] = *(uint32_t*)&pair;
                }
                *(uint4*)((uint8_t*)m.w + swizzled<PIECES>(r, at * 4 + p)) = make_uint4(h[0], h[1], h[2], h[3]);
            }
        }
        __syncthreads();
        if (warp * 16 < count)
#pragma unroll
            for (uint32_t kk = 0; kk < PRODUCT_COLUMNS / 16; kk++) {
                uint32_t q[4];
                load_matrices(q, xs + swizzled<PIECES>(warp * 16 + (lane & 15), kk * 2 + (lane >> 4)));
#pragma unroll
                for (int j = 0; j < N / 16; j++) {
                    uint32_t w[4];
                    load_matrices(w, ws + swizzled<PIECES>(j * 16 + (lane & 7) + (lane >> 4) * 8, kk * 2 + (lane >> 3 & 1)));
                    mma(acc[2 * j], q, w[0], w[1]);
                    mma(acc[2 * j + 1], q, w[2], w[3]);
                }
            }
        __syncthreads();
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t r = warp * 16 + half * 8 + (lane >> 2);
        if (r >= count) continue;
        const float factor = two_to(m.exponent[r]);
        const uint64_t to = (uint64_t)(m0 + r) * a.out_stride + (uint64_t)head * a.out_head + n0;
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint32_t d = j * 8 + (lane & 3) * 2 + e;
                if (d >= n) continue;
                const float v = __fmul_rn(acc[j][half * 2 + e], factor);
                if (a.f32) a.f32[to + d] = v;
                if (a.f16) a.f16[to + d] = __float2half_rn(__fmul_rn(v, a.scale));
            }
    }
}
#define HEAD_PRODUCT(n)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128) head_product_##n(const __grid_constant__ HeadProductArgs a) {      \
        DYNAMIC_SHARED(shared);                                                                                          \
        head_product<n>(a, *(HeadShared*)shared);                                                                                      \
    }
HEAD_PRODUCT(16)
HEAD_PRODUCT(64)
