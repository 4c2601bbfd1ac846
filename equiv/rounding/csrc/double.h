/* Float64 arithmetic of NVIDIA GPUs on bit patterns in every rounding, and the one function that rounds an exact number
 * to any binary format; the C twin of equiv/rounding/double.py.
 *
 * Nearest comes from the host's own operations; the directed modes are computed in integers, so that the floating-point
 * environment is neither read nor changed. */
#ifndef EQUIV_DOUBLE_H
#define EQUIV_DOUBLE_H

#include "numerics.h"

#define EQ64_INF 0x7ff0000000000000ull
#define EQ64_SIGN 0x8000000000000000ull
#define EQ64_NAN 0x7fffffffffffffffull
#define EQ64_MAGNITUDE 0x7fffffffffffffffull

typedef unsigned __int128 eq_u128;
typedef enum { EQ_RN, EQ_RZ, EQ_RM, EQ_RP } eq_mode;

static inline double eq64_float(uint64_t bits) { double x; memcpy(&x, &bits, 8); return x; }
static inline uint64_t eq64_bits(double x) { uint64_t bits; memcpy(&bits, &x, 8); return bits; }
static inline int eq64_is_nan(uint64_t x) { return (x & EQ64_MAGNITUDE) > EQ64_INF; }

static inline int eq_top(eq_u128 m) {
    uint64_t high = (uint64_t)(m >> 64);
    return high ? 127 - __builtin_clzll(high) : 63 - __builtin_clzll((uint64_t)m);
}

/* Code of (-1)^sign * (m + something below one if `sticky`) * 2^e in a format of `bits` with `fraction` bits and least
 * normal exponent `emin`. m is not zero, and has more than fraction + 1 bits if sticky. */
static inline uint64_t eq_encode(uint64_t sign, eq_u128 m, int e, int sticky, eq_mode mode, int fraction, int emin, int bits) {
    int exponent = eq_top(m) + e > emin ? eq_top(m) + e : emin, drop = exponent - fraction - e;
    uint64_t count = 0, half = 0, rest = 1, inf = (((uint64_t)1 << (bits - 1 - fraction)) - 1) << fraction;
    if (drop <= 0) {
        count = (uint64_t)m << -drop;
        rest = (uint64_t)sticky;
    } else if (drop < 128) {
        count = (uint64_t)(m >> drop);
        half = (uint64_t)(m >> (drop - 1)) & 1;
        rest = (m & (((eq_u128)1 << (drop - 1)) - 1)) != 0 || sticky;
    }
    int up = mode == EQ_RN ? half && (rest || (count & 1)) : mode == EQ_RP ? (half | rest) && !sign : mode == EQ_RM && (half | rest) && sign;
    uint64_t code = count + ((uint64_t)(exponent - emin) << fraction) + (uint64_t)up;
    if (code >= inf) code = mode == EQ_RN || (mode == EQ_RP && !sign) || (mode == EQ_RM && sign) ? inf : inf - 1;
    return sign << (bits - 1) | code;
}

typedef struct { uint64_t sign, m; int e; } eq64_parts;
/* A finite number that is not zero, its significand with the top bit at 52. */
static inline eq64_parts eq64_split(uint64_t x) {
    uint64_t m = x & 0xfffffffffffffull;
    int field = (int)(x >> 52 & 0x7ff);
    eq64_parts p = {x >> 63, field ? m | 1ull << 52 : m, (field ? field : 1) - 1075};
    int shift = __builtin_clzll(p.m) - 11;
    p.m <<= shift;
    p.e -= shift;
    return p;
}

/* An exact value in any format; a NaN is all ones without the sign. */
static inline uint64_t eq_exact_code(eq_exact x, eq_mode mode, int fraction, int emin, int bits) {
    uint64_t s = eq64_bits(x.s), sign = s >> 63, inf = (((uint64_t)1 << (bits - 1 - fraction)) - 1) << fraction;
    if (eq64_is_nan(s)) return ((uint64_t)1 << (bits - 1)) - 1;
    if ((s & EQ64_MAGNITUDE) == EQ64_INF) return sign << (bits - 1) | inf;
    if ((s & EQ64_MAGNITUDE) == 0) return sign << (bits - 1);
    eq64_parts p = eq64_split(s);
    int rest = x.e > 0 || x.e < 0, away = (x.e > 0) == (x.s > 0);
    return eq_encode(sign, ((eq_u128)p.m << 4) - (eq_u128)(rest && !away), p.e - 4, rest, mode, fraction, emin, bits);
}
static inline eq_exact eq_exact_double(uint64_t x) {
    eq_exact found = {eq64_float(x), 0, 0};
    return found;
}
static inline eq_exact eq_exact_signed(int64_t x) {
    eq_exact found = {(double)x, (double)(int64_t)((__int128)x - (__int128)(double)x), 0};
    return found;
}
static inline eq_exact eq_exact_unsigned(uint64_t x) {
    eq_exact found = {(double)x, (double)(int64_t)((__int128)x - (__int128)(double)x), 0};
    return found;
}

static inline int eq64_plain(uint64_t x) { return (x & EQ64_INF) != EQ64_INF && (x & EQ64_MAGNITUDE) != 0; }

/* m1 * 2^e1 + m2 * 2^e2 of numbers that are not zero and have at most 106 bits. */
static inline uint64_t eq64_sum(uint64_t s1, eq_u128 m1, int e1, uint64_t s2, eq_u128 m2, int e2, eq_mode mode) {
    int up1 = 125 - eq_top(m1), up2 = 125 - eq_top(m2), sticky = 0;
    m1 <<= up1, e1 -= up1, m2 <<= up2, e2 -= up2;
    if (e1 < e2 || (e1 == e2 && m1 < m2)) {
        eq_u128 m = m1;
        int e = e1;
        uint64_t s = s1;
        m1 = m2, e1 = e2, s1 = s2, m2 = m, e2 = e, s2 = s;
    }
    int d = e1 - e2;
    if (d) {
        sticky = d > 127 || (m2 & (((eq_u128)1 << d) - 1)) != 0;
        m2 = d > 127 ? 0 : m2 >> d;
    }
    m1 = s1 == s2 ? m1 + m2 : m1 - m2 - (eq_u128)sticky;
    if (m1 == 0) return mode == EQ_RM ? EQ64_SIGN : 0;
    return eq_encode(s1, m1, e1, sticky, mode, 52, -1022, 64);
}

static inline uint64_t eq64_fma_to(uint64_t a, uint64_t b, uint64_t c, eq_mode mode) {
    if ((a & EQ64_INF) == EQ64_INF || (b & EQ64_INF) == EQ64_INF || (c & EQ64_INF) == EQ64_INF)
        return eq64_bits(__builtin_fma(eq64_float(a), eq64_float(b), eq64_float(c)));
    uint64_t sign = (a ^ b) & EQ64_SIGN;
    if (!eq64_plain(a) || !eq64_plain(b)) {
        if (eq64_plain(c) || sign == (c & EQ64_SIGN)) return c;
        return mode == EQ_RM ? EQ64_SIGN : 0;
    }
    eq64_parts x = eq64_split(a), y = eq64_split(b);
    eq_u128 product = (eq_u128)x.m * y.m;
    if (!eq64_plain(c)) return eq_encode(sign >> 63, product, x.e + y.e, 0, mode, 52, -1022, 64);
    eq64_parts z = eq64_split(c);
    return eq64_sum(sign >> 63, product, x.e + y.e, z.sign, z.m, z.e, mode);
}
static inline uint64_t eq64_div_to(uint64_t a, uint64_t b, eq_mode mode) {
    if (!eq64_plain(a) || !eq64_plain(b)) return eq64_bits(eq64_float(a) / eq64_float(b));
    eq64_parts x = eq64_split(a), y = eq64_split(b);
    eq_u128 dividend = (eq_u128)x.m << 74;
    return eq_encode(x.sign ^ y.sign, dividend / y.m, x.e - y.e - 74, dividend % y.m != 0, mode, 52, -1022, 64);
}
static inline uint64_t eq64_sqrt_to(uint64_t a, eq_mode mode) {
    if (!eq64_plain(a) || a >> 63) return eq64_bits(sqrt(eq64_float(a)));
    eq64_parts x = eq64_split(a);
    eq_u128 square = (eq_u128)x.m << (72 + (x.e & 1)), root = 0;
    for (eq_u128 bit = (eq_u128)1 << 63; bit; bit >>= 1)
        if ((root | bit) * (root | bit) <= square) root |= bit;
    return eq_encode(0, root, (x.e - (x.e & 1) - 72) / 2, root * root != square, mode, 52, -1022, 64);
}

/* NaNs: a result that is NaN without a NaN operand is 0xfff8000000000000; otherwise it is an operand's, made quiet, the
 * last operand's before the first's, except in a division. */
static inline uint64_t eq64_quiet(uint64_t x) { return x | 0x8000000000000ull; }
static inline uint64_t eq64_first(uint64_t a, uint64_t b, uint64_t c, uint64_t r) {
    if (!eq64_is_nan(r)) return r;
    return eq64_is_nan(a) ? eq64_quiet(a) : eq64_is_nan(b) ? eq64_quiet(b) : eq64_is_nan(c) ? eq64_quiet(c) : 0xfff8000000000000ull;
}
static inline uint64_t eq64_neg(uint64_t x) { return eq64_is_nan(x) ? eq64_quiet(x) : x ^ EQ64_SIGN; }
static inline uint64_t eq64_abs(uint64_t x) { return eq64_is_nan(x) ? eq64_quiet(x) : x & EQ64_MAGNITUDE; }
static inline uint64_t eq64_minus(uint64_t x) { return eq64_is_nan(x) ? x : x ^ EQ64_SIGN; }

#define EQ64_ONE 0x3ff0000000000000ull
#define EQ64_OPERATIONS(m, mode) \
    static inline uint64_t eq64_fma_##m(uint64_t a, uint64_t b, uint64_t c) { \
        uint64_t r = mode == EQ_RN ? eq64_bits(__builtin_fma(eq64_float(a), eq64_float(b), eq64_float(c))) : eq64_fma_to(a, b, c, mode); \
        return eq64_first(b, c, a, r); \
    } \
    static inline uint64_t eq64_add_##m(uint64_t a, uint64_t b) { \
        return eq64_first(b, a, a, mode == EQ_RN ? eq64_bits(eq64_float(a) + eq64_float(b)) : eq64_fma_to(a, EQ64_ONE, b, mode)); \
    } \
    static inline uint64_t eq64_sub_##m(uint64_t a, uint64_t b) { return eq64_add_##m(a, eq64_minus(b)); } \
    static inline uint64_t eq64_mul_##m(uint64_t a, uint64_t b) { \
        uint64_t r = mode == EQ_RN ? eq64_bits(eq64_float(a) * eq64_float(b)) : eq64_fma_to(a, b, (a ^ b) & EQ64_SIGN, mode); \
        return eq64_first(b, a, a, r); \
    } \
    static inline uint64_t eq64_div_##m(uint64_t a, uint64_t b) { \
        return eq64_first(a, b, b, mode == EQ_RN ? eq64_bits(eq64_float(a) / eq64_float(b)) : eq64_div_to(a, b, mode)); \
    } \
    static inline uint64_t eq64_rcp_##m(uint64_t a) { return eq64_div_##m(EQ64_ONE, a); } \
    static inline uint64_t eq64_sqrt_##m(uint64_t a) { \
        return eq64_first(a, a, a, mode == EQ_RN ? eq64_bits(sqrt(eq64_float(a))) : eq64_sqrt_to(a, mode)); \
    }
EQ64_OPERATIONS(rn, EQ_RN)
EQ64_OPERATIONS(rz, EQ_RZ)
EQ64_OPERATIONS(rm, EQ_RM)
EQ64_OPERATIONS(rp, EQ_RP)

static inline uint64_t eq64_order(uint64_t x) { return x & EQ64_SIGN ? ~x : x | EQ64_SIGN; }
static inline uint64_t eq64_min(uint64_t a, uint64_t b) {
    if (eq64_is_nan(a)) return eq64_is_nan(b) ? eq64_quiet(b) : b;
    return eq64_is_nan(b) || eq64_order(a) < eq64_order(b) ? a : b;
}
static inline uint64_t eq64_max(uint64_t a, uint64_t b) {
    if (eq64_is_nan(a)) return eq64_is_nan(b) ? eq64_quiet(b) : b;
    return eq64_is_nan(b) || eq64_order(a) > eq64_order(b) ? a : b;
}
static inline uint64_t eq64_sat(uint64_t x) {
    if (eq64_is_nan(x) || x & EQ64_SIGN) return 0;
    return x > EQ64_ONE ? EQ64_ONE : x;
}

/* To an integer, still as a double. */
static inline uint64_t eq64_rni(uint64_t x) { return eq64_is_nan(x) ? eq64_quiet(x) : eq64_bits(rint(eq64_float(x))); }
static inline uint64_t eq64_rzi(uint64_t x) { return eq64_is_nan(x) ? eq64_quiet(x) : eq64_bits(trunc(eq64_float(x))); }
static inline uint64_t eq64_rmi(uint64_t x) { return eq64_is_nan(x) ? eq64_quiet(x) : eq64_bits(floor(eq64_float(x))); }
static inline uint64_t eq64_rpi(uint64_t x) { return eq64_is_nan(x) ? eq64_quiet(x) : eq64_bits(ceil(eq64_float(x))); }

/* Of integral doubles; saturates. A NaN gives the type's top bit alone. */
static inline int64_t eq64_to_signed(uint64_t x, int bits) {
    double v = eq64_float(x), top = ldexp(1, bits - 1);
    if (eq64_is_nan(x) || v < -top) return (int64_t)(~(uint64_t)0 << (bits - 1));
    return v >= top ? (int64_t)~(~(uint64_t)0 << (bits - 1)) : (int64_t)v;
}
static inline uint64_t eq64_to_unsigned(uint64_t x, int bits) {
    double v = eq64_float(x);
    if (eq64_is_nan(x)) return (uint64_t)1 << (bits - 1);
    if (v >= ldexp(1, bits)) return ~(uint64_t)0 >> (64 - bits);
    return v <= 0 ? 0 : (uint64_t)v;
}

/* Between double and narrower formats a NaN keeps its sign and the leading bits of its payload and becomes quiet. */
static inline uint64_t eq64_narrow(uint64_t x, eq_mode mode, int fraction, int emin, int bits) {
    if (!eq64_is_nan(x)) return eq_exact_code(eq_exact_double(x), mode, fraction, emin, bits);
    uint64_t sign = x >> 63, magnitude = eq64_quiet(x) << 1 >> 1 >> (52 - fraction);
    return sign << (bits - 1) | (magnitude & (((uint64_t)1 << (bits - 1)) - 1));
}
static inline uint64_t eq64_widen(uint64_t x, int fraction, int bits) {
    uint64_t sign = x >> (bits - 1) & 1, magnitude = x & (((uint64_t)1 << (bits - 1)) - 1);
    uint64_t inf = (((uint64_t)1 << (bits - 1 - fraction)) - 1) << fraction;
    uint64_t high = sign << 63 | EQ64_INF | (magnitude & ~inf) << (52 - fraction);
    if (magnitude > inf) return eq64_quiet(high);
    if (magnitude == inf) return high;
    int field = (int)(magnitude >> fraction), emin = 2 - (1 << (bits - 2 - fraction));
    uint64_t m = (magnitude & (((uint64_t)1 << fraction) - 1)) | (uint64_t)(field != 0) << fraction;
    return sign << 63 | eq64_bits(ldexp((double)m, (field ? field : 1) - 1 + emin - fraction));
}

#endif
