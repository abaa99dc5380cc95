// Attention of the decode step, and the rotary embedding and KV append that go before it.
//
// A row of input belongs to a session and a position. In a decode step row i is session i at its
// current position; in a prefill all rows are of one session, at consecutive positions.
#include "mma.cuh"

struct RopeArgs {
    const Session* const* sessions;
    const float* qkv;       // [rows][qkv_stride]: query heads, key heads, value heads
    float* q_f32;           // [rows][n_heads * head_dim] or NULL
    __half* q_f16;          // the same, times q_scale, or NULL
    const float* inv_freq;  // [n_pairs]
    KvLayout layout;
    float magnitude;
    float q_scale;
    uint32_t qkv_stride;
    uint32_t n_heads;
    uint32_t n_pairs;
    uint32_t interleaved;   // pairs are (2i, 2i + 1), else (i, i + n_pairs)
    uint32_t layer;
    uint32_t prefill;       // rows are positions of session 0
};
static_assert(sizeof(RopeArgs) == 112, "as in args.rs");

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
        for (uint32_t i = threadIdx.x; i < a.n_pairs; i += blockDim.x) {
            uint32_t x = a.interleaved ? 2 * i : i, y = a.interleaved ? 2 * i + 1 : i + a.n_pairs;
            float sine, cosine;
            sincosf(__fmul_rn((float)position, a.inv_freq[i]), &sine, &cosine);
            float u = line[x], v = line[y];
            line[x] = __fmul_rn(__fmaf_rn(u, cosine, -__fmul_rn(v, sine)), a.magnitude);
            line[y] = __fmul_rn(__fmaf_rn(v, cosine, __fmul_rn(u, sine)), a.magnitude);
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
    uint8_t* to = kv_row(a.layout, s->kv, a.layer, is_v, head, position);
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

struct AttendArgs {
    const Session* const* sessions;
    const float* q;        // q8_0 caches: [batch][n_heads * head_dim], rotated
    float* parts;          // [batch][n_heads][n_chunks][head_dim + 2]: sum of values, largest score, weight
    int8_t* q8;            // result: [batch][n_heads * head_dim] padded to groups of 32, or NULL
    float* q8_scale;
    float* f32;            // result: the same in f32, or NULL
    // f16 caches: rotation and append are done here.
    const float* qkv;      // [batch][qkv_stride]
    const float* inv_freq; // [n_pairs]
    uint32_t* tickets;     // [batch][n_kv_heads * head_parts] zeros: chunks done, of heads of whole groups
    KvLayout layout;
    float scale;           // of scores, times log2(e)
    float magnitude;
    uint32_t qkv_stride;
    uint32_t n_pairs;
    uint32_t interleaved;
    uint32_t n_heads;
    uint32_t layer;
    uint32_t n_chunks;     // parts that a context is cut into at most, up to 128
    uint32_t head_parts;   // attend: blocks that share a KV head's queries
    uint32_t join;         // the last block of a KV head joins the chunks (heads of whole groups of 32)
};
static_assert(sizeof(AttendArgs) == 152, "as in args.rs");

// An element of the result, with the warp's 32 being a group; `at` is the element's place.
__device__ __forceinline__ void store_result(const AttendArgs& a, uint64_t at, float v) {
    if (a.f32) a.f32[at] = v;
    if (a.q8) {
        float largest = warp_max(fabsf(v)), id = largest > 0.0f ? 127.0f / largest : 0.0f;
        bool bad = __any_sync(~0u, !(v == v)) || largest > 3.4e38f;
        a.q8[at] = bad ? 1 : (int8_t)max(-127, min(127, __float2int_rn(__fmul_rn(v, id))));
        if ((threadIdx.x & 31) == 0) a.q8_scale[at / 32] = bad ? NAN : __fmul_rn(largest, 1.0f / 127.0f);
    }
}

// A context of `length` positions is cut into chunks of this many, which depends on nothing else, so
// that the order of additions does not depend on who shares the batch.
__device__ __forceinline__ uint32_t chunk_positions(uint32_t length, uint32_t n_chunks) {
    return max(128u, ((length + n_chunks - 1) / n_chunks + 63) / 64 * 64);
}

// Attention over a q8_0 cache. Grid (n_chunks, n_kv_heads * head_parts, batch), 128 threads. A run of lanes holds a position, 8
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
    const uint32_t length = s->position + 1, per = chunk_positions(length, a.n_chunks);
    const uint32_t start = blockIdx.x * per, end = min(length, start + per);
    if (start >= length) return;
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
            q[g][i] = dim + i < hd ? __fmul_rn(from[dim + i], a.scale) : 0.0f;
            acc[g][i] = 0.0f;
        }
    }
    constexpr int U = 4;
    const uint32_t groups = (hd + 31) / 32;
    auto load = [&](const uint8_t* row, float* v) {
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
                load(kv_row(a.layout, s->kv, a.layer, false, kv_head, p), k[u]);
                load(kv_row(a.layout, s->kv, a.layer, true, kv_head, p), v[u]);
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
                score[u][g] = valid[u] ? t : -INFINITY;
            }
#pragma unroll
        for (int g = 0; g < G; g++) {
            float top = m[g];
#pragma unroll
            for (int u = 0; u < U; u++) top = fmaxf(top, score[u][g]);
            if (top == -INFINITY) top = 0.0f;  // nothing seen yet, or nothing finite
            float keep = exp2f(m[g] - top);
            m[g] = top;
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
    // A run that saw no position has weight 0 and a largest score of 0 that must not count.
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
        float* to = a.parts + (((uint64_t)blockIdx.z * a.n_heads + kv_head * group + first_head + g) * a.n_chunks + blockIdx.x) * (hd + 2);
        to[d] = sum;
        if (d == 0) { to[hd] = top; to[hd + 1] = weight; }
    }
}
#define ATTEND(g)                                                                                    \
    extern "C" __global__ void __launch_bounds__(128) attend_q8_##g(const __grid_constant__ AttendArgs a) { \
        attend_body<g>(a);                                                                     \
    }
ATTEND(1)
ATTEND(2)
ATTEND(4)
ATTEND(8)

// The same for f16 caches on tensor cores, for up to 8 queries of a KV head, with the rotation of its
// input, the append to the cache, and the joining of the chunks by the block that ends last. Tiles of 64 positions come
// through a ring in shared memory; a warp takes 16 positions of each, with a softmax of its own.
// Scores are K (16 positions x dims) times q (dims x 8 heads); sums are V transposed (16 dims x 16
// positions) times weights (positions x 8 heads). Queries and weights are rounded to f16.
constexpr int attend_stages(int dim) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    return 2;
#else
    return dim <= 128 ? 3 : 2;
#endif
}
template <int HD> __device__ __forceinline__ bool attend_tiles_body(const AttendArgs& a, uint32_t chunk) {
    extern __shared__ __align__(128) uint8_t tiles[];
    constexpr int PIECES = HD / 8, PLANE = 64 * HD * 2, STAGES = attend_stages(HD);
    __shared__ float turn[2][HD / 2];  // cosine and sine of each pair
    __shared__ __half fresh[2][HD];    // key and value of the current position
    __shared__ float factor[8][129];   // join: weight of each chunk, and the sum
    __shared__ uint32_t is_last;
    release_dependents();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const uint32_t hd = a.layout.head_dim, group = a.n_heads / a.layout.n_kv_heads;
    const uint32_t kv_head = blockIdx.x / a.head_parts, first_head = blockIdx.x % a.head_parts * 8;
    const uint32_t n_q = min(8u, group - first_head);
    const Session* s = a.sessions[blockIdx.y];
    const uint32_t length = s->position + 1, per = chunk_positions(length, a.n_chunks);
    const uint32_t start = chunk * per, end = min(length, start + per);
    if (start >= length) return false;
    const uint32_t base = shared_address(tiles), row_bytes = a.layout.row_bytes;
    const uint8_t* cache = (const uint8_t*)s->kv + a.layer * a.layout.layer_bytes + (uint64_t)kv_head * 64 * row_bytes;
    const uint64_t plane = (uint64_t)a.layout.n_kv_heads * 64 * row_bytes;
    const uint32_t first_tile = start / 64, n_tiles = (end - start + 63) / 64;
    auto load = [&](uint32_t t) {
        if (t < n_tiles) {
            const uint8_t* from = cache + (first_tile + t) * a.layout.tile_bytes;
            const uint32_t to = base + t % STAGES * 2 * PLANE, rows = min(64u, min(end, length - 1) - min(length - 1, start + t * 64));
#pragma unroll
            for (int part = 0; part < 2; part++)
#pragma unroll
                for (int i = threadIdx.x; i < 64 * PIECES; i += 128) {
                    uint32_t r = i / PIECES, c = i % PIECES;
                    bool valid = r < rows && c * 16 < row_bytes;
                    copy16(to + part * PLANE + swizzled<PIECES>(r, c), from + part * plane + (valid ? r * row_bytes + c * 16 : 0), valid);
                }
        }
        copies_commit();
    };
    // What the cache holds from the steps before is there already; only the input must be awaited.
    for (int t = 0; t < STAGES - 1; t++) load(t);
    for (uint32_t i = threadIdx.x; i < a.n_pairs; i += 128)
        sincosf(__fmul_rn((float)(length - 1), a.inv_freq[i]), &turn[1][i], &turn[0][i]);
    wait_for_producers();
    __syncthreads();
    const float* input = a.qkv + (uint64_t)blockIdx.y * a.qkv_stride;
    auto rotated = [&](const float* line, uint32_t d) -> float {
        uint32_t i, other;
        bool first;
        if (a.interleaved) { i = d / 2; other = d ^ 1; first = !(d & 1); }
        else { first = d < a.n_pairs; i = first ? d : d - a.n_pairs; other = first ? d + a.n_pairs : d - a.n_pairs; }
        float v = line[d];
        if (d >= 2 * a.n_pairs) return v;
        float o = line[other], cosine = turn[0][i], sine = turn[1][i];
        float r = first ? __fmaf_rn(v, cosine, -__fmul_rn(o, sine)) : __fmaf_rn(v, cosine, __fmul_rn(o, sine));
        return __fmul_rn(r, a.magnitude);
    };
    // Queries, by way of the last stage, which is not in use yet.
    uint32_t q[HD / 16][2];
    {
        const uint32_t at = (STAGES - 1) * 2 * PLANE;
        float* raw = (float*)(tiles + at + PLANE);  // 8 queries, key, value
        const float* from = raw;
#pragma unroll
        for (int i = threadIdx.x; i < 10 * HD; i += 128) {
            const uint32_t h = i / HD, d = i % HD;
            const uint32_t head = h < 8 ? kv_head * group + first_head + h : a.n_heads + kv_head + (h - 8) * a.layout.n_kv_heads;
            if (d < hd && (h < n_q || h >= 8)) raw[h * hd + d] = __ldcg(input + (uint64_t)head * hd + d);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < 8 * HD; i += 128) {
            uint32_t h = i / HD, d = i % HD;
            float v = h < n_q && d < hd ? __fmul_rn(rotated(from + h * hd, d), a.scale) : 0.0f;
            *(__half*)(tiles + at + swizzled<PIECES>(h, d / 8) + d % 8 * 2) = __float2half_rn(v);
        }
        if (end == length) {
            const float *k = raw + 8 * hd, *v = raw + 9 * hd;
            __half* to = (__half*)(cache + (length - 1) / 64 * a.layout.tile_bytes + (uint64_t)((length - 1) % 64) * row_bytes);
            for (uint32_t d = threadIdx.x; d < HD; d += 128) {
                __half x = __float2half_rn(d < hd ? rotated(k, d) : 0.0f), y = __float2half_rn(d < hd ? v[d] : 0.0f);
                fresh[0][d] = x;
                fresh[1][d] = y;
                if (first_head == 0 && d * 2 < row_bytes) {
                    to[d] = x;
                    to[plane / 2 + d] = y;
                }
            }
        }
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < HD / 16; kk += 2) {
            uint32_t r[4];
            load_matrices(r, base + at + swizzled<PIECES>(lane & 7, kk * 2 + (lane >> 3)));
            q[kk][0] = r[0]; q[kk][1] = r[1]; q[kk + 1][0] = r[2]; q[kk + 1][1] = r[3];
        }
        __syncthreads();
    }
    // Columns 2 * (lane & 3) and the next are this thread's heads.
    float acc[HD / 16][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    for (uint32_t t = 0; t < n_tiles; t++) {
        load(t + STAGES - 1);
        copies_wait<STAGES - 1>();
        __syncthreads();
        if (t + 1 == n_tiles && end == length) {
            const uint32_t r = (length - 1) % 64;
            for (uint32_t i = threadIdx.x; i < 2 * HD; i += 128) {
                uint32_t part = i / HD, d = i % HD;
                *(__half*)(tiles + (t % STAGES * 2 + part) * PLANE + swizzled<PIECES>(r, d / 8) + d % 8 * 2) = fresh[part][d];
            }
            __syncthreads();
        }
        const uint32_t keys = base + t % STAGES * 2 * PLANE, values = keys + PLANE;
        float c[4] = {};
#pragma unroll
        for (int kk = 0; kk < HD / 16; kk++) {
            uint32_t k[4];
            load_matrices(k, keys + swizzled<PIECES>(warp * 16 + (lane & 15), kk * 2 + (lane >> 4)));
            mma(c, k, q[kk][0], q[kk][1]);
        }
        const uint32_t p = start + t * 64 + warp * 16 + (lane >> 2);
        if (p >= end) c[0] = c[1] = -INFINITY;
        if (p + 8 >= end) c[2] = c[3] = -INFINITY;
        uint32_t w[2];
        float keep[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float largest = fmaxf(c[e], c[e + 2]);
#pragma unroll
            for (int o = 4; o < 32; o <<= 1) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, o));
            largest = fmaxf(largest, top[e]);
            if (largest == -INFINITY) largest = 0.0f;
            keep[e] = exp2f(top[e] - largest);
            top[e] = largest;
            c[e] = exp2f(c[e] - largest);
            c[e + 2] = exp2f(c[e + 2] - largest);
            sum[e] = __fmaf_rn(sum[e], keep[e], __fadd_rn(c[e], c[e + 2]));
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            __half2 pair = __floats2half2_rn(c[2 * h], c[2 * h + 1]);
            asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(w[h]) : "r"(*(uint32_t*)&pair));
        }
#pragma unroll
        for (int j = 0; j < HD / 16; j++) {
            acc[j][0] *= keep[0]; acc[j][1] *= keep[1]; acc[j][2] *= keep[0]; acc[j][3] *= keep[1];
            uint32_t v[4];
            uint32_t r = warp * 16 + (lane >> 4) * 8 + (lane & 7);
            load_matrices_transposed(v, values + swizzled<PIECES>(r, j * 2 + (lane >> 3 & 1)));
            mma(acc[j], v, w[0], w[1]);
        }
        __syncthreads();
    }
    copies_wait<0>();
    __syncthreads();
    // [warp][head][HD + 2]: the four warps are merged in a fixed order.
    float* merge = (float*)tiles;
    constexpr int WIDTH = HD + 2;
#pragma unroll
    for (int e = 0; e < 2; e++) {
#pragma unroll
        for (int o = 4; o < 32; o <<= 1) sum[e] = __fadd_rn(sum[e], __shfl_xor_sync(~0u, sum[e], o));
        float* to = merge + (warp * 8 + (lane & 3) * 2 + e) * WIDTH;
#pragma unroll
        for (int j = 0; j < HD / 16; j++) {
            to[j * 16 + (lane >> 2)] = acc[j][e];
            to[j * 16 + 8 + (lane >> 2)] = acc[j][e + 2];
        }
        if (lane < 4) { to[HD] = top[e]; to[HD + 1] = sum[e]; }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_q * hd; i += 128) {
        uint32_t g = i / hd, d = i % hd;
        float largest = -INFINITY, total = 0.0f, weight = 0.0f;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const float* from = merge + (r * 8 + g) * WIDTH;
            if (from[HD + 1] != 0.0f) largest = fmaxf(largest, from[HD]);
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const float* from = merge + (r * 8 + g) * WIDTH;
            float f = from[HD + 1] != 0.0f ? exp2f(from[HD] - largest) : 0.0f;
            total = __fmaf_rn(f, from[d], total);
            weight = __fmaf_rn(f, from[HD + 1], weight);
        }
        const uint32_t head = kv_head * group + first_head + g;
        if (a.join && per >= length) {
            // One chunk is all there is.
            store_result(a, ((uint64_t)blockIdx.y * a.n_heads + head) * hd + d, total / weight);
            continue;
        }
        float* to = a.parts + (((uint64_t)blockIdx.y * a.n_heads + head) * a.n_chunks + chunk) * (hd + 2);
        to[d] = total;
        if (d == 0) { to[hd] = largest; to[hd + 1] = weight; }
    }
    if (!a.join || per >= length) return true;
    const uint32_t used = (length + per - 1) / per;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t* ticket = a.tickets + blockIdx.y * gridDim.x + blockIdx.x;
        is_last = atomicAdd(ticket, 1) == used - 1;
        if (is_last) *ticket = 0;
    }
    __syncthreads();
    if (!is_last) return true;
    __threadfence();
    const float* parts = a.parts + ((uint64_t)blockIdx.y * a.n_heads + kv_head * group + first_head) * a.n_chunks * (hd + 2);
    for (uint32_t g = warp; g < n_q; g += 4) {
        const float* from = parts + (uint64_t)g * a.n_chunks * (hd + 2) + hd;
        float largest = -INFINITY;
        for (uint32_t c = lane; c < used; c += 32) largest = fmaxf(largest, __ldcg(from + c * (hd + 2)));
        largest = warp_max(largest);
        float weight = 0.0f;
        for (uint32_t c = lane; c < used; c += 32) {
            float f = exp2f(__ldcg(from + c * (hd + 2)) - largest);
            factor[g][c] = f;
            weight = __fmaf_rn(f, __ldcg(from + c * (hd + 2) + 1), weight);
        }
        weight = warp_sum(weight);
        if (lane == 0) factor[g][128] = weight;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n_q * hd; i += 128) {
        uint32_t g = i / hd, d = i % hd;
        const float* from = parts + (uint64_t)g * a.n_chunks * (hd + 2) + d;
        float total = 0.0f;
        for (uint32_t c = 0; c < used; c += 8) {
            float p[8];
#pragma unroll
            for (int k = 0; k < 8; k++) p[k] = c + k < used ? __ldcg(from + (c + k) * (hd + 2)) : 0.0f;
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (c + k < used) total = __fmaf_rn(factor[g][c + k], p[k], total);
        }
        store_result(a, ((uint64_t)blockIdx.y * a.n_heads + kv_head * group + first_head + g) * hd + d, total / factor[g][128]);
    }
    return true;
}
// Grid (n_kv_heads * head_parts, batch, blocks that share the chunks of a context), 128 threads. A block
// without a chunk ends at once: the grid is not done before those with the first chunks, which wait.
#define ATTEND_TILES(hd)                                                                                      \
    extern "C" __global__ void __launch_bounds__(128) attend_tiles_##hd(const __grid_constant__ AttendArgs a) { \
        for (uint32_t c = blockIdx.z; c < a.n_chunks && attend_tiles_body<hd>(a, c); c += gridDim.z) __syncthreads(); \
    }
ATTEND_TILES(64)
ATTEND_TILES(128)
ATTEND_TILES(256)

// Joins the chunks and writes the product's input. Grid (n_heads * head_dim / 128 rounded up, batch),
// 128 threads, one element each: a warp is one group of 32.
extern "C" __global__ void __launch_bounds__(128) attend_combine(const __grid_constant__ AttendArgs a) {
    release_dependents();
    wait_for_producers();
    const uint32_t hd = a.layout.head_dim, e = blockIdx.x * 128 + threadIdx.x, len = a.n_heads * hd;
    const uint32_t groups = (len + 31) / 32, length = a.sessions[blockIdx.y]->position + 1;
    const uint32_t per = chunk_positions(length, a.n_chunks), used = (length + per - 1) / per;
    float v = 0.0f;
    if (e < len) {
        const uint32_t head = e / hd, d = e % hd;
        const float* from = a.parts + ((uint64_t)blockIdx.y * a.n_heads + head) * a.n_chunks * (hd + 2);
        float top = -INFINITY;
        for (uint32_t c = 0; c < used; c++) top = fmaxf(top, from[c * (hd + 2) + hd]);
        float sum = 0.0f, weight = 0.0f;
        for (uint32_t c = 0; c < used; c++) {
            const float* p = from + c * (hd + 2);
            float w = exp2f(p[hd] - top);
            sum = __fmaf_rn(w, p[d], sum);
            weight = __fmaf_rn(w, p[hd + 1], weight);
        }
        v = sum / weight;
    }
    if (e >= groups * 32) return;
    store_result(a, (uint64_t)blockIdx.y * groups * 32 + e, v);
}
