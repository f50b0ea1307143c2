// The shared part of layernorm.cu and rmsnorm.cu: y = (x - mean) rstd gain + bias, and its gradients. RMSNorm subtracts no mean
// and adds no bias: they are constants of 0 there, which the compiler removes.

// NUMBERS: statistics of a row, its sums in the backward pass, and gradients of a column. The last of a row's belongs to rstd.
struct LayerNorm {
    static constexpr int NUMBERS = 2;
};

struct RmsNorm {
    static constexpr int NUMBERS = 1;
};

template <typename Norm>
constexpr bool is_centered = Norm::NUMBERS == 2;

// Return a row's mean, or the sum that stands in its place.
template <typename Norm>
static __device__ __forceinline__ float mean_of(const float *stats, int row) {
    return is_centered<Norm> ? stats[2 * size_t(row)] : 0.0f;
}

// Return a row's rstd, or the sum that stands in its place.
template <typename Norm>
static __device__ __forceinline__ float rstd_of(const float *stats, int row) {
    return stats[Norm::NUMBERS * size_t(row) + Norm::NUMBERS - 1];
}

// Rounded exactly where written, so the kernels that use it give equal bits.
template <typename Norm>
static __device__ __forceinline__ float normal(float x, float mean, float rstd, float gain, float bias) {
    if constexpr (is_centered<Norm>) return __fmaf_rn(__fmul_rn(__fsub_rn(x, mean), rstd), gain, bias);
    else return __fmul_rn(__fmul_rn(x, rstd), gain);
}

template <typename Norm, int N, bool VECTOR, typename T>
static __device__ void normalise(const float *__restrict__ x, const float *__restrict__ stats, const float *__restrict__ gain,
                                 const float *__restrict__ bias, T *__restrict__ y, int rows, int columns) {
    using Part = Span<N, VECTOR>;
    Patch patch = own_patch<N>(rows, columns);
    float gains[N], biases[N] = {};
    Part::load(gain, patch.column, columns, gains);
    if constexpr (is_centered<Norm>) Part::load(bias, patch.column, columns, biases);
    for (int row = patch.row; row < patch.end; row += WARPS) {
        float mean = mean_of<Norm>(stats, row), rstd = rstd_of<Norm>(stats, row), values[N];
        Part::load(x + size_t(row) * columns, patch.column, columns, values);
#pragma unroll
        for (int i = 0; i < N; i++) values[i] = normal<Norm>(values[i], mean, rstd, gains[i], biases[i]);
        Part::store(y + size_t(row) * columns, patch.column, columns, values);
    }
}

// Normalize a row by one warp, which has read it before: it comes from the L1 cache.
template <typename Norm, int N, bool VECTOR, typename S, typename T>
static __device__ __forceinline__ void normalise_row(const S *__restrict__ x, const float *__restrict__ gain,
                                                     const float *__restrict__ bias, T *__restrict__ y, int columns, float mean,
                                                     float rstd) {
    using Part = Span<N, VECTOR>;
#pragma unroll 2
    for (int first = 0; first < columns; first += Part::width) {
        float values[N], gains[N], biases[N] = {};
        Part::load(x, first, columns, values);
        Part::load(gain, first, columns, gains);
        if constexpr (is_centered<Norm>) Part::load(bias, first, columns, biases);
#pragma unroll
        for (int i = 0; i < N; i++) values[i] = normal<Norm>(values[i], mean, rstd, gains[i], biases[i]);
        Part::store(y, first, columns, values);
    }
}

template <typename Norm, bool VECTOR>
static __device__ void sums_of_rows(const float *__restrict__ dinp, const float *__restrict__ x, const float *stats,
                                    const float *__restrict__ gain, float *sums, int rows, int columns, int accumulate) {
    using Part = Span<4, VECTOR>;
    int row = blockIdx.x * WARPS + warp_index();
    if (row >= rows) return;
    float mean = mean_of<Norm>(stats, row), rstd = rstd_of<Norm>(stats, row), plain = 0.0f, weighted = 0.0f;
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
    if constexpr (is_centered<Norm>) plain = warp_sum(plain);
    weighted = warp_sum(weighted) * rstd;
    if (lane_index()) return;
    float *target = sums + Norm::NUMBERS * size_t(row), *last = target + Norm::NUMBERS - 1;
    if constexpr (is_centered<Norm>) target[0] = accumulate ? target[0] + plain : plain;
    *last = accumulate ? *last + weighted : weighted;
}

template <typename Norm, bool VECTOR>
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
        float mean = mean_of<Norm>(stats, row), rstd = rstd_of<Norm>(stats, row);
        float offset = mean_of<Norm>(sums, row) * share, slope = rstd * rstd_of<Norm>(sums, row) * share;
        float grads[4], values[4], before[4] = {};
        Part::load(dinp + start, patch.column, columns, grads);
        Part::load(x + start, patch.column, columns, values);
        if (accumulate) Part::load(dx + start, patch.column, columns, before);
#pragma unroll
        for (int i = 0; i < 4; i++) before[i] += rstd * (grads[i] * gains[i] - offset - (values[i] - mean) * slope);
        Part::store(dx + start, patch.column, columns, before);
    }
}

template <typename Norm, bool VECTOR>
static __device__ void gradients_chunk(const float *__restrict__ dinp, const float *__restrict__ x,
                                       const float *__restrict__ stats, double *partial, int rows, int columns, int chunks) {
    constexpr int NUMBERS = Norm::NUMBERS;
    sum_chunk<4, VECTOR, NUMBERS>(rows, columns, chunks, partial, [&](int row, int column, float(&sums)[NUMBERS][4]) {
        float mean = mean_of<Norm>(stats, row), rstd = rstd_of<Norm>(stats, row), grads[4], values[4];
        Span<4, VECTOR>::load(dinp + size_t(row) * columns, column, columns, grads);
        Span<4, VECTOR>::load(x + size_t(row) * columns, column, columns, values);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sums[0][i] += grads[i] * ((values[i] - mean) * rstd);
            if constexpr (is_centered<Norm>) sums[1][i] += grads[i];
        }
    });
}

// Compute all gradients of a block's rows, reading each row once, `held` rows at a time. Each warp sums one row, keeps it in
// shared memory (the gradient of the output, then xhat) and writes dx. Then each thread adds these rows to the sums of its own
// columns, which are also in shared memory. partial: (chunks, NUMBERS, columns). Rows in shared memory are aligned for vector
// loads.
template <typename Norm, bool VECTOR>
static __device__ void whole_rows_backward(const float *__restrict__ dinp, const float *__restrict__ x,
                                           const float *__restrict__ stats, const float *__restrict__ gain, float *dx,
                                           float *partial, int rows, int columns, int held, int accumulate) {
    using Part = Span<4, VECTOR>;
    DYNAMIC_SHARED(float, shared);
    int stride = divide_up(columns, 4) * 4, warp = warp_index();
    float *sums = shared, *lines = shared + Norm::NUMBERS * stride;
    float *line = lines + 2 * warp * stride, *hats = line + stride, share = 1.0f / columns;
    for (int c = threadIdx.x; c < columns; c += blockDim.x)
        for (int s = 0; s < Norm::NUMBERS; s++) sums[s * stride + c] = 0.0f;
    int first = size_t(rows) * blockIdx.x / gridDim.x, end = size_t(rows) * (blockIdx.x + 1) / gridDim.x;
    for (; first < end; first += held) {
        int row = first + warp;
        if (warp < held && row < end) {
            size_t start = size_t(row) * columns;
            float mean = mean_of<Norm>(stats, row), rstd = rstd_of<Norm>(stats, row), plain = 0.0f, weighted = 0.0f;
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
            float offset = is_centered<Norm> ? warp_sum(plain) * share : 0.0f, slope = warp_sum(weighted) * share;
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
            float gains = sums[c], biases = is_centered<Norm> ? sums[stride + c] : 0.0f;
            for (int r = 0; r < count; r++) {
                float grad = lines[2 * r * stride + c];
                gains += grad * lines[(2 * r + 1) * stride + c];
                biases += grad;
            }
            sums[c] = gains;
            if constexpr (is_centered<Norm>) sums[stride + c] = biases;
        }
        __syncthreads();
    }
    for (int c = threadIdx.x; c < columns; c += blockDim.x)
        for (int s = 0; s < Norm::NUMBERS; s++)
            partial[(Norm::NUMBERS * size_t(blockIdx.x) + s) * columns + c] = sums[s * stride + c];
}
