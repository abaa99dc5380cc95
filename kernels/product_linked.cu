// Instances of the product of one row of GPUs that share the layers of a network.
#include "product.cuh"

PRODUCT_LINKED(Q8_0, 1u << Q8_0)
PRODUCT_LINKED(Q4_0, 1u << Q4_0)
PRODUCT_LINKED(Q4_K, 1u << Q4_K)
PRODUCT_LINKED(Q5_K, 1u << Q5_K)
PRODUCT_LINKED(Q6_K, 1u << Q6_K)
PRODUCT_LINK(product_linked_Q4_K_Q6_K, (1u << Q4_K | 1u << Q6_K), false)
