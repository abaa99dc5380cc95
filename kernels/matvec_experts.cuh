// Products of single input rows with the matrices of chosen experts: a step's mixture. The matrices of
// all experts lie one below the other as one matrix, of which a block reads rows of the expert that its
// pair chose. Sums are those of matvec.cuh.
#pragma once
#include "args_experts.h"
#include "activation.cuh"
#include "matvec.cuh"
#include "quantize.cuh"

// Bytes of a block's own input.
__host__ __device__ constexpr uint32_t input_bytes(uint32_t type, uint32_t groups) {
    return (groups * (is_float(type) ? 128 : INPUT_BYTES) + 127) / 128 * 128;
}

// The activation of a pair's inner values, in shared memory: every block makes it for itself, which
// takes less than another kernel. Elements beyond `len` are zeros.
template <uint32_t T> __device__ __forceinline__ void own_input(const ExpertMatvecArgs& a, uint32_t pair, uint8_t* to, MatvecArgs& m) {
    const float* first = a.inner + (uint64_t)pair * a.inner_stride;
    // Without gates the value that is let through is 1: the same code for both.
    const bool is_gated = a.inner_stride > a.len;
    const float* up = is_gated ? first + a.len : first;
    const uint32_t width = a.groups * 32, lane = threadIdx.x & 31;
    for (uint32_t base = (threadIdx.x & ~31u) * 4; base < width; base += WARPS * 128) {
        const uint32_t at = base + lane * 4;
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[j] = at + j < a.len ? gated(a.activation, first[at + j], is_gated ? up[at + j] : 1.0f) : 0.0f;
        }
        if constexpr (is_float(T)) {
            if (at < width) *(float4*)(to + at * 4) = make_float4(v[0], v[1], v[2], v[3]);
        } else {
            const PackedValues p = pack_q8(v);
            if (at < width) *(uint32_t*)(to + at) = p.q;
            if (at < width && lane % 8 == 0) *(float*)(to + width + at / 32 * 4) = p.scale;
        }
    }
    __syncthreads();
    m.f32 = (const float*)to;
    m.q8 = (const int8_t*)to;
    m.q8_scale = (const float*)(to + width);
}

// Grid (blocks of all segments, pairs).
template <uint32_t T> __device__ __forceinline__ void matvec_experts_body(const ExpertMatvecArgs& a) {
    DYNAMIC_SHARED(shared);
    release_dependents();
    const uint32_t i = a.n_segments > 1 && blockIdx.x >= a.segments[1].first_block;
    const Segment& s = a.segments[i];
    const uint32_t block = blockIdx.x - s.first_block, each = s.rows / a.n_experts;
    const uint32_t begin = each * (uint64_t)block / s.blocks, end = each * (uint64_t)(block + 1) / s.blocks;
    const uint32_t n_slices = slices_of(T, a.groups).count;
    wait_for_producers();
    const uint32_t pair = a.order ? a.order[blockIdx.y] : blockIdx.y;
    MatvecArgs m;
    const uint64_t input = pair / a.pairs_per_input;
    m.q8 = a.q8 + input * a.groups * 32;
    m.q8_scale = a.q8_scale + input * a.groups;
    m.f32 = a.f32 + input * a.groups * 32;
    m.groups = a.groups;
    m.batch = 1;
    float* part = (float*)shared;
    if (a.inner) {
        own_input<T>(a, pair, shared, m);
        part = (float*)(shared + input_bytes(T, a.groups));
    }
    // The host's experts are below n_experts; nothing is read out of bounds whatever the memory holds.
    const uint32_t first = min(a.chosen[pair], a.n_experts - 1) * each;
    bool awaited = true;
    for (uint32_t row0 = begin; row0 < end; row0 += a.chunk_rows) {
        const uint32_t rows = min(a.chunk_rows, end - row0);
        if constexpr (is_float(T)) stream<T, 1, FloatPart<T, 1>>(m, s, first + row0, rows, awaited, part);
        else stream<T, 1, QuantizedPart<T, 1>>(m, s, first + row0, rows, awaited, part);
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
