/* What a chain of matrix instructions may lose of each output of a projection; the bound is stated in projection.py.
 *
 * Outputs are taken LANES at a time, their weights decoded once for all rows. A row's operands come as float64. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 32 };

static inline double decoded(uint16_t code) {
    uint32_t bits = (uint32_t)code << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* The lowest set bit of a finite BF16 number; infinity of 0, whose products lose nothing. */
static inline double lowest_bit(uint16_t code) {
    int field = code >> 7 & 0xff, whole = (code & 0x7f) | (field ? 0x80 : 0);
    return whole ? ldexp(1.0, __builtin_ctz(whole) + (field ? field : 1) - 134) : INFINITY;
}

/* The largest power of two not above a magnitude; 0 of 0. */
static inline double power_below(double magnitude) {
    uint64_t bits;
    memcpy(&bits, &magnitude, 8);
    bits &= 0x7ff0000000000000u;
    memcpy(&magnitude, &bits, 8);
    return magnitude;
}

typedef struct { double *value, *bit, *top; } weights_t;

static void decode(weights_t to, const uint16_t *from, ptrdiff_t pitch, int width, int k, int step) {
    for (int j = 0; j < width; j++)
        for (int i = 0; i < k; i++) {
            size_t at = (size_t)i * LANES + j, block = (size_t)(i / step) * LANES + j;
            uint16_t code = from[j * pitch + i];
            double power = power_below(fabs(decoded(code)));
            to.value[at] = decoded(code);
            to.bit[at] = lowest_bit(code);
            if (power > to.top[block]) to.top[block] = power;
        }
}

/* middle, largest, bit [rows, k]: a row's operands, bounds on their magnitudes, and on their lowest bits; weights [n, k] BF16
 * with `pitch` elements between rows; spread [rows, n]. A term is cut below `unit` times the largest of its sum, a result
 * below `ulp` times itself. Writes total, lost, sizes [rows, n]. Returns 0, or -1 when out of memory. */
int equiv_chain(int rows, int n, int k, int step, double unit, double ulp, double least, const double *middle,
                const double *largest, const double *bit, const uint16_t *weights, ptrdiff_t pitch, const double *spread,
                double *total, double *lost, double *sizes) {
    int blocks = k / step;
    size_t count = (size_t)LANES * (2 * (size_t)k + blocks);
    double *memory = malloc(sizeof(double) * count);
    if (!memory) return -1;
    weights_t w = {memory, memory + (size_t)LANES * k, memory + (size_t)2 * LANES * k};
    for (int first = 0; first < n; first += LANES) {
        int width = n - first < LANES ? n - first : LANES;
        memset(memory, 0, sizeof(double) * count);
        decode(w, weights + first * pitch, pitch, width, k, step);
        for (int row = 0; row < rows; row++) {
            const double *x = middle + (size_t)row * k, *m = largest + (size_t)row * k, *b = bit + (size_t)row * k;
            double sum[LANES] = {0}, gone[LANES] = {0}, all[LANES] = {0}, size[LANES] = {0}, wide[LANES] = {0};
            size_t at = (size_t)row * n + first;
            memcpy(wide, spread + at, sizeof(double) * width);
            memcpy(size, wide, sizeof wide);
            for (int block = 0; block < blocks; block++) {
                double top = 0, term[LANES], below[LANES];
                for (int i = block * step; i < (block + 1) * step; i++) top = m[i] > top ? m[i] : top;
                top = power_below(top);
                for (int j = 0; j < LANES; j++) {
                    double power = power_below(size[j]);
                    term[j] = top * w.top[(size_t)block * LANES + j];
                    below[j] = unit * (term[j] > power ? term[j] : power);
                }
                for (int i = block * step; i < (block + 1) * step; i++) {
                    const double *value = w.value + (size_t)i * LANES, *lowest = w.bit + (size_t)i * LANES;
                    double one = x[i], most = m[i], bits = b[i];
                    for (int j = 0; j < LANES; j++) {
                        sum[j] += one * value[j];
                        all[j] += most * fabs(value[j]);
                        gone[j] += bits * lowest[j] < below[j] ? below[j] : 0.0;
                    }
                }
                /* C is cut only where a product is larger. */
                for (int j = 0; j < LANES; j++) {
                    gone[j] += unit * term[j];
                    size[j] = fabs(sum[j]) + wide[j] + gone[j];
                    double cut = ulp * power_below(size[j]) + 2 * least;
                    gone[j] += cut;
                    size[j] += cut;
                }
            }
            memcpy(total + at, sum, sizeof(double) * width);
            memcpy(lost + at, gone, sizeof(double) * width);
            memcpy(sizes + at, all, sizeof(double) * width);
        }
    }
    free(memory);
    return 0;
}
