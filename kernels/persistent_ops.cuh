// What the kernel of a whole step is told (persistent.cuh): operations, and the shares of blocks.
#pragma once
#include "activation.cuh"
#include "attend.cuh"
#include "matvec.cuh"
#include "norm.cuh"

// Rows of one type of a product, and how they are shared: its blocks have `quads` fours of rows each, the
// first `more` of them one more. For GATE, all is said of half the rows.
struct Part {
    const uint8_t* matrix;
    const float* bias;      // or NULL
    uint32_t type;
    uint32_t rows;
    uint32_t first_block;
    uint32_t blocks;
    uint32_t quads, more;
    uint32_t out_offset;    // where its first row lies in the output
    uint32_t n_slices;
    uint32_t full, last;    // groups of a slice
    uint32_t full_bytes, last_bytes;  // of a record
    uint32_t quad_bytes;    // of a slot's pieces
    uint32_t quads_per_slot;
};
static_assert(sizeof(Part) == 72, "as in args.rs");

// out = matrix * input (+ bias) (+ residual), or a function of it.
struct ProductOp {
    Part parts[MAX_SEGMENTS];
    const float* x;         // input: f32, which becomes int8 here
    uint32_t* encoded;      // where the blocks put the int8 of a group each for all, or NULL: each makes its own
    NormArgs norm;          // of x; weight NULL: none; not with `encoded`
    float* out;
    const float* residual;  // or NULL
    uint32_t n_parts;
    uint32_t groups;        // of 32 elements in a row
    uint32_t chunk_quads;   // fours of rows that a block sums at a time: bounds its shared memory
    uint32_t ending;
    float inverse_len;      // of a row of x
    Activation activation;
};
static_assert(sizeof(ProductOp) == 376, "as in args.rs");

enum Ending : uint32_t {
    PLAIN = 0,
    ACTIVATE = 1,  // out = activation(product)
    GATE = 2,      // out = activation(upper half of the rows) * lower half: one segment
};

enum OpKind : uint32_t { PRODUCT = 0, ATTEND = 1 };

struct Op {
    uint32_t kind;
    uint32_t padding;
    union {
        ProductOp product;
        AttendArgs attend;
    };
};
static_assert(sizeof(Op) == 384, "as in args.rs");

struct PersistentArgs {
    const Op* ops;       // [2][n_ops]: on the first and on the second set of outputs
    const Session* const* sessions;
    uint32_t* state;     // {blocks that have ended, which set is next}
    uint32_t* outputs;   // [2][output_words]
    uint64_t* times;     // [n_ops][2] clock of block 0 when it has an operation's input, and at its end; or NULL
    uint32_t output_words;
    uint32_t n_ops;
    uint32_t slots;      // of the ring
    uint32_t ahead;      // how many slots further weights are asked for
};
static_assert(sizeof(PersistentArgs) == 56, "as in args.rs");

constexpr int WORKERS = 512;             // threads that compute
constexpr int THREADS = WORKERS + 128;   // a warp of the others brings in weights, one goes ahead, one clears outputs
constexpr uint32_t SLOT_BYTES = 18432;   // 8 quads of Q4_K
constexpr uint32_t MAX_SLOTS = 16;
constexpr uint32_t SLOT_ARRIVALS = 16;   // at least the quads of a slot
constexpr uint32_t SLOT_STEP = 8;        // a divisor of the number of slots
constexpr int ATTEND_STAGES = 2;         // fewer than in a kernel of its own: the ring of weights needs the room
constexpr uint32_t OP_WORDS = sizeof(Op) / 4;

#if __CUDA_ARCH__ >= 900

using Workers = FirstThreads<1, WORKERS>;
using Attendants = FirstThreads<2, 128>;

// The part that this block has a share of, or NULL.
__device__ __forceinline__ const Part* part_of(const ProductOp& op) {
    for (uint32_t i = 0; i < op.n_parts; i++)
        if (blockIdx.x - op.parts[i].first_block < op.parts[i].blocks) return &op.parts[i];
    return NULL;
}
// Its share: quads from `begin` to `end`, of which the last one may have less than four rows.
struct Share {
    uint32_t begin, end;
    __device__ __forceinline__ explicit Share(const Part& p) {
        const uint32_t block = blockIdx.x - p.first_block;
        begin = block * p.quads + min(block, p.more);
        end = begin + p.quads + (block < p.more ? 1 : 0);
    }
};

// a / b for numbers far below 2^20, without the long way of a division of integers.
__device__ __forceinline__ uint32_t small_quotient(uint32_t a, uint32_t b) {
    return (uint32_t)__fdividef((float)a + 0.5f, (float)b);
}

#endif
