// CUDA C++ on a CPU, as far as asynctile's kernels use it: g++ compiles their sources unchanged behind this file.
//
// Blocks run one after another, each thread of a block on a fiber of its own; fibers switch only where threads wait for
// each other. The order in which they run is a setting: a kernel that lacks a barrier gives other results in another
// order. Shared memory starts as NaN in each block. Mistakes that a GPU reports or punishes are errors here: a barrier
// that not all reach, a warp operation whose lanes are not all there, a misaligned vector, an index beyond an array.
//
// Not modelled: caches, memory order, timing, clusters, several streams. One kernel runs at a time (a lock in build.py).
// build.py appends the kernels and a table of trampolines. Linux with glibc only, as the poison needs its linker.

#include <link.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) double2 { double x, y; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline double2 make_double2(double x, double y) { return {x, y}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace on_cpu {

enum State { FRESH, READY, AT_BARRIER, IN_WARP, DONE };

// Where a fiber or the scheduler goes on: three words that __builtin_setjmp keeps, and no call of libc.
struct Place {
    void *words[5];
};

struct Fiber {
    Place at;
    ucontext_t context;
};

struct Thread {
    uint3 index;
    unsigned warp, lane;
    State state;
    Fiber *fiber;
    // What it waits for in a warp operation, what it gives and where it wants everybody's.
    unsigned mask;
    const void *given;
    void *taken;
    size_t bytes;
};

// Lanes that wait in a warp operation, and those that have ended or never were.
struct Warp {
    unsigned waiting, ended;
};

static const size_t STACK = 256 << 10, GUARD = 4096;

// All of it belongs to whoever holds build.py's lock.
static Thread threads[1024];
static Warp warps[32];
static Thread *current;
static unsigned thread_count, live;
static uint3 block_index;
static dim3 block_shape, grid_shape;
static void (*kernel)(void **);
static void **arguments;
static std::vector<Fiber *> idle;
static std::vector<Fiber *> lost;
static ucontext_t creator;
static Place scheduler;
static char message[512];
static std::vector<uint4> dynamic_shared;
static uint64_t seed;
static int order;  // 0 forward, 1 reversed, 2 shuffled

[[noreturn]] static __attribute__((noinline)) void go_on(Place *place) { __builtin_longjmp(place->words, 1); }

static __attribute__((noinline)) void leave() {
    if (!__builtin_setjmp(current->fiber->at.words)) go_on(&scheduler);
}

// Ends the kernel: its fibers are given up where they stand.
[[noreturn]] static void fail(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    int length = snprintf(message, sizeof message, "block (%u, %u, %u), thread %u: ", block_index.x, block_index.y,
                          block_index.z, unsigned(current - threads));
    vsnprintf(message + length, sizeof message - length, format, rest);
    va_end(rest);
    go_on(&scheduler);
}

static void live_on_fiber(unsigned low, unsigned high) {
    Fiber *fiber = reinterpret_cast<Fiber *>(uintptr_t(low) | uintptr_t(high) << 32);
    if (!__builtin_setjmp(fiber->at.words)) swapcontext(&fiber->context, &creator);
    for (;;) {
        kernel(arguments);
        current->state = DONE;
        warps[current->warp].ended |= 1u << current->lane;
        live--;
        leave();
    }
}

static void prepare(Fiber *fiber) {
    void *stack = fiber->context.uc_stack.ss_sp;
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = stack;
    fiber->context.uc_stack.ss_size = STACK;
    fiber->context.uc_link = nullptr;
    uintptr_t address = reinterpret_cast<uintptr_t>(fiber);
    makecontext(&fiber->context, reinterpret_cast<void (*)()>(live_on_fiber), 2, unsigned(address), unsigned(address >> 32));
    swapcontext(&creator, &fiber->context);
}

static Fiber *take_fiber() {
    if (idle.empty()) {
        Fiber *fiber = new Fiber;
        char *room = static_cast<char *>(mmap(nullptr, STACK + GUARD, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        if (room == MAP_FAILED || mprotect(room, GUARD, PROT_NONE)) perror("a fiber's stack"), abort();
        fiber->context.uc_stack.ss_sp = room + GUARD;
        prepare(fiber);
        idle.push_back(fiber);
    }
    Fiber *fiber = idle.back();
    idle.pop_back();
    return fiber;
}

// ---- waiting for each other

static __attribute__((noinline)) void barrier() {
    current->state = AT_BARRIER;
    leave();
}

// Every lane of the mask gives some bytes and gets those of all, lane after lane; who is not in the mask gives NaN.
template <size_t bytes>
static __attribute__((noinline)) void meet(unsigned mask, const void *given, void *taken) {
    Thread *me = current, *lanes = threads + me->warp * 32;
    Warp *warp = warps + me->warp;
    if (!(mask >> me->lane & 1)) fail("a warp operation's mask %08x lacks its own lane", mask);
    me->state = IN_WARP, me->mask = mask, me->given = given, me->taken = taken, me->bytes = bytes;
    warp->waiting |= 1u << me->lane;
    Thread *first = lanes + __builtin_ctz(mask & warp->waiting);
    if (first->mask != mask || first->bytes != bytes) fail("lanes of a warp meet in different operations");
    if (unsigned missing = mask & ~warp->waiting) {
        unsigned lane = __builtin_ctz(missing);
        if (warp->ended >> lane & 1) fail("a warp operation waits for lane %u, which has ended (mask %08x)", lane, mask);
        return leave();
    }
    memset(taken, 0xff, 32 * bytes);
    for (unsigned left = mask; left; left &= left - 1) {
        unsigned lane = __builtin_ctz(left);
        if (lanes[lane].mask != mask || lanes[lane].bytes != bytes) fail("lanes of a warp meet in different operations");
        memcpy(static_cast<char *>(taken) + lane * bytes, lanes[lane].given, bytes);
    }
    for (unsigned left = mask; left; left &= left - 1) {
        Thread *lane = lanes + __builtin_ctz(left);
        if (lane->taken != taken) memcpy(lane->taken, taken, 32 * bytes);
        lane->state = READY;
    }
    warp->waiting &= ~mask;
}

// ---- running

struct Storage {
    void *start;
    size_t bytes;
};

static int find_in_library(dl_phdr_info *info, size_t, void *found) {
    uintptr_t here = reinterpret_cast<uintptr_t>(&message);
    bool own = false;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const auto &part = info->dlpi_phdr[i];
        own |= part.p_type == PT_LOAD && here - (info->dlpi_addr + part.p_vaddr) < part.p_memsz;
    }
    for (int i = 0; own && i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_TLS)
            *static_cast<Storage *>(found) = {info->dlpi_tls_data, info->dlpi_phdr[i].p_memsz};
    return own;
}

// The calling thread's own storage of this library: __shared__ variables and nothing else.
static Storage own_storage() {
    static thread_local volatile char there [[maybe_unused]];
    there = 0;  // the first use makes the storage
    Storage own{nullptr, 0};
    dl_iterate_phdr(find_in_library, &own);
    return own;
}

static uint64_t next_random() {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed >> 33;
}

// The numbers from 0 on in the order that is set: of a block's warps, or of a warp's lanes.
struct Ordered {
    unsigned places[32], count;
    const unsigned *begin() const { return places; }
    const unsigned *end() const { return places + count; }
};

static Ordered ordered(unsigned count) {
    Ordered all;
    all.count = count;
    for (unsigned i = 0; i < count; i++) all.places[i] = order == 1 ? count - 1 - i : i;
    if (order == 2)
        for (unsigned i = count - 1; i; i--) std::swap(all.places[i], all.places[next_random() % (i + 1)]);
    return all;
}

// Runs every thread of a warp that can, each until it waits; whether there was one.
static bool run_lanes(unsigned warp) {
    bool ran = false;
    for (unsigned lane : ordered(std::min(32u, thread_count - warp * 32))) {
        current = threads + warp * 32 + lane;
        if (current->state != FRESH && current->state != READY) continue;
        ran = true;
        if (current->state == FRESH) current->fiber = take_fiber();
        current->state = READY;
        if (!__builtin_setjmp(scheduler.words)) go_on(&current->fiber->at);
        if (*message) return false;
        if (current->state == DONE) idle.push_back(current->fiber);
    }
    return ran;
}

// Runs each warp that can as far as it can, so that warps are as far apart as barriers let them be; shuffled, some of the way.
static bool run_warps() {
    bool ran = false;
    for (unsigned warp : ordered((thread_count + 31) / 32))
        while (run_lanes(warp)) {
            ran = true;
            if (order == 2 && next_random() % 4 == 0) break;
        }
    return ran && !*message;
}

static void run_block(Storage own, size_t shared_bytes) {
    memset(own.start, 0xff, own.bytes);
    memset(dynamic_shared.data(), 0xff, shared_bytes);
    for (unsigned i = 0; i < thread_count; i++) {
        uint3 index = {i % block_shape.x, i / block_shape.x % block_shape.y, i / block_shape.x / block_shape.y};
        threads[i] = {index, i / 32, i % 32, FRESH, nullptr, 0, nullptr, nullptr, 0};
    }
    for (unsigned i = 0; i < (thread_count + 31) / 32; i++)
        warps[i] = {0, thread_count - i * 32 < 32 ? ~0u << (thread_count - i * 32) : 0};
    live = thread_count;
    while (live && !*message) {
        if (run_warps() || *message) continue;
        for (unsigned i = 0; i < thread_count; i++) {
            if (threads[i].state == IN_WARP) {
                current = threads + i;
                snprintf(message, sizeof message, "thread %u waits in a warp operation for ever (mask %08x)", i, threads[i].mask);
            }
            if (threads[i].state == AT_BARRIER) threads[i].state = READY;
        }
    }
    if (*message)
        for (unsigned i = 0; i < thread_count; i++)
            if (threads[i].fiber && threads[i].state != DONE) lost.push_back(threads[i].fiber);
}

static const char *run(void (*function)(void **), const unsigned *shape, size_t shared_bytes, void **values) {
    grid_shape = {shape[0], shape[1], shape[2]}, block_shape = {shape[3], shape[4], shape[5]};
    thread_count = block_shape.x * block_shape.y * block_shape.z;
    kernel = function, arguments = values, *message = 0;
    dynamic_shared.resize(shared_bytes / 16 + 1);
    for (Fiber *fiber : lost) prepare(fiber), idle.push_back(fiber);
    lost.clear();
    Storage own = own_storage();
    for (unsigned z = 0; z < grid_shape.z; z++)
        for (unsigned y = 0; y < grid_shape.y; y++)
            for (unsigned x = 0; x < grid_shape.x && !*message; x++) {
                block_index = {x, y, z};
                run_block(own, shared_bytes);
            }
    return *message ? message : nullptr;
}

// Calls a kernel with arguments given as pointers.
template <typename... T, size_t... I>
static void call(void (*kernel)(T...), void **values, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_cv_t<T> *>(values[I])...);
}

template <typename... T>
static void call(void (*kernel)(T...), void **values) {
    call(kernel, values, std::index_sequence_for<T...>());
}

// One T of each lane of a warp.
template <typename T>
struct Lanes {
    T of[32];
};

template <typename T>
static inline Lanes<T> exchange(unsigned mask, const T &mine) {
    Lanes<T> all;
    meet<sizeof(T)>(mask, &mine, &all);
    return all;
}

}  // namespace on_cpu

// ---- what g++'s -fsanitize=alignment,bounds calls

extern "C" void __ubsan_handle_type_mismatch_v1_abort(void *, uintptr_t pointer) {
    on_cpu::fail("misaligned access at %#zx", size_t(pointer));
}
extern "C" void __ubsan_handle_type_mismatch_v1(void *, uintptr_t pointer) {
    on_cpu::fail("misaligned access at %#zx", size_t(pointer));
}
extern "C" void __ubsan_handle_out_of_bounds_abort(void *, uintptr_t index) {
    on_cpu::fail("index %zd beyond an array", ptrdiff_t(index));
}
extern "C" void __ubsan_handle_out_of_bounds(void *, uintptr_t index) {
    on_cpu::fail("index %zd beyond an array", ptrdiff_t(index));
}

// ---- CUDA's words

#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define DYNAMIC_SHARED(type, name) type *name = reinterpret_cast<type *>(on_cpu::dynamic_shared.data())

#define threadIdx (on_cpu::current->index)
#define blockIdx (on_cpu::block_index)
#define blockDim (on_cpu::block_shape)
#define gridDim (on_cpu::grid_shape)
#define warpSize 32

static inline void __syncthreads() { on_cpu::barrier(); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __syncwarp(unsigned mask = ~0u) { on_cpu::exchange(mask, 0); }
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    auto all = on_cpu::exchange(mask, int(predicate != 0));
    unsigned votes = 0;
    for (int lane = 0; lane < 32; lane++) votes |= unsigned(mask >> lane & 1 && all.of[lane]) << lane;
    return votes;
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }
template <typename T>
static inline unsigned __match_any_sync(unsigned mask, T value) {
    auto all = on_cpu::exchange(mask, value);
    unsigned same = 0;
    for (int lane = 0; lane < 32; lane++) same |= unsigned(mask >> lane & 1 && all.of[lane] == value) << lane;
    return same;
}

template <typename T>
static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    unsigned lane = on_cpu::current->lane;
    return on_cpu::exchange(mask, value).of[(lane & -unsigned(width)) + (from & (width - 1))];
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    unsigned lane = on_cpu::current->lane, from = lane ^ bits;
    return on_cpu::exchange(mask, value).of[from / width == lane / width ? from : lane];
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    unsigned lane = on_cpu::current->lane, from = lane + by;
    return on_cpu::exchange(mask, value).of[from / width == lane / width ? from : lane];
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    unsigned lane = on_cpu::current->lane, from = lane - by;
    return on_cpu::exchange(mask, value).of[lane % width >= by ? from : lane];
}

template <typename T>
static inline T atomicAdd(T *at, T value) {
    static_assert(T(1) / 2 == 0, "sums of floats in the order of arrival change from run to run");
    T before = *at;
    *at += value;
    return before;
}
template <typename T>
static inline T atomicMax(T *at, T value) {
    T before = *at;
    *at = before > value ? before : value;
    return before;
}
template <typename T>
static inline T atomicMin(T *at, T value) {
    T before = *at;
    *at = before < value ? before : value;
    return before;
}

static inline unsigned atomicInc(unsigned *at, unsigned most) {
    unsigned before = *at;
    *at = before >= most ? 0 : before + 1;
    return before;
}

template <typename T>
static inline T __ldg(const T *at) { return *at; }
template <typename T>
static inline T __ldcs(const T *at) { return *at; }
template <typename T>
static inline T __ldcg(const T *at) { return *at; }
template <typename T>
static inline void __stcs(T *at, T value) { *at = value; }
template <typename T>
static inline void __stcg(T *at, T value) { *at = value; }

template <typename To, typename From>
static inline To on_cpu_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float x) { return on_cpu_bits<unsigned>(x); }
static inline int __float_as_int(float x) { return on_cpu_bits<int>(x); }
static inline float __uint_as_float(unsigned x) { return on_cpu_bits<float>(x); }
static inline float __int_as_float(int x) { return on_cpu_bits<float>(x); }

// The build contracts nothing: each operation below is rounded once.
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fdividef(float a, float b) { return a / b; }
#define __expf expf
#define __logf logf
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }

static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
static inline size_t min(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t max(size_t a, size_t b) { return a > b ? a : b; }
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }

extern "C" void set_order(int order, uint64_t seed) { on_cpu::order = order, on_cpu::seed = seed; }
