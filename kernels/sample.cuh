// What the kernels that choose tokens share. The arithmetic is that of src/engine/sampling, operation
// by operation, so that host and device agree to the bit: weights are integers, whose sums do not
// depend on their order.
#pragma once
#include <cfloat>
#include "args_common.h"
#include "common.cuh"

// What a result's second word says besides the number of the step.
enum Outcome : uint32_t { CHOSEN = 0, NOT_A_NUMBER = 1, INFINITE = 2, ALL_MINUS_INFINITY = 3 };

// Whether the session's choices are by other logits than the model's.
__device__ __forceinline__ bool adjusts(const Settings& s) {
    return s.bias || s.masked || s.penalty_window || s.dry_multiplier > 0.0f;
}

// A NaN takes the place of any number.
__device__ __forceinline__ bool better(float v, uint32_t id, float w, uint32_t other) {
    if (isnan(v) || isnan(w)) return isnan(v) && (!isnan(w) || id < other);
    return v > w || (v == w && id < other);
}
__device__ __forceinline__ void warp_best(float& v, uint32_t& id) {
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        float w = __shfl_xor_sync(~0u, v, o);
        uint32_t other = __shfl_xor_sync(~0u, id, o);
        if (better(w, other, v, id)) { v = w; id = other; }
    }
}

// The best of a session's groups, the same in all of at least BEST_GROUPS threads; ends with a barrier.
__device__ __forceinline__ void best_group(const SampleArgs& a, uint32_t row, float& v, uint32_t& id) {
    __shared__ float values[32];
    __shared__ uint32_t ids[32];
    v = -INFINITY;
    id = ~0u;
    if (threadIdx.x < BEST_GROUPS) {
        v = a.group_value[row * BEST_GROUPS + threadIdx.x];
        id = a.group_id[row * BEST_GROUPS + threadIdx.x];
    }
    warp_best(v, id);
    if ((threadIdx.x & 31) == 0) { values[threadIdx.x >> 5] = v; ids[threadIdx.x >> 5] = id; }
    __syncthreads();
    uint32_t lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    v = lane < warps ? values[lane] : -INFINITY;
    id = lane < warps ? ids[lane] : ~0u;
    warp_best(v, id);
    __syncthreads();
}

__device__ __forceinline__ Outcome outcome_of(float best) {
    return isnan(best) ? NOT_A_NUMBER : best == INFINITY ? INFINITE : best == -INFINITY ? ALL_MINUS_INFINITY : CHOSEN;
}

// Notes the token that the step appended, if it did. One thread calls it.
__device__ __forceinline__ void append(Session& s, uint32_t advance) {
    if (!advance) return;
    ((uint32_t*)s.history)[s.position] = s.token;
    s.position++;
}

// Ends a step with a choice, after `append`. One thread calls it.
__device__ __forceinline__ void publish(Session& s, const float* logits, uint32_t n_vocab, uint32_t id, Outcome outcome) {
    uint32_t sequence = s.sequence + 1, slot = (sequence - 1) % s.result_slots;
    s.sequence = sequence;
    // After a failed choice the step that may be queued behind this one still needs a valid token.
    s.token = id < n_vocab ? id : 0;
    if (s.settings.logprobs && id < n_vocab)
        *(volatile float*)&((LogprobEntry*)s.logprobs)[slot].chosen = logits[id];
    uint64_t result = (uint64_t)((sequence & 0xffffff) << 8 | outcome) << 32 | id;
    __threadfence_system();
    *(volatile uint64_t*)(s.results + (uint64_t)slot * 8) = result;
}
