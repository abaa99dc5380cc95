// Products of 5 to 32 input rows with a quantized matrix, on the int8 tensor cores of Hopper and later.
//
// A warp takes 16 rows of one slice at a time, which come into its ring in shared memory, and multiplies
// them group by group with all input rows. The integer sums of a group are exact, so only the order of
// the additions in f32 matters, and it is that of matvec.cuh: within a slice the tree of the butterfly
// over 32 groups (distance 16, 8, 4, 2, 1), slices in ascending order, bias, residual. The bits are
// those that a row alone gets.
#pragma once
#include "matvec.cuh"

constexpr int BATCH_WARPS = 8;
constexpr int TILE_ROWS = 16;

// Distance of rows in a stage: 4 words off a multiple of 8, so that 8 rows x 4 words meet all banks.
__host__ __device__ constexpr uint32_t stage_stride(uint32_t record) {
    return record % 32 == 16 ? record : record + 16;
}

__device__ __forceinline__ void mma_s8(int* c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_s8_half(int* c, uint32_t a0, uint32_t a1, uint32_t b0) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(b0));
}

// What the lanes of a warp need of one group of 8 * NT input rows, in their order: fragments of the
// products [lane][tile][2], then, for the four planes scale, sum, sum of the first half, sum of the
// second half, [plane][lane % 4][tile][2]. Written by fragments.cu; sums are exact in f32.
__host__ __device__ constexpr uint32_t fragment_words(uint32_t tiles) { return tiles * 96; }

// N words from consecutive lanes, by the widest loads.
template <int N> __device__ __forceinline__ void load_words(const uint32_t* from, uint32_t* to) {
    if constexpr (N == 2) {
        const uint2 v = __ldg((const uint2*)from);
        to[0] = v.x; to[1] = v.y;
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            const uint4 v = __ldg((const uint4*)(from + i));
            to[i] = v.x; to[i + 1] = v.y; to[i + 2] = v.z; to[i + 3] = v.w;
        }
    }
}
template <int N> __device__ __forceinline__ void load_plane(const uint32_t* from, float* to) {
    uint32_t words[N];
    load_words<N>(from, words);
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = __uint_as_float(words[i]);
}

// v[tile][4]: products of group g of 16 rows with 8 * NT input rows; zeros for a group that is not there.
// Of the four, 0 and 1 belong to row lane / 4 and input rows 2 * (lane % 4) and the next, 2 and 3 to row
// lane / 4 + 8. WHOLE: all 32 groups are there.
template <uint32_t T, int NT, bool WHOLE>
__device__ __forceinline__ void group_products(const uint32_t* x, const uint8_t* stage, uint32_t stride, uint32_t g, uint32_t n,
                                               int lane, float (*v)[4]) {
    using C = Codec<T>;
    // No branch, so that the loads of several groups are under way at a time.
    const bool there = WHOLE || g < n;
    if (WHOLE) n = 32;
    g = there ? g : n - 1;
    const uint32_t t = lane & 3, r = lane >> 2;
    const uint8_t *upper = stage + r * stride, *lower = upper + 8 * stride;
    uint32_t lo[2], hi[2];
    two_words<T>(upper, g, n, t, lo[0], hi[0]);
    two_words<T>(lower, g, n, t, lo[1], hi[1]);
    Group s[2];
    C::template decode<FromShared>(upper, g, n, s[0]);
    C::template decode<FromShared>(lower, g, n, s[1]);
    x += g * fragment_words(NT);
    const uint32_t* planes = x + NT * 64 + t * NT * 2;
    uint32_t b[NT * 2];
    float d[NT * 2];
    load_words<NT * 2>(x + lane * NT * 2, b);
    load_plane<NT * 2>(planes, d);
    if constexpr (C::HALVES) {
        float s0[NT * 2], s1[NT * 2];
        load_plane<NT * 2>(planes + NT * 16, s0);
        load_plane<NT * 2>(planes + NT * 24, s1);
#pragma unroll
        for (int j = 0; j < NT; j++) {
            int i0[4] = {}, i1[4] = {};
            mma_s8_half(i0, lo[0], lo[1], b[2 * j]);
            mma_s8_half(i1, hi[0], hi[1], b[2 * j + 1]);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const Group& w = s[e >> 1];
                const int c = 2 * j + (e & 1);
                // Integers below 2^24 all along, so these are exact.
                const float p = C::OFFSET ? __fmaf_rn(-(float)C::OFFSET, s0[c], (float)i0[e]) : (float)i0[e];
                const float q = C::OFFSET ? __fmaf_rn(-(float)C::OFFSET, s1[c], (float)i1[e]) : (float)i1[e];
                float f = __fmaf_rn(w.d[1], q, __fmul_rn(w.d[0], p));
                if (C::MINS) f = __fmaf_rn(-w.m[1], s1[c], __fmaf_rn(-w.m[0], s0[c], f));
                v[j][e] = there ? __fmul_rn(d[c], f) : 0.0f;
            }
        }
    } else {
        float sum[NT * 2];
        if (C::OFFSET || C::MINS) load_plane<NT * 2>(planes + NT * 8, sum);
#pragma unroll
        for (int j = 0; j < NT; j++) {
            int i[4] = {};
            mma_s8(i, lo[0], lo[1], hi[0], hi[1], b[2 * j], b[2 * j + 1]);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const Group& w = s[e >> 1];
                const int c = 2 * j + (e & 1);
                const float p = C::OFFSET ? __fmaf_rn(-(float)C::OFFSET, sum[c], (float)i[e]) : (float)i[e];
                float f = __fmul_rn(w.d[0], p);
                if (C::MINS) f = __fmaf_rn(-w.m[0], sum[c], f);
                v[j][e] = there ? __fmul_rn(d[c], f) : 0.0f;
            }
        }
    }
}

template <int NT> __device__ __forceinline__ void add(float (*to)[4], float (*v)[4]) {
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) to[j][e] = __fadd_rn(to[j][e], v[j][e]);
}

// total[tile][4]: sums of the products of n groups of 16 rows, over the tree of the butterfly.
template <uint32_t T, int NT, bool WHOLE>
__device__ __forceinline__ void tile_products(const uint32_t* input, const uint8_t* from, uint32_t stride, uint32_t n, int lane, float (*total)[4]) {
    float outer[NT][4];
#pragma unroll 1
    for (uint32_t x = 0; x < 2; x++) {
#pragma unroll 1
        for (uint32_t y = 0; y < 4; y += 2) {
            float p[2][NT][4];
#pragma unroll
            for (int z = 0; z < 2; z++) {
                const uint32_t g = x + y + 4 * z;
                float v[NT][4], w[NT][4];
                group_products<T, NT, WHOLE>(input, from, stride, g, n, lane, p[z]);
                group_products<T, NT, WHOLE>(input, from, stride, g + 16, n, lane, v);
                add<NT>(p[z], v);
                group_products<T, NT, WHOLE>(input, from, stride, g + 8, n, lane, w);
                group_products<T, NT, WHOLE>(input, from, stride, g + 24, n, lane, v);
                add<NT>(w, v);
                add<NT>(p[z], w);
            }
            add<NT>(p[0], p[1]);
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) outer[j][e] = y == 0 ? p[0][j][e] : __fadd_rn(outer[j][e], p[0][j][e]);
        }
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) total[j][e] = x == 0 ? outer[j][e] : __fadd_rn(total[j][e], outer[j][e]);
    }
}

template <uint32_t T, int NT> __device__ __forceinline__ void matvec_batch_body(const MatvecArgs& a) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ __align__(8) uint64_t bars[BATCH_WARPS * 2];
    constexpr int NB = NT * 8 + 1;  // distance of rows in the partial sums, odd for the banks' sake
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    release_dependents();
    const Slices c = slices_of(T, a.groups);
    const uint32_t full = record_bytes(T, c.full), last = record_bytes(T, c.last);
    const uint32_t stride = stage_stride(full), stages = a.ring_bytes / (TILE_ROWS * stride);  // 1 or 2
    uint64_t* bar = bars + warp * 2;
    if (lane == 0) {
        for (int i = 0; i < 2; i++) asm volatile("mbarrier.init.shared.b64 [%0],1;" ::"r"(shared_address(bar + i)));
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
    int index = 0;
    while (index + 1 < a.n_segments && blockIdx.x >= a.segments[index + 1].first_block) index++;
    const Segment& s = a.segments[index];
    const uint32_t block = blockIdx.x - s.first_block;
    const uint32_t begin = s.rows * (uint64_t)block / s.blocks, end = s.rows * (uint64_t)(block + 1) / s.blocks;
    uint8_t* ring = shared + warp * a.ring_bytes;
    float* part = (float*)(shared + BATCH_WARPS * a.ring_bytes);
    bool awaited = false;
    uint32_t phases = 0;
    for (uint32_t row0 = begin; row0 < end; row0 += a.chunk_rows) {
        const uint32_t rows = min(a.chunk_rows, end - row0), tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, items = tiles * c.count;
        auto copy = [&](uint32_t item, uint32_t stage) {
            if (item >= items) return;
            const uint32_t slice = item / tiles, r = item % tiles * TILE_ROWS, n = min((uint32_t)TILE_ROWS, rows - r);
            const uint32_t record = slice + 1 == c.count ? last : full, b = shared_address(bar + stage);
            if (lane == 0) asm volatile("mbarrier.arrive.expect_tx.shared.b64 _,[%0],%1;" ::"r"(b), "r"(n * record) : "memory");
            __syncwarp();
            if (lane < n) {
                const uint8_t* from = s.matrix + slice_offset(T, c, slice, s.rows) + (uint64_t)(row0 + r + lane) * record;
                asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];"
                             ::"r"(shared_address(ring + (stage * TILE_ROWS + lane) * stride)), "l"(from), "r"(record), "r"(b) : "memory");
            }
        };
        for (uint32_t i = 0; i < stages; i++) copy(warp + i * BATCH_WARPS, i);
        if (!awaited) wait_for_producers();
        awaited = true;
        uint32_t stage = 0;
        for (uint32_t item = warp; item < items; item += BATCH_WARPS) {
            asm volatile("{\n.reg .pred p;\nL:\nmbarrier.try_wait.parity.shared.b64 p,[%0],%1;\n@!p bra L;\n}"
                         ::"r"(shared_address(bar + stage)), "r"(phases >> stage & 1) : "memory");
            phases ^= 1u << stage;
            const uint32_t slice = item / tiles, r = item % tiles * TILE_ROWS, n = slice + 1 == c.count ? c.last : c.full;
            const uint8_t* from = ring + stage * TILE_ROWS * stride;
            const uint32_t* x = (const uint32_t*)a.q8 + (uint64_t)slice * c.full * fragment_words(NT);
            float total[NT][4];
            if (n == 32) tile_products<T, NT, true>(x, from, stride, n, lane, total);
            else tile_products<T, NT, false>(x, from, stride, n, lane, total);
            __syncwarp();
            copy(item + stages * BATCH_WARPS, stage);
            stage = stage + 1 == stages ? 0 : stage + 1;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t row = r + h * 8 + (lane >> 2);
                if (row < rows)
#pragma unroll
                    for (int j = 0; j < NT; j++)
#pragma unroll
                        for (int e = 0; e < 2; e++)
                            part[(slice * rows + row) * NB + j * 8 + (lane & 3) * 2 + e] = total[j][2 * h + e];
            }
        }
        __syncthreads();
        for (uint32_t j = threadIdx.x; j < rows * a.batch; j += blockDim.x) {
            // Neighbours write neighbouring rows.
            const uint32_t b = j / rows, row = j % rows;
            float v = part[row * NB + b];
            for (uint32_t t = 1; t < c.count; t++) v = __fadd_rn(v, part[(t * rows + row) * NB + b]);
            if (s.bias) v = __fadd_rn(v, s.bias[row0 + row]);
            uint64_t at = (uint64_t)b * a.out_stride + s.out_offset + row0 + row;
            if (a.residual) v = __fadd_rn(v, a.residual[at]);
            a.out[at] = v;
        }
        __syncthreads();
    }
    if (!awaited) wait_for_producers();
}
