// Attention in float arithmetic, for both dtypes, any head size and any number of rows; see attention.cu.
//
// A block of 128 threads multiplies 64 x 64 blocks, which are in shared memory as floats. Thread (y, x) = (id / 16, id % 16)
// has rows y + 8 i of the result and four columns. Rows in shared memory have 4 floats of padding, so that neither threads of
// different rows nor threads of different columns read from one bank. Heads of more than 64 columns are cut into panels of 64.
// Scores are sums over all panels, and each panel of the result takes a pass of its own, which recomputes the scores. So the
// head size costs only time, and heads up to 64 columns, which all GPT-2 have, cost nothing extra.

#define PLAIN_SIDE 64
#define PLAIN_PITCH 68
#define PLAIN_THREADS 128
#define PLAIN_SIZE (PLAIN_SIDE * PLAIN_PITCH)

// Load a 64 x 64 block of a head as floats; rows and columns that do not exist become zeros.
template <typename T>
static __device__ __forceinline__ void fetch(float *to, const T *from, int row, int rows, int column, int hs, int pitch) {
    if (hs % 4 == 0) {
        const int r = threadIdx.x / 16, c = threadIdx.x % 16 * 4, here = column + c < hs ? rows - row - r : 0;
        const T *source = from + size_t(row + r) * pitch + column + c;
#pragma unroll
        for (int i = 0; i < PLAIN_SIDE; i += PLAIN_THREADS / 16, source += PLAIN_THREADS / 16 * pitch) {
            float four[4] = {};
            if (i < here) load(source, four);
            store(to + (r + i) * PLAIN_PITCH + c, four);
        }
    } else {
        const int r = threadIdx.x / PLAIN_SIDE, c = threadIdx.x % PLAIN_SIDE, here = column + c < hs ? rows - row - r : 0;
        const T *source = from + size_t(row + r) * pitch + column + c;
#pragma unroll 8
        for (int i = 0; i < PLAIN_SIDE; i += PLAIN_THREADS / PLAIN_SIDE, source += PLAIN_THREADS / PLAIN_SIDE * pitch)
            to[(r + i) * PLAIN_PITCH + c] = i < here ? to_float(*source) : 0.0f;
    }
}

// acc += a b^T over `depth` columns. The thread's columns of the result, which are rows of b, are x + 16 j.
static __device__ __forceinline__ void fold_rows(float (&acc)[8][4], const float *a, const float *b, int depth) {
    const float *a_row = a + threadIdx.x / 16 * PLAIN_PITCH, *b_row = b + threadIdx.x % 16 * PLAIN_PITCH;
    for (int k = 0; k < depth; k += 4) {
        float right[4][4];
#pragma unroll
        for (int j = 0; j < 4; j++) load(b_row + j * 16 * PLAIN_PITCH + k, right[j]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float left[4];
            load(a_row + i * 8 * PLAIN_PITCH + k, left);
#pragma unroll
            for (int l = 0; l < 4; l++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[i][j] += left[l] * right[j][l];
        }
    }
}

// acc += a b over `depth` rows of b. The thread's columns of the result are 4 x + j.
static __device__ __forceinline__ void fold_columns(float (&acc)[8][4], const float *a, const float *b, int depth) {
    const float *a_row = a + threadIdx.x / 16 * PLAIN_PITCH, *b_column = b + threadIdx.x % 16 * 4;
    for (int k = 0; k < depth; k += 4) {
        float right[4][4];
#pragma unroll
        for (int l = 0; l < 4; l++) load(b_column + (k + l) * PLAIN_PITCH, right[l]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float left[4];
            load(a_row + i * 8 * PLAIN_PITCH + k, left);
#pragma unroll
            for (int l = 0; l < 4; l++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[i][j] += left[l] * right[l][j];
        }
    }
}

// Share a result with columns x + 16 j as the left operand of the next product. Only threads of the same warp read it.
static __device__ __forceinline__ void share(float *to, const float (&values)[8][4]) {
    float *at = to + threadIdx.x / 16 * PLAIN_PITCH + threadIdx.x % 16;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) at[i * 8 * PLAIN_PITCH + j * 16] = values[i][j];
    __syncwarp();
}

// Write a result with columns 4 x + j to a panel of a tile, where the tile has them: times factor, added to the tile's values
// if `add`. Offsets are 32-bit, which is enough for a tile: 64 bits would cost registers that the products need.
template <typename T>
static __device__ __forceinline__ void put_panel(T *to, const float (&acc)[8][4], int row, int rows, int column, int hs,
                                                 int pitch, float factor, bool add) {
    column += threadIdx.x % 16 * 4, row += threadIdx.x / 16;
    unsigned at = row * pitch + column;
#pragma unroll
    for (int i = 0; i < 8; i++, at += 8 * pitch)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (row + i * 8 < rows && column + j < hs)
                assign(to[at + j], (add ? to_float(to[at + j]) : 0.0f) + acc[i][j] * factor);
}

// Read a panel back, to continue from a stored state.
template <typename T>
static __device__ __forceinline__ void get_panel(const T *from, float (&acc)[8][4], int row, int rows, int column, int hs,
                                                 int pitch) {
    column += threadIdx.x % 16 * 4, row += threadIdx.x / 16;
    unsigned at = row * pitch + column;
#pragma unroll
    for (int i = 0; i < 8; i++, at += 8 * pitch)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (row + i * 8 < rows && column + j < hs) acc[i][j] = to_float(from[at + j]);
}

template <bool PACKED, typename T>
static __device__ __forceinline__ void attention_plain(const T *q, const T *k, const T *v, Examples examples, T *out,
                                                       float *stats, int rows, int keys, int heads, int key_heads, int hs,
                                                       bool first, bool diagonal) {
    DYNAMIC_SHARED(float, some_queries);
    float *some_keys = some_queries + PLAIN_SIZE, *some_values = some_keys + PLAIN_SIZE, *weights = some_keys;
    const Head at = head_of_block(rows, keys, heads, key_heads, hs);
    q += at.queries, out += at.queries, k += at.keys, v += at.keys, stats += at.state;
    if (PACKED) examples.positions += blockIdx.x / heads * rows;
    // Blocks start in the order of their numbers; the blocks that see the most keys come first.
    const int start = (gridDim.y - 1 - blockIdx.y) * PLAIN_SIDE, y = threadIdx.x / 16, x = threadIdx.x % 16;
    const int reach = keys_seen(start + PLAIN_SIDE, keys, diagonal), from = first_seen<PACKED, PLAIN_SIDE>(examples, start);
    const float scale = 1.0f / sqrtf(float(hs));
    float top[8], total[8];
    for (int panel = 0; panel < hs; panel += PLAIN_SIDE) {
        float acc[8][4] = {};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int r = start + y + i * 8;
            bool old = !first && r < rows;
            top[i] = old ? stats[r] : UNSEEN(PACKED);
            total[i] = old && !x ? stats[at.sums + r] : 0.0f;
        }
        if (!first) get_panel(out, acc, start, rows, panel, hs, at.pitch);
        for (int key = from; key < reach; key += PLAIN_SIDE) {
            float scores[8][4] = {};
            for (int column = 0; column < hs; column += PLAIN_SIDE) {
                __syncthreads();
                if (hs > PLAIN_SIDE || key == from) fetch(some_queries, q, start, rows, column, hs, at.pitch);
                fetch(some_keys, k, key, keys, column, hs, at.key_pitch);
                if (column == 0) fetch(some_values, v, key, keys, panel, hs, at.key_pitch);
                __syncthreads();
                fold_rows(scores, some_queries, some_keys, min(hs - column, PLAIN_SIDE));
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                int r = start + y + i * 8, seen = keys_seen(r + 1, keys, diagonal), hidden = 0;
                if (PACKED) hidden = r < rows ? examples.first_key(r) : 0;
                float largest = top[i];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    int c = key + x + j * 16;
                    scores[i][j] = c < seen && (!PACKED || c >= hidden) ? scores[i][j] * scale : HIDDEN;
                    largest = fmaxf(largest, scores[i][j]);
                }
#pragma unroll
                for (int lanes = 8; lanes; lanes /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
                float shrink = __expf(top[i] - largest);
                top[i] = largest, total[i] *= shrink;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    total[i] += scores[i][j] = __expf(scores[i][j] - largest);
                    acc[i][j] *= shrink;
                }
            }
            __syncthreads();  // weights overwrite the keys
            share(weights, scores);
            fold_columns(acc, weights, some_values, min(keys - key, PLAIN_SIDE));
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
#pragma unroll
            for (int lanes = 8; lanes; lanes /= 2) total[i] += __shfl_xor_sync(~0u, total[i], lanes);
            float share_of_all = diagonal ? 1.0f / total[i] : 1.0f;
#pragma unroll
            for (int j = 0; j < 4; j++) acc[i][j] *= share_of_all;
        }
        put_panel(out, acc, start, rows, panel, hs, at.pitch, 1.0f, false);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int r = start + y + i * 8;
        if (x || r >= rows) continue;
        stats[r] = diagonal ? top[i] + logf(total[i]) : top[i];
        stats[at.sums + r] = total[i];
    }
}

FORWARD_KERNEL(attention_plain_f32, float, 3, attention_plain<false>)
FORWARD_KERNEL(attention_plain_bf16, bf16, 3, attention_plain<false>)
PACKED_FORWARD_KERNEL(attention_packed_plain_f32, float, 3, attention_plain<true>)
PACKED_FORWARD_KERNEL(attention_packed_plain_bf16, bf16, 3, attention_plain<true>)
