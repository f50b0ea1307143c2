// SwiGLU and its derivatives. The contract is in asynctile/ops/swiglu.py.

// 1 / (1 + exp(-x))
static __device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }

// Rounded exactly where written, so the two kernels that use it give equal bits.
static __device__ __forceinline__ float swiglu_value(float gate, float share, float up) {
    return __fmul_rn(__fmul_rn(gate, share), up);
}

// Return the value, and turn gate into its gradient and grad into that of up.
static __device__ __forceinline__ float swiglu_slopes(float &gate, float up, float &grad) {
    float share = sigmoid(gate), value = swiglu_value(gate, share, up), silu = __fmul_rn(gate, share);
    gate = grad * up * (share + silu * (1.0f - share));
    grad *= silu;
    return value;
}

template <int N, typename T>
static __device__ void swiglu_forward(const T *gate, const T *up, T *y, size_t count) {
    size_t at = first_element<N>();
    if (at + N <= count) {
        float gates[N], ups[N];
        load(gate + at, gates);
        load(up + at, ups);
#pragma unroll
        for (int i = 0; i < N; i++) gates[i] = swiglu_value(gates[i], sigmoid(gates[i]), ups[i]);
        store(y + at, gates);
    } else {
#pragma unroll 1
        for (; at < count; at++) {
            float value = to_float(gate[at]);
            assign(y[at], swiglu_value(value, sigmoid(value), to_float(up[at])));
        }
    }
}

template <int N, typename T>
static __device__ void swiglu_both(const T *gate, const T *up, T *y, T *grad, T *dgate, size_t count) {
    size_t at = first_element<N>();
    if (at + N <= count) {
        float gates[N], ups[N], grads[N];
        load(gate + at, gates);
        load(up + at, ups);
        load(grad + at, grads);
#pragma unroll
        for (int i = 0; i < N; i++) ups[i] = swiglu_slopes(gates[i], ups[i], grads[i]);
        store(y + at, ups);
        store(grad + at, grads);
        store(dgate + at, gates);
    } else {
#pragma unroll 1
        for (; at < count; at++) {
            float value = to_float(gate[at]), more = to_float(grad[at]);
            assign(y[at], swiglu_slopes(value, to_float(up[at]), more));
            assign(grad[at], more);
            assign(dgate[at], value);
        }
    }
}

extern "C" __global__ void swiglu_f32(const float *gate, const float *up, float *y, int count) {
    swiglu_forward<4>(gate, up, y, count);
}

extern "C" __global__ void swiglu_bf16(const bf16 *gate, const bf16 *up, bf16 *y, int count) {
    swiglu_forward<8>(gate, up, y, count);
}

extern "C" __global__ void swiglu_and_backward_f32(const float *gate, const float *up, float *y, float *grad, float *dgate,
                                                   int count) {
    swiglu_both<4>(gate, up, y, grad, dgate, count);
}

extern "C" __global__ void swiglu_and_backward_bf16(const bf16 *gate, const bf16 *up, bf16 *y, bf16 *grad, bf16 *dgate,
                                                    int count) {
    swiglu_both<8>(gate, up, y, grad, dgate, count);
}
