// Instances of the product of one row with types of tables and scales of 16 elements.
#include "product.cuh"

PRODUCT(NVFP4, 1u << NVFP4)
PRODUCT(GRID3, 1u << GRID3)
PRODUCT(GRID4, 1u << GRID4)
