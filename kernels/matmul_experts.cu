// Products of many rows with the matrices of their experts that have been brought to f16: those of float types, and all where
// experts have many rows each. sm_90a has experts_wgmma_f16 instead, and an empty one here.
#include "matmul_experts.cuh"

// Grid (as many tiles as there may be, n tiles). 256 threads.
extern "C" __global__ void __launch_bounds__(Tile::THREADS, 2) matmul_experts(const __grid_constant__ ExpertMatmulArgs a) {
#if !defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ __align__(128) uint8_t shared[];
    release_dependents();
    wait_for_producers();
    const uint32_t tile = a.tiles[a.first_expert] + blockIdx.x;
    if (tile >= a.tiles[a.end_expert]) return;
    const ExpertTile t(a, tile);
    const uint32_t n0 = blockIdx.y * Tile::N;
    // The rows of x and w that this thread loads pieces of.
    constexpr int X_ROWS = Tile::M / ROW_STEP, W_ROWS = Tile::N / ROW_STEP, PIECES = Tile::PIECES;
    const uint32_t r0 = threadIdx.x / PIECES, c = threadIdx.x % PIECES;
    uint32_t rows[X_ROWS + W_ROWS];
#pragma unroll
    for (int i = 0; i < X_ROWS; i++) {
        const uint32_t slot = t.begin + i * ROW_STEP + r0;
        rows[i] = slot < t.end ? input_of(a, slot) : NO_ROW;
    }
#pragma unroll
    for (int i = 0; i < W_ROWS; i++) {
        const uint32_t row = n0 + i * ROW_STEP + r0;
        rows[X_ROWS + i] = row < a.n ? (t.expert - a.first_expert) * a.n + row : NO_ROW;
    }
    const uint32_t base = shared_address(shared), k_tiles = tiles_of(a.k, Tile::K);
    auto load = [&](uint32_t kt, int stage) {
        const uint32_t to = base + stage * Tile::STAGE_BYTES;
#pragma unroll
        for (int i = 0; i < X_ROWS + W_ROWS; i++) {
            const bool valid = rows[i] != NO_ROW;
            const uint8_t* from = (const uint8_t*)(i < X_ROWS ? a.x : a.w[0]) + (valid ? tiled(rows[i], kt * Tile::K + c * 8, k_tiles) : 0);
            copy16(to + swizzled<PIECES>(i * ROW_STEP + r0, c), from, valid);
        }
        copies_commit();
    };
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, wm = warp & 1, wn = warp >> 1;
    float acc[4][4][4] = {};
    accumulate(acc, base, k_tiles, load);
#pragma unroll
    for (int i = 0; i < 4; i++) store_slots(a, t, t.begin + wm * Tile::WARP_M + i * 16 + (lane >> 2), n0 + wn * Tile::WARP_N + (lane & 3) * 2, acc[i]);
#endif
}
