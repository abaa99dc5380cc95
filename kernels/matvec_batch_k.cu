// Instances for 8, 16 and 32 input rows of K-quants and Q8_0.
#include "matvec_batch.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define BATCH_ONE(t, nt, rows)                                                                                       \
    extern "C" __global__ void __launch_bounds__(BATCH_WARPS * 32, 1) matvec_batch_##t##_##rows(const __grid_constant__ MatvecArgs a) { \
        matvec_batch_body<t, nt>(a);                                                                                 \
    }
#define BATCH(t) BATCH_ONE(t, 1, 8) BATCH_ONE(t, 2, 16) BATCH_ONE(t, 4, 32)
BATCH(Q8_0)
BATCH(Q2_K)
BATCH(Q3_K)
BATCH(Q4_K)
BATCH(Q5_K)
BATCH(Q6_K)
#endif
