/* Conversions from float32 written a second time, on other lines than numerics.h: the significand is shifted by what the
 * exponents say, and what falls off is compared with one half. Only for checking; slower than the twin. */
#ifndef EQUIV_SECOND_H
#define EQUIV_SECOND_H

#include <stdint.h>
#include <string.h>

enum { SECOND_RN, SECOND_RNA, SECOND_RZ, SECOND_RP };
/* A target by the facts of equiv.rounding.formats.Format; `past_end` is the code of what is larger than `largest`. With
 * `keeps` Inf and NaN are cut instead of coded. */
typedef struct { int fraction, emin, subnormals, mode, keeps, shift; uint32_t largest, past_end, nan, sign; } second_format;

static inline uint32_t second_special(uint32_t x, uint32_t code, second_format f) {
    uint32_t field_full = (x & 0x7f800000u) == 0x7f800000u, nan = field_full && (x & 0x7fffffu);
    code = code > f.largest ? f.past_end : code;
    code |= x >> 31 ? f.sign : 0;
    code = nan ? f.nan : code;
    return f.keeps && field_full ? x >> f.shift : code;
}
static inline uint32_t second_float(uint32_t x, second_format f) {
    int32_t field = (int32_t)(x >> 23 & 0xff), e = (field ? field : 1) - 127, lowest = e > f.emin ? e : f.emin;
    uint32_t significand = (x & 0x7fffffu) | (field ? 0x800000u : 0);
    int32_t drop = 23 - f.fraction + lowest - e;
    drop = drop > 26 ? 26 : drop; /* 24 bits: all of it is less than a half then, too */
    uint32_t q = significand >> drop, rest = significand & ((1u << drop) - 1), half = 1u << (drop - 1);
    uint32_t up = f.mode == SECOND_RN ? (rest > half) | ((rest == half) & q)
                : f.mode == SECOND_RNA ? rest >= half : f.mode == SECOND_RP ? rest != 0 : 0;
    /* The leading one of a normal significand is a step of the exponent field. */
    return second_special(x, q + (up & 1) + ((uint32_t)(lowest - f.emin) << f.fraction), f);
}
/* A format of powers of two alone: the exponent of the number as a double, in which no float32 is subnormal. */
static inline uint32_t second_power(uint32_t x, second_format f) {
    float single;
    uint32_t magnitude = x & 0x7fffffffu;
    memcpy(&single, &magnitude, 4);
    double wide = single;
    uint64_t bits;
    memcpy(&bits, &wide, 8);
    int32_t e = (int32_t)(bits >> 52) - 1023 + (f.mode == SECOND_RP && (bits & 0xfffffffffffffu));
    return second_special(x, (uint32_t)(e < f.emin ? 0 : e - f.emin), f);
}
#define SECOND(x, ...) ((second_format)__VA_ARGS__.subnormals ? second_float(x, (second_format)__VA_ARGS__) \
                                                              : second_power(x, (second_format)__VA_ARGS__))
#endif
