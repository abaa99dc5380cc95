// Instances of the products of a step's experts for K-quants and Q8_0.
#include "experts_product.cuh"

EXPERTS(Q8_0)
EXPERTS(Q2_K)
EXPERTS(Q3_K)
EXPERTS(Q4_K)
EXPERTS(Q5_K)
EXPERTS(Q6_K)
