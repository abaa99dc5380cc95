// Which experts a row goes through, by its scores, and with which weights: by one warp.
#pragma once
#include "args_experts.h"
#include "common.cuh"

enum Scoring : uint32_t { SCORE_SOFTMAX = 0, SCORE_SIGMOID = 1, SCORE_SOFTMAX_OF_CHOSEN = 2 };
enum SharedExpert : uint32_t { NO_SHARED = 0, SHARED = 1, SHARED_WITH_SCORE = 2 };

// Pairs of one expert. Pair p is row p / n_used and the (p % n_used)-th of its experts.
struct PairTile {
    uint32_t expert;
    uint32_t n;
    uint32_t pairs[PAIRS_AT_ONCE];
    uint32_t padding[2];
};
static_assert(sizeof(PairTile) == 32, "as in places.rs");

// What a warp needs in shared memory to choose a row's experts.
struct RouteMemory {
    float scores[MAX_EXPERTS + 1];
    float keys[MAX_EXPERTS];
    uint32_t chosen[MAX_USED + 1];
};

// Bits whose order, as integers, is that of the numbers; 0 is below all of them. Both zeros are one.
__device__ __forceinline__ uint32_t ordered(float key) {
    const uint32_t bits = __float_as_uint(__fadd_rn(key, 0.0f));
    return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

// The numbers of the n_used largest keys, ascending; of equal keys the first ones. A lane looks after E neighbours of at
// most 32 * E keys.
template <int E> __device__ __forceinline__ void choose_largest(const float* keys, uint32_t n, uint32_t n_used, uint32_t* chosen) {
    const uint32_t lane = threadIdx.x & 31;
    uint32_t left[E], taken = 0;
#pragma unroll
    for (int k = 0; k < E; k++) left[k] = lane * E + k < n ? ordered(keys[lane * E + k]) : 0;
#pragma unroll 1
    for (uint32_t j = 0; j < n_used; j++) {
        uint32_t best = 0;
#pragma unroll
        for (int k = 0; k < E; k++) best = max(best, left[k]);
        const uint32_t all = warp_largest(best), lanes = __ballot_sync(~0u, best == all);
        // The first of them gives it up; no key has all bits.
        uint32_t mine = (lanes & (0u - lanes)) == 1u << lane ? all : ~0u;
#pragma unroll
        for (int k = 0; k < E; k++) {
            const bool is_it = left[k] == mine;
            left[k] = is_it ? 0 : left[k];
            taken |= is_it ? 1u << k : 0;
            mine = is_it ? ~0u : mine;
        }
    }
    // As many as the lanes before have taken come first.
    uint32_t before = __popc(taken);
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const uint32_t below = __shfl_up_sync(~0u, before, o);
        if (lane >= o) before += below;
    }
    before -= __popc(taken);
    for (int k = 0; k < E; k++)
        if (taken >> k & 1) chosen[before++] = lane * E + k;
}

// What a score is worth beside those of all experts.
struct Weigher {
    uint32_t scoring;
    float largest = 0.0f, all = 1.0f;

    __device__ __forceinline__ Weigher(const RouteArgs& a, const float* scores) : scoring(a.scoring) {
        if (scoring == SCORE_SIGMOID) return;
        const uint32_t lane = threadIdx.x & 31;
        largest = -INFINITY;
        for (uint32_t i = lane; i < a.n_experts; i += 32) largest = fmaxf(largest, scores[i]);
        largest = warp_max(largest);
        if (scoring != SCORE_SOFTMAX) return;
        all = 0.0f;
        for (uint32_t i = lane; i < a.n_experts; i += 32) all += power(scores[i]);
        all = warp_sum(all);
    }
    // Where all but infinite scores have no share, 1 for each of those.
    __device__ __forceinline__ float power(float score) const { return score == largest ? 1.0f : expf(score - largest); }
    // The weight before it is divided by those of the others chosen.
    __device__ __forceinline__ float operator()(float score) const {
        return scoring == SCORE_SIGMOID ? 1.0f / (1.0f + expf(-score)) : power(score) / all;
    }
};

// Keys of a group's experts become the least where others are better. A lane has a group.
__device__ __forceinline__ void leave_groups(const RouteArgs& a, float* keys) {
    const uint32_t lane = threadIdx.x & 31, each = a.n_experts / a.n_groups;
    float first = -INFINITY, second = -INFINITY;
    __syncwarp();
    if (lane < a.n_groups)
        for (uint32_t i = lane * each; i < (lane + 1) * each; i++) {
            const float key = keys[i];
            if (key > first) { second = first; first = key; }
            else if (key > second) second = key;
        }
    const float own = a.group_best > 1 ? first + second : first;
    uint32_t better = 0;
    for (uint32_t other = 0; other < a.n_groups; other++) {
        const float number = __shfl_sync(~0u, own, other);
        better += number > own || (number == own && other < lane);
    }
    if (lane < a.n_groups && better >= a.used_groups)
        for (uint32_t i = lane * each; i < (lane + 1) * each; i++) keys[i] = -INFINITY;
}

// The experts of a row, in `memory.chosen`.
__device__ __forceinline__ void choose_experts(const RouteArgs& a, uint32_t row, RouteMemory& memory) {
    const uint32_t lane = threadIdx.x & 31, n = a.n_experts;
    float *const scores = memory.scores, *const keys = memory.keys;
    const float* from = a.scores + (uint64_t)row * a.score_stride;
    for (uint32_t i = lane; i < a.score_stride; i += 32) {
        const float score = __ldcg(from + i);
        scores[i] = score;
        // The weights rise with the scores, so without a bias the scores do for choosing.
        if (i < n) keys[i] = score == score ? score : -INFINITY;
    }
    __syncwarp();
    if (a.selection_bias || a.group_best > 1) {
        const bool by_score = a.scoring == SCORE_SOFTMAX_OF_CHOSEN && a.selection_bias;
        const Weigher weight(a, scores);
        for (uint32_t i = lane; i < n; i += 32) {
            float key = by_score ? scores[i] : weight(scores[i]);
            if (a.selection_bias) key += a.selection_bias[i];
            keys[i] = key == key ? key : -INFINITY;
        }
    }
    if (a.n_groups) leave_groups(a, keys);
    __syncwarp();
    if (n <= 128) choose_largest<4>(keys, n, a.n_used, memory.chosen);
    else if (n <= 256) choose_largest<8>(keys, n, a.n_used, memory.chosen);
    else choose_largest<32>(keys, n, a.n_used, memory.chosen);
    __syncwarp();
}

// Writes them, and their weights.
__device__ __forceinline__ void write_choice(const RouteArgs& a, uint32_t row, const RouteMemory& memory) {
    const uint32_t lane = threadIdx.x & 31;
    bool broken = false;
    for (uint32_t i = lane; i < a.n_experts; i += 32) broken |= memory.scores[i] != memory.scores[i];
    broken = __any_sync(~0u, broken);
    const Weigher weight(a, memory.scores);
    const bool mine = lane < a.n_used;
    const uint32_t expert = mine ? memory.chosen[lane] : 0;
    const float own = mine ? weight(memory.scores[expert]) : 0.0f;
    float sum = 1.0f;
    if (a.normalize || a.scoring == SCORE_SOFTMAX_OF_CHOSEN) {
        sum = warp_sum(own);
        if (sum == 0.0f) sum = 1.0f;  // weights that are all zero stay so
    }
    float* weights = a.weights + (uint64_t)row * (a.n_used + 1);
    if (mine) {
        a.chosen[(uint64_t)row * a.n_used + lane] = expert;
        const float scale = a.expert_scales ? a.expert_scales[expert] : 1.0f;
        weights[lane] = broken ? NAN : own * (a.weight_scale / sum) * scale;
    }
    if (lane == 0) weights[a.n_used] = a.shared == SHARED_WITH_SCORE ? 1.0f / (1.0f + expf(-memory.scores[a.n_experts])) : 1.0f;
}
