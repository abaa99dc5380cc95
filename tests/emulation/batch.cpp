// Products of many input rows on tensor cores, of a few, and of one by the kernel that makes its own input: each row must
// have the bits that it gets alone, whatever the type, the number of rows and the schedule.
#include "matvec_batch.cuh"
#include "product.cuh"
#include "model.h"
#include <cstdio>

constexpr uint32_t N_ROWS = 101, BLOCKS = 4;

int failures = 0;
void check(bool right, const char* what, uint32_t type, uint32_t groups, uint32_t batch) {
    if (right) return;
    printf("type %u, %u groups, %u rows of input: %s\n", type, groups, batch, what);
    failures++;
}

// A matrix of one type, and rows of input.
struct Case {
    uint32_t type, groups, batch;
    MatvecArgs args{};
    std::vector<int8_t> q8;
    std::vector<float> q8_scale, residual, bias;

    Case(uint32_t t, uint32_t g, uint32_t b) : type(t), groups(g), batch(b), q8(b * g * 32), q8_scale(b * g), residual(b * N_ROWS), bias(N_ROWS) {
        for (int8_t& v : q8) v = (int8_t)((int)(numbers() % 255) - 127);
        for (float& v : q8_scale) v = random_float() * 0.01f;
        for (float& v : residual) v = random_float();
        for (float& v : bias) v = random_float();
        args.segments[0] = {random_matrix(t, g, N_ROWS), bias.data(), t, N_ROWS, 0, BLOCKS, 0, 0};
        args.n_segments = 1;
        args.groups = g;
        args.out_stride = N_ROWS;
    }

    // The product of `n` rows from `first` on, by a kernel in clusters of so many blocks.
    std::vector<float> run(uint32_t first, uint32_t n, uint32_t threads, uint32_t cluster, uint32_t ring, const std::function<void(const MatvecArgs&)>& kernel) {
        std::vector<float> out(n * N_ROWS, NAN);
        MatvecArgs a = args;
        a.q8 = q8.data() + (size_t)first * groups * 32;
        a.q8_scale = q8_scale.data() + (size_t)first * groups;
        a.residual = residual.data() + (size_t)first * N_ROWS;
        a.out = out.data();
        a.batch = n;
        a.ring_bytes = ring;
        // Several chunks, the last one shorter.
        a.chunk_rows = threads == BATCH_THREADS ? 32 : 11;
        const std::string wrong = emulator::run(BLOCKS, threads, (uint32_t)numbers(), [&] { kernel(a); }, cluster);
        check(wrong.empty(), wrong.c_str(), type, groups, n);
        return out;
    }
};

bool same(const float* a, const float* b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i]) return false;
    return true;
}

template <uint32_t T, int NT> void compare_batch(Case& c, const std::vector<float>& alone, uint32_t n) {
    const Slices s = slices_of(T, c.groups);
    const uint32_t stage = BatchShape<T, NT>::STAGE_TILES * 8 * stage_stride(record_bytes(T, s.full));
    auto compare = [&]<uint32_t CLUSTER>() {
        const std::vector<float> out = c.run(0, n, BATCH_THREADS, CLUSTER, 2 * stage, [](const MatvecArgs& a) { matvec_batch_body<NT, CLUSTER, T>(a); });
        check(same(out.data(), alone.data(), out.size()), CLUSTER == 1 ? "other bits than alone" : "other bits in clusters than alone", T, c.groups, n);
    };
    compare.template operator()<1>();
    compare.template operator()<BATCH_CLUSTER>();
}

// The same of one row for the kernel that makes its own input.
template <uint32_t T> ProductArgs own_input(const MatvecArgs& m) {
    ProductArgs a{};
    const Slices c = slices_of(T, m.groups);
    a.parts[0] = {m.segments[0].matrix, m.segments[0].bias, T, N_ROWS, 0, N_ROWS / BLOCKS, N_ROWS % BLOCKS, 0,
                  c.count, c.full, c.last, record_bytes(T, c.full), record_bytes(T, c.last), 0};
    a.q8 = m.q8;
    a.q8_scale = m.q8_scale;
    a.out = m.out;
    a.residual = m.residual;
    a.n_parts = 1;
    a.groups = m.groups;
    a.ring_bytes = WARPS * stages<T>() * stage_rows<T>() * record_bytes(T, 32);
    return a;
}

template <uint32_t T> void compare(uint32_t groups) {
    Case c(T, groups, 32);
    std::vector<float> alone;
    for (uint32_t row = 0; row < c.batch; row++) {
        const auto out = c.run(row, 1, WARPS * 32, 1, 0, [](const MatvecArgs& a) { matvec_body<1, 1u << T>(a); });
        alone.insert(alone.end(), out.begin(), out.end());
    }
    double largest = 0.0;
    for (float v : alone) largest = std::max(largest, fabs((double)v));
    check(largest > 0.0 && largest < 1e6, "no numbers to compare", T, groups, 1);
    const auto few = c.run(0, 3, WARPS * 32, 1, 0, [](const MatvecArgs& a) { matvec_body<4, 1u << T>(a); });
    check(same(few.data(), alone.data(), few.size()), "other bits than alone", T, groups, 3);
    const auto own = c.run(0, 1, WARPS * 32, 1, 0, [](const MatvecArgs& a) { product_body<1u << T>(own_input<T>(a)); });
    check(same(own.data(), alone.data(), own.size()), "other bits by the kernel of one row", T, groups, 1);
    compare_batch<T, 1>(c, alone, 5);
    compare_batch<T, 2>(c, alone, 13);
    compare_batch<T, 4>(c, alone, 32);
}

// Rows that blocks take turns at, in several slices.
template <uint32_t T> void compare_spread() {
    constexpr uint32_t GROUP = WARPS * stage_rows<T>(), ROWS = 5 * GROUP, GROUPS = 40, SHARES = 3;
    const float* x = random_floats(GROUPS * 32, 1.0f);
    const float* bias = random_floats(ROWS, 1.0f);
    const float* residual = random_floats(ROWS, 1.0f);
    const Slices c = slices_of(T, GROUPS);
    ProductArgs a{};
    a.parts[0] = {random_matrix(T, GROUPS, ROWS), bias, T, ROWS, 0, ROWS / SHARES, ROWS % SHARES, 0,
                  c.count, c.full, c.last, record_bytes(T, c.full), record_bytes(T, c.last), 0};
    a.x = x;
    a.residual = residual;
    a.n_parts = 1;
    a.groups = GROUPS;
    a.ring_bytes = WARPS * stages<T>() * stage_rows<T>() * record_bytes(T, 32);
    std::vector<float> out[2] = {std::vector<float>(ROWS, NAN), std::vector<float>(ROWS, NAN)};
    for (int spread = 0; spread < 2; spread++) {
        a.out = out[spread].data();
        if (spread) {
            a.parts[0].each = ROWS / GROUP / SHARES;
            a.parts[0].more = ROWS / GROUP % SHARES;
            a.parts[0].spread = SHARES;
        }
        const std::string wrong = emulator::run(SHARES, WARPS * 32, (uint32_t)numbers(), [&] {
            if (spread) product_body<1u << T, true>(a);
            else product_body<1u << T>(a);
        });
        check(wrong.empty(), wrong.c_str(), T, GROUPS, 1);
    }
    check(same(out[0].data(), out[1].data(), ROWS), "other bits of rows that are spread", T, GROUPS, 1);
}

int main() {
    numbers.seed(1);
    uint32_t types = 0;
    for (uint32_t t = 0; t < TYPE_COUNT; t++)
        for_type(t, [&]<uint32_t T>() {
            if constexpr (!is_float(T)) {
                // Slices of 24 and 16 groups, and whole ones.
                compare<T>(40);
                compare<T>(64);
                compare_spread<T>();
                types++;
            }
        });
    printf("%u types, %d failures\n", types, failures);
    return failures > 0;
}
