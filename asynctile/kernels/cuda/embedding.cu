// Token and position embeddings and their gradients. The contracts are in asynctile/ops/embedding.py. Rows whose token or
// position belongs to another tile of the table are left unchanged.

template <int N, bool VECTOR, typename T>
static __device__ void take_positions(const T *__restrict__ wpe, float *__restrict__ x, int rows, int columns, int places,
                                      int length, int shift) {
    Patch patch = own_patch<N>(rows, columns);
    for (int row = patch.row; row < patch.end; row += WARPS) {
        int place = row % length + shift;
        if (place < 0 || place >= places) continue;
        float values[N];
        Span<N, VECTOR>::load(wpe + size_t(place) * columns, patch.column, columns, values);
        Span<N, VECTOR>::store(x + size_t(row) * columns, patch.column, columns, values);
    }
}

template <int N, bool VECTOR, typename T>
static __device__ void add_tokens(const int *__restrict__ tokens, const T *__restrict__ wte, float *x, int rows, int columns,
                                  int places, int shift) {
    Patch patch = own_patch<N>(rows, columns);
    for (int row = patch.row; row < patch.end; row += WARPS) {
        int place = tokens[row] - shift;
        if (place < 0 || place >= places) continue;
        float values[N], more[N];
        Span<N, VECTOR>::load(x + size_t(row) * columns, patch.column, columns, values);
        Span<N, VECTOR>::load(wte + size_t(place) * columns, patch.column, columns, more);
#pragma unroll
        for (int i = 0; i < N; i++) values[i] += more[i];
        Span<N, VECTOR>::store(x + size_t(row) * columns, patch.column, columns, values);
    }
}

// Sum a patch of the table's gradient, sequence after sequence.
template <bool VECTOR>
static __device__ void sum_positions(const float *__restrict__ dx, float *__restrict__ dwpe, int places, int columns, int seqs,
                                     int length, int shift) {
    Patch patch = own_patch<4>(places, columns);
    for (int place = patch.row; place < patch.end; place += WARPS) {
        int row = place - shift;
        if (row < 0 || row >= length) continue;
        float sums[4];
        Span<4, VECTOR>::load(dwpe + size_t(place) * columns, patch.column, columns, sums);
#pragma unroll 4
        for (int seq = 0; seq < seqs; seq++) {
            float values[4];
            Span<4, VECTOR>::load(dx + (size_t(seq) * length + row) * columns, patch.column, columns, values);
#pragma unroll
            for (int i = 0; i < 4; i++) sums[i] += values[i];
        }
        Span<4, VECTOR>::store(dwpe + size_t(place) * columns, patch.column, columns, sums);
    }
}

// ---- the gradient of a token table, in two kernels The first kernel sorts: for each group of GROUP table rows it lists the
// tile's tokens of that group, in token order. The second kernel adds. No order depends on which thread arrives first, so the
// bits are the same each time.

static constexpr int GROUP = 64;
// Table rows of a block of the second kernel. A warp has sums for all of them in shared memory.
static constexpr int ROWS = 8;

// Return the places of a thread's four tokens, neighbors in token order. Tokens beyond the end have places outside every group.
static __device__ __forceinline__ int4 places_at(const int *__restrict__ tokens, int at, int count, int shift) {
    if (at + 4 <= count) {
        int4 four = *reinterpret_cast<const int4 *>(tokens + at);
        return {four.x - shift, four.y - shift, four.z - shift, four.w - shift};
    }
    return {at < count ? tokens[at] - shift : -1, at + 1 < count ? tokens[at + 1] - shift : -1,
            at + 2 < count ? tokens[at + 2] - shift : -1, -1};
}

static __device__ __forceinline__ bool below(int place, int end) { return place >= 0 && place < end; }

// Block g writes lists[starts[g] : ends[g]] = token index * GROUP + place in the group, for the tokens of group g in order. It
// counts the tokens of earlier groups itself instead of asking other blocks.
extern "C" __global__ void __launch_bounds__(1024) embed_tokens_lists(const int *tokens, int count, int places, int shift,
                                                                        int *starts, int *ends, int *lists) {
    __shared__ int totals[WARP];
    int first = blockIdx.x * GROUP, own = min(GROUP, places - first), before = 0;
    for (int at = threadIdx.x * 4; at < count; at += blockDim.x * 4) {
        int4 four = places_at(tokens, at, count, shift);
        before += below(four.x, first) + below(four.y, first) + below(four.z, first) + below(four.w, first);
    }
    int next = block_sum(before);
    if (threadIdx.x == 0) starts[blockIdx.x] = next;
    for (int base = 0; base < count; base += blockDim.x * 4) {
        int at = base + threadIdx.x * 4;
        int4 four = places_at(tokens, at, count, shift + first);
        int inside[4] = {four.x, four.y, four.z, four.w}, found = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) found += below(inside[i], own);
        // Tokens found by earlier threads: first in this warp, then in the warps before.
        int upto = found;
#pragma unroll
        for (int by = 1; by < WARP; by *= 2) {
            int other = __shfl_up_sync(~0u, upto, by);
            if (lane_index() >= by) upto += other;
        }
        __syncthreads();  // the totals of the last round have been read
        if (lane_index() == WARP - 1) totals[warp_index()] = upto;
        __syncthreads();
        int place = next + upto - found;
        for (int warp = 0; warp < blockDim.x / WARP; warp++) {
            if (warp < warp_index()) place += totals[warp];
            next += totals[warp];
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (below(inside[i], own)) lists[place++] = (at + i) * GROUP + inside[i];
    }
    if (threadIdx.x == 0) ends[blockIdx.x] = next;
}

// A block adds to one span of ROWS table rows. Each warp takes a part of their group's list and sums by table row; then the
// warps' sums are added in order. So a token that makes up half of a text is work for all warps alike.
template <bool VECTOR>
static __device__ void sum_tokens(const int *__restrict__ starts, const int *__restrict__ ends, const int *__restrict__ lists,
                                  const float *__restrict__ dx, float *__restrict__ dwte, int places, int columns) {
    using Part = Span<4, VECTOR>;
    constexpr int AHEAD = 4;
    auto &sums = sums_of_warps<ROWS, Part::width>();
    __shared__ unsigned met[WARPS];
    int spans = divide_up(columns, Part::width), column = blockIdx.x % spans * Part::width;
    int first = blockIdx.x / spans * ROWS, start = starts[first / GROUP], count = ends[first / GROUP] - start;
    if (count == 0) return;
    auto &own = sums[warp_index()];
    unsigned rows_met = 0;  // only these rows have a sum

    int from = start + int(size_t(count) * warp_index() / WARPS), end = start + int(size_t(count) * (warp_index() + 1) / WARPS);
    for (int at = from; at < end; at += WARP) {
        int entry = at + lane_index() < end ? lists[at + lane_index()] : -1;
        int place = entry % GROUP - first % GROUP;  // negative if there is no entry
        unsigned todo = __ballot_sync(~0u, below(place, ROWS));
        while (todo) {
            int rows[AHEAD];
            float values[AHEAD][4];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                int lane = todo ? __ffs(todo) - 1 : 0;
                int token = __shfl_sync(~0u, entry, lane) / GROUP;
                rows[i] = __shfl_sync(~0u, place, lane);
                if (!todo) rows[i] = -1;
                else Part::load(dx + size_t(token) * columns, column, columns, values[i]);
                todo &= todo - 1;
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (rows[i] < 0) break;
                bool more = rows_met >> rows[i] & 1;
                rows_met |= 1u << rows[i];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float &sum = own[rows[i]][Part::place(j)];
                    sum = more ? sum + values[i][j] : values[i][j];
                }
            }
        }
    }
    if (lane_index() == 0) met[warp_index()] = rows_met;
    __syncthreads();

    for (int warp = 0; warp < WARPS; warp++) rows_met |= met[warp];
    for (int at = threadIdx.x; at < ROWS * Part::width; at += blockDim.x) {
        int row = at / Part::width, c = at % Part::width;
        if (!(rows_met >> row & 1) || column + c >= columns) continue;
        float total = 0.0f;
        for (int warp = 0; warp < WARPS; warp++)
            if (met[warp] >> row & 1) total += sums[warp][row][c];
        dwte[size_t(first + row) * columns + column + c] += total;
    }
}

extern "C" __global__ void embed_positions_f32(const float *wpe, float *x, int rows, int columns, int places, int length,
                                               int shift) {
    if (columns % 4) take_positions<4, false>(wpe, x, rows, columns, places, length, shift);
    else take_positions<4, true>(wpe, x, rows, columns, places, length, shift);
}

extern "C" __global__ void embed_positions_bf16(const bf16 *wpe, float *x, int rows, int columns, int places, int length,
                                                int shift) {
    if (columns % 8) take_positions<8, false>(wpe, x, rows, columns, places, length, shift);
    else take_positions<8, true>(wpe, x, rows, columns, places, length, shift);
}

extern "C" __global__ void embed_tokens_f32(const int *tokens, const float *wte, float *x, int rows, int columns, int places,
                                            int shift) {
    if (columns % 4) add_tokens<4, false>(tokens, wte, x, rows, columns, places, shift);
    else add_tokens<4, true>(tokens, wte, x, rows, columns, places, shift);
}

extern "C" __global__ void embed_tokens_bf16(const int *tokens, const bf16 *wte, float *x, int rows, int columns, int places,
                                             int shift) {
    if (columns % 8) add_tokens<8, false>(tokens, wte, x, rows, columns, places, shift);
    else add_tokens<8, true>(tokens, wte, x, rows, columns, places, shift);
}

extern "C" __global__ void embed_positions_backward(const float *dx, float *dwpe, int places, int columns, int seqs, int length,
                                                    int shift) {
    if (columns % 4) sum_positions<false>(dx, dwpe, places, columns, seqs, length, shift);
    else sum_positions<true>(dx, dwpe, places, columns, seqs, length, shift);
}

extern "C" __global__ void embed_tokens_backward(const int *starts, const int *ends, const int *lists, const float *dx,
                                                 float *dwte, int places, int columns) {
    if (columns % 4) sum_tokens<false>(starts, ends, lists, dx, dwte, places, columns);
    else sum_tokens<true>(starts, ends, lists, dx, dwte, places, columns);
}
