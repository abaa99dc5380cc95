// Instances for 32 and 64 input rows of K-quants and Q8_0, and of the mix of two types that one fused
// matrix of a Q4_K_M file holds.
#include "batch_f16.cuh"

BATCH_F16(Q8_0, Q8_0)
BATCH_F16(Q2_K, Q2_K)
BATCH_F16(Q3_K, Q3_K)
BATCH_F16(Q4_K, Q4_K)
BATCH_F16(Q5_K, Q5_K)
BATCH_F16(Q6_K, Q6_K)
BATCH_F16(Q4_K_Q6_K, Q4_K, Q6_K)
