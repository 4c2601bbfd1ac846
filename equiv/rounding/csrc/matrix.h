/* Matrix instructions of NVIDIA GPUs exact to the bit; the C twin of equiv/rounding/matrix.py, tested against it.
 *
 * eq_mma_block computes D = A B + C as a chain of instructions over K. Its `eq_mma` comes from the table in
 * equiv/rounding/matrix_table.py (equiv/rounding/matrix_native.py converts it), so nothing here knows an instruction's
 * name. Operands are decoded once, into integer significands and exponents; NaN and Inf are left to a scalar afterthought.
 * The host must be in its default floating-point mode. */
#ifndef EQUIV_MATRIX_H
#define EQUIV_MATRIX_H

#include "matrix_quick.h"

static inline uint32_t eq_mma_load(const void *at, ptrdiff_t index, int bytes) {
    return bytes == 1 ? ((const uint8_t *)at)[index] : bytes == 2 ? ((const uint16_t *)at)[index] : ((const uint32_t *)at)[index];
}
static inline eq_mma_part eq_mma_split(uint32_t code, const eq_mma_format *f) {
    uint32_t magnitude = code & f->magnitude, negative = (code & f->sign) != 0;
    eq_mma_part part = {0, EQ_MMA_NONE, 0};
    if (magnitude >= f->nan_from) { part.class = EQ_MMA_NAN; return part; }
    if (magnitude == f->infinity) { part.class = negative ? EQ_MMA_MINUS : EQ_MMA_PLUS; return part; }
    int32_t field = (int32_t)(magnitude >> f->fraction), normal = !f->subnormals || field > 0;
    int32_t significand = (int32_t)(magnitude & ((1u << f->fraction) - 1)) | normal << f->fraction;
    if (significand == 0) return part;
    part.significand = negative ? -significand : significand;
    part.exponent = (normal ? field : 1) - f->bias;
    return part;
}
/* An 8-bit operand as the F16 it is unpacked to: 10 fraction bits, normalised down to exponent -14. */
static inline eq_mma_part eq_mma_unpack(eq_mma_part part, int fraction) {
    if (part.significand == 0) return part;
    part.significand *= 1 << (10 - fraction);
    while (part.significand > -1024 && part.significand < 1024 && part.exponent > -14) {
        part.significand *= 2;
        part.exponent--;
    }
    return part;
}

/* Decoded operands: A by row, B by panel of EQ_MMA_LANES columns, both with k in the order of the sums. `flags` says
 * which rows and columns hold NaN or Inf. In a grouped variant `scales` holds the scales of the groups. */
typedef struct { int32_t *significand, *exponent; uint8_t *class, *flags; int32_t *scale, *scale_exponent; } eq_mma_side;

typedef struct { const eq_mma_format *format; eq_mma_in at, scales; int lines, lanes, flip, shift; } eq_mma_source;

/* Decodes one operand; element (line, k) is at.rows along lines and at.columns along k. */
static inline void eq_mma_decode(const eq_mma *v, eq_mma_source s, int k, eq_mma_side *out) {
    int lanes = s.lanes, padded = (s.lines + lanes - 1) / lanes * lanes, groups = k / v->group;
    for (int line = 0; line < padded; line++) {
        size_t base = (size_t)(line / lanes) * lanes * k + line % lanes;
        size_t scale_base = (size_t)(line / lanes) * lanes * groups + line % lanes;
        out->flags[line] = 0;
        for (int p = 0; p < k; p++) {
            int source = p / v->k * v->k + v->order[p % v->k];
            eq_mma_part part = {0, EQ_MMA_NONE, 0}, scale = {1, 0, 0};
            if (line < s.lines) {
                ptrdiff_t index = line * s.at.rows + source * s.at.columns;
                part = eq_mma_split(eq_mma_load(s.at.at, index, s.format->bytes) >> v->dropped, s.format);
                if (v->unpacked) part = eq_mma_unpack(part, s.format->fraction);
                if (v->scale_block) {
                    index = line * s.scales.rows + source / v->scale_block * s.scales.columns;
                    scale = eq_mma_split(eq_mma_load(s.scales.at, index, v->scale.bytes), &v->scale);
                    part.class |= scale.class;
                }
                if (s.flip) {
                    part.significand = -part.significand;
                    if (part.class & (EQ_MMA_PLUS | EQ_MMA_MINUS)) part.class ^= EQ_MMA_PLUS | EQ_MMA_MINUS;
                }
            }
            size_t at = base + (size_t)p * lanes;
            out->class[at] = (uint8_t)part.class;
            out->flags[line] |= (uint8_t)part.class;
            if (v->group > 1) { /* a group's products are added as integers; its exponent is that of the scales */
                int emin = 1 - s.format->bias;
                out->significand[at] = part.significand * (part.significand ? 1 << (part.exponent - emin) : 1);
                size_t scale_at = scale_base + (size_t)(p / v->group) * lanes;
                out->scale[scale_at] = scale.significand;
                out->scale_exponent[scale_at] = scale.significand ? scale.exponent : EQ_MMA_NONE;
            } else {
                out->significand[at] = part.significand * (1 << s.shift);
                out->exponent[at] = part.significand ? part.exponent + (v->scale_block ? scale.exponent : 0) : EQ_MMA_NONE;
            }
        }
    }
}

/* One fused sum of `step` products for EQ_MMA_LANES columns of a row; c in and out. 16 products stay below 2^31. */
static inline void eq_mma_sum(const eq_mma *v, const int32_t *as, const int32_t *ae, const int32_t *bs, const int32_t *be, uint32_t *c) {
    int step = v->step, left = v->align > v->c.fraction ? v->align - v->c.fraction : 0;
    int right = v->align < v->c.fraction ? v->c.fraction - v->align : 0;
    eq_mma_lanes largest = {0}, cs, ce, cut;
    largest += v->zero_exponent;
    for (int l = 0; l < step; l++) {
        eq_mma_lanes e = *(const eq_mma_lanes *)(be + l * EQ_MMA_LANES) + ae[l];
        largest = EQ_MMA_PICK(e > largest, e, largest);
    }
    eq_mma_addend(v, c, &cs, &ce);
    largest = EQ_MMA_PICK(ce > largest, ce, largest);
    cs <<= left;
    EQ_MMA_CUT(cut, cs, largest - ce + right);
    eq_mma_doubles total = __builtin_convertvector(cut, eq_mma_doubles);
    for (int start = 0; start < step; start += 16) {
        int end = start + 16 < step ? start + 16 : step;
        eq_mma_lanes sum = {0};
        for (int l = start; l < end; l++) {
            eq_mma_lanes product = *(const eq_mma_lanes *)(bs + l * EQ_MMA_LANES) * as[l];
            EQ_MMA_CUT(cut, product, largest - ae[l] - *(const eq_mma_lanes *)(be + l * EQ_MMA_LANES));
            sum += cut;
        }
        total += __builtin_convertvector(sum, eq_mma_doubles);
    }
    eq_mma_round(v, &total, &largest, c);
}

/* The same for variants whose products are added exactly in groups; s and e are the scales of the groups. */
static inline void eq_mma_grouped_sum(const eq_mma *v, const int32_t *as, const int32_t *bs, const int32_t *ss, const int32_t *se,
                                      const int32_t *ts, const int32_t *te, uint32_t *c) {
    int groups = v->step / v->group;
    int fraction = v->a.fraction + v->b.fraction + v->a.bias + v->b.bias - 2 + 2 * v->scale.fraction;
    eq_mma_lanes largest = {0}, dot[4], exponent[4], cs, ce;
    eq_mma_doubles total;
    largest += v->zero_exponent;
    eq_mma_addend(v, c, &cs, &ce);
    largest = EQ_MMA_PICK(ce > largest, ce, largest);
    for (int g = 0; g < groups; g++) {
        eq_mma_lanes sum = {0}, counts = {0};
        for (int l = g * v->group; l < (g + 1) * v->group; l++) {
            eq_mma_lanes product = *(const eq_mma_lanes *)(bs + l * EQ_MMA_LANES) * as[l];
            sum += product;
            counts |= product;
        }
        eq_mma_lanes e = *(const eq_mma_lanes *)(te + g * EQ_MMA_LANES) + se[g];
        exponent[g] = EQ_MMA_PICK(counts != 0, e, (eq_mma_lanes){0} + EQ_MMA_NONE);
        dot[g] = sum * ss[g] * *(const eq_mma_lanes *)(ts + g * EQ_MMA_LANES);
        largest = EQ_MMA_PICK(exponent[g] > largest, exponent[g], largest);
    }
    EQ_MMA_LANE {
        int32_t away = largest[j] - ce[j];
        total[j] = trunc(cs[j] * eq_mma_power(v->align - v->c.fraction - (away < 900 ? away : 900)));
    }
    for (int g = 0; g < groups; g++)
        EQ_MMA_LANE {
            int32_t away = largest[j] - exponent[g][j];
            total[j] += trunc(dot[g][j] * eq_mma_power(v->align - fraction - (away < 900 ? away : 900)));
        }
    eq_mma_round(v, &total, &largest, c);
}

/* What NaN and Inf among the operands make of one output: 0 nothing, else its class. c is the addend. */
static inline uint32_t eq_mma_special(const eq_mma *v, const int32_t *as, const uint8_t *ac, const int32_t *bs, const uint8_t *bc,
                                      uint32_t c, int j) {
    uint32_t seen = eq_mma_split(c, &v->c).class;
    for (int l = 0; l < v->step; l++) {
        int at = l * EQ_MMA_LANES + j;
        uint32_t x = ac[l], y = bc[at];
        if (!(x | y)) continue;
        int sx = x & EQ_MMA_PLUS ? 1 : x & EQ_MMA_MINUS ? -1 : (as[l] > 0) - (as[l] < 0);
        int sy = y & EQ_MMA_PLUS ? 1 : y & EQ_MMA_MINUS ? -1 : (bs[at] > 0) - (bs[at] < 0);
        int sign = sx * sy;
        seen |= (x | y) & EQ_MMA_NAN || sign == 0 ? EQ_MMA_NAN : sign > 0 ? EQ_MMA_PLUS : EQ_MMA_MINUS;
    }
    return (seen & (EQ_MMA_PLUS | EQ_MMA_MINUS)) == (EQ_MMA_PLUS | EQ_MMA_MINUS) ? EQ_MMA_NAN : seen;
}
static inline uint32_t eq_mma_code(const eq_mma *v, uint32_t seen, uint32_t otherwise) {
    if (seen & EQ_MMA_NAN) return v->c.nan;
    return seen == 0 ? otherwise : v->c.infinity | (seen & EQ_MMA_MINUS ? v->c.sign : 0);
}

static inline int eq_mma_allocate(eq_mma_side *side, int lines, int k, int groups, char **memory) {
    size_t count = (size_t)lines * k, scales = (size_t)lines * groups;
    *memory = (char *)malloc(count * 9 + scales * 8 + (size_t)lines + 64);
    if (!*memory) return -1;
    side->significand = (int32_t *)*memory;
    side->exponent = side->significand + count;
    side->scale = side->exponent + count;
    side->scale_exponent = side->scale + scales;
    side->class = (uint8_t *)(side->scale_exponent + scales);
    side->flags = side->class + count;
    return 0;
}

/* One operand for matrix_quick.h: codes in the order of the sums, widened and scaled. Returns whether that is possible. */
static inline int eq_mma_quick_side(const eq_mma *v, eq_mma_source s, int k, int lanes, uint32_t *code, eq_quick_side out) {
    int padded = (s.lines + lanes - 1) / lanes * lanes;
    for (int first = 0; first < padded; first += lanes)
        for (int p = 0; p < k; p++) {
            ptrdiff_t along = (p / v->k * v->k + v->order[p % v->k]) * s.at.columns;
            for (int j = 0; j < lanes; j++) {
                int line = first + j;
                *code++ = line < s.lines ? eq_mma_load(s.at.at, line * s.at.rows + along, s.format->bytes) : 0;
            }
        }
    size_t count = (size_t)padded * k;
    return !eq_quick_widen(v, s.format, (uint32_t)s.flip, code - count, (int)count, out.number, out.power) &&
           eq_quick_scale(out, padded, lanes, k);
}

/* D by matrix_quick.h. Returns 1, 0 if it must be computed otherwise, or -1 when out of memory. */
static inline int eq_mma_quick_block(const eq_mma *v, int m, int n, int k, eq_mma_source left, eq_mma_source right, eq_mma_in c, eq_mma_out d) {
    const int lanes = EQ_MMA_LANES;
    if (!eq_quick_possible(v)) return 0;
    int panels = (n + lanes - 1) / lanes, padded = panels * lanes;
    size_t count = (size_t)(m > padded ? m : padded) * k, most = 5 * count + (size_t)m + padded + (size_t)m * lanes;
    uint32_t *memory = malloc(most * 4), *code = memory, *acc = code + count;
    if (!memory) return -1;
    float *numbers = (float *)(acc + (size_t)m * lanes);
    eq_quick_side x = {numbers, numbers + count, (int32_t *)(numbers + 4 * count)};
    eq_quick_side y = {numbers + 2 * count, numbers + 3 * count, x.scale + m};
    int possible = eq_mma_quick_side(v, left, k, 1, code, x) && eq_mma_quick_side(v, right, k, lanes, code, y);
    for (int panel = 0; possible && panel < panels; panel++) {
        int first = panel * lanes, width = n - first < lanes ? n - first : lanes;
        memset(acc, 0, (size_t)m * lanes * 4);
        for (int i = 0; c.at && i < m; i++)
            for (int j = 0; j < width; j++) acc[i * lanes + j] = eq_mma_load(c.at, i * c.rows + (first + j) * c.columns, v->c.bytes);
        eq_quick_side part = {y.number + (size_t)first * k, y.power + (size_t)first * k, y.scale + first};
        eq_quick_panel(v, m, k, x, 1, part, acc);
        for (int i = 0; i < m; i++)
            for (int j = 0; j < width; j++) {
                ptrdiff_t index = i * d.rows + (first + j) * d.columns;
                if (v->c.bytes == 2) ((uint16_t *)d.at)[index] = (uint16_t)acc[i * lanes + j];
                else ((uint32_t *)d.at)[index] = acc[i * lanes + j];
            }
    }
    free(memory);
    return possible;
}

/* D [m, n] = A [m, k] B [k, n] + C [m, n], k a multiple of v->k. C may be D; C at NULL is zero. `negate`: one of A and B is
 * negated. Scales: one for scale_block k of a row of A (column of B); not read without scales. Returns 0, or -1 when out of memory. */
static inline int eq_mma_block(const eq_mma *v, int m, int n, int k, eq_mma_in a, eq_mma_in b, eq_mma_in c, eq_mma_out d, int negate,
                               eq_mma_in scale_a, eq_mma_in scale_b) {
    const int lanes = EQ_MMA_LANES;
    int shift = v->align - (v->unpacked ? 20 : v->a.fraction + v->b.fraction), groups = k / v->group;
    eq_mma_source left = {&v->a, a, scale_a, m, 1, negate, shift};
    /* B's lines are its columns. */
    eq_mma_source right = {&v->b, {b.at, b.columns, b.rows}, {scale_b.at, scale_b.columns, scale_b.rows}, n, lanes, 0, 0};
    if (n < lanes && m > n) { /* D transposed fills the lanes better */
        eq_mma_source other = left;
        left = right, right = other;
        left.lanes = 1, right.lanes = lanes;
        eq_mma_in cc = {c.at, c.columns, c.rows};
        eq_mma_out dd = {d.at, d.columns, d.rows};
        c = cc, d = dd;
        m = left.lines, n = right.lines;
    }
    int quick = eq_mma_quick_block(v, m, n, k, left, right, c, d);
    if (quick) return quick < 0 ? -1 : 0;
    int panels = (n + lanes - 1) / lanes;
    char *memory[2] = {0, 0};
    eq_mma_side x, y;
    if (eq_mma_allocate(&x, m, k, groups, &memory[0]) || eq_mma_allocate(&y, panels * lanes, k, groups, &memory[1])) {
        free(memory[0]);
        return -1;
    }
    eq_mma_decode(v, left, k, &x);
    eq_mma_decode(v, right, k, &y);
    for (int panel = 0; panel < panels; panel++) {
        size_t base = (size_t)panel * lanes * k, scale_base = (size_t)panel * lanes * groups;
        int width = n - panel * lanes < lanes ? n - panel * lanes : lanes;
        int special = 0;
        for (int j = 0; j < width; j++) special |= y.flags[panel * lanes + j];
        for (int i = 0; i < m; i++) {
            uint32_t acc[EQ_MMA_LANES] = {0}, held[EQ_MMA_LANES] = {0}, before[EQ_MMA_LANES];
            if (c.at)
                for (int j = 0; j < width; j++)
                    acc[j] = eq_mma_load(c.at, i * c.rows + (panel * lanes + j) * c.columns, v->c.bytes);
            for (int p = 0; p < k; p += v->step) {
                size_t at = (size_t)i * k + p, to = base + (size_t)p * lanes;
                if (v->unpacked && p % v->k == 0) {
                    memcpy(held, acc, sizeof acc);
                    memset(acc, 0, sizeof acc);
                }
                memcpy(before, acc, sizeof acc);
                if (v->group > 1) {
                    size_t from = (size_t)i * groups + p / v->group, scales = scale_base + (size_t)(p / v->group) * lanes;
                    eq_mma_grouped_sum(v, x.significand + at, y.significand + to, x.scale + from, x.scale_exponent + from,
                                       y.scale + scales, y.scale_exponent + scales, acc);
                } else {
                    eq_mma_sum(v, x.significand + at, x.exponent + at, y.significand + to, y.exponent + to, acc);
                }
                if (special | x.flags[i])
                    for (int j = 0; j < width; j++) {
                        uint32_t seen = eq_mma_special(v, x.significand + at, x.class + at, y.significand + to, y.class + to, before[j], j);
                        acc[j] = eq_mma_code(v, seen, acc[j]);
                    }
                if (v->unpacked && (p + v->step) % v->k == 0) EQ_MMA_LANE acc[j] = eq_mma_add(v, held[j], acc[j]);
            }
            for (int j = 0; j < width; j++) {
                ptrdiff_t index = i * d.rows + (panel * lanes + j) * d.columns;
                if (v->c.bytes == 2) ((uint16_t *)d.at)[index] = (uint16_t)acc[j];
                else ((uint32_t *)d.at)[index] = acc[j];
            }
        }
    }
    free(memory[0]);
    free(memory[1]);
    return 0;
}

#endif
