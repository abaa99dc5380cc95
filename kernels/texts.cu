// What becomes of the hidden states of whole texts: one vector each, and layers behind it.
#include "args_texts.h"
#include "activation.cuh"
#include "texts.cuh"

enum PoolingKind : uint32_t { POOL_MEAN = 0, POOL_FIRST = 1, POOL_LAST = 2 };

// Grid (len / 128, texts), 128 threads. A mean is the sum of the rows in their order, divided by their number.
extern "C" __global__ void __launch_bounds__(128) pool_texts(const __grid_constant__ PoolArgs a) {
    release_dependents();
    wait_for_producers();
    const uint32_t i = blockIdx.x * 128 + threadIdx.x;
    if (i >= a.len) return;
    const TextSpan text = a.texts[blockIdx.y];
    const float* x = a.x + (uint64_t)(text.start + (a.pooling == POOL_LAST ? text.len - 1 : 0)) * a.x_stride + i;
    float v = 0.0f;
    if (a.pooling == POOL_MEAN) {
#pragma unroll 8
        for (uint32_t r = 0; r < text.len; r++) v = __fadd_rn(v, x[(uint64_t)r * a.x_stride]);
        v = __fdiv_rn(v, (float)text.len);
    } else {
        v = *x;
    }
    a.out[(uint64_t)blockIdx.y * a.out_stride + i] = v;
}

enum DenseKind : uint32_t { DENSE_PLAIN = 0, DENSE_TANH = 1, DENSE_GELU = 2 };

// Grid (outputs / DENSE_OUTPUTS, count / DENSE_TEXTS), 32 * DENSE_OUTPUTS threads.
extern "C" __global__ void __launch_bounds__(32 * DENSE_OUTPUTS) dense_texts(const __grid_constant__ DenseArgs a) {
    release_dependents();
    wait_for_producers();
    const uint32_t lane = threadIdx.x & 31, output = blockIdx.x * DENSE_OUTPUTS + threadIdx.x / 32, first = blockIdx.y * DENSE_TEXTS;
    if (output >= a.outputs) return;
    const float* w = a.w + (uint64_t)output * a.inputs;
    float sum[DENSE_TEXTS] = {};
    for (uint32_t i = lane; i < a.inputs; i += 32) {
        const float v = w[i];
#pragma unroll
        for (uint32_t t = 0; t < DENSE_TEXTS; t++)
            if (first + t < a.count) sum[t] = __fmaf_rn(v, a.x[(uint64_t)(first + t) * a.x_stride + i], sum[t]);
    }
#pragma unroll
    for (uint32_t t = 0; t < DENSE_TEXTS; t++) {
        float v = warp_sum(sum[t]);
        if (lane != 0 || first + t >= a.count) continue;
        if (a.bias) v = __fadd_rn(v, a.bias[output]);
        if (a.activation == DENSE_TANH) v = tanhf(v);
        if (a.activation == DENSE_GELU) v = activated({GELU, 0.0f, 0.0f}, v);
        a.out[(uint64_t)(first + t) * a.out_stride + output] = v;
    }
}
