// Instances for 32 and 64 input rows of types of 32-element blocks and tables.
#include "batch_f16.cuh"

BATCH_F16(Q4_0, Q4_0)
BATCH_F16(Q4_1, Q4_1)
BATCH_F16(Q5_0, Q5_0)
BATCH_F16(Q5_1, Q5_1)
BATCH_F16(IQ4_NL, IQ4_NL)
BATCH_F16(IQ4_XS, IQ4_XS)
BATCH_F16(MXFP4, MXFP4)
