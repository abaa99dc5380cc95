// Products of 5 to 32 input rows with a quantized matrix, on int8 tensor cores, from sm_80 on.
//
// A cluster of blocks owns a run of output rows (one block before sm_90, which has no clusters, and from sm_120
// on, where shared memory is small). Its work is the list of (slice, tile of 8 rows) pairs,
// slice by slice; each block takes an equal, contiguous part of the list, so that it sees few slices of
// the input. A block's tiles come through a ring in shared memory. Of the 32 groups of a slice, each of
// the block's 8 warps takes every eighth, for all tiles: it keeps the inputs of its four groups in
// registers. The sums of the warps meet in shared memory, and those of the slices in the cluster's.
//
// The integer sums of a group are exact, so only the order of the additions in f32 matters, and it is
// that of matvec.cuh: within a slice the tree of the butterfly over 32 groups (distance 16, 8, 4, 2, 1),
// slices in ascending order, bias, residual. The bits are those that a row alone gets (but for the sign
// of a zero).
#pragma once
#include "matvec.cuh"
#include "mma.cuh"

constexpr uint32_t BATCH_WARPS = 8;
constexpr uint32_t BATCH_THREADS = BATCH_WARPS * 32;
constexpr uint32_t TILE_ROWS = 8;
#if defined(__CUDA_ARCH__) && !LARGE_SHARED
constexpr uint32_t BATCH_CLUSTER = 1;
#define IN_CLUSTERS
#else
constexpr uint32_t BATCH_CLUSTER = 2;
#define IN_CLUSTERS __cluster_dims__(BATCH_CLUSTER, 1, 1)
#endif
constexpr uint32_t BATCH_MAX_STAGES = 8;

// Distance of rows in a stage: 4 words off a multiple of 8, so that 8 rows x 4 words meet all banks.
__host__ __device__ constexpr uint32_t stage_stride(uint32_t record) {
    return record % 32 == 16 ? record : record + 16;
}

// Shapes of a kernel for 8 * NT input rows.
template <uint32_t T, int NT> struct BatchShape {
    using C = Codec<T>;
    static constexpr uint32_t COLUMNS = NT * 8;
    static constexpr uint32_t STAGE_TILES = NT == 4 || record_bytes(T, 32) > 1000 ? 2 : 4;  // so that two stages fit
    static constexpr uint32_t TILE_SUMS = COLUMNS * TILE_ROWS;
    // Factors of a group of a weight row: d, or d and m, or two of each.
    static constexpr uint32_t FACTORS = (C::HALVES ? 2 : 1) * (C::MINS ? 2 : 1);
    // Inputs of a slice: rows of 1024 bytes and 32 scales, at distances that avoid bank conflicts.
    static constexpr uint32_t X_STRIDE = 1024 + 16, SCALE_STRIDE = 33;
    static constexpr uint32_t SCALES_AT = COLUMNS * X_STRIDE;
    static constexpr uint32_t FACTORS_AT = SCALES_AT + COLUMNS * SCALE_STRIDE * 4;
    static constexpr uint32_t SUMS_AT = FACTORS_AT + BATCH_WARPS * STAGE_TILES * 32 * FACTORS * 4;
    static constexpr uint32_t SUMS = BATCH_WARPS * STAGE_TILES * TILE_SUMS;  // of a stage
    static constexpr uint32_t SUM_BUFFERS = NT == 1 ? 2 : 1;
    static constexpr uint32_t RING_AT = SUMS_AT + SUM_BUFFERS * SUMS * 4;
    static_assert(FACTORS_AT % 16 == 0 && RING_AT % 16 == 0);
};

// Four registers of MAGIC_BITS, where the tensor cores begin their sums.
struct Origin {
    int v[4];
    __device__ __forceinline__ Origin() {
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = kept<MAGIC_BITS>();
    }
};

// Decodes the factors of one group at the same place of many records.
template <uint32_t T> struct FactorReader {
    uint32_t g, n;
    __device__ __forceinline__ FactorReader(uint32_t g, uint32_t n) : g(g), n(n) {}
    __device__ __forceinline__ void read(const uint8_t* record, Group& o) const { Codec<T>::template decode<FromShared>(record, g, n, o); }
};
template <uint32_t T> struct FactorReaderK45 {
    uint32_t block, low, high, shift;  // offsets of the block's factors and of the two words that hold the group's
    __device__ __forceinline__ FactorReaderK45(uint32_t g, uint32_t n) : block(n * 16 + (g >> 3) * 16) {
        const uint32_t bit = (g & 7) * 12, word = bit >> 5;
        low = block + 4 + word * 4;
        high = block + 4 + min(word + 1, 2u) * 4;
        shift = bit & 31;
    }
    __device__ __forceinline__ void read(const uint8_t* record, Group& o) const {
        const uint32_t dm = FromShared::u32(record + block);
        const uint32_t sm = __funnelshift_r(FromShared::u32(record + low), FromShared::u32(record + high), shift);
        o.d[0] = o.d[1] = __fmul_rn(half_bits(dm & 0xffff), (float)(sm & 63));
        o.m[0] = o.m[1] = __fmul_rn(half_bits(dm >> 16), (float)(sm >> 6 & 63));
    }
};
template <> struct FactorReader<Q4_K> : FactorReaderK45<Q4_K> { using FactorReaderK45<Q4_K>::FactorReaderK45; };
template <> struct FactorReader<Q5_K> : FactorReaderK45<Q5_K> { using FactorReaderK45<Q5_K>::FactorReaderK45; };

// A warp's inputs of a slice: groups warp + 8 * j of 8 * NT rows, in the order of the tensor cores. Of
// rows, a lane has lane / 4 + 8 * i.
template <uint32_t T, int NT> struct BatchInputs {
    using C = Codec<T>;
    using Shape = BatchShape<T, NT>;
    static constexpr int TILES = NT == 1 ? 1 : NT / 2, SUMS = !C::MINS ? 0 : C::HALVES ? 2 : 1;
    uint32_t x[4][NT][2];
    float d[4][NT];
    float sum[4][NT][SUMS ? SUMS : 1];

    __device__ __forceinline__ uint32_t word(int j, int m, int i, int h) const { return NT == 1 && i == 1 ? 0 : x[j][(2 * m + i) % NT][h]; }

    // From shared memory; zeros for groups from n on.
    __device__ __forceinline__ void load(const Origin& origin, const uint8_t* shared, uint32_t warp, uint32_t lane, uint32_t n) {
        const uint32_t r = lane >> 2, t = lane & 3;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t g = warp + 8 * j;
#pragma unroll
            for (int i = 0; i < NT; i++) {
                const uint32_t* from = (const uint32_t*)(shared + (8 * i + r) * Shape::X_STRIDE) + g * 8 + t;
                x[j][i][0] = g < n ? from[0] : 0;
                x[j][i][1] = g < n ? from[4] : 0;
                d[j][i] = g < n ? ((const float*)(shared + Shape::SCALES_AT))[(8 * i + r) * Shape::SCALE_STRIDE + g] : 0.0f;
            }
            if constexpr (SUMS > 0)
#pragma unroll
                for (int m = 0; m < TILES; m++) {
                    constexpr uint32_t ONES = 0x01010101;
                    int s[2][4];
                    if constexpr (SUMS == 1) mma_s8(s[0], origin.v, word(j, m, 0, 0), word(j, m, 1, 0), word(j, m, 0, 1), word(j, m, 1, 1), ONES, ONES);
                    else {
                        mma_s8_half(s[0], origin.v, word(j, m, 0, 0), word(j, m, 1, 0), ONES);
                        mma_s8_half(s[1], origin.v, word(j, m, 0, 1), word(j, m, 1, 1), ONES);
                    }
#pragma unroll
                    for (int i = 0; i < (NT == 1 ? 1 : 2); i++)
#pragma unroll
                        for (int h = 0; h < SUMS; h++) sum[j][2 * m + i][h] = lowered(s[h][2 * i]);
                }
        }
    }

    // v[i][e]: products of group j of input rows lane / 4 + 8 * i with weight rows 2 * (lane % 4) + e,
    // whose factors are at `f`; lo and hi are the weights of row lane / 4.
    __device__ __forceinline__ void products(const Origin& origin, int j, uint32_t lo, uint32_t hi, const float* f, float (*v)[2]) const {
        float w[2][4];
        if constexpr (Shape::FACTORS == 1) {
            const float2 p = *(const float2*)f;
            w[0][0] = p.x; w[1][0] = p.y;
        } else if constexpr (Shape::FACTORS == 2) {
            const float4 p = *(const float4*)f;
            w[0][0] = p.x; w[0][1] = p.y; w[1][0] = p.z; w[1][1] = p.w;
        } else {
            const float4 p = *(const float4*)f, q = *(const float4*)(f + 4);
            w[0][0] = p.x; w[0][1] = p.y; w[0][2] = p.z; w[0][3] = p.w;
            w[1][0] = q.x; w[1][1] = q.y; w[1][2] = q.z; w[1][3] = q.w;
        }
        if (C::OFFSET) {
            // Bytes below 64, less the offset.
            constexpr uint32_t UP = (128 - C::OFFSET) * 0x01010101u;
            lo = (lo + UP) ^ 0x80808080u;
            hi = (hi + UP) ^ 0x80808080u;
        }
        // d * i = d * (MAGIC + i) - d * MAGIC in one rounding, for d has few enough bits that the last
        // product is exact; but it overflows for the largest scales of this type.
        constexpr bool FOLD = T != MXFP4;
        const float base[2] = {-__fmul_rn(w[0][0], MAGIC), -__fmul_rn(w[1][0], MAGIC)};
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            int c[2][4];
            if constexpr (C::HALVES) {
                mma_s8_half(c[0], origin.v, word(j, m, 0, 0), word(j, m, 1, 0), lo);
                mma_s8_half(c[1], origin.v, word(j, m, 0, 1), word(j, m, 1, 1), hi);
            } else mma_s8(c[0], origin.v, word(j, m, 0, 0), word(j, m, 1, 0), word(j, m, 0, 1), word(j, m, 1, 1), lo, hi);
#pragma unroll
            for (int i = 0; i < (NT == 1 ? 1 : 2); i++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int at = 2 * i + e, row = 2 * m + i;
                    float p = FOLD ? __fmaf_rn(w[e][0], raised(c[0][at]), base[e]) : __fmul_rn(w[e][0], lowered(c[0][at]));
                    if constexpr (C::HALVES) p = __fmaf_rn(w[e][1], lowered(c[1][at]), p);
                    if constexpr (C::MINS && !C::HALVES) p = __fmaf_rn(-w[e][1], sum[j][row][0], p);
                    if constexpr (C::MINS && C::HALVES) p = __fmaf_rn(-w[e][3], sum[j][row][SUMS - 1], __fmaf_rn(-w[e][2], sum[j][row][0], p));
                    v[row][e] = __fmul_rn(d[j][row], p);
                }
        }
    }
};

// A place in a block's part of the (slice, tile) list, and how many tiles of a stage follow from there.
struct TileCursor {
    uint32_t item, end, slice, tile;
    __device__ __forceinline__ TileCursor(uint32_t first, uint32_t last, uint32_t tiles) : item(first), end(last), slice(first / tiles), tile(first % tiles) {}
    __device__ __forceinline__ uint32_t count(uint32_t most, uint32_t tiles) const { return min(min(most, end - item), tiles - tile); }
    __device__ __forceinline__ void advance(uint32_t n, uint32_t tiles) {
        item += n; tile += n;
        if (tile == tiles) { tile = 0; slice++; }
    }
};

template <uint32_t T, int NT, uint32_t CLUSTER>
__device__ __forceinline__ void batch_segment(const MatvecArgs& a, const Segment& s, uint32_t cluster_index, uint32_t clusters,
                                              uint32_t rank, uint8_t* shared, uint64_t* bars) {
    using C = Codec<T>;
    using Shape = BatchShape<T, NT>;
    constexpr uint32_t ST = Shape::STAGE_TILES, TILE_SUMS = Shape::TILE_SUMS;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Slices c = slices_of(T, a.groups);
    const uint32_t full = record_bytes(T, c.full), last = record_bytes(T, c.last), stride = stage_stride(full);
    const uint32_t stage_bytes = ST * TILE_ROWS * stride, stages = min(a.ring_bytes / stage_bytes, BATCH_MAX_STAGES);
    uint64_t* input_bar = bars + BATCH_MAX_STAGES;
    uint8_t* ring = shared + Shape::RING_AT;
    float* factors = (float*)(shared + Shape::FACTORS_AT) + warp * ST * 32 * Shape::FACTORS;
    float* sums = (float*)(shared + Shape::SUMS_AT);
    float* results = (float*)(ring + a.ring_bytes);
    // One block adds the slices as they come; those of a cluster keep them apart, for they may have some of a tile's each.
    constexpr bool ALONE = CLUSTER == 1;
    const uint32_t all_tiles = (s.rows + TILE_ROWS - 1) / TILE_ROWS;
    const uint32_t begin = all_tiles * cluster_index / clusters * TILE_ROWS;
    const uint32_t end = min(s.rows, all_tiles * (cluster_index + 1) / clusters * TILE_ROWS);

    // The input of a slice, which the producers have written. `fetched` is in shared memory or on its
    // way there, `loaded` in registers.
    uint32_t fetched = ~0u, loaded = ~0u, input_phase = 0;
    auto fetch = [&](uint32_t slice) {
        const uint32_t n = slice + 1 == c.count ? c.last : c.full;
        const uint32_t piece = threadIdx.x & 63;
#pragma unroll
        for (int i = 0; i < NT * 2; i++) {
            const uint32_t row = i * 4 + (threadIdx.x >> 6);
            const int8_t* from = a.q8 + ((uint64_t)min(row, a.batch - 1) * a.groups + slice * c.full) * 32 + piece * 16;
            if (piece < n * 2) copy_piece(shared_address(shared + row * Shape::X_STRIDE + piece * 16), from);
        }
#pragma unroll
        for (int i = 0; i < NT; i++) {
            const uint32_t row = i * 8 + warp;
            const float* from = a.q8_scale + (uint64_t)min(row, a.batch - 1) * a.groups + slice * c.full + lane;
            const uint32_t to = shared_address(shared + Shape::SCALES_AT) + (row * Shape::SCALE_STRIDE + lane) * 4;
            if (lane < n) copy_word(to, from);
        }
        barrier_arrive_copied(shared_address(input_bar));
        fetched = slice;
    };
    const Origin origin;
    BatchInputs<T, NT> in;
    bool awaited = false;
    uint32_t stage = 0, phases = 0, half = 0;  // half: of the warps' sums
    for (uint32_t row0 = begin; row0 < end; row0 += a.chunk_rows) {
        const uint32_t rows = min(a.chunk_rows, end - row0), tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, items = tiles * c.count;
        static_assert(CLUSTER == 1 || CLUSTER == 2);
        const uint32_t middle = items / CLUSTER, first_item = rank == 0 ? 0 : middle, end_item = rank == 0 ? middle : items;
        TileCursor issue(first_item, end_item, tiles), k = issue;
        uint32_t issue_stage = stage;
        // The records of a stage lie one after the other; in shared memory, they lie apart.
        auto copy_next = [&] {
            if (issue.item >= issue.end) return;
            const uint32_t n = issue.count(ST, tiles), first = issue.tile * TILE_ROWS, n_rows = min(n * TILE_ROWS, rows - first);
            const bool whole = issue.slice + 1 < c.count || c.last == 32;
            const uint32_t record = issue.slice + 1 == c.count ? last : full;
            const uint8_t* from = s.matrix + slice_offset(T, c, issue.slice, s.rows) + (uint64_t)(row0 + first) * record;
            const uint32_t to = shared_address(ring + issue_stage * stage_bytes), pieces = n_rows * (record / 16);
            constexpr uint32_t WHOLE = record_bytes(T, 32);
            if (whole && c.full == 32) {
#pragma unroll
                for (uint32_t i = 0; i < (ST * TILE_ROWS * WHOLE / 16 + BATCH_THREADS - 1) / BATCH_THREADS; i++) {
                    const uint32_t p = i * BATCH_THREADS + threadIdx.x, row = p / (WHOLE / 16);
                    if (p < pieces) copy_piece(to + p * 16 + row * (stage_stride(WHOLE) - WHOLE), from + p * 16);
                }
            } else {
                for (uint32_t p = threadIdx.x; p < pieces; p += BATCH_THREADS)
                    copy_piece(to + p * 16 + p / (record / 16) * (stride - record), from + p * 16);
            }
            barrier_arrive_copied(shared_address(bars + issue_stage));
            issue.advance(n, tiles);
            issue_stage = issue_stage + 1 == stages ? 0 : issue_stage + 1;
        };
        for (uint32_t i = 0; i < stages; i++) copy_next();
        if (!awaited) wait_for_producers();
        awaited = true;
        while (k.item < k.end) {
            const uint32_t n_tiles = k.count(ST, tiles), n = k.slice + 1 == c.count ? c.last : c.full;
            bool fresh = false;
            if (k.slice != loaded) {
                if (k.slice != fetched) {
                    __syncthreads();
                    fetch(k.slice);
                }
                barrier_wait(shared_address(input_bar), input_phase);
                input_phase ^= 1;
                in.load(origin, shared, warp, lane, n);
                loaded = k.slice;
                fresh = true;
            }
            barrier_wait(shared_address(bars + stage), phases >> stage & 1);
            phases ^= 1u << stage;
            const uint8_t* from = ring + stage * stage_bytes;
            // Factors of the warp's groups: a lane takes row lane % 8 of group lane / 8 of each tile.
            {
                const FactorReader<T> reader(min(warp + (lane >> 3) * 8, n - 1), n);
#pragma unroll
                for (uint32_t q = 0; q < ST; q++) {
                    Group o;
                    reader.read(from + (q * TILE_ROWS + (lane & 7)) * stride, o);
                    float* to = factors + (q * 32 + lane) * Shape::FACTORS;
                    if constexpr (Shape::FACTORS == 1) *to = o.d[0];
                    else if constexpr (Shape::FACTORS == 2) *(float2*)to = make_float2(o.d[0], C::MINS ? o.m[0] : o.d[1]);
                    else *(float4*)to = make_float4(o.d[0], o.d[1], o.m[0], o.m[1]);
                }
                __syncwarp();
            }
#pragma unroll
            for (uint32_t q = 0; q < ST; q++) {
                if (q >= n_tiles) break;
                const uint8_t* row = from + (q * TILE_ROWS + (lane >> 2)) * stride;
                // Of a group that is not there, the inputs are zeros and the weights of no matter.
                auto group = [&](int j, float (*v)[2]) {
                    uint32_t lo, hi;
                    two_words<T>(row, warp + 8 * j, n, lane & 3, lo, hi);
                    in.products(origin, j, lo, hi, factors + (q * 32 + j * 8 + (lane & 3) * 2) * Shape::FACTORS, v);
                };
                float u[NT][2], v[NT][2], w[NT][2];
                group(0, u);
                group(2, v);
#pragma unroll
                for (int i = 0; i < NT; i++) { u[i][0] = __fadd_rn(u[i][0], v[i][0]); u[i][1] = __fadd_rn(u[i][1], v[i][1]); }
                group(1, v);
                group(3, w);
                float* to = sums + half * Shape::SUMS + (warp * ST + q) * TILE_SUMS + (lane >> 2) * TILE_ROWS + (lane & 3) * 2;
#pragma unroll
                for (int i = 0; i < NT; i++)
                    *(float2*)(to + i * 64) = make_float2(__fadd_rn(u[i][0], __fadd_rn(v[i][0], w[i][0])), __fadd_rn(u[i][1], __fadd_rn(v[i][1], w[i][1])));
            }
            __syncthreads();
            copy_next();
            if (fresh && k.slice < (k.end - 1) / tiles) fetch(k.slice + 1);
            // The warps' sums: distance 4, 2, 1.
            constexpr uint32_t N = (ST * TILE_SUMS + BATCH_THREADS - 1) / BATCH_THREADS;
            float* to = results + (ALONE ? k.tile : k.item - first_item) * TILE_SUMS;
            const uint32_t at = threadIdx.x * N;
            if (at < n_tiles * TILE_SUMS) {
                float f[8][N];
#pragma unroll
                for (uint32_t w = 0; w < 8; w++) {
                    const float* p = sums + half * Shape::SUMS + w * ST * TILE_SUMS + at;
                    if constexpr (N == 1) f[w][0] = *p;
                    else if constexpr (N == 2) { const float2 v = *(const float2*)p; f[w][0] = v.x; f[w][1] = v.y; }
                    else { const float4 v = *(const float4*)p; f[w][0] = v.x; f[w][1] = v.y; f[w][2] = v.z; f[w][3] = v.w; }
                }
                static_assert(N <= 4);
#pragma unroll
                for (uint32_t i = 0; i < N; i++) {
                    const float even = __fadd_rn(__fadd_rn(f[0][i], f[4][i]), __fadd_rn(f[2][i], f[6][i]));
                    const float odd = __fadd_rn(__fadd_rn(f[1][i], f[5][i]), __fadd_rn(f[3][i], f[7][i]));
                    const float sum = __fadd_rn(even, odd);
                    to[at + i] = ALONE && k.slice > 0 ? __fadd_rn(to[at + i], sum) : sum;
                }
            }
            if constexpr (Shape::SUM_BUFFERS == 1) __syncthreads();
            else half ^= 1;
            k.advance(n_tiles, tiles);
            stage = stage + 1 == stages ? 0 : stage + 1;
        }
        cluster_sync();
        // The slices' sums, by the warps of the cluster: 8 input rows of a tile each.
        const uint32_t base = shared_address(results);
        for (uint32_t unit = rank * BATCH_WARPS + warp; unit < tiles * NT; unit += CLUSTER * BATCH_WARPS) {
            const uint32_t tile = unit / NT, col = unit % NT * 8 + (lane >> 3), row = tile * TILE_ROWS + (lane & 7);
            const uint32_t offset = (unit % NT * 64 + lane) * 4;
            float v[2];
#pragma unroll 4
            for (uint32_t t = 0; t < (ALONE ? 1 : c.count); t++) {
                const uint32_t item = t * tiles + tile, owner = item >= middle, local = item - (owner ? middle : 0);
                const uint32_t from = remote_address(base + local * TILE_SUMS * 4 + offset, owner);
                const float p[2] = {load_remote(from), load_remote(from + 128)};
#pragma unroll
                for (int h = 0; h < 2; h++) v[h] = t == 0 ? p[h] : __fadd_rn(v[h], p[h]);
            }
            if (row < rows)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const uint32_t b = col + 4 * h;
                    if (b >= a.batch) continue;
                    if (s.bias) v[h] = __fadd_rn(v[h], s.bias[row0 + row]);
                    const uint64_t at = (uint64_t)b * a.out_stride + s.out_offset + row0 + row;
                    if (a.residual) v[h] = __fadd_rn(v[h], a.residual[at]);
                    a.out[at] = v[h];
                }
        }
        cluster_sync();
    }
    if (!awaited) wait_for_producers();
}

// CLUSTER blocks share a run of rows: first_block and blocks of the segments are multiples of it,
// ring_bytes are a block's, and chunk_rows a cluster's.
template <int NT, uint32_t CLUSTER, uint32_t... TYPES> __device__ __forceinline__ void matvec_batch_body(const MatvecArgs& a) {
    DYNAMIC_SHARED(shared);
    using Bars = uint64_t[BATCH_MAX_STAGES + 1];
    STATIC_SHARED(Bars, bars);
    release_dependents();
    const uint32_t rank = cluster_rank();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i <= BATCH_MAX_STAGES; i++) barrier_init(shared_address(bars + i), BATCH_THREADS);
    }
    __syncthreads();
    int index = 0;
    while (index + 1 < a.n_segments && blockIdx.x >= a.segments[index + 1].first_block) index++;
    const Segment& s = a.segments[index];
    const uint32_t at = (blockIdx.x - s.first_block) / CLUSTER, clusters = s.blocks / CLUSTER;
    ((s.type == TYPES ? batch_segment<TYPES, NT, CLUSTER>(a, s, at, clusters, rank, shared, bars) : (void)0), ...);
}

// Kernels of 8, 16 and 32 input rows (matvec_batch.rs). Two blocks share a multiprocessor where there is room.
#define MATVEC_BATCH_ONE(name, nt, ...)                                                                       \
    extern "C" __global__ void IN_CLUSTERS __launch_bounds__(BATCH_THREADS, 2) name(const __grid_constant__ MatvecArgs a) { \
        matvec_batch_body<nt, BATCH_CLUSTER, __VA_ARGS__>(a);                                                                        \
    }
#define MATVEC_BATCH(name, ...)                             \
    MATVEC_BATCH_ONE(matvec_batch_##name##_8, 1, __VA_ARGS__)  \
    MATVEC_BATCH_ONE(matvec_batch_##name##_16, 2, __VA_ARGS__) \
    MATVEC_BATCH_ONE(matvec_batch_##name##_32, 4, __VA_ARGS__)
