// The gradient of attention in float arithmetic; see attention_plain.cu. Weights are recomputed from the log-sum-exp, twice:
// one kernel owns keys and passes over queries, for dk and dv; the other owns queries and passes over keys, for dq. So each sum
// has one owner and one order. If a head has several panels, the panel that a pass computes is loaded last for the scores, so
// that it is still there afterwards.

template <bool PACKED, typename T>
static __device__ __forceinline__ void attention_backward_keys_plain(
    const T *q, const T *k, const T *v, Examples examples, const T *dout, const float *stats, const float *delta, T *dk, T *dv,
    int rows, int keys, int heads, int key_heads, int hs, bool first, bool diagonal) {
    DYNAMIC_SHARED(float, own_keys);
    float *own_values = own_keys + PLAIN_SIZE, *some_queries = own_values + PLAIN_SIZE;
    float *some_dout = some_queries + PLAIN_SIZE, *shared_left = some_dout + PLAIN_SIZE;
    const Head at = group_of_block(rows, keys, heads, key_heads, hs);
    q += at.queries, dout += at.queries, stats += at.state, delta += at.state;
    k += at.keys, v += at.keys, dk += at.keys, dv += at.keys;
    if (PACKED) examples.positions += blockIdx.x / key_heads * rows;
    const int start = blockIdx.y * PLAIN_SIDE, y = threadIdx.x / 16, x = threadIdx.x % 16;
    const int panels = (hs + PLAIN_SIDE - 1) / PLAIN_SIDE, from = diagonal ? start : 0;
    const int lone = lone_queries(first, diagonal);
    const float scale = 1.0f / sqrtf(float(hs));
    for (int panel = 0; panel < panels; panel++) {
        float dkeys[8][4] = {}, dvalues[8][4] = {};
        for (int head = 0; head < heads / key_heads; head++) {
            for (int query = from; query < rows; query += PLAIN_SIDE) {
                if (PACKED && examples.first_key(query) >= start + PLAIN_SIDE) break;  // all others are of later examples
                float weights[8][4] = {}, slopes[8][4] = {};
                for (int i = 1; i <= panels; i++) {
                    int column = (panel + i) % panels * PLAIN_SIDE, depth = min(hs - column, PLAIN_SIDE);
                    __syncthreads();
                    if (panels > 1 || (head == 0 && query == from)) {
                        fetch(own_keys, k, start, keys, column, hs, at.key_pitch);
                        fetch(own_values, v, start, keys, column, hs, at.key_pitch);
                    }
                    fetch(some_queries, q + head * hs, query, rows, column, hs, at.pitch);
                    fetch(some_dout, dout + head * hs, query, rows, column, hs, at.pitch);
                    __syncthreads();
                    fold_rows(weights, own_keys, some_queries, depth);
                    fold_rows(slopes, own_values, some_dout, depth);
                }
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    int r = query + x + j * 16;  // beyond the last query dout is zero and adds nothing
                    size_t state = head * at.line + r;
                    float lse = r < rows ? stats[state] : 0.0f, mean = r < rows ? delta[state] : 0.0f;
                    int hidden = 0;
                    bool alone = r < rows && is_lone<PACKED>(examples, r, lone);
                    if (PACKED) hidden = r < rows ? examples.first_key(r) : 0;
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        bool seen = (!diagonal || start + y + i * 8 <= r) && (!PACKED || start + y + i * 8 >= hidden);
                        weights[i][j] = seen ? __expf(weights[i][j] * scale - lse) : 0.0f;
                        slopes[i][j] = seen && !alone ? weights[i][j] * (slopes[i][j] - mean) : 0.0f;
                    }
                }
                int depth = min(rows - query, PLAIN_SIDE);
                share(shared_left, weights);
                fold_columns(dvalues, shared_left, some_dout, depth);
                share(shared_left, slopes);
                fold_columns(dkeys, shared_left, some_queries, depth);
            }
        }
        put_panel(dk, dkeys, start, keys, panel * PLAIN_SIDE, hs, at.key_pitch, scale, !diagonal);
        put_panel(dv, dvalues, start, keys, panel * PLAIN_SIDE, hs, at.key_pitch, 1.0f, !diagonal);
    }
}

template <bool PACKED, typename T>
static __device__ __forceinline__ void attention_backward_queries_plain(
    const T *q, const T *k, const T *v, Examples examples, const T *dout, const float *stats, const float *delta, T *dq,
    int rows, int keys, int heads, int key_heads, int hs, bool first, bool diagonal) {
    DYNAMIC_SHARED(float, own_queries);
    float *own_dout = own_queries + PLAIN_SIZE, *some_keys = own_dout + PLAIN_SIZE;
    float *some_values = some_keys + PLAIN_SIZE, *shared_left = some_values + PLAIN_SIZE;
    const Head at = head_of_block(rows, keys, heads, key_heads, hs);
    q += at.queries, dout += at.queries, dq += at.queries, stats += at.state, delta += at.state, k += at.keys, v += at.keys;
    if (PACKED) examples.positions += blockIdx.x / heads * rows;
    const int start = (gridDim.y - 1 - blockIdx.y) * PLAIN_SIDE, y = threadIdx.x / 16, x = threadIdx.x % 16;
    const int from = first_seen<PACKED, PLAIN_SIDE>(examples, start);
    const int panels = (hs + PLAIN_SIDE - 1) / PLAIN_SIDE, reach = keys_seen(start + PLAIN_SIDE, keys, diagonal);
    const int lone = lone_queries(first, diagonal);
    const float scale = 1.0f / sqrtf(float(hs));
    for (int panel = 0; panel < panels; panel++) {
        float dqueries[8][4] = {};
        for (int key = from; key < reach; key += PLAIN_SIDE) {
            float weights[8][4] = {}, slopes[8][4] = {};
            for (int i = 1; i <= panels; i++) {
                int column = (panel + i) % panels * PLAIN_SIDE, depth = min(hs - column, PLAIN_SIDE);
                __syncthreads();
                if (panels > 1 || key == from) {
                    fetch(own_queries, q, start, rows, column, hs, at.pitch);
                    fetch(own_dout, dout, start, rows, column, hs, at.pitch);
                }
                fetch(some_keys, k, key, keys, column, hs, at.key_pitch);
                fetch(some_values, v, key, keys, column, hs, at.key_pitch);
                __syncthreads();
                fold_rows(weights, own_queries, some_keys, depth);
                fold_rows(slopes, own_dout, some_values, depth);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                int r = start + y + i * 8, seen = keys_seen(r + 1, keys, diagonal), hidden = 0;
                if (r < rows && is_lone<PACKED>(examples, r, lone)) seen = 0;
                if (PACKED) hidden = r < rows ? examples.first_key(r) : 0;
                float lse = r < rows ? stats[r] : 0.0f, mean = r < rows ? delta[r] : 0.0f;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float weight = __expf(weights[i][j] * scale - lse);
                    int c = key + x + j * 16;
                    slopes[i][j] = c < seen && (!PACKED || c >= hidden) ? weight * (slopes[i][j] - mean) : 0.0f;
                }
            }
            share(shared_left, slopes);
            fold_columns(dqueries, shared_left, some_keys, min(keys - key, PLAIN_SIDE));
        }
        put_panel(dq, dqueries, start, rows, panel * PLAIN_SIDE, hs, at.pitch, scale, !first);
    }
}

KEYS_KERNEL(attention_backward_keys_plain_f32, float, attention_backward_keys_plain<false>)
KEYS_KERNEL(attention_backward_keys_plain_bf16, bf16, attention_backward_keys_plain<false>)
QUERIES_KERNEL(attention_backward_queries_plain_f32, float, attention_backward_queries_plain<false>)
QUERIES_KERNEL(attention_backward_queries_plain_bf16, bf16, attention_backward_queries_plain<false>)
PACKED_KEYS_KERNEL(attention_packed_backward_keys_plain_f32, float, attention_backward_keys_plain<true>)
PACKED_KEYS_KERNEL(attention_packed_backward_keys_plain_bf16, bf16, attention_backward_keys_plain<true>)
PACKED_QUERIES_KERNEL(attention_packed_backward_queries_plain_f32, float, attention_backward_queries_plain<true>)
PACKED_QUERIES_KERNEL(attention_packed_backward_queries_plain_bf16, bf16, attention_backward_queries_plain<true>)
