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

/* About x^2 / 2^19 of 17 bits: every partial product is cut before it is added. */
static inline uint32_t eq_square(uint32_t x) {
    uint32_t sum = 0;
    for (int i = 2; i < 17; i++) sum += (x >> (18 - i)) & (0u - ((x >> i) & 1));
    return sum >> 1;
}
static inline int64_t eq_segment(const int32_t *rows, uint32_t row, uint32_t x, uint32_t square, uint32_t shift, int64_t rounding) {
    const int32_t *c = rows + 3 * row;
    return ((int64_t)c[0] << shift) + rounding + (int64_t)c[1] * x + (int64_t)c[2] * square;
}

/* The raw instructions: subnormal operands and results are zeros. */
static inline uint32_t eq_rcp_ftz(uint32_t x) {
    uint32_t a = x & 0x7fffffffu, sign = x & EQ_SIGN, low = a & 0xffffu;
    int64_t y = eq_segment(eq_rcp_rows, (a >> 16) & 0x7fu, low, eq_square(low << 1), 13, 0x27e7) >> 15;
    int32_t r = (int32_t)y + (252 - (int32_t)(a >> 23)) * 0x800000;
    uint32_t result = sign | (r < 0x800000 ? 0 : (uint32_t)r);
    result = a < 0x800000u ? sign | EQ_INF : result;
    result = a == EQ_INF ? sign : result;
    return a > EQ_INF ? EQ_NAN : result;
}
/* Depends on x in fixed point with 23 fraction bits; negative numbers take the complement unless that is an integer. */
static inline uint32_t eq_ex2_ftz(uint32_t x) {
    uint32_t a = x & 0x7fffffffu, m = (a & 0x7fffffu) | 0x800000u, bounded = a < 0x43800000u ? a : 0x43800000u;
    int32_t e = (int32_t)(bounded >> 23) - 127;
    uint32_t t = e >= 0 ? m << (e & 31) : (e < -31 ? 0 : m >> (-e & 31));
    uint32_t v = !(x & EQ_SIGN) ? t : (t & 0x7fffffu ? ~t : 0u - t);
    uint32_t low = v & 0x1ffffu;
    int64_t y = eq_segment(eq_ex2_rows, (v >> 17) & 0x3fu, low, eq_square(low), 13, 0x17e2) >> 15;
    int32_t n = (int32_t)v >> 23;
    uint32_t result = n < -126 ? 0 : (n > 127 ? EQ_INF : (uint32_t)y + (uint32_t)(n + 126) * 0x800000u);
    result = a >= 0x43800000u ? (x & EQ_SIGN ? 0 : EQ_INF) : result;
    return a > EQ_INF ? EQ_NAN : result;
}
/* Even powers of two are exact, apart from the polynomial. */
static inline uint32_t eq_rsqrt_ftz(uint32_t x) {
    uint32_t a = x & 0x7fffffffu, low = a & 0x1ffffu, odd = ~(a >> 23) & 1;
    int64_t y = eq_segment(eq_rsqrt_rows, odd << 6 | ((a >> 17) & 0x3fu), low, eq_square(low), 14, 0x3fff) >> 16;
    y = odd || (a & 0x7fffffu) ? y : 0x1000000;
    int32_t half = ((int32_t)(a >> 23) - 127 - (int32_t)odd) / 2;
    uint32_t result = x & EQ_SIGN ? EQ_NAN : (uint32_t)y + (uint32_t)(125 - half) * 0x800000u;
    result = a == EQ_INF && !(x & EQ_SIGN) ? 0 : result;
    result = a < 0x800000u ? (x & EQ_SIGN) | EQ_INF : result;
    return a > EQ_INF ? EQ_NAN : result;
}
static inline uint32_t eq_sqrt_ftz(uint32_t x) {
    uint32_t a = x & 0x7fffffffu, low = a & 0x1ffffu, odd = ~(a >> 23) & 1, shift = 15 - odd;
    int64_t rounding = ((int64_t)1 << shift) - 1;
    int64_t y = eq_segment(eq_sqrt_rows, odd << 6 | ((a >> 17) & 0x3fu), low, eq_square(low), shift, rounding) >> (shift + 2);
    int32_t half = ((int32_t)(a >> 23) - 127 - (int32_t)odd) / 2;
    uint32_t result = x & EQ_SIGN ? EQ_NAN : (uint32_t)y + (uint32_t)(126 + half) * 0x800000u;
    result = a == EQ_INF && !(x & EQ_SIGN) ? EQ_INF : result;
    result = a < 0x800000u ? x & EQ_SIGN : result;
    return a > EQ_INF ? EQ_NAN : result;
}
/* Exponent plus logarithm of the mantissa with 36 fraction bits, the complement where that is negative, truncated to 24
 * bits; one itself is apart from the polynomial. */
static inline uint32_t eq_lg2_ftz(uint32_t x) {
    uint32_t a = x & 0x7fffffffu, low = a & 0x1ffffu;
    int64_t e = (int64_t)(a >> 23) - 127;
    int64_t sum = e * ((int64_t)1 << 36) + (eq_segment(eq_lg2_rows, (a >> 17) & 0x3fu, low, eq_square(low), 12, 0x345) >> 2);
    double magnitude = (double)(sum < 0 ? ~sum : sum);
    uint64_t bits;
    memcpy(&bits, &magnitude, 8);
    uint32_t result = (uint32_t)(bits >> 29) - (1023 - 127 + 36) * 0x800000u;
    result = a == 0x3f800000u ? 0 : result | (sum < 0 ? EQ_SIGN : 0);
    result = x & EQ_SIGN ? EQ_NAN : (a == EQ_INF ? EQ_INF : result);
    result = a < 0x800000u ? EQ_SIGN | EQ_INF : result;
    return a > EQ_INF ? EQ_NAN : result;
}
/* Below 2^-8 the argument, from 8 on one; between, 40 fraction bits truncated to a 24-bit significand. */
static inline uint32_t eq_tanh(uint32_t x) {
    uint32_t a = x & 0x7fffffffu, field = a >> 23, binade = field - 119;
    binade = binade > 10 ? 0 : binade;
    uint32_t split = eq_tanh_split[binade], m = a & 0x7fffffu, low = (m >> (6 - split)) & 0x1ffffu;
    uint32_t row = eq_tanh_first[binade] + (m >> (23 - split));
    double value = (double)eq_segment(eq_tanh_rows, row, low, eq_square(low), 16, 0);
    uint64_t bits;
    memcpy(&bits, &value, 8);
    uint32_t result = (uint32_t)(bits >> 29) - (1023 - 127 + 40) * 0x800000u;
    result = field < 119 ? a : (field > 129 ? 0x3f800000u : result);
    return a > EQ_INF ? EQ_NAN : result | (x & EQ_SIGN);
}

/* Without .ftz: the raw instruction between exact scalings. */
static inline uint32_t eq_ex2(uint32_t x) {
    int small = eq_float(x) < -126.0f;
    uint32_t y = eq_ex2_ftz(small ? eq_mul_rn(x, 0x3f000000u) : x);
    return small ? eq_mul_rn(y, y) : y;
}
static inline uint32_t eq_rcp(uint32_t x) {
    uint32_t a = x & 0x7fffffffu;
    uint32_t s = a > 0x7e800000u ? 0x3e800000u : (a < 0x800000u ? 0x4b800000u : 0x3f800000u);
    return eq_mul_rn(eq_rcp_ftz(eq_mul_rn(x, s)), s);
}
static inline uint32_t eq_rsqrt(uint32_t x) {
    int small = (x & EQ_INF) == 0;
    uint32_t y = eq_rsqrt_ftz(small ? eq_mul_rn(x, 0x4b800000u) : x);
    return small ? eq_mul_rn(y, 0x45800000u) : y;
}
static inline uint32_t eq_sqrt(uint32_t x) {
    int small = (x & EQ_INF) == 0;
    uint32_t y = eq_sqrt_ftz(small ? eq_mul_rn(x, 0x4b800000u) : x);
    return small ? eq_mul_rn(y, 0x39800000u) : y;
}
static inline uint32_t eq_lg2(uint32_t x) {
    int small = (x & EQ_INF) == 0;
    uint32_t y = eq_lg2_ftz(small ? eq_mul_rn(x, 0x4b800000u) : x);
    return small ? eq_add_rn(y, 0xc1c00000u) : y;
}
static inline uint32_t eq_div_full_ftz(uint32_t a, uint32_t b) {
    uint32_t s = (b & 0x7fffffffu) > 0x7e800000u ? 0x3e800000u : 0x3f800000u;
    return eq_mul_rn_ftz(eq_mul_rn_ftz(a, s), eq_rcp_ftz(eq_mul_rn_ftz(b, s)));
}
static inline uint32_t eq_div_full(uint32_t a, uint32_t b) {
    uint32_t m = b & 0x7fffffffu;
    uint32_t s = m > 0x7e800000u ? 0x3e800000u : (m < 0x800000u ? 0x4b800000u : 0x3f800000u);
    return eq_mul_rn(eq_mul_rn(a, s), eq_rcp_ftz(eq_mul_rn(b, s)));
}
static inline uint32_t eq_div_approx_ftz(uint32_t a, uint32_t b) { return eq_mul_rn_ftz(a, eq_rcp_ftz(b)); }
static inline uint32_t eq_div_approx(uint32_t a, uint32_t b) {
    uint32_t s = (b & 0x7fffffffu) < 0x800000u ? 0x4b800000u : 0x3f800000u;
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
