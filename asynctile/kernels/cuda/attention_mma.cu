// Attention on tensor cores, bf16; see attention_fragments.cu. Weights never leave registers: the accumulators of q k^T have
// the layout that the left operand of P v needs.

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// The softmax state of a warp's rows: two rows per tile and lane.
template <int M>
struct Softmax {
    float top[M][2];    // running maximum of the scaled scores, in powers of two
    float total[M][2];  // this lane's part of the running sum
};

// Turn scores into weights under the new maximum, and scale the running sums to it.
template <int M, int K, int N>
static __device__ __forceinline__ void weigh(float (&scores)[M][K][4], Softmax<M> &state, float (&acc)[M][N][4], float scale) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float largest = HIDDEN;
#pragma unroll
            for (int k = 0; k < K; k++) largest = fmaxf(largest, fmaxf(scores[m][k][half * 2], scores[m][k][half * 2 + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
            float top = fmaxf(state.top[m][half], largest * scale), shrink = fast_exp2(state.top[m][half] - top), sum = 0.0f;
#pragma unroll
            for (int k = 0; k < K; k++)
#pragma unroll
                for (int i = half * 2; i < half * 2 + 2; i++) sum += scores[m][k][i] = fast_exp2(scores[m][k][i] * scale - top);
            state.top[m][half] = top;
            state.total[m][half] = state.total[m][half] * shrink + sum;
#pragma unroll
            for (int n = 0; n < N; n++) acc[m][n][half * 2] *= shrink, acc[m][n][half * 2 + 1] *= shrink;
        }
}

// Load the state that earlier tiles of keys left in out and stats.
template <int M, int N>
static __device__ __forceinline__ void take_up(const bf16 *out, const float *stats, const Head &at, int row, int rows, int hs,
                                               Softmax<M> &state, float (&acc)[M][N][4]) {
    int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = row + m * 16 + half * 8 + group;
            if (r >= rows) continue;
            state.top[m][half] = stats[at.state + r] * LOG2_E;
            state.total[m][half] = pair ? 0.0f : stats[at.state + at.sums + r];
#pragma unroll
            for (int n = 0; n < N; n++)
                if (n * 8 < hs)
                    unpack_bf16(*reinterpret_cast<const unsigned *>(out + size_t(r) * at.pitch + n * 8 + pair),
                                acc[m][n][half * 2], acc[m][n][half * 2 + 1]);
        }
}

// Store the statistics, and after the last keys divide by the sums.
template <int M, int N>
static __device__ __forceinline__ void finish(float *stats, const Head &at, int row, int rows, bool last,
                                              const Softmax<M> &state, float (&acc)[M][N][4]) {
    int group = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = row + m * 16 + half * 8 + group;
            float total = state.total[m][half], top = state.top[m][half] * LN_2;
            total += __shfl_xor_sync(~0u, total, 1);
            total += __shfl_xor_sync(~0u, total, 2);
            if (!pair && r < rows) {
                stats[at.state + r] = last ? top + logf(total) : top;
                stats[at.state + at.sums + r] = total;
            }
            float share = last ? 1.0f / total : 1.0f;
#pragma unroll
            for (int n = 0; n < N; n++) acc[m][n][half * 2] *= share, acc[m][n][half * 2 + 1] *= share;
        }
}

template <bool PACKED, int HS>
static __device__ __forceinline__ void attention_mma(const bf16 *q, const bf16 *k, const bf16 *v, Examples examples, bf16 *out,
                                                     float *stats, int rows, int keys, int heads, int key_heads, int hs,
                                                     bool first, bool diagonal) {
    using Shape = MmaShape<HS>;
    constexpr int M = Shape::M, PITCH = Shape::PITCH, KEYS = 64, SIZE = KEYS * PITCH;
    DYNAMIC_SHARED(bf16, queries);
    bf16 *buffers = queries + Shape::ROWS * PITCH;  // keys and values of one step, then of the next
    const Head at = head_of_block(rows, keys, heads, key_heads, hs);
    q += at.queries, out += at.queries, k += at.keys, v += at.keys;
    if (PACKED) examples.positions += blockIdx.x / heads * rows;
    // Blocks start in the order of their numbers; the blocks that see the most keys come first.
    const int start = (gridDim.y - 1 - blockIdx.y) * Shape::ROWS, warp = threadIdx.x / 32, own = start + warp * Shape::OWN;
    const int reach = keys_seen(start + Shape::ROWS, keys, diagonal), from = first_seen<PACKED, KEYS>(examples, start);
    const float scale = LOG2_E / sqrtf(float(hs));
    auto stage_keys = [&](int key) {
        bf16 *to = buffers + key / KEYS % 2 * (2 * SIZE);
        stage<HS, KEYS>(to, k, key, keys, at.key_pitch, hs);
        stage<HS, KEYS>(to + SIZE, v, key, keys, at.key_pitch, hs);
    };
    stage<HS, Shape::ROWS>(queries, q, start, rows, at.pitch, hs);
    stage_keys(from);

    unsigned left[HS / 16][M][4];
    float acc[M][HS / 8][4] = {};
    Softmax<M> state;
#pragma unroll
    for (int m = 0; m < M; m++) state.top[m][0] = state.top[m][1] = UNSEEN(PACKED), state.total[m][0] = state.total[m][1] = 0.0f;
    if (!first) take_up(out, stats, at, own, rows, hs, state, acc);
    for (int key = from; key < reach; key += KEYS) {
        wait_for_copies();
        __syncthreads();
        if (key == from) load_fragments<PITCH>(left, lane_by_rows<PITCH>(queries + warp * Shape::OWN * PITCH));
        if (key + KEYS < reach) stage_keys(key + KEYS);
        if ((diagonal && key > own) || (PACKED && own < rows && examples.first_key(own) >= key + KEYS)) continue;
        const bf16 *some_keys = buffers + key / KEYS % 2 * (2 * SIZE), *some_values = some_keys + SIZE;
        float scores[M][KEYS / 8][4] = {};
#pragma unroll
        for (int i = 0; i < HS / 16; i++)
            times_transposed<PITCH>(scores, left[i], lane_by_columns<PITCH>(some_keys) + i * 16);
        if (key + KEYS > keys_seen(own + 1, keys, diagonal)) hide_keys(scores, own, key, keys, diagonal, HIDDEN);
        if (PACKED) hide_earlier(scores, own, rows, key, examples, HIDDEN, false);
        weigh(scores, state, acc, scale);
        weighted<PITCH>(acc, scores, lane_by_rows<PITCH>(some_values));
    }
    if (PACKED) wait_for_copies();  // of keys that no query sees
    finish(stats, at, own, rows, diagonal, state, acc);
    put_rows(out, acc, own, rows, at.pitch, hs, 1.0f, false);
}

FORWARD_KERNEL(attention_mma_32, bf16, 2, attention_mma<false, 32>)
FORWARD_KERNEL(attention_mma_64, bf16, 2, attention_mma<false, 64>)
FORWARD_KERNEL(attention_mma_96, bf16, 2, attention_mma<false, 96>)
FORWARD_KERNEL(attention_mma_128, bf16, 2, attention_mma<false, 128>)
PACKED_FORWARD_KERNEL(attention_packed_mma_32, bf16, 2, attention_mma<true, 32>)
PACKED_FORWARD_KERNEL(attention_packed_mma_64, bf16, 2, attention_mma<true, 64>)
PACKED_FORWARD_KERNEL(attention_packed_mma_96, bf16, 2, attention_mma<true, 96>)
PACKED_FORWARD_KERNEL(attention_packed_mma_128, bf16, 2, attention_mma<true, 128>)

#endif
