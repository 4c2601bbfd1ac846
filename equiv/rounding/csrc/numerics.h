/* Float32 arithmetic and conversions of NVIDIA GPUs on bit patterns; the C twin of equiv/rounding/{arithmetic,conversions}.py,
 * tested against them.
 *
 * Every function maps uint32_t bit patterns to a bit pattern (narrow formats: the code in the low bits). A NaN result is
 * 0x7fffffff, as on the GPU. No function reads or changes the floating-point environment; the host must be in its default
 * mode (round to nearest, no flushing) and the file compiled without -ffast-math and with -ffp-contract=off.
 * Names: eq_<op>_<rounding>[_ftz]. Special functions: special.h. */
#ifndef EQUIV_NUMERICS_H
#define EQUIV_NUMERICS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define EQ_NAN 0x7fffffffu
#define EQ_INF 0x7f800000u
#define EQ_SIGN 0x80000000u

static inline float eq_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline uint32_t eq_bits(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }
static inline int eq_is_nan(uint32_t x) { return (x & 0x7fffffffu) > EQ_INF; }
/* A choice without a branch, under which a compiler would move what it takes to be costly. */
#define EQ_PICK(c, yes, no) (((uint32_t)(yes) & (0u - (uint32_t)(c))) | ((uint32_t)(no) & ((uint32_t)(c) - 1u)))
static inline uint32_t eq_canon(uint32_t x) { return EQ_PICK(eq_is_nan(x), EQ_NAN, x); }
/* Subnormal -> zero of its sign. */
static inline uint32_t eq_ftz(uint32_t x) { return EQ_PICK((x & EQ_INF) == 0, x & EQ_SIGN, x); }
/* .sat: NaN and everything up to +0 -> +0, above one -> one. */
static inline uint32_t eq_sat(uint32_t x) {
    if (eq_is_nan(x) || (x & EQ_SIGN)) return 0;
    return x > 0x3f800000u ? 0x3f800000u : x;
}
static inline uint32_t eq_abs(uint32_t x) { return x & 0x7fffffffu; }
static inline uint32_t eq_neg(uint32_t x) { return x ^ EQ_SIGN; }

/* An exact value as s + e, s its nearest double (so |e| <= half an ulp of s). */
typedef struct { double s, e; int zero_negative_in_rm; } eq_exact;

static inline eq_exact eq_exact_sum(double p, double c) {
    eq_exact x;
    x.s = p + c;
    double b = x.s - p;
    x.e = (p - (x.s - b)) + (c - b);
    x.zero_negative_in_rm = x.s == 0 && signbit(p) != signbit(c);
    return x;
}

/* Nearest float32 of s + e: s is first rounded to odd, which makes the second rounding the only one. */
static inline uint32_t eq_round_rn(eq_exact x) {
    uint64_t bits;
    memcpy(&bits, &x.s, 8);
    uint64_t inexact = (x.e > 0) | (x.e < 0);
    uint64_t beyond = x.e > 0 ? 0 : 1; /* 1 when e points below s */
    uint64_t towards_zero = (bits >> 63) ^ beyond;
    uint64_t odd = towards_zero ? bits - 1 : bits | 1;
    bits = inexact && !(bits & 1) ? odd : bits;
    memcpy(&x.s, &bits, 8);
    return eq_canon(eq_bits((float)x.s));
}

static inline uint32_t eq_next_up(uint32_t x) { return x & EQ_SIGN ? (x == EQ_SIGN ? 1u : x - 1) : x + 1; }
static inline uint32_t eq_next_down(uint32_t x) { return x & EQ_SIGN ? x + 1 : (x == 0 ? 0x80000001u : x - 1); }

/* Directed roundings: the nearest float and the sign of what is left decide. Overflow steps back to the largest finite. */
static inline uint32_t eq_round_to(eq_exact x, int up_allowed, int down_allowed, int to_zero) {
    uint32_t f = eq_bits((float)x.s);
    double left = x.s - (double)(float)x.s;
    left = left == 0 ? x.e : left;
    if (to_zero) { up_allowed = (f & EQ_SIGN) != 0; down_allowed = !up_allowed; }
    if (left > 0 && up_allowed) f = eq_next_up(f);
    if (left < 0 && down_allowed) f = eq_next_down(f);
    if (down_allowed && !to_zero && x.zero_negative_in_rm) f = EQ_SIGN;
    return eq_canon(f);
}
static inline uint32_t eq_round_rz(eq_exact x) { return eq_round_to(x, 0, 0, 1); }
static inline uint32_t eq_round_rm(eq_exact x) { return eq_round_to(x, 0, 1, 0); }
static inline uint32_t eq_round_rp(eq_exact x) { return eq_round_to(x, 1, 0, 0); }

static inline eq_exact eq_exact_add(uint32_t a, uint32_t b) { return eq_exact_sum(eq_float(a), eq_float(b)); }
static inline eq_exact eq_exact_mul(uint32_t a, uint32_t b) {
    eq_exact x = {(double)eq_float(a) * (double)eq_float(b), 0, 0};
    return x;
}
static inline eq_exact eq_exact_fma(uint32_t a, uint32_t b, uint32_t c) {
    return eq_exact_sum((double)eq_float(a) * (double)eq_float(b), eq_float(c));
}

static inline uint32_t eq_add_rn(uint32_t a, uint32_t b) { return eq_canon(eq_bits(eq_float(a) + eq_float(b))); }
static inline uint32_t eq_add_rz(uint32_t a, uint32_t b) { return eq_round_rz(eq_exact_add(a, b)); }
static inline uint32_t eq_add_rm(uint32_t a, uint32_t b) { return eq_round_rm(eq_exact_add(a, b)); }
static inline uint32_t eq_add_rp(uint32_t a, uint32_t b) { return eq_round_rp(eq_exact_add(a, b)); }
static inline uint32_t eq_sub_rn(uint32_t a, uint32_t b) { return eq_canon(eq_bits(eq_float(a) - eq_float(b))); }
static inline uint32_t eq_sub_rz(uint32_t a, uint32_t b) { return eq_add_rz(a, eq_neg(b)); }
static inline uint32_t eq_sub_rm(uint32_t a, uint32_t b) { return eq_add_rm(a, eq_neg(b)); }
static inline uint32_t eq_sub_rp(uint32_t a, uint32_t b) { return eq_add_rp(a, eq_neg(b)); }
static inline uint32_t eq_mul_rn(uint32_t a, uint32_t b) { return eq_canon(eq_bits(eq_float(a) * eq_float(b))); }
static inline uint32_t eq_mul_rz(uint32_t a, uint32_t b) { return eq_round_rz(eq_exact_mul(a, b)); }
static inline uint32_t eq_mul_rm(uint32_t a, uint32_t b) { return eq_round_rm(eq_exact_mul(a, b)); }
static inline uint32_t eq_mul_rp(uint32_t a, uint32_t b) { return eq_round_rp(eq_exact_mul(a, b)); }
static inline uint32_t eq_fma_rn(uint32_t a, uint32_t b, uint32_t c) { return eq_round_rn(eq_exact_fma(a, b, c)); }
static inline uint32_t eq_fma_rz(uint32_t a, uint32_t b, uint32_t c) { return eq_round_rz(eq_exact_fma(a, b, c)); }
static inline uint32_t eq_fma_rm(uint32_t a, uint32_t b, uint32_t c) { return eq_round_rm(eq_exact_fma(a, b, c)); }
static inline uint32_t eq_fma_rp(uint32_t a, uint32_t b, uint32_t c) { return eq_round_rp(eq_exact_fma(a, b, c)); }
static inline uint32_t eq_div_rn(uint32_t a, uint32_t b) { return eq_canon(eq_bits(eq_float(a) / eq_float(b))); }
static inline uint32_t eq_rcp_rn(uint32_t a) { return eq_canon(eq_bits(1.0f / eq_float(a))); }
static inline uint32_t eq_sqrt_rn(uint32_t a) { return eq_canon(eq_bits(sqrtf(eq_float(a)))); }
/* Quotient and root as their nearest double and a number with the sign of what is left. */
static inline eq_exact eq_exact_div(uint32_t a, uint32_t b) {
    eq_exact x = {(double)eq_float(a) / (double)eq_float(b), 0, 0};
    double left = fma(-x.s, eq_float(b), eq_float(a));
    x.e = eq_float(b) < 0 ? -left : left;
    return x;
}
static inline eq_exact eq_exact_sqrt(uint32_t a) {
    eq_exact x = {sqrt(eq_float(a)), 0, 0};
    x.e = fma(-x.s, x.s, eq_float(a));
    return x;
}
#define EQ_DIRECTED(m) \
    static inline uint32_t eq_div_##m(uint32_t a, uint32_t b) { return eq_round_##m(eq_exact_div(a, b)); } \
    static inline uint32_t eq_rcp_##m(uint32_t a) { return eq_div_##m(0x3f800000u, a); } \
    static inline uint32_t eq_sqrt_##m(uint32_t a) { return eq_round_##m(eq_exact_sqrt(a)); }
EQ_DIRECTED(rz) EQ_DIRECTED(rm) EQ_DIRECTED(rp)

/* To an integer, still as a float. */
static inline uint32_t eq_rni(uint32_t a) { return eq_canon(eq_bits(rintf(eq_float(a)))); }
static inline uint32_t eq_rzi(uint32_t a) { return eq_canon(eq_bits(truncf(eq_float(a)))); }
static inline uint32_t eq_rmi(uint32_t a) { return eq_canon(eq_bits(floorf(eq_float(a)))); }
static inline uint32_t eq_rpi(uint32_t a) { return eq_canon(eq_bits(ceilf(eq_float(a)))); }

/* Order with -0 below +0, for max and min. */
static inline uint32_t eq_order(uint32_t x) { return x & EQ_SIGN ? ~x : x | EQ_SIGN; }
static inline uint32_t eq_max(uint32_t a, uint32_t b) {
    if (eq_is_nan(a)) return eq_canon(b);
    if (eq_is_nan(b)) return a;
    return eq_order(a) > eq_order(b) ? a : b;
}
static inline uint32_t eq_min(uint32_t a, uint32_t b) {
    if (eq_is_nan(a)) return eq_canon(b);
    if (eq_is_nan(b)) return a;
    return eq_order(a) < eq_order(b) ? a : b;
}
static inline uint32_t eq_max_nan(uint32_t a, uint32_t b) { return eq_is_nan(a) || eq_is_nan(b) ? EQ_NAN : eq_max(a, b); }
static inline uint32_t eq_min_nan(uint32_t a, uint32_t b) { return eq_is_nan(a) || eq_is_nan(b) ? EQ_NAN : eq_min(a, b); }
/* .xorsign.abs: the smaller (larger) magnitude with the product of the signs, a NaN's sign included. */
static inline uint32_t eq_min_xorsign_abs(uint32_t a, uint32_t b) {
    uint32_t m = eq_min(eq_abs(a), eq_abs(b));
    return m == EQ_NAN ? m : m | ((a ^ b) & EQ_SIGN);
}
static inline uint32_t eq_max_xorsign_abs(uint32_t a, uint32_t b) {
    uint32_t m = eq_max(eq_abs(a), eq_abs(b));
    return m == EQ_NAN ? m : m | ((a ^ b) & EQ_SIGN);
}

/* ftz: operands flushed, and results that are subnormal when rounded with an unbounded exponent: a number just below 2^-126
 * that only the subnormals' coarser steps round up to 2^-126 is a zero (measured). Sums cannot be such a number. */
#define EQ_FTZ1(f) static inline uint32_t f##_ftz(uint32_t a) { return eq_ftz(f(eq_ftz(a))); }
#define EQ_FTZ2(f) static inline uint32_t f##_ftz(uint32_t a, uint32_t b) { return eq_ftz(f(eq_ftz(a), eq_ftz(b))); }
static inline uint32_t eq_flushed(uint32_t rounded, eq_exact x, double limit, int limit_itself) {
    double outwards = x.s < 0 ? -x.e : x.e, magnitude = fabs(x.s);
    int tiny = magnitude < limit || (magnitude == limit && (outwards < 0 || (limit_itself && outwards == 0)));
    return EQ_PICK(tiny & !eq_is_nan(rounded), rounded & EQ_SIGN, rounded);
}
/* Nearest: from 2^-126 - 2^-151 on, a tie to even, the result is normal. Away from zero: above the last number of 24 bits
 * below 2^-126. Towards zero: from 2^-126 on. */
#define EQ_FLUSHED_rn(r, x) eq_flushed(r, x, 0x1.ffffffp-127, 0)
#define EQ_FLUSHED_rz(r, x) eq_flushed(r, x, 0x1p-126, 0)
#define EQ_FLUSHED_rm(r, x) (x.s < 0 ? eq_flushed(r, x, 0x1.fffffep-127, 1) : EQ_FLUSHED_rz(r, x))
#define EQ_FLUSHED_rp(r, x) (x.s > 0 ? eq_flushed(r, x, 0x1.fffffep-127, 1) : EQ_FLUSHED_rz(r, x))
#define EQ_FTZ_EXACT(mode) \
    static inline uint32_t eq_fma_##mode##_ftz(uint32_t a, uint32_t b, uint32_t c) { \
        eq_exact x = eq_exact_fma(eq_ftz(a), eq_ftz(b), eq_ftz(c)); \
        return EQ_FLUSHED_##mode(eq_round_##mode(x), x); \
    }
EQ_FTZ_EXACT(rn) EQ_FTZ_EXACT(rz) EQ_FTZ_EXACT(rm) EQ_FTZ_EXACT(rp)
#define EQ_FTZ_PRODUCT(mode) \
    static inline uint32_t eq_mul_##mode##_ftz(uint32_t a, uint32_t b) { \
        eq_exact x = eq_exact_mul(eq_ftz(a), eq_ftz(b)); \
        return EQ_FLUSHED_##mode(eq_mul_##mode(eq_ftz(a), eq_ftz(b)), x); \
    }
EQ_FTZ_PRODUCT(rz) EQ_FTZ_PRODUCT(rm) EQ_FTZ_PRODUCT(rp)
/* A product of 2^-126 is known by 2^24 times it, which is rounded with steps that are fine enough. */
static inline uint32_t eq_mul_rn_ftz(uint32_t a, uint32_t b) {
    a = eq_ftz(a), b = eq_ftz(b);
    uint32_t r = eq_mul_rn(a, b), first = eq_abs(a) < eq_abs(b);
    float small = eq_float(EQ_PICK(first, a, b)) * 0x1p24f, other = eq_float(EQ_PICK(first, b, a));
    uint32_t tiny = (eq_abs(r) == 0x800000u) & (eq_abs(eq_bits(small * other)) < 0xc800000u);
    return EQ_PICK(tiny, r & EQ_SIGN, eq_ftz(r));
}
static inline uint32_t eq_div_rn_ftz(uint32_t a, uint32_t b) {
    uint32_t x = eq_ftz(a), y = eq_ftz(b), r = eq_div_rn(x, y);
    int tiny = fabs((double)eq_float(x)) < 0x1.ffffffp-127 * fabs((double)eq_float(y));
    return tiny ? r & EQ_SIGN : r;
}
EQ_FTZ2(eq_add_rn) EQ_FTZ2(eq_add_rz) EQ_FTZ2(eq_add_rm) EQ_FTZ2(eq_add_rp)
EQ_FTZ2(eq_sub_rn) EQ_FTZ2(eq_sub_rz) EQ_FTZ2(eq_sub_rm) EQ_FTZ2(eq_sub_rp)
EQ_FTZ1(eq_rcp_rn) EQ_FTZ1(eq_sqrt_rn) EQ_FTZ1(eq_sqrt_rz) EQ_FTZ1(eq_sqrt_rm) EQ_FTZ1(eq_sqrt_rp)
#define EQ_FTZ_QUOTIENT(mode) \
    static inline uint32_t eq_div_##mode##_ftz(uint32_t a, uint32_t b) { \
        eq_exact x = eq_exact_div(eq_ftz(a), eq_ftz(b)); \
        return EQ_FLUSHED_##mode(eq_round_##mode(x), x); \
    } \
    static inline uint32_t eq_rcp_##mode##_ftz(uint32_t a) { return eq_ftz(eq_rcp_##mode(eq_ftz(a))); }
EQ_FTZ_QUOTIENT(rz) EQ_FTZ_QUOTIENT(rm) EQ_FTZ_QUOTIENT(rp)
EQ_FTZ1(eq_rni) EQ_FTZ1(eq_rzi) EQ_FTZ1(eq_rmi) EQ_FTZ1(eq_rpi)
EQ_FTZ2(eq_max) EQ_FTZ2(eq_min) EQ_FTZ2(eq_max_nan) EQ_FTZ2(eq_min_nan)
EQ_FTZ2(eq_min_xorsign_abs) EQ_FTZ2(eq_max_xorsign_abs)

/* ---- conversions ---- */
/* Nearest even of a magnitude into `fraction` bits with least normal exponent `emin`; not saturated. The subnormal range is
 * rounded by adding a power of two whose ulp is the format's smallest step. */
static inline uint32_t eq_narrow(uint32_t a, int fraction, int emin) {
    int drop = 23 - fraction;
    uint32_t normal = (a + ((1u << (drop - 1)) - 1) + ((a >> drop) & 1)) >> drop;
    uint32_t rebase = (uint32_t)(emin + 126) << fraction;
    uint32_t magic = (uint32_t)(emin - fraction + 23 + 127) << 23;
    uint32_t subnormal = eq_bits(eq_float(a) + eq_float(magic)) - magic;
    return a < (uint32_t)(emin + 127) << 23 ? subnormal : normal - rebase;
}
static inline uint32_t eq_cvt_bf16_rn(uint32_t x) {
    return eq_is_nan(x) ? 0x7fffu : (x + 0x7fffu + ((x >> 16) & 1)) >> 16;
}
static inline uint32_t eq_cvt_bf16_rz(uint32_t x) { return eq_is_nan(x) ? 0x7fffu : x >> 16; }
static inline uint32_t eq_cvt_f16_rn(uint32_t x) {
    if (eq_is_nan(x)) return 0x7fffu;
    uint32_t a = x & 0x7fffffffu, c = a >= 0x477ff000u ? 0x7c00u : eq_narrow(a, 10, -14);
    return c | ((x >> 16) & 0x8000u);
}
static inline uint32_t eq_saturated(uint32_t x, uint32_t nan, uint32_t largest, uint32_t limit, uint32_t sign, int fraction, int emin) {
    if (eq_is_nan(x)) return nan;
    uint32_t a = x & 0x7fffffffu, c = a > limit ? largest : eq_narrow(a, fraction, emin);
    return x & EQ_SIGN ? c | sign : c;
}
static inline uint32_t eq_cvt_e4m3_rn_satfinite(uint32_t x) { return eq_saturated(x, 0x7f, 0x7e, 0x43e00000u, 0x80, 3, -6); }
static inline uint32_t eq_cvt_e5m2_rn_satfinite(uint32_t x) { return eq_saturated(x, 0x7f, 0x7b, 0x47600000u, 0x80, 2, -14); }
static inline uint32_t eq_cvt_e2m3_rn_satfinite(uint32_t x) { return eq_saturated(x, 0x1f, 0x1f, 0x40f00000u, 0x20, 3, 0); }
static inline uint32_t eq_cvt_e3m2_rn_satfinite(uint32_t x) { return eq_saturated(x, 0x1f, 0x1f, 0x41e00000u, 0x20, 2, -2); }
static inline uint32_t eq_cvt_e2m1_rn_satfinite(uint32_t x) { return eq_saturated(x, 0x7, 0x7, 0x40c00000u, 0x8, 1, 0); }
/* ue8m0: the sign is ignored; without satfinite an overflow is 0xff, the code of NaN. */
static inline uint32_t eq_cvt_ue8m0_rz(uint32_t x) { return eq_is_nan(x) ? 0xffu : (x >> 23) & 0xffu; }
static inline uint32_t eq_cvt_ue8m0_rp(uint32_t x) {
    uint32_t a = x & 0x7fffffffu;
    if (a > EQ_INF) return 0xff;
    return (a >> 23) + (a > 0x400000u && (a & 0x7fffffu) != 0);
}
static inline uint32_t eq_cvt_ue8m0_rz_satfinite(uint32_t x) {
    uint32_t c = eq_cvt_ue8m0_rz(x);
    return c == 0xff && !eq_is_nan(x) ? 0xfe : c;
}
static inline uint32_t eq_cvt_ue8m0_rp_satfinite(uint32_t x) {
    uint32_t c = eq_cvt_ue8m0_rp(x);
    return c == 0xff && !eq_is_nan(x) ? 0xfe : c;
}
/* rna cuts a NaN's payload too, so that some become Inf; rn and rz give the canonical NaN (measured). */
static inline uint32_t eq_cvt_tf32_rna(uint32_t x) { return ((x & EQ_INF) == EQ_INF ? x : x + 0x1000u) & 0xffffe000u; }
static inline uint32_t eq_cvt_tf32_rn(uint32_t x) {
    return eq_is_nan(x) ? 0x7fffe000u : (x + 0xfffu + ((x >> 13) & 1)) & 0xffffe000u;
}
static inline uint32_t eq_cvt_tf32_rz(uint32_t x) { return eq_is_nan(x) ? 0x7fffe000u : x & 0xffffe000u; }
/* .satfinite of tf32: one code less from Inf on, NaNs included (measured for rna). */
static inline uint32_t eq_tf32_finite(uint32_t x) { return (x & EQ_INF) == EQ_INF ? x - 0x2000u : x; }

/* Exact widening of a code with `fraction` bits and least normal exponent `emin`; the caller has dealt with NaN and Inf. */
static inline uint32_t eq_widen(uint32_t magnitude, uint32_t sign, int fraction, int emin) {
    uint32_t exponent = magnitude >> fraction;
    if (exponent != 0) return sign | ((magnitude + ((uint32_t)(emin + 126) << fraction)) << (23 - fraction));
    return sign | eq_bits((float)magnitude * eq_float((uint32_t)(emin - fraction + 127) << 23));
}
static inline uint32_t eq_bf16_to_f32(uint32_t x) { return x << 16; }
static inline uint32_t eq_f16_to_f32(uint32_t x) {
    uint32_t a = x & 0x7fffu, sign = (x & 0x8000u) << 16;
    if (a > 0x7c00u) return EQ_NAN;
    return a == 0x7c00u ? sign | EQ_INF : eq_widen(a, sign, 10, -14);
}
static inline uint32_t eq_e4m3_to_f32(uint32_t x) {
    uint32_t a = x & 0x7fu;
    return a == 0x7f ? EQ_NAN : eq_widen(a, (x & 0x80u) << 24, 3, -6);
}
static inline uint32_t eq_e5m2_to_f32(uint32_t x) {
    uint32_t a = x & 0x7fu, sign = (x & 0x80u) << 24;
    if (a > 0x7c) return EQ_NAN;
    return a == 0x7c ? sign | EQ_INF : eq_widen(a, sign, 2, -14);
}
static inline uint32_t eq_e2m3_to_f32(uint32_t x) { return eq_widen(x & 0x1fu, (x & 0x20u) << 26, 3, 0); }
static inline uint32_t eq_e3m2_to_f32(uint32_t x) { return eq_widen(x & 0x1fu, (x & 0x20u) << 26, 2, -2); }
static inline uint32_t eq_e2m1_to_f32(uint32_t x) { return eq_widen(x & 0x7u, (x & 0x8u) << 28, 1, 0); }
static inline uint32_t eq_ue8m0_to_f32(uint32_t x) { x &= 0xffu; return x == 0xff ? EQ_NAN : (x == 0 ? 0x400000u : x << 23); }
static inline uint32_t eq_ue8m0_to_bf16(uint32_t x) { x &= 0xffu; return x == 0xff ? 0x7fffu : (x == 0 ? 0x40u : x << 7); }
static inline uint32_t eq_e4m3_to_f16(uint32_t x) { return eq_cvt_f16_rn(eq_e4m3_to_f32(x)); }
static inline uint32_t eq_e5m2_to_f16(uint32_t x) { return eq_cvt_f16_rn(eq_e5m2_to_f32(x)); }
static inline uint32_t eq_e2m1_to_f16(uint32_t x) { return eq_cvt_f16_rn(eq_e2m1_to_f32(x)); }
static inline uint32_t eq_f16_to_e4m3_rn_satfinite(uint32_t x) { return eq_cvt_e4m3_rn_satfinite(eq_f16_to_f32(x)); }
static inline uint32_t eq_f16_to_e5m2_rn_satfinite(uint32_t x) { return eq_cvt_e5m2_rn_satfinite(eq_f16_to_f32(x)); }

#endif
