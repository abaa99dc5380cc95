// Norm and rotary embedding of queries and keys, and the append to the KV cache, where the attention
// kernel does not do that itself: in a prefill, and for q8_0 caches.
//
// A row of input belongs to a session and a position. In a decode step row i is session i at its
// current position; in a prefill all rows are of one session, at consecutive positions.
#include "rope.cuh"

struct RopeArgs {
    const Session* const* sessions;
    const float* qkv;       // [rows][qkv_stride]: query heads, key heads, value heads
    float* q_f32;           // [rows][n_heads * head_dim] or NULL
    __half* q_f16;          // the same, times q_scale, or NULL
    Rotation rotation;
    NormArgs q_norm;        // of each head, before the rotation; weight NULL: none
    NormArgs k_norm;
    KvLayout layout;
    float q_scale;
    uint32_t qkv_stride;
    uint32_t n_heads;
    uint32_t prefill;       // rows are positions of session 0
};
static_assert(sizeof(RopeArgs) == 168, "as in args.rs");

// Grid (n_heads + 2 * n_kv_heads, rows), 128 threads.
extern "C" __global__ void __launch_bounds__(128) rope_append(const __grid_constant__ RopeArgs a) {
    __shared__ float line[512];
    release_dependents();
    wait_for_producers();
    const uint32_t row = blockIdx.y, hd = a.layout.head_dim;
    const Session* s = a.sessions[a.prefill ? 0 : row];
    const uint32_t position = s->position + (a.prefill ? row : 0);
    const uint32_t part = blockIdx.x;  // queries, then keys, then values
    const bool is_q = part < a.n_heads, is_v = part >= a.n_heads + a.layout.n_kv_heads;
    const float* from = a.qkv + (uint64_t)row * a.qkv_stride + (uint64_t)part * hd;
    for (uint32_t i = threadIdx.x; i < hd; i += blockDim.x) line[i] = from[i];
    __syncthreads();
    if (!is_v) {
        const NormArgs& norm = is_q ? a.q_norm : a.k_norm;
        if (norm.weight) {
            if (threadIdx.x < 32) norm_head(norm, line, hd);
            __syncthreads();
        }
        const Rotation& r = a.rotation;
        const float* inv_freq = frequencies(r, s);
        for (uint32_t i = threadIdx.x; i < r.n_pairs; i += blockDim.x) {
            uint32_t x = r.interleaved ? 2 * i : i, y = r.interleaved ? 2 * i + 1 : i + r.n_pairs;
            float sine, cosine;
            sincosf(__fmul_rn((float)position, inv_freq[i]), &sine, &cosine);
            float u = line[x], v = line[y];
            line[x] = __fmul_rn(__fmaf_rn(u, cosine, -__fmul_rn(v, sine)), r.magnitude);
            line[y] = __fmul_rn(__fmaf_rn(v, cosine, __fmul_rn(u, sine)), r.magnitude);
        }
        __syncthreads();
    }
    if (is_q) {
        uint64_t at = ((uint64_t)row * a.n_heads + part) * hd;
        for (uint32_t i = threadIdx.x; i < hd; i += blockDim.x) {
            if (a.q_f32) a.q_f32[at + i] = line[i];
            if (a.q_f16) a.q_f16[at + i] = __float2half_rn(__fmul_rn(line[i], a.q_scale));
        }
        return;
    }
    const uint32_t head = (part - a.n_heads) % a.layout.n_kv_heads;
    uint8_t* to = kv_row(a.layout, s, is_v, head, position);
    if (!a.layout.q8) {
        for (uint32_t i = threadIdx.x; i < a.layout.row_bytes / 2; i += blockDim.x)
            ((__half*)to)[i] = __float2half_rn(i < hd ? line[i] : 0.0f);
        return;
    }
    const uint32_t groups = (hd + 31) / 32;
    for (uint32_t g = threadIdx.x / 32; g < groups; g += blockDim.x / 32) {
        uint32_t i = g * 32 + (threadIdx.x & 31);
        float v = i < hd ? line[i] : 0.0f;
        // The stored scale is rounded up, so that quotients stay within -127..127.
        __half d = __float2half_ru(warp_max(fabsf(v)) / 127.0f);
        float f = __half2float(d);
        bool bad = __any_sync(~0u, !(v == v));
        ((int8_t*)to)[i] = (int8_t)(f > 0.0f ? __float2int_rn(v / f) : 0);
        if ((threadIdx.x & 31) == 0) ((__half*)(to + groups * 32))[g] = bad ? __ushort_as_half(0x7fff) : d;
    }
}
