// What adapters add to products (adapters.cuh), by kernels of their own: `lora_down` works A x out, `lora_up` adds the rest to the
// product's output. Products of one row do it themselves where they can (product.cuh). `adapt_each` does both for matrices that each row has
// of its own.
#include "args_adapters.h"
#include "adapters.cuh"
#include "matmul.cuh"

__device__ __forceinline__ void eight_halves(const uint8_t* from, float (&x)[8]) {
    const uint4 bits = __ldcg((const uint4*)from);
    const float2 p = two_numbers(bits.x, ADAPTER_F16), q = two_numbers(bits.y, ADAPTER_F16);
    const float2 r = two_numbers(bits.z, ADAPTER_F16), s = two_numbers(bits.w, ADAPTER_F16);
    x[0] = p.x; x[1] = p.y; x[2] = q.x; x[3] = q.y;
    x[4] = r.x; x[5] = r.y; x[6] = s.x; x[7] = s.y;
}

// Eight elements of an input row, and a factor on their products.
__device__ __forceinline__ float input_eight(const AdaptArgs& a, uint32_t row, uint32_t chunk, float (&x)[8]) {
    const uint64_t width = (uint64_t)a.groups * 32, i = row * width + chunk * 8;
    if (a.q8) {
        eight_bytes(__ldcg((const uint2*)(a.q8 + i)), x);
        return __ldcg(a.q8_scale + (uint64_t)row * a.groups + chunk / 4);
    }
    if (a.f32) {
        const float4 *from = (const float4*)(a.f32 + i), lo = __ldcg(from), hi = __ldcg(from + 1);
        x[0] = lo.x; x[1] = lo.y; x[2] = lo.z; x[3] = lo.w;
        x[4] = hi.x; x[5] = hi.y; x[6] = hi.z; x[7] = hi.w;
        return 1.0f;
    }
    eight_halves((const uint8_t*)a.f16 + tiled(row, chunk * 8, tiles_of(a.groups * 32, TILE_K)), x);
    return 1.0f;
}

// ROWS rows a block: more than one only of one session.
template <int ROWS> __device__ __forceinline__ void lora_down_rows(const AdaptArgs& a) {
    constexpr uint32_t N_WARPS = LORA_DOWN_PARTS;
    struct Sums { float at[ROWS][N_WARPS]; };
    STATIC_SHARED(Sums, sums);
    release_dependents();
    const uint32_t first = blockIdx.y * ROWS, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Session& s = *a.sessions[ROWS > 1 ? 0 : first];
    const AdapterPair* pairs = pairs_of(s, a.first_linear);
    const uint32_t n_pairs = s.adapters ? a.n_linears * s.adapter_uses : 0;
    bool awaited = false;
    for (uint32_t task = blockIdx.x;; task += gridDim.x) {
        uint32_t which = 0, k = 0;
        const bool found = find_task(pairs, n_pairs, task, which, k);
        AdapterPair pair;
        uint64_t row_of_a = 0;
        if (found) {
            pair = pairs[which];
            row_of_a = (uint64_t)k * a.groups * 32;
            if (!awaited)
                for (uint32_t chunk = threadIdx.x; chunk < a.groups * 4; chunk += LORA_DOWN_THREADS)
                    prefetch_l2(number_at(pair.a, row_of_a + chunk * 8, pair.a_type));
        }
        if (!awaited) wait_for_producers();
        awaited = true;
        if (!found) return;
        float sum[ROWS] = {};
        for (uint32_t chunk = threadIdx.x; chunk < a.groups * 4; chunk += LORA_DOWN_THREADS) {
            float w[8];
            eight_numbers(pair.a, row_of_a + chunk * 8, pair.a_type, w);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (first + r >= a.rows) break;
                float x[8];
                const float d = input_eight(a, a.first_row + first + r, chunk, x);
                sum[r] = add_eight(w, x, d, sum[r]);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float of_warp = warp_sum(sum[r]);
            if (lane == 0) sums.at[r][warp] = of_warp;
        }
        __syncthreads();
        if (threadIdx.x < max(32, ROWS * N_WARPS)) {
            const uint32_t r = threadIdx.x / N_WARPS, row = first + r;
            float v = sum_of_parts(r < ROWS ? sums.at[r][threadIdx.x % N_WARPS] : 0.0f);
            if (r < ROWS && threadIdx.x % N_WARPS == 0 && row < a.rows) {
                if (a.f16) v = __fmul_rn(v, __ldcg(a.f16_scale + a.first_row + row));
                ((float*)s.thin)[(uint64_t)row * s.thin_stride + pair.at + k] = v;
            }
        }
        __syncthreads();
    }
}

template <int ROWS> __device__ __forceinline__ void lora_up_rows(const AdaptArgs& a) {
    release_dependents();
    const uint32_t first = blockIdx.y * ROWS, place = blockIdx.x * blockDim.x + threadIdx.x;
    const Session& s = *a.sessions[ROWS > 1 ? 0 : first];
    uint32_t linear = 0, row = 0, uses = 0;
    const AdapterPair* pairs = NULL;
    bool changes = false;
    if (s.adapters && place < a.outputs) {
        row = adapted_row(a.pieces, place, linear);
        uses = s.adapter_uses;
        pairs = pairs_of(s, a.first_linear + linear);
        for (uint32_t u = 0; u < uses; u++) {
            const AdapterPair& pair = pairs[u];
            if (pair.rank == 0) continue;
            changes = true;
            prefetch_l2(number_at(pair.b, (uint64_t)row * ranks_of(pair), pair.b_type));
        }
    }
    wait_for_producers();
    if (!changes) return;
#pragma unroll 1
    for (uint32_t r = first; r < min(first + ROWS, a.rows); r++) {
        float* out = a.out + (uint64_t)(a.first_row + r) * a.out_stride + place;
        const float* thin = (const float*)s.thin + (uint64_t)r * s.thin_stride;
        auto load = [&](uint32_t at, float (&t)[8]) {
            const float4 lo = __ldcg((const float4*)(thin + at)), hi = __ldcg((const float4*)(thin + at + 4));
            t[0] = lo.x; t[1] = lo.y; t[2] = lo.z; t[3] = lo.w;
            t[4] = hi.x; t[5] = hi.y; t[6] = hi.z; t[7] = hi.w;
        };
        *out = add_adapters(pairs, uses, row, load, __ldcg(out));
    }
}

// Grid (any, rows) and (any, rows / 8): one row of each of several sessions, or several of one session.
extern "C" __global__ void __launch_bounds__(LORA_DOWN_THREADS) lora_down(const __grid_constant__ AdaptArgs a) { lora_down_rows<1>(a); }
extern "C" __global__ void __launch_bounds__(LORA_DOWN_THREADS) lora_down_8(const __grid_constant__ AdaptArgs a) { lora_down_rows<8>(a); }
// Grid (outputs / 128, rows) and (outputs / 128, rows / 8).
extern "C" __global__ void __launch_bounds__(128) lora_up(const __grid_constant__ AdaptArgs a) { lora_up_rows<1>(a); }
extern "C" __global__ void __launch_bounds__(128) lora_up_8(const __grid_constant__ AdaptArgs a) { lora_up_rows<8>(a); }

// Eight elements of the input of a slot, and a factor on their products.
__device__ __forceinline__ float each_input_eight(const AdaptEachArgs& a, uint64_t row, uint32_t matrix, uint32_t chunk, float (&x)[8]) {
    if (a.q8) {
        eight_bytes(__ldcg((const uint2*)(a.q8 + row * a.groups * 32 + chunk * 8)), x);
        return __ldcg(a.q8_scale + row * a.groups + chunk / 4);
    }
    if (a.f16) {
        eight_halves((const uint8_t*)a.f16 + tiled(row, chunk * 8, tiles_of(a.groups * 32, TILE_K)), x);
        return 1.0f;
    }
    const float* from = a.f32 + row * a.x_stride + (uint64_t)matrix * a.x_matrix;
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = chunk * 8 + j < a.len ? __ldcg(from + chunk * 8 + j) : 0.0f;
    return 1.0f;
}

// All that adapters add to the outputs of a slot, one pair after the other. Grid (slots, outputs / ADAPT_EACH_OUTPUTS): blocks of the same
// slot each work A x out.
extern "C" __global__ void __launch_bounds__(ADAPT_EACH_THREADS) adapt_each(const __grid_constant__ AdaptEachArgs a) {
    struct Thin { float at[MOST_RANKS_OF_EACH]; };
    STATIC_SHARED(Thin, thin);
    release_dependents();
    wait_for_producers();
    const uint32_t slot = blockIdx.x, entry = a.slots ? a.slots[slot] : slot, row = entry / a.per_row;
    const Session& s = *a.sessions[a.one_session ? 0 : row];
    if (!s.adapters) return;
    // As experts' products do, this reads nothing out of bounds whatever the memory holds.
    const uint32_t matrix = min(a.chosen ? a.chosen[entry] : entry % a.per_row, a.matrices - 1);
    const uint64_t input = a.of_slots ? slot : row;
    const uint64_t out = (uint64_t)(a.chosen ? slot : row) * a.out_stride + (uint64_t)matrix * a.out_matrix;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const uint32_t begin = blockIdx.y * ADAPT_EACH_OUTPUTS, end = min(begin + ADAPT_EACH_OUTPUTS, a.outputs);
    const AdapterPair* pairs = pairs_of(s, a.linear);
    for (uint32_t u = 0; u < s.adapter_uses; u++) {
        const AdapterPair pair = pairs[u];
        if (pair.rank == 0) continue;
        const uint32_t ranks = ranks_of(pair);
        for (uint32_t k = warp; k < ranks; k += ADAPT_EACH_THREADS / 32) {
            const uint64_t row_of_a = ((uint64_t)matrix * pair.rank + k) * a.groups * 32;
            float sum = 0.0f;
            for (uint32_t chunk = lane; chunk < a.groups * 4 && k < pair.rank; chunk += 32) {
                float w[8], x[8];
                eight_numbers(pair.a, row_of_a + chunk * 8, pair.a_type, w);
                const float d = each_input_eight(a, input, matrix, chunk, x);
                sum = add_eight(w, x, d, sum);
            }
            sum = warp_sum(sum);
            if (a.f16) sum = __fmul_rn(sum, __ldcg(a.f16_scale + input));
            if (lane == 0) thin.at[k] = sum;
        }
        __syncthreads();
        auto load = [&](uint32_t at, float (&t)[8]) {
#pragma unroll
            for (int j = 0; j < 8; j++) t[j] = thin.at[at + j];
        };
        const float scale = __fmul_rn(a.out_scale, pair.scale);
        for (uint32_t o = begin + threadIdx.x; o < end; o += ADAPT_EACH_THREADS) {
            const uint64_t row_of_b = (uint64_t)matrix * a.matrix_rows + a.first + o;
            const uint8_t* b = number_at(pair.b, row_of_b * ranks, pair.b_type);
            if (a.halves) {
                __half* to = (__half*)a.out + out + o;
                *to = __float2half_rn(add_adapter(b, pair.b_type, pair.rank, 0, scale, load, __half2float(*to)));
            } else {
                float* to = (float*)a.out + out + o;
                *to = add_adapter(b, pair.b_type, pair.rank, 0, scale, load, *to);
            }
        }
        __syncthreads();
    }
}
