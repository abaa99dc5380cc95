// A whole decode step of one sequence as one kernel that stays on the multiprocessors.
//
// A step is a list of operations: products with a quantized matrix, and attention. Every block takes a
// share of each. Of each block one warp does nothing but bring in weights: it walks through all the
// matrices of the step in order and fills a ring in shared memory, so that weights stream while the others
// wait for each other, attend or normalize. Another walks some slots further ahead and asks for what comes
// then to be brought into the L2 cache, since the ring is full sooner than such a wait is over.
//
// Blocks do not meet at barriers: every operation has an output of its own, whose numbers are UNWRITTEN
// before they are there, and who reads them looks until they are others. There are two sets of outputs;
// while a step uses one, it clears the other for the next step.
//
// All results have the bits of the kernels that do one operation each (matvec.cuh, norm.cu, attention.cu).
#pragma once
#include "activation.cuh"
#include "attend_tiles.cuh"
#include "hopper.cuh"
#include "matvec.cuh"
#include "norm.cuh"
#include "quantize.cuh"

// Rows of one type of a product, and how they are shared: its blocks have `quads` fours of rows each, the
// first `more` of them one more. For GATE, all is said of half the rows.
struct Part {
    const uint8_t* matrix;
    const float* bias;      // or NULL
    uint32_t type;
    uint32_t rows;
    uint32_t first_block;
    uint32_t blocks;
    uint32_t quads, more;
    uint32_t out_offset;    // where its first row lies in the output
    uint32_t n_slices;
    uint32_t full, last;    // groups of a slice
    uint32_t full_bytes, last_bytes;  // of a record
    uint32_t quad_bytes;    // of a slot's pieces
    uint32_t quads_per_slot;
};
static_assert(sizeof(Part) == 72, "as in args.rs");

// out = matrix * input (+ bias) (+ residual), or a function of it.
struct ProductOp {
    Part parts[MAX_SEGMENTS];
    const float* x;         // input: f32, which becomes int8 here
    uint32_t* encoded;      // where the blocks put the int8 of a group each for all, or NULL: each makes its own
    NormArgs norm;          // of x; weight NULL: none; not with `encoded`
    float* out;
    const float* residual;  // or NULL
    uint32_t n_parts;
    uint32_t groups;        // of 32 elements in a row
    uint32_t chunk_quads;   // fours of rows that a block sums at a time: bounds its shared memory
    uint32_t ending;
    float inverse_len;      // of a row of x
    Activation activation;
};
static_assert(sizeof(ProductOp) == 376, "as in args.rs");

enum Ending : uint32_t {
    PLAIN = 0,
    ACTIVATE = 1,  // out = activation(product)
    GATE = 2,      // out = activation(upper half of the rows) * lower half: one segment
};

enum OpKind : uint32_t { PRODUCT = 0, ATTEND = 1 };

struct Op {
    uint32_t kind;
    uint32_t padding;
    union {
        ProductOp product;
        AttendArgs attend;
    };
};
static_assert(sizeof(Op) == 384, "as in args.rs");

struct PersistentArgs {
    const Op* ops;       // [2][n_ops]: on the first and on the second set of outputs
    const Session* const* sessions;
    uint32_t* state;     // {blocks that have ended, which set is next}
    uint32_t* outputs;   // [2][output_words]
    uint64_t* times;     // [n_ops][2] clock of block 0 when it has an operation's input, and at its end; or NULL
    uint32_t output_words;
    uint32_t n_ops;
    uint32_t slots;      // of the ring
    uint32_t ahead;      // how many slots further weights are asked for
};
static_assert(sizeof(PersistentArgs) == 56, "as in args.rs");

constexpr int WORKERS = 512;             // threads that compute
constexpr int THREADS = WORKERS + 128;   // a warp of the others brings in weights, one goes ahead, one clears outputs
constexpr uint32_t SLOT_BYTES = 18432;   // 8 quads of Q4_K
constexpr uint32_t MAX_SLOTS = 16;
constexpr uint32_t SLOT_ARRIVALS = 16;   // at least the quads of a slot
constexpr uint32_t SLOT_STEP = 8;        // a divisor of the number of slots
constexpr int ATTEND_STAGES = 2;         // fewer than in a kernel of its own: the ring of weights needs the room
constexpr uint32_t OP_WORDS = sizeof(Op) / 4;

#if __CUDA_ARCH__ >= 900

using Workers = FirstThreads<1, WORKERS>;
using Attendants = FirstThreads<2, 128>;

// The part that this block has a share of, or NULL.
__device__ __forceinline__ const Part* part_of(const ProductOp& op) {
    for (uint32_t i = 0; i < op.n_parts; i++)
        if (blockIdx.x - op.parts[i].first_block < op.parts[i].blocks) return &op.parts[i];
    return NULL;
}
// Its share: quads from `begin` to `end`, of which the last one may have less than four rows.
struct Share {
    uint32_t begin, end;
    __device__ __forceinline__ explicit Share(const Part& p) {
        const uint32_t block = blockIdx.x - p.first_block;
        begin = block * p.quads + min(block, p.more);
        end = begin + p.quads + (block < p.more ? 1 : 0);
    }
};

// Pieces of a slot: of quads of the longest records.
__host__ __device__ constexpr uint32_t quad_bytes(uint32_t t) { return 4 * record_bytes(t, 32); }
// How many of them: a power of two, so that a warp comes to every fourth, or eighth, slot.
__host__ __device__ constexpr uint32_t quads_per_slot(uint32_t t) {
    uint32_t n = SLOT_ARRIVALS;
    while (n * quad_bytes(t) > SLOT_BYTES) n /= 2;
    return n;
}
// a / b for numbers far below 2^20, without the long way of a division of integers.
__device__ __forceinline__ uint32_t small_quotient(uint32_t a, uint32_t b) {
    return (uint32_t)__fdividef((float)a + 0.5f, (float)b);
}

// Position in the ring: a slot, and how often the ring went round, modulo 2.
struct RingPlace {
    uint32_t slot, parity;
    // By a round at most.
    __device__ __forceinline__ void advance(uint32_t n, uint32_t slots) {
        slot += n;
        if (slot >= slots) { slot -= slots; parity ^= 1; }
    }
    __device__ __forceinline__ void advance_far(uint32_t n, uint32_t slots) {
        slot += n;
        while (slot >= slots) { slot -= slots; parity ^= 1; }
    }
};

struct Ring {
    uint32_t base;   // address of the slots
    uint32_t full;   // addresses of the barriers
    uint32_t empty;
    uint32_t slots;
};

// Walks through the quads of a share: list of (slice, quad), slice by slice, for GATE quads of the upper
// half before those of the lower. A quad that begins a run of consecutive rows, or a slot, lies at its
// place in the slot; the run's others follow without gaps.
template <class Slots> __device__ __forceinline__ void bring_in(const ProductOp& op, Slots& slots) {
    const Part* part = part_of(op);
    if (!part) return;
    const Part& p = *part;
    const Share share(p);
    const uint32_t halves = op.ending == GATE ? 2 : 1;
    const uint64_t slice_bytes = (uint64_t)p.rows * halves * p.full_bytes;
    for (uint32_t first = share.begin; first < share.end; first += op.chunk_quads) {
        const uint32_t h = min(op.chunk_quads, share.end - first);
        uint32_t left = h * halves * p.n_slices, slice = 0, half = 0, run = 0;
        while (left > 0) {
            const uint32_t n = min(left, p.quads_per_slot);
            slots.begin();
            for (uint32_t k = 0; k < n;) {
                const uint32_t quads = min(n - k, h - run), record = slice + 1 == p.n_slices ? p.last_bytes : p.full_bytes;
                const uint32_t row = (first + run) * 4, rows = min(quads * 4, p.rows - row);
                slots.take(k * p.quad_bytes, p.matrix + slice * slice_bytes + (uint64_t)(half * p.rows + row) * record, rows * record);
                k += quads;
                run += quads;
                if (run == h) {
                    run = 0;
                    if (++half == halves) { half = 0; slice++; }
                }
            }
            slots.end();
            left -= n;
        }
    }
}
// The slots of the ring. `filled` counts them, for the warp that goes ahead.
struct RingSlots {
    const Ring& ring;
    volatile uint32_t& filled;
    RingPlace at{0, 0};
    __device__ __forceinline__ void begin() { barrier_wait(ring.empty + at.slot * 8, at.parity ^ 1); }
    __device__ __forceinline__ void take(uint32_t place, const uint8_t* from, uint32_t bytes) {
        barrier_announce(ring.full + at.slot * 8, bytes);
        bulk_copy(ring.base + at.slot * SLOT_BYTES + place, from, bytes, ring.full + at.slot * 8);
    }
    __device__ __forceinline__ void end() {
        barrier_arrive(ring.full + at.slot * 8);
        at.advance(1, ring.slots);
        filled = filled + 1;
    }
};
// The same slots `ahead` earlier, in the L2 cache.
struct SlotsAhead {
    const volatile uint32_t& filled;
    uint32_t ahead, asked = 0;
    bool of_use = false;
    __device__ __forceinline__ void begin() {
        uint32_t n;
        while ((n = filled) + ahead <= asked) __nanosleep(100);
        of_use = asked >= n;
    }
    __device__ __forceinline__ void take(uint32_t, const uint8_t* from, uint32_t bytes) const {
        if (of_use) bulk_prefetch(from, bytes);
    }
    __device__ __forceinline__ void end() { asked++; }
};

// Sums of the two halves of a group, in its first lane. Whole warps call it.
struct GroupSums {
    int first, second;
};
__device__ __forceinline__ GroupSums group_sums(const PackedValues& p) {
    int sum = __dp4a((int)p.q, 0x01010101, 0);
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    return GroupSums{sum, __shfl_xor_sync(~0u, sum, 4)};
}

// The input of a product in shared memory: per group 16 bytes of its first and, in another plane, of its
// second half, and {scale, sum of the first half, of the second} as {float, int, int}.
struct Input {
    uint8_t* at;
    uint32_t groups;
    __device__ __forceinline__ uint4* half(uint32_t h) const { return (uint4*)(at + h * groups * 16); }
    __device__ __forceinline__ uint4* sums() const { return (uint4*)(at + groups * 32); }
    __device__ __forceinline__ float* after() const { return (float*)(at + groups * 48); }

    // Four values of one of the 8 lanes that share a group, from element `place` on. Whole warps call it.
    __device__ __forceinline__ void put(uint32_t place, const PackedValues& p, bool inside) const {
        const GroupSums s = group_sums(p);
        const uint32_t group = place / 32, word = place / 4 & 7;
        if (!inside) return;
        ((uint32_t*)(half(word >> 2) + group))[word & 3] = p.q;
        if (word == 0) sums()[group] = make_uint4(__float_as_uint(p.scale), (uint32_t)s.first, (uint32_t)s.second, 0);
    }
};

// The same in global memory, made by all blocks together, in numbers that are not UNWRITTEN: no byte is
// -128, so no word of four has only ones after this flip; and sums are raised.
constexpr uint32_t FLIP = 0x7f7f7f7f, RAISE = 1 << 16;

// This block's share of the groups: the first one of `block`.
__device__ __forceinline__ uint32_t first_group(uint32_t groups, uint32_t block) { return groups * block / gridDim.x; }

__device__ __forceinline__ void encode_share(const ProductOp& op) {
    const uint32_t thread = Workers::thread(), word = thread & 7, end = first_group(op.groups, blockIdx.x + 1);
    for (uint32_t group = first_group(op.groups, blockIdx.x) + thread / 8; group - (thread & 31) / 8 < end; group += WORKERS / 8) {
        const bool inside = group < end;
        const float4* from = (const float4*)(op.x + group * 32 + word * 4);
        float4 v = inside ? Awaited::first(from) : make_float4(0, 0, 0, 0);
        if (inside) Awaited::finish(v, from);
        const float r[4] = {v.x, v.y, v.z, v.w};
        const PackedValues p = pack_q8(r);
        const GroupSums s = group_sums(p);
        if (!inside) continue;
        __stcg(op.encoded + ((word >> 2) * op.groups + group) * 4 + (word & 3), p.q ^ FLIP);
        if (word == 0)
            __stcg((uint4*)op.encoded + 2 * op.groups + group, make_uint4(__float_as_uint(p.scale), s.first + RAISE, s.second + RAISE, 0));
    }
}
__device__ __forceinline__ void take_encoded(const ProductOp& op, const Input& input) {
    constexpr int N = 4;
    const float4* from = (const float4*)op.encoded;
    for (uint32_t first = Workers::thread(); first < 3 * op.groups; first += N * WORKERS) {
        float4 v[N];
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = Awaited::first(from + min(first + i * WORKERS, 3 * op.groups - 1));
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint32_t at = first + i * WORKERS;
            if (at >= 3 * op.groups) break;
            Awaited::finish(v[i], from + at);
            const bool sums = at >= 2 * op.groups;
            const uint32_t flip = sums ? 0 : FLIP, raise = sums ? RAISE : 0;
            ((uint4*)input.at)[at] = make_uint4(__float_as_uint(v[i].x) ^ flip, (__float_as_uint(v[i].y) ^ flip) - raise,
                                                (__float_as_uint(v[i].z) ^ flip) - raise, __float_as_uint(v[i].w) ^ flip);
        }
    }
}

// Fills it.
__device__ __forceinline__ void take_input(const ProductOp& op, const Input& input, float* scratch) {
    const uint32_t width = op.groups * 32, thread = Workers::thread(), lane = thread & 31;
    if (op.encoded) {
        take_encoded(op, input);
        return;
    }
    if (op.norm.weight) {
        NormRow<Workers> norm;
        norm.load_weights(op.norm, width);
        norm.load<Awaited>(op.norm, op.x, width, op.inverse_len, scratch);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t at = norm.place(i);
            if (at - lane * 4 >= width) break;
            float r[4];
            norm.values(op.norm, i, width, r);
            input.put(at, pack_q8(r), at < width);
        }
        return;
    }
    constexpr int N = 8;
    for (uint32_t base = thread * 4; base - lane * 4 < width; base += N * 4 * WORKERS) {
        float4 v[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint32_t at = base + i * 4 * WORKERS;
            v[i] = at < width ? Awaited::first((const float4*)(op.x + at)) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint32_t at = base + i * 4 * WORKERS;
            if (at - lane * 4 >= width) break;
            if (at < width) Awaited::finish(v[i], (const float4*)(op.x + at));
            const float r[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
            input.put(at, pack_q8(r), at < width);
        }
    }
}

// A lane's group of the input, and its product with a group of weights: the bits of QuantizedInput::dot.
struct LaneInput {
    int x[8], s0, s1;
    float d, sum;
    __device__ __forceinline__ void load(const Input& input, uint32_t group) {
        const uint4 p = input.half(0)[group], q = input.half(1)[group], k = input.sums()[group];
        x[0] = p.x; x[1] = p.y; x[2] = p.z; x[3] = p.w;
        x[4] = q.x; x[5] = q.y; x[6] = q.z; x[7] = q.w;
        d = __uint_as_float(k.x);
        s0 = (int)k.y;
        s1 = (int)k.z;
        sum = (float)(s0 + s1);
    }
    template <uint32_t T> __device__ __forceinline__ float dot(const Group& g) const {
        using C = Codec<T>;
        int i0 = MAGIC_BITS - C::OFFSET * s0, i1 = (C::HALVES ? MAGIC_BITS : 0) - C::OFFSET * s1;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            i0 = __dp4a((int)g.w[t], x[t], i0);
            i1 = __dp4a((int)g.w[4 + t], x[4 + t], i1);
        }
        float v;
        if (C::HALVES) v = __fmaf_rn(g.d[1], lowered(i1), __fmul_rn(g.d[0], lowered(i0)));
        else v = __fmul_rn(g.d[0], lowered(i0 + i1));
        if (C::MINS) {
            if (C::HALVES) v = __fmaf_rn(-g.m[1], (float)s1, __fmaf_rn(-g.m[0], (float)s0, v));
            else v = __fmaf_rn(-g.m[0], sum, v);
        }
        return __fmul_rn(d, v);
    }
};

// A lane's product with group `g` of a record of n groups.
template <uint32_t T> __device__ __forceinline__ float record_dot(const LaneInput& x, const uint8_t* r, uint32_t g, uint32_t n) {
    if constexpr (T == Q4_K) {
        // The high nibbles stay where they are, for their products are divided by 16 later.
        const uint4 q = *(const uint4*)(r + g * 16);
        const uint32_t w[4] = {q.x, q.y, q.z, q.w};
        int low = MAGIC_BITS, high = 0;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            low = __dp4a((int)(w[t] & 0x0f0f0f0f), x.x[t], low);
            high = dot_unsigned(w[t] & 0xf0f0f0f0, x.x[4 + t], high);
        }
        float scale, minimum;
        Codec<T>::template scales<FromShared>(r, g, n, scale, minimum);
        const float v = __fmul_rn(scale, lowered(low + (high >> 4)));
        return __fmul_rn(x.d, __fmaf_rn(-minimum, x.sum, v));
    } else {
        Group group;
        Codec<T>::template decode<FromShared>(r, g, n, group);
        return x.dot<T>(group);
    }
}

// Products of the quads of a share, `h` of each half, from the ring into `sums` [slice][quad][4]. A warp
// takes two neighbours at a time, whose loads and then sums wait together.
template <uint32_t T>
__device__ __forceinline__ void quads(const Part& p, uint32_t h, uint32_t in_slice, const Ring& ring, RingPlace at, const Input& input, float* sums) {
    constexpr uint32_t QUAD = quad_bytes(T), PER = quads_per_slot(T), N_WARPS = WORKERS / 32;
    const uint32_t thread = Workers::thread(), lane = thread & 31, warp = thread >> 5;
    const uint32_t total = in_slice * p.n_slices, step_slice = small_quotient(2 * N_WARPS, in_slice);
    const uint32_t step_quad = 2 * N_WARPS - step_slice * in_slice;
    // A barrier tells only whether the last phase was an odd one, so nobody may wait for a phase while the
    // one before is not over, nor be two behind. A warp comes to the same slots in every round of the ring,
    // whose number of slots is a multiple of STEP, and when an operation begins, all before it are over.
    constexpr uint32_t STEP = 2 * N_WARPS / PER;
    static_assert(PER % 2 == 0 && STEP <= SLOT_STEP);
    const uint32_t within = 2 * warp % PER;
    at.advance(2 * warp / PER, ring.slots);
    uint32_t first = 2 * warp, slice = small_quotient(first, in_slice), quad = first - slice * in_slice;
    uint32_t loaded = ~0u, n = 0;
    LaneInput x;
    auto load = [&](uint32_t slice) {
        if (slice == loaded) return;
        loaded = slice;
        n = slice + 1 == p.n_slices ? p.last : p.full;
        x.load(input, slice * p.full + min(lane, n - 1));
    };
    while (first < total) {
        load(slice);
        barrier_wait(ring.full + at.slot * 8, at.parity);
        const uint8_t* r = (const uint8_t*)__cvta_shared_to_generic(ring.base + at.slot * SLOT_BYTES + within * QUAD);
        if (n == 32 && quad + 1 < in_slice) {
            float acc[8];
#pragma unroll
            for (int u = 0; u < 8; u++) acc[u] = record_dot<T>(x, r + u * (QUAD / 4), lane, 32);
            const float t = butterfly<8>(acc, lane);
            if ((lane & 3) == 0) sums[(slice * in_slice + quad) * 4 + butterfly_row<8>(lane)] = t;
        } else {
            uint32_t k = 0, end = min(2u, total - first), of_slice = slice, of_quad = quad;
#pragma unroll 1
            while (k < end) {
                load(of_slice);
                const uint32_t record = of_slice + 1 == p.n_slices ? p.last_bytes : p.full_bytes;
                // The quads of a run follow each other without gaps.
                const uint32_t before = min(within + k, of_quad < h ? of_quad : of_quad - h);
                const uint8_t* from = r + k * QUAD - before * (QUAD - 4 * record);
                // Always eight rows, though only the first four may count.
                const uint32_t n_quads = end - k == 2 && of_quad + 1 < in_slice && of_quad + 1 != h ? 2 : 1;
                float acc[8];
#pragma unroll
                for (int u = 0; u < 8; u++) {
                    const float v = record_dot<T>(x, from + u * record, min(lane, n - 1), n);
                    acc[u] = lane < n ? v : 0.0f;
                }
                const float t = butterfly<8>(acc, lane);
                if ((lane & 3) == 0 && butterfly_row<8>(lane) < 4 * n_quads) sums[(of_slice * in_slice + of_quad) * 4 + butterfly_row<8>(lane)] = t;
                k += n_quads;
                of_quad += n_quads;
                if (of_quad == in_slice) { of_quad = 0; of_slice++; }
            }
        }
        __syncwarp();
        if (lane == 0) {
            // The last quad of a slot arrives for those that are not there, too.
            const bool closes = within + 2 == PER || first + 2 >= total;
            barrier_arrive_times(ring.empty + at.slot * 8, closes ? SLOT_ARRIVALS - within : 2);
        }
        first += 2 * N_WARPS;
        slice += step_slice;
        quad += step_quad;
        if (quad >= in_slice) { quad -= in_slice; slice++; }
        at.advance(STEP, ring.slots);
    }
}

// A number that others look for.
__device__ __forceinline__ void publish(float* to, float v) {
    // The one NaN that it must not be.
    __stcg(to, __float_as_uint(v) == UNWRITTEN ? NAN : v);
}

// A block's share of a product. `begun` is called when the input is there.
template <uint32_t TYPES, class Begun>
__device__ __forceinline__ void product(const ProductOp& op, const Ring& ring, RingPlace& at, uint8_t* memory, float* scratch, Begun begun) {
    if (op.encoded) encode_share(op);
    const Part* part = part_of(op);
    if (!part) return;
    const Part& p = *part;
    const Share share(p);
    const Input input{memory, op.groups};
    float* sums = input.after();
    take_input(op, input, scratch);
    begun();
    const bool gate = op.ending == GATE;
    for (uint32_t first = share.begin; first < share.end; first += op.chunk_quads) {
        const uint32_t thread = Workers::thread();
        const uint32_t h = min(op.chunk_quads, share.end - first), in_slice = gate ? 2 * h : h;
        const uint32_t row0 = first * 4, rows = min(4 * h, p.rows - row0);
        // The first rows' residual is asked for before it is needed.
        const float* residuals = op.residual + p.out_offset + row0;
        float residual = op.residual && thread < rows ? Awaited::first(residuals + thread) : 0.0f;
        Workers::sync();
        for_type(p.type, [&]<uint32_t T>() {
            if constexpr (TYPES >> T & 1) quads<T>(p, h, in_slice, ring, at, input, sums);
        });
        at.advance_far(small_quotient(in_slice * p.n_slices + p.quads_per_slot - 1, p.quads_per_slot), ring.slots);
        Workers::sync();
        auto sum = [&](uint32_t i, uint32_t row) {
            float v = sums[i];
            for (uint32_t t = 1; t < p.n_slices; t++) v = __fadd_rn(v, sums[t * in_slice * 4 + i]);
            return p.bias ? __fadd_rn(v, p.bias[row]) : v;
        };
        for (uint32_t i = thread; i < rows; i += WORKERS) {
            float v = sum(i, row0 + i);
            if (gate) v = gated(op.activation, v, sum(4 * h + i, p.rows + row0 + i));
            else if (op.ending == ACTIVATE) v = activated(op.activation, v);
            if (op.residual) {
                if (i >= WORKERS) residual = Awaited::first(residuals + i);
                Awaited::finish(residual, residuals + i);
                v = __fadd_rn(v, residual);
            }
            publish(op.out + p.out_offset + row0 + i, v);
        }
    }
}

// Five warpgroups have 96 registers a thread; those who compute take what the others give up.
__device__ __forceinline__ void take_more_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    take_registers<112>();
#endif
}
__device__ __forceinline__ void give_up_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    give_registers<32>();
#endif
}

template <int HD> struct PersistentShared {
    Op ops[2];     // of those who compute
    Op coming[2][2];  // of the warp that brings in weights, and of the one that goes ahead
    uint32_t filled;  // slots
    uint64_t full[MAX_SLOTS], empty[MAX_SLOTS];
    float scratch[32];
    Session session;
    AttendShared<HD> attend;
};

// Grid: one block a multiprocessor, all of them there at a time (a cooperative launch).
template <int HD, uint32_t TYPES> __device__ __forceinline__ void persistent(const PersistentArgs& a) {
    DYNAMIC_SHARED(memory);
    STATIC_SHARED(PersistentShared<HD>, m);
    const Ring ring{shared_address(memory), shared_address(m.full), shared_address(m.empty), a.slots};
    uint8_t* rest = memory + a.slots * SLOT_BYTES;
    const uint32_t lane = threadIdx.x & 31;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < a.slots; i++) {
            barrier_init(ring.full + i * 8, 1);
            barrier_init(ring.empty + i * 8, SLOT_ARRIVALS);
        }
        barriers_ready();
    }
    const uint32_t set = a.state[1];
    const Op* ops = a.ops + set * a.n_ops;
    auto word_of = [&](uint32_t i, uint32_t w) { return ((const uint32_t*)(ops + i))[w]; };
    if (threadIdx.x < OP_WORDS) ((uint32_t*)&m.ops[0])[threadIdx.x] = word_of(0, threadIdx.x);
    // The session stays as it is until the step's end.
    if (threadIdx.x < sizeof(Session) / 4) ((uint32_t*)&m.session)[threadIdx.x] = ((const uint32_t*)a.sessions[0])[threadIdx.x];
    if (threadIdx.x == 0) {
        m.attend.turn_of = NULL;
        m.filled = 0;
    }
    __syncthreads();
    if (threadIdx.x >= WORKERS) {
        give_up_registers();
        const uint32_t warp = (threadIdx.x - WORKERS) >> 5;
        // The weights of all operations, by one thread of the warp.
        auto walk = [&](Op (&coming)[2], auto slots) {
            auto take_op = [&](uint32_t i) {
                for (uint32_t w = lane; w < OP_WORDS; w += 32) ((uint32_t*)&coming[i & 1])[w] = word_of(i, w);
                __syncwarp();
            };
            take_op(0);
            for (uint32_t i = 0; i < a.n_ops; i++) {
                if (i + 1 < a.n_ops) take_op(i + 1);
                if (lane == 0 && coming[i & 1].kind == PRODUCT) bring_in(coming[i & 1].product, slots);
                __syncwarp();
            }
        };
        if (warp == 0) walk(m.coming[0], RingSlots{ring, m.filled});
        if (warp == 1 && a.ahead > 0) walk(m.coming[1], SlotsAhead{m.filled, a.ahead});
        if (warp == 2) {
            // Clears the other set of outputs.
            uint32_t* other = a.outputs + (set ^ 1) * a.output_words;
            for (uint32_t i = (blockIdx.x * 32 + lane) * 4; i < a.output_words; i += gridDim.x * 128)
                *(uint4*)(other + i) = make_uint4(UNWRITTEN, UNWRITTEN, UNWRITTEN, UNWRITTEN);
        }
    } else {
        take_more_registers();
        RingPlace at{0, 0};
        for (uint32_t i = 0; i < a.n_ops; i++) {
            const Op& op = m.ops[i & 1];
            uint32_t next = 0;
            if (i + 1 < a.n_ops && Workers::thread() < OP_WORDS) next = word_of(i + 1, Workers::thread());
            auto note = [&](uint32_t which) {
                if (a.times && blockIdx.x == 0 && Workers::thread() == 0) a.times[2 * i + which] = clock64();
            };
            if (op.kind == PRODUCT) {
                product<TYPES>(op.product, ring, at, rest, m.scratch, [&] { note(0); });
            } else if (Workers::thread() < Attendants::threads()) {
                const AttendArgs& attend = op.attend;
                const Session* s = &m.session;
                const Chunks chunks = chunks_of(attend, s);
                const uint32_t places = attend.layout.n_kv_heads * attend.head_parts;
                for (uint32_t unit = blockIdx.x; unit < places * chunks.used; unit += gridDim.x) {
                    attend_chunk<HD, ATTEND_STAGES, Attendants, Awaited>(attend, s, chunks, 0, unit % places, places, unit / places, rest, m.attend, [] {});
                    Attendants::sync();
                }
            }
            if (Workers::thread() < OP_WORDS) ((uint32_t*)&m.ops[(i + 1) & 1])[Workers::thread()] = next;
            Workers::sync();
            note(1);
        }
        // All have begun when the last one ends, so the other set can be the next.
        if (Workers::thread() == 0 && atomicAdd(a.state, 1) == gridDim.x - 1) {
            a.state[0] = 0;
            a.state[1] = set ^ 1;
        }
    }
}

#endif

// Kernel names: persistent_<types>_<largest head>. Few types a kernel: many would spill registers.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define PERSISTENT(name, hd, types)                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) persistent_##name##_##hd(const __grid_constant__ PersistentArgs a) { \
        persistent<hd, (types)>(a);                                                                                 \
    }
#else
#define PERSISTENT(name, hd, types)
#endif
