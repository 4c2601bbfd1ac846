/* The same sums as matrix.h in float32, for operands without NaN and Inf whose exponents do not lie far apart.
 *
 * A product of two operands has at most 22 bits, so that float32 holds it, and it times a power of two is still exact as long
 * as it stays normal; conversion to an integer then truncates as the hardware does. Rows and columns are scaled to a largest
 * exponent of 0 first; what is smaller by more than EQ_QUICK_SPREAD is left to matrix.h. */
#ifndef EQUIV_MATRIX_QUICK_H
#define EQUIV_MATRIX_QUICK_H

#include "matrix_sums.h"

#define EQ_QUICK_SPREAD 48 /* products are at least 2^-96, times 2^-20 for two significands without a leading one */
#define EQ_QUICK_CHUNK (EQ_MMA_LANES < 8 ? EQ_MMA_LANES : 8) /* lines that are scaled at once; divides 8 and a panel */

typedef float eq_mma_floats __attribute__((vector_size(4 * EQ_MMA_LANES), aligned(4), may_alias));

typedef int32_t eq_quick_ints __attribute__((vector_size(4 * EQ_QUICK_CHUNK), aligned(4), may_alias));
typedef float eq_quick_floats __attribute__((vector_size(4 * EQ_QUICK_CHUNK), aligned(4), may_alias));

/* An operand: [lines / lanes][k][lanes] numbers, and the powers of two in front of their significands (0 for a zero). Then
 * the exponent of each line's scale. */
typedef struct { float *number, *power; int32_t *scale; } eq_quick_side;

/* Codes into numbers of the format; says whether one is NaN or Inf. Bits below the exponent field of a float32, moved there,
 * are the number but for the difference of the biases, subnormals included. */
static inline uint32_t eq_quick_widen(const eq_mma *v, const eq_mma_format *f, uint32_t flip, const uint32_t *code, int count, float *number, float *power) {
    uint32_t limit = f->infinity < f->nan_from ? f->infinity : f->nan_from, special = 0, sign = f->sign, mask = f->magnitude;
    uint32_t least = (uint32_t)(v->unpacked ? 113 : 128 - f->bias) << 23;
    int shift = 23 - f->fraction, dropped = v->dropped;
    float rebase = eq_float((uint32_t)(254 - f->bias) << 23);
    for (int i = 0; i < count; i++) {
        uint32_t x = code[i] >> dropped, magnitude = x & mask;
        special |= (uint32_t)(magnitude >= limit);
        uint32_t wide = eq_bits(eq_float(magnitude << shift) * rebase), field = wide & EQ_INF;
        field = field > least ? field : least;
        number[i] = eq_float(wide | (((x & sign) != 0) ^ flip) << 31);
        power[i] = eq_float(EQ_PICK(magnitude != 0, field, 0));
    }
    return special;
}

/* Scales to a largest exponent of 0 the lines of one chunk of a panel. Returns whether they all can be. */
static inline int eq_quick_scale_chunk(float *number, float *power, int32_t *scale, int lanes, int k) {
    eq_quick_ints high = {0}, low = {0}, zero = {0};
    high += 0x800000;
    low += 0x7f000000;
    for (int p = 0; p < k; p++) {
        eq_quick_ints e = *(eq_quick_ints *)(power + p * lanes), some = EQ_MMA_PICK(e == 0, zero + 0x7f000000, e);
        high = EQ_MMA_PICK(e > high, e, high);
        low = EQ_MMA_PICK(some < low, some, low);
    }
    eq_quick_ints field = high >> 23, wrong = (high >= 0x7f000000) | (low + (EQ_QUICK_SPREAD << 23) < high);
    eq_quick_floats down = (eq_quick_floats)((254 - field) << 23);
    *(eq_quick_ints *)scale = field - 127;
    for (int p = 0; p < k; p++) {
        *(eq_quick_floats *)(number + p * lanes) *= down;
        *(eq_quick_floats *)(power + p * lanes) *= down;
    }
    int32_t any = 0;
    for (int j = 0; j < EQ_QUICK_CHUNK; j++) any |= wrong[j];
    return !any;
}
/* The same for a single line. */
static inline int eq_quick_scale_line(float *number, float *power, int32_t *scale, int k) {
    int32_t high = 0x800000, low = 0x7f000000;
    for (int p = 0; p < k; p++) {
        int32_t e = (int32_t)eq_bits(power[p]), some = e ? e : 0x7f000000;
        high = e > high ? e : high;
        low = some < low ? some : low;
    }
    float down = eq_float((uint32_t)(254 - (high >> 23)) << 23);
    *scale = (high >> 23) - 127;
    for (int p = 0; p < k; p++) number[p] *= down, power[p] *= down;
    return high < 0x7f000000 && low + (EQ_QUICK_SPREAD << 23) >= high;
}
static inline int eq_quick_scale(eq_quick_side s, int lines, int lanes, int k) {
    int narrow = 1, chunk = lanes == 1 ? 1 : EQ_QUICK_CHUNK;
    for (int first = 0; narrow && first < lines; first += chunk) {
        size_t at = (size_t)(first / lanes) * lanes * k + first % lanes;
        narrow = lanes == 1 ? eq_quick_scale_line(s.number + at, s.power + at, s.scale + first, k)
                            : eq_quick_scale_chunk(s.number + at, s.power + at, s.scale + first, lanes, k);
    }
    return narrow;
}

/* One fused sum for EQ_MMA_LANES outputs: y's numbers are vectors, x's scalars that lie `xs` apart; c in and out. */
static inline __attribute__((always_inline)) void eq_quick_steps(const eq_mma *v, int step, const float *xn, const float *xp, int xs,
                                                                 const float *yn, const float *yp, eq_mma_lanes scale, uint32_t *c) {
    int left = v->align > v->c.fraction ? v->align - v->c.fraction : 0;
    int right = v->align < v->c.fraction ? v->c.fraction - v->align : 0;
    eq_mma_lanes highest = {0}, other = {0}, cs, ce, cut, zero = {0};
    for (int l = 0; l < step; l += 2) { /* two chains, because each step waits for the one before */
        eq_mma_floats even = *(const eq_mma_floats *)(yp + l * EQ_MMA_LANES) * xp[l * xs];
        eq_mma_floats odd = *(const eq_mma_floats *)(yp + (l + 1) * EQ_MMA_LANES) * xp[(l + 1) * xs];
        highest = EQ_MMA_MAX(highest, (eq_mma_lanes)even);
        other = EQ_MMA_MAX(other, (eq_mma_lanes)odd);
    }
    highest = EQ_MMA_MAX(highest, other);
    eq_mma_addend(v, c, &cs, &ce);
    eq_mma_lanes largest = EQ_MMA_PICK(highest == 0, zero + EQ_MMA_NONE, (highest >> 23) - 127 + scale);
    largest = EQ_MMA_MAX(EQ_MMA_MAX(largest, zero + v->zero_exponent), ce);
    cs <<= left;
    EQ_MMA_CUT(cut, cs, largest - ce + right);
    /* Products are below 4, so that with 2^-5 nothing is left of them; and where the bound above matters they are zeros. */
    eq_mma_lanes up = v->align - largest + scale;
    up = EQ_MMA_MAX(up, zero - 5);
    up = EQ_MMA_PICK(up < 127, up, zero + 127);
    eq_mma_floats factor = (eq_mma_floats)((up + 127) << 23);
    eq_mma_doubles total = __builtin_convertvector(cut, eq_mma_doubles);
    for (int start = 0; start < step; start += 16) {
        int end = start + 16 < step ? start + 16 : step;
        eq_mma_lanes sum = {0};
        for (int l = start; l < end; l++)
            sum += __builtin_convertvector(*(const eq_mma_floats *)(yn + l * EQ_MMA_LANES) * xn[l * xs] * factor, eq_mma_lanes);
        total += __builtin_convertvector(sum, eq_mma_doubles);
    }
    eq_mma_round(v, &total, &largest, c);
}

static inline void eq_quick_sum(const eq_mma *v, const float *xn, const float *xp, int xs, const float *yn, const float *yp, eq_mma_lanes scale,
                                uint32_t *c) {
    if (v->step == 16) eq_quick_steps(v, 16, xn, xp, xs, yn, yp, scale, c); /* so that the compiler unrolls it */
    else eq_quick_steps(v, v->step, xn, xp, xs, yn, yp, scale, c);
}

static inline int eq_quick_possible(const eq_mma *v) {
    return v->group == 1 && !v->scale_block && v->a.subnormals && v->b.subnormals && v->step % 2 == 0;
}

/* D for a panel's width and x's m lines, which lie in panels of `xs`; `acc` [m][EQ_MMA_LANES] holds C and becomes D. */
static inline void eq_quick_panel(const eq_mma *v, int m, int k, eq_quick_side x, int xs, eq_quick_side y, uint32_t *acc) {
    for (int i = 0; i < m; i++) {
        uint32_t *c = acc + i * EQ_MMA_LANES, held[EQ_MMA_LANES];
        eq_mma_lanes scale = *(const eq_mma_lanes *)y.scale + x.scale[i];
        size_t line = (size_t)(i / xs) * xs * k + i % xs;
        for (int p = 0; p < k; p += v->step) {
            size_t at = line + (size_t)p * xs, to = (size_t)p * EQ_MMA_LANES;
            if (v->unpacked && p % v->k == 0) {
                memcpy(held, c, sizeof held);
                memset(c, 0, sizeof held);
            }
            eq_quick_sum(v, x.number + at, x.power + at, xs, y.number + to, y.power + to, scale, c);
            if (v->unpacked && (p + v->step) % v->k == 0) EQ_MMA_LANE c[j] = eq_mma_add(v, held[j], c[j]);
        }
    }
}

#endif
