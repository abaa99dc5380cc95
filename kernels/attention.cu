// Attention of the decode step, and the joining of chunks.
//
// Row i of input is session i at its current position.
#include "attend_rows.cuh"
#include "attend_tiles.cuh"

// Grid (n_kv_heads * head_parts, batch, blocks that share the chunks of a context). A block
// without a chunk ends at once: the grid is not done before those with the first chunks, which wait.
template <int HD, int STAGES, int W, bool Q8> __device__ __forceinline__ void attend_tiles(const AttendArgs& a) {
    DYNAMIC_SHARED(tiles);
    STATIC_SHARED(AttendShared<HD>, shared);
    if (threadIdx.x == 0) shared.turn_of = NULL;
    __syncthreads();
    const Session* s = a.sessions[blockIdx.y];
    const Chunks chunks = chunks_of(a, s, blockIdx.y);
    for (uint32_t c = blockIdx.z; c < chunks.used; c += gridDim.z) {
        attend_chunk<HD, STAGES, W, Q8>(a, s, chunks, blockIdx.y, blockIdx.x, gridDim.x, c, tiles, shared);
        __syncthreads();
    }
}
#define ATTEND(name, hd, stages, warps) \
    extern "C" __global__ void __launch_bounds__(32 * warps) attend_##name##_##hd##_##stages(const __grid_constant__ AttendArgs a) { attend_tiles<hd, stages, warps, false>(a); }
// Two blocks fit a multiprocessor whatever they have of its registers, of which the compiler alone would leave some for a third.
#define ATTEND_Q8(name, hd, stages, warps) \
    extern "C" __global__ void __launch_bounds__(32 * warps, warps == 4 ? 2 : 1) attend_##name##_q8_##hd##_##stages(const __grid_constant__ AttendArgs a) { attend_tiles<hd, stages, warps, true>(a); }
ATTEND(tiles, 64, 3, 4)
ATTEND(tiles, 128, 3, 4)
ATTEND(tiles, 256, 2, 4)
ATTEND_Q8(tiles, 64, 5, 4)
ATTEND_Q8(tiles, 128, 5, 4)
ATTEND_Q8(tiles, 256, 3, 4)
// Fewer stages where a block has too little shared memory for those: of 64 or 99 KB, as many cards have.
#if !defined(__CUDA_ARCH__) || !LARGE_SHARED
ATTEND(tiles, 128, 2, 4)
ATTEND(tiles, 128, 1, 4)
ATTEND(tiles, 256, 1, 4)
ATTEND_Q8(tiles, 128, 3, 4)
ATTEND_Q8(tiles, 256, 2, 4)
ATTEND_Q8(tiles, 256, 1, 4)
#endif
// Where few KV heads make few blocks, whose chains of steps and joins are what counts. A block has a multiprocessor for itself.
#if !defined(__CUDA_ARCH__) || LARGE_SHARED
ATTEND(wide, 64, 3, 8)
ATTEND(wide, 128, 3, 8)
ATTEND_Q8(wide, 64, 5, 8)
ATTEND_Q8(wide, 128, 5, 8)
#endif

// Rows of one session, in the same tiles.
#define ATTEND_ROWS(name, hd, stages, warps, columns, q8) \
    extern "C" __global__ void __launch_bounds__(32 * warps) attend_rows_##name##_##hd##_##stages(const __grid_constant__ AttendArgs a) { attend_rows<hd, stages, warps, columns, q8>(a); }
#if !defined(__CUDA_ARCH__) || LARGE_SHARED
ATTEND_ROWS(tiles, 64, 3, 4, 16, false)
ATTEND_ROWS(tiles, 128, 3, 4, 16, false)
ATTEND_ROWS(tiles, 256, 2, 4, 8, false)
ATTEND_ROWS(wide, 64, 3, 8, 16, false)
ATTEND_ROWS(wide, 128, 3, 8, 16, false)
ATTEND_ROWS(tiles_q8, 64, 5, 4, 16, true)
ATTEND_ROWS(tiles_q8, 128, 5, 4, 16, true)
ATTEND_ROWS(tiles_q8, 256, 3, 4, 8, true)
ATTEND_ROWS(wide_q8, 64, 5, 8, 16, true)
ATTEND_ROWS(wide_q8, 128, 5, 8, 16, true)
#endif

// Joins the chunks and writes the product's input. Grid (n_heads * value_dim / 128 rounded up, batch),
// 128 threads, one element each: a warp is one group of 32.
extern "C" __global__ void __launch_bounds__(128) attend_combine(const __grid_constant__ AttendArgs a) {
    release_dependents();
    wait_for_producers();
    const uint32_t hd = a.value_dim, e = blockIdx.x * 128 + threadIdx.x, len = a.n_heads * hd;
    const uint32_t groups = (len + 31) / 32, used = chunks_of<true>(a, session_of(a, blockIdx.y), blockIdx.y).used;
    float v = 0.0f;
    if (e < len) {
        const uint32_t head = e / hd, d = e % hd;
        const float* from = a.parts + ((uint64_t)blockIdx.y * a.n_heads + head) * a.n_chunks * part_stride(hd);
        float top = -INFINITY;
        for (uint32_t c = 0; c < used; c++) top = fmaxf(top, from[c * part_stride(hd) + hd]);
        float sum = 0.0f, weight = 0.0f;
        for (uint32_t c = 0; c < used; c++) {
            const float* p = from + c * part_stride(hd);
            float w = exp2f(p[hd] - top);
            sum = __fmaf_rn(w, p[d], sum);
            weight = __fmaf_rn(w, p[hd + 1], weight);
        }
        v = let_through(a, blockIdx.y, e, sum / with_sink(a.scores, head, top, weight));
    }
    // Rows of a prefill follow each other without a gap.
    const uint32_t stride = a.prefill ? len : groups * 32;
    if (e >= stride) return;
    store_result(a, (uint64_t)blockIdx.y * stride + e, v);
}
