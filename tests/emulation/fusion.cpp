// Hidden states that sessions keep, and what heads of EAGLE-3 make of them, under schedules that no GPU would choose: what is copied is
// where it belongs, norms are close to f64, and nothing else is written.
#include "cuda_fp16.h"
#include "fusion.cu"
#include "predictor.cu"
#include "model.h"
#include <cstdio>

constexpr uint32_t THREADS = 256;
constexpr float EPS = 1e-5f;

int failures = 0;
void check(bool right, const char* what, uint32_t which) {
    if (right) return;
    printf("%s, %u\n", what, which);
    failures++;
}
void run(uint32_t blocks, const std::function<void()>& kernel) {
    const std::string wrong = emulator::run(blocks, THREADS, (uint32_t)numbers(), kernel);
    check(wrong.empty(), wrong.c_str(), 0);
}
bool is_norm(const float* got, const float* x, const float* weight, uint32_t len) {
    double sum = 0.0, error = 0.0;
    for (uint32_t i = 0; i < len; i++) sum += (double)x[i] * x[i];
    const double scale = 1.0 / sqrt(sum / len + EPS);
    for (uint32_t i = 0; i < len; i++) error = std::max(error, fabs(got[i] - x[i] * scale * weight[i]));
    return error < 4e-6;
}

// A session that keeps states in a ring of so many rows.
struct Keeper {
    Session session{};
    uint32_t width, rows;
    std::vector<float> memory;

    Keeper(uint32_t position, uint32_t len, std::vector<uint32_t> places, uint32_t rows) : width(len * std::max<uint32_t>(1, (uint32_t)places.size())), rows(rows) {
        StateRing ring{};
        ring.n_places = (uint32_t)places.size();
        std::copy(places.begin(), places.end(), ring.places);
        memory.assign(sizeof ring / 4 + width * rows, -7.0f);
        memcpy(memory.data(), &ring, sizeof ring);
        session.states = (uint64_t)memory.data();
        session.states_rows = rows;
        session.position = position;
    }
    StateRing* ring() { return (StateRing*)memory.data(); }
    float* row(uint32_t position) { return memory.data() + sizeof(StateRing) / 4 + position % rows * width; }
};

// Steps and chunks of sessions that keep several kinds of states.
void kept(uint32_t len, uint32_t chunk) {
    constexpr uint32_t MOST = 12, LAYERS = 4;
    constexpr float UNIT = 0.25f;
    const uint32_t stride = (len + 31) / 32 * 32, rows = chunk ? chunk : 4;
    Keeper all[] = {{3, len, {4, 0, 2}, 5}, {7, len, {1, 1, 3}, 8}, {2, len, {}, 3}, {9, len, {4}, 2}};
    Session none{};
    const Session* table[] = {&all[0].session, &all[1].session, &all[2].session, &all[3].session, &none};
    const float* norm = random_floats(len, 0.3f, 1.0f);
    std::vector<float*> x(LAYERS + 1);
    for (auto& rows : x) rows = random_floats(MOST * stride, 2.0f);
    for (uint32_t first = 0; first < (chunk ? 5 : 1); first++) {
        for (uint32_t place = 0; place <= LAYERS; place++) {
            const KeepPlaceArgs a{table + first, x[place], stride, len, chunk, place, UNIT, 0};
            run(chunk ? chunk : 5, [&] { keep_place(a); });
        }
        const KeepArgs a{table + first, x[LAYERS], NormArgs{norm, nullptr, EPS, 0}, stride, len, chunk, 0};
        run(chunk ? chunk : 5, [&] { keep_states(a); });
    }
    for (uint32_t k = 0; k < 4; k++) {
        Keeper& keeper = all[k];
        std::vector<bool> is_there(keeper.rows);
        for (uint32_t i = rows; i-- > 0;) {
            const uint32_t row = chunk ? i : k, position = keeper.session.position + (chunk ? i : 0);
            if (is_there[position % keeper.rows]) continue;
            is_there[position % keeper.rows] = true;
            const float* got = keeper.row(position);
            const uint32_t n = keeper.ring()->n_places;
            for (uint32_t p = 0; p < n; p++) {
                const float* made = x[keeper.ring()->places[p]] + row * stride;
                for (uint32_t e = 0; e < len; e++) check(got[p * len + e] == made[e] * UNIT, "a state between layers", k);
            }
            if (!n) check(is_norm(got, x[LAYERS] + row * stride, norm, len), "a state behind the norm", k);
        }
        for (uint32_t i = 0; i < keeper.rows; i++)
            for (uint32_t e = 0; e < keeper.width && !is_there[i]; e++) check(keeper.row(i)[e] == -7.0f, "a row that nobody keeps", k);
    }
}

void gathered(uint32_t width, uint32_t rows, uint32_t first) {
    constexpr uint32_t COUNT = 5;
    const uint32_t stride = width + 3;
    Keeper keeper(0, width, {}, rows);
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t e = 0; e < width; e++) keeper.row(i)[e] = random_float();
    std::vector<float> out(COUNT * stride, -7.0f);
    const GatherStatesArgs a{keeper.ring(), out.data(), rows, first, width, stride};
    run(COUNT, [&] { gather_states(a); });
    for (uint32_t i = 0; i < COUNT; i++) {
        check(!memcmp(out.data() + i * stride, keeper.row(first + i), width * 4), "a row of a ring", i);
        for (uint32_t e = width; e < stride; e++) check(out[i * stride + e] == -7.0f, "what is behind a row", i);
    }
}

// Both norms in one launch, of a step, or one after the other, of a chunk, whose states come to the embeddings' place.
void joined(uint32_t len, bool normed_stream, bool is_step) {
    constexpr uint32_t ROWS = 3;
    const uint32_t x_stride = (len + 31) / 32 * 32, out_stride = (2 * len + 31) / 32 * 32;
    Keeper own[ROWS] = {{4, len, {1}, 6}, {0, len, {1}, 2}, {7, len, {1}, 7}};
    const Session* table[ROWS];
    const float *weights[2] = {random_floats(len, 0.3f, 1.0f), random_floats(len, 0.3f, 1.0f)};
    float *x = random_floats(ROWS * x_stride, 1.5f), *states = random_floats(ROWS * x_stride, 0.7f);
    const std::vector<float> embedded(x, x + ROWS * x_stride);
    std::vector<float> out(ROWS * out_stride, -7.0f);
    for (uint32_t i = 0; i < ROWS; i++) {
        table[i] = &own[i].session;
        memcpy(own[i].row(own[i].session.position + own[i].rows - 1), states + i * x_stride, len * 4);
    }
    JoinArgs a{table, x, out.data(), {NormArgs{weights[0], nullptr, EPS, 0}, NormArgs{weights[1], nullptr, EPS, 0}}, x_stride, out_stride, len, is_step ? 0u : 1u, normed_stream, 0};
    run(ROWS, [&] { join_head(a); });
    if (!is_step) {
        check(!memcmp(x, embedded.data(), embedded.size() * 4), "embeddings stay", len);
        memcpy(x, states, ROWS * x_stride * 4);
        a.half = 2;
        run(ROWS, [&] { join_head(a); });
    }
    for (uint32_t i = 0; i < ROWS; i++) {
        const float *to = out.data() + i * out_stride, *state = states + i * x_stride;
        check(is_norm(to, embedded.data() + i * x_stride, weights[0], len), "the norm of an embedding", i);
        check(is_norm(to + len, state, weights[1], len), "the norm of a state", i);
        check(!memcmp(x + i * x_stride, normed_stream ? to + len : state, len * 4), "the residual stream", i);
        for (uint32_t e = 2 * len; e < out_stride; e++) check(to[e] == -7.0f, "what is behind both", i);
        for (uint32_t e = len; e < x_stride && is_step; e++) check(x[i * x_stride + e] == embedded[i * x_stride + e], "what is behind the stream", i);
    }
}

void spread(uint32_t n_vocab, uint32_t step, uint32_t blocks) {
    std::vector<uint32_t> place_of(n_vocab), ids;
    for (uint32_t t = 0; t < n_vocab; t++)
        if (t % step) ids.push_back(t);
    const uint32_t n = (uint32_t)ids.size();
    std::fill(place_of.begin(), place_of.end(), n);
    for (uint32_t i = 0; i < n; i++) place_of[ids[i]] = i;
    const float* known = random_floats(n, 3.0f);
    std::vector<float> logits(n_vocab + 1, -7.0f);
    const SpreadLogitsArgs a{known, place_of.data(), logits.data(), n, n_vocab};
    run(blocks, [&] { spread_logits(a); });
    for (uint32_t t = 0; t < n_vocab; t++)
        check(logits[t] == (place_of[t] < n ? known[place_of[t]] : -INFINITY), "the logit of a token", t);
    check(logits[n_vocab] == -7.0f, "what is behind the logits", n_vocab);
}

int main() {
    numbers.seed(9);
    for (uint32_t len : {1u, 40u, 300u})
        for (uint32_t chunk : {0u, 1u, 3u, 11u}) kept(len, chunk);
    for (uint32_t width : {3u, 144u, 777u}) gathered(width, 4, 3), gathered(width, 9, 6), gathered(width, 5, 0);
    for (uint32_t len : {7u, 48u, 320u, 600u})
        for (int i = 0; i < 4; i++) joined(len, i & 1, i & 2);
    spread(96, 4, 1), spread(1000, 2, 3), spread(513, 7, 1);
    printf("%d failures\n", failures);
    return failures > 0;
}
