// Attention of a prefill, for every architecture (flash_tiles.cuh).
#include "flash_tiles.cuh"

// Grid (query tiles, n_heads), 128 threads.
template <int HD, bool Q8> __device__ __forceinline__ void flash_session(const FlashArgs& a) {
    release_dependents();
    wait_for_producers();
    // The last tiles have the most work, so they start first.
    const uint32_t q0 = a.first_row + (gridDim.x - 1 - blockIdx.x) * 64;
    flash_tile<HD, Q8, false>(a, place_in_session(a, blockIdx.y, q0, 64));
}
// Registers for so many blocks a multiprocessor.
#define FLASH(hd, blocks)                                                                                       \
    extern "C" __global__ void __launch_bounds__(128, blocks) flash_##hd(const __grid_constant__ FlashArgs a) { \
        flash_session<hd, false>(a);                                                                               \
    }                                                                                                           \
    extern "C" __global__ void __launch_bounds__(128, blocks) flash_q8_##hd(const __grid_constant__ FlashArgs a) { \
        flash_session<hd, true>(a);                                                                                \
    }
FLASH(64, 3)
FLASH(128, 3)
FLASH(256, 1)
