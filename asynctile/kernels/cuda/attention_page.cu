// Attention of single tokens over one page of keys and values. The contract is in asynctile/ops/attention_page.py.
//
// A block computes one head of keys for all rows. It stores the rows' keys and values. Then each of its warps folds the page
// into one row of the page's sequence after another, and so for each query head that reads these keys. For scores a lane has a
// key, for the result a column. Both are sums in a fixed order.

// Return q k over the columns of a head.
template <int N, typename T>
static __device__ __forceinline__ float score_of(const T *__restrict__ query, const T *key, int hs) {
    float sum = 0.0f;
    if (hs % N == 0) {
#pragma unroll 4
        for (int c = 0; c < hs; c += N) {
            float x[N], y[N];
            load(query + c, x);
            load(key + c, y);
#pragma unroll
            for (int i = 0; i < N; i++) sum = __fmaf_rn(x[i], y[i], sum);
        }
    } else {
        for (int c = 0; c < hs; c++) sum = __fmaf_rn(to_float(query[c]), to_float(key[c]), sum);
    }
    return sum;
}

// Return the row of the page that stores a token's key, or -1.
static __device__ __forceinline__ int place_of(const int *rows, int row, int owner, int start, int places) {
    int place = rows[2 * row + 1] - start;
    return rows[2 * row] == owner && place >= 0 && place < places ? place : -1;
}

template <int N, typename T>
static __device__ __forceinline__ void attention_page(const T *q, const T *k, const T *v, T *page, const int *rows,
                                                      const int *pages, T *out, float *stats, int count, int places, int number,
                                                      int heads, int key_heads, int hs, bool first, bool last) {
    DYNAMIC_SHARED(float, all_weights);
    float *weights = all_weights + warp_index() * places;
    const int key_head = blockIdx.x, group = heads / key_heads, pitch = heads * hs, key_pitch = key_heads * hs;
    const int owner = pages[2 * number], start = pages[2 * number + 1], sums = heads * count, lane = lane_index();
    T *keys = page + key_head * hs, *values = keys + size_t(places) * key_pitch;
    if (owner >= 0) {
        for (int row = warp_index(); row < count; row += WARPS) {
            int place = place_of(rows, row, owner, start, places);
            if (place < 0) continue;
            size_t from = size_t(row) * key_pitch + key_head * hs, to = size_t(place) * key_pitch;
            for (int c = lane; c < hs; c += WARP) keys[to + c] = k[from + c], values[to + c] = v[from + c];
        }
        __syncthreads();
    }
    const float scale = 1.0f / sqrtf(float(hs));
    for (int task = warp_index(); task < group * count; task += WARPS) {
        int head = key_head * group + task / count, row = task % count;
        int met = owner >= 0 && rows[2 * row] == owner ? min(places, rows[2 * row + 1] - start + 1) : 0;
        if (met <= 0 && !first && !last) continue;
        const T *query = q + size_t(row) * pitch + head * hs;
        T *line = out + size_t(row) * pitch + head * hs;
        float *state = stats + head * count + row;
        float top = first ? HIDDEN : state[0], total = first ? 0.0f : state[sums], shrink = 1.0f;
        if (met > 0) {
            float largest = top;
            for (int j = lane; j < met; j += WARP) {
                weights[j] = score_of<N>(query, keys + size_t(j) * key_pitch, hs) * scale;
                largest = fmaxf(largest, weights[j]);
            }
            largest = warp_max(largest);
            float more = 0.0f;
            for (int j = lane; j < met; j += WARP) more += weights[j] = __expf(weights[j] - largest);
            shrink = __expf(top - largest), top = largest;
            total = __fmaf_rn(total, shrink, warp_sum(more));
        }
        __syncwarp();  // each lane reads the weights of all lanes
        float share = last ? (total == 0.0f ? 0.0f : 1.0f / total) : 1.0f;
        for (int c = lane; c < hs; c += WARP) {
            float sum = first ? 0.0f : to_float(line[c]) * shrink;
#pragma unroll 4
            for (int j = 0; j < met; j++) sum = __fmaf_rn(weights[j], to_float(values[size_t(j) * key_pitch + c]), sum);
            assign(line[c], sum);  // always rounded before the division: whether the last page is the row's own is chance
            if (last) assign(line[c], to_float(line[c]) * share);
        }
        __syncwarp();  // all lanes have read the state, and the weights that the next row overwrites
        if (lane == 0) state[0] = top, state[sums] = total;
    }
}

extern "C" __global__ void __launch_bounds__(256, 4) attention_page_f32(
    const float *q, const float *k, const float *v, float *page, const int *rows, const int *pages, float *out, float *stats,
    int count, int places, int number, int heads, int key_heads, int hs, int first, int last) {
    attention_page<4>(q, k, v, page, rows, pages, out, stats, count, places, number, heads, key_heads, hs, first, last);
}

extern "C" __global__ void __launch_bounds__(256, 4) attention_page_bf16(
    const bf16 *q, const bf16 *k, const bf16 *v, bf16 *page, const int *rows, const int *pages, bf16 *out, float *stats,
    int count, int places, int number, int heads, int key_heads, int hs, int first, int last) {
    attention_page<8>(q, k, v, page, rows, pages, out, stats, count, places, number, heads, key_heads, hs, first, last);
}
