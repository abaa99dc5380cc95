// The element types on the GPU: the record layout of repacked weights and the decoders.
//
// Elements come in groups of 32 along a row (a short last group is filled with zeros). A row is cut
// into slices of at most 32 groups, one group per lane of a warp; the slices of a matrix lie one
// after the other, and within a slice one record per row, so that a warp streams one slice of many
// rows from consecutive addresses while its share of the input stays in registers.
//
// A record of `n` groups is a few planes, each with one item per group (or per 8 groups, for types
// with blocks of 256), and is a multiple of 16 bytes long. Low bits of 4-bit and wider types: byte i
// of a group's 16 holds element i in its low and element i + 16 in its high nibble.
#pragma once
#include "common.cuh"

enum Type : uint32_t {
    F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4, GRID3, GRID4,
    TYPE_COUNT
};

// As in record.rs: groups that share a block, so that a slice boundary must not fall between them, and a record's
// bytes per group, per block, and beside these.
struct TypeRow {
    uint32_t unit, per_group, per_block, per_record;
};
__host__ __device__ constexpr TypeRow row_of(uint32_t t) {
    switch (t) {
        case F32: return {1, 128, 0, 0};
        case F16: return {1, 64, 0, 0};
        case BF16: return {1, 64, 0, 0};
        case Q4_0: return {1, 18, 0, 0};
        case Q4_1: return {1, 20, 0, 0};
        case Q5_0: return {1, 22, 0, 0};
        case Q5_1: return {1, 24, 0, 0};
        case Q8_0: return {1, 34, 0, 0};
        case Q2_K: return {8, 10, 4, 0};
        case Q3_K: return {8, 14, 2, 0};
        case Q4_K: return {8, 16, 16, 0};
        case Q5_K: return {8, 20, 16, 0};
        case Q6_K: return {8, 26, 2, 0};
        case IQ4_NL: return {1, 18, 0, 0};
        case IQ4_XS: return {8, 17, 2, 0};
        case MXFP4: return {1, 17, 0, 0};
        case NVFP4: return {2, 18, 0, 0};
        case GRID3: return {8, 14, 4, 8};
        case GRID4: return {8, 18, 4, 16};
        default: return {1, 0, 0, 0};
    }
}
__host__ __device__ constexpr bool is_float(uint32_t t) { return t <= BF16; }
// Bytes of a record of n groups.
__host__ __device__ constexpr uint32_t record_bytes(uint32_t t, uint32_t n) {
    const TypeRow row = row_of(t);
    return (n * row.per_group + n / row.unit * row.per_block + row.per_record + 15) / 16 * 16;
}

// How the rows of a matrix are cut.
struct Slices {
    uint32_t count;  // slices
    uint32_t full;   // groups of every slice but the last
    uint32_t last;   // groups of the last
};
__host__ __device__ constexpr Slices slices_of(uint32_t t, uint32_t groups) {
    uint32_t unit = row_of(t).unit, units = groups / unit;
    uint32_t want = (groups + 31) / 32, per = (units + want - 1) / want;
    uint32_t count = (units + per - 1) / per;
    return Slices{count, per * unit, (units - per * (count - 1)) * unit};
}
// Offset of slice s of a matrix.
__host__ __device__ constexpr uint64_t slice_offset(uint32_t t, Slices c, uint32_t s, uint32_t rows) {
    return (uint64_t)s * rows * record_bytes(t, c.full);
}
__host__ __device__ constexpr uint64_t matrix_bytes(uint32_t t, uint32_t groups, uint32_t rows) {
    Slices c = slices_of(t, groups);
    return slice_offset(t, c, c.count - 1, rows) + (uint64_t)rows * record_bytes(t, c.last);
}

// Loads from a record, which lies in shared memory or (read once) in global memory. A decoder asks for the same in the same order,
// whatever the record holds.
struct FromShared {
    static __device__ __forceinline__ uint4 v4(const void* p) { return *(const uint4*)p; }
    static __device__ __forceinline__ uint2 v2(const void* p) { return *(const uint2*)p; }
    static __device__ __forceinline__ uint32_t u32(const void* p) { return *(const uint32_t*)p; }
    static __device__ __forceinline__ uint32_t u16(const void* p) { return *(const uint16_t*)p; }
    static __device__ __forceinline__ uint32_t u8(const void* p) { return *(const uint8_t*)p; }
};
struct FromGlobal {
    static __device__ __forceinline__ uint4 v4(const void* p) { return load_once(p); }
    static __device__ __forceinline__ uint2 v2(const void* p) { return __ldg((const uint2*)p); }
    static __device__ __forceinline__ uint32_t u32(const void* p) { return __ldg((const uint32_t*)p); }
    static __device__ __forceinline__ uint32_t u16(const void* p) { return __ldg((const uint16_t*)p); }
    static __device__ __forceinline__ uint32_t u8(const void* p) { return __ldg((const uint8_t*)p); }
};

// A decoded group: bytes w (element 4t + b is byte b of w[t]), and per half of 16 elements a scale
// and, where MINS, a subtrahend: value = d * (byte - OFFSET) - m. Bytes are signed where OFFSET is 0.
struct Group {
    uint32_t w[8];
    float d[2], m[2];
};

__device__ __forceinline__ void nibbles(uint4 q, uint32_t* w) {
    w[0] = q.x & 0x0f0f0f0f; w[1] = q.y & 0x0f0f0f0f; w[2] = q.z & 0x0f0f0f0f; w[3] = q.w & 0x0f0f0f0f;
    w[4] = q.x >> 4 & 0x0f0f0f0f; w[5] = q.y >> 4 & 0x0f0f0f0f; w[6] = q.z >> 4 & 0x0f0f0f0f; w[7] = q.w >> 4 & 0x0f0f0f0f;
}
// Bit plane: bit 8b + t of h belongs to element 4t + b, bit 8b + 4 + t to element 16 + 4t + b.
__device__ __forceinline__ void add_bits(uint32_t h, int at, uint32_t* w) {
#pragma unroll
    for (int t = 0; t < 8; t++) w[t] |= (h >> t & 0x01010101) << at;
}
// Two-bit plane: bits 8b + 2t of h[0] belong to element 4t + b, of h[1] to element 16 + 4t + b.
__device__ __forceinline__ uint32_t two_bits(uint2 h, int t) {
    return (t < 4 ? h.x >> 2 * t : h.y >> 2 * (t - 4)) & 0x03030303;
}
// Of a table of sixteen signed bytes, those that the four nibbles of `sel`'s low 16 bits index.
__device__ __forceinline__ uint32_t sixteen_values(uint4 table, uint32_t sel) {
    const uint32_t low = __byte_perm(table.x, table.y, sel & 0x7777), high = __byte_perm(table.z, table.w, sel & 0x7777);
    // Bytes of `low` where bit 3 of the nibble is clear, else of `high`.
    return __byte_perm(low, high, 0x3210 + ((sel & 0x8888) >> 1));
}

// Small integers as floats without a conversion, which runs at a quarter of the rate of additions.
__device__ __forceinline__ float small_float(uint32_t n) {
    return __fsub_rn(__uint_as_float(0x4b000000 | n), 8388608.0f);
}
__device__ __forceinline__ float small_signed(uint32_t byte) {
    return __fsub_rn(__uint_as_float(0x4b000000 | (byte ^ 0x80)), 8388608.0f + 128.0f);
}

// Integers below 2^22 in absolute value, added to the bits of this float, make the float MAGIC + i: sums
// that begin there become floats by one addition, or none.
constexpr int MAGIC_BITS = 0x4b400000;
constexpr float MAGIC = 12582912.0f;
// MAGIC + i, and i, of such a sum.
__device__ __forceinline__ float raised(int sum) { return __int_as_float(sum); }
__device__ __forceinline__ float lowered(int sum) { return __fsub_rn(__int_as_float(sum), MAGIC); }

template <uint32_t T> struct Codec;

template <> struct Codec<Q8_0> {
    static constexpr bool HALVES = false, MINS = false; static constexpr int OFFSET = 0;
    template <class L> static __device__ __forceinline__ void decode(const uint8_t* r, uint32_t g, uint32_t n, Group& o, L&& from = L()) {
        uint4 a = from.v4(r + g * 16), b = from.v4(r + n * 16 + g * 16);
        o.w[0] = a.x; o.w[1] = a.y; o.w[2] = a.z; o.w[3] = a.w; o.w[4] = b.x; o.w[5] = b.y; o.w[6] = b.z; o.w[7] = b.w;
        o.d[0] = o.d[1] = half_bits(from.u16(r + n * 32 + g * 2));
    }
};
template <uint32_t T> struct CodecLegacy {  // Q4_0, Q4_1, Q5_0, Q5_1: nibbles, [bits], scale, [minimum]
    static constexpr bool HALVES = false, MINS = T == Q4_1 || T == Q5_1, BITS = T == Q5_0 || T == Q5_1;
    static constexpr int OFFSET = T == Q4_0 ? 8 : T == Q5_0 ? 16 : 0;
    template <class L> static __device__ __forceinline__ void decode(const uint8_t* r, uint32_t g, uint32_t n, Group& o, L&& from = L()) {
        nibbles(from.v4(r + g * 16), o.w);
        const uint8_t* s = r + n * 16;
        if (BITS) { add_bits(from.u32(s + g * 4), 4, o.w); s += n * 4; }
        if (MINS) {
            uint32_t dm = from.u32(s + g * 4);
            o.d[0] = o.d[1] = half_bits(dm & 0xffff);
            o.m[0] = o.m[1] = -half_bits(dm >> 16);
        } else {
            o.d[0] = o.d[1] = half_bits(from.u16(s + g * 2));
        }
    }
};
template <> struct Codec<Q4_0> : CodecLegacy<Q4_0> {};
template <> struct Codec<Q4_1> : CodecLegacy<Q4_1> {};
template <> struct Codec<Q5_0> : CodecLegacy<Q5_0> {};
template <> struct Codec<Q5_1> : CodecLegacy<Q5_1> {};

// Q4_K, Q5_K: per 256 elements 16 bytes: d, dmin (f16), then 12 bits a group, scale | minimum << 6.
template <uint32_t T> struct CodecK45 {
    static constexpr bool HALVES = false, MINS = true; static constexpr int OFFSET = 0;
    template <class L> static __device__ __forceinline__ void decode(const uint8_t* r, uint32_t g, uint32_t n, Group& o, L&& from = L()) {
        nibbles(from.v4(r + g * 16), o.w);
        if (T == Q5_K) add_bits(from.u32(r + n * 18 + g * 4), 4, o.w);
        scales(r, g, n, o.d[0], o.m[0], from);
        o.d[1] = o.d[0];
        o.m[1] = o.m[0];
    }
    template <class L> static __device__ __forceinline__ void scales(const uint8_t* r, uint32_t g, uint32_t n, float& scale, float& minimum, L&& from = L()) {
        uint4 m = from.v4(r + n * 16 + (g >> 3) * 16);
        uint32_t bit = (g & 7) * 12, word = bit >> 5;
        uint32_t lo = word == 0 ? m.y : word == 1 ? m.z : m.w, hi = word == 0 ? m.z : m.w;
        uint32_t sm = __funnelshift_r(lo, hi, bit & 31);
        scale = __fmul_rn(half_bits(m.x & 0xffff), small_float(sm & 63));
        minimum = __fmul_rn(half_bits(m.x >> 16), small_float(sm >> 6 & 63));
    }
};
template <> struct Codec<Q4_K> : CodecK45<Q4_K> {};
template <> struct Codec<Q5_K> : CodecK45<Q5_K> {};

template <> struct Codec<Q6_K> {
    static constexpr bool HALVES = true, MINS = false; static constexpr int OFFSET = 32;
    template <class L> static __device__ __forceinline__ void decode(const uint8_t* r, uint32_t g, uint32_t n, Group& o, L&& from = L()) {
        nibbles(from.v4(r + g * 16), o.w);
        uint2 h = from.v2(r + n * 16 + g * 8);
#pragma unroll
        for (int t = 0; t < 8; t++) o.w[t] |= two_bits(h, t) << 4;
        uint32_t s = from.u16(r + n * 24 + g * 2);
        float d = half_bits(from.u16(r + n * 26 + (g >> 3) * 2));
        o.d[0] = __fmul_rn(d, small_signed(s & 0xff));
        o.d[1] = __fmul_rn(d, small_signed(s >> 8));
    }
};
template <> struct Codec<Q2_K> {
    static constexpr bool HALVES = true, MINS = true; static constexpr int OFFSET = 0;
    template <class L> static __device__ __forceinline__ void decode(const uint8_t* r, uint32_t g, uint32_t n, Group& o, L&& from = L()) {
        uint2 q = from.v2(r + g * 8);
#pragma unroll
        for (int t = 0; t < 8; t++) o.w[t] = two_bits(q, t);
        uint32_t s = from.u16(r + n * 8 + g * 2), dm = from.u32(r + n * 10 + (g >> 3) * 4);
        float d = half_bits(dm & 0xffff), m = half_bits(dm >> 16);
        o.d[0] = __fmul_rn(d, (float)(s & 15)); o.m[0] = __fmul_rn(m, (float)(s >> 4 & 15));
        o.d[1] = __fmul_rn(d, (float)(s >> 8 & 15)); o.m[1] = __fmul_rn(m, (float)(s >> 12));
    }
};
template <> struct Codec<Q3_K> {
    static constexpr bool HALVES = true, MINS = false; static constexpr int OFFSET = 4;
    template <class L> static __device__ __forceinline__ void decode(const uint8_t* r, uint32_t g, uint32_t n, Group& o, L&& from = L()) {
        uint2 q = from.v2(r + g * 8);
#pragma unroll
        for (int t = 0; t < 8; t++) o.w[t] = two_bits(q, t);
        add_bits(from.u32(r + n * 8 + g * 4), 2, o.w);
        uint32_t s = from.u16(r + n * 12 + g * 2);
        float d = half_bits(from.u16(r + n * 14 + (g >> 3) * 2));
        o.d[0] = __fmul_rn(d, (float)(int8_t)(s & 0xff));
        o.d[1] = __fmul_rn(d, (float)(int8_t)(s >> 8));
    }
};
// Types whose 4-bit values index a table. Word t of a group: elements 4t.. in the low 16 bits, lowest
// nibble first, elements 16 + 4t.. in the high 16.
struct TableNl { static __device__ __forceinline__ uint32_t get(uint32_t s) { return sixteen_values(make_uint4(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u), s); } };
// Its upper half is the lower one's negative. Where a nibble's highest bit is set, a byte that is not negative gives zeros.
struct TableFp4 {
    static __device__ __forceinline__ uint32_t get(uint32_t s) {
        const uint32_t positive = permuted(0x03020100u, 0x0c080604u, s), negative = permuted(0x03020100u, 0x0c080604u, s ^ 0x8888);
        return positive | ((0x80808080u - negative) ^ 0x80808080u);
    }
};
template <class Table> __device__ __forceinline__ void table_values(uint4 q, uint32_t* w) {
    w[0] = Table::get(q.x); w[1] = Table::get(q.y); w[2] = Table::get(q.z); w[3] = Table::get(q.w);
    w[4] = Table::get(q.x >> 16); w[5] = Table::get(q.y >> 16); w[6] = Table::get(q.z >> 16); w[7] = Table::get(q.w >> 16);
}
template <> struct Codec<IQ4_NL> {
    static constexpr bool HALVES = false, MINS = false; static constexpr int OFFSET = 0;
    template <class L> static __device__ __forceinline__ void decode(const uint8_t* r, uint32_t g, uint32_t n, Group& o, L&& from = L()) {
        table_values<TableNl>(from.v4(r + g * 16), o.w);
        o.d[0] = o.d[1] = half_bits(from.u16(r + n * 16 + g * 2));
    }
};
template <> struct Codec<IQ4_XS> {
    static constexpr bool HALVES = false, MINS = false; static constexpr int OFFSET = 0;
    template <class L> static __device__ __forceinline__ void decode(const uint8_t* r, uint32_t g, uint32_t n, Group& o, L&& from = L()) {
        table_values<TableNl>(from.v4(r + g * 16), o.w);
        float d = half_bits(from.u16(r + n * 16 + (g >> 3) * 2));
        o.d[0] = o.d[1] = __fmul_rn(d, (float)(int8_t)from.u8(r + n * 16 + n / 8 * 2 + g));
    }
};
template <> struct Codec<MXFP4> {
    static constexpr bool HALVES = false, MINS = false; static constexpr int OFFSET = 0;
    template <class L> static __device__ __forceinline__ void decode(const uint8_t* r, uint32_t g, uint32_t n, Group& o, L&& from = L()) {
        table_values<TableFp4>(from.v4(r + g * 16), o.w);
        uint32_t e = from.u8(r + n * 16 + g);  // half of 2^(e - 127): the table holds doubled values
        o.d[0] = o.d[1] = __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    }
};

// An unsigned float of 4 bits of exponent and 3 of mantissa, halved: the table has doubled values.
__device__ __forceinline__ float ue4m3_half(uint32_t x) {
    const uint32_t e = x >> 3 & 15, m = x & 7;
    if (x == 127) return 0.0f;
    return e == 0 ? __fmul_rn((float)m, 1.0f / 1024.0f) : __uint_as_float((e + 119) << 23 | m << 20);
}
template <> struct Codec<NVFP4> {
    static constexpr bool HALVES = true, MINS = false; static constexpr int OFFSET = 0;
    template <class L> static __device__ __forceinline__ void decode(const uint8_t* r, uint32_t g, uint32_t n, Group& o, L&& from = L()) {
        table_values<TableFp4>(from.v4(r + g * 16), o.w);
        const uint32_t s = from.u16(r + n * 16 + g * 2);
        o.d[0] = ue4m3_half(s & 0xff);
        o.d[1] = ue4m3_half(s >> 8);
    }
};

// Types with codebooks: numbers of 3 or 4 bits, a table of the values that they stand for, a scale (f32) for each 256
// elements, and the small factor of each 16.
template <class L> __device__ __forceinline__ void grid_scales(const uint8_t* scales, uint32_t g, uint32_t n, Group& o, L&& from) {
    const float d = __uint_as_float(from.u32(scales + (g >> 3) * 4));
    const uint32_t s = from.u16(scales + n / 8 * 4 + g * 2);
    o.d[0] = __fmul_rn(d, small_float(s & 0xff));
    o.d[1] = __fmul_rn(d, small_float(s >> 8));
}
// Values of four numbers below 8, one to a byte.
__device__ __forceinline__ uint32_t eight_values(uint2 table, uint32_t numbers) {
    return __byte_perm(table.x, table.y, __byte_perm(numbers | numbers >> 4, 0, 0x4420));
}
template <> struct Codec<GRID3> {
    static constexpr bool HALVES = true, MINS = false; static constexpr int OFFSET = 0;
    template <class L> static __device__ __forceinline__ void decode(const uint8_t* r, uint32_t g, uint32_t n, Group& o, L&& from = L()) {
        const uint2 q = from.v2(r + g * 8), table = from.v2(r + n * 12);
#pragma unroll
        for (int t = 0; t < 8; t++) o.w[t] = two_bits(q, t);
        add_bits(from.u32(r + n * 8 + g * 4), 2, o.w);
#pragma unroll
        for (int t = 0; t < 8; t++) o.w[t] = eight_values(table, o.w[t]);
        grid_scales(r + n * 12 + 8, g, n, o, from);
    }
};
template <> struct Codec<GRID4> {
    static constexpr bool HALVES = true, MINS = false; static constexpr int OFFSET = 0;
    template <class L> static __device__ __forceinline__ void decode(const uint8_t* r, uint32_t g, uint32_t n, Group& o, L&& from = L()) {
        const uint4 q = from.v4(r + g * 16), table = from.v4(r + n * 16);
        const uint32_t u[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int t = 0; t < 4; t++) {
            o.w[t] = sixteen_values(table, u[t]);
            o.w[4 + t] = sixteen_values(table, u[t] >> 16);
        }
        grid_scales(r + n * 16 + 16, g, n, o, from);
    }
};

// Words t and 4 + t (elements 4t.. and 16 + 4t..) of a decoded group, for tensor cores, where four
// lanes share a group.
template <uint32_t T> __device__ __forceinline__ void two_words(const uint8_t* r, uint32_t g, uint32_t n, uint32_t t, uint32_t& lo, uint32_t& hi) {
    using L = FromShared;
    if constexpr (T == Q8_0) {
        lo = L::u32(r + g * 16 + 4 * t);
        hi = L::u32(r + (n + g) * 16 + 4 * t);
    } else if constexpr (T == Q2_K || T == Q3_K || T == GRID3) {
        uint2 h = L::v2(r + g * 8);
        lo = h.x >> 2 * t & 0x03030303;
        hi = h.y >> 2 * t & 0x03030303;
    } else {
        uint32_t q = L::u32(r + g * 16 + 4 * t);
        if constexpr (T == IQ4_NL || T == IQ4_XS) { lo = TableNl::get(q); hi = TableNl::get(q >> 16); }
        else if constexpr (T == MXFP4 || T == NVFP4) { lo = TableFp4::get(q); hi = TableFp4::get(q >> 16); }
        else if constexpr (T == GRID4) {
            const uint4 table = L::v4(r + n * 16);
            lo = sixteen_values(table, q);
            hi = sixteen_values(table, q >> 16);
        }
        else { lo = q & 0x0f0f0f0f; hi = q >> 4 & 0x0f0f0f0f; }
    }
    if constexpr (T == Q6_K) {
        uint2 h = L::v2(r + n * 16 + g * 8);
        lo |= (h.x >> 2 * t & 0x03030303) << 4;
        hi |= (h.y >> 2 * t & 0x03030303) << 4;
    }
    if constexpr (T == Q5_0 || T == Q5_1 || T == Q5_K || T == Q3_K || T == GRID3) {
        constexpr bool TWO = T == Q3_K || T == GRID3;
        constexpr int at = TWO ? 2 : 4;
        uint32_t h = L::u32(r + (T == Q5_K ? n * 18 : TWO ? n * 8 : n * 16) + g * 4);
        lo |= (h >> t & 0x01010101) << at;
        hi |= (h >> (4 + t) & 0x01010101) << at;
    }
    if constexpr (T == GRID3) {
        const uint2 table = L::v2(r + n * 12);
        lo = eight_values(table, lo);
        hi = eight_values(table, hi);
    }
}

// Element i (0..31) of a decoded group, rounded as the reference does: product, then difference.
template <uint32_t T> __device__ __forceinline__ float element(const Group& g, int i) {
    uint32_t byte = g.w[i >> 2] >> 8 * (i & 3) & 0xff;
    int q = Codec<T>::OFFSET ? (int)byte - Codec<T>::OFFSET : (int)(int8_t)byte;
    float v = __fmul_rn(g.d[i >> 4], (float)q);
    return Codec<T>::MINS ? __fsub_rn(v, g.m[i >> 4]) : v;
}

// Float types: plane j of a record holds, 16 bytes a group, elements j * E .. of each group, E = 8
// for the 16-bit types and 4 for F32. Element values of 8 consecutive elements, j8 = 0..3.
template <uint32_t T, class L> __device__ __forceinline__ void floats8(const uint8_t* r, uint32_t g, uint32_t n, int j8, float* v) {
    if (T == F32) {
        uint4 a = L::v4(r + ((2 * j8) * n + g) * 16), b = L::v4(r + ((2 * j8 + 1) * n + g) * 16);
        v[0] = __uint_as_float(a.x); v[1] = __uint_as_float(a.y); v[2] = __uint_as_float(a.z); v[3] = __uint_as_float(a.w);
        v[4] = __uint_as_float(b.x); v[5] = __uint_as_float(b.y); v[6] = __uint_as_float(b.z); v[7] = __uint_as_float(b.w);
    } else {
        uint4 a = L::v4(r + (j8 * n + g) * 16);
        uint32_t u[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = T == F16 ? half_bits(u[i] & 0xffff) : __uint_as_float(u[i] << 16);
            v[2 * i + 1] = T == F16 ? half_bits(u[i] >> 16) : __uint_as_float(u[i] & 0xffff0000u);
        }
    }
}

// The 32 element values of group g of a record, whatever the type.
template <uint32_t T> __device__ __forceinline__ void group_values(const uint8_t* r, uint32_t g, uint32_t n, float* v) {
    if constexpr (is_float(T)) {
#pragma unroll
        for (int j = 0; j < 4; j++) floats8<T, FromGlobal>(r, g, n, j, v + 8 * j);
    } else {
        Group o;
        Codec<T>::template decode<FromGlobal>(r, g, n, o);
#pragma unroll
        for (int i = 0; i < 32; i++) v[i] = element<T>(o, i);
    }
}

// f.template operator()<T>() for the run-time type t.
template <class F> __device__ __forceinline__ void for_type(uint32_t t, F f) {
    switch (t) {
        case F32: f.template operator()<F32>(); break;
        case F16: f.template operator()<F16>(); break;
        case BF16: f.template operator()<BF16>(); break;
        case Q4_0: f.template operator()<Q4_0>(); break;
        case Q4_1: f.template operator()<Q4_1>(); break;
        case Q5_0: f.template operator()<Q5_0>(); break;
        case Q5_1: f.template operator()<Q5_1>(); break;
        case Q8_0: f.template operator()<Q8_0>(); break;
        case Q2_K: f.template operator()<Q2_K>(); break;
        case Q3_K: f.template operator()<Q3_K>(); break;
        case Q4_K: f.template operator()<Q4_K>(); break;
        case Q5_K: f.template operator()<Q5_K>(); break;
        case Q6_K: f.template operator()<Q6_K>(); break;
        case IQ4_NL: f.template operator()<IQ4_NL>(); break;
        case IQ4_XS: f.template operator()<IQ4_XS>(); break;
        case MXFP4: f.template operator()<MXFP4>(); break;
        case NVFP4: f.template operator()<NVFP4>(); break;
        case GRID3: f.template operator()<GRID3>(); break;
        case GRID4: f.template operator()<GRID4>(); break;
    }
}
