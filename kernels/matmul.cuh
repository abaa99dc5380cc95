// What the kernels for products of many rows share: their arguments, and the order of elements in
// memory of the inputs (`x`) and of the matrix brought to f16 (`w`).
//
// Both are cut into tiles of 128 rows by 64 elements of 16,384 bytes, tile rows one after the other,
// and a tile's rows of 128 bytes have their 16-byte pieces permuted as `swizzled<8>` does it: a tile
// is what a bulk copy brings to shared memory for the tensor cores. Elements beyond the length of a
// row are zeros; rows beyond the last may be anything.
#pragma once
#include "args_common.h"
#include "common.cuh"

// Stages of two tiles in shared memory: as many as it holds, up to three.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int MATMUL_STAGES = 2;
#else
constexpr int MATMUL_STAGES = 3;
#endif

// Rows of a gate and of what it lets through that lie in one matrix by turns.
constexpr uint32_t GATED_ROWS = 64;
constexpr uint32_t TILE_BYTES = TILE_ROWS * TILE_K * 2;

__host__ __device__ constexpr uint32_t tiles_of(uint32_t length, uint32_t tile) { return (length + tile - 1) / tile; }

// Offset in bytes of 8 elements from `k` (a multiple of 8) on in row `row` of a matrix of rows of
// `k_tiles` tiles.
__device__ __forceinline__ uint64_t tiled(uint32_t row, uint32_t k, uint32_t k_tiles) {
    return ((uint64_t)(row / TILE_ROWS) * k_tiles + k / TILE_K) * TILE_BYTES + swizzled<8>(row % TILE_ROWS, k / 8 % 8);
}

// N pairs of neighbouring outputs of row `m`, at columns `n`, `n + 8`, ... (`n` even). All that is
// added is loaded before the first one is stored, for the compiler cannot know that they differ.
template <int N> __device__ __forceinline__ void store_pairs(const MatmulArgs& a, uint32_t m, uint32_t n, float2 (&v)[N]) {
    const uint64_t to = (uint64_t)m * a.out_stride + n;
    // A part of a fused matrix may begin at an odd row.
    const bool pairs = a.out_stride % 2 == 0 && ((uint64_t)a.out | (uint64_t)a.bias | (uint64_t)a.residual) % 8 == 0;
    if (n + 8 * N - 6 <= a.n && pairs) {
        if (a.bias) {
#pragma unroll
            for (int j = 0; j < N; j++) {
                float2 b = *(const float2*)(a.bias + n + 8 * j);
                v[j] = make_float2(__fadd_rn(v[j].x, b.x), __fadd_rn(v[j].y, b.y));
            }
        }
        if (a.residual) {
            float2 r[N];
#pragma unroll
            for (int j = 0; j < N; j++) r[j] = *(const float2*)(a.residual + to + 8 * j);
#pragma unroll
            for (int j = 0; j < N; j++) v[j] = make_float2(__fadd_rn(v[j].x, r[j].x), __fadd_rn(v[j].y, r[j].y));
        }
#pragma unroll
        for (int j = 0; j < N; j++) *(float2*)(a.out + to + 8 * j) = v[j];
        return;
    }
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const uint32_t c = n + 8 * j + e;
            if (c >= a.n) return;
            float out = e ? v[j].y : v[j].x;
            if (a.bias) out = __fadd_rn(out, a.bias[c]);
            if (a.residual) out = __fadd_rn(out, a.residual[to + 8 * j + e]);
            a.out[to + 8 * j + e] = out;
        }
}
