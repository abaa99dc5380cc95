// Instances of the product of a few rows with types of 32-element blocks and tables.
#include "product_few.cuh"

PRODUCT_FEW(Q4_0, 1u << Q4_0)
PRODUCT_FEW(Q4_1, 1u << Q4_1)
PRODUCT_FEW(Q5_0, 1u << Q5_0)
PRODUCT_FEW(Q5_1, 1u << Q5_1)
PRODUCT_FEW(IQ4_NL, 1u << IQ4_NL)
PRODUCT_FEW(IQ4_XS, 1u << IQ4_XS)
PRODUCT_FEW(MXFP4, 1u << MXFP4)
