// Instances for 8, 16 and 32 input rows of K-quants and Q8_0, and of the mix of two types that one fused
// matrix of a Q4_K_M file holds.
#include "matvec_batch.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
MATVEC_BATCH(Q8_0, Q8_0)
MATVEC_BATCH(Q2_K, Q2_K)
MATVEC_BATCH(Q3_K, Q3_K)
MATVEC_BATCH(Q4_K, Q4_K)
MATVEC_BATCH(Q5_K, Q5_K)
MATVEC_BATCH(Q6_K, Q6_K)
MATVEC_BATCH(Q4_K_Q6_K, Q4_K, Q6_K)
#endif
