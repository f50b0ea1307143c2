// The gradient of attention on tensor cores; see attention_mma.cu. Weights are recomputed from the log-sum-exp, twice: one
// kernel owns keys and passes over queries, for dk and dv; the other owns queries and passes over keys, for dq. So each sum has
// one owner and one order, and needs no atomic addition.

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// Rows of the passing operand whose scores a warp holds in registers.
#define MMA_STEP 32

// For scores with keys as rows and queries as columns: set to `value` those of queries before the key, and before `from`.
template <int M, int N>
static __device__ __forceinline__ void hide_queries(float (&scores)[M][N][4], int key, int query, float value,
                                                    int from = 0) {
    int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (query + n * 8 + pair + i % 2 < max(key + m * 16 + i / 2 * 8 + group, from)) scores[m][n][i] = value;
}

// The same scores: set to `value` those of queries of later examples than a key's, or, if LONE, of queries that see one key.
template <bool LONE, int M, int N>
static __device__ __forceinline__ void hide_later(float (&scores)[M][N][4], int key, int query, int rows,
                                                  const Examples &examples, float value) {
    int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int side = 0; side < 2; side++) {
            int column = query + n * 8 + pair + side;
            if (column >= rows) continue;
            if (LONE && !is_lone<true>(examples, column, 0)) continue;
            const int first = LONE ? 0 : examples.first_key(column) - key - group;
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int i = side; i < 4; i += 2)
                    if (LONE || m * 16 + i / 2 * 8 < first) scores[m][n][i] = value;
        }
}

// acc = rows of a times rows of b transposed, over HS columns. a, b: the lane's addresses by rows and by columns.
template <int HS, int M, int N>
static __device__ __forceinline__ void multiply(float (&acc)[M][N][4], const bf16 *a, const bf16 *b) {
    constexpr int PITCH = MmaShape<HS>::PITCH;
#pragma unroll
    for (int i = 0; i < HS; i += 16) {
        unsigned left[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) load_matrices(left[m], a + m * 16 * PITCH + i);
        times_transposed<PITCH>(acc, left, b + i);
    }
}

template <bool PACKED, int HS>
static __device__ __forceinline__ void attention_backward_keys_mma(
    const bf16 *q, const bf16 *k, const bf16 *v, Examples examples, const bf16 *dout, const float *stats, const float *delta,
    bf16 *dk, bf16 *dv, int rows, int keys, int heads, int key_heads, int hs, bool first, bool diagonal) {
    using Shape = MmaShape<HS>;
    constexpr int M = Shape::M, PITCH = Shape::PITCH, QUERIES = Shape::PASSING, SIZE = QUERIES * PITCH, N = MMA_STEP / 8;
    DYNAMIC_SHARED(bf16, own_keys);
    bf16 *own_values = own_keys + Shape::ROWS * PITCH;
    bf16 *buffers = own_values + Shape::ROWS * PITCH;  // queries and dout of one step, then of the next
    float *statistics = reinterpret_cast<float *>(buffers + 4 * SIZE);  // log-sum-exp and delta, likewise
    const Head at = group_of_block(rows, keys, heads, key_heads, hs);
    q += at.queries, dout += at.queries, stats += at.state, delta += at.state;
    k += at.keys, v += at.keys, dk += at.keys, dv += at.keys;
    if (PACKED) examples.positions += blockIdx.x / key_heads * rows;
    // Early keys are seen by most queries and come first.
    const int start = blockIdx.y * Shape::ROWS, offset = threadIdx.x / 32 * Shape::OWN, own = start + offset;
    const int pair = threadIdx.x % 4 * 2;
    const float scale = LOG2_E / sqrtf(float(hs));
    const int from = diagonal ? start : 0, lone = lone_queries(first, diagonal);
    int end = rows;  // the queries from there on are of later examples
    if (PACKED) {
        for (end = from; end < rows && examples.first_key(end) < start + Shape::ROWS;) end += QUERIES;
        end = min(end, rows);
    }
    const int passes = heads / key_heads * divide_up(max(end - from, 0), QUERIES);
    int ahead = from;  // the queries to stage next: of one head after another
    auto stage_queries = [&](int pass) {
        bf16 *to = buffers + pass % 2 * (2 * SIZE);
        float *numbers = statistics + pass % 2 * (2 * QUERIES);
        stage<HS, QUERIES>(to, q, ahead, rows, at.pitch, hs);
        stage<HS, QUERIES>(to + SIZE, dout, ahead, rows, at.pitch, hs);
        // Queries beyond the last are all zeros, and so is their contribution.
        if (threadIdx.x < 2 * QUERIES) {
            int r = ahead + threadIdx.x % QUERIES;
            const float *source = threadIdx.x < QUERIES ? stats : delta;
            copy_4_bytes(numbers + threadIdx.x, source + (r < rows ? r : 0), r < rows);
        }
        ahead += QUERIES;
        if (ahead >= end) ahead = from, q += hs, dout += hs, stats += at.line, delta += at.line;
    };
    stage<HS, Shape::ROWS>(own_keys, k, start, keys, at.key_pitch, hs);
    stage<HS, Shape::ROWS>(own_values, v, start, keys, at.key_pitch, hs);
    stage_queries(0);

    float dkeys[M][HS / 8][4] = {}, dvalues[M][HS / 8][4] = {};
    for (int pass = 0, block = from; pass < passes; pass++, block = block + QUERIES < end ? block + QUERIES : from) {
        wait_for_copies();
        __syncthreads();
        if (pass + 1 < passes) stage_queries(pass + 1);
        const bf16 *some_queries = buffers + pass % 2 * (2 * SIZE), *some_dout = some_queries + SIZE;
        const float *some_lse = statistics + pass % 2 * (2 * QUERIES), *some_delta = some_lse + QUERIES;
#pragma unroll 1
        for (int step = 0; step < QUERIES; step += MMA_STEP) {
            const int query = block + step;
            if (query >= rows || (diagonal && query + MMA_STEP <= own)) continue;
            if (PACKED && examples.first_key(query) >= own + Shape::OWN) continue;
            const bool edge = diagonal && query < own + Shape::OWN - 1;
            float weights[M][N][4] = {}, slopes[M][N][4] = {};
            multiply<HS>(weights, lane_by_rows<PITCH>(own_keys + offset * PITCH),
                         lane_by_columns<PITCH>(some_queries + step * PITCH));
            if (edge) hide_queries(weights, own, query, HIDDEN);
            if (PACKED) hide_later<false>(weights, own, query, rows, examples, HIDDEN);
#pragma unroll
            for (int n = 0; n < N; n++) {
                float2 lse = *reinterpret_cast<const float2 *>(some_lse + step + n * 8 + pair);
#pragma unroll
                for (int m = 0; m < M; m++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        weights[m][n][i] = fast_exp2(weights[m][n][i] * scale - (i % 2 ? lse.y : lse.x) * LOG2_E);
            }
            weighted<PITCH>(dvalues, weights, lane_by_rows<PITCH>(some_dout + step * PITCH));
            multiply<HS>(slopes, lane_by_rows<PITCH>(own_values + offset * PITCH),
                         lane_by_columns<PITCH>(some_dout + step * PITCH));
#pragma unroll
            for (int n = 0; n < N; n++) {
                float2 mean = *reinterpret_cast<const float2 *>(some_delta + step + n * 8 + pair);
#pragma unroll
                for (int m = 0; m < M; m++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        slopes[m][n][i] = weights[m][n][i] * (slopes[m][n][i] - (i % 2 ? mean.y : mean.x));
            }
            // Hidden weights are 0, and so are their slopes. For packed heads of up to 64 columns nothing hides these once more:
            // it would cost registers that the products need.
            if ((!PACKED || HS > 64) && edge) hide_queries(slopes, own, query, 0.0f, lone);
            if (PACKED) hide_later<true>(slopes, own, query, rows, examples, 0.0f);
            weighted<PITCH>(dkeys, slopes, lane_by_rows<PITCH>(some_queries + step * PITCH));
        }
    }
    if (PACKED) wait_for_copies();  // of queries that see no key
    put_rows(dk, dkeys, own, keys, at.key_pitch, hs, scale * LN_2, !diagonal);
    put_rows(dv, dvalues, own, keys, at.key_pitch, hs, 1.0f, !diagonal);
}

template <bool PACKED, int HS>
static __device__ __forceinline__ void attention_backward_queries_mma(
    const bf16 *q, const bf16 *k, const bf16 *v, Examples examples, const bf16 *dout, const float *stats, const float *delta,
    bf16 *dq, int rows, int keys, int heads, int key_heads, int hs, bool first, bool diagonal) {
    using Shape = MmaShape<HS>;
    constexpr int M = Shape::M, PITCH = Shape::PITCH, KEYS = Shape::PASSING, SIZE = KEYS * PITCH, N = MMA_STEP / 8;
    DYNAMIC_SHARED(bf16, own_queries);
    bf16 *own_dout = own_queries + Shape::ROWS * PITCH;
    bf16 *buffers = own_dout + Shape::ROWS * PITCH;
    const Head at = head_of_block(rows, keys, heads, key_heads, hs);
    q += at.queries, dout += at.queries, dq += at.queries, stats += at.state, delta += at.state, k += at.keys, v += at.keys;
    if (PACKED) examples.positions += blockIdx.x / heads * rows;
    const int start = (gridDim.y - 1 - blockIdx.y) * Shape::ROWS, offset = threadIdx.x / 32 * Shape::OWN, own = start + offset;
    const int reach = keys_seen(start + Shape::ROWS, keys, diagonal), lone = lone_queries(first, diagonal);
    const int from = first_seen<PACKED, KEYS>(examples, start);
    const float scale = LOG2_E / sqrtf(float(hs));
    auto stage_keys = [&](int key) {
        bf16 *to = buffers + key / KEYS % 2 * (2 * SIZE);
        stage<HS, KEYS>(to, k, key, keys, at.key_pitch, hs);
        stage<HS, KEYS>(to + SIZE, v, key, keys, at.key_pitch, hs);
    };
    stage<HS, Shape::ROWS>(own_queries, q, start, rows, at.pitch, hs);
    stage<HS, Shape::ROWS>(own_dout, dout, start, rows, at.pitch, hs);
    stage_keys(from);
    float lse[M][2], mean[M][2];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = own + m * 16 + half * 8 + threadIdx.x % 32 / 4;
            lse[m][half] = r < rows ? stats[r] * LOG2_E : 0.0f;
            mean[m][half] = r < rows ? delta[r] : 0.0f;
        }

    unsigned left[HS / 16][M][4], left_dout[HS / 16][M][4];
    float dqueries[M][HS / 8][4] = {};
    for (int block = from; block < reach; block += KEYS) {
        wait_for_copies();
        __syncthreads();
        if (block == from) {
            load_fragments<PITCH>(left, lane_by_rows<PITCH>(own_queries + offset * PITCH));
            load_fragments<PITCH>(left_dout, lane_by_rows<PITCH>(own_dout + offset * PITCH));
        }
        if (block + KEYS < reach) stage_keys(block + KEYS);
        const bf16 *some_keys = buffers + block / KEYS % 2 * (2 * SIZE), *some_values = some_keys + SIZE;
#pragma unroll 1
        for (int step = 0; step < KEYS; step += MMA_STEP) {
            const int key = block + step;
            if (key >= keys_seen(own + Shape::OWN, keys, diagonal)) continue;
            if (PACKED && own < rows && examples.first_key(own) >= key + MMA_STEP) continue;
            float weights[M][N][4] = {}, slopes[M][N][4] = {};
#pragma unroll
            for (int i = 0; i < HS / 16; i++) {
                times_transposed<PITCH>(weights, left[i], lane_by_columns<PITCH>(some_keys + step * PITCH) + i * 16);
                times_transposed<PITCH>(slopes, left_dout[i], lane_by_columns<PITCH>(some_values + step * PITCH) + i * 16);
            }
            const bool edge = key + MMA_STEP > keys_seen(own + 1, keys, diagonal);
            if (edge) hide_keys(weights, own, key, keys, diagonal, HIDDEN);
            if (PACKED) hide_earlier(weights, own, rows, key, examples, HIDDEN, false);
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int n = 0; n < N; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        slopes[m][n][i] =
                            fast_exp2(weights[m][n][i] * scale - lse[m][i / 2]) * (slopes[m][n][i] - mean[m][i / 2]);
            if (edge) hide_keys(slopes, own, key, keys, diagonal, 0.0f, lone);
            if (PACKED) hide_earlier(slopes, own, rows, key, examples, 0.0f, true);
            weighted<PITCH>(dqueries, slopes, lane_by_rows<PITCH>(some_keys + step * PITCH));
        }
    }
    if (PACKED) wait_for_copies();  // of keys that no query sees
    put_rows(dq, dqueries, own, rows, at.pitch, hs, scale * LN_2, !first);
}

KEYS_KERNEL(attention_backward_keys_mma_32, bf16, attention_backward_keys_mma<false, 32>)
QUERIES_KERNEL(attention_backward_queries_mma_32, bf16, attention_backward_queries_mma<false, 32>)
KEYS_KERNEL(attention_backward_keys_mma_64, bf16, attention_backward_keys_mma<false, 64>)
QUERIES_KERNEL(attention_backward_queries_mma_64, bf16, attention_backward_queries_mma<false, 64>)
KEYS_KERNEL(attention_backward_keys_mma_96, bf16, attention_backward_keys_mma<false, 96>)
QUERIES_KERNEL(attention_backward_queries_mma_96, bf16, attention_backward_queries_mma<false, 96>)
KEYS_KERNEL(attention_backward_keys_mma_128, bf16, attention_backward_keys_mma<false, 128>)
QUERIES_KERNEL(attention_backward_queries_mma_128, bf16, attention_backward_queries_mma<false, 128>)
PACKED_KEYS_KERNEL(attention_packed_backward_keys_mma_32, bf16, attention_backward_keys_mma<true, 32>)
PACKED_QUERIES_KERNEL(attention_packed_backward_queries_mma_32, bf16, attention_backward_queries_mma<true, 32>)
PACKED_KEYS_KERNEL(attention_packed_backward_keys_mma_64, bf16, attention_backward_keys_mma<true, 64>)
PACKED_QUERIES_KERNEL(attention_packed_backward_queries_mma_64, bf16, attention_backward_queries_mma<true, 64>)
PACKED_KEYS_KERNEL(attention_packed_backward_keys_mma_96, bf16, attention_backward_keys_mma<true, 96>)
PACKED_QUERIES_KERNEL(attention_packed_backward_queries_mma_96, bf16, attention_backward_queries_mma<true, 96>)
PACKED_KEYS_KERNEL(attention_packed_backward_keys_mma_128, bf16, attention_backward_keys_mma<true, 128>)
PACKED_QUERIES_KERNEL(attention_packed_backward_queries_mma_128, bf16, attention_backward_queries_mma<true, 128>)

#endif
