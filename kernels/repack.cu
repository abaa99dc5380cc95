// Weights: from the blocks of a file to records (blocks.cuh), and from records to plain f16.
#include "args_batch_f16.h"
#include "args_common.h"
#include "blocks.cuh"
#include "halves.cuh"
#include "matmul.cuh"

// Element e (0..255) of a block of 256, as the unsigned number of the file's low bits.
__device__ __forceinline__ uint32_t low2(const uint8_t* qs, uint32_t e) {
    return qs[e / 128 * 32 + e % 32] >> e / 32 % 4 * 2 & 3;
}
__device__ __forceinline__ uint32_t nibble45(const uint8_t* qs, uint32_t e) {  // Q4_K, Q5_K
    return qs[e / 64 * 32 + e % 32] >> e / 32 % 2 * 4 & 15;
}
__device__ __forceinline__ uint32_t nibble6(const uint8_t* ql, uint32_t e) {  // Q6_K
    return ql[e / 128 * 64 + e % 64] >> e / 64 % 2 * 4 & 15;
}
__device__ __forceinline__ uint32_t load16(const uint8_t* p) { return p[0] | p[1] << 8; }
__device__ __forceinline__ void store16(uint8_t* p, uint32_t v) { *(uint16_t*)p = (uint16_t)v; }
__device__ __forceinline__ void store32(uint8_t* p, uint32_t v) { *(uint32_t*)p = v; }

// Planes of one group from a function of its 32 elements.
template <class F> __device__ __forceinline__ void store_nibbles(uint8_t* to, F q) {
    for (int i = 0; i < 16; i++) to[i] = q(i) | q(i + 16) << 4;
}
template <class F> __device__ __forceinline__ void store_table(uint8_t* to, F q) {
    for (int t = 0; t < 4; t++) {
        uint32_t v = 0;
        for (int b = 0; b < 4; b++) v |= q(4 * t + b) << 4 * b | q(16 + 4 * t + b) << (16 + 4 * b);
        store32(to + 4 * t, v);
    }
}
template <class F> __device__ __forceinline__ void store_bits(uint8_t* to, F q) {
    uint32_t v = 0;
    for (int t = 0; t < 4; t++)
        for (int b = 0; b < 4; b++) v |= q(4 * t + b) << (8 * b + t) | q(16 + 4 * t + b) << (8 * b + 4 + t);
    store32(to, v);
}
template <class F> __device__ __forceinline__ void store_two_bits(uint8_t* to, F q) {
    uint32_t v[2] = {0, 0};
    for (int i = 0; i < 32; i++) v[i / 16] |= q(i) << (8 * (i % 4) + 2 * (i / 4 % 4));
    store32(to, v[0]);
    store32(to + 4, v[1]);
}
// Scale and minimum (6 bits each) of group g of a Q4_K or Q5_K block, as scale | minimum << 6.
__device__ __forceinline__ uint32_t scale45(const uint8_t* s, uint32_t g) {
    uint32_t sc = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | s[g - 4] >> 6 << 4;
    uint32_t mn = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | s[g] >> 6 << 4;
    return sc | mn << 6;
}

// The types with codebooks, as GGUF numbers them; src/quant/codebook.rs has their layouts.
enum FileType : uint32_t { IQ2_XXS = 16, IQ2_XS = 17, IQ3_XXS = 18, IQ1_S = 19, IQ3_S = 21, IQ2_S = 22, IQ1_M = 29, TQ1_0 = 34, TQ2_0 = 35 };

// Bit i of the signs that seven bits stand for: their number is even.
__device__ __forceinline__ uint32_t even_sign(uint32_t seven, uint32_t i) { return (i < 7 ? seven >> i : __popc(seven)) & 1; }
__device__ __forceinline__ uint32_t nibble_at(const uint8_t* p, uint32_t i) { return p[i / 2] >> i % 2 * 4 & 15; }
__device__ __forceinline__ uint32_t load32(const uint8_t* p) { return load16(p) | load16(p + 2) << 16; }

// Of a block with a codebook, element e of 256: its number, the sign on top.
__device__ uint32_t grid_number(uint32_t file, const uint16_t* book, const uint8_t* b, uint32_t e) {
    const uint32_t j = e / 32, eight = e / 8, in = eight % 4, i = e % 8;
    switch (file) {
        case IQ2_XXS: {
            const uint8_t* q = b + 2 + 8 * j;
            return book[q[in]] >> 2 * i & 3 | even_sign(load32(q + 4) >> 7 * in & 127, i) << 2;
        }
        case IQ2_XS: {
            const uint32_t q = load16(b + 2 + 2 * eight);
            return book[q & 511] >> 2 * i & 3 | even_sign(q >> 9, i) << 2;
        }
        case IQ2_S:
            return book[b[2 + eight] | (b[66 + j] >> 2 * in & 3) << 8] >> 2 * i & 3 | (b[34 + eight] >> i & 1) << 2;
        case IQ3_XXS:
            return book[b[2 + e / 4]] >> 3 * (e % 4) & 7 | even_sign(load32(b + 66 + 4 * j) >> 7 * in & 127, i) << 3;
        case IQ3_S:
            return book[b[2 + e / 4] | (b[66 + j] >> e / 4 % 8 & 1) << 8] >> 3 * (e % 4) & 7 | (b[74 + eight] >> i & 1) << 3;
        case IQ1_S: {
            const uint32_t h = load16(b + 34 + 2 * j);
            return book[b[2 + eight] | (h >> 3 * in & 7) << 8] >> 2 * i & 3 | h >> 15 << 2;
        }
        case IQ1_M: {
            const uint32_t h = nibble_at(b + 32, eight);
            return book[b[eight] | (h & 7) << 8] >> 2 * i & 3 | h >> 3 << 2;
        }
        case TQ1_0: {
            const uint32_t from = e < 160 ? 0 : e < 240 ? 160 : 240, width = e < 160 ? 32 : e < 240 ? 16 : 4, at = e < 160 ? 0 : e < 240 ? 32 : 48;
            uint32_t digit = b[at + (e - from) % width];
            for (uint32_t n = (e - from) / width; n > 0; n--) digit *= 3;
            return (digit & 255) * 3 >> 8;
        }
        default:
            return low2(b, e);  // TQ2_0
    }
}
// The small factor of elements 16 * half ...
__device__ uint32_t grid_factor(uint32_t file, const uint8_t* b, uint32_t half) {
    switch (file) {
        case IQ2_XXS: return 2 * (b[2 + 8 * (half / 2) + 7] >> 4) + 1;
        case IQ2_XS: return 2 * nibble_at(b + 66, half) + 1;
        case IQ2_S: return 2 * nibble_at(b + 74, half) + 1;
        case IQ3_XXS: return 2 * (b[66 + 4 * (half / 2) + 3] >> 4) + 1;
        case IQ3_S: return 2 * nibble_at(b + 106, half / 2) + 1;
        case IQ1_S: return 2 * (b[34 + 2 * (half / 2) + 1] >> 4 & 7) + 1;
        case IQ1_M: return 2 * (load16(b + 48 + 2 * (half / 4)) >> 3 * (half % 4) & 7) + 1;
        default: return 1;
    }
}
// The bits of the scale of a block.
__device__ uint32_t grid_scale(uint32_t file, const uint8_t* b) {
    switch (file) {
        case IQ1_M: return b[49] >> 4 | b[51] >> 4 << 4 | b[53] >> 4 << 8 | b[55] >> 4 << 12;
        case TQ1_0: return load16(b + 52);
        case TQ2_0: return load16(b + 64);
        default: return load16(b);
    }
}

// One thread a group.
extern "C" __global__ void repack(const __grid_constant__ RepackArgs a) {
    uint64_t index = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    if (index >= (uint64_t)a.rows * a.groups) return;
    uint32_t row = index / a.groups, group = index % a.groups;
    Slices c = slices_of(a.type, a.groups);
    uint32_t s = group / c.full, g = group % c.full, n = s + 1 == c.count ? c.last : c.full;
    uint8_t* r = a.matrix + slice_offset(a.type, c, s, a.matrix_rows) +
                 (uint64_t)(a.first_row + row) * record_bytes(a.type, n);
    const uint8_t* line = a.raw + row * a.raw_stride;
    if (is_float(a.type)) {
        uint32_t size = a.type == F32 ? 4 : 2, per = 16 / size;
        for (uint32_t i = 0; i < 32; i++) {
            uint32_t e = group * 32 + i;
            uint8_t* to = r + ((i / per) * n + g) * 16 + i % per * size;
            for (uint32_t b = 0; b < size; b++) to[b] = e < a.row_len ? line[(uint64_t)e * size + b] : 0;
        }
        return;
    }
    const uint32_t unit = row_of(a.type).unit;
    const uint8_t* b = line + (uint64_t)(group / unit) * a.block_bytes;
    uint32_t j = group % unit, e0 = j * 32;  // within the block
    switch (a.type) {
        case Q4_0:
        case Q4_1:
            for (int i = 0; i < 16; i++) r[g * 16 + i] = b[(a.type == Q4_0 ? 2 : 4) + i];
            if (a.type == Q4_0) store16(r + n * 16 + g * 2, load16(b));
            else store32(r + n * 16 + g * 4, load16(b) | load16(b + 2) << 16);
            break;
        case Q5_0:
        case Q5_1: {
            const uint8_t* h = b + (a.type == Q5_0 ? 2 : 4);
            uint32_t bits = load16(h) | load16(h + 2) << 16;
            for (int i = 0; i < 16; i++) r[g * 16 + i] = h[4 + i];
            store_bits(r + n * 16 + g * 4, [&](int i) { return bits >> i & 1; });
            if (a.type == Q5_0) store16(r + n * 20 + g * 2, load16(b));
            else store32(r + n * 20 + g * 4, load16(b) | load16(b + 2) << 16);
            break;
        }
        case Q8_0:
            for (int i = 0; i < 32; i++) r[(i / 16 * n + g) * 16 + i % 16] = b[2 + i];
            store16(r + n * 32 + g * 2, load16(b));
            break;
        case Q2_K:
            store_two_bits(r + g * 8, [&](int i) { return low2(b + 16, e0 + i); });
            store16(r + n * 8 + g * 2, load16(b + j * 2));
            if (j == 0) store32(r + n * 10 + (g >> 3) * 4, load16(b + 80) | load16(b + 82) << 16);
            break;
        case Q3_K: {
            store_two_bits(r + g * 8, [&](int i) { return low2(b + 32, e0 + i); });
            store_bits(r + n * 8 + g * 4, [&](int i) { return (uint32_t)b[i] >> j & 1; });
            uint32_t scales = 0;
            for (int half = 0; half < 2; half++) {
                uint32_t i = 2 * j + half;
                uint32_t low = i < 8 ? b[96 + i] & 15 : b[96 + i - 8] >> 4, high = b[96 + 8 + i % 4] >> 2 * (i / 4) & 3;
                scales |= ((low | high << 4) - 32 & 0xff) << 8 * half;
            }
            store16(r + n * 12 + g * 2, scales);
            if (j == 0) store16(r + n * 14 + (g >> 3) * 2, load16(b + 108));
            break;
        }
        case Q4_K:
        case Q5_K:
            store_nibbles(r + g * 16, [&](int i) { return nibble45(b + (a.type == Q4_K ? 16 : 48), e0 + i); });
            if (a.type == Q5_K) store_bits(r + n * 18 + g * 4, [&](int i) { return (uint32_t)b[16 + i] >> j & 1; });
            if (j == 0) {
                uint8_t* m = r + n * 16 + (g >> 3) * 16;
                store32(m, load16(b) | load16(b + 2) << 16);
                uint64_t bits = 0;  // 12 bits a group, the low 64 first
                uint32_t top = 0;
                for (uint32_t i = 0; i < 8; i++) {
                    uint64_t v = scale45(b + 4, i);
                    if (i < 5) bits |= v << 12 * i;
                    if (i == 5) { bits |= v << 60; top |= (uint32_t)(v >> 4); }
                    if (i > 5) top |= (uint32_t)v << (12 * i - 64);
                }
                store32(m + 4, (uint32_t)bits);
                store32(m + 8, (uint32_t)(bits >> 32));
                store32(m + 12, top);
            }
            break;
        case Q6_K:
            store_nibbles(r + g * 16, [&](int i) { return nibble6(b, e0 + i); });
            store_two_bits(r + n * 16 + g * 8, [&](int i) {
                uint32_t e = e0 + i;
                return (uint32_t)b[128 + e / 128 * 32 + e % 32] >> e / 32 % 4 * 2 & 3;
            });
            store16(r + n * 24 + g * 2, load16(b + 192 + j * 2));
            if (j == 0) store16(r + n * 26 + (g >> 3) * 2, load16(b + 208));
            break;
        case IQ4_NL:
            store_table(r + g * 16, [&](int i) { return (uint32_t)b[2 + i % 16] >> i / 16 * 4 & 15; });
            store16(r + n * 16 + g * 2, load16(b));
            break;
        case IQ4_XS: {
            store_table(r + g * 16, [&](int i) { return (uint32_t)b[8 + j * 16 + i % 16] >> i / 16 * 4 & 15; });
            uint32_t ls = (b[4 + j / 2] >> j % 2 * 4 & 15) | (load16(b + 2) >> 2 * j & 3) << 4;
            if (j == 0) store16(r + n * 16 + (g >> 3) * 2, load16(b));
            r[n * 16 + n / 8 * 2 + g] = (uint8_t)(ls - 32);
            break;
        }
        case MXFP4:
            store_table(r + g * 16, [&](int i) { return (uint32_t)b[1 + i % 16] >> i / 16 * 4 & 15; });
            r[n * 16 + g] = b[0];
            break;
        case NVFP4:
            store_table(r + g * 16, [&](int i) { return (uint32_t)b[4 + 8 * (2 * j + i / 16) + i % 8] >> i / 8 % 2 * 4 & 15; });
            store16(r + n * 16 + g * 2, load16(b + 2 * j));
            break;
        case GRID3:
        case GRID4: {
            auto number = [&](int i) { return grid_number(a.file, a.codebook, b, e0 + i); };
            uint8_t* table = r + n * (a.type == GRID3 ? 12 : 16);
            uint8_t* scales = table + (a.type == GRID3 ? 8 : 16);
            if (a.type == GRID3) {
                store_two_bits(r + g * 8, [&](int i) { return number(i) & 3; });
                store_bits(r + n * 8 + g * 4, [&](int i) { return number(i) >> 2; });
            } else store_table(r + g * 16, number);
            store16(scales + n / 8 * 4 + g * 2, grid_factor(a.file, b, 2 * j) | grid_factor(a.file, b, 2 * j + 1) << 8);
            if (j == 0) store32(scales + (g >> 3) * 4, __float_as_uint(__fmul_rn(half_bits(grid_scale(a.file, b)), a.factor)));
            if (g == 0)
                for (int i = 0; i < (a.type == GRID3 ? 2 : 4); i++) store32(table + 4 * i, a.values[i]);
            break;
        }
    }
}

// The place in `out` of row `r` of those that are unpacked.
__device__ __forceinline__ uint32_t unpacked_row(const UnpackArgs& a, uint32_t r) {
    const uint32_t plain = a.out_row + r;
    return a.spread ? plain + (plain / GATED_ROWS + a.spread - 1) * GATED_ROWS : plain;
}

// Where a warp of the kernels below works: 32 groups of a row, one a lane.
struct UnpackPlace {
    uint32_t row, first, group;  // first: of the warp
    __device__ __forceinline__ UnpackPlace(uint32_t per_row) {
        const uint32_t parts = tiles_of(per_row, 32), warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
        row = warp / parts;
        first = warp % parts * 32;
        group = first + (threadIdx.x & 31);
    }
};
// A group of a row of those to unpack: `use(record, group in the record, groups of the record)`.
template <uint32_t T, class F> __device__ __forceinline__ void with_group(const UnpackArgs& a, UnpackPlace at, F use) {
    const Slices c = slices_of(T, a.groups);
    const uint32_t s = at.group / c.full, g = at.group % c.full, n = s + 1 == c.count ? c.last : c.full;
    use(a.matrix + slice_offset(T, c, s, a.matrix_rows) + (uint64_t)(a.first_row + at.row) * record_bytes(T, n), g, n);
}

// Plain values of rows of a matrix in f16; those beyond its range are clamped to it. Where a row of an
// odd number of groups leaves half a tile, a lane fills that with zeros. 256 threads.
extern "C" __global__ void __launch_bounds__(256) unpack(const __grid_constant__ UnpackArgs a) {
    __shared__ uint4 staged[256 * 4];
    release_dependents();
    const uint32_t k_tiles = tiles_of(a.groups, 2), per_row = 2 * k_tiles, lane = threadIdx.x & 31;
    const UnpackPlace at(per_row);
    // What is there may be in use, until the kernels before have ended.
    if (!a.beside) wait_for_producers();
    if (at.row >= a.rows) return;
    if (a.starts) {
        const uint32_t expert = (a.first_row + at.row) / a.expert_rows;
        if (a.starts[expert] == a.starts[expert + 1]) return;
    }
    uint4 halves[4] = {};
    if (at.group < a.groups)
        for_type(a.type, [&]<uint32_t T>() {
            with_group<T>(a, at, [&](const uint8_t* r, uint32_t g, uint32_t n) {
                uint32_t u[16];
                if constexpr (is_float(T)) {
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        float v[8];
                        floats8<T, FromGlobal>(r, g, n, j, v);
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            __half2 h = __floats2half2_rn(fminf(fmaxf(v[2 * i], -65504.0f), 65504.0f), fminf(fmaxf(v[2 * i + 1], -65504.0f), 65504.0f));
                            u[4 * j + i] = *(uint32_t*)&h;
                        }
                    }
                } else {
                    Group o;
                    Codec<T>::template decode<FromGlobal>(r, g, n, o);
                    to_halves<T>(o, u);
                }
#pragma unroll
                for (int i = 0; i < 4; i++) halves[i] = make_uint4(u[4 * i], u[4 * i + 1], u[4 * i + 2], u[4 * i + 3]);
            });
        });
    // Through shared memory, so that 8 lanes write the 128 bytes of a tile's row.
    uint4* const mine = staged + (threadIdx.x & ~31u) * 4;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) mine[lane * 4 + (i ^ (lane >> 1 & 3))] = halves[i];
    __syncwarp();
    const uint32_t to = unpacked_row(a, at.row);
    uint8_t* const line = (uint8_t*)a.out + tiled(to, at.first / 2 * TILE_K, k_tiles) / 128 * 128;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        // Piece `lane % 8` of the row whose two halves lanes `pair` and `pair + 1` have.
        const uint32_t pair = i * 8 + lane / 8 * 2, from = pair + (lane & 7) / 4;
        const uint4 piece = mine[from * 4 + ((lane & 3) ^ (from >> 1 & 3))];
        if (at.first + pair < per_row) *(uint4*)(line + pair / 2 * TILE_BYTES + ((lane & 7) ^ (to & 7)) * 16) = piece;
    }
    // Whoever waits for this kernel waits for the one in front of it, too.
    if (a.beside) wait_for_producers();
}

// The same in f32, without tiles, experts and spreading. 256 threads.
extern "C" __global__ void __launch_bounds__(256) unpack_f32(const __grid_constant__ UnpackArgs a) {
    release_dependents();
    wait_for_producers();
    const UnpackPlace at(a.groups);
    if (at.row >= a.rows || at.group >= a.groups) return;
    float4* const to = (float4*)a.out + ((uint64_t)(a.out_row + at.row) * a.groups + at.group) * 8;
    for_type(a.type, [&]<uint32_t T>() {
        with_group<T>(a, at, [&](const uint8_t* r, uint32_t g, uint32_t n) {
            float v[32];
            group_values<T>(r, g, n, v);
#pragma unroll
            for (int i = 0; i < 8; i++) to[i] = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
        });
    });
}

// Of the records of some rows. 256 threads.
extern "C" __global__ void __launch_bounds__(256) largest_weight(const __grid_constant__ LargestArgs a) {
    release_dependents();
    wait_for_producers();
    const UnpackPlace at(a.groups);
    if (at.row >= a.rows) return;
    UnpackArgs records = {};
    records.matrix = a.matrix;
    records.groups = a.groups;
    records.matrix_rows = a.matrix_rows;
    records.first_row = a.first_row;
    float largest = 0.0f;
    if (at.group < a.groups)
        for_type(a.type, [&]<uint32_t T>() {
            if constexpr (!is_float(T))
                with_group<T>(records, at, [&](const uint8_t* r, uint32_t g, uint32_t n) {
                    Group o;
                    Codec<T>::template decode<FromGlobal>(r, g, n, o);
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        // At least 1, for the scale must fit, too.
                        int number = 1;
#pragma unroll
                        for (int i = 0; i < 16; i++) {
                            const uint32_t byte = o.w[h * 4 + i / 4] >> i % 4 * 8 & 0xff;
                            number = max(number, abs(Codec<T>::OFFSET ? (int)byte - Codec<T>::OFFSET : (int)(int8_t)byte));
                        }
                        const float bound = fabsf(o.d[h]) * (float)number + (Codec<T>::MINS ? fabsf(o.m[h]) : 0.0f);
                        largest = largest_or_nan(largest, bound);
                    }
                });
        });
#pragma unroll
    for (int o = 16; o; o >>= 1) largest = largest_or_nan(largest, __shfl_xor_sync(~0u, largest, o));
    // Floats that are not negative are in the order of their bits, and what is not a number is above all.
    if ((threadIdx.x & 31) == 0) atomicMax((uint32_t*)a.largest, __float_as_uint(largest));
}
