// Sweeps of scalar instructions on a GPU against the C twins of equiv.rounding, compiled for the host as the emulator does.
// One-operand instructions: all 2^32 inputs (16-bit sources: 2^16). Others: all tuples of edge values, then random operands.
// Prints one line of JSON an instruction: inputs, mismatches and the first of them (index, operands, GPU, twin, count in its
// block); DIRECTORY/ID.sums gets the checksums of the GPU's results, one a block of 2^23 inputs (equiv.rounding.sweeps).
//
// Built and run by sweep_special.py: sweep_special DIRECTORY [PREFIX [RANDOM]]; a prefix "!x" leaves out what begins with x.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "special.h"
#include "half.h"

typedef uint32_t u32;
typedef uint64_t u64;

#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) { \
    fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e)); exit(1); } } while (0)

#define EDGE_LIST \
    0, 1, 2, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFE, 0x7FFFFF, 0x800000, 0x800001, 0xFFFFFF, 0x1000000, 0x33000000, \
    0x33800000, 0x34000000, 0x3A800000, 0x3E800000, 0x3F000000, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x3FFFFFFF, 0x40000000, \
    0x40400000, 0x40C00000, 0x42FBFFFF, 0x42FC0000, 0x42FC0001, 0x42FE0000, 0x43000000, 0x43E00000, 0x47600000, 0x4B800000, \
    0x7E7FFFFF, 0x7E800000, 0x7E800001, 0x7F000000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF
static const u32 host_edges[] = {EDGE_LIST};
__constant__ u32 device_edges[] = {EDGE_LIST};
enum { EDGES = 2 * sizeof host_edges / 4 };

struct Operands { u32 a, b, c; };

__host__ __device__ inline u32 edge(u32 i) {
#ifdef __CUDA_ARCH__
    u32 x = device_edges[i >> 1];
#else
    u32 x = host_edges[i >> 1];
#endif
    return x | i << 31;
}
__host__ __device__ inline u64 mix(u64 x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}
__host__ __device__ inline u32 with_exponent(u32 x, int field) {
    field = field < 0 ? 0 : (field > 255 ? 255 : field);
    return (x & 0x807FFFFFu) | (u32)field << 23;
}
// Operand tuple i: first every tuple of edge values; then by turns uniform bits, interacting exponents, short mantissas,
// results near the ends of the range, and an edge among random numbers.
__host__ __device__ inline Operands operands(u64 i) {
    if (i < (u64)EDGES * EDGES * EDGES) return {edge(i % EDGES), edge(i / EDGES % EDGES), edge(i / EDGES / EDGES)};
    u64 r = mix(i), s = mix(r);
    Operands o = {(u32)r, (u32)(r >> 32), (u32)s};
    u32 t = (u32)(s >> 32);
    int ea = o.a >> 23 & 255, mode = i & 7;
    if (mode == 2 || mode == 3) { o.b = with_exponent(o.b, ea + (int)(t & 63) - 32); o.c = with_exponent(o.c, 2 * ea - 127 + (int)(t >> 8 & 63) - 32); }
    if (mode == 4) {
        ea = 100 + (int)(t & 63); o.a = with_exponent(o.a, ea);
        int eb = 100 + (int)(t >> 6 & 63); o.b = with_exponent(o.b, eb);
        o.c = with_exponent(o.c, ea + eb - 127 + (int)(t >> 12 & 63) - 31);
    }
    if (mode == 5) { u32 keep = 0xFFFFFFFFu << (t & 23); o.a &= keep; o.b &= keep; o.c &= keep; }
    if (mode == 6) {
        int eb = (t & 1 ? 255 : 0) + 127 - ea + (int)(t >> 1 & 63) - 32;
        o.b = with_exponent(o.b, t & 0x10000 ? eb : 254 - eb);
        o.c = with_exponent(o.c, (int)(t >> 8 & 31));
    }
    if (mode == 7) { if (t & 1) o.a = edge(t >> 8 & 63); else if (t & 2) o.b = edge(t >> 8 & 63); else o.c = edge(t >> 8 & 63); }
    return o;
}

typedef void (*Kernel)(u32 *, u64);
typedef u32 (*Twin1)(u32);
typedef u32 (*Twin2)(u32, u32);
typedef u32 (*Twin3)(u32, u32, u32);

#define INDEX u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x
#define UNARY(id, ptx) __global__ void id(u32 *out, u64 start) { INDEX; u32 x = (u32)(start + i), d; \
    asm volatile(ptx " %0, %1;" : "=r"(d) : "r"(x)); out[i] = d; }
#define UNARY_TO16(id, ptx) __global__ void id(u32 *out, u64 start) { INDEX; u32 x = (u32)(start + i); unsigned short d; \
    asm volatile(ptx " %0, %1;" : "=h"(d) : "r"(x)); out[i] = d; }
#define UNARY_FROM16(id, ptx) __global__ void id(u32 *out, u64 start) { INDEX; unsigned short x = (unsigned short)(start + i); u32 d; \
    asm volatile(ptx " %0, %1;" : "=r"(d) : "h"(x)); out[i] = d; }
#define UNARY16(id, ptx) __global__ void id(u32 *out, u64 start) { INDEX; unsigned short x = (unsigned short)(start + i), d; \
    asm volatile(ptx " %0, %1;" : "=h"(d) : "h"(x)); out[i] = d; }
#define OTHER(x) ((x) * 0x9E3779B1u ^ (x) >> 15)
#define PACKED(id, ptx) __global__ void id(u32 *out, u64 start) { INDEX; u32 x = (u32)(start + i); unsigned short d; \
    asm volatile(ptx " %0, %1, %2;" : "=h"(d) : "r"(x), "r"(OTHER(x))); out[i] = d; }
#define BINARY(id, ptx) __global__ void id(u32 *out, u64 start) { INDEX; Operands o = operands(start + i); u32 d; \
    asm volatile(ptx " %0, %1, %2;" : "=r"(d) : "r"(o.a), "r"(o.b)); out[i] = d; }
#define TERNARY(id, ptx) __global__ void id(u32 *out, u64 start) { INDEX; Operands o = operands(start + i); u32 d; \
    asm volatile(ptx " %0, %1, %2, %3;" : "=r"(d) : "r"(o.a), "r"(o.b), "r"(o.c)); out[i] = d; }
#define BINARY16(id, ptx) __global__ void id(u32 *out, u64 start) { INDEX; Operands o = operands(start + i); unsigned short d; \
    asm volatile(ptx " %0, %1, %2;" : "=h"(d) : "h"((unsigned short)(o.a >> 16)), "h"((unsigned short)(o.b >> 16))); out[i] = d; }
#define TERNARY16(id, ptx) __global__ void id(u32 *out, u64 start) { INDEX; Operands o = operands(start + i); unsigned short d; \
    asm volatile(ptx " %0, %1, %2, %3;" : "=h"(d) : "h"((unsigned short)(o.a >> 16)), "h"((unsigned short)(o.b >> 16)), \
    "h"((unsigned short)(o.c >> 16))); out[i] = d; }

static u32 t_e4m3x2(u32 x) { return eq_cvt_e4m3_rn_satfinite(x) << 8 | eq_cvt_e4m3_rn_satfinite(OTHER(x)); }
static u32 t_e5m2x2(u32 x) { return eq_cvt_e5m2_rn_satfinite(x) << 8 | eq_cvt_e5m2_rn_satfinite(OTHER(x)); }
static u32 t_from_e4m3x2(u32 x) { return eq_e4m3_to_f16(x >> 8) << 16 | eq_e4m3_to_f16(x & 0xff); }
static u32 t_from_e5m2x2(u32 x) { return eq_e5m2_to_f16(x >> 8) << 16 | eq_e5m2_to_f16(x & 0xff); }
static u32 t_f16x2_e4m3x2(u32 x) { return eq_f16_to_e4m3_rn_satfinite(x >> 16) << 8 | eq_f16_to_e4m3_rn_satfinite(x & 0xffff); }
static u32 t_f16x2_e5m2x2(u32 x) { return eq_f16_to_e5m2_rn_satfinite(x >> 16) << 8 | eq_f16_to_e5m2_rn_satfinite(x & 0xffff); }
static u32 t_s32_rn(u32 x) { return (u32)clamp_s(eq_rni(x), 32); }
static u32 t_s32_rz(u32 x) { return (u32)clamp_s(eq_rzi(x), 32); }
static u32 t_s32_rm(u32 x) { return (u32)clamp_s(eq_rmi(x), 32); }
static u32 t_s32_rp(u32 x) { return (u32)clamp_s(eq_rpi(x), 32); }
static u32 t_u32_rz(u32 x) { return (u32)clamp_u(eq_rzi(x), 32); }
static u32 t_u32_rn(u32 x) { return (u32)clamp_u(eq_rni(x), 32); }
static u32 t_from_s32(u32 x) { return eq_round_rn(exact_integer((double)(int32_t)x)); }
static u32 t_from_u32(u32 x) { return eq_round_rn(exact_integer((double)x)); }
static u32 t_from_u32_rz(u32 x) { return eq_round_rz(exact_integer((double)x)); }
#define PAIR_TWIN(name, f) static u32 t_##name(u32 x) { return f(x >> 16) << 16 | f(x & 0xffff); }
PAIR_TWIN(ex2_bf16x2, eq_ex2_bf16_ftz) PAIR_TWIN(ex2_f16x2, eq_ex2_f16)
PAIR_TWIN(tanh_bf16x2, eq_tanh_bf16) PAIR_TWIN(tanh_f16x2, eq_tanh_f16)
#define HALF_TWIN2(f) static u32 t_##f(u32 a, u32 b) { return f(a >> 16, b >> 16); }
#define HALF_TWIN3(f) static u32 t_##f(u32 a, u32 b, u32 c) { return f(a >> 16, b >> 16, c >> 16); }
HALF_TWIN2(f16_add) HALF_TWIN2(f16_mul) HALF_TWIN3(f16_fma) HALF_TWIN2(bf16_add) HALF_TWIN2(bf16_mul) HALF_TWIN3(bf16_fma)

// id, maker of the kernel, twin, PTX
#define LIST1(X) \
    X(ex2_ftz, UNARY, eq_ex2_ftz, "ex2.approx.ftz.f32") X(ex2, UNARY, eq_ex2, "ex2.approx.f32") \
    X(rcp_ftz, UNARY, eq_rcp_ftz, "rcp.approx.ftz.f32") X(rcp, UNARY, eq_rcp, "rcp.approx.f32") \
    X(rsqrt_ftz, UNARY, eq_rsqrt_ftz, "rsqrt.approx.ftz.f32") X(rsqrt, UNARY, eq_rsqrt, "rsqrt.approx.f32") \
    X(sqrt_ftz, UNARY, eq_sqrt_ftz, "sqrt.approx.ftz.f32") X(sqrt_, UNARY, eq_sqrt, "sqrt.approx.f32") \
    X(lg2_ftz, UNARY, eq_lg2_ftz, "lg2.approx.ftz.f32") X(lg2, UNARY, eq_lg2, "lg2.approx.f32") \
    X(tanh, UNARY, eq_tanh, "tanh.approx.f32") \
    X(ex2_bf16x2, UNARY, t_ex2_bf16x2, "ex2.approx.ftz.bf16x2") X(ex2_f16x2, UNARY, t_ex2_f16x2, "ex2.approx.f16x2") \
    X(tanh_bf16x2, UNARY, t_tanh_bf16x2, "tanh.approx.bf16x2") X(tanh_f16x2, UNARY, t_tanh_f16x2, "tanh.approx.f16x2") \
    X(rcp_rn, UNARY, eq_rcp_rn, "rcp.rn.f32") X(rcp_rn_ftz, UNARY, eq_rcp_rn_ftz, "rcp.rn.ftz.f32") \
    X(sqrt_rn, UNARY, eq_sqrt_rn, "sqrt.rn.f32") X(sqrt_rn_ftz, UNARY, eq_sqrt_rn_ftz, "sqrt.rn.ftz.f32") \
    X(bf16_rn, UNARY_TO16, eq_cvt_bf16_rn, "cvt.rn.bf16.f32") X(bf16_rz, UNARY_TO16, eq_cvt_bf16_rz, "cvt.rz.bf16.f32") \
    X(f16_rn, UNARY_TO16, eq_cvt_f16_rn, "cvt.rn.f16.f32") \
    X(e4m3x2, PACKED, t_e4m3x2, "cvt.rn.satfinite.e4m3x2.f32") X(e5m2x2, PACKED, t_e5m2x2, "cvt.rn.satfinite.e5m2x2.f32") \
    X(f16x2_e4m3x2, UNARY_TO16, t_f16x2_e4m3x2, "cvt.rn.satfinite.e4m3x2.f16x2") \
    X(f16x2_e5m2x2, UNARY_TO16, t_f16x2_e5m2x2, "cvt.rn.satfinite.e5m2x2.f16x2") \
    X(tf32_rna, UNARY, eq_cvt_tf32_rna, "cvt.rna.tf32.f32") X(tf32_rn, UNARY, eq_cvt_tf32_rn, "cvt.rn.tf32.f32") \
    X(tf32_rz, UNARY, eq_cvt_tf32_rz, "cvt.rz.tf32.f32") \
    X(rni, UNARY, eq_rni, "cvt.rni.f32.f32") X(rzi, UNARY, eq_rzi, "cvt.rzi.f32.f32") \
    X(rmi, UNARY, eq_rmi, "cvt.rmi.f32.f32") X(rpi, UNARY, eq_rpi, "cvt.rpi.f32.f32") \
    X(rni_ftz, UNARY, eq_rni_ftz, "cvt.rni.ftz.f32.f32") X(rpi_ftz, UNARY, eq_rpi_ftz, "cvt.rpi.ftz.f32.f32") \
    X(sat, UNARY, eq_sat, "cvt.sat.f32.f32") \
    X(s32_rn, UNARY, t_s32_rn, "cvt.rni.s32.f32") X(s32_rz, UNARY, t_s32_rz, "cvt.rzi.s32.f32") \
    X(s32_rm, UNARY, t_s32_rm, "cvt.rmi.s32.f32") X(s32_rp, UNARY, t_s32_rp, "cvt.rpi.s32.f32") \
    X(u32_rn, UNARY, t_u32_rn, "cvt.rni.u32.f32") X(u32_rz, UNARY, t_u32_rz, "cvt.rzi.u32.f32") \
    X(from_s32, UNARY, t_from_s32, "cvt.rn.f32.s32") X(from_u32, UNARY, t_from_u32, "cvt.rn.f32.u32") \
    X(from_u32_rz, UNARY, t_from_u32_rz, "cvt.rz.f32.u32")
#define LIST16(X) \
    X(ex2_bf16, UNARY16, eq_ex2_bf16_ftz, "ex2.approx.ftz.bf16") X(ex2_f16, UNARY16, eq_ex2_f16, "ex2.approx.f16") \
    X(tanh_bf16, UNARY16, eq_tanh_bf16, "tanh.approx.bf16") X(tanh_f16, UNARY16, eq_tanh_f16, "tanh.approx.f16") \
    X(from_f16, UNARY_FROM16, eq_f16_to_f32, "cvt.f32.f16") X(from_bf16, UNARY_FROM16, eq_bf16_to_f32, "cvt.f32.bf16") \
    X(from_e4m3x2, UNARY_FROM16, t_from_e4m3x2, "cvt.rn.f16x2.e4m3x2") X(from_e5m2x2, UNARY_FROM16, t_from_e5m2x2, "cvt.rn.f16x2.e5m2x2")
#define LIST2(X) \
    X(div_full, BINARY, eq_div_full, "div.full.f32") X(div_full_ftz, BINARY, eq_div_full_ftz, "div.full.ftz.f32") \
    X(div_approx, BINARY, eq_div_approx, "div.approx.f32") X(div_approx_ftz, BINARY, eq_div_approx_ftz, "div.approx.ftz.f32") \
    X(div_rn, BINARY, eq_div_rn, "div.rn.f32") X(div_rn_ftz, BINARY, eq_div_rn_ftz, "div.rn.ftz.f32") \
    X(add_rn, BINARY, eq_add_rn, "add.rn.f32") X(add_rz, BINARY, eq_add_rz, "add.rz.f32") \
    X(add_rm, BINARY, eq_add_rm, "add.rm.f32") X(add_rp, BINARY, eq_add_rp, "add.rp.f32") \
    X(add_rn_ftz, BINARY, eq_add_rn_ftz, "add.rn.ftz.f32") X(add_rz_ftz, BINARY, eq_add_rz_ftz, "add.rz.ftz.f32") \
    X(add_rm_ftz, BINARY, eq_add_rm_ftz, "add.rm.ftz.f32") X(add_rp_ftz, BINARY, eq_add_rp_ftz, "add.rp.ftz.f32") \
    X(sub_rm, BINARY, eq_sub_rm, "sub.rm.f32") X(sub_rn_ftz, BINARY, eq_sub_rn_ftz, "sub.rn.ftz.f32") \
    X(mul_rn, BINARY, eq_mul_rn, "mul.rn.f32") X(mul_rz, BINARY, eq_mul_rz, "mul.rz.f32") \
    X(mul_rm, BINARY, eq_mul_rm, "mul.rm.f32") X(mul_rp, BINARY, eq_mul_rp, "mul.rp.f32") \
    X(mul_rn_ftz, BINARY, eq_mul_rn_ftz, "mul.rn.ftz.f32") X(mul_rz_ftz, BINARY, eq_mul_rz_ftz, "mul.rz.ftz.f32") \
    X(mul_rm_ftz, BINARY, eq_mul_rm_ftz, "mul.rm.ftz.f32") X(mul_rp_ftz, BINARY, eq_mul_rp_ftz, "mul.rp.ftz.f32") \
    X(max, BINARY, eq_max, "max.f32") X(min, BINARY, eq_min, "min.f32") X(max_nan, BINARY, eq_max_nan, "max.NaN.f32") \
    X(min_nan, BINARY, eq_min_nan, "min.NaN.f32") X(max_ftz, BINARY, eq_max_ftz, "max.ftz.f32") \
    X(min_xorsign, BINARY, eq_min_xorsign_abs, "min.xorsign.abs.f32") X(max_xorsign, BINARY, eq_max_xorsign_abs, "max.xorsign.abs.f32") \
    X(h_add, BINARY16, t_f16_add, "add.rn.f16") X(h_mul, BINARY16, t_f16_mul, "mul.rn.f16") \
    X(bf_add, BINARY16, t_bf16_add, "add.rn.bf16") X(bf_mul, BINARY16, t_bf16_mul, "mul.rn.bf16")
#define LIST3(X) \
    X(fma_rn, TERNARY, eq_fma_rn, "fma.rn.f32") X(fma_rz, TERNARY, eq_fma_rz, "fma.rz.f32") \
    X(fma_rm, TERNARY, eq_fma_rm, "fma.rm.f32") X(fma_rp, TERNARY, eq_fma_rp, "fma.rp.f32") \
    X(fma_rn_ftz, TERNARY, eq_fma_rn_ftz, "fma.rn.ftz.f32") X(fma_rz_ftz, TERNARY, eq_fma_rz_ftz, "fma.rz.ftz.f32") \
    X(fma_rm_ftz, TERNARY, eq_fma_rm_ftz, "fma.rm.ftz.f32") X(fma_rp_ftz, TERNARY, eq_fma_rp_ftz, "fma.rp.ftz.f32") \
    X(h_fma, TERNARY16, t_f16_fma, "fma.rn.f16") X(bf_fma, TERNARY16, t_bf16_fma, "fma.rn.bf16")
#define MAKE(id, maker, twin, ptx) maker(k_##id, ptx)
LIST1(MAKE) LIST16(MAKE) LIST2(MAKE) LIST3(MAKE)

static const u64 BLOCK = 1 << 23, CHUNK = 1u << 28;
static u32 *device_out, *host_out;
static char folder[512];

static void fetch(Kernel kernel, u64 start, u64 count) {
    kernel<<<(unsigned)((count + 255) / 256), 256>>>(device_out, start);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(host_out, device_out, count * 4, cudaMemcpyDeviceToHost));
}

// Runs `count` inputs and compares block by block; `loop(start, n, out)` writes the twin's results.
template <class Loop> static void sweep(const char *id, const char *ptx, Kernel kernel, u64 count, Loop loop) {
    u64 wrong = 0, blocks = (count + BLOCK - 1) / BLOCK;
    std::vector<u64> sums(blocks), counts(blocks), first(blocks);
    char examples[1024] = "";
    for (u64 start = 0; start < count; start += CHUNK) {
        u64 n = count - start < CHUNK ? count - start : CHUNK;
        fetch(kernel, start, n);
        u64 parts = (n + BLOCK - 1) / BLOCK;
#pragma omp parallel
        {
            std::vector<u32> expected(1 << 14);
#pragma omp for schedule(dynamic)
            for (u64 part = 0; part < parts; part++) {
                u64 from = part * BLOCK, size = n - from < BLOCK ? n - from : BLOCK, sum = 0, bad = 0, at = 0;
                for (u64 piece = 0; piece < size; piece += expected.size()) {
                    u64 length = size - piece < expected.size() ? size - piece : expected.size();
                    loop(start + from + piece, length, expected.data());
                    const u32 *got = host_out + from + piece;
                    u64 differ = 0;
                    for (u64 j = 0; j < length; j++) {
                        u64 mixed = (u64)got[j] * 0x9E3779B97F4A7C15u;
                        sum += (mixed ^ mixed >> 32) * (2 * (piece + j) + 1);
                        differ += got[j] != expected[j];
                    }
                    if (differ && !bad) for (u64 j = 0; j < length; j++) if (got[j] != expected[j]) { at = start + from + piece + j; break; }
                    bad += differ;
                }
                u64 block = start / BLOCK + part;
                sums[block] = sum; counts[block] = bad; first[block] = at;
            }
        }
        for (u64 block = start / BLOCK; block < start / BLOCK + parts; block++) {
            wrong += counts[block];
            if (counts[block] && strlen(examples) < 900) {
                u32 expected;
                loop(first[block], 1, &expected);
                Operands o = operands(first[block]);
                sprintf(examples + strlen(examples), "%s[\"%llx (%x %x %x)\", \"%x\", \"%x\", %llu]", *examples ? ", " : "",
                        (unsigned long long)first[block], o.a, o.b, o.c, host_out[first[block] - start], expected, (unsigned long long)counts[block]);
            }
        }
    }
    char path[600];
    snprintf(path, sizeof path, "%s/%s.sums", folder, id);
    FILE *file = fopen(path, "wb");
    fwrite(sums.data(), 8, sums.size(), file);
    fclose(file);
    printf("{\"id\": \"%s\", \"ptx\": \"%s\", \"inputs\": %llu, \"mismatches\": %llu, \"first\": [%s]}\n", id, ptx,
           (unsigned long long)count, (unsigned long long)wrong, examples);
    fflush(stdout);
}

int main(int argc, char **argv) {
    snprintf(folder, sizeof folder, "%s", argv[1]);
    const char *prefix = argc > 2 ? argv[2] : "";
    u64 random_count = argc > 3 ? strtoull(argv[3], 0, 0) : (u64)1 << 28, full = (u64)1 << 32;
    CHECK(cudaMalloc(&device_out, CHUNK * 4));
    CHECK(cudaMallocHost(&host_out, CHUNK * 4));
#define WANTED(id) (*prefix == 0x21 ? strncmp(#id, prefix + 1, strlen(prefix + 1)) != 0 : !strncmp(#id, prefix, strlen(prefix)))
#define RUN1(id, maker, twin, ptx) if (WANTED(id)) sweep(#id, ptx, k_##id, full, [](u64 start, u64 n, u32 *out) { \
        for (u64 i = 0; i < n; i++) out[i] = twin((u32)(start + i)); });
#define RUN16(id, maker, twin, ptx) if (WANTED(id)) sweep(#id, ptx, k_##id, 1 << 16, [](u64 start, u64 n, u32 *out) { \
        for (u64 i = 0; i < n; i++) out[i] = twin((u32)(start + i)); });
#define RUN2(id, maker, twin, ptx) if (WANTED(id)) sweep(#id, ptx, k_##id, random_count << (!strncmp(#id, "div", 3) ? 2 : 0), \
        [](u64 start, u64 n, u32 *out) { for (u64 i = 0; i < n; i++) { Operands o = operands(start + i); out[i] = twin(o.a, o.b); } });
#define RUN3(id, maker, twin, ptx) if (WANTED(id)) sweep(#id, ptx, k_##id, random_count, \
        [](u64 start, u64 n, u32 *out) { for (u64 i = 0; i < n; i++) { Operands o = operands(start + i); out[i] = twin(o.a, o.b, o.c); } });
    LIST1(RUN1) LIST16(RUN16) LIST2(RUN2) LIST3(RUN3)
    return 0;
}
