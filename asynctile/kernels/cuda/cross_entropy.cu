// Cross-entropy over vocabulary tiles, and its gradient in place. The contracts are in asynctile/ops/cross_entropy.py. Rows are
// `pitch` elements apart; the first `columns` of a row are logits.

static constexpr int IGNORED = -100;

// exp of a number that is at most 0. A bf16 logit has 8 significant bits, for which the fast exp is exact enough.
static __device__ __forceinline__ float weight_of(float, float x) { return expf(x); }
static __device__ __forceinline__ float weight_of(bf16, float x) { return __expf(x); }

// One block per row; its warps take SPANS spans at a time. Each lane keeps the largest logit it has seen and the sum of exp
// relative to it. Before the first logit the largest is LOWEST, which is finite, so that no difference is infinity - infinity.
// The maximum ignores a NaN, but the sum becomes NaN.
template <int N, int SPANS, bool VECTOR, typename T>
static __device__ void fold_row(const T *logits, const int *targets, float *stats, int columns, int pitch, int column, int first,
                                int last) {
    using Part = Span<N, VECTOR>;
    const float nothing = -__int_as_float(0x7f800000);
    const T *row = logits + size_t(blockIdx.x) * pitch;
    int stride = blockDim.x / WARP * SPANS * Part::width;
    float largest = LOWEST, total = 0.0f;
    for (int at = warp_index() * SPANS * Part::width; at < columns; at += stride) {
        float values[SPANS][N], before = largest;
#pragma unroll
        for (int span = 0; span < SPANS; span++)
            Part::load(row, at + span * Part::width, pitch, values[span], nothing);
        if (at + SPANS * Part::width > columns)
#pragma unroll
            for (int span = 0; span < SPANS; span++)
#pragma unroll
                for (int i = 0; i < N; i++)
                    if (at + span * Part::width + Part::place(i) >= columns) values[span][i] = nothing;
#pragma unroll
        for (int span = 0; span < SPANS; span++)
#pragma unroll
            for (int i = 0; i < N; i++) largest = fmaxf(largest, values[span][i]);
        total *= weight_of(T(), before - largest);
#pragma unroll
        for (int span = 0; span < SPANS; span++)
#pragma unroll
            for (int i = 0; i < N; i++) total += weight_of(T(), values[span][i] - largest);
    }
    float top = block_max(largest);
    total = block_sum(total * expf(largest - top));
    if (threadIdx.x) return;
    float *target = stats + 3 * size_t(blockIdx.x), chosen = first ? 0.0f : target[2];
    if (!first) {
        float before = target[0], both = fmaxf(before, top);
        total = total * expf(top - both) + target[1] * expf(before - both);
        top = both;
    }
    int place = targets[blockIdx.x] - column;
    if (place >= 0 && place < columns) chosen = to_float(row[place]);
    target[0] = last ? top + logf(total) : top;
    target[1] = total;
    target[2] = chosen;
}

template <int N, bool VECTOR, typename T>
static __device__ void logits_gradient(const int *__restrict__ targets, const float *__restrict__ stats, float scale, T *logits,
                                       int rows, int columns, int pitch, int column) {
    using Part = Span<N, VECTOR>;
    Patch patch = own_patch<N>(rows, pitch);
    for (int row = patch.row; row < patch.end; row += WARPS) {
        T *target = logits + size_t(row) * pitch;
        float values[N] = {};
        if (targets[row] != IGNORED) {
            int place = targets[row] - column - patch.column;
            float lse = stats[3 * size_t(row)];
            Part::load(target, patch.column, pitch, values);
#pragma unroll
            for (int i = 0; i < N; i++)
                values[i] = patch.column + Part::place(i) < columns
                    ? (weight_of(T(), values[i] - lse) - (Part::place(i) == place ? 1.0f : 0.0f)) * scale : 0.0f;
        }
        Part::store(target, patch.column, pitch, values);
    }
}

extern "C" __global__ void cross_entropy_f32(const float *logits, const int *targets, float *stats, int columns, int pitch,
                                             int column, int first, int last) {
    if (pitch % 4) fold_row<4, 4, false>(logits, targets, stats, columns, pitch, column, first, last);
    else fold_row<4, 4, true>(logits, targets, stats, columns, pitch, column, first, last);
}

extern "C" __global__ void cross_entropy_bf16(const bf16 *logits, const int *targets, float *stats, int columns, int pitch,
                                              int column, int first, int last) {
    if (pitch % 8) fold_row<8, 2, false>(logits, targets, stats, columns, pitch, column, first, last);
    else fold_row<8, 2, true>(logits, targets, stats, columns, pitch, column, first, last);
}

// One block sums the losses of all rows.
extern "C" __global__ void __launch_bounds__(1024) cross_entropy_loss(const int *targets, const float *stats, int rows,
                                                                      double *number) {
    double total = 0.0;
    for (int row = threadIdx.x; row < rows; row += blockDim.x)
        if (targets[row] != IGNORED) total += double(stats[3 * size_t(row)]) - double(stats[3 * size_t(row) + 2]);
    total = block_sum(total);
    if (threadIdx.x == 0) *number = total;
}

extern "C" __global__ void cross_entropy_backward_f32(const int *targets, const float *stats, const float *scale, float *logits,
                                                      int rows, int columns, int pitch, int column) {
    if (pitch % 4) logits_gradient<4, false>(targets, stats, *scale, logits, rows, columns, pitch, column);
    else logits_gradient<4, true>(targets, stats, *scale, logits, rows, columns, pitch, column);
}

extern "C" __global__ void cross_entropy_backward_bf16(const int *targets, const float *stats, const float *scale, bf16 *logits,
                                                       int rows, int columns, int pitch, int column) {
    if (pitch % 8) logits_gradient<8, false>(targets, stats, *scale, logits, rows, columns, pitch, column);
    else logits_gradient<8, true>(targets, stats, *scale, logits, rows, columns, pitch, column);
}
