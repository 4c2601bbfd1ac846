/* mma.sync and wgmma: fragments of a warp, or matrices in shared memory, through eq_mma_block (spec numerics 1.6). */
#ifndef EQUIV_WARP_MMA_H
#define EQUIV_WARP_MMA_H

#include "operands.h"

/* A fragment of 16 rows: register i holds row lane / 4 + 8 (i & 1), word lane % 4 + 4 (i / 2) of its k. */
static inline void rows_of_fragment(const uint32_t *const *a, uint32_t words, uint32_t *out) {
    for (uint32_t i = 0; i < words / 2; i++)
        LANES(l) out[((uint32_t)l / 4 + 8 * (i & 1)) * words + (uint32_t)l % 4 + 4 * (i / 2)] = a[i][l];
}

/* Where an accumulator's register i of lane l lies in 16 rows: 32-bit words, of which f16 packs two columns into one. */
#define ACCUMULATOR_WORD(i, l, half, words) \
    (half ? ((uint32_t)(l) / 4 + 8 * ((i) & 1)) * (words) + 4 * ((i) / 2) + (uint32_t)(l) % 4 \
          : ((uint32_t)(l) / 4 + 8 * ((i) / 2 & 1)) * (words) + 8 * ((i) / 4) + 2 * ((uint32_t)(l) % 4) + ((i) & 1))

/* A [16, k] and B [n, k] in rows of words; d is read where `accumulate` and c is its source. */
static int fragment_block(Warp *w, const Op *o, const eq_mma *v, uint32_t n, eq_mma_in a, eq_mma_in b, const uint32_t *const *c,
                          uint32_t *const *d, uint32_t negate) {
    uint32_t tile[16 * 256], half = v->c.bytes == 2, words = half ? n / 2 : n, registers = half ? n / 4 : n / 2;
    if (c)
        for (uint32_t i = 0; i < registers; i++) LANES(l) tile[ACCUMULATOR_WORD(i, l, half, words)] = c[i][l];
    eq_mma_in from = {c ? tile : 0, n, 1}, none = {0, 0, 0};
    eq_mma_out to = {tile, n, 1};
    if (eq_mma_block(v, 16, (int)n, v->k, a, b, from, to, (int)negate, none, none))
        return matrix_fault(w, o, 0, PROBLEM_MEMORY, 0, 0);
    for (uint32_t i = 0; i < registers; i++) LANES(l) d[i][l] = tile[ACCUMULATOR_WORD(i, l, half, words)];
    return NEXT;
}

#define ALWAYS __attribute__((always_inline))

/* 32 lanes as 8 rows of a quad each: what lane 4 r + q has goes to out[q * stride + r], and back. As shuffles of vectors, where
 * the compiler has those; wide loads soon after narrow stores would be slow. */
#ifndef __has_builtin
#define __has_builtin(name) 0
#endif
#if __has_builtin(__builtin_shufflevector)
typedef uint32_t Half __attribute__((vector_size(64), aligned(4), may_alias));
static inline void quads_apart(const uint32_t *lanes, uint32_t *out, int stride) {
    Half low = *(const Half *)lanes, high = *(const Half *)(lanes + 16);
    Half first = __builtin_shufflevector(low, high, 0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    Half last = __builtin_shufflevector(low, high, 2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31);
    memcpy(out, &first, 32), memcpy(out + stride, (const char *)&first + 32, 32);
    memcpy(out + 2 * stride, &last, 32), memcpy(out + 3 * stride, (const char *)&last + 32, 32);
}
static inline void quads_together(const uint32_t *in, int stride, uint32_t *lanes) {
    Half first, last;
    memcpy(&first, in, 32), memcpy((char *)&first + 32, in + stride, 32);
    memcpy(&last, in + 2 * stride, 32), memcpy((char *)&last + 32, in + 3 * stride, 32);
    *(Half *)lanes = __builtin_shufflevector(first, last, 0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
    *(Half *)(lanes + 16) = __builtin_shufflevector(first, last, 4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31);
}
#else
static inline void quads_apart(const uint32_t *lanes, uint32_t *out, int stride) {
    for (int q = 0; q < 4; q++)
        for (int r = 0; r < 8; r++) out[q * stride + r] = lanes[4 * r + q];
}
static inline void quads_together(const uint32_t *in, int stride, uint32_t *lanes) {
    for (int q = 0; q < 4; q++)
        for (int r = 0; r < 8; r++) lanes[4 * r + q] = in[q * stride + r];
}
#endif

typedef uint32_t Chunk __attribute__((vector_size(4 * EQ_QUICK_CHUNK), aligned(4), may_alias));

/* Elements of `lines` lines by word, [words][lines], as codes [lines / panel][k][panel] in the order of the sums. */
static inline ALWAYS void codes_of_words(const eq_mma *v, int depth, int bytes, const uint32_t *words, int lines, int panel, uint32_t *code) {
    int per = 4 / bytes;
    uint32_t mask = bytes == 4 ? FULL : (1u << 8 * bytes) - 1;
    for (int first = 0; first < lines; first += panel)
        for (int p = 0; p < depth; p++, code += panel) {
            int k = v->order[p], shift = k % per * bytes * 8;
            const uint32_t *from = words + k / per * lines + first;
            for (int j = 0; j < panel; j += EQ_QUICK_CHUNK) *(Chunk *)(code + j) = *(const Chunk *)(from + j) >> shift & mask;
        }
}

/* By matrix_quick.h: the rows of A are its lanes. Returns 0 if it must be computed otherwise. bytes: of an operand's element;
 * half: D and C are f16. They and the depth are constants of the instruction, with which loops become shorter code. */
static inline ALWAYS int quick_mma_of(const eq_mma *v, int depth, int bytes, int half, uint32_t *const *d, const uint32_t *const *a, const uint32_t *const *b, const uint32_t *const *c) {
    enum { ROWS = 16, COLUMNS = 8, DEPTH = 32 };
    uint32_t word[8 * ROWS], code[DEPTH * ROWS], acc[COLUMNS][ROWS], part[COLUMNS * EQ_MMA_LANES];
    float numbers[2][DEPTH * ROWS], powers[2][DEPTH * ROWS];
    int32_t scales[2][ROWS];
    int words = depth * bytes / 4;
    eq_quick_side x = {numbers[0], powers[0], scales[0]}, y = {numbers[1], powers[1], scales[1]};
    if (!eq_quick_possible(v)) return 0;
    for (int i = 0; i < words / 4; i++) quads_apart(b[i], word + 4 * i * COLUMNS, COLUMNS);
    codes_of_words(v, depth, bytes, word, COLUMNS, COLUMNS, code);
    if (eq_quick_widen(v, &v->b, 0, code, depth * COLUMNS, x.number, x.power) || !eq_quick_scale(x, COLUMNS, COLUMNS, depth)) return 0;
    for (int i = 0; i < words / 2; i++) quads_apart(a[i], word + i / 2 * 4 * ROWS + (i & 1) * 8, ROWS);
    codes_of_words(v, depth, bytes, word, ROWS, EQ_MMA_LANES, code);
    if (eq_quick_widen(v, &v->a, 0, code, depth * ROWS, y.number, y.power) || !eq_quick_scale(y, ROWS, EQ_MMA_LANES, depth)) return 0;
    for (int i = 0; i < (half ? 2 : 4); i++) {
        uint32_t low[32], high[32];
        LANES(l) low[l] = c[i][l] & (half ? 0xffffu : FULL), high[l] = c[i][l] >> 16;
        if (half) quads_apart(low, &acc[0][8 * i], 2 * ROWS), quads_apart(high, &acc[1][8 * i], 2 * ROWS);
        else quads_apart(low, &acc[i & 1][i / 2 * 8], 2 * ROWS);
    }
    for (int first = 0; first < ROWS; first += EQ_MMA_LANES) {
        eq_quick_side panel = {y.number + first * depth, y.power + first * depth, y.scale + first};
        uint32_t *at = EQ_MMA_LANES == ROWS ? acc[0] : part;
        for (int n = 0; at == part && n < COLUMNS; n++) memcpy(part + n * EQ_MMA_LANES, acc[n] + first, 4 * EQ_MMA_LANES);
        eq_quick_panel(v, COLUMNS, depth, x, COLUMNS, panel, at);
        for (int n = 0; at == part && n < COLUMNS; n++) memcpy(acc[n] + first, part + n * EQ_MMA_LANES, 4 * EQ_MMA_LANES);
    }
    for (int i = 0; i < (half ? 2 : 4); i++) {
        uint32_t high[32];
        quads_together(half ? &acc[0][8 * i] : &acc[i & 1][i / 2 * 8], 2 * ROWS, d[i]);
        if (!half) continue;
        quads_together(&acc[1][8 * i], 2 * ROWS, high);
        LANES(l) d[i][l] |= high[l] << 16;
    }
    return 1;
}

static int quick_mma(const eq_mma *v, uint32_t *const *d, const uint32_t *const *a, const uint32_t *const *b, const uint32_t *const *c) {
    if (v->k == 16 && v->a.bytes == 2 && v->c.bytes == 4) return quick_mma_of(v, 16, 2, 0, d, a, b, c);
    return quick_mma_of(v, v->k, v->a.bytes, v->c.bytes == 2, d, a, b, c);
}

static int warp_mma(Warp *w, const Op *o, uint32_t model, uint32_t *const *d, const uint32_t *const *a, const uint32_t *const *b,
                    const uint32_t *const *c) {
    const eq_mma *v = &MODELS[model];
    if (quick_mma(v, d, a, b, c)) return NEXT;
    uint32_t words = (uint32_t)(v->k * v->a.bytes) / 4, left[16 * 8], right[8 * 8];
    rows_of_fragment(a, words, left);
    for (uint32_t i = 0; i < words / 4; i++)
        LANES(l) right[(uint32_t)l / 4 * words + (uint32_t)l % 4 + 4 * i] = b[i][l];
    eq_mma_in x = {left, v->k, 1}, y = {right, 1, v->k};
    return fragment_block(w, o, v, 8, x, y, c, d, 0);
}

/* One register's result. In a launch with `late` it is computed when issued, but written when its group is waited for; until
 * then the register holds 0xff bytes, and a product that accumulates into it reads what will land. */
struct Landing { uint32_t *to, group, value[32]; };

static int wgmma_land(Warp *w, uint32_t keep) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < w->landings; i++) {
        struct Landing *one = &w->landing[i];
        if (one->group + keep < w->wgmma_group) memcpy(one->to, one->value, sizeof one->value);
        else w->landing[left++] = *one;
    }
    w->landings = left;
    return NEXT;
}

static struct Landing *find_landing(Warp *w, const uint32_t *to) {
    for (uint32_t i = 0; i < w->landings; i++)
        if (w->landing[i].to == to) return &w->landing[i];
    return 0;
}

static int accumulate_late(Warp *w, const Op *o, const eq_mma *v, uint32_t n, eq_mma_in a, eq_mma_in b, uint32_t *const *d,
                           uint32_t negate, uint32_t accumulate) {
    uint32_t registers = v->c.bytes == 2 ? n / 4 : n / 2, result[128][32], *to[128];
    const uint32_t *c[128];
    if (w->landing_room < w->landings + registers) {
        w->landing_room = w->landings + registers;
        struct Landing *more = realloc(w->landing, w->landing_room * sizeof *more);
        if (!more) return matrix_fault(w, o, 0, PROBLEM_MEMORY, 0, 0);
        w->landing = more;
    }
    for (uint32_t i = 0; i < registers; i++) {
        const struct Landing *before = find_landing(w, d[i]);
        c[i] = before ? before->value : d[i];
        to[i] = result[i];
    }
    if (fragment_block(w, o, v, n, a, b, accumulate ? c : 0, to, negate)) return FAULT;
    for (uint32_t i = 0; i < registers; i++) {
        struct Landing *one = find_landing(w, d[i]);
        if (!one) one = &w->landing[w->landings++];
        one->to = d[i];
        one->group = w->wgmma_group;
        memcpy(one->value, result[i], sizeof one->value);
        memset(d[i], 0xff, sizeof one->value);
    }
    return NEXT;
}

/* A warp computes its 16 rows of the warpgroup's 64; no warp reads another's, so it need not wait for them. */
static int warp_wgmma(Warp *w, const Op *o, const Wgmma *g, uint32_t *const *d) {
    const eq_mma *v = &MODELS[g->model];
    uint32_t bytes = (uint32_t)v->a.bytes, left[16 * 8];
    uint8_t a_buffer[(16 + 32) * 32], b_buffer[(256 + 32) * 32];
    Descriptor at;
    eq_mma_in a = {left, v->k, 1}, b;
    if (w->id / 4 * 4 + 4 > w->cta->warps) return matrix_fault(w, o, 0, PROBLEM_WARPGROUP, w->id, w->cta->warps);
    if (bytes != 2 && (g->a_transposed | g->b_transposed)) return matrix_fault(w, o, 0, PROBLEM_TRANSPOSED, 0, 0);
    if (g->a_fragment) rows_of_fragment(g->a_fragment, 8, left);
    else {
        if (descriptor_wgmma(w, o, g->a, &at)) return FAULT;
        if (gather(w, o, 0, &at, (int)g->a_transposed, w->id % 4 * 16, 16, bytes, a_buffer, &a)) return FAULT;
    }
    if (descriptor_wgmma(w, o, g->b, &at)) return FAULT;
    if (gather(w, o, 0, &at, (int)g->b_transposed, 0, g->n, bytes, b_buffer, &b)) return FAULT;
    eq_mma_in turned = {b.at, b.columns, b.rows};
    if (w->launch->late) return accumulate_late(w, o, v, g->n, a, turned, d, g->negate_a ^ g->negate_b, g->accumulate);
    return fragment_block(w, o, v, g->n, a, turned, g->accumulate ? (const uint32_t *const *)d : 0, d, g->negate_a ^ g->negate_b);
}

#endif
