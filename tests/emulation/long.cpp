// Attention of long heads, and the products of heads of latent attention, under schedules that no GPU would choose: close to what
// f64 makes of the same input.
#include "cuda_fp16.h"
#include "attention_long.cu"
#include "attention_prefill_long.cu"
#include "latent.cu"
#include "model.h"
#include <cstdio>
#include <cstdlib>

int failures = 0;
void check(const char* what, uint32_t n, const std::string& wrong, double error) {
    if (wrong.empty() && error < 2e-3) return;
    printf("%s, %u: %s, error %.1e\n", what, n, wrong.c_str(), error);
    failures++;
}

// A session with a cache of a layer of one KV head, and queries of its last rows.
struct Case {
    uint32_t n_heads, head_dim, value_dim, length, window;
    bool latent;
    KvLayout kv{};
    Session session{};
    const Session* sessions[1] = {&session};
    __half* q;

    Case(uint32_t heads, uint32_t dim, uint32_t value, uint32_t positions, uint32_t window, bool latent, uint32_t rows)
        : n_heads(heads), head_dim(dim), value_dim(value), length(positions), window(window), latent(latent) {
        kv.row_bytes = (dim * 2 + 15) / 16 * 16;
        kv.n_kv_heads = 1;
        kv.head_dim = dim;
        kv.window = window;
        kv.tile_bytes = 2 * kv_plane(kv);
        const uint32_t tiles = (positions + KV_TILE - 1) / KV_TILE;
        if (window != NO_WINDOW) kv.ring = tiles;
        const size_t n = tiles * kv.tile_bytes / 2;
        __half* cache = allocate<__half>(n);
        for (size_t i = 0; i < n; i++) cache[i] = i * 2 % kv.row_bytes < dim * 2 ? (__half)random_float() : (__half)0.0f;
        session.kv = session.kv_ring = (uint64_t)cache;
        session.position = positions - rows;
        q = allocate<__half>((size_t)rows * heads * dim);
        for (size_t i = 0; i < (size_t)rows * heads * dim; i++) q[i] = (__half)(random_float() * 0.3f);
    }
    // What a head of a row makes of the positions before `end`.
    std::vector<double> attended(uint32_t row, uint32_t head, uint32_t end) const {
        const uint32_t first = end > window ? end - window : 0;
        std::vector<double> scores(end), sum(value_dim);
        double top = -INFINITY, weight = 0.0;
        for (uint32_t p = first; p < end; p++) {
            const __half* key = (const __half*)kv_row(kv, &session, false, 0, p);
            for (uint32_t i = 0; i < head_dim; i++) scores[p] += (double)q[((size_t)row * n_heads + head) * head_dim + i] * (double)key[i];
            top = std::max(top, scores[p]);
        }
        for (uint32_t p = first; p < end; p++) {
            const __half* value = (const __half*)kv_row(kv, &session, !latent, 0, p);
            const double w = exp2(scores[p] - top);
            weight += w;
            for (uint32_t i = 0; i < value_dim; i++) sum[i] += w * (double)value[i];
        }
        for (double& v : sum) v /= weight;
        return sum;
    }
};

double apart(const std::vector<double>& want, const std::vector<double>& got) {
    double squares = 0.0, all = 0.0;
    for (size_t i = 0; i < want.size(); i++) {
        squares += (want[i] - got[i]) * (want[i] - got[i]);
        all += want[i] * want[i];
    }
    const double error = sqrt(squares / all);
    return error == error ? error : INFINITY;
}

// One row.
void step(const char* what, const Case& c, const std::function<void(const AttendArgs&)>& kernel, uint32_t heads_of_a_block) {
    AttendArgs a{};
    a.sessions = c.sessions;
    a.q16 = c.q;
    a.layout = c.kv;
    a.n_heads = c.n_heads;
    a.n_chunks = 2;
    a.head_parts = (c.n_heads + heads_of_a_block - 1) / heads_of_a_block;
    a.value_dim = c.value_dim;
    const uint32_t stride = part_stride(c.value_dim);
    std::vector<float> parts((size_t)c.n_heads * a.n_chunks * stride, NAN);
    a.parts = parts.data();
    const std::string wrong = emulator::run(a.head_parts, 256, (uint32_t)numbers(), [&] { kernel(a); });
    const uint32_t used = chunks_of(a, &c.session, 0).used;
    for (uint32_t head = 0; head < c.n_heads; head++) {
        const float* part = parts.data() + (size_t)head * a.n_chunks * stride;
        double top = -INFINITY, weight = 0.0;
        for (uint32_t i = 0; i < used; i++) top = std::max(top, (double)part[i * stride + c.value_dim]);
        std::vector<double> sum(c.value_dim);
        for (uint32_t i = 0; i < used; i++) {
            const double f = exp2(part[i * stride + c.value_dim] - top);
            weight += f * part[i * stride + c.value_dim + 1];
            for (uint32_t d = 0; d < c.value_dim; d++) sum[d] += f * part[i * stride + d];
        }
        for (double& v : sum) v /= weight;
        check(what, head, wrong, apart(c.attended(0, head, c.length), sum));
    }
}

// Rows of the first head.
void chunk(const char* what, const Case& c, uint32_t rows, const std::function<void(const FlashArgs&)>& kernel) {
    std::vector<float> out((size_t)rows * c.n_heads * c.value_dim, NAN);
    FlashArgs a{};
    a.sessions = c.sessions;
    a.q = c.q;
    a.out = out.data();
    a.layout = c.kv;
    a.rows = rows;
    a.n_heads = c.n_heads;
    a.value_dim = c.value_dim;
    const std::string wrong = emulator::run((rows + 63) / 64, 256, (uint32_t)numbers(), [&] { kernel(a); });
    for (uint32_t r = 0; r < rows; r += r + 13 < rows ? 13 : 1) {
        const float* got = out.data() + (size_t)r * c.n_heads * c.value_dim;
        check(what, r, wrong, apart(c.attended(r, 0, c.session.position + r + 1), std::vector<double>(got, got + c.value_dim)));
    }
}

// Products of the first head, by N outputs a block.
template <int N> void products(uint32_t type, uint32_t len, uint32_t rows, uint32_t count) {
    const Matrix matrix({{type, rows}}, (len + 31) / 32 * 32, false);
    const uint32_t stride = len + 5;
    const float* x = random_floats((size_t)count * stride, 50.0f);
    std::vector<float> out((size_t)count * rows, NAN);
    HeadProductArgs a{};
    a.matrix = matrix.data[0];
    a.x = x;
    a.f32 = out.data();
    a.type = type;
    a.groups = matrix.groups;
    a.matrix_rows = a.rows = rows;
    a.count = count;
    a.len = len;
    a.x_stride = stride;
    a.out_stride = rows;
    a.scale = 1.0f;
    const std::string wrong = emulator::run((rows + N - 1) / N, 128, (uint32_t)numbers(), [&] {
        DYNAMIC_SHARED(shared);
        head_product<N>(a, *(HeadShared*)shared);
    });
    for (uint32_t r = 0; r < count; r++) {
        std::vector<double> want(rows);
        for (uint32_t o = 0; o < rows; o++)
            for_type(type, [&]<uint32_t T>() {
                const Slices c = slices_of(T, a.groups);
                for (uint32_t g = 0; g < a.groups; g++) {
                    const uint32_t s = g / c.full, n = s + 1 == c.count ? c.last : c.full;
                    float v[32];
                    group_values<T>(a.matrix + slice_offset(T, c, s, rows) + (size_t)o * record_bytes(T, n), g % c.full, n, v);
                    for (uint32_t i = 0; i < 32 && g * 32 + i < len; i++) want[o] += (double)v[i] * x[(size_t)r * stride + g * 32 + i];
                }
            });
        check("products of a head", r, wrong, apart(want, std::vector<double>(out.begin() + (size_t)r * rows, out.begin() + (size_t)(r + 1) * rows)));
    }
}

int main() {
    numbers.seed(1);
    step("long heads", Case(3, 512, 512, 300, NO_WINDOW, false, 1), attend_long_2, 16);
    step("long heads with a window", Case(18, 300, 300, 190, 100, false, 1), attend_long_2, 16);
    step("latent", Case(16, 576, 512, 270, NO_WINDOW, true, 1), attend_latent_2, 16);
    step("a small latent", Case(3, 32, 24, 5, NO_WINDOW, true, 1), attend_latent_2, 16);
    step("many latent", Case(20, 576, 512, 130, NO_WINDOW, true, 1), attend_latent_4, 32);
    chunk("a chunk of long heads", Case(2, 512, 512, 100, NO_WINDOW, false, 70), 70, flash_long);
    chunk("a chunk of long heads with a window", Case(1, 259, 259, 150, 40, false, 65), 65, flash_long);
    chunk("a latent chunk", Case(1, 576, 512, 90, NO_WINDOW, true, 90), 90, flash_latent);
    chunk("a small latent chunk", Case(3, 32, 24, 40, NO_WINDOW, true, 7), 7, flash_latent);
    products<16>(Q4_K, 256, 40, 3);
    products<64>(Q8_0, 128, 70, 64);
    products<16>(Q8_0, 20, 9, 1);
    printf("%d failures\n", failures);
    return failures > 0;
}
