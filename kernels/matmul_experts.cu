// Products of many rows with the matrices of their experts, for prefill: rows sorted by expert into
// slots (experts.cu), a tile of slots of one expert at a time.
#include "matmul.cuh"

struct ExpertMatmulArgs {
    const __half* x;               // [inputs][k]
    const float* x_scale;          // [inputs]: a row's values are x * x_scale
    const uint32_t* pairs;         // pair of each slot, whose input is pair / pairs_per_input; NULL: slots
    const uint32_t* starts;        // [.. + 1]: first slot of each expert, and the end
    const uint32_t* tiles;         // [.. + 1]: first tile of each expert, and the end
    const uint32_t* tile_experts;  // expert of each tile
    const __half* w;               // [experts from first_expert on][n][k]
    const float* bias;             // [all experts][n] or NULL
    float* out;                    // [slots][out_stride]
    uint32_t pairs_per_input;
    uint32_t first_expert;
    uint32_t end_expert;           // the tiles of these experts are done
    uint32_t n, k;                 // k a multiple of 32
    uint32_t out_stride;
};
static_assert(sizeof(ExpertMatmulArgs) == 96, "as in args.rs");

// Grid (as many tiles as there may be, n tiles). 256 threads.
extern "C" __global__ void __launch_bounds__(Tile::THREADS, 2) matmul_experts(const __grid_constant__ ExpertMatmulArgs a) {
    extern __shared__ __align__(128) uint8_t shared[];
    release_dependents();
    wait_for_producers();
    const uint32_t tile = a.tiles[a.first_expert] + blockIdx.x;
    if (tile >= a.tiles[a.end_expert]) return;
    const uint32_t expert = a.tile_experts[tile], end = a.starts[expert + 1];
    const uint32_t m0 = a.starts[expert] + (tile - a.tiles[expert]) * Tile::M, n0 = blockIdx.y * Tile::N;
    const uint32_t r = threadIdx.x / Tile::PIECES, w0 = (expert - a.first_expert) * a.n;
    auto input = [&](uint32_t slot) { return a.pairs ? __ldg(a.pairs + slot) / a.pairs_per_input : slot; };
    uint32_t inputs[Tile::M / Tile::ROW_STEP];
#pragma unroll
    for (int i = 0; i < Tile::M / Tile::ROW_STEP; i++) {
        const uint32_t slot = m0 + i * Tile::ROW_STEP + r;
        inputs[i] = slot < end ? input(slot) : NO_ROW;
    }
    auto w_row = [&](int i) {
        const uint32_t row = n0 + i * Tile::ROW_STEP + r;
        return row < a.n ? w0 + row : NO_ROW;
    };
    float acc[4][4][4] = {};
    tile_products(shared, a.x, a.w, a.k, [&](int i) { return inputs[i]; }, w_row, acc);
    for_each_product(acc, [&](uint32_t row, uint32_t column, float v) {
        const uint32_t slot = m0 + row, n = n0 + column;
        if (slot >= end || n >= a.n) return;
        v = __fmul_rn(v, __ldg(a.x_scale + input(slot)));
        if (a.bias) v = __fadd_rn(v, __ldg(a.bias + (uint64_t)expert * a.n + n));
        a.out[(uint64_t)slot * a.out_stride + n] = v;
    });
}
