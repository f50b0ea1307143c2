// Products of few rows, each with the bits that it has alone. The contract is in asynctile/ops/gemm_rows.py.
//
// Weights are read once for ROWS_AT_ONCE rows. Every element is one chain of fused multiply-adds for each thread that has a
// part of K, and one sum over these threads. K alone decides which thread has which part, and a missing row changes nothing in
// the others. A single row runs through the same chains without the arithmetic of seven others.

static constexpr int ROWS_AT_ONCE = 8;
// Columns of a block for b as stored, and columns of a warp for b transposed.
static constexpr int BLOCK_COLUMNS = 32, WARP_COLUMNS = 2;

// The destination of a product and its addends: bias and source, if the flags say so. The source may be c itself.
template <typename U>
struct Target {
    const float *bias;
    const U *source;
    U *c;
    int rows, columns;
    bool biased, onto;

    __device__ __forceinline__ void put(int row, int column, float product) const {
        if (row >= rows || column >= columns) return;
        size_t at = size_t(row) * columns + column;
        float begin = onto ? to_float(source[at]) : 0.0f;
        if (biased) begin += bias[column];
        assign(c[at], begin + product);
    }
};

// b (K, columns): a thread has N of the block's columns, and every k of its phase.
template <int R, int N, bool VECTOR, typename T, typename U>
static __device__ void times_rows(const T *__restrict__ a, const T *__restrict__ b, const Target<U> &target, int inner) {
    constexpr int LANES = BLOCK_COLUMNS / N, PHASES = WARPS * WARP / LANES;
    const int lane = threadIdx.x % LANES, columns = target.columns;
    const int first = blockIdx.x * BLOCK_COLUMNS, row = blockIdx.y * R;
    float sums[R][N] = {};
#pragma unroll 2
    for (int k = threadIdx.x / LANES; k < inner; k += PHASES) {
        const T *line = b + size_t(k) * columns;
        float weights[N] = {};
        if constexpr (VECTOR) {
            if (first + lane * N < columns) load(line + first + lane * N, weights);
        } else {
#pragma unroll
            for (int i = 0; i < N; i++)
                if (first + lane + i * LANES < columns) weights[i] = to_float(line[first + lane + i * LANES]);
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            float x = to_float(a[size_t(min(row + r, target.rows - 1)) * inner + k]);
#pragma unroll
            for (int i = 0; i < N; i++) sums[r][i] = __fmaf_rn(x, weights[i], sums[r][i]);
        }
    }
    auto &parts = sums_of_warps<R, BLOCK_COLUMNS>();
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int i = 0; i < N; i++) {
#pragma unroll
            for (int lanes = LANES; lanes < WARP; lanes *= 2) sums[r][i] += __shfl_xor_sync(~0u, sums[r][i], lanes);
            if (lane_index() < LANES) parts[warp_index()][r][VECTOR ? lane * N + i : lane + i * LANES] = sums[r][i];
        }
    __syncthreads();
    for (int at = threadIdx.x; at < R * BLOCK_COLUMNS; at += WARPS * WARP) {
        int r = at / BLOCK_COLUMNS, c = at % BLOCK_COLUMNS;
        float total = 0.0f;
        for (int warp = 0; warp < WARPS; warp++) total += parts[warp][r][c];
        target.put(row + r, first + c, total);
    }
}

// b (columns, K): a warp has WARP_COLUMNS rows of b, and its lanes have parts of K.
template <int R, int N, bool VECTOR, typename T, typename U>
static __device__ void times_columns(const T *__restrict__ a, const T *__restrict__ b, const Target<U> &target, int inner) {
    using Part = Span<N, VECTOR>;
    const int first = (blockIdx.x * WARPS + warp_index()) * WARP_COLUMNS, row = blockIdx.y * R;
    float sums[WARP_COLUMNS][R] = {};
    for (int k = 0; k < inner; k += Part::width) {
        float weights[WARP_COLUMNS][N];
#pragma unroll
        for (int j = 0; j < WARP_COLUMNS; j++)
            Part::load(b + size_t(min(first + j, target.columns - 1)) * inner, k, inner, weights[j]);
#pragma unroll
        for (int r = 0; r < R; r++) {
            float x[N];
            Part::load(a + size_t(min(row + r, target.rows - 1)) * inner, k, inner, x);
#pragma unroll
            for (int j = 0; j < WARP_COLUMNS; j++)
#pragma unroll
                for (int i = 0; i < N; i++) sums[j][r] = __fmaf_rn(x[i], weights[j][i], sums[j][r]);
        }
    }
#pragma unroll
    for (int j = 0; j < WARP_COLUMNS; j++)
#pragma unroll
        for (int r = 0; r < R; r++) {
            float total = warp_sum(sums[j][r]);
            if (lane_index() == 0) target.put(row + r, first + j, total);
        }
}

// b as stored: vector loads work if the rows of b are a multiple of N long. Launched with R rows per block; R = 1 is for a
// single row only.
template <int N, typename T, typename U>
static __device__ __forceinline__ void gemm_rows(const T *a, const T *b, const Target<U> &target, int inner) {
    if (target.rows == 1) {
        if (target.columns % N) times_rows<1, N, false>(a, b, target, inner);
        else times_rows<1, N, true>(a, b, target, inner);
    } else {
        if (target.columns % N) times_rows<ROWS_AT_ONCE, N, false>(a, b, target, inner);
        else times_rows<ROWS_AT_ONCE, N, true>(a, b, target, inner);
    }
}

template <int N, typename T, typename U>
static __device__ __forceinline__ void gemm_rows_transposed(const T *a, const T *b, const Target<U> &target, int inner) {
    if (target.rows == 1) {
        if (inner % N) times_columns<1, N, false>(a, b, target, inner);
        else times_columns<1, N, true>(a, b, target, inner);
    } else {
        if (inner % N) times_columns<ROWS_AT_ONCE, N, false>(a, b, target, inner);
        else times_columns<ROWS_AT_ONCE, N, true>(a, b, target, inner);
    }
}

// One kernel, whose name is its first argument, as literally as a driver looks for it. T: of both factors. U: of the result.
#define GEMM_ROWS_KERNEL(NAME, T, U, ...) \
    extern "C" __global__ void __launch_bounds__(256) NAME( \
        const T *a, const T *b, const float *bias, const U *source, U *c, int rows, int columns, int inner, int biased, \
        int onto) { \
        __VA_ARGS__(a, b, Target<U>{bias, source, c, rows, columns, bool(biased), bool(onto)}, inner); \
    }

GEMM_ROWS_KERNEL(gemm_rows_f32_f32, float, float, gemm_rows<4>)
GEMM_ROWS_KERNEL(gemm_rows_bf16_f32, bf16, float, gemm_rows<8>)
GEMM_ROWS_KERNEL(gemm_rows_bf16_bf16, bf16, bf16, gemm_rows<8>)
GEMM_ROWS_KERNEL(gemm_rows_transposed_f32_f32, float, float, gemm_rows_transposed<4>)
GEMM_ROWS_KERNEL(gemm_rows_transposed_bf16_f32, bf16, float, gemm_rows_transposed<8>)
GEMM_ROWS_KERNEL(gemm_rows_transposed_bf16_bf16, bf16, bf16, gemm_rows_transposed<8>)
