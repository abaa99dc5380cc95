// Instances of the product of one row with K-quants and Q8_0, and with the mix of two types that one fused
// matrix of a Q4_K_M file holds.
#include "product.cuh"

PRODUCT(Q8_0, 1u << Q8_0)
PRODUCT(Q2_K, 1u << Q2_K)
PRODUCT(Q3_K, 1u << Q3_K)
PRODUCT(Q4_K, 1u << Q4_K)
PRODUCT(Q5_K, 1u << Q5_K)
PRODUCT(Q6_K, 1u << Q6_K)
PRODUCT_ONE(product_Q4_K_Q6_K, (1u << Q4_K | 1u << Q6_K), false)
PRODUCT_ADAPTED(product_adapted_Q4_K_Q6_K, (1u << Q4_K | 1u << Q6_K), false)

PRODUCT_SUMS(Q8_0, 1u << Q8_0)
PRODUCT_SUMS(Q4_K, 1u << Q4_K)
PRODUCT_SUMS(Q5_K, 1u << Q5_K)
PRODUCT_SUMS(Q6_K, 1u << Q6_K)
PRODUCT_SUMMED(product_summed_Q4_K_Q6_K, (1u << Q4_K | 1u << Q6_K), false)
