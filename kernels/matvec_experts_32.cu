// Instances of the product with chosen experts for types of 32-element blocks and tables.
#include "matvec_experts.cuh"

MATVEC_EXPERTS(Q4_0, 2)
MATVEC_EXPERTS(Q4_1, 2)
MATVEC_EXPERTS(Q5_0, 2)
MATVEC_EXPERTS(Q5_1, 2)
MATVEC_EXPERTS(IQ4_NL, 2)
MATVEC_EXPERTS(IQ4_XS, 2)
MATVEC_EXPERTS(MXFP4, 2)
