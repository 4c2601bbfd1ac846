/* Special functions of NVIDIA GPUs on bit patterns; the C twin of equiv/rounding/{mufu,special}.py, tested against it.
 *
 * The unit: the leading mantissa bits choose a row (C0, C1, C2) of a table; the result is
 *     ((C0 << a) + R + C1 * x + C2 * square(x)) >> k          x = the bits below, square = a truncated squarer
 * as a 24-bit significand (lg2: a fixed-point number). The rows are those of equiv/rounding/tables, shared with Python. */
#ifndef EQUIV_SPECIAL_H
#define EQUIV_SPECIAL_H

#include "numerics.h"

static const int32_t eq_rcp_rows[] = {
#include "../tables/rcp.inc"
};
static const int32_t eq_rsqrt_rows[] = {
#include "../tables/rsqrt.inc"
};
static const int32_t eq_sqrt_rows[] = {
#include "../tables/sqrt.inc"
};
static const int32_t eq_ex2_rows[] = {
#include "../tables/ex2.inc"
};
static const int32_t eq_lg2_rows[] = {
#include "../tables/lg2.inc"
};

static const int32_t eq_tanh_rows[] = {
#include "../tables/tanh.inc"
};
/* By binade from 2^-8 to 4: binary logarithm of the number of rows, and the first row. */
static const uint32_t eq_tanh_split[] = {0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 3};
static const uint32_t eq_tanh_first[] = {0, 1, 2, 3, 5, 7, 11, 15, 19, 27, 43};

/* About x^2 / 2^19 of 17 bits: every partial product is cut before it is added. Written out, because compilers vectorise the
 * loop over its callers only then. */
#define EQ_PARTIAL(i) ((x >> (18 - (i))) & (0u - ((x >> (i)) & 1)))
static inline uint32_t eq_square(uint32_t x) {
    uint32_t low = EQ_PARTIAL(2) + EQ_PARTIAL(3) + EQ_PARTIAL(4) + EQ_PARTIAL(5) + EQ_PARTIAL(6) + EQ_PARTIAL(7) + EQ_PARTIAL(8);
    uint32_t high = EQ_PARTIAL(9) + EQ_PARTIAL(10) + EQ_PARTIAL(11) + EQ_PARTIAL(12) + EQ_PARTIAL(13) + EQ_PARTIAL(14);
    return (low + high + EQ_PARTIAL(15) + EQ_PARTIAL(16)) >> 1;
}
/* Exact: every term and the sum are integers below 2^50. */
static inline double eq_segment(const int32_t *rows, uint32_t row, uint32_t x, uint32_t square, double scale, double rounding) {
    int32_t at = 3 * (int32_t)row, c0 = rows[at], c1 = (rows + 1)[at], c2 = (rows + 2)[at];
    return c0 * scale + rounding + c1 * (double)(int32_t)x + c2 * (double)(int32_t)square;
}
/* A positive double cut to 24 bits, as a float32. */
static inline uint32_t eq_cut(double x) {
    uint64_t bits;
    memcpy(&bits, &x, 8);
    bits &= ~(uint64_t)0x1fffffff;
    memcpy(&x, &bits, 8);
    return eq_bits((float)x);
}

/* The raw instructions: subnormal operands and results are zeros. */
static inline uint32_t eq_rcp_ftz(uint32_t x) {
    uint32_t a = x & 0x7fffffffu, sign = x & EQ_SIGN, low = a & 0xffffu;
    int32_t y = (int32_t)(eq_segment(eq_rcp_rows, (a >> 16) & 0x7fu, low, eq_square(low << 1), 0x1p13, 0x27e7) * 0x1p-15);
    int32_t r = y + (252 - (int32_t)(a >> 23)) * 0x800000;
    uint32_t result = EQ_PICK(r < 0x800000, 0, (uint32_t)r);
    result = EQ_PICK(a < 0x800000u, EQ_INF, result);
    result = sign | EQ_PICK(a == EQ_INF, 0, result);
    return EQ_PICK(a > EQ_INF, EQ_NAN, result);
}
/* Depends on x in fixed point with 23 fraction bits; negative numbers take the complement unless that is an integer. */
static inline uint32_t eq_ex2_ftz(uint32_t x) {
    uint32_t a = x & 0x7fffffffu, m = (a & 0x7fffffu) | 0x800000u, negative = x >> 31;
    uint32_t bounded = EQ_PICK(a < 0x43800000u, a, 0x43800000u);
    int32_t e = (int32_t)(bounded >> 23) - 127;
    uint32_t t = EQ_PICK(e >= 0, m << (e & 31), EQ_PICK(e < -31, 0, m >> (-e & 31)));
    uint32_t v = (t ^ (0u - negative)) + (negative & ((t & 0x7fffffu) == 0));
    uint32_t low = v & 0x1ffffu;
    int32_t y = (int32_t)(eq_segment(eq_ex2_rows, (v >> 17) & 0x3fu, low, eq_square(low), 0x1p13, 0x17e2) * 0x1p-15);
    int32_t n = (int32_t)v >> 23;
    uint32_t result = EQ_PICK(n > 127, EQ_INF, (uint32_t)y + (uint32_t)(n + 126) * 0x800000u);
    result = EQ_PICK(n < -126, 0, result);
    result = EQ_PICK(a >= 0x43800000u, EQ_INF & (negative - 1), result);
    return EQ_PICK(a > EQ_INF, EQ_NAN, result);
}
/* Even powers of two are exact, apart from the polynomial. */
static inline uint32_t eq_rsqrt_ftz(uint32_t x) {
    uint32_t a = x & 0x7fffffffu, low = a & 0x1ffffu, odd = ~(a >> 23) & 1, row = odd << 6 | ((a >> 17) & 0x3fu);
    int32_t y = (int32_t)(eq_segment(eq_rsqrt_rows, row, low, eq_square(low), 0x1p14, 0x3fff) * 0x1p-16);
    int32_t half = ((int32_t)(a >> 23) - 127 - (int32_t)odd) >> 1;
    uint32_t power = (a & 0xffffffu) == 0x800000u; /* of two, and even */
    uint32_t result = EQ_PICK(power, 0x1000000u, (uint32_t)y) + (uint32_t)(125 - half) * 0x800000u;
    result = EQ_PICK(a == EQ_INF, 0, result);
    result = EQ_PICK(x >> 31, EQ_NAN, result);
    result = EQ_PICK(a < 0x800000u, (x & EQ_SIGN) | EQ_INF, result);
    return EQ_PICK(a > EQ_INF, EQ_NAN, result);
}
static inline uint32_t eq_sqrt_ftz(uint32_t x) {
    uint32_t a = x & 0x7fffffffu, low = a & 0x1ffffu, odd = ~(a >> 23) & 1, row = odd << 6 | ((a >> 17) & 0x3fu);
    double scale = (double)(int32_t)(0x8000 >> odd), cut = (double)(int32_t)(1 + odd) * 0x1p-17;
    int32_t y = (int32_t)(eq_segment(eq_sqrt_rows, row, low, eq_square(low), scale, scale - 1) * cut);
    int32_t half = ((int32_t)(a >> 23) - 127 - (int32_t)odd) >> 1;
    uint32_t result = (uint32_t)y + (uint32_t)(126 + half) * 0x800000u;
    result = EQ_PICK(a == EQ_INF, EQ_INF, result);
    result = EQ_PICK(x >> 31, EQ_NAN, result);
    result = EQ_PICK(a < 0x800000u, x & EQ_SIGN, result);
    return EQ_PICK(a > EQ_INF, EQ_NAN, result);
}
/* Exponent plus logarithm of the mantissa with 36 fraction bits, the complement where that is negative, truncated to 24
 * bits; one itself is apart from the polynomial. */
static inline uint32_t eq_lg2_ftz(uint32_t x) {
    uint32_t a = x & 0x7fffffffu, low = a & 0x1ffffu, below = a < 0x3f800000u;
    double quarters = eq_segment(eq_lg2_rows, (a >> 17) & 0x3fu, low, eq_square(low), 0x1p12, 0x345);
    double whole = (quarters * 0.25 - 0.375 + 0x1p52) - 0x1p52; /* down to an integer */
    double sum = ((int32_t)(a >> 23) - 127) * 0x1p36 + whole;
    double sign = (double)(1 - 2 * (int32_t)below);
    uint32_t result = (eq_cut(sum * sign - (double)(int32_t)below) - 36 * 0x800000u) | below << 31;
    result = EQ_PICK(a == 0x3f800000u, 0, result);
    result = EQ_PICK(a == EQ_INF, EQ_INF, result);
    result = EQ_PICK(x >> 31, EQ_NAN, result);
    result = EQ_PICK(a < 0x800000u, EQ_SIGN | EQ_INF, result);
    return EQ_PICK(a > EQ_INF, EQ_NAN, result);
}
/* Below 2^-8 the argument, from 8 on one; between, 40 fraction bits truncated to a 24-bit significand. */
static inline uint32_t eq_tanh(uint32_t x) {
    uint32_t a = x & 0x7fffffffu, field = a >> 23, binade = EQ_PICK(field - 119 > 10, 0, field - 119);
    uint32_t split = eq_tanh_split[(int32_t)binade], m = a & 0x7fffffu, low = (m >> (6 - split)) & 0x1ffffu;
    uint32_t row = eq_tanh_first[(int32_t)binade] + (m >> (23 - split));
    uint32_t result = eq_cut(eq_segment(eq_tanh_rows, row, low, eq_square(low), 0x1p16, 0)) - 40 * 0x800000u;
    result = EQ_PICK(field < 119, a, result);
    result = EQ_PICK(field > 129, 0x3f800000u, result) | (x & EQ_SIGN);
    return EQ_PICK(a > EQ_INF, EQ_NAN, result);
}

/* Without .ftz: the raw instruction between exact scalings. */
static inline uint32_t eq_ex2(uint32_t x) {
    uint32_t small = eq_float(x) < -126.0f, y = eq_ex2_ftz(EQ_PICK(small, eq_mul_rn(x, 0x3f000000u), x));
    return EQ_PICK(small, eq_mul_rn(y, y), y);
}
/* What to multiply an operand of rcp by, and its result again. */
static inline uint32_t eq_rcp_scale(uint32_t x) {
    uint32_t a = x & 0x7fffffffu;
    return EQ_PICK(a > 0x7e800000u, 0x3e800000u, EQ_PICK(a < 0x800000u, 0x4b800000u, 0x3f800000u));
}
static inline uint32_t eq_rcp(uint32_t x) {
    uint32_t s = eq_rcp_scale(x);
    return eq_mul_rn(eq_rcp_ftz(eq_mul_rn(x, s)), s);
}
static inline uint32_t eq_rsqrt(uint32_t x) {
    uint32_t small = (x & EQ_INF) == 0, y = eq_rsqrt_ftz(EQ_PICK(small, eq_mul_rn(x, 0x4b800000u), x));
    return EQ_PICK(small, eq_mul_rn(y, 0x45800000u), y);
}
static inline uint32_t eq_sqrt(uint32_t x) {
    uint32_t small = (x & EQ_INF) == 0, y = eq_sqrt_ftz(EQ_PICK(small, eq_mul_rn(x, 0x4b800000u), x));
    return EQ_PICK(small, eq_mul_rn(y, 0x39800000u), y);
}
static inline uint32_t eq_lg2(uint32_t x) {
    uint32_t small = (x & EQ_INF) == 0, y = eq_lg2_ftz(EQ_PICK(small, eq_mul_rn(x, 0x4b800000u), x));
    return EQ_PICK(small, eq_add_rn(y, 0xc1c00000u), y);
}
static inline uint32_t eq_div_full_ftz(uint32_t a, uint32_t b) {
    uint32_t s = EQ_PICK((b & 0x7fffffffu) > 0x7e800000u, 0x3e800000u, 0x3f800000u);
    return eq_mul_rn_ftz(eq_mul_rn_ftz(a, s), eq_rcp_ftz(eq_mul_rn_ftz(b, s)));
}
static inline uint32_t eq_div_full(uint32_t a, uint32_t b) {
    uint32_t s = eq_rcp_scale(b);
    return eq_mul_rn(eq_mul_rn(a, s), eq_rcp_ftz(eq_mul_rn(b, s)));
}
static inline uint32_t eq_div_approx_ftz(uint32_t a, uint32_t b) { return eq_mul_rn_ftz(a, eq_rcp_ftz(b)); }
static inline uint32_t eq_div_approx(uint32_t a, uint32_t b) {
    uint32_t s = EQ_PICK((b & 0x7fffffffu) < 0x800000u, 0x4b800000u, 0x3f800000u);
    return eq_mul_rn(eq_mul_rn(a, s), eq_rcp_ftz(eq_mul_rn(b, s)));
}

/* The 16-bit forms: the float32 result of the widened operand, truncated; beyond the range of float16 it is Inf. */
static inline uint32_t eq_truncated_f16(uint32_t x) {
    uint32_t a = x & 0x7fffffffu, field = a >> 23, sign = (x >> 16) & 0x8000u;
    if (a > EQ_INF) return 0x7fffu;
    if (field > 142) return sign | 0x7c00u;
    if (field > 112) return sign | (a - 0x38000000u) >> 13;
    return field < 103 ? sign : sign | ((a & 0x7fffffu) | 0x800000u) >> (126 - field);
}
static inline uint32_t eq_ex2_bf16_ftz(uint32_t x) { return eq_cvt_bf16_rz(eq_ex2_ftz(eq_bf16_to_f32(x))); }
static inline uint32_t eq_ex2_f16(uint32_t x) { return eq_truncated_f16(eq_ex2_ftz(eq_f16_to_f32(x))); }
static inline uint32_t eq_tanh_bf16(uint32_t x) { return eq_cvt_bf16_rz(eq_tanh(eq_bf16_to_f32(x))); }
static inline uint32_t eq_tanh_f16(uint32_t x) { return eq_truncated_f16(eq_tanh(eq_f16_to_f32(x))); }

#endif
