// Gated delta nets and Mamba-2 (recurrent.cuh): a whole token of a decode step, and the parts of a chunk. And the short
// convolution of networks that have nothing else.
//
// In a step, row i of input is session i at its current position. In a chunk all rows are of session 0, at
// consecutive positions. In a step of drafts there are chains: rows at consecutive positions, each of which leaves a state of its own.
#include "args_recurrent.h"
#include "bulk.cuh"
#include "mma.cuh"
#include "quantize.cuh"
#include "recurrent.cuh"

using Scratch = float[32];  // of sums over a block

// What a block of a step has in shared memory.
struct StepShared {
    float k[MAX_COLS], q[MAX_COLS];
    // Of the blocks of a head, for tokens of even and of odd number, and what counts them.
    float sums[2][STEP_BLOCKS];
    uint64_t arrived[2];
};

// Shared memory, and what is left of each column of a state, for a number of tokens.
template <class Shared, int N, uint32_t TOKENS> struct WithLeft : Shared { alignas(16) float left[TOKENS][N * 16]; };
template <class Shared, int N> struct WithLeft<Shared, N, 0> : Shared {};

// What earlier tokens add to the convolution in one channel, of a width of 4: the ring, the weights and what is added.
struct Four {
    float4 entries, weights;
    float bias;
    __device__ __forceinline__ void load(const RecurrentArgs& a, const float* ring, uint32_t channel) {
        entries = *(const float4*)(ring + (uint64_t)channel * 4);
        weights = *(const float4*)(a.conv_weight + (uint64_t)channel * 4);
        bias = a.conv_bias ? a.conv_bias[channel] : 0.0f;
    }
    __device__ __forceinline__ float before(uint32_t position) const {
        const uint32_t p = position & 3;
        auto entry = [&](uint32_t i) { return i == 0 ? entries.x : i == 1 ? entries.y : i == 2 ? entries.z : entries.w; };
        const float sum = __fmaf_rn(entry((p + 2) & 3), weights.y, __fmaf_rn(entry((p + 1) & 3), weights.x, bias));
        return __fmaf_rn(entry((p + 3) & 3), weights.z, sum);
    }
};

// The same of any width, at the session's position. Entries of positions that were not there are zeros.
__device__ __forceinline__ float convolved_before(const RecurrentArgs& a, const float* ring, uint32_t position, uint32_t channel) {
    const uint32_t w = a.width;
    ring += (uint64_t)channel * w;
    const float* weight = a.conv_weight + (uint64_t)channel * w;
    float sum = a.conv_bias ? a.conv_bias[channel] : 0.0f;
    if (w == 4) {
        Four four;
        four.load(a, ring - (uint64_t)channel * w, channel);
        return four.before(position);
    }
    for (uint32_t i = 1; i < w; i++) sum = __fmaf_rn(ring[(position + i) % w], weight[i - 1], sum);
    return sum;
}

// The same for row `row` of a chain, whose ring is that before its first row: what lies between is in the rows before.
template <class Input> __device__ __forceinline__ float convolved_in_chain(const float* weight, float bias, const float* ring, uint32_t position, uint32_t w, uint32_t row, Input input) {
    float sum = bias;
    for (uint32_t i = 1; i < w; i++) sum = __fmaf_rn(w - i <= row ? input(row + i - w) : ring[(position + i) % w], weight[i - 1], sum);
    return sum;
}

// The ring behind such a row.
template <class Input> __device__ __forceinline__ void store_ring(float* to, const float* ring, uint32_t position, uint32_t w, uint32_t row, Input input) {
    for (uint32_t back = 0; back < w; back++) {
        const uint32_t entry = (position + w - back) % w;
        to[entry] = back <= row ? input(row - back) : ring[entry];
    }
}

// The sum of the squares of `n` numbers, by a warp.
__device__ __forceinline__ float squares(const float* x, uint32_t n) {
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x & 31; i < n; i += 32) sum = __fmaf_rn(x[i], x[i], sum);
    return warp_sum(sum);
}

// The sum of the squares of a head's outputs is one for each share of the rows, and their sum in order.
__device__ __forceinline__ void squares_of_shares(const float* outputs, uint32_t rows, float* sums) {
    const uint32_t share = (rows + STEP_BLOCKS - 1) / STEP_BLOCKS, warp = threadIdx.x / 32, begin = min(rows, warp * share);
    if (warp < STEP_BLOCKS) {
        const float own = squares(outputs + begin, min(rows, begin + share) - begin);
        if ((threadIdx.x & 31) == 0) sums[warp] = own;
    }
    __syncthreads();
}
__device__ __forceinline__ float sum_of_shares(const float* sums) {
    float sum = 0.0f;
    for (uint32_t r = 0; r < STEP_BLOCKS; r++) sum = __fadd_rn(sum, sums[r]);
    return sum;
}

// The blocks of a head tell each other what they have summed. A block may be a token ahead of another, but not two: so there are two places
// for sums, by turns. Nobody waits until its state is written, as at a barrier of the cluster.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
__device__ __forceinline__ void ready_sums(StepShared&) {}
__device__ __forceinline__ void await_others() {}
__device__ __forceinline__ void tell_sum(StepShared&, uint32_t, uint32_t, float) {}
__device__ __forceinline__ void await_sums(StepShared&, uint32_t) {}
#else
__device__ __forceinline__ void ready_sums(StepShared& m) {
    if (threadIdx.x == 0) {
        barrier_init(shared_address(m.arrived), 1);
        barrier_init(shared_address(m.arrived + 1), 1);
        fence_barriers();
    }
    cluster_arrive();
}
__device__ __forceinline__ void await_others() { cluster_wait(); }
// By a warp, whose lanes all have the sum.
__device__ __forceinline__ void tell_sum(StepShared& m, uint32_t token, uint32_t rank, float sum) {
    const uint32_t lane = threadIdx.x & 31, arrived = shared_address(m.arrived + (token & 1));
    if (lane == 0) barrier_expect(arrived, STEP_BLOCKS * 4);
    if (lane < STEP_BLOCKS) store_remote(remote_address(shared_address(&m.sums[token & 1][rank]), lane), sum, remote_address(arrived, lane));
}
__device__ __forceinline__ void await_sums(StepShared& m, uint32_t token) { barrier_wait(shared_address(m.arrived + (token & 1)), token >> 1 & 1); }
#endif

// One token of each session, or with CHAINS those of each chain of rows. Grid (heads * BLOCKS, batch), STEP_THREADS / BLOCKS threads.
// Dynamic shared memory: a float for each of the block's rows, for values and for outputs. The bits do not depend on BLOCKS, which is
// 1 or STEP_BLOCKS, nor on CHAINS. With CHANNELS each column of a state has a step of its own, and gates are factors by their sigmoid.
template <int N, uint32_t BLOCKS, bool CHAINS, bool CHANNELS = false> __device__ __forceinline__ void recurrent_token(const RecurrentArgs& a) {
    constexpr uint32_t THREADS = STEP_THREADS / BLOCKS;
    DYNAMIC_SHARED(memory);
    using Shared = WithLeft<StepShared, N, CHANNELS ? 1 : 0>;
    STATIC_SHARED(Shared, m);
    const uint32_t share = (a.rows + BLOCKS - 1) / BLOCKS, rank = BLOCKS == 1 ? 0 : cluster_rank();
    const uint32_t first_row = min(a.rows, rank * share), n_rows = min(a.rows, first_row + share) - first_row;
    float *values = (float*)memory, *outputs = values + share;
    const uint32_t head = blockIdx.x / BLOCKS, key = key_of(a, head), thread = threadIdx.x, part = thread & 3;
    release_dependents();
    // The state is the last step's, and the position stays until the step ends: both are there.
    const Session* s = a.sessions[blockIdx.y];
    const uint32_t first_position = s->position, w = a.width, count = CHAINS ? s->chain : 1;
    if (CHAINS && count == 0) return;
    if (BLOCKS > 1 && a.norm) ready_sums(m);
    float *ring = ring_of(a, s), *matrix = matrix_of(a, s, head) + (uint64_t)first_row * a.cols;
    const float *ring_before = CHAINS ? (const float*)(s->before + a.state_offset) : ring;
    const float* matrix_before = CHAINS ? (const float*)(s->before + a.state_offset + a.matrix_offset) + ((uint64_t)head * a.rows + first_row) * a.cols : matrix;
    RowPart<N> state;
    state.load(matrix_before + (uint64_t)(thread / 4) * a.cols, a.cols, part, thread / 4 < n_rows);
    // Channels of queries, of keys, and of the values of the block's rows: how many, the first one, and where what comes of them goes. A
    // thread has one of each at a time.
    constexpr int KINDS = 3;
    const uint32_t length[KINDS] = {a.cols, a.cols, n_rows};
    const uint32_t base[KINDS] = {a.q_at + key * a.cols, a.k_at + key * a.cols, a.v_at + head * a.rows + first_row};
    float* const convolved_to[KINDS] = {m.q, m.k, values};
    // What does not depend on the input is there before it is, addresses included.
    const float* in_first[KINDS] = {};
    float *ring_first[KINDS] = {}, early[KINDS], last_weight[KINDS];
    Four fours[KINDS];
    const uint32_t first_entry = w == 4 ? first_position & 3 : first_position % w;
#pragma unroll
    for (int kind = 0; kind < KINDS; kind++) {
        const uint32_t channel = base[kind] + thread;
        const bool there = thread < length[kind];
        if (w == 4) {
            // Not used before the input is asked for: what is asked for here may come later than what the producers make.
            fours[kind].load(a, ring_before, there ? channel : 0);
        } else {
            early[kind] = there ? convolved_before(a, ring_before, first_position, channel) : 0.0f;
            last_weight[kind] = there ? a.conv_weight[(uint64_t)channel * w + w - 1] : 0.0f;
        }
        if (CHAINS) continue;
        in_first[kind] = kept(a.input + (uint64_t)blockIdx.y * a.in_stride + channel);
        ring_first[kind] = kept(ring + (uint64_t)channel * w + first_entry);
    }
    const float rate = a.rate[head], step_bias = CHANNELS ? 0.0f : a.step_bias[head], skip = a.skip ? a.skip[head] : 0.0f;
    const float first_norm = a.norm && thread < n_rows ? a.norm[first_row + thread] : 0.0f;
    const float inverse_rows = 1.0f / (float)a.rows;
    const bool keeps = rank == 0 && keeps_keys(a, head);
    wait_for_producers();
    if (BLOCKS > 1 && a.norm) await_others();
    for (uint32_t row = 0; row < count; row++) {
        const uint32_t position = first_position + row, at = blockIdx.y + row;
        if (CHAINS && row) {
            const Session* r = a.sessions[at];
            ring = ring_of(a, r);
            matrix_before = matrix;
            matrix = matrix_of(a, r, head) + (uint64_t)first_row * a.cols;
        }
        const float* in = a.input + (uint64_t)at * a.in_stride;
        // All that is read of the input is asked for at once, in front of all that is stored.
        const float* gate = (CHANNELS ? a.gates + (uint64_t)at * a.gates_stride : in + a.gate_at) + head * a.rows + first_row;
        float asked[KINDS];
#pragma unroll
        for (int kind = 0; kind < KINDS; kind++) asked[kind] = thread < length[kind] ? (CHAINS ? in[base[kind] + thread] : *in_first[kind]) : 0.0f;
        const float step_in = CHANNELS ? 0.0f : in[a.step_at + head], beta = CHANNELS ? 0.0f : beta_of(a, in, head);
        const float first_gate = (a.norm || a.gated) && thread < n_rows ? gate[thread] : 0.0f;
        if (w == 4 && (!CHAINS || !row)) {
#pragma unroll
            for (int kind = 0; kind < KINDS; kind++) {
                early[kind] = fours[kind].before(first_position);
                last_weight[kind] = fours[kind].weights.w;
            }
        }
        auto input = [&](uint32_t channel) { return [&a, channel](uint32_t t) { return a.input[(uint64_t)(blockIdx.y + t) * a.in_stride + channel]; }; };
        auto before_of = [&](uint32_t channel) {
            if (!CHAINS) return convolved_before(a, ring_before, position, channel);
            return convolved_in_chain(a.conv_weight + (uint64_t)channel * w, a.conv_bias ? a.conv_bias[channel] : 0.0f, ring_before + (uint64_t)channel * w, position, w, row, input(channel));
        };
        auto convolve = [&](int kind, uint32_t i, float x, float weight, float before, float* entry) {
            convolved_to[kind][i] = silu(__fmaf_rn(x, weight, before));
            if (!keeps && kind < 2) return;
            const uint32_t channel = base[kind] + i;
            if (CHAINS) store_ring(ring + (uint64_t)channel * w, ring_before + (uint64_t)channel * w, position, w, row, input(channel));
            else *entry = x;
        };
        if (!CHAINS || !row) {
#pragma unroll
            for (int kind = 0; kind < KINDS; kind++)
                if (thread < length[kind]) convolve(kind, thread, asked[kind], last_weight[kind], early[kind], ring_first[kind]);
        }
        const uint32_t rest = thread + (CHAINS && row ? 0 : THREADS);
#pragma unroll
        for (int kind = 0; kind < KINDS; kind++)
#pragma unroll 1
            for (uint32_t i = rest; i < length[kind]; i += THREADS) {
                const uint32_t channel = base[kind] + i;
                convolve(kind, i, in[channel], a.conv_weight[(uint64_t)channel * w + w - 1], before_of(channel), ring + (uint64_t)channel * w + first_entry);
            }
        for (uint32_t i = a.cols + thread; i < N * 16; i += THREADS) m.q[i] = m.k[i] = 0.0f;
        if constexpr (CHANNELS) {
            for (uint32_t i = thread; i < N * 16; i += THREADS) m.left[0][i] = i < a.cols ? left_of(a, at, head, i, rate) : 0.0f;
        }
        const Change change = CHANNELS ? change_of_channels(a, in, head) : change_of(a, step_in, beta, rate, step_bias);
        __syncthreads();
        for (uint32_t base = 0; base < n_rows; base += THREADS / 4) {
            const uint32_t r = base + thread / 4;
            const bool there = r < n_rows;
            // What one pass has is still there for the next row.
            if (base || (CHAINS && row && n_rows > THREADS / 4)) state.load(matrix_before + (uint64_t)r * a.cols, a.cols, part, there);
            if constexpr (CHANNELS) state.fade(m.left[0], part);
            const float value = there ? values[r] : 0.0f;
            const float out = a.delta ? state.template raw_token<true>(m.k, m.q, value, change, a.q_scale, skip, part) : state.template raw_token<false>(m.k, m.q, value, change, 1.0f, skip, part);
            // What others wait for goes first.
            if (there && part == 0) outputs[r] = out;
            state.store(matrix + (uint64_t)r * a.cols, a.cols, part, there);
        }
        __syncthreads();
        auto gate_of = [&](uint32_t i) {
            const float v = i == thread ? first_gate : gate[i];
            return CHANNELS ? sigmoid(v) : silu(v);
        };
        float* out = a.out + ((uint64_t)at * a.heads + head) * a.rows + first_row;
        if (!a.norm) {
            for (uint32_t i = thread; i < n_rows; i += THREADS) out[i] = a.gated ? __fmul_rn(outputs[i], gate_of(i)) : outputs[i];
            continue;
        }
        // A sum for each share of the rows, in their order.
        if (BLOCKS == 1) {
            squares_of_shares(outputs, a.rows, m.sums[0]);
        } else {
            if (thread / 32 == 0) tell_sum(m, row, rank, squares(outputs, n_rows));
            await_sums(m, row);
        }
        const float scale = rsqrtf(__fmaf_rn(sum_of_shares(m.sums[BLOCKS == 1 ? 0 : row & 1]), inverse_rows, a.eps));
        for (uint32_t i = thread; i < n_rows; i += THREADS) out[i] = __fmul_rn(__fmul_rn(__fmul_rn(outputs[i], scale), i == thread ? first_norm : a.norm[first_row + i]), gate_of(i));
    }
}
extern "C" __global__ void __launch_bounds__(STEP_THREADS) recurrent_step_128(const __grid_constant__ RecurrentArgs a) { recurrent_token<8, 1, false>(a); }
extern "C" __global__ void __launch_bounds__(STEP_THREADS) recurrent_step_256(const __grid_constant__ RecurrentArgs a) { recurrent_token<16, 1, false>(a); }
extern "C" __global__ void __launch_bounds__(STEP_THREADS) recurrent_chain_128(const __grid_constant__ RecurrentArgs a) { recurrent_token<8, 1, true>(a); }
extern "C" __global__ void __launch_bounds__(STEP_THREADS) recurrent_chain_256(const __grid_constant__ RecurrentArgs a) { recurrent_token<16, 1, true>(a); }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define OF_A_HEAD __cluster_dims__(STEP_BLOCKS, 1, 1) __launch_bounds__(STEP_THREADS / STEP_BLOCKS)
extern "C" __global__ void OF_A_HEAD recurrent_step_shared_128(const __grid_constant__ RecurrentArgs a) { recurrent_token<8, STEP_BLOCKS, false>(a); }
extern "C" __global__ void OF_A_HEAD recurrent_step_shared_256(const __grid_constant__ RecurrentArgs a) { recurrent_token<16, STEP_BLOCKS, false>(a); }
extern "C" __global__ void OF_A_HEAD recurrent_chain_shared_128(const __grid_constant__ RecurrentArgs a) { recurrent_token<8, STEP_BLOCKS, true>(a); }
extern "C" __global__ void OF_A_HEAD recurrent_chain_shared_256(const __grid_constant__ RecurrentArgs a) { recurrent_token<16, STEP_BLOCKS, true>(a); }
#endif

extern "C" __global__ void __launch_bounds__(STEP_THREADS) recurrent_step_channels(const __grid_constant__ RecurrentArgs a) { recurrent_token<8, 1, false, true>(a); }
extern "C" __global__ void __launch_bounds__(STEP_THREADS) recurrent_chain_channels(const __grid_constant__ RecurrentArgs a) { recurrent_token<8, 1, true, true>(a); }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
extern "C" __global__ void OF_A_HEAD recurrent_step_shared_channels(const __grid_constant__ RecurrentArgs a) { recurrent_token<8, STEP_BLOCKS, false, true>(a); }
extern "C" __global__ void OF_A_HEAD recurrent_chain_shared_channels(const __grid_constant__ RecurrentArgs a) { recurrent_token<8, STEP_BLOCKS, true, true>(a); }
#endif

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// What a block of a full batch has in shared memory beside a head's state.
struct BatchShared {
    float q[BATCH_COLS], k[BATCH_COLS];
    float sums[STEP_BLOCKS];
    // Counts what comes of each piece of the state.
    uint64_t arrived[BATCH_PIECES];
};

// One token of each of many sessions, with the bits of `recurrent_token`, for convolutions over four positions and states of a multiple of
// four columns, up to BATCH_COLS. Grid (heads, batch), BATCH_THREADS threads. Dynamic shared memory: the head's state, which bulk copies
// bring and take away in pieces, and a float for each of its rows, for values and for outputs. A multiprocessor has several blocks, each at
// another part of its work, so that its memory always has something to do. Outputs are rounded where `q8` says so; rows are then a multiple of 32.
template <bool DELTA> __device__ __forceinline__ void batch_token(const RecurrentArgs& a) {
    constexpr int N = BATCH_COLS / 16, FIRST = 3;
    static_assert(BATCH_ROWS * 4 == BATCH_THREADS, "four threads a row");
    DYNAMIC_SHARED(memory);
    STATIC_SHARED(BatchShared, m);
    float *copied = (float*)memory, *values = copied + a.rows * a.cols, *outputs = values + a.rows;
    const uint32_t head = blockIdx.x, key = key_of(a, head), thread = threadIdx.x, part = thread & 3, arrived = shared_address(m.arrived);
    release_dependents();
    const Session* s = a.sessions[blockIdx.y];
    float *ring = ring_of(a, s), *matrix = matrix_of(a, s, head);
    auto piece_bytes = [&](uint32_t first) { return min(a.rows - first, BATCH_ROWS) * a.cols * 4; };
    if (thread == 0) {
        for (uint32_t first = 0, piece = arrived; first < a.rows; first += BATCH_ROWS, piece += 8) barrier_init(piece, 1);
        fence_shared();
        for (uint32_t first = 0, piece = arrived; first < a.rows; first += BATCH_ROWS, piece += 8) {
            barrier_expect(piece, piece_bytes(first));
            bulk_copy_once(shared_address(copied + first * a.cols), matrix + first * a.cols, piece_bytes(first), piece);
        }
    }
    const uint32_t position = s->position;
    // The channels of queries, keys and values, one behind the other; the first of a thread are asked for before the input is there.
    const uint32_t channels = 2 * a.cols + a.rows;
    auto channel_of = [&](uint32_t i) { return i < a.cols ? a.q_at + key * a.cols + i : i < 2 * a.cols ? a.k_at + key * a.cols + i - a.cols : a.v_at + head * a.rows + i - 2 * a.cols; };
    auto place_of = [&](uint32_t i) { return i < a.cols ? m.q + i : i < 2 * a.cols ? m.k + (i - a.cols) : values + (i - 2 * a.cols); };
    Four fours[FIRST];
#pragma unroll
    for (int j = 0; j < FIRST; j++) {
        const uint32_t i = thread + j * BATCH_THREADS;
        fours[j].load(a, ring, i < channels ? channel_of(i) : 0);
    }
    const float rate = a.rate[head], step_bias = a.step_bias[head], skip = a.skip ? a.skip[head] : 0.0f;
    const float first_norm = a.norm && thread < a.rows ? a.norm[thread] : 0.0f;
    const bool keeps = keeps_keys(a, head);
    wait_for_producers();
    const float* in = a.input + (uint64_t)blockIdx.y * a.in_stride;
    const float* gate = in + a.gate_at + head * a.rows;
    float asked[FIRST];
#pragma unroll
    for (int j = 0; j < FIRST; j++) {
        const uint32_t i = thread + j * BATCH_THREADS;
        asked[j] = i < channels ? in[channel_of(i)] : 0.0f;
    }
    const float step_in = in[a.step_at + head], beta = beta_of(a, in, head);
    const float first_gate = (a.norm || a.gated) && thread < a.rows ? gate[thread] : 0.0f;
    auto convolve = [&](uint32_t i, float x, const Four& four) {
        *place_of(i) = silu(__fmaf_rn(x, four.weights.w, four.before(position)));
        if (keeps || i >= 2 * a.cols) ring[(uint64_t)channel_of(i) * 4 + (position & 3)] = x;
    };
#pragma unroll
    for (int j = 0; j < FIRST; j++)
        if (thread + j * BATCH_THREADS < channels) convolve(thread + j * BATCH_THREADS, asked[j], fours[j]);
#pragma unroll 1
    for (uint32_t i = thread + FIRST * BATCH_THREADS; i < channels; i += BATCH_THREADS) {
        Four four;
        four.load(a, ring, channel_of(i));
        convolve(i, in[channel_of(i)], four);
    }
    for (uint32_t i = a.cols + thread; i < BATCH_COLS; i += BATCH_THREADS) m.q[i] = m.k[i] = 0.0f;
    const Change change = change_of(a, step_in, beta, rate, step_bias);
    __syncthreads();
    RowPart<N> state;
    RawSums sums;
    float keys[N][4];
    state.template add_up<DELTA, false, true>(sums, m.k, m.q, part, keys);
    for (uint32_t first = 0, piece = arrived; first < a.rows; first += BATCH_ROWS, piece += 8) {
        const uint32_t r = first + thread / 4, row = min(r, a.rows - 1);
        barrier_wait(piece, 0);
        // Whole warps go on, some of whose rows may be behind the last one.
        if (r / 8 * 8 < a.rows) {
            state.load_copied(copied + row * a.cols, a.cols, part, row & 1);
            state.template add_up<DELTA, true, false>(sums, m.k, m.q, part, keys);
            const float out = state.template raw_token<DELTA>(sums, keys, values[row], change, DELTA ? a.q_scale : 1.0f, skip);
            if (r < a.rows) {
                if (part == 0) outputs[r] = out;
                state.store_copied(copied + r * a.cols, a.cols, part, r & 1);
            }
        }
        fence_shared();
        __syncthreads();
        if (thread == 0) bulk_store_once(matrix + first * a.cols, shared_address(copied + first * a.cols), piece_bytes(first));
    }
    float scale = 1.0f;
    if (a.norm) {
        squares_of_shares(outputs, a.rows, m.sums);
        scale = rsqrtf(__fmaf_rn(sum_of_shares(m.sums), 1.0f / (float)a.rows, a.eps));
    }
    const uint64_t out = ((uint64_t)blockIdx.y * a.heads + head) * a.rows;
    for (uint32_t i = thread; i < a.rows; i += BATCH_THREADS) {
        float v = outputs[i];
        if (a.norm) v = __fmul_rn(__fmul_rn(v, scale), i == thread ? first_norm : a.norm[i]);
        if (a.norm || a.gated) v = __fmul_rn(v, silu(i == thread ? first_gate : gate[i]));
        if (a.q8) outputs[i] = v;
        else a.out[out + i] = v;
    }
    if (a.q8) {
        __syncthreads();
        for (uint32_t base = thread / 32 * 128; base < a.rows; base += BATCH_THREADS * 4) {
            const uint32_t i = base + (thread & 31) * 4;
            const bool inside = i < a.rows;
            const float4 v = inside ? *(const float4*)(outputs + i) : make_float4(0, 0, 0, 0);
            const float values[4] = {v.x, v.y, v.z, v.w};
            store_packed(a.q8, a.q8_scale, out + i, values, inside);
        }
    }
    if (thread == 0) bulk_stores_read();
}
extern "C" __global__ void __launch_bounds__(BATCH_THREADS, 4) recurrent_batch_delta(const __grid_constant__ RecurrentArgs a) { batch_token<true>(a); }
extern "C" __global__ void __launch_bounds__(BATCH_THREADS, 4) recurrent_batch_plain(const __grid_constant__ RecurrentArgs a) { batch_token<false>(a); }
#endif

// Rows of a chunk that a thread of the convolution asks for at a time.
constexpr uint32_t CONV_AHEAD = 8;

// A channel's rows of a chunk from `first` up to `end`, of a convolution over W positions; `input` gives those before.
template <uint32_t W, class Input> __device__ __forceinline__ void convolve_rows(const RecurrentArgs& a, uint32_t channel, uint32_t first, uint32_t end, float bias, Input input) {
    const float *weight = a.conv_weight + (uint64_t)channel * W, *in = a.input + channel;
    float weights[W], x[W - 1 + CONV_AHEAD];
#pragma unroll
    for (uint32_t i = 0; i < W; i++) weights[i] = weight[i];
#pragma unroll
    for (uint32_t i = 0; i < W - 1; i++) x[i] = input(first, W - 1 - i);
    for (uint32_t row = first; row < end; row += CONV_AHEAD) {
#pragma unroll
        for (uint32_t i = 0; i < CONV_AHEAD; i++) x[W - 1 + i] = row + i < end ? in[(uint64_t)(row + i) * a.in_stride] : 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < CONV_AHEAD; i++) {
            float sum = bias;
#pragma unroll
            for (uint32_t j = 0; j < W; j++) sum = __fmaf_rn(x[i + j], weights[j], sum);
            if (row + i < end) a.convolved[(uint64_t)(row + i) * a.channels + channel] = silu(sum);
        }
#pragma unroll
        for (uint32_t i = 0; i < W - 1; i++) x[i] = x[CONV_AHEAD + i];
    }
}

// The convolution of a chunk. Grid (channels / 128 rounded up, rows / CONV_ROWS rounded up), 128 threads.
extern "C" __global__ void __launch_bounds__(128) recurrent_convolve(const __grid_constant__ RecurrentArgs a) {
    release_dependents();
    wait_for_producers();
    const uint32_t channel = blockIdx.x * 128 + threadIdx.x, first = blockIdx.y * CONV_ROWS, end = min(a.count, first + CONV_ROWS), w = a.width;
    if (channel >= a.channels) return;
    const Session* s = a.sessions[0];
    float* ring = ring_of(a, s) + (uint64_t)channel * w;
    const float *weight = a.conv_weight + (uint64_t)channel * w, *in = a.input + channel;
    const float bias = a.conv_bias ? a.conv_bias[channel] : 0.0f;
    auto input = [&](uint32_t row, uint32_t back) { return back <= row ? in[(uint64_t)(row - back) * a.in_stride] : ring[(s->position + row + (back + w - 1) / w * w - back) % w]; };
    if (w == 4) {
        convolve_rows<4>(a, channel, first, end, bias, input);
    } else {
        for (uint32_t row = first; row < end; row++) {
            float sum = bias;
            for (uint32_t i = 1; i <= w; i++) sum = __fmaf_rn(input(row, w - i), weight[i - 1], sum);
            a.convolved[(uint64_t)row * a.channels + channel] = silu(sum);
        }
    }
    // Nobody else reads this channel's ring before the chunk.
    if (first == 0)
        for (uint32_t back = min(w, a.count); back > 0; back--) ring[(s->position + a.count - back) % w] = in[(uint64_t)(a.count - back) * a.in_stride];
}

// The convolution of one token of each session, where other kernels go on with it. Grid (channels / 128 rounded up, batch), 128 threads.
extern "C" __global__ void __launch_bounds__(128) recurrent_convolve_step(const __grid_constant__ RecurrentArgs a) {
    release_dependents();
    const uint32_t channel = blockIdx.x * 128 + threadIdx.x, w = a.width;
    if (channel >= a.channels) return;
    // What is the last step's is there.
    const Session* s = a.sessions[blockIdx.y];
    const uint32_t position = s->position;
    float* ring = ring_of(a, s);
    const float before = convolved_before(a, ring, position, channel), weight = a.conv_weight[(uint64_t)channel * w + w - 1];
    wait_for_producers();
    const float x = a.input[(uint64_t)blockIdx.y * a.in_stride + channel];
    a.convolved[(uint64_t)blockIdx.y * a.channels + channel] = silu(__fmaf_rn(x, weight, before));
    ring[(uint64_t)channel * w + position % w] = x;
}

// The same of each chain of rows.
extern "C" __global__ void __launch_bounds__(128) recurrent_convolve_chain(const __grid_constant__ RecurrentArgs a) {
    release_dependents();
    const uint32_t channel = blockIdx.x * 128 + threadIdx.x, w = a.width;
    const Session* s = a.sessions[blockIdx.y];
    const uint32_t count = s->chain;
    if (channel >= a.channels || count == 0) return;
    const float *ring = (const float*)(s->before + a.state_offset) + (uint64_t)channel * w, *weight = a.conv_weight + (uint64_t)channel * w;
    const float bias = a.conv_bias ? a.conv_bias[channel] : 0.0f;
    auto input = [&](uint32_t row) { return a.input[(uint64_t)(blockIdx.y + row) * a.in_stride + channel]; };
    wait_for_producers();
    for (uint32_t row = 0; row < count; row++) {
        const uint32_t position = s->position + row;
        const float before = convolved_in_chain(weight, bias, ring, position, w, row, input);
        a.convolved[(uint64_t)(blockIdx.y + row) * a.channels + channel] = silu(__fmaf_rn(input(row), weight[w - 1], before));
        store_ring(ring_of(a, a.sessions[blockIdx.y + row]) + (uint64_t)channel * w, ring, position, w, row, input);
    }
}

// Queries and keys of a chunk get their lengths. Grid (2 * heads / per_key, rows), 32 threads.
extern "C" __global__ void __launch_bounds__(32) recurrent_lengths(const __grid_constant__ RecurrentArgs a) {
    release_dependents();
    wait_for_producers();
    const uint32_t keys = a.heads / a.per_key, key = blockIdx.x % keys;
    const bool is_k = blockIdx.x >= keys;
    float* x = a.convolved + (uint64_t)blockIdx.y * a.channels + (is_k ? a.k_at : a.q_at) + key * a.cols;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < a.cols; i += 32) sum = __fmaf_rn(x[i], x[i], sum);
    const float length = __fmul_rn(is_k ? 1.0f : a.q_scale, rsqrtf(__fadd_rn(warp_sum(sum), 1e-6f)));
    for (uint32_t i = threadIdx.x; i < a.cols; i += 32) x[i] = __fmul_rn(x[i], length);
}

constexpr uint32_t SCAN_THREADS = 4 * SCAN_ROWS;

template <int N> struct ScanTokens {
    float k[SCAN_TOKENS][N * 16], q[SCAN_TOKENS][N * 16], v[SCAN_TOKENS][SCAN_ROWS];
};
struct ScanShared {
    float kq[SCAN_TOKENS];
    Change change[SCAN_TOKENS];
};

// The tokens of a chunk, one after another. Grid (heads, rows of S / SCAN_ROWS rounded up), SCAN_THREADS threads.
template <int N, bool CHANNELS = false> __device__ __forceinline__ void scan(const RecurrentArgs& a) {
    DYNAMIC_SHARED(memory);
    using Shared = WithLeft<ScanShared, N, CHANNELS ? SCAN_TOKENS : 0>;
    STATIC_SHARED(Shared, m);
    ScanTokens<N>* tokens = (ScanTokens<N>*)memory;
    const uint32_t head = blockIdx.x, key = key_of(a, head), thread = threadIdx.x, part = thread & 3, first = blockIdx.y * SCAN_ROWS, r = first + thread / 4;
    const bool there = r < a.rows;
    release_dependents();
    wait_for_producers();
    const Session* s = a.sessions[0];
    float* row = matrix_of(a, s, head) + (uint64_t)r * a.cols;
    RowPart<N> state;
    state.load(row, a.cols, part, there);
    const float skip = a.skip ? a.skip[head] : 0.0f;
    const float *q = a.convolved + a.q_at + key * a.cols, *k = a.convolved + a.k_at + key * a.cols, *v = a.convolved + a.v_at + head * a.rows + first;
    const uint32_t n_v = min(SCAN_ROWS, a.rows - first);
    const bool fours = a.cols % 4 == 0 && a.rows % 4 == 0 && (a.q_at | a.k_at | a.v_at | a.channels) % 4 == 0;
    auto fetch = [&](uint32_t batch) {
        ScanTokens<N>& to = tokens[batch & 1];
        const uint32_t begin = batch * SCAN_TOKENS;
        if (fours) {
            for (uint32_t i = thread; i < SCAN_TOKENS * (N * 8 + SCAN_ROWS / 4); i += SCAN_THREADS) {
                const uint32_t t = i / (N * 8 + SCAN_ROWS / 4), e = i % (N * 8 + SCAN_ROWS / 4);
                const uint32_t at = e < N * 4 ? e * 4 : e < N * 8 ? (e - N * 4) * 4 : (e - N * 8) * 4;
                const float* from = e < N * 4 ? k : e < N * 8 ? q : v;
                float* place = e < N * 4 ? to.k[t] : e < N * 8 ? to.q[t] : to.v[t];
                const bool valid = begin + t < a.count && at < (e < N * 8 ? a.cols : n_v);
                copy16(shared_address(place + at), valid ? from + (uint64_t)(begin + t) * a.channels + at : from, valid);
            }
        } else {
            for (uint32_t i = thread; i < SCAN_TOKENS * (N * 32 + SCAN_ROWS); i += SCAN_THREADS) {
                const uint32_t t = i / (N * 32 + SCAN_ROWS), e = i % (N * 32 + SCAN_ROWS);
                const uint32_t at = e < N * 16 ? e : e < N * 32 ? e - N * 16 : e - N * 32;
                const float* from = e < N * 16 ? k : e < N * 32 ? q : v;
                float* place = e < N * 16 ? to.k[t] : e < N * 32 ? to.q[t] : to.v[t];
                const bool valid = begin + t < a.count && at < (e < N * 32 ? a.cols : n_v);
                place[at] = valid ? from[(uint64_t)(begin + t) * a.channels + at] : 0.0f;
            }
        }
        copies_commit();
    };
    fetch(0);
    const uint32_t batches = (a.count + SCAN_TOKENS - 1) / SCAN_TOKENS;
    for (uint32_t batch = 0; batch < batches; batch++) {
        if (batch + 1 < batches) {
            fetch(batch + 1);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        if (thread < SCAN_TOKENS && batch * SCAN_TOKENS + thread < a.count) {
            const float* in = a.input + (uint64_t)(batch * SCAN_TOKENS + thread) * a.in_stride;
            m.change[thread] = CHANNELS ? change_of_channels(a, in, head) : change_of(a, in[a.step_at + head], beta_of(a, in, head), a.rate[head], a.step_bias[head]);
        }
        if constexpr (CHANNELS) {
            for (uint32_t i = thread; i < SCAN_TOKENS * N * 16; i += SCAN_THREADS) {
                const uint32_t row = batch * SCAN_TOKENS + i / (N * 16), c = i % (N * 16);
                m.left[i / (N * 16)][c] = row < a.count && c < a.cols ? left_of(a, row, head, c, a.rate[head]) : 0.0f;
            }
        }
        __syncthreads();
        const ScanTokens<N>& now = tokens[batch & 1];
        {
            // Eight threads a token.
            const uint32_t t = thread / 8;
            float sum = 0.0f;
            for (uint32_t i = thread % 8; i < N * 16; i += 8) sum = __fmaf_rn(now.k[t][i], now.q[t][i], sum);
#pragma unroll
            for (int o = 1; o < 8; o <<= 1) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, o));
            if (thread % 8 == 0) m.kq[t] = sum;
        }
        __syncthreads();
        const uint32_t n = min(SCAN_TOKENS, a.count - batch * SCAN_TOKENS);
        float* out = a.out + ((uint64_t)batch * SCAN_TOKENS * a.heads + head) * a.rows + r;
        for (uint32_t t = 0; t < n; t++) {
            if constexpr (CHANNELS) state.fade(m.left[t], part);
            const float y = state.token(now.k[t], now.q[t], m.kq[t], now.v[t][thread / 4], m.change[t], a.delta, skip, part);
            if (there && part == 0) out[(uint64_t)t * a.heads * a.rows] = y;
        }
        __syncthreads();
    }
    state.store(row, a.cols, part, there);
}
extern "C" __global__ void __launch_bounds__(SCAN_THREADS) recurrent_scan_128(const __grid_constant__ RecurrentArgs a) { scan<8>(a); }
extern "C" __global__ void __launch_bounds__(SCAN_THREADS) recurrent_scan_256(const __grid_constant__ RecurrentArgs a) { scan<16>(a); }
extern "C" __global__ void __launch_bounds__(SCAN_THREADS) recurrent_scan_channels(const __grid_constant__ RecurrentArgs a) { scan<8, true>(a); }

// Grid (len / group, rows), up to 1024 threads.
extern "C" __global__ void __launch_bounds__(1024) gated_norm(const __grid_constant__ GatedNormArgs a) {
    STATIC_SHARED(Scratch, scratch);
    release_dependents();
    wait_for_producers();
    const uint32_t begin = blockIdx.x * a.group;
    float* x = a.x + (uint64_t)blockIdx.y * a.len + begin;
    const float *gate = a.gate + (uint64_t)blockIdx.y * a.gate_stride + begin, *weight = a.weight + (a.same ? 0 : begin);
    float scale = 1.0f;
    if (a.weight) {
        float sum = 0.0f;
        for (uint32_t i = threadIdx.x; i < a.group; i += blockDim.x) {
            const float v = a.gate_first ? __fmul_rn(x[i], silu(gate[i])) : x[i];
            sum = __fmaf_rn(v, v, sum);
        }
        scale = 1.0f / sqrtf(__fadd_rn(block_sum(sum, scratch) / (float)a.group, a.eps));
    }
    for (uint32_t i = threadIdx.x; i < a.group; i += blockDim.x) {
        const float v = __fmul_rn(x[i], a.sigmoid ? sigmoid(gate[i]) : silu(gate[i]));
        x[i] = a.weight ? __fmul_rn(__fmul_rn(v, scale), weight[i]) : v;
    }
}

// The short convolution of each chain of rows. Grid (channels / 128 rounded up, rows), 128 threads.
extern "C" __global__ void __launch_bounds__(128) short_conv_chain(const __grid_constant__ ShortConvArgs a) {
    release_dependents();
    const uint32_t channel = blockIdx.x * 128 + threadIdx.x, w = a.width;
    const Session* s = a.sessions[blockIdx.y];
    const uint32_t count = s->chain;
    if (channel >= a.channels || count == 0) return;
    const float *ring = (const float*)(s->before + a.state_offset) + (uint64_t)channel * w, *weight = a.weight + (uint64_t)channel * w;
    const float bias = a.bias ? a.bias[channel] : 0.0f;
    auto line = [&](uint32_t row) { return a.input + (uint64_t)(blockIdx.y + row) * a.in_stride + channel; };
    auto fresh = [&](uint32_t row) { return __fmul_rn(line(row)[0], line(row)[2 * a.channels]); };
    wait_for_producers();
    for (uint32_t row = 0; row < count; row++) {
        const uint32_t position = s->position + row;
        const float before = convolved_in_chain(weight, bias, ring, position, w, row, fresh);
        a.out[(uint64_t)(blockIdx.y + row) * a.channels + channel] = __fmul_rn(line(row)[a.channels], __fmaf_rn(fresh(row), weight[w - 1], before));
        store_ring((float*)(a.sessions[blockIdx.y + row]->fixed + a.state_offset) + (uint64_t)channel * w, ring, position, w, row, fresh);
    }
}

// Grid (channels / 128 rounded up, sessions or rows / CONV_ROWS rounded up), 128 threads.
extern "C" __global__ void __launch_bounds__(128) short_conv(const __grid_constant__ ShortConvArgs a) {
    release_dependents();
    const uint32_t channel = blockIdx.x * 128 + threadIdx.x, w = a.width;
    if (channel >= a.channels) return;
    const Session* s = a.sessions[a.prefill ? 0 : blockIdx.y];
    float* ring = (float*)(s->fixed + a.state_offset) + (uint64_t)channel * w;
    const float* weight = a.weight + (uint64_t)channel * w;
    const float bias = a.bias ? a.bias[channel] : 0.0f;
    auto line = [&](uint32_t row) { return a.input + (uint64_t)row * a.in_stride + channel; };
    auto fresh = [&](uint32_t row) { return __fmul_rn(line(row)[0], line(row)[2 * a.channels]); };
    if (!a.prefill) {
        // What is the last step's is there.
        const uint32_t position = s->position;
        const float now = weight[w - 1];
        float sum = bias;
#pragma unroll
        for (uint32_t i = 1; i < 4; i++)
            if (i < w) sum = __fmaf_rn(ring[(position + i) % w], weight[i - 1], sum);
        for (uint32_t i = 4; i < w; i++) sum = __fmaf_rn(ring[(position + i) % w], weight[i - 1], sum);
        wait_for_producers();
        const float x = fresh(blockIdx.y);
        a.out[(uint64_t)blockIdx.y * a.channels + channel] = __fmul_rn(line(blockIdx.y)[a.channels], __fmaf_rn(x, now, sum));
        ring[position % w] = x;
        return;
    }
    wait_for_producers();
    const uint32_t first = blockIdx.y * CONV_ROWS, end = min(a.count, first + CONV_ROWS);
    auto input = [&](uint32_t row, uint32_t back) { return back <= row ? fresh(row - back) : ring[(s->position + row + (back + w - 1) / w * w - back) % w]; };
    for (uint32_t row = first; row < end; row++) {
        float sum = bias;
        for (uint32_t i = 1; i <= w; i++) sum = __fmaf_rn(input(row, w - i), weight[i - 1], sum);
        a.out[(uint64_t)row * a.channels + channel] = __fmul_rn(line(row)[a.channels], sum);
    }
    if (first == 0)
        for (uint32_t back = min(w, a.count); back > 0; back--) ring[(s->position + a.count - back) % w] = fresh(a.count - back);
}
