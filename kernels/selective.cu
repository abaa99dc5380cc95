// The recurrence of the first Mamba: a whole token of a decode step, and the tokens of a chunk.
//
// A channel c has `state_dim` numbers S[n]. With dt = softplus of its time step, B and C of the token and x the result of the
// convolution (recurrent.cu), a token does
//   S[n] = exp(dt * rate[c][n]) * S[n] + dt * x * B[n],   out = (S . C + skip * x) * silu(gate).
//
// In a session's fixed state, S lies behind the ring of the convolution: [blocks of CHANNELS][state_dim][CHANNELS].
//
// In a step, row i of input is session i at its current position. In a chunk all rows are of session 0, at
// consecutive positions.
#include "args_recurrent.h"
#include "norm.cuh"
#include "powers.cuh"
#include "recurrent.cuh"

// Channels whose numbers lie together, and the most numbers of a channel.
constexpr uint32_t CHANNELS = 16;

__device__ __forceinline__ uint64_t place_of(const SelectiveArgs& a, uint32_t channel) {
    return (uint64_t)(channel / CHANNELS) * a.state_dim * CHANNELS + channel % CHANNELS;
}
__device__ __forceinline__ float* states_of(const SelectiveArgs& a, const Session* s) { return (float*)(s->fixed + a.matrix_offset); }

// Channels of a block of a step. Two threads share one: thread p has numbers 2 i + p.
constexpr uint32_t STEP_NUMBERS = 8;

struct StepParts {
    float of[2][MAX_STATES];  // B, C
};

// One token of each session, or with CHAINS those of each chain of rows: the bits are the same.
// Grid (channels / STEP_CHANNELS rounded up, batch), 2 * STEP_CHANNELS threads.
template <bool CHAINS> __device__ __forceinline__ void selective_token(const SelectiveArgs& a) {
    STATIC_SHARED(StepParts, m);
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32, part = lane / CHANNELS;
    const uint32_t channel = blockIdx.x * STEP_CHANNELS + warp * CHANNELS + lane % CHANNELS;
    const bool there = channel < a.channels;
    release_dependents();
    // The state is the last step's.
    const Session* s = a.sessions[blockIdx.y];
    const uint32_t count = CHAINS ? s->chain : 1;
    if (CHAINS && count == 0) return;
    const uint64_t place = place_of(a, channel);
    float *state = states_of(a, s) + place, now[STEP_NUMBERS], rate[STEP_NUMBERS];
    const float* before = CHAINS ? (const float*)(s->before + a.matrix_offset) + place : state;
    auto load = [&](uint32_t first) {
#pragma unroll
        for (uint32_t i = 0; i < STEP_NUMBERS; i++) {
            const uint32_t n = first + 2 * i + part;
            const bool valid = there && n < a.state_dim;
            now[i] = valid ? before[n * CHANNELS] : 0.0f;
            rate[i] = valid ? a.rate[place + n * CHANNELS] : 0.0f;
        }
    };
    load(0);
    const float skip = there ? a.skip[channel] : 0.0f;
    wait_for_producers();
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t row = blockIdx.y + i;
        if (CHAINS && i) {
            // Nobody reads the last row's parts any more.
            __syncthreads();
            before = state;
            state = states_of(a, a.sessions[row]) + place;
            load(0);
        }
        if (warp < 2) {
            const float* from = a.parts + (uint64_t)row * a.part_stride + warp * a.state_dim;
            for (uint32_t n = lane; n < a.state_dim; n += 32) m.of[warp][n] = from[n];
            __syncwarp();
            if (a.norms[warp].weight) norm_head(a.norms[warp], m.of[warp], a.state_dim);
        }
        const uint64_t at = (uint64_t)row * a.channels + channel;
        const float x = there ? a.convolved[at] : 0.0f, dt = there ? softplus(a.steps[at]) : 0.0f;
        const float gate = there ? a.input[(uint64_t)row * a.in_stride + a.channels + channel] : 0.0f, dx = __fmul_rn(dt, x);
        __syncthreads();
        float sum = 0.0f;
        for (uint32_t first = 0; first < a.state_dim; first += 2 * STEP_NUMBERS) {
            if (first) load(first);
#pragma unroll
            for (uint32_t i = 0; i < STEP_NUMBERS; i++) {
                const uint32_t n = first + 2 * i + part;
                if (n >= a.state_dim) continue;
                const float v = __fmaf_rn(power_of_2(__fmul_rn(dt, rate[i])), now[i], __fmul_rn(dx, m.of[0][n]));
                if (there) state[n * CHANNELS] = v;
                sum = __fmaf_rn(v, m.of[1][n], sum);
            }
        }
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, CHANNELS));
        if (there && part == 0) a.out[at] = __fmul_rn(__fmaf_rn(skip, x, sum), silu(gate));
    }
}
extern "C" __global__ void __launch_bounds__(2 * STEP_CHANNELS) selective_step(const __grid_constant__ SelectiveArgs a) { selective_token<false>(a); }
extern "C" __global__ void __launch_bounds__(2 * STEP_CHANNELS) selective_chain(const __grid_constant__ SelectiveArgs a) { selective_token<true>(a); }

// Channels of a block of a scan, each of four threads, tokens that it fetches at a time, and those that a thread fetches.
constexpr uint32_t TOKENS_AT_ONCE = 16, THREADS_OF_SCAN = 4 * SCAN_CHANNELS, TOKENS_EACH = TOKENS_AT_ONCE * SCAN_CHANNELS / THREADS_OF_SCAN;

template <int N> struct ChannelTokens {
    float parts[TOKENS_AT_ONCE][2][4 * N];  // B, C
    float dt[TOKENS_AT_ONCE][SCAN_CHANNELS], dx[TOKENS_AT_ONCE][SCAN_CHANNELS], sum[TOKENS_AT_ONCE][SCAN_CHANNELS];
};

// The tokens of a chunk, one after another. Thread p of a channel has its numbers N p to N p + N - 1.
// Grid channels / SCAN_CHANNELS rounded up, THREADS_OF_SCAN threads.
template <int N> __device__ __forceinline__ void selective_scan(const SelectiveArgs& a) {
    STATIC_SHARED(ChannelTokens<N>, m);
    const uint32_t thread = threadIdx.x, lane = thread & 31, warp = thread / 32, part = lane / 8, mine = warp * 8 + lane % 8;
    const uint32_t first = blockIdx.x * SCAN_CHANNELS, channel = first + mine;
    release_dependents();
    wait_for_producers();
    const Session* s = a.sessions[0];
    const uint64_t place = place_of(a, channel);
    float *state = states_of(a, s) + place, now[N], rate[N];
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t n = N * part + i;
        const bool valid = channel < a.channels && n < a.state_dim;
        now[i] = valid ? state[n * CHANNELS] : 0.0f;
        rate[i] = valid ? a.rate[place + n * CHANNELS] : 0.0f;
    }
    // What this thread fetches and stores: a channel of every fourth token.
    const uint32_t other = first + lane;
    const bool there = other < a.channels;
    const float skip = there ? a.skip[other] : 0.0f;
    float x[TOKENS_EACH], step[TOKENS_EACH], gate[TOKENS_EACH];
    auto fetch = [&](uint32_t begin) {
#pragma unroll
        for (uint32_t i = 0; i < TOKENS_EACH; i++) {
            const uint32_t t = begin + warp + 4 * i;
            const bool valid = there && t < a.count;
            const uint64_t at = (uint64_t)t * a.channels + other;
            x[i] = valid ? a.convolved[at] : 0.0f;
            step[i] = valid ? a.steps[at] : 0.0f;
            gate[i] = valid ? a.input[(uint64_t)t * a.in_stride + a.channels + other] : 0.0f;
        }
    };
    // Four threads a row, of B or C of a token.
    const uint32_t token = thread / 8, which = thread / 4 % 2, quarter = thread % 4;
    float of_row[N];
    auto fetch_parts = [&](uint32_t begin) {
        const float* from = a.parts + (uint64_t)(begin + token) * a.part_stride + which * a.state_dim;
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t n = 4 * i + quarter;
            of_row[i] = begin + token < a.count && n < a.state_dim ? from[n] : 0.0f;
        }
    };
    const NormArgs norm = a.norms[which];
    fetch(0);
    fetch_parts(0);
    for (uint32_t begin = 0; begin < a.count; begin += TOKENS_AT_ONCE) {
        float skipped[TOKENS_EACH], through[TOKENS_EACH];
#pragma unroll
        for (uint32_t i = 0; i < TOKENS_EACH; i++) {
            const bool valid = there && begin + warp + 4 * i < a.count;
            // Behind the last token nothing changes.
            const float dt = valid ? softplus(step[i]) : 0.0f;
            m.dt[warp + 4 * i][lane] = dt;
            m.dx[warp + 4 * i][lane] = __fmul_rn(dt, x[i]);
            skipped[i] = __fmul_rn(skip, x[i]);
            through[i] = silu(gate[i]);
        }
        // Rows of both kinds are in a warp, which stays together.
        float squares = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < N; i++) squares = __fmaf_rn(of_row[i], of_row[i], squares);
        squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, 1));
        squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, 2));
        const float scale = 1.0f / sqrtf(__fadd_rn(squares / (float)a.state_dim, norm.eps));
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t n = 4 * i + quarter;
            m.parts[token][which][n] = norm.weight && n < a.state_dim ? __fmul_rn(__fmul_rn(of_row[i], scale), norm.weight[n]) : of_row[i];
        }
        __syncthreads();
        if (begin + TOKENS_AT_ONCE < a.count) {
            fetch(begin + TOKENS_AT_ONCE);
            fetch_parts(begin + TOKENS_AT_ONCE);
        }
#pragma unroll 4
        for (uint32_t t = 0; t < TOKENS_AT_ONCE; t++) {
            const float dt = m.dt[t][mine], dx = m.dx[t][mine];
            float sum = 0.0f;
#pragma unroll
            for (uint32_t i = 0; i < N; i += 4) {
                const float4 b = *(const float4*)&m.parts[t][0][N * part + i], c = *(const float4*)&m.parts[t][1][N * part + i];
                const float of_b[4] = {b.x, b.y, b.z, b.w}, of_c[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
                for (uint32_t j = 0; j < 4; j++) {
                    now[i + j] = __fmaf_rn(power_of_2(__fmul_rn(dt, rate[i + j])), now[i + j], __fmul_rn(dx, of_b[j]));
                    sum = __fmaf_rn(now[i + j], of_c[j], sum);
                }
            }
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 8));
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 16));
            if (part == 0) m.sum[t][mine] = sum;
        }
        __syncthreads();
#pragma unroll
        for (uint32_t i = 0; i < TOKENS_EACH; i++) {
            const uint32_t t = begin + warp + 4 * i;
            if (there && t < a.count) a.out[(uint64_t)t * a.channels + other] = __fmul_rn(__fadd_rn(m.sum[warp + 4 * i][lane], skipped[i]), through[i]);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t n = N * part + i;
        if (channel < a.channels && n < a.state_dim) state[n * CHANNELS] = now[i];
    }
}
extern "C" __global__ void __launch_bounds__(THREADS_OF_SCAN) selective_scan_16(const __grid_constant__ SelectiveArgs a) { selective_scan<4>(a); }
extern "C" __global__ void __launch_bounds__(THREADS_OF_SCAN) selective_scan_64(const __grid_constant__ SelectiveArgs a) { selective_scan<16>(a); }
