// Instances of the product of one row whose outputs GPUs that share the layers of a network add up.
#include "product.cuh"

PRODUCT_LINKED(Q8_0, 1u << Q8_0)
PRODUCT_LINKED(Q4_0, 1u << Q4_0)
PRODUCT_LINKED(Q4_K, 1u << Q4_K)
PRODUCT_LINKED(Q5_K, 1u << Q5_K)
PRODUCT_LINKED(Q6_K, 1u << Q6_K)
