// Products of many input rows with a matrix, for prefill: f16 times f16, sums in f32.
#include "matmul.cuh"

struct MatmulArgs {
    const __half* x;        // [m][k]
    const float* x_scale;   // [m]: a row's values are x * x_scale
    const __half* w;        // [n][k]
    const float* bias;      // [n] or NULL
    const float* residual;  // [m][out_stride], added, or NULL; may be `out`
    float* out;             // [m][out_stride]
    uint32_t m, n, k;       // k a multiple of 32
    uint32_t out_stride;
};
static_assert(sizeof(MatmulArgs) == 64, "as in args.rs");

// Grid (m tiles, n tiles): neighbours share the weights' tile. 256 threads.
extern "C" __global__ void __launch_bounds__(Tile::THREADS, 2) matmul(const __grid_constant__ MatmulArgs a) {
    extern __shared__ __align__(128) uint8_t shared[];
    release_dependents();
    wait_for_producers();
    const uint32_t m0 = blockIdx.x * Tile::M, n0 = blockIdx.y * Tile::N, r = threadIdx.x / Tile::PIECES;
    auto row_of = [&](uint32_t first, int i, uint32_t rows) {
        const uint32_t row = first + i * Tile::ROW_STEP + r;
        return row < rows ? row : NO_ROW;
    };
    float acc[4][4][4] = {};
    tile_products(shared, a.x, a.w, a.k, [&](int i) { return row_of(m0, i, a.m); }, [&](int i) { return row_of(n0, i, a.n); }, acc);
    for_each_product(acc, [&](uint32_t row, uint32_t column, float v) {
        const uint32_t m = m0 + row, n = n0 + column;
        if (m >= a.m || n >= a.n) return;
        v = __fmul_rn(v, __ldg(a.x_scale + m));
        if (a.bias) v = __fadd_rn(v, __ldg(a.bias + n));
        const uint64_t to = (uint64_t)m * a.out_stride + n;
        if (a.residual) v = __fadd_rn(v, a.residual[to]);
        a.out[to] = v;
    });
}
