// Instances of the products of many rows with their experts by warpgroup products, for types of tables and scales of 16 elements.
#include "experts_wgmma.cuh"

EXPERTS_WGMMA(NVFP4, NVFP4)
EXPERTS_WGMMA(GRID3, GRID3)
EXPERTS_WGMMA(GRID4, GRID4)
