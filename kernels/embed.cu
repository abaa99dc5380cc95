// Token embedding: one row of the embedding matrix, decoded to f32.
#include "blocks.cuh"

struct EmbedArgs {
    const uint8_t* matrix;
    const Session* const* sessions;  // the token of each is looked up, or, where NULL,
    const uint32_t* tokens;          // these tokens
    float* out;                      // [count][groups * 32]
    uint32_t type, groups, matrix_rows, count;
};
static_assert(sizeof(EmbedArgs) == 48, "as in args.rs");

// Grid (groups / 128 rounded up, count); one thread a group.
extern "C" __global__ void __launch_bounds__(128) embed(const __grid_constant__ EmbedArgs a) {
    release_dependents();
    wait_for_producers();
    uint32_t group = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y;
    if (group >= a.groups) return;
    uint32_t token = a.sessions ? a.sessions[i]->token : a.tokens[i];
    if (token >= a.matrix_rows) token = 0;  // the host checks its tokens; nothing is read out of bounds
    float4* to = (float4*)(a.out + ((uint64_t)i * a.groups + group) * 32);
    for_type(a.type, [&]<uint32_t T>() {
        Slices c = slices_of(T, a.groups);
        uint32_t s = group / c.full, g = group % c.full, n = s + 1 == c.count ? c.last : c.full;
        const uint8_t* r = a.matrix + slice_offset(T, c, s, a.matrix_rows) + (uint64_t)token * record_bytes(T, n);
        float v[32];
        group_values<T>(r, g, n, v);
#pragma unroll
        for (int j = 0; j < 8; j++) to[j] = make_float4(v[4 * j], v[4 * j + 1], v[4 * j + 2], v[4 * j + 3]);
    });
}
