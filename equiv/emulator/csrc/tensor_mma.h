/* tcgen05.mma: decodes the instruction descriptor, brings A, B, their scales and D together (spec numerics 1.5, 1.6). */
#ifndef EQUIV_TENSOR_MMA_H
#define EQUIV_TENSOR_MMA_H

#include "tensor_memory.h"

/* In the order of equiv.emulator.isa.models.TENSOR_KINDS. */
typedef enum { KIND_F16, KIND_TF32, KIND_F8F6F4, KIND_MXF8F6F4, KIND_MXF4, KIND_MXF4NVF4 } TensorKind;

/* What the instruction descriptor says. scale_a_id, scale_b_id: first byte of the scales within a column. */
typedef struct { uint32_t m, n, negate, a_transposed, b_transposed, scale_a_id, scale_b_id, a_type, b_type; const eq_mma *model; } Shape;

static int tensor_shape(Warp *w, const Op *o, uint32_t lane, const TensorMma *t, Shape *s) {
    uint32_t x = t->instruction, scaled = t->kind >= KIND_MXF8F6F4, packed = t->kind >= KIND_MXF4;
    uint32_t reserved = scaled ? 0x8700004fu : 0xe080004fu;
    if (packed) reserved |= 0x19000u; /* both K-major; types have three and two bits */
    if (x & reserved) return matrix_fault(w, o, lane, PROBLEM_INSTRUCTION_BITS, x, x & reserved);
    s->m = scaled ? FIELD(x, 27, 2) << 7 : FIELD(x, 24, 5) << 4;
    s->n = FIELD(x, 17, 6) << 3;
    s->negate = FIELD(x, 13, 1) ^ FIELD(x, 14, 1);
    s->a_transposed = FIELD(x, 15, 1);
    s->b_transposed = FIELD(x, 16, 1);
    s->a_type = FIELD(x, 7, 3);
    s->b_type = FIELD(x, 10, 3);
    s->scale_a_id = scaled ? FIELD(x, 29, 2) : 0;
    s->scale_b_id = scaled ? FIELD(x, 4, 2) : 0;
    uint32_t d = scaled ? 1 : FIELD(x, 4, 2), scale = scaled ? FIELD(x, 23, 1) : 0;
    uint32_t rows = s->m / t->pair; /* of each CTA */
    if ((rows != 128 && (rows != 64 || scaled)) || s->n < 8 || s->n > 256 || (s->m >= 128 && !scaled && s->n % 16))
        return matrix_fault(w, o, lane, PROBLEM_SHAPE, s->m, s->n);
    uint32_t blocks = t->block == 16 ? 1 : 0;
    uint16_t model = d > 1 ? 0xffff : TENSOR_MODEL[t->kind][d][s->a_type][s->b_type][scale][blocks];
    if (model == 0xffff) return matrix_fault(w, o, lane, PROBLEM_TYPES, x, 0);
    s->model = &MODELS[model];
    return NEXT;
}

/* The lane of a CTA's row where a row is one lane. */
static inline uint32_t lane_of_row(const Shape *s, uint32_t row) { return s->m == 64 ? row / 16 * 32 + row % 16 : row; }

/* Codes of sub-byte elements, one a byte; every 16 take 16 bytes of shared memory, or 8 in the packed kinds. */
static void unpack_codes(const uint8_t *from, uint32_t count, uint32_t bits, uint32_t packed, uint8_t *to) {
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *chunk = from + (packed ? i / 16 * 8 : i / 16 * 16);
        uint32_t bit = i % 16 * bits, pair = chunk[bit / 8] | (uint32_t)(bits == 6 ? chunk[bit / 8 + 1] : 0) << 8;
        to[i] = (uint8_t)(pair >> bit % 8 & ((1u << bits) - 1));
    }
}

/* Bits of an element of a type in shared memory: 8, or fewer in the narrow types of the 8-bit kinds. */
static uint32_t element_bits(const TensorMma *t, uint32_t type) {
    if (t->kind >= KIND_MXF4) return 4;
    if (t->kind != KIND_F8F6F4 && t->kind != KIND_MXF8F6F4) return 0;
    return type == 5 ? 4 : type >= 3 ? 6 : 8;
}

/* One operand from a CTA's shared memory as lines of codes. buffer, codes: 64 bytes a row and slack. */
static int tensor_operand(Warp *w, const Op *o, uint32_t lane, const TensorMma *t, const Cta *c, uint64_t descriptor, uint32_t rows,
                          uint32_t type, uint32_t transposed, const eq_mma *v, uint8_t *buffer, uint8_t *codes, eq_mma_in *view) {
    Descriptor d;
    uint32_t bits = element_bits(t, type), packed = t->kind >= KIND_MXF4;
    if (descriptor_tensor(w, o, lane, c->rank, descriptor, &d)) return FAULT;
    if (bits == 4 || bits == 6) {
        if (transposed) return matrix_fault(w, o, lane, PROBLEM_PACKED_OPERAND, 0, 0);
        if (gather_rows(w, o, lane, &d, 0, rows, 32, buffer)) return FAULT;
        unpack_codes(buffer, rows * (uint32_t)v->k, bits, packed, codes);
        view->at = codes;
        view->rows = v->k;
        view->columns = 1;
        return NEXT;
    }
    return gather(w, o, lane, &d, (int)transposed, 0, rows, (uint32_t)v->a.bytes, buffer, view);
}

/* A from tensor memory: 32 bytes of k in 8 columns of the row's lane. */
static int tensor_operand_a(Warp *w, const Op *o, uint32_t lane, const TensorMma *t, const Cta *c, const Shape *s, uint8_t *buffer,
                            uint8_t *codes, eq_mma_in *view) {
    uint32_t address = (uint32_t)t->a, rows = s->m / t->pair, bits = element_bits(t, s->a_type);
    if (s->a_transposed) return matrix_fault(w, o, lane, PROBLEM_TRANSPOSED, 0, 0);
    if (t->pair == 2 && rows == 64) return matrix_fault(w, o, lane, PROBLEM_SHAPE, s->m, s->n); /* where A lies is not known */
    if (bits == 6 || (bits == 4 && t->kind < KIND_MXF4)) return matrix_fault(w, o, lane, PROBLEM_PACKED_OPERAND, 0, 1);
    if (address >> 16) return matrix_fault(w, o, lane, PROBLEM_LANE_ACCESS, address, 0);
    if (tensor_check(w, o, lane, c, address, 8)) return FAULT;
    for (uint32_t r = 0; r < rows; r++) memcpy(buffer + 32 * r, &c->tensor->word[lane_of_row(s, r)][address], 32);
    if (bits == 4) unpack_codes(buffer, rows * (uint32_t)s->model->k, 4, 1, codes);
    view->at = bits == 4 ? codes : buffer;
    view->rows = s->model->k;
    view->columns = 1;
    return NEXT;
}

/* Scales of `rows` rows: row r in lane r % 32 of every quarter, column r / 32, `count` bytes from byte `id`. */
static int tensor_scales(Warp *w, const Op *o, uint32_t lane, uint32_t address, uint32_t rows, uint32_t id, uint32_t count, uint8_t *out) {
    uint32_t at = address & 0x3fffffffu; /* the two bits above say the byte once more */
    if (id % count) return matrix_fault(w, o, lane, PROBLEM_SCALE_ID, id, count);
    if (at >> 16) return matrix_fault(w, o, lane, PROBLEM_LANE_ACCESS, at, 0);
    if (tensor_check(w, o, lane, w->cta, at, (rows + 31) / 32)) return FAULT;
    for (uint32_t r = 0; r < rows; r++) {
        uint8_t bytes[4][4];
        for (uint32_t q = 0; q < 4; q++) memcpy(bytes[q], &w->cta->tensor->word[32 * q + r % 32][at + r / 32], 4);
        for (uint32_t q = 1; q < 4; q++)
            if (memcmp(bytes[q] + id, bytes[0] + id, count)) return matrix_fault(w, o, lane, PROBLEM_SCALES, r, 32 * q + r % 32);
        memcpy(out + r * count, bytes[0] + id, count);
    }
    return NEXT;
}

/* Word of D's element in a CTA. Half of a pair's 128 rows: the columns from n / 2 on are 64 lanes further. */
static inline uint32_t *tensor_word(const TensorMma *t, const Shape *s, const Cta *c, uint32_t row, uint32_t n) {
    uint32_t column = t->d & 0xffff, lane = lane_of_row(s, row), split = t->pair == 2 && s->m == 128 && n >= s->n / 2;
    return &c->tensor->word[split ? lane + 64 : lane][column + (split ? n - s->n / 2 : n)];
}

/* D of a CTA in place where its rows are the lanes, else through a copy: other lanes, or lanes that keep their values. */
static int tensor_accumulate(Warp *w, const Op *o, uint32_t lane, const TensorMma *t, const Cta *c, const Shape *s, eq_mma_in a,
                             eq_mma_in b, eq_mma_in sa, eq_mma_in sb) {
    const eq_mma *v = s->model;
    uint32_t rows = s->m / t->pair, step = v->c.bytes == 2 ? 2 : 1, own = rows == 64 || t->skip != 0;
    uint32_t *copy = own ? malloc(sizeof(uint32_t) * rows * s->n) : 0;
    if (own && !copy) return matrix_fault(w, o, lane, PROBLEM_MEMORY, 0, 0);
    for (uint32_t r = 0; own && r < rows; r++)
        for (uint32_t n = 0; n < s->n; n++) copy[r * s->n + n] = *tensor_word(t, s, c, r, n);
    if (t->accumulate && w->launch->watch) {
        uint32_t fresh = 0;
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t n = 0; n < s->n; n++) {
                size_t place = (size_t)(tensor_word(t, s, c, r, n) - &c->tensor->word[0][0]);
                fresh += tensor_fresh(c->tensor, (uint32_t)(place / TENSOR_COLUMNS), (uint32_t)(place % TENSOR_COLUMNS));
            }
        if (tensor_read(w, o, lane, t->d, fresh, rows * s->n)) {
            free(copy);
            return FAULT;
        }
    }
    void *at = own ? copy : tensor_word(t, s, c, 0, 0);
    ptrdiff_t line = (ptrdiff_t)step * (own ? s->n : TENSOR_COLUMNS);
    eq_mma_in from = {t->accumulate ? at : 0, line, step};
    eq_mma_out to = {at, line, step};
    int result = eq_mma_block(v, (int)rows, (int)s->n, v->k, a, b, from, to, (int)s->negate, sa, sb);
    for (uint32_t r = 0; own && r < rows; r++) {
        uint32_t to_lane = lane_of_row(s, r);
        if (t->skip && t->skip[to_lane / 32] >> to_lane % 32 & 1) continue;
        for (uint32_t n = 0; n < s->n; n++) *tensor_word(t, s, c, r, n) = copy[r * s->n + n];
    }
    free(copy);
    return result ? matrix_fault(w, o, lane, PROBLEM_MEMORY, 0, 0) : NEXT;
}

/* B of a pair: each CTA holds n / 2 of its columns, here brought together as lines of codes. */
static int pair_operand_b(Warp *w, const Op *o, uint32_t lane, const TensorMma *t, const Shape *s, uint8_t *merged, eq_mma_in *view) {
    const eq_mma *v = s->model;
    size_t bytes = (size_t)v->b.bytes;
    for (uint32_t number = 0; number < 2; number++) {
        uint8_t buffer[(128 + 32) * 32], codes[128 * 64 + 64];
        eq_mma_in part;
        const Cta *c = pair_member(w, o, lane, 2, number);
        if (!c || tensor_operand(w, o, lane, t, c, t->b, s->n / 2, s->b_type, s->b_transposed, v, buffer, codes, &part)) return FAULT;
        for (uint32_t n = 0; n < s->n / 2; n++)
            for (uint32_t k = 0; k < (uint32_t)v->k; k++, merged += bytes)
                memcpy(merged, (const uint8_t *)part.at + bytes * (size_t)(n * part.rows + k * part.columns), bytes);
    }
    view->rows = v->k;
    view->columns = 1;
    return NEXT;
}

static int tensor_mma(Warp *w, const Op *o, uint32_t lane, const TensorMma *t) {
    Shape s;
    if (tensor_shape(w, o, lane, t, &s)) return FAULT;
    const eq_mma *v = s.model;
    uint8_t a_buffer[(128 + 32) * 32], a_codes[128 * 64 + 64], b_buffer[(256 + 32) * 32], b_codes[256 * 64 + 64];
    uint8_t scales[384 * 4];
    uint32_t rows = s.m / t->pair, columns = t->pair == 2 && s.m == 128 ? s.n / 2 : s.n;
    eq_mma_in a, b = {b_codes, 0, 0}, sa = {0, 0, 0}, sb = {0, 0, 0};
    if (t->d >> 16) return matrix_fault(w, o, lane, PROBLEM_LANE_ACCESS, t->d, 0);
    if (t->pair == 2) {
        if (pair_operand_b(w, o, lane, t, &s, b_codes, &b)) return FAULT;
    } else if (tensor_operand(w, o, lane, t, w->cta, t->b, s.n, s.b_type, s.b_transposed, v, b_buffer, b_codes, &b)) return FAULT;
    if (v->scale_block) {
        uint32_t count = (uint32_t)(v->k / v->scale_block);
        if (tensor_scales(w, o, lane, t->scale_a, s.m, s.scale_a_id, count, scales) ||
            tensor_scales(w, o, lane, t->scale_b, s.n, s.scale_b_id, count, scales + 128 * 4))
            return FAULT;
        sa = (eq_mma_in){scales, count, 1};
        sb = (eq_mma_in){scales + 128 * 4, 1, count};
    }
    eq_mma_in turned = {b.at, b.columns, b.rows};
    for (uint32_t number = 0; number < t->pair; number++) {
        const Cta *c = pair_member(w, o, lane, t->pair, number);
        if (!c || tensor_check(w, o, lane, c, t->d, columns)) return FAULT;
        if (t->a_in_tensor) {
            if (tensor_operand_a(w, o, lane, t, c, &s, a_buffer, a_codes, &a)) return FAULT;
        } else if (tensor_operand(w, o, lane, t, c, t->a, rows, s.a_type, s.a_transposed, v, a_buffer, a_codes, &a)) return FAULT;
        if (tensor_accumulate(w, o, lane, t, c, &s, a, turned, sa, sb)) return FAULT;
    }
    return NEXT;
}

#endif
