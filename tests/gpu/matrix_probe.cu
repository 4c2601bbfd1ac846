// Runs matrix instructions on tiles given as plain row-major matrices; built and called by matrix_probe.py.
// Fragment layouts: spec numerics 1.6. One warp computes an mma.sync tile, one warpgroup a wgmma tile.
#include <cstdint>
#include <cstdio>
#include <cuda_runtime.h>

// `count` elements of `size` bytes from row-major `matrix`, steps of `stride` elements, packed low first into 32 bits.
__device__ uint32_t packed(const uint8_t *matrix, int size, int at, int stride) {
    uint32_t word = 0;
    for (int i = 0; i < 4 / size; i++)
        for (int byte = 0; byte < size; byte++)
            word |= (uint32_t)matrix[(at + i * stride) * size + byte] << (8 * (i * size + byte));
    return word;
}
__device__ void a_fragment(uint32_t *reg, int count, const uint8_t *a, int size, int row, int k0, int depth) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, e = 4 / size;
    for (int r = 0; r < count; r++) reg[r] = packed(a, size, (row + g + 8 * (r & 1)) * depth + k0 + e * t + 4 * e * (r >> 1), 1);
}
__device__ void b_fragment(uint32_t *reg, int count, const uint8_t *b, int size, int n) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, e = 4 / size;
    for (int r = 0; r < count; r++) reg[r] = packed(b, size, (e * t + 4 * e * r) * n + g, n);
}
// Accumulators: register i of a thread holds rows row + g (+8), columns 8*j + 2t (+1).
template <int N, int SIZE> __device__ void c_move(uint32_t *reg, uint8_t *c, int row, bool store) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    constexpr int per = 4 / SIZE;
    for (int i = 0; i < N / 2 / per; i++) {
        uint32_t word = 0;
        for (int h = 0; h < per; h++) {
            int flat = i * per + h, at = (row + g + 8 * ((flat >> 1) & 1)) * N + 8 * (flat >> 2) + 2 * t + (flat & 1);
            for (int byte = 0; byte < SIZE; byte++) {
                int shift = 8 * (h * SIZE + byte);
                if (store) c[at * SIZE + byte] = (uint8_t)(reg[i] >> shift);
                else word |= (uint32_t)c[at * SIZE + byte] << shift;
            }
        }
        if (!store) reg[i] = word;
    }
}

#define D4 "{%0,%1,%2,%3}"
#define D2 "{%0,%1}"
#define IO4 "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
#define IO2 "+r"(d[0]), "+r"(d[1])
#define A4(n) "{%" #n "},"
#define MMA(NAME, TEXT, K, SIZE, CSIZE, IO, ...)                                                                \
    __global__ void NAME##_kernel(const uint8_t *a, const uint8_t *b, const uint8_t *c, uint8_t *out) {         \
        uint32_t x[4], y[2], d[4];                                                                              \
        a += (size_t)blockIdx.x * 16 * K * SIZE; b += (size_t)blockIdx.x * 8 * K * SIZE;                        \
        c += (size_t)blockIdx.x * 128 * CSIZE; out += (size_t)blockIdx.x * 128 * CSIZE;                         \
        a_fragment(x, K * SIZE / 8, a, SIZE, 0, 0, K);                                                          \
        b_fragment(y, K * SIZE / 16, b, SIZE, 8);                                                               \
        c_move<8, CSIZE>(d, (uint8_t *)c, 0, false);                                                            \
        asm volatile(TEXT : IO : __VA_ARGS__);                                                                  \
        c_move<8, CSIZE>(d, out, 0, true);                                                                      \
    }                                                                                                           \
    extern "C" int NAME(const uint8_t *a, const uint8_t *b, const uint8_t *c, uint8_t *out, int tiles) {        \
        NAME##_kernel<<<tiles, 32>>>(a, b, c, out);                                                             \
        return cudaDeviceSynchronize();                                                                         \
    }
#define IN42 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1])
#define IN21 "r"(x[0]), "r"(x[1]), "r"(y[0])
#define M32(NAME, SHAPE, T, K, SIZE)                                                                            \
    MMA(NAME, "mma.sync.aligned." SHAPE ".row.col." T " {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};", K, SIZE, 4, IO4, IN42)
#define M32H(NAME, SHAPE, T, K, SIZE)                                                                           \
    MMA(NAME, "mma.sync.aligned." SHAPE ".row.col." T " {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};", K, SIZE, 4, IO4, IN21)
#define M16(NAME, SHAPE, T, K, SIZE)                                                                            \
    MMA(NAME, "mma.sync.aligned." SHAPE ".row.col." T " {%0,%1},{%2,%3,%4,%5},{%6,%7},{%0,%1};", K, SIZE, 2, IO2, IN42)
#define M16H(NAME, SHAPE, T, K, SIZE)                                                                           \
    MMA(NAME, "mma.sync.aligned." SHAPE ".row.col." T " {%0,%1},{%2,%3},{%4},{%0,%1};", K, SIZE, 2, IO2, IN21)

M32(mma_k16_f32_f16_f16, "m16n8k16", "f32.f16.f16.f32", 16, 2)
M16(mma_k16_f16_f16_f16, "m16n8k16", "f16.f16.f16.f16", 16, 2)
M32H(mma_k8_f32_f16_f16, "m16n8k8", "f32.f16.f16.f32", 8, 2)
M16H(mma_k8_f16_f16_f16, "m16n8k8", "f16.f16.f16.f16", 8, 2)
M32(mma_k16_f32_bf16_bf16, "m16n8k16", "f32.bf16.bf16.f32", 16, 2)
M32H(mma_k8_f32_bf16_bf16, "m16n8k8", "f32.bf16.bf16.f32", 8, 2)
M32(mma_k8_f32_tf32_tf32, "m16n8k8", "f32.tf32.tf32.f32", 8, 4)
M32H(mma_k4_f32_tf32_tf32, "m16n8k4", "f32.tf32.tf32.f32", 4, 4)
#define FP8(A, B)                                                            \
    M32(mma_k32_f32_##A##_##B, "m16n8k32", "f32." #A "." #B ".f32", 32, 1)   \
    M16(mma_k32_f16_##A##_##B, "m16n8k32", "f16." #A "." #B ".f16", 32, 1)   \
    M32H(mma_k16_f32_##A##_##B, "m16n8k16", "f32." #A "." #B ".f32", 16, 1)  \
    M16H(mma_k16_f16_##A##_##B, "m16n8k16", "f16." #A "." #B ".f16", 16, 1)
FP8(e4m3, e4m3) FP8(e4m3, e5m2) FP8(e5m2, e4m3) FP8(e5m2, e5m2)

// No-swizzle, K-major B: core matrices of 8 columns by 16 bytes, the two along K adjacent, then the next 8 columns.
__device__ uint64_t descriptor(const void *shared) {
    uint64_t address = (uint64_t)__cvta_generic_to_shared(shared);
    return (address & 0x3FFFF) >> 4 | (uint64_t)(128 >> 4) << 16 | (uint64_t)(256 >> 4) << 32;
}
#define WGMMA(NAME, TEXT, TRANS, K, SIZE, CSIZE, IO, DREG, AREG, P, SA, SB)                                     \
    template <int scale_a, int scale_b>                                                                         \
    __global__ void NAME##_kernel(const uint8_t *a, const uint8_t *b, const uint8_t *c, uint8_t *out, int steps, int keep) { \
        __shared__ __align__(1024) uint8_t tile[2][512];                                                        \
        uint32_t x[2][4], d[8];                                                                                 \
        int depth = K * steps;                                                                                  \
        a += (size_t)blockIdx.x * 64 * depth * SIZE; b += (size_t)blockIdx.x * 16 * depth * SIZE;               \
        c += (size_t)blockIdx.x * 1024 * CSIZE; out += (size_t)blockIdx.x * 1024 * CSIZE;                       \
        for (int i = threadIdx.x; i < depth * SIZE * 16; i += 128) {                                            \
            int n = i % 16, at = i / 16, k = at / SIZE % K, s = at / SIZE / K, kb = k * SIZE + at % SIZE;       \
            tile[s][((n / 8) * 2 + kb / 16) * 128 + n % 8 * 16 + kb % 16] = b[((s * K + k) * 16 + n) * SIZE + at % SIZE]; \
        }                                                                                                       \
        int row = threadIdx.x / 32 * 16;                                                                        \
        for (int s = 0; s < 2; s++) a_fragment(x[s], 4, a, SIZE, row, s < steps ? s * K : 0, depth);            \
        c_move<16, CSIZE>(d, (uint8_t *)c, row, false);                                                         \
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");                                            \
        __syncthreads();                                                                                        \
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");                                                 \
        _Pragma("unroll") for (int s = 0; s < 2; s++) {                                                         \
            uint64_t desc = descriptor(tile[s]);                                                                \
            if (s >= steps) break;                                                                              \
            asm volatile("{.reg .pred p; setp.ne.b32 p, %" P ", 0; wgmma.mma_async.sync.aligned." TEXT " " DREG "," AREG ", p, %" SA ", %" SB TRANS ";}" \
                         : IO : "r"(x[s][0]), "r"(x[s][1]), "r"(x[s][2]), "r"(x[s][3]), "l"(desc), "r"((int)(keep || s)), "n"(scale_a), "n"(scale_b)); \
        }                                                                                                       \
        asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");         \
        for (int i = 0; i < 4 * CSIZE / 2; i++) asm volatile("" : "+r"(d[i])::"memory");                        \
        c_move<16, CSIZE>(d, out, row, true);                                                                   \
    }                                                                                                           \
    extern "C" int NAME(const uint8_t *a, const uint8_t *b, const uint8_t *c, uint8_t *out, int tiles, int steps, int sa, int sb, int keep) { \
        auto kernel = sa > 0 ? (sb > 0 ? NAME##_kernel<1, 1> : NAME##_kernel<1, -1>)                            \
                             : (sb > 0 ? NAME##_kernel<-1, 1> : NAME##_kernel<-1, -1>);                         \
        kernel<<<tiles, 128>>>(a, b, c, out, steps, keep);                                                      \
        return cudaDeviceSynchronize();                                                                         \
    }
#define IO8 "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7])
#define W32(NAME, TEXT, TRANS, K, SIZE) \
    WGMMA(NAME, TEXT, TRANS, K, SIZE, 4, IO8, "{%0,%1,%2,%3,%4,%5,%6,%7}", "{%8,%9,%10,%11},%12", "13", "14", "15")
#define W16(NAME, TEXT, TRANS, K, SIZE) \
    WGMMA(NAME, TEXT, TRANS, K, SIZE, 2, IO4, "{%0,%1,%2,%3}", "{%4,%5,%6,%7},%8", "9", "10", "11")
W32(wgmma_k16_f32_f16_f16, "m64n16k16.f32.f16.f16", ", 0", 16, 2)
W16(wgmma_k16_f16_f16_f16, "m64n16k16.f16.f16.f16", ", 0", 16, 2)
W32(wgmma_k16_f32_bf16_bf16, "m64n16k16.f32.bf16.bf16", ", 0", 16, 2)
W32(wgmma_k8_f32_tf32_tf32, "m64n16k8.f32.tf32.tf32", "", 8, 4)
#define WFP8(A, B)                                                                 \
    W32(wgmma_k32_f32_##A##_##B, "m64n16k32.f32." #A "." #B, "", 32, 1)            \
    W16(wgmma_k32_f16_##A##_##B, "m64n16k32.f16." #A "." #B, "", 32, 1)
WFP8(e4m3, e4m3) WFP8(e4m3, e5m2) WFP8(e5m2, e4m3) WFP8(e5m2, e5m2)

extern "C" void *device_copy(const void *host, size_t size) {
    void *memory = nullptr;
    if (cudaMalloc(&memory, size) != cudaSuccess) return nullptr;
    if (host) cudaMemcpy(memory, host, size, cudaMemcpyHostToDevice);
    else cudaMemset(memory, 0xEE, size);
    return memory;
}
extern "C" int host_copy(void *host, const void *memory, size_t size) { return cudaMemcpy(host, memory, size, cudaMemcpyDeviceToHost); }
extern "C" int device_free(void *memory) { return cudaFree(memory); }
extern "C" const char *error_text(int code) { return cudaGetErrorString((cudaError_t)code); }
