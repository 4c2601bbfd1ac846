/* TensorMap maps in the hardware's 128-byte layout, and how a box of a tensor lies in shared memory.
 *
 * The layout is the one that ptxas compiles tensormap.replace for sm_90a to (equiv.emulator.tensormap has it in words). */
#ifndef EQUIV_TENSORMAP_H
#define EQUIV_TENSORMAP_H

#include "runtime.h"

typedef enum {
    ELEMENT_U8, ELEMENT_U16, ELEMENT_U32, ELEMENT_S32, ELEMENT_U64, ELEMENT_S64, ELEMENT_F16, ELEMENT_F32, ELEMENT_F32_FTZ,
    ELEMENT_F64, ELEMENT_BF16
} Element;
typedef enum { REDUCE_MOVE, REDUCE_ADD, REDUCE_MIN, REDUCE_MAX, REDUCE_INC, REDUCE_DEC, REDUCE_AND, REDUCE_OR, REDUCE_XOR } Reduction;

#define MAX_ROW 4096

static inline uint32_t element_bytes(uint32_t type) {
    static const uint8_t bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2};
    return bytes[type];
}

/* dim: elements; stride: bytes; step: elements between those taken; extent: elements of a box in shared memory; pitch: bytes
 * between its rows there, which with a swizzle is the swizzle's span however short they are (measured). */
typedef struct {
    uint64_t base;
    uint32_t rank, type, bytes, interleave, swizzle, nan_fill;
    uint64_t dim[5], stride[5];
    uint32_t step[5], extent[5], pitch;
} TensorMap;

/* Why a tensor map cannot be used: 0 nothing, 1 its element type, 2 interleaved, 3 base or strides no multiples of 16,
 * 4 a row of the box no multiple of 16 bytes, 5 rank is not that of the instruction, 6 a row longer than the swizzle,
 * 11 it rounds to tf32, 12 NaN fill of integers (an illegal instruction on an H200). */
static inline uint32_t map_decode(const uint8_t *map, uint32_t rank, TensorMap *t) {
    uint32_t word[32];
    memcpy(word, map, 128);
    memset(t, 0, sizeof *t);
    t->base = word[0] | (uint64_t)word[1] << 32;
    t->rank = (word[2] >> 4 & 7) + 1;
    t->type = word[2] >> 7 & 15;
    t->interleave = word[2] >> 11 & 3;
    t->swizzle = word[2] >> 13 & 3;
    t->nan_fill = word[2] >> 15 & 1;
    if (t->rank != rank) return 5;
    if (t->type > ELEMENT_BF16) return 1;
    if (word[2] >> 16 & 1) return 11;
    if (t->nan_fill && t->type < ELEMENT_F16) return 12;
    if (t->interleave) return 2;
    t->bytes = element_bytes(t->type);
    for (uint32_t d = 0; d < rank; d++) {
        uint32_t box = (d ? word[14] >> 8 * (d - 1) : word[13] >> 24) & 0xff;
        t->dim[d] = (uint64_t)word[8 + d] + 1;
        t->step[d] = d ? (word[13] >> 3 * d & 7) + 1 : 1; /* of dimension 0 it counts only in interleaved layouts */
        t->extent[d] = (box + t->step[d]) / t->step[d];
        t->stride[d] = d ? ((uint64_t)word[2 + d] | (uint64_t)(word[7] >> 4 * (d - 1) & 15) << 32) << 4 : t->bytes;
    }
    t->pitch = t->swizzle ? 16u << t->swizzle : t->extent[0] * t->bytes;
    if (t->base & 15) return 3;
    if (t->extent[0] * t->bytes % 16) return 4;
    if (t->swizzle && t->extent[0] * t->bytes > 16u << t->swizzle) return 6;
    return 0;
}

static inline uint32_t map_box_bytes(const TensorMap *t) {
    uint32_t n = t->bytes;
    for (uint32_t d = 0; d < t->rank; d++) n *= t->extent[d];
    return n;
}

/* Bytes of shared memory from the first to behind the last of a box. */
static inline uint32_t map_shared_bytes(const TensorMap *t) {
    uint32_t row = t->extent[0] * t->bytes;
    return (map_box_bytes(t) / row - 1) * t->pitch + row;
}

/* Address bits 4 to 6 (5, 4) are changed by bits 7 to 9 (8, 7): the pattern is anchored in the address, not in the box. */
static inline uint64_t map_swizzle(uint32_t swizzle, uint64_t address) {
    uint64_t mask = (1u << swizzle) - 1;
    return address ^ ((address >> 7 & mask) << 4);
}

/* Moves row `row` of a box between `bytes` and shared memory at `box` (`write`: to it), 16 bytes at a time. */
static inline void map_row(const TensorMap *t, uint8_t *box, uint32_t row, uint8_t *bytes, int write) {
    for (uint32_t i = 0; i < t->extent[0] * t->bytes; i += 16) {
        uint8_t *at = (uint8_t *)map_swizzle(t->swizzle, (uint64_t)(uintptr_t)box + (uint64_t)row * t->pitch + i);
        if (write) memcpy(at, bytes + i, 16);
        else memcpy(bytes + i, at, 16);
    }
}

/* What elements outside the tensor are filled with; the NaN of all float types is 0x7ff7 over and over (measured). */
static inline void map_fill(const TensorMap *t, uint8_t *bytes, uint32_t size) {
    memset(bytes, 0, size);
    if (!t->nan_fill || t->type < ELEMENT_F16) return;
    for (uint32_t i = 0; i < size; i += 2) memcpy(bytes + i, &(uint16_t){0x7ff7}, 2);
}

typedef enum {
    FIELD_GLOBAL_ADDRESS, FIELD_RANK, FIELD_BOX_DIM, FIELD_GLOBAL_DIM, FIELD_GLOBAL_STRIDE, FIELD_ELEMENT_STRIDE, FIELD_ELEMTYPE,
    FIELD_INTERLEAVE_LAYOUT, FIELD_SWIZZLE_MODE, FIELD_FILL_MODE
} MapField;

/* `value` into the bits of `mask` of the word at byte `at`. */
static inline void map_bits(uint8_t *map, uint32_t at, uint32_t mask, uint32_t value) {
    uint32_t word;
    memcpy(&word, map + at, 4);
    word = (word & ~mask) | (value & mask);
    memcpy(map + at, &word, 4);
}

/* tensormap.replace: the same stores that ptxas makes of it. `d`: dimension, for the fields that have one each. Not inlined:
 * gcc 12.2 makes scatters with 32-bit addresses of it when it vectorises over lanes. */
COLD void map_replace(uint8_t *map, MapField field, uint32_t d, uint64_t value) {
    uint32_t low = (uint32_t)value;
    switch (field) {
    case FIELD_GLOBAL_ADDRESS: memcpy(map, &value, 8); break;
    case FIELD_RANK: map_bits(map, 8, 0x70, low << 4); break;
    case FIELD_BOX_DIM: map[0x37 + d] = (uint8_t)(low - 1); break;
    case FIELD_GLOBAL_DIM: map_bits(map, 0x20 + 4 * d, ~0u, low - 1); break;
    case FIELD_GLOBAL_STRIDE:
        map_bits(map, 0xc + 4 * d, ~0u, (uint32_t)(value >> 4));
        map_bits(map, 0x1c, 15u << 4 * d, (uint32_t)(value >> 36) << 4 * d);
        break;
    case FIELD_ELEMENT_STRIDE: map_bits(map, 0x34, 7u << 3 * d, (low - 1) << 3 * d); break;
    case FIELD_ELEMTYPE: /* tf32 and tf32.ftz are f32 and f32.ftz with a bit that says to round */
        if (low >= 11) map_bits(map, 8, 1u << 16, ~0u);
        map_bits(map, 8, 15u << 7, (low >= 11 ? low - 4 : low) << 7);
        break;
    case FIELD_INTERLEAVE_LAYOUT: map_bits(map, 8, 3u << 11, low << 11); break;
    case FIELD_SWIZZLE_MODE: map_bits(map, 8, 3u << 13 | 1u << 22, low << 13); break;
    case FIELD_FILL_MODE: map_bits(map, 8, 1u << 15, low << 15); break;
    }
}

#endif
