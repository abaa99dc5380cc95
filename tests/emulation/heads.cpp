// What few networks do to heads before and behind attention, and how SparseMixer weighs experts, under schedules that no GPU would
// choose: close to what f64 makes of the same rows, and nothing else is written.
#include "cuda_fp16.h"
#include "heads.cu"
#include "sparse.cu"
#include "model.h"
#include <cstdio>

int failures = 0;
constexpr uint32_t ROWS = 3;
constexpr float EPS = 1e-5f;

void check(const char* what, uint32_t n, const std::string& wrong, const std::vector<double>& want, const float* got) {
    double error = 0.0;
    for (size_t i = 0; i < want.size(); i++) {
        const bool same = want[i] == got[i] || (want[i] != want[i] && got[i] != got[i]);
        const double apart = same ? 0.0 : fabs(want[i] - got[i]) / std::max(1.0, fabs(want[i]));
        error = apart == apart ? std::max(error, apart) : INFINITY;
    }
    if (wrong.empty() && error < 4e-6) return;
    printf("%s, %u: %s, error %.1e\n", what, n, wrong.c_str(), error);
    failures++;
}

struct Heads {
    uint32_t n_heads, n_kv_heads, head_dim, value_dim, gates;
    bool normed, layer, biased;
    float limit, scale;
};

void ready(const Heads& h) {
    const uint32_t before = (h.n_heads + h.n_kv_heads) * h.head_dim, rows = before + h.n_kv_heads * h.value_dim + h.gates;
    const bool pads = h.value_dim < h.head_dim;
    const uint32_t padded = pads ? (rows + h.head_dim - 1) / h.head_dim * h.head_dim : before;
    const uint32_t stride = std::max(rows, padded + h.n_kv_heads * h.head_dim) + 5;
    float* qkv = random_floats(ROWS * stride, 3.0f, 0.5f);
    // What is no number stays so.
    qkv[before] = NAN;
    const uint32_t lens[] = {h.n_heads * h.head_dim, h.n_kv_heads * h.head_dim};
    NormArgs norms[2]{};
    for (int i = 0; i < 2 && h.normed; i++)
        norms[i] = {random_floats(lens[i], 0.3f, 1.0f), h.biased ? random_floats(lens[i], 0.2f) : NULL, EPS, h.layer};
    ReadyHeadsArgs a{qkv, norms[0], norms[1], stride, h.n_heads, h.n_kv_heads, h.head_dim, h.value_dim, before, padded, h.limit, h.scale, 0};
    std::vector<double> want(qkv, qkv + ROWS * stride);
    auto limited = [&](double v) { return h.limit == 0.0f || v != v ? v : std::min(std::max(v, -(double)h.limit), (double)h.limit); };
    for (uint32_t r = 0; r < ROWS; r++) {
        double* row = want.data() + r * stride;
        for (uint32_t part = 0; part < h.n_heads + h.n_kv_heads; part++) {
            double* x = row + part * h.head_dim;
            double mean = 0.0, squares = 0.0;
            for (uint32_t i = 0; i < h.head_dim; i++) mean += (x[i] = limited(x[i])) / h.head_dim;
            if (!h.normed) continue;
            if (!h.layer) mean = 0.0;
            for (uint32_t i = 0; i < h.head_dim; i++) squares += (x[i] - mean) * (x[i] - mean) / h.head_dim;
            const NormArgs& norm = norms[part >= h.n_heads];
            const uint32_t first = (part >= h.n_heads ? part - h.n_heads : part) * h.head_dim;
            for (uint32_t i = 0; i < h.head_dim; i++)
                x[i] = (x[i] - mean) / sqrt(squares + EPS) * norm.weight[first + i] + (norm.bias ? norm.bias[first + i] : 0.0f);
        }
        for (uint32_t v = 0; v < h.n_kv_heads; v++)
            for (uint32_t i = 0; i < h.head_dim; i++)
                row[padded + v * h.head_dim + i] = i < h.value_dim ? limited(row[before + v * h.value_dim + i]) * h.scale : 0.0;
    }
    std::string wrong;
    for (uint32_t r = 0; r < ROWS; r++) {
        ReadyHeadsArgs of_row = a;
        of_row.qkv += r * stride;
        wrong += emulator::run((h.n_heads + 2 * h.n_kv_heads + READY_HEADS - 1) / READY_HEADS, 32 * READY_HEADS, (uint32_t)numbers(), [&] { ready_heads(of_row); });
    }
    check("ready_heads", h.head_dim, wrong, want, qkv);
    // Queries alone, where keys and values are another layer's.
    a.n_kv_heads = 0;
    std::vector<float> all(qkv, qkv + stride);
    wrong = emulator::run((h.n_heads + READY_HEADS - 1) / READY_HEADS, 32 * READY_HEADS, (uint32_t)numbers(), [&] { ready_heads(a); });
    std::vector<double> rest(all.begin() + lens[0], all.end());
    check("ready_heads of queries", h.head_dim, wrong, rest, qkv + lens[0]);
}

void finish(const Heads& h, bool softplus) {
    const uint32_t len = h.n_heads * h.value_dim, x_stride = h.n_heads * h.head_dim + 7, gates_at = h.n_heads * h.head_dim;
    const uint32_t stride = gates_at + h.gates + 3;
    float *x = random_floats(ROWS * x_stride, 2.0f), *qkv = random_floats(ROWS * stride, 30.0f);
    FinishHeadsArgs a{x, h.gates ? qkv + gates_at : NULL, qkv, x_stride, stride, stride, h.n_heads, h.head_dim, h.value_dim, h.gates == h.n_heads, softplus};
    std::vector<double> want(qkv, qkv + ROWS * stride);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t e = 0; e < len; e++) {
            const uint32_t head = e / h.value_dim;
            const double gate = h.gates ? want[r * stride + gates_at + (h.gates == h.n_heads ? head : e)] : 0.0;
            const double factor = !h.gates ? 1.0 : softplus ? std::max(gate, 0.0) + log1p(exp(-fabs(gate))) : 1.0 / (1.0 + exp(-gate));
            want[r * stride + e] = x[r * x_stride + head * h.head_dim + e % h.value_dim] * factor;
        }
    std::string wrong;
    for (uint32_t r = 0; r < ROWS; r++) {
        FinishHeadsArgs of_row = a;
        of_row.x += r * x_stride;
        of_row.out += r * stride;
        if (a.gate) of_row.gate += r * stride;
        wrong += emulator::run((len + 255) / 256, 256, (uint32_t)numbers(), [&] { finish_heads(of_row); });
    }
    check("finish_heads", h.value_dim, wrong, want, qkv);
}

// The weight of the best but `taken`, by the paper.
double weight(const float* scores, uint32_t n, uint32_t taken, float jitter, uint32_t& best) {
    best = ~0u;
    for (uint32_t i = 0; i < n; i++)
        if (i != taken && (best == ~0u || scores[i] > scores[best])) best = i;
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        if (i == taken) continue;
        const float distance = (scores[best] - scores[i]) / std::max(fabsf(scores[i]), scores[best]);
        if (scores[i] == scores[best]) sum += 1.0;
        else if (!(distance > 2.0f * jitter)) sum += exp((double)scores[i] - scores[best]);
    }
    return 1.0 / sum;
}

void sparse(uint32_t n, uint32_t shared, float size, float mean, float jitter, void (*change)(float*)) {
    const uint32_t stride = n + shared;
    float* scores = random_floats(ROWS * stride, size, mean);
    for (uint32_t r = 0; r < ROWS; r++) change(scores + r * stride);
    std::vector<double> want(scores, scores + ROWS * stride);
    for (uint32_t r = 0; r < ROWS; r++) {
        const float* row = scores + r * stride;
        bool broken = false;
        for (uint32_t i = 0; i < n; i++) broken |= row[i] != row[i];
        if (broken) continue;
        uint32_t best[2] = {~0u, ~0u};
        double weights[2];
        for (int k = 0; k < 2; k++) weights[k] = weight(row, n, k ? best[0] : ~0u, jitter, best[k]);
        for (uint32_t i = 0; i < n; i++) want[r * stride + i] = i == best[0] ? weights[0] : i == best[1] ? weights[1] : 0.0;
    }
    SparseMixerArgs a{scores, stride, n, 2.0f * jitter, 0};
    const std::string wrong = emulator::run(ROWS, 32, (uint32_t)numbers(), [&] { sparse_mixer(a); });
    // As route.cuh weighs them.
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t i = 0; i < n; i++) {
            float& v = scores[r * stride + i];
            v = v != v || want[r * stride + i] == v ? v : 1.0f / (1.0f + expf(-v));
        }
    check("sparse_mixer", n, wrong, want, scores);
}

int main() {
    numbers.seed(7);
    for (const Heads& h : {Heads{12, 2, 128, 128, 0, true, true, false, 0.0f, 1.0f}, {3, 1, 16, 16, 0, true, false, true, 2.0f, 1.0f}, {3, 3, 16, 10, 0, false, false, false, 0.0f, 0.7f},
                           {5, 5, 192, 128, 5, false, false, false, 0.0f, 1.0f}, {4, 2, 512, 33, 132, true, true, true, 1.0f, 0.3f}, {9, 1, 7, 7, 9, false, false, false, 1.5f, 1.0f}}) {
        ready(h);
        for (bool softplus : {false, true}) finish(h, softplus);
    }
    auto as_they_are = [](float*) {};
    for (uint32_t n : {2u, 7u, 16u, 33u, 100u})
        for (float jitter : {0.01f, 0.3f}) {
            sparse(n, n % 2, 1.0f, 0.0f, jitter, as_they_are);
            sparse(n, 0, 0.02f, 1.0f, jitter, as_they_are);
            sparse(n, 1, 0.02f, -1.0f, jitter, as_they_are);
        }
    sparse(7, 0, 0.1f, 1.0f, 0.1f, [](float* row) { row[2] = row[5] = 1.2f; });
    sparse(7, 0, 0.1f, 1.0f, 0.1f, [](float* row) { for (int i = 0; i < 7; i++) row[i] = 0.0f; });
    sparse(7, 0, 0.1f, 1.0f, 0.1f, [](float* row) { row[3] = INFINITY; });
    sparse(7, 0, 0.1f, 1.0f, 0.1f, [](float* row) { for (int i = 0; i < 7; i++) row[i] = i == 4 ? 0.5f : -INFINITY; });
    sparse(7, 0, 0.1f, 1.0f, 0.1f, [](float* row) { row[6] = NAN; });
    printf("%d failures\n", failures);
    return failures > 0;
}
