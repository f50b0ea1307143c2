// The start value of a product: its bias row and the matrix it is added to. The context computes the product itself. The
// contract is in asynctile/ops/gemm.py.

// c = bias, or source + bias. The source may be c itself.
template <int N, bool VECTOR, typename T>
static __device__ void add_bias(const float *__restrict__ bias, const T *source, T *c, int rows, int columns, int onto) {
    using Part = Span<N, VECTOR>;
    Patch patch = own_patch<N>(rows, columns);
    float biases[N];
    Part::load(bias, patch.column, columns, biases);
    for (int row = patch.row; row < patch.end; row += WARPS) {
        float values[N] = {};
        if (onto) Part::load(source + size_t(row) * columns, patch.column, columns, values);
#pragma unroll
        for (int i = 0; i < N; i++) values[i] += biases[i];
        Part::store(c + size_t(row) * columns, patch.column, columns, values);
    }
}

extern "C" __global__ void bias_f32(const float *bias, const float *source, float *c, int rows, int columns, int onto) {
    if (columns % 4) add_bias<4, false>(bias, source, c, rows, columns, onto);
    else add_bias<4, true>(bias, source, c, rows, columns, onto);
}

extern "C" __global__ void bias_bf16(const float *bias, const bf16 *source, bf16 *c, int rows, int columns, int onto) {
    if (columns % 8) add_bias<8, false>(bias, source, c, rows, columns, onto);
    else add_bias<8, true>(bias, source, c, rows, columns, onto);
}
