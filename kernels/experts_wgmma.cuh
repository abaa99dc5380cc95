// Products of many rows with the matrices of their experts, for prefill, by the warpgroup products of sm_90a: what
// matmul_experts.cuh does elsewhere.
//
// A block has 64 rows of the matrix for each of its consumer warpgroups, and a tile of up to ROWS slots of one expert. The
// other warpgroups bring a ring of stages: they copy rows of the inputs, and decode records of the matrix into f16, or copy rows
// that are f16 already. The matrix is the left side of the products, so that a tile has as many columns as its expert has slots,
// in steps of STEP. Blocks stay and go on to the next tile, whose first stages come during the epilogue. Of a gate and what it
// lets through, eight rows each lie in the left side by turns, so that a thread has both.
//
// An output element is the sum over k in ascending order in steps of the tensor core's 16, whatever slot its row has and
// however many the tile has, so neither chunks nor other rows change it.
#pragma once
#include <utility>
#include "bulk.cuh"
#include "expert_tiles.cuh"
#include "halves.cuh"
#include "hopper.cuh"
#include "kept.cuh"
#include "matmul.cuh"

// A matrix in f16 stands beside the types of records.
constexpr uint32_t UNPACKED = TYPE_COUNT;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

struct ExpertsTile {
    static constexpr uint32_t CONSUMERS = 2, PRODUCERS = 2;  // warpgroups
    static constexpr uint32_t ROWS = EXPERT_SLOTS, N = CONSUMERS * 64, STAGES = 5;
    static constexpr uint32_t THREADS = (CONSUMERS + PRODUCERS) * 128, PRODUCING = PRODUCERS * 128;
    static constexpr uint32_t CONSUMER_REGISTERS = 152, PRODUCER_REGISTERS = 104;
    static constexpr uint32_t STEP = 24;                        // columns from one form of the loop to the next
    static constexpr uint32_t W_BYTES = N * TILE_K * 2, STAGE_BYTES = W_BYTES + ROWS * TILE_K * 2;
    static constexpr uint32_t X_STEP = PRODUCING / 8;           // rows that are copied at a time
    static constexpr uint32_t X_ROWS = ROWS / X_STEP, W_ROWS = N / X_STEP;  // rows of which a thread copies a piece
    static constexpr uint32_t AHEAD = 2;                        // stages whose inputs are on their way
    static constexpr uint32_t NOTES = STAGES + 2;
    static_assert(ROWS % X_STEP == 0 && ROWS <= PRODUCING && AHEAD < STAGES && N * 2 == PRODUCING);
};
// What the consumers are told of a tile. As many as there are stages may be under way, beside one that is being written and one that is being stored.
struct alignas(16) TileNote {
    uint32_t begin, rows, expert, column;  // first slot, slots, tile of columns of the output
    float scale[ExpertsTile::ROWS];
};

// The elements of a decoded group as f16, values beyond its range clamped to it. A byte becomes the mantissa of a number near 1
// (or near 2^15, where bytes are signed), of which one instruction makes the value.
template <uint32_t T> __device__ __forceinline__ void quick_halves(const Group& o, uint32_t high, uint32_t (&u)[16]) {
    constexpr bool SMALL = Codec<T>::MINS || Codec<T>::OFFSET != 0, EXACT = T == Q8_0 || T == IQ4_NL || T == MXFP4 || T == NVFP4;
    float d[2], c[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (SMALL) {
            d[h] = o.d[h] * 128.0f;
            c[h] = o.d[h] * -(128.0f + Codec<T>::OFFSET);
            if constexpr (Codec<T>::MINS) c[h] -= o.m[h];
        } else {
            d[h] = o.d[h];
            c[h] = o.d[h] * -(32768.0f + 128.0f);
        }
    }
#pragma unroll
    for (int t = 0; t < 8; t++) {
        const uint32_t bytes = SMALL ? o.w[t] | high : o.w[t] ^ high;
        float v[4];
#pragma unroll
        for (int b = 0; b < 4; b++) {
            if constexpr (SMALL) v[b] = __fmaf_rn(__uint_as_float(__byte_perm(bytes, 0x3f000000, 0x7044 + (b << 8))), d[t >> 2], c[t >> 2]);
            else if constexpr (EXACT) v[b] = __fmaf_rn(__uint_as_float(__byte_perm(bytes, 0x47000000, 0x7404 + (b << 4))), d[t >> 2], c[t >> 2]);
            else v[b] = __fmul_rn(d[t >> 2], __fsub_rn(__uint_as_float(__byte_perm(bytes, 0x4b000000, 0x7550 + b)), 8388608.0f + 128.0f));
        }
#pragma unroll
        for (int j = 0; j < 2; j++)
            asm("cvt.rn.satfinite.f16x2.f32 %0,%1,%2;" : "=r"(u[2 * t + j]) : "f"(v[2 * j + 1]), "f"(v[2 * j]));
    }
}

__device__ __forceinline__ void copy_piece_if(bool wanted, uint32_t to, const void* from) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p,%0,0;\n@p cp.async.cg.shared.global [%1],[%2],16;\n}" ::"r"((uint32_t)wanted), "r"(to), "l"(from) : "memory");
}

// The tiles that a block does, one after the other. Where the next one lies is asked for when one is begun.
struct ExpertWalk {
    uint32_t index, end, columns;      // of tile and column; how many columns of tiles there are
    TilePlace place;
    uint32_t column;

    __device__ __forceinline__ ExpertWalk(const ExpertMatmulArgs& a) {
        columns = tiles_of(a.gated ? 2 * a.n : a.n, ExpertsTile::N);
        index = a.tiles[a.first_expert] * columns + blockIdx.x;
        end = a.tiles[a.end_expert] * columns;
        find(a);
    }
    __device__ __forceinline__ bool done() const { return index >= end; }
    __device__ __forceinline__ void next(const ExpertMatmulArgs& a) {
        index += gridDim.x;
        find(a);
    }
    __device__ __forceinline__ void find(const ExpertMatmulArgs& a) {
        if (done()) return;
        const uint32_t tile = index / columns;
        column = index - tile * columns;
        const uint4 p = __ldg((const uint4*)(a.places + tile));
        place = {p.x, p.y, p.z, p.w};
    }
};

// Of a pair, its input: exact, for there are fewer than 2^16 pairs, and fewer than 2^5 of an input.
struct PairInputs {
    uint32_t each, inverse;
    __device__ __forceinline__ PairInputs(uint32_t each) : each(each), inverse(~0u / each + 1) {}
    __device__ __forceinline__ uint32_t operator()(uint32_t pair) const { return each == 1 ? pair : __umulhi(pair, inverse); }
};

template <uint32_t T> __device__ __forceinline__ void experts_produce(const ExpertMatmulArgs& a, uint8_t* shared, uint32_t ring, TileNote* notes, uint64_t* full, uint64_t* empty) {
    using E = ExpertsTile;
    constexpr bool RECORDS = T != UNPACKED;
    const uint32_t t = threadIdx.x - E::CONSUMERS * 128, k_tiles = tiles_of(a.k, TILE_K), groups = a.k / 32, all_rows = a.n_experts * a.n;
    // This thread's piece of the rows that are copied; its row of the matrix, and of that the first group.
    const uint32_t piece = t % 8, x_row = t / 8, w_row = t / 2, w_half = t & 1;
    const Slices c = slices_of(T, groups);
    ExpertWalk walk(a);
    // Stages that are still to be handed on, and to be asked for.
    uint32_t left = walk.done() ? 0 : (walk.end - walk.index + gridDim.x - 1) / gridDim.x * k_tiles, unasked = left;
    const PairInputs input_of(a.pairs_per_input);
    // Of the tile that is asked for.
    const uint8_t *x, *w, *record;
    uint32_t rows, x_offsets[E::X_ROWS], kt = 0, stage = 0, phase = 1, note = 0;
    uint32_t w_offsets[E::W_ROWS];
    uint32_t row, group, slice, record_groups;
    KeptGroup<T> kept_groups[E::AHEAD + 1];
    const uint32_t high = kept<(int)0x80808080>();

    auto first_row = [&](uint32_t column) { return column * (a.gated ? E::N / 2 : E::N); };
    // The block's records lie together, slice by slice.
    auto prefetch = [&](uint32_t expert, uint32_t column) {
        if (!RECORDS || t >= c.count << a.gated) return;
        const uint32_t s = t >> a.gated, bytes = record_bytes(T, s + 1 == c.count ? c.last : c.full), n0 = first_row(column);
        const uint8_t* of = (const uint8_t*)(t & a.gated ? a.w[1] : a.w[0]);
        bulk_prefetch(of + slice_offset(T, c, s, all_rows) + (uint64_t)(expert * a.n + n0) * bytes, min(E::N >> a.gated, a.n - n0) * bytes);
    };
    auto begin_slice = [&] {
        record_groups = slice + 1 == c.count ? c.last : c.full;
        record = w + slice_offset(T, c, slice, all_rows) + (uint64_t)row * record_bytes(T, record_groups);
    };
    auto begin_tile = [&] {
        const TilePlace place = walk.place;
        const uint32_t column = walk.column, n0 = first_row(column);
        rows = place.rows;
        walk.next(a);
        // Slots beyond the last are not stored, whatever their rows are.
        uint32_t inputs[E::X_ROWS], its = place.begin + min(t, rows - 1);
#pragma unroll
        for (uint32_t i = 0; i < E::X_ROWS; i++) inputs[i] = place.begin + min(i * E::X_STEP + x_row, rows - 1);
        if (a.pairs) {
#pragma unroll
            for (uint32_t i = 0; i < E::X_ROWS; i++) inputs[i] = __ldg(a.pairs + inputs[i]);
            its = __ldg(a.pairs + its);
#pragma unroll
            for (uint32_t i = 0; i < E::X_ROWS; i++) inputs[i] = input_of(inputs[i]);
            its = input_of(its);
        }
        const float scale = a.x_scale[its];
#pragma unroll
        for (uint32_t i = 0; i < E::X_ROWS; i++) x_offsets[i] = tiled(inputs[i], piece * 8, k_tiles) / 16;
        x = (const uint8_t*)a.x;
        TileNote& n = notes[note];
        if (++note == E::NOTES) note = 0;
        if (t < E::ROWS) n.scale[t] = scale;
        if (t == 0) {
            n.begin = place.begin;
            n.rows = rows;
            n.expert = place.expert;
            n.column = column;
        }
        // Rows beyond the last are not stored, either.
        if constexpr (RECORDS) {
            w = (const uint8_t*)(a.gated && w_row / 8 & 1 ? a.w[1] : a.w[0]);
            row = place.expert * a.n + min(n0 + (a.gated ? w_row / 16 * 8 + w_row % 8 : w_row), a.n - 1);
            slice = 0;
            group = w_half;
            begin_slice();
            // Those of the next tile are asked for before they are needed.
            if (!walk.done()) prefetch(walk.place.expert, walk.column);
        } else {
            w = (const uint8_t*)a.w[0];
#pragma unroll
            for (uint32_t i = 0; i < E::W_ROWS; i++)
                w_offsets[i] = tiled((place.expert - a.first_expert) * a.n + min(n0 + i * E::X_STEP + x_row, a.n - 1), piece * 8, k_tiles) / 16;
        }
    };
    // Asks for what the next stage takes.
    auto ask = [&](KeptGroup<T>& to) {
        if (unasked == 0) return;
        unasked--;
        if (kt == 0) begin_tile();
        barrier_wait(shared_address(empty + stage), phase);
        const uint32_t at = ring + stage * E::STAGE_BYTES + swizzled<8>(x_row, piece);
        if constexpr (!RECORDS) {
#pragma unroll
            for (uint32_t i = 0; i < E::W_ROWS; i++) copy_piece(at + i * E::X_STEP * 128, w + (uint64_t)w_offsets[i] * 16);
            w += TILE_BYTES;
        }
#pragma unroll
        for (uint32_t i = 0; i < E::X_ROWS; i++)
            copy_piece_if(i * E::X_STEP + x_row < rows, at + E::W_BYTES + i * E::X_STEP * 128, x + (uint64_t)x_offsets[i] * 16);
        x += TILE_BYTES;
        barrier_arrive_copied(shared_address(full + stage));
        if constexpr (RECORDS) {
            if (group >= record_groups && slice + 1 < c.count) {
                group -= record_groups;
                slice++;
                begin_slice();
            }
            to.ask(record, group, record_groups);
            group += 2;
        }
        if (++stage == E::STAGES) {
            stage = 0;
            phase ^= 1;
        }
        if (++kt == k_tiles) kt = 0;
    };
    // Hands a stage on, as the oldest that was asked for.
    auto give = [&](const KeptGroup<T>& its, uint32_t at) {
        if constexpr (RECORDS) {
            uint32_t u[16] = {};
            if (its.group != KeptGroup<T>::BEYOND) {
                Group o;
                its.decode(o);
                quick_halves<T>(o, high, u);
            }
            uint8_t* const to = shared + at * E::STAGE_BYTES;
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) *(uint4*)(to + swizzled<8>(w_row, w_half * 4 + j)) = make_uint4(u[4 * j], u[4 * j + 1], u[4 * j + 2], u[4 * j + 3]);
        }
        __syncwarp();
        if (t % 32 == 0) barrier_arrive(shared_address(full + at));
    };
    if (left == 0) return;
    prefetch(walk.place.expert, walk.column);
    // One copy of the code with moves from stage to stage is faster than three without.
#pragma unroll
    for (uint32_t i = 0; i < E::AHEAD; i++) ask(kept_groups[i]);
    for (uint32_t at = 0; left > 0; left--) {
        ask(kept_groups[E::AHEAD]);
        give(kept_groups[0], at);
        if (++at == E::STAGES) at = 0;
#pragma unroll
        for (uint32_t i = 0; i < E::AHEAD; i++) kept_groups[i] = kept_groups[i + 1];
    }
}

// What a gate lets through, for SILU and CLAMPED_SWIGLU, without a branch: `gated` of activation.cuh but for the division, which is
// right to 2 units in the last place.
struct Gate {
    float steepness, gate_limit, limit, more;
    __device__ __forceinline__ Gate(const Activation& a) {
        const bool clamped = a.kind == CLAMPED_SWIGLU;
        steepness = -1.44269504f * (clamped ? a.alpha : 1.0f);
        gate_limit = clamped ? a.limit : INFINITY;
        limit = clamped ? fabsf(a.limit) : INFINITY;
        more = clamped ? 1.0f : 0.0f;
    }
    __device__ __forceinline__ float operator()(float gate, float up) const {
        gate = smallest_or_nan(gate, gate_limit);
        up = largest_or_nan(smallest_or_nan(up, limit), -limit);
        return __fmul_rn(__fdividef(gate, 1.0f + exp2f(steepness * gate)), up + more);
    }
};

// What becomes of a thread's sums: rows `m` and `m + 8` of the block's, two columns of every eight.
template <bool GATED> __device__ __forceinline__ void store_tile(const ExpertMatmulArgs& a, const TileNote& t, const float (&acc)[ExpertsTile::ROWS / 2], uint32_t m) {
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t n = GATED ? t.column * (ExpertsTile::N / 2) + m / 16 * 8 + m % 8 : t.column * ExpertsTile::N + m;
    const uint64_t first = (uint64_t)t.expert * a.n + n;
    const bool inside[2] = {n < a.n, !GATED && n + 8 < a.n};
    const Gate gate(a.activation);
    float bias[2] = {0.0f, 0.0f};
#pragma unroll
    for (uint32_t h = 0; h < 2; h++)
        if (a.bias[GATED ? h : 0] && inside[GATED ? 0 : h]) bias[h] = __ldg(a.bias[GATED ? h : 0] + first + (GATED ? 0 : h * 8));
    float* out = a.out + (uint64_t)(t.begin + (lane & 3) * 2) * a.out_stride + n;
#pragma unroll
    for (uint32_t j = 0; j < ExpertsTile::ROWS / 8; j++) {
        if (j * 8 >= t.rows) break;
        const uint32_t row = j * 8 + (lane & 3) * 2;
        const float2 scale = *(const float2*)(t.scale + row);
#pragma unroll
        for (uint32_t e = 0; e < 2; e++) {
            float v[2];
#pragma unroll
            for (uint32_t h = 0; h < 2; h++) v[h] = __fmaf_rn(acc[j * 4 + h * 2 + e], e ? scale.y : scale.x, bias[h]);
            const bool there = row + e < t.rows;
            float* const to = out + e * (uint64_t)a.out_stride;
            if constexpr (GATED) v[0] = gate(v[0], v[1]);
            if (there && inside[0]) to[0] = v[0];
            if (there && inside[1]) to[8] = v[1];
        }
        out += 8 * (uint64_t)a.out_stride;
    }
}

// Dynamic shared memory: the stages, and room to align them.
template <uint32_t T> __device__ __forceinline__ void experts_wgmma(const ExpertMatmulArgs& a) {
    using E = ExpertsTile;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ __align__(8) uint64_t full[E::STAGES], empty[E::STAGES];
    __shared__ TileNote notes[E::NOTES];
    const uint32_t ring = (shared_address(shared) + 1023) & ~1023u, group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < E::STAGES; s++) {
            // What a thread copies, and what a warp writes.
            barrier_init(shared_address(full + s), E::PRODUCING + E::PRODUCING / 32);
            barrier_init(shared_address(empty + s), E::CONSUMERS);
        }
    }
    __syncthreads();
    release_dependents();
    wait_for_producers();
    if (group >= E::CONSUMERS) {
        give_registers<ExpertsTile::PRODUCER_REGISTERS>();
        experts_produce<T>(a, shared + (ring - shared_address(shared)), ring, notes, full, empty);
    } else {
        take_registers<ExpertsTile::CONSUMER_REGISTERS>();
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32 & 3, k_tiles = tiles_of(a.k, TILE_K);
        const uint32_t columns = tiles_of(a.gated ? 2 * a.n : a.n, E::N);
        const uint32_t all = (a.tiles[a.end_expert] - a.tiles[a.first_expert]) * columns;
        uint32_t stage = 0, phase = 0, note = 0;
        for (uint32_t i = blockIdx.x; i < all; i += gridDim.x) {
            float acc[E::ROWS / 2];
#pragma unroll
            for (uint32_t j = 0; j < E::ROWS / 2; j++) acc[j] = 0.0f;
            barrier_wait(shared_address(full + stage), phase);
            const TileNote& t = notes[note];
            if (++note == E::NOTES) note = 0;
            auto multiply = [&]<uint32_t COLUMNS>() {
                uint32_t before = 0;
#pragma unroll 1
                for (uint32_t kt = 0; kt < k_tiles; kt++) {
                    barrier_wait(shared_address(full + stage), phase);
                    const uint32_t at = ring + stage * E::STAGE_BYTES;
                    // A producer would wait here for all that it has asked for.
                    fence_shared();
                    products_fence();
#pragma unroll
                    for (uint32_t kk = 0; kk < TILE_K / 16; kk++)
                        add_columns<COLUMNS>(acc, tile_descriptor(at + group * 64 * TILE_K * 2 + kk * 32), tile_descriptor(at + E::W_BYTES + kk * 32));
                    products_commit();
                    if (kt > 0) {
                        products_wait<1>();
                        if ((threadIdx.x & 127) == 0) barrier_arrive(shared_address(empty + before));
                    }
                    before = stage;
                    if (++stage == E::STAGES) {
                        stage = 0;
                        phase ^= 1;
                    }
                }
                products_wait<0>();
                if ((threadIdx.x & 127) == 0) barrier_arrive(shared_address(empty + before));
            };
            [&]<uint32_t... I>(std::integer_sequence<uint32_t, I...>) {
                const uint32_t steps = (t.rows - 1) / E::STEP;
                ((steps == I ? multiply.template operator()<(I + 1) * E::STEP>() : void()), ...);
            }(std::make_integer_sequence<uint32_t, E::ROWS / E::STEP>());
            const uint32_t m = group * 64 + warp * 16 + lane / 4;
            if (a.gated) store_tile<true>(a, t, acc, m);
            else store_tile<false>(a, t, acc, m);
        }
    }
}
#endif

// Kernel names: experts_wgmma_<type>, or experts_wgmma_f16 of matrices that have been brought to f16. Grid: blocks that share
// all tiles, at most the multiprocessors. 512 threads. Other devices have empty kernels.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define EXPERTS_WGMMA(name, t)                                                                                                              \
    extern "C" __global__ void __launch_bounds__(ExpertsTile::THREADS, 1) experts_wgmma_##name(const __grid_constant__ ExpertMatmulArgs a) { \
        experts_wgmma<t>(a);                                                                                                                \
    }
#else
#define EXPERTS_WGMMA(name, t) \
    extern "C" __global__ void experts_wgmma_##name(const __grid_constant__ ExpertMatmulArgs) {}
#endif
