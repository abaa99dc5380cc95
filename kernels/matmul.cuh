// The tile of a product on tensor cores, for prefill: f16 times f16, sums in f32.
//
// An output element is the sum over k in ascending order in steps of the tensor core's 16, whatever
// the number of rows, so chunking a prompt does not change it.
#pragma once
#include "mma.cuh"

struct Tile {
    static constexpr int M = 128, N = 128, K = 64, STAGES = 3, THREADS = 256;
    static constexpr int WARP_M = 64, WARP_N = 32;  // 2 x 4 warps
    static constexpr int STAGE_BYTES = (M + N) * K * 2;
    static constexpr int PIECES = K / 8;                  // of 16 bytes, in a row
    static constexpr int ROW_STEP = THREADS / PIECES;     // rows that the threads load at a time
    static_assert(M / WARP_M * (N / WARP_N) * 32 == THREADS);
    static_assert(M % ROW_STEP == 0 && N % ROW_STEP == 0);
};

// Stands for a row that is not there.
constexpr uint32_t NO_ROW = ~0u;

// acc = the products of this thread's part of a tile. x_row(i) and w_row(i) are the rows of x and w,
// [row][k], that this thread loads as the rows i * Tile::ROW_STEP + threadIdx.x / Tile::PIECES of the
// tile, or NO_ROW.
template <class XRow, class WRow>
__device__ __forceinline__ void tile_products(uint8_t* shared, const __half* x, const __half* w, uint32_t k,
                                              XRow x_row, WRow w_row, float (&acc)[4][4][4]) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, wm = warp & 1, wn = warp >> 1;
    constexpr int PIECES = Tile::PIECES;
    const uint32_t base = shared_address(shared), c = threadIdx.x % PIECES;
    auto load = [&](uint32_t kt, int stage) {
        const uint32_t to = base + stage * Tile::STAGE_BYTES, at = kt * Tile::K + c * 8;
#pragma unroll
        for (int i = 0; i < (Tile::M + Tile::N) / Tile::ROW_STEP; i++) {
            constexpr int X = Tile::M / Tile::ROW_STEP;
            const uint32_t r = i * Tile::ROW_STEP + threadIdx.x / PIECES, row = i < X ? x_row(i) : w_row(i - X);
            const bool valid = at < k && row != NO_ROW;
            copy16(to + swizzled<PIECES>(r, c), (i < X ? x : w) + (valid ? (uint64_t)row * k + at : 0), valid);
        }
        copies_commit();
    };
    const uint32_t tiles = (k + Tile::K - 1) / Tile::K;
#pragma unroll
    for (int s = 0; s < Tile::STAGES - 1; s++) {
        if (s < tiles) load(s, s);
        else copies_commit();
    }
    for (uint32_t kt = 0; kt < tiles; kt++) {
        copies_wait<Tile::STAGES - 2>();
        __syncthreads();
        if (kt + Tile::STAGES - 1 < tiles) load(kt + Tile::STAGES - 1, (kt + Tile::STAGES - 1) % Tile::STAGES);
        else copies_commit();
        const uint32_t at = base + kt % Tile::STAGES * Tile::STAGE_BYTES;
#pragma unroll
        for (int kk = 0; kk < Tile::K / 16; kk++) {
            uint32_t xs[4][4], ws[2][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t r = wm * Tile::WARP_M + i * 16 + (lane & 15);
                load_matrices(xs[i], at + swizzled<PIECES>(r, kk * 2 + (lane >> 4)));
            }
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint32_t r = Tile::M + wn * Tile::WARP_N + j * 16 + (lane & 7) + (lane >> 4) * 8;
                load_matrices(ws[j], at + swizzled<PIECES>(r, kk * 2 + (lane >> 3 & 1)));
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) mma(acc[i][j], xs[i], ws[j >> 1][(j & 1) * 2], ws[j >> 1][(j & 1) * 2 + 1]);
        }
    }
}

// f(row, column, product) for each of this thread's elements of the tile.
template <class F> __device__ __forceinline__ void for_each_product(const float (&acc)[4][4][4], F f) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, wm = warp & 1, wn = warp >> 1;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    f(wm * Tile::WARP_M + i * 16 + h * 8 + (lane >> 2), wn * Tile::WARP_N + j * 8 + (lane & 3) * 2 + e,
                      acc[i][j][h * 2 + e]);
}
