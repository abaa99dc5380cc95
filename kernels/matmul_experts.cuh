// Products of many rows with the matrices of their experts, for prefill: rows sorted by expert into
// slots (experts.cu), a tile of slots of one expert at a time. f16 times f16, sums in f32. Records become f16 on their
// way to the tensor cores, for an expert's slots fill few tiles.
//
// An output element is the sum over k in ascending order in steps of the tensor core's 16, whatever
// slot its row has, so neither chunks nor other rows change it.
#pragma once
#include "bulk.cuh"
#include "expert_tiles.cuh"
#include "halves.cuh"
#include "matmul_tile.cuh"

// Rows that the threads load at a time, a piece each.
constexpr int ROW_STEP = Tile::THREADS / Tile::PIECES;
static_assert(Tile::M % ROW_STEP == 0 && Tile::N % ROW_STEP == 0);
constexpr uint32_t NO_ROW = ~0u;

// A tile's slots: where they begin and end, and their expert.
struct ExpertTile {
    uint32_t expert, begin, end;
    __device__ __forceinline__ ExpertTile(const ExpertMatmulArgs& a, uint32_t tile) {
        const TilePlace place = a.places[tile];
        expert = place.expert;
        begin = place.begin;
        end = begin + place.rows;
    }
};
__device__ __forceinline__ uint32_t input_of(const ExpertMatmulArgs& a, uint32_t slot) { return a.pairs ? __ldg(a.pairs + slot) / a.pairs_per_input : slot; }

// Sums of 8 rows and 2 columns, `acc[h * 2 + e]`: rows `slot` and `slot + 8`, columns `n` and `n + 1`.
template <int J> __device__ __forceinline__ void store_slots(const ExpertMatmulArgs& a, const ExpertTile& t, uint32_t slot0, uint32_t n0, const float (&acc)[J][4]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t slot = slot0 + h * 8;
        if (slot >= t.end) continue;
        const float scale = a.x_scale[input_of(a, slot)];
#pragma unroll
        for (int j = 0; j < J; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint32_t n = n0 + j * 8 + e;
                if (n >= a.n) continue;
                float v = __fmul_rn(acc[j][h * 2 + e], scale);
                if (a.bias[0]) v = __fadd_rn(v, __ldg(a.bias[0] + (uint64_t)t.expert * a.n + n));
                a.out[(uint64_t)slot * a.out_stride + n] = v;
            }
    }
}

// Stages of the inputs, then two tiles of the matrix.
constexpr int EXPERT_X_BYTES = Tile::M * Tile::K * 2, EXPERT_W_BYTES = Tile::N * Tile::K * 2;

// Grid (as many tiles as there may be, n tiles). 256 threads. Shared memory: MATMUL_STAGES tiles of inputs, two of the
// matrix.
template <uint32_t T> __device__ __forceinline__ void matmul_records(const ExpertMatmulArgs& a) {
    extern __shared__ __align__(128) uint8_t shared[];
    constexpr int STAGES = Tile::STAGES, PIECES = Tile::PIECES, X_ROWS = Tile::M / ROW_STEP;
    static_assert(Tile::N * 2 == Tile::THREADS && Tile::K == 64, "a group a thread");
    const uint32_t base = shared_address(shared), w_base = base + STAGES * EXPERT_X_BYTES;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, wm = warp >> 2, wn = warp & 3;
    release_dependents();
    wait_for_producers();
    const uint32_t tile = a.tiles[0] + blockIdx.x;
    if (tile >= a.tiles[a.n_experts]) return;
    const ExpertTile t(a, tile);
    const uint32_t n0 = blockIdx.y * Tile::N, k_tiles = tiles_of(a.k, Tile::K), groups = a.k / 32, all_rows = a.n_experts * a.n;
    const Slices c = slices_of(T, groups);
    // This thread's row of the matrix, of which it brings every second group to f16.
    const uint32_t w_row = threadIdx.x / 2, row = t.expert * a.n + min(n0 + w_row, a.n - 1);
    const bool inside = n0 + w_row < a.n;
#if __CUDA_ARCH__ >= 900
    // The block's records lie together, slice by slice; they are asked for before they are needed.
    if (threadIdx.x < c.count) {
        const uint32_t s = threadIdx.x, record = record_bytes(T, s + 1 == c.count ? c.last : c.full);
        bulk_prefetch((const uint8_t*)a.w[0] + slice_offset(T, c, s, all_rows) + (uint64_t)(t.expert * a.n + n0) * record, min((uint32_t)Tile::N, a.n - n0) * record);
    }
#endif
    uint32_t rows[X_ROWS];
    const uint32_t r0 = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
#pragma unroll
    for (int i = 0; i < X_ROWS; i++) {
        const uint32_t slot = t.begin + i * ROW_STEP + r0;
        rows[i] = slot < t.end ? input_of(a, slot) : NO_ROW;
    }
    auto load_x = [&](uint32_t kt, int stage) {
        if (kt < k_tiles)
#pragma unroll
            for (int i = 0; i < X_ROWS; i++) {
                const bool valid = rows[i] != NO_ROW;
                const uint8_t* from = (const uint8_t*)a.x + (valid ? tiled(rows[i], kt * Tile::K + piece * 8, k_tiles) : 0);
                copy16(base + stage * EXPERT_X_BYTES + swizzled<PIECES>(i * ROW_STEP + r0, piece), from, valid);
            }
        copies_commit();
    };
    auto load_w = [&](uint32_t kt, Group& o) {
        const uint32_t group = kt * 2 + (threadIdx.x & 1);
        if (group >= groups || !inside) return false;
        const uint32_t s = group / c.full, g = group - s * c.full, n = s + 1 == c.count ? c.last : c.full;
        Codec<T>::template decode<FromCached>((const uint8_t*)a.w[0] + slice_offset(T, c, s, all_rows) + (uint64_t)row * record_bytes(T, n), g, n, o);
        return true;
    };
    auto store_w = [&](uint32_t kt, const Group& o, bool there) {
        uint32_t u[16] = {};
        if (there) to_halves<T>(o, u);
        const uint32_t to = STAGES * EXPERT_X_BYTES + (kt & 1) * EXPERT_W_BYTES;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            *(uint4*)(shared + to + swizzled<PIECES>(w_row, (threadIdx.x & 1) * 4 + i)) = make_uint4(u[4 * i], u[4 * i + 1], u[4 * i + 2], u[4 * i + 3]);
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) load_x(s, s);
    {
        Group first;
        const bool there = load_w(0, first);
        store_w(0, first, there);
    }
    const uint32_t left = t.end - t.begin;
    float acc[4][4][4] = {};
#pragma unroll 1
    for (uint32_t kt = 0; kt < k_tiles; kt++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        load_x(kt + STAGES - 1, (kt + STAGES - 1) % STAGES);
        Group next;
        const bool there = kt + 1 < k_tiles && load_w(kt + 1, next);
        const uint32_t x_at = base + kt % STAGES * EXPERT_X_BYTES, w_at = w_base + (kt & 1) * EXPERT_W_BYTES;
#pragma unroll
        for (int kk = 0; kk < Tile::K / 16; kk++) {
            uint32_t w[2][4];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t r = wn * Tile::WARP_N + j * 16 + (lane & 7) + (lane >> 4) * 8;
                load_matrices(w[j], w_at + swizzled<PIECES>(r, kk * 2 + (lane >> 3 & 1)));
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                // An expert may have few slots.
                if (wm * Tile::WARP_M + i * 16 >= left) break;
                uint32_t x[4];
                const uint32_t r = wm * Tile::WARP_M + i * 16 + (lane & 15);
                load_matrices(x, x_at + swizzled<PIECES>(r, kk * 2 + (lane >> 4)));
#pragma unroll
                for (int j = 0; j < 4; j++) mma(acc[i][j], x, w[j >> 1][(j & 1) * 2], w[j >> 1][(j & 1) * 2 + 1]);
            }
        }
        if (kt + 1 < k_tiles) store_w(kt + 1, next, there);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) store_slots(a, t, t.begin + wm * Tile::WARP_M + i * 16 + (lane >> 2), n0 + wn * Tile::WARP_N + (lane & 3) * 2, acc[i]);
}

// Kernel names: matmul_experts_<type>. sm_90a has experts_wgmma_<type> instead, and empty ones here.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MATMUL_EXPERTS(t) \
    extern "C" __global__ void matmul_experts_##t(const __grid_constant__ ExpertMatmulArgs) {}
#else
#define MATMUL_EXPERTS(t)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(Tile::THREADS, 2) matmul_experts_##t(const __grid_constant__ ExpertMatmulArgs a) { \
        matmul_records<t>(a);                                                                                                        \
    }
#endif
