// Several residual streams in place of one, as src/model/network.rs defines them: what becomes of a token's streams between
// the products. A block takes the streams of a token. And gates that are mostly 0.
#include "args_streams.h"
#include "activation.cuh"
#include "norm.cuh"

// Least mean square of a row before it is made as large as another.
constexpr float LEAST_SQUARE = 1e-5f;

struct Numbers {
    float scratch[32];  // of sums over a block
    float modalities[MAX_STREAMS];
    float coefficients[MAX_STREAMS * MAX_STREAMS];
};

// What a block works with.
struct Place {
    float *streams, *x, *y;
};
__device__ __forceinline__ Place place_of(const StreamsArgs& a) {
    const uint64_t row = blockIdx.x;
    return {a.streams + row * a.count * a.stride, a.x + row * a.stride, a.y + row * a.y_stride};
}

__device__ __forceinline__ float mean_square(const float* x, uint32_t len, float* scratch) {
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < len; i += blockDim.x) sum = __fmaf_rn(x[i], x[i], sum);
    return block_sum(sum, scratch) / (float)len;
}
// The factor that gives a row this mean square.
__device__ __forceinline__ float levelled(float square, const float* x, uint32_t len, float* scratch) {
    return sqrtf(square / fmaxf(mean_square(x, len, scratch), LEAST_SQUARE));
}

// `numbers.coefficients`: a product with how much each stream counts for `x`, `rows` of `count`.
__device__ __forceinline__ void weigh(const StreamsArgs& a, const float* x, uint32_t rows, Numbers& numbers) {
    const NormSums sums = norm_sums(a.norm, x, a.len, numbers.scratch);
#pragma unroll 1
    for (uint32_t j = 0; j < a.count; j++) {
        const float* router = a.router + (uint64_t)j * a.len;
        float sum = 0.0f;
        for (uint32_t i = threadIdx.x; i < a.len; i += blockDim.x) sum = __fmaf_rn(router[i], normed(a.norm, i, x[i], sums), sum);
        sum = block_sum(sum, numbers.scratch);
        if (threadIdx.x == 0) numbers.modalities[j] = tanhf(sum / (float)a.len);
    }
    __syncthreads();
    for (uint32_t c = threadIdx.x; c < rows; c += blockDim.x) {
        float sum = 0.0f;
        for (uint32_t j = 0; j < a.count; j++) sum = __fmaf_rn(a.coefficients[c * a.count + j], numbers.modalities[j], sum);
        numbers.coefficients[c] = sum;
    }
    __syncthreads();
}

// Grid (rows), up to 1024 threads, as of the others. The first stream is the residual stream; what products have left of the
// others is made as large.
extern "C" __global__ void __launch_bounds__(1024) streams_begin(const __grid_constant__ StreamsArgs a) {
    STATIC_SHARED(Numbers, numbers);
    release_dependents();
    wait_for_producers();
    const Place p = place_of(a);
    const float square = mean_square(p.x, a.len, numbers.scratch);
    for (uint32_t i = threadIdx.x; i < a.len; i += blockDim.x) p.streams[i] = p.x[i];
#pragma unroll 1
    for (uint32_t j = 1; j < a.count; j++) {
        float* stream = p.streams + (uint64_t)j * a.stride;
        const float scale = levelled(square, stream, a.len, numbers.scratch);
        for (uint32_t i = threadIdx.x; i < a.len; i += blockDim.x) stream[i] = __fmul_rn(stream[i], scale);
    }
}

// The residual stream is the mean of the first stream and the products of the others, [count - 1][stride] in `y`, each made as
// large as the first.
extern "C" __global__ void __launch_bounds__(1024) streams_end(const __grid_constant__ StreamsArgs a) {
    STATIC_SHARED(Numbers, numbers);
    release_dependents();
    wait_for_producers();
    const Place p = place_of(a);
    const float square = mean_square(p.streams, a.len, numbers.scratch);
#pragma unroll 1
    for (uint32_t j = 1; j < a.count; j++) {
        const float* y = p.y + (uint64_t)(j - 1) * a.stride;
        const float scale = levelled(square, y, a.len, numbers.scratch);
        const float mean = j + 1 == a.count ? 1.0f / (float)a.count : 1.0f;
        const float* base = j == 1 ? p.streams : p.x;
        for (uint32_t i = threadIdx.x; i < a.len; i += blockDim.x) p.x[i] = __fmul_rn(mean, __fmaf_rn(scale, y[i], base[i]));
    }
}

// Predicts all streams; the active one is the residual stream.
extern "C" __global__ void __launch_bounds__(1024) streams_predict(const __grid_constant__ StreamsArgs a) {
    STATIC_SHARED(Numbers, numbers);
    release_dependents();
    wait_for_producers();
    const Place p = place_of(a);
    weigh(a, p.streams + (uint64_t)a.active * a.stride, a.count * a.count, numbers);
    for (uint32_t i = threadIdx.x; i < a.len; i += blockDim.x) {
        float old[MAX_STREAMS];
#pragma unroll
        for (uint32_t j = 0; j < MAX_STREAMS; j++) old[j] = j < a.count ? p.streams[(uint64_t)j * a.stride + i] : 0.0f;
#pragma unroll 1
        for (uint32_t k = 0; k < a.count; k++) {
            const float* row = numbers.coefficients + k * a.count;
            float sum = 0.0f, own = 0.0f;
#pragma unroll
            for (uint32_t j = 0; j < MAX_STREAMS; j++) {
                if (j >= a.count) continue;
                sum = __fmaf_rn(row[j], old[j], sum);
                if (j == k) own = old[j];
            }
            const float v = __fadd_rn(own, sum);
            p.streams[(uint64_t)k * a.stride + i] = v;
            if (k == a.active) p.x[i] = v;
        }
    }
}

// What attention is added to, in place of `y`, what the thin matrices have left: the residual stream, its norm and the norm of that.
extern "C" __global__ void __launch_bounds__(1024) streams_around(const __grid_constant__ StreamsArgs a) {
    STATIC_SHARED(Numbers, numbers);
    release_dependents();
    wait_for_producers();
    const Place p = place_of(a);
    NormSums sums = {0.0f, 1.0f};
    if (a.norm.weight) sums = norm_sums(a.norm, p.x, a.len, numbers.scratch);
    const NormSums thin = norm_sums(a.thin_norm, p.y, a.len, numbers.scratch);
    for (uint32_t i = threadIdx.x; i < a.len; i += blockDim.x) {
        const float input = a.norm.weight ? normed(a.norm, i, p.x[i], sums) : p.x[i];
        p.y[i] = __fadd_rn(p.x[i], __fadd_rn(input, normed(a.thin_norm, i, p.y[i], thin)));
    }
}

// Corrects all streams by the residual stream, which then is the active one, scaled.
extern "C" __global__ void __launch_bounds__(1024) streams_correct(const __grid_constant__ StreamsArgs a) {
    STATIC_SHARED(Numbers, numbers);
    release_dependents();
    wait_for_producers();
    const Place p = place_of(a);
    weigh(a, p.x, a.count, numbers);
    for (uint32_t i = threadIdx.x; i < a.len; i += blockDim.x) {
        const float innovation = __fsub_rn(p.x[i], p.streams[(uint64_t)a.active * a.stride + i]);
#pragma unroll 1
        for (uint32_t j = 0; j < a.count; j++) {
            float* to = p.streams + (uint64_t)j * a.stride + i;
            const float v = __fmaf_rn(innovation, __fadd_rn(1.0f, numbers.coefficients[j]), *to);
            *to = v;
            if (j == a.active) p.x[i] = __fmul_rn(v, a.scale[i]);
        }
    }
}

// Adds `y`, or its norm, to all streams but the first.
extern "C" __global__ void __launch_bounds__(1024) streams_spread(const __grid_constant__ StreamsArgs a) {
    STATIC_SHARED(Numbers, numbers);
    release_dependents();
    wait_for_producers();
    const Place p = place_of(a);
    NormSums sums = {0.0f, 1.0f};
    if (a.norm.weight) sums = norm_sums(a.norm, p.y, a.len, numbers.scratch);
    for (uint32_t i = threadIdx.x; i < a.len; i += blockDim.x) {
        const float v = a.norm.weight ? normed(a.norm, i, p.y[i], sums) : p.y[i];
#pragma unroll 1
        for (uint32_t j = 1; j < a.count; j++) {
            float* to = p.streams + (uint64_t)j * a.stride + i;
            *to = __fadd_rn(*to, v);
        }
    }
}

// Grid (rows), up to 1024 threads.
extern "C" __global__ void __launch_bounds__(1024) sparse_gates(const __grid_constant__ SparseGatesArgs a) {
    STATIC_SHARED(Numbers, numbers);
    release_dependents();
    wait_for_producers();
    float* x = a.x + (uint64_t)blockIdx.x * a.stride;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < a.len; i += blockDim.x) sum += x[i];
    const float mean = block_sum(sum, numbers.scratch) / (float)a.len;
    sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < a.len; i += blockDim.x) {
        const float d = __fsub_rn(x[i], mean);
        sum = __fmaf_rn(d, d, sum);
    }
    const float least = __fmaf_rn(a.cutoff, sqrtf(block_sum(sum, numbers.scratch) / (float)a.len), mean);
    for (uint32_t i = threadIdx.x; i < a.len; i += blockDim.x) x[i] = at_least(__fsub_rn(x[i], least), 0.0f);
}
