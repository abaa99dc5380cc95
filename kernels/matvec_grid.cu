// Instances of the product of up to four input rows with types of tables and scales of 16 elements.
#include "matvec.cuh"
#include "matvec_instances.cuh"

MATVEC_TYPE(NVFP4)
MATVEC_TYPE(GRID3)
MATVEC_TYPE(GRID4)
