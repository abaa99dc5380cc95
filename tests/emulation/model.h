// Small networks with random weights, in the form that kernels read, and what their operations are in f64.
#pragma once
#include "attend_tiles.cuh"
#include "blocks.cuh"
#include "norm.cuh"
#include <random>

// The types that the networks have.
constexpr uint32_t TYPES = 1u << Q8_0 | 1u << Q4_K | 1u << Q5_K | 1u << Q6_K | 1u << GRID3 | 1u << GRID4 | 1u << Q2_K | 1u << Q3_K | 1u << IQ4_XS;
constexpr uint32_t MAX_CHUNKS = 4, STEPS = 3;

struct Rows { uint32_t type, n; };
struct Network {
    const char* name;
    uint32_t hidden, n_heads, n_kv_heads, head_dim, n_ff, n_layers, n_vocab;
    bool gated;
    std::vector<Rows> qkv;
    uint32_t output, up, down, head;  // types
    bool biases, layer_norm;
    uint32_t position;                // of the first step
};
const Network NETWORKS[] = {
    {"k-quants", 256, 4, 2, 64, 768, 2, 300, true, {{Q4_K, 384}, {Q6_K, 128}}, Q4_K, Q4_K, Q6_K, Q6_K, false, false, 5},
    {"rows that do not divide", 288, 4, 2, 64, 1120, 2, 333, true, {{Q8_0, 384}, {Q8_0, 128}}, Q8_0, Q8_0, Q8_0, Q8_0, true, false, 63},
    {"no gate, a layer norm", 1280, 4, 1, 64, 2304, 2, 517, false, {{Q5_K, 256}, {Q4_K, 64}, {Q6_K, 64}}, Q5_K, Q5_K, Q4_K, Q8_0, true, true, 130},
    {"codebooks", 512, 4, 2, 64, 768, 2, 300, true, {{GRID4, 384}, {GRID3, 128}}, GRID3, GRID4, GRID3, GRID4, false, false, 40},
    {"stages by bulk copies", 1280, 4, 2, 64, 2304, 2, 517, true, {{Q2_K, 256}, {IQ4_XS, 128}, {Q3_K, 128}}, Q3_K, Q2_K, IQ4_XS, Q3_K, true, false, 40},
    {"heads of 128", 2048, 16, 4, 128, 7168, 1, 1000, true, {{Q4_K, 2560}, {Q6_K, 512}}, Q4_K, Q4_K, Q4_K, Q6_K, false, false, 300},
};

// Random numbers, and memory that lives as long as the program.
inline std::mt19937_64 numbers;
inline float random_float() { return (float)((double)(numbers() >> 11) / (double)(1ull << 52) - 1.0); }
template <class T> T* allocate(size_t n) { return (T*)aligned_alloc(256, (n * sizeof(T) + 256) / 256 * 256); }
inline float* random_floats(size_t n, float scale, float mean = 0.0f) {
    float* p = allocate<float>(n);
    for (size_t i = 0; i < n; i++) p[i] = random_float() * scale + mean;
    return p;
}

// Records with random weights.
inline const uint8_t* random_matrix(uint32_t type, uint32_t groups, uint32_t rows) {
    const size_t words = matrix_bytes(type, groups, rows) / 2;
    uint16_t* p = allocate<uint16_t>(words);
    // Wherever a scale lies, it is a small f16, or a power of two.
    for (size_t i = 0; i < words; i++) p[i] = (uint16_t)(type == MXFP4 ? (numbers() & 0x0f0f) | 0x7070 : (numbers() & 0x83ff) | 0x0400);
    // Of codebooks, a block's is an f32 that has no more bits than an f16.
    if (type == GRID3 || type == GRID4) {
        const Slices c = slices_of(type, groups);
        for (uint32_t s = 0; s < c.count; s++) {
            const uint32_t n = s + 1 == c.count ? c.last : c.full, at = type == GRID3 ? n * 12 + 8 : n * 16 + 16;
            for (uint32_t r = 0; r < rows; r++) {
                uint8_t* record = (uint8_t*)p + slice_offset(type, c, s, rows) + (uint64_t)r * record_bytes(type, n);
                for (uint32_t i = 0; i < n / 8; i++) ((float*)(record + at))[i] = (float)(numbers() % 1024 + 1) * 0x1p-27f;
            }
        }
    }
    return (const uint8_t*)p;
}

// A matrix of one type or several, and its bias.
struct Matrix {
    std::vector<Rows> parts;
    std::vector<const uint8_t*> data;
    const float* bias;
    uint32_t groups;

    Matrix(std::vector<Rows> rows, uint32_t width, bool biased) : parts(rows), bias(NULL), groups(width / 32) {
        uint32_t n = 0;
        for (const Rows& r : rows) {
            data.push_back(random_matrix(r.type, groups, r.n));
            n += r.n;
        }
        if (biased) bias = random_floats(n, 0.1f);
    }
    uint32_t rows() const {
        uint32_t n = 0;
        for (const Rows& r : parts) n += r.n;
        return n;
    }
    // Its product with a row, in f64 but for the int8 that the row becomes.
    std::vector<double> times(const std::vector<double>& x) const {
        std::vector<double> encoded(x.size()), out;
        for (size_t g = 0; g < x.size(); g += 32) {
            double largest = 0.0;
            for (size_t i = g; i < g + 32; i++) largest = std::max(largest, fabs(x[i]));
            for (size_t i = g; i < g + 32; i++) encoded[i] = largest > 0.0 ? nearbyint(x[i] * 127.0 / largest) * largest / 127.0 : 0.0;
        }
        for (size_t part = 0; part < parts.size(); part++)
            for (uint32_t row = 0; row < parts[part].n; row++) {
                double sum = bias ? bias[out.size()] : 0.0;
                for_type(parts[part].type, [&]<uint32_t T>() {
                    if constexpr (TYPES >> T & 1) sum += row_product<T>(data[part], parts[part].n, row, encoded);
                });
                out.push_back(sum);
            }
        return out;
    }

private:
    template <uint32_t T> double row_product(const uint8_t* matrix, uint32_t n_rows, uint32_t row, const std::vector<double>& x) const {
        const Slices c = slices_of(T, groups);
        double sum = 0.0;
        for (uint32_t g = 0; g < groups; g++) {
            const uint32_t slice = g / c.full, n = slice + 1 == c.count ? c.last : c.full;
            const uint8_t* record = matrix + slice_offset(T, c, slice, n_rows) + (size_t)row * record_bytes(T, n);
            Group group;
            Codec<T>::template decode<FromShared>(record, g % c.full, n, group);
            for (int i = 0; i < 32; i++) sum += (double)element<T>(group, i) * x[g * 32 + i];
        }
        return sum;
    }
};

struct Layer {
    Matrix qkv, output, up, down;
    NormArgs attention_norm, feed_forward_norm;
};
inline NormArgs random_norm(const Network& n) {
    return {random_floats(n.hidden, 0.2f, 1.0f), n.biases ? random_floats(n.hidden, 0.1f) : NULL, 1e-5f, n.layer_norm};
}

// A network with a session, on the host and "on the device".
struct Model {
    Network n;
    std::vector<Layer> layers;
    Matrix head;
    NormArgs final_norm;
    float *h, *logits, *inv_freq, *parts;
    uint32_t* tickets;
    Session session{};
    const Session* sessions[1] = {&session};
    KvLayout kv{};
    uint64_t kv_bytes;

    explicit Model(const Network& network) : n(network), head({{n.head, n.n_vocab}}, n.hidden, false), final_norm(random_norm(n)) {
        const uint32_t width = n.n_heads * n.head_dim;
        for (uint32_t i = 0; i < n.n_layers; i++)
            layers.push_back({Matrix(n.qkv, n.hidden, n.biases), Matrix({{n.output, n.hidden}}, width, n.biases),
                              Matrix({{n.up, n.gated ? 2 * n.n_ff : n.n_ff}}, n.hidden, n.biases), Matrix({{n.down, n.hidden}}, n.n_ff, n.biases),
                              random_norm(n), random_norm(n)});
        h = random_floats(n.hidden, 1.0f);
        logits = allocate<float>(n.n_vocab);
        inv_freq = allocate<float>(n.head_dim / 2);
        for (uint32_t i = 0; i < n.head_dim / 2; i++) inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)n.head_dim);
        parts = allocate<float>(n.n_heads * MAX_CHUNKS * part_stride(n.head_dim));
        tickets = allocate<uint32_t>(n.n_kv_heads);
        memset(tickets, 0, n.n_kv_heads * 4);
        kv.row_bytes = n.head_dim * 2;
        kv.n_kv_heads = n.n_kv_heads;
        kv.head_dim = n.head_dim;
        kv.window = NO_WINDOW;
        kv.tile_bytes = n.n_layers * 2 * kv_plane(kv);
        session.context = (n.position + STEPS + KV_TILE) / KV_TILE * KV_TILE;
        session.position = n.position;
        kv_bytes = session.context / KV_TILE * kv.tile_bytes;
        __half* cache = allocate<__half>(kv_bytes / 2);
        for (size_t i = 0; i < kv_bytes / 2; i++) cache[i] = (__half)(random_float() * 0.3f);
        session.kv = (uint64_t)cache;
    }

    // In f64, as is all that follows.
    std::vector<double> activation(const std::vector<double>& up) const {
        std::vector<double> r(n.n_ff);
        for (uint32_t j = 0; j < n.n_ff; j++) {
            const double v = up[j];
            if (n.gated) r[j] = v / (1.0 + exp(-v)) * up[n.n_ff + j];
            else r[j] = v / (1.0 + exp(-2.0 * 0.7978845608028654 * (v + 0.044715 * v * v * v)));
        }
        return r;
    }
    std::vector<double> norm(const NormArgs& a, std::vector<double> x) const {
        double mean = 0.0, squares = 0.0;
        if (a.layer)
            for (double v : x) mean += v / (double)x.size();
        for (double v : x) squares += (v - mean) * (v - mean) / (double)x.size();
        for (size_t i = 0; i < x.size(); i++) x[i] = (x[i] - mean) / sqrt(squares + a.eps) * a.weight[i] + (a.bias ? a.bias[i] : 0.0f);
        return x;
    }
    // Of a row of queries, keys and values; the cache is not yet looked at where theirs come.
    std::vector<double> attention(uint32_t layer, const std::vector<double>& qkv) const {
        const uint32_t hd = n.head_dim, half = hd / 2, last = session.position;
        KvLayout layout = kv;
        layout.layer_offset = layer * 2 * kv_plane(kv);
        auto rotated = [&](uint32_t first) {
            std::vector<double> r(hd);
            for (uint32_t i = 0; i < half; i++) {
                const double angle = last * (double)inv_freq[i], a = qkv[first + i], b = qkv[first + half + i];
                r[i] = a * cos(angle) - b * sin(angle);
                r[half + i] = a * sin(angle) + b * cos(angle);
            }
            return r;
        };
        std::vector<double> out;
        for (uint32_t head = 0; head < n.n_heads; head++) {
            const uint32_t kv_head = head / (n.n_heads / n.n_kv_heads), fresh = (n.n_heads + kv_head) * hd;
            const std::vector<double> q = rotated(head * hd), k = rotated(fresh);
            auto at = [&](bool value, uint32_t p, uint32_t i) {
                if (p == last) return (double)(__half)(float)(value ? qkv[fresh + n.n_kv_heads * hd + i] : k[i]);
                return (double)((const __half*)kv_row(layout, &session, value, kv_head, p))[i];
            };
            std::vector<double> sum(hd), scores(last + 1);
            double weight = 0.0, top = -INFINITY;
            for (uint32_t p = 0; p <= last; p++) {
                for (uint32_t i = 0; i < hd; i++) scores[p] += q[i] * at(false, p, i) / sqrt(hd);
                top = std::max(top, scores[p]);
            }
            for (uint32_t p = 0; p <= last; p++) {
                const double w = exp(scores[p] - top);
                weight += w;
                for (uint32_t i = 0; i < hd; i++) sum[i] += w * at(true, p, i);
            }
            for (double v : sum) out.push_back(v / weight);
        }
        return out;
    }
};
