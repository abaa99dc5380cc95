// Several residual streams under schedules that no GPU would choose: close to what f64 makes of the same rows, and nothing else is
// written.
#include "cuda_fp16.h"
#include "streams.cu"
#include "model.h"
#include <cstdio>

int failures = 0;
constexpr uint32_t ROWS = 3;
constexpr float EPS = 1e-6f;
using Row = std::vector<double>;

double mean_square_of(const Row& x) {
    double sum = 0.0;
    for (double v : x) sum += v * v;
    return sum / x.size();
}
Row norm_of(const Row& x, const float* weight) {
    const double scale = 1.0 / sqrt(mean_square_of(x) + EPS);
    Row out(x);
    for (size_t i = 0; i < x.size(); i++) out[i] *= scale * weight[i];
    return out;
}
// A row made as large as one of that mean square.
Row level(Row x, double square) {
    const double scale = sqrt(square / std::max(mean_square_of(x), 1e-5));
    for (double& v : x) v *= scale;
    return x;
}

struct Case {
    uint32_t count, active, len, threads;
    bool normed;
    float size;  // of the rows
};

struct Streams {
    const Case& c;
    const uint32_t stride, y_stride;
    float *streams, *x, *y;
    std::vector<float> before;
    const float *norm, *thin_norm, *router, *predict, *correct, *scale;
    StreamsArgs a{};

    Streams(const Case& c) : c(c), stride((c.len + 31) / 32 * 32), y_stride(c.count * stride + 8) {
        streams = random_floats(ROWS * c.count * stride, c.size);
        x = random_floats(ROWS * stride, c.size);
        y = random_floats(ROWS * y_stride, c.size);
        norm = random_floats(c.len, 0.3f, 1.0f);
        thin_norm = random_floats(c.len, 0.3f, 1.0f);
        router = random_floats(c.count * c.len, 3.0f);
        predict = random_floats(c.count * c.count * c.count, 1.0f);
        correct = random_floats(c.count * c.count, 1.0f);
        scale = random_floats(c.len, 0.5f, 1.0f);
        a.streams = streams;
        a.x = x;
        a.y = y;
        if (c.normed) a.norm = NormArgs{norm, nullptr, EPS, 0};
        a.thin_norm = NormArgs{thin_norm, nullptr, EPS, 0};
        a.router = router;
        a.scale = scale;
        a.count = c.count;
        a.active = c.active;
        a.len = c.len;
        a.stride = stride;
        a.y_stride = y_stride;
    }
    std::vector<float> all() const {
        std::vector<float> all(streams, streams + ROWS * c.count * stride);
        all.insert(all.end(), x, x + ROWS * stride);
        all.insert(all.end(), y, y + ROWS * y_stride);
        return all;
    }
    float* at(uint32_t row, uint32_t stream) const { return streams + (row * c.count + stream) * stride; }
    Row row(const float* p) const { return Row(p, p + c.len); }

    // `want` changes rows as they were; the kernel must have written them and nothing else.
    void check(const char* what, const StreamsArgs& args, void (*kernel)(const StreamsArgs), const std::function<void(uint32_t, const std::function<void(float*, const Row&)>&)>& want) {
        std::map<float*, Row> rows;
        for (uint32_t r = 0; r < ROWS; r++) want(r, [&](float* p, const Row& row) { rows[p] = row; });
        const std::vector<float> before = all();
        std::string wrong = emulator::run(ROWS, c.threads, (uint32_t)numbers(), [&] { kernel(args); });
        double error = 0.0;
        for (auto& [p, row] : rows) {
            double squares = 0.0, sum = 1e-30;
            for (uint32_t i = 0; i < c.len; i++) {
                squares += (p[i] - row[i]) * (p[i] - row[i]);
                sum += row[i] * row[i];
            }
            const double apart = sqrt(squares / sum);
            error = apart == apart ? std::max(error, apart) : INFINITY;
        }
        // Put back what may change: the rest is as it was.
        const std::vector<float> got = all();
        std::vector<float> rest = before;
        const size_t in_streams = ROWS * c.count * stride, in_x = ROWS * stride;
        for (auto& [p, row] : rows) {
            const size_t first = p >= streams && p < streams + in_streams ? p - streams : p >= x && p < x + in_x ? in_streams + (p - x) : in_streams + in_x + (p - y);
            std::copy(got.begin() + first, got.begin() + first + c.len, rest.begin() + first);
        }
        if (rest != got) wrong += "writes elsewhere";
        if (wrong.empty() && error < 2e-6) return;
        printf("%s, %u streams of %u: %s, error %.1e\n", what, c.count, c.len, wrong.c_str(), error);
        failures++;
    }
    Row modalities(const Row& x) const {
        const Row normal = norm_of(x, norm);
        Row m(c.count);
        for (uint32_t j = 0; j < c.count; j++) {
            for (uint32_t i = 0; i < c.len; i++) m[j] += router[j * c.len + i] * normal[i];
            m[j] = tanh(m[j] / c.len);
        }
        return m;
    }

    void run() {
        const StreamsArgs routed = [&] { StreamsArgs r = a; r.norm = NormArgs{norm, nullptr, EPS, 0}; return r; }();
        check("begin", a, [](const StreamsArgs a) { streams_begin(a); }, [&](uint32_t r, auto& to) {
            const Row first = row(x + r * stride);
            to(at(r, 0), first);
            for (uint32_t j = 1; j < c.count; j++) to(at(r, j), level(row(at(r, j)), mean_square_of(first)));
        });
        StreamsArgs args = routed;
        args.coefficients = predict;
        check("predict", args, [](const StreamsArgs a) { streams_predict(a); }, [&](uint32_t r, auto& to) {
            const Row m = modalities(row(at(r, c.active)));
            for (uint32_t k = 0; k < c.count; k++) {
                Row p = row(at(r, k));
                for (uint32_t j = 0; j < c.count; j++) {
                    double w = 0.0;
                    for (uint32_t l = 0; l < c.count; l++) w += predict[(k * c.count + j) * c.count + l] * m[l];
                    const Row s = row(at(r, j));
                    for (uint32_t i = 0; i < c.len; i++) p[i] += w * s[i];
                }
                to(at(r, k), p);
                if (k == c.active) to(x + r * stride, p);
            }
        });
        check("around", a, [](const StreamsArgs a) { streams_around(a); }, [&](uint32_t r, auto& to) {
            Row sum = row(x + r * stride);
            const Row input = c.normed ? norm_of(sum, norm) : sum, thin = norm_of(row(y + r * y_stride), thin_norm);
            for (uint32_t i = 0; i < c.len; i++) sum[i] += input[i] + thin[i];
            to(y + r * y_stride, sum);
        });
        args.coefficients = correct;
        for (uint32_t i = 0; i < ROWS * stride; i++) x[i] = random_float() * c.size;
        check("correct", args, [](const StreamsArgs a) { streams_correct(a); }, [&](uint32_t r, auto& to) {
            const Row m = modalities(row(x + r * stride)), mine = row(x + r * stride), active = row(at(r, c.active));
            for (uint32_t j = 0; j < c.count; j++) {
                double w = 1.0;
                for (uint32_t l = 0; l < c.count; l++) w += correct[j * c.count + l] * m[l];
                Row s = row(at(r, j));
                for (uint32_t i = 0; i < c.len; i++) s[i] += w * (mine[i] - active[i]);
                to(at(r, j), s);
                if (j != c.active) continue;
                for (uint32_t i = 0; i < c.len; i++) s[i] *= scale[i];
                to(x + r * stride, s);
            }
        });
        check("spread", a, [](const StreamsArgs a) { streams_spread(a); }, [&](uint32_t r, auto& to) {
            const Row mine = row(y + r * y_stride), added = c.normed ? norm_of(mine, norm) : mine;
            for (uint32_t j = 1; j < c.count; j++) {
                Row s = row(at(r, j));
                for (uint32_t i = 0; i < c.len; i++) s[i] += added[i];
                to(at(r, j), s);
            }
        });
        check("end", a, [](const StreamsArgs a) { streams_end(a); }, [&](uint32_t r, auto& to) {
            Row sum = row(at(r, 0));
            const double square = mean_square_of(sum);
            for (uint32_t j = 1; j < c.count; j++) {
                const Row s = level(row(y + r * y_stride + (j - 1) * stride), square);
                for (uint32_t i = 0; i < c.len; i++) sum[i] += s[i];
            }
            for (double& v : sum) v /= c.count;
            to(x + r * stride, sum);
        });
    }
};

void gates(uint32_t len, uint32_t threads, float cutoff, float mean) {
    const uint32_t stride = 2 * len + 3;
    float* x = random_floats(ROWS * stride, 2.0f, mean);
    const std::vector<float> before(x, x + ROWS * stride);
    SparseGatesArgs a{x, len, stride, cutoff, 0};
    std::string wrong = emulator::run(ROWS, threads, (uint32_t)numbers(), [&] { sparse_gates(a); });
    double error = 0.0;
    uint32_t counting = 0;
    for (uint32_t r = 0; r < ROWS; r++) {
        const float* row = before.data() + r * stride;
        double sum = 0.0, squares = 0.0;
        for (uint32_t i = 0; i < len; i++) sum += row[i];
        for (uint32_t i = 0; i < len; i++) squares += (row[i] - sum / len) * (row[i] - sum / len);
        const double least = sum / len + cutoff * sqrt(squares / len);
        for (uint32_t i = 0; i < stride; i++) {
            const double want = i < len ? std::max(row[i] - least, 0.0) : row[i];
            error = std::max(error, fabs(x[r * stride + i] - want));
            counting += i < len && want > 0.0;
        }
    }
    if (wrong.empty() && error < 4e-6 && (len < 100 || (counting > 0 && counting < ROWS * len / 2))) return;
    printf("%u gates from %g on: %s, error %.1e, %u count\n", len, cutoff, wrong.c_str(), error, counting);
    failures++;
}

int main() {
    numbers.seed(5);
    for (const Case& c : {Case{4, 0, 96, 96, true, 1.0f}, {2, 1, 33, 64, true, 0.1f}, {3, 2, 70, 32, false, 5.0f}, {4, 1, 7, 32, true, 1.0f},
                          {16, 7, 40, 64, true, 1.0f}, {4, 0, 500, 160, true, 1e-4f}, {5, 3, 1030, 1024, false, 2.0f}})
        Streams(c).run();
    for (uint32_t len : {1u, 31u, 100u, 777u, 3000u})
        for (float cutoff : {0.3f, 1.6448536f}) gates(len, std::min((len + 31) / 32 * 32, 1024u), cutoff, len % 2 ? 0.5f : -3.0f);
    printf("%d failures\n", failures);
    return failures > 0;
}
