// Instances of the product with chosen experts for types of tables and scales of 16 elements.
#include "matvec_experts.cuh"

MATVEC_EXPERTS(NVFP4, 2)
MATVEC_EXPERTS(GRID3, 2)
MATVEC_EXPERTS(GRID4, 2)
