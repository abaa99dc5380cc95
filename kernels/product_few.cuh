// The product of two to four rows with a quantized matrix, from sm_90 on: the steps of a few sessions, or of a session that verifies a
// few drafts. Weights come as in product.cuh, and the bits are those of matvec.cuh. Inputs are there, or (OWN) each block makes those of
// two rows for itself, as for one row.
#pragma once
#include "product.cuh"

#if __CUDA_ARCH__ >= 900

template <uint32_t T, int MOST, bool OWN> __device__ __forceinline__ void few_rows(const FewProductArgs& few, const Part& part, uint32_t bar, uint64_t (*filled)[WARPS], float* scratch, uint8_t* shared) {
    constexpr uint32_t CR = stage_rows<T>(), STAGES = stages<T>(), STAGE = CR * record_bytes(T, 32);
    constexpr bool BULK = comes_in_bulk<T>();
    const ProductArgs& a = few.product;
    const Part p = part;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, gate = OWN && a.finish == GATE ? 1 : 0;
    const WarpShare<CR, false> share(p, gate);
    const uint32_t rows = share.rows;
    const auto input_of = [&](uint32_t b) { return Input{shared + a.ring_bytes + b * (a.groups * INPUT_BYTES), a.groups}; };
    float* sums = input_of(MOST - 1).after();  // [run][row][row of the input]
    const uint8_t* ring = shared + warp * (STAGES * STAGE);
    const uint32_t lane_ring = kept(shared_address(ring) + (BULK ? 0 : lane * 16));
    if constexpr (BULK) {
        if (lane == 0) {
            for (uint32_t i = 0; i < STAGES; i++) barrier_init(shared_address(&filled[i][warp]), 1);
            fence_shared();
        }
    }

    // What is to be brought in, as in product_rows.
    uint32_t coming = share.count, coming_run = share.run, of_run = 0, record = 0, stage = own_zero();
    const uint8_t* from = NULL;
    auto turn_to = [&](uint32_t at) {
        record = record_of(p, coming_run >> gate);
        of_run = min(coming, rows - at);
        from = row_of(p, gate, coming_run, share.row0 + at) + (BULK ? 0 : lane * 16);
    };
    auto bring_in = [&] {
        if (coming > 0) {
            const uint32_t n = min(CR, of_run), bytes = n * record, to = lane_ring + stage * STAGE;
            if constexpr (BULK) {
                if (lane == 0) {
                    const uint32_t its = shared_address(&filled[stage][warp]);
                    barrier_expect(its, bytes);
                    bulk_copy_once(to, from, bytes, its);
                }
            } else {
#pragma unroll
                for (uint32_t i = 0; i < (STAGE + 511) / 512; i++)
                    if (i * 512 + lane * 16 < bytes) copy16_once(to + i * 512, from + i * 512, true);
            }
            from += bytes;
            coming -= n;
            of_run -= n;
            if (of_run == 0) {
                coming_run++;
                turn_to(0);
            }
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        if constexpr (!BULK) copies_commit();
    };
    turn_to(share.row);
    auto fill = [&](uint32_t stages) {
#pragma unroll 1
        for (uint32_t i = 0; i < stages; i++) bring_in();
    };
    if constexpr (OWN) {
        // As in product_rows. Rows of the input follow each other.
        const uint32_t width = a.groups * 32;
        if (a.norm.weight) {
            NormRowOf<FOURS_OF_SUM, INPUT_THREADS> norm[MOST];
#pragma unroll
            for (int b = 0; b < MOST; b++) norm[b].load_weights(a.norm, width);
            wait_for_producers();
#pragma unroll
            for (int b = 0; b < MOST; b++) norm[b].load(a.x + (uint64_t)b * width, width);
            fill(STAGES);
            sum_norm_rows(norm, a.norm, width, a.inverse_len, scratch);
#pragma unroll
            for (int b = 0; b < MOST; b++) input_of(b).take_either(norm[b], a.norm);
        } else {
            wait_for_producers();
            input_of(0).take(a.x, [&] { fill(STAGES); });
#pragma unroll 1
            for (uint32_t b = 1; b < MOST; b++) input_of(b).take(a.x + (uint64_t)b * width, [] {});
        }
        __syncthreads();
    } else {
        fill(1);
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
        fill(STAGES - 1);
    }
    release_dependents();

    uint32_t left = share.count, run = share.run, row = share.row, loaded = ~0u, n_groups = 0, parity = 0;
    LaneInput x[MOST];
    const uint32_t u = butterfly_row<CR>(lane);
#pragma unroll 1
    for (; left > 0; run++, row = 0) {
        const uint32_t slice = run >> gate, its = record_of(p, slice);
        if (slice != loaded) {
            loaded = slice;
            n_groups = slice + 1 == p.n_slices ? p.last : p.full;
#pragma unroll
            for (uint32_t b = 0; b < MOST; b++) x[b].load(input_of(min(b, few.rows - 1)), slice * p.full + min(lane, n_groups - 1));
        }
        float* to = (lane & (32 / CR - 1)) == 0 ? sums + (run * rows + row + u) * MOST : NULL;
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
    auto sum = [&](uint32_t half, uint32_t i) {
        float v = sums[half * rows * MOST + i];
#pragma unroll 4
        for (uint32_t t = 1; t < p.n_slices; t++) v = __fadd_rn(v, sums[((t << gate) + half) * rows * MOST + i]);
        return p.bias ? __fadd_rn(v, p.bias[half * p.rows + share.place(i / MOST)]) : v;
    };
    for (uint32_t i = threadIdx.x; i < rows * MOST; i += WARPS * 32) {
        const uint32_t at = share.place(i / MOST), b = i % MOST;
        if (!OWN && b >= few.rows) continue;
        float v = sum(0, i);
        const uint64_t place = (uint64_t)b * few.stride + p.out_offset + at;
        if constexpr (OWN)
            if (a.finish != PLAIN) v = gate ? gated(a.activation, v, sum(1, i)) : activated(a.activation, v);
        a.out[place] = a.residual ? __fadd_rn(v, __ldcg(a.residual + place)) : v;
    }
}

// A barrier for the inputs, and for each warp one for each of its ring's stages, which bulk copies fill; and room for the sums of ROWS
// rows that the kernel takes the norm of.
template <uint32_t STAGES, int ROWS> struct FewStatic;
template <uint32_t STAGES> struct FewStatic<STAGES, 0> {
    uint64_t bar;
    uint64_t filled[STAGES ? STAGES : 1][WARPS];
};
template <uint32_t STAGES, int ROWS> struct FewStatic : FewStatic<STAGES, 0> {
    float scratch[ROWS * 32];
};

// Grid: the blocks of the parts; 512 threads.
template <uint32_t TYPES, int MOST, bool OWN = false> __device__ __forceinline__ void few_body(const FewProductArgs& a) {
    DYNAMIC_SHARED(shared);
    using Static = FewStatic<ring_barriers<TYPES>(), OWN ? MOST : 0>;
    STATIC_SHARED(Static, m);
    const uint32_t bar = shared_address(&m.bar);
    if (threadIdx.x == 0) {
        barrier_init(bar, 1);
        fence_shared();
    }
    float* scratch = NULL;
    if constexpr (OWN) scratch = m.scratch;
    const Part& p = part_of(a.product.parts, a.product.n_parts);
    for_type(p.type, [&]<uint32_t T>() {
        if constexpr (!is_float(T) && (TYPES >> T & 1)) few_rows<T, MOST, OWN>(a, p, bar, m.filled, scratch, shared);
    });
}

#endif

// Kernel names: product_few_<types>_<most rows>, and product_few_own_<types>_2, whose rows are exactly two. Groups are a multiple of 4.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define PRODUCT_OF_ROWS(name, types, most)                                                                  \
    extern "C" __global__ void __launch_bounds__(WARPS * 32) name(const __grid_constant__ FewProductArgs a) { \
        few_body<types, most>(a);                                                                             \
    }
#define PRODUCT_OF_TWO(name, types)                                                                            \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) name(const __grid_constant__ FewProductArgs a) { \
        few_body<types, 2, true>(a);                                                                             \
    }
#define PRODUCT_FEW(name, types)                      \
    PRODUCT_OF_ROWS(product_few_##name##_2, (types), 2) \
    PRODUCT_OF_ROWS(product_few_##name##_4, (types), 4) \
    PRODUCT_OF_TWO(product_few_own_##name##_2, (types))
#else
#define PRODUCT_FEW(name, types)
#endif
