// The operations of a step, with products that make their own input, under schedules that no GPU would choose: they must
// end, with the bits of the kernels that do one operation each, and close to what f64 makes of the same input.
#include "product_few.cuh"
#include "nodes.h"
#include <cstdio>
#include <cstdlib>

int failures = 0;
void check(bool right, const Network& n, const char* what, const std::string& wrong) {
    if (right) return;
    printf("%s, %s: %s\n", n.name, what, wrong.c_str());
    failures++;
}

// A product as src/backend/cuda/launch/product.rs launches it.
struct Launch {
    const Network& network;
    const Matrix& matrix;
    uint32_t blocks;
    Finish finish = PLAIN;
    const float* residual = NULL;
    RowSumArgs added{};
    LinkedRow linked{};

    ProductArgs args() const {
        const uint32_t halves = finish == GATE ? 2 : 1, n = (uint32_t)matrix.parts.size();
        ProductArgs a{};
        a.residual = residual;
        a.n_parts = n;
        a.groups = matrix.groups;
        a.finish = finish;
        a.inverse_len = 1.0f / (float)(matrix.groups * 32);
        a.activation.kind = network.gated ? SILU : GELU_TANH;
        uint32_t row = 0, block = 0;
        for (uint32_t i = 0; i < n; i++) {
            // The first part has what the others leave.
            const uint32_t its = i == 0 ? blocks - n + 1 : 1, type = matrix.parts[i].type, rows = matrix.parts[i].n / halves;
            const Slices c = slices_of(type, matrix.groups);
            a.parts[i] = {matrix.data[i], matrix.bias ? matrix.bias + row : NULL, type, rows, block, rows / its, rows % its, row,
                          c.count, c.full, c.last, record_bytes(type, c.full), record_bytes(type, c.last), 0};
            row += matrix.parts[i].n;
            block += its;
            for_type(type, [&]<uint32_t T>() {
                if constexpr (TYPES >> T & 1) a.ring_bytes = std::max(a.ring_bytes, WARPS * stages<T>() * stage_rows<T>() * record_bytes(T, 32));
            });
        }
        return a;
    }

    std::vector<float> run(const char* what, const std::function<void(ProductArgs&)>& input) const {
        std::vector<float> out(matrix.rows() / (finish == GATE ? 2 : 1), NAN);
        ProductArgs a = args();
        input(a);
        a.out = out.data();
        const SummedProductArgs summed{a, added};
        const std::string wrong = emulator::run(blocks, WARPS * 32, (uint32_t)numbers(), [&] {
            if (linked.meeting.n_ranks) product_body<TYPES, false, false, false, true>(a, NULL, NULL, &linked);
            else if (added.base) product_body<TYPES, false, false, true>(summed.product, NULL, &summed);
            else product_body<TYPES>(a);
        });
        check(wrong.empty(), network, what, wrong);
        return out;
    }

    // Several rows by a kernel for up to MOST of them: each has the bits that it has alone.
    template <int MOST> void run_rows(uint32_t rows) const {
        const uint32_t width = matrix.groups * 32, len = matrix.rows(), stride = len + 5;
        std::vector<int8_t> q8(rows * width);
        std::vector<float> scales(rows * matrix.groups), base(rows * stride), out(rows * stride, NAN);
        for (int8_t& q : q8) q = (int8_t)(numbers() % 255 - 127);
        for (float& scale : scales) scale = (float)(numbers() % 1000) * 1e-5f;
        for (float& v : base) v = (float)(numbers() % 1000) * 1e-2f;
        FewProductArgs few{args(), rows, stride};
        few.product.q8 = q8.data();
        few.product.q8_scale = scales.data();
        few.product.out = out.data();
        few.product.residual = base.data();
        const std::string wrong = emulator::run(blocks, WARPS * 32, (uint32_t)numbers(), [&] { few_body<TYPES, MOST>(few); });
        check(wrong.empty(), network, "rows", wrong);
        for (uint32_t b = 0; b < rows; b++) {
            Launch one = *this;
            one.residual = base.data() + b * stride;
            const std::vector<float> alone = one.run("one of the rows", [&](ProductArgs& a) {
                a.q8 = q8.data() + b * width;
                a.q8_scale = scales.data() + b * matrix.groups;
            });
            check(memcmp(alone.data(), out.data() + b * stride, len * 4) == 0, network, "rows", "other bits than alone");
            for (uint32_t i = len; i < stride; i++) check(out[b * stride + i] != out[b * stride + i], network, "rows", "written behind a row");
        }
    }

    // Two rows whose input the kernel makes, of the norm of each or of each as it is: each has the bits that it has alone.
    void run_two(const NormArgs& norm) const {
        const uint32_t width = matrix.groups * 32, len = matrix.rows() / (finish == GATE ? 2 : 1), stride = len + 5;
        std::vector<float> x(2 * width), base(2 * stride), out(2 * stride, NAN);
        // Rows with a mean, of different sizes.
        for (uint32_t i = 0; i < 2 * width; i++) x[i] = ((float)(numbers() % 2000) - 900.0f) * (i < width ? 1e-3f : 3e-2f);
        for (float& v : base) v = (float)(numbers() % 1000) * 1e-2f;
        FewProductArgs few{args(), 2, stride};
        few.product.x = x.data();
        few.product.norm = norm;
        few.product.out = out.data();
        few.product.residual = finish == PLAIN ? base.data() : NULL;
        const std::string wrong = emulator::run(blocks, WARPS * 32, (uint32_t)numbers(), [&] { few_body<TYPES, 2, true>(few); });
        check(wrong.empty(), network, "two rows", wrong);
        for (uint32_t b = 0; b < 2; b++) {
            Launch one = *this;
            one.residual = finish == PLAIN ? base.data() + b * stride : NULL;
            const std::vector<float> alone = one.run("one of two rows", [&](ProductArgs& a) {
                a.x = x.data() + b * width;
                a.norm = norm;
            });
            check(memcmp(alone.data(), out.data() + b * stride, len * 4) == 0, network, "two rows", "other bits than alone");
            for (uint32_t i = len; i < stride; i++) check(out[b * stride + i] != out[b * stride + i], network, "two rows", "written behind a row");
        }
    }
};

// The operations of a layer and of the head, each with the input that the one before has left.
void compare(const Network& n, uint32_t blocks, bool with_f64) {
    numbers.seed(1);
    Model model(n);
    Nodes nodes(model);
    const Layer& l = model.layers[0];
    double worst = 0.0;
    const auto same = [&](const char* what, const std::vector<float>& got, const std::vector<float>& wanted, const std::function<std::vector<double>()>& exact) {
        check(got.size() == wanted.size() && memcmp(got.data(), wanted.data(), got.size() * 4) == 0, n, what, "other bits");
        if (!with_f64) return;
        const std::vector<double> right = exact();
        double difference = 0.0, largest = 0.0;
        for (size_t i = 0; i < right.size(); i++) {
            const double d = fabs(right[i] - got[i]);
            difference = d >= difference || d != d ? d : difference;
            largest = std::max(largest, fabs(right[i]));
        }
        const double error = difference / largest;
        check(error <= 1e-3, n, what, "too far from f64");
        worst = error >= worst || error != error ? error : worst;
    };
    const auto row = [](const std::vector<float>& v) { return std::vector<double>(v.begin(), v.end()); };
    const auto normed = [&](const NormArgs& norm, const std::vector<float>& x) {
        return [&norm, &x](ProductArgs& a) { a.x = x.data(); a.norm = norm; };
    };
    const std::vector<float> h(model.h, model.h + n.hidden);

    Launch launch{n, l.qkv, blocks};
    same("qkv", launch.run("qkv", normed(l.attention_norm, h)), nodes.normed(l.qkv, l.attention_norm, h.data()),
         [&] { return l.qkv.times(model.norm(l.attention_norm, row(h))); });

    const std::vector<float> qkv = nodes.normed(l.qkv, l.attention_norm, model.h);
    const std::vector<float> attended = nodes.attention(0, qkv.data());
    same("attention", attended, attended, [&] { return model.attention(0, row(qkv)); });
    same("attention in two stages", nodes.attention<2>(0, qkv.data()), attended, [&] { return row(attended); });
    same("attention in one stage", nodes.attention<1>(0, qkv.data()), attended, [&] { return row(attended); });
    const std::vector<float> wide = nodes.attention<3, 8>(0, qkv.data());
    same("attention by more warps", wide, wide, [&] { return model.attention(0, row(qkv)); });

    Launch output{n, l.output, blocks, PLAIN, model.h};
    const std::vector<float> between = nodes.added(l.output, attended.data(), model.h);
    const auto plus = [&](std::vector<double> v, const std::vector<float>& residual) {
        for (size_t i = 0; i < v.size(); i++) v[i] += residual[i];
        return v;
    };
    same("output", output.run("output", [&](ProductArgs& a) { nodes.rounded(a.q8, a.q8_scale); }), between,
         [&] { return plus(l.output.times(row(attended)), h); });

    // The same product as a gate of what lies where a residual would.
    const auto rounded = [&](ProductArgs& a) { nodes.rounded(a.q8, a.q8_scale); };
    Activation activation{};
    activation.kind = n.gated ? SILU : GELU_TANH;
    std::vector<float> weighed = Launch{n, l.output, blocks}.run("plain", rounded);
    for (uint32_t i = 0; i < n.hidden; i++) weighed[i] = __fmul_rn(activated(activation, weighed[i]), model.h[i]);
    same("weighed", Launch{n, l.output, blocks, WEIGH, model.h}.run("weighed", rounded), weighed, [&] { return row(weighed); });

    // A sum that the product makes first, of the norm of a row or of the row, read as it is or as its norm.
    const std::vector<float> part = Launch{n, l.output, blocks}.run("plain", rounded);
    for (const bool norms_part : {true, false})
        for (const bool norms_sum : {true, false}) {
            ResidualAddArgs add{};
            add.x = part.data();
            if (norms_part) add.norm = l.attention_norm;
            add.base = model.h;
            std::vector<float> wanted(n.hidden, NAN), kept(n.hidden, NAN);
            add.out = wanted.data();
            add.scale = 0.75f;
            add.out_scale = 0.5f;
            add.len = add.x_stride = add.stride = n.hidden;
            const std::string wrong = emulator::run(1, (n.hidden / 4 + 31) / 32 * 32, 1, [&] { residual_add(add); });
            check(wrong.empty(), n, "sum", wrong);
            const NormArgs norm = norms_sum ? l.feed_forward_norm : NormArgs{};
            const std::vector<float> got = Launch{n, l.qkv, blocks, PLAIN, NULL, {add.norm, model.h, kept.data(), 0.75f, 0.5f}}.run("product of a sum", [&](ProductArgs& a) {
                a.x = part.data();
                a.norm = norm;
            });
            check(memcmp(kept.data(), wanted.data(), kept.size() * 4) == 0, n, "sum", "other bits");
            const std::vector<float> alone = Launch{n, l.qkv, blocks}.run("product", [&](ProductArgs& a) { a.x = wanted.data(); a.norm = norm; });
            same("product of a sum", got, alone, [&] { return row(alone); });
        }

    // Bulk copies bring sixteen bytes of scales.
    for (const Matrix* matrix : {&l.qkv, &l.output, &l.down}) {
        if (matrix->groups % 4 != 0) continue;
        const Launch several{n, *matrix, blocks};
        several.run_rows<2>(2);
        several.run_rows<4>(3);
        several.run_rows<4>(4);
    }

    // Rows lie behind each other at multiples of sixteen bytes.
    const auto two = [&](const Matrix& matrix, Finish finish, const NormArgs& norm) {
        if (matrix.groups % 4 == 0) Launch{n, matrix, blocks, finish}.run_two(norm);
    };
    two(l.qkv, PLAIN, l.attention_norm);
    two(l.up, n.gated ? GATE : ACTIVATE, l.feed_forward_norm);
    two(l.down, PLAIN, {});
    two(model.head, PLAIN, model.final_norm);

    // A product whose outputs three ranks add up, of which the others have sent theirs already.
    for (uint32_t own = 0; own < 3; own++)
        for (const float* residual : {(const float*)NULL, (const float*)model.h}) {
            constexpr uint32_t RANKS = 3, CAPACITY = 4096;
            std::vector<std::vector<uint64_t>> memory(RANKS, std::vector<uint64_t>(2 * RANKS * CAPACITY));
            const uint64_t number = 5 << 16 | 2;
            LinkedRow linked{};
            linked.meeting.launch = &number;
            linked.meeting.n_ranks = RANKS;
            linked.meeting.rank = own;
            linked.meeting.index = 3;
            for (uint32_t rank = 0; rank < RANKS; rank++) linked.tagged[rank] = (uint64_t)memory[rank].data();
            linked.tagged_capacity = CAPACITY;
            const TaggedRow tagged{linked.tagged, CAPACITY, RANKS, linked.meeting.index, tag_of(linked.meeting)};
            std::vector<float> wanted(n.hidden);
            for (uint32_t rank = 0; rank < RANKS; rank++)
                for (uint32_t i = 0; i < n.hidden; i++) {
                    // What each has differs by more than the roundings of a sum.
                    const float its = rank == own ? part[i] : part[i] * (1.3f + 0.37f * (float)rank);
                    if (rank != own) tagged.send(own, rank, i, its);
                    wanted[i] = rank == 0 ? its : __fadd_rn(wanted[i], its);
                }
            if (residual)
                for (uint32_t i = 0; i < n.hidden; i++) wanted[i] = __fadd_rn(residual[i], wanted[i]);
            Launch adding{n, l.output, blocks, PLAIN, residual};
            adding.linked = linked;
            same("sum over ranks", adding.run("sum over ranks", rounded), wanted, [&] { return row(wanted); });
            for (uint32_t rank = 0; rank < RANKS; rank++)
                for (uint32_t i = 0; i < n.hidden; i++) {
                    const uint2 pair = load_pair(tagged.place(rank, own, i));
                    const bool is_sent = pair.y == tagged.tag && pair.x == __float_as_uint(part[i]);
                    check(is_sent == (rank != own), n, "sum over ranks", "not what the others are sent");
                }
        }

    Launch up{n, l.up, blocks, n.gated ? GATE : ACTIVATE};
    const std::vector<float> active = nodes.activation(nodes.normed(l.up, l.feed_forward_norm, between.data()));
    same("up", up.run("up", normed(l.feed_forward_norm, between)), active,
         [&] { return model.activation(l.up.times(model.norm(l.feed_forward_norm, row(between)))); });

    Launch down{n, l.down, blocks, PLAIN, between.data()};
    same("down", down.run("down", [&](ProductArgs& a) { a.x = active.data(); }), nodes.added(l.down, active.data(), between.data()),
         [&] { return plus(l.down.times(row(active)), between); });

    Launch head{n, model.head, blocks};
    same("head", head.run("head", normed(model.final_norm, between)), nodes.normed(model.head, model.final_norm, between.data()),
         [&] { return model.head.times(model.norm(model.final_norm, row(between))); });
    if (with_f64) printf("%s: differs from f64 by %.1e of the largest number at most\n", n.name, worst);
}

// Schedules of each network; the first argument says how many.
int main(int argc, char** argv) {
    const uint32_t schedules = argc > 1 ? (uint32_t)atoi(argv[1]) : 4;
    for (const Network& n : NETWORKS)
        for (uint32_t i = 0; i < schedules; i++) compare(n, 3 + i % 3, i == 0);
    printf("%d failures\n", failures);
    return failures > 0;
}
