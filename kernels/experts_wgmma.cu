// Products of many rows with the matrices of their experts by warpgroup products, of matrices in f16: those of float types.
#include "experts_wgmma.cuh"

EXPERTS_WGMMA(f16, UNPACKED)
