// The choice of a token, as src/engine/sampling.rs defines it, and the end of a step.
//
// Sums of probabilities are fixed-point integers or added in a fixed order, so a choice repeats.
#include "common.cuh"

struct SampleArgs {
    Session* const* sessions;
    const float* logits;  // [batch][n_vocab]
    float* best_value;    // [batch][blocks of `best`]
    uint32_t* best_id;
    uint32_t n_vocab;
    uint32_t n_best;      // blocks of `best` per session
    uint32_t advance;     // the step appended a token
    uint32_t choose;      // a token is to be chosen
};
static_assert(sizeof(SampleArgs) == 48, "as in args.rs");

// What a result's second word says besides the number of the step.
enum Outcome : uint32_t { CHOSEN = 0, NOT_A_NUMBER = 1, INFINITE = 2, ALL_MINUS_INFINITY = 3 };

// Grid (n_best, batch), 256 threads: the first of the largest logits in a share of the vocabulary. A
// NaN takes the place of any number.
__device__ __forceinline__ bool better(float v, uint32_t id, float w, uint32_t other) {
    if (isnan(v) || isnan(w)) return isnan(v) && (!isnan(w) || id < other);
    return v > w || (v == w && id < other);
}
__device__ __forceinline__ void block_best(float& v, uint32_t& id) {
    __shared__ float values[32];
    __shared__ uint32_t ids[32];
    for (int round = 0; round < 2; round++) {
#pragma unroll
        for (int o = 16; o; o >>= 1) {
            float w = __shfl_xor_sync(~0u, v, o);
            uint32_t other = __shfl_xor_sync(~0u, id, o);
            if (better(w, other, v, id)) { v = w; id = other; }
        }
        if (round) return;
        if ((threadIdx.x & 31) == 0) { values[threadIdx.x >> 5] = v; ids[threadIdx.x >> 5] = id; }
        __syncthreads();
        uint32_t lane = threadIdx.x & 31, warps = blockDim.x >> 5;
        v = lane < warps ? values[lane] : -INFINITY;
        id = lane < warps ? ids[lane] : ~0u;
    }
}
extern "C" __global__ void __launch_bounds__(256) best(const __grid_constant__ SampleArgs a) {
    release_dependents();
    wait_for_producers();
    float v = -INFINITY;
    uint32_t id = ~0u;
    const float* logits = a.logits + (uint64_t)blockIdx.y * a.n_vocab;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < a.n_vocab; i += gridDim.x * blockDim.x) {
        float w = logits[i];
        if (better(w, i, v, id)) { v = w; id = i; }
    }
    block_best(v, id);
    if (threadIdx.x == 0) {
        a.best_value[blockIdx.y * a.n_best + blockIdx.x] = v;
        a.best_id[blockIdx.y * a.n_best + blockIdx.x] = id;
    }
}

// e^x for x <= 0 with the operations of src/engine/sampling.rs, each rounded on its own.
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

// The ranking as a number: the larger comes first. Of equal logits the smaller id comes first.
__device__ __forceinline__ uint64_t rank_key(float v, uint32_t id) {
    v = v == 0.0f ? 0.0f : v;
    uint32_t u = __float_as_uint(v);
    u = u >> 31 ? ~u : u | 0x80000000u;
    return (uint64_t)u << 32 | (uint32_t)~id;
}

__device__ double uniform(uint64_t seed, uint64_t position) {
    uint32_t c[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0}, k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int i = 0; i < 10; i++) {
        uint64_t x = (uint64_t)0xD2511F53u * c[0], y = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t n[4] = {(uint32_t)(y >> 32) ^ c[1] ^ k[0], (uint32_t)y, (uint32_t)(x >> 32) ^ c[3] ^ k[1], (uint32_t)x};
        for (int j = 0; j < 4; j++) c[j] = n[j];
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    return (double)(((uint64_t)c[0] << 32 | c[1]) >> 11) * (1.0 / 9007199254740992.0);
}

constexpr int SAMPLE_THREADS = 1024;
constexpr double FIXED = 17592186044416.0;  // 2^44: weights of a whole vocabulary fit 64 bits

struct Choice {
    uint64_t bins[256];
    double sums[SAMPLE_THREADS];
    uint64_t prefix, target;
    uint32_t result;
};

// The smallest key such that the tokens from it on (keys >= it, and >= floor) weigh at least `target`
// together; weight(i) is an integer. `target` is at least 1 and at most the whole weight.
template <class W> __device__ uint64_t select(const float* logits, uint32_t n, uint64_t floor, uint64_t target, Choice& c, W weight) {
    uint64_t prefix = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += SAMPLE_THREADS) c.bins[i] = 0;
        __syncthreads();
        uint64_t mask = shift == 56 ? 0 : ~0ull << (shift + 8);
        for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
            uint64_t key = rank_key(logits[i], i);
            if (key >= floor && (key & mask) == prefix)
                atomicAdd((unsigned long long*)&c.bins[key >> shift & 255], (unsigned long long)weight(logits[i]));
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            uint64_t left = target;
            int bin = 255;
            while (bin > 0 && c.bins[bin] < left) left -= c.bins[bin--];
            c.prefix = prefix | (uint64_t)bin << shift;
            c.target = c.bins[bin] == left ? 0 : left;  // 0: the whole bin is taken
        }
        __syncthreads();
        prefix = c.prefix;
        target = c.target;
        __syncthreads();
        if (target == 0) break;
    }
    return prefix;
}

__device__ uint64_t weigh(const float* logits, uint32_t n, uint64_t floor, float top, Choice& c) {
    if (threadIdx.x == 0) c.target = 0;
    __syncthreads();
    uint64_t sum = 0;
    for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS)
        if (rank_key(logits[i], i) >= floor)
            sum += (uint64_t)__dmul_rn(exponential((double)logits[i] - (double)top), FIXED);
    atomicAdd((unsigned long long*)&c.target, (unsigned long long)sum);
    __syncthreads();
    sum = c.target;
    __syncthreads();
    return sum;
}

__device__ uint32_t choose(const Session& s, const float* logits, uint32_t n, float top, uint32_t top_id, uint64_t draw, Choice& c) {
    uint64_t floor = 0;
    if (s.top_k > 0 && s.top_k < n) floor = select(logits, n, 0, s.top_k, c, [](float) { return 1ull; });
    if (s.top_p < 1.0f) {
        uint64_t total = weigh(logits, n, floor, top, c);
        uint64_t wanted = (uint64_t)ceil((double)total * (double)s.top_p);
        floor = select(logits, n, floor, max((unsigned long long)wanted, 1ull), c, [&](float v) {
            return (unsigned long long)__dmul_rn(exponential((double)v - (double)top), FIXED);
        });
    }
    const double min_p = s.min_p, per_temperature = 1.0 / (double)s.temperature;
    auto weight = [&](uint32_t i) -> float {
        float v = logits[i];
        if (rank_key(v, i) < floor) return 0.0f;
        double below = (double)v - (double)top;
        if (min_p > 0.0 && exponential(below) < min_p) return 0.0f;
        return (float)exponential(below * per_temperature);
    };
    // Contiguous shares in the order of ids, so that the sums run as on the CPU up to rounding.
    const uint32_t first = (uint64_t)n * threadIdx.x / SAMPLE_THREADS, end = (uint64_t)n * (threadIdx.x + 1) / SAMPLE_THREADS;
    double sum = 0.0;
    for (uint32_t i = first; i < end; i++) sum += (double)weight(i);
    c.sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        double total = 0.0;
        for (int i = 0; i < SAMPLE_THREADS; i++) total += c.sums[i];
        double target = uniform(s.seed, draw) * total, before = 0.0;
        uint32_t share = 0, last = 0;
        for (; share < SAMPLE_THREADS; share++) {
            if (c.sums[share] > 0.0) last = share;
            if (before + c.sums[share] > target) break;
            before += c.sums[share];
        }
        bool ran_out = share == SAMPLE_THREADS;
        if (ran_out) share = last;
        uint32_t begin = (uint64_t)n * share / SAMPLE_THREADS, stop = (uint64_t)n * (share + 1) / SAMPLE_THREADS;
        uint32_t chosen = top_id, kept = top_id;
        if (ran_out) before = -1.0;
        for (uint32_t i = begin; i < stop; i++) {
            float w = weight(i);
            if (w > 0.0f) kept = i;
            before += (double)w;
            if (!ran_out && before > target) { chosen = i; break; }
            chosen = kept;
        }
        c.result = chosen;
    }
    __syncthreads();
    return c.result;
}

// Grid (batch), 1024 threads: ends a step.
extern "C" __global__ void __launch_bounds__(SAMPLE_THREADS) finish(const __grid_constant__ SampleArgs a) {
    __shared__ Choice c;
    release_dependents();
    wait_for_producers();
    Session& s = *a.sessions[blockIdx.x];
    const uint32_t position = s.position + (a.advance ? 1 : 0);
    __syncthreads();
    if (!a.choose) {
        if (threadIdx.x == 0) s.position = position;
        return;
    }
    const float* logits = a.logits + (uint64_t)blockIdx.x * a.n_vocab;
    float v = -INFINITY;
    uint32_t id = ~0u;
    for (uint32_t i = threadIdx.x; i < a.n_best; i += SAMPLE_THREADS) {
        float w = a.best_value[blockIdx.x * a.n_best + i];
        uint32_t other = a.best_id[blockIdx.x * a.n_best + i];
        if (better(w, other, v, id)) { v = w; id = other; }
    }
    block_best(v, id);
    Outcome outcome = isnan(v) ? NOT_A_NUMBER : v == INFINITY ? INFINITE : v == -INFINITY ? ALL_MINUS_INFINITY : CHOSEN;
    if (outcome == CHOSEN && s.temperature != 0.0f && s.top_k != 1)
        id = choose(s, logits, a.n_vocab, v, id, position + s.draw_offset, c);
    if (threadIdx.x == 0) {
        uint32_t sequence = s.sequence + 1;
        s.position = position;
        s.sequence = sequence;
        // After a failed choice the step that may be queued behind this one still needs a valid token.
        s.token = id < a.n_vocab ? id : 0;
        uint64_t result = (uint64_t)((sequence & 0xffffff) << 8 | outcome) << 32 | id;
        __threadfence_system();
        *(volatile uint64_t*)(s.results + (uint64_t)((sequence - 1) % s.result_slots) * 8) = result;
    }
}
