// Instances of the part of a layer with an input of its own.
#include "own_input.cuh"

OWN_INPUT(Q8_0)
OWN_INPUT(Q4_0)
OWN_INPUT(Q4_K)
OWN_INPUT(Q5_K)
OWN_INPUT(Q6_K)
