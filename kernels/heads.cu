// What few networks do to heads, apart from the kernels that norm, rotate and attend: to queries, keys and values before those, and to the
// results behind them.
#include "args_heads.h"
#include "norm.cuh"

__device__ __forceinline__ float limited(float limit, float v) {
    // What is no number stays so.
    return limit == 0.0f ? v : v > limit ? limit : v < -limit ? -limit : v;
}

// Grid (heads of all three kinds / READY_HEADS rounded up, rows), 32 * READY_HEADS threads.
extern "C" __global__ void __launch_bounds__(32 * READY_HEADS) ready_heads(const __grid_constant__ ReadyHeadsArgs a) {
    struct Static { float lines[READY_HEADS][MAX_HEAD_DIM]; };
    STATIC_SHARED(Static, m);
    release_dependents();
    wait_for_producers();
    const uint32_t part = blockIdx.x * READY_HEADS + threadIdx.x / 32, lane = threadIdx.x & 31, before_values = a.n_heads + a.n_kv_heads;
    if (part >= before_values + a.n_kv_heads) return;
    const bool is_q = part < a.n_heads, is_v = part >= before_values;
    const uint32_t len = is_v ? a.value_dim : a.head_dim, value = part - before_values;
    float* const row = a.qkv + (uint64_t)blockIdx.y * a.stride;
    const float* from = row + (is_v ? a.values + value * a.value_dim : part * a.head_dim);
    float* const to = row + (is_v ? a.padded_values + value * a.head_dim : part * a.head_dim);
    float* const line = m.lines[threadIdx.x / 32];
    for (uint32_t i = lane; i < len; i += 32) line[i] = limited(a.limit, from[i]);
    __syncwarp();
    NormArgs norm = is_q ? a.q_norm : a.k_norm;
    if (!is_v && norm.weight) {
        const uint32_t first = (is_q ? part : part - a.n_heads) * len;
        norm.weight += first;
        if (norm.bias) norm.bias += first;
        norm_head(norm, line, len);
        __syncwarp();
    }
    const float factor = is_v ? a.value_scale : 1.0f;
    for (uint32_t i = lane; i < a.head_dim; i += 32) to[i] = i < len ? __fmul_rn(line[i], factor) : 0.0f;
}

// Grid (n_heads * value_dim / 256 rounded up, rows), 256 threads, an element each.
extern "C" __global__ void __launch_bounds__(256) finish_heads(const __grid_constant__ FinishHeadsArgs a) {
    release_dependents();
    wait_for_producers();
    const uint32_t e = blockIdx.x * 256 + threadIdx.x, row = blockIdx.y;
    if (e >= a.n_heads * a.value_dim) return;
    const uint32_t head = e / a.value_dim, d = e % a.value_dim;
    float v = a.x[(uint64_t)row * a.x_stride + head * a.head_dim + d];
    if (a.gate) {
        const float gate = a.gate[(uint64_t)row * a.gate_stride + (a.per_head ? head : e)];
        const float factor = a.softplus ? fmaxf(gate, 0.0f) + log1pf(expf(-fabsf(gate))) : 1.0f / (1.0f + expf(-gate));
        v = __fmul_rn(v, factor);
    }
    a.out[(uint64_t)row * a.out_stride + e] = v;
}
