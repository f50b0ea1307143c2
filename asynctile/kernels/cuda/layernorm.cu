// Layer normalization, forward and backward, by column tiles; see norm.cuh. The contracts are in asynctile/ops/layernorm.py.

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

// Compute statistics of whole rows and normalize them.
template <int N, bool VECTOR, typename T>
static __device__ void normalise_rows(const float *__restrict__ x, const float *__restrict__ gain,
                                      const float *__restrict__ bias, float *stats, T *__restrict__ y, int rows, int columns,
                                      float eps) {
    int row = blockIdx.x * WARPS + warp_index();
    if (row >= rows) return;
    const float *source = x + size_t(row) * columns;
    Moments all = moments_of_row<VECTOR>(source, columns);
    float mean = all.mean, rstd = inverse_deviation(all, eps);
    if (lane_index() == 0) stats[2 * size_t(row)] = mean, stats[2 * size_t(row) + 1] = rstd;
    normalise_row<LayerNorm, N, VECTOR>(source, gain, bias, y + size_t(row) * columns, columns, mean, rstd);
}

extern "C" __global__ void layernorm_stats(const float *x, float *stats, int rows, int columns, int seen, int last, float eps) {
    if (columns % 4) stats_of_rows<false>(x, stats, rows, columns, seen, last, eps);
    else stats_of_rows<true>(x, stats, rows, columns, seen, last, eps);
}

extern "C" __global__ void layernorm_f32(const float *x, const float *stats, const float *gain, const float *bias, float *y,
                                         int rows, int columns) {
    if (columns % 4) normalise<LayerNorm, 4, false>(x, stats, gain, bias, y, rows, columns);
    else normalise<LayerNorm, 4, true>(x, stats, gain, bias, y, rows, columns);
}

extern "C" __global__ void layernorm_bf16(const float *x, const float *stats, const float *gain, const float *bias, bf16 *y,
                                          int rows, int columns) {
    if (columns % 8) normalise<LayerNorm, 8, false>(x, stats, gain, bias, y, rows, columns);
    else normalise<LayerNorm, 8, true>(x, stats, gain, bias, y, rows, columns);
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
    if (columns % 4) sums_of_rows<LayerNorm, false>(dinp, x, stats, gain, sums, rows, columns, accumulate);
    else sums_of_rows<LayerNorm, true>(dinp, x, stats, gain, sums, rows, columns, accumulate);
}

extern "C" __global__ void layernorm_backward(const float *dinp, const float *x, const float *stats, const float *gain,
                                              const float *sums, float *dx, int rows, int columns, int width, int accumulate) {
    if (columns % 4) gradient_of_rows<LayerNorm, false>(dinp, x, stats, gain, sums, dx, rows, columns, width, accumulate);
    else gradient_of_rows<LayerNorm, true>(dinp, x, stats, gain, sums, dx, rows, columns, width, accumulate);
}

extern "C" __global__ void layernorm_gradients(const float *dinp, const float *x, const float *stats, double *partial, int rows,
                                               int columns, int chunks) {
    if (columns % 4) gradients_chunk<LayerNorm, false>(dinp, x, stats, partial, rows, columns, chunks);
    else gradients_chunk<LayerNorm, true>(dinp, x, stats, partial, rows, columns, chunks);
}

extern "C" __global__ void layernorm_gradients_last(const double *partial, float *dgain, float *dbias, int chunks, int columns,
                                                    int accumulate) {
    float *sums = blockIdx.y ? dbias : dgain;
    sum_partials(partial + size_t(blockIdx.y) * columns, 2 * columns, chunks, columns, sums, accumulate);
}

extern "C" __global__ void layernorm_whole_backward(const float *dinp, const float *x, const float *stats, const float *gain,
                                                    float *dx, float *partial, int rows, int columns, int held,
                                                    int accumulate) {
    if (columns % 4) whole_rows_backward<LayerNorm, false>(dinp, x, stats, gain, dx, partial, rows, columns, held, accumulate);
    else whole_rows_backward<LayerNorm, true>(dinp, x, stats, gain, dx, partial, rows, columns, held, accumulate);
}

extern "C" __global__ void layernorm_whole_backward_last(const float *partial, float *dgain, float *dbias, int chunks,
                                                         int columns, int begun) {
    float *sums = blockIdx.y ? dbias : dgain;
    sum_partials(partial + size_t(blockIdx.y) * columns, 2 * columns, chunks, columns, sums, begun);
}
