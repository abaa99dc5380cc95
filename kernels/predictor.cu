// Heads that guess further tokens (src/model/predictor.rs): the hidden states that they read, and what they begin with.
#include "args_predictor.h"
#include "norm.cuh"

// Grid (rows), 256 threads: the norm of each row comes to its session's ring, if it has one.
extern "C" __global__ void __launch_bounds__(256) keep_states(const __grid_constant__ KeepArgs a) {
    __shared__ float scratch[32];
    release_dependents();
    wait_for_producers();
    const uint32_t i = blockIdx.x;
    const Session* s = a.sessions[a.chunk ? 0 : i];
    // The last rows of a chunk take the places of those that there is no room for.
    if (!s->states || i + s->states_rows < a.chunk) return;
    const float* x = a.x + (uint64_t)i * a.x_stride;
    const uint32_t position = s->position + (a.chunk ? i : 0);
    float* to = (float*)s->states + (uint64_t)(position % s->states_rows) * a.len;
    const NormSums sums = norm_sums(a.norm, x, a.len, scratch);
    for (uint32_t e = threadIdx.x; e < a.len; e += blockDim.x) to[e] = normed(a.norm, e, x[e], sums);
}

// Grid (2, rows), 256 threads: a block takes the embedding or the state.
extern "C" __global__ void __launch_bounds__(256) enter_head(const __grid_constant__ EnterArgs a) {
    __shared__ float scratch[32];
    release_dependents();
    wait_for_producers();
    const uint32_t half = blockIdx.x, i = blockIdx.y;
    const float* x = a.x + (uint64_t)i * a.x_stride;
    if (half) {
        const Session* s = a.sessions[a.states ? 0 : i];
        const uint32_t rows = a.states ? a.states_rows : s->states_rows;
        const uint32_t row = a.states ? a.first + i : s->position + rows - 1;
        x = (a.states ? a.states : (const float*)s->states) + (uint64_t)(row % rows) * a.len;
    }
    float* to = a.out + (uint64_t)i * a.out_stride + half * a.len;
    const NormArgs& norm = a.norms[half];
    const NormSums sums = norm_sums(norm, x, a.len, scratch);
    for (uint32_t e = threadIdx.x; e < a.len; e += blockDim.x) to[e] = normed(norm, e, x[e], sums);
}
