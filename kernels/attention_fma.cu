// Attention without tensor cores: of the decode step where it is of a kind that few networks have, where the size of heads is no multiple of
// 4, and where tiles do not fit the device's shared memory (`Kernels::attend`). Of long heads it does those over q8_0 caches, and the rows of
// a prefill, too.
#include "attend.cuh"

// Grid (n_chunks, n_kv_heads * head_parts, rows), 128 threads. A run of lanes holds a position, PIECES times 8
// elements a lane, where a piece of one lane follows that of the lane before; each run goes through its positions with
// a softmax of its own; all runs of the block are merged at the end in a fixed order.
template <int G, int PIECES> __device__ __forceinline__ void attend_body(const AttendArgs& a) {
    extern __shared__ float merge[];  // [runs][G][lanes * 8 * PIECES + 2]
    release_dependents();
    wait_for_producers();
    constexpr int E = 8 * PIECES;
    const uint32_t hd = a.layout.head_dim, vd = a.value_dim, group = a.n_heads / a.layout.n_kv_heads;
    const uint32_t kv_head = blockIdx.y / a.head_parts, first_head = blockIdx.y % a.head_parts * G;
    const uint32_t n_q = min((uint32_t)G, group - first_head);
    const Session* s = session_of(a, blockIdx.z);
    const Chunks chunks = chunks_of<true>(a, s, blockIdx.z);
    if (blockIdx.x >= chunks.used) return;
    const uint32_t start = max(chunks.first, chunks.begin + blockIdx.x * chunks.per);
    const uint32_t end = min(chunks.length, chunks.begin + (blockIdx.x + 1) * chunks.per);
    uint32_t lanes = PIECES == 1 ? 1 : 32;
    while (PIECES == 1 && lanes * 8 < hd) lanes *= 2;
    const uint32_t runs = blockDim.x / lanes, run = threadIdx.x / lanes, lane = threadIdx.x % lanes, dim = lane * 8;
    // Where element `i` of the lane is in a head.
    auto place = [&](int i) { return dim + i / 8 * 256 + i % 8; };
    float q[G][E], acc[G][E], m[G], l[G];
#pragma unroll
    for (int g = 0; g < G; g++) {
        m[g] = -INFINITY;
        l[g] = 0.0f;
        const uint64_t from = ((uint64_t)(a.first_row + blockIdx.z) * a.n_heads + kv_head * group + first_head + min((uint32_t)g, n_q - 1)) * hd;
#pragma unroll
        for (int i = 0; i < E; i++) {
            const uint32_t at = place(i);
            q[g][i] = at >= hd ? 0.0f : PIECES == 1 ? __fmul_rn(a.q[from + at], a.scores.scale) : __half2float(a.q16[from + at]);
            acc[g][i] = 0.0f;
        }
    }
    constexpr int U = PIECES == 1 ? 4 : 2;
    const uint32_t groups = (hd + 31) / 32;
    auto load = [&](const uint8_t* row, float* v) {
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++, v += 8) {
            const uint32_t at = dim + piece * 256;
            if (at >= hd) {
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] = 0.0f;
                continue;
            }
            if (!a.layout.q8) {
                uint4 u = *(const uint4*)(row + at * 2);
                v[0] = half_bits(u.x & 0xffff); v[1] = half_bits(u.x >> 16); v[2] = half_bits(u.y & 0xffff); v[3] = half_bits(u.y >> 16);
                v[4] = half_bits(u.z & 0xffff); v[5] = half_bits(u.z >> 16); v[6] = half_bits(u.w & 0xffff); v[7] = half_bits(u.w >> 16);
                continue;
            }
            uint2 u = *(const uint2*)(row + at);
            float d = __half2float(((const __half*)(row + groups * 32))[at / 32]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                v[i] = __fmul_rn(d, (float)(int8_t)(u.x >> 8 * i & 0xff));
                v[4 + i] = __fmul_rn(d, (float)(int8_t)(u.y >> 8 * i & 0xff));
            }
        }
    };
    for (uint32_t base = start; base < end; base += runs * U) {
        float k[U][E], v[U][E], score[U][G];
        bool valid[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            uint32_t p = base + u * runs + run;
            valid[u] = p < end;
            if (valid[u]) {
                load(kv_row(a.layout, s, false, kv_head, p), k[u]);
                load(kv_row(a.layout, s, true, kv_head, p), v[u]);
            } else {
#pragma unroll
                for (int i = 0; i < E; i++) k[u][i] = v[u][i] = 0.0f;
            }
        }
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int g = 0; g < G; g++) {
                float t = 0.0f;
#pragma unroll
                for (int i = 0; i < E; i++) t = __fmaf_rn(q[g][i], k[u][i], t);
                for (uint32_t o = lanes / 2; o; o >>= 1) t = __fadd_rn(t, __shfl_xor_sync(~0u, t, o));
                if (a.scores.cap != 0.0f)
                    t = a.slopes ? leaned(a.slopes[kv_head * group + first_head + min((uint32_t)g, n_q - 1)], chunks.length - 1, base + u * runs + run, t)
                                 : capped(a.scores.cap, t);
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
            for (int i = 0; i < E; i++) acc[g][i] = __fmul_rn(acc[g][i], keep);
#pragma unroll
            for (int u = 0; u < U; u++) {
                float w = exp2f(score[u][g] - top);
                l[g] = __fadd_rn(l[g], w);
#pragma unroll
                for (int i = 0; i < E; i++) acc[g][i] = __fmaf_rn(w, v[u][i], acc[g][i]);
            }
        }
    }
    const uint32_t width = lanes * E + 2;
#pragma unroll
    for (int g = 0; g < G; g++) {
        float* to = merge + (run * G + g) * width;
#pragma unroll
        for (int i = 0; i < E; i++) to[place(i)] = acc[g][i];
        if (lane == 0) { to[lanes * E] = m[g]; to[lanes * E + 1] = l[g]; }
    }
    __syncthreads();
    // A run that saw no position has weight 0.
    for (uint32_t i = threadIdx.x; i < n_q * vd; i += blockDim.x) {
        uint32_t g = i / vd, d = i % vd;
        float top = -INFINITY;
        for (uint32_t r = 0; r < runs; r++) {
            const float* from = merge + (r * G + g) * width + lanes * E;
            if (from[1] != 0.0f) top = fmaxf(top, from[0]);
        }
        float sum = 0.0f, weight = 0.0f;
        for (uint32_t r = 0; r < runs; r++) {
            const float* from = merge + (r * G + g) * width;
            float w = from[lanes * E + 1] != 0.0f ? exp2f(from[lanes * E] - top) : 0.0f;
            sum = __fmaf_rn(w, from[d], sum);
            weight = __fmaf_rn(w, from[lanes * E + 1], weight);
        }
        float* to = a.parts + (((uint64_t)blockIdx.z * a.n_heads + kv_head * group + first_head + g) * a.n_chunks + blockIdx.x) * part_stride(vd);
        to[d] = sum;
        if (d == 0) { to[vd] = top; to[vd + 1] = weight; }
    }
}
#define ATTEND(name, g, pieces)                                                                                      \
    extern "C" __global__ void __launch_bounds__(128) attend_fma_##name##g(const __grid_constant__ AttendArgs a) {  \
        attend_body<g, pieces>(a);                                                                                   \
    }
ATTEND(, 1, 1)
ATTEND(, 2, 1)
ATTEND(, 4, 1)
ATTEND(, 8, 1)
// Heads of more than 256 elements, up to 768.
ATTEND(long_, 1, 3)
ATTEND(long_, 2, 3)
