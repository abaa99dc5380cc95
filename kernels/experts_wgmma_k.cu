// Instances of the products of many rows with their experts by warpgroup products, for K-quants and Q8_0.
#include "experts_wgmma.cuh"

EXPERTS_WGMMA(Q8_0, Q8_0)
EXPERTS_WGMMA(Q2_K, Q2_K)
EXPERTS_WGMMA(Q3_K, Q3_K)
EXPERTS_WGMMA(Q4_K, Q4_K)
EXPERTS_WGMMA(Q5_K, Q5_K)
EXPERTS_WGMMA(Q6_K, Q6_K)
