// Instances of the product of a few rows with types of tables and scales of 16 elements.
#include "product_few.cuh"

PRODUCT_FEW(NVFP4, 1u << NVFP4)
PRODUCT_FEW(GRID3, 1u << GRID3)
PRODUCT_FEW(GRID4, 1u << GRID4)
