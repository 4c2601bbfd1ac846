/* Allocation, loads and stores of tensor memory (spec numerics 1.6). An address is lane << 16 | column. Allocated columns
 * start poisoned. */
#ifndef EQUIV_TENSOR_MEMORY_H
#define EQUIV_TENSOR_MEMORY_H

#include "operands.h"
#include "tensor_state.h"

/* Where there is no room the warp waits for a tcgen05.dealloc by another one and then tries again. */
static int tensor_alloc(Warp *w, const Op *o, Addresses *to, uint32_t columns) {
    Cta *c = w->cta;
    uint32_t count = columns / TENSOR_UNIT;
    if (columns < 32 || columns > 512 || columns & (columns - 1)) return matrix_fault(w, o, 0, PROBLEM_COLUMNS, columns, 0);
    if (!c->tensor && !(c->tensor = calloc(1, sizeof *c->tensor))) return matrix_fault(w, o, 0, PROBLEM_MEMORY, 0, 0);
    struct Tensor *t = c->tensor;
    if (t->relinquished) return matrix_fault(w, o, 0, PROBLEM_RELINQUISHED, columns, 0);
    uint32_t at = tensor_room(t, columns), address = at * TENSOR_UNIT;
    if (at == TENSOR_UNITS)
        return park(w, o, FULL, (uint32_t)(o - w->launch->code), WAIT_TENSOR, columns, TENSOR_COLUMNS - tensor_used(t));
    if (shared_check(w, o, 1, to, 4, 4, 0)) return FAULT;
    memset(t->used + at, 1, count);
    t->size[at] = (uint8_t)count;
    for (uint32_t lane = 0; lane < TENSOR_LANES; lane++) {
        memset(t->word[lane] + at * TENSOR_UNIT, 0xff, columns * 4);
        memset(t->written[lane] + at, 0, count * sizeof **t->written);
    }
    memcpy((void *)to->at[0], &address, 4);
    return NEXT;
}

static int tensor_dealloc(Warp *w, const Op *o, uint32_t address, uint32_t columns) {
    struct Tensor *t = w->cta->tensor;
    uint32_t at = address / TENSOR_UNIT;
    if (!t || address % TENSOR_UNIT || address >= TENSOR_COLUMNS || !t->size[at] || t->size[at] * TENSOR_UNIT != columns)
        return matrix_fault(w, o, 0, PROBLEM_DEALLOC, address, columns);
    memset(t->used + at, 0, t->size[at]);
    t->size[at] = 0;
    return NEXT;
}

static int tensor_relinquish(Warp *w, const Op *o) {
    Cta *c = w->cta;
    if (!c->tensor && !(c->tensor = calloc(1, sizeof *c->tensor))) return matrix_fault(w, o, 0, PROBLEM_MEMORY, 0, 0);
    c->tensor->relinquished = 1;
    return NEXT;
}

/* After a write of a word, and whether one is still as the allocation left it. */
static inline void tensor_mark(struct Tensor *t, uint32_t row, uint32_t column) {
    if (t->word[row][column] == FULL) t->written[row][column / TENSOR_UNIT] |= 1u << column % TENSOR_UNIT;
}
static inline uint32_t tensor_fresh(const struct Tensor *t, uint32_t row, uint32_t column) {
    return t->word[row][column] == FULL && !(t->written[row][column / TENSOR_UNIT] >> column % TENSOR_UNIT & 1);
}

/* A read of `total` words of which `fresh` were never written: a fault if all, a note if some. */
static int tensor_read(Warp *w, const Op *o, uint32_t lane, uint32_t address, uint32_t fresh, uint32_t total) {
    if (!fresh || !w->launch->watch) return NEXT;
    if (fresh == total) return matrix_fault(w, o, lane, PROBLEM_UNWRITTEN, address, total);
    note(w, o, NOTE_TENSOR_UNWRITTEN, lane, address, fresh);
    return NEXT;
}

/* Whether `count` columns from the address's are allocated in a CTA. */
static int tensor_check(Warp *w, const Op *o, uint32_t lane, const Cta *c, uint32_t address, uint32_t count) {
    const struct Tensor *t = c->tensor;
    uint32_t first = address & 0xffff, last = first + count - 1, ok = t && last < TENSOR_COLUMNS && address >> 16 < TENSOR_LANES;
    for (uint32_t unit = first / TENSOR_UNIT; ok && unit <= last / TENSOR_UNIT; unit++) ok = t->used[unit];
    return ok ? NEXT : matrix_fault(w, o, lane, PROBLEM_NOT_ALLOCATED, address, count);
}

/* Where register i of lane l of a 32x32b, 16x64b, 16x128b, 16x256b or 16x32bx2 access lies. */
static inline void tensor_place(const TensorMove *t, uint32_t i, uint32_t l, uint32_t *row, uint32_t *column) {
    uint32_t scale = t->packed ? 2 : 1;
    switch (t->bits) {
    case 0: *row = l % 16, *column = i * scale + (l >= 16 ? t->split : 0); return;
    case 32: *row = l, *column = i * scale; return;
    case 64: *row = l / 4 + 8 * (l % 2), *column = (2 * i + l / 2 % 2) * scale; return;
    case 128: *row = l / 4 + 8 * (i & 1), *column = (4 * (i / 2) + l % 4) * scale; return;
    default: *row = l / 4 + 8 * (i / 2 & 1), *column = (8 * (i / 4) + 2 * (l % 4) + (i & 1)) * scale; return;
    }
}

/* Checks an access of a warp: its own quarter of the lanes, allocated columns. */
static int tensor_access(Warp *w, const Op *o, const TensorMove *t) {
    uint32_t lane = t->address >> 16, per = t->bits == 0 ? 1 : t->bits / 32, scale = t->packed ? 2 : 1;
    uint32_t repeat = t->bits <= 64 ? 1 : t->bits / 64; /* registers for each step of the columns */
    uint32_t columns = t->count / repeat * per * scale;
    if (lane / 32 != w->id % 4 || lane % t->rows) return matrix_fault(w, o, 0, PROBLEM_LANE_ACCESS, t->address, w->id % 4 * 32);
    if (tensor_check(w, o, 0, w->cta, t->address, columns)) return FAULT;
    return t->bits == 0 ? tensor_check(w, o, 0, w->cta, t->address + t->split, columns) : NEXT;
}

static int tensor_load(Warp *w, const Op *o, const TensorMove *t, uint32_t *const *d) {
    if (tensor_access(w, o, t)) return FAULT;
    uint32_t lane = t->address >> 16, first = t->address & 0xffff, fresh = 0;
    for (uint32_t i = 0; i < t->count; i++)
        for (uint32_t l = 0; l < 32; l++) {
            uint32_t row, column;
            tensor_place(t, i, l, &row, &column);
            fresh += tensor_fresh(w->cta->tensor, lane + row, first + column);
            const uint32_t *from = &w->cta->tensor->word[lane + row][first + column];
            d[i][l] = t->packed ? (from[0] & 0xffffu) | from[1] << 16 : from[0];
        }
    return tensor_read(w, o, 0, t->address, fresh, 32 * t->count);
}

static int tensor_store(Warp *w, const Op *o, const TensorMove *t, const uint32_t *const *s) {
    if (tensor_access(w, o, t)) return FAULT;
    uint32_t lane = t->address >> 16, first = t->address & 0xffff;
    for (uint32_t i = 0; i < t->count; i++)
        for (uint32_t l = 0; l < 32; l++) {
            uint32_t row, column;
            tensor_place(t, i, l, &row, &column);
            uint32_t *to = &w->cta->tensor->word[lane + row][first + column];
            if (t->packed) to[0] = s[i][l] & 0xffffu, to[1] = s[i][l] >> 16;
            else to[0] = s[i][l];
            tensor_mark(w->cta->tensor, lane + row, first + column);
        }
    return NEXT;
}

/* CTA `number` of the `pair` CTAs (1 or 2) that an instruction works on, or 0 after a fault: the even one must issue it. */
static Cta *pair_member(Warp *w, const Op *o, uint32_t lane, uint32_t pair, uint32_t number) {
    uint32_t rank = w->cta->rank;
    if (pair == 2 && (rank % 2 || rank + 1 >= w->launch->cluster_size)) {
        matrix_fault(w, o, lane, PROBLEM_PAIR, rank, w->launch->cluster_size);
        return 0;
    }
    return &w->launch->ctas[rank + number];
}

/* tcgen05.cp: rows of `bits` from shared memory to lanes, in each CTA of a pair from its own. */
static int tensor_copy(Warp *w, const Op *o, uint32_t lane, const TensorCopy *t) {
    uint32_t bytes = t->bits / 8, column = t->address & 0xffff;
    if (t->address >> 16) return matrix_fault(w, o, lane, PROBLEM_LANE_ACCESS, t->address, 0);
    for (uint32_t number = 0; number < t->pair; number++) {
        Descriptor d;
        uint8_t buffer[128 * 32];
        const Cta *c = pair_member(w, o, lane, t->pair, number);
        if (!c || descriptor_tensor(w, o, lane, c->rank, t->descriptor, &d)) return FAULT;
        if (d.atom == 32) return matrix_fault(w, o, lane, PROBLEM_SWIZZLE, t->descriptor, 1);
        if (tensor_check(w, o, lane, c, t->address, bytes / 4) || gather_rows(w, o, lane, &d, 0, t->rows, bytes, buffer)) return FAULT;
        for (uint32_t to = 0; to < TENSOR_LANES; to++) {
            uint32_t quarter = to / 32, half = t->spread == 4 ? 0 : t->spread == 2 ? quarter % 2 : quarter / 2;
            uint32_t row = t->spread == 0 ? to : half * 32 + to % 32;
            memcpy(&c->tensor->word[to][column], buffer + row * bytes, bytes);
            for (uint32_t i = 0; i < bytes / 4; i++) tensor_mark(c->tensor, to, column + i);
        }
    }
    return NEXT;
}

#endif
