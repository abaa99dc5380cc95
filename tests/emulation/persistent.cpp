// The kernel that does a whole step, under schedules that no GPU would choose: it must end, always with the
// same bits, which are those of the kernels that do one operation each, and close to what f64 makes of the same input.
#include "persistent.cuh"
#include "nodes.h"
#include <cstdio>
#include <cstdlib>

// As in src/backend/cuda/step/persistent.rs.
constexpr uint32_t SUMS_BYTES = 16 * 1024;
constexpr uint32_t ALL = 1 << 20;

// What src/backend/cuda/step/persistent.rs makes of a model: its operations, on two sets of outputs.
struct Step {
    // What the operations of a layer write, and its input.
    struct Outputs { const float *x, *qkv, *attended, *between, *active, *out; };

    Model& model;
    uint32_t blocks, most_quads, slots, rest;
    std::vector<Op> ops;
    std::vector<Outputs> layers[2];
    uint32_t* outputs;
    uint32_t output_words, state[2] = {0, 0};
    float* next;

    // A block sums at most so many fours of rows at a time.
    Step(Model& m, uint32_t n_blocks, uint32_t quads) : model(m), blocks(n_blocks), most_quads(quads) {
        const Network& n = m.n;
        const uint32_t width = n.n_heads * n.head_dim, dim = n.head_dim <= 64 ? 64 : 128;
        rest = std::max(ATTEND_STAGES * 2 * KV_TILE * dim * 2, std::max({n.hidden, width, n.n_ff}) / 32 * 48 + SUMS_BYTES);
        slots = std::min((emulator::SHARED_BYTES - emulator::STATIC_BYTES - rest) / SLOT_BYTES, MAX_SLOTS) / SLOT_STEP * SLOT_STEP;
        output_words = n.n_layers * (words(m.layers[0].qkv.rows()) + words(width) + words(n.n_ff) + n.n_ff / 32 * 12 + 2 * words(n.hidden));
        outputs = allocate<uint32_t>(2 * output_words);
        for (uint32_t i = 0; i < 2 * output_words; i++) outputs[i] = UNWRITTEN;
        for (uint32_t set = 0; set < 2; set++) {
            next = (float*)(outputs + set * output_words);
            float* x = m.h;
            for (uint32_t i = 0; i < n.n_layers; i++) {
                layers[set].push_back(layer(i, x));
                x = (float*)layers[set].back().out;
            }
            product(m.head, x, m.final_norm, m.logits, NULL, PLAIN);
        }
    }

    // A step with this kernel and scheduler; what was wrong, or nothing.
    std::string run(uint32_t seed) {
        PersistentArgs a{};
        a.ops = ops.data();
        a.sessions = model.sessions;
        a.state = state;
        a.outputs = outputs;
        a.output_words = output_words;
        a.n_ops = (uint32_t)ops.size() / 2;
        a.slots = slots;
        a.ahead = 6;
        const uint32_t set = state[1];
        const bool large = model.n.head_dim > 64;
        std::string wrong = emulator::run(blocks, THREADS, seed, [&] { large ? persistent<128, TYPES>(a) : persistent<64, TYPES>(a); });
        if (wrong.empty() && (state[0] != 0 || state[1] != (set ^ 1))) wrong = "the state is not as the next step needs it";
        for (uint32_t i = 0; wrong.empty() && i < output_words; i++)
            if (outputs[(set ^ 1) * output_words + i] != UNWRITTEN) wrong = "the other outputs are not cleared";
        return wrong;
    }

    // The largest difference of an operation of the last step from what f64 makes of the same input, as a part
    // of the largest number.
    double error() const {
        const Network& n = model.n;
        double worst = 0.0;
        const auto compare = [&](const float* got, const std::vector<double>& wanted, const float* residual) {
            double difference = 0.0, largest = 0.0;
            for (size_t i = 0; i < wanted.size(); i++) {
                const double w = wanted[i] + (residual ? residual[i] : 0.0);
                difference = larger_or_nan(difference, fabs(w - got[i]));
                largest = larger_or_nan(largest, fabs(w));
            }
            worst = larger_or_nan(worst, difference / largest);
        };
        auto row = [](const float* p, uint32_t len) { return std::vector<double>(p, p + len); };
        const std::vector<Outputs>& of = layers[state[1] ^ 1];
        for (uint32_t i = 0; i < n.n_layers; i++) {
            const Layer& l = model.layers[i];
            const Outputs& o = of[i];
            compare(o.qkv, l.qkv.times(model.norm(l.attention_norm, row(o.x, n.hidden))), NULL);
            compare(o.attended, model.attention(i, row(o.qkv, l.qkv.rows())), NULL);
            compare(o.between, l.output.times(row(o.attended, n.n_heads * n.head_dim)), o.x);
            compare(o.active, model.activation(l.up.times(model.norm(l.feed_forward_norm, row(o.between, n.hidden)))), NULL);
            compare(o.out, l.down.times(row(o.active, n.n_ff)), o.between);
        }
        compare(model.logits, model.head.times(model.norm(model.final_norm, row(of.back().out, n.hidden))), NULL);
        return worst;
    }

    // Whether the last step has the bits of the kernels that do one operation each, given the same input.
    bool as_nodes() const {
        const Network& n = model.n;
        const std::vector<Outputs>& of = layers[state[1] ^ 1];
        Nodes nodes(model);
        bool same = true;
        const auto compare = [&](const float* got, const std::vector<float>& wanted) {
            same &= memcmp(got, wanted.data(), wanted.size() * 4) == 0;
        };
        for (uint32_t i = 0; i < n.n_layers; i++) {
            const Layer& l = model.layers[i];
            const Outputs& o = of[i];
            compare(o.qkv, nodes.normed(l.qkv, l.attention_norm, o.x));
            compare(o.attended, nodes.attention(ops[5 * i + 1].attend, o.qkv));
            compare(o.between, nodes.added(l.output, o.attended, o.x));
            compare(o.active, nodes.activation(nodes.normed(l.up, l.feed_forward_norm, o.between)));
            compare(o.out, nodes.added(l.down, o.active, o.between));
        }
        compare(model.logits, nodes.normed(model.head, model.final_norm, of.back().out));
        return same;
    }

private:
    static double larger_or_nan(double a, double b) { return a >= b || a != a ? a : b; }
    static uint32_t words(uint32_t n) { return (n + 3) / 4 * 4; }
    float* output(uint32_t n) {
        float* p = next;
        next += words(n);
        return p;
    }
    Outputs layer(uint32_t index, float* x) {
        const Network& n = model.n;
        const Layer& l = model.layers[index];
        const NormArgs none{};
        float* qkv = output(l.qkv.rows());
        product(l.qkv, x, l.attention_norm, qkv, NULL, PLAIN);
        float* attended = output(n.n_heads * n.head_dim);
        Op& op = add(ATTEND);
        AttendArgs& a = op.attend;
        a.sessions = model.sessions;
        a.parts = model.parts;
        a.f32 = attended;
        a.qkv = qkv;
        a.tickets = model.tickets;
        a.rotation = {model.inv_freq, NULL, 1.0f, n.head_dim / 2, 0, 0};
        a.layout = model.kv;
        a.layout.layer_offset = index * 2 * kv_plane(model.kv);
        a.scores.scale = 1.44269504f / sqrtf((float)n.head_dim);
        a.qkv_stride = l.qkv.rows();
        a.n_heads = n.n_heads;
        a.n_chunks = MAX_CHUNKS;
        a.head_parts = 1;
        a.join = 1;
        float* between = output(n.hidden);
        product(l.output, attended, none, between, x, PLAIN);
        float* active = output(n.n_ff);
        product(l.up, between, l.feed_forward_norm, active, NULL, n.gated ? GATE : ACTIVATE);
        uint32_t* encoded = (uint32_t*)output(n.n_ff / 32 * 12);
        float* out = output(n.hidden);
        product(l.down, active, none, out, between, PLAIN).encoded = encoded;
        return {x, qkv, attended, between, active, out};
    }
    Op& add(OpKind kind) {
        ops.emplace_back();
        memset((void*)&ops.back(), 0, sizeof(Op));
        ops.back().kind = kind;
        return ops.back();
    }
    ProductOp& product(const Matrix& m, const float* x, const NormArgs& norm, float* out, const float* residual, Ending ending) {
        ProductOp& op = add(PRODUCT).product;
        const uint32_t halves = ending == GATE ? 2 : 1, n = (uint32_t)m.parts.size();
        op.x = x;
        op.norm = norm;
        op.out = out;
        op.residual = residual;
        op.n_parts = n;
        op.groups = m.groups;
        op.ending = ending;
        op.inverse_len = 1.0f / (float)(m.groups * 32);
        op.activation.kind = model.n.gated ? SILU : GELU_TANH;
        uint32_t first_row = 0, slices = 1;
        for (uint32_t i = 0; i < n; i++) {
            Part& p = op.parts[i];
            const Slices c = slices_of(m.parts[i].type, m.groups);
            p.matrix = m.data[i];
            p.bias = m.bias ? m.bias + first_row : NULL;
            p.type = m.parts[i].type;
            p.rows = m.parts[i].n / halves;
            // The first part has what the others leave.
            p.first_block = i == 0 ? 0 : blocks - n + i;
            p.blocks = i == 0 ? blocks - n + 1 : 1;
            const uint32_t quads = (p.rows + 3) / 4;
            p.quads = quads / p.blocks;
            p.more = quads % p.blocks;
            p.out_offset = first_row;
            p.n_slices = c.count;
            p.full = c.full;
            p.last = c.last;
            p.full_bytes = record_bytes(p.type, c.full);
            p.last_bytes = record_bytes(p.type, c.last);
            p.quad_bytes = quad_bytes(p.type);
            p.quads_per_slot = quads_per_slot(p.type);
            first_row += m.parts[i].n;
            slices = std::max(slices, c.count);
        }
        op.chunk_quads = std::clamp((rest - m.groups * 48) / 16 / (slices * halves), 1u, most_quads);
        return op;
    }
};

int failures = 0;
void check(bool right, const Network& n, uint32_t seed, const std::string& what) {
    if (right) return;
    printf("%s, schedule %u: %s\n", n.name, seed, what.c_str());
    failures++;
}

// Runs some steps under one schedule: logits of all of them, and the cache at the end; empty if it fails.
std::vector<float> steps(const Network& n, uint32_t blocks, uint32_t most_quads, uint32_t seed, bool compare) {
    numbers.seed(1);
    Model model(n);
    Step step(model, blocks, most_quads);
    std::vector<float> all;
    for (uint32_t i = 0; i < STEPS; i++) {
        const std::string wrong = step.run(seed * STEPS + i);
        check(wrong.empty(), n, seed, wrong);
        if (!wrong.empty()) return {};
        all.insert(all.end(), model.logits, model.logits + n.n_vocab);
        if (compare) {
            const double error = step.error();
            printf("%s, step %u: differs from f64 by %.1e of the largest number\n", n.name, i, error);
            check(error <= 1e-3, n, seed, "too far from f64");
            check(step.as_nodes(), n, seed, "not the bits of the kernels that do one operation each");
        }
        model.session.position++;
        for (uint32_t j = 0; j < n.hidden; j++) model.h[j] = random_float();
    }
    const __half* cache = (const __half*)model.session.kv;
    for (size_t i = 0; i < model.kv_bytes / 2; i++) all.push_back((float)cache[i]);
    return all;
}

// Schedules of each network; the first argument says how many.
int main(int argc, char** argv) {
    const uint32_t schedules = argc > 1 ? (uint32_t)atoi(argv[1]) : 4;
    for (const Network& n : NETWORKS) {
        const std::vector<float> first = steps(n, 4, ALL, 0, true);
        for (uint32_t seed = 1; seed < schedules; seed++) {
            // Results depend neither on the number of blocks nor on how they take their rows.
            const std::vector<float> others = steps(n, 3 + seed % 3, seed % 2 == 0 ? ALL : 3, seed, false);
            check(others.size() == first.size() && memcmp(others.data(), first.data(), first.size() * 4) == 0, n, seed, "other bits than before");
        }
    }
    // Proof that such faults are found: a ring whose slots do not come round to the same warps.
    std::string found;
    for (uint32_t seed = 0; seed < 20 && found.empty(); seed++) {
        numbers.seed(1);
        Model model(NETWORKS[2]);
        Step step(model, 4, ALL);
        step.slots = SLOT_STEP + 1;
        found = step.run(seed);
        if (found.empty() && !(step.error() <= 1e-3)) found = "too far from f64";
    }
    printf("with a ring of the wrong size: %s\n", found.empty() ? "nothing is found" : found.c_str());
    failures += found.empty();
    printf("%d failures\n", failures);
    return failures > 0;
}
