// The shared part of all attention kernels. The contract is in asynctile/ops/attention.py.
//
// attention_plain*.cu multiply in float, for any head size and both dtypes; attention_mma*.cu use tensor cores, for bf16. A
// block of threads works on one head of one sequence, and there on a block of queries or of keys.

// The score of a key that a query does not see.
#define HIDDEN __uint_as_float(0xff800000u)
#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f

// Where a block's head is stored: blockIdx.x = sequence * heads + head. rows and keys count one sequence.
struct Head {
    int pitch;       // elements from one row of a tile to the next
    size_t queries;  // from the first element of a tile like q to the head's first
    size_t keys;     // the same for a tile like k
    size_t state;    // the same for stats or delta; the sums of stats are `sums` further on
    size_t sums;
};

static __device__ __forceinline__ Head head_of_block(int rows, int keys, int heads, int hs) {
    int head = blockIdx.x % heads, sequence = blockIdx.x / heads, pitch = heads * hs;
    size_t all_rows = size_t(gridDim.x / heads) * rows;
    return {pitch, size_t(sequence) * rows * pitch + head * hs, size_t(sequence) * keys * pitch + head * hs,
            head * all_rows + size_t(sequence) * rows, heads * all_rows};
}

// Number of keys that the queries before `end` see.
static __device__ __forceinline__ int keys_seen(int end, int keys, bool diagonal) { return diagonal ? min(keys, end) : keys; }

// Number of queries that see a single key: the first of a sequence, or none. That key's weight is 1 for every score, so the
// gradient of the score is zero; computed, it would be the difference of two roundings.
static __device__ __forceinline__ int lone_queries(bool first, bool diagonal) { return first && diagonal; }
