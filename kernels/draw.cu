// Draws and log-probabilities. A cluster of blocks (before Hopper: one block) shares a session's
// vocabulary. Most settings leave few tokens, which the cluster gathers in its first block; only
// distributions that stay wide go over the whole vocabulary again and again.
#include "sample.cuh"

#if __CUDA_ARCH__ >= 900
constexpr uint32_t CLUSTER = 8;
#define CLUSTERED __cluster_dims__(8, 1, 1)
#else
constexpr uint32_t CLUSTER = 1;
#define CLUSTERED
#endif

constexpr uint32_t THREADS = 1024;
constexpr uint32_t LIST = 1024;         // gathered tokens: one a thread
constexpr uint32_t BINS = 1024;         // of a histogram: one a thread
constexpr uint32_t PIECES = 4;          // a weight is added in pieces of so many bits, so that 2^21 of
constexpr uint32_t PIECE_BITS = 11;     // them fit 32 bits
constexpr uint32_t GATHER = 128;        // the best tokens to gather if a setting does not say how many
constexpr double ONE = 1099511627776.0;  // 2^40, the weight of the best token
static_assert(PIECES * PIECE_BITS > 40 && LIST == THREADS && BINS == THREADS, "one a thread");

// ---- arithmetic of src/engine/sampling/fixed.rs ----

// e^x for x <= 0, each operation rounded on its own.
__device__ double exponential(double x) {
    if (!(x >= -708.0)) return 0.0;
    double n = rint(__dmul_rn(x, 1.4426950408889634));
    double r = __dsub_rn(__dsub_rn(x, __dmul_rn(n, 6.931471803691238e-1)), __dmul_rn(n, 1.9082149292705877e-10));
    double s = 1.0 / 362880.0;
    s = __dadd_rn(__dmul_rn(s, r), 1.0 / 40320.0);
    s = __dadd_rn(__dmul_rn(s, r), 1.0 / 5040.0);
    s = __dadd_rn(__dmul_rn(s, r), 1.0 / 720.0);
    s = __dadd_rn(__dmul_rn(s, r), 1.0 / 120.0);
    s = __dadd_rn(__dmul_rn(s, r), 1.0 / 24.0);
    s = __dadd_rn(__dmul_rn(s, r), 1.0 / 6.0);
    s = __dadd_rn(__dmul_rn(s, r), 0.5);
    double e = __dadd_rn(__dadd_rn(1.0, r), __dmul_rn(__dmul_rn(r, r), s));
    return __dmul_rn(e, __longlong_as_double((long long)((int)n + 1023) << 52));
}
__device__ __forceinline__ uint64_t weight_of(double x) {
    return x >= -28.0 ? (uint64_t)__dmul_rn(exponential(x), ONE) : 0;
}
__device__ __forceinline__ uint64_t surprise_of(double x) {
    return x >= -28.0 ? (uint64_t)__dmul_rn(__dmul_rn(exponential(x), -x), ONE) : 0;
}
__device__ __forceinline__ double below(float v, float top) { return __dsub_rn((double)v, (double)top); }
__device__ __forceinline__ uint64_t share_of(uint64_t sum, float p) {
    uint64_t wanted = (uint64_t)ceil(__dmul_rn(__ull2double_rn(sum), (double)p));
    return min(max(wanted, (uint64_t)1), sum);
}

// The number below `total` that a draw falls on.
__device__ uint64_t draw_target(uint64_t seed, uint64_t position, uint64_t total) {
    uint32_t c[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0}, k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int i = 0; i < 10; i++) {
        uint64_t x = (uint64_t)0xD2511F53u * c[0], y = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t n[4] = {(uint32_t)(y >> 32) ^ c[1] ^ k[0], (uint32_t)y, (uint32_t)(x >> 32) ^ c[3] ^ k[1], (uint32_t)x};
        for (int j = 0; j < 4; j++) c[j] = n[j];
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    uint64_t bits = ((uint64_t)c[0] << 32 | c[1]) >> 11;
    return __umul64hi(bits, total) << 11 | bits * total >> 53;
}

// ---- orders as numbers: what comes first is larger; 0 stands for what is not there ----

// The ranking: by logit, then by id.
__device__ __forceinline__ uint64_t rank_key(float v, uint32_t id) {
    v = v == 0.0f ? 0.0f : v;
    uint32_t u = __float_as_uint(v);
    u = u >> 31 ? ~u : u | 0x80000000u;
    return (uint64_t)u << 32 | (uint32_t)~id;
}
__device__ __forceinline__ float logit_of(uint64_t rank_key) {
    uint32_t u = rank_key >> 32;
    return __uint_as_float(u >> 31 ? u & 0x7fffffffu : ~u);
}
__device__ __forceinline__ uint32_t id_of(uint64_t key) { return ~(uint32_t)key; }

// How typical: by the distance of the surprise from its mean, then by id.
__device__ __forceinline__ uint64_t typical_key(double mean, float v, float top, uint32_t id) {
    float distance = __double2float_rn(fabs(__dadd_rn(mean, below(v, top))));
    return (uint64_t)~__float_as_uint(distance) << 32 | (uint32_t)~id;
}

// Both orders divided coarsely, from 0, the first, to BINS - 1.
__device__ __forceinline__ uint32_t rank_bin(uint64_t key, float best) {
    return (uint32_t)fminf(__fmul_rn(__fsub_rn(best, logit_of(key)), 32.0f), BINS - 1.0f);
}
__device__ __forceinline__ uint32_t typical_bin(uint64_t key) {
    return (uint32_t)fminf(__fmul_rn(__uint_as_float(~(uint32_t)(key >> 32)), 32.0f), BINS - 1.0f);
}

// ---- the cluster ----

// The same place in the shared memory of another block.
template <class T> __device__ __forceinline__ T* at_rank(T* place, uint32_t rank) {
#if __CUDA_ARCH__ >= 900
    uint64_t there;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(place), "r"(rank));
    return (T*)there;
#else
    return place;
#endif
}
// A barrier of all threads, after which each sees what the others wrote.
__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#else
    __syncthreads();
#endif
}

struct Shared {
    uint64_t list[LIST];  // keys
    uint64_t weights[LIST];
    uint64_t order[LIST];
    uint32_t bins[PIECES][BINS];
    uint64_t sums[32];
    uint64_t parts[2][8];
    uint64_t left, answer;
    float groups[BEST_GROUPS];
    float threshold;
    uint32_t bin, count, id, done;
};

// A session's logits, and the part of this block.
struct View {
    const float* v;
    uint32_t n, first, end;
    float best;      // the largest
    uint32_t turn;   // which of `parts` comes next
};

// The sum over the threads up to this one, and over all.
__device__ uint64_t block_scan(Shared& d, uint64_t value, uint64_t& all) {
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint64_t sum = value;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        uint64_t before = __shfl_up_sync(~0u, sum, o);
        if (lane >= o) sum += before;
    }
    __syncthreads();
    if (lane == 31) d.sums[warp] = sum;
    __syncthreads();
    uint64_t warps = d.sums[lane];
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        uint64_t before = __shfl_up_sync(~0u, warps, o);
        if (lane >= o) warps += before;
    }
    all = __shfl_sync(~0u, warps, 31);
    uint64_t before = __shfl_sync(~0u, warps, warp ? warp - 1 : 0);
    return sum + (warp ? before : 0);
}
__device__ uint64_t block_total(Shared& d, uint64_t value) {
    uint64_t all;
    block_scan(d, value, all);
    return all;
}
__device__ float block_largest(Shared& d, float value) {
#pragma unroll
    for (int o = 16; o; o >>= 1) value = fmaxf(value, __shfl_xor_sync(~0u, value, o));
    __syncthreads();
    if ((threadIdx.x & 31) == 0) d.sums[threadIdx.x >> 5] = __float_as_uint(value);
    __syncthreads();
    value = __uint_as_float((uint32_t)d.sums[threadIdx.x & 31]);
#pragma unroll
    for (int o = 16; o; o >>= 1) value = fmaxf(value, __shfl_xor_sync(~0u, value, o));
    return value;
}

// Tells every block what each has; the values of all are in the result, by rank. There are two places
// for them, as a block may be one exchange ahead of another.
__device__ const uint64_t* exchange(Shared& d, View& x, uint64_t mine) {
    uint64_t* parts = d.parts[x.turn];
    x.turn ^= 1;
    if (threadIdx.x < CLUSTER) *at_rank(&parts[cluster_rank()], threadIdx.x) = mine;
    cluster_sync();
    return parts;
}
__device__ uint64_t cluster_total(Shared& d, View& x, uint64_t value) {
    const uint64_t* parts = exchange(d, x, block_total(d, value));
    uint64_t sum = 0;
    for (uint32_t r = 0; r < CLUSTER; r++) sum += parts[r];
    return sum;
}
__device__ float cluster_largest(Shared& d, View& x, float value) {
    const uint64_t* parts = exchange(d, x, __float_as_uint(block_largest(d, value)));
    float largest = -INFINITY;
    for (uint32_t r = 0; r < CLUSTER; r++) largest = fmaxf(largest, __uint_as_float((uint32_t)parts[r]));
    return largest;
}

// Puts the keys that `pick` gives (0 for none) into the first block's list, as far as there is room, and
// counts them there. All of a warp's threads call it.
__device__ __forceinline__ void push(Shared& d, uint64_t key) {
    uint32_t wanted = __ballot_sync(~0u, key != 0);
    if (!wanted) return;
    uint32_t lane = threadIdx.x & 31, leader = __ffs(wanted) - 1, slot = 0;
    if (lane == leader) slot = atomicAdd(at_rank(&d.count, 0), __popc(wanted));
    slot = __shfl_sync(~0u, slot, leader) + __popc(wanted & ((1u << lane) - 1));
    if (key && slot < LIST) at_rank(d.list, 0)[slot] = key;
}
template <class Pick> __device__ void gather(Shared& d, const View& x, Pick pick) {
    for (uint32_t i = x.first + (threadIdx.x & ~31u); i < x.end; i += THREADS) {
        uint32_t id = i + (threadIdx.x & 31);
        push(d, id < x.end ? pick(id) : 0);
    }
}
// Empties the list. Everyone has read it before.
__device__ void clear_list(Shared& d) {
    if (threadIdx.x == 0) d.count = 0;
    cluster_sync();
}

// The sum of the weights of listed keys for which `before` holds, and of all.
template <class Before>
__device__ __forceinline__ uint64_t sum_listed(const Shared& d, uint32_t count, uint64_t& all, Before before) {
    uint64_t sum = 0;
    all = 0;
    // Without branches, so that the loads go ahead.
#pragma unroll 8
    for (uint32_t j = 0; j < count; j++) {
        uint64_t w = d.weights[j];
        all += w;
        sum += before(j) ? w : 0;
    }
    return sum;
}

// ---- the whole vocabulary ----

struct Bin { uint32_t bin; uint64_t left; };

// The bin in which the weights, added from bin 0 on, reach `target`, and what is left of that there.
// bin_of(id) is less than BINS, or negative for tokens that do not count.
template <class BinOf, class Weight>
__device__ Bin find_bin(Shared& d, const View& x, uint64_t target, BinOf bin_of, Weight weight) {
    for (uint32_t p = 0; p < PIECES; p++) d.bins[p][threadIdx.x] = 0;
    __syncthreads();
    for (uint32_t i = x.first + threadIdx.x; i < x.end; i += THREADS) {
        int bin = bin_of(i);
        if (bin < 0) continue;
        uint64_t w = weight(i);
        for (uint32_t p = 0; w; p++, w >>= PIECE_BITS)
            if (uint32_t piece = w & ((1u << PIECE_BITS) - 1)) atomicAdd(&d.bins[p][bin], piece);
    }
    cluster_sync();
    uint64_t sum = 0, all;
    for (uint32_t r = 0; r < CLUSTER; r++)
        for (uint32_t p = 0; p < PIECES; p++) sum += (uint64_t)*at_rank(&d.bins[p][threadIdx.x], r) << (p * PIECE_BITS);
    uint64_t upto = block_scan(d, sum, all);
    if (upto >= target && upto - sum < target) {
        d.bin = threadIdx.x;
        d.left = target - (upto - sum);
    }
    cluster_sync();
    return {d.bin, d.left};
}

// The smallest key such that the tokens from it on weigh at least `target`, which is at least 1 and at
// most the weight of all. coarse(key) divides keys into BINS, from the largest on.
template <class Key, class Coarse, class Weight>
__device__ uint64_t select(Shared& d, const View& x, uint64_t target, Key key, Coarse coarse, Weight weight) {
    auto coarse_bin = [&](uint32_t i) -> int {
        uint64_t k = key(i);
        return k ? (int)coarse(k) : -1;
    };
    Bin top = find_bin(d, x, target, coarse_bin, weight);
    clear_list(d);
    gather(d, x, [&](uint32_t i) -> uint64_t { return coarse_bin(i) == (int)top.bin ? key(i) : 0; });
    cluster_sync();
    const uint32_t count = *at_rank(&d.count, 0);
    if (count <= LIST) {
        if (cluster_rank() == 0) {
            uint64_t mine = threadIdx.x < count ? d.list[threadIdx.x] : 0, w = mine ? weight(id_of(mine)) : 0;
            d.weights[threadIdx.x] = w;
            __syncthreads();
            if (mine) {
                uint64_t all, before = sum_listed(d, count, all, [&](uint32_t j) { return d.list[j] > mine; });
                if (before < top.left && before + w >= top.left)
                    for (uint32_t r = 0; r < CLUSTER; r++) *at_rank(&d.answer, r) = mine;
            }
        }
        cluster_sync();
        return d.answer;
    }
    // Many that are alike: digit by digit.
    cluster_sync();
    uint64_t prefix = 0, left = top.left;
    for (int shift = 56; shift >= 0; shift -= 8) {
        uint64_t mask = shift == 56 ? 0 : ~0ull << (shift + 8);
        Bin digit = find_bin(
            d, x, left,
            [&](uint32_t i) -> int {
                uint64_t k = key(i);
                return k && (k & mask) == prefix && coarse(k) == top.bin ? 255 - (int)(k >> shift & 255) : -1;
            },
            weight);
        prefix |= (uint64_t)(255 - digit.bin) << shift;
        left = digit.left;
    }
    return prefix;
}

// ---- the first tokens of the ranking ----

// Gathers the best `k` tokens and perhaps a few more: those that reach the k-th largest of the groups'
// best, at least k of which do. The list is complete if it has all tokens down to `threshold`, which is
// minus infinity if that is the whole vocabulary. The groups' best are in `groups`.
__device__ void gather_best(Shared& d, const View& x, uint32_t k) {
    if (x.n <= LIST || k > BEST_GROUPS) {
        d.threshold = -INFINITY;
    } else {
        uint32_t group = threadIdx.x / 4, before = 0;
        float mine = d.groups[group];
        for (uint32_t j = threadIdx.x & 3; j < BEST_GROUPS; j += 4) {
            float other = d.groups[j];
            before += other > mine || (other == mine && j < group);
        }
        before += __shfl_xor_sync(~0u, before, 1);
        before += __shfl_xor_sync(~0u, before, 2);
        if ((threadIdx.x & 3) == 0 && before == k - 1) d.threshold = mine;
    }
    __syncthreads();
    const float threshold = d.threshold;
    // A few loads at a time, for their latency.
    constexpr uint32_t AHEAD = 8;
    for (uint32_t i = x.first + (threadIdx.x & ~31u); i < x.end; i += AHEAD * THREADS) {
        float v[AHEAD];
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++) {
            uint32_t id = i + j * THREADS + (threadIdx.x & 31);
            v[j] = id < x.end ? x.v[id] : NAN;
        }
#pragma unroll
        for (uint32_t j = 0; j < AHEAD; j++)
            push(d, v[j] >= threshold ? rank_key(v[j], i + j * THREADS + (threadIdx.x & 31)) : 0);
    }
}

// ---- filters and draw ----

// Chooses among the first block's list, which has `count` tokens: the best of the vocabulary, whose
// weights sum to `whole`, or, if that is 0, all that top_k leaves and perhaps more. False if more than
// these would be left; `d.done` says the same. All threads of the first block call it; `d.id` is the
// choice. The warps beyond
// the list have nothing to do but to meet the others.
__device__ bool choose_listed(Shared& d, const View& x, const Settings& s, uint32_t count, uint64_t whole, uint64_t draw) {
    const uint32_t t = threadIdx.x;
    const bool busy = (t & ~31u) < count;
    uint64_t key = t < count ? d.list[t] : 0, all = 0;
    if (s.top_k > 0 && s.top_k < count && busy) {
        uint32_t before = 0;
#pragma unroll 8
        for (uint32_t j = 0; j < count; j++) before += d.list[j] > key;
        if (before >= s.top_k) key = 0;
    }
    if (t == 0) d.done = 1;
    float v = key ? logit_of(key) : -INFINITY, top = x.best;
    if (s.typical_p < 1.0f) {
        uint64_t w = key ? weight_of(below(v, top)) : 0;
        uint64_t sum = block_total(d, w), surprises = block_total(d, key ? surprise_of(below(v, top)) : 0);
        double mean = __ddiv_rn(__ull2double_rn(surprises), __ull2double_rn(sum));
        uint64_t order = key ? typical_key(mean, v, top, id_of(key)) : 0, wanted = share_of(sum, s.typical_p);
        d.order[t] = order;
        d.weights[t] = w;
        __syncthreads();
        if (key && sum_listed(d, count, all, [&](uint32_t j) { return d.order[j] > order; }) >= wanted) key = 0;
        if (!key) v = -INFINITY;
        top = block_largest(d, v);
    }
    const double under = key ? below(v, top) : 0.0;
    const double share = busy && key && (s.top_p < 1.0f || s.min_p > 0.0f) ? exponential(under) : 0.0;
    __syncthreads();
    if (s.top_p < 1.0f) {
        if (busy) {
            d.list[t] = key;
            d.weights[t] = under >= -28.0 ? (uint64_t)__dmul_rn(share, ONE) : 0;
        }
        __syncthreads();
        if (busy) {
            uint64_t before = sum_listed(d, count, all, [&](uint32_t j) { return d.list[j] > key; });
            uint64_t wanted = share_of(whole ? whole : all, s.top_p);
            // With too few, all of the list is left, and that is all if min_p would take the rest.
            if (t == 0 && all < wanted) d.done = exponential(below(d.threshold, top)) < (double)s.min_p;
            if (before >= wanted) key = 0;
        }
    } else if (whole && t == 0) {
        d.done = exponential(below(d.threshold, top)) < (double)s.min_p;
    }
    if (s.min_p > 0.0f && key && share < (double)s.min_p) key = 0;
    const double per_temperature = __ddiv_rn(1.0, (double)s.temperature);
    const uint64_t w = busy && key ? weight_of(__dmul_rn(under, per_temperature)) : 0;
    __syncthreads();
    if (busy) {
        d.list[t] = key;
        d.weights[t] = w;
    }
    __syncthreads();
    if (busy) {
        // Smaller ids have larger lower halves.
        uint64_t before = sum_listed(d, count, all, [&](uint32_t j) { return (uint32_t)d.list[j] > (uint32_t)key; });
        uint64_t target = draw_target(s.seed, draw, all);
        if (w && before <= target && target < before + w) d.id = id_of(key);
    }
    __syncthreads();
    return d.done;
}

// The same over the whole vocabulary. True in the one thread, of all, that has the choice in `id`.
__device__ bool choose_any(Shared& d, View& x, const Settings& s, uint64_t draw, uint32_t& id) {
    const float best = x.best;
    auto rank_coarse = [=](uint64_t key) { return rank_bin(key, best); };
    auto each = [&](auto&& value) {
        uint64_t sum = 0;
        for (uint32_t i = x.first + threadIdx.x; i < x.end; i += THREADS) sum += value(i);
        return sum;
    };
    uint64_t floor = 0, typical_floor = 0;
    if (s.top_k > 0 && s.top_k < x.n) {
        floor = select(d, x, s.top_k, [&](uint32_t i) { return rank_key(x.v[i], i); }, rank_coarse,
                       [](uint32_t) -> uint64_t { return 1; });
        if (s.top_k <= LIST) {
            clear_list(d);
            gather(d, x, [&](uint32_t i) -> uint64_t {
                uint64_t key = rank_key(x.v[i], i);
                return key >= floor ? key : 0;
            });
            cluster_sync();
            if (cluster_rank() != 0) return false;
            choose_listed(d, x, s, s.top_k, 0, draw);
            id = d.id;
            return threadIdx.x == 0;
        }
    }
    float top = best;
    double mean = 0.0;
    auto typical = [&](uint32_t i) -> uint64_t {
        float v = x.v[i];
        return rank_key(v, i) >= floor ? typical_key(mean, v, best, i) : 0;
    };
    if (s.typical_p < 1.0f) {
        auto ranked = [&](uint32_t i) { return rank_key(x.v[i], i) >= floor; };
        auto weight = [&](uint32_t i) { return weight_of(below(x.v[i], best)); };
        uint64_t sum = cluster_total(d, x, each([&](uint32_t i) { return ranked(i) ? weight(i) : 0; }));
        uint64_t surprises = cluster_total(d, x, each([&](uint32_t i) -> uint64_t {
            return ranked(i) ? surprise_of(below(x.v[i], best)) : 0;
        }));
        mean = __ddiv_rn(__ull2double_rn(surprises), __ull2double_rn(sum));
        typical_floor = select(d, x, share_of(sum, s.typical_p), typical, typical_bin, weight);
        float largest = -INFINITY;
        for (uint32_t i = x.first + threadIdx.x; i < x.end; i += THREADS)
            if (typical(i) >= typical_floor) largest = fmaxf(largest, x.v[i]);
        top = cluster_largest(d, x, largest);
    }
    auto rank = [&](uint32_t i) -> uint64_t {
        uint64_t key = rank_key(x.v[i], i);
        return key >= floor && (!typical_floor || typical(i) >= typical_floor) ? key : 0;
    };
    if (s.top_p < 1.0f) {
        auto weight = [&](uint32_t i) { return weight_of(below(x.v[i], top)); };
        uint64_t sum = cluster_total(d, x, each([&](uint32_t i) { return rank(i) ? weight(i) : 0; }));
        // Nothing of this order has the rank above: the new bound is within what the old ones leave.
        floor = select(d, x, share_of(sum, s.top_p), rank, rank_coarse, weight);
    }
    const double min_p = s.min_p, per_temperature = __ddiv_rn(1.0, (double)s.temperature);
    auto weight = [&](uint32_t i) -> uint64_t {
        if (!rank(i)) return 0;
        double under = below(x.v[i], top);
        return min_p > 0.0 && exponential(under) < min_p ? 0 : weight_of(__dmul_rn(under, per_temperature));
    };
    // Contiguous shares, in the order of ids.
    const uint32_t length = x.end - x.first;
    const uint32_t first = x.first + (uint64_t)length * threadIdx.x / THREADS;
    const uint32_t end = x.first + (uint64_t)length * (threadIdx.x + 1) / THREADS;
    uint64_t mine = 0, all;
    for (uint32_t i = first; i < end; i++) mine += weight(i);
    uint64_t sum = block_scan(d, mine, all) - mine;
    const uint64_t* parts = exchange(d, x, all);
    uint64_t total = 0;
    for (uint32_t r = 0; r < CLUSTER; r++) {
        if (r < cluster_rank()) sum += parts[r];
        total += parts[r];
    }
    uint64_t target = draw_target(s.seed, draw, total);
    if (target < sum || target >= sum + mine) return false;
    for (uint32_t i = first; i < end; i++) {
        sum += weight(i);
        if (target < sum) { id = i; return true; }
    }
    return false;
}

__device__ View view_of(const float* values, uint32_t n, float best) {
    uint32_t rank = cluster_rank();
    return {values, n, (uint32_t)((uint64_t)n * rank / CLUSTER), (uint32_t)((uint64_t)n * (rank + 1) / CLUSTER), best, 0};
}

// Grid (CLUSTER, batch), 1024 threads: ends a step that chooses.
extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS) draw(const __grid_constant__ SampleArgs a) {
    __shared__ Shared d;
    release_dependents();
    if (threadIdx.x == 0) d.count = 0;
    // Every block has started, and the first one's list is empty.
    cluster_sync();
    wait_for_producers();
    Session& session = *a.sessions[blockIdx.y];
    const Settings s = session.settings;
    const uint64_t position = session.position + a.advance;
    const float* logits = a.logits + (uint64_t)blockIdx.y * a.n_vocab;
    float best;
    uint32_t id;
    best_group(a, blockIdx.y, best, id);
    const Outcome outcome = outcome_of(best);
    const bool first = cluster_rank() == 0;
    if (outcome != CHOSEN || s.temperature == 0.0f || s.top_k == 1) {
        if (first && threadIdx.x == 0) {
            append(session, a.advance);
            publish(session, logits, a.n_vocab, id, outcome);
        }
        return;
    }
    View x = view_of(adjusts(s) ? (const float*)session.adjusted : logits, a.n_vocab, best);
    const bool all = x.n <= LIST, by_rank = s.top_k > 0 && s.top_k <= GATHER && s.top_k < x.n;
    const bool part = !by_rank && s.top_k == 0 && s.typical_p == 1.0f && (s.top_p < 1.0f || s.min_p > 0.0f);
    const uint64_t index = position + session.draw_offset;
    // All have read the state before it changes.
    __syncthreads();
    bool done = false;
    if (all || by_rank || part) {
        if (threadIdx.x < BEST_GROUPS) d.groups[threadIdx.x] = a.group_value[blockIdx.y * BEST_GROUPS + threadIdx.x];
        __syncthreads();
        gather_best(d, x, by_rank ? s.top_k : GATHER);
        uint64_t whole = 0;
        if (part && !all && s.top_p < 1.0f) {
            uint64_t sum = 0;
            for (uint32_t i = x.first + threadIdx.x; i < x.end; i += THREADS) sum += weight_of(below(x.v[i], best));
            whole = cluster_total(d, x, sum);
        } else {
            whole = part && !all;
            cluster_sync();
        }
        if (first) {
            const uint32_t count = d.count;
            done = count <= LIST && choose_listed(d, x, s, count, whole, index);
            if (threadIdx.x == 0) {
                if (count > LIST) d.done = 0;
                if (done) {
                    append(session, a.advance);
                    publish(session, logits, a.n_vocab, d.id, CHOSEN);
                }
            }
        }
        cluster_sync();
        done = *at_rank(&d.done, 0);
    }
    if (!done && choose_any(d, x, s, index, id)) {
        append(session, a.advance);
        publish(session, logits, a.n_vocab, id, CHOSEN);
    }
    // No block ends while another may read its memory.
    cluster_sync();
}

// Grid (CLUSTER, batch), 1024 threads: what the log-probabilities of a choice need, but the choice.
extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS) logprobs(const __grid_constant__ SampleArgs a) {
    __shared__ Shared d;
    release_dependents();
    if (threadIdx.x == 0) d.count = 0;
    cluster_sync();
    wait_for_producers();
    const Session& session = *a.sessions[blockIdx.y];
    const uint32_t wanted = min(session.settings.logprobs, min(a.n_vocab, (uint32_t)ENTRY_LOGPROBS));
    if (!wanted) return;
    View x = view_of(a.logits + (uint64_t)blockIdx.y * a.n_vocab, a.n_vocab, 0.0f);
    float best = -INFINITY;
    for (uint32_t i = x.first + threadIdx.x; i < x.end; i += THREADS) best = fmaxf(best, x.v[i]);
    // BEST_GROUPS groups in the cluster.
    constexpr uint32_t WIDTH = THREADS * CLUSTER / BEST_GROUPS;
#pragma unroll
    for (uint32_t o = WIDTH / 2; o; o >>= 1) best = fmaxf(best, __shfl_xor_sync(~0u, best, o));
    if (threadIdx.x % WIDTH == 0)
        for (uint32_t r = 0; r < CLUSTER; r++)
            *at_rank(&d.groups[cluster_rank() * (BEST_GROUPS / CLUSTER) + threadIdx.x / WIDTH], r) = best;
    x.best = best = cluster_largest(d, x, best);
    uint64_t sum = 0;
    for (uint32_t i = x.first + threadIdx.x; i < x.end; i += THREADS) sum += weight_of(below(x.v[i], best));
    sum = cluster_total(d, x, sum);
    gather_best(d, x, wanted);
    cluster_sync();
    uint32_t count = *at_rank(&d.count, 0);
    cluster_sync();
    if (count > LIST) {
        auto key = [&](uint32_t i) { return rank_key(x.v[i], i); };
        uint64_t floor = select(d, x, wanted, key, [=](uint64_t k) { return rank_bin(k, best); },
                                [](uint32_t) -> uint64_t { return 1; });
        clear_list(d);
        gather(d, x, [&](uint32_t i) -> uint64_t { return key(i) >= floor ? key(i) : 0; });
        cluster_sync();
        count = min(*at_rank(&d.count, 0), LIST);
    }
    if (cluster_rank() == 0) {
        LogprobEntry* entry = (LogprobEntry*)session.logprobs + session.sequence % session.result_slots;
        if (threadIdx.x < count) {
            uint64_t mine = d.list[threadIdx.x];
            uint32_t before = 0;
            for (uint32_t j = 0; j < count; j++) before += d.list[j] > mine;
            if (before < wanted) {
                entry->ids[before] = id_of(mine);
                entry->logits[before] = logit_of(mine);
            }
        }
        if (threadIdx.x == 0) {
            entry->sum = sum;
            entry->best = best;
            entry->count = min(count, wanted);
        }
        __threadfence_system();
    }
    cluster_sync();
}
