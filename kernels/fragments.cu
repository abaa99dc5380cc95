// Brings quantized input rows into the order that the kernels for batches read (matvec_batch.cuh): a
// warp takes a group.
#include "common.cuh"

struct FragmentsArgs {
    const int8_t* q8;       // [batch][groups * 32]
    const float* q8_scale;  // [batch][groups]
    uint32_t* out;          // [groups][tiles * 96]
    uint32_t groups;
    uint32_t batch;
    uint32_t tiles;         // of 8 input rows; rows beyond the batch repeat the last
    uint32_t padding;
};
static_assert(sizeof(FragmentsArgs) == 40, "as in args.rs");

extern "C" __global__ void __launch_bounds__(128) fragments(const __grid_constant__ FragmentsArgs a) {
    release_dependents();
    const uint32_t lane = threadIdx.x & 31, t = lane & 3, r = lane >> 2, group = blockIdx.x * 4 + (threadIdx.x >> 5);
    wait_for_producers();
    if (group >= a.groups) return;
    uint32_t* out = a.out + (uint64_t)group * a.tiles * 96;
    for (uint32_t j = 0; j < a.tiles; j++) {
        const uint64_t at = (uint64_t)min(j * 8 + r, a.batch - 1) * a.groups + group;
        const uint32_t* x = (const uint32_t*)(a.q8 + at * 32);
        const uint32_t lo = x[t], hi = x[4 + t];
        *(uint2*)(out + (lane * a.tiles + j) * 2) = make_uint2(lo, hi);
        int s0 = __dp4a((int)lo, 0x01010101, 0), s1 = __dp4a((int)hi, 0x01010101, 0);
#pragma unroll
        for (int o = 1; o < 4; o <<= 1) {
            s0 += __shfl_xor_sync(~0u, s0, o);
            s1 += __shfl_xor_sync(~0u, s1, o);
        }
        // Lane t of a row writes plane t.
        const float v = t == 0 ? a.q8_scale[at] : (float)(t == 1 ? s0 + s1 : t == 2 ? s0 : s1);
        out[a.tiles * (64 + t * 8) + ((r >> 1) * a.tiles + j) * 2 + (r & 1)] = __float_as_uint(v);
    }
}
