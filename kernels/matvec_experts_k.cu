// Instances of the product with chosen experts for K-quants, Q8_0 and float types.
#include "matvec_experts.cuh"

MATVEC_EXPERTS(F32, 1)
MATVEC_EXPERTS(F16, 1)
MATVEC_EXPERTS(BF16, 1)
MATVEC_EXPERTS(Q8_0, 2)
MATVEC_EXPERTS(Q2_K, 2)
MATVEC_EXPERTS(Q3_K, 2)
MATVEC_EXPERTS(Q4_K, 2)
MATVEC_EXPERTS(Q5_K, 2)
MATVEC_EXPERTS(Q6_K, 2)
