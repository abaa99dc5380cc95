// Instances of the product of a few rows with K-quants and Q8_0, and with the mix of two types that one fused
// matrix of a Q4_K_M file holds.
#include "product_few.cuh"

PRODUCT_FEW(Q8_0, 1u << Q8_0)
PRODUCT_FEW(Q2_K, 1u << Q2_K)
PRODUCT_FEW(Q3_K, 1u << Q3_K)
PRODUCT_FEW(Q4_K, 1u << Q4_K)
PRODUCT_FEW(Q5_K, 1u << Q5_K)
PRODUCT_FEW(Q6_K, 1u << Q6_K)
PRODUCT_FEW(Q4_K_Q6_K, (1u << Q4_K | 1u << Q6_K))
