// A tile of a product of many rows on the tensor cores that every architecture has: what matmul.cu and
// matmul_experts.cu do with the inputs and weights that each brings to shared memory in its own way.
//
// An output element is the sum over k in ascending order in steps of the tensor core's 16.
#pragma once
#include "matmul.cuh"
#include "mma.cuh"

struct Tile {
    static constexpr int M = TILE_ROWS, N = TILE_ROWS, K = TILE_K, STAGES = MATMUL_STAGES, THREADS = 256;
    static constexpr int WARP_M = 64, WARP_N = 32;  // 2 x 4 warps
    static constexpr int STAGE_BYTES = (M + N) * K * 2;
    static constexpr int PIECES = K / 8;            // of 16 bytes, in a row
    static_assert(M / WARP_M * (N / WARP_N) * 32 == THREADS);
};

// The sums of this warp's part of a tile, over `k_tiles` tiles of K: `load(kt, stage)` enqueues and commits the
// copies of one to `base + stage * STAGE_BYTES`, M rows of inputs, then N rows of the matrix.
template <typename Load>
__device__ __forceinline__ void accumulate(float (&acc)[4][4][4], uint32_t base, uint32_t k_tiles, Load load) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, wm = warp & 1, wn = warp >> 1;
#pragma unroll
    for (int s = 0; s < Tile::STAGES - 1; s++) {
        if (s < k_tiles) load(s, s);
        else copies_commit();
    }
    for (uint32_t kt = 0; kt < k_tiles; kt++) {
        copies_wait<Tile::STAGES - 2>();
        __syncthreads();
        if (kt + Tile::STAGES - 1 < k_tiles) load(kt + Tile::STAGES - 1, (kt + Tile::STAGES - 1) % Tile::STAGES);
        else copies_commit();
        const uint32_t at = base + kt % Tile::STAGES * Tile::STAGE_BYTES;
#pragma unroll
        for (int kk = 0; kk < Tile::K / 16; kk++) {
            uint32_t x[4][4], w[2][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t r = wm * Tile::WARP_M + i * 16 + (lane & 15);
                load_matrices(x[i], at + swizzled<Tile::PIECES>(r, kk * 2 + (lane >> 4)));
            }
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint32_t r = Tile::M + wn * Tile::WARP_N + j * 16 + (lane & 7) + (lane >> 4) * 8;
                load_matrices(w[j], at + swizzled<Tile::PIECES>(r, kk * 2 + (lane >> 3 & 1)));
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) mma(acc[i][j], x[i], w[j >> 1][(j & 1) * 2], w[j >> 1][(j & 1) * 2 + 1]);
        }
    }
}
