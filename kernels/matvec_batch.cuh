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

constexpr uint32_t BATCH_THREADS = BATCH_WARPS * 32;
#if defined(__CUDA_ARCH__) && !LARGE_SHARED
constexpr uint32_t BATCH_CLUSTER = 1;
#define IN_CLUSTERS
#else
constexpr uint32_t BATCH_CLUSTER = 2;
#define IN_CLUSTERS __cluster_dims__(BATCH_CLUSTER, 1, 1)
#endif

// Distance of rows in a stage: 4 words off a multiple of 8, so that 8 rows x 4 words meet all banks.
__host__ __device__ constexpr uint32_t stage_stride(uint32_t record) {
    return record % 32 == 16 ? record : record + 16;
}

// Shapes of a kernel for 8 * NT input rows.
template <uint32_t T, int NT> struct BatchShape {
    using C = Codec<T>;
    static constexpr uint32_t COLUMNS = NT * 8;
    static constexpr uint32_t STAGE_TILES = NT == 4 || record_bytes(T, 32) > 1000 ? 2 : 4;  // so that two stages fit
    static constexpr uint32_t TILE_SUMS = COLUMNS * BATCH_TILE_ROWS;
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
    uint32_t block, word, shift;  // offset of the block's factors; where the group's are
    __device__ __forceinline__ FactorReaderK45(uint32_t g, uint32_t n) : block(n * 16 + (g >> 3) * 16), word((g & 7) * 12 >> 5), shift((g & 7) * 12 & 31) {}
    __device__ __forceinline__ void read(const uint8_t* record, Group& o) const {
        // All of it, for so eight rows meet all banks.
        const uint4 m = FromShared::v4(record + block);
        const uint32_t low = word == 0 ? m.y : word == 1 ? m.z : m.w, high = word == 0 ? m.z : m.w, sm = __funnelshift_r(low, high, shift);
        o.d[0] = o.d[1] = __fmul_rn(half_bits(m.x & 0xffff), (float)(sm & 63));
        o.m[0] = o.m[1] = __fmul_rn(half_bits(m.x >> 16), (float)(sm >> 6 & 63));
    }
};
template <> struct FactorReader<Q4_K> : FactorReaderK45<Q4_K> { using FactorReaderK45<Q4_K>::FactorReaderK45; };
template <> struct FactorReader<Q5_K> : FactorReaderK45<Q5_K> { using FactorReaderK45<Q5_K>::FactorReaderK45; };

// A warp's inputs of a slice: groups warp + 8 * j of 8 * NT rows, in the order of the tensor cores, as their first operand. Of
// rows, a lane has lane / 4 + 8 * i.
template <uint32_t T, int NT> struct BatchInputs {
    using C = Codec<T>;
    using Shape = BatchShape<T, NT>;
    static constexpr int TILES = NT / 2, SUMS = !C::MINS ? 0 : C::HALVES ? 2 : 1;
    uint32_t x[4][NT][2];
    float d[4][NT];
    float sum[4][NT][SUMS ? SUMS : 1];

    __device__ __forceinline__ uint32_t word(int j, int m, int i, int h) const { return x[j][2 * m + i][h]; }

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
                    for (int i = 0; i < 2; i++)
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
            for (int i = 0; i < 2; i++)
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

// The same of 8 rows, which would leave half of the first operand empty: here that is the weights of two tiles. A lane has their rows
// lane / 4, and input rows 2 * (lane % 4) and the next.
template <uint32_t T> struct BatchInputs<T, 1> {
    using C = Codec<T>;
    using Shape = BatchShape<T, 1>;
    static constexpr int SUMS = !C::MINS ? 0 : C::HALVES ? 2 : 1;
    uint32_t x[4][2];
    float d[4][2];
    float sum[4][2][SUMS ? SUMS : 1];

    __device__ __forceinline__ void load(const Origin& origin, const uint8_t* shared, uint32_t warp, uint32_t lane, uint32_t n) {
        const uint32_t r = lane >> 2, t = lane & 3;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t g = warp + 8 * j;
            const uint32_t* from = (const uint32_t*)(shared + r * Shape::X_STRIDE) + g * 8 + t;
            x[j][0] = g < n ? from[0] : 0;
            x[j][1] = g < n ? from[4] : 0;
#pragma unroll
            for (int e = 0; e < 2; e++)
                d[j][e] = g < n ? ((const float*)(shared + Shape::SCALES_AT))[(2 * t + e) * Shape::SCALE_STRIDE + g] : 0.0f;
            if constexpr (SUMS > 0) {
                constexpr uint32_t ONES = 0x01010101;
                int s[2][4];
                if constexpr (SUMS == 1) mma_s8(s[0], origin.v, ONES, ONES, ONES, ONES, x[j][0], x[j][1]);
                else {
                    mma_s8_half(s[0], origin.v, ONES, ONES, x[j][0]);
                    mma_s8_half(s[1], origin.v, ONES, ONES, x[j][1]);
                }
#pragma unroll
                for (int e = 0; e < 2; e++)
#pragma unroll
                    for (int h = 0; h < SUMS; h++) sum[j][e][h] = lowered(s[h][e]);
            }
        }
    }

    // v[i][e]: products of group j of input rows 2 * (lane % 4) + e with weight row lane / 4 of tile i, whose factors are at `f[i]`; w[i] are
    // its weights.
    __device__ __forceinline__ void products(const Origin& origin, int j, uint32_t (*w)[2], const float* const* f, float (*v)[2]) const {
        if (C::OFFSET) {
            // Bytes below 64, less the offset.
            constexpr uint32_t UP = (128 - C::OFFSET) * 0x01010101u;
#pragma unroll
            for (int i = 0; i < 4; i++) w[i / 2][i % 2] = (w[i / 2][i % 2] + UP) ^ 0x80808080u;
        }
        constexpr bool FOLD = T != MXFP4;  // as below
        int c[2][4];
        if constexpr (C::HALVES) {
            mma_s8_half(c[0], origin.v, w[0][0], w[1][0], x[j][0]);
            mma_s8_half(c[1], origin.v, w[0][1], w[1][1], x[j][1]);
        } else mma_s8(c[0], origin.v, w[0][0], w[1][0], w[0][1], w[1][1], x[j][0], x[j][1]);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float k[4];
            if constexpr (Shape::FACTORS == 1) k[0] = *f[i];
            else if constexpr (Shape::FACTORS == 2) { const float2 p = *(const float2*)f[i]; k[0] = p.x; k[1] = p.y; }
            else { const float4 p = *(const float4*)f[i]; k[0] = p.x; k[1] = p.y; k[2] = p.z; k[3] = p.w; }
            const float base = -__fmul_rn(k[0], MAGIC);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int at = 2 * i + e;
                float p = FOLD ? __fmaf_rn(k[0], raised(c[0][at]), base) : __fmul_rn(k[0], lowered(c[0][at]));
                if constexpr (C::HALVES) p = __fmaf_rn(k[1], lowered(c[1][at]), p);
                if constexpr (C::MINS && !C::HALVES) p = __fmaf_rn(-k[1], sum[j][e][0], p);
                if constexpr (C::MINS && C::HALVES) p = __fmaf_rn(-k[3], sum[j][e][SUMS - 1], __fmaf_rn(-k[2], sum[j][e][0], p));
                v[i][e] = __fmul_rn(d[j][e], p);
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
    constexpr uint32_t WHOLE = record_bytes(T, 32), stride = stage_stride(WHOLE), stage_bytes = ST * BATCH_TILE_ROWS * stride;
    const uint32_t full = record_bytes(T, c.full), last = record_bytes(T, c.last), stages = min(a.ring_bytes / stage_bytes, BATCH_MAX_STAGES);
    uint64_t* input_bar = bars + BATCH_MAX_STAGES;
    uint8_t* ring = shared + Shape::RING_AT;
    float* factors = (float*)(shared + Shape::FACTORS_AT) + warp * ST * 32 * Shape::FACTORS;
    float* sums = (float*)(shared + Shape::SUMS_AT);
    float* results = (float*)(ring + a.ring_bytes);
    // One block adds the slices as they come; those of a cluster keep them apart, for they may have some of a tile's each.
    constexpr bool ALONE = CLUSTER == 1;
    const uint32_t all_tiles = (s.rows + BATCH_TILE_ROWS - 1) / BATCH_TILE_ROWS;
    const uint32_t begin = all_tiles * cluster_index / clusters * BATCH_TILE_ROWS;
    const uint32_t end = min(s.rows, all_tiles * (cluster_index + 1) / clusters * BATCH_TILE_ROWS);

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
    // Where a piece of whole records belongs in a stage; of 8 rows, registers are left for those of a thread.
    auto place_of = [](uint32_t p) { return p * 16 + p / (WHOLE / 16) * (stride - WHOLE); };
    constexpr uint32_t COPIES = (ST * BATCH_TILE_ROWS * WHOLE / 16 + BATCH_THREADS - 1) / BATCH_THREADS;
    uint32_t places[NT == 1 ? COPIES : 1];
    if constexpr (NT == 1)
#pragma unroll
        for (uint32_t i = 0; i < COPIES; i++) places[i] = place_of(i * BATCH_THREADS + threadIdx.x);
    const Origin origin;
    BatchInputs<T, NT> in;
    bool awaited = false;
    uint32_t stage = 0, phases = 0, half = 0;  // half: of the warps' sums
    for (uint32_t row0 = begin; row0 < end; row0 += a.chunk_rows) {
        const uint32_t rows = min(a.chunk_rows, end - row0), tiles = (rows + BATCH_TILE_ROWS - 1) / BATCH_TILE_ROWS, items = tiles * c.count;
        static_assert(CLUSTER == 1 || CLUSTER == 2);
        const uint32_t middle = items / CLUSTER, first_item = rank == 0 ? 0 : middle, end_item = rank == 0 ? middle : items;
        TileCursor issue(first_item, end_item, tiles), k = issue;
        uint32_t issue_stage = stage;
        auto record_of = [&](uint32_t slice) { return slice + 1 == c.count ? last : full; };
        auto source_of = [&](const TileCursor& at) {
            return s.matrix + slice_offset(T, c, at.slice, s.rows) + (uint64_t)(row0 + at.tile * BATCH_TILE_ROWS) * record_of(at.slice);
        };
        const uint8_t* source = source_of(issue);
        // The records of a stage lie one after the other; in shared memory, they lie apart.
        auto copy_next = [&] {
            if (issue.item >= issue.end) return;
            const uint32_t n = issue.count(ST, tiles), n_rows = min(n * BATCH_TILE_ROWS, rows - issue.tile * BATCH_TILE_ROWS);
            const bool whole = c.full == 32 && (issue.slice + 1 < c.count || c.last == 32);
            const uint32_t record = record_of(issue.slice), to = shared_address(ring + issue_stage * stage_bytes), pieces = n_rows * (record / 16);
            const uint8_t* mine = source + threadIdx.x * 16;
            constexpr uint32_t ALL = ST * BATCH_TILE_ROWS * WHOLE / 16;
            auto copy_whole = [&](auto is_there) {
#pragma unroll
                for (uint32_t i = 0; i < COPIES; i++)
                    if (is_there(i)) copy_piece(to + (NT == 1 ? places[i] : place_of(i * BATCH_THREADS + threadIdx.x)), mine + i * BATCH_THREADS * 16);
            };
            if (whole && n_rows == ST * BATCH_TILE_ROWS)
                copy_whole([&](uint32_t i) { return (i + 1) * BATCH_THREADS <= ALL || threadIdx.x < ALL - i * BATCH_THREADS; });
            else if (whole)
                copy_whole([&](uint32_t i) { return i * BATCH_THREADS + threadIdx.x < pieces; });
            else
                for (uint32_t p = threadIdx.x; p < pieces; p += BATCH_THREADS)
                    copy_piece(to + p * 16 + p / (record / 16) * (stride - record), source + p * 16);
            barrier_arrive_copied(shared_address(bars + issue_stage));
            issue.advance(n, tiles);
            source = issue.tile == 0 ? source_of(issue) : source + n_rows * record;
            issue_stage = issue_stage + 1 == stages ? 0 : issue_stage + 1;
        };
        for (uint32_t i = 0; i < stages; i++) copy_next();
        if (!awaited) wait_for_producers();
        awaited = true;
        while (k.item < k.end) {
            const uint32_t n_tiles = k.count(ST, tiles), n = k.slice + 1 == c.count ? c.last : c.full;
            bool fresh = false;
            if (k.slice != loaded && k.slice != fetched) {
                __syncthreads();
                fetch(k.slice);
            }
            barrier_wait(shared_address(bars + stage), phases >> stage & 1);
            phases ^= 1u << stage;
            const uint8_t* from = ring + stage * stage_bytes;
            // Factors of the warp's groups: a lane takes row lane % 8 of group lane / 8 of each tile.
            {
                const FactorReader<T> reader(min(warp + (lane >> 3) * 8, n - 1), n);
                Group all[ST];
#pragma unroll
                for (uint32_t q = 0; q < ST; q++) reader.read(from + (q * BATCH_TILE_ROWS + (lane & 7)) * stride, all[q]);
#pragma unroll
                for (uint32_t q = 0; q < ST; q++) {
                    const Group& o = all[q];
                    float* to = factors + (q * 32 + lane) * Shape::FACTORS;
                    if constexpr (Shape::FACTORS == 1) *to = o.d[0];
                    else if constexpr (Shape::FACTORS == 2) *(float2*)to = make_float2(o.d[0], C::MINS ? o.m[0] : o.d[1]);
                    else *(float4*)to = make_float4(o.d[0], o.d[1], o.m[0], o.m[1]);
                }
                __syncwarp();
            }
            if (k.slice != loaded) {
                barrier_wait(shared_address(input_bar), input_phase);
                input_phase ^= 1;
                in.load(origin, shared, warp, lane, n);
                loaded = k.slice;
                fresh = true;
            }
            if constexpr (NT == 1) {
#pragma unroll
                for (uint32_t q = 0; q < ST; q += 2) {
                    if (q >= (n_tiles > 2 ? ST : 2)) break;
                    // A tile that is not there has results that nobody reads.
                    const uint8_t* row = from + (q * BATCH_TILE_ROWS + (lane >> 2)) * stride;
                    auto group = [&](int j, float (*v)[2]) {
                        uint32_t w[2][2];
                        const float* f[2];
#pragma unroll
                        for (uint32_t i = 0; i < 2; i++) {
                            two_words<T>(row + i * BATCH_TILE_ROWS * stride, warp + 8 * j, n, lane & 3, w[i][0], w[i][1]);
                            f[i] = factors + ((q + i) * 32 + j * 8 + (lane >> 2)) * Shape::FACTORS;
                        }
                        in.products(origin, j, w, f, v);
                    };
                    float u[2][2], v[2][2], w[2][2];
                    group(0, u);
                    group(2, v);
#pragma unroll
                    for (int i = 0; i < 2; i++) { u[i][0] = __fadd_rn(u[i][0], v[i][0]); u[i][1] = __fadd_rn(u[i][1], v[i][1]); }
                    group(1, v);
                    group(3, w);
                    float* to = sums + half * Shape::SUMS + (warp * ST + q) * TILE_SUMS + (lane >> 2) * 8 + (lane & 3) * 2;
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        *(float2*)(to + i * TILE_SUMS) = make_float2(__fadd_rn(u[i][0], __fadd_rn(v[i][0], w[i][0])), __fadd_rn(u[i][1], __fadd_rn(v[i][1], w[i][1])));
                }
            } else {
#pragma unroll
                for (uint32_t q = 0; q < ST; q++) {
                    if (q >= n_tiles) break;
                    const uint8_t* row = from + (q * BATCH_TILE_ROWS + (lane >> 2)) * stride;
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
                    float* to = sums + half * Shape::SUMS + (warp * ST + q) * TILE_SUMS + (lane >> 2) * BATCH_TILE_ROWS + (lane & 3) * 2;
#pragma unroll
                    for (int i = 0; i < NT; i++)
                        *(float2*)(to + i * 64) = make_float2(__fadd_rn(u[i][0], __fadd_rn(v[i][0], w[i][0])), __fadd_rn(u[i][1], __fadd_rn(v[i][1], w[i][1])));
                }
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
                    // Of 8 input rows, sums are in the order of weight rows so far.
                    const uint32_t e = at + i, place = NT == 1 ? (e & ~63) + (e & 7) * 8 + (e >> 3 & 7) : e;
                    to[place] = ALONE && k.slice > 0 ? __fadd_rn(to[place], sum) : sum;
                }
            }
            if constexpr (Shape::SUM_BUFFERS == 1) __syncthreads();
            else half ^= 1;
            k.advance(n_tiles, tiles);
            stage = stage + 1 == stages ? 0 : stage + 1;
        }
        cluster_sync_shared();
        // The slices' sums, by the warps of the cluster: 8 input rows of a tile each.
        const uint32_t base = shared_address(results);
        for (uint32_t unit = rank * BATCH_WARPS + warp; unit < tiles * NT; unit += CLUSTER * BATCH_WARPS) {
            const uint32_t tile = unit / NT, col = unit % NT * 8 + (lane >> 3), row = tile * BATCH_TILE_ROWS + (lane & 7);
            const uint32_t offset = (unit % NT * 64 + lane) * 4;
            // What was asked for from the other block must have come before this one says that it is done, so no more than is stored.
            if (row >= rows || col >= a.batch) continue;
            const bool both = col + 4 < a.batch;
            float v[2];
#pragma unroll 4
            for (uint32_t t = 0; t < (ALONE ? 1 : c.count); t++) {
                const uint32_t item = t * tiles + tile, owner = item >= middle, local = item - (owner ? middle : 0);
                const uint32_t from = remote_address(base + local * TILE_SUMS * 4 + offset, owner);
                const float p[2] = {load_remote(from), both ? load_remote(from + 128) : 0.0f};
#pragma unroll
                for (int h = 0; h < 2; h++) v[h] = t == 0 ? p[h] : __fadd_rn(v[h], p[h]);
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (h == 1 && !both) continue;
                if (s.bias) v[h] = __fadd_rn(v[h], s.bias[row0 + row]);
                const uint64_t at = (uint64_t)(col + 4 * h) * a.out_stride + s.out_offset + row0 + row;
                if (a.residual) v[h] = __fadd_rn(v[h], a.residual[at]);
                a.out[at] = v[h];
            }
        }
        // What the other block has is in registers here.
        cluster_join();
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
