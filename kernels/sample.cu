// What is done to logits before a choice, the best of them, and the end of a step that takes it.
#include "sample.cuh"

// The length of the longest sequence breaker that `tokens` (of `n`) start with, or 0.
__device__ uint32_t breaker_at(const Settings& s, uint32_t n_vocab, const uint32_t* tokens, uint32_t n) {
    const uint32_t *single = (const uint32_t*)s.single_breakers, *longer = (const uint32_t*)s.breakers;
    const uint32_t head = tokens[0], word = head / 32, bit = head % 32;
    uint32_t longest = single && single[word] >> bit & 1;
    if (!longer || !(longer[1 + word] >> bit & 1)) return longest;
    for (const uint32_t* breaker = longer + 1 + (n_vocab + 31) / 32; breaker[0]; breaker += 1 + breaker[0]) {
        uint32_t length = breaker[0], same = 0;
        if (length > n) continue;
        while (same < length && breaker[1 + same] == tokens[same]) same++;
        if (same == length) longest = max(longest, length);
    }
    return longest;
}

// Grid (any, batch), 1024 threads: counts the tokens of the penalties' window, and finds the
// repetitions that a token would go on with. Blocks share the positions of the windows.
extern "C" __global__ void __launch_bounds__(1024) penalize(const __grid_constant__ SampleArgs a) {
    __shared__ uint32_t broken;
    release_dependents();
    wait_for_producers();
    const Session& session = *a.sessions[blockIdx.y];
    const Settings& s = session.settings;
    if (!s.penalty_window && !(s.dry_multiplier > 0.0f)) return;
    uint32_t* history = (uint32_t*)session.history;
    const uint32_t n = session.position + a.advance;
    if (threadIdx.x == 0) {
        // Every block writes the same.
        if (a.advance) history[session.position] = session.token;
        broken = 0;
    }
    __syncthreads();
    const uint32_t first = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
    if (s.penalty_window) {
        uint32_t* counts = (uint32_t*)session.counts;
        for (uint32_t i = n - min(n, s.penalty_window) + first; i < n; i += stride) atomicAdd(&counts[history[i]], 1u);
    }
    if (!(s.dry_multiplier > 0.0f) || n == 0) return;
    const uint32_t start = n - min(n, s.dry_window);
    // Where the last breaker ends, as far as that can shorten a repetition that counts.
    const uint64_t reach = (uint64_t)s.dry_longest + (s.breakers ? *(const uint32_t*)s.breakers : 1);
    const uint32_t from = max((uint64_t)start, n > reach ? n - reach : 0);
    for (uint32_t i = from + threadIdx.x; i < n; i += blockDim.x) {
        uint32_t length = breaker_at(s, a.n_vocab, history + i, n - i);
        if (length) atomicMax(&broken, i + length);
    }
    __syncthreads();
    const uint32_t most = min(n - max(broken, start), s.dry_longest);
    if (most < s.dry_allowed_length) return;
    uint32_t* lengths = (uint32_t*)session.lengths;
    const uint32_t newest = history[n - 1];
    for (uint32_t end = start + first; end < n - 1; end += stride) {
        if (history[end] != newest) continue;
        uint32_t same = 1;
        while (same < most && end - same + 1 > start && history[end - same] == history[n - 1 - same]) same++;
        uint32_t next = history[end + 1];
        const uint32_t* single = (const uint32_t*)s.single_breakers;
        if (single && single[next / 32] >> (next % 32) & 1) continue;
        atomicMax(&lengths[next], same);
    }
}

__device__ float dry_penalty(const Settings& s, uint32_t length) {
    double power = 1.0, square = (double)s.dry_base;
    for (uint32_t exponent = length - s.dry_allowed_length; exponent; exponent >>= 1) {
        if (exponent & 1) power = __dmul_rn(power, square);
        square = __dmul_rn(square, square);
    }
    return __double2float_rn(fmin(__dmul_rn((double)s.dry_multiplier, power), (double)FLT_MAX));
}

// A logit as the session's settings change it: what is known of its token is loaded first, so that the
// loads of several tokens overlap.
struct Adjustment {
    float logit, bias;
    uint32_t count, length, allowed;
};
__device__ __forceinline__ Adjustment load_adjustment(const Session& session, float logit, uint32_t id) {
    const Settings& s = session.settings;
    return {logit, s.bias ? ((const float*)s.bias)[id] : 0.0f, s.penalty_window ? ((const uint32_t*)session.counts)[id] : 0,
            s.dry_multiplier > 0.0f ? ((const uint32_t*)session.lengths)[id] : 0,
            s.masked ? ((const uint32_t*)session.mask)[id / 32] >> (id % 32) & 1 : 1};
}
// The adjusted logit. Clears the token's count and length.
__device__ float adjusted_logit(const Session& session, const Adjustment& a, uint32_t id) {
    const Settings& s = session.settings;
    float v = a.logit;
    if (s.bias) v = fminf(__fadd_rn(v, a.bias), FLT_MAX);
    if (a.count) {
        ((uint32_t*)session.counts)[id] = 0;
        v = v > 0.0f ? fminf(__fdiv_rn(v, s.repeat_penalty), FLT_MAX) : __fmul_rn(v, s.repeat_penalty);
        float occurrences = fminf(fmaxf(__fmul_rn(__uint2float_rn(a.count), s.frequency_penalty), -FLT_MAX), FLT_MAX);
        v = fminf(__fsub_rn(__fsub_rn(v, occurrences), s.presence_penalty), FLT_MAX);
    }
    if (a.length) {
        ((uint32_t*)session.lengths)[id] = 0;
        if (a.length >= s.dry_allowed_length) v = __fsub_rn(v, dry_penalty(s, a.length));
    }
    if (!a.allowed) v = -INFINITY;
    // What is no number stays so, to be told.
    return isnan(a.logit) || a.logit == INFINITY ? a.logit : v;
}

// Grid (BEST_GROUPS / 4, batch), 256 threads: adjusts the logits, where a session has them adjusted, and
// finds the first of the largest in each group of tokens.
extern "C" __global__ void __launch_bounds__(256) best(const __grid_constant__ SampleArgs a) {
    __shared__ float values[8];
    __shared__ uint32_t ids[8];
    release_dependents();
    wait_for_producers();
    float v = -INFINITY;
    uint32_t id = ~0u;
    const float* logits = a.logits + (uint64_t)blockIdx.y * a.n_vocab;
    const Session& session = *a.sessions[blockIdx.y];
    const uint32_t first = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
    if (a.adjust && adjusts(session.settings)) {
        float* adjusted = (float*)session.adjusted;
        constexpr uint32_t AHEAD = 4;
        for (uint32_t start = first; start < a.n_vocab; start += AHEAD * stride) {
            Adjustment of[AHEAD];
#pragma unroll
            for (uint32_t j = 0; j < AHEAD; j++) {
                uint32_t i = start + j * stride;
                if (i < a.n_vocab) of[j] = load_adjustment(session, logits[i], i);
            }
#pragma unroll
            for (uint32_t j = 0; j < AHEAD; j++) {
                uint32_t i = start + j * stride;
                if (i >= a.n_vocab) break;
                float w = adjusted_logit(session, of[j], i);
                adjusted[i] = w;
                if (better(w, i, v, id)) { v = w; id = i; }
            }
        }
    } else {
        constexpr uint32_t AHEAD = 8;
        for (uint32_t start = first; start < a.n_vocab; start += AHEAD * stride) {
            float w[AHEAD];
#pragma unroll
            for (uint32_t j = 0; j < AHEAD; j++) w[j] = start + j * stride < a.n_vocab ? logits[start + j * stride] : 0.0f;
#pragma unroll
            for (uint32_t j = 0; j < AHEAD; j++) {
                const uint32_t i = start + j * stride;
                if (i < a.n_vocab && better(w[j], i, v, id)) { v = w[j]; id = i; }
            }
        }
    }
    warp_best(v, id);
    if ((threadIdx.x & 31) == 0) { values[threadIdx.x >> 5] = v; ids[threadIdx.x >> 5] = id; }
    __syncthreads();
    if (threadIdx.x < 4) {
        v = values[2 * threadIdx.x];
        id = ids[2 * threadIdx.x];
        float w = values[2 * threadIdx.x + 1];
        uint32_t other = ids[2 * threadIdx.x + 1];
        if (better(w, other, v, id)) { v = w; id = other; }
        const uint32_t group = blockIdx.y * BEST_GROUPS + blockIdx.x * 4 + threadIdx.x;
        a.group_value[group] = v;
        a.group_id[group] = id;
    }
}

// Grid (batch), 256 threads: ends a step that takes the best token, or none.
extern "C" __global__ void __launch_bounds__(256) finish(const __grid_constant__ SampleArgs a) {
    release_dependents();
    wait_for_producers();
    Session& s = *a.sessions[blockIdx.x];
    float v = 0.0f;
    uint32_t id = 0;
    if (a.choose) best_group(a, blockIdx.x, v, id);
    if (threadIdx.x != 0) return;
    append(s, a.advance);
    if (a.choose) publish(s, a.logits + (uint64_t)blockIdx.x * a.n_vocab, a.n_vocab, id, outcome_of(v));
}
