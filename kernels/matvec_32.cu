// Instances of the product of up to four input rows with types of 32-element blocks and tables.
#include "matvec.cuh"
#include "matvec_instances.cuh"

MATVEC_TYPE(Q4_0)
MATVEC_TYPE(Q4_1)
MATVEC_TYPE(Q5_0)
MATVEC_TYPE(Q5_1)
MATVEC_TYPE(IQ4_NL)
MATVEC_TYPE(IQ4_XS)
MATVEC_TYPE(MXFP4)
