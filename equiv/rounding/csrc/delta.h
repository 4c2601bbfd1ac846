/* The delta-rule recurrence and its folds on 128 x 128 states; the C twin of equiv/rounding/kda_scan.py, tested against it.
 *
 * A state is [v][k]. Rows v do not meet, so that sixteen at a time go through all tokens; a reduction over k is a flat
 * program, one node a line: the kinds of equiv.rounding.orders. Results that are NaN are 0x7fffffff, as on the GPU: since
 * every operation hands a NaN on, it is enough to look where values leave. The host must be in its default mode. */
#ifndef EQUIV_DELTA_H
#define EQUIV_DELTA_H

#include "numerics.h"

#define EQ_DIM 128
#define EQ_ROWS 16
#define EQ_NODES 1024 /* of one program, at most */
#define EQ_ROW for (int r = 0; r < EQ_ROWS; r++)

enum { EQ_LEAF, EQ_CONST, EQ_ADD, EQ_FMA };
typedef struct { int32_t kind, first, second; } eq_node;
typedef struct { const eq_node *nodes; int32_t count, root; } eq_program;

/* How the steps around the sums are done: decays multiplied so often; products rounded before the sum; BF16 roundings. */
typedef struct { int32_t decays, mul_add, bf16_difference, bf16_correction; } eq_delta_steps;

typedef float eq_rows[EQ_ROWS];

static inline void eq_run(const eq_program *p, eq_rows *restrict value, eq_rows *restrict a, const float *b) {
    for (int i = 0; i < p->count; i++) {
        eq_node n = p->nodes[i];
        float *to = value[i];
        switch (n.kind) {
        case EQ_LEAF: EQ_ROW to[r] = a[n.first][r] * b[n.first]; break;
        case EQ_CONST: EQ_ROW to[r] = eq_float((uint32_t)n.first); break;
        case EQ_ADD: EQ_ROW to[r] = value[n.first][r] + value[n.second][r]; break;
        default: EQ_ROW to[r] = fmaf(a[n.first][r], b[n.first], value[n.second][r]); break;
        }
    }
}
static inline float eq_through_bf16(float x, int wanted) {
    return wanted ? eq_float(eq_bf16_to_f32(eq_cvt_bf16_rn(eq_bits(x)))) : x;
}

/* One item: state [v][k]; q, k, decay [tokens][128]; v [tokens][128]; beta [tokens]. Writes o and u [tokens][128], and
 * states [tokens][v][k] unless that is null. */
static void eq_delta_item(const float *state, int tokens, const float *q, const float *k, const float *decay, const float *v,
                          const float *beta, const eq_program *dot, const eq_program *out, const eq_delta_steps *steps,
                          uint32_t *states, uint32_t *o, uint32_t *u) {
    static _Thread_local eq_rows s[EQ_DIM], value[EQ_NODES];
    for (int row = 0; row < EQ_DIM; row += EQ_ROWS) {
        for (int c = 0; c < EQ_DIM; c++) EQ_ROW s[c][r] = state[(row + r) * EQ_DIM + c];
        for (int t = 0; t < tokens; t++, q += EQ_DIM, k += EQ_DIM, decay += EQ_DIM, v += EQ_DIM) {
            eq_rows correction;
            for (int n = 0; n < steps->decays; n++)
                for (int c = 0; c < EQ_DIM; c++) EQ_ROW s[c][r] = s[c][r] * decay[c];
            eq_run(dot, value, s, k);
            EQ_ROW {
                float left = eq_through_bf16(v[row + r] - value[dot->root][r], steps->bf16_difference);
                correction[r] = eq_through_bf16(left * beta[t], steps->bf16_correction);
            }
            if (steps->mul_add)
                for (int c = 0; c < EQ_DIM; c++) EQ_ROW { float m = k[c] * correction[r]; s[c][r] = m + s[c][r]; }
            else
                for (int c = 0; c < EQ_DIM; c++) EQ_ROW s[c][r] = fmaf(k[c], correction[r], s[c][r]);
            eq_run(out, value, s, q);
            EQ_ROW {
                o[t * EQ_DIM + row + r] = eq_canon(eq_bits(value[out->root][r]));
                u[t * EQ_DIM + row + r] = eq_canon(eq_bits(correction[r]));
            }
            if (states)
                for (int c = 0; c < EQ_DIM; c++)
                    EQ_ROW states[((int64_t)t * EQ_DIM + row + r) * EQ_DIM + c] = eq_canon(eq_bits(s[c][r]));
        }
        q -= tokens * EQ_DIM, k -= tokens * EQ_DIM, decay -= tokens * EQ_DIM, v -= tokens * EQ_DIM;
    }
}

static void eq_delta_scan(int64_t items, int tokens, const float *state, const float *q, const float *k, const float *decay,
                          const float *v, const float *beta, const eq_program *dot, const eq_program *out,
                          const eq_delta_steps *steps, uint32_t *states, uint32_t *o, uint32_t *u) {
    int64_t page = EQ_DIM * EQ_DIM, line = (int64_t)tokens * EQ_DIM;
    for (int64_t i = 0; i < items; i++)
        eq_delta_item(state + i * page, tokens, q + i * line, k + i * line, decay + i * line, v + i * line, beta + i * tokens,
                      dot, out, steps, states ? states + i * tokens * page : 0, o + i * line, u + i * line);
}

/* Folds counts[i] of `tokens` tokens into a state: backwards with a running product of decays, or forwards. Backwards the
 * last of all tokens is fused with the zero that it is added to. */
static void eq_delta_fold(int64_t items, int tokens, int forward, const int32_t *counts, const float *state, const float *decay,
                          const float *k, const float *u, uint32_t *result) {
    for (int64_t i = 0; i < items; i++, decay += tokens * EQ_DIM, k += tokens * EQ_DIM, u += tokens * EQ_DIM) {
        float product[EQ_DIM], total[EQ_DIM];
        for (int row = 0; row < EQ_DIM; row++, state += EQ_DIM, result += EQ_DIM) {
            for (int c = 0; c < EQ_DIM; c++) product[c] = 1, total[c] = forward ? state[c] : 0;
            for (int n = 0; n < counts[i]; n++) {
                int at = (forward ? n : counts[i] - 1 - n) * EQ_DIM;
                float x = u[at + row];
                if (forward)
                    for (int c = 0; c < EQ_DIM; c++) { float m = total[c] * decay[at + c]; total[c] = fmaf(k[at + c], x, m); }
                else
                    for (int c = 0; c < EQ_DIM; c++) {
                        float m = x * k[at + c];
                        total[c] = at == (tokens - 1) * EQ_DIM ? fmaf(x, k[at + c], 0) : fmaf(product[c], m, total[c]);
                        product[c] = product[c] * decay[at + c];
                    }
            }
            for (int c = 0; c < EQ_DIM; c++) {
                float found = forward ? total[c] : fmaf(state[c], product[c], total[c]);
                result[c] = eq_canon(eq_bits(found));
            }
        }
    }
}

/* A program on rows of 128 terms, a[i] * b[i]. */
static void eq_delta_dot(int64_t rows, const float *a, const float *b, const eq_program *p, const int32_t *roots, int found,
                         uint32_t *result) {
    float value[EQ_NODES];
    for (int64_t i = 0; i < rows; i++, a += EQ_DIM, b += EQ_DIM) {
        for (int j = 0; j < p->count; j++) {
            eq_node n = p->nodes[j];
            value[j] = n.kind == EQ_LEAF    ? a[n.first] * b[n.first]
                       : n.kind == EQ_CONST ? eq_float((uint32_t)n.first)
                       : n.kind == EQ_ADD   ? value[n.first] + value[n.second]
                                            : fmaf(a[n.first], b[n.first], value[n.second]);
        }
        for (int j = 0; j < found; j++) *result++ = eq_canon(eq_bits(value[roots[j]]));
    }
}

#endif
