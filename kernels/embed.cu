// Token embedding: one row of the embedding matrix, decoded to f32, scaled, and where positions are
// learned, with one row of their matrix added.
#include "blocks.cuh"

struct Table {
    const uint8_t* matrix;
    uint32_t type, rows;
};
struct EmbedArgs {
    Table embedding;
    Table positions;                 // matrix NULL: none
    const Session* const* sessions;  // row i is the token and position of session i, or, where there are
    const uint32_t* tokens;          // these tokens, the i-th, at the i-th position from session 0's on
    float* out;                      // [count][groups * 32]
    uint32_t groups;
    float scale;
};
static_assert(sizeof(EmbedArgs) == 64, "as in args.rs");

// Grid (groups / 128 rounded up, count); one thread a group.
extern "C" __global__ void __launch_bounds__(128) embed(const __grid_constant__ EmbedArgs a) {
    release_dependents();
    wait_for_producers();
    uint32_t group = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y;
    if (group >= a.groups) return;
    const Session* s = a.sessions[a.tokens ? 0 : i];
    uint32_t row = a.tokens ? a.tokens[i] : s->token;
    float sum[32];
    for (int part = 0; part < 2; part++) {
        const Table& table = part ? a.positions : a.embedding;
        if (!table.matrix) break;
        if (part) row = s->position + (a.tokens ? i : 0);
        if (row >= table.rows) row = 0;  // the host checks tokens and positions; nothing is read out of bounds
        for_type(table.type, [&]<uint32_t T>() {
            Slices c = slices_of(T, a.groups);
            uint32_t s = group / c.full, g = group % c.full, n = s + 1 == c.count ? c.last : c.full;
            const uint8_t* r = table.matrix + slice_offset(T, c, s, table.rows) + (uint64_t)row * record_bytes(T, n);
            float v[32];
            group_values<T>(r, g, n, v);
#pragma unroll
            for (int j = 0; j < 32; j++) sum[j] = part ? __fadd_rn(sum[j], v[j]) : __fmul_rn(v[j], a.scale);
        });
    }
    float4* to = (float4*)(a.out + ((uint64_t)i * a.groups + group) * 32);
#pragma unroll
    for (int j = 0; j < 8; j++) to[j] = make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
}
