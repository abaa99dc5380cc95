// What the products of many rows with the matrices of their experts take, whatever kernel does them.
#pragma once
#include "args_experts.h"
#include "activation.cuh"

// Slots of one expert that are multiplied together: the expert, the first slot and how many they are.
struct alignas(16) TilePlace {
    uint32_t expert, begin, rows, padding;
};
static_assert(sizeof(TilePlace) == 16, "as in places.rs");
