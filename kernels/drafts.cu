// Drafts: what begins and ends a step in which several rows are positions of one session.
//
// Between these two kernels, a row is a session of its own for all kernels of a step: it has the caches, the history and the
// settings of the session that it belongs to, a position and a token of its own, and memory of its own to choose by.
#include "args_common.h"
#include "sample.cuh"

// Rows of a session at most.
constexpr uint32_t MAX_DRAFT_ROWS = 32;

// Grid (sessions with drafts at most), 256 threads: readies the rows. No kernel of the step begins before its end, for some look at
// their row's position before they wait for anything.
extern "C" __global__ void __launch_bounds__(256) draft_rows(const __grid_constant__ DraftsArgs a) {
    wait_for_producers();
    if (!a.drafts[blockIdx.x]) return;
    const Drafts& d = *a.drafts[blockIdx.x];
    const Session& s = *d.session;
    const volatile uint32_t* asked = d.asked;
    const uint32_t n = min(asked[0], MAX_DRAFT_ROWS);
    if (threadIdx.x < n) {
        Session& row = d.rows[threadIdx.x];
        const uint32_t position = s.position + threadIdx.x, token = asked[ASKED_TOKENS + threadIdx.x];
        row.position = position;
        row.token = token;
        row.sequence = s.sequence + threadIdx.x;
        row.adapters = s.adapters;
        row.thin = s.thin;
        row.adapter_uses = s.adapter_uses;
        row.thin_stride = s.thin_stride;
        row.states = s.states;
        row.states_rows = s.states_rows;
        row.before = s.fixed;
        row.chain = threadIdx.x ? 0 : n;
        ((uint32_t*)s.history)[position] = token;
    }
    constexpr uint32_t WORDS = sizeof(Settings) / 4;
    for (uint32_t i = threadIdx.x; i < n * WORDS; i += blockDim.x)
        ((uint32_t*)&d.rows[i / WORDS].settings)[i % WORDS] = ((const uint32_t*)&s.settings)[i % WORDS];
}

// Grid (sessions with drafts at most), 32 threads, one a row: hands over the rows' choices up to the first that is not the next row's
// token, and moves the session behind the rows that made them. The state of fixed size of the last one becomes the session's, and what
// the session had takes the row's place.
extern "C" __global__ void __launch_bounds__(32) accept_drafts(const __grid_constant__ DraftsArgs a) {
    release_dependents();
    wait_for_producers();
    if (!a.drafts[blockIdx.x]) return;
    const Drafts& d = *a.drafts[blockIdx.x];
    Session& s = *d.session;
    const volatile uint32_t* asked = d.asked;
    const uint32_t n = min(asked[1], MAX_DRAFT_ROWS), row = threadIdx.x, slot = (s.sequence + row) % s.result_slots;
    uint64_t result = 0;
    bool right = false;
    if (row < n) {
        result = ((const volatile uint64_t*)d.results)[slot];
        const uint32_t outcome = (uint32_t)(result >> 32) & 0xff;
        right = row + 1 < n && outcome == CHOSEN && (uint32_t)result == asked[ASKED_TOKENS + row + 1];
    }
    uint32_t last = right ? 32 : row;
#pragma unroll
    for (int o = 16; o; o >>= 1) last = min(last, __shfl_xor_sync(~0u, last, o));
    uint64_t* results = (uint64_t*)s.results;
    if (row == last) {
        Session& taken = d.rows[row];
        s.token = taken.token;
        s.position += last + 1;
        s.sequence += last + 1;
        const uint64_t fixed = s.fixed;
        s.fixed = s.before = taken.fixed;
        taken.fixed = fixed;
    }
    // The host looks for the first, and finds the others there.
    if (row > 0 && row <= last) *(volatile uint64_t*)&results[slot] = result;
    __threadfence_system();
    __syncwarp();
    if (row == 0) *(volatile uint64_t*)&results[slot] = result;
}
