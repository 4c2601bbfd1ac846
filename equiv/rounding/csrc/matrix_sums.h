/* What the sums of matrix.h and matrix_quick.h have in common: the variants, addends, and the rounding of a sum. */
#ifndef EQUIV_MATRIX_SUMS_H
#define EQUIV_MATRIX_SUMS_H

#include <stddef.h>
#include <stdlib.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "numerics.h"

/* Outputs of a row computed at a time. */
#if defined(__AVX512F__)
#define EQ_MMA_LANES 16
#elif defined(__AVX2__)
#define EQ_MMA_LANES 8
#else
#define EQ_MMA_LANES 4
#endif
#define EQ_MMA_NONE (-20000) /* exponent of a zero: below every zero_exponent, and twice it still is an int16 */
#define EQ_MMA_LANE for (int j = 0; j < EQ_MMA_LANES; j++)

/* A format by its facts, as equiv.rounding.formats.Format; 0xffffffff where it has no infinity or no NaN. */
typedef struct { uint32_t magnitude, sign, infinity, nan_from, nan; int32_t bytes, fraction, bias, subnormals; } eq_mma_format;

typedef struct {
    eq_mma_format a, b, c, scale;
    int32_t k, step;          /* products of an instruction, and of one fused sum */
    int32_t align, zero_exponent, kept, nearest;
    int32_t dropped, unpacked, scale_block, group; /* scale_block 0: no scales */
    uint8_t order[64];        /* the k of an instruction in the order in which its sums take them */
} eq_mma;

/* Elements [row * rows + column * columns] of `at`, one an element of the format's bytes; strides in elements. */
typedef struct { const void *at; ptrdiff_t rows, columns; } eq_mma_in;
typedef struct { void *at; ptrdiff_t rows, columns; } eq_mma_out;

enum { EQ_MMA_NAN = 1, EQ_MMA_PLUS = 2, EQ_MMA_MINUS = 4 };
typedef struct { int32_t significand, exponent; uint32_t class; } eq_mma_part;

/* EQ_MMA_LANES integers at once, and choices between them: left to itself the compiler vectorises along k, far slower. */
typedef int32_t eq_mma_lanes __attribute__((vector_size(4 * EQ_MMA_LANES), aligned(4), may_alias));
typedef double eq_mma_doubles __attribute__((vector_size(8 * EQ_MMA_LANES), aligned(8)));
#define EQ_MMA_PICK(mask, yes, no) (((yes) & (mask)) | ((no) & ~(mask)))
#if defined(__AVX512F__)
#define EQ_MMA_MAX(x, y) ((eq_mma_lanes)_mm512_max_epi32((__m512i)(x), (__m512i)(y)))
#elif defined(__AVX2__)
#define EQ_MMA_MAX(x, y) ((eq_mma_lanes)_mm256_max_epi32((__m256i)(x), (__m256i)(y)))
#else
#define EQ_MMA_MAX(x, y) EQ_MMA_PICK((x) > (y), x, y)
#endif

/* The addend of a sum: significand with the format's fraction bits, and exponent. */
static inline void eq_mma_addend(const eq_mma *v, const uint32_t *c, eq_mma_lanes *significand, eq_mma_lanes *exponent) {
    int fraction = v->c.fraction;
    eq_mma_lanes code = *(const eq_mma_lanes *)c, magnitude = code & (int32_t)v->c.magnitude, field = magnitude >> fraction;
    eq_mma_lanes normal = field > 0, negative = (code & (int32_t)v->c.sign) != 0;
    eq_mma_lanes s = (magnitude & ((1 << fraction) - 1)) | (normal & (1 << fraction)), zero = s == 0;
    *significand = (s ^ negative) - negative;
    *exponent = EQ_MMA_PICK(zero, (eq_mma_lanes){0} + EQ_MMA_NONE, field - v->c.bias + (~normal & 1));
}

static inline double eq_mma_double(uint64_t bits) { double x; memcpy(&x, &bits, 8); return x; }
static inline uint64_t eq_mma_bits(double x) { uint64_t bits; memcpy(&bits, &x, 8); return bits; }
static inline double eq_mma_power(int exponent) { return eq_mma_double((uint64_t)(exponent + 1023) << 52); }

/* Codes of exact sums (total * 2^(largest - align), a double holds it) rounded once into `c`; a C that is NaN or Inf stays. */
static inline void eq_mma_round(const eq_mma *v, const eq_mma_doubles *sum, const eq_mma_lanes *top, uint32_t *c) {
    uint32_t infinity = v->c.infinity, mask = v->c.magnitude, nan = v->c.nan;
    double total[EQ_MMA_LANES];
    int32_t largest[EQ_MMA_LANES];
    memcpy(total, sum, sizeof total);
    memcpy(largest, top, sizeof largest);
    int align = v->align;
    if (v->nearest) {
        EQ_MMA_LANE {
            double x = total[j] * eq_mma_power(largest[j] - align);
            /* Cut to float32 with the last bit set where something was lost, which nearest even then cannot mistake. */
            uint64_t bits = eq_mma_bits(x), cut = bits & ~(uint64_t)0x1fffffff;
            cut |= cut != bits ? (uint64_t)1 << 29 : 0;
            uint32_t code = eq_cvt_f16_rn(eq_bits((float)eq_mma_double(cut)));
            code = code & 0x7fffu ? code : 0;
            uint32_t magnitude = c[j] & mask;
            c[j] = magnitude > infinity ? nan : magnitude == infinity ? c[j] : code;
        }
        return;
    }
    int kept = v->kept, fraction = v->c.fraction;
    uint64_t lost = ((uint64_t)1 << (52 - kept)) - 1;
    double least = eq_mma_power(1 - v->c.bias), steps = eq_mma_power(kept + v->c.bias - 1);
    EQ_MMA_LANE {
        double x = total[j] * eq_mma_power(largest[j] - align), size = x < 0 ? -x : x;
        uint32_t normal = eq_bits((float)eq_mma_double(eq_mma_bits(size) & ~lost));
        uint32_t subnormal = (uint32_t)(int32_t)((size < least ? size : 0) * steps) << (fraction - kept);
        uint32_t code = size < least ? subnormal : normal;
        code |= x < 0 && code ? EQ_SIGN : 0;
        uint32_t magnitude = c[j] & mask;
        c[j] = magnitude > infinity ? nan : magnitude == infinity ? c[j] : code;
    }
}

/* Magnitudes of signed lanes shifted right by 0 to 31 and more. */
#define EQ_MMA_CUT(cut, value, distance)                                              \
    do {                                                                              \
        eq_mma_lanes sign_ = (value) >> 31, far_ = (distance);                        \
        eq_mma_lanes over_ = far_ > 31;                                               \
        (cut) = ((((value) ^ sign_) - sign_) >> EQ_MMA_PICK(over_, over_ & 31, far_)); \
        (cut) = ((cut) ^ sign_) - sign_;                                              \
    } while (0)

/* C + x to nearest, as the FADD or HADD2 behind an unpacked instruction. */
static inline uint32_t eq_mma_add(const eq_mma *v, uint32_t c, uint32_t x) {
    if (v->c.bytes == 4) return eq_add_rn(c, x);
    return eq_cvt_f16_rn(eq_add_rn(eq_f16_to_f32(c), eq_f16_to_f32(x)));
}

#endif
