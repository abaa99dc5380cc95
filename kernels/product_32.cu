// Instances of the product of one row with types of 32-element blocks and tables.
#include "product.cuh"

PRODUCT(Q4_0, 1u << Q4_0)
PRODUCT(Q4_1, 1u << Q4_1)
PRODUCT(Q5_0, 1u << Q5_0)
PRODUCT(Q5_1, 1u << Q5_1)
PRODUCT(IQ4_NL, 1u << IQ4_NL)
PRODUCT(IQ4_XS, 1u << IQ4_XS)
PRODUCT(MXFP4, 1u << MXFP4)

PRODUCT_SUMS(Q4_0, 1u << Q4_0)
