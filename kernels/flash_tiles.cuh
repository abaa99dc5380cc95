// Attention of a tile of 64 queries to tiles of 64 or 32 positions, softmax on the fly: of sessions
// (attention_prefill.cu) and of whole texts (attention_texts.cu). Position tiles lie at absolute multiples
// of that, so chunking a prompt does not change the result, nor does what a text is packed with.
#pragma once
#include "flash.cuh"

// By 128 threads: a warp has 16 queries. HD is head_dim rounded up. Two stages of keys and values must fit
// the shared memory of consumer cards.
template <int HD, bool Q8, bool TEXTS> __device__ __forceinline__ void flash_tile(const FlashArgs& a, const FlashPlace& f) {
    DYNAMIC_SHARED(shared);
    constexpr int ROWS = HD <= 128 ? 64 : 32, PIECES = HD / 8, BUFFER = ROWS * HD * 2;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const uint32_t hd = a.layout.head_dim, head = f.head, q0 = f.q0, before = f.before;
    const uint32_t tiles = (f.end + ROWS - 1) / ROWS, first_tile = (TEXTS ? f.first : first_reached(a.layout, before + q0 + 1)) / ROWS;
    const uint32_t base = shared_address(shared);
    for (int i = threadIdx.x; i < 64 * PIECES; i += 128) {
        uint32_t r = i / PIECES, c = i % PIECES;
        uint32_t to = base + swizzled<PIECES>(r, c);
        const __half* from = f.q + ((uint64_t)min(q0 + r, f.rows - 1) * a.n_heads + head) * hd + c * 8;
        if (hd % 8 == 0) {
            copy16(to, c * 8 < hd ? from : f.q, c * 8 < hd);
        } else {
            for (int e = 0; e < 8; e++) *(__half*)(shared + (to - base) + 2 * e) = c * 8 + e < hd ? from[e] : __float2half_rn(0.0f);
        }
    }
    copies_commit();
    copies_wait<0>();
    __syncthreads();
    uint32_t q[HD / 16][4];
#pragma unroll
    for (int kk = 0; kk < HD / 16; kk++)
        load_matrices(q[kk], base + swizzled<PIECES>(warp * 16 + (lane & 15), kk * 2 + (lane >> 4)));
    __syncthreads();
    // Buffers: keys at 2 * (t & 1), values at 2 * (t & 1) + 1.
    const uint32_t groups = (hd + 31) / 32, stored = a.layout.row_bytes;
    auto load = [&](uint32_t t) {
        const uint32_t stored_tile = t * ROWS / KV_TILE;
        const uint8_t* tile = f.cache + (a.layout.ring ? stored_tile % a.layout.ring : stored_tile) * a.layout.tile_bytes + t * ROWS % KV_TILE * stored;
#pragma unroll
        for (int part = 0; part < 2; part++) {
            uint32_t to = base + (2 * (t & 1) + part) * BUFFER;
            for (int i = threadIdx.x; i < ROWS * PIECES; i += 128) {
                uint32_t r = i / PIECES, c = i % PIECES, p = t * ROWS + r;
                bool valid = p < f.end && c * 8 < hd;
                const uint8_t* row = tile + (valid ? part * f.plane + r * stored : 0);
                if constexpr (!Q8) {
                    copy16(to + swizzled<PIECES>(r, c), valid ? row + c * 16 : row, valid && c * 16 < stored);
                } else {
                    uint32_t v[4] = {0, 0, 0, 0};
                    if (valid) {
                        uint2 u = *(const uint2*)(row + c * 8);
                        float d = __half2float(((const __half*)(row + groups * 32))[c / 4]);
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            uint32_t w = e < 2 ? u.x : u.y;
                            int sh = (e & 1) * 16;
                            __half2 h = __floats2half2_rn(d * (float)(int8_t)(w >> sh & 0xff), d * (float)(int8_t)(w >> (sh + 8) & 0xff));
                            v[e] = *(uint32_t*)&h;
                        }
                    }
                    asm volatile("st.shared.v4.u32 [%0],{%1,%2,%3,%4};" ::"r"(to + swizzled<PIECES>(r, c)), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
                }
            }
        }
        copies_commit();
    };
    float acc[HD / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    load(first_tile);
    for (uint32_t t = first_tile; t < tiles; t++) {
        copies_wait<0>();
        __syncthreads();
        if (t + 1 < tiles) load(t + 1);
        const uint32_t keys = base + 2 * (t & 1) * BUFFER, values = keys + BUFFER;
        float score[ROWS / 8][4] = {};
#pragma unroll
        for (int kk = 0; kk < HD / 16; kk++)
#pragma unroll
            for (int j = 0; j < ROWS / 16; j++) {
                uint32_t w[4];
                load_matrices(w, keys + swizzled<PIECES>(j * 16 + (lane & 7) + (lane >> 4) * 8, kk * 2 + (lane >> 3 & 1)));
                mma(score[2 * j], q[kk], w[0], w[1]);
                mma(score[2 * j + 1], q[kk], w[2], w[3]);
            }
        auto lean = [&](float slope) {
#pragma unroll
            for (int j = 0; j < ROWS / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    score[j][e] = leaned(slope, before + q0 + warp * 16 + (e >> 1) * 8 + (lane >> 2), t * ROWS + j * 8 + (lane & 3) * 2 + (e & 1), score[j][e]);
        };
        if constexpr (TEXTS) {
            if (f.slope != 0.0f) lean(f.slope);
        }
        if (a.scores.cap != 0.0f) {
            if (!TEXTS && a.slopes) {
                lean(a.slopes[head]);
            } else {
#pragma unroll
                for (int j = 0; j < ROWS / 8; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) score[j][e] = capped(a.scores.cap, score[j][e]);
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t mine = before + q0 + warp * 16 + h * 8 + (lane >> 2), sees = TEXTS ? 0 : reach(a.layout, mine);
            float largest = top[h];
#pragma unroll
            for (int j = 0; j < ROWS / 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    uint32_t p = t * ROWS + j * 8 + (lane & 3) * 2 + e;
                    float& v = score[j][h * 2 + e];
                    if (TEXTS ? hidden_in_text(a.layout, f, mine, p) : mine - p >= sees) v = -INFINITY;
                    largest = fmaxf(largest, v);
                }
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
            // A row with nothing in sight yet keeps what it has, which is nothing.
            float keep = largest == -INFINITY ? 1.0f : exp2f(top[h] - largest);
            top[h] = largest;
            if (largest == -INFINITY) largest = 0.0f;
            sum[h] *= keep;
#pragma unroll
            for (int j = 0; j < HD / 8; j++) { acc[j][h * 2] *= keep; acc[j][h * 2 + 1] *= keep; }
#pragma unroll
            for (int j = 0; j < ROWS / 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float w = exp2f(score[j][h * 2 + e] - largest);
                    score[j][h * 2 + e] = w;
                    sum[h] += w;
                }
        }
#pragma unroll
        for (int kk = 0; kk < ROWS / 16; kk++) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float* f = score[2 * kk + (i >> 1)] + (i & 1) * 2;
                __half2 h = __floats2half2_rn(f[0], f[1]);
                w[i] = *(uint32_t*)&h;
            }
#pragma unroll
            for (int j = 0; j < HD / 16; j++) {
                uint32_t v[4];
                load_matrices_transposed(v, values + swizzled<PIECES>(kk * 16 + (lane & 15), j * 2 + (lane >> 4)));
                mma(acc[2 * j], w, v[0], v[1]);
                mma(acc[2 * j + 1], w, v[2], v[3]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float total = sum[h] + __shfl_xor_sync(~0u, sum[h], 1);
        total += __shfl_xor_sync(~0u, total, 2);
        uint32_t row = q0 + warp * 16 + h * 8 + (lane >> 2);
        if (row >= f.rows) continue;
        total = with_sink(a.scores, head, top[h], total);
        if constexpr (TEXTS) {
            if (f.f16) {
#pragma unroll
                for (int j = 0; j < HD / 8; j++)
                    if (j * 8 < hd) store_f16(a, f, row, j * 8 + (lane & 3) * 2, acc[j][h * 2] / total, acc[j][h * 2 + 1] / total);
                continue;
            }
        }
        float* to = f.out + ((uint64_t)row * a.n_heads + head) * hd;
#pragma unroll
        for (int j = 0; j < HD / 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                uint32_t d = j * 8 + (lane & 3) * 2 + e;
                if (d < hd) to[d] = acc[j][h * 2 + e] / total;
            }
    }
}
