/* Tensor memory of a CTA: 128 lanes of 512 columns of 32 bits, allocated by the unit of 32 columns. */
#ifndef EQUIV_TENSOR_STATE_H
#define EQUIV_TENSOR_STATE_H

#include <stdint.h>

#define TENSOR_LANES 128
#define TENSOR_COLUMNS 512
#define TENSOR_UNIT 32
#define TENSOR_UNITS (TENSOR_COLUMNS / TENSOR_UNIT)
#define TENSOR_LEAK 16 /* PROBLEM_LEAK of matrix_api.h */

/* written: a bit for each word that is all ones because somebody wrote that. size: units of the allocation that starts at a unit, else 0. */
struct Tensor {
    uint32_t word[TENSOR_LANES][TENSOR_COLUMNS], written[TENSOR_LANES][TENSOR_UNITS];
    uint8_t size[TENSOR_UNITS], used[TENSOR_UNITS], relinquished;
};

/* The first of `columns` free columns in a row, in units, or TENSOR_UNITS. */
static inline uint32_t tensor_room(const struct Tensor *t, uint32_t columns) {
    uint32_t count = columns / TENSOR_UNIT, room = 0;
    for (uint32_t at = 0; at < TENSOR_UNITS; at++) {
        room = t->used[at] ? 0 : room + 1;
        if (room == count) return at + 1 - count;
    }
    return TENSOR_UNITS;
}

static inline uint32_t tensor_used(const struct Tensor *t) {
    uint32_t columns = 0;
    for (int i = 0; t && i < TENSOR_UNITS; i++) columns += t->used[i] * TENSOR_UNIT;
    return columns;
}

#endif
