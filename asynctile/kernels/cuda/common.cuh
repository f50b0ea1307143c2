// The shared part of all kernels: bf16 as bits, loads and stores of several elements at once. Comes first in the single
// translation unit. Includes nothing, so NVRTC needs no toolkit headers.

// on_cpu.h of the tests defines its own.
#ifndef DYNAMIC_SHARED
#define DYNAMIC_SHARED(type, name) \
    extern __shared__ uint4 dynamic_shared_memory[]; \
    type *name = reinterpret_cast<type *>(dynamic_shared_memory)
#endif

struct bf16 {
    unsigned short bits;
};

static __device__ __forceinline__ float to_float(float x) { return x; }
static __device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float(unsigned(x.bits) << 16); }

// Pack two floats as bf16, rounded to nearest, ties to even, with `low` in the low half. Any NaN becomes 0x7fff, like the
// hardware instruction.
static __device__ __forceinline__ unsigned pack_bf16(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    const float pair[2] = {low, high};
    unsigned both = 0;
    for (int i = 0; i < 2; i++) {
        unsigned bits = __float_as_uint(pair[i]);
        bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
        unsigned half = nan ? 0x7fffu : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        both |= half << (16 * i);
    }
    return both;
#endif
}

static __device__ __forceinline__ void assign(float &to, float x) { to = x; }
static __device__ __forceinline__ void assign(bf16 &to, float x) { to.bits = (unsigned short)pack_bf16(x, 0.0f); }

// Load N elements. The address is a multiple of their total size in bytes, or of 16 if that is larger.
template <int N>
static __device__ __forceinline__ void load(const float *from, float (&to)[N]) {
    static_assert(N % 4 == 0, "whole vectors");
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        float4 four = *reinterpret_cast<const float4 *>(from + i);
        to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
}

static __device__ __forceinline__ void unpack_bf16(unsigned both, float &low, float &high) {
    low = __uint_as_float(both << 16);
    high = __uint_as_float(both & 0xffff0000u);
}

template <int N>
static __device__ __forceinline__ void load(const bf16 *from, float (&to)[N]) {
    static_assert(N == 4 || N % 8 == 0, "whole vectors");
    if constexpr (N == 4) {
        uint2 four = *reinterpret_cast<const uint2 *>(from);
        unpack_bf16(four.x, to[0], to[1]);
        unpack_bf16(four.y, to[2], to[3]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 8) {
            uint4 eight = *reinterpret_cast<const uint4 *>(from + i);
            unpack_bf16(eight.x, to[i], to[i + 1]);
            unpack_bf16(eight.y, to[i + 2], to[i + 3]);
            unpack_bf16(eight.z, to[i + 4], to[i + 5]);
            unpack_bf16(eight.w, to[i + 6], to[i + 7]);
        }
    }
}

template <int N>
static __device__ __forceinline__ void store(float *to, const float (&from)[N]) {
    static_assert(N % 4 == 0, "whole vectors");
#pragma unroll
    for (int i = 0; i < N; i += 4)
        *reinterpret_cast<float4 *>(to + i) = make_float4(from[i], from[i + 1], from[i + 2], from[i + 3]);
}

template <int N>
static __device__ __forceinline__ void store(bf16 *to, const float (&from)[N]) {
    static_assert(N == 4 || N % 8 == 0, "whole vectors");
    if constexpr (N == 4) {
        *reinterpret_cast<uint2 *>(to) = make_uint2(pack_bf16(from[0], from[1]), pack_bf16(from[2], from[3]));
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 8)
            *reinterpret_cast<uint4 *>(to + i) =
                make_uint4(pack_bf16(from[i], from[i + 1]), pack_bf16(from[i + 2], from[i + 3]),
                           pack_bf16(from[i + 4], from[i + 5]), pack_bf16(from[i + 6], from[i + 7]));
    }
}

// Return the first of the N elements that this thread handles, where each thread handles N.
template <int N>
static __device__ __forceinline__ size_t first_element() {
    return (size_t(blockIdx.x) * blockDim.x + threadIdx.x) * N;
}
