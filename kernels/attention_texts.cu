// Attention within whole texts, for every architecture (flash_tiles.cuh).
#include "flash_tiles.cuh"

// Grid (tiles, n_heads), 128 threads.
template <int HD> __device__ __forceinline__ void flash_text(const TextFlashArgs& a) {
    release_dependents();
    wait_for_producers();
    flash_tile<HD, false, true>(a.flash, place_in_text(a, blockIdx.y, a.tiles[blockIdx.x], 64));
}
// Registers for so many blocks a multiprocessor.
#define FLASH_TEXTS(hd, blocks)                                                                                             \
    extern "C" __global__ void __launch_bounds__(128, blocks) flash_texts_##hd(const __grid_constant__ TextFlashArgs a) { \
        flash_text<hd>(a);                                                                                                  \
    }
FLASH_TEXTS(64, 3)
FLASH_TEXTS(128, 3)
FLASH_TEXTS(256, 1)
