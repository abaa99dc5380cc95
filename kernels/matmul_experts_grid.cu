// Instances of the products of many rows with their experts for types of tables and scales of 16 elements.
#include "matmul_experts.cuh"

MATMUL_EXPERTS(NVFP4)
MATMUL_EXPERTS(GRID3)
MATMUL_EXPERTS(GRID4)
