// Instances of the products of many rows with their experts by warpgroup products, for types of 32-element blocks and tables.
#include "experts_wgmma.cuh"

EXPERTS_WGMMA(Q4_0, Q4_0)
EXPERTS_WGMMA(Q4_1, Q4_1)
EXPERTS_WGMMA(Q5_0, Q5_0)
EXPERTS_WGMMA(Q5_1, Q5_1)
EXPERTS_WGMMA(IQ4_NL, IQ4_NL)
EXPERTS_WGMMA(IQ4_XS, IQ4_XS)
EXPERTS_WGMMA(MXFP4, MXFP4)
