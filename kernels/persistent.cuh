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
#include "attend_tiles.cuh"
#include "hopper.cuh"
#include "persistent_input.cuh"
#include "persistent_ring.cuh"

#if __CUDA_ARCH__ >= 900

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
    // Eight rows from a record on, of which the first `n_rows` count: their sums go to `to`.
    auto eight = [&](const uint8_t* from, uint32_t record, uint32_t n, float* to, uint32_t n_rows) {
        float acc[8];
#pragma unroll
        for (int u = 0; u < 8; u++) {
            const float v = record_dot<T>(x, from + u * record, min(lane, n - 1), n);
            acc[u] = lane < n ? v : 0.0f;
        }
        const float t = butterfly<8>(acc, lane);
        const uint32_t row = butterfly_row<8>(lane);
        if ((lane & 3) == 0 && row < n_rows) to[row] = t;
    };
    while (first < total) {
        load(slice);
        barrier_wait(ring.full + at.slot * 8, at.parity);
        const uint8_t* r = (const uint8_t*)__cvta_shared_to_generic(ring.base + at.slot * SLOT_BYTES + within * QUAD);
        if (n == 32 && quad + 1 < in_slice) {
            eight(r, QUAD / 4, 32, sums + (slice * in_slice + quad) * 4, 8);
        } else {
            uint32_t k = 0, end = min(2u, total - first), of_slice = slice, of_quad = quad;
#pragma unroll 1
            while (k < end) {
                load(of_slice);
                const uint32_t record = of_slice + 1 == p.n_slices ? p.last_bytes : p.full_bytes;
                // The quads of a run follow each other without gaps.
                const uint32_t before = min(within + k, of_quad < h ? of_quad : of_quad - h);
                const uint8_t* from = r + k * QUAD - before * (QUAD - 4 * record);
                const uint32_t n_quads = end - k == 2 && of_quad + 1 < in_slice && of_quad + 1 != h ? 2 : 1;
                eight(from, record, n, sums + (of_slice * in_slice + of_quad) * 4, 4 * n_quads);
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
        fence_shared();
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
