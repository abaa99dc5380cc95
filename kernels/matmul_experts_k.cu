// Instances of the products of many rows with their experts for K-quants and Q8_0.
#include "matmul_experts.cuh"

MATMUL_EXPERTS(Q8_0)
MATMUL_EXPERTS(Q2_K)
MATMUL_EXPERTS(Q3_K)
MATMUL_EXPERTS(Q4_K)
MATMUL_EXPERTS(Q5_K)
MATMUL_EXPERTS(Q6_K)
