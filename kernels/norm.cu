// Producers of a matrix product's input: norm, activation or a plain copy, written in the forms that
// the products read: int8 with a scale per 32 elements, f32, or f16 with one power-of-two scale per row.
// And what some networks do with a product's output.
#include "args_batch_f16.h"
#include "args_common.h"
#include "activation.cuh"
#include "matmul.cuh"
#include "norm.cuh"
#include "powers.cuh"
#include "quantize.cuh"

using Scratch = float[32];  // of sums over a block

enum Source : uint32_t {
    COPY = 0,       // x[i]
    NORM = 1,       // the norm of x
    GATED = 2,      // activation(x[i]) * x[len + i]
    ACTIVATED = 3,  // activation(x[i])
    SIGMOID = 4,    // x[i] * sigmoid(gate[i])
    WEIGHTED = 5,   // activation(x[i]) * gate[i]
};


// An element that a norm may be still to come for.
__device__ __forceinline__ float made(const QuantizeInputArgs& a, const float* x, uint32_t row, uint32_t i) {
    const float v = x[i];
    if (a.source == GATED) return gated(a.activation, v, x[a.len + i]);
    if (a.source == ACTIVATED) return activated(a.activation, v);
    if (a.source == SIGMOID) return let_through(a.gate[(uint64_t)row * a.gate_stride + i], v);
    if (a.source == WEIGHTED) return __fmul_rn(activated(a.activation, v), a.gate[(uint64_t)row * a.gate_stride + i]);
    return v;
}
__device__ __forceinline__ float value(const QuantizeInputArgs& a, const float* x, uint32_t row, uint32_t i, NormSums sums) {
    if (i >= a.len) return 0.0f;
    const float v = made(a, x, row, i);
    return a.norm.weight ? normed(a.norm, i, v, sums) : v;
}

// Four values as int8 with one scale for the 8 lanes of a group.
__device__ __forceinline__ void store_q8(const QuantizeInputArgs& a, const float* v, uint64_t at, uint64_t group, bool inside) {
    const PackedValues p = pack_q8(v);
    if (!inside) return;
    *(uint32_t*)(a.q8 + at) = p.q;
    if ((threadIdx.x & 7) == 0) a.q8_scale[group] = p.scale;
}

// A norm whose row fits the block's registers: weights are loaded before the row is there.
__device__ __forceinline__ void norm_row(const QuantizeInputArgs& a, uint32_t row, uint32_t width, float* scratch) {
    NormRow norm;
    norm.load_weights(a.norm, width);
    wait_for_producers();
    norm.load(a.x + (uint64_t)row * a.x_stride, width);
    norm.sum<true>(a.norm, width, a.inverse_len, scratch);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t at = norm.place(i);
        if (at - (threadIdx.x & 31) * 4 >= width) break;
        float r[4];
        norm.values(a.norm, i, width, r);
        const uint64_t to = (uint64_t)row * width + at;
        if (a.q8) store_q8(a, r, to, (uint64_t)row * a.groups + at / 32, at < width);
        if (a.f32 && at < width) *(float4*)(a.f32 + to) = make_float4(r[0], r[1], r[2], r[3]);
    }
}

// The power of two that brings a row's largest value to 2^10..2^11, far from both ends of f16.
__device__ __forceinline__ int f16_exponent(float largest) {
    const int e = (int)(__float_as_uint(largest) >> 23) - 127 - 10;
    return largest > 0.0f && e < 100 ? max(e, -100) : 0;
}

// How many elements of a row are written in f16: what it is filled up to.
__device__ __forceinline__ uint32_t f16_width(const QuantizeInputArgs& a) {
    const uint32_t unit = a.columns ? F16_BATCH_K : TILE_K;
    return (a.groups * 32 + unit - 1) / unit * unit;
}

// Four values in f16, from element `i` of a row on.
__device__ __forceinline__ void store_f16(const QuantizeInputArgs& a, uint32_t row, uint32_t i, uint32_t k_tiles, float4 v, float inverse) {
    if (a.columns) {
        const uint32_t step = i % 32 / 4, group = i / 32 % 4;
        const __half2 even = __floats2half2_rn(v.x * inverse, v.z * inverse), odd = __floats2half2_rn(v.y * inverse, v.w * inverse);
        __half2* to = (__half2*)(a.f16 + ((uint64_t)(i / F16_BATCH_K) * 8 + step) * a.columns * 16 + row / 8 * 128 + row % 8 * 8) + group;
        to[0] = even;
        to[32] = odd;
        return;
    }
    __half2 lo = __floats2half2_rn(v.x * inverse, v.y * inverse), hi = __floats2half2_rn(v.z * inverse, v.w * inverse);
    *(uint2*)((uint8_t*)a.f16 + tiled(row, i & ~7u, k_tiles) + (i & 4) * 2) = make_uint2(*(uint32_t*)&lo, *(uint32_t*)&hi);
}

// A row in f16 that fits the block's registers, so that it is read once.
__device__ __forceinline__ void f16_row(const QuantizeInputArgs& a, uint32_t row, uint32_t k_tiles, float* scratch) {
    const float* x = a.x + (uint64_t)row * a.x_stride;
    const uint32_t step = blockDim.x * 4, first = threadIdx.x * 4, end = f16_width(a), width = a.groups * 32;
    // The first weights of a norm come before the row is there.
    float4 weight = make_float4(0, 0, 0, 0);
    if (a.norm.weight && first < a.len) weight = *(const float4*)(a.norm.weight + first);
    wait_for_producers();
    float4 v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t at = i * step + first;
        v[i] = at < a.len ? *(const float4*)(x + at) : make_float4(0, 0, 0, 0);
    }
    if (a.source == GATED) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t at = i * step + first;
            if (at >= a.len) break;
            const float4 u = *(const float4*)(x + a.len + at);
            v[i] = make_float4(gated(a.activation, v[i].x, u.x), gated(a.activation, v[i].y, u.y),
                               gated(a.activation, v[i].z, u.z), gated(a.activation, v[i].w, u.w));
        }
    } else if (a.source == ACTIVATED) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = make_float4(activated(a.activation, v[i].x), activated(a.activation, v[i].y),
                               activated(a.activation, v[i].z), activated(a.activation, v[i].w));
    } else if (a.source == SIGMOID) {
        const float* gate = a.gate + (uint64_t)row * a.gate_stride;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t at = i * step + first;
            if (at >= a.len) break;
            v[i] = make_float4(let_through(gate[at], v[i].x), let_through(gate[at + 1], v[i].y),
                               let_through(gate[at + 2], v[i].z), let_through(gate[at + 3], v[i].w));
        }
    } else if (a.source == WEIGHTED) {
        const float* gate = a.gate + (uint64_t)row * a.gate_stride;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t at = i * step + first;
            if (at >= a.len) break;
            v[i] = make_float4(__fmul_rn(activated(a.activation, v[i].x), gate[at]), __fmul_rn(activated(a.activation, v[i].y), gate[at + 1]),
                               __fmul_rn(activated(a.activation, v[i].z), gate[at + 2]), __fmul_rn(activated(a.activation, v[i].w), gate[at + 3]));
        }
    }
    if (a.norm.weight) {
        NormSums sums = {0.0f, 1.0f};
        if (a.norm.layer) {
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < 4; i++) sum += (v[i].x + v[i].y) + (v[i].z + v[i].w);
            sums.mean = __fmul_rn(block_sum(sum, scratch), a.inverse_len);
        }
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i * step + first >= a.len) break;
            const float d[4] = {v[i].x - sums.mean, v[i].y - sums.mean, v[i].z - sums.mean, v[i].w - sums.mean};
#pragma unroll
            for (int j = 0; j < 4; j++) sum = __fmaf_rn(d[j], d[j], sum);
        }
        sums.scale = rsqrtf(__fmaf_rn(block_sum(sum, scratch), a.inverse_len, a.norm.eps));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t at = i * step + first;
            if (at >= a.len) break;
            if (i == 0 && !a.norm.bias) {
                v[i] = make_float4(__fmul_rn(__fmul_rn(v[i].x - sums.mean, sums.scale), weight.x), __fmul_rn(__fmul_rn(v[i].y - sums.mean, sums.scale), weight.y),
                                   __fmul_rn(__fmul_rn(v[i].z - sums.mean, sums.scale), weight.z), __fmul_rn(__fmul_rn(v[i].w - sums.mean, sums.scale), weight.w));
                continue;
            }
            v[i] = make_float4(normed(a.norm, at, v[i].x, sums), normed(a.norm, at + 1, v[i].y, sums),
                               normed(a.norm, at + 2, v[i].z, sums), normed(a.norm, at + 3, v[i].w, sums));
        }
    }
    float largest = 0.0f;
    if (a.largest) {
        largest = a.largest[row];
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) largest = fmaxf(largest, fmaxf(fmaxf(fabsf(v[i].x), fabsf(v[i].y)), fmaxf(fabsf(v[i].z), fabsf(v[i].w))));
        largest = block_max(largest, scratch);
    }
    const int e = f16_exponent(largest);
    if (threadIdx.x == 0) {
        a.f16_scale[row] = exact_power(e);
        if (a.clear) a.clear[row] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t at = i * step + first;
        if (at < end) store_f16(a, row, at, k_tiles, v[i], exact_power(-e));
        if (a.f32 && at < width) *(float4*)(a.f32 + (uint64_t)row * width + at) = v[i];
    }
}

// Grid (parts, rows): part p of a row handles elements from p * 4 * blockDim.x on in steps of
// gridDim.x * 4 * blockDim.x. Norms, and f16 outputs whose largest value is not known, look at the whole row and need gridDim.x = 1.
// Four elements a thread, so 8 lanes share a group. blockDim.x is a multiple of 32.
extern "C" __global__ void __launch_bounds__(1024) quantize_input(const __grid_constant__ QuantizeInputArgs a) {
    STATIC_SHARED(Scratch, scratch);
    release_dependents();
    const uint32_t row = blockIdx.y, width = a.groups * 32, step = gridDim.x * blockDim.x * 4;
    const uint32_t first = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    const float* x = a.x + (uint64_t)row * a.x_stride;
    if (a.source == NORM && !a.f16 && a.len == width && width <= blockDim.x * 16 && a.x_stride % 4 == 0) {
        norm_row(a, row, width, scratch);
        return;
    }
    const uint32_t k_tiles = tiles_of(width, TILE_K);
    if (a.f16 && !a.q8 && gridDim.x == 1 && f16_width(a) <= blockDim.x * 16 && a.len % 4 == 0 && a.x_stride % 4 == 0) {
        f16_row(a, row, k_tiles, scratch);
        return;
    }
    wait_for_producers();
    NormSums sums = {0.0f, 1.0f};
    if (a.norm.weight) sums = norm_sums_of(a.norm, a.len, scratch, [&](uint32_t i) { return made(a, x, row, i); });
    float inverse = 1.0f;
    if (a.f16) {
        float largest = 0.0f;
        if (a.largest) {
            largest = a.largest[row];
        } else {
            for (uint32_t i = first; i < a.len; i += step)
#pragma unroll
                for (int j = 0; j < 4; j++) largest = fmaxf(largest, fabsf(value(a, x, row, i + j, sums)));
            largest = block_max(largest, scratch);
        }
        const int e = f16_exponent(largest);
        inverse = exact_power(-e);
        if (threadIdx.x == 0) {
            a.f16_scale[row] = exact_power(e);
            if (a.clear) a.clear[row] = 0.0f;
        }
    }
    // Whole warps stay in the loop together: a warp covers 128. Tiles are filled up with zeros.
    const uint32_t end = a.f16 ? f16_width(a) : width;
    for (uint32_t base = first - (threadIdx.x & 31) * 4; base < end; base += step) {
        uint32_t i = base + (threadIdx.x & 31) * 4;
        float v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = i < width ? value(a, x, row, i + j, sums) : 0.0f;
        uint64_t at = (uint64_t)row * width + i;
        if (a.q8) store_q8(a, v, at, (uint64_t)row * a.groups + i / 32, i < width);
        if (a.f32 && i < width) *(float4*)(a.f32 + at) = make_float4(v[0], v[1], v[2], v[3]);
        if (a.f16 && i < end) store_f16(a, row, i, k_tiles, make_float4(v[0], v[1], v[2], v[3]), inverse);
    }
}

// The same of a row that fits the block's registers: weights are loaded before the row is there.
__device__ __forceinline__ void add_row(const ResidualAddArgs& a, float* scratch) {
    NormRow norm;
    if (a.norm.weight) norm.load_weights(a.norm, a.len);
    wait_for_producers();
    const float* base = a.base ? a.base + (uint64_t)blockIdx.x * a.stride : nullptr;
    float* out = a.out + (uint64_t)blockIdx.x * a.stride;
    norm.load(a.x + (uint64_t)blockIdx.x * a.x_stride, a.len);
    float4 b = base && norm.place(0) < a.len ? *(const float4*)(base + norm.place(0)) : make_float4(0, 0, 0, 0);
    if (a.norm.weight) norm.sum<true>(a.norm, a.len, 1.0f / (float)a.len, scratch);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t at = norm.place(i);
        if (at >= a.len) break;
        if (i > 0 && base) b = *(const float4*)(base + at);
        float r[4] = {norm.v[i].x, norm.v[i].y, norm.v[i].z, norm.v[i].w};
        if (a.norm.weight) norm.values(a.norm, i, a.len, r);
        *(float4*)(out + at) = make_float4(__fmul_rn(a.out_scale, __fmaf_rn(a.scale, r[0], b.x)), __fmul_rn(a.out_scale, __fmaf_rn(a.scale, r[1], b.y)),
                                           __fmul_rn(a.out_scale, __fmaf_rn(a.scale, r[2], b.z)), __fmul_rn(a.out_scale, __fmaf_rn(a.scale, r[3], b.w)));
    }
}

// Grid (rows), up to 1024 threads.
extern "C" __global__ void __launch_bounds__(1024) residual_add(const __grid_constant__ ResidualAddArgs a) {
    STATIC_SHARED(Scratch, scratch);
    release_dependents();
    if (a.len % 4 == 0 && a.x_stride % 4 == 0 && a.stride % 4 == 0 && a.len <= blockDim.x * 16) {
        add_row(a, scratch);
        return;
    }
    wait_for_producers();
    const float* x = a.x + (uint64_t)blockIdx.x * a.x_stride;
    const uint64_t at = (uint64_t)blockIdx.x * a.stride;
    NormSums sums = {0.0f, 1.0f};
    if (a.norm.weight) sums = norm_sums(a.norm, x, a.len, scratch);
    for (uint32_t i = threadIdx.x; i < a.len; i += blockDim.x) {
        float v = a.norm.weight ? normed(a.norm, i, x[i], sums) : x[i];
        a.out[at + i] = __fmul_rn(a.out_scale, __fmaf_rn(a.scale, v, a.base ? a.base[at + i] : 0.0f));
    }
}

// Grid (2, rows), up to 1024 threads.
extern "C" __global__ void __launch_bounds__(1024) norm_parts(const __grid_constant__ NormPartsArgs a) {
    STATIC_SHARED(Scratch, scratch);
    release_dependents();
    wait_for_producers();
    const uint32_t part = blockIdx.x, len = a.len[part];
    if (len == 0) return;
    const NormArgs& norm = a.norms[part];
    float* x = a.x + (uint64_t)blockIdx.y * a.stride + a.first[part];
    const NormSums sums = norm_sums(norm, x, len, scratch);
    for (uint32_t i = threadIdx.x; i < len; i += blockDim.x) x[i] = normed(norm, i, x[i], sums);
}

// Grid (parts, rows), 256 threads.
extern "C" __global__ void __launch_bounds__(256) finish_logits(const __grid_constant__ LogitsArgs a) {
    release_dependents();
    wait_for_producers();
    float* x = a.logits + (uint64_t)blockIdx.y * a.n_vocab;
    for (uint32_t i = blockIdx.x * 256 + threadIdx.x; i < a.n_vocab; i += gridDim.x * 256) {
        float v = __fmul_rn(x[i], a.scale);
        x[i] = a.cap != 0.0f ? __fmul_rn(a.cap, tanhf(v / a.cap)) : v;
    }
}
