// Instances of the product of up to four input rows with K-quants and Q8_0, and with the mix of two
// types that one fused matrix of a Q4_K_M file holds.
#include "matvec.cuh"
#include "matvec_instances.cuh"

MATVEC_TYPE(Q8_0)
MATVEC_TYPE(Q2_K)
MATVEC_TYPE(Q3_K)
MATVEC_TYPE(Q4_K)
MATVEC_TYPE(Q5_K)
MATVEC_TYPE(Q6_K)
MATVEC(Q4_K_Q6_K, 1, 2, 1u << Q4_K | 1u << Q6_K)
MATVEC(Q4_K_Q6_K, 4, 1, 1u << Q4_K | 1u << Q6_K)
