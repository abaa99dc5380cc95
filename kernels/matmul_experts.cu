// Products of many rows with the matrices of their experts, for prefill: rows sorted by expert into
// slots (experts.cu), a tile of slots of one expert at a time. f16 times f16, sums in f32.
//
// An output element is the sum over k in ascending order in steps of the tensor core's 16, whatever
// slot its row has, so neither chunks nor other rows change it.
#include "matmul_tile.cuh"

struct ExpertMatmulArgs {
    const __half* x;               // [inputs][k], tiled
    const float* x_scale;          // [inputs]: a row's values are x * x_scale
    const uint32_t* pairs;         // pair of each slot, whose input is pair / pairs_per_input; NULL: slots
    const uint32_t* starts;        // [.. + 1]: first slot of each expert, and the end
    const uint32_t* tiles;         // [.. + 1]: first tile of each expert, and the end
    const uint32_t* tile_experts;  // expert of each tile
    const __half* w;               // [experts from first_expert on][n] rows of k, tiled
    const float* bias;             // [all experts][n] or NULL
    float* out;                    // [slots][out_stride]
    uint32_t pairs_per_input;
    uint32_t first_expert;
    uint32_t end_expert;           // the tiles of these experts are done
    uint32_t n, k;                 // k a multiple of 32
    uint32_t out_stride;
};
static_assert(sizeof(ExpertMatmulArgs) == 96, "as in args.rs");

// Rows that the threads load at a time, a piece each.
constexpr int ROW_STEP = Tile::THREADS / Tile::PIECES;
static_assert(Tile::M % ROW_STEP == 0 && Tile::N % ROW_STEP == 0);
constexpr uint32_t NO_ROW = ~0u;

// Grid (as many tiles as there may be, n tiles). 256 threads.
extern "C" __global__ void __launch_bounds__(Tile::THREADS, 2) matmul_experts(const __grid_constant__ ExpertMatmulArgs a) {
    extern __shared__ __align__(128) uint8_t shared[];
    release_dependents();
    wait_for_producers();
    const uint32_t tile = a.tiles[a.first_expert] + blockIdx.x;
    if (tile >= a.tiles[a.end_expert]) return;
    const uint32_t expert = a.tile_experts[tile], end = a.starts[expert + 1];
    const uint32_t m0 = a.starts[expert] + (tile - a.tiles[expert]) * Tile::M, n0 = blockIdx.y * Tile::N;
    auto input = [&](uint32_t slot) { return a.pairs ? __ldg(a.pairs + slot) / a.pairs_per_input : slot; };
    // The rows of x and w that this thread loads pieces of.
    constexpr int X_ROWS = Tile::M / ROW_STEP, W_ROWS = Tile::N / ROW_STEP, PIECES = Tile::PIECES;
    const uint32_t r0 = threadIdx.x / PIECES, c = threadIdx.x % PIECES;
    uint32_t rows[X_ROWS + W_ROWS];
#pragma unroll
    for (int i = 0; i < X_ROWS; i++) {
        const uint32_t slot = m0 + i * ROW_STEP + r0;
        rows[i] = slot < end ? input(slot) : NO_ROW;
    }
#pragma unroll
    for (int i = 0; i < W_ROWS; i++) {
        const uint32_t row = n0 + i * ROW_STEP + r0;
        rows[X_ROWS + i] = row < a.n ? (expert - a.first_expert) * a.n + row : NO_ROW;
    }
    const uint32_t base = shared_address(shared), k_tiles = tiles_of(a.k, Tile::K);
    auto load = [&](uint32_t kt, int stage) {
        const uint32_t to = base + stage * Tile::STAGE_BYTES;
#pragma unroll
        for (int i = 0; i < X_ROWS + W_ROWS; i++) {
            const bool valid = rows[i] != NO_ROW;
            const uint8_t* from = (const uint8_t*)(i < X_ROWS ? a.x : a.w) + (valid ? tiled(rows[i], kt * Tile::K + c * 8, k_tiles) : 0);
            copy16(to + swizzled<PIECES>(i * ROW_STEP + r0, c), from, valid);
        }
        copies_commit();
    };
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, wm = warp & 1, wn = warp >> 1;
    float acc[4][4][4] = {};
    accumulate(acc, base, k_tiles, load);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t slot = m0 + wm * Tile::WARP_M + i * 16 + h * 8 + (lane >> 2);
            if (slot >= end) continue;
            const float scale = a.x_scale[input(slot)];
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const uint32_t n = n0 + wn * Tile::WARP_N + j * 8 + (lane & 3) * 2 + e;
                    if (n >= a.n) continue;
                    float v = __fmul_rn(acc[i][j][h * 2 + e], scale);
                    if (a.bias) v = __fadd_rn(v, __ldg(a.bias + (uint64_t)expert * a.n + n));
                    a.out[(uint64_t)slot * a.out_stride + n] = v;
                }
        }
}
