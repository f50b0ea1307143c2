// GELU (tanh form) and its derivative. The contract is in asynctile/ops/gelu.py. 0.5 (1 + tanh(u)) equals 1 / (1 + exp(-2 u)).
// So no tanh is computed, and no digits are lost where tanh is near -1.

// -2 u = x (GELU_SLOPE + GELU_CUBIC x^2)
#define GELU_SLOPE -1.5957691216057308f
#define GELU_CUBIC -0.07135481627159825f

// 0.5 (1 + tanh(u)) of x
static __device__ __forceinline__ float gelu_share(float x, float square) {
    return __fdividef(1.0f, 1.0f + expf(x * (GELU_SLOPE + GELU_CUBIC * square)));
}

static __device__ __forceinline__ float gelu_value(float x) { return x * gelu_share(x, x * x); }

static __device__ __forceinline__ float gelu_slope(float x, float square, float share) {
    return share - share * (1.0f - share) * (x * (GELU_SLOPE + 3.0f * GELU_CUBIC * square));
}

template <int N, typename T>
static __device__ void gelu_forward(const T *x, T *y, size_t count) {
    size_t at = first_element<N>();
    if (at + N <= count) {
        float values[N];
        load(x + at, values);
#pragma unroll
        for (int i = 0; i < N; i++) values[i] = gelu_value(values[i]);
        store(y + at, values);
    } else {
#pragma unroll 1
        for (; at < count; at++) assign(y[at], gelu_value(to_float(x[at])));
    }
}

// Compute y and the gradient, and the gradient's column sums, which column_sums_last finishes.
template <int N, bool VECTOR, typename T>
static __device__ void gelu_both_chunk(const T *__restrict__ x, T *__restrict__ y, T *__restrict__ grad, double *partial,
                                       int rows, int columns, int chunks) {
    using Part = Span<N, VECTOR>;
    sum_chunk<N, VECTOR, 1>(rows, columns, chunks, partial, [&](int row, int column, float(&sums)[1][N]) {
        float values[N], grads[N];
        Part::load(x + size_t(row) * columns, column, columns, values);
        Part::load(grad + size_t(row) * columns, column, columns, grads);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float value = values[i], square = value * value, share = gelu_share(value, square);
            values[i] = value * share;
            grads[i] *= gelu_slope(value, square, share);
            sums[0][i] += grads[i];
        }
        Part::store(y + size_t(row) * columns, column, columns, values);
        Part::store(grad + size_t(row) * columns, column, columns, grads);
    });
}

extern "C" __global__ void gelu_f32(const float *x, float *y, int count) { gelu_forward<4>(x, y, count); }

extern "C" __global__ void gelu_bf16(const bf16 *x, bf16 *y, int count) { gelu_forward<8>(x, y, count); }

extern "C" __global__ void gelu_and_backward_f32(const float *x, float *y, float *grad, double *partial, int rows,
                                                 int columns, int chunks) {
    if (columns % 4) gelu_both_chunk<4, false>(x, y, grad, partial, rows, columns, chunks);
    else gelu_both_chunk<4, true>(x, y, grad, partial, rows, columns, chunks);
}

extern "C" __global__ void gelu_and_backward_bf16(const bf16 *x, bf16 *y, bf16 *grad, double *partial, int rows,
                                                  int columns, int chunks) {
    if (columns % 8) gelu_both_chunk<8, false>(x, y, grad, partial, rows, columns, chunks);
    else gelu_both_chunk<8, true>(x, y, grad, partial, rows, columns, chunks);
}
