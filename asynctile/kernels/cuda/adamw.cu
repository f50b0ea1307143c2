// AdamW on one tile, and sums of squares; see asynctile/ops/adamw.py for the contract.
// Each float32 operation is rounded once, by an intrinsic that is never contracted: the bits are those of the CPU.
// Squares are summed in float64, by each block into `partial`, and those by one block more.

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

// Blocks stride over the tile. copy: null, or where the new weights go in bf16. What is beyond `count` becomes 0.
static __device__ __forceinline__ void update_all(float *w, const float *g, float *m, float *v, const float *hyper, bf16 *copy,
                                                  int decay, size_t count, size_t size, double *partial) {
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
    squares = block_sum(squares);
    if (threadIdx.x == 0) partial[blockIdx.x] = squares;
}

extern "C" __global__ void adamw_f32(float *w, const float *g, float *m, float *v, const float *hyper, int decay, int count,
                                     int size, double *partial) {
    update_all(w, g, m, v, hyper, nullptr, decay, count, size, partial);
}

extern "C" __global__ void adamw_bf16(float *w, const float *g, float *m, float *v, const float *hyper, bf16 *copy, int decay,
                                      int count, int size, double *partial) {
    update_all(w, g, m, v, hyper, copy, decay, count, size, partial);
}

extern "C" __global__ void sum_squares(const float *g, int count, double *partial) {
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
    squares = block_sum(squares);
    if (threadIdx.x == 0) partial[blockIdx.x] = squares;
}

// One block: the sum of what all blocks left.
extern "C" __global__ void sum_of_partials(const double *partial, int count, double *number) {
    double total = 0.0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) total += partial[i];
    total = block_sum(total);
    if (threadIdx.x == 0) *number = total;
}
