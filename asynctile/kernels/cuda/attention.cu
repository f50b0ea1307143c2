// The shared part of all attention kernels. The contract is in asynctile/ops/attention.py.
//
// attention_plain*.cu multiply in float, for any head size and both dtypes; attention_mma*.cu use tensor cores, for bf16. A
// block of threads works on one head of one sequence, and there on a block of queries or of keys. Keys may have fewer heads
// than queries: a block of queries reads its head's keys, and a block of keys passes over the queries of all heads that read
// it, one head after another.
//
// PACKED: sequences hold several examples.

// The score of a key that a query does not see.
#define HIDDEN __uint_as_float(0xff800000u)
#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f

// Where a block's head is stored. rows and keys count one sequence.
struct Head {
    int pitch;       // elements from one row of a tile like q to the next
    int key_pitch;   // the same for a tile like k
    size_t queries;  // from the first element of a tile like q to the head's first
    size_t keys;     // the same for a tile like k
    size_t state;    // the same for stats or delta; the next head is `line` further on, and the sums of stats are `sums`
    int line;
    int sums;
};

static __device__ __forceinline__ Head find_head(int sequences, int sequence, int head, int rows, int keys, int heads,
                                                 int key_heads, int hs) {
    int pitch = heads * hs, key_pitch = key_heads * hs, key_head = head / (heads / key_heads), line = sequences * rows;
    return {pitch, key_pitch, size_t(sequence) * rows * pitch + head * hs, size_t(sequence) * keys * key_pitch + key_head * hs,
            size_t(head) * line + sequence * rows, line, heads * line};
}

// A block's query head, and the keys that it reads: blockIdx.x = sequence * heads + head.
static __device__ __forceinline__ Head head_of_block(int rows, int keys, int heads, int key_heads, int hs) {
    int head = blockIdx.x % heads, sequence = blockIdx.x / heads;
    return find_head(gridDim.x / heads, sequence, head, rows, keys, heads, key_heads, hs);
}

// A block's key head, and the first of the heads / key_heads query heads that read it, which are neighbors:
// blockIdx.x = sequence * key_heads + key head.
static __device__ __forceinline__ Head group_of_block(int rows, int keys, int heads, int key_heads, int hs) {
    int head = blockIdx.x % key_heads * (heads / key_heads), sequence = blockIdx.x / key_heads;
    return find_head(gridDim.x / key_heads, sequence, head, rows, keys, heads, key_heads, hs);
}

// The examples of a sequence of queries. positions: of the queries. apart: how far the first query is behind the first key.
struct Examples {
    const int *positions;
    int apart;
    // The first key that a query sees. It ascends with the queries.
    __device__ __forceinline__ int first_key(int query) const { return apart + query - positions[query]; }
};

// The first key that the queries from `query` on see, rounded down to a multiple of STEP; 0 if nothing is packed.
template <bool PACKED, int STEP>
static __device__ __forceinline__ int first_seen(const Examples &examples, int query) {
    return PACKED ? max(0, examples.first_key(query)) / STEP * STEP : 0;
}

// The running maximum of a query that has seen no key. Of packed queries it is finite, and below every score, so that their
// weights of hidden keys are 0 and not NaN.
#define UNSEEN(PACKED) ((PACKED) ? -1e38f : HIDDEN)

// Number of keys that the queries before `end` see.
static __device__ __forceinline__ int keys_seen(int end, int keys, bool diagonal) { return diagonal ? min(keys, end) : keys; }

// Number of queries that see a single key: the first of a sequence, or none. That key's weight is 1 for every score, so the
// gradient of the score is zero; computed, it would be the difference of two roundings.
static __device__ __forceinline__ int lone_queries(bool first, bool diagonal) { return first && diagonal; }

// Whether a query sees a single key.
template <bool PACKED>
static __device__ __forceinline__ bool is_lone(const Examples &examples, int query, int lone) {
    return PACKED ? examples.positions[query] == 0 : query < lone;
}

// One kernel of each signature, whose name is its first argument, as literally as a driver looks for it. T: of q. ...: the
// function that it calls.
#define FORWARD_KERNEL(NAME, T, BLOCKS, ...) \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS) NAME( \
        const T *q, const T *k, const T *v, T *out, float *stats, int rows, int keys, int heads, int key_heads, \
        int hs, int first, int diagonal) { \
        __VA_ARGS__(q, k, v, {}, out, stats, rows, keys, heads, key_heads, hs, first, diagonal); \
    }
#define PACKED_FORWARD_KERNEL(NAME, T, BLOCKS, ...) \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS) NAME( \
        const T *q, const T *k, const T *v, const int *positions, T *out, float *stats, int apart, int rows, int keys, \
        int heads, int key_heads, int hs, int first, int diagonal) { \
        __VA_ARGS__(q, k, v, {positions, apart}, out, stats, rows, keys, heads, key_heads, hs, first, diagonal); \
    }
#define KEYS_KERNEL(NAME, T, ...) \
    extern "C" __global__ void __launch_bounds__(128, 2) NAME( \
        const T *q, const T *k, const T *v, const T *dout, const float *stats, const float *delta, T *dk, T *dv, \
        int rows, int keys, int heads, int key_heads, int hs, int first, int diagonal) { \
        __VA_ARGS__(q, k, v, {}, dout, stats, delta, dk, dv, rows, keys, heads, key_heads, hs, first, diagonal); \
    }
#define PACKED_KEYS_KERNEL(NAME, T, ...) \
    extern "C" __global__ void __launch_bounds__(128, 2) NAME( \
        const T *q, const T *k, const T *v, const int *positions, const T *dout, const float *stats, \
        const float *delta, T *dk, T *dv, int apart, int rows, int keys, int heads, int key_heads, int hs, int first, \
        int diagonal) { \
        __VA_ARGS__(q, k, v, {positions, apart}, dout, stats, delta, dk, dv, rows, keys, heads, key_heads, hs, first, \
                    diagonal); \
    }
#define QUERIES_KERNEL(NAME, T, ...) \
    extern "C" __global__ void __launch_bounds__(128, 2) NAME( \
        const T *q, const T *k, const T *v, const T *dout, const float *stats, const float *delta, T *dq, int rows, \
        int keys, int heads, int key_heads, int hs, int first, int diagonal) { \
        __VA_ARGS__(q, k, v, {}, dout, stats, delta, dq, rows, keys, heads, key_heads, hs, first, diagonal); \
    }
#define PACKED_QUERIES_KERNEL(NAME, T, ...) \
    extern "C" __global__ void __launch_bounds__(128, 2) NAME( \
        const T *q, const T *k, const T *v, const int *positions, const T *dout, const float *stats, \
        const float *delta, T *dq, int apart, int rows, int keys, int heads, int key_heads, int hs, int first, \
        int diagonal) { \
        __VA_ARGS__(q, k, v, {positions, apart}, dout, stats, delta, dq, rows, keys, heads, key_heads, hs, first, diagonal); \
    }
