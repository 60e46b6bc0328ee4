/* products.h: products of float32 matrices with nothing packed twice, by AVX-512; with factors rounded to bfloat16
 * (products_bfloat16.h) on processors that have fast instructions for it.
 *
 * A BLAS call packs both matrices before it multiplies them, a fifth of the time of a layer: here weights are packed
 * once for all parts of a batch, activations not at all. An element of the result stays in one lane of a register, or
 * returns to it, while its terms are added in their order, each fused with its multiplication. So its bits depend on
 * its row and its column alone, wherever the matrices are cut.
 *
 *   packed   panels of 32 columns, one after the other, each with all k rows; a last panel of at most 16 columns has 16
 *            floats a row. Zeros where the matrix has no column. pack and multiply take the same instruction set.
 *   tile     14 rows by one panel: 28 of 32 registers are sums.
 *   word     the operand of one lane: a float, or two terms in bfloat16.
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

/* Return the words of k terms: an odd last term has its own word. */
static inline int64_t pslib_words_of(int rounded, int64_t k) { return rounded ? (k + 1) / 2 : k; }

/* Return the words of a packed matrix. */
static inline int64_t pslib_packed_length(int rounded, int64_t k, int64_t n)
{
    return pslib_words_of(rounded, k) * ((n + PSLIB_PANEL_MIN - 1) / PSLIB_PANEL_MIN * PSLIB_PANEL_MIN);
}

#if PSLIB_HAS_LEVELS

/* Compilers that have the instructions. */
#if defined(__clang__) ? __clang_major__ >= 9 : __GNUC__ >= 10
#define PSLIB_HAS_BFLOAT16 1
#else
#define PSLIB_HAS_BFLOAT16 0
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
    int goes_on, relu; /* out holds the sum of the terms before; max(sum + bias, 0) */
} PslibTile;

typedef void (*PslibTileOf)(const PslibTile *);

/* Functions for words of a float or of two terms in bfloat16. */
typedef struct {
    const PslibTileOf (*tiles)[2]; /* for each number of rows, of narrow panels and of others */
    void (*pack)(const float *matrix, int64_t row_step, int64_t column_step, int64_t k, int64_t n, float *out);
    void (*slivers)(const float *left, int64_t row, int64_t k, int64_t m, float *out);
} PslibProductKernel;

enum {
    PSLIB_ROWS_AVX512 = 14,
    PSLIB_PANEL = 32,
    PSLIB_PANEL_AHEAD = 8, /* rows of a panel that are prefetched before they are read */
};

/* A tile of bfloat16 is the same code, so it is compiled for both; the compiler never takes VDPBF16PS by itself. */
#if PSLIB_HAS_BFLOAT16
#define PSLIB_FOR_BFLOAT16 \
    __attribute__((target("avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi,bmi2,lzcnt,popcnt")))
#define PSLIB_FOR_TILE PSLIB_FOR_BFLOAT16
#else
#define PSLIB_FOR_TILE PSLIB_FOR_AVX512
#endif

static inline __mmask16 pslib_lanes(int64_t left)
{
    return left >= PSLIB_PANEL_MIN ? 0xffff : left <= 0 ? 0 : (__mmask16)((1u << left) - 1);
}

/* Pack rows first..last-1 of one panel from a matrix whose rows are contiguous, `row` floats apart. panel: OUT. */
PSLIB_FOR_AVX512 static void pslib_pack_rows(const float *from, int64_t row, int64_t first, int64_t last, int64_t have,
                                             int64_t width, float *panel)
{
    const __mmask16 low = pslib_lanes(have), high = pslib_lanes(have - PSLIB_PANEL_MIN);
    for (int64_t i = first; i < last; i++) {
        float *to = panel + i * width;
        _mm512_store_ps(to, _mm512_maskz_loadu_ps(low, from + i * row));
        if (width == PSLIB_PANEL)
            _mm512_store_ps(to + PSLIB_PANEL_MIN, _mm512_maskz_loadu_ps(high, from + i * row + PSLIB_PANEL_MIN));
    }
}

/* Pack the same from a matrix whose columns are contiguous, `column` floats apart. */
PSLIB_FOR_AVX512 static void pslib_pack_columns(const float *from, int64_t column, int64_t first, int64_t last,
                                                int64_t have, int64_t width, float *panel)
{
    const __m512i step = _mm512_mullo_epi32(
        _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi32((int)column));
    const __m512 nothing = _mm512_setzero_ps();
    for (int64_t lane = 0; lane < width; lane += PSLIB_PANEL_MIN) {
        const __mmask16 there = pslib_lanes(have - lane);
        const float *block = from + lane * column;
        for (int64_t i = first; i < last; i++)
            _mm512_store_ps(panel + i * width + lane,
                            there == 0 ? nothing : _mm512_mask_i32gather_ps(nothing, there, step, block + i, 4));
    }
}

/* Pack a matrix. out: OUT, 64-byte aligned.  One of row_step and column_step is 1. */
PSLIB_FOR_AVX512 static void pslib_pack_avx512(const float *matrix, int64_t row_step, int64_t column_step, int64_t k,
                                               int64_t n, float *out)
{
    const int64_t rows = column_step == 1 ? PSLIB_PACK_ROWS : k;
    for (int64_t first = 0; first < k; first += rows) {
        const int64_t last = first + rows < k ? first + rows : k;
        float *panel = out;
        for (int64_t j = 0; j < n; j += PSLIB_PANEL) {
            const int64_t width = n - j > PSLIB_PANEL_MIN ? PSLIB_PANEL : PSLIB_PANEL_MIN;
            if (column_step == 1)
                pslib_pack_rows(matrix + j, row_step, first, last, n - j, width, panel);
            else
                pslib_pack_columns(matrix + j * column_step, column_step, first, last, n - j, width, panel);
            panel += k * width;
        }
    }
}

/* Transpose the left matrix, 14 columns at a time: a sliver is k rows of 14 floats, the last of fewer. out: OUT. */
PSLIB_FOR_AVX512 static void pslib_slivers_avx512(const float *left, int64_t row, int64_t k, int64_t m,
                                                  float *out)
{
    for (int64_t first = 0; first < k; first += PSLIB_PACK_ROWS) {
        const int64_t last = first + PSLIB_PACK_ROWS < k ? first + PSLIB_PACK_ROWS : k;
        for (int64_t i = 0; i < m; i += PSLIB_ROWS_AVX512) {
            const int64_t wide = m - i < PSLIB_ROWS_AVX512 ? m - i : PSLIB_ROWS_AVX512;
            const __mmask16 there = pslib_lanes(wide);
            float *sliver = out + i * k;
            for (int64_t p = first; p < last; p++)
                _mm512_mask_storeu_ps(sliver + p * wide, there, _mm512_maskz_loadu_ps(there, left + p * row + i));
        }
    }
}

#if PSLIB_HAS_BFLOAT16
#define PSLIB_ADD_PRODUCTS(pairs, sum, left, right) \
    ((pairs) ? _mm512_dpbf16_ps(sum, (__m512bh)(left), (__m512bh)(right)) : _mm512_fmadd_ps(left, right, sum))
#else
#define PSLIB_ADD_PRODUCTS(pairs, sum, left, right) _mm512_fmadd_ps(left, right, sum)
#endif

/* Multiply one tile. rows, vectors and pairs are constants where this is inlined, so all sums stay in registers. */
PSLIB_INLINE PSLIB_FOR_TILE void pslib_tile_avx512(const PslibTile *t, const int rows, const int vectors,
                                                   const int pairs)
{
    __m512 sum[PSLIB_ROWS_AVX512][2];
    const float *left[5]; /* of every third row: the two behind it are 1 and 2 strides away in an address */
    const int64_t row = t->row, step = t->step, out_row = t->out_row;
    const float *const bias = t->bias;
    float *const out = t->out;
    const int goes_on = t->goes_on, relu = t->relu;
    const __mmask16 there[2] = {pslib_lanes(t->have), pslib_lanes(t->have - PSLIB_PANEL_MIN)};
    /* a mask without lanes reads nothing and gives zeros */
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            sum[i][v] = _mm512_maskz_loadu_ps(goes_on ? there[v] : 0, out + i * out_row + v * PSLIB_PANEL_MIN);
#pragma GCC unroll 5
    for (int i = 0; i < 5; i++) left[i] = t->left + 3 * i * row;
    const float *end = t->panel + t->words * vectors * PSLIB_PANEL_MIN;
    for (const float *b = t->panel; b != end; b += vectors * PSLIB_PANEL_MIN) {
        __m512 right[2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            _mm_prefetch((const char *)(b + (PSLIB_PANEL_AHEAD * vectors + v) * PSLIB_PANEL_MIN), _MM_HINT_T0);
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) right[v] = _mm512_load_ps(b + v * PSLIB_PANEL_MIN);
#pragma GCC unroll 14
        for (int i = 0; i < rows; i++) {
            const __m512 one = _mm512_set1_ps(left[i / 3][(i % 3) * row]);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) sum[i][v] = PSLIB_ADD_PRODUCTS(pairs, sum[i][v], one, right[v]);
        }
#pragma GCC unroll 5
        for (int i = 0; i < 5; i++) left[i] += step;
    }
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            if (bias) sum[i][v] = _mm512_add_ps(sum[i][v], _mm512_maskz_loadu_ps(there[v], bias + v * PSLIB_PANEL_MIN));
            if (relu) sum[i][v] = _mm512_max_ps(_mm512_setzero_ps(), sum[i][v]); /* the second operand if NaN */
            _mm512_mask_storeu_ps(out + i * out_row + v * PSLIB_PANEL_MIN, there[v], sum[i][v]);
        }
}

#define PSLIB_EACH_ROWS_AVX512(of) \
    of(1) of(2) of(3) of(4) of(5) of(6) of(7) of(8) of(9) of(10) of(11) of(12) of(13) of(14)
#define PSLIB_TILES_AVX512(rows)                                                                                   \
    PSLIB_FOR_TILE static void pslib_avx512_##rows##_1(const PslibTile *t) { pslib_tile_avx512(t, rows, 1, 0); } \
    PSLIB_FOR_TILE static void pslib_avx512_##rows##_2(const PslibTile *t) { pslib_tile_avx512(t, rows, 2, 0); }
PSLIB_EACH_ROWS_AVX512(PSLIB_TILES_AVX512)
#define PSLIB_PAIR_AVX512(rows) {pslib_avx512_##rows##_1, pslib_avx512_##rows##_2},
static const PslibTileOf PSLIB_AVX512_TILES[PSLIB_ROWS_AVX512][2] = {PSLIB_EACH_ROWS_AVX512(PSLIB_PAIR_AVX512)};

static const PslibProductKernel PSLIB_PRODUCTS_AVX512 = {
    .tiles = &PSLIB_AVX512_TILES[0],
    .pack = pslib_pack_avx512,
    .slivers = pslib_slivers_avx512,
};
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

/* Return 1 if this machine can run the products. */
static inline int pslib_has_products(void)
{
    return pslib_best_level() >= PSLIB_AVX512 && __builtin_cpu_supports("fma");
}

/* Return 1 if products in bfloat16 are faster than those in float32 on this machine. */
static inline int pslib_has_bfloat16(void)
{
#if PSLIB_HAS_BFLOAT16
    return pslib_has_products() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd");
#else
    return 0;
#endif
}

/* Pack a matrix. out: OUT, 64-byte aligned.  One of row_step and column_step is 1. */
static void pslib_pack(int rounded, const float *matrix, int64_t row_step, int64_t column_step, int64_t k, int64_t n,
                       float *out)
{
    pslib_products_of(rounded)->pack(matrix, row_step, column_step, k, n, out);
}

static inline int64_t pslib_least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Return the number of words to add at once, so that no small rest is left at the end. */
static inline int64_t pslib_some_words(int64_t left, int64_t most)
{
    if (left <= most) return left;
    return left < 2 * most ? (left + 1) / 2 : most;
}

/* Return the floats of a row of a panel where `left` columns are left. */
static inline int64_t pslib_panel_width(int64_t left)
{
    return left > PSLIB_PANEL_MIN ? PSLIB_PANEL : PSLIB_PANEL_MIN;
}

/* out[i, j] = sum over p of left[i, p] packed[p, j], then + bias[j] unless NULL and max(., 0) with relu.
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
/* The same with rows rounded first, as many as stay in the second cache for all panels.  Returns 0, or -1 without
 * memory for them. */
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

#else /* never called: see pslib_has_products */
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
