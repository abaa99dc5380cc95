// Kernel names: matvec_<types>_<largest batch>. One type a kernel: several would spill registers.
#pragma once

#define MATVEC(name, nb, blocks, types)                                                            \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, blocks) matvec_##name##_##nb(const __grid_constant__ MatvecArgs a) { \
        matvec_body<nb, (types)>(a);                                                               \
    }
#define MATVEC_TYPE(t) MATVEC(t, 1, 2, 1u << t) MATVEC(t, 4, 1, 1u << t)
