// Norm and rotary embedding of queries and keys, and the append to the KV cache, where the attention
// kernel does not do that itself: in a prefill, before attention without tensor cores, and where drafts are verified, of keys and values alone.
//
// A row of input belongs to a session and a position. In a decode step row i is session i at its
// current position; in a prefill all rows are of one session, at consecutive positions. Rows of whole
// texts say their positions (texts.cuh).
#include "args_common.h"
#include "rope.cuh"
#include "texts.cuh"

constexpr uint32_t HEADS = 8;  // of a block, one a warp

// Where a head of a row is: of queries, then of keys, then of values.
__device__ __forceinline__ const float* head_of(const RopeArgs& a, uint32_t row, uint32_t part) {
    const uint32_t before_values = a.n_heads + a.layout.n_kv_heads;
    const uint32_t head = part >= before_values ? part - before_values + a.value_head : part;
    return a.qkv + (uint64_t)row * a.qkv_stride + (uint64_t)head * a.layout.head_dim;
}

// One head of a row, by a warp; `there`: it is in `line` already. `fours`: four elements at a time lie at multiples of their size.
__device__ __forceinline__ void one_head(const RopeArgs& a, const Session* s, uint32_t row, uint32_t position, uint32_t part,
                                         bool there, bool fours, float* line, const float* sines, const float* cosines) {
    const uint32_t hd = a.layout.head_dim, lane = threadIdx.x & 31;
    const Rotation& r = a.rotation;
    const bool is_q = part < a.n_heads, is_v = part >= a.n_heads + a.layout.n_kv_heads;
    const float* from = head_of(a, row, part);
    if (!there && fours)
        for (uint32_t i = lane * 4; i < hd; i += 128) *(float4*)(line + i) = *(const float4*)(from + i);
    else if (!there)
        for (uint32_t i = lane; i < hd; i += 32) line[i] = from[i];
    __syncwarp();
    const NormArgs& norm = is_q ? a.q_norm : is_v ? a.v_norm : a.k_norm;
    if (norm.weight) {
        norm_head(norm, line, hd);
        __syncwarp();
    }
    if (!is_v) {
        for (uint32_t i = lane; i < r.n_pairs; i += 32) {
            uint32_t x = r.interleaved ? 2 * i : i, y = r.interleaved ? 2 * i + 1 : i + r.n_pairs;
            float u = line[x], v = line[y];
            line[x] = __fmul_rn(__fmaf_rn(u, cosines[i], -__fmul_rn(v, sines[i])), r.magnitude);
            line[y] = __fmul_rn(__fmaf_rn(v, cosines[i], __fmul_rn(u, sines[i])), r.magnitude);
        }
        __syncwarp();
        if (const float* after = r.after[is_q ? 0 : 1]) {
            for (uint32_t i = lane; i < hd; i += 32) line[i] = __fmul_rn(line[i], after[i]);
            __syncwarp();
        }
    }
    if (is_q) {
        const float factor = counted_query_factor(r, position), scale = __fmul_rn(a.q_scale, factor);
        uint64_t at = ((uint64_t)row * a.n_heads + part) * hd;
        if (a.q_f32)
            for (uint32_t i = lane; i < hd; i += 32) a.q_f32[at + i] = __fmul_rn(line[i], factor);
        if (a.q_f16 && fours)
            for (uint32_t i = lane * 4; i < hd; i += 128) *(uint2*)(a.q_f16 + at + i) = four_halves(line, i, scale);
        else if (a.q_f16)
            for (uint32_t i = lane; i < hd; i += 32) a.q_f16[at + i] = __float2half_rn(__fmul_rn(line[i], scale));
        return;
    }
    const uint32_t head = (part - a.n_heads) % a.layout.n_kv_heads;
    uint8_t* to = a.positions ? text_row(a.layout, (uint8_t*)s->kv, a.text_rows, is_v, head, row) : kv_row(a.layout, s, is_v, head, position);
    store_head(a.layout, to, line, fours);
}

// Grid (parts that share the heads of all three kinds, rows from the first one on), 32 * HEADS threads.
extern "C" __global__ void __launch_bounds__(32 * HEADS) rope_append(const __grid_constant__ RopeArgs a) {
    __shared__ __align__(16) float lines[HEADS][MAX_HEAD_DIM];
    __shared__ float sines[MAX_HEAD_DIM / 2], cosines[MAX_HEAD_DIM / 2];
    release_dependents();
    wait_for_producers();
    const uint32_t row = a.first_row + blockIdx.y, hd = a.layout.head_dim, lane = threadIdx.x & 31, step = gridDim.x * HEADS;
    const uint32_t heads = a.n_heads + (a.shares ? 0 : 2 * a.layout.n_kv_heads);
    uint32_t part = (a.q_f32 || a.q_f16 ? 0 : a.n_heads) + blockIdx.x * HEADS + threadIdx.x / 32;
    // Of short heads, the next one is on its way while the one before it is worked on, and the first while the angles are.
    const bool fours = hd % 4 == 0 && a.qkv_stride % 4 == 0, ahead = fours && hd <= 128;
    float* line = lines[threadIdx.x / 32];
    float4 next;
    auto ask = [&](uint32_t which) {
        if (ahead && which < heads && lane * 4 < hd) next = *(const float4*)(head_of(a, row, which) + lane * 4);
    };
    ask(part);
    const Session* s = a.sessions[a.prefill ? 0 : row];
    const uint32_t position = a.positions ? a.positions[row] : s->position + (a.prefill ? row : 0);
    const Rotation& r = a.rotation;
    const float* inv_freq = frequencies(r, s);
    for (uint32_t i = threadIdx.x; i < r.n_pairs; i += blockDim.x)
        sincosf(__fmul_rn((float)position, inv_freq[i]), sines + i, cosines + i);
    __syncthreads();
    for (; part < heads; part += step) {
        if (ahead && lane * 4 < hd) *(float4*)(line + lane * 4) = next;
        ask(part + step);
        one_head(a, s, row, position, part, ahead, fours, line, sines, cosines);
        __syncwarp();
    }
}
