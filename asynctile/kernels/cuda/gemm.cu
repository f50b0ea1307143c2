// The bias row of a product; the product itself is the context's. See asynctile/ops/gemm.py for the contract.

template <int N, bool VECTOR, typename T>
static __device__ void add_bias(const float *__restrict__ bias, T *c, int rows, int columns, int accumulate) {
    using Part = Span<N, VECTOR>;
    Patch patch = own_patch<N>(rows, columns);
    float biases[N];
    Part::load(bias, patch.column, columns, biases);
    for (int row = patch.row; row < patch.end; row += WARPS) {
        T *target = c + size_t(row) * columns;
        float values[N] = {};
        if (accumulate) Part::load(target, patch.column, columns, values);
#pragma unroll
        for (int i = 0; i < N; i++) values[i] += biases[i];
        Part::store(target, patch.column, columns, values);
    }
}

extern "C" __global__ void bias_f32(const float *bias, float *c, int rows, int columns, int accumulate) {
    if (columns % 4) add_bias<4, false>(bias, c, rows, columns, accumulate);
    else add_bias<4, true>(bias, c, rows, columns, accumulate);
}

extern "C" __global__ void bias_bf16(const float *bias, bf16 *c, int rows, int columns, int accumulate) {
    if (columns % 8) add_bias<8, false>(bias, c, rows, columns, accumulate);
    else add_bias<8, true>(bias, c, rows, columns, accumulate);
}
