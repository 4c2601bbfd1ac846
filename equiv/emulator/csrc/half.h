/* 16-bit float arithmetic with one rounding: through float32 rounded to odd, which a second rounding cannot spoil. */
#ifndef EQUIV_HALF_H
#define EQUIV_HALF_H

#include "numerics.h"

static inline uint32_t round_odd(eq_exact x) {
    uint32_t z = eq_round_rz(x);
    uint32_t inexact = (double)eq_float(z) != x.s || x.e != 0;
    return (z & EQ_INF) == EQ_INF ? z : z | inexact;
}

static inline uint32_t fast_fma(uint32_t a, uint32_t b, uint32_t c) {
#ifdef __FP_FAST_FMAF
    return eq_canon(eq_bits(__builtin_fmaf(eq_float(a), eq_float(b), eq_float(c))));
#else
    return eq_fma_rn(a, b, c);
#endif
}
static inline uint32_t fast_fma_ftz(uint32_t a, uint32_t b, uint32_t c) {
    return eq_ftz(fast_fma(eq_ftz(a), eq_ftz(b), eq_ftz(c)));
}

/* Results are canonical, so the only NaN is 0x7fff and a set sign means a negative number. */
static inline uint32_t half_relu(uint32_t x) { return x & 0x8000u ? 0 : x; }
static inline uint32_t half_ftz(uint32_t x) { return (x & 0x7c00u) == 0 ? x & 0x8000u : x; }

static inline uint32_t f16_fma(uint32_t a, uint32_t b, uint32_t c) {
    return eq_cvt_f16_rn(round_odd(eq_exact_fma(eq_f16_to_f32(a), eq_f16_to_f32(b), eq_f16_to_f32(c))));
}
static inline uint32_t f16_add(uint32_t a, uint32_t b) {
    return eq_cvt_f16_rn(round_odd(eq_exact_add(eq_f16_to_f32(a), eq_f16_to_f32(b))));
}
static inline uint32_t f16_mul(uint32_t a, uint32_t b) {
    return eq_cvt_f16_rn(round_odd(eq_exact_mul(eq_f16_to_f32(a), eq_f16_to_f32(b))));
}
static inline uint32_t f16_sub(uint32_t a, uint32_t b) { return f16_add(a, b ^ 0x8000u); }
static inline uint32_t bf16_fma(uint32_t a, uint32_t b, uint32_t c) {
    return eq_cvt_bf16_rn(round_odd(eq_exact_fma(a << 16, b << 16, c << 16)));
}
static inline uint32_t bf16_add(uint32_t a, uint32_t b) { return eq_cvt_bf16_rn(round_odd(eq_exact_add(a << 16, b << 16))); }
static inline uint32_t bf16_mul(uint32_t a, uint32_t b) { return eq_cvt_bf16_rn(round_odd(eq_exact_mul(a << 16, b << 16))); }
static inline uint32_t bf16_sub(uint32_t a, uint32_t b) { return bf16_add(a, b ^ 0x8000u); }

static inline uint32_t relu_f32(uint32_t x) { return (x & EQ_SIGN) && !eq_is_nan(x) ? 0 : x; }
/* .satfinite of the 16-bit formats: magnitudes above the largest finite one, Inf included, become it. */
static inline uint32_t clamp_finite(uint32_t x, uint32_t limit) {
    return !eq_is_nan(x) && eq_abs(x) > limit ? (x & EQ_SIGN) | limit : x;
}

/* Unary and binary float32 operations that stay exact on widened halves. */
#define HALF_EXACT2(name, f) \
    static inline uint32_t f16_##name(uint32_t a, uint32_t b) { return eq_cvt_f16_rn(f(eq_f16_to_f32(a), eq_f16_to_f32(b))); } \
    static inline uint32_t bf16_##name(uint32_t a, uint32_t b) { return eq_cvt_bf16_rn(f(a << 16, b << 16)); }
HALF_EXACT2(max, eq_max)
HALF_EXACT2(min, eq_min)
HALF_EXACT2(max_nan, eq_max_nan)
HALF_EXACT2(min_nan, eq_min_nan)
HALF_EXACT2(max_xorsign_abs, eq_max_xorsign_abs)
HALF_EXACT2(min_xorsign_abs, eq_min_xorsign_abs)

/* Float to integer after rounding to an integral float: saturates; NaN gives 0, in 64 bits the top bit alone. */
static inline int64_t clamp_s(uint32_t x, int bits) {
    if (eq_is_nan(x)) return bits == 64 ? INT64_MIN : 0;
    double v = eq_float(x), top = bits == 64 ? 0x1p63 : (double)((int64_t)1 << (bits - 1));
    if (v >= top) return bits == 64 ? INT64_MAX : ((int64_t)1 << (bits - 1)) - 1;
    return v < -top ? (bits == 64 ? INT64_MIN : -((int64_t)1 << (bits - 1))) : (int64_t)v;
}
static inline uint64_t clamp_u(uint32_t x, int bits) {
    if (eq_is_nan(x)) return bits == 64 ? (uint64_t)1 << 63 : 0;
    double v = eq_float(x), top = bits == 64 ? 0x1p64 : (double)((uint64_t)1 << bits);
    if (v >= top) return bits == 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
    return v <= 0 ? 0 : (uint64_t)v;
}
static inline eq_exact exact_integer(double x) {
    eq_exact e = {x, 0, 0};
    return e;
}

#endif
