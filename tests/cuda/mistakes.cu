// Kernels that are wrong in one way each, and some that are right: for test_on_cpu.py.

extern "C" __global__ void misaligned(const float *x, float *y) {
    float values[4];
    load(x + 1, values);
    y[0] = values[0];
}

extern "C" __global__ void beyond_an_array(float *y, int at) {
    __shared__ float values[4];
    values[at] = 1.0f;
    __syncthreads();
    y[0] = values[0];
}

extern "C" __global__ void lanes_missing(float *y, int count) {
    if (threadIdx.x < count) y[threadIdx.x] = __shfl_xor_sync(~0u, 1.0f, 1);
}

extern "C" __global__ void waits_for_ever(float *y, int count) {
    if (threadIdx.x < count) y[threadIdx.x] = __shfl_xor_sync(~0u, 1.0f, 1);
    else __syncthreads();
}

extern "C" __global__ void not_initialised(float *y) {
    __shared__ float fixed[4];
    DYNAMIC_SHARED(float, dynamic);
    y[2 * blockIdx.x] = fixed[3];
    y[2 * blockIdx.x + 1] = dynamic[3];
    fixed[3] = dynamic[3] = 1.0f;
}

// Without the barrier if `wait` is 0.
extern "C" __global__ void mirror(float *y, int wait) {
    __shared__ float values[256];
    values[threadIdx.x] = threadIdx.x;
    if (wait) __syncthreads();
    y[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void warp_words(float *y) {
    int lane = threadIdx.x % 32;
    float value = threadIdx.x;
    float *row = y + threadIdx.x * 8;
    row[0] = __shfl_xor_sync(~0u, value, 3);
    row[1] = __shfl_down_sync(~0u, value, 3);
    row[2] = __shfl_up_sync(~0u, value, 3);
    row[3] = __shfl_sync(~0u, value, 3);
    row[4] = __popc(__ballot_sync(~0u, lane < 5));
    row[5] = __popc(__match_any_sync(~0u, lane / 10));
    row[6] = __shfl_xor_sync(~0u, value, 16, 8);
    if (lane < 6) row[7] = __shfl_xor_sync(0x3f, value, 1);
}

// One reduction after another, with the helpers of rows.cuh.
extern "C" __global__ void three_sums(float *y) {
    float value = threadIdx.x;
    float first = block_sum(value), second = block_sum(2.0f * value), third = block_sum(3.0f * value);
    float largest = block_max(-value), next = block_max(value);
    y[threadIdx.x] = first + second + third + 1000.0f * (largest + next);
}
