// Token embedding: one row of the embedding matrix, decoded to f32, scaled, and where positions are
// learned or tokens have kinds, with one row of their matrices added. Adapters add to it before it is scaled. And what layers get of a token
// beside it.
#include "args_common.h"
#include "adapters.cuh"
#include "blocks.cuh"
#include "norm.cuh"

// Adds what a session's adapters have for a group of a token's embedding. A pair has a row of `rank` numbers for each token in `a`, and
// `rank` rows of the embedding's width in `b`.
__device__ __forceinline__ void adapt_group(const Session& s, uint32_t linear, uint32_t token, uint32_t group, uint32_t groups, float (&sum)[32]) {
    const AdapterPair* pairs = pairs_of(s, linear);
    for (uint32_t u = 0; u < s.adapter_uses; u++) {
        const AdapterPair pair = pairs[u];
        float all[32] = {};
        for (uint32_t k = 0; k < pair.rank; k++) {
            const float t = one_number(pair.a, (uint64_t)token * pair.rank + k, pair.a_type);
#pragma unroll
            for (int eight = 0; eight < 4; eight++) {
                float w[8];
                eight_numbers(pair.b, ((uint64_t)k * groups + group) * 32 + eight * 8, pair.b_type, w);
#pragma unroll
                for (int j = 0; j < 8; j++) all[eight * 8 + j] = __fmaf_rn(w[j], t, all[eight * 8 + j]);
            }
        }
        if (pair.rank == 0) continue;
#pragma unroll
        for (int j = 0; j < 32; j++) sum[j] = __fmaf_rn(pair.scale, all[j], sum[j]);
    }
}

// Grid (groups / 128 rounded up, count); one thread a group.
extern "C" __global__ void __launch_bounds__(128) embed(const __grid_constant__ EmbedArgs a) {
    release_dependents();
    wait_for_producers();
    uint32_t group = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y;
    if (group >= a.groups) return;
    const Session* s = a.sessions[a.tokens ? 0 : i];
    uint32_t row = a.tokens ? a.tokens[i] : s->token;
    float sum[32];
    for (int part = 0; part < 3; part++) {
        const Table& table = part == 0 ? a.embedding : part == 1 ? a.positions : a.kinds;
        if (!table.matrix) continue;
        if (part == 1) row = a.text_positions ? a.text_positions[i] : s->position + (a.tokens ? i : 0);
        if (part == 2) row = a.text_kinds[i];
        if (row >= table.rows) row = 0;  // the host checks tokens and positions; nothing is read out of bounds
        for_type(table.type, [&]<uint32_t T>() {
            Slices c = slices_of(T, a.groups);
            uint32_t s = group / c.full, g = group % c.full, n = s + 1 == c.count ? c.last : c.full;
            const uint8_t* r = table.matrix + slice_offset(T, c, s, table.rows) + (uint64_t)row * record_bytes(T, n);
            float v[32];
            group_values<T>(r, g, n, v);
#pragma unroll
            for (int j = 0; j < 32; j++) sum[j] = part ? __fadd_rn(sum[j], v[j]) : v[j];
        });
        if (part > 0) continue;
        if (a.adapted && s->adapters) adapt_group(*s, a.adapted - 1, row, group, a.groups, sum);
#pragma unroll
        for (int j = 0; j < 32; j++) sum[j] = __fmul_rn(sum[j], a.scale);
    }
    float4* to = (float4*)(a.out + ((uint64_t)i * a.groups + group) * 32);
#pragma unroll
    for (int j = 0; j < 8; j++) to[j] = make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
}

// Grid (layers, count), 128 threads. A thread takes groups of the embedding.
extern "C" __global__ void __launch_bounds__(128) layer_inputs(const __grid_constant__ LayerInputsArgs a) {
    __shared__ float scratch[32];
    release_dependents();
    wait_for_producers();
    const uint32_t i = blockIdx.y, first = blockIdx.x * a.len, end = first + a.len;
    float* x = a.x + (uint64_t)i * a.stride + first;
    for (uint32_t e = threadIdx.x; e < a.len; e += blockDim.x) x[e] = __fmul_rn(x[e], a.projection_scale);
    __syncthreads();
    const NormSums sums = norm_sums(a.norm, x, a.len, scratch);
    uint32_t row = a.tokens ? a.tokens[i] : a.sessions[i]->token;
    if (row >= a.embedding.rows) row = 0;  // the host checks tokens; nothing is read out of bounds
    for (uint32_t group = first / 32 + threadIdx.x; group * 32 < end; group += blockDim.x)
        for_type(a.embedding.type, [&]<uint32_t T>() {
            const Slices c = slices_of(T, a.groups);
            const uint32_t s = group / c.full, g = group % c.full, n = s + 1 == c.count ? c.last : c.full;
            const uint8_t* r = a.embedding.matrix + slice_offset(T, c, s, a.embedding.rows) + (uint64_t)row * record_bytes(T, n);
            float v[32];
            group_values<T>(r, g, n, v);
            for (int j = 0; j < 32; j++) {
                const uint32_t at = group * 32 + j;
                if (at < first || at >= end) continue;
                const float normal = normed(a.norm, at - first, x[at - first], sums);
                x[at - first] = __fmul_rn(a.scale, __fmaf_rn(a.embedding_scale, v[j], normal));
            }
        });
}
