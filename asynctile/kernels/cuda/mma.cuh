// Tensor cores and their loads, one PTX instruction per function. The layouts are those of the PTX ISA, sections on
// mma.m16n8k16 and ldmatrix. For compute capability 8.0 and later; the callers are not compiled for less.
//
// Lane l of a warp holds these elements of a 16 x 8 accumulator: rows l / 4 and l / 4 + 8, columns l % 4 * 2 and the next.
// tests/cuda/on_cpu_mma.h replaces this file on a CPU.

static __device__ __forceinline__ unsigned shared_address(const void *at) { return unsigned(__cvta_generic_to_shared(at)); }

// d (16, 8) += a (16, 16) b (16, 8), distributed over the lanes as the instruction requires.
static __device__ __forceinline__ void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], unsigned b_low, unsigned b_high) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
}

// Load four 8 x 8 matrices from shared memory. Lane l passes the start of row l % 8 of matrix l / 8, and gets row l / 4,
// columns l % 4 * 2 and the next, of each matrix.
static __device__ __forceinline__ void load_matrices(unsigned (&to)[4], const bf16 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same, but the lane gets column l / 4, rows l % 4 * 2 and the next, of each matrix.
static __device__ __forceinline__ void load_matrices_transposed(unsigned (&to)[4], const bf16 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Start to copy 16 bytes into shared memory, bypassing the L1 cache; write zeros if the source does not exist.
static __device__ __forceinline__ void copy_16_bytes(void *to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(there ? 16 : 0)
                 : "memory");
}

// The same for 4 bytes, through the L1 cache.
static __device__ __forceinline__ void copy_4_bytes(void *to, const void *from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :
                 : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(there ? 4 : 0)
                 : "memory");
}

// Wait until the copies that this thread started have landed. A barrier must follow before other threads read them.
static __device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" : : : "memory"); }

// 2^x, to 2 units in the last place; 0 if the result would be subnormal.
static __device__ __forceinline__ float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
