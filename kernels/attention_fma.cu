// Attention of the decode step without tensor cores: over q8_0 caches, and for heads whose tiles do
// not fit the device's shared memory.
#include "attend.cuh"

// Grid (n_chunks, n_kv_heads * head_parts, batch), 128 threads. A run of lanes holds a position, 8
// elements a lane; each run goes through its positions with a softmax of its own; all runs of the
// block are merged at the end in a fixed order.
template <int G> __device__ __forceinline__ void attend_body(const AttendArgs& a) {
    extern __shared__ float merge[];  // [runs][G][lanes * 8 + 2]
    release_dependents();
    wait_for_producers();
    const uint32_t hd = a.layout.head_dim, group = a.n_heads / a.layout.n_kv_heads;
    const uint32_t kv_head = blockIdx.y / a.head_parts, first_head = blockIdx.y % a.head_parts * G;
    const uint32_t n_q = min((uint32_t)G, group - first_head);
    const Session* s = a.sessions[blockIdx.z];
    const Chunks chunks = chunks_of(a, s);
    if (blockIdx.x >= chunks.used) return;
    const uint32_t start = max(chunks.first, chunks.begin + blockIdx.x * chunks.per);
    const uint32_t end = min(chunks.length, chunks.begin + (blockIdx.x + 1) * chunks.per);
    uint32_t lanes = 1;
    while (lanes * 8 < hd) lanes *= 2;
    const uint32_t runs = blockDim.x / lanes, run = threadIdx.x / lanes, lane = threadIdx.x % lanes, dim = lane * 8;
    const bool active = dim < hd;
    float q[G][8], acc[G][8], m[G], l[G];
#pragma unroll
    for (int g = 0; g < G; g++) {
        m[g] = -INFINITY;
        l[g] = 0.0f;
        const float* from = a.q + ((uint64_t)blockIdx.z * a.n_heads + kv_head * group + first_head + min((uint32_t)g, n_q - 1)) * hd;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            q[g][i] = dim + i < hd ? __fmul_rn(from[dim + i], a.scores.scale) : 0.0f;
            acc[g][i] = 0.0f;
        }
    }
    constexpr int U = 4;
    const uint32_t groups = (hd + 31) / 32;
    auto load = [&](const uint8_t* row, float* v) {
        if (!a.layout.q8) {
            uint4 u = *(const uint4*)(row + dim * 2);
            v[0] = half_bits(u.x & 0xffff); v[1] = half_bits(u.x >> 16); v[2] = half_bits(u.y & 0xffff); v[3] = half_bits(u.y >> 16);
            v[4] = half_bits(u.z & 0xffff); v[5] = half_bits(u.z >> 16); v[6] = half_bits(u.w & 0xffff); v[7] = half_bits(u.w >> 16);
            return;
        }
        uint2 u = *(const uint2*)(row + dim);
        float d = __half2float(((const __half*)(row + groups * 32))[dim / 32]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = __fmul_rn(d, (float)(int8_t)(u.x >> 8 * i & 0xff));
            v[4 + i] = __fmul_rn(d, (float)(int8_t)(u.y >> 8 * i & 0xff));
        }
    };
    for (uint32_t base = start; base < end; base += runs * U) {
        float k[U][8], v[U][8], score[U][G];
        bool valid[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            uint32_t p = base + u * runs + run;
            valid[u] = p < end;
            if (valid[u] && active) {
                load(kv_row(a.layout, s, false, kv_head, p), k[u]);
                load(kv_row(a.layout, s, true, kv_head, p), v[u]);
            } else {
#pragma unroll
                for (int i = 0; i < 8; i++) k[u][i] = v[u][i] = 0.0f;
            }
        }
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int g = 0; g < G; g++) {
                float t = 0.0f;
#pragma unroll
                for (int i = 0; i < 8; i++) t = __fmaf_rn(q[g][i], k[u][i], t);
                for (uint32_t o = lanes / 2; o; o >>= 1) t = __fadd_rn(t, __shfl_xor_sync(~0u, t, o));
                if (a.scores.cap != 0.0f) t = capped(a.scores.cap, t);
                score[u][g] = valid[u] ? t : -INFINITY;
            }
#pragma unroll
        for (int g = 0; g < G; g++) {
            float top = m[g];
#pragma unroll
            for (int u = 0; u < U; u++) top = fmaxf(top, score[u][g]);
            const float keep = top == -INFINITY ? 1.0f : exp2f(m[g] - top);
            m[g] = top;
            if (top == -INFINITY) top = 0.0f;  // nothing seen yet, or nothing finite
            l[g] = __fmul_rn(l[g], keep);
#pragma unroll
            for (int i = 0; i < 8; i++) acc[g][i] = __fmul_rn(acc[g][i], keep);
#pragma unroll
            for (int u = 0; u < U; u++) {
                float w = exp2f(score[u][g] - top);
                l[g] = __fadd_rn(l[g], w);
#pragma unroll
                for (int i = 0; i < 8; i++) acc[g][i] = __fmaf_rn(w, v[u][i], acc[g][i]);
            }
        }
    }
    const uint32_t width = lanes * 8 + 2;
#pragma unroll
    for (int g = 0; g < G; g++) {
        float* to = merge + (run * G + g) * width;
#pragma unroll
        for (int i = 0; i < 8; i++) to[dim + i] = acc[g][i];
        if (lane == 0) { to[lanes * 8] = m[g]; to[lanes * 8 + 1] = l[g]; }
    }
    __syncthreads();
    // A run that saw no position has weight 0.
    for (uint32_t i = threadIdx.x; i < n_q * hd; i += blockDim.x) {
        uint32_t g = i / hd, d = i % hd;
        float top = -INFINITY;
        for (uint32_t r = 0; r < runs; r++) {
            const float* from = merge + (r * G + g) * width + lanes * 8;
            if (from[1] != 0.0f) top = fmaxf(top, from[0]);
        }
        float sum = 0.0f, weight = 0.0f;
        for (uint32_t r = 0; r < runs; r++) {
            const float* from = merge + (r * G + g) * width;
            float w = from[lanes * 8 + 1] != 0.0f ? exp2f(from[lanes * 8] - top) : 0.0f;
            sum = __fmaf_rn(w, from[d], sum);
            weight = __fmaf_rn(w, from[lanes * 8 + 1], weight);
        }
        float* to = a.parts + (((uint64_t)blockIdx.z * a.n_heads + kv_head * group + first_head + g) * a.n_chunks + blockIdx.x) * part_stride(hd);
        to[d] = sum;
        if (d == 0) { to[hd] = top; to[hd + 1] = weight; }
    }
}
#define ATTEND(g)                                                                                     \
    extern "C" __global__ void __launch_bounds__(128) attend_fma_##g(const __grid_constant__ AttendArgs a) { \
        attend_body<g>(a);                                                                            \
    }
ATTEND(1)
ATTEND(2)
ATTEND(4)
ATTEND(8)
