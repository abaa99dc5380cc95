// The router's product, in f32.
#pragma once
#include "args_experts.h"
#include "norm.cuh"
#include "quantize.cuh"

// A row is cut into parts of PART elements: each lane adds the products of every 32nd
// four of them in ascending order, the lanes are added in a butterfly, then the parts in ascending order, then the bias. So a
// prompt goes where its tokens go one by one.
constexpr uint32_t PART = 1024;

// A lane's share of a part of a row.
struct PartOfRow {
    float4 v[PART / 128];
    __device__ __forceinline__ void load(const float* row, uint32_t part, uint32_t width) {
#pragma unroll
        for (uint32_t i = 0; i < PART / 128; i++) {
            const uint32_t at = part * PART + i * 128 + (threadIdx.x & 31) * 4;
            v[i] = at < width ? *(const float4*)(row + at) : make_float4(0, 0, 0, 0);
        }
    }
    __device__ __forceinline__ float times(const PartOfRow& x) const {
        float sum = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < PART / 128; i++) {
            sum = __fmaf_rn(v[i].x, x.v[i].x, sum);
            sum = __fmaf_rn(v[i].y, x.v[i].y, sum);
            sum = __fmaf_rn(v[i].z, x.v[i].z, sum);
            sum = __fmaf_rn(v[i].w, x.v[i].w, sum);
        }
        return sum;
    }
};

constexpr uint32_t ROUTER_THREADS = ROUTER_WARPS * 32;

// The norm of one row by a block, in which each thread has N times four elements; `asked` is called when the row has been asked for. Whole
// warps call `each(i, at, values)` for what they have, some of which may lie behind the row.
template <int N, class Asked, class Each> __device__ __forceinline__ void normed_row(const RouterArgs& a, float* scratch, Asked asked, Each each) {
    NormRowOf<N, ROUTER_THREADS> norm;
    norm.load_weights(a.norm, a.width);
    wait_for_producers();
    norm.load(a.x, a.width);
    asked();
    norm.template sum<true>(a.norm, a.width, a.inverse_len, scratch);
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (norm.place(i) - (threadIdx.x & 31) * 4 >= a.width) break;
        float r[4];
        norm.values(a.norm, i, a.width, r);
        each(norm.place(i), r);
    }
}
// Of any row, which may have no norm.
template <class Asked, class Each> __device__ __forceinline__ void router_input(const RouterArgs& a, float* scratch, Asked asked, Each each) {
    if (a.norm.weight) {
        if (a.width <= 4 * ROUTER_THREADS) normed_row<1>(a, scratch, asked, each);
        else normed_row<4>(a, scratch, asked, each);
        return;
    }
    wait_for_producers();
    bool first = true;
    for (uint32_t i = threadIdx.x * 4; i - (threadIdx.x & 31) * 4 < a.width; i += ROUTER_THREADS * 4) {
        const float4 v = i < a.width ? __ldcg((const float4*)(a.x + i)) : make_float4(0, 0, 0, 0);
        if (first) asked();
        first = false;
        const float r[4] = {v.x, v.y, v.z, v.w};
        each(i, r);
    }
    if (first) asked();
}

// Scores of one row, whose norm each of `blocks` blocks makes for itself; as many threads as a norm of its own has. A warp takes a part of a
// row of the matrix at a time. The last block, which may have least to do, writes the row as int8, too. `x` has room for the row, and for
// the sums of the parts.
__device__ __forceinline__ void scores_of_row(const RouterArgs& a, uint32_t blocks, float* x, float* scratch) {
    float* const sums = x + a.width;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const uint32_t first = blockIdx.x * a.per_block, rows = min(a.per_block, a.matrix_rows - first);
    const uint32_t parts = (a.width + PART - 1) / PART, items = rows * parts;
    PartOfRow w;
    auto load = [&](uint32_t item) { w.load(a.matrix + (uint64_t)(first + item / parts) * a.width, item % parts, a.width); };
    if (warp < items) load(warp);
    router_input(a, scratch, [] {}, [&](uint32_t at, const float (&r)[4]) {
        if (at < a.width) *(float4*)(x + at) = make_float4(r[0], r[1], r[2], r[3]);
        if (blockIdx.x + 1 < blocks) return;
        const PackedValues p = pack_q8(r);
        if (at >= a.width) return;
        *(uint32_t*)(a.q8 + at) = p.q;
        if (at % 32 == 0) a.q8_scale[at / 32] = p.scale;
    });
    release_dependents();
    __syncthreads();
    for (uint32_t item = warp; item < items; item += ROUTER_WARPS) {
        if (item != warp) load(item);
        PartOfRow its;
        its.load(x, item % parts, a.width);
        const float sum = warp_sum(w.times(its));
        if (lane == 0) sums[item] = sum;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < rows; i += ROUTER_THREADS) {
        float v = sums[i * parts];
        for (uint32_t p = 1; p < parts; p++) v = __fadd_rn(v, sums[i * parts + p]);
        a.out[first + i] = a.bias ? __fadd_rn(v, a.bias[first + i]) : v;
    }
}
