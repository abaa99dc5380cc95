// Attention of long heads over f16 caches, on tensor cores: what the kernels of a step and of a prefill have in
// common. Heads have up to 512 elements, or up to 576, of which the first 512 at most are the value at once (latent
// attention: a position's key begins with its value, and the cache's values are not read).
#pragma once
#include "mma.cuh"

constexpr uint32_t LONG_VALUE = 512;

// A tile of POSITIONS keys, and their values behind them.
template <int KEY, int TILE, bool LATENT> struct LongTile {
    static constexpr uint32_t PIECES = KEY / 8, ROW = KEY * 2, PLANE = TILE * ROW, BYTES = LATENT ? PLANE : 2 * PLANE;
    static_assert(KEY % 64 == 0 && KEY >= (int)LONG_VALUE && KV_TILE % TILE == 0);

    // Asks for the positions from `first` on, a multiple of TILE, that lie below `end`; others are zeros. By THREADS threads.
    template <int THREADS>
    static __device__ __forceinline__ void load(uint32_t to, const KvLayout& l, const uint8_t* cache, uint32_t first, uint32_t end) {
        const uint32_t tile = l.ring ? first / KV_TILE % l.ring : first / KV_TILE;
        const uint8_t* from = cache + tile * l.tile_bytes + first % KV_TILE * l.row_bytes;
        const uint64_t plane = kv_plane(l);
        const uint32_t rows = end > first ? min((uint32_t)TILE, end - first) : 0;
#pragma unroll 4
        for (uint32_t i = threadIdx.x; i < TILE * PIECES; i += THREADS) {
            const uint32_t r = i / PIECES, c = i % PIECES;
            const bool valid = r < rows && c * 16 < l.row_bytes;
            const uint8_t* p = from + (valid ? r * l.row_bytes + c * 16 : 0);
            const uint32_t at = to + swizzled<PIECES>(r, c);
            copy16(at, p, valid);
            if (!LATENT) copy16(at + PLANE, p + plane, valid);
        }
    }
};
