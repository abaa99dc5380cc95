// Whole texts packed one behind the other, under schedules that no GPU would choose: close to what f64 makes of the same input, and
// the same to the bit wherever a text lies.
#include "cuda_fp16.h"
#include "attention_texts.cu"
#include "texts.cu"
// One block of this runs at a time.
#define __shared__ static
#include "rope.cu"
#include "model.h"
#include <cstdio>
#include <cstdlib>

int failures = 0;
void check(const char* what, uint32_t n, const std::string& wrong, double error) {
    if (wrong.empty() && error < 2e-3) return;
    printf("%s, %u: %s, error %.1e\n", what, n, wrong.c_str(), error);
    failures++;
}
double apart(const std::vector<double>& want, const float* got) {
    double squares = 0.0, all = 0.0;
    for (size_t i = 0; i < want.size(); i++) {
        squares += (want[i] - got[i]) * (want[i] - got[i]);
        all += want[i] * want[i];
    }
    const double error = sqrt(squares / all);
    return error == error ? error : INFINITY;
}

// How texts are attended to. Two query heads, one KV head; blocks are of the first query head.
struct Way {
    const char* name;
    uint32_t head_dim, window;
    bool causal;
    float slope, cap;
};
constexpr uint32_t HEADS_OF = 2;

// Queries, keys and values of texts that begin at some rows, the rest poison.
struct Texts {
    const Way& way;
    std::vector<uint32_t> starts, lens;
    uint32_t rows;
    __half *q, *kv;
    KvLayout layout{};
    std::vector<float> out;

    Texts(const Way& way, std::vector<uint32_t> starts, std::vector<uint32_t> lens, uint32_t rows) : way(way), starts(starts), lens(lens), rows(rows) {
        layout.row_bytes = (way.head_dim * 2 + 15) / 16 * 16;
        layout.tile_bytes = KV_TILE * layout.row_bytes;
        layout.n_kv_heads = 1;
        layout.head_dim = way.head_dim;
        layout.window = way.window;
        const size_t n_q = (size_t)rows * HEADS_OF * way.head_dim, n_kv = text_plane(layout, rows);
        q = allocate<__half>(n_q);
        kv = allocate<__half>(n_kv);
        for (size_t i = 0; i < n_q; i++) q[i] = __ushort_as_half(0x7e00);
        for (size_t i = 0; i < n_kv; i++) kv[i] = __ushort_as_half(0x7e00);
        for (size_t t = 0; t < starts.size(); t++) {
            std::mt19937_64 of_text(lens[t]);
            auto number = [&] { return (__half)((float)(of_text() % 2048) / 1024.0f - 1.0f); };
            for (uint32_t r = 0; r < lens[t]; r++) {
                for (uint32_t i = 0; i < HEADS_OF * way.head_dim; i++) q[(size_t)(starts[t] + r) * HEADS_OF * way.head_dim + i] = (__half)(0.3f * (float)number());
                for (bool value : {false, true})
                    for (uint32_t i = 0; i < layout.row_bytes / 2; i++) row(value, starts[t] + r)[i] = i < way.head_dim ? number() : (__half)0.0f;
            }
        }
    }
    __half* row(bool value, uint32_t r) const { return (__half*)text_row(layout, (uint8_t*)kv, rows, value, 0, r); }

    // Also as tiles of halves, where these are whole.
    void attend(const std::function<void(const TextFlashArgs&)>& kernel) {
        std::vector<TextTile> tiles;
        for (size_t t = 0; t < starts.size(); t++)
            for (uint32_t first = 0; first < lens[t]; first += 64) tiles.push_back({starts[t], lens[t], first, 0});
        const float slopes[HEADS_OF] = {way.slope, 100.0f};
        out.assign((size_t)rows * HEADS_OF * way.head_dim, NAN);
        TextFlashArgs a{};
        a.flash.q = q;
        a.flash.out = out.data();
        a.flash.layout = layout;
        a.flash.scores.cap = way.cap;
        a.flash.n_heads = HEADS_OF;
        a.flash.value_dim = way.head_dim;
        a.tiles = tiles.data();
        a.kv = (const uint8_t*)kv;
        a.flash.slopes = way.slope != 0.0f ? slopes : NULL;
        a.kv_rows = rows;
        a.ahead = way.causal ? 1 : way.window;
        const std::string wrong = emulator::run((uint32_t)tiles.size(), 128, (uint32_t)numbers(), [&] { kernel(a); });
        check(way.name, 0, wrong, 0.0);
        const uint32_t width = HEADS_OF * way.head_dim;
        if (width % TILE_K != 0) return;
        __half* halves = allocate<__half>((rows + 127) / 128 * 128 * width);
        std::vector<float> scale(rows, NAN);
        a.f16 = halves;
        a.f16_scale = scale.data();
        check("tiles", 0, emulator::run((uint32_t)tiles.size(), 128, (uint32_t)numbers(), [&] { kernel(a); }), 0.0);
        for (size_t t = 0; t < starts.size(); t++)
            for (uint32_t r = 0; r < lens[t]; r++) {
                bool right = scale[starts[t] + r] == 1.0f;
                for (uint32_t i = 0; i < way.head_dim; i++) {
                    const __half* piece = (const __half*)((const uint8_t*)halves + tiled(starts[t] + r, i & ~7u, width / TILE_K));
                    right &= (float)piece[i % 8] == (float)(__half)attended(t, r)[i];
                }
                check("halves", t * 1000 + r, right ? "" : "differ", 0.0);
            }
    }
    const float* attended(uint32_t t, uint32_t r) const { return out.data() + (size_t)(starts[t] + r) * HEADS_OF * way.head_dim; }

    std::vector<double> expected(uint32_t t, uint32_t r) const {
        std::vector<double> scores(lens[t], -INFINITY), sum(way.head_dim);
        double top = -INFINITY, weight = 0.0;
        for (uint32_t p = 0; p < lens[t]; p++) {
            const uint32_t distance = p > r ? p - r : r - p;
            if (distance >= way.window || (way.causal && p > r)) continue;
            double score = 0.0;
            for (uint32_t i = 0; i < way.head_dim; i++) score += (double)q[(size_t)(starts[t] + r) * HEADS_OF * way.head_dim + i] * (double)row(false, starts[t] + p)[i];
            score -= (double)way.slope * distance;
            if (way.cap != 0.0f) score = way.cap * tanh(score);
            scores[p] = score;
            top = std::max(top, score);
        }
        for (uint32_t p = 0; p < lens[t]; p++) {
            const double w = exp2(scores[p] - top);
            weight += w;
            for (uint32_t i = 0; i < way.head_dim; i++) sum[i] += w * (double)row(true, starts[t] + p)[i];
        }
        for (double& v : sum) v /= weight;
        return sum;
    }
};

void attention(const Way& way, const std::function<void(const TextFlashArgs&)>& kernel) {
    const std::vector<uint32_t> lens = {1, 64, 130, 7, 65};
    Texts together(way, {0, 1, 65, 195, 202}, lens, 267);
    together.attend(kernel);
    for (uint32_t t = 0; t < lens.size(); t++)
        for (uint32_t r = 0; r < lens[t]; r += r + 11 < lens[t] ? 11 : 1)
            check(way.name, t * 1000 + r, "", apart(together.expected(t, r), together.attended(t, r)));
    // In other places, with other neighbours.
    Texts apart(way, {150, 3}, {7, 130}, 160);
    apart.attend(kernel);
    const size_t bytes = way.head_dim * sizeof(float);
    for (uint32_t r = 0; r < 7; r++) check("bits of a short text", r, memcmp(apart.attended(0, r), together.attended(3, r), bytes) ? "differ" : "", 0.0);
    for (uint32_t r = 0; r < 130; r++) check("bits of a long text", r, memcmp(apart.attended(1, r), together.attended(2, r), bytes) ? "differ" : "", 0.0);
}

// Rows of texts have the positions that are said, and their keys and values go to their rows.
void placed() {
    const uint32_t rows = 5, dim = 32, heads = 2, kv_heads = 1, stride = (heads + 2 * kv_heads) * dim;
    const uint32_t positions[rows] = {0, 1, 2, 0, 1};
    const float* qkv = random_floats((size_t)rows * stride, 1.0f);
    float inv_freq[dim / 2];
    for (uint32_t i = 0; i < dim / 2; i++) inv_freq[i] = 1.0f / (float)(1 << i % 8);
    Session session{};
    const Session* sessions[1] = {&session};
    __half* q = allocate<__half>((size_t)rows * heads * dim);
    RopeArgs a{};
    a.layout.row_bytes = dim * 2;
    a.layout.n_kv_heads = kv_heads;
    a.layout.head_dim = dim;
    uint8_t* kv = allocate<uint8_t>(2 * text_plane(a.layout, rows));
    session.kv = (uint64_t)kv;
    session.position = 77;
    a.sessions = sessions;
    a.qkv = qkv;
    a.q_f16 = q;
    a.positions = positions;
    a.rotation.inv_freq = inv_freq;
    a.rotation.magnitude = 1.0f;
    a.rotation.n_pairs = dim / 2;
    a.q_scale = 0.5f;
    a.qkv_stride = stride;
    a.n_heads = heads;
    a.prefill = 1;
    a.value_head = heads + kv_heads;
    a.text_rows = rows;
    for (a.first_row = 0; a.first_row < rows; a.first_row++) {
        const std::string wrong = emulator::run(1, 256, (uint32_t)numbers(), [&] { rope_append(a); });
        check("placing", a.first_row, wrong, 0.0);
    }
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t head = 0; head < heads + 2 * kv_heads; head++) {
            std::vector<double> want(dim);
            std::vector<float> got(dim);
            const float* from = qkv + (size_t)r * stride + head * dim;
            for (uint32_t i = 0; i < dim / 2; i++) {
                const double angle = head < heads + kv_heads ? (double)positions[r] * inv_freq[i] : 0.0;
                want[i] = from[i] * cos(angle) - from[i + dim / 2] * sin(angle);
                want[i + dim / 2] = from[i + dim / 2] * cos(angle) + from[i] * sin(angle);
            }
            for (uint32_t i = 0; i < dim; i++) {
                const __half* at = head < heads ? q + ((size_t)r * heads + head) * dim : (const __half*)text_row(a.layout, kv, rows, head == heads + 1, 0, r);
                got[i] = head < heads ? 2.0f * (float)at[i] : (float)at[i];
            }
            check("placed", r * 10 + head, "", apart(want, got.data()));
        }
}

void pooled() {
    const uint32_t len = 100, stride = 104;
    const float* x = random_floats(50 * stride, 1.0f, 0.3f);
    const TextSpan span = {9, 33};
    for (uint32_t pooling : {POOL_MEAN, POOL_FIRST, POOL_LAST}) {
        std::vector<float> out(len, NAN);
        const PoolArgs a = {x, &span, out.data(), stride, stride, len, pooling};
        const std::string wrong = emulator::run(1, 128, (uint32_t)numbers(), [&] { pool_texts(a); });
        std::vector<double> want(len);
        for (uint32_t r = 0; r < span.len; r++)
            if (pooling == POOL_MEAN || r == (pooling == POOL_LAST ? span.len - 1 : 0))
                for (uint32_t i = 0; i < len; i++) want[i] += x[(size_t)(span.start + r) * stride + i];
        if (pooling == POOL_MEAN)
            for (double& v : want) v /= span.len;
        check("pooling", pooling, wrong, apart(want, out.data()));
    }
}

void dense() {
    const uint32_t inputs = 77, outputs = 10, count = 5, stride = 80;
    const float *w = random_floats(outputs * inputs, 0.3f), *bias = random_floats(outputs, 1.0f), *x = random_floats(count * stride, 1.0f);
    for (uint32_t activation : {DENSE_PLAIN, DENSE_TANH, DENSE_GELU}) {
        std::vector<float> out(count * stride, NAN);
        const DenseArgs a = {w, bias, x, out.data(), stride, stride, inputs, outputs, count, activation};
        const std::string wrong = emulator::run((outputs + DENSE_OUTPUTS - 1) / DENSE_OUTPUTS, 32 * DENSE_OUTPUTS, (uint32_t)numbers(), [&] { dense_texts(a); });
        for (uint32_t t = 0; t < count; t++) {
            std::vector<double> want(outputs);
            for (uint32_t o = 0; o < outputs; o++) {
                want[o] = bias[o];
                for (uint32_t i = 0; i < inputs; i++) want[o] += (double)w[o * inputs + i] * x[t * stride + i];
                if (activation == DENSE_TANH) want[o] = tanh(want[o]);
                if (activation == DENSE_GELU) want[o] *= 0.5 * (1.0 + erf(want[o] / sqrt(2.0)));
            }
            check("a layer behind the pooling", activation * 10 + t, wrong, apart(want, out.data() + t * stride));
        }
    }
}

int main() {
    numbers.seed(1);
    const uint32_t all = 0x7fffffff;
    attention({"causal", 64, all, true, 0.0f, 0.0f}, flash_texts_64);
    attention({"causal with a window", 40, 50, true, 0.0f, 0.0f}, flash_texts_64);
    attention({"both ways", 128, all, false, 0.0f, 0.0f}, flash_texts_128);
    attention({"both ways with a window", 20, 9, false, 0.0f, 0.0f}, flash_texts_64);
    attention({"leaning", 64, all, false, 0.11f, 0.0f}, flash_texts_64);
    attention({"long heads with a cap", 256, 70, false, 0.0f, 3.0f}, flash_texts_256);
    placed();
    pooled();
    dense();
    printf("%d failures\n", failures);
    return failures > 0;
}
