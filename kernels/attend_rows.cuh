// Attention of a step whose rows are positions of one session, one behind the other: several of them share the tiles.
#pragma once
#include "attend_q8.cuh"

template <int COLUMNS> struct AttendRowsShared {
    float factor[COLUMNS][MAX_PARTS + 1];  // join: weight of each chunk, and what the sum is multiplied by
    uint32_t is_last;
};

// Rows from `first` on, whose chunks are the same but for the end of the last one; those of the last row.
struct RowsTogether {
    uint32_t first;
    uint32_t count;
    Chunks chunks;
};

// Chunk `chunk` of the queries of part `place` (of `places`) of these rows. Everything is in the order of attend_chunk, so that a row has
// the bits that it has alone: what a row does not see counts nothing. A column is a head of a row; there are COLUMNS, 8 to a tile of the tensor
// cores. Keys and values are in the cache, queries at `a.q16`.
template <int HD, int STAGES, int W, int COLUMNS, bool Q8>
__device__ __forceinline__ void attend_rows_chunk(const AttendArgs& a, const RowsTogether& rows, uint32_t place, uint32_t places,
                                                  uint32_t chunk, bool is_first, uint8_t* tiles, AttendRowsShared<COLUMNS>& m) {
    constexpr int PIECES = HD / 8, THREADS = 32 * W, POSITIONS = 16 * W, PLANE = POSITIONS * (Q8 ? Q8_ROW<HD> : HD * 2), N = COLUMNS / 8;
    static_assert(POSITIONS % KV_TILE == 0);
    const uint32_t thread = threadIdx.x;
    const int lane = thread & 31, warp = thread >> 5;
    const uint32_t hd = a.layout.head_dim, group = a.n_heads / a.layout.n_kv_heads;
    const uint32_t kv_head = place / a.head_parts, first_head = place % a.head_parts * 8;
    const uint32_t n_q = min(8u, group - first_head), n_columns = rows.count * n_q;
    const Chunks& chunks = rows.chunks;
    const uint32_t start = chunks.begin + chunk * chunks.per, end = min(chunks.length, start + chunks.per);
    const uint32_t base = shared_address(tiles), row_bytes = a.layout.row_bytes, ring = a.layout.ring;
    const Session* s = a.sessions[0];
    const uint8_t* cache = kv_base(a.layout, s) + (uint64_t)kv_head * KV_TILE * row_bytes;
    const uint64_t plane = kv_plane(a.layout);
    const uint32_t groups = (hd + 31) / 32;  // Q8: of a row
    const uint32_t first_tile = ring ? start / KV_TILE % ring : start / KV_TILE, n_steps = (end - start + POSITIONS - 1) / POSITIONS;
    auto tile = [&](uint32_t t) { return cache + (first_tile + t - (ring && first_tile + t >= ring ? ring : 0)) * a.layout.tile_bytes; };
    // Positions of a row's context, and what of this chunk it sees, from its first position on.
    const uint32_t before = chunks.length - rows.count;
    auto length_of = [&](uint32_t row) { return before + 1 + row; };
    constexpr uint32_t STEP = THREADS / PIECES;
    static_assert(KV_TILE % STEP == 0);
    const uint32_t piece = thread % PIECES, row0 = thread / PIECES;
    const bool inside = piece * 16 < row_bytes;
    const uint32_t offset = row0 * row_bytes + (inside ? piece * 16 : 0);
    auto load = [&](uint32_t t) {
        if (t < n_steps) {
            const uint32_t to = base + t % STAGES * 2 * PLANE, there = end - (start + t * POSITIONS);
            if constexpr (Q8) copy_q8_tiles<HD, W>(to, plane, row_bytes, there, [&](uint32_t half) { return tile(t * (POSITIONS / KV_TILE) + half); });
#pragma unroll
            for (uint32_t half = 0; !Q8 && half < POSITIONS / KV_TILE; half++) {
                const uint8_t* from = tile(t * (POSITIONS / KV_TILE) + half) + offset;
#pragma unroll
                for (uint32_t k = 0; k < KV_TILE / STEP; k++) {
                    const uint32_t r = half * KV_TILE + row0 + k * STEP, at = to + swizzled<PIECES>(r, piece);
                    const bool valid = r < there && inside;
                    copy16(at, from + k * STEP * row_bytes, valid);
                    copy16(at + PLANE, from + plane + k * STEP * row_bytes, valid);
                }
            }
        }
        copies_commit();
    };
    // What the cache holds from the steps before is there already.
    const bool early = is_first && start + (STAGES - 1) * POSITIONS <= before - rows.first;
    if (is_first && !early) wait_for_producers();
#pragma unroll 1
    for (int t = 0; t < STAGES - 1; t++) load(t);
    if (early) wait_for_producers();
    // Queries, by way of the last stage, which is not in use yet.
    uint32_t q[N][HD / 16][2];
    {
        const uint32_t at = (STAGES - 1) * 2 * PLANE;
        constexpr uint32_t FOURS = HD / 4;
        for (uint32_t i = thread; i < COLUMNS * FOURS; i += THREADS) {
            const uint32_t column = i / FOURS, d = i % FOURS * 4, row = column / n_q, head = kv_head * group + first_head + column % n_q;
            uint2 v = make_uint2(0, 0);
            if (column < n_columns && d < hd)
                v = __ldcg((const uint2*)(a.q16 + ((uint64_t)(rows.first + row) * a.n_heads + head) * hd + d));
            *(uint2*)(tiles + at + swizzled<PIECES>(column, d / 8) + d % 8 * 2) = v;
        }
        __syncthreads();
        if (is_first) release_dependents();
#pragma unroll
        for (int n = 0; n < N; n++) {
            if constexpr (Q8) load_query_q8<HD>(q[n], tiles + at, n * 8 + (lane >> 2));
#pragma unroll
            for (int kk = 0; !Q8 && kk < HD / 16; kk += 2) {
                uint32_t r[4];
                load_matrices(r, base + at + swizzled<PIECES>(n * 8 + (lane & 7), kk * 2 + (lane >> 3)));
                q[n][kk][0] = r[0]; q[n][kk][1] = r[1]; q[n][kk + 1][0] = r[2]; q[n][kk + 1][1] = r[3];
            }
        }
        __syncthreads();
    }
    // Columns n * 8 + 2 * (lane & 3) and the next are this thread's: the first position that their rows see, and how many from there on.
    uint32_t first_of[N][2], seen[N][2];
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const uint32_t row = min((n * 8 + 2 * (lane & 3) + e) / n_q, rows.count - 1), length = length_of(row);
            first_of[n][e] = first_seen(a.layout, length);
            seen[n][e] = min(length, start + chunks.per) - first_of[n][e];
        }
    float acc[N][HD / 16][4] = {}, top[N][2], sum[N][2] = {};
#pragma unroll
    for (int n = 0; n < N; n++) top[n][0] = top[n][1] = -INFINITY;
    for (uint32_t t = 0; t < n_steps; t++) {
        load(t + STAGES - 1);
        copies_wait<STAGES - 1>();
        __syncthreads();
        const uint32_t keys = base + t % STAGES * 2 * PLANE, values = keys + PLANE;
        // Two sums, which need not wait for each other.
        float c[N][4] = {}, other[N][4] = {};
        if constexpr (Q8) score_q8<HD, N>(c, q, tiles, base, keys, row_bytes, groups);
#pragma unroll
        for (int kk = 0; !Q8 && kk < HD / 16; kk++) {
            uint32_t k[4];
            load_matrices(k, keys + swizzled<PIECES>(warp * 16 + (lane & 15), kk * 2 + (lane >> 4)));
#pragma unroll
            for (int n = 0; n < N; n++) mma(kk & 1 ? other[n] : c[n], k, q[n][kk][0], q[n][kk][1]);
        }
        const uint32_t p = start + t * POSITIONS + warp * 16 + (lane >> 2);
        uint32_t w[N][2];
        float keep[N][2];
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int e = 0; !Q8 && e < 4; e++) c[n][e] = __fadd_rn(c[n][e], other[n][e]);
            if (a.scores.cap != 0.0f)
#pragma unroll
                for (int e = 0; e < 4; e++) c[n][e] = capped(a.scores.cap, c[n][e]);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                // Positions before the first wrap around.
                if (p - first_of[n][e] >= seen[n][e]) c[n][e] = -INFINITY;
                if (p + 8 - first_of[n][e] >= seen[n][e]) c[n][e + 2] = -INFINITY;
                keep[n][e] = weigh_scores(c[n][e], c[n][e + 2], top[n][e], sum[n][e]);
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                __half2 pair = __floats2half2_rn(c[n][2 * h], c[n][2 * h + 1]);
                w[n][h] = transposed(*(uint32_t*)&pair);
            }
        }
        if constexpr (Q8) {
            const Q8Values<HD> of(tiles, base, values, row_bytes, groups);
#pragma unroll
            for (int g = 0; g < HD / 32; g++) {
                uint32_t v[2][4];
                of.group(v, g);
                add_values_q8<HD, N>(acc, w, keep, v, g);
            }
        }
#pragma unroll
        for (int j = 0; !Q8 && j < HD / 16; j++) {
            uint32_t v[4];
            uint32_t r = warp * 16 + (lane >> 4) * 8 + (lane & 7);
            load_matrices_transposed(v, values + swizzled<PIECES>(r, j * 2 + (lane >> 3 & 1)));
#pragma unroll
            for (int n = 0; n < N; n++) {
                float* to = acc[n][j];
                to[0] *= keep[n][0]; to[1] *= keep[n][1]; to[2] *= keep[n][0]; to[3] *= keep[n][1];
                mma(to, v, w[n][0], w[n][1]);
            }
        }
        __syncthreads();
    }
    copies_wait<0>();
    __syncthreads();
    // [warp][column][WIDTH]: the warps are merged in a fixed order.
    float* merge = (float*)tiles;
    constexpr int WIDTH = MERGE_WIDTH<HD>;
    static_assert(W * COLUMNS * WIDTH * 4 <= STAGES * 2 * PLANE);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            store_column<HD, Q8>(acc[n], e, top[n][e], sum[n][e], merge + (warp * COLUMNS + n * 8 + (lane & 3) * 2 + e) * WIDTH);
    __syncthreads();
    const bool whole = a.join && chunks.used == 1;
    auto used_of = [&](uint32_t row) { return (length_of(row) - chunks.begin + chunks.per - 1) / chunks.per; };
    // Four elements a thread; sizes of heads are multiples of 4.
#pragma unroll 1
    for (uint32_t i = thread * 4; i - lane * 4 < n_columns * hd; i += THREADS * 4) {
        const bool inside = i < n_columns * hd;
        const uint32_t g = inside ? i / hd : 0, d = inside ? i % hd : 0, of = g / n_q, row = rows.first + of;
        const uint32_t head = kv_head * group + first_head + g % n_q;
        float largest = -INFINITY, weight = 0.0f, total[4] = {};
        merge_warps<HD, W, COLUMNS * WIDTH>(merge + g * WIDTH, d, largest, weight, total);
        if (whole) {
            const float inverse = 1.0f / with_sink(a.scores, head, largest, weight);
#pragma unroll
            for (int e = 0; e < 4; e++) total[e] = let_through(a, row, head * hd + d + e, __fmul_rn(total[e], inverse));
            store_four(a, ((uint64_t)row * a.n_heads + head) * hd + d, total, inside);
        } else if (inside && chunk < used_of(of)) store_part(a, row, head, chunk, d, total, largest, weight);
    }
    if (!a.join || chunks.used == 1) return;
    if (!is_last_of(a.tickets + rows.first * places + place, chunks.used, m.is_last)) return;
    // All chunks of as many columns as there is room for come at once.
    const uint32_t stride = part_stride(hd), room = chunks.used * stride, at_once = min(n_columns, STAGES * 2 * PLANE / (room * 4));
    const float* parts = (const float*)tiles;
#pragma unroll 1
    for (uint32_t first = 0; first < n_columns; first += at_once) {
        const uint32_t n = min(at_once, n_columns - first);
        auto row_of = [&](uint32_t g) { return (first + g) / n_q; };
        auto head_of = [&](uint32_t g) { return kv_head * group + first_head + (first + g) % n_q; };
#pragma unroll 1
        for (uint32_t g = 0; g < n; g++) {
            const float* from = a.parts + ((uint64_t)(rows.first + row_of(g)) * a.n_heads + head_of(g)) * a.n_chunks * stride;
            const uint32_t of_head = used_of(row_of(g)) * stride;
#pragma unroll 4
            for (uint32_t i = thread * 4; i < of_head; i += THREADS * 4) copy16(base + (g * room + i) * 4, from + i, true);
        }
        copies_commit();
        copies_wait<0>();
        __syncthreads();
        for (uint32_t g = warp; g < n; g += W) weigh_chunks(a, head_of(g), parts + g * room + hd, used_of(row_of(g)), stride, m.factor[g]);
        __syncthreads();
        // Four elements a thread.
#pragma unroll 1
        for (uint32_t i = thread * 4; i - lane * 4 < n * hd; i += THREADS * 4) {
            const bool inside = i < n * hd;
            const uint32_t g = inside ? i / hd : 0, d = inside ? i % hd : 0, row = rows.first + row_of(g), used = used_of(row_of(g));
            float total[4] = {};
            join_chunks(parts + g * room + d, used, stride, m.factor[g], total);
            const uint32_t at = head_of(g) * hd + d;
#pragma unroll
            for (int e = 0; e < 4; e++) total[e] = let_through(a, row, at + e, __fmul_rn(total[e], m.factor[g][MAX_PARTS]));
            store_four(a, (uint64_t)row * a.n_heads * hd + at, total, inside);
        }
        __syncthreads();
    }
}

// A place's work, in units of a chunk of some rows, `at_once` if there are as many.
template <int HD, int STAGES, int W, int COLUMNS, bool Q8>
__device__ __forceinline__ void attend_rows_units(const AttendArgs& a, uint32_t position, uint32_t at_once, uint32_t chunks, uint8_t* tiles, AttendRowsShared<COLUMNS>& m) {
    const uint32_t units = (a.rows + at_once - 1) / at_once;
    bool is_first = true;
    for (uint32_t unit = blockIdx.y + gridDim.y * blockIdx.z; unit < units * chunks; unit += gridDim.y * gridDim.z) {
        const uint32_t begin = unit % units * at_once, end = min(a.rows, begin + at_once), chunk = unit / units;
        for (uint32_t first = begin; first < end;) {
            RowsTogether rows = {first, 1, chunks_of_length(a, position + 1 + first)};
            // Most rows have chunks like those of the one before them.
            for (; first + rows.count < end; rows.count++) {
                const Chunks next = chunks_of_length(a, position + 1 + first + rows.count);
                if (next.begin != rows.chunks.begin || next.per != rows.chunks.per || (next.used == 1) != (rows.chunks.used == 1)) break;
                rows.chunks = next;
            }
            if (chunk < rows.chunks.used) {
                attend_rows_chunk<HD, STAGES, W, COLUMNS, Q8>(a, rows, blockIdx.x, gridDim.x, chunk, is_first, tiles, m);
                is_first = false;
                __syncthreads();
            }
            first += rows.count;
        }
    }
}

// Grid (n_kv_heads * head_parts, y, z): y * z blocks share the rows and the chunks of a context. As few rows share tiles as let all work
// begin at once: what a block has for more of them takes longer.
template <int HD, int STAGES, int W, int COLUMNS, bool Q8> __device__ __forceinline__ void attend_rows(const AttendArgs& a) {
    DYNAMIC_SHARED(tiles);
    STATIC_SHARED(AttendRowsShared<COLUMNS>, shared);
    const uint32_t queries = min(8u, a.n_heads / a.layout.n_kv_heads), most = COLUMNS / queries;
    const uint32_t position = a.sessions[0]->position, used = chunks_of_length(a, position + a.rows).used;
    // A row between the first and the last has at most one chunk more than both.
    const uint32_t chunks = max(chunks_of_length(a, position + 1).used, used) + 1;
    uint32_t at_once = 1;
    while (at_once < most && gridDim.x * used * ((a.rows + at_once - 1) / at_once) > a.at_once) at_once = min(2 * at_once, most);
    if constexpr (COLUMNS > 8) {
        if (at_once * queries <= 8) {
            attend_rows_units<HD, STAGES, W, 8, Q8>(a, position, at_once, chunks, tiles, *(AttendRowsShared<8>*)&shared);
            return;
        }
    }
    attend_rows_units<HD, STAGES, W, COLUMNS, Q8>(a, position, at_once, chunks, tiles, shared);
}
