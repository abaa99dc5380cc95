// Products of a few input rows with a quantized matrix: the decode step's work horse.
//
// A block owns a run of output rows of one segment (matrix). Its work is the list of (slice, row)
// pairs, slice by slice; each warp takes an equal, contiguous part of that list, keeps the inputs of
// the current slice in registers (one group of 32 a lane) and streams records of consecutive rows.
// (product.cuh does one row on Hopper and later.)
//
// Order of additions, whatever the batch, the grid or the card: a group's integer products are exact,
// groups of a slice are added over the lanes in a butterfly (distance 16, 8, 4, 2, 1), slices in
// ascending order, then bias, then residual.
#pragma once
#include "args_common.h"
#include "blocks.cuh"
#include "bulk.cuh"

// Rows whose sums go over the lanes together: bounded by registers.
template <uint32_t T, int NB> constexpr int rows_at_once() {
    return is_float(T) ? 1 : NB > 4 || T == Q8_0 || T == Q6_K ? 2 : 4;
}

// Position in a warp's part of the (slice, row) list.
struct Cursor {
    uint32_t item, end, row, slice;
    __device__ __forceinline__ void start(uint32_t first, uint32_t last, uint32_t rows) {
        item = first; end = last; slice = first / rows; row = first - slice * rows;
    }
    __device__ __forceinline__ uint32_t count(uint32_t at_once, uint32_t rows) const {
        return min(min(at_once, rows - row), end - item);
    }
    __device__ __forceinline__ void advance(uint32_t n, uint32_t rows) {
        item += n; row += n;
        if (row == rows) { row = 0; slice++; }
    }
};

// Sums CR values over the lanes; the sum of value u ends in lanes whose top bits spell u.
template <int CR> __device__ __forceinline__ float butterfly(float* acc, int lane) {
    int o = 16;
#pragma unroll
    for (int n = CR; n > 1; n >>= 1) {
        bool upper = lane & o;
#pragma unroll
        for (int i = 0; i < n / 2; i++) {
            float give = upper ? acc[i] : acc[i + n / 2], keep = upper ? acc[i + n / 2] : acc[i];
            acc[i] = __fadd_rn(keep, __shfl_xor_sync(~0u, give, o));
        }
        o >>= 1;
    }
    float t = acc[0];
#pragma unroll
    for (; o; o >>= 1) t = __fadd_rn(t, __shfl_xor_sync(~0u, t, o));
    return t;
}
template <int CR> __device__ __forceinline__ uint32_t butterfly_row(int lane) {
    return CR == 8 ? (lane >> 4 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1) : CR == 4 ? (lane >> 4 & 1) * 2 + (lane >> 3 & 1) : CR == 2 ? lane >> 4 & 1 : 0;
}

// The inputs of one lane's group, for NB rows.
template <int NB> struct QuantizedInput {
    int x[NB][8];
    float d[NB];
    template <uint32_t T> __device__ __forceinline__ void load(const MatvecArgs& a, uint32_t group, bool active) {
#pragma unroll
        for (int b = 0; b < NB; b++) {
            uint32_t row = min((uint32_t)b, a.batch - 1);
            int4 p = make_int4(0, 0, 0, 0), q = p;
            d[b] = 0.0f;
            if (active) {
                const int4* from = (const int4*)(a.q8 + ((uint64_t)row * a.groups + group) * 32);
                p = from[0]; q = from[1];
                d[b] = a.q8_scale[(uint64_t)row * a.groups + group];
            }
            x[b][0] = p.x; x[b][1] = p.y; x[b][2] = p.z; x[b][3] = p.w;
            x[b][4] = q.x; x[b][5] = q.y; x[b][6] = q.z; x[b][7] = q.w;
        }
    }
    template <uint32_t T> __device__ __forceinline__ int half_sum(int b, int h) const {
        int s = 0;
#pragma unroll
        for (int t = 0; t < 4; t++) s = __dp4a(x[b][4 * h + t], 0x01010101, s);
        return s;
    }
    // Product of a lane's group with input row b.
    template <uint32_t T> __device__ __forceinline__ float dot(const Group& g, int b, int s0, int s1) const {
        using C = Codec<T>;
        int i0 = C::OFFSET ? -C::OFFSET * s0 : 0, i1 = C::OFFSET ? -C::OFFSET * s1 : 0;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            i0 = __dp4a((int)g.w[t], x[b][t], i0);
            i1 = __dp4a((int)g.w[4 + t], x[b][4 + t], i1);
        }
        float v;
        if (C::HALVES) v = __fmaf_rn(g.d[1], (float)i1, __fmul_rn(g.d[0], (float)i0));
        else v = __fmul_rn(g.d[0], (float)(i0 + i1));
        if (C::MINS) {
            if (C::HALVES) v = __fmaf_rn(-g.m[1], (float)s1, __fmaf_rn(-g.m[0], (float)s0, v));
            else v = __fmaf_rn(-g.m[0], (float)(s0 + s1), v);
        }
        return __fmul_rn(d[b], v);
    }
};

template <uint32_t T, int NB> struct QuantizedPart {
    QuantizedInput<NB> in;
    int s[NB][2];
    __device__ __forceinline__ void load(const MatvecArgs& a, uint32_t group, bool active) {
        in.template load<T>(a, group, active);
        if (Codec<T>::MINS || Codec<T>::OFFSET)
#pragma unroll
            for (int b = 0; b < NB; b++) { s[b][0] = in.template half_sum<T>(b, 0); s[b][1] = in.template half_sum<T>(b, 1); }
    }
    template <class L> __device__ __forceinline__ void dot(const uint8_t* r, uint32_t g, uint32_t n, float* acc, int stride) const {
        Group w;
        Codec<T>::template decode<L>(r, g, n, w);
#pragma unroll
        for (int b = 0; b < NB; b++) acc[b * stride] = in.template dot<T>(w, b, s[b][0], s[b][1]);
    }
};
template <uint32_t T, int NB> struct FloatPart {
    float x[NB][32];
    __device__ __forceinline__ void load(const MatvecArgs& a, uint32_t group, bool active) {
#pragma unroll
        for (int b = 0; b < NB; b++) {
            const float4* from = (const float4*)(a.f32 + ((uint64_t)min((uint32_t)b, a.batch - 1) * a.groups + group) * 32);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float4 v = active ? from[i] : make_float4(0, 0, 0, 0);
                x[b][4 * i] = v.x; x[b][4 * i + 1] = v.y; x[b][4 * i + 2] = v.z; x[b][4 * i + 3] = v.w;
            }
        }
    }
    template <class L> __device__ __forceinline__ void dot(const uint8_t* r, uint32_t g, uint32_t n, float* acc, int stride) const {
        float sum[NB];
#pragma unroll
        for (int b = 0; b < NB; b++) sum[b] = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float v[8];
            floats8<T, L>(r, g, n, j, v);
#pragma unroll
            for (int b = 0; b < NB; b++)
#pragma unroll
                for (int i = 0; i < 8; i++) sum[b] = __fmaf_rn(v[i], x[b][8 * j + i], sum[b]);
        }
#pragma unroll
        for (int b = 0; b < NB; b++) acc[b * stride] = sum[b];
    }
};

// Asks for the first of a block's records to be brought into the L2 cache: while the predecessors of a
// kernel are at work, the memory is idle.
__device__ __forceinline__ void prefetch(const MatvecArgs& a, const Segment& s, Slices c, uint32_t row0, uint32_t rows, uint32_t full, uint32_t last) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x != 0) return;
    uint32_t left = a.prefetch_bytes;
    for (uint32_t i = 0; i < c.count && left > 0; i++) {
        const uint32_t record = i + 1 == c.count ? last : full, bytes = min(left, rows * record) & ~15u;
        const uint8_t* from = s.matrix + slice_offset(s.type, c, i, s.rows) + (uint64_t)row0 * record;
        if (bytes > 0) bulk_prefetch(from, bytes);
        left -= bytes;
        if (bytes == 0) break;
    }
#endif
}

// Rows [row0, row0 + rows) of a segment: partial sums into part[slice][row][NB].
template <uint32_t T, int NB, class Part>
__device__ __forceinline__ void stream(const MatvecArgs& a, const Segment& s, uint32_t row0, uint32_t rows, bool& awaited, float* part) {
    constexpr int CR = rows_at_once<T, NB>();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Slices c = slices_of(T, a.groups);
    const uint32_t items = c.count * rows, full = record_bytes(T, c.full), last = record_bytes(T, c.last);
    const uint32_t first = items * (uint64_t)warp / WARPS, end = items * (uint64_t)(warp + 1) / WARPS;
    auto source = [&](const Cursor& k) {
        return s.matrix + slice_offset(T, c, k.slice, s.rows) + (uint64_t)(row0 + k.row) * (k.slice + 1 == c.count ? last : full);
    };
    if (!awaited) {
        prefetch(a, s, c, row0, rows, full, last);
        wait_for_producers();
        awaited = true;
    }
    Cursor k;
    k.start(first, end, rows);
    uint32_t loaded = ~0u, n_groups = 0;
    Part in;
    while (k.item < k.end) {
        if (k.slice != loaded) {
            loaded = k.slice;
            n_groups = loaded + 1 == c.count ? c.last : c.full;
            in.load(a, loaded * c.full + lane, lane < n_groups);
        }
        const uint32_t n = k.count(CR, rows);
        float acc[NB][CR];
        const uint8_t* r = source(k);
        const uint32_t record = k.slice + 1 == c.count ? last : full;
        if (n == CR && n_groups == 32) {
            // Whole records: offsets are constants.
            constexpr uint32_t whole = record_bytes(T, 32);
#pragma unroll
            for (int u = 0; u < CR; u++) {
                in.template dot<FromGlobal>(r + u * whole, lane, 32, &acc[0][u], CR);
            }
        } else
#pragma unroll
        for (int u = 0; u < CR; u++) {
            if (u < n && lane < n_groups) {
                in.template dot<FromGlobal>(r + u * record, lane, n_groups, &acc[0][u], CR);
            } else {
#pragma unroll
                for (int b = 0; b < NB; b++) acc[b][u] = 0.0f;
            }
        }
        const uint32_t u = butterfly_row<CR>(lane);
#pragma unroll
        for (int b = 0; b < NB; b++) {
            float t = butterfly<CR>(acc[b], lane);
            if ((lane & (32 / CR - 1)) == 0 && u < n) part[(k.slice * rows + k.row + u) * NB + b] = t;
        }
        k.advance(n, rows);
    }
}

template <int NB, uint32_t TYPES> __device__ __forceinline__ void matvec_body(const MatvecArgs& a) {
    DYNAMIC_SHARED(shared);
    release_dependents();
    int i = 0;
    while (i + 1 < a.n_segments && blockIdx.x >= a.segments[i + 1].first_block) i++;
    const Segment& s = a.segments[i];
    const uint32_t block = blockIdx.x - s.first_block;
    const uint32_t begin = s.rows * (uint64_t)block / s.blocks, end = s.rows * (uint64_t)(block + 1) / s.blocks;
    float* part = (float*)shared;
    const uint32_t n_slices = slices_of(s.type, a.groups).count;
    bool awaited = false;
    for (uint32_t row0 = begin; row0 < end; row0 += a.chunk_rows) {
        const uint32_t rows = min(a.chunk_rows, end - row0);
        auto run = [&]<uint32_t T>() {
            if constexpr (is_float(T) && (TYPES >> T & 1))
                stream<T, NB, FloatPart<T, NB>>(a, s, row0, rows, awaited, part);
            if constexpr (!is_float(T) && (TYPES >> T & 1))
                stream<T, NB, QuantizedPart<T, NB>>(a, s, row0, rows, awaited, part);
        };
        for_type(s.type, run);
        __syncthreads();
        for (uint32_t j = threadIdx.x; j < rows * NB; j += blockDim.x) {
            uint32_t row = j / NB, b = j % NB;
            if (b < a.batch) {
                float v = part[j];
                for (uint32_t t = 1; t < n_slices; t++) v = __fadd_rn(v, part[(uint64_t)t * rows * NB + j]);
                if (s.bias) v = __fadd_rn(v, s.bias[row0 + row]);
                uint64_t at = (uint64_t)b * a.out_stride + s.out_offset + row0 + row;
                if (a.residual) v = __fadd_rn(v, a.residual[at]);
                a.out[at] = v;
            }
        }
        __syncthreads();
    }
    if (!awaited) wait_for_producers();
}
