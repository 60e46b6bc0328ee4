/* products.h: products of float matrices for processors with AVX-512, with nothing packed twice.
 *
 * A BLAS call packs both matrices before it multiplies them, a fifth of the time of a layer: here weights are
 * packed once for all parts of a batch, activations not at all. An element of the result stays in one lane of a
 * register, or returns to it, while its terms are added in their order, each fused with its multiplication. So
 * its bits are a function of its row and its column alone, wherever the matrices are cut.
 *
 *   packed   panels of 32 columns, one after the other; in each all k rows, 32 floats a row, zeros where the
 *            matrix has no column. A last panel of at most 16 columns has 16 floats a row.
 *   tile     14 rows by one panel: 28 of 32 registers are sums.
 */
#ifndef PSLIB_PRODUCTS_H
#define PSLIB_PRODUCTS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "vectors.h"

enum {
    PSLIB_TILE = 14,
    PSLIB_PANEL = 32,
    PSLIB_LANES = 16,
    PSLIB_PRODUCT_TERMS = 216, /* at a time: panel and tile stay in the first cache (27 and 12 KB) */
    PSLIB_OUTER_TERMS = 128,   /* the same for two packed matrices, both blocks in the second cache */
    PSLIB_PANEL_AHEAD = 8,     /* rows of a panel that are asked for before they are read */
    PSLIB_PACK_ROWS = 8        /* read side by side, written a panel at a time */
};

static inline int64_t pslib_panel_width(int64_t left) { return left > PSLIB_LANES ? PSLIB_PANEL : PSLIB_LANES; }

/* Floats of a packed matrix. */
static inline int64_t pslib_packed_length(int64_t k, int64_t n)
{
    return k * ((n + PSLIB_LANES - 1) / PSLIB_LANES * PSLIB_LANES);
}

#if PSLIB_HAS_LEVELS

#ifndef PSLIB_INLINE
#define PSLIB_INLINE static inline __attribute__((always_inline))
#endif

static inline __mmask16 pslib_lanes(int64_t left)
{
    return left >= PSLIB_LANES ? 0xffff : left <= 0 ? 0 : (__mmask16)((1u << left) - 1);
}

/* Rows first..last-1 of one panel from a matrix whose rows are `row` floats apart and contiguous. */
PSLIB_FOR_AVX512 static void pslib_pack_rows(const float *from, int64_t row, int64_t first, int64_t last, int64_t have,
                                             int64_t width, float *panel)
{
    const __mmask16 low = pslib_lanes(have), high = pslib_lanes(have - PSLIB_LANES);
    for (int64_t i = first; i < last; i++) {
        float *to = panel + i * width;
        _mm512_store_ps(to, _mm512_maskz_loadu_ps(low, from + i * row));
        if (width == PSLIB_PANEL)
            _mm512_store_ps(to + PSLIB_LANES, _mm512_maskz_loadu_ps(high, from + i * row + PSLIB_LANES));
    }
}

/* The same from a matrix whose columns are contiguous, `column` floats apart. */
PSLIB_FOR_AVX512 static void pslib_pack_columns(const float *from, int64_t column, int64_t first, int64_t last,
                                                int64_t have, int64_t width, float *panel)
{
    const __m512i step = _mm512_mullo_epi32(
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi32((int)column));
    const __m512 nothing = _mm512_setzero_ps();
    for (int64_t lane = 0; lane < width; lane += PSLIB_LANES) {
        const __mmask16 there = pslib_lanes(have - lane);
        const float *block = from + lane * column;
        for (int64_t i = first; i < last; i++)
            _mm512_store_ps(panel + i * width + lane,
                            there == 0 ? nothing : _mm512_mask_i32gather_ps(nothing, there, step, block + i, 4));
    }
}

/* out: OUT, 64-byte aligned.  One of row_step and column_step is 1. */
PSLIB_FOR_AVX512 static void pslib_pack(const float *matrix, int64_t row_step, int64_t column_step, int64_t k, int64_t n,
                                        float *out)
{
    const int64_t rows = column_step == 1 ? PSLIB_PACK_ROWS : k;
    for (int64_t first = 0; first < k; first += rows) {
        const int64_t last = first + rows < k ? first + rows : k;
        float *panel = out;
        for (int64_t j = 0; j < n; j += PSLIB_PANEL) {
            const int64_t width = pslib_panel_width(n - j);
            if (column_step == 1)
                pslib_pack_rows(matrix + j, row_step, first, last, n - j, width, panel);
            else
                pslib_pack_columns(matrix + j * column_step, column_step, first, last, n - j, width, panel);
            panel += k * width;
        }
    }
}

/* Columns of the left matrix's transpose, 14 at a time: a sliver is k rows of 14 floats, the last of fewer. */
PSLIB_FOR_AVX512 static void pslib_pack_slivers(const float *left, int64_t row, int64_t k, int64_t m, float *out)
{
    for (int64_t first = 0; first < k; first += PSLIB_PACK_ROWS) {
        const int64_t last = first + PSLIB_PACK_ROWS < k ? first + PSLIB_PACK_ROWS : k;
        for (int64_t i = 0; i < m; i += PSLIB_TILE) {
            const int64_t wide = m - i < PSLIB_TILE ? m - i : PSLIB_TILE;
            const __mmask16 there = pslib_lanes(wide);
            float *sliver = out + i * k;
            for (int64_t p = first; p < last; p++)
                _mm512_mask_storeu_ps(sliver + p * wide, there, _mm512_maskz_loadu_ps(there, left + p * row + i));
        }
    }
}

typedef struct {
    const float *left; /* row i, term p: left[i * row + p * step] */
    int64_t row, step;
    const float *panel;
    int64_t terms;
    float *out;
    int64_t out_row;
    const float *bias; /* NULL: none */
    int goes_on, relu; /* whether `out` holds the terms before; max(sum + bias, 0) */
    __mmask16 low, high;
} PslibTile;

/* rows and vectors are constants where it is inlined: then all sums stay in registers. */
PSLIB_INLINE PSLIB_FOR_AVX512 void pslib_tile(const PslibTile *t, const int rows, const int vectors)
{
    __m512 sum[PSLIB_TILE][2];
    const float *left[5]; /* of every third row: the two behind it are 1 and 2 strides away in an address */
    const int64_t row = t->row, step = t->step, out_row = t->out_row;
    const float *const bias = t->bias;
    float *const out = t->out;
    const int goes_on = t->goes_on, relu = t->relu;
    const __mmask16 there[2] = {t->low, t->high};
    /* a mask without lanes reads nothing and gives zeros */
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            sum[i][v] = _mm512_maskz_loadu_ps(goes_on ? there[v] : 0, out + i * out_row + v * PSLIB_LANES);
#pragma GCC unroll 5
    for (int i = 0; i < 5; i++) left[i] = t->left + 3 * i * row;
    const float *end = t->panel + t->terms * vectors * PSLIB_LANES;
    for (const float *b = t->panel; b != end; b += vectors * PSLIB_LANES) {
        __m512 right[2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            _mm_prefetch((const char *)(b + PSLIB_PANEL_AHEAD * vectors * PSLIB_LANES + v * PSLIB_LANES), _MM_HINT_T0);
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) right[v] = _mm512_load_ps(b + v * PSLIB_LANES);
#pragma GCC unroll 14
        for (int i = 0; i < rows; i++) {
            const __m512 one = _mm512_set1_ps(left[i / 3][(i % 3) * row]);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) sum[i][v] = _mm512_fmadd_ps(one, right[v], sum[i][v]);
        }
#pragma GCC unroll 5
        for (int i = 0; i < 5; i++) left[i] += step;
    }
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            if (bias) sum[i][v] = _mm512_add_ps(sum[i][v], _mm512_maskz_loadu_ps(there[v], bias + v * PSLIB_LANES));
            if (relu) sum[i][v] = _mm512_max_ps(_mm512_setzero_ps(), sum[i][v]); /* the second, if it is NaN */
            _mm512_mask_storeu_ps(out + i * out_row + v * PSLIB_LANES, there[v], sum[i][v]);
        }
}

typedef void (*PslibTileOf)(const PslibTile *);
#define PSLIB_TILES_OF(rows)                                                                      \
    PSLIB_FOR_AVX512 static void pslib_tile_##rows##_1(const PslibTile *t) { pslib_tile(t, rows, 1); } \
    PSLIB_FOR_AVX512 static void pslib_tile_##rows##_2(const PslibTile *t) { pslib_tile(t, rows, 2); }
PSLIB_TILES_OF(1)
PSLIB_TILES_OF(2)
PSLIB_TILES_OF(3)
PSLIB_TILES_OF(4)
PSLIB_TILES_OF(5)
PSLIB_TILES_OF(6)
PSLIB_TILES_OF(7)
PSLIB_TILES_OF(8)
PSLIB_TILES_OF(9)
PSLIB_TILES_OF(10)
PSLIB_TILES_OF(11)
PSLIB_TILES_OF(12)
PSLIB_TILES_OF(13)
PSLIB_TILES_OF(14)
#define PSLIB_TILE_PAIR(rows) {pslib_tile_##rows##_1, pslib_tile_##rows##_2}
static const PslibTileOf PSLIB_TILES[PSLIB_TILE][2] = {
    PSLIB_TILE_PAIR(1),  PSLIB_TILE_PAIR(2),  PSLIB_TILE_PAIR(3),  PSLIB_TILE_PAIR(4),  PSLIB_TILE_PAIR(5),
    PSLIB_TILE_PAIR(6),  PSLIB_TILE_PAIR(7),  PSLIB_TILE_PAIR(8),  PSLIB_TILE_PAIR(9),  PSLIB_TILE_PAIR(10),
    PSLIB_TILE_PAIR(11), PSLIB_TILE_PAIR(12), PSLIB_TILE_PAIR(13), PSLIB_TILE_PAIR(14)};

/* How many of the terms that are left are added at once: no small rest at the end. */
static inline int64_t pslib_terms(int64_t left)
{
    if (left <= PSLIB_PRODUCT_TERMS) return left;
    return left < 2 * PSLIB_PRODUCT_TERMS ? (left + 1) / 2 : PSLIB_PRODUCT_TERMS;
}

/* out[i, j] = sum over p of left[i, p] packed[p, j], then + bias[j] and max(., 0) where asked.
 * left: m rows of k floats, `row` apart.  out: OUT, m rows of n floats, `out_row` apart. */
static void pslib_multiply(const float *left, int64_t row, const float *packed, float *out, int64_t out_row, int64_t m,
                           int64_t n, int64_t k, const float *bias, int relu)
{
    for (int64_t j = 0; j < n; j += PSLIB_PANEL) {
        const int64_t width = pslib_panel_width(n - j);
        for (int64_t first = 0, terms; first < k; first += terms) {
            terms = pslib_terms(k - first);
            const int is_last = first + terms == k;
            PslibTile t = {.row = row, .step = 1, .panel = packed + first * width, .terms = terms, .out_row = out_row,
                           .bias = bias && is_last ? bias + j : NULL, .goes_on = first > 0, .relu = relu && is_last,
                           .low = pslib_lanes(n - j), .high = pslib_lanes(n - j - PSLIB_LANES)};
            for (int64_t i = 0; i < m; i += PSLIB_TILE) {
                const int64_t rows = m - i < PSLIB_TILE ? m - i : PSLIB_TILE;
                t.left = left + i * row + first;
                t.out = out + i * out_row + j;
                PSLIB_TILES[rows - 1][width == PSLIB_PANEL](&t);
            }
        }
        packed += k * width;
    }
}

/* out[i, j] = sum over p of left[p, i] right[p, j], p rising: (k, m)^T (k, n), rows left_row and right_row apart.
 * out: OUT.  Returns 0, or -1 when there is no memory. */
static int pslib_outer(const float *left, int64_t left_row, const float *right, int64_t right_row, float *out,
                       int64_t out_row, int64_t m, int64_t n, int64_t k)
{
    const int64_t most = k < PSLIB_OUTER_TERMS ? k : PSLIB_OUTER_TERMS, packed = pslib_packed_length(most, n);
    void *room = NULL;
    if (posix_memalign(&room, 64, (packed + most * m) * sizeof(float)) != 0) return -1;
    float *const panels = room, *const slivers = panels + packed;
    for (int64_t first = 0; first < k; first += most) {
        const int64_t terms = k - first < most ? k - first : most;
        pslib_pack(right + first * right_row, right_row, 1, terms, n, panels);
        pslib_pack_slivers(left + first * left_row, left_row, terms, m, slivers);
        const float *panel = panels;
        for (int64_t j = 0; j < n; j += PSLIB_PANEL) {
            const int64_t width = pslib_panel_width(n - j);
            PslibTile t = {.row = 1, .panel = panel, .terms = terms, .out_row = out_row, .goes_on = first > 0,
                           .low = pslib_lanes(n - j), .high = pslib_lanes(n - j - PSLIB_LANES)};
            for (int64_t i = 0; i < m; i += PSLIB_TILE) {
                const int64_t rows = m - i < PSLIB_TILE ? m - i : PSLIB_TILE;
                t.left = slivers + i * terms;
                t.step = rows;
                t.out = out + i * out_row + j;
                PSLIB_TILES[rows - 1][width == PSLIB_PANEL](&t);
            }
            panel += terms * width;
        }
    }
    free(room);
    return 0;
}

#else /* nobody calls them: see pslib_best_level */
static inline void pslib_pack(const float *matrix, int64_t row_step, int64_t column_step, int64_t k, int64_t n,
                              float *out)
{
}
static inline void pslib_multiply(const float *left, int64_t row, const float *packed, float *out, int64_t out_row,
                                  int64_t m, int64_t n, int64_t k, const float *bias, int relu)
{
}
static inline int pslib_outer(const float *left, int64_t left_row, const float *right, int64_t right_row, float *out,
                              int64_t out_row, int64_t m, int64_t n, int64_t k)
{
    return -1;
}
#endif

#endif
