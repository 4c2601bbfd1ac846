/* What a chain of matrix instructions may lose of each output of a projection; the bound is stated in projection.py.
 *
 * Outputs are taken 64 at a time, their weights decoded once for all rows. A row's operands come as float64. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 64 };

static inline double decoded(uint16_t code) {
    uint32_t bits = (uint32_t)code << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* The largest power of two not above a finite magnitude, 0 for 0. */
static inline double power_below(double magnitude) {
    uint64_t bits;
    memcpy(&bits, &magnitude, 8);
    bits &= 0x7ff0000000000000u;
    memcpy(&magnitude, &bits, 8);
    return magnitude;
}

/* middle, largest [rows, k]: a row's operands, and bounds on their magnitudes; weights [n, k] BF16 with `pitch` elements
 * between rows; spread [rows, n]. Writes total, lost, sizes [rows, n]. Returns 0, or -1 when out of memory. */
int equiv_chain(int rows, int n, int k, int step, double cut, double truncated, double least, const double *middle,
                const double *largest, const uint16_t *weights, ptrdiff_t pitch, const double *spread, double *total,
                double *lost, double *sizes) {
    int blocks = k / step;
    double *w = malloc(sizeof(double) * LANES * ((size_t)k + blocks));
    if (!w) return -1;
    double *tops = w + (size_t)LANES * k;
    for (int first = 0; first < n; first += LANES) {
        int width = n - first < LANES ? n - first : LANES;
        memset(w, 0, sizeof(double) * LANES * ((size_t)k + blocks));
        for (int j = 0; j < width; j++)
            for (int i = 0; i < k; i++) {
                double value = decoded(weights[(first + j) * pitch + i]), size = value < 0 ? -value : value;
                double *top = tops + (size_t)(i / step) * LANES + j;
                w[(size_t)i * LANES + j] = value;
                if (power_below(size) > *top) *top = power_below(size);
            }
        for (int row = 0; row < rows; row++) {
            const double *x = middle + (size_t)row * k, *m = largest + (size_t)row * k;
            double sum[LANES] = {0}, gone[LANES] = {0}, all[LANES] = {0}, size[LANES] = {0}, wide[LANES] = {0};
            memcpy(wide, spread + (size_t)row * n + first, sizeof(double) * width);
            memcpy(size, wide, sizeof wide);
            for (int block = 0; block < blocks; block++) {
                double top = 0;
                for (int i = block * step; i < (block + 1) * step; i++) {
                    const double *column = w + (size_t)i * LANES;
                    double value = x[i], most = m[i];
                    top = most > top ? most : top;
                    for (int j = 0; j < LANES; j++) {
                        sum[j] += value * column[j];
                        all[j] += most * (column[j] < 0 ? -column[j] : column[j]);
                    }
                }
                top = power_below(top);
                const double *other = tops + (size_t)block * LANES;
                for (int j = 0; j < LANES; j++) {
                    double term = top * other[j];
                    gone[j] += cut * (term > size[j] ? term : size[j]);
                    size[j] = (sum[j] < 0 ? -sum[j] : sum[j]) + wide[j] + gone[j];
                    gone[j] += truncated * size[j] + 2 * least;
                    size[j] += truncated * size[j];
                }
            }
            size_t at = (size_t)row * n + first;
            memcpy(total + at, sum, sizeof(double) * width);
            memcpy(lost + at, gone, sizeof(double) * width);
            memcpy(sizes + at, all, sizeof(double) * width);
        }
    }
    free(w);
    return 0;
}
