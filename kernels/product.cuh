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
#include "args_common.h"
#include "activation.cuh"
#include "adapters.cuh"
#include "input.cuh"
#include "matvec.cuh"
#include "mma.cuh"
#include "ranks.cuh"

enum Finish : uint32_t {
    PLAIN = 0,
    ACTIVATE = 1,  // out = activation(product)
    GATE = 2,      // out = activation(rows of the gate) * rows of the values, which follow those: one part
    WEIGH = 3,     // out = activation(product) * residual
};

#if __CUDA_ARCH__ >= 900

// Rows of a stage of the ring, and its stages.
template <uint32_t T> constexpr uint32_t stage_rows() { return record_bytes(T, 32) <= 704 ? 4 : 2; }
template <uint32_t T> constexpr uint32_t stages() { return stage_rows<T>() == 2 && record_bytes(T, 32) <= 900 ? 3 : 2; }

// Types whose stages come by one bulk copy each, instead of copies of 16 bytes by all lanes: faster for these alone (benches/cuda.md).
template <uint32_t T> constexpr bool comes_in_bulk() { return T == Q2_K || T == Q3_K || T == IQ4_XS; }

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

// A row that is added up, which each block does for itself; the first one keeps the sum. Without a base it is x itself. `asked` is
// called when the rows have been asked for.
template <class Asked>
__device__ __forceinline__ void sum_row(const float* x, const RowSumArgs& a, uint32_t width, float inverse_len, float* scratch, NormRowOf<FOURS_OF_SUM, INPUT_THREADS>& sum, Asked asked) {
    NormRowOf<FOURS_OF_SUM, INPUT_THREADS> part;
    if (a.norm.weight) part.load_weights(a.norm, width);
    wait_for_producers();
    sum.load(a.base ? a.base : x, width);
    if (a.base) part.load(x, width);
    asked();
    if (!a.base) return;
    if (a.norm.weight) part.template sum<true>(a.norm, width, inverse_len, scratch);
#pragma unroll
    for (int i = 0; i < FOURS_OF_SUM; i++) {
        float r[4] = {part.v[i].x, part.v[i].y, part.v[i].z, part.v[i].w};
        if (a.norm.weight) part.values(a.norm, i, width, r);
        sum.v[i] = row_sum(a.scale, a.out_scale, r, sum.v[i]);
        if (a.sum && blockIdx.x == 0 && sum.place(i) < width) *(float4*)(a.sum + sum.place(i)) = sum.v[i];
    }
}
template <class Asked> __device__ __forceinline__ void take_sum(const ProductArgs& a, const RowSumArgs& added, const Input& input, float* scratch, Asked asked) {
    const uint32_t width = a.groups * 32;
    NormRowOf<FOURS_OF_SUM, INPUT_THREADS> sum;
    if (a.norm.weight) sum.load_weights(a.norm, width);
    sum_row(a.x, added, width, a.inverse_len, scratch, sum, asked);
    if (a.norm.weight) sum.sum(a.norm, width, a.inverse_len, scratch);
    input.take_either(sum, a.norm);
}

// What adapters add to a product of one row, in the block that has its input in shared memory. The parts of A x are shared by
// the warps of all blocks, which hand them over in global memory.
//
// What does not depend on the input is asked for before it is there: parts of A in front of the weights, rows of B behind the
// first of them, both into shared memory.
struct Adapting {
    static constexpr uint32_t PATIENCE = 64;
    static constexpr uint32_t AT_ONCE = 4;  // rounds of two slots that a warp waits for together
    static constexpr uint32_t KEPT_B = 32;  // bytes of a row of B

    const Adapted& d;
    uint8_t* room;   // in shared memory: A x, parts of A, rows of B
    uint32_t groups;

    // What a pair adds to a row: where its row of B is, and the rest.
    struct Use {
        const uint8_t* b;
        uint32_t rank, at, type;
        float scale;
        uint64_t padding;
    };
    static_assert(sizeof(Use) == 32);

    __device__ __forceinline__ uint32_t slots() const { return d.n_linears * d.ranks; }
    __device__ __forceinline__ float* thin() const { return (float*)room; }
    // Of a part of A, chunks of eight numbers that a lane has at most.
    __device__ __forceinline__ uint32_t lane_chunks() const { return (groups * 4 + LORA_DOWN_THREADS - 1) / LORA_DOWN_THREADS; }
    __device__ __forceinline__ uint8_t* kept_a() const { return room + (slots() * 4 + 15) / 16 * 16; }
    __device__ __forceinline__ uint8_t* kept_b() const {
        const uint32_t first = min((uint32_t)WARPS, (slots() * LORA_DOWN_PARTS + gridDim.x - 1) / gridDim.x);
        return kept_a() + first * lane_chunks() * 512;
    }

    // What a lane knows of a pair that may have the row of A of a slot.
    struct Candidate {
        const uint8_t* a;
        uint32_t rank, at, type;
    };
    __device__ __forceinline__ Candidate candidate(uint32_t slot, uint32_t base = 0) const {
        const uint32_t u = base + (threadIdx.x & 31);
        Candidate c = {};
        if (slot < slots() && u < d.uses) {
            const AdapterPair& pair = d.pairs[small_quotient(slot, d.ranks) * d.uses + u];
            c = {pair.a, pair.rank, pair.at, pair.a_type};
        }
        return c;
    }
    // A row of A, or NULL where no pair has that slot.
    struct Row {
        const uint8_t* a;
        uint32_t type;
    };
    __device__ __forceinline__ Row find(uint32_t slot, Candidate c) const {
        for (uint32_t base = 32;; base += 32) {
            const uint32_t found = __ballot_sync(~0u, slot - c.at < c.rank);
            if (found) {
                const int whose = __ffs(found) - 1;
                const uint32_t k = slot - __shfl_sync(~0u, c.at, whose), type = __shfl_sync(~0u, c.type, whose);
                const uint8_t* a = (const uint8_t*)__shfl_sync(~0u, (unsigned long long)c.a, whose);
                return {number_at(a, (uint64_t)k * groups * 32, type), type};
            }
            if (base >= d.uses) return {};
            c = candidate(slot, base);
        }
    }
    __device__ __forceinline__ uint32_t first_piece() const { return blockIdx.x + gridDim.x * (threadIdx.x >> 5); }

    // A warp's first piece.
    struct First {
        Row row;
        bool is_kept;
    };
    // Asks for it.
    __device__ __forceinline__ First bring_a() const {
        First first = {};
        const uint32_t number = first_piece(), lane = threadIdx.x & 31;
        if (number < slots() * LORA_DOWN_PARTS) {
            first.row = find(number / LORA_DOWN_PARTS, candidate(number / LORA_DOWN_PARTS));
            first.is_kept = first.row.a && first.row.type != ADAPTER_F32;
            if (first.is_kept) {
                uint32_t to = shared_address(kept_a()) + ((threadIdx.x >> 5) * lane_chunks() * 32 + lane) * 16;
                for (uint32_t chunk = number % LORA_DOWN_PARTS * 32 + lane; chunk < groups * 4; chunk += LORA_DOWN_THREADS, to += 512)
                    copy16(to, first.row.a + chunk * 16, true);
            }
        }
        copies_commit();
        return first;
    }
    // Asks for the rows of B of the block's rows of the output, and for the next product's pairs, which lie behind these. The
    // copies are of the group that is committed next.
    template <class Share> __device__ __forceinline__ void bring_b(const Part& p, const Share& share, uint32_t gate) const {
        if (blockIdx.x == 0 && threadIdx.x < 2) prefetch_l2((const uint8_t*)(d.pairs + d.n_linears * d.uses) + threadIdx.x * 128);
        for (uint32_t i = threadIdx.x; i < share.rows << gate; i += WARPS * 32) {
            const uint32_t half = i >= share.rows ? 1 : 0;
            uint32_t linear;
            const uint32_t row = adapted_row(d.pieces, p.out_offset + half * p.rows + share.place(i - half * share.rows), linear);
            for (uint32_t u = 0; u < d.uses; u++) {
                const Use use = use_of(d.pairs[linear * d.uses + u], row);
                if (u == 0 && i < WARPS * 32) {
                    Use* kept = (Use*)(kept_b() + i * (KEPT_B + sizeof(Use)));
                    *kept = use;
                    const uint32_t bytes = ((use.rank + 7) & ~7u) * (use.type == ADAPTER_F32 ? 4 : 2);
                    if (bytes > 0 && bytes <= KEPT_B) {
                        kept->b = (const uint8_t*)(kept + 1);
                        const uint32_t to = shared_address(kept + 1);
                        copy16(to, use.b, true);
                        if (bytes > 16) copy16(to + 16, use.b + 16, true);
                        continue;
                    }
                }
                if (use.rank > 0) prefetch_l2(use.b);
            }
        }
    }
    __device__ __forceinline__ static Use use_of(const AdapterPair& pair, uint32_t row) {
        return {number_at(pair.b, (uint64_t)row * ranks_of(pair), pair.b_type), pair.rank, pair.at, pair.b_type, pair.scale, 0};
    }
    // A warp's sum of a part of a row of A, which may be in shared memory.
    __device__ __forceinline__ float sum(const Row& row, uint32_t part, bool is_kept, const Input& input) const {
        if (!row.a) return 0.0f;
        const uint32_t lane = threadIdx.x & 31, first = part * 32 + lane;
        const uint8_t* from = number_at(row.a, first * 8, row.type);
        uint32_t step = LORA_DOWN_THREADS * (row.type == ADAPTER_F32 ? 32 : 16);
        if (is_kept) {
            from = kept_a() + ((threadIdx.x >> 5) * lane_chunks() * 32 + lane) * 16;
            step = 512;
        }
        float sum = 0.0f;
#pragma unroll 1
        for (uint32_t chunk = first; chunk < groups * 4; chunk += LORA_DOWN_THREADS, from += step) {
            float w[8], x[8];
            eight_numbers(from, 0, row.type, w);
            eight_bytes(*(const uint2*)(input.at + chunk * 8), x);
            sum = add_eight(w, x, input.scales()[chunk / 4], sum);
        }
        return warp_sum(sum);
    }
    __device__ __forceinline__ uint64_t word_of(float v) const { return (uint64_t)d.tag << 32 | __float_as_uint(v); }
    __device__ __forceinline__ bool is_there(uint64_t word) const { return (uint32_t)(word >> 32) == d.tag; }
    __device__ __forceinline__ void hand_over(uint32_t number, float v) const {
        if ((threadIdx.x & 31) == 0) store_shared_word(d.words + number, word_of(v));
    }

    // A warp's pieces, when the input is there.
    __device__ __forceinline__ void lora_down(const First& first, const Input& input) const {
        Row row = first.row;
        bool is_kept = first.is_kept;
        for (uint32_t number = first_piece(); number < slots() * LORA_DOWN_PARTS;) {
            hand_over(number, sum(row, number % LORA_DOWN_PARTS, is_kept, input));
            number += gridDim.x * WARPS;
            if (number >= slots() * LORA_DOWN_PARTS) break;
            row = find(number / LORA_DOWN_PARTS, candidate(number / LORA_DOWN_PARTS));
            is_kept = false;
        }
    }
    // Brings A x to shared memory, by the warps that come first. Blocks whose pieces do not come need not have begun, and may
    // wait for this one to end: so what is missing for long the warp works out itself.
    __device__ __forceinline__ void await(uint32_t& next, const Input& input) const {
        const uint32_t lane = threadIdx.x & 31, n = slots() * LORA_DOWN_PARTS;
        for (;;) {
            const uint32_t first = __shfl_sync(~0u, lane == 0 ? atomicAdd(&next, AT_ONCE * 32) : 0, 0);
            if (first >= n) break;
            uint64_t v[AT_ONCE];
            auto load = [&](uint32_t i) {
                const uint32_t number = first + i * 32 + lane;
                v[i] = number < n ? load_shared_word(d.words + number) : word_of(0.0f);
            };
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++) load(i);
            for (uint32_t turn = 0;; turn++) {
                uint32_t missing = n;
#pragma unroll
                for (uint32_t i = 0; i < AT_ONCE; i++)
                    if (!is_there(v[i])) {
                        missing = first + i * 32 + lane;
                        load(i);
                    }
                const uint32_t wait = __ballot_sync(~0u, missing < n);
                if (!wait) break;
                if (turn < PATIENCE) continue;
                const uint32_t number = __shfl_sync(~0u, missing, __ffs(wait) - 1);
                const Row row = find(number / LORA_DOWN_PARTS, candidate(number / LORA_DOWN_PARTS));
                hand_over(number, sum(row, number % LORA_DOWN_PARTS, false, input));
            }
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++) {
                const float whole = sum_of_parts(__uint_as_float((uint32_t)v[i]));
                const uint32_t number = first + i * 32 + lane;
                if (number % LORA_DOWN_PARTS == 0 && number < n) thin()[number / LORA_DOWN_PARTS] = whole;
            }
        }
    }
    // Adds to the sum of item `i` of the block, row `place` of the product's output, when all of A x is there.
    __device__ __forceinline__ float add(uint32_t i, uint32_t place, float v) const {
        for (uint32_t u = 0; u < d.uses; u++) {
            Use use;
            if (u == 0 && i < WARPS * 32) use = *(const Use*)(kept_b() + i * (KEPT_B + sizeof(Use)));
            else {
                uint32_t linear;
                const uint32_t row = adapted_row(d.pieces, place, linear);
                use = use_of(d.pairs[linear * d.uses + u], row);
            }
            if (use.rank == 0) continue;
            auto load = [&](uint32_t at, float (&t)[8]) {
                const float4 lo = *(const float4*)(thin() + at), hi = *(const float4*)(thin() + at + 4);
                t[0] = lo.x; t[1] = lo.y; t[2] = lo.z; t[3] = lo.w;
                t[4] = hi.x; t[5] = hi.y; t[6] = hi.z; t[7] = hi.w;
            };
            v = add_adapter(use.b, use.type, use.rank, use.at, use.scale, load, v);
        }
        return v;
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
    uint32_t next;  // of A x that a warp waits for
};
// And for each warp a barrier for each of its ring's stages, which bulk copies fill.
template <bool ADAPTED, uint32_t STAGES> struct RingStatic : ProductStatic<ADAPTED> {
    uint64_t filled[WARPS][STAGES];
};
template <bool ADAPTED> struct RingStatic<ADAPTED, 0> : ProductStatic<ADAPTED> {};
// Barriers of a warp in a kernel of TYPES.
template <uint32_t TYPES> constexpr uint32_t ring_barriers() {
    if constexpr (TYPES == 0) return 0;
    else {
        constexpr uint32_t T = __builtin_ctz(TYPES), others = ring_barriers<TYPES & (TYPES - 1)>();
        return comes_in_bulk<T>() && stages<T>() > others ? stages<T>() : others;
    }
}

template <uint32_t T, bool SPREAD, bool ADAPTED, bool SUMMED, bool LINKED, class Static> __device__ __forceinline__ void product_rows(const ProductArgs& a, const Adapted* adapted, const SummedProductArgs* summed, const LinkedRow* linked, const Part& part, Static& m, uint8_t* shared) {
    constexpr uint32_t CR = stage_rows<T>(), STAGES = stages<T>(), STAGE = CR * record_bytes(T, 32);
    constexpr bool BULK = comes_in_bulk<T>();
    float* scratch = m.scratch;
    const uint32_t bar = shared_address(&m.bar);
    const Part p = part;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, gate = a.finish == GATE ? 1 : 0;
    const WarpShare<CR, SPREAD> share(p, gate);
    const uint32_t rows = share.rows;
    const Input input{shared + a.ring_bytes, a.groups};
    float* sums = input.after();  // [run][row]
    const uint8_t* ring = shared + warp * (STAGES * STAGE);
    const uint32_t lane_ring = kept(shared_address(ring) + (BULK ? 0 : lane * 16));
    // The barrier of the stage at `slot`. The first lane arrives there when it asks for the stage's bytes.
    auto filled = [&](uint32_t slot) {
        if constexpr (BULK) return shared_address(m.filled[warp]) + slot / STAGE * 8;
        return 0u;
    };
    if constexpr (BULK) {
        if (lane == 0) {
            for (uint32_t i = 0; i < STAGES; i++) barrier_init(filled(i * STAGE), 1);
            fence_shared();
        }
    }

    // What is to be brought in: rows left of the warp's and of the run, the next one's record from the first 16 bytes on that this lane
    // copies, its size, and where it goes.
    uint32_t coming = share.count, coming_run = share.run, of_run = 0, record = 0, slot = own_zero();
    const uint8_t* from = NULL;
    auto turn_to = [&](uint32_t at) {
        record = record_of(p, coming_run >> gate);
        of_run = min(coming, share.in_run - at);
        from = row_of(p, gate, coming_run, share.row0 + share.own + at) + (BULK ? 0 : lane * 16);
    };
    auto bring_in = [&] {
        if (coming > 0) {
            const uint32_t n = min(CR, of_run), bytes = n * record, to = lane_ring + slot;
            if constexpr (BULK) {
                if (lane == 0) {
                    barrier_expect(filled(slot), bytes);
                    bulk_copy_once(to, from, bytes, filled(slot));
                }
            } else {
#pragma unroll
                for (uint32_t i = 0; i < (STAGE + 511) / 512; i++)
                    if (i * 512 + lane * 16 < bytes) copy16_once(to + i * 512, from + i * 512, true);
            }
            from += SPREAD ? share.far * record : bytes;
            coming -= n;
            of_run -= n;
            if (of_run == 0) {
                coming_run++;
                turn_to(0);
            }
        }
        slot = slot + STAGE == STAGES * STAGE ? 0 : slot + STAGE;
        if constexpr (!BULK) copies_commit();
    };
    const uint32_t first_run = kept(share.run), first_row = kept(share.row);
    turn_to(share.row);
    auto fill = [&](uint32_t stages) {
#pragma unroll 1
        for (uint32_t i = 0; i < stages; i++) bring_in();
    };
    auto adapting = [&] {
        if constexpr (ADAPTED) {
            const Adapted& d = *adapted;
            return Adapting{d, shared + d.thin_at, a.groups};
        }
    };
    // Parts of A go before the weights.
    Adapting::First first = {};
    if constexpr (ADAPTED) first = adapting().bring_a();
    // What is asked for first comes first, and the next block of a product begins when the one before has ended: so the input
    // goes before the weights. Only attention leaves time for some.
    constexpr uint32_t EARLY = 1;
    if (SUMMED && summed->added.base) {
        take_sum(a, summed->added, input, scratch, [&] { fill(STAGES); });
    } else if (a.norm.weight) {
        auto take = [&]<int N>() {
            NormRowOf<N, INPUT_THREADS> norm;
            norm.load_weights(a.norm, a.groups * 32);
            wait_for_producers();
            norm.load(a.x, a.groups * 32);
            fill(STAGES);
            norm.template sum<true>(a.norm, a.groups * 32, a.inverse_len, scratch);
            input.take(norm, a.norm);
        };
        // Of these types, registers stay as many with three sizes.
        constexpr bool SHORT = !ADAPTED && !SUMMED && !LINKED && (T == Q4_K || T == Q6_K);
        if (SHORT && a.groups <= 64) take.template operator()<1>();
        else if (SHORT && a.groups <= 128) take.template operator()<2>();
        else take.template operator()<4>();
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
    uint32_t tag = 0;
    if constexpr (LINKED) tag = tag_of(linked->meeting);
    __syncthreads();

    release_dependents();
    if constexpr (ADAPTED) {
        copies_wait<BULK ? 0 : STAGES>();
        adapting().lora_down(first, input);
        adapting().bring_b(p, share, gate);
    }
    uint32_t left = share.count, run = first_run, row = first_row, loaded = ~0u, n_groups = 0, parity = 0;
    LaneInput x;
    const uint32_t u = butterfly_row<CR>(lane);
    const bool stores = (lane & (32 / CR - 1)) == 0;
#pragma unroll 1
    for (; left > 0; run++, row = 0) {
        const uint32_t slice = run >> gate, its = record_of(p, slice);
        if (slice != loaded) {
            loaded = slice;
            n_groups = slice + 1 == p.n_slices ? p.last : p.full;
            x.load(input, slice * p.full + min(lane, n_groups - 1));
        }
        float* to = sums + run * rows + share.own + row + u;
        uint32_t n = min(left, share.in_run - row);
        left -= n;
#pragma unroll 1
        for (;;) {
            const uint8_t* r = ring + slot;
            if constexpr (BULK) {
                barrier_wait(filled(slot), parity);
                if (slot == (STAGES - 1) * STAGE) parity ^= 1;
            } else {
                copies_wait<STAGES - 1>();
                __syncwarp();
            }
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
            if (stores && u < n) *to = t;
            if (n <= CR) break;
            n -= CR;
            to += share.STEP;
        }
    }
    if constexpr (ADAPTED) {
        adapting().await(m.next, input);
        copies_commit();
        copies_wait<0>();
    }
    // What does not depend on the sums is there before they are: few warps have rows, and they take several cycles for an instruction.
    const uint32_t finish = kept(a.finish), step = kept((rows << gate) * 4), all_slices = kept(p.n_slices * step);
    uint32_t at = kept(shared_address(sums + threadIdx.x));
    float* out = NULL;
    float bias[2] = {};
    auto aim = [&](uint32_t i) {
        const uint32_t row = share.place(i);
        out = kept(a.out + p.out_offset + row);
        if (p.bias) {
            bias[0] = p.bias[row];
            if (gate) bias[1] = p.bias[p.rows + row];
        }
    };
    if (!LINKED && threadIdx.x < rows) aim(threadIdx.x);
    __syncthreads();
    // The sums of a row over the slices, and with two of them those of its value.
    auto add_slices = [&]<uint32_t N>(uint32_t at, float (&v)[N]) {
#pragma unroll
        for (uint32_t h = 0; h < N; h++) v[h] = load_shared(at + h * rows * 4);
        const uint32_t end = at + all_slices;
#pragma unroll 1
        for (at += step; at < end; at += 4 * step) {
            float w[4][N];
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
#pragma unroll
                for (uint32_t h = 0; h < N; h++) w[j][h] = at + j * step < end ? load_shared(at + j * step + h * rows * 4) : 0.0f;
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
#pragma unroll
                for (uint32_t h = 0; h < N; h++)
                    if (at + j * step < end) v[h] = __fadd_rn(v[h], w[j][h]);
        }
    };
    // A row's sum and bias; `half` 1: its value's.
    auto sum = [&](uint32_t half, uint32_t i) {
        float v[1];
        add_slices(shared_address(sums + half * rows + i), v);
        return p.bias ? __fadd_rn(v[0], p.bias[half * p.rows + share.place(i)]) : v[0];
    };
    if constexpr (ADAPTED) {
        // The sums with their addends take the place of those of the first slice; each is read and written by the same thread.
        for (uint32_t i = threadIdx.x; i < rows << gate; i += WARPS * 32) {
            const uint32_t half = i >= rows ? 1 : 0, row = i - half * rows;
            float v = sum(half, row);
            if (a.finish == PLAIN && a.residual) v = __fadd_rn(v, row < WARPS * 32 ? residual : __ldcg(residuals + share.place(row)));
            sums[i] = adapting().add(i, p.out_offset + half * p.rows + share.place(row), v);
        }
        if (gate) __syncthreads();
    }
    if constexpr (LINKED) {
        // All outputs are on their way before the first one of another rank is waited for. They take the place of the sums of the
        // first slice; each is read and written by the same thread.
        const MeetingArgs& m = linked->meeting;
        const TaggedRow tagged{linked->tagged, linked->tagged_capacity, m.n_ranks, m.index, tag};
        for (uint32_t i = threadIdx.x; i < rows; i += WARPS * 32) {
            const float v = sums[i] = sum(0, i);
            for (uint32_t peer = 0; peer < m.n_ranks; peer++)
                if (peer != m.rank) tagged.send(peer, m.rank, p.out_offset + share.place(i), v);
        }
        for (uint32_t i = threadIdx.x; i < rows; i += WARPS * 32) {
            const uint32_t row = share.place(i);
            float all = sums[i];
            for (uint32_t rank = 0; rank < m.n_ranks; rank++) {
                const float v = rank == m.rank ? sums[i] : tagged.take(m, rank, p.out_offset + row);
                all = rank == 0 ? v : __fadd_rn(all, v);
            }
            if (a.residual) all = __fadd_rn(i < WARPS * 32 ? residual : __ldcg(residuals + row), all);
            a.out[p.out_offset + row] = all;
        }
    } else {
        for (uint32_t i = threadIdx.x; i < rows;) {
            float v[2] = {};
            if constexpr (ADAPTED) {
                v[0] = load_shared(at);
                if (gate) v[1] = load_shared(at + rows * 4);
            } else {
                if (gate) {
                    add_slices(at, v);
                } else {
                    float one[1];
                    add_slices(at, one);
                    v[0] = one[0];
                }
                if (p.bias) {
                    v[0] = __fadd_rn(v[0], bias[0]);
                    v[1] = __fadd_rn(v[1], bias[1]);
                }
            }
            if (finish == PLAIN) {
                if (!ADAPTED && a.residual) v[0] = __fadd_rn(v[0], residual);
            } else if (finish == GATE) {
                v[0] = gated(a.activation, v[0], v[1]);
            } else {
                v[0] = activated(a.activation, v[0]);
                if (finish == WEIGH) v[0] = __fmul_rn(v[0], residual);
            }
            *out = v[0];
            i += WARPS * 32;
            at += WARPS * 128;
            if (i < rows) {
                aim(i);
                if (a.residual) residual = __ldcg(residuals + share.place(i));
            }
        }
    }
}

// Grid: the blocks of the parts; 512 threads, as many as a norm of its own has.
template <uint32_t TYPES, bool SPREAD = false, bool ADAPTED = false, bool SUMMED = false, bool LINKED = false>
__device__ __forceinline__ void product_body(const ProductArgs& a, const Adapted* adapted = NULL, const SummedProductArgs* summed = NULL, const LinkedRow* linked = NULL) {
    DYNAMIC_SHARED(shared);
    using Static = RingStatic<ADAPTED, ring_barriers<TYPES>()>;
    STATIC_SHARED(Static, m);
    if (threadIdx.x == 0) {
        // Inputs that are rounded already come by bulk copies.
        if (!a.x) {
            barrier_init(shared_address(&m.bar), 1);
            fence_shared();
        }
        if constexpr (ADAPTED) m.next = 0;
    }
    const Part& p = part_of(a.parts, a.n_parts);
    for_type(p.type, [&]<uint32_t T>() {
        if constexpr (!is_float(T) && (TYPES >> T & 1)) product_rows<T, SPREAD, ADAPTED, SUMMED, LINKED>(a, adapted, summed, linked, p, m, shared);
    });
}

#endif

// Kernel names: product_<types>, product_spread_<types> for parts that are spread, and the same with adapted_ before the types, or with
// summed_ for inputs that are added up first, linked_ for plain outputs that are added up over all ranks. These and the
// adapted ones leave room for another block's registers. What only some networks need is in kernels of its own, because registers and instructions cost all.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define PRODUCT_ONE(name, types, spread)                                                                   \
    extern "C" __global__ void __launch_bounds__(WARPS * 32) name(const __grid_constant__ ProductArgs a) { \
        product_body<types, spread, false>(a, NULL);                                                       \
    }
#define PRODUCT_ADAPTED(name, types, spread)                                                                         \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) name(const __grid_constant__ AdaptedProductArgs a) { \
        product_body<types, spread, true>(a.product, &a.adapted);                                                    \
    }
#define PRODUCT_SUMMED(name, types, spread)                                                                         \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) name(const __grid_constant__ SummedProductArgs a) { \
        product_body<types, spread, false, true>(a.product, NULL, &a);                                              \
    }
#define PRODUCT_LINK(name, types, spread)                                                                           \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) name(const __grid_constant__ LinkedProductArgs a) { \
        product_body<types, spread, false, false, true>(a.product, NULL, NULL, &a.row);                             \
    }
#define PRODUCT_LINKED(name, types)                         \
    PRODUCT_LINK(product_linked_##name, (types), false)     \
    PRODUCT_LINK(product_spread_linked_##name, (types), true)
#define PRODUCT_SUMS(name, types)                         \
    PRODUCT_SUMMED(product_summed_##name, (types), false) \
    PRODUCT_SUMMED(product_spread_summed_##name, (types), true)
#define PRODUCT(name, types)                                 \
    PRODUCT_ONE(product_##name, (types), false)              \
    PRODUCT_ONE(product_spread_##name, (types), true)        \
    PRODUCT_ADAPTED(product_adapted_##name, (types), false)  \
    PRODUCT_ADAPTED(product_spread_adapted_##name, (types), true)
#else
#define PRODUCT_ONE(name, ...)
#define PRODUCT_ADAPTED(name, ...)
#define PRODUCT_SUMMED(name, ...)
#define PRODUCT_LINK(name, ...)
#define PRODUCT_LINKED(name, ...)
#define PRODUCT_SUMS(name, ...)
#define PRODUCT(name, types)
#endif
