// What a block of the decode step's attention makes of its row before it attends: norms and rotations of heads, in shared memory. A block has one warp or two a
// scheduler, so what counts is the number of instructions in the way, and a branch around one element takes longer than its work.
#pragma once
#include "args_common.h"
#include "rope.cuh"

// The same two elements of heads, which are rotated if they are a pair: of every i below half of HD, so that all elements come.
struct TurnedPair {
    uint32_t at[2], from[2];
    bool turns, inside;
    float cosine, sine, magnitude;

    template <int HALF> __device__ __forceinline__ TurnedPair(const Rotation& rotation, uint32_t hd, const float (&turn)[2][HALF], uint32_t i) {
        const uint32_t n_pairs = rotation.n_pairs;
        turns = i < n_pairs;
        const bool apart = turns && !rotation.interleaved;
        at[0] = apart ? i : 2 * i;
        at[1] = apart ? i + n_pairs : 2 * i + 1;
        inside = at[1] < hd;
        from[0] = inside ? at[0] : 0;
        from[1] = inside ? at[1] : 0;
        cosine = turn[0][i];
        sine = turn[1][i];
        magnitude = rotation.magnitude;
    }
    // Of one head, multiplied by `after`.
    __device__ __forceinline__ float2 of(const float* line, const float* after) const {
        const float v = line[from[0]], o = line[from[1]];
        // Without branches, which take longer.
        float2 r = make_float2(__fmul_rn(__fmaf_rn(v, cosine, -__fmul_rn(o, sine)), magnitude), __fmul_rn(__fmaf_rn(o, cosine, __fmul_rn(v, sine)), magnitude));
        if (!turns) r = make_float2(v, o);
        if (after) {
            r.x = __fmul_rn(r.x, after[from[0]]);
            r.y = __fmul_rn(r.y, after[from[1]]);
        }
        return inside ? r : make_float2(0.0f, 0.0f);
    }
};

// Norms of up to 8 queries, a key and a value, in place, of which each warp has every W-th: the bits of norm_head. Weights are in shared memory.
template <int HD, int W> __device__ __forceinline__ void norm_heads(const AttendArgs& a, const float (&weights)[3][HD], float* heads, uint32_t hd, uint32_t n_q) {
    constexpr int N = (10 + W - 1) / W, E = HD / 32;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (a.q_norm.layer || a.k_norm.layer || a.q_norm.bias || a.k_norm.bias || a.v_norm.layer || a.v_norm.bias) {
#pragma unroll 1
        for (uint32_t h = warp; h < 10; h += W) {
            const NormArgs& norm = h < 8 ? a.q_norm : h == 8 ? a.k_norm : a.v_norm;
            if (norm.weight && (h >= 8 || h < n_q)) norm_head(norm, heads + h * hd, hd);
        }
        return;
    }
    // Without branches: a warp without an n-th head works on another one, and stores nothing.
    const float inverse = 1.0f / (float)hd;
    float v[N][E], sum[N];
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float* line = heads + min(warp + n * W, 9u) * hd + lane;
        sum[n] = 0.0f;
#pragma unroll
        for (int e = 0; e < E; e++) {
            const float x = line[e * 32];
            v[n][e] = e * 32 + lane < hd ? x : 0.0f;
            sum[n] = __fmaf_rn(v[n][e], v[n][e], sum[n]);
        }
    }
#pragma unroll
    for (int o = 16; o; o >>= 1)
#pragma unroll
        for (int n = 0; n < N; n++) sum[n] += __shfl_xor_sync(~0u, sum[n], o);
#pragma unroll
    for (int n = 0; n < N; n++) {
        const uint32_t h = min(warp + n * W, 9u);
        const NormArgs& norm = h < 8 ? a.q_norm : h == 8 ? a.k_norm : a.v_norm;
        const bool there = warp + n * W < 10 && (h >= 8 || h < n_q) && norm.weight;
        const float scale = rsqrtf(__fmaf_rn(sum[n], inverse, norm.eps));
        const float* weight = weights[h < 8 ? 0 : h - 7] + lane;
        float* line = heads + h * hd + lane;
#pragma unroll
        for (int e = 0; e < E; e++) {
            const float x = __fmul_rn(__fmul_rn(v[n][e], scale), weight[e * 32]);
            if (there && e * 32 + lane < hd) line[e * 32] = x;
        }
    }
}
