// Layer normalization, forward and backward, by column tiles. The contracts are in asynctile/ops/layernorm.py.

// Mean and sum of squared deviations of `count` numbers.
struct Moments {
    double mean, squares, count;
};

// Return the moments of two sets together, by Chan, Golub and LeVeque.
static __device__ __forceinline__ Moments merge_moments(Moments a, Moments b) {
    double count = a.count + b.count, apart = b.mean - a.mean, share = b.count / count;
    return {a.mean + apart * share, a.squares + b.squares + apart * apart * a.count * share, count};
}

// Return the moments of up to SPANS spans, which stay in registers for the second pass.
template <int SPANS, bool VECTOR>
static __device__ __forceinline__ Moments moments_of(const float *__restrict__ row, int first, int columns) {
    using Part = Span<4, VECTOR>;
    float values[SPANS][4], total = 0.0f, squares = 0.0f, residue = 0.0f;
    float count = min(SPANS * Part::width, columns - first);
#pragma unroll
    for (int span = 0; span < SPANS; span++) Part::load(row, first + span * Part::width, columns, values[span]);
#pragma unroll
    for (int span = 0; span < SPANS; span++)
#pragma unroll
        for (int i = 0; i < 4; i++) total += values[span][i];
    float mean = warp_sum(total) / count;
#pragma unroll
    for (int span = 0; span < SPANS; span++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bool inside = first + span * Part::width + Part::place(i) < columns;
            float deviation = inside ? values[span][i] - mean : 0.0f;
            squares += deviation * deviation;
            residue += deviation;
        }
    // The residue is the error that rounding left in the mean.
    residue = warp_sum(residue) / count;
    return {mean + residue, warp_sum(squares) - residue * residue * count, count};
}

// Return the moments of a tile's row, computed by one warp.
template <bool VECTOR>
static __device__ __forceinline__ Moments moments_of_row(const float *row, int columns) {
    constexpr int SPANS = 8;
    Moments all = {};
    for (int first = 0; first < columns; first += SPANS * WARP * 4) {
        Moments some = moments_of<SPANS, VECTOR>(row, first, columns);
        all = first ? merge_moments(all, some) : some;
    }
    return all;
}

static __device__ __forceinline__ float inverse_deviation(Moments all, float eps) {
    return 1.0f / sqrtf(float(all.squares) / float(all.count) + eps);
}

// Rounded exactly where written, so the two kernels that use it give equal bits.
static __device__ __forceinline__ float normal(float x, float mean, float rstd, float gain, float bias) {
    return __fmaf_rn(__fmul_rn(__fsub_rn(x, mean), rstd), gain, bias);
}

template <bool VECTOR>
static __device__ void stats_of_rows(const float *x, float *stats, int rows, int columns, int seen, int last, float eps) {
    int row = blockIdx.x * WARPS + warp_index();
    if (row >= rows) return;
    Moments all = moments_of_row<VECTOR>(x + size_t(row) * columns, columns);
    float *target = stats + 2 * size_t(row);
    if (seen) all = merge_moments({target[0], target[1], double(seen)}, all);
    if (lane_index()) return;
    target[0] = all.mean;
    target[1] = last ? inverse_deviation(all, eps) : float(all.squares);
}

template <int N, bool VECTOR, typename T>
static __device__ void normalise(const float *__restrict__ x, const float *__restrict__ stats, const float *__restrict__ gain,
                                 const float *__restrict__ bias, T *__restrict__ y, int rows, int columns) {
    using Part = Span<N, VECTOR>;
    Patch patch = own_patch<N>(rows, columns);
    float gains[N], biases[N];
    Part::load(gain, patch.column, columns, gains);
    Part::load(bias, patch.column, columns, biases);
    for (int row = patch.row; row < patch.end; row += WARPS) {
        float mean = stats[2 * size_t(row)], rstd = stats[2 * size_t(row) + 1], values[N];
        Part::load(x + size_t(row) * columns, patch.column, columns, values);
#pragma unroll
        for (int i = 0; i < N; i++) values[i] = normal(values[i], mean, rstd, gains[i], biases[i]);
        Part::store(y + size_t(row) * columns, patch.column, columns, values);
    }
}

// Compute statistics of whole rows and normalize them. The second read comes from the L1 cache.
template <int N, bool VECTOR, typename T>
static __device__ void normalise_rows(const float *__restrict__ x, const float *__restrict__ gain,
                                      const float *__restrict__ bias, float *stats, T *__restrict__ y, int rows, int columns,
                                      float eps) {
    using Part = Span<N, VECTOR>;
    int row = blockIdx.x * WARPS + warp_index();
    if (row >= rows) return;
    const float *source = x + size_t(row) * columns;
    Moments all = moments_of_row<VECTOR>(source, columns);
    float mean = all.mean, rstd = inverse_deviation(all, eps);
    if (lane_index() == 0) stats[2 * size_t(row)] = mean, stats[2 * size_t(row) + 1] = rstd;
#pragma unroll 2
    for (int first = 0; first < columns; first += Part::width) {
        float values[N], gains[N], biases[N];
        Part::load(source, first, columns, values);
        Part::load(gain, first, columns, gains);
        Part::load(bias, first, columns, biases);
#pragma unroll
        for (int i = 0; i < N; i++) values[i] = normal(values[i], mean, rstd, gains[i], biases[i]);
        Part::store(y + size_t(row) * columns, first, columns, values);
    }
}

template <bool VECTOR>
static __device__ void sums_of_rows(const float *__restrict__ dinp, const float *__restrict__ x, const float *stats,
                                    const float *__restrict__ gain, float *sums, int rows, int columns, int accumulate) {
    using Part = Span<4, VECTOR>;
    int row = blockIdx.x * WARPS + warp_index();
    if (row >= rows) return;
    float mean = stats[2 * size_t(row)], rstd = stats[2 * size_t(row) + 1], plain = 0.0f, weighted = 0.0f;
#pragma unroll 4
    for (int first = 0; first < columns; first += Part::width) {
        float grads[4], values[4], gains[4];
        Part::load(dinp + size_t(row) * columns, first, columns, grads);
        Part::load(x + size_t(row) * columns, first, columns, values);
        Part::load(gain, first, columns, gains);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float scaled = grads[i] * gains[i];
            plain += scaled;
            weighted += scaled * (values[i] - mean);
        }
    }
    plain = warp_sum(plain), weighted = warp_sum(weighted) * rstd;
    if (lane_index()) return;
    float *target = sums + 2 * size_t(row);
    target[0] = accumulate ? target[0] + plain : plain;
    target[1] = accumulate ? target[1] + weighted : weighted;
}

template <bool VECTOR>
static __device__ void gradient_of_rows(const float *__restrict__ dinp, const float *__restrict__ x,
                                        const float *__restrict__ stats, const float *__restrict__ gain,
                                        const float *__restrict__ sums, float *dx, int rows, int columns, float width,
                                        int accumulate) {
    using Part = Span<4, VECTOR>;
    Patch patch = own_patch<4>(rows, columns);
    float gains[4], share = 1.0f / width;
    Part::load(gain, patch.column, columns, gains);
    for (int row = patch.row; row < patch.end; row += WARPS) {
        size_t start = size_t(row) * columns;
        float mean = stats[2 * size_t(row)], rstd = stats[2 * size_t(row) + 1];
        float offset = sums[2 * size_t(row)] * share, slope = rstd * sums[2 * size_t(row) + 1] * share;
        float grads[4], values[4], before[4] = {};
        Part::load(dinp + start, patch.column, columns, grads);
        Part::load(x + start, patch.column, columns, values);
        if (accumulate) Part::load(dx + start, patch.column, columns, before);
#pragma unroll
        for (int i = 0; i < 4; i++) before[i] += rstd * (grads[i] * gains[i] - offset - (values[i] - mean) * slope);
        Part::store(dx + start, patch.column, columns, before);
    }
}

template <bool VECTOR>
static __device__ void gradients_chunk(const float *__restrict__ dinp, const float *__restrict__ x,
                                       const float *__restrict__ stats, double *partial, int rows, int columns, int chunks) {
    sum_chunk<4, VECTOR, 2>(rows, columns, chunks, partial, [&](int row, int column, float(&sums)[2][4]) {
        float mean = stats[2 * size_t(row)], rstd = stats[2 * size_t(row) + 1], grads[4], values[4];
        Span<4, VECTOR>::load(dinp + size_t(row) * columns, column, columns, grads);
        Span<4, VECTOR>::load(x + size_t(row) * columns, column, columns, values);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sums[0][i] += grads[i] * ((values[i] - mean) * rstd);
            sums[1][i] += grads[i];
        }
    });
}

// Compute all gradients of a block's rows, reading each row once, `held` rows at a time. Each warp sums one row, keeps it in
// shared memory (the gradient of the output, then xhat) and writes dx. Then each thread adds these rows to the sums of its own
// columns, which are also in shared memory. partial: (chunks, 2, columns). Rows in shared memory are aligned for vector loads.
template <bool VECTOR>
static __device__ void whole_rows_backward(const float *__restrict__ dinp, const float *__restrict__ x,
                                           const float *__restrict__ stats, const float *__restrict__ gain, float *dx,
                                           float *partial, int rows, int columns, int held, int accumulate) {
    using Part = Span<4, VECTOR>;
    DYNAMIC_SHARED(float, shared);
    int stride = divide_up(columns, 4) * 4, warp = warp_index();
    float *sums = shared, *lines = shared + 2 * stride;
    float *line = lines + 2 * warp * stride, *hats = line + stride, share = 1.0f / columns;
    for (int c = threadIdx.x; c < columns; c += blockDim.x) sums[c] = sums[stride + c] = 0.0f;
    int first = size_t(rows) * blockIdx.x / gridDim.x, end = size_t(rows) * (blockIdx.x + 1) / gridDim.x;
    for (; first < end; first += held) {
        int row = first + warp;
        if (warp < held && row < end) {
            size_t start = size_t(row) * columns;
            float mean = stats[2 * size_t(row)], rstd = stats[2 * size_t(row) + 1], plain = 0.0f, weighted = 0.0f;
#pragma unroll 4
            for (int at = 0; at < columns; at += Part::width) {
                float grads[4], values[4], gains[4];
                Part::load(dinp + start, at, columns, grads);
                Part::load(x + start, at, columns, values);
                Part::load(gain, at, columns, gains);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    bool inside = at + Part::place(i) < columns;
                    values[i] = inside ? (values[i] - mean) * rstd : 0.0f;
                    float scaled = grads[i] * gains[i];
                    plain += scaled;
                    weighted += scaled * values[i];
                }
                Part::store(line, at, columns, grads);
                Part::store(hats, at, columns, values);
            }
            float offset = warp_sum(plain) * share, slope = warp_sum(weighted) * share;
#pragma unroll 4
            for (int at = 0; at < columns; at += Part::width) {
                float grads[4], values[4], gains[4], before[4] = {};
                Part::load(line, at, columns, grads);
                Part::load(hats, at, columns, values);
                Part::load(gain, at, columns, gains);
                if (accumulate) Part::load(dx + start, at, columns, before);
#pragma unroll
                for (int i = 0; i < 4; i++) before[i] += rstd * (grads[i] * gains[i] - offset - values[i] * slope);
                Part::store(dx + start, at, columns, before);
            }
        }
        __syncthreads();
        int count = min(held, end - first);
        for (int c = threadIdx.x; c < columns; c += blockDim.x) {
            float gains = sums[c], biases = sums[stride + c];
            for (int r = 0; r < count; r++) {
                float grad = lines[2 * r * stride + c];
                gains += grad * lines[(2 * r + 1) * stride + c];
                biases += grad;
            }
            sums[c] = gains, sums[stride + c] = biases;
        }
        __syncthreads();
    }
    for (int c = threadIdx.x; c < columns; c += blockDim.x) {
        partial[2 * size_t(blockIdx.x) * columns + c] = sums[c];
        partial[(2 * size_t(blockIdx.x) + 1) * columns + c] = sums[stride + c];
    }
}

extern "C" __global__ void layernorm_stats(const float *x, float *stats, int rows, int columns, int seen, int last, float eps) {
    if (columns % 4) stats_of_rows<false>(x, stats, rows, columns, seen, last, eps);
    else stats_of_rows<true>(x, stats, rows, columns, seen, last, eps);
}

extern "C" __global__ void layernorm_f32(const float *x, const float *stats, const float *gain, const float *bias, float *y,
                                         int rows, int columns) {
    if (columns % 4) normalise<4, false>(x, stats, gain, bias, y, rows, columns);
    else normalise<4, true>(x, stats, gain, bias, y, rows, columns);
}

extern "C" __global__ void layernorm_bf16(const float *x, const float *stats, const float *gain, const float *bias, bf16 *y,
                                          int rows, int columns) {
    if (columns % 8) normalise<8, false>(x, stats, gain, bias, y, rows, columns);
    else normalise<8, true>(x, stats, gain, bias, y, rows, columns);
}

extern "C" __global__ void layernorm_whole_f32(const float *x, const float *gain, const float *bias, float *stats, float *y,
                                               int rows, int columns, float eps) {
    if (columns % 4) normalise_rows<4, false>(x, gain, bias, stats, y, rows, columns, eps);
    else normalise_rows<4, true>(x, gain, bias, stats, y, rows, columns, eps);
}

extern "C" __global__ void layernorm_whole_bf16(const float *x, const float *gain, const float *bias, float *stats, bf16 *y,
                                                int rows, int columns, float eps) {
    if (columns % 4) normalise_rows<4, false>(x, gain, bias, stats, y, rows, columns, eps);
    else normalise_rows<4, true>(x, gain, bias, stats, y, rows, columns, eps);
}

extern "C" __global__ void layernorm_sums(const float *dinp, const float *x, const float *stats, const float *gain,
                                          float *sums, int rows, int columns, int accumulate) {
    if (columns % 4) sums_of_rows<false>(dinp, x, stats, gain, sums, rows, columns, accumulate);
    else sums_of_rows<true>(dinp, x, stats, gain, sums, rows, columns, accumulate);
}

extern "C" __global__ void layernorm_backward(const float *dinp, const float *x, const float *stats, const float *gain,
                                              const float *sums, float *dx, int rows, int columns, int width, int accumulate) {
    if (columns % 4) gradient_of_rows<false>(dinp, x, stats, gain, sums, dx, rows, columns, width, accumulate);
    else gradient_of_rows<true>(dinp, x, stats, gain, sums, dx, rows, columns, width, accumulate);
}

extern "C" __global__ void layernorm_gradients(const float *dinp, const float *x, const float *stats, double *partial, int rows,
                                               int columns, int chunks) {
    if (columns % 4) gradients_chunk<false>(dinp, x, stats, partial, rows, columns, chunks);
    else gradients_chunk<true>(dinp, x, stats, partial, rows, columns, chunks);
}

extern "C" __global__ void layernorm_gradients_last(const double *partial, float *dgain, float *dbias, int chunks, int columns,
                                                    int accumulate) {
    float *sums = blockIdx.y ? dbias : dgain;
    sum_partials(partial + size_t(blockIdx.y) * columns, 2 * columns, chunks, columns, sums, accumulate);
}

extern "C" __global__ void layernorm_whole_backward(const float *dinp, const float *x, const float *stats, const float *gain,
                                                    float *dx, float *partial, int rows, int columns, int held,
                                                    int accumulate) {
    if (columns % 4) whole_rows_backward<false>(dinp, x, stats, gain, dx, partial, rows, columns, held, accumulate);
    else whole_rows_backward<true>(dinp, x, stats, gain, dx, partial, rows, columns, held, accumulate);
}

extern "C" __global__ void layernorm_whole_backward_last(const float *partial, float *dgain, float *dbias, int chunks,
                                                         int columns, int begun) {
    float *sums = blockIdx.y ? dbias : dgain;
    sum_partials(partial + size_t(blockIdx.y) * columns, 2 * columns, chunks, columns, sums, begun);
}
