// What the kernels of a layer take in one session's decode step, without the rest of the step: chains of them in a graph, each of which may
// start before the one in front of it has ended, with weights, rows and states that mean nothing. For H100 and H200: `make chain`, and there
//
//   target/chain/chain target/chain
//
// where the second is the folder of the compiled kernels.
//
// A line for each chain: microseconds a layer (median of nine), and what the bytes of its weights take at 4.55 TB/s. Kernels are the
// library's own, blocks and shared memory are what product.rs, attention.rs, recurrent.rs and own_input.rs give them. To see where
// a kernel's time goes, have its warps store `clock()` at places of interest.
#include <cuda_runtime.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>
#include "args_own.h"
#include "args_recurrent.h"
#include "blocks.cuh"

static void check(cudaError_t e, const char* what) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}
#define CHECK(call) check(call, #call)

constexpr uint32_t GATE = 2, GELU = 1;  // of product.cuh and activation.cuh
constexpr uint32_t LAYERS = 12, LAUNCHES = 50;  // more bytes than the L2 cache has; of a measurement

// A file of kernels/, compiled, whose kernels may have so much dynamic shared memory.
struct Module {
    cudaLibrary_t library;
    uint32_t most_shared;
    Module(const std::string& folder, const char* name, uint32_t most_shared) : most_shared(most_shared) { CHECK(cudaLibraryLoadFromFile(&library, (folder + "/" + name + ".cubin").c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0)); }
    cudaKernel_t kernel(const char* name) const {
        cudaKernel_t kernel;
        CHECK(cudaLibraryGetKernel(&kernel, library, name));
        cudaFuncAttributes of;
        CHECK(cudaFuncGetAttributes(&of, (const void*)kernel));
        CHECK(cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared - (uint32_t)of.sharedSizeBytes));
        // One division of the multiprocessors' memory for all, as in the library: kernels could not overlap while it is changed.
        CHECK(cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
        return kernel;
    }
};
struct Kernels {
    uint32_t multiprocessors, most_shared;
    cudaKernel_t product_q4_k, product_q6_k, attend_128, attend_256, recurrent_step, own_input;
    Kernels(const std::string& folder, const cudaDeviceProp& device) : multiprocessors(device.multiProcessorCount), most_shared(device.sharedMemPerBlockOptin) {
        const Module products(folder, "product_k", most_shared), recurrences(folder, "recurrent", most_shared), own_inputs(folder, "own_input", most_shared), attentions(folder, "attention", most_shared);
        product_q4_k = products.kernel("product_Q4_K");
        product_q6_k = products.kernel("product_Q6_K");
        attend_128 = attentions.kernel("attend_tiles_128_3");
        attend_256 = attentions.kernel("attend_tiles_256_2");
        recurrent_step = recurrences.kernel("recurrent_step_shared_128");
        own_input = own_inputs.kernel("own_input_Q4_K");
    }
};

struct Node {
    const void* kernel;
    dim3 grid;
    uint32_t threads, shared;
    std::vector<uint8_t> args;
};

// The input of a product: floats, or bytes with a scale for 32 of them.
struct Input {
    const float* x;
    const int8_t* q8 = NULL;
    const float* q8_scale = NULL;
};

// A layer's kernels, LAYERS times, and the memory that they work on.
struct Chain {
    const Kernels& kernels;
    uint32_t hidden;
    std::vector<Node> nodes;
    std::vector<void*> memory;
    double bytes = 0.0;
    float* row;  // the residual stream

    Chain(const Kernels& kernels, uint32_t hidden) : kernels(kernels), hidden(hidden) { row = floats(hidden); }
    ~Chain() {
        for (void* p : memory) cudaFree(p);
    }
    uint8_t* take(size_t size) {
        void* p;
        CHECK(cudaMalloc(&p, size));
        CHECK(cudaMemset(p, 0x11, size));
        memory.push_back(p);
        return (uint8_t*)p;
    }
    uint8_t* weights(size_t size) {
        bytes += size;
        return take(size);
    }
    float* floats(size_t n) { return (float*)take(n * 4); }
    template <class Args> void add(cudaKernel_t kernel, dim3 grid, uint32_t threads, uint32_t shared, const Args& args) {
        const uint8_t* from = (const uint8_t*)&args;
        nodes.push_back({(const void*)kernel, grid, threads, shared, {from, from + sizeof args}});
    }
    // A table of one.
    const Session* const* sessions(const Session& session) {
        uint8_t *at = take(sizeof session), *table = take(sizeof at);
        CHECK(cudaMemcpy(at, &session, sizeof session, cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(table, &at, sizeof at, cudaMemcpyHostToDevice));
        return (const Session* const*)table;
    }
    NormArgs norm() { return {floats(hidden), NULL, 1e-5f, 0}; }

    // A product of one matrix, or of a gate and its values, each of `rows` rows. Its input is `x`, or the norm of it.
    float* product(uint32_t type, const Input& input, bool norms, uint32_t width, uint32_t rows, bool gate, bool adds) {
        const Slices slices = slices_of(type, width / 32);
        const uint32_t halves = gate ? 2 : 1, stage = record_bytes(type, 32), stage_rows = stage <= 704 ? 4 : 2;
        const uint64_t size = matrix_bytes(type, width / 32, rows * halves);
        const uint32_t multiprocessors = kernels.multiprocessors;
        ProductArgs a{};
        a.parts[0] = {weights(size), NULL, type, rows, 0, rows / multiprocessors, rows % multiprocessors, 0, slices.count, slices.full, slices.last,
                      record_bytes(type, slices.full), record_bytes(type, slices.last), 0};
        a.x = input.x;
        a.q8 = input.q8;
        a.q8_scale = input.q8_scale;
        if (norms) a.norm = norm();
        a.out = adds ? row : floats(rows);
        a.residual = adds ? row : NULL;
        a.n_parts = 1;
        a.groups = width / 32;
        a.finish = gate ? GATE : 0;
        a.inverse_len = 1.0f / width;
        a.ring_bytes = WARPS * stage_rows * (stage_rows == 2 && stage <= 900 ? 3 : 2) * stage;
        const uint32_t each = (rows + multiprocessors - 1) / multiprocessors * halves, used = a.ring_bytes + a.groups * INPUT_BYTES + slices.count * each * 4;
        // Blocks that leave room for others' (SHARING_BYTES).
        const uint64_t of_block = size / multiprocessors;
        const bool shares = of_block >= 120 << 10 && of_block < 400 << 10;
        add(type == Q4_K ? kernels.product_q4_k : kernels.product_q6_k, multiprocessors, WARPS * 32, std::max(used, shares ? 0 : kernels.most_shared / 2 + 512), a);
        return a.out;
    }
    // A delta net's or a Mamba-2 layer's step, of one session. The input has channels, gates and the numbers of heads behind each other.
    Input recurrence(const float* input, uint32_t in_stride, bool delta, uint32_t heads, uint32_t per_key, uint32_t rows, uint32_t cols) {
        const uint32_t keys = heads / per_key * cols;
        RecurrentArgs a{};
        a.heads = heads;
        a.per_key = per_key;
        a.rows = rows;
        a.cols = cols;
        a.width = 4;
        a.channels = 2 * keys + heads * rows;
        a.k_at = keys;
        a.v_at = 2 * keys;
        a.in_stride = in_stride;
        a.gate_at = a.channels;
        a.step_at = a.channels + heads * rows;
        a.beta_at = a.step_at + (delta ? heads : 0);
        a.delta = delta;
        a.q_scale = 1.0f;
        a.eps = 1e-6f;
        a.most = 1e30f;
        a.beta_scale = 1.0f;
        a.gated = 1;
        a.input = input;
        a.out = floats(heads * rows);
        a.conv_weight = floats(a.channels * 4);
        a.rate = floats(heads);
        a.step_bias = floats(heads);
        if (delta) a.norm = floats(rows);
        else a.skip = floats(heads);
        a.matrix_offset = a.channels * 16;
        const size_t size = a.matrix_offset + (size_t)heads * rows * cols * 4;
        Session session{};
        session.fixed = (uint64_t)take(size);
        CHECK(cudaMemset((void*)session.fixed, 0, size));
        a.sessions = sessions(session);
        add(kernels.recurrent_step, heads * STEP_BLOCKS, STEP_THREADS / STEP_BLOCKS, 2 * rows / STEP_BLOCKS * 4, a);
        return {a.out};
    }
    // Attention of one session behind 100 positions, with norms of heads and a gate or without both.
    Input attention(const float* input, uint32_t in_stride, uint32_t heads, uint32_t kv_heads, uint32_t dim, bool normed) {
        const uint32_t blocks = std::min<uint32_t>((2 * kernels.multiprocessors + kv_heads - 1) / kv_heads, MAX_PARTS);
        AttendArgs a{};
        a.qkv = input;
        a.qkv_stride = in_stride;
        a.n_heads = heads;
        a.value_head = heads + kv_heads;
        a.value_dim = dim;
        a.n_chunks = blocks;
        a.head_parts = a.join = a.rows = 1;
        a.rotation.n_pairs = dim / 4;
        a.rotation.inv_freq = floats(dim);
        a.rotation.magnitude = 1.0f;
        a.scores.scale = 0.1f;
        a.layout.row_bytes = dim * 2;
        a.layout.n_kv_heads = kv_heads;
        a.layout.head_dim = dim;
        a.layout.window = 0x7fffffff;
        a.layout.tile_bytes = 2ull * kv_heads * KV_TILE * dim * 2;
        if (normed) {
            a.q_norm = a.k_norm = {floats(dim), NULL, 1e-5f, 0};
            a.gate = input;
        }
        a.q8 = (int8_t*)take(heads * dim);
        a.q8_scale = floats(heads * dim / 32);
        a.parts = floats((size_t)heads * blocks * (dim + 8));
        a.tickets = (uint32_t*)take(kv_heads * 4);
        CHECK(cudaMemset(a.tickets, 0, kv_heads * 4));
        Session session{};
        session.kv = (uint64_t)take(4 * a.layout.tile_bytes);
        session.position = 100;
        a.sessions = sessions(session);
        add(dim > 128 ? kernels.attend_256 : kernels.attend_128, dim3(kv_heads, 1, blocks), 128, 96 << 10, a);
        return {NULL, a.q8, a.q8_scale};
    }
    // A layer's own input of `inner` numbers, behind a product whose norm is added first.
    void own_input(const float* x, uint32_t inner) {
        const auto matrix = [&](uint32_t groups, uint32_t rows) {
            const Slices s = slices_of(Q4_K, groups);
            return OwnMatrix{weights(matrix_bytes(Q4_K, groups, rows)), rows, s.count, s.full, s.last, record_bytes(Q4_K, s.full), record_bytes(Q4_K, s.last)};
        };
        const auto kept = [](const OwnMatrix& m) { return m.rows / OWN_BLOCKS * ((m.n_slices - 1) * m.full_bytes + m.last_bytes); };
        OwnInputArgs a{};
        a.groups = hidden / 32;
        a.gate = matrix(a.groups, inner);
        a.projection = matrix(inner / 32, hidden);
        a.x = x;
        a.added = {norm(), floats(hidden), NULL, 1.0f, 1.0f};
        a.own = floats(inner);
        a.norm = norm();
        a.out = row;
        a.scale = a.out_scale = 1.0f;
        a.inverse_len = 1.0f / hidden;
        a.activation.kind = GELU;
        a.projection_at = kept(a.gate);
        a.input_at = a.projection_at + kept(a.projection);
        a.inner_at = (a.input_at + a.groups * INPUT_BYTES + 15) / 16 * 16;
        a.own_at = (a.inner_at + inner / 32 * INPUT_BYTES + 15) / 16 * 16;
        add(kernels.own_input, OWN_BLOCKS, WARPS * 32, a.own_at + (inner / OWN_BLOCKS * (1 + a.gate.n_slices) + hidden / OWN_BLOCKS) * 4, a);
    }

    void measure(const char* name) {
        cudaStream_t stream;
        cudaGraph_t graph;
        cudaGraphExec_t step;
        cudaEvent_t begin, end;
        CHECK(cudaStreamCreate(&stream));
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        for (Node& n : nodes) {
            cudaLaunchAttribute early{};
            early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
            early.val.programmaticStreamSerializationAllowed = 1;
            cudaLaunchConfig_t config{};
            config.gridDim = n.grid;
            config.blockDim = n.threads;
            config.dynamicSmemBytes = n.shared;
            config.stream = stream;
            config.attrs = &early;
            config.numAttrs = 1;
            void* args[] = {n.args.data()};
            CHECK(cudaLaunchKernelExC(&config, n.kernel, args));
        }
        CHECK(cudaStreamEndCapture(stream, &graph));
        CHECK(cudaGraphInstantiate(&step, graph, 0));
        CHECK(cudaEventCreate(&begin));
        CHECK(cudaEventCreate(&end));
        std::vector<float> times;
        for (int turn = 0; turn < 10; turn++) {
            CHECK(cudaEventRecord(begin, stream));
            for (uint32_t i = 0; i < LAUNCHES; i++) CHECK(cudaGraphLaunch(step, stream));
            CHECK(cudaEventRecord(end, stream));
            CHECK(cudaEventSynchronize(end));
            float ms;
            CHECK(cudaEventElapsedTime(&ms, begin, end));
            // The first turn warms up.
            if (turn > 0) times.push_back(ms * 1000.0f / LAUNCHES / LAYERS);
        }
        std::sort(times.begin(), times.end());
        printf("%-50s %7.2f us %7.2f us\n", name, times[times.size() / 2], bytes / LAYERS / 4.55e6);
        cudaGraphExecDestroy(step);
        cudaGraphDestroy(graph);
        cudaEventDestroy(begin);
        cudaEventDestroy(end);
        cudaStreamDestroy(stream);
    }
};

// Products of a layer: to a mixer, from it, gate and up, down.
struct Shape {
    const char* name;
    uint32_t hidden, to_mixer, mixed, inner;
};
constexpr Shape GRANITE{"granite-4-micro", 2048, 8512, 4096, 8192}, QWEN{"qwen3.5-4b", 2560, 12352, 4096, 9216}, GEMMA{"gemma-4-e4b", 2560, 3072, 2048, 10240},
    LLAMA{"llama-3.1-8b", 4096, 6144, 4096, 14336};

int main(int argc, char** argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER_OF_CUBINS\n", argv[0]);
        return 2;
    }
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    const Kernels kernels(argv[1], device);
    printf("%s; a layer, and what its weights take at 4.55 TB/s\n", device.name);
    const auto measure = [&](const Shape& s, const char* what, uint32_t down, const std::function<Input(Chain&, float*)>& mix, const std::function<void(Chain&, float*)>& finish) {
        Chain chain(kernels, s.hidden);
        for (uint32_t i = 0; i < LAYERS; i++) {
            float* to_mixer = chain.product(Q4_K, {chain.row}, true, s.hidden, s.to_mixer, false, false);
            const Input mixed = mix ? mix(chain, to_mixer) : Input{to_mixer};
            chain.product(Q4_K, mixed, false, s.mixed, s.hidden, false, true);
            float* inner = chain.product(Q4_K, {chain.row}, true, s.hidden, s.inner, true, false);
            float* out = chain.product(down, {inner}, false, s.inner, s.hidden, false, !finish);
            if (finish) finish(chain, out);
        }
        chain.measure((std::string(s.name) + what).c_str());
    };
    for (const Shape& s : {GRANITE, QWEN, LLAMA}) measure(s, ", products", Q4_K, nullptr, nullptr);
    measure(GRANITE, ", products, down in Q6_K", Q6_K, nullptr, nullptr);
    measure(GRANITE, ", products and recurrence", Q4_K, [](Chain& c, float* in) { return c.recurrence(in, GRANITE.to_mixer, false, 64, 64, 64, 128); }, nullptr);
    measure(QWEN, ", products and recurrence", Q4_K, [](Chain& c, float* in) { return c.recurrence(in, QWEN.to_mixer, true, 32, 2, 128, 128); }, nullptr);
    measure(LLAMA, ", products and attention", Q4_K, [](Chain& c, float* in) { return c.attention(in, LLAMA.to_mixer, 32, 8, 128, false); }, nullptr);
    measure(QWEN, ", products and attention", Q4_K, [](Chain& c, float* in) { return c.attention(in, QWEN.to_mixer, 16, 4, 256, true); }, nullptr);
    measure(GEMMA, ", products", Q4_K, nullptr, nullptr);
    measure(GEMMA, ", products and attention", Q4_K, [](Chain& c, float* in) { return c.attention(in, GEMMA.to_mixer, 8, 2, 256, true); }, nullptr);
    measure(GEMMA, ", products and the layer's own input", Q4_K, nullptr, [](Chain& c, float* x) { c.own_input(x, 256); });
    return 0;
}
