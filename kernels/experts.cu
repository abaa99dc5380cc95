// Mixtures of experts: which experts a row of input goes through, and the sum of what they make of it.
//
// Pair p of a batch is row p / n_used and the (p % n_used)-th of its experts in ascending order. For
// many rows, pairs are sorted by expert into slots, so that products take an expert's rows together.
#include "blocks.cuh"

// As in src/backend/cuda/experts.rs.
constexpr uint32_t MAX_EXPERTS = 1024;

enum Scoring : uint32_t { SOFTMAX = 0, SIGMOID = 1, SOFTMAX_OF_CHOSEN = 2 };
enum SharedExpert : uint32_t { NO_SHARED = 0, SHARED = 1, SHARED_WITH_SCORE = 2 };

struct RouteArgs {
    const float* scores;          // [rows][score_stride]: of all experts, then of the shared one
    const float* selection_bias;  // [n_experts], added while choosing, or NULL
    uint32_t* chosen;             // [rows][n_used], ascending
    float* weights;               // [rows][n_used + 1], the shared expert's last
    uint32_t score_stride;
    uint32_t n_experts;           // at most MAX_EXPERTS
    uint32_t n_used;
    uint32_t scoring;
    uint32_t shared;
    uint32_t normalize;
    float weight_scale;
    uint8_t n_groups;             // groups of consecutive experts, at most 32; 0: none
    uint8_t used_groups;          // those that experts are chosen from
    uint8_t group_best;           // best experts that count for a group: 1 or 2
    uint8_t padding;
};
static_assert(sizeof(RouteArgs) == 64, "as in args.rs");

// What a warp needs to choose experts.
struct RouteMemory {
    float scores[MAX_EXPERTS + 1];
    float keys[MAX_EXPERTS];
};

// Chooses the experts of a row, by a warp.
__device__ __forceinline__ void route_row(const RouteArgs& a, uint32_t row, RouteMemory& memory) {
    const uint32_t lane = threadIdx.x & 31, n = a.n_experts;
    float* const scores = memory.scores;
    float* const keys = memory.keys;
    // Past the first cache, for other multiprocessors may have written them just now.
    for (uint32_t i = lane; i < a.score_stride; i += 32) scores[i] = __ldcg(a.scores + (uint64_t)row * a.score_stride + i);
    __syncwarp();
    float largest = -INFINITY;
    bool broken = false;
    for (uint32_t i = lane; i < n; i += 32) {
        largest = fmaxf(largest, scores[i]);
        broken |= isnan(scores[i]);
    }
    largest = warp_max(largest);
    broken = __any_sync(~0u, broken);
    // Where all but infinite scores have no share, 1 for each of those.
    auto power = [&](float score) { return score == largest ? 1.0f : expf(score - largest); };
    float all = 1.0f;
    if (a.scoring == SOFTMAX) {
        all = 0.0f;
        for (uint32_t i = lane; i < n; i += 32) all += power(scores[i]);
        all = warp_sum(all);
    }
    // The weight before it is divided by those of the others chosen.
    auto weight = [&](float score) {
        return a.scoring == SIGMOID ? 1.0f / (1.0f + expf(-score)) : power(score) / all;
    };
    for (uint32_t i = lane; i < n; i += 32) {
        // The weights rise with the scores, so without a bias the scores do for choosing.
        float key = scores[i];
        if (a.selection_bias) key = (a.scoring == SOFTMAX_OF_CHOSEN ? key : weight(key)) + a.selection_bias[i];
        else if (a.group_best > 1) key = weight(key);
        keys[i] = isnan(key) ? -INFINITY : key;
    }
    if (a.n_groups) {
        // A lane has a group.
        const uint32_t each = n / a.n_groups;
        float first = -INFINITY, second = -INFINITY;
        __syncwarp();
        if (lane < a.n_groups)
            for (uint32_t i = lane * each; i < (lane + 1) * each; i++) {
                const float key = keys[i];
                if (key > first) { second = first; first = key; }
                else if (key > second) second = key;
            }
        const float own = a.group_best > 1 ? first + second : first;
        uint32_t better = 0;
        for (uint32_t other = 0; other < a.n_groups; other++) {
            const float number = __shfl_sync(~0u, own, other);
            better += number > own || (number == own && other < lane);
        }
        if (lane < a.n_groups && better >= a.used_groups)
            for (uint32_t i = lane * each; i < (lane + 1) * each; i++) keys[i] = -INFINITY;
        __syncwarp();
    }
    // The largest key, of equal ones the smaller index; then it is no number any more.
    for (uint32_t j = 0; j < a.n_used; j++) {
        float best = -INFINITY;
        uint32_t at = ~0u;
        for (uint32_t i = lane; i < n; i += 32) {
            float key = keys[i];
            if (key > best || (key == best && i < at)) { best = key; at = i; }
        }
#pragma unroll
        for (int o = 16; o; o >>= 1) {
            float key = __shfl_xor_sync(~0u, best, o);
            uint32_t i = __shfl_xor_sync(~0u, at, o);
            if (key > best || (key == best && i < at)) { best = key; at = i; }
        }
        if (at % 32 == lane) keys[at] = NAN;
    }
    float sum = 1.0f;
    if (a.normalize || a.scoring == SOFTMAX_OF_CHOSEN) {
        sum = 0.0f;
        for (uint32_t i = lane; i < n; i += 32)
            if (isnan(keys[i])) sum += weight(scores[i]);
        sum = warp_sum(sum);
        if (sum == 0.0f) sum = 1.0f;  // weights that are all zero stay so
    }
    const float factor = a.weight_scale / sum;
    uint32_t* chosen = a.chosen + (uint64_t)row * a.n_used;
    float* weights = a.weights + (uint64_t)row * (a.n_used + 1);
    uint32_t before = 0;
    for (uint32_t first = 0; first < n; first += 32) {
        const uint32_t i = first + lane;
        const bool taken = i < n && isnan(keys[i]);
        const uint32_t mask = __ballot_sync(~0u, taken);
        if (taken) {
            const uint32_t to = before + __popc(mask & ((1u << lane) - 1));
            chosen[to] = i;
            weights[to] = broken ? NAN : weight(scores[i]) * factor;
        }
        before += __popc(mask);
    }
    if (lane == 0) weights[a.n_used] = a.shared == SHARED_WITH_SCORE ? 1.0f / (1.0f + expf(-scores[n])) : 1.0f;
}

// Grid (rows), a warp each.
extern "C" __global__ void __launch_bounds__(32) route(const __grid_constant__ RouteArgs a) {
    __shared__ RouteMemory memory;
    release_dependents();
    wait_for_producers();
    route_row(a, blockIdx.x, memory);
}

// Rows of one type of a router.
struct RouterPart {
    const uint8_t* matrix;  // records
    const float* bias;      // [rows] or NULL
    uint32_t type;
    uint32_t rows;
};

struct StepRouteArgs {
    RouteArgs route;
    RouterPart parts[2];  // one below the other
    const float* x;       // [rows][groups * 32]
    uint32_t* tickets;    // [rows], zeros before and after
    uint32_t groups;
    uint32_t n_parts;
};
static_assert(sizeof(StepRouteArgs) == 136, "as in args.rs");

constexpr int ROUTE_WARPS = 8;

// The product of a router's row with a row of input, by a warp, in the order of additions of matvec.cuh.
__device__ __forceinline__ float score(const RouterPart& p, uint32_t r, const float* x, uint32_t groups) {
    const uint32_t lane = threadIdx.x & 31;
    float total = 0.0f;
    for_type(p.type, [&]<uint32_t T>() {
        const Slices c = slices_of(T, groups);
        for (uint32_t s = 0; s < c.count; s++) {
            const uint32_t n = s + 1 == c.count ? c.last : c.full;
            float sum = 0.0f;
            if (lane < n) {
                float w[32];
                group_values<T>(p.matrix + slice_offset(T, c, s, p.rows) + (uint64_t)r * record_bytes(T, n), lane, n, w);
                const float4* from = (const float4*)x + ((uint64_t)s * c.full + lane) * 8;
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    const float4 v = from[j];
                    sum = __fmaf_rn(w[4 * j], v.x, sum);
                    sum = __fmaf_rn(w[4 * j + 1], v.y, sum);
                    sum = __fmaf_rn(w[4 * j + 2], v.z, sum);
                    sum = __fmaf_rn(w[4 * j + 3], v.w, sum);
                }
            }
            sum = warp_sum(sum);
            total = s == 0 ? sum : __fadd_rn(total, sum);
        }
    });
    return p.bias ? __fadd_rn(total, p.bias[r]) : total;
}

// Scores and experts of a step's few rows. Grid (score_stride / ROUTE_WARPS rounded up, rows): a warp
// takes a score, and the block that is last chooses.
extern "C" __global__ void __launch_bounds__(ROUTE_WARPS * 32) step_route(const __grid_constant__ StepRouteArgs a) {
    __shared__ RouteMemory memory;
    __shared__ bool is_last;
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = blockIdx.y;
    release_dependents();
    wait_for_producers();
    uint32_t r = blockIdx.x * ROUTE_WARPS + warp;
    const uint32_t to = r;
    const bool second = a.n_parts > 1 && r >= a.parts[0].rows;
    if (second) r -= a.parts[0].rows;
    if (to < a.route.score_stride) {
        const float s = score(a.parts[second], r, a.x + (uint64_t)row * a.groups * 32, a.groups);
        if (lane == 0) ((float*)a.route.scores)[(uint64_t)row * a.route.score_stride + to] = s;
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(a.tickets + row, 1) == gridDim.x - 1;
    __syncthreads();
    if (!is_last) return;
    if (threadIdx.x == 0) a.tickets[row] = 0;
    __threadfence();
    if (warp == 0) route_row(a.route, row, memory);
}

struct ScoreArgs {
    const uint8_t* matrix;  // records of the router
    const float* bias;      // [matrix_rows] or NULL
    const float* x;         // [rows][groups * 32]
    float* out;             // [rows][out_stride]
    uint32_t type;
    uint32_t matrix_rows;
    uint32_t groups;
    uint32_t rows;
    uint32_t out_stride;
    uint32_t padding;
};
static_assert(sizeof(ScoreArgs) == 56, "as in args.rs");

constexpr int SCORE_ROWS = 4, SCORE_WARPS = 8;

// The router's product for many rows, in f32 and in the order of additions of matvec.cuh, so that a
// prompt goes where its tokens go one by one. Grid (rows / SCORE_ROWS rounded up): a block keeps a slice
// of its rows in shared memory, a warp takes a row of the matrix at a time. Shared memory beside that:
// SCORE_ROWS * matrix_rows floats.
extern "C" __global__ void __launch_bounds__(SCORE_WARPS * 32) expert_scores(const __grid_constant__ ScoreArgs a) {
    constexpr uint32_t STRIDE = 36;  // of groups, off the banks' period
    __shared__ __align__(16) float x[SCORE_ROWS][32 * STRIDE];
    extern __shared__ float sums[];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row0 = blockIdx.x * SCORE_ROWS;
    release_dependents();
    wait_for_producers();
    for_type(a.type, [&]<uint32_t T>() {
        const Slices c = slices_of(T, a.groups);
        for (uint32_t s = 0; s < c.count; s++) {
            const uint32_t n = s + 1 == c.count ? c.last : c.full;
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < SCORE_ROWS * n * 8; i += blockDim.x) {
                const uint32_t b = i / (n * 8), g = i % (n * 8) / 8, j = i % 8;
                const uint64_t row = min(row0 + b, a.rows - 1);
                *(float4*)&x[b][g * STRIDE + 4 * j] = ((const float4*)a.x)[(row * a.groups + s * c.full + g) * 8 + j];
            }
            __syncthreads();
            for (uint32_t r = warp; r < a.matrix_rows; r += SCORE_WARPS) {
                float sum[SCORE_ROWS] = {};
                if (lane < n) {
                    float w[32];
                    group_values<T>(a.matrix + slice_offset(T, c, s, a.matrix_rows) + (uint64_t)r * record_bytes(T, n), lane, n, w);
#pragma unroll
                    for (int b = 0; b < SCORE_ROWS; b++)
#pragma unroll
                        for (int j = 0; j < 8; j++) {
                            float4 v = *(const float4*)&x[b][lane * STRIDE + 4 * j];
                            sum[b] = __fmaf_rn(w[4 * j], v.x, sum[b]);
                            sum[b] = __fmaf_rn(w[4 * j + 1], v.y, sum[b]);
                            sum[b] = __fmaf_rn(w[4 * j + 2], v.z, sum[b]);
                            sum[b] = __fmaf_rn(w[4 * j + 3], v.w, sum[b]);
                        }
                }
#pragma unroll
                for (int b = 0; b < SCORE_ROWS; b++) {
                    const float total = warp_sum(sum[b]);
                    if (lane == 0) sums[b * a.matrix_rows + r] = s == 0 ? total : __fadd_rn(sums[b * a.matrix_rows + r], total);
                }
            }
        }
    });
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < SCORE_ROWS * a.matrix_rows; i += blockDim.x) {
        const uint32_t row = row0 + i / a.matrix_rows, r = i % a.matrix_rows;
        if (row < a.rows) a.out[(uint64_t)row * a.out_stride + r] = a.bias ? __fadd_rn(sums[i], a.bias[r]) : sums[i];
    }
}

struct SortArgs {
    const uint32_t* chosen;  // [n_pairs]: experts of the pairs
    uint32_t* starts;        // [n_experts + 1]: first slot of each expert, and the end
    uint32_t* slots;         // [n_pairs]: slot of a pair
    uint32_t* pairs;         // [n_pairs]: pair of a slot
    uint32_t* tiles;         // expert_tiles: [n_experts + 1], first tile of each expert, and the end
    uint32_t* tile_experts;  // expert_tiles: expert of each tile
    uint32_t n_pairs;
    uint32_t n_experts;
    uint32_t tile_rows;
    uint32_t padding;
};
static_assert(sizeof(SortArgs) == 64, "as in args.rs");

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
    __shared__ uint32_t scratch[32];
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
    sum_before(less, scratch, start);
    uint32_t slot = start + sum_before(mine, scratch, total);
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

// One block of 1024: the tiles of tile_rows slots that each expert takes.
extern "C" __global__ void __launch_bounds__(1024) expert_tiles(const __grid_constant__ SortArgs a) {
    static_assert(MAX_EXPERTS == 1024, "an expert a thread");
    __shared__ uint32_t scratch[32];
    release_dependents();
    wait_for_producers();
    const uint32_t expert = threadIdx.x;
    uint32_t tiles = 0, total;
    if (expert < a.n_experts) tiles = (a.starts[expert + 1] - a.starts[expert] + a.tile_rows - 1) / a.tile_rows;
    const uint32_t first = sum_before(tiles, scratch, total);
    if (expert < a.n_experts) {
        a.tiles[expert] = first;
        for (uint32_t i = 0; i < tiles; i++) a.tile_experts[first + i] = expert;
    }
    if (expert == 0) a.tiles[a.n_experts] = total;
}

struct CombineArgs {
    const float* x;         // [pairs or slots][x_stride]: outputs of the experts
    const uint32_t* slots;  // slot of each pair, or NULL where x has pairs
    const float* weights;   // [rows][n_used + 1]
    const float* shared;    // [rows][x_stride]: outputs of the shared expert, or NULL
    const float* base;      // [rows][out_stride], or NULL
    float* out;             // [rows][out_stride] = base + scale * sum; may be `base`
    float scale;
    uint32_t n_used;
    uint32_t len;
    uint32_t x_stride;
    uint32_t out_stride;
    uint32_t padding;
};
static_assert(sizeof(CombineArgs) == 72, "as in args.rs");

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
    const uint64_t to = (uint64_t)row * a.out_stride + i;
    a.out[to] = a.base ? __fmaf_rn(a.scale, sum, a.base[to]) : sum;
}
