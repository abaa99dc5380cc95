// Sums over GPUs that share the layers of a network: each adds what all have, in the order of their ranks, so that all have the same
// bits. A block stores a piece into the memory of every peer and raises a flag there, or, where there is much, reads what the peers have
// (rank_sum_pulled). Where NCCL has gathered what all have (rank_add), it lies in the memory of each. Products of one row do all this
// themselves (product.cuh).
#include "ranks.cuh"

static_assert(sizeof(MeetingArgs) == 104, "as in args/ranks.rs");
static_assert(sizeof(RankSumArgs) == 288, "as in args/ranks.rs");

__device__ __forceinline__ uint64_t flag_at(const MeetingArgs& m, uint32_t at, uint32_t from, uint32_t piece) {
    return m.flags[at] + (((uint64_t)(m.index & 1) * MAX_RANKS + from) * SUM_FLAGS + piece) * 8;
}
__device__ __forceinline__ uint64_t flag_of(const MeetingArgs& m) { return *(volatile const uint64_t*)m.launch << 16 | (m.index + 1); }

// Says to all ranks that what this block has stored for them is there: one thread does, for all threads that it has met. Fences of all
// the system take longer the more of them there are at a time.
__device__ __forceinline__ void raise(const MeetingArgs& m, uint32_t piece, uint64_t flag) {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    for (uint32_t peer = 0; peer < m.n_ranks; peer++)
        asm volatile("st.relaxed.sys.global.u64 [%0],%1;" ::"l"(flag_at(m, peer, m.rank, piece)), "l"(flag) : "memory");
}
// Waits until rank `peer` says so, which may be ahead already.
__device__ __forceinline__ void await(const MeetingArgs& m, uint32_t peer, uint32_t piece, uint64_t wanted) {
    const uint64_t mine = flag_at(m, m.rank, peer, piece);
    Patience patience;
    uint64_t flag;
    do asm volatile("ld.acquire.sys.global.u64 %0,[%1];" : "=l"(flag) : "l"(mine) : "memory");
    while (flag < wanted && patience.goes_on(m, peer));
}

__device__ __forceinline__ float* inbox_of(const RankSumArgs& a, uint32_t at, uint32_t from) {
    const MeetingArgs& m = a.meeting;
    return (float*)a.inboxes[at] + ((uint64_t)(m.index & 1) * m.n_ranks + from) * a.capacity;
}

__device__ __forceinline__ float plus(float a, float b) { return __fadd_rn(a, b); }

// Rows in pieces, in units of T, of which U a thread are under way at once. The first half of the blocks stores what this rank has into
// the memory of the others, piece after piece, and the other half adds up the pieces that are there meanwhile.
template <typename T, int U> __device__ __forceinline__ void sum_pieces(const RankSumArgs& a) {
    constexpr uint32_t EACH = sizeof(T) / 4;
    const MeetingArgs& m = a.meeting;
    const uint32_t len = a.len / EACH, all = a.rows * len, piece_len = (all + a.pieces - 1) / a.pieces;
    const uint32_t senders = gridDim.x / 2, step = blockDim.x;
    const auto mine = [&](uint32_t i) { return (const T*)(a.x + (uint64_t)(i / len) * a.x_stride + i % len * EACH); };
    if (blockIdx.x < senders) {
        for (uint32_t piece = blockIdx.x; piece < a.pieces; piece += senders) {
            const uint32_t first = piece_len * piece, end = min(first + piece_len, all);
            for (uint32_t i = first + threadIdx.x; i < end; i += U * step) {
                T v[U];
#pragma unroll
                for (int u = 0; u < U; u++)
                    if (i + u * step < end) v[u] = __ldcg(mine(i + u * step));
                for (uint32_t peer = 0; peer < m.n_ranks; peer++) {
                    if (peer == m.rank) continue;
                    T* to = (T*)inbox_of(a, peer, m.rank);
#pragma unroll
                    for (int u = 0; u < U; u++)
                        if (i + u * step < end) to[i + u * step] = v[u];
                }
            }
            __syncthreads();
            // This rank's own blocks are told as well: the sum may take the place of what is sent.
            if (threadIdx.x == 0) raise(m, piece, flag_of(m));
        }
        return;
    }
    for (uint32_t piece = blockIdx.x - senders; piece < a.pieces; piece += gridDim.x - senders) {
        if (threadIdx.x < m.n_ranks) await(m, threadIdx.x, piece, flag_of(m));
        __syncthreads();
        const uint32_t first = piece_len * piece, end = min(first + piece_len, all);
        for (uint32_t i = first + threadIdx.x; i < end; i += U * step) {
            T sum[U], base[U];
#pragma unroll
            for (int u = 0; u < U; u++) {
                const uint32_t at = i + u * step;
                if (a.base && at < end) base[u] = *(const T*)(a.base + (uint64_t)(at / len) * a.stride + at % len * EACH);
            }
            for (uint32_t rank = 0; rank < m.n_ranks; rank++) {
                const T* inbox = (const T*)inbox_of(a, m.rank, rank);
#pragma unroll
                for (int u = 0; u < U; u++) {
                    const uint32_t at = i + u * step;
                    if (at >= end) continue;
                    // Written by others meanwhile: not from a cache that does not know.
                    const T v = __ldcv(rank == m.rank ? mine(at) : inbox + at);
                    sum[u] = rank == 0 ? v : plus(sum[u], v);
                }
            }
#pragma unroll
            for (int u = 0; u < U; u++) {
                const uint32_t at = i + u * step;
                if (at >= end) continue;
                if (a.base) sum[u] = plus(base[u], sum[u]);
                *(T*)(a.out + (uint64_t)(at / len) * a.stride + at % len * EACH) = sum[u];
            }
        }
    }
}

// One row, whose elements go with a tag each. All of the row goes so each time, so what lies in the inbox is of the meeting before
// the last at the oldest.
__device__ __forceinline__ void sum_tagged(const RankSumArgs& a) {
    const MeetingArgs& m = a.meeting;
    const uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= a.len) return;
    const TaggedRow row{a.tagged, a.tagged_capacity, m.n_ranks, m.index, tag_of(m)};
    const float4 v = __ldcg((const float4*)(a.x + i));
    for (uint32_t peer = 0; peer < m.n_ranks; peer++)
        if (peer != m.rank) row.send(peer, m.rank, i, v);
    const float4 base = a.base ? *(const float4*)(a.base + i) : make_float4(0, 0, 0, 0);
    float4 sum = v;
    for (uint32_t rank = 0; rank < m.n_ranks; rank++) {
        const float4 theirs = rank == m.rank ? v : row.take_four(m, rank, i);
        sum = rank == 0 ? theirs : plus(sum, theirs);
    }
    *(float4*)(a.out + i) = a.base ? plus(base, sum) : sum;
}

// Grid: an even number of blocks, two a piece at most; for one row of a multiple of four elements, a thread for each four.
extern "C" __global__ void __launch_bounds__(512) rank_sum(const __grid_constant__ RankSumArgs a) {
    wait_for_producers();
    // What comes next may write what a product in front of this has read.
    release_dependents();
    const bool fours = a.len % 4 == 0 && a.x_stride % 4 == 0 && a.stride % 4 == 0;
    if (a.rows == 1 && fours) sum_tagged(a);
    else if (fours) sum_pieces<float4, 4>(a);
    else sum_pieces<float, 1>(a);
}

// What ranks say to each other in a sum that reads what is in the others' memory: places behind the flags of pieces.
enum Said : uint32_t { HERE = MAX_SUM_PIECES, READ, WHERE, STRIDE, BLOCKS_DONE };
static_assert(BLOCKS_DONE < SUM_FLAGS);

// Many rows: this rank reads what the others have where they have it, and tells them when it has read it all. Nothing waits for all of
// it to have arrived, as in sum_pieces. Strides and lengths are multiples of four. Grid: any.
extern "C" __global__ void __launch_bounds__(512, 2) rank_sum_pulled(const __grid_constant__ RankSumArgs a) {
    using T = float4;
    constexpr uint32_t EACH = sizeof(T) / 4, U = 2;
    wait_for_producers();
    // What comes next may write what a product in front of this has read.
    release_dependents();
    __shared__ const float* theirs[MAX_RANKS];
    __shared__ uint32_t strides[MAX_RANKS];
    const MeetingArgs& m = a.meeting;
    const uint64_t flag = flag_of(m);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        for (uint32_t peer = 0; peer < m.n_ranks; peer++) {
            *(volatile uint64_t*)flag_at(m, peer, m.rank, WHERE) = (uint64_t)a.x;
            *(volatile uint64_t*)flag_at(m, peer, m.rank, STRIDE) = a.x_stride;
        }
        raise(m, HERE, flag);
    }
    if (threadIdx.x < m.n_ranks) {
        await(m, threadIdx.x, HERE, flag);
        theirs[threadIdx.x] = (const float*)*(volatile const uint64_t*)flag_at(m, m.rank, threadIdx.x, WHERE);
        strides[threadIdx.x] = (uint32_t)*(volatile const uint64_t*)flag_at(m, m.rank, threadIdx.x, STRIDE);
    }
    __syncthreads();
    const uint32_t len = a.len / EACH, all = a.rows * len, step = blockDim.x;
    for (uint32_t i = blockIdx.x * (U * step) + threadIdx.x; i < all; i += gridDim.x * (U * step)) {
        uint32_t row[U], column[U];
        T sum[U], base[U];
#pragma unroll
        for (uint32_t u = 0; u < U; u++) {
            row[u] = (i + u * step) / len;
            column[u] = (i + u * step) % len * EACH;
            if (a.base && i + u * step < all) base[u] = *(const T*)(a.base + (uint64_t)row[u] * a.stride + column[u]);
        }
        for (uint32_t rank = 0; rank < m.n_ranks; rank++) {
            T v[U];
            // Written by others: not from a cache that does not know.
#pragma unroll
            for (uint32_t u = 0; u < U; u++)
                if (i + u * step < all) v[u] = __ldcv((const T*)(theirs[rank] + (uint64_t)row[u] * strides[rank] + column[u]));
#pragma unroll
            for (uint32_t u = 0; u < U; u++) sum[u] = rank == 0 ? v[u] : plus(sum[u], v[u]);
        }
#pragma unroll
        for (uint32_t u = 0; u < U; u++) {
            if (i + u * step >= all) continue;
            if (a.base) sum[u] = plus(base[u], sum[u]);
            *(T*)(a.out + (uint64_t)row[u] * a.stride + column[u]) = sum[u];
        }
    }
    // What comes next writes over what the others read.
    __syncthreads();
    if (threadIdx.x > 0) return;
    __threadfence();
    if (atomicInc((unsigned*)flag_at(m, m.rank, m.rank, BLOCKS_DONE), gridDim.x - 1) != gridDim.x - 1) return;
    raise(m, READ, flag);
    for (uint32_t peer = 0; peer < m.n_ranks; peer++) await(m, peer, READ, flag);
}

// The end of a launch: all ranks meet, and rank 0 takes the logits that the others have stored into its inbox by now. Grid: up to
// MAX_SUM_PIECES blocks, as many on all ranks.
extern "C" __global__ void __launch_bounds__(512) rank_logits(const __grid_constant__ RankLogitsArgs a) {
    release_dependents();
    wait_for_producers();
    // When others have been told, the next launch may have a number already.
    const uint64_t flag = flag_of(a.meeting);
    __syncthreads();
    if (threadIdx.x == 0) raise(a.meeting, blockIdx.x, flag);
    if (threadIdx.x < a.meeting.n_ranks) await(a.meeting, threadIdx.x, blockIdx.x, flag);
    __syncthreads();
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
