// The product of one row with a quantized matrix, from its input's making to its result's use, from sm_90
// on: the decode step of one session.
//
// As in matvec.cuh, a block owns a run of output rows, and its warps share the list of (slice, row) pairs;
// with GATE, a slice has the block's rows of the gate, then those of the values. Each warp brings its
// weights through a ring in shared memory, which fills while every block makes the input for itself: so a step has
// few kernels. The bits are those of matvec.cuh and norm.cu.
//
// Most blocks take more than half of a multiprocessor's shared memory, though they need less: kernels overlap, and
// where two blocks of one shared a multiprocessor while another had none, it would take twice as long.
#pragma once
#include "activation.cuh"
#include "adapters.cuh"
#include "input.cuh"
#include "matvec.cuh"
#include "mma.cuh"

// Rows of one type of a product. A block has `each` of them, the first `more` blocks one more; with GATE,
// all is said of half the rows.
//
// So memory is read in thousands of places at once, as far from each other as a share is long; where that
// distance suits its channels badly, a fifth of its speed is lost. Of a large matrix, where that counts, blocks take
// turns at groups of rows, of which `each` and `more` then tell the number, and a block's warps at the stages of a group,
// so that the grid reads in one place. `spread` is the number of blocks, or 0.
struct Part {
    const uint8_t* matrix;
    const float* bias;    // or NULL
    uint32_t type;
    uint32_t rows;
    uint32_t first_block;
    uint32_t each, more;
    uint32_t out_offset;  // where its first row lies in the output
    uint32_t n_slices;
    uint32_t full, last;  // groups of a slice
    uint32_t full_bytes, last_bytes;  // of a record
    uint32_t spread;
};
static_assert(sizeof(Part) == 64, "as in args.rs");

enum Finish : uint32_t {
    PLAIN = 0,
    ACTIVATE = 1,  // out = activation(product)
    GATE = 2,      // out = activation(rows of the gate) * rows of the values, which follow those: one part
    WEIGH = 3,     // out = activation(product) * residual
};

struct ProductArgs {
    Part parts[MAX_SEGMENTS];
    const float* x;         // [groups * 32]; or NULL:
    const int8_t* q8;       // the same as int8
    const float* q8_scale;  // [groups]
    NormArgs norm;          // of x; weight NULL: none
    float* out;
    const float* residual;  // added to the result, or NULL; may be `out`
    uint32_t n_parts;
    uint32_t groups;
    uint32_t ring_bytes;    // of all warps
    uint32_t finish;
    float inverse_len;
    Activation activation;
};
static_assert(sizeof(ProductArgs) == 352, "as in args.rs");

// A product that adapters may add to.
struct AdaptedProductArgs {
    ProductArgs product;
    Adapted adapted;
};
static_assert(sizeof(AdaptedProductArgs) == 544, "as in args.rs");

#if __CUDA_ARCH__ >= 900

// Rows of a stage of the ring, and its stages.
template <uint32_t T> constexpr uint32_t stage_rows() { return record_bytes(T, 32) <= 704 ? 4 : 2; }
template <uint32_t T> constexpr uint32_t stages() { return stage_rows<T>() == 2 && record_bytes(T, 32) <= 900 ? 3 : 2; }

// a / b for numbers far below 2^20, without the long way of a division of integers.
__device__ __forceinline__ uint32_t small_quotient(uint32_t a, uint32_t b) {
    return (uint32_t)__fdividef((float)a + 0.5f, (float)b);
}

// The part that a block has a share of.
__device__ __forceinline__ const Part& part_of(const Part* parts, uint32_t n) {
    uint32_t i = 0;
    while (i + 1 < n && blockIdx.x >= parts[i + 1].first_block) i++;
    return parts[i];
}

// A warp's share: a part of the list of its block's rows, run by run. Runs are slices or, with GATE, their
// halves.
template <uint32_t CR, bool SPREAD> struct WarpShare {
    static constexpr uint32_t GROUP = WARPS * CR;  // rows that are spread together
    static constexpr uint32_t STEP = SPREAD ? GROUP : CR;  // of the block's rows, from a stage to the next
    uint32_t rows;         // of the block
    uint32_t row0;         // the matrix's row that is its first
    uint32_t own;          // of the block's rows, the first that the warp may have in a run
    uint32_t in_run;       // and how many those are
    uint32_t run, row;     // where the warp begins: of in_run
    uint32_t count;
    uint32_t far;          // of the matrix's rows, from a stage to the next

    __device__ __forceinline__ WarpShare(const Part& p, uint32_t gate) {
        const uint32_t block = blockIdx.x - p.first_block, warp = threadIdx.x >> 5;
        rows = p.each + (block < p.more ? 1 : 0);
        if constexpr (SPREAD) {
            in_run = rows * CR;
            rows *= GROUP;
            run = row = 0;
            count = (p.n_slices << gate) * in_run;
            row0 = block * GROUP;
            own = warp * CR;
            far = p.spread * GROUP;
        } else {
            const uint32_t items = (p.n_slices << gate) * rows, begin = items * warp / WARPS;
            in_run = rows;
            count = items * (warp + 1) / WARPS - begin;
            run = small_quotient(begin, rows);
            row = begin - run * rows;
            row0 = block * p.each + min(block, p.more);
            own = 0;
            far = CR;
        }
    }
    // The matrix's row that is row i of the block.
    __device__ __forceinline__ uint32_t place(uint32_t i) const { return row0 + (SPREAD ? i / GROUP * far + i % GROUP : i); }
};
__device__ __forceinline__ uint32_t record_of(const Part& p, uint32_t slice) { return slice + 1 == p.n_slices ? p.last_bytes : p.full_bytes; }
// A row of a run.
__device__ __forceinline__ const uint8_t* row_of(const Part& p, uint32_t gate, uint32_t run, uint32_t row) {
    const uint32_t slice = run >> gate, half = run & gate;
    return p.matrix + (uint64_t)((p.rows << gate) * slice) * p.full_bytes + (uint64_t)(half * p.rows + row) * record_of(p, slice);
}

// What others have rounded comes by bulk copies, which `bar` announces.
__device__ __forceinline__ void bring_rounded(const ProductArgs& a, const Input& input, uint32_t bar) {
    // Scales by fours; what is left of them another way.
    const uint32_t fours = a.groups / 4, left = fours * 4 + threadIdx.x;
    if (left < a.groups) input.scales()[left] = __ldcg(a.q8_scale + left);
    if (threadIdx.x > 0) return;
    barrier_expect(bar, a.groups * 32 + fours * 16);
    bulk_copy(shared_address(input.at), a.q8, a.groups * 32, bar);
    if (fours > 0) bulk_copy(shared_address(input.scales()), a.q8_scale, fours * 16, bar);
}

// What adapters add to a product of one row, in the block that has its input in shared memory. The parts of A x are shared by
// the warps of all blocks, which hand them over in global memory.
struct Adapting {
    static constexpr uint32_t KEPT = 16;
    static constexpr uint32_t PATIENCE = 64;

    const Adapted& d;
    const AdapterPair* pairs;  // in shared memory if they are few
    float* thin;
    uint32_t groups;

    // A part of a row of A x.
    struct Piece {
        const uint8_t* a;
        uint32_t type, part;
        uint64_t* word;
    };
    __device__ __forceinline__ bool find(const AdapterPair* all, uint32_t number, Piece& piece) const {
        uint32_t which, k;
        if (!find_task(all, d.n_linears * d.uses, number / NARROW_PARTS, which, k)) return false;
        piece = piece_of(all[which], k, number % NARROW_PARTS);
        return true;
    }
    __device__ __forceinline__ Piece piece_of(const AdapterPair& pair, uint32_t k, uint32_t part) const {
        return {number_at(pair.a, (uint64_t)k * groups * 32, pair.a_type), pair.a_type, part, d.words + (pair.at + k) * NARROW_PARTS + part};
    }
    __device__ __forceinline__ uint32_t first_piece() const { return blockIdx.x + gridDim.x * (threadIdx.x >> 5); }

    // Before the input is there: keeps the pairs, and asks for what the block will need of A and B.
    template <class Share> __device__ __forceinline__ void prepare(AdapterPair* kept, const Part& p, const Share& share, uint32_t gate) const {
        const uint32_t n_pairs = d.n_linears * d.uses, lane = threadIdx.x & 31;
        if (pairs != d.pairs)
            for (uint32_t i = threadIdx.x; i < n_pairs * (uint32_t)(sizeof(AdapterPair) / 4); i += WARPS * 32)
                ((uint32_t*)kept)[i] = ((const uint32_t*)d.pairs)[i];
        for (uint32_t i = threadIdx.x; i < d.n_linears * d.ranks; i += WARPS * 32) thin[i] = 0.0f;
        Piece piece;
        if (find(d.pairs, first_piece(), piece))
            for (uint32_t chunk = piece.part * 32 + lane; chunk < groups * 4; chunk += NARROW_THREADS)
                prefetch_l2(number_at(piece.a, chunk * 8, piece.type));
        for (uint32_t i = threadIdx.x; i < share.rows << gate; i += WARPS * 32) {
            const uint32_t half = i >= share.rows ? 1 : 0;
            uint32_t linear;
            const uint32_t row = adapted_row(d.pieces, p.out_offset + half * p.rows + share.place(i - half * share.rows), linear);
            for (uint32_t u = 0; u < d.uses; u++) {
                const AdapterPair& pair = d.pairs[linear * d.uses + u];
                if (pair.rank > 0) prefetch_l2(number_at(pair.b, (uint64_t)row * pair.ranks(), pair.b_type));
            }
        }
    }
    // A warp's sum.
    __device__ __forceinline__ float sum(const Piece& piece, const Input& input) const {
        float sum = 0.0f;
#pragma unroll 4
        for (uint32_t chunk = piece.part * 32 + (threadIdx.x & 31); chunk < groups * 4; chunk += NARROW_THREADS) {
            float w[8], x[8];
            eight_numbers(piece.a, chunk * 8, piece.type, w);
            eight_bytes(*(const uint2*)(input.at + chunk * 8), x);
            sum = add_eight(w, x, input.scales()[chunk / 4], sum);
        }
        return warp_sum(sum);
    }
    __device__ __forceinline__ static uint64_t word_of(float v) { return 1ull << 32 | __float_as_uint(v); }

    // A warp's pieces, when the input is there.
    __device__ __forceinline__ void narrow(const Input& input) const {
        Piece piece;
        for (uint32_t number = first_piece(); find(pairs, number, piece); number += gridDim.x * WARPS) {
            const float v = sum(piece, input);
            if ((threadIdx.x & 31) == 0) store_shared_word(piece.word, word_of(v));
        }
    }
    // Brings a warp's part of A x to shared memory. Blocks whose pieces do not come need not have begun, and may wait for this one
    // to end: so what is missing for long the warp works out itself.
    __device__ __forceinline__ void await(const Input& input) const {
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n = d.n_linears * d.ranks;
        for (uint32_t base = warp * 2; base < n; base += WARPS * 2) {
            const uint32_t at = base + lane / NARROW_PARTS, part = lane % NARROW_PARTS;
            const AdapterPair* mine = NULL;
            if (at < n) {
                const AdapterPair* pair = pairs + at / d.ranks * d.uses;
                for (uint32_t u = 0; u < d.uses; u++, pair++)
                    if (at >= pair->at && at < pair->at + pair->rank) mine = pair;
            }
            uint64_t v = word_of(0.0f);
            Piece piece = {};
            if (mine) {
                piece = piece_of(*mine, at - mine->at, part);
                v = load_shared_word(piece.word);
            }
            for (uint32_t turn = 0;; turn++) {
                const uint32_t missing = __ballot_sync(~0u, v >> 32 == 0);
                if (!missing) break;
                if (turn < PATIENCE) {
                    if (v >> 32 == 0) v = load_shared_word(piece.word);
                    continue;
                }
                const int whose = __ffs(missing) - 1;
                Piece other = {};
                other.a = (const uint8_t*)__shfl_sync(~0u, (unsigned long long)piece.a, whose);
                other.type = __shfl_sync(~0u, piece.type, whose);
                other.part = __shfl_sync(~0u, piece.part, whose);
                const float made = sum(other, input);
                if (lane == whose) v = word_of(made);
            }
            const float whole = sum_of_parts(__uint_as_float((uint32_t)v));
            if (mine && part == 0) thin[at] = whole;
        }
    }
    // Adds to the sum of row `place` of the product's output, when all of A x is there.
    __device__ __forceinline__ float add(uint32_t place, float v) const {
        uint32_t linear;
        const uint32_t row = adapted_row(d.pieces, place, linear);
        auto load = [&](uint32_t at, float (&t)[8]) {
            const float4 lo = *(const float4*)(thin + at), hi = *(const float4*)(thin + at + 4);
            t[0] = lo.x; t[1] = lo.y; t[2] = lo.z; t[3] = lo.w;
            t[4] = hi.x; t[5] = hi.y; t[6] = hi.z; t[7] = hi.w;
        };
        return add_adapters(pairs + linear * d.uses, d.uses, row, load, v);
    }
};

// What a block has in shared memory of fixed size.
template <bool ADAPTED> struct ProductStatic {
    float scratch[32];
    uint64_t bar;
};
template <> struct ProductStatic<true> {
    float scratch[32];
    uint64_t bar;
    AdapterPair pairs[Adapting::KEPT];
};

template <uint32_t T, bool SPREAD, bool ADAPTED> __device__ __forceinline__ void product_rows(const ProductArgs& a, const Adapted* adapted, const Part& part, ProductStatic<ADAPTED>& m, uint8_t* shared) {
    constexpr uint32_t CR = stage_rows<T>(), STAGES = stages<T>(), STAGE = CR * record_bytes(T, 32);
    float* scratch = m.scratch;
    const uint32_t bar = shared_address(&m.bar);
    const Part p = part;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, gate = a.finish == GATE ? 1 : 0;
    const WarpShare<CR, SPREAD> share(p, gate);
    const uint32_t rows = share.rows;
    const Input input{shared + a.ring_bytes, a.groups};
    float* sums = input.after();  // [run][row]
    const uint8_t* ring = shared + warp * (STAGES * STAGE);
    const uint32_t lane_ring = kept(shared_address(ring) + lane * 16);

    // What is to be brought in: rows left of the warp's and of the run, the next one's record from this lane's
    // first 16 bytes on, its size, and where it goes.
    uint32_t coming = share.count, coming_run = share.run, of_run = 0, record = 0, slot = 0;
    const uint8_t* from = NULL;
    auto turn_to = [&](uint32_t at) {
        record = record_of(p, coming_run >> gate);
        of_run = min(coming, share.in_run - at);
        from = row_of(p, gate, coming_run, share.row0 + share.own + at) + lane * 16;
    };
    auto bring_in = [&] {
        if (coming > 0) {
            const uint32_t n = min(CR, of_run), bytes = n * record, to = lane_ring + slot;
#pragma unroll
            for (uint32_t i = 0; i < (STAGE + 511) / 512; i++)
                if (i * 512 + lane * 16 < bytes) copy16(to + i * 512, from + i * 512, true);
            from += SPREAD ? share.far * record : bytes;
            coming -= n;
            of_run -= n;
            if (of_run == 0) {
                coming_run++;
                turn_to(0);
            }
        }
        slot = slot + STAGE == STAGES * STAGE ? 0 : slot + STAGE;
        copies_commit();
    };
    turn_to(share.row);
    auto fill = [&](uint32_t stages) {
#pragma unroll 1
        for (uint32_t i = 0; i < stages; i++) bring_in();
    };
    auto adapting = [&] {
        if constexpr (ADAPTED) {
            const Adapted& d = *adapted;
            return Adapting{d, d.n_linears * d.uses <= Adapting::KEPT ? m.pairs : d.pairs, (float*)(shared + d.thin_at), a.groups};
        }
    };
    if constexpr (ADAPTED) adapting().prepare(m.pairs, p, share, gate);
    // What is asked for first comes first, and the next block of a product begins when the one before has ended: so the input
    // goes before the weights. Only attention leaves time for some.
    constexpr uint32_t EARLY = 1;
    if (a.norm.weight) {
        NormRow norm;
        norm.load_weights(a.norm, a.groups * 32);
        wait_for_producers();
        norm.load(a.x, a.groups * 32);
        fill(STAGES);
        norm.sum(a.norm, a.groups * 32, a.inverse_len, scratch);
        input.take(norm, a.norm);
    } else if (a.x) {
        wait_for_producers();
        input.take(a.x, [&] { fill(STAGES); });
    } else {
        fill(EARLY);
        __syncthreads();
        wait_for_producers();
        bring_rounded(a, input, bar);
        barrier_wait(bar, 0);
        fill(STAGES - EARLY);
    }
    // The first rows' residual is asked for before it is needed.
    const float* residuals = a.residual + p.out_offset;
    float residual = a.residual && threadIdx.x < rows ? __ldcg(residuals + share.place(threadIdx.x)) : 0.0f;
    __syncthreads();

    release_dependents();
    if constexpr (ADAPTED) adapting().narrow(input);
    uint32_t left = share.count, run = share.run, row = share.row, loaded = ~0u, n_groups = 0;
    LaneInput x;
    const uint32_t u = butterfly_row<CR>(lane);
#pragma unroll 1
    for (; left > 0; run++, row = 0) {
        const uint32_t slice = run >> gate, its = record_of(p, slice);
        if (slice != loaded) {
            loaded = slice;
            n_groups = slice + 1 == p.n_slices ? p.last : p.full;
            x.load(input, slice * p.full + min(lane, n_groups - 1));
        }
        float* to = (lane & (32 / CR - 1)) == 0 ? sums + run * rows + share.own + row + u : NULL;
        uint32_t n = min(left, share.in_run - row);
        left -= n;
#pragma unroll 1
        for (;;) {
            const uint8_t* r = ring + slot;
            copies_wait<STAGES - 1>();
            __syncwarp();
            float acc[CR];
            if (n_groups == 32) {
                // Whole records: offsets are constants. What lies behind the last row is not used.
#pragma unroll
                for (uint32_t i = 0; i < CR; i++) acc[i] = record_dot<T>(x, r + i * record_bytes(T, 32), lane, 32);
            } else {
#pragma unroll
                for (uint32_t i = 0; i < CR; i++) {
                    const float v = record_dot<T>(x, r + i * its, min(lane, n_groups - 1), n_groups);
                    acc[i] = lane < n_groups ? v : 0.0f;
                }
            }
            __syncwarp();
            bring_in();
            const float t = butterfly<CR>(acc, lane);
            if (to && u < n) *to = t;
            if (n <= CR) break;
            n -= CR;
            if (to) to += share.STEP;
        }
    }
    if constexpr (ADAPTED) adapting().await(input);
    __syncthreads();
    auto sum = [&](uint32_t half, uint32_t i) {
        float v = sums[half * rows + i];
#pragma unroll 4
        for (uint32_t t = 1; t < p.n_slices; t++) v = __fadd_rn(v, sums[((t << gate) + half) * rows + i]);
        return p.bias ? __fadd_rn(v, p.bias[half * p.rows + share.place(i)]) : v;
    };
    auto with_adapters = [&](uint32_t half, uint32_t i, float v) {
        if constexpr (ADAPTED) return adapting().add(p.out_offset + half * p.rows + share.place(i), v);
        return v;
    };
    for (uint32_t i = threadIdx.x; i < rows; i += WARPS * 32) {
        float v = sum(0, i);
        const uint32_t row = share.place(i);
        const float r = !a.residual ? 0.0f : i < WARPS * 32 ? residual : __ldcg(residuals + row);
        if (a.finish == PLAIN) {
            if (a.residual) v = __fadd_rn(v, r);
            v = with_adapters(0, i, v);
        } else {
            v = with_adapters(0, i, v);
            v = a.finish == GATE ? gated(a.activation, v, with_adapters(1, i, sum(1, i))) : activated(a.activation, v);
            if (a.finish == WEIGH) v = __fmul_rn(v, r);
        }
        a.out[p.out_offset + row] = v;
    }
}

// Grid: the blocks of the parts; 512 threads, as many as a norm of its own has.
template <uint32_t TYPES, bool SPREAD = false, bool ADAPTED = false> __device__ __forceinline__ void product_body(const ProductArgs& a, const Adapted* adapted = NULL) {
    DYNAMIC_SHARED(shared);
    STATIC_SHARED(ProductStatic<ADAPTED>, m);
    if (threadIdx.x == 0) {
        barrier_init(shared_address(&m.bar), 1);
        fence_shared();
    }
    const Part& p = part_of(a.parts, a.n_parts);
    for_type(p.type, [&]<uint32_t T>() {
        if constexpr (!is_float(T) && (TYPES >> T & 1)) product_rows<T, SPREAD, ADAPTED>(a, adapted, p, m, shared);
    });
}

#endif

// Kernel names: product_<types>, product_spread_<types> for parts that are spread, and the same with adapted_ before the types.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define PRODUCT_ONE(name, types, spread)                                                                   \
    extern "C" __global__ void __launch_bounds__(WARPS * 32) name(const __grid_constant__ ProductArgs a) { \
        product_body<types, spread, false>(a, NULL);                                                       \
    }
#define PRODUCT_ADAPTED(name, types, spread)                                                                      \
    extern "C" __global__ void __launch_bounds__(WARPS * 32) name(const __grid_constant__ AdaptedProductArgs a) { \
        product_body<types, spread, true>(a.product, &a.adapted);                                                 \
    }
#define PRODUCT(name, types)                                 \
    PRODUCT_ONE(product_##name, (types), false)              \
    PRODUCT_ONE(product_spread_##name, (types), true)        \
    PRODUCT_ADAPTED(product_adapted_##name, (types), false)  \
    PRODUCT_ADAPTED(product_spread_adapted_##name, (types), true)
#else
#define PRODUCT_ONE(name, ...)
#define PRODUCT_ADAPTED(name, ...)
#define PRODUCT(name, types)
#endif
