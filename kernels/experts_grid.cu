// Instances of the products of a step's experts for types of tables and scales of 16 elements.
#include "experts_product.cuh"

EXPERTS(NVFP4)
EXPERTS(GRID3)
EXPERTS(GRID4)
