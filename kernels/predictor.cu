// Heads that guess further tokens (src/model/predictor.rs): the hidden states that they read, and what they begin with.
#include "hidden.cuh"
#include "norm.cuh"

// Grid (rows), 256 threads: the norm of each row comes to its session's ring, if that is of such states.
extern "C" __global__ void __launch_bounds__(256) keep_states(const __grid_constant__ KeepArgs a) {
    STATIC_SHARED(Scratch, scratch);
    release_dependents();
    wait_for_producers();
    const uint32_t i = blockIdx.x;
    const Session* s = a.sessions[a.chunk ? 0 : i];
    const StateRing* ring = (const StateRing*)s->states;
    // The last rows of a chunk take the places of those that there is no room for.
    if (!ring || ring->n_places || i + s->states_rows < a.chunk) return;
    const float* x = a.x + (uint64_t)i * a.x_stride;
    float* to = ring_row(ring, s->states_rows, s->position + (a.chunk ? i : 0), a.len);
    const NormSums sums = norm_sums(a.norm, x, a.len, scratch);
    for (uint32_t e = threadIdx.x; e < a.len; e += blockDim.x) to[e] = normed(a.norm, e, x[e], sums);
}

// Grid (2, rows), 256 threads: a block takes the embedding or the state.
extern "C" __global__ void __launch_bounds__(256) enter_head(const __grid_constant__ EnterArgs a) {
    STATIC_SHARED(Scratch, scratch);
    release_dependents();
    wait_for_producers();
    const uint32_t half = blockIdx.x, i = blockIdx.y;
    const float* x = a.x + (uint64_t)i * a.x_stride;
    if (half) {
        const Session* s = a.sessions[a.states ? 0 : i];
        const uint32_t rows = a.states ? a.states_rows : s->states_rows;
        const uint32_t row = a.states ? a.first + i : s->position + rows - 1;
        x = ring_row(a.states ? a.states : (const StateRing*)s->states, rows, row, a.len);
    }
    float* to = a.out + (uint64_t)i * a.out_stride + half * a.len;
    const NormArgs& norm = a.norms[half];
    const NormSums sums = norm_sums(norm, x, a.len, scratch);
    for (uint32_t e = threadIdx.x; e < a.len; e += blockDim.x) to[e] = normed(norm, e, x[e], sums);
}
