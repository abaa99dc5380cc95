// What adapters add to products: by the product itself, whose blocks share the work and do not wait for each other for ever, it
// must have the bits of the kernels that do one thing each, and those must be close to f64.
#include "adapters.cu"
#include "norm.cu"
#include "product.cuh"
#include "model.h"
#include <cstdio>

constexpr uint32_t GROUPS = 40, WIDTH = GROUPS * 32, BLOCKS = 4;

int failures = 0;
std::string testing;
void check(bool right, const std::string& what) {
    if (right) return;
    printf("%s: %s\n", testing.c_str(), what.c_str());
    failures++;
}
void run(uint32_t blocks, uint32_t threads, const std::function<void()>& kernel) {
    const std::string wrong = emulator::run(blocks, threads, (uint32_t)numbers(), kernel);
    check(wrong.empty(), wrong);
}
bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * 4) == 0;
}
void check_close(const std::vector<float>& got, const std::vector<double>& right, const char* what) {
    double difference = 0.0, largest = 0.0;
    for (size_t i = 0; i < right.size(); i++) {
        const double d = fabs(right[i] - got[i]);
        difference = d >= difference || d != d ? d : difference;
        largest = std::max(largest, fabs(right[i]));
    }
    check(largest > 0.0 && difference <= 1e-5 * largest, std::string(what) + " is too far from f64");
}

// A matrix of random numbers of a type, its rows padded with zeros, and the same in f64.
struct Thin {
    uint32_t columns;
    std::vector<double> exact;
    const uint8_t* data;

    Thin(uint32_t rows, uint32_t n, uint32_t padded, uint32_t type) : columns(n), exact(rows * n) {
        uint8_t* to = allocate<uint8_t>((size_t)rows * padded * 4);
        memset(to, 0, (size_t)rows * padded * 4);
        for (uint32_t i = 0; i < rows * n; i++) {
            const size_t at = i / n * padded + i % n;
            float v = random_float();
            if (type == ADAPTER_F32) {
                ((float*)to)[at] = v;
            } else if (type == ADAPTER_F16) {
                ((__half*)to)[at] = (__half)v;
                v = (float)(__half)v;
            } else {
                ((uint16_t*)to)[at] = (uint16_t)(__float_as_uint(v) >> 16);
                v = __uint_as_float(__float_as_uint(v) & 0xffff0000u);
            }
            exact[i] = v;
        }
        data = to;
    }
    double row_times(uint32_t row, const std::vector<double>& x) const {
        double sum = 0.0;
        for (uint32_t i = 0; i < columns; i++) sum += exact[row * columns + i] * x[i];
        return sum;
    }
};

// The adapters of a session, for a matrix whose rows belong to some linear layers.
struct Adapters {
    uint32_t n_linears, uses, ranks = 0;
    std::vector<AdapterPiece> pieces;
    struct Place { uint32_t linear, row; };
    std::vector<Place> places;  // of each row of the output
    AdapterPair* pairs;
    struct Matrices { Thin a, b; };
    std::map<uint32_t, Matrices> of_pair;
    Session session{};
    std::vector<const Session*> sessions;
    std::vector<float> thin;

    // A third of the pairs is missing; so is all of what lies behind the fourth adapter.
    Adapters(uint32_t rows, uint32_t linears, uint32_t room, uint32_t n_rows) : n_linears(linears), uses(room), sessions(n_rows, &session) {
        const uint32_t third = rows / 4 / 3 * 4;
        if (linears == 1) pieces = {{rows, 0, 0, rows, rows}};
        if (linears == 2) pieces = {{rows / 2, 0, 0, rows / 2, rows / 2}, {rows, 1, 0, rows / 2, rows / 2}};
        // Two pieces have the rows of one layer by turns.
        if (linears == 3) pieces = {{third, 0, 0, 2, 4}, {2 * third, 0, 2, 2, 4}, {rows - 5, 1, 0, rows, rows}, {rows, 2, 7, rows, rows}};
        for (const AdapterPiece& p : pieces)
            for (uint32_t first = p.first; places.size() < p.end; first += p.step)
                for (uint32_t i = 0; i < p.run && places.size() < p.end; i++) places.push_back({p.linear, first + i});
        const uint32_t their_ranks[4] = {5, 16, 1, 11};
        const uint32_t adapters = std::min(uses, 4u);
        for (uint32_t u = 0; u < adapters; u++) ranks += (their_ranks[u] + 7) / 8 * 8;
        pairs = allocate<AdapterPair>(n_linears * uses);
        memset((void*)pairs, 0, n_linears * uses * sizeof(AdapterPair));
        for (uint32_t l = 0; l < n_linears; l++) {
            uint32_t before = l * ranks;
            for (uint32_t u = 0; u < adapters; before += (their_ranks[u++] + 7) / 8 * 8) {
                if ((l + u) % 3 == 2) continue;
                const uint32_t rank = their_ranks[u] - (their_ranks[u] > 5 ? l : 0), i = l * uses + u;
                AdapterPair& p = pairs[i];
                p.rank = rank;
                p.at = before;
                p.a_type = (l + u) % 3;
                p.b_type = u % 3;
                p.scale = 0.5f - (float)u * 0.375f;
                const auto& m = of_pair.emplace(i, Matrices{Thin(rank, WIDTH, WIDTH, p.a_type), Thin(rows + 7, rank, ranks_of(p), p.b_type)}).first->second;
                p.a = m.a.data;
                p.b = m.b.data;
            }
        }
        session.adapters = (uint64_t)pairs;
        session.adapter_uses = uses;
        session.thin_stride = n_linears * ranks + 8;
        thin.assign(n_rows * session.thin_stride, 0.0f);
        session.thin = (uint64_t)thin.data();
    }
    // What they add to a row of the output, for an input.
    double exact(uint32_t place, const std::vector<double>& x) const {
        const auto [linear, row] = places[place];
        double sum = 0.0;
        for (uint32_t u = 0; u < uses; u++) {
            const auto m = of_pair.find(linear * uses + u);
            if (m == of_pair.end()) continue;
            std::vector<double> between(m->second.b.columns);
            for (uint32_t k = 0; k < between.size(); k++) between[k] = m->second.a.row_times(k, x);
            sum += pairs[linear * uses + u].scale * m->second.b.row_times(row, between);
        }
        return sum;
    }
    AdaptArgs args(std::vector<float>& out, uint32_t outputs, uint32_t rows) {
        AdaptArgs a{};
        a.sessions = sessions.data();
        a.out = out.data();
        a.out_stride = a.outputs = outputs;
        a.groups = GROUPS;
        a.rows = rows;
        a.n_linears = n_linears;
        for (uint32_t i = 0; i < pieces.size(); i++) a.pieces[i] = pieces[i];
        return a;
    }
    // Both kernels, of rows that are several sessions' or one's.
    static void add(const AdaptArgs& a, bool of_one) {
        const uint32_t at_once = of_one ? 8 : 1;
        const auto launch = [&](uint32_t blocks, uint32_t threads, void (*one)(AdaptArgs), void (*eight)(AdaptArgs)) {
            for (uint32_t y = 0; y < (a.rows + at_once - 1) / at_once; y++)
                run(blocks, threads, [&] {
                    emulator::thread->block->index.y = y;
                    (of_one ? eight : one)(a);
                });
        };
        launch(3, LORA_DOWN_THREADS, lora_down, lora_down_8);
        launch((a.outputs + 127) / 128, 128, lora_up, lora_up_8);
    }
};

const char* const FINISHES[] = {"plain", "activated", "gated", "weighed"};

// Products of a matrix of a type, of one row.
template <uint32_t T, bool SPREAD> void compare_products(uint32_t finish, uint32_t n_linears, uint32_t uses, bool own_input) {
    constexpr uint32_t GROUP = WARPS * stage_rows<T>();
    const uint32_t halves = finish == GATE ? 2 : 1, rows = SPREAD ? 5 * GROUP : 101, all = rows * halves;
    testing = "type " + std::to_string(T) + (SPREAD ? ", spread, " : ", ") + FINISHES[finish] + ", " + std::to_string(n_linears) + " layers, room for " +
              std::to_string(uses) + (own_input ? ", input of its own" : "");
    const Slices c = slices_of(T, GROUPS);
    const float *x = random_floats(WIDTH, 1.0f), *residual = finish == PLAIN || finish == WEIGH ? random_floats(all, 1.0f) : NULL;
    std::vector<int8_t> q8(WIDTH);
    std::vector<float> q8_scale(GROUPS);
    QuantizeInputArgs produced{};
    produced.x = x;
    produced.q8 = q8.data();
    produced.q8_scale = q8_scale.data();
    produced.x_stride = produced.len = WIDTH;
    produced.groups = GROUPS;
    produced.source = COPY;
    run(1, 512, [&] { quantize_input(produced); });
    std::vector<double> exact(WIDTH);
    for (uint32_t i = 0; i < WIDTH; i++) exact[i] = (double)q8[i] * q8_scale[i / 32];

    ProductArgs a{};
    const auto part = [&](uint32_t n) {
        a.parts[0].rows = n;
        a.parts[0].each = n / BLOCKS;
        a.parts[0].more = n % BLOCKS;
        a.parts[0].spread = 0;
    };
    a.parts[0] = {random_matrix(T, GROUPS, all), random_floats(all, 1.0f), T, 0, 0, 0, 0, 0,
                  c.count, c.full, c.last, record_bytes(T, c.full), record_bytes(T, c.last), 0};
    if (own_input) {
        a.x = x;
    } else {
        a.q8 = q8.data();
        a.q8_scale = q8_scale.data();
    }
    a.n_parts = 1;
    a.groups = GROUPS;
    a.ring_bytes = WARPS * stages<T>() * stage_rows<T>() * record_bytes(T, 32);
    a.activation.kind = SILU;

    // One thing after the other.
    Adapters adapters(all, n_linears, uses, 1);
    std::vector<float> wanted(all, NAN);
    part(all);
    a.out = wanted.data();
    a.residual = finish == PLAIN ? residual : NULL;
    run(BLOCKS, WARPS * 32, [&] { product_body<1u << T>(a); });
    std::vector<double> right(wanted.begin(), wanted.end());
    for (uint32_t i = 0; i < all; i++) right[i] += adapters.exact(i, exact);
    AdaptArgs adapt = adapters.args(wanted, all, 1);
    adapt.q8 = q8.data();
    adapt.q8_scale = q8_scale.data();
    const std::vector<float> without = wanted;
    Adapters::add(adapt, false);
    check_close(wanted, right, "what two kernels add");
    check(!same(wanted, without), "nothing is added");
    if (finish != PLAIN) {
        for (uint32_t i = 0; i < rows; i++) {
            wanted[i] = finish == GATE ? gated(a.activation, wanted[i], wanted[rows + i]) : activated(a.activation, wanted[i]);
            if (finish == WEIGH) wanted[i] = __fmul_rn(wanted[i], residual[i]);
        }
        wanted.resize(rows);
    }

    // All of it in one kernel.
    part(rows);
    if constexpr (SPREAD) {
        a.parts[0].each = rows / GROUP / BLOCKS;
        a.parts[0].more = rows / GROUP % BLOCKS;
        a.parts[0].spread = BLOCKS;
    }
    const uint32_t most_rows = SPREAD ? (rows / GROUP + BLOCKS - 1) / BLOCKS * GROUP : (rows + BLOCKS - 1) / BLOCKS;
    Adapted d{};
    std::vector<uint64_t> words(n_linears * adapters.ranks * LORA_DOWN_PARTS);
    d.tag = 7;
    d.pairs = adapters.pairs;
    d.words = words.data();
    d.uses = uses;
    d.ranks = adapters.ranks;
    d.n_linears = n_linears;
    d.thin_at = (a.ring_bytes + GROUPS * INPUT_BYTES + c.count * halves * most_rows * 4 + 15) / 16 * 16;
    for (uint32_t i = 0; i < adapters.pieces.size(); i++) d.pieces[i] = adapters.pieces[i];
    a.residual = residual;
    a.finish = finish;
    const auto compare = [&](const char* what, const std::function<void()>& launch) {
        std::vector<float> out(wanted.size(), NAN);
        a.out = out.data();
        // Of the product before.
        std::fill(words.begin(), words.end(), 6ull << 32 | 0x3f800000);
        launch();
        check(same(out, wanted), what);
    };
    compare("other bits", [&] { run(BLOCKS, WARPS * 32, [&] { product_body<1u << T, SPREAD, true>(a, &d); }); });
    // What a block waits for is the work of blocks that begin when it has ended.
    compare("other bits of blocks one after another", [&] {
        for (uint32_t i = 0; i < BLOCKS; i++)
            run(1, WARPS * 32, [&] {
                emulator::thread->block->index.x = i;
                emulator::grid.x = BLOCKS;
                product_body<1u << T, SPREAD, true>(a, &d);
            });
    });
}

// Rows of a chunk, from one of its rows on, with an f32 and a tiled f16 form of the input.
void compare_rows(bool half) {
    constexpr uint32_t ROWS = 11, FIRST = 3, OUTPUTS = 150;
    testing = half ? "rows of f16" : "rows of f32";
    Adapters adapters(OUTPUTS, 3, 2, ROWS);
    std::vector<float> x((FIRST + ROWS) * WIDTH), x_scale(FIRST + ROWS), out((FIRST + ROWS) * OUTPUTS);
    const uint32_t tiles = tiles_of(WIDTH, TILE_K);
    __half* x_half = allocate<__half>(tiles * TILE_BYTES / 2);
    for (float& v : x_scale) v = 1.0f + random_float() * 0.5f;
    for (float& v : out) v = random_float();
    for (uint32_t i = 0; i < x.size(); i++) {
        x[i] = (float)(__half)random_float();
        ((__half*)((uint8_t*)x_half + tiled(i / WIDTH, i % WIDTH / 8 * 8, tiles)))[i % 8] = (__half)x[i];
    }
    std::vector<double> right(out.begin(), out.end());
    for (uint32_t r = FIRST; r < FIRST + ROWS; r++) {
        std::vector<double> row(x.begin() + r * WIDTH, x.begin() + (r + 1) * WIDTH);
        if (half)
            for (double& v : row) v *= x_scale[r];
        for (uint32_t i = 0; i < OUTPUTS; i++) right[r * OUTPUTS + i] += adapters.exact(i, row);
    }
    const std::vector<float> before = out;
    std::vector<float> of_one;
    for (const bool one : {true, false}) {
        out = before;
        AdaptArgs a = adapters.args(out, OUTPUTS, ROWS);
        a.first_row = FIRST;
        if (half) {
            a.f16 = x_half;
            a.f16_scale = x_scale.data();
        } else {
            a.f32 = x.data();
        }
        Adapters::add(a, one);
        check_close(out, right, one ? "rows of one session" : "rows of several sessions");
        if (one) of_one = out;
        else check(same(out, of_one), "rows of several sessions have other bits");
    }
}

// Entries with a matrix each: of tokens' experts, in the order of tokens or of experts, of heads, and of a router.
enum Entries { BY_TOKENS, INNER, BY_EXPERTS, OF_HEADS, OF_ROUTER };
void compare_each(Entries kind) {
    constexpr uint32_t ROWS = 5, MATRICES = 3, MATRIX_ROWS = 1100, FIRST = 40, OUTPUTS = 1050, HEAD = 50;
    const bool is_chosen = kind <= BY_EXPERTS, heads = kind == OF_HEADS, one_session = kind == BY_EXPERTS;
    const uint32_t per_row = kind == OF_ROUTER ? 1 : heads ? MATRICES : 2, matrices = kind == OF_ROUTER ? 1 : MATRICES;
    const uint32_t entries = ROWS * per_row, inputs = kind == INNER ? entries : ROWS, len = heads ? HEAD - 9 : WIDTH;
    const uint32_t groups = heads ? 2 : GROUPS, width = groups * 32, out_stride = heads ? MATRICES * OUTPUTS + 3 : OUTPUTS + 5;
    testing = "entries " + std::to_string(kind);
    // Two adapters; rows in the middle belong to a session without any.
    AdapterPair* pairs = allocate<AdapterPair>(4);
    memset((void*)pairs, 0, 4 * sizeof(AdapterPair));
    std::vector<Adapters::Matrices> thin;
    for (uint32_t u = 0; u < 2; u++) {
        AdapterPair& p = pairs[2 + u];
        p.rank = u ? 16 : 5;
        p.a_type = u + 1;
        p.b_type = u;
        p.scale = 0.5f - (float)u * 0.875f;
        thin.push_back({Thin(matrices * p.rank, len, width, p.a_type), Thin(matrices * MATRIX_ROWS, p.rank, ranks_of(p), p.b_type)});
        p.a = thin[u].a.data;
        p.b = thin[u].b.data;
    }
    Session with{}, without{};
    with.adapters = (uint64_t)pairs;
    with.adapter_uses = 2;
    const Session* sessions[ROWS] = {&with, &with, &without, &with, &with};
    AdaptEachArgs a{};
    a.sessions = sessions;
    a.groups = groups;
    a.len = len;
    a.per_row = per_row;
    a.out_stride = out_stride;
    a.out_scale = heads ? 0.25f : 1.0f;
    a.one_session = one_session;
    a.of_slots = kind == INNER;
    a.linear = 1;
    a.matrices = matrices;
    a.matrix_rows = MATRIX_ROWS;
    a.first = FIRST;
    a.outputs = OUTPUTS;
    const uint32_t chosen[ROWS * 2] = {2, 0, 1, 0, 2, 1, 0, 2, 2, 1}, slots[ROWS * 2] = {1, 3, 6, 2, 5, 9, 0, 4, 7, 8};
    if (is_chosen) a.chosen = chosen;
    if (kind == BY_EXPERTS) a.slots = slots;
    // Inputs in their forms, and what they stand for: of heads one for each matrix.
    const uint32_t x_stride = heads ? MATRICES * HEAD : width;
    std::vector<float> x(inputs * x_stride + width), scale(inputs), q8_scale(inputs * groups);
    std::vector<int8_t> q8(inputs * width);
    __half* halves = allocate<__half>(tiles_of(width, TILE_K) * TILE_BYTES / 2);
    for (float& v : x) v = (float)(__half)random_float();
    for (float& v : scale) v = 1.0f + random_float() * 0.5f;
    for (float& v : q8_scale) v = random_float();
    if (kind == BY_TOKENS) {
        for (uint32_t i = 0; i < q8.size(); i++) x[i] = (float)(q8[i] = (int8_t)(random_float() * 100.0f)) * q8_scale[i / 32];
        a.q8 = q8.data();
        a.q8_scale = q8_scale.data();
    } else if (kind == BY_EXPERTS) {
        for (uint32_t i = 0; i < inputs * width; i++) {
            ((__half*)((uint8_t*)halves + tiled(i / width, i % width / 8 * 8, tiles_of(width, TILE_K))))[i % 8] = (__half)x[i];
            x[i] *= scale[i / width];
        }
        a.f16 = halves;
        a.f16_scale = scale.data();
    } else {
        a.f32 = x.data();
        a.x_stride = x_stride;
        a.x_matrix = heads ? HEAD : 0;
    }
    a.out_matrix = heads ? OUTPUTS : 0;
    a.halves = heads;
    std::vector<float> out((is_chosen ? entries : ROWS) * out_stride);
    std::vector<__half> out_halves(out.size());
    for (uint32_t i = 0; i < out.size(); i++) out[i] = (float)(out_halves[i] = (__half)random_float());
    std::vector<double> right(out.begin(), out.end());
    for (uint32_t slot = 0; slot < entries; slot++) {
        const uint32_t entry = kind == BY_EXPERTS ? slots[slot] : slot, row = entry / per_row;
        const uint32_t matrix = is_chosen ? chosen[entry] : heads ? entry % per_row : 0;
        if (sessions[one_session ? 0 : row] == &without) continue;
        const float* of = x.data() + (kind == INNER ? slot : row) * x_stride + (heads ? matrix * HEAD : 0);
        const std::vector<double> input(of, of + len);
        for (uint32_t u = 0; u < 2; u++) {
            std::vector<double> between;
            for (uint32_t k = 0; k < pairs[2 + u].rank; k++) between.push_back(thin[u].a.row_times(matrix * pairs[2 + u].rank + k, input));
            for (uint32_t o = 0; o < OUTPUTS; o++)
                right[(is_chosen ? slot : row) * out_stride + (heads ? matrix * OUTPUTS : 0) + o] +=
                    (double)a.out_scale * pairs[2 + u].scale * thin[u].b.row_times(matrix * MATRIX_ROWS + FIRST + o, between);
        }
    }
    a.out = heads ? (uint8_t*)out_halves.data() : (uint8_t*)out.data();
    for (uint32_t y = 0; y < (OUTPUTS + ADAPT_EACH_OUTPUTS - 1) / ADAPT_EACH_OUTPUTS; y++)
        run(entries, ADAPT_EACH_THREADS, [&] {
            emulator::thread->block->index.y = y;
            adapt_each(a);
        });
    if (!heads) return check_close(out, right, "what is added");
    double most = 0.0, largest = 0.0;
    for (uint32_t i = 0; i < right.size(); i++) {
        most = std::max(most, fabs((double)(float)out_halves[i] - right[i]));
        largest = std::max(largest, fabs(right[i]));
    }
    check(most > 0.0 && most <= 2e-3 * largest, "what is added to halves is too far from f64");
}

template <uint32_t T> void compare_type() {
    compare_products<T, false>(PLAIN, 1, 1, true);
    compare_products<T, false>(PLAIN, 3, 2, false);
    compare_products<T, false>(PLAIN, 3, 8, true);
    compare_products<T, false>(ACTIVATE, 1, 2, false);
    compare_products<T, false>(GATE, 2, 4, true);
    compare_products<T, false>(WEIGH, 1, 4, true);
    compare_products<T, true>(PLAIN, 3, 4, false);
    compare_products<T, true>(GATE, 2, 2, true);
}

int main() {
    numbers.seed(1);
    compare_type<Q4_K>();
    compare_type<Q8_0>();
    compare_rows(false);
    compare_rows(true);
    for (const Entries kind : {BY_TOKENS, INNER, BY_EXPERTS, OF_HEADS, OF_ROUTER}) compare_each(kind);
    printf("%d failures\n", failures);
    return failures > 0;
}
