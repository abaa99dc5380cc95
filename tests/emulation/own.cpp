// The part of a layer with an input of its own, by one cluster, under schedules that no GPU would choose: the bits of the kernels that do
// one operation each.
#include "own_input.cuh"
#include "model.h"
#include "norm.cu"
#include <cstdio>

int failures = 0;
void run(const char* what, uint32_t blocks, const std::function<void()>& kernel, uint32_t cluster = 1, uint32_t threads = WARPS * 32) {
    const std::string wrong = emulator::run(blocks, threads, (uint32_t)numbers(), kernel, cluster);
    if (wrong.empty()) return;
    printf("%s: %s\n", what, wrong.c_str());
    failures++;
}

template <uint32_t T> struct Own {
    uint32_t groups, inner;
    const uint8_t *gate = NULL, *projection = NULL;

    OwnMatrix matrix(const uint8_t* from, uint32_t its_groups, uint32_t rows) const {
        const Slices c = slices_of(T, its_groups);
        return {from, rows, c.count, c.full, c.last, record_bytes(T, c.full), record_bytes(T, c.last)};
    }
    std::vector<float> product(const OwnMatrix& m, uint32_t its_groups, const float* x, Finish finish, const float* residual, const Activation& activation) const {
        std::vector<float> out(m.rows, NAN);
        ProductArgs a{};
        a.x = x;
        a.out = out.data();
        a.residual = residual;
        a.n_parts = 1;
        a.groups = its_groups;
        a.finish = finish;
        a.activation = activation;
        a.ring_bytes = WARPS * stages<T>() * stage_rows<T>() * record_bytes(T, 32);
        a.parts[0] = {m.matrix, NULL, T, m.rows, 0, m.rows / 3, m.rows % 3, 0, m.n_slices, m.full, m.last, m.full_bytes, m.last_bytes, 0};
        run("product", 3, [&] { product_body<1u << T>(a); });
        return out;
    }
    std::vector<float> sum(const float* x, const NormArgs& norm, const float* base, float scale, float out_scale) const {
        std::vector<float> out(groups * 32, NAN);
        ResidualAddArgs a{};
        a.x = x;
        a.norm = norm;
        a.base = base;
        a.out = out.data();
        a.scale = scale;
        a.out_scale = out_scale;
        a.len = a.x_stride = a.stride = groups * 32;
        run("sum", 1, [&] { residual_add(a); });
        return out;
    }
    void compare(const char* name, bool adds, bool norms) const {
        const uint32_t width = groups * 32;
        const float *x = random_floats(width, 1.0f), *base = random_floats(width, 1.0f), *own = random_floats(inner, 1.0f);
        const NormArgs first{random_floats(width, 0.2f, 1.0f), NULL, 1e-5f, 0}, last{norms ? random_floats(width, 0.2f, 1.0f) : NULL, NULL, 1e-6f, 0};
        Activation activation{};
        activation.kind = GELU_TANH;
        OwnInputArgs a{};
        a.gate = matrix(gate, groups, inner);
        a.projection = matrix(projection, inner / 32, width);
        const std::vector<float> h = adds ? sum(x, first, base, 0.75f, 1.0f) : std::vector<float>(x, x + width);
        const std::vector<float> weighed = product(a.gate, groups, h.data(), WEIGH, own, activation);
        const std::vector<float> made = product(a.projection, inner / 32, weighed.data(), PLAIN, NULL, activation);
        const std::vector<float> wanted = sum(made.data(), last, h.data(), 1.0f, 0.5f);
        a.x = x;
        if (adds) a.added = {first, base, NULL, 0.75f, 1.0f};
        a.own = own;
        a.norm = last;
        a.scale = 1.0f;
        a.out_scale = 0.5f;
        a.inverse_len = 1.0f / (float)width;
        a.groups = groups;
        a.activation = activation;
        // As own_input.rs lays them out.
        const auto kept = [](const OwnMatrix& m) { return m.rows / OWN_BLOCKS * ((m.n_slices - 1) * m.full_bytes + m.last_bytes); };
        a.projection_at = kept(a.gate);
        a.input_at = a.projection_at + kept(a.projection);
        a.inner_at = (a.input_at + groups * INPUT_BYTES + 15) / 16 * 16;
        a.own_at = a.inner_at + inner / 32 * INPUT_BYTES;
        for (int turn = 0; turn < 3; turn++) {
            // In the place of what is read.
            std::vector<float> out(adds ? base : x, (adds ? base : x) + width);
            (adds ? a.added.base : a.x) = out.data();
            a.out = out.data();
            run("own input", OWN_BLOCKS, [&] { own_input_body<T>(a); }, OWN_BLOCKS);
            if (memcmp(out.data(), wanted.data(), width * 4) == 0) continue;
            printf("%s: other bits\n", name);
            failures++;
        }
    }
    void all(const char* name) {
        gate = random_matrix(T, groups, inner);
        projection = random_matrix(T, inner / 32, groups * 32);
        for (bool adds : {true, false})
            for (bool norms : {true, false}) compare(name, adds, norms);
    }
};

int main() {
    numbers.seed(1);
    Own<Q4_K>{80, 256}.all("Q4_K");
    Own<Q6_K>{40, 512}.all("Q6_K");
    Own<Q8_0>{16, 64}.all("Q8_0");
    Own<Q4_0>{127, 96}.all("Q4_0");
    printf("%d failures\n", failures);
    return failures > 0;
}
