// Instances for 32 and 64 input rows of types of tables and scales of 16 elements.
#include "batch_f16.cuh"

BATCH_F16(NVFP4, NVFP4)
BATCH_F16(GRID3, GRID3)
BATCH_F16(GRID4, GRID4)
