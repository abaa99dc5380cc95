// Products of a step's few rows with the matrices of the experts that they go through, from sm_90 on. The matrices
// of all experts lie one below the other as one matrix.
//
// For one session, two kernels: `experts_up`, whose blocks choose the experts from the router's scores, a block for rows
// of one expert; `experts_down`, whose blocks have the same rows of all experts
// chosen, and add them up. An expert for all tokens has its gates and ups beside the router's scores, in `experts_shared`, for which half of
// the multiprocessors are enough, and its outputs in `experts_down`. For several, `experts_rows` does either product for pairs that are sorted by expert, some of
// one expert at a time, so that their weights come from memory once.
//
// Each warp brings its weights through a ring in shared memory, as in product.cuh. The bits are those of matvec.cuh.
#pragma once
#include "args_experts.h"
#include "activation.cuh"
#include "input.cuh"
#include "matvec.cuh"
#include "mma.cuh"
#include "route.cuh"
#include "router.cuh"

__device__ __forceinline__ uint32_t groups_of(const ExpertSlices& s, uint32_t slice) { return slice + 1 == s.count ? s.last : s.full; }
__device__ __forceinline__ uint32_t record_of(const ExpertSlices& s, uint32_t slice) { return slice + 1 == s.count ? s.last_bytes : s.full_bytes; }
// Row `row` of a slice.
__device__ __forceinline__ const uint8_t* row_at(const ExpertSlices& s, const uint8_t* matrix, uint32_t slice, uint32_t row) {
    return matrix + (uint64_t)s.all_rows * slice * s.full_bytes + (uint64_t)row * record_of(s, slice);
}

__device__ __forceinline__ uint32_t rows_of(const ExpertShare& s, uint32_t block) { return s.each + (block < s.more ? 1 : 0); }
__device__ __forceinline__ uint32_t first_of(const ExpertShare& s, uint32_t block) { return block * s.each + min(block, s.more); }

// Rows of a stage of the ring, and its stages.
template <uint32_t T> constexpr uint32_t expert_stage_rows() { return record_bytes(T, 32) <= 704 ? 4 : 2; }
template <uint32_t T> constexpr uint32_t expert_stages() { return expert_stage_rows<T>() == 2 && record_bytes(T, 32) <= 900 ? 4 : 3; }

#if __CUDA_ARCH__ >= 900

// A warp's part of a list of rows, run by run, which comes through its ring. `Runs` says of a run where its first row
// lies, which slice it is, and where in the block's input the input of the slice begins.
template <uint32_t T, class Runs> struct ExpertStream {
    static constexpr uint32_t CR = expert_stage_rows<T>(), STAGES = expert_stages<T>(), STAGE = CR * record_bytes(T, 32);
    const ExpertSlices& slices;
    const Runs& runs;
    const uint32_t rows;  // of a run
    const uint8_t* ring;
    uint32_t lane_ring, count, run, row;
    // What is to be brought in: rows left of the warp's and of the run, the next one's record from this lane's first
    // 16 bytes on, its size, and where it goes.
    uint32_t coming, coming_run, of_run, record, slot;
    const uint8_t* from;

    __device__ __forceinline__ ExpertStream(const ExpertSlices& slices, const Runs& runs, uint32_t n_runs, uint32_t rows, const uint8_t* rings)
        : slices(slices), runs(runs), rows(rows) {
        const uint32_t warp = threadIdx.x >> 5, items = n_runs * rows, begin = items * warp / WARPS;
        ring = rings + warp * (STAGES * STAGE);
        lane_ring = kept(shared_address(ring) + (threadIdx.x & 31) * 16);
        count = items * (warp + 1) / WARPS - begin;
        run = begin / rows;
        row = begin - run * rows;
    }
    __device__ __forceinline__ void turn_to(uint32_t at) {
        record = record_of(slices, runs.slice(coming_run));
        of_run = min(coming, rows - at);
        from = runs.at(coming_run) + (uint64_t)at * record + (threadIdx.x & 31) * 16;
    }
    __device__ __forceinline__ void bring_in() {
        if (coming > 0) {
            const uint32_t n = min(CR, of_run), bytes = n * record, to = lane_ring + slot, lane = threadIdx.x & 31;
#pragma unroll
            for (uint32_t i = 0; i < (STAGE + 511) / 512; i++)
                if (i * 512 + lane * 16 < bytes) copy16_once(to + i * 512, from + i * 512, true);
            from += bytes;
            coming -= n;
            of_run -= n;
            if (of_run == 0 && coming > 0) {
                coming_run++;
                turn_to(0);
            }
        }
        slot = slot + STAGE == STAGES * STAGE ? 0 : slot + STAGE;
        copies_commit();
    }
    // Asks for the first weights.
    __device__ __forceinline__ void fill() {
        coming = count;
        coming_run = run;
        slot = own_zero();
        if (coming > 0) turn_to(row);
#pragma unroll 1
        for (uint32_t i = 0; i < STAGES; i++) bring_in();
    }
    // Sums of the groups of each row for M inputs, one behind the other, into sums[run][row][M].
    template <uint32_t M> __device__ __forceinline__ void multiply(const Input& input, uint32_t inputs, float* sums) {
        const uint32_t lane = threadIdx.x & 31, u = butterfly_row<CR>(lane);
        uint32_t left = count, loaded = ~0u, n_groups = 0;
        LaneInput x[M];
        slot = own_zero();
#pragma unroll 1
        for (; left > 0; run++, row = 0) {
            const uint32_t its = record_of(slices, runs.slice(run)), first = runs.group(run);
            if (first != loaded) {
                loaded = first;
                n_groups = groups_of(slices, runs.slice(run));
#pragma unroll
                for (uint32_t m = 0; m < M; m++) x[m].load(input, min(m, inputs - 1) * runs.stride() + first + min(lane, n_groups - 1));
            }
            float* to = (lane & (32 / CR - 1)) == 0 ? sums + (run * rows + row + u) * M : NULL;
            uint32_t n = min(left, rows - row);
            left -= n;
#pragma unroll 1
            for (;;) {
                const uint8_t* r = ring + slot;
                copies_wait<STAGES - 1>();
                __syncwarp();
                float acc[M][CR];
                if (n_groups == 32) {
                    // Whole records: offsets are constants. What lies behind the last row is not used.
#pragma unroll
                    for (uint32_t i = 0; i < CR; i++) dots<M>(x, r + i * record_bytes(T, 32), lane, 32, &acc[0][i]);
                } else {
#pragma unroll
                    for (uint32_t i = 0; i < CR; i++) {
                        dots<M>(x, r + i * its, min(lane, n_groups - 1), n_groups, &acc[0][i]);
#pragma unroll
                        for (uint32_t m = 0; m < M; m++) acc[m][i] = lane < n_groups ? acc[m][i] : 0.0f;
                    }
                }
                __syncwarp();
                bring_in();
#pragma unroll
                for (uint32_t m = 0; m < M; m++) {
                    const float t = butterfly<CR>(acc[m], lane);
                    if (to && u < n) to[m] = t;
                }
                if (n <= CR) break;
                n -= CR;
                if (to) to += CR * M;
            }
        }
    }

private:
    // A lane's products with group `g` of a record of n groups, CR apart.
    template <uint32_t M> static __device__ __forceinline__ void dots(const LaneInput* x, const uint8_t* r, uint32_t g, uint32_t n, float* to) {
        if constexpr (M == 1) {
            *to = record_dot<T>(x[0], r, g, n);
        } else {
            Group group;
            Codec<T>::template decode<FromShared>(r, g, n, group);
#pragma unroll
            for (uint32_t m = 0; m < M; m++) to[m * CR] = x[m].template dot<T>(group);
        }
    }
};

// Runs of gate and up, or of one matrix: slice by slice, of each first the rows of one matrix, then those of the other.
struct ExpertRuns {
    const ExpertSlices& slices;
    const uint8_t* const* matrices;
    uint32_t gated, first_row, groups;
    __device__ __forceinline__ uint32_t slice(uint32_t run) const { return run >> gated; }
    __device__ __forceinline__ const uint8_t* at(uint32_t run) const { return row_at(slices, matrices[run & gated], run >> gated, first_row); }
    __device__ __forceinline__ uint32_t group(uint32_t run) const { return (run >> gated) * slices.full; }
    __device__ __forceinline__ uint32_t stride() const { return groups; }
};
// The sum of a row's slices, of gates or, with `half` 1, of what they let through; `sums` are a run's `stride` apart.
__device__ __forceinline__ float sum_of_slices(const ExpertSlices& s, uint32_t gated, uint32_t half, const float* sums, uint32_t stride) {
    float v = sums[half * stride];
    for (uint32_t t = 1; t < s.count; t++) v = __fadd_rn(v, sums[((t << gated) + half) * stride]);
    return v;
}

// Runs of the rows of all experts chosen, and behind them those of the shared expert's matrix, which has `rows` rows alone.
struct ChosenRuns {
    const ExpertSlices& slices;
    const uint8_t *matrix, *shared;
    const uint32_t* chosen;
    uint32_t n_used, rows, first_row, groups;
    __device__ __forceinline__ uint32_t pair(uint32_t run) const { return slices.count == 1 ? run : run / slices.count; }
    __device__ __forceinline__ uint32_t slice(uint32_t run) const { return run - pair(run) * slices.count; }
    __device__ __forceinline__ const uint8_t* at(uint32_t run) const {
        const uint32_t p = pair(run), s = slice(run);
        const bool is_shared = p == n_used;
        const uint64_t all_rows = is_shared ? rows : slices.all_rows;
        return (is_shared ? shared : matrix) + all_rows * s * slices.full_bytes + (uint64_t)(chosen[p] * rows + first_row) * record_of(slices, s);
    }
    __device__ __forceinline__ uint32_t group(uint32_t run) const { return pair(run) * groups + slice(run) * slices.full; }
    __device__ __forceinline__ uint32_t stride() const { return 0; }
};

// Gates and ups of the shared expert, or its ups: as ExpertRuns, of one matrix that has the gates' rows in front of those of ups.
struct SharedRuns {
    const ExpertSlices& slices;
    const uint8_t* matrix;
    uint32_t gated, rows, first_row;
    __device__ __forceinline__ uint32_t slice(uint32_t run) const { return run >> gated; }
    __device__ __forceinline__ const uint8_t* at(uint32_t run) const { return row_at(slices, matrix, run >> gated, (run & gated) * rows + first_row); }
    __device__ __forceinline__ uint32_t group(uint32_t run) const { return (run >> gated) * slices.full; }
    __device__ __forceinline__ uint32_t stride() const { return 0; }
};

// Grid: `router_blocks` for the scores of one row, then those that share the rows of the shared expert; all of them make the norm for themselves.
// Dynamic shared memory: that of `router_row`, or rings, input and sums.
template <uint32_t T> __device__ __forceinline__ void experts_shared_body(const RouterSharedArgs& a) {
    DYNAMIC_SHARED(shared);
    struct Static { float scratch[32]; };
    STATIC_SHARED(Static, m);
    if (blockIdx.x < a.router_blocks) return scores_of_row(a.router, a.router_blocks, (float*)shared, m.scratch);
    static_assert(ROUTER_WARPS == WARPS, "a block does either");
    const uint32_t block = blockIdx.x - a.router_blocks, rows = rows_of(a.share, block), row0 = first_of(a.share, block);
    const Input input{shared + a.ring_bytes, a.router.width / 32};
    float* sums = input.after();  // [run][row]
    const SharedRuns runs{a.slices, a.matrix, a.gated, a.rows, row0};
    ExpertStream<T, SharedRuns> stream(a.slices, runs, a.slices.count << a.gated, rows, shared);
    router_input(a.router, m.scratch, [&] { stream.fill(); }, [&](uint32_t at, const float (&r)[4]) {
        const PackedValues p = pack_q8(r);
        if (at < a.router.width) input.put(at, p);
    });
    release_dependents();
    __syncthreads();
    stream.template multiply<1>(input, 1, sums);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < rows; i += WARPS * 32) {
        auto sum = [&](uint32_t half) { return sum_of_slices(a.slices, a.gated, half, sums + i, rows); };
        const float v = sum(0);
        a.out[row0 + i] = a.gated ? gated(a.activation, v, sum(1)) : activated(a.activation, v);
    }
}

// Grid: `blocks` for each pair.
template <uint32_t T> __device__ __forceinline__ void experts_up_body(const ExpertsUpArgs& a) {
    DYNAMIC_SHARED(shared);
    struct Static { RouteMemory route; };
    STATIC_SHARED(Static, m);
    const uint32_t pair = blockIdx.x / a.blocks, block = blockIdx.x - pair * a.blocks, rows = rows_of(a.share, block), warp = threadIdx.x >> 5;
    const Input input{shared + a.ring_bytes, a.groups};
    float* sums = input.after();  // [run][row]
    const uint32_t row0 = first_of(a.share, block);
    ExpertRuns runs{a.slices, a.matrices, a.gated, 0, a.groups};
    ExpertStream<T, ExpertRuns> stream(a.slices, runs, a.slices.count << a.gated, rows, shared);
    wait_for_producers();
    uint32_t first = row0;
    // Twice: where much memory is read between two runs of a kernel, its code comes from there, too, and the last warp fetches
    // that of the end while the first one chooses.
#pragma unroll 1
    for (uint32_t pass = 0; pass < 2; pass++) {
        const bool last = pass == 1;
        if (!last) {
            // The first warp chooses, the others bring the input.
            if (warp == 0) {
                choose_experts(a.route, 0, m.route);
            } else {
                for (uint32_t i = threadIdx.x - 32; i < a.groups * 2; i += (WARPS - 1) * 32) ((uint4*)input.at)[i] = __ldcg((const uint4*)a.q8 + i);
                for (uint32_t i = threadIdx.x - 32; i < a.groups; i += (WARPS - 1) * 32) input.scales()[i] = __ldcg(a.q8_scale + i);
            }
            if (warp != WARPS - 1) continue;
        } else {
            __syncthreads();
            // The host's experts are below n_experts; nothing is read out of bounds whatever the memory holds.
            first = min(m.route.chosen[pair], a.route.n_experts - 1) * a.rows + row0;
            runs.first_row = first;
            stream.fill();
            release_dependents();
            stream.template multiply<1>(input, 1, sums);
            __syncthreads();
            // Beside the last sums.
            if (blockIdx.x == 0 && warp == WARPS - 1) write_choice(a.route, 0, m.route);
        }
        auto sum = [&](uint32_t half, uint32_t i) {
            const float v = sum_of_slices(a.slices, a.gated, half, sums + i, rows);
            return a.biases[half] ? __fadd_rn(v, a.biases[half][first + i]) : v;
        };
        const uint32_t begin = last ? threadIdx.x : threadIdx.x & 31, end = last ? rows : min(rows, 32u);
        for (uint32_t i = begin; i < end; i += WARPS * 32) {
            float v = sum(0, i);
            v = a.gated ? gated(a.activation, v, sum(1, i)) : activated(a.activation, v);
            if (last) a.out[(uint64_t)pair * a.rows + row0 + i] = v;
        }
    }
}

// Grid: blocks that share the rows.
template <uint32_t T> __device__ __forceinline__ void experts_down_body(const ExpertsDownArgs& a) {
    DYNAMIC_SHARED(shared);
    struct Static { uint32_t chosen[MAX_USED + 1]; float weights[MAX_USED + 1]; };
    STATIC_SHARED(Static, m);
    const uint32_t rows = rows_of(a.share, blockIdx.x), row0 = first_of(a.share, blockIdx.x);
    const uint32_t n_pairs = a.n_used + (a.shared_matrix ? 1 : 0);
    const Input input{shared + a.ring_bytes, a.groups * n_pairs};
    float* sums = input.after();  // [run][row]
    const ChosenRuns runs{a.slices, a.matrix, a.shared_matrix, m.chosen, a.n_used, a.rows, row0, a.groups};
    ExpertStream<T, ChosenRuns> stream(a.slices, runs, a.slices.count * n_pairs, rows, shared);
    wait_for_producers();
    if (threadIdx.x <= a.n_used) m.chosen[threadIdx.x] = threadIdx.x < a.n_used ? min(__ldcg(a.chosen + threadIdx.x), a.n_experts - 1) : 0;
    if (threadIdx.x <= a.n_used) m.weights[threadIdx.x] = __ldcg(a.weights + threadIdx.x);
    // What is asked for first comes first.
    input.take(a.x, [&] {
        __syncthreads();
        stream.fill();
    });
    const bool mine = threadIdx.x < rows;
    const float base = mine && a.base ? __ldcg(a.base + row0 + threadIdx.x) : 0.0f;
    const float beside = mine && a.shared ? __ldcg(a.shared + row0 + threadIdx.x) : 0.0f;
    __syncthreads();
    release_dependents();
    stream.template multiply<1>(input, 1, sums);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < rows; i += WARPS * 32) {
        float all = 0.0f;
#pragma unroll 4
        for (uint32_t j = 0; j < n_pairs; j++) {
            const float* of = sums + j * a.slices.count * rows + i;
            float v = of[0];
            for (uint32_t t = 1; t < a.slices.count; t++) v = __fadd_rn(v, of[t * rows]);
            if (a.bias && j < a.n_used) v = __fadd_rn(v, a.bias[m.chosen[j] * a.rows + row0 + i]);
            all = __fmaf_rn(m.weights[j], v, all);
        }
        const bool early = i < WARPS * 32;
        if (a.shared) all = __fmaf_rn(m.weights[a.n_used], early ? beside : __ldcg(a.shared + row0 + i), all);
        a.out[row0 + i] = a.base ? __fmaf_rn(a.scale, all, early ? base : __ldcg(a.base + row0 + i)) : all;
    }
}

// The inputs of n pairs, one behind the other; `asked` is called when they have been asked for, and asks for BEHIND groups
// of copies.
template <int BEHIND, class Asked> __device__ __forceinline__ void take_inputs(const ExpertsRowsArgs& a, const uint32_t* pairs, uint32_t n, const Input& input, Asked asked) {
    if (a.q8) {
        // Rounded already, and shared with other pairs of a row.
        const uint32_t pieces = a.groups * 2;
        for (uint32_t i = threadIdx.x; i < n * pieces; i += WARPS * 32) {
            const uint32_t m = i / pieces, at = i - m * pieces;
            copy16(shared_address(input.at) + i * 16, a.q8 + (uint64_t)(pairs[m] / a.pairs_per_input) * a.groups * 32 + at * 16, true);
        }
        copies_commit();
        const uint32_t scales = n * a.groups;
        float scale = 0.0f;
        if (threadIdx.x < scales) scale = __ldcg(a.q8_scale + (uint64_t)(pairs[threadIdx.x / a.groups] / a.pairs_per_input) * a.groups + threadIdx.x % a.groups);
        asked();
        if (threadIdx.x < scales) input.scales()[threadIdx.x] = scale;
        for (uint32_t i = threadIdx.x + WARPS * 32; i < scales; i += WARPS * 32)
            input.scales()[i] = __ldcg(a.q8_scale + (uint64_t)(pairs[i / a.groups] / a.pairs_per_input) * a.groups + i % a.groups);
        copies_wait<BEHIND>();
        return;
    }
    constexpr int N = 6;
    const uint32_t fours = a.groups * 8, all = n * fours;
    float4 v[N];
    uint32_t first = threadIdx.x;
    auto ask = [&] {
#pragma unroll
        for (int j = 0; j < N; j++) {
            const uint32_t i = first + j * WARPS * 32;
            const uint32_t m = min(i / fours, n - 1);
            v[j] = i < all ? __ldcg((const float4*)a.x + (uint64_t)pairs[m] * fours + (i - m * fours)) : make_float4(0, 0, 0, 0);
        }
    };
    ask();
    asked();
    for (;;) {
#pragma unroll
        for (int j = 0; j < N; j++) {
            const uint32_t i = first + j * WARPS * 32;
            if ((i & ~31u) >= all) return;
            const float r[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
            const PackedValues p = pack_q8(r);
            if (i < all) input.put(i * 4, p);
        }
        first += N * WARPS * 32;
        ask();
    }
}

// Rows [begin, end) of the expert of a tile, for its pairs.
template <uint32_t T, uint32_t M>
__device__ __forceinline__ void expert_tile(const ExpertsRowsArgs& a, const uint32_t* pairs, uint32_t n, uint32_t expert, uint32_t begin, uint32_t end,
                                            const Input& input, uint8_t* shared) {
    float* sums = input.after();  // [run][row][M]
    for (uint32_t row0 = begin; row0 < end; row0 += a.chunk_rows) {
        const uint32_t rows = min(a.chunk_rows, end - row0), first = expert * a.rows + row0;
        const ExpertRuns runs{a.slices, a.matrices, a.gated, first, a.groups};
        ExpertStream<T, ExpertRuns> stream(a.slices, runs, a.slices.count << a.gated, rows, shared);
        // What is asked for first comes first.
        if (row0 == begin) {
            take_inputs<expert_stages<T>()>(a, pairs, n, input, [&] { stream.fill(); });
            __syncthreads();
        } else {
            stream.fill();
        }
        stream.template multiply<M>(input, n, sums);
        __syncthreads();
        auto sum = [&](uint32_t half, uint32_t i) {
            float v = sums[half * rows * M + i];
            for (uint32_t t = 1; t < a.slices.count; t++) v = __fadd_rn(v, sums[((t << a.gated) + half) * rows * M + i]);
            return a.biases[half] ? __fadd_rn(v, a.biases[half][first + i / M]) : v;
        };
        for (uint32_t i = threadIdx.x; i < rows * M; i += WARPS * 32) {
            if (i % M >= n) continue;
            float v = sum(0, i);
            if (a.gated) v = gated(a.activation, v, sum(1, i));
            else if (a.activates) v = activated(a.activation, v);
            a.out[(uint64_t)pairs[i % M] * a.rows + row0 + i / M] = v;
        }
        __syncthreads();
    }
}

// Grid: blocks that share the rows of all tiles evenly.
template <uint32_t T> __device__ __forceinline__ void experts_rows_body(const ExpertsRowsArgs& a) {
    DYNAMIC_SHARED(shared);
    struct Static { PairTile tile; };
    STATIC_SHARED(Static, m);
    release_dependents();
    wait_for_producers();
    const uint32_t all = __ldcg(a.n_tiles) * a.rows;
    const uint32_t end = (uint64_t)all * (blockIdx.x + 1) / gridDim.x;
    for (uint32_t at = (uint64_t)all * blockIdx.x / gridDim.x; at < end;) {
        const uint32_t tile = at / a.rows, begin = at - tile * a.rows, n_rows = min(a.rows - begin, end - at);
        if (threadIdx.x < 2) ((uint4*)&m.tile)[threadIdx.x] = __ldcg((const uint4*)(a.tiles + tile) + threadIdx.x);
        __syncthreads();
        // The host's experts are below n_experts; nothing is read out of bounds whatever the memory holds.
        const uint32_t expert = min(m.tile.expert, a.n_experts - 1), n = m.tile.n;
        const uint32_t* pairs = m.tile.pairs;
        const Input input{shared + a.ring_bytes, a.groups * PAIRS_AT_ONCE};
        if (n == 1) expert_tile<T, 1>(a, pairs, n, expert, begin, begin + n_rows, input, shared);
        else if (n == 2) expert_tile<T, 2>(a, pairs, n, expert, begin, begin + n_rows, input, shared);
        else expert_tile<T, 4>(a, pairs, n, expert, begin, begin + n_rows, input, shared);
        at += n_rows;
    }
}

#endif

// Kernel names: experts_shared_<type>, experts_up_<type>, experts_down_<type>, experts_rows_<type>.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define EXPERTS_ONE(kind, args, t)                                                                                          \
    extern "C" __global__ void __launch_bounds__(WARPS * 32) experts_##kind##_##t(const __grid_constant__ args a) { \
        experts_##kind##_body<t>(a);                                                                                        \
    }
#define EXPERTS(t)                           \
    EXPERTS_ONE(shared, RouterSharedArgs, t)     \
    EXPERTS_ONE(up, ExpertsUpArgs, t)     \
    EXPERTS_ONE(down, ExpertsDownArgs, t) \
    EXPERTS_ONE(rows, ExpertsRowsArgs, t)
#else
#define EXPERTS(t)
#endif
