// The operations of a step by the kernels that do one each, as src/backend/cuda/network/step.rs launches them for one
// session.
#pragma once
#include "attention.cu"
#include "matvec.cuh"
#include "model.h"
#include "norm.cu"

class Nodes {
    const Model& model;
    std::vector<int8_t> q8;
    std::vector<float> q8_scale;

    static void run(uint32_t blocks, uint32_t threads, const std::function<void()>& kernel) {
        const std::string wrong = emulator::run(blocks, threads, 1, kernel);
        if (wrong.empty()) return;
        printf("a kernel of one operation: %s\n", wrong.c_str());
        exit(1);
    }
    // Writes int8 and its scales, and gives the f32.
    std::vector<float> quantize_input(const float* x, uint32_t len, Source source, const NormArgs& norm) {
        std::vector<float> out(len);
        q8.assign(len, 0);
        q8_scale.assign(len / 32, 0.0f);
        QuantizeInputArgs a{};
        a.x = x;
        a.norm = norm;
        a.q8 = q8.data();
        a.q8_scale = q8_scale.data();
        a.f32 = out.data();
        a.x_stride = source == GATED ? 2 * len : len;
        a.len = len;
        a.groups = len / 32;
        a.source = source;
        a.inverse_len = 1.0f / (float)len;
        a.activation.kind = model.n.gated ? SILU : GELU_TANH;
        run(1, 512, [&] { ::quantize_input(a); });
        return out;
    }
    std::vector<float> product(const Matrix& m, const float* residual) {
        std::vector<float> out(m.rows());
        MatvecArgs a{};
        a.q8 = q8.data();
        a.q8_scale = q8_scale.data();
        a.out = out.data();
        a.residual = residual;
        a.n_segments = (uint32_t)m.parts.size();
        a.groups = m.groups;
        a.out_stride = m.rows();
        a.batch = 1;
        a.chunk_rows = 96;
        uint32_t row = 0;
        for (uint32_t i = 0; i < a.n_segments; i++) {
            a.segments[i] = {m.data[i], m.bias ? m.bias + row : NULL, m.parts[i].type, m.parts[i].n, 2 * i, 2, row, 0};
            row += m.parts[i].n;
        }
        run(2 * a.n_segments, WARPS * 32, [&] { matvec_body<1, TYPES>(a); });
        return out;
    }

public:
    // What the last product had as its input.
    void rounded(const int8_t*& values, const float*& scales) const {
        values = q8.data();
        scales = q8_scale.data();
    }
    explicit Nodes(const Model& m) : model(m) {}

    // A matrix times the norm of a row.
    std::vector<float> normed(const Matrix& m, const NormArgs& norm, const float* x) {
        quantize_input(x, model.n.hidden, NORM, norm);
        return product(m, NULL);
    }
    // A matrix times a row, and a residual.
    std::vector<float> added(const Matrix& m, const float* x, const float* residual) {
        quantize_input(x, m.groups * 32, COPY, NormArgs{});
        return product(m, residual);
    }
    std::vector<float> activation(const std::vector<float>& up) {
        return quantize_input(up.data(), model.n.n_ff, model.n.gated ? GATED : ACTIVATED, NormArgs{});
    }
    // By W warps a block, with tiles in so many stages.
    template <int STAGES = 3, int W = 4> std::vector<float> attention(uint32_t layer, const float* qkv) {
        const Network& n = model.n;
        std::vector<float> out(n.n_heads * n.head_dim);
        AttendArgs a{};
        a.sessions = model.sessions;
        a.parts = model.parts;
        a.f32 = out.data();
        a.qkv = qkv;
        a.tickets = model.tickets;
        a.rotation.inv_freq = model.inv_freq;
        a.rotation.magnitude = 1.0f;
        a.rotation.n_pairs = n.head_dim / 2;
        a.layout = model.kv;
        a.layout.layer_offset = layer * 2 * kv_plane(model.kv);
        a.scores.scale = 1.44269504f / sqrtf((float)n.head_dim);
        a.qkv_stride = model.layers[layer].qkv.rows();
        a.n_heads = n.n_heads;
        a.n_chunks = MAX_CHUNKS;
        a.head_parts = 1;
        a.join = 1;
        a.value_head = n.n_heads + n.n_kv_heads;
        a.value_dim = n.head_dim;
        run(a.layout.n_kv_heads * a.head_parts, 32 * W, [&] { n.head_dim > 64 ? attend_tiles<128, STAGES, W, false>(a) : attend_tiles<64, STAGES, W, false>(a); });
        return out;
    }
};
