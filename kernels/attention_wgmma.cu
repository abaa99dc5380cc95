// Attention of a prefill and within whole texts, as flash_tiles.cuh does it, by the warpgroup products of
// sm_90a: tiles of 128 queries against tiles of 128 positions of an f16 cache. Other devices have empty kernels.
//
// Two warpgroups have 64 queries each, one fetches keys and values. A warpgroup's products with the
// next keys and the last values run one after the other, and its softmax beside the second; the two
// take turns in handing products to the tensor cores, so that one's softmax runs beside the other's
// products. Position tiles lie at absolute multiples of 128, and a tile that a query does not see
// changes nothing of it, so chunking a prompt makes no difference.
#include "flash.cuh"
#include "hopper.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr uint32_t QUERIES = 128, POSITIONS = 128, STAGES = 2;

// Rows of HD elements are cut into parts of 64, each a tile of rows of 128 bytes.
template <int HD> struct Shared {
    static constexpr uint32_t QUERY = 64 * HD * 2, KEYS = POSITIONS * HD * 2, PART = POSITIONS * 128;
    static constexpr uint32_t QUERIES_AT = 0, STAGES_AT = 2 * QUERY;
};

// Copies rows of `hd` elements at `row(r)`, or zeros where that is NULL, to parts of `rows` rows, in steps of
// 16 bytes, by 128 threads. `any` is an address that may be read.
template <int HD, typename Row>
__device__ __forceinline__ void fetch(uint32_t to, uint32_t rows, uint32_t hd, const void* any, Row row) {
    constexpr uint32_t PIECES = HD / 8;
    for (uint32_t i = threadIdx.x & 127; i < rows * PIECES; i += 128) {
        const uint32_t r = i / PIECES, c = i % PIECES;
        const __half* from = row(r);
        const bool valid = from && c * 8 < hd;
        copy16(to + c / 8 * rows * 128 + swizzled<8>(r, c % 8), valid ? from + c * 8 : any, valid);
    }
}

// The same for POSITIONS rows, the first KV_TILE at `first`, the others at `second`, `stride` bytes apart.
// A thread copies the same piece of every so many rows, which changes neither its swizzle nor its step.
template <int HD>
__device__ __forceinline__ void fetch_whole(uint32_t to, uint32_t hd, const uint8_t* first, const uint8_t* second, uint32_t stride) {
    constexpr uint32_t PIECES = HD / 8, STEP = 128 / PIECES;
    static_assert(STEP % 8 == 0 && POSITIONS == 2 * KV_TILE);
    const uint32_t r = (threadIdx.x & 127) / PIECES, c = threadIdx.x % PIECES;
    const bool valid = c * 8 < hd;
    const uint32_t at = to + c / 8 * Shared<HD>::PART + swizzled<8>(r, c % 8), skip = r * stride + (valid ? c * 16 : 0);
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        const uint8_t* from = (half ? second : first) + skip;
#pragma unroll
        for (uint32_t i = 0; i < KV_TILE / STEP; i++, from += STEP * stride)
            copy16(at + (half * KV_TILE + i * STEP) * 128, from, valid);
    }
}

// Bars 1 and 2 hold a warpgroup until it is its turn to hand products to the tensor cores.
__device__ __forceinline__ void await_turn(uint32_t group) { asm volatile("bar.sync %0,256;" ::"r"(group + 1) : "memory"); }
__device__ __forceinline__ void end_turn(uint32_t group) { asm volatile("bar.arrive %0,256;" ::"r"(2 - group) : "memory"); }

// `place()` says where the block is, when what was enqueued before is done.
template <int HD, bool TEXTS, class Where> __device__ __forceinline__ void flash_body(const FlashArgs& a, Where place) {
    using S = Shared<HD>;
    extern __shared__ uint8_t shared[];
    __shared__ __align__(8) uint64_t keys_full[STAGES], values_full[STAGES], keys_empty[STAGES], values_empty[STAGES];
    const uint32_t base = (shared_address(shared) + 1023) & ~1023u, group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < STAGES; s++) {
            barrier_init(shared_address(keys_full + s), 128);
            barrier_init(shared_address(values_full + s), 128);
            barrier_init(shared_address(keys_empty + s), 2);
            barrier_init(shared_address(values_empty + s), 2);
        }
    }
    __syncthreads();
    release_dependents();
    wait_for_producers();
    const FlashPlace f = place();
    const uint32_t hd = a.layout.head_dim, head = f.head, q0 = f.q0, before = f.before, length = f.end;
    const uint32_t first = f.first / POSITIONS, tiles = (length + POSITIONS - 1) / POSITIONS;
    if (group == 2) {
        give_registers<56>();
        const uint32_t stored = a.layout.row_bytes;
        const uint8_t* cache = f.cache;
        const uint64_t plane = f.plane;
        for (uint32_t t = first; t < tiles; t++) {
            const uint32_t n = t - first, stage = n % STAGES, to = base + S::STAGES_AT + stage * 2 * S::KEYS;
            auto kv_tile = [&](uint32_t tile) { return cache + (a.layout.ring ? tile % a.layout.ring : tile) * a.layout.tile_bytes; };
#pragma unroll 1
            for (uint32_t v = 0; v < 2; v++) {
                barrier_wait(shared_address((v ? values_empty : keys_empty) + stage), n / STAGES & 1 ^ 1);
                if ((t + 1) * POSITIONS <= length) {
                    const uint64_t behind = v ? plane : 0;
                    fetch_whole<HD>(to + v * S::KEYS, hd, kv_tile(2 * t) + behind, kv_tile(2 * t + 1) + behind, stored);
                } else {
                    fetch<HD>(to + v * S::KEYS, POSITIONS, hd, cache, [&](uint32_t r) -> const __half* {
                        const uint32_t p = t * POSITIONS + r;
                        if (p >= length) return nullptr;
                        return (const __half*)(kv_tile(p / KV_TILE) + (v ? plane : 0) + p % KV_TILE * stored);
                    });
                }
                barrier_arrive_copied(shared_address((v ? values_full : keys_full) + stage));
            }
        }
        return;
    }
    take_registers<224>();
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32 & 3, row0 = q0 + group * 64;
    const uint32_t queries = base + S::QUERIES_AT + group * S::QUERY;
    fetch<HD>(queries, 64, hd, f.q, [&](uint32_t r) { return row0 + r < f.rows ? f.q + ((uint64_t)(row0 + r) * a.n_heads + head) * hd : nullptr; });
    copies_commit();
    copies_wait<0>();
    fence_shared();
    asm volatile("bar.sync %0,128;" ::"r"(group + 3) : "memory");
    if (group == 1) end_turn(group);
    float acc[HD / 2], score[64], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f}, keep[2];
    uint32_t weights[POSITIONS / 16][4];
#pragma unroll
    for (int i = 0; i < HD / 2; i++) acc[i] = 0.0f;
    const uint32_t mine = before + row0 + warp * 16 + lane / 4;
    auto stage_at = [&](uint32_t n) { return base + S::STAGES_AT + n % STAGES * 2 * S::KEYS; };
    auto release = [&](uint64_t* barriers, uint32_t n) {
        if ((threadIdx.x & 127) == 0) barrier_arrive(shared_address(barriers + n % STAGES));
    };
    auto multiply_keys = [&](uint32_t n) {
        const uint32_t keys = stage_at(n);
        products_fence();
#pragma unroll
        for (int kk = 0; kk < HD / 16; kk++)
            product(score, tile_descriptor(queries + kk / 4 * 64 * 128 + kk % 4 * 32),
                    tile_descriptor(keys + kk / 4 * S::PART + kk % 4 * 32), kk != 0);
        products_commit();
    };
    auto multiply_values = [&](uint32_t n) {
        const uint32_t values = stage_at(n) + S::KEYS;
        products_fence();
#pragma unroll
        for (int kk = 0; kk < POSITIONS / 16; kk++)
            add_product(acc, weights[kk], transposed_descriptor(values + kk * 16 * 128, S::PART));
        products_commit();
    };
    auto await = [&](uint64_t* barriers, uint32_t n) {
        barrier_wait(shared_address(barriers + n % STAGES), n / STAGES & 1);
        fence_shared();
    };
    // Scores of tile `t` become weights, as f32; `keep` is what is left of those before.
    auto soften = [&](uint32_t t) {
        auto position = [&](int i) { return t * POSITIONS + i / 4 * 8 + (lane & 3) * 2 + (i & 1); };
        if constexpr (TEXTS) {
            if (f.slope != 0.0f) {
#pragma unroll
                for (int i = 0; i < 64; i++) score[i] = leaned(f.slope, mine + (i & 2) * 4, position(i), score[i]);
            }
        }
        if (a.scores.cap != 0.0f) {
#pragma unroll
            for (int i = 0; i < 64; i++) score[i] = capped(a.scores.cap, score[i]);
        }
        // Whether some row of the warpgroup does not see all of the tile.
        const bool partly = TEXTS ? t * POSITIONS + POSITIONS > min(f.rows, row0 + f.ahead) || row0 + 63 >= t * POSITIONS + a.layout.window
                                  : t * POSITIONS + POSITIONS - 1 > before + row0 || before + row0 + 63 - t * POSITIONS >= a.layout.window;
        if (partly) {
#pragma unroll
            for (int i = 0; i < 64; i++) {
                const uint32_t m = mine + (i & 2) * 4;
                if (TEXTS ? hidden_in_text(a.layout, f, m, position(i)) : hidden(a.layout, m, position(i))) score[i] = -INFINITY;
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float largest = top[h];
#pragma unroll
            for (int j = 0; j < 16; j++) largest = fmaxf(largest, fmaxf(score[j * 4 + h * 2], score[j * 4 + h * 2 + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
            // A row with nothing in sight yet keeps what it has, which is nothing.
            keep[h] = largest == -INFINITY ? 1.0f : power_of_2(top[h] - largest);
            top[h] = largest;
            if (largest == -INFINITY) largest = 0.0f;
            sum[h] *= keep[h];
#pragma unroll
            for (int j = 0; j < 16; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float w = power_of_2(score[j * 4 + h * 2 + e] - largest);
                    score[j * 4 + h * 2 + e] = w;
                    sum[h] += w;
                }
        }
    };
    auto round_weights = [&] {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            __half2 w = __floats2half2_rn(score[2 * i], score[2 * i + 1]);
            weights[i / 4][i % 4] = *(uint32_t*)&w;
        }
    };
    const uint32_t count = tiles - first;
    await(keys_full, 0);
    await_turn(group);
    multiply_keys(0);
    end_turn(group);
    products_wait<0>();
    release(keys_empty, 0);
    soften(first);
    round_weights();
    for (uint32_t n = 1; n < count; n++) {
        await(keys_full, n);
        await_turn(group);
        multiply_keys(n);
        await(values_full, n - 1);
        multiply_values(n - 1);
        end_turn(group);
        products_wait<1>();
        release(keys_empty, n);
        soften(first + n);
        products_wait<0>();
        release(values_empty, n - 1);
#pragma unroll
        for (int i = 0; i < HD / 2; i++) acc[i] *= keep[i / 2 & 1];
        round_weights();
    }
    await(values_full, count - 1);
    multiply_values(count - 1);
    products_wait<0>();
    // Warpgroup 1 began with one turn for the other, which has as many turns to take.
    if (group == 0) await_turn(group);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float total = sum[h] + __shfl_xor_sync(~0u, sum[h], 1);
        total += __shfl_xor_sync(~0u, total, 2);
        const uint32_t row = row0 + warp * 16 + h * 8 + lane / 4;
        if (row >= f.rows) continue;
        total = with_sink(a.scores, head, top[h], total);
        const float inverse = 1.0f / total;
        if constexpr (TEXTS) {
            if (f.f16) {
#pragma unroll
                for (int j = 0; j < HD / 8; j++)
                    if (j * 8 < hd) store_f16(a, f, row, j * 8 + (lane & 3) * 2, acc[j * 4 + h * 2] * inverse, acc[j * 4 + h * 2 + 1] * inverse);
                continue;
            }
        }
        float* to = f.out + ((uint64_t)row * a.n_heads + head) * hd;
#pragma unroll
        for (int j = 0; j < HD / 8; j++) {
            const uint32_t d = j * 8 + (lane & 3) * 2;
            if (d < hd) *(float2*)(to + d) = make_float2(acc[j * 4 + h * 2] * inverse, acc[j * 4 + h * 2 + 1] * inverse);
        }
    }
}
#define FLASH(hd)                                                                                                           \
    extern "C" __global__ void __launch_bounds__(384, 1) flash_wgmma_##hd(const __grid_constant__ FlashArgs a) {            \
        /* The last tiles have the most work, so they start first. */                                                       \
        flash_body<hd, false>(a, [&] {                                                                                      \
            return place_in_session(a, blockIdx.x, a.first_row + (gridDim.y - 1 - blockIdx.y) * QUERIES, QUERIES);          \
        });                                                                                                                 \
    }                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(384, 1) flash_texts_wgmma_##hd(const __grid_constant__ TextFlashArgs a) {  \
        flash_body<hd, true>(a.flash, [&] { return place_in_text(a, blockIdx.x, a.tiles[blockIdx.y], QUERIES); });          \
    }
#else
#define FLASH(hd)                                                                       \
    extern "C" __global__ void flash_wgmma_##hd(const __grid_constant__ FlashArgs) {}   \
    extern "C" __global__ void flash_texts_wgmma_##hd(const __grid_constant__ TextFlashArgs) {}
#endif
// Grid (n_heads, query tiles), 384 threads. For heads of up to so many elements, a multiple of 8.
FLASH(64)
FLASH(128)
