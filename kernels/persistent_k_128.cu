// A decode step with K-quants and Q8_0, and heads of up to 128 elements.
#include "persistent.cuh"
PERSISTENT(k, 128, 1u << Q8_0 | 1u << Q4_K | 1u << Q5_K | 1u << Q6_K)
