// The shared part of kernels over the rows of a tile: how a warp reads a row, which rows a block gets, sums in a fixed order.

static constexpr int WARP = 32;
// Warps of a block, unless a kernel says otherwise.
static constexpr int WARPS = 8;
// Rows of a patch: few enough for many blocks, and enough to load data that all rows share only once.
static constexpr int PATCH_ROWS = 32;
static constexpr float LOWEST = -3.402823466e38f;

static __device__ __forceinline__ int lane_index() { return threadIdx.x % WARP; }
static __device__ __forceinline__ int warp_index() { return threadIdx.x / WARP; }
static __device__ __forceinline__ int divide_up(int count, int by) { return (count + by - 1) / by; }

// A warp's view of 32 N columns of a row. VECTOR: a lane has N neighboring elements, read at once. The tile's columns are then
// a multiple of N, so rows are aligned for vectors, and a lane's N columns exist together or not at all. Otherwise a lane has
// every 32nd element.
template <int N, bool VECTOR>
struct Span {
    static constexpr int width = WARP * N;

    // Return where in the span this lane's element i is.
    static __device__ __forceinline__ int place(int i) { return VECTOR ? lane_index() * N + i : lane_index() + WARP * i; }

    // Load this lane's elements of row[first : first + width], and `beyond` for columns that the row does not have.
    template <typename T>
    static __device__ __forceinline__ void load(const T *row, int first, int columns, float (&to)[N], float beyond = 0.0f) {
        if constexpr (VECTOR) {
            if (first + place(0) < columns) return ::load(row + first + place(0), to);
#pragma unroll
            for (int i = 0; i < N; i++) to[i] = beyond;
        } else {
#pragma unroll
            for (int i = 0; i < N; i++) to[i] = first + place(i) < columns ? to_float(row[first + place(i)]) : beyond;
        }
    }

    template <typename T>
    static __device__ __forceinline__ void store(T *row, int first, int columns, const float (&from)[N]) {
        if constexpr (VECTOR) {
            if (first + place(0) < columns) ::store(row + first + place(0), from);
        } else {
#pragma unroll
            for (int i = 0; i < N; i++)
                if (first + place(i) < columns) assign(row[first + place(i)], from[i]);
        }
    }
};

// The part of a tile that one block of WARPS warps handles, each warp a span of every WARPS-th row: columns [column, column +
// 32 N), and this warp's rows row, row + WARPS, ... below `end`.
struct Patch {
    int column, row, end;
};

template <int N>
static __device__ __forceinline__ Patch own_patch(int rows, int columns) {
    int spans = divide_up(columns, WARP * N);
    int first = blockIdx.x / spans * PATCH_ROWS;
    return {int(blockIdx.x % spans) * WARP * N, first + warp_index(), min(rows, first + PATCH_ROWS)};
}

// Return the sum over a warp, with the same bits in each lane.
template <typename T>
static __device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
    for (int bit = WARP / 2; bit; bit /= 2) value += __shfl_xor_sync(~0u, value, bit);
    return value;
}

static __device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int bit = WARP / 2; bit; bit /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, bit));
    return value;
}

// Return the sum over a block of whole warps, with the same bits in each thread.
template <typename T>
static __device__ T block_sum(T value) {
    __shared__ T parts[WARP];
    value = warp_sum(value);
    __syncthreads();  // all threads have read an earlier sum
    if (lane_index() == 0) parts[warp_index()] = value;
    __syncthreads();
    T total = parts[0];
    for (int warp = 1; warp < blockDim.x / WARP; warp++) total += parts[warp];
    return total;
}

static __device__ float block_max(float value) {
    __shared__ float parts[WARP];
    value = warp_max(value);
    __syncthreads();
    if (lane_index() == 0) parts[warp_index()] = value;
    __syncthreads();
    float largest = parts[0];
    for (int warp = 1; warp < blockDim.x / WARP; warp++) largest = fmaxf(largest, parts[warp]);
    return largest;
}

// One array for all callers: otherwise each instance of a template would take shared memory of its own in a kernel.
template <int SUMS, int WIDTH>
static __device__ __forceinline__ float (&sums_of_warps())[WARPS][SUMS][WIDTH] {
    __shared__ float sums[WARPS][SUMS][WIDTH];
    return sums;
}

// Compute column sums, step one of two: a block sums one span of one of `chunks` chunks of the rows. add(row, column, sums)
// adds a row's part to this lane's sums. partial: (chunks, SUMS, columns).
template <int N, bool VECTOR, int SUMS, typename Add>
static __device__ __forceinline__ void sum_chunk(int rows, int columns, int chunks, double *partial, Add add) {
    using Part = Span<N, VECTOR>;
    auto &parts = sums_of_warps<SUMS, Part::width>();
    int spans = divide_up(columns, Part::width);
    int column = blockIdx.x % spans * Part::width, chunk = blockIdx.x / spans;
    int first = size_t(rows) * chunk / chunks, end = size_t(rows) * (chunk + 1) / chunks;
    float sums[SUMS][N] = {};
#pragma unroll 4
    for (int row = first + warp_index(); row < end; row += WARPS) add(row, column, sums);
#pragma unroll
    for (int s = 0; s < SUMS; s++)
#pragma unroll
        for (int i = 0; i < N; i++) parts[warp_index()][s][Part::place(i)] = sums[s][i];
    __syncthreads();
    for (int at = threadIdx.x; at < SUMS * Part::width; at += blockDim.x) {
        int s = at / Part::width, c = at % Part::width;
        double total = 0.0;
        for (int warp = 0; warp < WARPS; warp++) total += parts[warp][s][c];
        if (column + c < columns) partial[(size_t(chunk) * SUMS + s) * columns + column + c] = total;
    }
}

// Step two: a block sums the chunks of 32 columns. partial: rows of `stride` numbers, one row per chunk.
template <typename T>
static __device__ __forceinline__ void sum_partials(const T *partial, int stride, int chunks, int columns, float *sums,
                                                    int accumulate) {
    __shared__ double parts[WARPS][WARP];
    int column = blockIdx.x * WARP + lane_index();
    double total = 0.0;
    if (column < columns)
#pragma unroll 4
        for (int chunk = warp_index(); chunk < chunks; chunk += WARPS) total += partial[size_t(chunk) * stride + column];
    parts[warp_index()][lane_index()] = total;
    __syncthreads();
    if (warp_index() || column >= columns) return;
    total = accumulate ? sums[column] : 0.0;
    for (int warp = 0; warp < WARPS; warp++) total += parts[warp][lane_index()];
    sums[column] = total;
}
