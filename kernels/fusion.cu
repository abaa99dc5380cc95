// Heads of EAGLE-3 (`Fusion` of src/model/predictor.rs): the hidden states between layers that they read, and what is around their layer.
#include "hidden.cuh"
#include "norm.cuh"

// Grid (rows), 256 threads: the residual stream of each row comes to its session's ring, if that is of this place.
extern "C" __global__ void __launch_bounds__(256) keep_place(const __grid_constant__ KeepPlaceArgs a) {
    release_dependents();
    wait_for_producers();
    const uint32_t i = blockIdx.x;
    const Session* s = a.sessions[a.chunk ? 0 : i];
    const StateRing* ring = (const StateRing*)s->states;
    // The last rows of a chunk take the places of those that there is no room for.
    if (!ring || i + s->states_rows < a.chunk) return;
    const float* x = a.x + (uint64_t)i * a.x_stride;
    float* to = ring_row(ring, s->states_rows, s->position + (a.chunk ? i : 0), ring->n_places * a.len);
    for (uint32_t p = 0; p < ring->n_places; p++, to += a.len) {
        if (ring->places[p] != a.place) continue;
        for (uint32_t e = threadIdx.x; e < a.len; e += blockDim.x) to[e] = x[e] * a.unit;
    }
}

// Grid (rows), 256 threads: rows of a ring, one behind the other.
extern "C" __global__ void __launch_bounds__(256) gather_states(const __grid_constant__ GatherStatesArgs a) {
    release_dependents();
    wait_for_producers();
    const float* from = ring_row(a.ring, a.ring_rows, a.first + blockIdx.x, a.width);
    float* to = a.out + (uint64_t)blockIdx.x * a.out_stride;
    for (uint32_t e = threadIdx.x; e < a.width; e += blockDim.x) to[e] = from[e];
}

// Grid (rows), 256 threads: what the layer reads, and what it adds to.
extern "C" __global__ void __launch_bounds__(256) join_head(const __grid_constant__ JoinArgs a) {
    STATIC_SHARED(Scratch, scratch);
    release_dependents();
    wait_for_producers();
    float* x = a.x + (uint64_t)blockIdx.x * a.x_stride;
    float* to = a.out + (uint64_t)blockIdx.x * a.out_stride;
    if (a.half != 2) {
        const NormSums sums = norm_sums(a.norms[0], x, a.len, scratch);
        for (uint32_t e = threadIdx.x; e < a.len; e += blockDim.x) to[e] = normed(a.norms[0], e, x[e], sums);
    }
    if (a.half == 1) return;
    const float* state = x;
    if (a.half == 0) {
        const Session* s = a.sessions[blockIdx.x];
        state = ring_row((const StateRing*)s->states, s->states_rows, s->position + s->states_rows - 1, a.len);
    }
    const NormSums sums = norm_sums(a.norms[1], state, a.len, scratch);
    for (uint32_t e = threadIdx.x; e < a.len; e += blockDim.x) {
        const float v = state[e], normal = normed(a.norms[1], e, v, sums);
        to[a.len + e] = normal;
        // A thread has read the elements of `x` that it writes, and no others.
        x[e] = a.normed ? normal : v;
    }
}

// Grid (parts, rows), 256 threads: the logits of known tokens come to their places, and minus infinity to those of all others.
extern "C" __global__ void __launch_bounds__(256) spread_logits(const __grid_constant__ SpreadLogitsArgs a) {
    release_dependents();
    wait_for_producers();
    const float* known = a.known + (uint64_t)blockIdx.y * a.n_known;
    float* logits = a.logits + (uint64_t)blockIdx.y * a.n_vocab;
    for (uint32_t t = blockIdx.x * 256 + threadIdx.x; t < a.n_vocab; t += gridDim.x * 256) {
        const uint32_t place = a.place_of[t];
        logits[t] = place < a.n_known ? known[place] : -INFINITY;
    }
}
