// Instances for 8, 16 and 32 input rows of types of 32-element blocks and tables.
#include "matvec_batch.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define BATCH_ONE(t, nt, rows)                                                                                       \
    extern "C" __global__ void __launch_bounds__(BATCH_WARPS * 32, 1) matvec_batch_##t##_##rows(const __grid_constant__ MatvecArgs a) { \
        matvec_batch_body<t, nt>(a);                                                                                 \
    }
#define BATCH(t) BATCH_ONE(t, 1, 8) BATCH_ONE(t, 2, 16) BATCH_ONE(t, 4, 32)
BATCH(Q4_0)
BATCH(Q4_1)
BATCH(Q5_0)
BATCH(Q5_1)
BATCH(IQ4_NL)
BATCH(IQ4_XS)
BATCH(MXFP4)
#endif
