// Root mean square normalization, forward and backward, by column tiles; see norm.cuh. The contracts are in
// asynctile/ops/rmsnorm.py. The heads of a row are rows of hs columns of their own here.

// Return the sum of squares of a row, computed by one warp, which adds up SPANS spans before it converts to double.
template <int SPANS, bool VECTOR, typename T>
static __device__ __forceinline__ double squares_of_row(const T *__restrict__ row, int columns) {
    using Part = Span<4, VECTOR>;
    double all = 0.0;
    for (int first = 0; first < columns; first += SPANS * Part::width) {
        float values[SPANS][4], squares = 0.0f;
#pragma unroll
        for (int span = 0; span < SPANS; span++) Part::load(row, first + span * Part::width, columns, values[span]);
#pragma unroll
        for (int span = 0; span < SPANS; span++)
#pragma unroll
            for (int i = 0; i < 4; i++) squares = __fmaf_rn(values[span][i], values[span][i], squares);
        all += warp_sum(squares);
    }
    return all;
}

static __device__ __forceinline__ float inverse_root(double squares, int width, float eps) {
    return 1.0f / sqrtf(float(squares / width) + eps);
}

template <bool VECTOR>
static __device__ void squares_of_rows(const float *x, float *stats, int rows, int columns, int seen, int last, int width,
                                       float eps) {
    int row = blockIdx.x * WARPS + warp_index();
    if (row >= rows) return;
    double squares = squares_of_row<8, VECTOR>(x + size_t(row) * columns, columns);
    if (lane_index()) return;
    if (seen) squares += stats[row];
    stats[row] = last ? inverse_root(squares, width, eps) : float(squares);
}

template <int N, bool VECTOR, typename T>
static __device__ void rms_normalise_rows(const float *__restrict__ x, const float *__restrict__ gain, float *stats,
                                          T *__restrict__ y, int rows, int columns, float eps) {
    int row = blockIdx.x * WARPS + warp_index();
    if (row >= rows) return;
    const float *source = x + size_t(row) * columns;
    float rstd = inverse_root(squares_of_row<8, VECTOR>(source, columns), columns, eps);
    if (lane_index() == 0) stats[row] = rstd;
    normalise_row<RmsNorm, N, VECTOR>(source, gain, nullptr, y + size_t(row) * columns, columns, 0.0f, rstd);
}

template <bool VECTOR, typename T>
static __device__ void normalise_heads(const T *__restrict__ x, const float *__restrict__ gain, T *__restrict__ y, int rows,
                                       int columns, float eps) {
    int row = blockIdx.x * WARPS + warp_index();
    if (row >= rows) return;
    const T *source = x + size_t(row) * columns;
    float rstd = inverse_root(squares_of_row<1, VECTOR>(source, columns), columns, eps);
    normalise_row<RmsNorm, 4, VECTOR>(source, gain, nullptr, y + size_t(row) * columns, columns, 0.0f, rstd);
}

// Compute the gradients of one of `chunks` chunks of heads, one block per chunk. Each warp has sums for dgain in shared memory,
// to which each lane adds its own columns. partial: (chunks, columns).
template <bool VECTOR, typename T>
static __device__ void heads_backward_chunk(const T *__restrict__ x, const float *__restrict__ gain, T *dy, double *partial,
                                            int rows, int columns, float eps) {
    using Part = Span<4, VECTOR>;
    DYNAMIC_SHARED(float, shared);
    const int stride = divide_up(columns, 4) * 4, chunk = blockIdx.x, chunks = gridDim.x;  // aligned for vector loads
    const int first = size_t(rows) * chunk / chunks, end = size_t(rows) * (chunk + 1) / chunks;
    const float share = 1.0f / columns;
    float *sums = shared + warp_index() * stride;
    for (int at = 0; at < columns; at += Part::width) {
        float zeros[4] = {};
        Part::store(sums, at, columns, zeros);
    }
    for (int row = first + warp_index(); row < end; row += WARPS) {
        const T *source = x + size_t(row) * columns;
        T *target = dy + size_t(row) * columns;
        float rstd = inverse_root(squares_of_row<1, VECTOR>(source, columns), columns, eps), weighted = 0.0f;
        for (int at = 0; at < columns; at += Part::width) {
            float grads[4], values[4], gains[4], totals[4];
            Part::load(target, at, columns, grads);
            Part::load(source, at, columns, values);
            Part::load(gain, at, columns, gains);
            Part::load(sums, at, columns, totals);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                values[i] *= rstd;
                totals[i] += grads[i] * values[i];
                weighted += grads[i] * gains[i] * values[i];
            }
            Part::store(sums, at, columns, totals);
        }
        float slope = warp_sum(weighted) * share;
        for (int at = 0; at < columns; at += Part::width) {
            float grads[4], values[4], gains[4];
            Part::load(target, at, columns, grads);
            Part::load(source, at, columns, values);
            Part::load(gain, at, columns, gains);
#pragma unroll
            for (int i = 0; i < 4; i++) grads[i] = rstd * (grads[i] * gains[i] - values[i] * rstd * slope);
            Part::store(target, at, columns, grads);
        }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < columns; c += blockDim.x) {
        double total = 0.0;
        for (int warp = 0; warp < WARPS; warp++) total += shared[warp * stride + c];
        partial[size_t(chunk) * columns + c] = total;
    }
}

extern "C" __global__ void rmsnorm_stats(const float *x, float *stats, int rows, int columns, int seen, int last, int width,
                                         float eps) {
    if (columns % 4) squares_of_rows<false>(x, stats, rows, columns, seen, last, width, eps);
    else squares_of_rows<true>(x, stats, rows, columns, seen, last, width, eps);
}

extern "C" __global__ void rmsnorm_f32(const float *x, const float *stats, const float *gain, float *y, int rows, int columns) {
    if (columns % 4) normalise<RmsNorm, 4, false>(x, stats, gain, nullptr, y, rows, columns);
    else normalise<RmsNorm, 4, true>(x, stats, gain, nullptr, y, rows, columns);
}

extern "C" __global__ void rmsnorm_bf16(const float *x, const float *stats, const float *gain, bf16 *y, int rows, int columns) {
    if (columns % 8) normalise<RmsNorm, 8, false>(x, stats, gain, nullptr, y, rows, columns);
    else normalise<RmsNorm, 8, true>(x, stats, gain, nullptr, y, rows, columns);
}

extern "C" __global__ void rmsnorm_whole_f32(const float *x, const float *gain, float *stats, float *y, int rows, int columns,
                                             float eps) {
    if (columns % 4) rms_normalise_rows<4, false>(x, gain, stats, y, rows, columns, eps);
    else rms_normalise_rows<4, true>(x, gain, stats, y, rows, columns, eps);
}

extern "C" __global__ void rmsnorm_whole_bf16(const float *x, const float *gain, float *stats, bf16 *y, int rows, int columns,
                                              float eps) {
    if (columns % 4) rms_normalise_rows<4, false>(x, gain, stats, y, rows, columns, eps);
    else rms_normalise_rows<4, true>(x, gain, stats, y, rows, columns, eps);
}

extern "C" __global__ void rmsnorm_sums(const float *dinp, const float *x, const float *stats, const float *gain, float *sums,
                                        int rows, int columns, int accumulate) {
    if (columns % 4) sums_of_rows<RmsNorm, false>(dinp, x, stats, gain, sums, rows, columns, accumulate);
    else sums_of_rows<RmsNorm, true>(dinp, x, stats, gain, sums, rows, columns, accumulate);
}

extern "C" __global__ void rmsnorm_backward(const float *dinp, const float *x, const float *stats, const float *gain,
                                            const float *sums, float *dx, int rows, int columns, int width, int accumulate) {
    if (columns % 4) gradient_of_rows<RmsNorm, false>(dinp, x, stats, gain, sums, dx, rows, columns, width, accumulate);
    else gradient_of_rows<RmsNorm, true>(dinp, x, stats, gain, sums, dx, rows, columns, width, accumulate);
}

extern "C" __global__ void rmsnorm_gradients(const float *dinp, const float *x, const float *stats, double *partial, int rows,
                                             int columns, int chunks) {
    if (columns % 4) gradients_chunk<RmsNorm, false>(dinp, x, stats, partial, rows, columns, chunks);
    else gradients_chunk<RmsNorm, true>(dinp, x, stats, partial, rows, columns, chunks);
}

extern "C" __global__ void rmsnorm_whole_backward(const float *dinp, const float *x, const float *stats, const float *gain,
                                                  float *dx, float *partial, int rows, int columns, int held, int accumulate) {
    if (columns % 4) whole_rows_backward<RmsNorm, false>(dinp, x, stats, gain, dx, partial, rows, columns, held, accumulate);
    else whole_rows_backward<RmsNorm, true>(dinp, x, stats, gain, dx, partial, rows, columns, held, accumulate);
}

extern "C" __global__ void rmsnorm_whole_backward_last(const float *partial, float *dgain, int chunks, int columns, int begun) {
    sum_partials(partial, columns, chunks, columns, dgain, begun);
}

extern "C" __global__ void rmsnorm_heads_f32(const float *x, const float *gain, float *y, int rows, int columns, float eps) {
    if (columns % 4) normalise_heads<false>(x, gain, y, rows, columns, eps);
    else normalise_heads<true>(x, gain, y, rows, columns, eps);
}

extern "C" __global__ void rmsnorm_heads_bf16(const bf16 *x, const float *gain, bf16 *y, int rows, int columns, float eps) {
    if (columns % 4) normalise_heads<false>(x, gain, y, rows, columns, eps);
    else normalise_heads<true>(x, gain, y, rows, columns, eps);
}

extern "C" __global__ void rmsnorm_heads_backward_f32(const float *x, const float *gain, float *dy, double *partial, int rows,
                                                      int columns, float eps) {
    if (columns % 4) heads_backward_chunk<false>(x, gain, dy, partial, rows, columns, eps);
    else heads_backward_chunk<true>(x, gain, dy, partial, rows, columns, eps);
}

extern "C" __global__ void rmsnorm_heads_backward_bf16(const bf16 *x, const float *gain, bf16 *dy, double *partial, int rows,
                                                       int columns, float eps) {
    if (columns % 4) heads_backward_chunk<false>(x, gain, dy, partial, rows, columns, eps);
    else heads_backward_chunk<true>(x, gain, dy, partial, rows, columns, eps);
}
