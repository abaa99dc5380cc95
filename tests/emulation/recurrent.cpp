// Rows of drafts of layers that keep a state of fixed size: a chain of rows, each of which leaves a state of its own, has the bits of
// as many steps one after another, and the state before it stays as it is. Under schedules that no GPU would choose.
#include "cuda_fp16.h"
#include "recurrent.cu"
#include "selective.cu"
#include "model.h"
#include <cstdio>

constexpr uint32_t ROWS = 5;

int failures = 0;
void check(bool right, const char* name, const char* what, uint32_t row) {
    if (right) return;
    printf("%s, row %u: %s\n", name, row, what);
    failures++;
}
void run(const char* name, uint32_t blocks, uint32_t threads, uint32_t cluster, const std::function<void()>& kernel) {
    const std::string wrong = emulator::run(blocks, threads, (uint32_t)numbers(), kernel, cluster);
    check(wrong.empty(), name, wrong.c_str(), 0);
}

using Bytes = std::vector<uint8_t>;

// Whether a float of a state is any number's place.
using Used = std::function<bool(size_t)>;
// Work on a state, of one session, whose rows begin at `row` of all inputs; `chain` says which kernels.
using Work = std::function<void(const Session* const* sessions, uint32_t row, bool chain)>;

void compare(const char* name, size_t floats, const Used& used, size_t outputs, uint32_t position, float* out, const Work& layer) {
    Bytes state(floats * 4), before;
    for (size_t i = 0; i < floats; i++) ((float*)state.data())[i] = random_float();
    before = state;
    // One step after another.
    Session session{};
    const Session* alone[1] = {&session};
    session.fixed = session.before = (uint64_t)state.data();
    session.chain = 1;
    std::vector<Bytes> states;
    for (uint32_t row = 0; row < ROWS; row++) {
        session.position = position + row;
        layer(alone, row, false);
        states.push_back(state);
    }
    const std::vector<float> expected(out, out + ROWS * outputs);
    std::fill(out, out + ROWS * outputs, NAN);
    // Together.
    state = before;
    Session rows[ROWS] = {};
    const Session* table[ROWS];
    std::vector<Bytes> own(ROWS, Bytes(floats * 4, 0xff));
    for (uint32_t row = 0; row < ROWS; row++) {
        rows[row].fixed = (uint64_t)own[row].data();
        rows[row].before = (uint64_t)state.data();
        rows[row].position = position + row;
        rows[row].chain = row ? 0 : ROWS;
        table[row] = &rows[row];
    }
    layer(table, 0, true);
    for (uint32_t row = 0; row < ROWS; row++) {
        check(!memcmp(out + row * outputs, expected.data() + row * outputs, outputs * 4), name, "other bits than the step", row);
        bool same = true;
        for (size_t i = 0; i < floats; i++) same &= !used(i) || !memcmp(own[row].data() + 4 * i, states[row].data() + 4 * i, 4);
        check(same, name, "another state", row);
        // Of others nothing happens.
        if (row) layer(table + row, row, true);
    }
    check(state == before, name, "the state before it has changed", 0);
    // A session that is no draft of anybody's.
    session.position = position;
    layer(alone, 0, true);
    check(state == states[0] && !memcmp(out, expected.data(), outputs * 4), name, "a session alone", 0);
}

struct Shape { uint32_t heads, per_key, rows, cols, width; bool delta, normed, tiled; };

// How a step is made: by a block for each head, by several, or by a block that copies the head's state.
enum Form { ALONE, SHARED, COPIED };
constexpr const char* NAMES[] = {"recurrent", "recurrent, shared", "recurrent, copied"};

// With `channels`, each column has a step of its own; with a floor for odd positions.
void recurrent(const Shape& shape, uint32_t position, Form form, bool of_channels) {
    const uint32_t keys = shape.heads / shape.per_key, values = shape.heads * shape.rows;
    const uint32_t channels = 2 * keys * shape.cols + values, stride = channels + values + 2 * shape.heads + 3;
    const uint32_t ring = (channels * shape.width + 63) / 64 * 64;
    RecurrentArgs a{};
    const float* input = random_floats((size_t)ROWS * stride, 1.0f);
    float* out = random_floats((size_t)ROWS * values, 1.0f);
    a.conv_weight = random_floats((size_t)channels * shape.width, 0.5f);
    a.conv_bias = shape.delta ? nullptr : random_floats(channels, 0.5f);
    a.rate = random_floats(shape.heads, 0.5f, -1.0f);
    a.step_bias = random_floats(of_channels ? shape.heads * shape.cols : shape.heads, 0.5f);
    a.skip = shape.delta ? nullptr : random_floats(shape.heads, 1.0f);
    a.norm = shape.normed ? random_floats(shape.rows, 0.5f, 1.0f) : nullptr;
    a.matrix_offset = ring * 4;
    a.in_stride = stride;
    a.channels = channels;
    a.width = shape.width;
    a.heads = shape.heads;
    a.per_key = shape.per_key;
    a.rows = shape.rows;
    a.cols = shape.cols;
    a.k_at = keys * shape.cols;
    a.v_at = 2 * keys * shape.cols;
    a.gate_at = channels;
    a.beta_at = channels + values;
    a.step_at = channels + values + shape.heads;
    a.delta = shape.delta;
    a.beta_scale = 1.5f;
    a.q_scale = 0.3f;
    a.eps = 1e-6f;
    a.most = INFINITY;
    a.tiled = shape.tiled;
    a.gated = !shape.normed;
    const float *steps = random_floats((size_t)ROWS * shape.heads * shape.cols, 1.0f), *gates = random_floats((size_t)ROWS * values, 1.0f);
    if (of_channels) a.steps_stride = shape.heads * shape.cols, a.gates_stride = values, a.floor = position % 2 ? -2.0f : 0.0f;
    auto layer = [&](const Session* const* sessions, uint32_t row, bool chain) {
        RecurrentArgs of = a;
        of.sessions = sessions;
        of.input = input + (size_t)row * stride;
        of.out = out + (size_t)row * values;
        if (of_channels) of.steps = steps + (size_t)row * a.steps_stride, of.gates = gates + (size_t)row * values;
        const bool shared = form == SHARED;
        const uint32_t blocks = shared ? STEP_BLOCKS : 1;
        if (form == COPIED && !chain) return run(NAMES[form], shape.heads, BATCH_THREADS, 1, [&] { shape.delta ? recurrent_batch_delta(of) : recurrent_batch_plain(of); });
        run(NAMES[form], shape.heads * blocks, STEP_THREADS / blocks, blocks, [&] {
            if (of_channels && shared) chain ? recurrent_chain_shared_channels(of) : recurrent_step_shared_channels(of);
            else if (of_channels) chain ? recurrent_chain_channels(of) : recurrent_step_channels(of);
            else if (shared) chain ? recurrent_chain_shared_128(of) : recurrent_step_shared_128(of);
            else chain ? recurrent_chain_128(of) : recurrent_step_128(of);
        });
    };
    auto used = [&](size_t i) { return i < channels * shape.width || i >= ring; };
    compare(NAMES[form], ring + (size_t)values * shape.cols, used, values, position, out, layer);
}

void short_convolution(uint32_t channels, uint32_t width, uint32_t position) {
    const uint32_t stride = 3 * channels + 1;
    const float* input = random_floats((size_t)ROWS * stride, 1.0f);
    float* out = random_floats((size_t)ROWS * channels, 1.0f);
    ShortConvArgs a{};
    a.weight = random_floats((size_t)channels * width, 0.5f);
    a.bias = random_floats(channels, 0.5f);
    a.in_stride = stride;
    a.channels = channels;
    a.width = width;
    auto layer = [&](const Session* const* sessions, uint32_t row, bool chain) {
        ShortConvArgs of = a;
        of.sessions = sessions;
        of.input = input + (size_t)row * stride;
        of.out = out + (size_t)row * channels;
        run("short convolution", (channels + 127) / 128, 128, 1, [&] { chain ? short_conv_chain(of) : short_conv(of); });
    };
    compare("short convolution", (size_t)channels * width, [](size_t) { return true; }, channels, position, out, layer);
}

void selective(uint32_t channels, uint32_t state_dim, uint32_t width, bool normed, uint32_t position) {
    const uint32_t stride = 2 * channels + 3, part_stride = 2 * state_dim + 1, ring = (channels * width + 63) / 64 * 64;
    const uint32_t blocks = (channels + CHANNELS - 1) / CHANNELS;
    const float *input = random_floats((size_t)ROWS * stride, 1.0f), *parts = random_floats((size_t)ROWS * part_stride, 1.0f);
    const float* steps = random_floats((size_t)ROWS * channels, 2.0f);
    float *convolved = random_floats((size_t)ROWS * channels, 1.0f), *out = random_floats((size_t)ROWS * channels, 1.0f);
    RecurrentArgs r{};
    r.conv_weight = random_floats((size_t)channels * width, 0.5f);
    r.conv_bias = random_floats(channels, 0.5f);
    r.in_stride = stride;
    r.channels = channels;
    r.width = width;
    SelectiveArgs a{};
    a.rate = random_floats((size_t)blocks * state_dim * CHANNELS, 1.0f, -1.2f);
    a.skip = random_floats(channels, 1.0f);
    for (int i = 0; i < 2 && normed; i++) a.norms[i] = NormArgs{random_floats(state_dim, 0.3f, 1.0f), nullptr, 1e-5f, 0};
    a.matrix_offset = ring * 4;
    a.in_stride = stride;
    a.part_stride = part_stride;
    a.channels = channels;
    a.state_dim = state_dim;
    auto layer = [&](const Session* const* sessions, uint32_t row, bool chain) {
        RecurrentArgs conv = r;
        SelectiveArgs of = a;
        conv.sessions = of.sessions = sessions;
        conv.input = of.input = input + (size_t)row * stride;
        conv.convolved = convolved + (size_t)row * channels;
        of.convolved = conv.convolved;
        of.parts = parts + (size_t)row * part_stride;
        of.steps = steps + (size_t)row * channels;
        of.out = out + (size_t)row * channels;
        run("convolution", (channels + 127) / 128, 128, 1, [&] { chain ? recurrent_convolve_chain(conv) : recurrent_convolve_step(conv); });
        run("selective", (channels + STEP_CHANNELS - 1) / STEP_CHANNELS, 2 * STEP_CHANNELS, 1, [&] { chain ? selective_chain(of) : selective_step(of); });
    };
    auto used = [&](size_t i) {
        if (i < ring) return i < channels * width;
        const size_t block = (i - ring) / (state_dim * CHANNELS);
        return block * CHANNELS + (i - ring) % CHANNELS < channels;
    };
    compare("selective", ring + (size_t)blocks * state_dim * CHANNELS, used, channels, position, out, layer);
}

int main() {
    numbers.seed(3);
    const Shape shapes[] = {
        {4, 2, 128, 128, 4, true, true, false},
        {4, 2, 40, 32, 4, true, true, true},
        // More rows than threads take at a time, and columns that do not divide.
        {2, 1, 150, 18, 3, true, false, false},
        {4, 4, 64, 16, 4, false, false, false},
        {2, 1, 150, 20, 4, true, true, false},
        {2, 2, 6, 7, 6, false, true, false},
    };
    for (const Shape& shape : shapes)
        for (uint32_t position : {0u, 2u, 37u})
            for (Form form : {ALONE, SHARED, COPIED}) {
                if (form == COPIED && (shape.width != 4 || shape.cols % 4)) continue;
                recurrent(shape, position, form, false);
                if (shape.delta && form != COPIED) recurrent(shape, position, form, true);
            }
    for (uint32_t position : {0u, 1u, 50u}) {
        short_convolution(150, 3, position);
        short_convolution(20, 6, position);
        selective(56, 9, 4, true, position);
        selective(72, 16, 3, false, position);
        selective(33, 64, 7, true, position);
    }
    printf("%d failures\n", failures);
    return failures > 0;
}
