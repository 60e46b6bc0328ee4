/* layer_loops.h: the loops of layers.h for one type of floats; included once with REAL float, once with double.
 *
 * LOOP(name) appends the type to the name of a function. Every sum has a fixed order, whatever the instruction set:
 * columns are independent, so the compiler vectorises over them.
 */

typedef struct {
    const REAL *first;
    int64_t stride, step; /* floats from example to example, from field to field */
    uint32_t fields;
    const int32_t *owners;
} LOOP(PslibAddends);

/* y = x + b < 0 ? 0 : x + b, so NaN stays NaN */
PSLIB_INLINE void LOOP_AT(pslib_bias_relu)(REAL *values, const REAL *bias, int64_t n, int64_t m, int level)
{
    (void)level;
    for (int64_t i = 0; i < n; i++) {
        REAL *row = values + i * m;
        for (int64_t j = 0; j < m; j++) {
            const REAL biased = row[j] + bias[j];
            row[j] = biased < 0 ? 0 : biased;
        }
    }
}
LOOP_COPIES(void, LOOP(pslib_bias_relu), pslib_layer_level,
             (REAL *values, const REAL *bias, int64_t n, int64_t m), values, bias, n, m)

/* dz = y <= 0 ? 0 : dy;  total += dz.  masked may be gradient itself.
 * The gradient is always read: a conditional read would be an unpredictable branch. */
PSLIB_INLINE void LOOP_AT(pslib_relu_gradient)(const REAL *gradient, const REAL *values, REAL *masked, REAL *total,
                                               int64_t n, int64_t m, int level)
{
    (void)level;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < m; j++) {
            const REAL given = gradient[i * m + j];
            const REAL kept = values[i * m + j] <= 0 ? 0 : given;
            masked[i * m + j] = kept;
            total[j] += kept;
        }
    }
}
LOOP_COPIES(void, LOOP(pslib_relu_gradient), pslib_layer_level,
             (const REAL *gradient, const REAL *values, REAL *masked, REAL *total, int64_t n, int64_t m), gradient,
             values, masked, total, n, m)

/* For y = a w with a = max(z, 0):  dz = a <= 0 ? 0 : dy w;  dw += dy a;  total += dz.  masked is no other array.
 * Three loops: a conditional product would be compiled to a branch, one column at a time. */
PSLIB_INLINE void LOOP_AT(pslib_head_gradient)(const REAL *gradient, const REAL *values, const REAL *weights,
                                               REAL *masked, REAL *total, REAL *weights_gradient, int64_t n, int64_t m,
                                               int level)
{
    (void)level;
    for (int64_t i = 0; i < n; i++) {
        const REAL dy = gradient[i];
        const REAL *a = values + i * m;
        REAL *dz = masked + i * m;
        for (int64_t j = 0; j < m; j++) dz[j] = dy * weights[j];
        for (int64_t j = 0; j < m; j++) {
            const REAL given = dz[j];
            const REAL kept = a[j] <= 0 ? 0 : given;
            dz[j] = kept;
            total[j] += kept;
        }
        for (int64_t j = 0; j < m; j++) weights_gradient[j] += dy * a[j];
    }
}
LOOP_COPIES(void, LOOP(pslib_head_gradient), pslib_layer_level,
             (const REAL *gradient, const REAL *values, const REAL *weights, REAL *masked, REAL *total,
              REAL *weights_gradient, int64_t n, int64_t m),
             gradient, values, weights, masked, total, weights_gradient, n, m)

/* total[d] = sum over fields of v[d], and the sum of squares, for `columns` contiguous columns. */
PSLIB_INLINE void LOOP(pslib_fm_columns)(const REAL *vectors, int64_t fields, int64_t dim, int64_t columns, REAL *total,
                                         REAL *squares)
{
    for (int64_t d = 0; d < columns; d++) total[d] = squares[d] = 0;
    for (int64_t f = 0; f < fields; f++) {
        for (int64_t d = 0; d < columns; d++) {
            const REAL v = vectors[f * dim + d];
            total[d] += v;
            squares[d] += v * v;
        }
    }
}

/* value = 1/2 sum over d of ((sum_f v_fd)^2 - sum_f v_fd^2), d rising.  stride: floats from example to example. */
PSLIB_INLINE void LOOP_AT(pslib_fm)(const REAL *vectors, int64_t stride, int64_t n, int64_t fields, int64_t dim,
                                    REAL *totals, REAL *values, int level)
{
    (void)level;
    for (int64_t i = 0; i < n; i++) {
        REAL sum = 0;
        for (int64_t first = 0; first < dim; first += PSLIB_BLOCK) {
            REAL total[PSLIB_BLOCK], squares[PSLIB_BLOCK];
            const REAL *block = vectors + i * stride + first;
            const int64_t columns = dim - first < PSLIB_BLOCK ? dim - first : PSLIB_BLOCK;
            if (columns == PSLIB_BLOCK) /* a constant: then both sums stay in registers */
                LOOP(pslib_fm_columns)(block, fields, dim, PSLIB_BLOCK, total, squares);
            else
                LOOP(pslib_fm_columns)(block, fields, dim, columns, total, squares);
            for (int64_t d = 0; d < columns; d++) {
                totals[i * dim + first + d] = total[d];
                sum += total[d] * total[d] - squares[d];
            }
        }
        values[i] = (REAL)0.5 * sum;
    }
}
LOOP_COPIES(void, LOOP(pslib_fm), pslib_layer_level,
             (const REAL *vectors, int64_t stride, int64_t n, int64_t fields, int64_t dim, REAL *totals, REAL *values),
             vectors, stride, n, fields, dim, totals, values)

/* out += dy (s - v) */
PSLIB_INLINE void LOOP_AT(pslib_fm_gradient)(const REAL *vectors, int64_t stride, const REAL *totals,
                                             const REAL *gradient, int64_t n, int64_t fields, int64_t dim, REAL *out,
                                             int64_t out_stride, int level)
{
    (void)level;
    for (int64_t i = 0; i < n; i++) {
        const REAL dy = gradient[i];
        const REAL *s = totals + i * dim;
        for (int64_t f = 0; f < fields; f++) {
            const REAL *v = vectors + i * stride + f * dim;
            REAL *to = out + i * out_stride + f * dim;
            for (int64_t d = 0; d < dim; d++) to[d] += dy * (s[d] - v[d]);
        }
    }
}
LOOP_COPIES(void, LOOP(pslib_fm_gradient), pslib_layer_level,
             (const REAL *vectors, int64_t stride, const REAL *totals, const REAL *gradient, int64_t n, int64_t fields,
              int64_t dim, REAL *out, int64_t out_stride),
             vectors, stride, totals, gradient, n, fields, dim, out, out_stride)

/* out[i, f] = rows[places[i, f]]: dim floats each. Rows are prefetched some places ahead. */
PSLIB_INLINE void LOOP_AT(pslib_gather)(const REAL *rows, int64_t row_stride, const int32_t *places, int64_t n,
                                        int64_t fields, int64_t dim, REAL *out, int64_t out_stride, int level)
{
    (void)level;
    const int64_t count = n * fields;
    int64_t p = 0;
    for (int64_t i = 0; i < n; i++) {
        REAL *to = out + i * out_stride;
        for (int64_t f = 0; f < fields; f++, p++, to += dim) {
            if (p + PSLIB_LOOK_AHEAD < count) {
                const REAL *later = rows + places[p + PSLIB_LOOK_AHEAD] * row_stride;
                __builtin_prefetch(later);
                __builtin_prefetch(later + dim - 1);
            }
            const REAL *from = rows + places[p] * row_stride;
            if (dim == PSLIB_BLOCK)
                memcpy(to, from, PSLIB_BLOCK * sizeof(REAL));
            else
                memcpy(to, from, dim * sizeof(REAL));
        }
    }
}
LOOP_COPIES(void, LOOP(pslib_gather), pslib_layer_level,
             (const REAL *rows, int64_t row_stride, const int32_t *places, int64_t n, int64_t fields, int64_t dim,
              REAL *out, int64_t out_stride),
             rows, row_stride, places, n, fields, dim, out, out_stride)

/* out[i] = sum over f of rows[places[i, f]], one float each, f rising */
static inline void LOOP(pslib_weigh)(const REAL *rows, int64_t row_stride, const int32_t *places, int64_t n,
                                     int64_t fields, REAL *out)
{
    const int64_t count = n * fields;
    int64_t p = 0;
    for (int64_t i = 0; i < n; i++) {
        REAL sum = 0;
        for (int64_t f = 0; f < fields; f++, p++) {
            if (p + PSLIB_LOOK_AHEAD < count) __builtin_prefetch(rows + places[p + PSLIB_LOOK_AHEAD] * row_stride);
            sum += rows[places[p] * row_stride];
        }
        out[i] = sum;
    }
}

/* Return the addend of occurrence p: of example owners[p], or where owners is NULL, of field p % fields of example
 * p / fields. step: floats from field to field, 0 where all fields of an example share the addend. */
PSLIB_INLINE const REAL *LOOP(pslib_addend)(const LOOP(PslibAddends) *from, uint32_t p)
{
    if (from->owners != NULL) return from->first + from->owners[p] * from->stride;
    const uint32_t example = p / from->fields;
    return from->first + example * from->stride + (p - example * from->fields) * from->step;
}

/* total[0:columns] += the addends of one row, in order; `columns` is a constant where it is inlined so.
 * left: occurrences up to the end of the last row, to look ahead over rows that occur only once. */
PSLIB_INLINE void LOOP(pslib_sum_row)(const int32_t *order, int64_t count, int64_t left,
                                      const LOOP(PslibAddends) *from, int64_t columns, REAL *total)
{
    for (int64_t k = 0; k < count; k++) {
        if (k + PSLIB_LOOK_AHEAD < left) __builtin_prefetch(LOOP(pslib_addend)(from, order[k + PSLIB_LOOK_AHEAD]));
        const REAL *addend = LOOP(pslib_addend)(from, order[k]);
        for (int64_t d = 0; d < columns; d++) total[d] += addend[d];
    }
}

/* out[r] += the addends of the occurrences of row r, in order, for rows first..last-1.
 * order, starts: row r occurs at order[starts[r]], ..., order[starts[r + 1] - 1] (rising). */
PSLIB_INLINE void LOOP_AT(pslib_sum_rows)(const int32_t *order, const int32_t *starts, int64_t first, int64_t last,
                                          const LOOP(PslibAddends) *from, int64_t dim, REAL *out, int64_t out_stride,
                                          int level)
{
    (void)level;
    const int64_t end = starts[last];
    for (int64_t r = first; r < last; r++) {
        const int64_t at = starts[r], count = starts[r + 1] - at;
        REAL *to = out + r * out_stride;
        if (dim == PSLIB_BLOCK) {
            REAL total[PSLIB_BLOCK];
            memcpy(total, to, sizeof total);
            LOOP(pslib_sum_row)(order + at, count, end - at, from, PSLIB_BLOCK, total);
            memcpy(to, total, sizeof total);
        } else if (dim == 1) {
            LOOP(pslib_sum_row)(order + at, count, end - at, from, 1, to);
        } else {
            LOOP(pslib_sum_row)(order + at, count, end - at, from, dim, to);
        }
    }
}
LOOP_COPIES(void, LOOP(pslib_sum_rows), pslib_layer_level,
            (const int32_t *order, const int32_t *starts, int64_t first, int64_t last, const LOOP(PslibAddends) *from,
             int64_t dim, REAL *out, int64_t out_stride),
            order, starts, first, last, from, dim, out, out_stride)
