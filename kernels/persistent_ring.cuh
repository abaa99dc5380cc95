// The ring of weights of the kernel of a whole step (persistent.cuh).
#pragma once
#include "bulk.cuh"
#include "persistent_ops.cuh"

#if __CUDA_ARCH__ >= 900

// Pieces of a slot: of quads of the longest records.
__host__ __device__ constexpr uint32_t quad_bytes(uint32_t t) { return 4 * record_bytes(t, 32); }
// How many of them: a power of two, so that a warp comes to every fourth, or eighth, slot.
__host__ __device__ constexpr uint32_t quads_per_slot(uint32_t t) {
    uint32_t n = SLOT_ARRIVALS;
    while (n * quad_bytes(t) > SLOT_BYTES) n /= 2;
    return n;
}
// Position in the ring: a slot, and how often the ring went round, modulo 2.
struct RingPlace {
    uint32_t slot, parity;
    // By a round at most.
    __device__ __forceinline__ void advance(uint32_t n, uint32_t slots) {
        slot += n;
        if (slot >= slots) { slot -= slots; parity ^= 1; }
    }
    __device__ __forceinline__ void advance_far(uint32_t n, uint32_t slots) {
        slot += n;
        while (slot >= slots) { slot -= slots; parity ^= 1; }
    }
};

struct Ring {
    uint32_t base;   // address of the slots
    uint32_t full;   // addresses of the barriers
    uint32_t empty;
    uint32_t slots;
};

// Walks through the quads of a share: list of (slice, quad), slice by slice, for GATE quads of the upper
// half before those of the lower. A quad that begins a run of consecutive rows, or a slot, lies at its
// place in the slot; the run's others follow without gaps.
template <class Slots> __device__ __forceinline__ void bring_in(const ProductOp& op, Slots& slots) {
    const Part* part = part_of(op);
    if (!part) return;
    const Part& p = *part;
    const Share share(p);
    const uint32_t halves = op.ending == GATE ? 2 : 1;
    const uint64_t slice_bytes = (uint64_t)p.rows * halves * p.full_bytes;
    for (uint32_t first = share.begin; first < share.end; first += op.chunk_quads) {
        const uint32_t h = min(op.chunk_quads, share.end - first);
        uint32_t left = h * halves * p.n_slices, slice = 0, half = 0, run = 0;
        while (left > 0) {
            const uint32_t n = min(left, p.quads_per_slot);
            slots.begin();
            for (uint32_t k = 0; k < n;) {
                const uint32_t quads = min(n - k, h - run), record = slice + 1 == p.n_slices ? p.last_bytes : p.full_bytes;
                const uint32_t row = (first + run) * 4, rows = min(quads * 4, p.rows - row);
                slots.take(k * p.quad_bytes, p.matrix + slice * slice_bytes + (uint64_t)(half * p.rows + row) * record, rows * record);
                k += quads;
                run += quads;
                if (run == h) {
                    run = 0;
                    if (++half == halves) { half = 0; slice++; }
                }
            }
            slots.end();
            left -= n;
        }
    }
}
// The slots of the ring. `filled` counts them, for the warp that goes ahead.
struct RingSlots {
    const Ring& ring;
    volatile uint32_t& filled;
    RingPlace at{0, 0};
    __device__ __forceinline__ void begin() { barrier_wait(ring.empty + at.slot * 8, at.parity ^ 1); }
    __device__ __forceinline__ void take(uint32_t place, const uint8_t* from, uint32_t bytes) {
        barrier_announce(ring.full + at.slot * 8, bytes);
        bulk_copy(ring.base + at.slot * SLOT_BYTES + place, from, bytes, ring.full + at.slot * 8);
    }
    __device__ __forceinline__ void end() {
        barrier_arrive(ring.full + at.slot * 8);
        at.advance(1, ring.slots);
        filled = filled + 1;
    }
};
// The same slots `ahead` earlier, in the L2 cache.
struct SlotsAhead {
    const volatile uint32_t& filled;
    uint32_t ahead, asked = 0;
    bool of_use = false;
    __device__ __forceinline__ void begin() {
        uint32_t n;
        while ((n = filled) + ahead <= asked) __nanosleep(100);
        of_use = asked >= n;
    }
    __device__ __forceinline__ void take(uint32_t, const uint8_t* from, uint32_t bytes) const {
        if (of_use) bulk_prefetch(from, bytes);
    }
    __device__ __forceinline__ void end() { asked++; }
};

#endif
