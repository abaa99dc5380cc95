// Mixers that keep a state of fixed size: what a gated delta net and a Mamba-2 layer have in common.
//
// A head has a state S of `rows` x `cols` numbers. With vectors k and q of `cols` and v of `rows`, a token does
//   S = decay * S + d k^T,   out = S q (+ skip * v),
// where d = scale * (v - decay * S k) with the delta rule, and d = scale * v without. q, k and v are
// outputs of a causal convolution over the last `width` tokens, channel by channel, through SiLU.
//
// In memory, a layer's part of a session's fixed state is the ring of the convolution's inputs, [channels][width], of which
// position p has entry p % width, and behind it S, [heads][rows][cols].
#pragma once
#include "args_recurrent.h"
#include "common.cuh"

__device__ __forceinline__ float sigmoid(float v) { return let_through(v, 1.0f); }
__device__ __forceinline__ float softplus(float v) { return v > 20.0f ? v : log1pf(__expf(v)); }

__device__ __forceinline__ float* ring_of(const RecurrentArgs& a, const Session* s) { return (float*)(s->fixed + a.state_offset); }
__device__ __forceinline__ float* matrix_of(const RecurrentArgs& a, const Session* s, uint32_t head) {
    return (float*)(s->fixed + a.state_offset + a.matrix_offset) + (uint64_t)head * a.rows * a.cols;
}

__device__ __forceinline__ uint32_t key_of(const RecurrentArgs& a, uint32_t head) { return a.tiled ? head % (a.heads / a.per_key) : head / a.per_key; }
// Heads that share keys read them all, and the first of them keeps them in the ring, in an entry that nobody reads in that step.
__device__ __forceinline__ bool keeps_keys(const RecurrentArgs& a, uint32_t head) { return a.tiled ? head < a.heads / a.per_key : head % a.per_key == 0; }

// How a token changes a head's state.
struct Change {
    float decay;
    float scale;
};
__device__ __forceinline__ float beta_of(const RecurrentArgs& a, const float* in, uint32_t head) { return a.delta ? in[a.beta_at + head] : 0.0f; }
__device__ __forceinline__ Change change_of(const RecurrentArgs& a, float in, float beta, float rate, float step_bias) {
    const float step = fminf(fmaxf(softplus(__fadd_rn(in, step_bias)), a.least), a.most);
    return Change{__expf(__fmul_rn(rate, step)), a.delta ? __fmul_rn(a.beta_scale, sigmoid(beta)) : step};
}

// What a token leaves of column `c` of a head's state, where each channel has a step of its own; of row `row` of input.
__device__ __forceinline__ float left_of(const RecurrentArgs& a, uint32_t row, uint32_t head, uint32_t c, float rate) {
    const uint32_t channel = head * a.cols + c;
    const float in = __fadd_rn(a.steps[(uint64_t)row * a.steps_stride + channel], a.step_bias[channel]);
    return __expf(a.floor < 0.0f ? __fmul_rn(a.floor, sigmoid(__fmul_rn(rate, in))) : __fmul_rn(rate, softplus(in)));
}
// How such a token changes a state of which that is left.
__device__ __forceinline__ Change change_of_channels(const RecurrentArgs& a, const float* in, uint32_t head) {
    return Change{1.0f, __fmul_rn(a.beta_scale, sigmoid(in[a.beta_at + head]))};
}

// Sums over the columns, of products of a row of S, k and q.
struct RawSums {
    enum { WITH_K, WITH_Q, KQ, KK, QQ, COUNT };
    float sum[COUNT];
};

// The numbers of four threads that share a row of S: thread p has columns 16 i + 4 p and the next three, i < N.
template <int N> struct RowPart {
    float v[N][4];
    __device__ __forceinline__ void load(const float* row, uint32_t cols, uint32_t part, bool there) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint32_t c = 16 * i + 4 * part;
            if (cols % 4 == 0) {
                const float4 x = there && c < cols ? __ldcs((const float4*)(row + c)) : make_float4(0, 0, 0, 0);
                v[i][0] = x.x; v[i][1] = x.y; v[i][2] = x.z; v[i][3] = x.w;
            } else {
#pragma unroll
                for (int j = 0; j < 4; j++) v[i][j] = there && c + j < cols ? row[c + j] : 0.0f;
            }
        }
    }
    __device__ __forceinline__ void store(float* row, uint32_t cols, uint32_t part, bool there) const {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint32_t c = 16 * i + 4 * part;
            if (!there) continue;
            if (cols % 4 == 0) {
                if (c < cols) __stcs((float4*)(row + c), make_float4(v[i][0], v[i][1], v[i][2], v[i][3]));
            } else {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (c + j < cols) row[c + j] = v[i][j];
            }
        }
    }
    // The same in shared memory, of a number of columns that is a multiple of four, in which zeros follow the columns. Odd rows take their
    // parts in another order, so that two rows of a whole number of banks do not wait for each other.
    __device__ __forceinline__ void load_copied(const float* row, uint32_t cols, uint32_t part, bool odd) {
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            float4 x[2];
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const uint32_t c = 16 * (i + (odd ? 1 - n : n)) + 4 * part;
                x[n] = c < cols ? *(const float4*)(row + c) : make_float4(0, 0, 0, 0);
            }
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const float4 own = odd ? x[1 - n] : x[n];
                v[i + n][0] = own.x; v[i + n][1] = own.y; v[i + n][2] = own.z; v[i + n][3] = own.w;
            }
        }
    }
    __device__ __forceinline__ void store_copied(float* row, uint32_t cols, uint32_t part, bool odd) const {
#pragma unroll
        for (int i = 0; i < N; i += 2)
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const uint32_t c = 16 * (i + (odd ? 1 - n : n)) + 4 * part;
                float own[4];
#pragma unroll
                for (int j = 0; j < 4; j++) own[j] = odd ? v[i + 1 - n][j] : v[i + n][j];
                if (c < cols) *(float4*)(row + c) = make_float4(own[0], own[1], own[2], own[3]);
            }
    }
    // What is left of each column: `left` has N * 16 numbers.
    __device__ __forceinline__ void fade(const float* left, uint32_t part) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float4 x = *(const float4*)(left + 16 * i + 4 * part);
            v[i][0] = __fmul_rn(v[i][0], x.x); v[i][1] = __fmul_rn(v[i][1], x.y);
            v[i][2] = __fmul_rn(v[i][2], x.z); v[i][3] = __fmul_rn(v[i][3], x.w);
        }
    }
    // Four numbers of x, of columns that the thread has.
    static __device__ __forceinline__ void read_four(const float* x, int i, uint32_t part, float (&to)[4]) {
        const float4 four = *(const float4*)(x + 16 * i + 4 * part);
        to[0] = four.x; to[1] = four.y; to[2] = four.z; to[3] = four.w;
    }
    // S = decay * S + d k^T.
    __device__ __forceinline__ void renew(float decay, float d, const float (&keys)[N][4]) {
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) v[i][j] = __fmaf_rn(d, keys[i][j], __fmul_rn(decay, v[i][j]));
    }
    // A token: `k` and `q` have N * 16 numbers, zeros behind the columns; `kq` is their product. Whole warps call it.
    __device__ __forceinline__ float token(const float* k, const float* q, float kq, float value, Change change, bool delta, float skip, uint32_t part) {
        float with_k[2] = {0.0f, 0.0f}, with_q[2] = {0.0f, 0.0f};
        float keys[N][4];
#pragma unroll
        for (int i = 0; i < N; i++) {
            float queries[4];
            read_four(k, i, part, keys[i]);
            read_four(q, i, part, queries);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                with_k[j & 1] = __fmaf_rn(v[i][j], keys[i][j], with_k[j & 1]);
                with_q[j & 1] = __fmaf_rn(v[i][j], queries[j], with_q[j & 1]);
            }
        }
        float sk = __fadd_rn(with_k[0], with_k[1]), sq = __fadd_rn(with_q[0], with_q[1]);
#pragma unroll
        for (int o = 1; o < 4; o <<= 1) {
            sk = __fadd_rn(sk, __shfl_xor_sync(~0u, sk, o));
            sq = __fadd_rn(sq, __shfl_xor_sync(~0u, sq, o));
        }
        const float left = delta ? __fmaf_rn(-change.decay, sk, value) : value, d = __fmul_rn(change.scale, left);
        renew(change.decay, d, keys);
        return __fmaf_rn(skip, value, __fmaf_rn(d, kq, __fmul_rn(change.decay, sq)));
    }
    // The same of k and q as the convolution leaves them: with the delta rule, they have still to be divided by their lengths. The
    // four threads work out what they need of k and q for themselves, so nobody waits for another warp.
    template <bool DELTA> __device__ __forceinline__ float raw_token(const float* k, const float* q, float value, Change change, float q_scale, float skip, uint32_t part) {
        RawSums sums;
        float keys[N][4];
        add_up<DELTA, true, true>(sums, k, q, part, keys);
        return raw_token<DELTA>(sums, keys, value, change, q_scale, skip);
    }
    // In two halves. Sums of products of the row of S, and those of k and q alone, which all rows have alike. Whole warps call it.
    template <bool DELTA, bool OF_ROW, bool OF_PAIR> __device__ __forceinline__ void add_up(RawSums& of, const float* k, const float* q, uint32_t part, float (&keys)[N][4]) const {
        constexpr bool WANTED[RawSums::COUNT] = {OF_ROW && DELTA, OF_ROW, OF_PAIR, OF_PAIR && DELTA, OF_PAIR && DELTA};
        float sums[RawSums::COUNT][2] = {};
#pragma unroll
        for (int i = 0; i < N; i++) {
            float queries[4];
            read_four(k, i, part, keys[i]);
            read_four(q, i, part, queries);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float x[RawSums::COUNT] = {v[i][j], v[i][j], keys[i][j], keys[i][j], queries[j]};
                const float y[RawSums::COUNT] = {keys[i][j], queries[j], queries[j], keys[i][j], queries[j]};
#pragma unroll
                for (int n = 0; n < RawSums::COUNT; n++)
                    if (WANTED[n]) sums[n][j & 1] = __fmaf_rn(x[n], y[n], sums[n][j & 1]);
            }
        }
#pragma unroll
        for (int n = 0; n < RawSums::COUNT; n++)
            if (WANTED[n]) of.sum[n] = __fadd_rn(sums[n][0], sums[n][1]);
#pragma unroll
        for (int o = 1; o < 4; o <<= 1)
#pragma unroll
            for (int n = 0; n < RawSums::COUNT; n++)
                if (WANTED[n]) of.sum[n] = __fadd_rn(of.sum[n], __shfl_xor_sync(~0u, of.sum[n], o));
    }
    template <bool DELTA> __device__ __forceinline__ float raw_token(const RawSums& of, const float (&keys)[N][4], float value, Change change, float q_scale, float skip) {
        float left = value, with_q = of.sum[RawSums::WITH_Q], kq = of.sum[RawSums::KQ], k_factor = 1.0f;
        if constexpr (DELTA) {
            k_factor = rsqrtf(__fadd_rn(of.sum[RawSums::KK], 1e-6f));
            const float q_factor = __fmul_rn(q_scale, rsqrtf(__fadd_rn(of.sum[RawSums::QQ], 1e-6f)));
            left = __fmaf_rn(-change.decay, __fmul_rn(of.sum[RawSums::WITH_K], k_factor), value);
            with_q = __fmul_rn(with_q, q_factor);
            kq = __fmul_rn(__fmul_rn(kq, q_factor), k_factor);
        }
        const float d = __fmul_rn(change.scale, left), dk = DELTA ? __fmul_rn(d, k_factor) : d;
        renew(change.decay, dk, keys);
        return __fmaf_rn(skip, value, __fmaf_rn(d, kq, __fmul_rn(change.decay, with_q)));
    }
};
