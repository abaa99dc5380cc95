// Mixtures of experts: which experts a row of input goes through, and the sum of what they make of it.
//
// Pair p of a batch is row p / n_used and the (p % n_used)-th of its experts in ascending order. For
// many rows, pairs are sorted by expert into slots, so that products take an expert's rows together.
#include "args_experts.h"
#include "expert_tiles.cuh"
#include "route.cuh"
#include "router.cuh"

// Grid (rows), a warp each.
extern "C" __global__ void __launch_bounds__(32) route(const __grid_constant__ RouteArgs a) {
    STATIC_SHARED(RouteMemory, memory);
    release_dependents();
    wait_for_producers();
    choose_experts(a, blockIdx.x, memory);
    write_choice(a, blockIdx.x, memory);
}

// Scores of one row (router.cuh). Dynamic shared memory: the row, and the sums of the parts.
extern "C" __global__ void __launch_bounds__(ROUTER_THREADS) router_row(const __grid_constant__ RouterArgs a) {
    DYNAMIC_SHARED(shared);
    struct Static { float scratch[32]; };
    STATIC_SHARED(Static, m);
    scores_of_row(a, gridDim.x, (float*)shared, m.scratch);
}

// Scores of rows. Grid (matrix_rows / (SCORE_WARPS * SCORES_AT_ONCE), rows / per_block, both rounded up): a warp keeps parts
// of SCORES_AT_ONCE rows of the matrix for all rows of the block. Shared memory: a float for each of a block's scores.
extern "C" __global__ void __launch_bounds__(SCORE_WARPS * 32) router_rows(const __grid_constant__ RouterArgs a) {
    DYNAMIC_SHARED(shared);
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const uint32_t first = (blockIdx.x * SCORE_WARPS + warp) * SCORES_AT_ONCE, row0 = blockIdx.y * a.per_block;
    const uint32_t rows = min(a.per_block, a.rows - row0), parts = (a.width + PART - 1) / PART;
    // Of this warp alone.
    float* const sums = (float*)shared + warp * SCORES_AT_ONCE * a.per_block;
    release_dependents();
    wait_for_producers();
    if (first >= a.matrix_rows) return;
    for (uint32_t part = 0; part < parts; part++) {
        PartOfRow w[SCORES_AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < SCORES_AT_ONCE; i++) w[i].load(a.matrix + (uint64_t)min(first + i, a.matrix_rows - 1) * a.width, part, a.width);
        for (uint32_t b = 0; b < rows; b++) {
            PartOfRow x;
            x.load(a.x + (uint64_t)(row0 + b) * a.width, part, a.width);
#pragma unroll
            for (uint32_t i = 0; i < SCORES_AT_ONCE; i++) {
                const float sum = warp_sum(w[i].times(x));
                float* const to = sums + i * a.per_block + b;
                if (lane == 0) *to = part == 0 ? sum : __fadd_rn(*to, sum);
            }
        }
    }
    __syncwarp();
    for (uint32_t i = lane; i < rows * SCORES_AT_ONCE; i += 32) {
        const uint32_t b = i / SCORES_AT_ONCE, r = first + i % SCORES_AT_ONCE;
        if (r >= a.matrix_rows) continue;
        const float v = sums[i % SCORES_AT_ONCE * a.per_block + b];
        a.out[(uint64_t)(row0 + b) * a.matrix_rows + r] = a.bias ? __fadd_rn(v, a.bias[r]) : v;
    }
}

constexpr uint32_t SORT_THREADS = 256;

// Exclusive sum over the threads of a block of SORT_THREADS or 1024; `total` is that over all.
__device__ __forceinline__ uint32_t sum_before(uint32_t v, uint32_t* scratch, uint32_t& total) {
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    uint32_t sum = v;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        uint32_t below = __shfl_up_sync(~0u, sum, o);
        if (lane >= o) sum += below;
    }
    __syncthreads();
    if (lane == 31) scratch[warp] = sum;
    __syncthreads();
    uint32_t before = 0;
    total = 0;
    for (uint32_t i = 0; i < warps; i++) {
        if (i < warp) before += scratch[i];
        total += scratch[i];
    }
    return before + sum - v;
}

// Grid (n_experts): a block finds the pairs of its expert and how many there are of those before.
extern "C" __global__ void __launch_bounds__(SORT_THREADS) expert_sort(const __grid_constant__ SortArgs a) {
    struct Static { uint32_t scratch[32]; };
    STATIC_SHARED(Static, m);
    release_dependents();
    wait_for_producers();
    const uint32_t expert = blockIdx.x, each = (a.n_pairs + SORT_THREADS - 1) / SORT_THREADS;
    const uint32_t first = min(threadIdx.x * each, a.n_pairs), last = min(first + each, a.n_pairs);
    uint32_t less = 0, mine = 0;
    for (uint32_t i = first; i < last; i++) {
        const uint32_t e = a.chosen[i];
        less += e < expert;
        mine += e == expert;
    }
    uint32_t start, total;
    sum_before(less, m.scratch, start);
    uint32_t slot = start + sum_before(mine, m.scratch, total);
    if (threadIdx.x == 0) {
        a.starts[expert] = start;
        if (expert + 1 == a.n_experts) a.starts[a.n_experts] = a.n_pairs;
    }
    for (uint32_t i = first; i < last; i++)
        if (a.chosen[i] == expert) {
            a.slots[i] = slot;
            a.pairs[slot++] = i;
        }
}

// One block of 1024: the tiles that each expert takes, as few as hold tile_rows slots at most, all but the last of one length.
extern "C" __global__ void __launch_bounds__(1024) expert_tiles(const __grid_constant__ SortArgs a) {
    static_assert(MAX_EXPERTS == 1024, "an expert a thread");
    struct Static { uint32_t scratch[32]; };
    STATIC_SHARED(Static, m);
    release_dependents();
    wait_for_producers();
    const uint32_t expert = threadIdx.x;
    uint32_t begin = 0, slots = 0, each = 0, tiles = 0, total;
    if (expert < a.n_experts) {
        begin = a.starts[expert];
        slots = a.starts[expert + 1] - begin;
    }
    if (slots > 0) {
        tiles = (slots + a.tile_rows - 1) / a.tile_rows;
        each = ((slots + tiles - 1) / tiles + 7) / 8 * 8;
        tiles = (slots + each - 1) / each;
    }
    const uint32_t first = sum_before(tiles, m.scratch, total);
    if (expert < a.n_experts) a.tiles[expert] = first;
    for (uint32_t i = 0; i < tiles; i++) a.places[first + i] = {expert, begin + i * each, min(each, slots - i * each), 0};
    if (expert == 0) a.tiles[a.n_experts] = total;
}

// The experts of a step's rows, and their pairs dealt out to tiles of one expert each: one block, a warp for a row at a
// time. Pairs of one expert are in no order. Shared memory: a RouteMemory for each warp.
extern "C" __global__ void __launch_bounds__(PAIR_WARPS * 32) route_pairs(const __grid_constant__ RoutePairsArgs a) {
    DYNAMIC_SHARED(shared);
    struct Static { uint32_t counts[MAX_EXPERTS], scratch[32]; };
    STATIC_SHARED(Static, m);
    const uint32_t warp = threadIdx.x >> 5, n = a.route.n_experts, n_pairs = a.rows * a.route.n_used;
    RouteMemory& memory = ((RouteMemory*)shared)[warp];
    constexpr uint32_t THREADS = PAIR_WARPS * 32, EACH = MAX_EXPERTS / THREADS, MINE = MOST_PAIRS / THREADS;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) m.counts[i] = 0;
    release_dependents();
    wait_for_producers();
    for (uint32_t row = warp; row < a.rows; row += PAIR_WARPS) {
        choose_experts(a.route, row, memory);
        write_choice(a.route, row, memory);
        __syncwarp();
    }
    __syncthreads();
    uint32_t rank[MINE], expert[MINE];
#pragma unroll
    for (uint32_t i = 0; i < MINE; i++) {
        const uint32_t pair = i * THREADS + threadIdx.x;
        if (pair >= n_pairs) break;
        expert[i] = a.route.chosen[pair];
        rank[i] = atomicAdd(m.counts + expert[i], 1u);
    }
    __syncthreads();
    // A thread has experts that are neighbours.
    uint32_t tiles = 0, total;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t e = threadIdx.x * EACH + i;
        tiles += e < n ? (m.counts[e] + PAIRS_AT_ONCE - 1) / PAIRS_AT_ONCE : 0;
    }
    uint32_t tile = sum_before(tiles, m.scratch, total);
    if (threadIdx.x == 0) *a.n_tiles = total;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t e = threadIdx.x * EACH + i;
        if (e >= n) break;
        uint32_t left = m.counts[e];
        m.counts[e] = tile;
        for (; left > 0; tile++) {
            a.tiles[tile].expert = e;
            const uint32_t its = min(left, PAIRS_AT_ONCE);
            a.tiles[tile].n = its;
            left -= its;
                    }
    }
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < MINE; i++) {
        const uint32_t pair = i * THREADS + threadIdx.x;
        if (pair >= n_pairs) break;
        a.tiles[m.counts[expert[i]] + rank[i] / PAIRS_AT_ONCE].pairs[rank[i] % PAIRS_AT_ONCE] = pair;
    }
}

// Grid (pairs or slots): their inner values times the weights of the pairs, which are 1 behind it.
extern "C" __global__ void __launch_bounds__(256) weigh_inner(const __grid_constant__ WeighInnerArgs a) {
    release_dependents();
    wait_for_producers();
    const uint32_t pair = a.pairs ? a.pairs[blockIdx.x] : blockIdx.x;
    float* const weight = a.weights + pair / a.n_used * (a.n_used + 1) + pair % a.n_used;
    const float factor = *weight;
    float* const inner = a.inner + (uint64_t)blockIdx.x * a.width;
    for (uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) inner[i] = __fmul_rn(factor, inner[i]);
    __syncthreads();
    if (threadIdx.x == 0) *weight = 1.0f;
}

// Weighted sums over each row's experts, in ascending order, then the shared one. Grid (len / 128
// rounded up, rows).
extern "C" __global__ void __launch_bounds__(128) expert_combine(const __grid_constant__ CombineArgs a) {
    const uint32_t i = blockIdx.x * 128 + threadIdx.x, row = blockIdx.y;
    release_dependents();
    wait_for_producers();
    if (i >= a.len) return;
    const float* weights = a.weights + (uint64_t)row * (a.n_used + 1);
    float sum = 0.0f;
#pragma unroll 8
    for (uint32_t j = 0; j < a.n_used; j++) {
        const uint64_t pair = (uint64_t)row * a.n_used + j, at = a.slots ? a.slots[pair] : pair;
        sum = __fmaf_rn(weights[j], a.x[at * a.x_stride + i], sum);
    }
    if (a.shared) sum = __fmaf_rn(weights[a.n_used], a.shared[(uint64_t)row * a.x_stride + i], sum);
    if (a.bias) sum = __fadd_rn(sum, a.bias[i]);
    const uint64_t to = (uint64_t)row * a.out_stride + i;
    a.out[to] = a.base ? __fmaf_rn(a.scale, sum, a.base[to]) : sum;
}
