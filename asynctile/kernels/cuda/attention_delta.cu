// Row sums of out dout over each head, in one pass over memory. The contract is in asynctile/ops/attention.py.

// `lanes` threads, a power of two, sum one row of a head, each N elements at a time. blockIdx.x is the head, so blocks that run
// at the same time read whole rows.
template <int N, typename T>
static __device__ __forceinline__ void attention_delta(const T *out, const T *dout, float *delta, int rows, int hs, int lanes) {
    const int shift = __ffs(lanes) - 1, lane = threadIdx.x & (lanes - 1);
    const int row = blockIdx.y * (blockDim.x >> shift) + (threadIdx.x >> shift);
    const size_t start = (size_t(row) * gridDim.x + blockIdx.x) * hs;
    float sum = 0.0f;
    if (row < rows && hs % N == 0) {
        for (int c = lane * N; c < hs; c += lanes * N) {
            float left[N], right[N];
            load(out + start + c, left);
            load(dout + start + c, right);
#pragma unroll
            for (int i = 0; i < N; i++) sum += left[i] * right[i];
        }
    } else if (row < rows) {
        for (int c = lane; c < hs; c += lanes) sum += to_float(out[start + c]) * to_float(dout[start + c]);
    }
    for (int apart = lanes / 2; apart; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
    if (row < rows && lane == 0) delta[size_t(blockIdx.x) * rows + row] = sum;
}

extern "C" __global__ void attention_delta_f32(const float *out, const float *dout, float *delta, int rows, int hs, int lanes) {
    attention_delta<4>(out, dout, delta, rows, hs, lanes);
}

extern "C" __global__ void attention_delta_bf16(const bf16 *out, const bf16 *dout, float *delta, int rows, int hs, int lanes) {
    attention_delta<8>(out, dout, delta, rows, hs, lanes);
}
