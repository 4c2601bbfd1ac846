/* 16-bit float arithmetic with one rounding: through float32 rounded to odd, which a second rounding cannot spoil. */
#ifndef EQUIV_HALF_H
#define EQUIV_HALF_H

#include "double.h"
#include "special.h"

/* The nearest float32 unless it is inexact and even: then its odd neighbour, which lies on the side of what is left. */
static inline uint32_t round_odd(eq_exact x) {
    float nearest = (float)x.s;
    double left = x.s - (double)nearest;
    uint32_t bits = eq_bits(nearest), exact = left == 0, up = exact ? x.e > 0 : left > 0, down = exact ? x.e < 0 : left < 0;
    uint32_t step = EQ_PICK(bits >> 31, down - up, up - down);
    return bits + (step & ((bits & 1) - 1));
}

static inline uint32_t fast_fma(uint32_t a, uint32_t b, uint32_t c) {
#ifdef __FP_FAST_FMAF
    return eq_canon(eq_bits(__builtin_fmaf(eq_float(a), eq_float(b), eq_float(c))));
#else
    return eq_fma_rn(a, b, c);
#endif
}
/* A result of 2^-126 is a zero if only the subnormals' coarser steps rounded up to it. Then the product is below 2^-100, so
 * that one factor is small, and 2^24 times the sum shows what it is with steps that are fine enough. */
static inline uint32_t fast_fma_ftz(uint32_t a, uint32_t b, uint32_t c) {
#ifdef __FP_FAST_FMAF
    a = eq_ftz(a), b = eq_ftz(b), c = eq_ftz(c);
    uint32_t r = fast_fma(a, b, c), least = eq_abs(r) == 0x800000u, first = eq_abs(a) < eq_abs(b);
    float small = eq_float(EQ_PICK(first, a, b)) * 0x1p24f, other = eq_float(EQ_PICK(first, b, a));
    float scaled = __builtin_fmaf(small, other, eq_float(c) * 0x1p24f);
    least &= eq_abs(eq_bits(scaled)) < 0xc800000u; /* 2^-102 */
    return EQ_PICK(least, r & EQ_SIGN, eq_ftz(r));
#else
    return eq_fma_rn_ftz(a, b, c);
#endif
}

/* Results are canonical, so the only NaN is 0x7fff and a set sign means a negative number. */
static inline uint32_t half_relu(uint32_t x) { return x & 0x8000u ? 0 : x; }
static inline uint32_t half_ftz(uint32_t x) { return (x & 0x7c00u) == 0 ? x & 0x8000u : x; }

static inline uint32_t f16_canon(uint32_t x) { return (x & 0x7fffu) > 0x7c00u ? 0x7fffu : x; }
static inline uint32_t bf16_canon(uint32_t x) { return (x & 0x7fffu) > 0x7f80u ? 0x7fffu : x; }

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
/* .ftz as in float32: what lies below 2^-14 - 2^-26 becomes subnormal with any exponent range, and flushes. */
static inline uint32_t half_flush(uint32_t r, eq_exact x) {
    return (r & 0x7c00u) == 0 || ((r & 0x7fffu) == 0x400u && fabs(x.s) < 0x1.ffep-15) ? r & 0x8000u : r;
}
static inline uint32_t f16_fma_ftz(uint32_t a, uint32_t b, uint32_t c) {
    a = half_ftz(a), b = half_ftz(b), c = half_ftz(c);
    return half_flush(f16_fma(a, b, c), eq_exact_fma(eq_f16_to_f32(a), eq_f16_to_f32(b), eq_f16_to_f32(c)));
}
static inline uint32_t f16_mul_ftz(uint32_t a, uint32_t b) {
    a = half_ftz(a), b = half_ftz(b);
    return half_flush(f16_mul(a, b), eq_exact_mul(eq_f16_to_f32(a), eq_f16_to_f32(b)));
}
static inline uint32_t f16_add_ftz(uint32_t a, uint32_t b) { return half_ftz(f16_add(half_ftz(a), half_ftz(b))); }
static inline uint32_t f16_sub_ftz(uint32_t a, uint32_t b) { return half_ftz(f16_sub(half_ftz(a), half_ftz(b))); }
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
/* .xorsign.abs: the signs are those of the codes, a NaN's included. */
#define HALF_SIGNED(kind, name) \
    static inline uint32_t kind##_##name##_xorsign_abs(uint32_t a, uint32_t b) { \
        uint32_t r = kind##_##name(a & 0x7fffu, b & 0x7fffu); \
        return r == 0x7fffu ? r : r | ((a ^ b) & 0x8000u); \
    }
HALF_SIGNED(f16, max) HALF_SIGNED(f16, min) HALF_SIGNED(f16, max_nan) HALF_SIGNED(f16, min_nan)
HALF_SIGNED(bf16, max) HALF_SIGNED(bf16, min) HALF_SIGNED(bf16, max_nan) HALF_SIGNED(bf16, min_nan)
#define HALF_FTZ2(name) \
    static inline uint32_t f16_##name##_ftz(uint32_t a, uint32_t b) { return half_ftz(f16_##name(half_ftz(a), half_ftz(b))); }
HALF_FTZ2(max) HALF_FTZ2(min) HALF_FTZ2(max_nan) HALF_FTZ2(min_nan)
HALF_FTZ2(max_xorsign_abs) HALF_FTZ2(min_xorsign_abs) HALF_FTZ2(max_nan_xorsign_abs) HALF_FTZ2(min_nan_xorsign_abs)

/* .sat of a code. */
static inline uint32_t f16_sat(uint32_t x) { return (x & 0x7fffu) > 0x7c00u || (x & 0x8000u) ? 0 : x > 0x3c00u ? 0x3c00u : x; }

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
