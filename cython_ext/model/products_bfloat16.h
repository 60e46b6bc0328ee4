/* products_bfloat16.h: the products of products.h with both factors rounded to bfloat16, by AVX-512's VDPBF16PS.
 *
 *   word     two terms that follow each other, the even one in the lower half. VDPBF16PS adds the products of both
 *            to a sum in float32, so a word is to it what a float is to FMA, and two multiply-adds.
 *   packed   panels of (k + 1) / 2 rows of words; an odd last term is paired with 0.
 *   left     a row is rounded before it is multiplied, some rows at a time for all panels.
 *
 * Factors are rounded to the nearest, ties to even; numbers beyond its range become infinite, NaN stays. A
 * product of two of them is exact in float32. Subnormal factors and sums count as 0, as the instruction has it.
 *
 * An AMD processor (Zen 4) does a VDPBF16PS in the time of an FMA; Intel's (Sapphire Rapids) takes two to three
 * times as long as the two FMAs that it replaces: see pslib_has_bfloat16.
 */

enum {
    PSLIB_BFLOAT16_ROWS = 8 * PSLIB_ROWS_AVX512, /* rounded at a time: of 429 floats 98 KB, in the second cache */
    PSLIB_COLUMN_WORDS = 64                      /* of 16 columns while they are transposed: 4 KB */
};

/* Return the words of a rounded row in memory: whole lines. */
static inline int64_t pslib_words_apart(int64_t k) { return (k + 31) / 32 * 16; }

/* Return word i of each of 16 columns: rows 2 i and 2 i + 1. odd: NULL where there is no such row. */
PSLIB_FOR_BFLOAT16 static inline __m512i pslib_words(const float *even, const float *odd, __mmask16 there)
{
    const __m512 second = odd ? _mm512_maskz_loadu_ps(there, odd) : _mm512_setzero_ps();
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(second, _mm512_maskz_loadu_ps(there, even));
    const __m512i pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(pairs, both);
}

/* Round one row. to: OUT, pslib_words_apart(k) words, 64-byte aligned. */
PSLIB_FOR_BFLOAT16 static inline void pslib_round_row(const float *from, int64_t k, float *to)
{
    for (int64_t j = 0; j < k; j += 32, to += 16) {
        const __m512 low = _mm512_maskz_loadu_ps(pslib_lanes(k - j), from + j);
        const __m512 high = _mm512_maskz_loadu_ps(pslib_lanes(k - j - 16), from + j + 16);
        _mm512_store_si512((void *)to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

/* Round rows. to: OUT, as many rows, pslib_words_apart(k) words apart. */
PSLIB_FOR_BFLOAT16 static void pslib_round_rows(const float *from, int64_t row, int64_t rows, int64_t k, float *to)
{
    for (int64_t i = 0; i < rows; i++) pslib_round_row(from + i * row, k, to + i * pslib_words_apart(k));
}

/* Pack words of one panel from a matrix whose rows are contiguous. panel: OUT. */
PSLIB_FOR_BFLOAT16 static void pslib_pack_row_words(const float *from, int64_t row, int64_t k, int64_t first,
                                                    int64_t last, int64_t have, int64_t width, float *panel)
{
    for (int64_t lane = 0; lane < width; lane += PSLIB_PANEL_MIN) {
        const __mmask16 there = pslib_lanes(have - lane);
        for (int64_t i = first; i < last; i++) {
            const float *even = from + 2 * i * row + lane, *odd = 2 * i + 1 < k ? even + row : NULL;
            _mm512_store_si512((void *)(panel + i * width + lane), pslib_words(even, odd, there));
        }
    }
}

/* The same from a matrix whose columns are contiguous: rounded first, then transposed. */
PSLIB_FOR_BFLOAT16 static void pslib_pack_column_words(const float *from, int64_t column, int64_t k, int64_t have,
                                                       int64_t width, float *panel)
{
    float turned[PSLIB_PANEL_MIN * PSLIB_COLUMN_WORDS] __attribute__((aligned(64)));
    const __m512i step = _mm512_mullo_epi32(_mm512_set1_epi32(PSLIB_COLUMN_WORDS), _mm512_set_epi32(
        15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
    for (int64_t lane = 0; lane < width; lane += PSLIB_PANEL_MIN)
        for (int64_t first = 0; first < k; first += 2 * PSLIB_COLUMN_WORDS) {
            const int64_t terms = k - first < 2 * PSLIB_COLUMN_WORDS ? k - first : 2 * PSLIB_COLUMN_WORDS;
            const int64_t columns = have - lane < PSLIB_PANEL_MIN ? have - lane : PSLIB_PANEL_MIN;
            for (int64_t c = 0; c < columns; c++)
                pslib_round_row(from + (lane + c) * column + first, terms, turned + c * PSLIB_COLUMN_WORDS);
            const __mmask16 there = pslib_lanes(columns);
            float *to = panel + first / 2 * width + lane;
            for (int64_t i = 0; i < (terms + 1) / 2; i++, to += width)
                _mm512_store_ps(to, _mm512_mask_i32gather_ps(_mm512_setzero_ps(), there, step, turned + i, 4));
        }
}

/* Pack a matrix. out: OUT, 64-byte aligned.  One of row_step and column_step is 1. */
PSLIB_FOR_BFLOAT16 static void pslib_pack_bfloat16(const float *matrix, int64_t row_step, int64_t column_step,
                                                   int64_t k, int64_t n, float *out)
{
    const int64_t words = pslib_words_of(1, k), most = column_step == 1 ? PSLIB_PACK_ROWS : words;
    for (int64_t first = 0; first < words; first += most) {
        const int64_t last = first + most < words ? first + most : words;
        float *panel = out;
        for (int64_t j = 0; j < n; j += PSLIB_PANEL) {
            const int64_t width = n - j > PSLIB_PANEL_MIN ? PSLIB_PANEL : PSLIB_PANEL_MIN;
            if (column_step == 1) pslib_pack_row_words(matrix + j, row_step, k, first, last, n - j, width, panel);
            else pslib_pack_column_words(matrix + j * column_step, column_step, k, n - j, width, panel);
            panel += words * width;
        }
    }
}

/* Transpose words of the left matrix, 14 columns at a time, as pslib_slivers_avx512. out: OUT. */
PSLIB_FOR_BFLOAT16 static void pslib_slivers_bfloat16(const float *left, int64_t row, int64_t k, int64_t m, float *out)
{
    const int64_t words = pslib_words_of(1, k);
    for (int64_t first = 0; first < words; first += PSLIB_PACK_ROWS) {
        const int64_t last = first + PSLIB_PACK_ROWS < words ? first + PSLIB_PACK_ROWS : words;
        for (int64_t i = 0; i < m; i += PSLIB_ROWS_AVX512) {
            const int64_t wide = m - i < PSLIB_ROWS_AVX512 ? m - i : PSLIB_ROWS_AVX512;
            const __mmask16 there = pslib_lanes(wide);
            float *sliver = out + i * words;
            for (int64_t p = first; p < last; p++) {
                const float *even = left + 2 * p * row + i, *odd = 2 * p + 1 < k ? even + row : NULL;
                _mm512_mask_storeu_epi32((void *)(sliver + p * wide), there, pslib_words(even, odd, there));
            }
        }
    }
}

#define PSLIB_TILES_BFLOAT16(rows)                                                                                \
    PSLIB_FOR_BFLOAT16 static void pslib_bfloat16_##rows##_1(const PslibTile *t) { pslib_tile_avx512(t, rows, 1, 1); } \
    PSLIB_FOR_BFLOAT16 static void pslib_bfloat16_##rows##_2(const PslibTile *t) { pslib_tile_avx512(t, rows, 2, 1); }
PSLIB_EACH_ROWS_AVX512(PSLIB_TILES_BFLOAT16)
#define PSLIB_PAIR_BFLOAT16(rows) {pslib_bfloat16_##rows##_1, pslib_bfloat16_##rows##_2},
static const PslibTileOf PSLIB_BFLOAT16_TILES[PSLIB_ROWS_AVX512][2] = {PSLIB_EACH_ROWS_AVX512(PSLIB_PAIR_BFLOAT16)};

static const PslibProductKernel PSLIB_PRODUCTS_BFLOAT16 = {
    .tiles = &PSLIB_BFLOAT16_TILES[0],
    .pack = pslib_pack_bfloat16,
    .slivers = pslib_slivers_bfloat16,
};
