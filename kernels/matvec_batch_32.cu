// Instances for 8, 16 and 32 input rows of types of 32-element blocks and tables.
#include "matvec_batch.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
MATVEC_BATCH(Q4_0, Q4_0)
MATVEC_BATCH(Q4_1, Q4_1)
MATVEC_BATCH(Q5_0, Q5_0)
MATVEC_BATCH(Q5_1, Q5_1)
MATVEC_BATCH(IQ4_NL, IQ4_NL)
MATVEC_BATCH(IQ4_XS, IQ4_XS)
MATVEC_BATCH(MXFP4, MXFP4)
#endif
