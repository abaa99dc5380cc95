// Products of many input rows with a matrix, for prefill: f16 times f16, sums in f32.
//
// An output element is the sum over k in ascending order in steps of the tensor core's 16, whatever
// the number of rows, so chunking a prompt does not change it.
#include "matmul_tile.cuh"

// Grid (m tiles, n tiles): neighbours share the weights' tile. 256 threads.
extern "C" __global__ void __launch_bounds__(Tile::THREADS, 2) matmul(const __grid_constant__ MatmulArgs a) {
    extern __shared__ __align__(128) uint8_t shared[];
    release_dependents();
    wait_for_producers();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, wm = warp & 1, wn = warp >> 1;
    const uint32_t m0 = blockIdx.x * Tile::M, n0 = blockIdx.y * Tile::N;
    const uint32_t base = shared_address(shared);
    const uint32_t tiles = tiles_of(a.k, Tile::K);
    const uint8_t* x = (const uint8_t*)a.x + (uint64_t)blockIdx.x * tiles * TILE_BYTES;
    const uint8_t* w = (const uint8_t*)a.w + (uint64_t)blockIdx.y * tiles * TILE_BYTES;
    auto load = [&](uint32_t kt, int stage) {
        uint32_t to = base + stage * Tile::STAGE_BYTES;
#pragma unroll
        for (uint32_t i = threadIdx.x * 16; i < TILE_BYTES; i += Tile::THREADS * 16) {
            copy16(to + i, x + (uint64_t)kt * TILE_BYTES + i, true);
            copy16(to + TILE_BYTES + i, w + (uint64_t)kt * TILE_BYTES + i, true);
        }
        copies_commit();
    };
    float acc[4][4][4] = {};
    accumulate(acc, base, tiles, load);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t m = m0 + wm * Tile::WARP_M + i * 16 + h * 8 + (lane >> 2);
            if (m >= a.m) continue;
            const float scale = a.x_scale[m];
            float2 v[4];
#pragma unroll
            for (int j = 0; j < 4; j++) v[j] = make_float2(__fmul_rn(acc[i][j][h * 2], scale), __fmul_rn(acc[i][j][h * 2 + 1], scale));
            store_pairs(a, m, n0 + wn * Tile::WARP_N + (lane & 3) * 2, v);
        }
}
