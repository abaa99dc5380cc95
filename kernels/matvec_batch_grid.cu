// Instances for 8, 16 and 32 input rows of types of tables and scales of 16 elements.
#include "matvec_batch.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
MATVEC_BATCH(NVFP4, NVFP4)
MATVEC_BATCH(GRID3, GRID3)
MATVEC_BATCH(GRID4, GRID4)
#endif
