/* products.h: products of float matrices with nothing packed twice, for processors with AVX-512.
 * With factors that are rounded to bfloat16, on processors that have fast instructions for it.
 *
 * A BLAS call packs both matrices before it multiplies them, a fifth of the time of a layer: here weights are
 * packed once for all parts of a batch, activations not at all. An element of the result stays in one lane of a
 * register, or returns to it, while its terms are added in their order, each fused with its multiplication. So
 * its bits are a function of its row and its column alone, wherever the matrices are cut.
 *
 *   packed   panels of 16 or 32 columns, one after the other; in each all k rows, zeros where the matrix has no
 *            column. Who packs and who multiplies take the same instruction set.
 *   tile     a few rows by one panel: the sums that stay in registers.
 *   word     what a lane multiplies at once: a float, or two terms in bfloat16 (products_bfloat16.h).
 */
#ifndef PSLIB_PRODUCTS_H
#define PSLIB_PRODUCTS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/vectors.h"

enum {
    PSLIB_PANEL_MIN = 16,
    PSLIB_TILE_WORDS = 216,  /* at a time: panel and tile stay in the first cache (27 and 12 KB) */
    PSLIB_OUTER_WORDS = 128, /* at a time: two packed matrices stay in the second cache */
    PSLIB_PACK_ROWS = 8      /* read side by side, written a panel at a time */
};

/* Words of k terms: an odd last one has a word of its own. */
static inline int64_t pslib_words_of(int rounded, int64_t k) { return rounded ? (k + 1) / 2 : k; }

/* Words of a packed matrix. */
static inline int64_t pslib_packed_length(int rounded, int64_t k, int64_t n)
{
    return pslib_words_of(rounded, k) * ((n + PSLIB_PANEL_MIN - 1) / PSLIB_PANEL_MIN * PSLIB_PANEL_MIN);
}

#if PSLIB_HAS_LEVELS

/* Whether the compiler knows the instructions. */
#if defined(__clang__) ? __clang_major__ >= 9 : __GNUC__ >= 10
#define PSLIB_HAS_BFLOAT16 1
#else
#define PSLIB_HAS_BFLOAT16 0
#endif

#ifndef PSLIB_INLINE
#define PSLIB_INLINE static inline __attribute__((always_inline))
#endif

typedef struct {
    const float *left; /* row i, word p: left[i * row + p * step] */
    int64_t row, step;
    const float *panel;
    int64_t words;
    float *out;
    int64_t out_row;
    int64_t have;      /* columns from the panel's first on */
    const float *bias; /* NULL: none */
    int goes_on, relu; /* whether `out` holds the terms before; max(sum + bias, 0) */
} PslibTile;

typedef void (*PslibTileOf)(const PslibTile *);

/* What differs between words of a float and of two terms in bfloat16. */
typedef struct {
    const PslibTileOf (*tiles)[2]; /* for each number of rows, of narrow panels and of others */
    void (*pack)(const float *matrix, int64_t row_step, int64_t column_step, int64_t k, int64_t n, float *out);
    void (*slivers)(const float *left, int64_t row, int64_t k, int64_t m, float *out);
} PslibProductKernel;

#include "model/products_avx512.h"
#if PSLIB_HAS_BFLOAT16
#include "model/products_bfloat16.h"
#endif

static inline const PslibProductKernel *pslib_products_of(int rounded)
{
#if PSLIB_HAS_BFLOAT16
    if (rounded) return &PSLIB_PRODUCTS_BFLOAT16;
#endif
    return &PSLIB_PRODUCTS_AVX512;
}

/* Whether this machine can run the products. */
static inline int pslib_has_products(void)
{
    return pslib_best_level() >= PSLIB_AVX512 && __builtin_cpu_supports("fma");
}

/* Whether this machine has products in bfloat16 that are faster than those in float32. */
static inline int pslib_has_bfloat16(void)
{
#if PSLIB_HAS_BFLOAT16
    return pslib_has_products() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd");
#else
    return 0;
#endif
}

/* out: OUT, 64-byte aligned.  One of row_step and column_step is 1. */
static void pslib_pack(int rounded, const float *matrix, int64_t row_step, int64_t column_step, int64_t k, int64_t n,
                       float *out)
{
    pslib_products_of(rounded)->pack(matrix, row_step, column_step, k, n, out);
}

static inline int64_t pslib_least(int64_t a, int64_t b) { return a < b ? a : b; }

/* How many of the words that are left are added at once: no small rest at the end. */
static inline int64_t pslib_some_words(int64_t left, int64_t most)
{
    if (left <= most) return left;
    return left < 2 * most ? (left + 1) / 2 : most;
}

/* Floats of a row of the panel from column j of n on. */
static inline int64_t pslib_panel_width(int64_t left)
{
    return left > PSLIB_PANEL_MIN ? PSLIB_PANEL : PSLIB_PANEL_MIN;
}

/* out[i, j] = sum over p of left[i, p] packed[p, j], then + bias[j] and max(., 0) where asked.
 * left: m rows of k words, `row` apart.  out: OUT, m rows of n floats, `out_row` apart. */
static void pslib_multiply_rows(const PslibProductKernel *kernel, const float *left, int64_t row, const float *packed,
                                float *out, int64_t out_row, int64_t m, int64_t n, int64_t k, const float *bias,
                                int relu)
{
    for (int64_t j = 0, width; j < n; j += PSLIB_PANEL, packed += k * width) {
        width = pslib_panel_width(n - j);
        for (int64_t first = 0, words; first < k; first += words) {
            words = pslib_some_words(k - first, PSLIB_TILE_WORDS);
            const int is_last = first + words == k;
            PslibTile t = {.row = row, .step = 1, .panel = packed + first * width, .words = words, .out_row = out_row,
                           .have = n - j, .bias = bias && is_last ? bias + j : NULL, .goes_on = first > 0,
                           .relu = relu && is_last};
            for (int64_t i = 0; i < m; i += PSLIB_ROWS_AVX512) {
                const int64_t rows = pslib_least(m - i, PSLIB_ROWS_AVX512);
                t.left = left + i * row + first;
                t.out = out + i * out_row + j;
                kernel->tiles[rows - 1][width == PSLIB_PANEL](&t);
            }
        }
    }
}

#if PSLIB_HAS_BFLOAT16
/* The same with rows that are rounded first, so many that they are in the second cache for all panels.  Returns 0, or -1 when there is no memory for them. */
static int pslib_multiply_rounded(const float *left, int64_t row, const float *packed, float *out, int64_t out_row,
                                  int64_t m, int64_t n, int64_t k, const float *bias, int relu)
{
    const PslibProductKernel *kernel = &PSLIB_PRODUCTS_BFLOAT16;
    const int64_t apart = pslib_words_apart(k);
    void *room = NULL;
    if (posix_memalign(&room, 64, pslib_least(m, PSLIB_BFLOAT16_ROWS) * apart * sizeof(float)) != 0) return -1;
    for (int64_t first = 0, rows; first < m; first += rows) {
        rows = pslib_least(m - first, PSLIB_BFLOAT16_ROWS);
        pslib_round_rows(left + first * row, row, rows, k, room);
        pslib_multiply_rows(kernel, room, apart, packed, out + first * out_row, out_row, rows, n,
                            pslib_words_of(1, k), bias, relu);
    }
    free(room);
    return 0;
}
#endif

/* left: m rows of k floats, `row` apart.  out: OUT, as above.  Returns 0, or -1 when there is no memory. */
static int pslib_multiply(int rounded, const float *left, int64_t row, const float *packed, float *out, int64_t out_row,
                          int64_t m, int64_t n, int64_t k, const float *bias, int relu)
{
#if PSLIB_HAS_BFLOAT16
    if (rounded) return pslib_multiply_rounded(left, row, packed, out, out_row, m, n, k, bias, relu);
#endif
    pslib_multiply_rows(&PSLIB_PRODUCTS_AVX512, left, row, packed, out, out_row, m, n, k, bias, relu);
    return 0;
}

/* out[i, j] = sum over p of left[p, i] right[p, j], p rising: (k, m)^T (k, n), rows left_row and right_row apart.
 * out: OUT.  Returns 0, or -1 when there is no memory. */
static int pslib_outer(int rounded, const float *left, int64_t left_row, const float *right, int64_t right_row,
                       float *out, int64_t out_row, int64_t m, int64_t n, int64_t k)
{
    const PslibProductKernel *kernel = pslib_products_of(rounded);
    const int64_t most = pslib_least(k, PSLIB_OUTER_WORDS * (rounded ? 2 : 1));
    const int64_t packed = pslib_packed_length(rounded, most, n), most_words = pslib_words_of(rounded, most);
    void *room = NULL;
    if (posix_memalign(&room, 64, (packed + most_words * m) * sizeof(float)) != 0) return -1;
    float *const panels = room, *const slivers = panels + packed;
    for (int64_t first = 0; first < k; first += most) {
        const int64_t terms = pslib_least(k - first, most), words = pslib_words_of(rounded, terms);
        kernel->pack(right + first * right_row, right_row, 1, terms, n, panels);
        kernel->slivers(left + first * left_row, left_row, terms, m, slivers);
        const float *panel = panels;
        for (int64_t j = 0; j < n; j += PSLIB_PANEL) {
            const int64_t width = pslib_panel_width(n - j);
            PslibTile t = {.row = 1, .panel = panel, .words = words, .out_row = out_row, .have = n - j,
                           .goes_on = first > 0};
            for (int64_t i = 0; i < m; i += PSLIB_ROWS_AVX512) {
                const int64_t rows = pslib_least(m - i, PSLIB_ROWS_AVX512);
                t.left = slivers + i * words;
                t.step = rows;
                t.out = out + i * out_row + j;
                kernel->tiles[rows - 1][width == PSLIB_PANEL](&t);
            }
            panel += words * width;
        }
    }
    free(room);
    return 0;
}

#else /* nobody calls them: see pslib_has_products */
static inline int pslib_has_products(void) { return 0; }
static inline int pslib_has_bfloat16(void) { return 0; }
static inline void pslib_pack(int rounded, const float *matrix, int64_t row_step, int64_t column_step, int64_t k,
                              int64_t n, float *out)
{
}
static inline int pslib_multiply(int rounded, const float *left, int64_t row, const float *packed, float *out,
                                 int64_t out_row, int64_t m, int64_t n, int64_t k, const float *bias, int relu)
{
    return -1;
}
static inline int pslib_outer(int rounded, const float *left, int64_t left_row, const float *right, int64_t right_row,
                              float *out, int64_t out_row, int64_t m, int64_t n, int64_t k)
{
    return -1;
}
#endif

#endif
