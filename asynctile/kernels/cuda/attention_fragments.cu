// Attention on tensor cores, bf16: staging blocks in shared memory, loading them into fragments, and products of fragments. See
// attention.cu. For head sizes that are multiples of 8, up to 128.
//
// HS columns of a head are staged, at least hs of them; the columns beyond hs are zeros. Rows in shared memory have 16 bytes of
// padding, so that the 8 rows that ldmatrix reads at once are in different banks. A warp owns M tiles of 16 rows. With two
// tiles each fragment of the other operand is used twice, and shared memory keeps up with the tensor cores. Larger heads have
// registers for one tile only.

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

#define MMA_THREADS 128

template <int HS>
struct MmaShape {
    static constexpr int M = HS <= 64 ? 2 : 1;
    static constexpr int OWN = 16 * M;                       // rows of a warp
    static constexpr int ROWS = OWN * (MMA_THREADS / 32);    // rows that a block owns
    static constexpr int PITCH = HS + 8;
    static constexpr int PASSING = HS <= 64 ? 64 : 32;       // rows of the other operand that gradients hold at a time
};

// Start to copy rows row .. row + ROWS - 1 of a head, as far as they exist; the rest becomes zeros.
template <int HS, int ROWS>
static __device__ __forceinline__ void stage(bf16 *to, const bf16 *from, int row, int rows, int pitch, int hs) {
    constexpr int LANES = HS < 64 ? HS / 8 : 8, STEP = MMA_THREADS / LANES;  // threads of a row, rows at once
    const int r = threadIdx.x / LANES, c = threadIdx.x % LANES * 8;
    static_assert(ROWS % STEP == 0, "whole steps");
#pragma unroll
    for (int column = c; column < HS; column += LANES * 8) {
        const bf16 *source = from + (column < hs ? column : 0);
#pragma unroll
        for (int i = 0; i < ROWS; i += STEP) {
            bool there = row + r + i < rows && column < hs;
            copy_16_bytes(to + (r + i) * MmaShape<HS>::PITCH + column, source + size_t(there ? row + r + i : 0) * pitch, there);
        }
    }
}

// Return where a lane's row of a 16 x 16 block starts: for the fragment of a left operand, or of a transposed right one.
template <int PITCH>
static __device__ __forceinline__ const bf16 *lane_by_rows(const bf16 *block) {
    int lane = threadIdx.x % 32;
    return block + lane % 16 * PITCH + lane / 16 * 8;
}

// The same for a right operand whose columns are the rows of the block.
template <int PITCH>
static __device__ __forceinline__ const bf16 *lane_by_columns(const bf16 *block) {
    int lane = threadIdx.x % 32;
    return block + (lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 8;
}

// acc += a b^T over 16 columns. b: 8 N rows, the lane's address by columns.
template <int PITCH, int M, int N>
static __device__ __forceinline__ void times_transposed(float (&acc)[M][N][4], const unsigned (&a)[M][4], const bf16 *b) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        unsigned part[4];
        load_matrices(part, b + n * 8 * PITCH);
#pragma unroll
        for (int m = 0; m < M; m++) {
            mma_16x8x16(acc[m][n], a[m], part[0], part[1]);
            mma_16x8x16(acc[m][n + 1], a[m], part[2], part[3]);
        }
    }
}

// acc += a b over 16 rows of b with 8 N columns. b: the lane's address by rows.
template <int M, int N>
static __device__ __forceinline__ void times(float (&acc)[M][N][4], const unsigned (&a)[M][4], const bf16 *b) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        unsigned part[4];
        load_matrices_transposed(part, b + n * 8);
#pragma unroll
        for (int m = 0; m < M; m++) {
            mma_16x8x16(acc[m][n], a[m], part[0], part[1]);
            mma_16x8x16(acc[m][n + 1], a[m], part[2], part[3]);
        }
    }
}

// acc += weights b, where weights (16 M, 8 K) are accumulators, rounded to bf16 here, and b has 8 K rows.
template <int PITCH, int M, int K, int N>
static __device__ __forceinline__ void weighted(float (&acc)[M][N][4], const float (&weights)[M][K][4], const bf16 *b) {
#pragma unroll
    for (int k = 0; k < K; k += 2) {
        unsigned a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *pair = weights[m][k + i / 2] + i % 2 * 2;
                a[m][i] = pack_bf16(pair[0], pair[1]);
            }
        times(acc, a, b + k * 8 * PITCH);
    }
}

// Load the left fragments of all columns of a warp's rows. rows: the lane's address by rows.
template <int PITCH, int M, int K>
static __device__ __forceinline__ void load_fragments(unsigned (&to)[K][M][4], const bf16 *rows) {
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int m = 0; m < M; m++) load_matrices(to[k][m], rows + m * 16 * PITCH + k * 16);
}

// Write a warp's rows to a tile, where the tile has them: acc times factor, added to the tile's values if `add`.
template <int M, int N>
static __device__ __forceinline__ void put_rows(bf16 *to, const float (&acc)[M][N][4], int row, int rows, int pitch, int hs,
                                                float factor, bool add) {
    int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = row + m * 16 + half * 8 + group;
            if (r >= rows) continue;
#pragma unroll
            for (int n = 0; n < N; n++) {
                if (n * 8 >= hs) break;
                unsigned *at = reinterpret_cast<unsigned *>(to + size_t(r) * pitch + n * 8 + pair);
                float low = 0.0f, high = 0.0f;
                if (add) unpack_bf16(*at, low, high);
                *at = pack_bf16(low + acc[m][n][half * 2] * factor, high + acc[m][n][half * 2 + 1] * factor);
            }
        }
}

// Set to `value` the scores of keys that a query does not see: those beyond the last, and on the diagonal those after it.
// Queries before `from` see no key.
template <int M, int N>
static __device__ __forceinline__ void hide_keys(float (&scores)[M][N][4], int query, int key, int keys, bool diagonal,
                                                 float value, int from = 0) {
    int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int row = query + m * 16 + i / 2 * 8 + group, seen = row < from ? 0 : keys_seen(row + 1, keys, diagonal);
                if (key + n * 8 + pair + i % 2 >= seen) scores[m][n][i] = value;
            }
}

// Set to `value` the scores of keys of earlier examples than a query's; with `lone`, also those of queries that see one key.
template <int M, int N>
static __device__ __forceinline__ void hide_earlier(float (&scores)[M][N][4], int query, int rows, int key,
                                                    const Examples &examples, float value, bool lone) {
    int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = query + m * 16 + half * 8 + group;
            if (row >= rows) continue;
            int first = examples.first_key(row);
            bool none = lone && is_lone<true>(examples, row, 0);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = half * 2; i < half * 2 + 2; i++)
                    if (none || key + n * 8 + pair + i % 2 < first) scores[m][n][i] = value;
        }
}

#endif
