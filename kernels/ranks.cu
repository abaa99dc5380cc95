// Sums over GPUs that share the layers of a network: each adds what all have, in the order of their ranks, so that all have the same
// bits. A block stores its piece into the memory of every peer, raises a flag there, and waits for theirs. Where NCCL has gathered
// what all have (rank_add), it lies in the memory of each.
#include "ranks.cuh"

// Most GPUs of a group, and most blocks of a sum.
static_assert(sizeof(MeetingArgs) == 104, "as in args/ranks.rs");
static_assert(sizeof(RankSumArgs) == 288, "as in args/ranks.rs");

__device__ __forceinline__ uint64_t flag_at(const MeetingArgs& m, uint32_t at, uint32_t from, uint32_t block) {
    return m.flags[at] + (((uint64_t)(m.index & 1) * MAX_RANKS + from) * (MAX_SUM_BLOCKS + 1) + block) * 8;
}

// Says to all peers that what this block has stored for them is there, and waits until they say so of theirs. Threads of the block
// meet before and behind.
__device__ __forceinline__ void meet(const MeetingArgs& m, uint32_t block) {
    __syncthreads();
    const uint32_t peer = threadIdx.x;
    if (peer < m.n_ranks && peer != m.rank) {
        // A peer may be ahead already.
        const uint64_t wanted = *(volatile const uint64_t*)m.launch << 16 | (m.index + 1);
        asm volatile("fence.acq_rel.sys;" ::: "memory");
        asm volatile("st.release.sys.global.u64 [%0],%1;" ::"l"(flag_at(m, peer, m.rank, block)), "l"(wanted) : "memory");
        const uint64_t mine = flag_at(m, m.rank, peer, block);
        Patience patience;
        uint64_t flag;
        do asm volatile("ld.acquire.sys.global.u64 %0,[%1];" : "=l"(flag) : "l"(mine) : "memory");
        while (flag < wanted && patience.goes_on(m, peer));
    }
    __syncthreads();
}

__device__ __forceinline__ float* inbox_of(const RankSumArgs& a, uint32_t at, uint32_t from) {
    const MeetingArgs& m = a.meeting;
    return (float*)a.inboxes[at] + ((uint64_t)(m.index & 1) * m.n_ranks + from) * a.capacity;
}

__device__ __forceinline__ float plus(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ void clear(float4& v) { v = make_float4(0, 0, 0, 0); }
__device__ __forceinline__ void clear(float& v) { v = 0; }

// Each block has a piece of all elements, in units of T. U units a thread are under way at once.
template <typename T, int U> __device__ __forceinline__ void sum_pieces(const RankSumArgs& a) {
    constexpr uint32_t EACH = sizeof(T) / 4;
    const MeetingArgs& m = a.meeting;
    const uint32_t len = a.len / EACH, all = a.rows * len, piece = (all + gridDim.x - 1) / gridDim.x;
    const uint32_t first = piece * blockIdx.x, end = min(first + piece, all);
    const auto mine = [&](uint32_t i) { return (const T*)(a.x + (uint64_t)(i / len) * a.x_stride + i % len * EACH); };
    for (uint32_t i = first + threadIdx.x; i < end; i += U * blockDim.x) {
        T v[U];
#pragma unroll
        for (int u = 0; u < U; u++)
            if (i + u * blockDim.x < end) v[u] = __ldcg(mine(i + u * blockDim.x));
        for (uint32_t peer = 0; peer < m.n_ranks; peer++) {
            if (peer == m.rank) continue;
            T* to = (T*)inbox_of(a, peer, m.rank);
#pragma unroll
            for (int u = 0; u < U; u++)
                if (i + u * blockDim.x < end) to[i + u * blockDim.x] = v[u];
        }
    }
    meet(m, blockIdx.x);
    for (uint32_t i = first + threadIdx.x; i < end; i += U * blockDim.x) {
        T sum[U], base[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            const uint32_t at = i + u * blockDim.x;
            if (a.base && at < end) base[u] = *(const T*)(a.base + (uint64_t)(at / len) * a.stride + at % len * EACH);
        }
        for (uint32_t rank = 0; rank < m.n_ranks; rank++) {
            const T* inbox = (const T*)inbox_of(a, m.rank, rank);
#pragma unroll
            for (int u = 0; u < U; u++) {
                const uint32_t at = i + u * blockDim.x;
                if (at >= end) continue;
                // Written by others meanwhile: not from a cache that does not know.
                const T v = __ldcv(rank == m.rank ? mine(at) : inbox + at);
                sum[u] = rank == 0 ? v : plus(sum[u], v);
            }
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            const uint32_t at = i + u * blockDim.x;
            if (at >= end) continue;
            if (a.base) sum[u] = plus(base[u], sum[u]);
            *(T*)(a.out + (uint64_t)(at / len) * a.stride + at % len * EACH) = sum[u];
        }
    }
}

// One row, whose elements go with a tag each. All of the row goes so each time, so what lies in the inbox is of the meeting before
// the last at the oldest. Where products have sent the row, what others have sent is added up alone.
__device__ __forceinline__ void sum_tagged(const RankSumArgs& a) {
    const MeetingArgs& m = a.meeting;
    const uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= a.len) return;
    const TaggedRow row{a.tagged, a.tagged_capacity, m.n_ranks, m.index, tag_of(m)};
    const float4 v = __ldcg((const float4*)(a.x + i));
    if (!a.is_sent)
        for (uint32_t peer = 0; peer < m.n_ranks; peer++)
            if (peer != m.rank) row.send(peer, m.rank, i, v);
    const float4 base = a.base ? *(const float4*)(a.base + i) : make_float4(0, 0, 0, 0);
    float4 sum = v;
    for (uint32_t rank = 0; rank < m.n_ranks; rank++) {
        float4 theirs[1] = {v};
        if (rank != m.rank) row.take<1>(m, rank, [&](int) { return i; }, a.len, theirs);
        sum = rank == 0 ? theirs[0] : plus(sum, theirs[0]);
    }
    *(float4*)(a.out + i) = a.base ? plus(base, sum) : sum;
}

// Grid: up to MAX_SUM_BLOCKS blocks, as many on all ranks; for one row of a multiple of four elements, a thread for each four.
extern "C" __global__ void __launch_bounds__(512) rank_sum(const __grid_constant__ RankSumArgs a) {
    release_dependents();
    wait_for_producers();
    const bool fours = a.len % 4 == 0 && a.x_stride % 4 == 0 && a.stride % 4 == 0;
    if (a.rows == 1 && fours) sum_tagged(a);
    else if (fours) sum_pieces<float4, 4>(a);
    else sum_pieces<float, 1>(a);
}

// The end of a launch: all ranks meet, and rank 0 takes the logits that the others have stored into its inbox by now. Grid: up to
// MAX_SUM_BLOCKS blocks, as many on all ranks.
extern "C" __global__ void __launch_bounds__(512) rank_logits(const __grid_constant__ RankLogitsArgs a) {
    release_dependents();
    wait_for_producers();
    meet(a.meeting, blockIdx.x);
    if (a.meeting.rank != 0) return;
    const uint64_t others = a.n_vocab - (a.end - a.first), all = others * a.rows;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all; i += (uint64_t)gridDim.x * blockDim.x) {
        const uint64_t row = i / others;
        uint64_t column = i % others;
        if (column >= a.first) column += a.end - a.first;
        a.logits[row * a.n_vocab + column] = __ldcv(a.inbox + row * a.n_vocab + column);
    }
}

static_assert(sizeof(RankPackArgs) == 32, "as in args/ranks.rs");
static_assert(sizeof(RankAddArgs) == 40, "as in args/ranks.rs");
static_assert(sizeof(RankPlaceArgs) == 32, "as in args/ranks.rs");

// Grid: blocks of 1024 elements, 256 threads; rows.
extern "C" __global__ void __launch_bounds__(256) rank_pack(const __grid_constant__ RankPackArgs a) {
    release_dependents();
    wait_for_producers();
    const float* x = a.x + (uint64_t)blockIdx.y * a.x_stride;
    float* out = a.out + (uint64_t)blockIdx.y * a.out_stride;
#pragma unroll
    for (uint32_t u = 0; u < 4; u++) {
        const uint32_t i = blockIdx.x * 1024 + u * 256 + threadIdx.x;
        if (i < a.len) out[i] = x[i];
    }
}

// Grid: blocks of four elements a thread; rows. It does not start before what is in front of it has ended.
extern "C" __global__ void __launch_bounds__(256) rank_add(const __grid_constant__ RankAddArgs a) {
    release_dependents();
    const uint64_t all = (uint64_t)a.rows * a.len;
    const float* x = a.x + (uint64_t)blockIdx.y * a.len;
    const uint64_t row = (uint64_t)blockIdx.y * a.stride;
#pragma unroll
    for (uint32_t u = 0; u < 4; u++) {
        const uint32_t i = (blockIdx.x * 4 + u) * blockDim.x + threadIdx.x;
        if (i >= a.len) continue;
        float sum = __ldcs(x + i);
        for (uint32_t rank = 1; rank < a.n_ranks; rank++) sum = plus(sum, __ldcs(x + rank * all + i));
        a.out[row + i] = a.base ? plus(a.base[row + i], sum) : sum;
    }
}

// Grid: blocks of 1024 logits, 256 threads; rows; ranks. As rank_add.
extern "C" __global__ void __launch_bounds__(256) rank_place(const __grid_constant__ RankPlaceArgs a) {
    release_dependents();
    const uint32_t rank = blockIdx.z, each = a.n_vocab / a.n_ranks, more = a.n_vocab % a.n_ranks;
    const uint32_t first = rank * each + min(rank, more), len = each + (rank < more ? 1 : 0);
    const float* x = a.x + ((uint64_t)rank * a.rows + blockIdx.y) * a.width;
    float* logits = a.logits + (uint64_t)blockIdx.y * a.n_vocab + first;
#pragma unroll
    for (uint32_t u = 0; u < 4; u++) {
        const uint32_t i = blockIdx.x * 1024 + u * 256 + threadIdx.x;
        if (i < len) logits[i] = x[i];
    }
}
