// Rotary position embedding. The contract is in asynctile/ops/rope.py.
//
// A thread turns N pairs of TURNED neighboring heads of a row, so the heads share their sines and cosines. Each block computes
// the frequencies once. What both kernels round is written out, so equal positions give equal bits.

#define TURNED 4
#define TWO_OVER_PI 0.63661977236758134308
#define TWO_PI 6.2831853071795864769
// pi / 2 in two parts: the product of the first, of 25 bits, with an integer below 2^28 is exact.
#define HALF_PI_HIGH 1.57079631090164184570
#define HALF_PI_LOW 1.58932547735281966916e-8

struct Rotation {
    double theta, factor, low, high, original;
};

// Return the angle between neighboring positions of pair i, of `half` pairs, in the float32 steps of the contract.
static __device__ float frequency_of(int i, int half, Rotation by) {
    float plain = __fdiv_rn(1.0f, float(pow(by.theta, double(__fdiv_rn(float(2 * i), float(2 * half))))));
    if (by.factor == 0.0) return plain;
    float wave = __fmul_rn(__fdiv_rn(1.0f, plain), float(TWO_PI));
    if (wave > float(by.original / by.low)) return __fdiv_rn(plain, float(by.factor));
    if (wave < float(by.original / by.high)) return plain;
    float waves = __fmul_rn(__fdiv_rn(1.0f, wave), float(by.original));
    float smooth = __fdiv_rn(__fsub_rn(waves, float(by.low)), float(by.high - by.low));
    float scaled = __fdiv_rn(__fmul_rn(__fsub_rn(1.0f, smooth), plain), float(by.factor));
    return __fadd_rn(scaled, __fmul_rn(smooth, plain));
}

// Set sine and cosine of an angle below 4e8, each to 1 unit in the last place. In double, neither the reduction of a large
// angle nor a result near zero loses digits. The minimax polynomials on [-pi / 4, pi / 4] are those of FreeBSD's k_sinf.c and
// k_cosf.c.
static __device__ __forceinline__ void sine_and_cosine(float angle, float &sine, float &cosine) {
    double turns = rint(angle * TWO_OVER_PI), r = fma(-turns, HALF_PI_LOW, fma(-turns, HALF_PI_HIGH, double(angle)));
    double z = r * r;
    double s = fma(fma(fma(fma(0.0000027183114939898219064, z, -0.000198393348360966317347), z, 0.0083333293858894631756), z,
                       -0.166666666416265235595), r * z, r);
    double c = fma(fma(fma(fma(0.0000243904487962774090654, z, -0.00138867637746099294692), z, 0.0416666233237390631894), z,
                       -0.499999997251031003120), z, 1.0);
    int quadrant = int(turns);
    sine = quadrant & 1 ? c : s, cosine = quadrant & 1 ? s : c;
    if (quadrant & 2) sine = -sine;
    if ((quadrant + 1) & 2) cosine = -cosine;
}

template <int N, typename T>
static __device__ __forceinline__ void turn_pairs(T *first, T *second, const float (&sines)[N], const float (&cosines)[N]) {
    float a[N], b[N], to[N], also[N];
    if constexpr (N == 1) a[0] = to_float(*first), b[0] = to_float(*second);
    else load(first, a), load(second, b);
#pragma unroll
    for (int i = 0; i < N; i++) {
        to[i] = __fsub_rn(__fmul_rn(a[i], cosines[i]), __fmul_rn(b[i], sines[i]));
        also[i] = __fadd_rn(__fmul_rn(b[i], cosines[i]), __fmul_rn(a[i], sines[i]));
    }
    if constexpr (N == 1) assign(*first, to[0]), assign(*second, also[0]);
    else store(first, to), store(second, also);
}

// Turn all rows. position_of(row): negative for a row that stays as it is.
template <int N, typename T, typename Position>
static __device__ __forceinline__ void turn_rows(T *x, int rows, int heads, int half, bool inverse, Rotation by,
                                                 Position position_of) {
    DYNAMIC_SHARED(float, frequencies);
    for (int i = threadIdx.x; i < half; i += blockDim.x) frequencies[i] = frequency_of(i, half, by);
    __syncthreads();
    const int parts = half / N, groups = divide_up(heads, TURNED), tasks = rows * groups * parts;
    for (int task = blockIdx.x * blockDim.x + threadIdx.x; task < tasks; task += gridDim.x * blockDim.x) {
        int first = task % parts * N, head = task / parts % groups * TURNED, row = task / parts / groups;
        int position = position_of(row), end = min(heads, head + TURNED);
        if (position < 0) continue;
        float sines[N], cosines[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            sine_and_cosine(__fmul_rn(float(position), frequencies[first + i]), sines[i], cosines[i]);
            if (inverse) sines[i] = -sines[i];
        }
        T *at = x + (size_t(row) * heads + head) * 2 * half + first;
        for (; head < end; head++, at += 2 * half) turn_pairs(at, at + half, sines, cosines);
    }
}

template <typename T>
static __device__ __forceinline__ void turn_sequences(T *x, int rows, int heads, int half, int length, int start, int inverse,
                                                      Rotation by) {
    auto position_of = [=](int row) { return start + row % length; };
    if (half % 4) turn_rows<1>(x, rows, heads, half, inverse, by, position_of);
    else turn_rows<4>(x, rows, heads, half, inverse, by, position_of);
}

template <typename T>
static __device__ __forceinline__ void turn_placed(const int *positions, T *x, int rows, int heads, int half, int inverse,
                                                   Rotation by) {
    auto position_of = [=](int row) { return positions[row]; };
    if (half % 4) turn_rows<1>(x, rows, heads, half, inverse, by, position_of);
    else turn_rows<4>(x, rows, heads, half, inverse, by, position_of);
}

extern "C" __global__ void rope_f32(float *x, int rows, int heads, int half, int length, int start, int inverse, double theta,
                                    double factor, double low, double high, double original) {
    turn_sequences(x, rows, heads, half, length, start, inverse, {theta, factor, low, high, original});
}

extern "C" __global__ void rope_bf16(bf16 *x, int rows, int heads, int half, int length, int start, int inverse, double theta,
                                     double factor, double low, double high, double original) {
    turn_sequences(x, rows, heads, half, length, start, inverse, {theta, factor, low, high, original});
}

extern "C" __global__ void rope_rows_f32(const int *positions, float *x, int rows, int heads, int half, int inverse,
                                         double theta, double factor, double low, double high, double original) {
    turn_placed(positions, x, rows, heads, half, inverse, {theta, factor, low, high, original});
}

extern "C" __global__ void rope_rows_bf16(const int *positions, bf16 *x, int rows, int heads, int half, int inverse,
                                          double theta, double factor, double low, double high, double original) {
    turn_placed(positions, x, rows, heads, half, inverse, {theta, factor, low, high, original});
}
