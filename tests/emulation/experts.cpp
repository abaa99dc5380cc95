// Mixtures of experts: the kernels of one session, whose blocks choose and add up for themselves, and those of several,
// which take the pairs of an expert together, under schedules that no GPU would choose. Each must end, choose what a plain sort
// chooses, and have the bits of the kernels that do one operation each for one expert alone.
#include "experts.cu"
#include "experts_product.cuh"
#include "model.h"
#include "norm.cu"
#include <algorithm>
#include <cstdio>

int failures = 0;
void check(bool right, const char* name, const std::string& what) {
    if (right) return;
    printf("%s: %s\n", name, what.c_str());
    failures++;
}
void run(const char* name, const char* what, uint32_t blocks, uint32_t threads, const std::function<void()>& kernel) {
    const std::string wrong = emulator::run(blocks, threads, (uint32_t)numbers(), kernel);
    check(wrong.empty(), name, std::string(what) + ": " + wrong);
}

struct Mixture {
    const char* name;
    uint32_t type, hidden, n_ff, n_experts, n_used, n_groups, rows;
    Scoring scoring;
    bool gated, biases, selection_bias, shared, normed, normalize;
};
const Mixture MIXTURES[] = {
    {"softmax", Q4_K, 512, 256, 40, 8, 0, 9, SCORE_SOFTMAX, true, false, false, false, true, true},
    {"several slices, biases", MXFP4, 1088, 1056, 5, 3, 0, 5, SCORE_SOFTMAX_OF_CHOSEN, true, true, false, true, true, false},
    {"sigmoid, groups, no gates", Q8_0, 128, 96, 144, 5, 8, 6, SCORE_SIGMOID, false, false, true, true, true, true},
    {"no norm, factors of experts", Q6_K, 256, 256, 300, 2, 0, 3, SCORE_SOFTMAX, true, false, true, false, false, true},
};

struct ExpertLayer {
    const Mixture& m;
    const uint32_t n_scores;
    const uint8_t *gate, *up, *down;
    const uint8_t *shared_up = NULL, *shared_down = NULL;
    const float *router, *router_bias = NULL, *gate_bias = NULL, *up_bias = NULL, *down_bias = NULL, *selection = NULL, *scales = NULL, *shared = NULL, *x;
    NormArgs norm{};
    Activation activation{};
    // What each row's input and experts are.
    std::vector<int8_t> q8;
    std::vector<float> q8_scale, normed, scores, weights;
    std::vector<uint32_t> chosen;

    explicit ExpertLayer(const Mixture& mixture) : m(mixture), n_scores(m.n_experts + (m.shared ? 1 : 0)) {
        const uint32_t inner = m.n_experts * m.n_ff, outer = m.n_experts * m.hidden;
        gate = m.gated ? random_matrix(m.type, m.hidden / 32, inner) : NULL;
        up = random_matrix(m.type, m.hidden / 32, inner);
        down = random_matrix(m.type, m.n_ff / 32, outer);
        router = random_floats(n_scores * m.hidden, 0.1f);
        if (m.biases) {
            router_bias = random_floats(n_scores, 0.1f);
            gate_bias = random_floats(inner, 0.1f);
            up_bias = random_floats(inner, 0.1f);
            down_bias = random_floats(outer, 0.1f);
        }
        if (m.selection_bias) selection = random_floats(m.n_experts, 0.5f);
        if (!m.normed) scales = random_floats(m.n_experts, 0.3f, 1.0f);
        if (m.shared) {
            shared = random_floats(m.hidden, 1.0f);
            shared_up = random_matrix(m.type, m.hidden / 32, (m.gated ? 2 : 1) * m.n_ff);
            shared_down = random_matrix(m.type, m.n_ff / 32, m.hidden);
        }
        if (m.normed) norm = {random_floats(m.hidden, 0.2f, 1.0f), NULL, 1e-5f, 0};
        activation.kind = m.gated ? SILU : RELU_SQUARED;
        x = random_floats(m.rows * m.hidden, 1.0f);
        quantize_input();
    }
    RouteArgs route(const float* from, uint32_t* to, float* its_weights) const {
        RouteArgs a{};
        a.scores = from;
        a.selection_bias = selection;
        a.expert_scales = scales;
        a.chosen = to;
        a.weights = its_weights;
        a.score_stride = n_scores;
        a.n_experts = m.n_experts;
        a.n_used = m.n_used;
        a.scoring = m.scoring;
        a.shared = m.shared ? SHARED_WITH_SCORE : NO_SHARED;
        a.normalize = m.normalize;
        a.weight_scale = 1.5f;
        a.n_groups = (uint8_t)m.n_groups;
        a.used_groups = 2;
        a.group_best = m.n_groups ? 2 : 0;
        return a;
    }
    RouterArgs router_args() const {
        RouterArgs a{};
        a.matrix = router;
        a.bias = router_bias;
        a.width = m.hidden;
        a.matrix_rows = n_scores;
        a.inverse_len = 1.0f / (float)m.hidden;
        return a;
    }

    // The inputs of all rows, their scores and their experts, by kernels of one operation each.
    void quantize_input() {
        q8.resize(m.rows * m.hidden);
        q8_scale.resize(m.rows * m.hidden / 32);
        normed.resize(m.rows * m.hidden);
        scores.assign(m.rows * n_scores, NAN);
        chosen.resize(m.rows * m.n_used);
        weights.assign(m.rows * (m.n_used + 1), NAN);
        for (uint32_t r = 0; r < m.rows; r++) {
            QuantizeInputArgs p{};
            p.x = x + r * m.hidden;
            p.norm = norm;
            p.q8 = q8.data() + r * m.hidden;
            p.q8_scale = q8_scale.data() + r * m.hidden / 32;
            p.f32 = normed.data() + r * m.hidden;
            p.len = p.x_stride = m.hidden;
            p.groups = m.hidden / 32;
            p.source = m.normed ? NORM : COPY;
            p.inverse_len = 1.0f / (float)m.hidden;
            run(m.name, "norm", 1, 512, [&] { ::quantize_input(p); });
            RouterArgs a = router_args();
            a.x = normed.data() + r * m.hidden;
            a.out = scores.data() + r * n_scores;
            a.rows = 1;
            a.per_block = 4;
            run(m.name, "router of rows", (n_scores + 15) / 16, SCORE_WARPS * 32, [&] { router_rows(a); });
            const RouteArgs route_of = route(a.out, chosen.data() + r * m.n_used, weights.data() + r * (m.n_used + 1));
            run(m.name, "route", 1, 32, [&] { ::route(route_of); });
            check_choice(r);
        }
    }
    // The same in f64.
    void check_choice(uint32_t r) const {
        const float* s = scores.data() + r * n_scores;
        for (uint32_t e = 0; e < n_scores; e++) {
            double want = router_bias ? router_bias[e] : 0.0;
            for (uint32_t i = 0; i < m.hidden; i++) want += (double)router[e * m.hidden + i] * normed[r * m.hidden + i];
            check(fabs(want - s[e]) < 1e-4, m.name, "a score is off");
        }
        std::vector<double> weight(m.n_experts), key(m.n_experts);
        double all = 0.0;
        for (uint32_t e = 0; e < m.n_experts; e++) all += exp(s[e]);
        for (uint32_t e = 0; e < m.n_experts; e++) {
            weight[e] = m.scoring == SCORE_SIGMOID ? 1.0 / (1.0 + exp(-s[e])) : m.scoring == SCORE_SOFTMAX ? exp(s[e]) / all : exp(s[e]);
            key[e] = (m.scoring == SCORE_SOFTMAX_OF_CHOSEN ? s[e] : weight[e]) + (selection ? selection[e] : 0.0f);
        }
        if (m.n_groups) {
            const uint32_t each = m.n_experts / m.n_groups;
            std::vector<std::pair<double, uint32_t>> best;
            for (uint32_t g = 0; g < m.n_groups; g++) {
                std::vector<double> its(key.begin() + g * each, key.begin() + (g + 1) * each);
                std::sort(its.rbegin(), its.rend());
                best.push_back({-(its[0] + its[1]), g});
            }
            std::sort(best.begin(), best.end());
            for (uint32_t i = 2; i < m.n_groups; i++)
                for (uint32_t e = 0; e < each; e++) key[best[i].second * each + e] = -INFINITY;
        }
        std::vector<uint32_t> order(m.n_experts);
        for (uint32_t e = 0; e < m.n_experts; e++) order[e] = e;
        std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return key[a] > key[b]; });
        order.resize(m.n_used);
        std::sort(order.begin(), order.end());
        double sum = 0.0;
        for (uint32_t e : order) sum += weight[e];
        if (!m.normalize && m.scoring != SCORE_SOFTMAX_OF_CHOSEN) sum = 1.0;
        for (uint32_t j = 0; j < m.n_used; j++) {
            check(chosen[r * m.n_used + j] == order[j], m.name, "another expert is chosen");
            const double want = 1.5 * weight[order[j]] / sum * (scales ? scales[order[j]] : 1.0);
            check(fabs(weights[r * (m.n_used + 1) + j] - want) < 1e-5, m.name, "a weight is off");
        }
    }

    // `rows` rows of a matrix, from its `at`-th so many on, times a row of int8; it has `all` as many.
    std::vector<float> times(const uint8_t* matrix, uint32_t all, const float* bias, uint32_t at, uint32_t rows, uint32_t width, const int8_t* values, const float* scales) const {
        std::vector<float> out(rows, NAN);
        MatvecArgs a{};
        a.q8 = values;
        a.q8_scale = scales;
        a.groups = width / 32;
        a.batch = 1;
        const Segment s = {matrix, bias, m.type, all * rows, 0, 1, 0, 0};
        run(m.name, "one expert's product", 1, WARPS * 32, [&] {
            DYNAMIC_SHARED(shared);
            float* part = (float*)shared;
            bool awaited = true;
            for_type(m.type, [&]<uint32_t T>() {
                if constexpr (!is_float(T)) {
                    stream<T, 1, QuantizedPart<T, 1>>(a, s, at * rows, rows, awaited, part);
                    __syncthreads();
                    const uint32_t slices = slices_of(T, a.groups).count;
                    for (uint32_t j = threadIdx.x; j < rows; j += blockDim.x) {
                        float v = part[j];
                        for (uint32_t t = 1; t < slices; t++) v = __fadd_rn(v, part[t * rows + j]);
                        out[j] = bias ? __fadd_rn(v, bias[at * rows + j]) : v;
                    }
                }
            });
        });
        return out;
    }
    using Made = std::pair<std::vector<float>, std::vector<float>>;  // inner values and outputs
    // Of ups, and of gates where there are some.
    Made made(std::vector<float> v, const std::vector<float>& gates, const uint8_t* matrix, uint32_t all, const float* bias, uint32_t at) const {
        for (uint32_t i = 0; i < m.n_ff; i++) v[i] = m.gated ? ::gated(activation, gates[i], v[i]) : activated(activation, v[i]);
        std::vector<int8_t> inner(m.n_ff);
        std::vector<float> inner_scale(m.n_ff / 32);
        QuantizeInputArgs p{};
        p.x = v.data();
        p.q8 = inner.data();
        p.q8_scale = inner_scale.data();
        p.len = p.x_stride = m.n_ff;
        p.groups = m.n_ff / 32;
        p.source = COPY;
        run(m.name, "int8", 1, 512, [&] { ::quantize_input(p); });
        return {v, times(matrix, all, bias, at, m.hidden, m.n_ff, inner.data(), inner_scale.data())};
    }
    // Of a row's j-th expert.
    Made alone(uint32_t r, uint32_t j) const {
        const uint32_t expert = chosen[r * m.n_used + j];
        auto first = [&](const uint8_t* matrix, const float* bias) { return times(matrix, m.n_experts, bias, expert, m.n_ff, m.hidden, q8.data() + r * m.hidden, q8_scale.data() + r * m.hidden / 32); };
        return made(first(up, up_bias), m.gated ? first(gate, gate_bias) : std::vector<float>(), down, m.n_experts, down_bias, expert);
    }
    // Of the shared one.
    Made of_shared(uint32_t r) const {
        const uint32_t halves = m.gated ? 2 : 1;
        auto first = [&](uint32_t half) { return times(shared_up, halves, NULL, half, m.n_ff, m.hidden, q8.data() + r * m.hidden, q8_scale.data() + r * m.hidden / 32); };
        return made(first(halves - 1), m.gated ? first(0) : std::vector<float>(), shared_down, 1, NULL, 0);
    }
};

template <uint32_t T> ExpertSlices slices_for(uint32_t groups, uint32_t all_rows) {
    const Slices c = slices_of(T, groups);
    return {all_rows, c.count, c.full, c.last, record_bytes(T, c.full), record_bytes(T, c.last)};
}
template <uint32_t T> uint32_t rings() { return WARPS * expert_stages<T>() * expert_stage_rows<T>() * record_bytes(T, 32); }
bool same(const std::vector<float>& a, const float* b) { return memcmp(a.data(), b, a.size() * 4) == 0; }

// Where `beside` has the inner values of the shared expert, the kernels for the others make what it makes.
template <uint32_t T> void one_session(const ExpertLayer& l, uint32_t r, uint32_t schedule, const std::vector<std::vector<float>>& inner, const std::vector<float>& beside, const std::vector<float>& sum) {
    const Mixture& m = l.m;
    std::vector<float> scores(l.n_scores, NAN), weights(m.n_used + 1, NAN), ups((m.n_used + 1) * m.n_ff, NAN), out(m.hidden, NAN);
    std::vector<uint32_t> chosen(m.n_used);
    std::vector<int8_t> q8(m.hidden);
    std::vector<float> q8_scale(m.hidden / 32, NAN);
    RouterArgs router = l.router_args();
    router.x = l.x + r * m.hidden;
    router.norm = l.norm;
    router.out = scores.data();
    router.q8 = q8.data();
    router.q8_scale = q8_scale.data();
    router.rows = 1;
    router.per_block = 7 + schedule;
    const uint32_t router_blocks = (l.n_scores + router.per_block - 1) / router.per_block;
    if (beside.empty()) {
        run(m.name, "router of one row", router_blocks, ROUTER_THREADS, [&] { router_row(router); });
    } else {
        const uint32_t others = 2 + schedule;
        RouterSharedArgs a{};
        a.router = router;
        a.matrix = l.shared_up;
        a.out = ups.data() + m.n_used * m.n_ff;
        a.slices = slices_for<T>(m.hidden / 32, (m.gated ? 2 : 1) * m.n_ff);
        a.gated = m.gated;
        a.rows = m.n_ff;
        a.router_blocks = router_blocks;
        a.share = {m.n_ff / others, m.n_ff % others};
        a.ring_bytes = rings<T>();
        a.activation = l.activation;
        run(m.name, "router and shared expert", router_blocks + others, WARPS * 32, [&] { experts_shared_body<T>(a); });
        check(same(beside, a.out), m.name, "other inner values of the shared expert");
    }
    check(same(scores, l.scores.data() + r * l.n_scores), m.name, "other scores of one row");
    ExpertsUpArgs up{};
    up.route = l.route(scores.data(), chosen.data(), weights.data());
    up.matrices[0] = m.gated ? l.gate : l.up;
    up.matrices[1] = l.up;
    up.biases[0] = m.gated ? l.gate_bias : l.up_bias;
    up.biases[1] = l.up_bias;
    up.q8 = q8.data();
    up.q8_scale = q8_scale.data();
    up.out = ups.data();
    up.groups = m.hidden / 32;
    up.slices = slices_for<T>(up.groups, m.n_experts * m.n_ff);
    up.gated = m.gated;
    up.rows = m.n_ff;
    up.blocks = 1 + schedule;
    up.share = {m.n_ff / up.blocks, m.n_ff % up.blocks};
    up.ring_bytes = rings<T>();
    up.activation = l.activation;
    run(m.name, "up", up.blocks * m.n_used, WARPS * 32, [&] { experts_up_body<T>(up); });
    check(chosen == std::vector<uint32_t>(l.chosen.begin() + r * m.n_used, l.chosen.begin() + (r + 1) * m.n_used), m.name, "other experts by a block");
    check(same(weights, l.weights.data() + r * (m.n_used + 1)), m.name, "other weights by a block");
    for (uint32_t j = 0; j < m.n_used; j++) check(same(inner[j], ups.data() + j * m.n_ff), m.name, "other inner values of one session");
    ExpertsDownArgs down{};
    down.matrix = l.down;
    down.bias = l.down_bias;
    down.chosen = chosen.data();
    down.weights = weights.data();
    down.x = ups.data();
    if (beside.empty()) down.shared = l.shared;
    else down.shared_matrix = l.shared_down;
    down.base = router.x;
    down.out = out.data();
    down.groups = m.n_ff / 32;
    down.slices = slices_for<T>(down.groups, m.n_experts * m.hidden);
    down.n_experts = m.n_experts;
    down.n_used = m.n_used;
    down.rows = m.hidden;
    const uint32_t blocks = 3 + schedule;
    down.share = {m.hidden / blocks, m.hidden % blocks};
    down.ring_bytes = rings<T>();
    down.scale = 0.75f;
    run(m.name, "down", blocks, WARPS * 32, [&] { experts_down_body<T>(down); });
    check(same(sum, out.data()), m.name, "another sum of one session");
}

// All rows together, some of which have the same experts.
template <uint32_t T> void several(const ExpertLayer& l, const std::vector<std::vector<float>>& inner, const std::vector<std::vector<float>>& outer) {
    const Mixture& m = l.m;
    const uint32_t n_pairs = m.rows * m.n_used;
    std::vector<uint32_t> chosen(n_pairs), n_tiles(1);
    std::vector<PairTile> tiles(n_pairs);
    std::vector<float> weights(m.rows * (m.n_used + 1), NAN), ups(n_pairs * m.n_ff, NAN), out(n_pairs * m.hidden, NAN);
    RoutePairsArgs route{};
    route.route = l.route(l.scores.data(), chosen.data(), weights.data());
    route.tiles = tiles.data();
    route.n_tiles = n_tiles.data();
    route.rows = m.rows;
    run(m.name, "route of several", 1, PAIR_WARPS * 32, [&] { route_pairs(route); });
    check(chosen == l.chosen && same(weights, l.weights.data()), m.name, "other experts of several");
    ExpertsRowsArgs a{};
    a.matrices[0] = m.gated ? l.gate : l.up;
    a.matrices[1] = l.up;
    a.biases[0] = m.gated ? l.gate_bias : l.up_bias;
    a.biases[1] = l.up_bias;
    a.tiles = tiles.data();
    a.n_tiles = n_tiles.data();
    a.q8 = l.q8.data();
    a.q8_scale = l.q8_scale.data();
    a.out = ups.data();
    a.groups = m.hidden / 32;
    a.slices = slices_for<T>(a.groups, m.n_experts * m.n_ff);
    a.gated = m.gated;
    a.activates = 1;
    a.rows = m.n_ff;
    a.n_experts = m.n_experts;
    a.pairs_per_input = m.n_used;
    a.chunk_rows = 100;
    a.ring_bytes = rings<T>();
    a.activation = l.activation;
    run(m.name, "ups of several", 5, WARPS * 32, [&] { experts_rows_body<T>(a); });
    for (uint32_t p = 0; p < n_pairs; p++) check(same(inner[p], ups.data() + p * m.n_ff), m.name, "other inner values of several");
    a.matrices[0] = l.down;
    a.biases[0] = l.down_bias;
    a.q8 = NULL;
    a.x = ups.data();
    a.out = out.data();
    a.groups = m.n_ff / 32;
    a.slices = slices_for<T>(a.groups, m.n_experts * m.hidden);
    a.gated = a.activates = 0;
    a.rows = m.hidden;
    run(m.name, "downs of several", 4, WARPS * 32, [&] { experts_rows_body<T>(a); });
    for (uint32_t p = 0; p < n_pairs; p++) check(same(outer[p], out.data() + p * m.hidden), m.name, "other outputs of several");
}

// Pairs of a prompt sorted by expert, and dealt out in tiles: each pair in one, and as few as there can be.
void tiles(uint32_t n_experts, uint32_t n_pairs, uint32_t tile_rows, uint32_t others_one_in) {
    std::vector<uint32_t> chosen(n_pairs), starts(n_experts + 1), slots(n_pairs), pairs(n_pairs), first(n_experts + 1);
    for (uint32_t& e : chosen) e = numbers() % others_one_in == 0 ? (uint32_t)(numbers() % n_experts) : n_experts / 2;
    std::vector<TilePlace> places(n_pairs / tile_rows + n_experts);
    SortArgs a{chosen.data(), starts.data(), slots.data(), pairs.data(), first.data(), places.data(), n_pairs, n_experts, tile_rows, 0};
    run("tiles", "sort", n_experts, SORT_THREADS, [&] { expert_sort(a); });
    run("tiles", "deal", 1, 1024, [&] { expert_tiles(a); });
    uint32_t tile = 0;
    std::vector<bool> seen(n_pairs);
    for (uint32_t e = 0; e < n_experts; e++) {
        check(first[e] == tile, "tiles", "first tile of an expert");
        const uint32_t count = (starts[e + 1] - starts[e] + tile_rows - 1) / tile_rows;
        for (uint32_t slot = starts[e], i = 0; i < count; i++, tile++) {
            const TilePlace& p = places[tile];
            check(p.expert == e && p.begin == slot && p.rows > 0 && p.rows <= tile_rows, "tiles", "place of a tile");
            for (uint32_t r = 0; r < p.rows && slot < n_pairs; r++, slot++) {
                check(chosen[pairs[slot]] == e && slots[pairs[slot]] == slot && !seen[pairs[slot]], "tiles", "pair of a slot");
                seen[pairs[slot]] = true;
            }
            check(i + 1 < count || slot == starts[e + 1], "tiles", "end of an expert");
        }
    }
    check(first[n_experts] == tile, "tiles", "how many there are");
}

int main() {
    numbers.seed(1);
    for (uint32_t tile_rows : {128u, 192u}) {
        tiles(5, 700, tile_rows, 2);
        tiles(300, 2000, tile_rows, 1);
        tiles(1, 1, tile_rows, 1);
        tiles(3, 2048, tile_rows, 100);
    }
    for (const Mixture& m : MIXTURES) {
        const ExpertLayer l(m);
        std::vector<std::vector<float>> inner, outer;
        for (uint32_t p = 0; p < m.rows * m.n_used; p++) {
            auto [i, o] = l.alone(p / m.n_used, p % m.n_used);
            inner.push_back(i);
            outer.push_back(o);
        }
        for_type(m.type, [&]<uint32_t T>() {
            if constexpr (T == Q4_K || T == MXFP4 || T == Q8_0 || T == Q6_K) {
                for (uint32_t r = 0; r < 2; r++) {
                    const std::vector<std::vector<float>> its(inner.begin() + r * m.n_used, inner.begin() + (r + 1) * m.n_used);
                    const float* weights = l.weights.data() + r * (m.n_used + 1);
                    auto sum = [&](const float* shared) {
                        std::vector<float> sum(m.hidden);
                        for (uint32_t i = 0; i < m.hidden; i++) {
                            float all = 0.0f;
                            for (uint32_t j = 0; j < m.n_used; j++) all = fmaf(weights[j], outer[r * m.n_used + j][i], all);
                            if (shared) all = fmaf(weights[m.n_used], shared[i], all);
                            sum[i] = fmaf(0.75f, all, l.x[r * m.hidden + i]);
                        }
                        return sum;
                    };
                    one_session<T>(l, r, r, its, {}, sum(l.shared));
                    if (!m.shared) continue;
                    const auto [beside, shared] = l.of_shared(r);
                    one_session<T>(l, r, r, its, beside, sum(shared.data()));
                }
                several<T>(l, inner, outer);
            }
        });
    }
    printf("%zu mixtures, %d failures\n", sizeof MIXTURES / sizeof *MIXTURES, failures);
    return failures > 0;
}
