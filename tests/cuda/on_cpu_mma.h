// mma.cuh on a CPU: the same functions by the tables of the PTX ISA, on the warp exchange of on_cpu.h.
//
// Products are exact and summed in double, rounded once; tensor cores keep fewer bits, so results differ in the last ones.
// A copy lands as late as it may while threads run forward, and at once in any other order: then a kernel that does not wait
// for it, or that overwrites what others still read, gives other results. test_attention_layouts.py holds the layouts against tables.

namespace on_cpu {

struct Copy {
    void *to;
    const void *from;
    size_t bytes;
};

static std::vector<Copy> copies[1024];

static void land(const Copy &copy) {
    if (copy.from) memcpy(copy.to, copy.from, copy.bytes);
    else memset(copy.to, 0, copy.bytes);
}

// `bytes` of dynamic shared memory from an address on that is a multiple of their number.
static void expect_shared(const void *at, size_t bytes) {
    const char *start = reinterpret_cast<const char *>(dynamic_shared.data()), *here = static_cast<const char *>(at);
    if (reinterpret_cast<uintptr_t>(at) % bytes) fail("%p is no address for %zu bytes at once", at, bytes);
    if (here < start || here + bytes > start + dynamic_shared.size() * 16) fail("%p is not in shared memory", at);
}

static void copy_async(void *to, const void *from, size_t bytes, bool there) {
    expect_shared(to, bytes);
    if (reinterpret_cast<uintptr_t>(from) % bytes) fail("%p is no address for %zu bytes at once", from, bytes);
    Copy copy{to, there ? from : nullptr, bytes};
    if (order) land(copy);
    else copies[current - threads].push_back(copy);
}

// Element `place` (0 or 1) of a register that holds two bf16.
static float element(unsigned both, int place) { return on_cpu_bits<float>(place ? both & 0xffff0000u : both << 16); }

}  // namespace on_cpu

static inline void copy_16_bytes(void *to, const void *from, bool there) { on_cpu::copy_async(to, from, 16, there); }
static inline void copy_4_bytes(void *to, const void *from, bool there) { on_cpu::copy_async(to, from, 4, there); }

static inline void wait_for_copies() {
    auto &mine = on_cpu::copies[on_cpu::current - on_cpu::threads];
    for (const on_cpu::Copy &copy : mine) on_cpu::land(copy);
    mine.clear();
}

// Of a, register i holds row lane / 4 (+ 8 where i is odd), columns lane % 4 * 2 and the next (+ 8 where i is 2 or 3);
// of b, register i holds column lane / 4, rows lane % 4 * 2 and the next (+ 8 where i is 1).
static inline void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], unsigned b_low, unsigned b_high) {
    struct Fragments {
        unsigned a[4], b[2];
    };
    auto lanes = on_cpu::exchange(~0u, Fragments{{a[0], a[1], a[2], a[3]}, {b_low, b_high}});
    int group = on_cpu::current->lane / 4, pair = on_cpu::current->lane % 4 * 2;
    for (int i = 0; i < 4; i++) {
        int row = group + i / 2 * 8, column = pair + i % 2;
        double sum = d[i];
        for (int k = 0; k < 16; k++) {
            float left = on_cpu::element(lanes.of[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2], k % 2);
            float right = on_cpu::element(lanes.of[column * 4 + k % 8 / 2].b[k / 8], k % 2);
            sum += double(left) * right;
        }
        d[i] = float(sum);
    }
}

static inline void load_matrices(unsigned (&to)[4], const bf16 *row) {
    on_cpu::expect_shared(row, 16);
    auto rows = on_cpu::exchange(~0u, row);
    int group = on_cpu::current->lane / 4, pair = on_cpu::current->lane % 4 * 2;
    for (int matrix = 0; matrix < 4; matrix++) {
        const bf16 *found = rows.of[matrix * 8 + group];
        to[matrix] = found[pair].bits | unsigned(found[pair + 1].bits) << 16;
    }
}

static inline void load_matrices_transposed(unsigned (&to)[4], const bf16 *row) {
    on_cpu::expect_shared(row, 16);
    auto rows = on_cpu::exchange(~0u, row);
    int group = on_cpu::current->lane / 4, pair = on_cpu::current->lane % 4 * 2;
    for (int matrix = 0; matrix < 4; matrix++)
        to[matrix] = rows.of[matrix * 8 + pair][group].bits | unsigned(rows.of[matrix * 8 + pair + 1][group].bits) << 16;
}

static inline float fast_exp2(float x) { return exp2f(x); }
