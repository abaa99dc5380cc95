// Instances of the products of a step's experts for types of 32-element blocks and tables.
#include "experts_product.cuh"

EXPERTS(Q4_0)
EXPERTS(Q4_1)
EXPERTS(Q5_0)
EXPERTS(Q5_1)
EXPERTS(IQ4_NL)
EXPERTS(IQ4_XS)
EXPERTS(MXFP4)
