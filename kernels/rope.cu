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
    uint32_t first_row;
    uint32_t padding;
};
static_assert(sizeof(RopeArgs) == 176, "as in args.rs");

constexpr uint32_t HEADS = 8;  // of a block, one a warp

// Grid (heads of all three kinds, in parts of HEADS, rows from the first one on), 32 * HEADS threads.
extern "C" __global__ void __launch_bounds__(32 * HEADS) rope_append(const __grid_constant__ RopeArgs a) {
    __shared__ float lines[HEADS][256], sines[128], cosines[128];
    release_dependents();
    wait_for_producers();
    const uint32_t row = a.first_row + blockIdx.y, hd = a.layout.head_dim, lane = threadIdx.x & 31;
    const Session* s = a.sessions[a.prefill ? 0 : row];
    const uint32_t position = s->position + (a.prefill ? row : 0);
    const Rotation& r = a.rotation;
    const float* inv_freq = frequencies(r, s);
    for (uint32_t i = threadIdx.x; i < r.n_pairs; i += blockDim.x)
        sincosf(__fmul_rn((float)position, inv_freq[i]), sines + i, cosines + i);
    __syncthreads();
    const uint32_t part = blockIdx.x * HEADS + threadIdx.x / 32;  // queries, then keys, then values
    if (part >= a.n_heads + 2 * a.layout.n_kv_heads) return;
    const bool is_q = part < a.n_heads, is_v = part >= a.n_heads + a.layout.n_kv_heads;
    float* line = lines[threadIdx.x / 32];
    const float* from = a.qkv + (uint64_t)row * a.qkv_stride + (uint64_t)part * hd;
    for (uint32_t i = lane; i < hd; i += 32) line[i] = from[i];
    __syncwarp();
    if (!is_v) {
        const NormArgs& norm = is_q ? a.q_norm : a.k_norm;
        if (norm.weight) {
            norm_head(norm, line, hd);
            __syncwarp();
        }
        for (uint32_t i = lane; i < r.n_pairs; i += 32) {
            uint32_t x = r.interleaved ? 2 * i : i, y = r.interleaved ? 2 * i + 1 : i + r.n_pairs;
            float u = line[x], v = line[y];
            line[x] = __fmul_rn(__fmaf_rn(u, cosines[i], -__fmul_rn(v, sines[i])), r.magnitude);
            line[y] = __fmul_rn(__fmaf_rn(v, cosines[i], __fmul_rn(u, sines[i])), r.magnitude);
        }
        __syncwarp();
    }
    if (is_q) {
        uint64_t at = ((uint64_t)row * a.n_heads + part) * hd;
        for (uint32_t i = lane; i < hd; i += 32) {
            if (a.q_f32) a.q_f32[at + i] = line[i];
            if (a.q_f16) a.q_f16[at + i] = __float2half_rn(__fmul_rn(line[i], a.q_scale));
        }
        return;
    }
    const uint32_t head = (part - a.n_heads) % a.layout.n_kv_heads;
    uint8_t* to = kv_row(a.layout, s, is_v, head, position);
    if (!a.layout.q8) {
        for (uint32_t i = lane; i < a.layout.row_bytes / 2; i += 32) ((__half*)to)[i] = __float2half_rn(i < hd ? line[i] : 0.0f);
        return;
    }
    const uint32_t groups = (hd + 31) / 32;
    for (uint32_t g = 0; g < groups; g++) {
        uint32_t i = g * 32 + lane;
        float v = i < hd ? line[i] : 0.0f;
        // The stored scale is rounded up, so that quotients stay within -127..127.
        __half d = __float2half_ru(warp_max(fabsf(v)) / 127.0f);
        float f = __half2float(d);
        bool bad = __any_sync(~0u, !(v == v));
        ((int8_t*)to)[i] = (int8_t)(f > 0.0f ? __float2int_rn(v / f) : 0);
        if (lane == 0) ((__half*)(to + groups * 32))[g] = bad ? __ushort_as_half(0x7fff) : d;
    }
}
