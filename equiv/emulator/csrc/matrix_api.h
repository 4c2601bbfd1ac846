/* What instruction handlers see of the matrix unit (matrix.c). It is a library of its own, built when a kernel first needs
 * it, because its code is large and handlers are small; handlers reach it through `Launch.matrix`. */
#ifndef EQUIV_MATRIX_API_H
#define EQUIV_MATRIX_API_H

#include "memory.h"

/* In the order of equiv.emulator.matrix_problems.PROBLEMS; `size` and `address` of the fault fill the text. */
typedef enum {
    PROBLEM_LANES, PROBLEM_UNIFORM, PROBLEM_WARPGROUP, PROBLEM_NEGATE, PROBLEM_DESCRIPTOR_BITS, PROBLEM_BASE_OFFSET,
    PROBLEM_SWIZZLE, PROBLEM_INSTRUCTION_BITS, PROBLEM_TYPES, PROBLEM_SHAPE, PROBLEM_MEMORY, PROBLEM_COLUMNS,
    PROBLEM_RELINQUISHED, PROBLEM_NOT_ALLOCATED, PROBLEM_DEALLOC, PROBLEM_LANE_ACCESS, PROBLEM_LEAK, PROBLEM_SCALES,
    PROBLEM_SCALE_ID, PROBLEM_PACKED_OPERAND, PROBLEM_PAIR, PROBLEM_TRANSPOSED, PROBLEM_UNWRITTEN
} Problem;

/* One wgmma: a_fragment or a descriptor; flags are 0 or 1. */
typedef struct {
    uint32_t model, n, accumulate, negate_a, negate_b, a_transposed, b_transposed;
    const uint32_t *const *a_fragment;
    uint64_t a, b;
} Wgmma;

/* One tcgen05.mma. kind: index of TENSOR_KINDS; block: k that share a scale, 0 without scales; skip: lanes not written;
 * pair: CTAs, 1 or 2. */
typedef struct {
    uint32_t kind, block, d, instruction, a_in_tensor, accumulate, scale_a, scale_b, pair;
    uint64_t a, b;
    const uint32_t *skip;
} TensorMma;

/* tcgen05.ld and .st: rows a warp, bits a row (of 16x32bx2: 0); packed: two 16-bit columns a register. */
typedef struct { uint32_t rows, bits, count, packed, address, split; } TensorMove;

/* tcgen05.cp. spread: 0 row r to lane r; 4 32 rows to all four quarters of the lanes; 2 64 rows, the first 32 to quarters 0
 * and 2, the others to 1 and 3; 1 the first 32 to quarters 0 and 1. pair: CTAs, 1 or 2. */
typedef struct { uint64_t descriptor; uint32_t address, rows, bits, spread, pair; } TensorCopy;

typedef struct Matrix {
    int (*mma)(Warp *, const Op *, uint32_t model, uint32_t *const *d, const uint32_t *const *a, const uint32_t *const *b,
               const uint32_t *const *c);
    int (*wgmma)(Warp *, const Op *, const Wgmma *, uint32_t *const *d);
    int (*wgmma_land)(Warp *, uint32_t keep);
    int (*tensor_alloc)(Warp *, const Op *, Addresses *to, uint32_t columns);
    int (*tensor_dealloc)(Warp *, const Op *, uint32_t address, uint32_t columns);
    int (*tensor_relinquish)(Warp *, const Op *);
    int (*tensor_load)(Warp *, const Op *, const TensorMove *, uint32_t *const *d);
    int (*tensor_store)(Warp *, const Op *, const TensorMove *, const uint32_t *const *s);
    int (*tensor_copy)(Warp *, const Op *, uint32_t lane, const TensorCopy *);
    int (*tensor_mma)(Warp *, const Op *, uint32_t lane, const TensorMma *);
} Matrix;

static inline int matrix_fault(Warp *w, const Op *o, uint32_t lane, Problem what, uint64_t value, uint32_t other) {
    return fault(w, o, FAULT_MATRIX, lane, value, other, what);
}

/* The instruction needs a whole warp. Lanes that have exited never come, so waiting for them would not help. */
static inline int whole_warp(Warp *w, const Op *o, uint32_t m) {
    return m == FULL ? NEXT : matrix_fault(w, o, (uint32_t)__builtin_ctz(m), PROBLEM_LANES, ~m, 0);
}

/* Operands that must be the same in every lane. */
static inline int uniform32(Warp *w, const Op *o, const uint32_t *x) {
    uint32_t differ = 0;
    LANES(l) differ |= x[l] ^ x[0];
    return differ ? matrix_fault(w, o, 0, PROBLEM_UNIFORM, differ, 0) : NEXT;
}
static inline int uniform64(Warp *w, const Op *o, const uint64_t *x) {
    uint64_t differ = 0;
    LANES(l) differ |= x[l] ^ x[0];
    return differ ? matrix_fault(w, o, 0, PROBLEM_UNIFORM, differ, 0) : NEXT;
}

#endif
