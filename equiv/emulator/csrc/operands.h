/* Matrices in shared memory as wgmma and tcgen05 address them, copied into plain arrays (spec numerics 1.6).
 *
 * A matrix is made of 16-byte chunks. K-major: a chunk holds consecutive k of one row; rows come in groups of 8, `stride`
 * bytes apart. MN-major: a chunk holds consecutive rows of one k. With a swizzle of S bytes the S / 16 chunks next to each
 * other lie together, and bits 4 to 6 of the final address are exchanged by the bits above. */
#ifndef EQUIV_OPERANDS_H
#define EQUIV_OPERANDS_H

#include "matrix.h"
#include "matrix_api.h"

/* start, lead, stride: bytes. swizzle: 16 (none), 32, 64 or 128 bytes; atom: bytes that the swizzle keeps together; rank:
 * of the CTA whose shared memory it is. */
typedef struct { uint32_t start, lead, stride, swizzle, atom, rank; } Descriptor;

#define FIELD(x, low, count) ((uint32_t)((x) >> (low)) & ((1u << (count)) - 1))

static inline Descriptor descriptor_fields(uint64_t x, uint32_t rank) {
    Descriptor d = {FIELD(x, 0, 14) << 4, FIELD(x, 16, 14) << 4, FIELD(x, 32, 14) << 4, 16, 16, rank};
    return d;
}

static int descriptor_wgmma(Warp *w, const Op *o, uint64_t x, Descriptor *d) {
    static const uint32_t SWIZZLE[4] = {16, 128, 64, 32};
    if (FIELD(x, 14, 2) | FIELD(x, 30, 2) | FIELD(x, 46, 3) | FIELD(x, 52, 10))
        return matrix_fault(w, o, 0, PROBLEM_DESCRIPTOR_BITS, x, 0);
    if (FIELD(x, 49, 3)) return matrix_fault(w, o, 0, PROBLEM_BASE_OFFSET, x, FIELD(x, 49, 3));
    *d = descriptor_fields(x, w->cta->rank);
    d->swizzle = SWIZZLE[x >> 62];
    return NEXT;
}

static int descriptor_tensor(Warp *w, const Op *o, uint32_t lane, uint32_t rank, uint64_t x, Descriptor *d) {
    static const uint32_t SWIZZLE[8] = {16, 128, 128, 0, 64, 0, 32, 0};
    uint32_t code = FIELD(x, 61, 3);
    if (FIELD(x, 14, 2) | FIELD(x, 30, 2) | FIELD(x, 52, 9) || FIELD(x, 46, 3) != 1)
        return matrix_fault(w, o, lane, PROBLEM_DESCRIPTOR_BITS, x, 0);
    if (FIELD(x, 49, 3)) return matrix_fault(w, o, lane, PROBLEM_BASE_OFFSET, x, FIELD(x, 49, 3));
    if (!SWIZZLE[code]) return matrix_fault(w, o, lane, PROBLEM_SWIZZLE, x, code);
    *d = descriptor_fields(x, rank);
    d->swizzle = SWIZZLE[code];
    d->atom = code == 1 ? 32 : 16;
    return NEXT;
}

/* Host address of the chunk at a byte offset, or 0 after a fault. */
static inline const uint8_t *chunk(Warp *w, const Op *o, uint32_t lane, const Descriptor *d, uint32_t offset) {
    uint32_t at = (d->start + offset) & 0x3ffff;
    uint32_t mask = d->swizzle / d->atom - 1; /* 128 bytes: 7, or 3 with the 32-byte atom */
    at ^= (at >> 7 & mask) * d->atom;
    if (at < SHARED_RESERVED || at - SHARED_RESERVED + 16 > w->launch->shared_size) {
        fault(w, o, FAULT_SHARED_BOUNDS, lane, d->rank << 24 | at, 16, 0);
        return 0;
    }
    const uint8_t *host = w->launch->window + (size_t)d->rank * SHARED_SLICE + at;
    if (w->launch->observer && w->launch->observer->block(w, o, lane, (uint64_t)(uintptr_t)host, 16)) return 0;
    return host;
}

/* Rows [first, first + rows) of a K-major matrix: `bytes` of each, packed one after the other. */
static int gather_rows(Warp *w, const Op *o, uint32_t lane, const Descriptor *d, uint32_t first, uint32_t rows, uint32_t bytes,
                       uint8_t *out) {
    uint32_t along = d->swizzle == 16 ? d->lead : 16, odd = 0;
    for (uint32_t r = first; r < first + rows; r++)
        for (uint32_t j = 0; j < bytes / 16; j++, out += 16) {
            const uint8_t *from = chunk(w, o, lane, d, r % 8 * d->swizzle + r / 8 * d->stride + j * along);
            if (!from) return FAULT;
            memcpy(out, from, 16);
            odd += unwritten(w->launch, (uint64_t)(uintptr_t)from, 16);
        }
    return read_block(w, o, lane, (uint64_t)(uintptr_t)w->launch->window + (d->rank << 24 | d->start), odd, rows * bytes);
}

/* Rows of an MN-major matrix, `unit` of them a chunk: for each of `depth` k one line of `rows` rounded up to whole chunks. */
static int gather_columns(Warp *w, const Op *o, uint32_t lane, const Descriptor *d, uint32_t first, uint32_t rows, uint32_t unit,
                          uint32_t depth, uint8_t *out) {
    uint32_t wide = d->swizzle / 16, group = d->atom == 32 ? 4 : 8, chunks = (rows + unit - 1) / unit;
    uint32_t across = d->swizzle == 16 ? d->stride : d->lead, along = d->swizzle == 16 ? d->lead : d->stride, odd = 0;
    for (uint32_t k = 0; k < depth; k++)
        for (uint32_t j = first / unit; j < first / unit + chunks; j++, out += 16) {
            uint32_t offset = j % wide * 16 + j / wide * across + k % group * d->swizzle + k / group * along;
            const uint8_t *from = chunk(w, o, lane, d, offset);
            if (!from) return FAULT;
            memcpy(out, from, 16);
            odd += unwritten(w->launch, (uint64_t)(uintptr_t)from, 16);
        }
    return read_block(w, o, lane, (uint64_t)(uintptr_t)w->launch->window + (d->rank << 24 | d->start), odd, depth * chunks * 16);
}

/* `rows` rows and 32 bytes' worth of k as an operand of eq_mma_block; lines of the view are rows. buffer: 32 bytes a row and
 * 32 lines of slack. */
static int gather(Warp *w, const Op *o, uint32_t lane, const Descriptor *d, int transposed, uint32_t first, uint32_t rows,
                  uint32_t bytes, uint8_t *buffer, eq_mma_in *view) {
    uint32_t unit = 16 / bytes, depth = 32 / bytes;
    if (!transposed && d->atom == 32) return matrix_fault(w, o, lane, PROBLEM_SWIZZLE, 0, 1);
    view->at = buffer;
    view->rows = transposed ? 1 : depth;
    view->columns = transposed ? (ptrdiff_t)((rows + unit - 1) / unit * unit) : 1;
    return transposed ? gather_columns(w, o, lane, d, first, rows, unit, depth, buffer)
                      : gather_rows(w, o, lane, d, first, rows, 32, buffer);
}

#endif
