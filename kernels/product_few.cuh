// The product of two to four rows with a quantized matrix, whose inputs are there, from sm_90 on: the steps of a few sessions, or of
// a session that verifies a few drafts. Weights come as in product.cuh, and the bits are those of matvec.cuh.
#pragma once
#include "product.cuh"

#if __CUDA_ARCH__ >= 900

template <uint32_t T, int MOST> __device__ __forceinline__ void few_rows(const FewProductArgs& few, const Part& part, uint32_t bar, uint64_t (*filled)[WARPS], uint8_t* shared) {
    constexpr uint32_t CR = stage_rows<T>(), STAGES = stages<T>(), STAGE = CR * record_bytes(T, 32), INPUT = Input::INPUT_BYTES;
    constexpr bool BULK = comes_in_bulk<T>();
    const ProductArgs& a = few.product;
    const Part p = part;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const WarpShare<CR, false> share(p, 0);
    const uint32_t rows = share.rows;
    const auto input_of = [&](uint32_t b) { return Input{shared + a.ring_bytes + b * (a.groups * INPUT), a.groups}; };
    float* sums = input_of(MOST - 1).after();  // [slice][row][row of the input]
    const uint8_t* ring = shared + warp * (STAGES * STAGE);
    const uint32_t lane_ring = kept(shared_address(ring) + (BULK ? 0 : lane * 16));
    if constexpr (BULK) {
        if (lane == 0) {
            for (uint32_t i = 0; i < STAGES; i++) barrier_init(shared_address(&filled[i][warp]), 1);
            fence_shared();
        }
    }

    // What is to be brought in, as in product_rows.
    uint32_t coming = share.count, coming_slice = share.run, of_slice = 0, record = 0, stage = 0;
    const uint8_t* from = NULL;
    auto turn_to = [&](uint32_t at) {
        record = record_of(p, coming_slice);
        of_slice = min(coming, rows - at);
        from = row_of(p, 0, coming_slice, share.row0 + at) + (BULK ? 0 : lane * 16);
    };
    auto bring_in = [&] {
        if (coming > 0) {
            const uint32_t n = min(CR, of_slice), bytes = n * record, to = lane_ring + stage * STAGE;
            if constexpr (BULK) {
                if (lane == 0) {
                    const uint32_t its = shared_address(&filled[stage][warp]);
                    barrier_expect(its, bytes);
                    bulk_copy(to, from, bytes, its);
                }
            } else {
#pragma unroll
                for (uint32_t i = 0; i < (STAGE + 511) / 512; i++)
                    if (i * 512 + lane * 16 < bytes) copy16(to + i * 512, from + i * 512, true);
            }
            from += bytes;
            coming -= n;
            of_slice -= n;
            if (of_slice == 0) {
                coming_slice++;
                turn_to(0);
            }
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        if constexpr (!BULK) copies_commit();
    };
    turn_to(share.row);
    bring_in();
    __syncthreads();
    wait_for_producers();
    if (threadIdx.x == 0) {
        const uint32_t bytes = a.groups * 32, of_scales = a.groups * 4;
        barrier_expect(bar, few.rows * (bytes + of_scales));
        for (uint32_t b = 0; b < few.rows; b++) {
            const Input to = input_of(b);
            bulk_copy(shared_address(to.at), a.q8 + (uint64_t)b * bytes, bytes, bar);
            bulk_copy(shared_address(to.scales()), a.q8_scale + b * a.groups, of_scales, bar);
        }
    }
    barrier_wait(bar, 0);
#pragma unroll 1
    for (uint32_t i = 1; i < STAGES; i++) bring_in();
    release_dependents();

    uint32_t left = share.count, slice = share.run, row = share.row, loaded = ~0u, n_groups = 0, parity = 0;
    LaneInput x[MOST];
    const uint32_t u = butterfly_row<CR>(lane);
#pragma unroll 1
    for (; left > 0; slice++, row = 0) {
        const uint32_t its = record_of(p, slice);
        if (slice != loaded) {
            loaded = slice;
            n_groups = slice + 1 == p.n_slices ? p.last : p.full;
#pragma unroll
            for (uint32_t b = 0; b < MOST; b++) x[b].load(input_of(min(b, few.rows - 1)), slice * p.full + min(lane, n_groups - 1));
        }
        float* to = (lane & (32 / CR - 1)) == 0 ? sums + (slice * rows + row + u) * MOST : NULL;
        uint32_t n = min(left, rows - row);
        left -= n;
#pragma unroll 1
        for (;;) {
            const uint8_t* r = ring + stage * STAGE;
            if constexpr (BULK) {
                barrier_wait(shared_address(&filled[stage][warp]), parity);
                if (stage == STAGES - 1) parity ^= 1;
            } else {
                copies_wait<STAGES - 1>();
                __syncwarp();
            }
            float acc[MOST][CR];
            const auto dot = [&](uint32_t i, const uint8_t* its, uint32_t group, uint32_t n_groups) {
                float v[MOST];
                record_dots<T>(x, its, group, n_groups, v);
#pragma unroll
                for (int b = 0; b < MOST; b++) acc[b][i] = v[b];
            };
            if (n_groups == 32) {
                // Whole records: offsets are constants. What lies behind the last row is not used.
#pragma unroll
                for (uint32_t i = 0; i < CR; i++) dot(i, r + i * record_bytes(T, 32), lane, 32);
            } else {
#pragma unroll
                for (uint32_t i = 0; i < CR; i++) {
                    dot(i, r + i * its, min(lane, n_groups - 1), n_groups);
#pragma unroll
                    for (int b = 0; b < MOST; b++) acc[b][i] = lane < n_groups ? acc[b][i] : 0.0f;
                }
            }
            __syncwarp();
            bring_in();
#pragma unroll
            for (int b = 0; b < MOST; b++) {
                const float t = butterfly<CR>(acc[b], lane);
                if (to && u < n) to[b] = t;
            }
            if (n <= CR) break;
            n -= CR;
            if (to) to += CR * MOST;
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < rows * MOST; i += WARPS * 32) {
        const uint32_t at = share.place(i / MOST), b = i % MOST;
        if (b >= few.rows) continue;
        float v = sums[i];
#pragma unroll 4
        for (uint32_t t = 1; t < p.n_slices; t++) v = __fadd_rn(v, sums[t * rows * MOST + i]);
        if (p.bias) v = __fadd_rn(v, p.bias[at]);
        const uint64_t place = (uint64_t)b * few.stride + p.out_offset + at;
        a.out[place] = a.residual ? __fadd_rn(v, __ldcg(a.residual + place)) : v;
    }
}

// A barrier for the inputs, and for each warp one for each of its ring's stages, which bulk copies fill.
template <uint32_t STAGES> struct FewStatic {
    uint64_t bar;
    uint64_t filled[STAGES ? STAGES : 1][WARPS];
};

// Grid: the blocks of the parts; 512 threads.
template <uint32_t TYPES, int MOST> __device__ __forceinline__ void few_body(const FewProductArgs& a) {
    DYNAMIC_SHARED(shared);
    using Static = FewStatic<ring_barriers<TYPES>()>;
    STATIC_SHARED(Static, m);
    const uint32_t bar = shared_address(&m.bar);
    if (threadIdx.x == 0) {
        barrier_init(bar, 1);
        fence_shared();
    }
    const Part& p = part_of(a.product.parts, a.product.n_parts);
    for_type(p.type, [&]<uint32_t T>() {
        if constexpr (!is_float(T) && (TYPES >> T & 1)) few_rows<T, MOST>(a, p, bar, m.filled, shared);
    });
}

#endif

// Kernel names: product_few_<types>_<most rows>.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define PRODUCT_OF_ROWS(name, types, most)                                                                  \
    extern "C" __global__ void __launch_bounds__(WARPS * 32) name(const __grid_constant__ FewProductArgs a) { \
        few_body<types, most>(a);                                                                             \
    }
#define PRODUCT_FEW(name, types)                      \
    PRODUCT_OF_ROWS(product_few_##name##_2, (types), 2) \
    PRODUCT_OF_ROWS(product_few_##name##_4, (types), 4)
#else
#define PRODUCT_FEW(name, types)
#endif
