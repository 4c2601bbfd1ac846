/* ldmatrix, stmatrix, movmatrix: 8 x 8 tiles of 16-bit elements between shared memory and the lanes of a warp. Lane l holds
 * row l / 4, columns 2 (l % 4) and the next; transposed, column l / 4 and those two rows (spec numerics 1.6). */
#ifndef EQUIV_FRAGMENTS_H
#define EQUIV_FRAGMENTS_H

#include "matrix_api.h"

static inline uint32_t tile_get(const uint16_t tile[8][8], int l, int transposed) {
    int i = l / 4, j = 2 * (l % 4);
    return transposed ? tile[j][i] | (uint32_t)tile[j + 1][i] << 16 : tile[i][j] | (uint32_t)tile[i][j + 1] << 16;
}
static inline void tile_put(uint16_t tile[8][8], int l, int transposed, uint32_t value) {
    int i = l / 4, j = 2 * (l % 4);
    if (transposed) tile[j][i] = (uint16_t)value, tile[j + 1][i] = (uint16_t)(value >> 16);
    else tile[i][j] = (uint16_t)value, tile[i][j + 1] = (uint16_t)(value >> 16);
}

/* Lanes 8 i to 8 i + 7 name the rows of tile i, 16 bytes each. */
static inline int tile_rows(Warp *w, const Op *o, uint32_t m, Addresses *a, int tiles) {
    if (whole_warp(w, o, m)) return FAULT;
    return shared_check(w, o, tiles == 4 ? FULL : (1u << 8 * tiles) - 1, a, 16, 16, 0);
}

static inline int load_tiles(Warp *w, const Op *o, uint32_t m, Addresses *a, uint32_t *const *d, int tiles, int transposed) {
    uint32_t odd = 0;
    if (tile_rows(w, o, m, a, tiles)) return FAULT;
    for (int i = 0; i < tiles; i++) {
        uint16_t tile[8][8];
        for (int r = 0; r < 8; r++) {
            memcpy(tile[r], (const void *)a->at[8 * i + r], 16);
            odd += unwritten(w->launch, a->at[8 * i + r], 16);
        }
        LANES(l) d[i][l] = tile_get(tile, l, transposed);
    }
    return read_block(w, o, 0, a->at[0], odd, 128 * (uint32_t)tiles);
}

static inline int store_tiles(Warp *w, const Op *o, uint32_t m, Addresses *a, const uint32_t *const *s, int tiles, int transposed) {
    if (tile_rows(w, o, m, a, tiles)) return FAULT;
    for (int i = 0; i < tiles; i++) {
        uint16_t tile[8][8];
        LANES(l) tile_put(tile, l, transposed, s[i][l]);
        for (int r = 0; r < 8; r++) memcpy((void *)a->at[8 * i + r], tile[r], 16);
    }
    if (w->launch->watch) for (int i = 0; i < 8 * tiles; i++) mark(w->launch, a->at[i], 16, 0);
    return NEXT;
}

static inline int transpose_tile(Warp *w, const Op *o, uint32_t m, uint32_t *d, const uint32_t *s) {
    uint16_t tile[8][8];
    if (whole_warp(w, o, m)) return FAULT;
    LANES(l) tile_put(tile, l, 0, s[l]);
    LANES(l) d[l] = tile_get(tile, l, 1);
    return NEXT;
}

#endif
