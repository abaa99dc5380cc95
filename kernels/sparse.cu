// SparseMixer (arXiv:2409.12136), by way of scores that experts are chosen and weighed by as ever.
#include "args_sparse.h"
#include "common.cuh"

// The largest of a warp's scores and its number; of equal ones the first.
struct Best {
    float score;
    uint32_t at;
    __device__ __forceinline__ void take(float other, uint32_t its) {
        if (at == ~0u || (its != ~0u && (other > score || (other == score && its < at)))) {
            score = other;
            at = its;
        }
    }
};

// Two experts of a row keep a score: what the sigmoid of it is their weight. It is the share of exp(score) among the experts whose score is
// near theirs, of the second one without the first. Rows with a NaN stay as they are.
//
// Grid (rows), a warp each.
extern "C" __global__ void __launch_bounds__(32) sparse_mixer(const __grid_constant__ SparseMixerArgs a) {
    release_dependents();
    wait_for_producers();
    float* const scores = a.scores + (uint64_t)blockIdx.x * a.score_stride;
    const uint32_t lane = threadIdx.x & 31;
    bool broken = false;
    Best chosen[2];
    float rest[2];
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
        const uint32_t taken = k ? chosen[0].at : ~0u;
        Best best{-INFINITY, ~0u};
        for (uint32_t i = lane; i < a.n_experts; i += 32) {
            const float score = __ldcg(scores + i);
            broken |= score != score;
            if (i != taken) best.take(score, i);
        }
#pragma unroll
        for (int o = 16; o; o >>= 1) best.take(__shfl_xor_sync(~0u, best.score, o), __shfl_xor_sync(~0u, best.at, o));
        // What is beside the largest score in the sum that it is divided by.
        float sum = 0.0f;
        for (uint32_t i = lane; i < a.n_experts; i += 32) {
            if (i == taken || i == best.at) continue;
            const float score = __ldcg(scores + i);
            const float distance = __fdiv_rn(__fsub_rn(best.score, score), fmaxf(fabsf(score), best.score));
            sum += score == best.score ? 1.0f : distance > a.nearness ? 0.0f : expf(score - best.score);
        }
        rest[k] = warp_sum(sum);
        chosen[k] = best;
    }
    if (__any_sync(~0u, broken)) return;
    // 1 / (1 + rest) is the sigmoid of -log(rest).
    for (uint32_t i = lane; i < a.n_experts; i += 32)
        scores[i] = i == chosen[0].at ? -logf(rest[0]) : i == chosen[1].at ? -logf(rest[1]) : -INFINITY;
}
