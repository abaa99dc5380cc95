// Products of 17 to 64 input rows with a quantized matrix in f16, by the warpgroup products of sm_90a. int8 tensor cores
// (matvec_batch.cuh) take a scale for each 32 elements of the input, whose arithmetic in f32 grows with the rows; here it
// does not.
//
// A block has four warpgroups. Each has a tile of 64 rows of the matrix and a part of k: its warps ask for records, decode them
// into the tensor cores' fragments, and multiply these with the inputs, which bulk copies bring to shared memory. Warpgroups of
// one tile add their sums at the end, and so do the two blocks of a cluster that share a tile.
//
// Inputs are f16 with a power of two for each row. Of every 128 elements, in the order of tensor cores, lane t of the four that
// have a row of a fragment has group t alone: step s of 8 takes elements 4 * s .. of the four groups (QuantizeInputArgs).
// Weights are divided by a power of two of their segment, so that scales of any size fit.
//
// Of a gate and what it lets through, a warp has eight rows each, and a thread both of a result, which it stores together with the largest of
// each row: what makes the next input has read it once then.
//
// The order of additions depends on the matrix alone: a row's bits do not depend on the other rows, nor on their number.
#pragma once
#include "activation.cuh"
#include "args_batch_f16.h"
#include "hopper.cuh"
#include "kept.cuh"
#include "powers.cuh"

struct BatchTile {
    static constexpr uint32_t WARPGROUPS = F16_BATCH_WARPGROUPS, THREADS = WARPGROUPS * 128, ROWS = F16_BATCH_ROWS, K = F16_BATCH_K;
    static constexpr uint32_t STEPS = K / 16, GROUPS = K / 32;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The exponent of the power of two that weights of a segment with this bound are divided by: they come below 2^15. A bound that is no number
// leaves them as they are.
__device__ __forceinline__ int power_exponent(float largest) {
    const int e = (int)(__float_as_uint(largest) >> 23) - 127 - 14;
    return largest > 0.0f && e < 112 ? max(e, -112) : 0;
}

// d[64 x 8 * NT] += a[64 x 16] * b[8 * NT x 16]: `a` in registers, `b` in shared memory as 8 x 8 matrices one after the other, two for each
// eight columns.
template <int NT> __device__ __forceinline__ void add_fragment(float (&d)[NT * 4], const uint32_t (&a)[4], uint64_t b) {
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define A4 "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
    if constexpr (NT == 4)
        asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},"
                     "{%16,%17,%18,%19},%20,1,1,1,0;" : D16(0) : A4, "l"(b));
    else
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                     "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},{%32,%33,%34,%35},%36,1,1,1,0;"
                     : D16(0), D16(16) : A4, "l"(b));
#undef A4
#undef D16
#undef D4
}
// The lower half of a descriptor of inputs at `address`, the same for a whole warp and in a uniform register; the upper half is a constant.
__device__ __forceinline__ uint32_t input_descriptor(uint32_t address) { return warp_largest((address & 0x3ffff) >> 4 | 128 >> 4 << 16); }
constexpr uint64_t INPUT_DESCRIPTOR = (uint64_t)(256 >> 4) << 32;

// What a lane has of a row's fragments of a stage: u[s][0] and u[s][1] of step s.
using Fragments = uint32_t[BatchTile::STEPS][2];
// A group of weights times `power`.
template <uint32_t T> __device__ __forceinline__ void fragments(const Group& o, float power, Fragments& u) {
    using C = Codec<T>;
    constexpr bool SIGNED = C::OFFSET == 0 && !C::MINS;
    const __half2 base = __half2half2(__ushort_as_half(0x6400 + (SIGNED ? 128 : C::OFFSET)));  // 1024 and what bytes have too much
    __half2 d[2], m[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        d[h] = __float2half2_rn(__fmul_rn(o.d[h], power));
        if constexpr (C::MINS) m[h] = __float2half2_rn(-__fmul_rn(o.m[h], power));
    }
#pragma unroll
    for (int s = 0; s < 8; s++) {
        const uint32_t bytes = SIGNED ? o.w[s] ^ 0x80808080 : o.w[s];
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const uint32_t raised = __byte_perm(bytes, 0x64646464, p ? 0x4341 : 0x4240);
            const __half2 q = __hsub2(*(const __half2*)&raised, base);
            const __half2 v = C::MINS ? __hfma2(q, d[s >> 2], m[s >> 2]) : __hmul2(q, d[s >> 2]);
            u[s][p] = *(const uint32_t*)&v;
        }
    }
}

// Asks for the records of a warp's rows in a slice to be brought into the L2 cache, where they lie together.
template <uint32_t T> __device__ __forceinline__ void prefetch_slice(const uint8_t* matrix, const Slices& c, uint32_t slice, uint32_t rows, uint32_t row, uint32_t count) {
    const uint32_t bytes = record_bytes(T, slice + 1 == c.count ? c.last : c.full);
    bulk_prefetch(matrix + slice_offset(T, c, slice, rows) + (uint64_t)row * bytes, min(count, rows - row) * bytes);
}

// A lane's two rows of the matrix, `apart` rows from each other, of which it has every fourth group: two for each 256 elements. What is beyond
// the end of a row may be anything that is finite, for inputs are zeros there.
template <uint32_t T> struct LaneWalk {
    const uint8_t *matrix, *record[2];
    uint32_t rows, row, apart, slice, group, record_groups;
    Slices c;
    __device__ __forceinline__ LaneWalk(const Segment& s, uint32_t groups, uint32_t row, uint32_t apart)
        : matrix((const uint8_t*)s.matrix), rows(s.rows), row(row), apart(apart), c(slices_of(T, groups)) {}
    // At group `at`, which is in a slice or behind the last one.
    __device__ __forceinline__ void begin_in(uint32_t its, uint32_t at) {
        slice = its;
        group = at - slice * c.full;
        find();
    }
    // Goes on to the next slice, if there is one.
    __device__ __forceinline__ bool go_on() {
        if (slice + 1 >= c.count) return false;
        group -= record_groups;
        slice++;
        find();
        return true;
    }
    __device__ __forceinline__ void find() {
        record_groups = slice + 1 == c.count ? c.last : c.full;
        const uint32_t bytes = record_bytes(T, record_groups);
        record[0] = matrix + slice_offset(T, c, slice, rows) + (uint64_t)row * bytes;
        record[1] = record[0] + apart * bytes;
    }
};
template <uint32_t T> struct LaneWeights : LaneWalk<T> {
    using Walk = LaneWalk<T>;
    using Walk::group, Walk::record, Walk::record_groups;
    float power;
    KeptGroup<T> kept[2][2];  // of quad and row
    __device__ __forceinline__ LaneWeights(const Segment& s, uint32_t groups, uint32_t row, uint32_t apart, float power) : Walk(s, groups, row, apart), power(power) {}
    __device__ __forceinline__ void begin(uint32_t at) { Walk::begin_in(min(at / Walk::c.full, Walk::c.count - 1), at); }
    // Asks for the next groups of both rows.
    template <int QUAD> __device__ __forceinline__ void ask() {
        if (group >= record_groups && !Walk::go_on()) group = record_groups - 1;
#pragma unroll
        for (int h = 0; h < 2; h++) kept[QUAD][h].ask(record[h], group, record_groups);
        group += BatchTile::GROUPS;
    }
    template <int QUAD> __device__ __forceinline__ void decode(int h, Fragments& u) {
        Group o;
        kept[QUAD][h].decode(o);
        fragments<T>(o, power, u);
    }
};

// (v & mask) | bits, in one instruction where one of them is in a register.
template <uint32_t MASK> __device__ __forceinline__ uint32_t masked(uint32_t v, uint32_t bits) {
    uint32_t r;
    asm("lop3.b32 %0,%1,%2,%3,0xea;" : "=r"(r) : "r"(v), "n"(MASK), "r"(bits));
    return r;
}
// Both groups that a lane has of 256 elements have their factors in one place, and nibbles become numbers where they are.
template <> struct LaneWeights<Q4_K> : LaneWalk<Q4_K> {
    uint32_t bits;
    float power;
    uint4 kept[2][2], factors[2];
    __half2 scales[2][2];  // of row and quad: a group's, with what is subtracted
    __device__ __forceinline__ LaneWeights(const Segment& s, uint32_t groups, uint32_t row, uint32_t apart, float power)
        : LaneWalk(s, groups, row, apart), bits(::kept<0x64006400>()), power(power) {}
    // Blocks are whole, so where there is something to ask for, no lane is behind the end.
    __device__ __forceinline__ void begin(uint32_t at) { begin_in(at / c.full, at); }
    template <int QUAD> __device__ __forceinline__ void ask() {
        if (QUAD == 0) {
            if (group >= record_groups) go_on();
            const uint32_t at = (record_groups + (group >> 3)) * 16;
#pragma unroll
            for (int h = 0; h < 2; h++) factors[h] = FromCached::v4(record[h] + at);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) kept[QUAD][h] = FromCached::v4(record[h] + group * 16);
        group += BatchTile::GROUPS;
    }
    template <int QUAD> __device__ __forceinline__ void decode(int h, Fragments& u) {
        const uint32_t t = threadIdx.x & 3;
        if (QUAD == 0) {
            const uint4 m = factors[h];
            const __half2 d = __floats2half2_rn(__fmul_rn(half_bits(m.x & 0xffff), power), __fmul_rn(half_bits(m.x >> 16), -power));
            const __half2 base = __half2half2(__ushort_as_half(0x6400));
#pragma unroll
            for (int q = 0; q < 2; q++) {
                // 12 bits from 12 * t on, or from 48 + 12 * t.
                const uint32_t low = q ? (t < 2 ? m.z : m.w) : (t < 3 ? m.y : m.z), high = q ? m.w : m.z;
                const uint32_t sm = __funnelshift_r(low, high, q ? 16 + 12 * t : 12 * t);
                const uint32_t pair = masked<0x003f0000>(sm << 10, masked<0x3f>(sm, bits));
                scales[h][q] = __hmul2(__hsub2(*(const __half2*)&pair, base), d);
            }
        }
        const __half2 base = __half2half2(__ushort_as_half(0x6400)), d = __low2half2(scales[h][QUAD]), m = __high2half2(scales[h][QUAD]);
        const __half2 high_d = __hmul2(d, __half2half2(__ushort_as_half(0x2c00)));  // a sixteenth
        const uint32_t words[4] = {kept[QUAD][h].x, kept[QUAD][h].y, kept[QUAD][h].z, kept[QUAD][h].w};
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int p = 0; p < 2; p++) {
                const uint32_t w = p ? words[i] >> 8 : words[i], low = masked<0x000f000f>(w, bits), high = masked<0x00f000f0>(w, bits);
                const __half2 v = __hfma2(__hsub2(*(const __half2*)&low, base), d, m), o = __hfma2(__hsub2(*(const __half2*)&high, base), high_d, m);
                u[i][p] = *(const uint32_t*)&v;
                u[4 + i][p] = *(const uint32_t*)&o;
            }
    }
};

// The inputs of a part of k, which come through a ring in shared memory: again for each tile. One thread asks for them.
template <int NT> struct InputRing {
    static constexpr uint32_t BYTES = BatchTile::K * NT * 16;
    static constexpr uint32_t LAG = 2;  // turns until what a stage held is no longer in use, as a rule
    uint32_t at, full, empty, stages;   // addresses in shared memory
    uint32_t stage = 0, phase = 0;      // of the turn

    __device__ __forceinline__ void start(uint8_t* shared, uint64_t* full_bars, uint64_t* empty_bars, uint32_t part, uint32_t n) {
        at = shared_address(shared) + part * n * BYTES;
        full = shared_address(full_bars + part * F16_BATCH_STAGES);
        empty = shared_address(empty_bars + part * F16_BATCH_STAGES);
        stages = n;
    }
    __device__ __forceinline__ void wait() const { barrier_wait(full + stage * 8, phase); }
    __device__ __forceinline__ uint32_t address() const { return at + stage * BYTES; }
    // A warp has done with the stage.
    __device__ __forceinline__ void next() {
        if ((threadIdx.x & 31) == 0) barrier_arrive(empty + stage * 8);
        if (++stage == stages) { stage = 0; phase ^= 1; }
    }
};
// What that thread keeps.
template <int NT> struct InputCopies {
    using Ring = InputRing<NT>;
    const uint8_t* x;
    uint32_t k, mine, left;             // the next one's place in the part; how many there are, and are left
    uint32_t stage = 0, phase = 1, waits;
    __device__ __forceinline__ void ask(const Ring& ring) {
        if (left == 0) return;
        left--;
        barrier_wait(ring.empty + stage * 8, phase);
        barrier_expect(ring.full + stage * 8, Ring::BYTES);
        bulk_copy(ring.at + stage * Ring::BYTES, x + (uint64_t)k * Ring::BYTES, Ring::BYTES, ring.full + stage * 8);
        if (++k == mine) k = 0;
        if (++stage == ring.stages) { stage = 0; phase ^= 1; }
    }
    __device__ __forceinline__ void start(const Ring& ring) {
        for (uint32_t i = 0; i < ring.stages; i++) ask(ring);
        waits = Ring::LAG;
    }
    // Behind each turn.
    __device__ __forceinline__ void go_on(const Ring& ring) {
        if (waits > 0) waits--;
        else ask(ring);
    }
};

// Stages of a part of k: so many that blocks of 256 stay whole.
__device__ __forceinline__ uint32_t part_length(uint32_t stages, uint32_t parts) { return ((stages + parts - 1) / parts + 1) & ~1u; }

template <uint32_t T, int NT> __device__ __forceinline__ void batch_f16_multiply(const BatchF16Args& a, const Segment& s, const float* largest, uint32_t block,
                                                                               uint32_t rank, uint8_t* shared, uint64_t* full, uint64_t* empty, uint32_t* largest_out) {
    using B = BatchTile;
    const uint32_t thread = threadIdx.x & 127, lane = thread & 31, group = threadIdx.x / 128, part = group % a.parts, blocks = s.blocks / a.shares;
    const uint32_t all = (a.groups + B::GROUPS - 1) / B::GROUPS, parts = a.parts * a.shares;
    const uint32_t each = part_length(all, parts), first = min(all, (rank * a.parts + part) * each), mine = min(all, first + each) - first;
    const uint32_t tiles_at_once = B::WARPGROUPS / a.parts;
    // Rows of results, and of a tile.
    const bool has_gate = a.largest_out;
    const uint32_t rows = has_gate ? s.rows / 2 : s.rows, tile = has_gate ? B::ROWS / 2 : B::ROWS;
    const uint32_t turns = ((rows + tile - 1) / tile + tiles_at_once - 1) / tiles_at_once;
    // Of tiles whose warpgroups follow each other.
    float* sums = (float*)(shared + a.sums_at) + group * (B::ROWS * NT * 8) + thread;
    const bool copies = group < a.parts && thread == 0;
    InputRing<NT> ring;
    ring.start(shared, full, empty, part, a.stages);
    InputCopies<NT> inputs;
    const int e = power_exponent(*largest);
    const float power = exact_power(-e), raise = exact_power(e);
    bool begun = false;
    for (uint32_t t = block; t < turns; t += blocks) {
        const uint32_t row = (t * tiles_at_once + group / a.parts) * tile + thread / 32 * (tile / 4) + lane / 4;
        // Rows beyond the last are not stored, whatever they are.
        const uint32_t row0 = min(row, rows - 1), apart = has_gate ? rows : min(row + 8, rows - 1) - row0;
        LaneWeights<T> weights(s, a.groups, row0, apart, power);
        weights.begin(first * B::GROUPS + lane % 4);
        float acc[NT * 4];
#pragma unroll
        for (int i = 0; i < NT * 4; i++) acc[i] = 0.0f;
        if (mine > 0) {
            weights.template ask<0>();
            weights.template ask<1>();
        }
        if (!begun) {
            begun = true;
            // While the input is still made, memory is idle.
            if (mine > 0 && lane == 0) {
                prefetch_slice<T>((const uint8_t*)s.matrix, weights.c, weights.slice, s.rows, row0, has_gate ? 8 : 16);
                if (has_gate) prefetch_slice<T>((const uint8_t*)s.matrix, weights.c, weights.slice, s.rows, row0 + apart, 8);
            }
            wait_for_producers();
            if (copies) {
                inputs.x = (const uint8_t*)a.x + (uint64_t)first * InputRing<NT>::BYTES;
                inputs.k = 0;
                inputs.mine = mine;
                inputs.left = mine * ((turns - block + blocks - 1) / blocks);
                inputs.start(ring);
            }
        }
        auto turn = [&]<int QUAD>(uint32_t k) {
            Fragments u[2];
#pragma unroll
            for (int h = 0; h < 2; h++) weights.template decode<QUAD>(h, u[h]);
            if (k + 2 < mine) weights.template ask<QUAD>();
            ring.wait();
            const uint32_t x = input_descriptor(ring.address());
            products_fence();
#pragma unroll
            for (int i = 0; i < B::STEPS; i++) {
                const uint32_t f[4] = {u[0][i][0], u[1][i][0], u[0][i][1], u[1][i][1]};
                add_fragment<NT>(acc, f, INPUT_DESCRIPTOR | (x + i * (NT * 256 >> 4)));
            }
            products_commit();
            products_wait<0>();
            ring.next();
            if (copies) inputs.go_on(ring);
        };
#pragma unroll 1
        for (uint32_t k = 0; k < mine; k += 2) {
            turn.template operator()<0>(k);
            if (k + 1 < mine) turn.template operator()<1>(k + 1);
        }
        const bool inside[2] = {row < rows, has_gate ? row < rows : row + 8 < rows};
        // Sum i of a thread is of column i / 4 * 8 + lane % 4 * 2 + i % 2, and of its first row or second by i / 2 % 2.
        const uint64_t out = s.out_offset + row + (uint64_t)(lane % 4 * 2) * a.out_stride;
        auto place = [&](uint32_t i) { return out + (uint64_t)(i / 4 * 8 + i % 2) * a.out_stride + i / 2 % 2 * 8; };
        auto is_there = [&](uint32_t i) { return inside[i / 2 % 2] && i / 4 * 8 + lane % 4 * 2 + i % 2 < a.batch; };
        auto scale_of = [&](uint32_t i) { return __fmul_rn(raise, __ldcg(a.x_scale + i / 4 * 8 + lane % 4 * 2 + i % 2)); };
        auto bias_of = [&](uint32_t i) { return s.bias[row + i / 2 % 2 * (has_gate ? rows : 8)]; };
        // Stores N sums. Of a gate they are all four of a column pair: the gates, then what they let through. All that is added is loaded before
        // the first is stored, for the compiler cannot know that they differ.
        auto finish = [&]<int N>(float (&v)[N], auto index, auto scale_at) {
            float scale[N], more[N];
#pragma unroll
            for (int n = 0; n < N; n++) scale[n] = is_there(index(n)) ? scale_at(index(n)) : 0.0f;
            if (a.residual && !has_gate)
#pragma unroll
                for (int n = 0; n < N; n++) more[n] = is_there(index(n)) ? a.residual[place(index(n))] : 0.0f;
#pragma unroll
            for (int n = 0; n < N; n++) {
                v[n] = __fmul_rn(v[n], scale[n]);
                if (s.bias && is_there(index(n))) v[n] = __fadd_rn(v[n], bias_of(index(n)));
            }
            if (has_gate) {
#pragma unroll
                for (int n = 0; n < N; n++) {
                    if (n % 4 >= 2 || !is_there(index(n))) continue;
                    const float through = gated(a.activation, v[n], v[(n + 2) % N]);
                    a.out[place(index(n))] = through;
                    atomicMax(largest_out + index(n) / 4 * 8 + lane % 4 * 2 + index(n) % 2, __float_as_uint(fabsf(through)));
                }
                return;
            }
#pragma unroll
            for (int n = 0; n < N; n++)
                if (is_there(index(n))) a.out[place(index(n))] = a.residual ? __fadd_rn(v[n], more[n]) : v[n];
        };
        if (parts == 1) {
            float scales[NT * 2];
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int x = 0; x < 2; x++) scales[j * 2 + x] = is_there(j * 4 + x) ? scale_of(j * 4 + x) : 0.0f;
#pragma unroll
            for (int j = 0; j < NT; j++) {
                float v[4] = {acc[j * 4], acc[j * 4 + 1], acc[j * 4 + 2], acc[j * 4 + 3]};
                finish(v, [&](int n) { return j * 4 + n; }, [&](int i) { return scales[i / 4 * 2 + i % 2]; });
            }
            continue;
        }
        // All that have a part of a tile share its sums: [element][thread] of each warpgroup.
        constexpr uint32_t OTHER = B::ROWS * NT * 8;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < NT * 4; i++) sums[i * 128] = acc[i];
        if (a.shares > 1) cluster_sync_shared();
        else __syncthreads();
        const float* tile_sums = sums - part * OTHER;
        auto sum_of = [&](uint32_t i) {
            float v[2] = {0.0f, 0.0f};
            for (uint32_t r = 0; r < a.shares; r++) {
                const uint32_t from = a.shares > 1 ? remote_address(shared_address(tile_sums + i * 128), r) : shared_address(tile_sums + i * 128);
                float p[4];
#pragma unroll
                for (uint32_t q = 0; q < 4; q++) p[q] = q < a.parts ? load_remote(from + q * OTHER * 4) : 0.0f;
                v[r] = __fadd_rn(__fadd_rn(__fadd_rn(p[0], p[1]), p[2]), p[3]);
            }
            return a.shares > 1 ? __fadd_rn(v[0], v[1]) : v[0];
        };
        const uint32_t worker = rank * a.parts + part, count = NT * 4 / parts;
        if (has_gate || count % 4 == 0) {
            // Fours, which a gate wants together.
            for (uint32_t j = worker; j < NT; j += parts) {
                float v[4];
#pragma unroll
                for (int n = 0; n < 4; n++) v[n] = sum_of(j * 4 + n);
                finish(v, [&](int n) { return j * 4 + n; }, scale_of);
            }
        } else if (count == 2) {
            float v[2] = {sum_of(worker * 2), sum_of(worker * 2 + 1)};
            finish(v, [&](int n) { return worker * 2 + n; }, scale_of);
        } else {
            float v[1] = {sum_of(worker)};
            finish(v, [&](int) { return worker; }, scale_of);
        }
        if (a.shares > 1) cluster_join();
        else if (t + blocks < turns) __syncthreads();
    }
    if (!begun) wait_for_producers();
    if (!has_gate) return;
    __syncthreads();
    if (threadIdx.x < a.batch && largest_out[threadIdx.x] != 0) atomicMax((uint32_t*)a.largest_out + threadIdx.x, largest_out[threadIdx.x]);
}

// Dynamic shared memory: a ring of `stages` of inputs for each part; where parts or blocks share a tile, sums of each warpgroup, which may
// lie in the rings of blocks that have one turn.
template <int NT, uint32_t... TYPES> __device__ __forceinline__ void batch_f16(const BatchF16Args& a) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint32_t largest_out[64];
    __shared__ __align__(8) uint64_t full[BatchTile::WARPGROUPS * F16_BATCH_STAGES], empty[BatchTile::WARPGROUPS * F16_BATCH_STAGES];
    release_dependents();
    const uint32_t rank = a.shares > 1 ? cluster_rank() : 0;
    if (threadIdx.x < BatchTile::WARPGROUPS * F16_BATCH_STAGES) {
        barrier_init(shared_address(full + threadIdx.x), 1);
        barrier_init(shared_address(empty + threadIdx.x), BatchTile::WARPGROUPS / a.parts * 4);
        fence_shared();
    }
    if (threadIdx.x < 64) largest_out[threadIdx.x] = 0;
    __syncthreads();
    int index = 0;
    while (index + 1 < a.n_segments && blockIdx.x >= a.segments[index + 1].first_block) index++;
    const Segment& s = a.segments[index];
    const uint32_t block = (blockIdx.x - s.first_block) / a.shares;
    ((s.type == TYPES ? batch_f16_multiply<TYPES, NT>(a, s, a.largest[index], block, rank, shared, full, empty, largest_out) : (void)0), ...);
}
#endif

// Kernel names: batch_f16_<types>_<columns>. Clusters of two blocks. Other devices have empty kernels.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define BATCH_F16_ONE(name, nt, ...)                                                                                        \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(BatchTile::THREADS, 1) name(const __grid_constant__ BatchF16Args a) { \
        batch_f16<nt, __VA_ARGS__>(a);                                                                                      \
    }
#else
#define BATCH_F16_ONE(name, nt, ...) \
    extern "C" __global__ void name(const __grid_constant__ BatchF16Args) {}
#endif
#define BATCH_F16(name, ...)                             \
    BATCH_F16_ONE(batch_f16_##name##_32, 4, __VA_ARGS__) \
    BATCH_F16_ONE(batch_f16_##name##_64, 8, __VA_ARGS__)
