// Products of single input rows with the matrices of chosen experts: a step's mixture. The matrices of
// all experts lie one below the other as one matrix, of which a block reads rows of the expert that its
// pair chose. Sums are those of matvec.cuh.
#pragma once
#include "matvec.cuh"

struct ExpertMatvecArgs {
    Segment segments[2];     // of all experts; blocks: that share one expert's rows
    const uint32_t* chosen;  // [pairs]
    const int8_t* q8;        // [inputs][groups * 32]
    const float* q8_scale;   // [inputs][groups]
    const float* f32;        // [inputs][groups * 32], for segments of float types
    float* out;              // [pairs][out_stride]
    uint32_t n_segments;
    uint32_t groups;
    uint32_t out_stride;
    uint32_t pairs_per_input;  // consecutive pairs that read the same input row
    uint32_t n_experts;
    uint32_t chunk_rows;       // rows that a block sums at a time: bounds its shared memory
};
static_assert(sizeof(ExpertMatvecArgs) == 144, "as in args.rs");

// Grid (blocks of all segments, pairs).
template <uint32_t T> __device__ __forceinline__ void matvec_experts_body(const ExpertMatvecArgs& a) {
    extern __shared__ __align__(128) uint8_t shared[];
    float* part = (float*)shared;
    release_dependents();
    const uint32_t i = a.n_segments > 1 && blockIdx.x >= a.segments[1].first_block, pair = blockIdx.y;
    const Segment& s = a.segments[i];
    const uint32_t block = blockIdx.x - s.first_block, each = s.rows / a.n_experts;
    const uint32_t begin = each * (uint64_t)block / s.blocks, end = each * (uint64_t)(block + 1) / s.blocks;
    const uint32_t n_slices = slices_of(T, a.groups).count;
    MatvecArgs m;
    const uint64_t input = pair / a.pairs_per_input;
    m.q8 = a.q8 + input * a.groups * 32;
    m.q8_scale = a.q8_scale + input * a.groups;
    m.f32 = a.f32 + input * a.groups * 32;
    m.groups = a.groups;
    m.batch = 1;
    wait_for_producers();
    // The host's experts are below n_experts; nothing is read out of bounds whatever the memory holds.
    const uint32_t first = min(a.chosen[pair], a.n_experts - 1) * each;
    bool awaited = true;
    uint32_t phases = 0;
    for (uint32_t row0 = begin; row0 < end; row0 += a.chunk_rows) {
        const uint32_t rows = min(a.chunk_rows, end - row0);
        if constexpr (is_float(T)) stream<T, 1, false, FloatPart<T, 1>>(m, s, first + row0, rows, awaited, nullptr, nullptr, phases, part);
        else stream<T, 1, false, QuantizedPart<T, 1>>(m, s, first + row0, rows, awaited, nullptr, nullptr, phases, part);
        __syncthreads();
        for (uint32_t j = threadIdx.x; j < rows; j += blockDim.x) {
            float v = part[j];
            for (uint32_t t = 1; t < n_slices; t++) v = __fadd_rn(v, part[(uint64_t)t * rows + j]);
            if (s.bias) v = __fadd_rn(v, s.bias[first + row0 + j]);
            a.out[(uint64_t)pair * a.out_stride + s.out_offset + row0 + j] = v;
        }
        __syncthreads();
    }
}

// Kernel names: matvec_experts_<type>.
#define MATVEC_EXPERTS(t, blocks)                                                                                             \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, blocks) matvec_experts_##t(const __grid_constant__ ExpertMatvecArgs a) { \
        matvec_experts_body<t>(a);                                                                                            \
    }
