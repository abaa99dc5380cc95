// Instances of the product of input rows with a matrix of a float type. The inputs stay f32.
#include "matvec.cuh"
#include "matvec_instances.cuh"

MATVEC(F32, 1, 1, 1u << F32)
MATVEC(F16, 1, 1, 1u << F16)
MATVEC(BF16, 1, 1, 1u << BF16)
