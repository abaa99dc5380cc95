// The part of a layer with an input of its own, for one session, in one kernel, from sm_90 on: what waits is added to the residual
// stream, the gate's product weighs the layer's input, and the norm of the projection is added. A cluster of blocks does it: each
// has rows of both matrices, which lie in its shared memory before the row is there, and they tell each other what comes of them.
//
// The bits are those of product.cuh and norm.cu.
#pragma once
#include "args_own.h"
#include "product.cuh"

#if __CUDA_ARCH__ >= 900

// A block's rows of a matrix in shared memory, slice by slice: [slice][row].
struct KeptRows {
    const OwnMatrix& m;
    uint8_t* at;
    uint32_t rows, first;  // the matrix's row that is the first

    __device__ __forceinline__ KeptRows(const OwnMatrix& m, uint8_t* at) : m(m), at(at) {
        const uint32_t rank = cluster_rank();
        rows = m.rows / OWN_BLOCKS;
        first = rank * rows;
    }
    __device__ __forceinline__ uint32_t record(uint32_t slice) const { return slice + 1 == m.n_slices ? m.last_bytes : m.full_bytes; }
    __device__ __forceinline__ uint32_t groups_of(uint32_t slice) const { return slice + 1 == m.n_slices ? m.last : m.full; }
    __device__ __forceinline__ void bring() const {
        for (uint32_t slice = 0; slice < m.n_slices; slice++) {
            const uint8_t* from = m.matrix + (uint64_t)m.rows * slice * m.full_bytes + (uint64_t)first * record(slice);
            const uint32_t to = shared_address(at) + rows * slice * m.full_bytes, bytes = rows * record(slice);
            for (uint32_t i = threadIdx.x * 16; i < bytes; i += WARPS * 512) copy16(to + i, from + i, true);
        }
        copies_commit();
    }
    __device__ __forceinline__ const uint8_t* row(uint32_t slice, uint32_t i) const { return at + rows * slice * m.full_bytes + i * record(slice); }
};

// Sums of the groups of each slice for all of a block's rows, [slice][row]: a warp has two rows and four slices at a time, whose sums go over
// the lanes together.
template <uint32_t T> __device__ __forceinline__ void wide_product(const KeptRows& kept, const Input& input, float* sums) {
    constexpr uint32_t ROWS = 2, SLICES = 4;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, u = butterfly_row<ROWS * SLICES>(lane);
#pragma unroll 1
    for (uint32_t base = warp * ROWS; base < kept.rows; base += WARPS * ROWS) {
#pragma unroll 1
        for (uint32_t first = 0; first < kept.m.n_slices; first += SLICES) {
            float acc[ROWS * SLICES] = {};
#pragma unroll
            for (uint32_t j = 0; j < SLICES; j++) {
                const uint32_t slice = first + j;
                if (slice >= kept.m.n_slices) break;
                const uint32_t n = kept.groups_of(slice), group = min(lane, n - 1);
                const uint8_t* row = kept.row(slice, base);
                const uint32_t next = base + 1 < kept.rows ? kept.record(slice) : 0;
                LaneInput x;
                x.load(input, slice * kept.m.full + group);
#pragma unroll
                for (uint32_t r = 0; r < ROWS; r++) {
                    const float v = record_dot<T>(x, row + r * next, group, n);
                    acc[j * ROWS + r] = lane < n ? v : 0.0f;
                }
            }
            const float t = butterfly<ROWS * SLICES>(acc, lane);
            const uint32_t slice = first + u / ROWS, row = base + u % ROWS;
            if (lane % (32 / (ROWS * SLICES)) == 0 && slice < kept.m.n_slices && row < kept.rows) sums[slice * kept.rows + row] = t;
        }
    }
}
// The same of one slice of at most half as many groups as a warp has lanes: a warp takes as many rows at a time as its lanes have groups of.
template <uint32_t T> __device__ __forceinline__ void narrow_product(const KeptRows& kept, const Input& input, float* sums) {
    constexpr uint32_t N = 5;  // times at once, whose sums need not wait for each other
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n = kept.groups_of(0);
    const uint32_t bits = 32 - __clz(n - 1), width = 1u << bits, group = lane & (width - 1), step = WARPS * 32 >> bits;
    LaneInput x;
    x.load(input, min(group, n - 1));
#pragma unroll 1
    for (uint32_t base = warp * (32 >> bits); base < kept.rows; base += N * step) {
        float t[N];
#pragma unroll
        for (uint32_t u = 0; u < N; u++) {
            t[u] = 0.0f;
            if (base + u * step >= kept.rows) break;
            const float v = record_dot<T>(x, kept.row(0, min(base + u * step + (lane >> bits), kept.rows - 1)), min(group, n - 1), n);
            // As where all lanes are added, of which others have zeros.
            t[u] = __fadd_rn(group < n ? v : 0.0f, 0.0f);
        }
#pragma unroll
        for (uint32_t o = 8; o; o >>= 1) {
            if (o >= width) continue;
#pragma unroll
            for (uint32_t u = 0; u < N; u++) t[u] = __fadd_rn(t[u], __shfl_xor_sync(~0u, t[u], o));
        }
#pragma unroll
        for (uint32_t u = 0; u < N; u++) {
            const uint32_t row = base + u * step + (lane >> bits);
            if (group == 0 && row < kept.rows) sums[row] = t[u];
        }
    }
}
// Whichever of the two has fewer lanes without work.
template <uint32_t T> __device__ __forceinline__ void kept_product(const KeptRows& kept, const Input& input, float* sums) {
    if (kept.m.n_slices > 1 || kept.m.last > 16) wide_product<T>(kept, input, sums);
    else narrow_product<T>(kept, input, sums);
}

// Four numbers of a block's shared memory.
__device__ __forceinline__ float4 load_four(const float* at, uint32_t rank) {
    const uint32_t from = remote_address(shared_address(at), rank);
#if defined(EMULATED)
    return make_float4(load_remote(from), load_remote(from + 4), load_remote(from + 8), load_remote(from + 12));
#else
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3},[%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(from));
    return v;
#endif
}

// The same of all blocks' rows, of which each has `rows`.
__device__ __forceinline__ float4 load_row(const float* at, uint32_t place, uint32_t rows) {
    const uint32_t rank = small_quotient(place, rows);
    return load_four(at + place - rank * rows, rank);
}

struct OwnStatic {
    float scratch[32];
};

// One cluster of OWN_BLOCKS blocks of 512 threads. Rows of both matrices are multiples of OWN_BLOCKS * 4; the projection has one slice.
template <uint32_t T> __device__ __forceinline__ void own_input_body(const OwnInputArgs& a) {
    DYNAMIC_SHARED(shared);
    STATIC_SHARED(OwnStatic, m);
    const uint32_t width = a.groups * 32;
    const KeptRows gate(a.gate, shared), projection(a.projection, shared + a.projection_at);
    float *own = (float*)(shared + a.own_at), *made = own + gate.rows, *sums = made + projection.rows;
    const Input input{shared + a.input_at, a.groups}, inner{shared + a.inner_at, a.gate.rows / 32};
    gate.bring();
    projection.bring();
    NormRowOf<FOURS_OF_SUM, INPUT_THREADS> sum, out;
    if (a.norm.weight) out.load_weights(a.norm, width);
    sum_row(a.x, a.added, width, a.inverse_len, m.scratch, sum, [] {});
    const NormArgs none{};
    input.take_either(sum, none);
    release_dependents();
    const float weight = threadIdx.x < gate.rows ? __ldcg(a.own + gate.first + threadIdx.x) : 0.0f;
    copies_wait<1>();
    __syncthreads();
    wide_product<T>(gate, input, sums);
    __syncthreads();
    if (threadIdx.x < gate.rows) {
        float v = sums[threadIdx.x];
        for (uint32_t t = 1; t < a.gate.n_slices; t++) v = __fadd_rn(v, sums[t * gate.rows + threadIdx.x]);
        own[threadIdx.x] = __fmul_rn(activated(a.activation, v), weight);
    }
    copies_wait<0>();
    cluster_sync_shared();
    // Each block rounds all inner values; whole warps do.
    for (uint32_t place = threadIdx.x * 4; place - (threadIdx.x & 31) * 4 < a.gate.rows; place += WARPS * 128) {
        float4 v = make_float4(0, 0, 0, 0);
        if (place < a.gate.rows) v = load_row(own, place, gate.rows);
        const float r[4] = {v.x, v.y, v.z, v.w};
        const PackedValues p = pack_q8(r);
        if (place < a.gate.rows) inner.put(place, p);
    }
    __syncthreads();
    kept_product<T>(projection, inner, made);
    cluster_sync_shared();
#pragma unroll
    for (int i = 0; i < FOURS_OF_SUM; i++) {
        const uint32_t place = out.place(i);
        if (place >= width) {
            out.v[i] = make_float4(0, 0, 0, 0);
            continue;
        }
        out.v[i] = load_row(made, place, projection.rows);
    }
    if (a.norm.weight) {
        out.sum(a.norm, width, a.inverse_len, m.scratch);
        // What the others have is in use.
        cluster_arrive();
    }
#pragma unroll
    for (int i = 0; i < FOURS_OF_SUM; i++) {
        const uint32_t place = out.place(i);
        if (place - projection.first >= projection.rows) continue;
        float r[4] = {out.v[i].x, out.v[i].y, out.v[i].z, out.v[i].w};
        if (a.norm.weight) out.values(a.norm, i, width, r);
        *(float4*)(a.out + place) = row_sum(a.scale, a.out_scale, r, sum.v[i]);
    }
    // Nobody leaves before the others have read its rows.
    if (!a.norm.weight) cluster_arrive();
    cluster_wait();
}

#endif

// Kernel names: own_input_<type>.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define OWN_INPUT(t)                                                                                                                        \
    extern "C" __global__ void __cluster_dims__(OWN_BLOCKS, 1, 1) __launch_bounds__(WARPS * 32) own_input_##t(const __grid_constant__ OwnInputArgs a) { \
        own_input_body<t>(a);                                                                                                               \
    }
#else
#define OWN_INPUT(t)
#endif
