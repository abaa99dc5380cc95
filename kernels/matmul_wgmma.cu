// Products of many input rows with a matrix, for prefill, as matmul.cu does them, by the warpgroup
// products of sm_90a.
//
// A cluster of two blocks has neighbouring tiles of 128 input rows and the same tile of the matrix,
// of which each fetches a half for both. In a block, one thread keeps a ring of tiles filled by bulk
// copies, and two warpgroups multiply 64 rows each. Blocks stay and go on to the next tile, so its
// copies run during the epilogue. Other devices have empty kernels.
#include "activation.cuh"
#include "hopper.cuh"
#include "matmul.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <int BN> struct Ring {
    static constexpr int BYTES = (TILE_ROWS + BN) * TILE_K * 2, STAGES = 226 * 1024 / BYTES;
};

// What becomes of a thread's sums: rows `m0` and `m0 + 8`, columns from `n0` on, 8 from pair to pair.
template <int BN> __device__ __forceinline__ void store_sums(const MatmulArgs& a, const float (&acc)[BN / 2], uint32_t m0, uint32_t n0) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t m = m0 + h * 8;
        if (m >= a.m) continue;
        const float scale = a.x_scale[m];
#pragma unroll
        for (int j = 0; j < BN / 8; j += 8) {
            float2 v[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float* f = acc + (j + i) * 4 + h * 2;
                v[i] = make_float2(__fmul_rn(f[0], scale), __fmul_rn(f[1], scale));
            }
            store_pairs(a, m, n0 + j * 8, v);
        }
    }
}
// The same where, by turns, 64 columns are of the gate and 64 of what it lets through.
template <int BN> __device__ __forceinline__ void store_gated(const GatedMatmulArgs& g, const float (&acc)[BN / 2], uint32_t m0, uint32_t n0) {
    MatmulArgs a = g.product;
    a.n /= 2;
    a.bias = a.residual = nullptr;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t m = m0 + h * 8;
        const bool inside = m < a.m;
        const float scale = inside ? a.x_scale[m] : 0.0f;
        float largest = 0.0f;
#pragma unroll
        for (int j = 0; j < BN / 128; j++) {
            float2 v[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float *gate = acc + j * 64 + i * 4 + h * 2, *other = gate + 32;
                v[i] = make_float2(gated_silu(__fmul_rn(gate[0], scale), __fmul_rn(other[0], scale)),
                                   gated_silu(__fmul_rn(gate[1], scale), __fmul_rn(other[1], scale)));
                if (n0 + j * 64 + i * 8 < a.n) largest = fmaxf(largest, fmaxf(fabsf(v[i].x), fabsf(v[i].y)));
            }
            if (inside) store_pairs(a, m, n0 + j * 64, v);
        }
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
        // Of numbers that are not negative, integers have the same order.
        if (inside && (threadIdx.x & 3) == 0) atomicMax((int*)g.largest + m, __float_as_int(largest));
    }
}

// `a` are the arguments of the product, `store(sums, m0, n tile, first column of the thread's)`.
template <int BN, class Store> __device__ __forceinline__ void matmul_body(const MatmulArgs& a, Store store) {
    extern __shared__ uint8_t shared[];
    __shared__ __align__(8) uint64_t full[Ring<BN>::STAGES], empty[Ring<BN>::STAGES];
    constexpr int STAGES = Ring<BN>::STAGES, X_BYTES = TILE_ROWS * TILE_K * 2, HALF = BN / 2 * TILE_K * 2;
    const uint32_t ring = (shared_address(shared) + 1023) & ~1023u;
    const uint32_t rank = cluster_rank(), group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(shared_address(full + s), 1);
            barrier_init(shared_address(empty + s), 4);  // two warpgroups of each block
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    release_dependents();
    wait_for_producers();
    const uint32_t k_tiles = tiles_of(a.k, TILE_K), pairs = tiles_of(a.m, 2 * TILE_ROWS);
    const uint32_t tiles = pairs * tiles_of(a.n, BN);
    uint32_t stage = 0, phase = 0;
    auto next = [&] {
        if (++stage == STAGES) { stage = 0; phase ^= 1; }
    };
    if (group == 2) {
        give_registers<40>();
        if (threadIdx.x == 256) {
            for (uint32_t t = blockIdx.x / 2; t < tiles; t += gridDim.x / 2) {
                const uint32_t m_tile = t % pairs * 2 + rank, n0 = t / pairs * BN + rank * (BN / 2);
                const uint8_t* x = (const uint8_t*)a.x + (uint64_t)m_tile * k_tiles * TILE_BYTES;
                const uint8_t* w = (const uint8_t*)a.w + (uint64_t)(n0 / TILE_ROWS) * k_tiles * TILE_BYTES + n0 % TILE_ROWS * TILE_K * 2;
                for (uint32_t kt = 0; kt < k_tiles; kt++, next(), x += TILE_BYTES, w += TILE_BYTES) {
                    const uint32_t to = ring + stage * Ring<BN>::BYTES, bar = shared_address(full + stage);
                    barrier_wait(shared_address(empty + stage), phase ^ 1);
                    barrier_expect(bar, Ring<BN>::BYTES);
                    // The neighbour waits for this one, too, so it goes first.
                    bulk_copy_all(to + X_BYTES + rank * HALF, w, HALF, bar, 3);
                    bulk_copy(to, x, X_BYTES, bar);
                }
            }
        }
    } else {
        take_registers<232>();
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32 & 3;
        auto release = [&](uint32_t s) {
            if ((threadIdx.x & 127) < 2) barrier_arrive(shared_address(empty + s), threadIdx.x & 127);
        };
        for (uint32_t t = blockIdx.x / 2; t < tiles; t += gridDim.x / 2) {
            float acc[BN / 2];
            uint32_t before = 0;
            for (uint32_t kt = 0; kt < k_tiles; kt++, next()) {
                barrier_wait(shared_address(full + stage), phase);
                const uint32_t at = ring + stage * Ring<BN>::BYTES;
                products_fence();
#pragma unroll
                for (int kk = 0; kk < TILE_K / 16; kk++)
                    product(acc, tile_descriptor(at + group * 64 * TILE_K * 2 + kk * 32),
                            tile_descriptor(at + X_BYTES + kk * 32), (kt | kk) != 0);
                products_commit();
                if (kt > 0) {
                    products_wait<1>();
                    release(before);
                }
                before = stage;
            }
            products_wait<0>();
            release(before);
            store(acc, (t % pairs * 2 + rank) * TILE_ROWS + group * 64 + warp * 16 + lane / 4, t / pairs, (lane & 3) * 2);
        }
    }
    // A block must not end while its neighbour still copies into it or arrives at its barriers.
    cluster_sync();
}
#endif

// Grid: pairs of blocks, at most the multiprocessors. 384 threads.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define KERNEL extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
#define MATMUL(bn)                                                                                            \
    KERNEL matmul_wgmma_##bn(const __grid_constant__ MatmulArgs a) {                                          \
        matmul_body<bn>(a, [&](const float(&acc)[bn / 2], uint32_t m0, uint32_t n_tile, uint32_t n) {         \
            store_sums<bn>(a, acc, m0, n_tile * bn + n);                                                      \
        });                                                                                                   \
    }                                                                                                         \
    KERNEL matmul_gated_##bn(const __grid_constant__ GatedMatmulArgs a) {                                     \
        matmul_body<bn>(a.product, [&](const float(&acc)[bn / 2], uint32_t m0, uint32_t n_tile, uint32_t n) { \
            store_gated<bn>(a, acc, m0, n_tile * (bn / 2) + n);                                               \
        });                                                                                                   \
    }
#else
#define MATMUL(bn)                                                                      \
    extern "C" __global__ void matmul_wgmma_##bn(const __grid_constant__ MatmulArgs) {} \
    extern "C" __global__ void matmul_gated_##bn(const __grid_constant__ GatedMatmulArgs) {}
#endif
MATMUL(128)
MATMUL(256)
