// Norms of a row: sums over a block, and the value of an element.
#pragma once
#include "args_common.h"
#include "common.cuh"

struct NormSums {
    float mean;   // 0 without `layer`
    float scale;  // 1 / sqrt(mean square + eps)
};

__device__ __forceinline__ float normed(const NormArgs& a, uint32_t i, float x, NormSums s) {
    float v = __fmul_rn(__fmul_rn(__fsub_rn(x, s.mean), s.scale), a.weight[i]);
    return a.bias ? __fadd_rn(v, a.bias[i]) : v;
}

// The sums of a row of `len` elements, the same in every thread of the block; `x` makes one of them.
template <typename X> __device__ __forceinline__ NormSums norm_sums_of(const NormArgs& a, uint32_t len, float* scratch, X x) {
    NormSums s = {0.0f, 0.0f};
    if (a.layer) {
        float sum = 0.0f;
        for (uint32_t i = threadIdx.x; i < len; i += blockDim.x) sum += x(i);
        s.mean = block_sum(sum, scratch) / (float)len;
    }
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < len; i += blockDim.x) {
        float v = __fsub_rn(x(i), s.mean);
        sum = __fmaf_rn(v, v, sum);
    }
    s.scale = rsqrtf(__fmaf_rn(block_sum(sum, scratch), 1.0f / (float)len, a.eps));
    return s;
}
__device__ __forceinline__ NormSums norm_sums(const NormArgs& a, const float* x, uint32_t len, float* scratch) {
    return norm_sums_of(a, len, scratch, [&](uint32_t i) { return x[i]; });
}

// A norm of a row that fits the registers of a block, whose thread t holds elements
// 4 * (i * threads + t) and the next three, i < N. Widths are multiples of 32. The bits do not depend on N.
// THREADS: the block's, or 0 where launches differ.
template <int N, uint32_t THREADS = 0> struct NormRowOf {
    const uint32_t thread = threadIdx.x;
    float4 w[N], v[N];
    float scale;

    static __device__ __forceinline__ uint32_t threads() { return THREADS ? THREADS : blockDim.x; }
    __device__ __forceinline__ uint32_t place(int i) const { return 4 * (i * threads() + thread); }
    // May go before the row is there.
    __device__ __forceinline__ void load_weights(const NormArgs& a, uint32_t width) {
#pragma unroll
        for (int i = 0; i < N; i++) w[i] = place(i) < width ? *(const float4*)(a.weight + place(i)) : make_float4(0, 0, 0, 0);
    }
    // Asks for the row.
    __device__ __forceinline__ void load(const float* x, uint32_t width) {
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = place(i) < width ? __ldcg((const float4*)(x + place(i))) : make_float4(0, 0, 0, 0);
    }
    // Subtracts the mean where that is due, and finds the factor of all elements. UNUSED as that of block_sum.
    template <bool UNUSED = false> __device__ __forceinline__ void sum(const NormArgs& a, uint32_t width, float inverse_len, float* scratch) {
        if (a.layer) {
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < N; i++) sum += (v[i].x + v[i].y) + (v[i].z + v[i].w);
            const float mean = __fmul_rn(block_sum<UNUSED>(sum, scratch, threads()), inverse_len);
#pragma unroll
            for (int i = 0; i < N; i++)
                if (place(i) < width) v[i] = make_float4(v[i].x - mean, v[i].y - mean, v[i].z - mean, v[i].w - mean);
            find_scale(a, block_sum(squares(), scratch, threads()), inverse_len);
            return;
        }
        find_scale(a, block_sum<UNUSED>(squares(), scratch, threads()), inverse_len);
    }
    // The sum of a thread's squares.
    __device__ __forceinline__ float squares() const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) {
            sum = __fmaf_rn(v[i].x, v[i].x, sum);
            sum = __fmaf_rn(v[i].y, v[i].y, sum);
            sum = __fmaf_rn(v[i].z, v[i].z, sum);
            sum = __fmaf_rn(v[i].w, v[i].w, sum);
        }
        return sum;
    }
    // The factor, from the block's sum.
    __device__ __forceinline__ void find_scale(const NormArgs& a, float sum, float inverse_len) { scale = rsqrtf(__fmaf_rn(sum, inverse_len, a.eps)); }
    // Elements place(i) to place(i) + 3.
    __device__ __forceinline__ void values(const NormArgs& a, int i, uint32_t width, float* r) const {
        r[0] = __fmul_rn(__fmul_rn(v[i].x, scale), w[i].x);
        r[1] = __fmul_rn(__fmul_rn(v[i].y, scale), w[i].y);
        r[2] = __fmul_rn(__fmul_rn(v[i].z, scale), w[i].z);
        r[3] = __fmul_rn(__fmul_rn(v[i].w, scale), w[i].w);
        if (a.bias && place(i) < width)
#pragma unroll
            for (int j = 0; j < 4; j++) r[j] = __fadd_rn(r[j], a.bias[place(i) + j]);
    }
};
using NormRow = NormRowOf<4>;

// NormRowOf::sum of a few rows, whose sums over the block go together. `scratch` holds 32 floats a row.
template <int N, uint32_t THREADS, int ROWS> __device__ __forceinline__ void sum_norm_rows(NormRowOf<N, THREADS> (&rows)[ROWS], const NormArgs& a, uint32_t width, float inverse_len, float* scratch) {
    if (a.layer) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) rows[r].sum(a, width, inverse_len, scratch + r * 32);
        return;
    }
    const uint32_t lane = threadIdx.x & 31, warps = (rows[0].threads() + 31) >> 5;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float sum = warp_sum(rows[r].squares());
        if (lane == 0) scratch[r * 32 + (threadIdx.x >> 5)] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; r++) rows[r].find_scale(a, warp_sum(lane < warps ? scratch[r * 32 + lane] : 0.0f), inverse_len);
}

// Four elements of what residual_add makes: out_scale * (base + scale * v). That kernel has lines of its own, for this function
// would change its machine code.
__device__ __forceinline__ float4 row_sum(float scale, float out_scale, const float (&v)[4], float4 base) {
    return make_float4(__fmul_rn(out_scale, __fmaf_rn(scale, v[0], base.x)), __fmul_rn(out_scale, __fmaf_rn(scale, v[1], base.y)),
                       __fmul_rn(out_scale, __fmaf_rn(scale, v[2], base.z)), __fmul_rn(out_scale, __fmaf_rn(scale, v[3], base.w)));
}

// The norm of a head, in place, by one warp. Weights are asked for eight at a time, the first ones before the sum.
__device__ __forceinline__ void norm_head(const NormArgs& a, float* x, uint32_t len) {
    constexpr uint32_t N = 8;
    const uint32_t lane = threadIdx.x & 31;
    const float inverse = 1.0f / (float)len;
    float w[N];
    auto ask = [&](uint32_t first) {
#pragma unroll
        for (uint32_t j = 0; j < N; j++) w[j] = first + j * 32 < len ? a.weight[first + j * 32] : 0.0f;
    };
    ask(lane);
    NormSums s = {0.0f, 0.0f};
    if (a.layer) {
        float sum = 0.0f;
#pragma unroll 1
        for (uint32_t i = lane; i < len; i += 32) sum += x[i];
        s.mean = __fmul_rn(warp_sum(sum), inverse);
    }
    // Without a branch for each element, which takes longer.
    float sum = 0.0f;
#pragma unroll 1
    for (uint32_t first = lane; first < len; first += N * 32) {
#pragma unroll
        for (uint32_t j = 0; j < N; j++) {
            const uint32_t i = first + j * 32;
            const float v = i < len ? __fsub_rn(x[i], s.mean) : 0.0f;
            sum = __fmaf_rn(v, v, sum);
        }
    }
    s.scale = rsqrtf(__fmaf_rn(warp_sum(sum), inverse, a.eps));
#pragma unroll 1
    for (uint32_t first = lane; first < len; first += N * 32) {
        float v[N];
#pragma unroll
        for (uint32_t j = 0; j < N; j++) v[j] = first + j * 32 < len ? x[first + j * 32] : 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < N; j++) v[j] = __fmul_rn(__fmul_rn(__fsub_rn(v[j], s.mean), s.scale), w[j]);
        if (a.bias) {
#pragma unroll
            for (uint32_t j = 0; j < N; j++) v[j] = __fadd_rn(v[j], first + j * 32 < len ? a.bias[first + j * 32] : 0.0f);
        }
#pragma unroll
        for (uint32_t j = 0; j < N; j++)
            if (first + j * 32 < len) x[first + j * 32] = v[j];
        ask(first + N * 32);
    }
}
