// Kernel names: matvec_<types>_<largest batch>, with "ring_" after "matvec_" where the weights come
// by bulk copies. One type a kernel: several would spill registers.
#pragma once

#define MATVEC_ONE(name, nb, ring, blocks, types)                                                  \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, blocks) name(const __grid_constant__ MatvecArgs a) { \
        matvec_body<nb, ring, (types)>(a);                                                         \
    }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define MATVEC(name, nb, blocks, types)                            \
    MATVEC_ONE(matvec_##name##_##nb, nb, false, blocks, types)     \
    MATVEC_ONE(matvec_ring_##name##_##nb, nb, true, blocks, types)
#else
#define MATVEC(name, nb, blocks, types) MATVEC_ONE(matvec_##name##_##nb, nb, false, blocks, types)
#endif
#define MATVEC_TYPE(t) MATVEC(t, 1, 2, 1u << t) MATVEC(t, 4, 1, 1u << t)
