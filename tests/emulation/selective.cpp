// The recurrence of the first Mamba under schedules that no GPU would choose: tokens one by one and chunks by turns, close to what
// f64 makes of the same input.
#include "cuda_fp16.h"
#include "recurrent.cu"
#include "selective.cu"
#include "model.h"
#include <array>
#include <cstdio>

int failures = 0;
void check(bool right, const char* what, uint32_t channels, uint32_t state_dim, uint32_t count, const std::string& wrong, double error) {
    if (right && wrong.empty()) return;
    printf("%s, %u channels of %u numbers, %u tokens: %s, error %.1e\n", what, channels, state_dim, count, wrong.c_str(), error);
    failures++;
}

double silu_of(double v) { return v / (1.0 + exp(-v)); }

// A layer, and the state of a session, on the device and in f64.
struct Mamba {
    uint32_t channels, state_dim, width, blocks;
    bool normed;
    const float *conv, *bias, *rate, *skip, *norms[2];
    std::vector<uint8_t> fixed;
    Session session{};
    const Session* sessions[1] = {&session};
    std::vector<std::vector<double>> past;
    std::vector<double> state;

    Mamba(uint32_t c, uint32_t s, uint32_t w, bool n) : channels(c), state_dim(s), width(w), blocks((c + CHANNELS - 1) / CHANNELS), normed(n), state(c * s) {
        conv = random_floats(c * w, 0.5f);
        bias = random_floats(c, 0.5f);
        rate = random_floats((size_t)blocks * s * CHANNELS, 1.0f, -1.2f);
        skip = random_floats(c, 1.0f);
        for (auto& norm : norms) norm = random_floats(s, 0.3f, 1.0f);
        fixed.resize(matrix_offset() + (size_t)blocks * s * CHANNELS * 4);
        session.fixed = (uint64_t)fixed.data();
    }
    size_t matrix_offset() const { return ((size_t)channels * width * 4 + 255) / 256 * 256; }
    size_t place(uint32_t channel, uint32_t n) const { return ((size_t)(channel / CHANNELS) * state_dim + n) * CHANNELS + channel % CHANNELS; }

    // What a token gives.
    std::vector<double> token(const float* in, const float* parts, const float* steps) {
        past.emplace_back(in, in + channels);
        std::vector<double> b(parts, parts + state_dim), c(parts + state_dim, parts + 2 * state_dim), out(channels);
        for (int which = 0; which < 2 && normed; which++) {
            std::vector<double>& v = which ? c : b;
            double square = 0.0;
            for (double x : v) square += x * x;
            const double scale = 1.0 / sqrt(square / state_dim + 1e-5);
            for (uint32_t n = 0; n < state_dim; n++) v[n] *= scale * norms[which][n];
        }
        for (uint32_t ch = 0; ch < channels; ch++) {
            double x = bias[ch];
            for (uint32_t back = 0; back < std::min<size_t>(width, past.size()); back++)
                x += conv[ch * width + width - 1 - back] * past[past.size() - 1 - back][ch];
            x = silu_of(x);
            const double dt = log1p(exp((double)steps[ch]));
            double sum = skip[ch] * x;
            for (uint32_t n = 0; n < state_dim; n++) {
                double& s = state[ch * state_dim + n];
                s = exp2(dt * rate[place(ch, n)]) * s + dt * x * b[n];
                sum += s * c[n];
            }
            out[ch] = sum * silu_of(in[channels + ch]);
        }
        return out;
    }

    void tokens(uint32_t count) {
        const uint32_t stride = 2 * channels + 3, part_stride = 2 * state_dim + 1;
        const float *in = random_floats((size_t)count * stride, 1.0f), *parts = random_floats((size_t)count * part_stride, 1.0f);
        float *steps = random_floats((size_t)count * channels, 2.0f), *convolved = random_floats((size_t)count * channels, 1.0f);
        std::vector<double> want;
        for (uint32_t t = 0; t < count; t++)
            for (double v : token(in + (size_t)t * stride, parts + (size_t)t * part_stride, steps + (size_t)t * channels)) want.push_back(v);
        RecurrentArgs r{};
        r.sessions = sessions;
        r.input = in;
        r.convolved = convolved;
        r.conv_weight = conv;
        r.conv_bias = bias;
        r.in_stride = stride;
        r.channels = channels;
        r.width = width;
        r.count = count;
        SelectiveArgs a{};
        a.sessions = sessions;
        a.input = in;
        a.convolved = convolved;
        a.parts = parts;
        a.steps = a.out = steps;
        a.rate = rate;
        a.skip = skip;
        for (int i = 0; i < 2 && normed; i++) a.norms[i] = NormArgs{norms[i], nullptr, 1e-5f, 0};
        a.matrix_offset = matrix_offset();
        a.in_stride = stride;
        a.part_stride = part_stride;
        a.channels = channels;
        a.state_dim = state_dim;
        a.count = count;
        auto run = [&](uint32_t grid, uint32_t threads, const std::function<void()>& kernel) { return emulator::run(grid, threads, (uint32_t)numbers(), kernel); };
        std::string wrong;
        const uint32_t convolutions = (channels + 127) / 128;
        if (count == 1) {
            wrong += run(convolutions, 128, [&] { recurrent_convolve_step(r); });
            wrong += run((channels + STEP_CHANNELS - 1) / STEP_CHANNELS, 2 * STEP_CHANNELS, [&] { selective_step(a); });
        } else {
            // Blocks of the convolution have two indices: one row of them here.
            if (count > CONV_ROWS) {
                wrong = "more rows than a block of the convolution has";
            } else {
                wrong += run(convolutions, 128, [&] { recurrent_convolve(r); });
                wrong += run((channels + SCAN_CHANNELS - 1) / SCAN_CHANNELS, THREADS_OF_SCAN, [&] {
                    if (state_dim <= 16) selective_scan_16(a); else selective_scan_64(a);
                });
            }
        }
        session.position += count;
        double square = 0.0, all = 0.0;
        for (size_t i = 0; i < want.size(); i++) {
            square += (steps[i] - want[i]) * (steps[i] - want[i]);
            all += want[i] * want[i];
        }
        double error = sqrt(square / all);
        check(error < 1e-5, count == 1 ? "a step" : "a chunk", channels, state_dim, count, wrong, error);
        const float* states = (const float*)(fixed.data() + matrix_offset());
        for (uint32_t ch = 0; ch < channels; ch++)
            for (uint32_t n = 0; n < state_dim; n++) error = std::max(error, fabs(states[place(ch, n)] - state[ch * state_dim + n]));
        check(error < 1e-4, "the state", channels, state_dim, count, "", error);
        for (uint32_t ch = channels; ch < blocks * CHANNELS; ch++)
            for (uint32_t n = 0; n < state_dim; n++) check(states[place(ch, n)] == 0.0f, "behind the channels", channels, state_dim, count, "", states[place(ch, n)]);
    }
};

int main() {
    numbers.seed(2);
    for (bool normed : {false, true})
        for (auto [channels, state_dim, width] : {std::array<uint32_t, 3>{56, 9, 4}, {40, 16, 4}, {72, 5, 3}, {150, 16, 2}, {33, 64, 4}, {16, 17, 5}}) {
            Mamba layer(channels, state_dim, width, normed);
            for (uint32_t count : {1, 1, 17, 1, 2, 32, 1, 1, 1, 31}) layer.tokens(count);
        }
    printf("%d failures\n", failures);
    return failures > 0;
}
