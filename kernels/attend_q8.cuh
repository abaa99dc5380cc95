// Tiles of q8_0 caches, for the kernels that attend in tiles: rows lie in shared memory as they do in the cache, one behind the other, and a
// warp makes f16 of the int8 in its registers.
//
// Rows have an odd number of 16 bytes, whatever the size of a head, so that 8 of them lie on different banks: 2 * groups bytes of scales behind
// 32 * groups bytes of values, rounded up. The tensor cores' dims are permuted within 16: ldmatrix hands pairs of 16 bits out, which are four
// elements of a key, and two of a value for two positions.
#pragma once
#include "attend.cuh"

// Bytes of the longest row.
template <int HD> constexpr int Q8_ROW = (HD + HD / 16 + 15) / 16 * 16;

// Groups of 32 elements that every head has which takes tiles of HD, which are the smallest that have room for it.
template <int HD> constexpr int SURE_GROUPS = HD > 64 ? HD / 64 + 1 : 1;

// The scales of a row, two a word.
template <int HD> struct alignas(HD / 16) Q8Scales { uint32_t pairs[HD / 64]; };

// Two of four bytes as f16, by an index of __byte_perm, which are exact; `bytes` had their signs inverted, which makes them unsigned.
__device__ __forceinline__ __half2 int8_halves(uint32_t bytes, uint32_t which) {
    // The low bits of 1024.
    const uint32_t bits = __byte_perm(bytes, 0x64646464, which), less = 0x64806480;
    return __hsub2(*(const __half2*)&bits, *(const __half2*)&less);
}

// v / by, correctly rounded, of an `inverse` that is off by a unit of its last place at most: as the operator does it, but that takes
// no infinite divisor and no result beyond the range of f32, and so has no branches.
__device__ __forceinline__ float quotient(float v, float by, float inverse) {
    float q = __fmul_rn(v, inverse);
#pragma unroll
    for (int i = 0; i < 2; i++) q = __fmaf_rn(__fmaf_rn(-by, q, v), inverse, q);
    return q;
}

// Four groups from `first` on of a key or a value, of `groups`, by a warp: as `store_head` has them (rope.cuh), but by 8 lanes a group.
__device__ __forceinline__ void store_four_groups(uint8_t* to, const float* line, uint32_t first, uint32_t groups, uint32_t hd) {
    const uint32_t lane = threadIdx.x & 31, at = first * 32 + lane * 4;
    // Sizes of heads are multiples of 4.
    const float4 four = at < hd ? *(const float4*)(line + at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const float v[4] = {four.x, four.y, four.z, four.w};
    float largest = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
#pragma unroll
    for (int o = 1; o < 8; o <<= 1) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, o));
    const bool is_number = v[0] == v[0] && v[1] == v[1] && v[2] == v[2] && v[3] == v[3];
    const bool bad = __ballot_sync(~0u, !is_number) >> (lane & 24) & 0xff;
    if (at >= groups * 32) return;
    const __half d = __float2half_ru(largest <= 3.4e38f ? quotient(largest, 127.0f, 1.0f / 127.0f) : largest);
    const float f = __half2float(d), guess = __fdividef(1.0f, f), inverse = __fmaf_rn(__fmaf_rn(-f, guess, 1.0f), guess, guess);
    uint32_t bytes = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) bytes |= (uint32_t)(uint8_t)(int8_t)(f > 0.0f ? __float2int_rn(quotient(v[e], f, inverse)) : 0) << 8 * e;
    *(uint32_t*)(to + at) = bytes;
    if (lane % 8 == 0) ((__half*)(to + groups * 32))[at / 32] = bad ? __ushort_as_half(0x7fff) : d;
}

// The thread's part of the copies of 16 * W positions' keys and values: of 128 threads a tile, of which `tile(i)` is the i-th, and `rows` rows
// are there; zeros take the place of the others.
template <int HD, int W, class Tile> __device__ __forceinline__ void copy_q8_tiles(uint32_t to, uint64_t plane, uint32_t row_bytes, uint32_t rows, const Tile& tile) {
    constexpr int PLANE = 16 * W * Q8_ROW<HD>, COPIES = (KV_TILE * Q8_ROW<HD> / 16 + 127) / 128;
    const uint32_t which = W == 4 ? 0 : threadIdx.x / 128, of_tile = KV_TILE * row_bytes;
    const uint8_t* from = tile(which);
    const uint32_t there = min(of_tile, (rows - min(rows, which * KV_TILE)) * row_bytes);
    to += which * of_tile;
#pragma unroll
    for (int k = 0; k < COPIES; k++) {
        const uint32_t at = (threadIdx.x % 128 + k * 128) * 16;
        if (at >= of_tile) continue;
        copy16(to + at, from + at, at < there);
        copy16(to + PLANE + at, from + plane + at, at < there);
    }
}

// The thread's elements of a query of f16 in swizzled rows, in the order of the keys' dims.
template <int HD> __device__ __forceinline__ void load_query_q8(uint32_t (&q)[HD / 16][2], const uint8_t* rows, uint32_t row) {
    const uint32_t quarter = threadIdx.x & 3;
#pragma unroll
    for (int kk = 0; kk < HD / 16; kk++) {
        const uint2 v = *(const uint2*)(rows + swizzled<HD / 8>(row, kk * 2 + quarter / 2) + quarter % 2 * 8);
        q[kk][0] = v.x;
        q[kk][1] = v.y;
    }
}

// Scores of a warp's 16 positions of the tile of keys at the address `keys`, where `tiles` is at `base`: c[n] of the n-th 8 columns. A group's products are
// summed as integers times queries, and then multiplied by the key's scale.
template <int HD, int N>
__device__ __forceinline__ void score_q8(float (*c)[4], const uint32_t (*q)[HD / 16][2], const uint8_t* tiles, uint32_t base, uint32_t keys, uint32_t row_bytes, uint32_t groups) {
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t own = keys + threadIdx.x / 32 * 16 * row_bytes;
    const uint8_t* ends = tiles + (own - base) + (lane >> 2) * row_bytes + groups * 32;
    const Q8Scales<HD> upper = *(const Q8Scales<HD>*)ends, lower = *(const Q8Scales<HD>*)(ends + 8 * row_bytes);
    const uint32_t address = own + (lane & 15) * row_bytes + (lane >> 4) * 16;
#pragma unroll
    for (int g = 0; g < HD / 32; g++) {
        uint32_t k[4];
        load_matrices(k, address + g * 32);
        uint32_t a[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t bytes = k[i] ^ 0x80808080;
            const __half2 first = int8_halves(bytes, 0x4140), second = int8_halves(bytes, 0x4342);
            a[i >> 1][i & 1] = *(const uint32_t*)&first;
            a[i >> 1][2 + (i & 1)] = *(const uint32_t*)&second;
        }
        // Queries have zeros for groups that a head lacks, whose scales may be anything.
        const bool there = g < SURE_GROUPS<HD> || g < groups;
        const float d = there ? half_bits(upper.pairs[g / 2] >> g % 2 * 16 & 0xffff) : 0.0f;
        const float e = there ? half_bits(lower.pairs[g / 2] >> g % 2 * 16 & 0xffff) : 0.0f;
#pragma unroll
        for (int n = 0; n < N; n++) {
            float sum[4] = {};
            mma(sum, a[0], q[n][2 * g][0], q[n][2 * g][1]);
            mma(sum, a[1], q[n][2 * g + 1][0], q[n][2 * g + 1][1]);
            c[n][0] = __fmaf_rn(d, sum[0], c[n][0]);
            c[n][1] = __fmaf_rn(d, sum[1], c[n][1]);
            c[n][2] = __fmaf_rn(e, sum[2], c[n][2]);
            c[n][3] = __fmaf_rn(e, sum[3], c[n][3]);
        }
    }
}

// A warp's 16 values of the tile at the address `values`, where `tiles` is at `base`.
template <int HD> struct Q8Values {
    Q8Scales<HD> scales[4];  // of the positions that are this thread's
    uint32_t address;

    __device__ __forceinline__ Q8Values(const uint8_t* tiles, uint32_t base, uint32_t values, uint32_t row_bytes, uint32_t groups) {
        const uint32_t lane = threadIdx.x & 31, own = values + threadIdx.x / 32 * 16 * row_bytes;
        const uint8_t* ends = tiles + (own - base) + (lane & 3) * 2 * row_bytes + groups * 32;
#pragma unroll
        for (int i = 0; i < 4; i++) scales[i] = *(const Q8Scales<HD>*)(ends + ((i >> 1) * 8 + (i & 1)) * row_bytes);
        address = own + (lane & 15) * row_bytes + (lane >> 4) * 16;
    }
    // Those of a group, rounded to f16: two operands of 16 dims x 16 positions. Of 16 dims, a thread has two neighbours. Of groups that a head
    // lacks there is whatever lies there.
    __device__ __forceinline__ void group(uint32_t (&a)[2][4], int g) const {
        uint32_t v[4], d[2];
        load_matrices_transposed(v, address + g * 32);
#pragma unroll
        for (int h = 0; h < 2; h++) d[h] = __byte_perm(scales[2 * h].pairs[g / 2], scales[2 * h + 1].pairs[g / 2], g % 2 ? 0x7632 : 0x5410);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t bytes = v[i] ^ 0x80808080;
            const __half2 scale = *(const __half2*)&d[i & 1];
            const __half2 first = __hmul2(int8_halves(bytes, 0x4240), scale), second = __hmul2(int8_halves(bytes, 0x4341), scale);
            a[i >> 1][2 * (i & 1)] = *(const uint32_t*)&first;
            a[i >> 1][2 * (i & 1) + 1] = *(const uint32_t*)&second;
        }
    }
};

// Adds a group's values times their weights `w` to what was summed before times `keep`, for the n-th 8 columns each.
template <int HD, int N>
__device__ __forceinline__ void add_values_q8(float (*acc)[HD / 16][4], const uint32_t (*w)[2], const float (*keep)[2], const uint32_t (&a)[2][4], int g) {
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int n = 0; n < N; n++) {
            float* to = acc[n][2 * g + j];
            to[0] *= keep[n][0]; to[1] *= keep[n][1]; to[2] *= keep[n][0]; to[3] *= keep[n][1];
            mma(to, a[j], w[n][0], w[n][1]);
        }
}
