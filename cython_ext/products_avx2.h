/* products_avx2.h: what products.h does in AVX2 with FMA.
 *
 *   packed   panels of 16 columns, 16 floats a row.
 *   tile     6 rows by one panel: 12 of 16 registers are sums. Four terms are unrolled, as each
 *            instruction less counts where another thread shares the core: 8 % on a Zen 3.
 */

enum { PSLIB_ROWS_AVX2 = 6, PSLIB_HALF = 8 };

#define PSLIB_FOR_FMA __attribute__((target("avx2,fma,bmi,bmi2,lzcnt,popcnt")))

/* out: OUT, 64-byte aligned.  One of row_step and column_step is 1. */
PSLIB_FOR_FMA static void pslib_pack_avx2(const float *matrix, int64_t row_step, int64_t column_step, int64_t k,
                                          int64_t n, float *out)
{
    const int64_t rows = column_step == 1 ? PSLIB_PACK_ROWS : k;
    for (int64_t first = 0; first < k; first += rows) {
        const int64_t last = first + rows < k ? first + rows : k;
        float *panel = out;
        for (int64_t j = 0; j < n; j += PSLIB_PANEL_MIN, panel += k * PSLIB_PANEL_MIN) {
            const int64_t have = n - j < PSLIB_PANEL_MIN ? n - j : PSLIB_PANEL_MIN;
            const float *from = matrix + j * column_step;
            for (int64_t i = first; i < last; i++) {
                float *to = panel + i * PSLIB_PANEL_MIN;
                if (have < PSLIB_PANEL_MIN) {
                    for (int64_t c = 0; c < PSLIB_PANEL_MIN; c++)
                        to[c] = c < have ? from[c * column_step + i * row_step] : 0;
                } else if (column_step == 1) {
                    memcpy(to, from + i * row_step, PSLIB_PANEL_MIN * sizeof(float));
                } else {
#pragma GCC unroll 16
                    for (int c = 0; c < PSLIB_PANEL_MIN; c++) to[c] = from[c * column_step + i * row_step];
                }
            }
        }
    }
}

/* rows is a constant where it is inlined: then all sums stay in registers. */
PSLIB_INLINE PSLIB_FOR_FMA void pslib_tile_avx2(const PslibTile *t, const int rows)
{
    __m256 sum[PSLIB_ROWS_AVX2][2];
    const int64_t row = t->row, step = t->step, out_row = t->out_row;
    const float *low = t->left, *high = t->left + 3 * row; /* the rows behind are 1 and 2 strides away in an address */
    float *const out = t->out;
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++)
            sum[i][v] = t->goes_on ? _mm256_loadu_ps(out + i * out_row + v * PSLIB_HALF) : _mm256_setzero_ps();
    const float *end = t->panel + t->words * PSLIB_PANEL_MIN;
#pragma GCC unroll 4
    for (const float *b = t->panel; b != end; b += PSLIB_PANEL_MIN) {
        const __m256 right[2] = {_mm256_load_ps(b), _mm256_load_ps(b + PSLIB_HALF)};
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            const __m256 one = _mm256_broadcast_ss((i < 3 ? low : high) + (i % 3) * row);
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++) sum[i][v] = _mm256_fmadd_ps(one, right[v], sum[i][v]);
        }
        low += step;
        high += step;
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            if (t->bias) sum[i][v] = _mm256_add_ps(sum[i][v], _mm256_loadu_ps(t->bias + v * PSLIB_HALF));
            if (t->relu) sum[i][v] = _mm256_max_ps(_mm256_setzero_ps(), sum[i][v]); /* the second, if it is NaN */
            _mm256_storeu_ps(out + i * out_row + v * PSLIB_HALF, sum[i][v]);
        }
}

/* The same where the matrices have less than 16 columns: in a tile of its own. */
PSLIB_INLINE PSLIB_FOR_FMA void pslib_edge_avx2(const PslibTile *t, const int rows)
{
    float part[PSLIB_ROWS_AVX2 * PSLIB_PANEL_MIN] = {0}, bias[PSLIB_PANEL_MIN] = {0};
    const size_t bytes = (size_t)t->have * sizeof(float);
    PslibTile whole = *t;
    whole.out = part;
    whole.out_row = PSLIB_PANEL_MIN;
    if (t->goes_on)
        for (int i = 0; i < rows; i++) memcpy(part + i * PSLIB_PANEL_MIN, t->out + i * t->out_row, bytes);
    if (t->bias) whole.bias = memcpy(bias, t->bias, bytes);
    pslib_tile_avx2(&whole, rows);
    for (int i = 0; i < rows; i++) memcpy(t->out + i * t->out_row, part + i * PSLIB_PANEL_MIN, bytes);
}

#define PSLIB_TILES_AVX2(rows)                                                                           \
    PSLIB_FOR_FMA static void pslib_avx2_##rows##_edge(const PslibTile *t) { pslib_edge_avx2(t, rows); } \
    PSLIB_FOR_FMA static void pslib_avx2_##rows(const PslibTile *t) { pslib_tile_avx2(t, rows); }
PSLIB_TILES_AVX2(1)
PSLIB_TILES_AVX2(2)
PSLIB_TILES_AVX2(3)
PSLIB_TILES_AVX2(4)
PSLIB_TILES_AVX2(5)
PSLIB_TILES_AVX2(6)
#define PSLIB_PAIR_AVX2(rows) {pslib_avx2_##rows##_edge, pslib_avx2_##rows}
static const PslibTileOf PSLIB_AVX2_TILES[PSLIB_ROWS_AVX2][2] = {PSLIB_PAIR_AVX2(1), PSLIB_PAIR_AVX2(2),
                                                                 PSLIB_PAIR_AVX2(3), PSLIB_PAIR_AVX2(4),
                                                                 PSLIB_PAIR_AVX2(5), PSLIB_PAIR_AVX2(6)};

static const PslibProductKernel PSLIB_PRODUCTS_AVX2 = {
    .rows = PSLIB_ROWS_AVX2,
    .panel = PSLIB_PANEL_MIN,
    .narrow = PSLIB_PANEL_MIN - 1,
    .words = 448, /* a panel of 28 KB */
    .asks_ahead = 1,
    .rows_at_once = 60,
    .tiles = &PSLIB_AVX2_TILES[0],
    .pack = pslib_pack_avx2,
};
