/* products_avx512.h: what products.h does in AVX-512.
 *
 *   packed   panels of 32 columns; a last panel of at most 16 columns has 16 floats a row.
 *   tile     14 rows by one panel: 28 of 32 registers are sums.
 */

enum {
    PSLIB_ROWS_AVX512 = 14,
    PSLIB_PANEL = 32,
    PSLIB_PANEL_AHEAD = 8, /* rows of a panel that are asked for before they are read */
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

/* Rows first..last-1 of one panel from a matrix whose rows are `row` floats apart and contiguous. */
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

/* The same from a matrix whose columns are contiguous, `column` floats apart. */
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

/* out: OUT, 64-byte aligned.  One of row_step and column_step is 1. */
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

/* Columns of the left matrix's transpose, 14 at a time: a sliver is k rows of 14 floats, the last of fewer. */
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

/* rows, vectors and pairs are constants where it is inlined: then all sums stay in registers. */
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
            if (relu) sum[i][v] = _mm512_max_ps(_mm512_setzero_ps(), sum[i][v]); /* the second, if it is NaN */
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
