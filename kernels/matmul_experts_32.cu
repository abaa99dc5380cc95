// Instances of the products of many rows with their experts for types of 32-element blocks and tables.
#include "matmul_experts.cuh"

MATMUL_EXPERTS(Q4_0)
MATMUL_EXPERTS(Q4_1)
MATMUL_EXPERTS(Q5_0)
MATMUL_EXPERTS(Q5_1)
MATMUL_EXPERTS(IQ4_NL)
MATMUL_EXPERTS(IQ4_XS)
MATMUL_EXPERTS(MXFP4)
