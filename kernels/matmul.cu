// Products of many input rows with a matrix, for prefill: f16 times f16, sums in f32.
//
// An output element is the sum over k in ascending order in steps of the tensor core's 16, whatever
// the number of rows, so chunking a prompt does not change it.
#include "mma.cuh"

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

struct Tile {
    static constexpr int M = 128, N = 128, K = 64, STAGES = 3, THREADS = 256;
    static constexpr int WARP_M = 64, WARP_N = 32;  // 2 x 4 warps
    static constexpr int STAGE_BYTES = (M + N) * K * 2;
    static_assert(M / WARP_M * (N / WARP_N) * 32 == THREADS);
};

// Grid (m tiles, n tiles): neighbours share the weights' tile. 256 threads.
extern "C" __global__ void __launch_bounds__(Tile::THREADS, 2) matmul(const __grid_constant__ MatmulArgs a) {
    extern __shared__ __align__(128) uint8_t shared[];
    release_dependents();
    wait_for_producers();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, wm = warp & 1, wn = warp >> 1;
    const uint32_t m0 = blockIdx.x * Tile::M, n0 = blockIdx.y * Tile::N;
    constexpr int PIECES = Tile::K / 8;
    const uint32_t base = shared_address(shared);
    auto load = [&](uint32_t kt, int stage) {
        uint32_t to = base + stage * Tile::STAGE_BYTES;
#pragma unroll
        for (int i = threadIdx.x; i < (Tile::M + Tile::N) * PIECES; i += Tile::THREADS) {
            uint32_t r = i / PIECES, c = i % PIECES, k = kt * Tile::K + c * 8;
            bool is_w = r >= Tile::M;
            uint32_t row = is_w ? n0 + r - Tile::M : m0 + r;
            bool valid = k < a.k && row < (is_w ? a.n : a.m);
            const __half* from = (is_w ? a.w : a.x) + (valid ? (uint64_t)row * a.k + k : 0);
            copy16(to + swizzled<PIECES>(r, c), from, valid);
        }
        copies_commit();
    };
    float acc[4][4][4] = {};
    const uint32_t tiles = (a.k + Tile::K - 1) / Tile::K;
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
            uint32_t x[4][4], w[2][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t r = wm * Tile::WARP_M + i * 16 + (lane & 15);
                load_matrices(x[i], at + swizzled<PIECES>(r, kk * 2 + (lane >> 4)));
            }
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint32_t r = Tile::M + wn * Tile::WARP_N + j * 16 + (lane & 7) + (lane >> 4) * 8;
                load_matrices(w[j], at + swizzled<PIECES>(r, kk * 2 + (lane >> 3 & 1)));
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) mma(acc[i][j], x[i], w[j >> 1][(j & 1) * 2], w[j >> 1][(j & 1) * 2 + 1]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t m = m0 + wm * Tile::WARP_M + i * 16 + h * 8 + (lane >> 2);
            if (m >= a.m) continue;
            float scale = a.x_scale[m];
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    uint32_t n = n0 + wn * Tile::WARP_N + j * 8 + (lane & 3) * 2 + e;
                    if (n >= a.n) continue;
                    float v = __fmul_rn(acc[i][j][h * 2 + e], scale);
                    if (a.bias) v = __fadd_rn(v, a.bias[n]);
                    uint64_t to = (uint64_t)m * a.out_stride + n;
                    if (a.residual) v = __fadd_rn(v, a.residual[to]);
                    a.out[to] = v;
                }
        }
}
