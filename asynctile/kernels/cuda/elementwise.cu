// Copy, add, fill, scale and column sums. The contracts are in asynctile/ops/elementwise.py.

// Copy bits without converting them.
template <typename T>
static __device__ void copy_plain(const T *source, T *target, size_t count) {
    constexpr int N = sizeof(uint4) / sizeof(T);
    size_t at = first_element<N>();
    if (at + N <= count) *reinterpret_cast<uint4 *>(target + at) = *reinterpret_cast<const uint4 *>(source + at);
    else
#pragma unroll 1
        for (; at < count; at++) target[at] = source[at];
}

template <typename S, typename T>
static __device__ void copy_converted(const S *source, T *target, size_t count) {
    constexpr int N = 8;
    size_t at = first_element<N>();
    if (at + N <= count) {
        float values[N];
        load(source + at, values);
        store(target + at, values);
    } else {
#pragma unroll 1
        for (; at < count; at++) assign(target[at], to_float(source[at]));
    }
}

// Each sum is rounded once, as on the CPU.
static __device__ void add_all(const float *source, float *target, size_t count) {
    size_t at = first_element<4>();
    if (at + 4 <= count) {
        float values[4], sums[4];
        load(source + at, values), load(target + at, sums);
#pragma unroll
        for (int i = 0; i < 4; i++) sums[i] += values[i];
        store(target + at, sums);
    } else {
#pragma unroll 1
        for (; at < count; at++) target[at] += source[at];
    }
}

template <int N, typename T>
static __device__ void fill_all(T *target, float value, size_t count) {
    size_t at = first_element<N>();
    if (at + N <= count) {
        float values[N];
#pragma unroll
        for (int i = 0; i < N; i++) values[i] = value;
        store(target + at, values);
    } else {
#pragma unroll 1
        for (; at < count; at++) assign(target[at], value);
    }
}

// Each product is rounded once, as on the CPU.
template <int N, typename T>
static __device__ void scale_all(T *target, float factor, size_t count) {
    size_t at = first_element<N>();
    if (at + N <= count) {
        float values[N];
        load(target + at, values);
#pragma unroll
        for (int i = 0; i < N; i++) values[i] *= factor;
        store(target + at, values);
    } else {
#pragma unroll 1
        for (; at < count; at++) assign(target[at], to_float(target[at]) * factor);
    }
}

template <int N, bool VECTOR, typename T>
static __device__ void column_sums_chunk(const T *__restrict__ x, double *partial, int rows, int columns, int chunks) {
    sum_chunk<N, VECTOR, 1>(rows, columns, chunks, partial, [&](int row, int column, float(&sums)[1][N]) {
        float values[N];
        Span<N, VECTOR>::load(x + size_t(row) * columns, column, columns, values);
#pragma unroll
        for (int i = 0; i < N; i++) sums[0][i] += values[i];
    });
}

// The same, and also a copy in bf16.
template <bool VECTOR>
static __device__ void column_sums_copy_chunk(const float *__restrict__ x, bf16 *__restrict__ copy, double *partial, int rows,
                                              int columns, int chunks) {
    sum_chunk<4, VECTOR, 1>(rows, columns, chunks, partial, [&](int row, int column, float(&sums)[1][4]) {
        float values[4];
        Span<4, VECTOR>::load(x + size_t(row) * columns, column, columns, values);
        Span<4, VECTOR>::store(copy + size_t(row) * columns, column, columns, values);
#pragma unroll
        for (int i = 0; i < 4; i++) sums[0][i] += values[i];
    });
}

extern "C" __global__ void copy_f32_f32(const float *source, float *target, int count) {
    copy_plain(source, target, count);
}

extern "C" __global__ void copy_bf16_bf16(const bf16 *source, bf16 *target, int count) {
    copy_plain(source, target, count);
}

extern "C" __global__ void copy_f32_bf16(const float *source, bf16 *target, int count) {
    copy_converted(source, target, count);
}

extern "C" __global__ void copy_bf16_f32(const bf16 *source, float *target, int count) {
    copy_converted(source, target, count);
}

extern "C" __global__ void add_f32(const float *source, float *target, int count) { add_all(source, target, count); }

extern "C" __global__ void fill_f32(float *target, float value, int count) { fill_all<4>(target, value, count); }

extern "C" __global__ void fill_bf16(bf16 *target, float value, int count) { fill_all<8>(target, value, count); }

extern "C" __global__ void scale_f32(float *target, float factor, int count) { scale_all<4>(target, factor, count); }

extern "C" __global__ void scale_bf16(bf16 *target, float factor, int count) { scale_all<8>(target, factor, count); }

extern "C" __global__ void column_sums_f32(const float *x, double *partial, int rows, int columns, int chunks) {
    if (columns % 4) column_sums_chunk<4, false>(x, partial, rows, columns, chunks);
    else column_sums_chunk<4, true>(x, partial, rows, columns, chunks);
}

extern "C" __global__ void column_sums_bf16(const bf16 *x, double *partial, int rows, int columns, int chunks) {
    if (columns % 8) column_sums_chunk<8, false>(x, partial, rows, columns, chunks);
    else column_sums_chunk<8, true>(x, partial, rows, columns, chunks);
}

extern "C" __global__ void column_sums_copy(const float *x, bf16 *copy, double *partial, int rows, int columns, int chunks) {
    if (columns % 4) column_sums_copy_chunk<false>(x, copy, partial, rows, columns, chunks);
    else column_sums_copy_chunk<true>(x, copy, partial, rows, columns, chunks);
}

extern "C" __global__ void column_sums_last(const double *partial, float *sums, int chunks, int columns, int accumulate) {
    sum_partials(partial, columns, chunks, columns, sums, accumulate);
}
