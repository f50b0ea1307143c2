// AdamW on one tile, and sums of squares. The contract is in asynctile/ops/adamw.py. Each float32 operation is rounded once, by
// an intrinsic that is never contracted, so the bits equal the CPU's. Each block sums its squares in float64 into `partial`;
// the last block to finish adds the partial sums in their order.

struct AdamW {
    float factor, beta1, rest1, beta2, rest2, keep, step, root, eps;

    __device__ __forceinline__ AdamW(const float *hyper, int decay)
        : factor(hyper[0]), beta1(hyper[1]), rest1(hyper[2]), beta2(hyper[3]), rest2(hyper[4]),
          keep(decay ? hyper[5] : 1.0f),  // a product with 1 changes no bit
          step(hyper[6]), root(hyper[7]), eps(hyper[8]) {}

    __device__ __forceinline__ void update(float &w, float g, float &m, float &v) const {
        float scaled = __fmul_rn(g, factor);
        m = __fadd_rn(__fmul_rn(beta1, m), __fmul_rn(rest1, scaled));
        v = __fadd_rn(__fmul_rn(beta2, v), __fmul_rn(rest2, __fmul_rn(scaled, scaled)));
        float slope = __fdiv_rn(m, __fadd_rn(__fdiv_rn(__fsqrt_rn(v), root), eps));
        w = __fsub_rn(__fmul_rn(w, keep), __fmul_rn(step, slope));
    }
};

// number = the sum over all blocks of each thread's `squares`, written by the block that finishes last. `arrived` counts
// finished blocks and is 0 before and after each launch. The partials are added in their order, no matter which block is last.
static __device__ __forceinline__ void sum_over_blocks(double squares, double *partial, unsigned *arrived, double *number) {
    __shared__ bool is_last;
    squares = block_sum(squares);
    if (threadIdx.x == 0) {
        __stcg(partial + blockIdx.x, squares);
        __threadfence();
        is_last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    double total = 0.0;
    for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x) total += __ldcg(partial + i);
    total = block_sum(total);
    if (threadIdx.x == 0) *number = total;
}

// Blocks stride over the tile. copy: where the new weights go in bf16, or null. Elements beyond `count` become 0.
static __device__ __forceinline__ void update_all(float *w, const float *g, float *m, float *v, const float *hyper, bf16 *copy,
                                                  int decay, size_t count, size_t size, double *partial, unsigned *arrived,
                                                  double *number) {
    AdamW adamw(hyper, decay);
    double squares = 0.0;
    for (size_t at = first_element<4>(); at < size; at += size_t(gridDim.x) * blockDim.x * 4) {
        if (at + 4 <= count) {
            float weights[4], gradients[4], means[4], deviations[4];
            load(w + at, weights), load(g + at, gradients), load(m + at, means), load(v + at, deviations);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                squares += double(gradients[i]) * double(gradients[i]);
                adamw.update(weights[i], gradients[i], means[i], deviations[i]);
            }
            store(w + at, weights), store(m + at, means), store(v + at, deviations);
            if (copy) store(copy + at, weights);
        } else {
            for (size_t i = at; i < min(at + 4, size); i++) {
                if (i < count) {
                    squares += double(g[i]) * double(g[i]);
                    adamw.update(w[i], g[i], m[i], v[i]);
                } else w[i] = m[i] = v[i] = 0.0f;
                if (copy) assign(copy[i], w[i]);
            }
        }
    }
    sum_over_blocks(squares, partial, arrived, number);
}

extern "C" __global__ void adamw_f32(float *w, const float *g, float *m, float *v, const float *hyper, int decay, int count,
                                     int size, double *partial, unsigned *arrived, double *number) {
    update_all(w, g, m, v, hyper, nullptr, decay, count, size, partial, arrived, number);
}

extern "C" __global__ void adamw_bf16(float *w, const float *g, float *m, float *v, const float *hyper, bf16 *copy, int decay,
                                      int count, int size, double *partial, unsigned *arrived, double *number) {
    update_all(w, g, m, v, hyper, copy, decay, count, size, partial, arrived, number);
}

extern "C" __global__ void sum_squares(const float *g, int count, double *partial, unsigned *arrived, double *number) {
    double squares = 0.0;
#pragma unroll 4
    for (size_t at = first_element<4>(); at < count; at += size_t(gridDim.x) * blockDim.x * 4) {
        float gradients[4] = {};
        if (at + 4 <= count) load(g + at, gradients);
        else
            for (int i = 0; at + i < count; i++) gradients[i] = g[at + i];
#pragma unroll
        for (int i = 0; i < 4; i++) squares += double(gradients[i]) * double(gradients[i]);
    }
    sum_over_blocks(squares, partial, arrived, number);
}
