/* optimizer_steps.h: what one gradient does to one row.
 *
 * Every step is float32 with one rounding an operation, in the order that the formula above each loop
 * shows (-ffp-contract=off: no fused multiply-add), so that SSE2, AVX-512, NEON and the NumPy definition
 * in tests/definitions.py give the same bits. The loops carry nothing from element to element except in
 * RowwiseAdagrad, whose sum has a fixed shape of 16 lanes; any vector width up to 16 keeps its bits.
 *
 * A gradient that is NaN or infinite is not filtered: it goes through the formula, and the row that it
 * was meant for (that row only, until it is erased) holds NaN from then on. Whoever wants such gradients
 * dropped or refused has to look at them before they come here, where the whole batch is at hand.
 */
#ifndef PSLIB_OPTIMIZER_STEPS_H
#define PSLIB_OPTIMIZER_STEPS_H

#include <math.h>
#include <stdint.h>

#include "index_line.h"

enum {
    PSLIB_SGD = 0,
    PSLIB_ADAGRAD = 1,
    PSLIB_ROWWISE_ADAGRAD = 2,
    PSLIB_ADAM = 3,
    PSLIB_OPTIMIZER_KINDS = 4
};

enum { PSLIB_HYPERPARAMETERS = 8, PSLIB_MODIFIERS = 4, PSLIB_LANES = 16 };

typedef struct {
    int32_t kind;
    float numbers[PSLIB_HYPERPARAMETERS]; /* the fields of the dataclass in pslib/optimizers.py, in order */
    const float *corrections;             /* Adam: (last_step + 1, 2) pairs c1, c2; borrowed */
    int64_t last_step;                    /* Adam: counts stop here, where both corrections are 1 */
    float weight_decay, clip_norm, cowclip_ratio, cowclip_floor; /* 0: off */
} PslibOptimizer;

/* Floats of state beside dim weights; -1 for an unknown kind. */
static inline int64_t pslib_state_floats(int kind, int64_t dim)
{
    switch (kind) {
    case PSLIB_SGD: return 0;
    case PSLIB_ADAGRAD: return dim;
    case PSLIB_ROWWISE_ADAGRAD: return 1;
    case PSLIB_ADAM: return 2 * dim + 1;
    default: return -1;
    }
}

/* w -= lr g */
PSLIB_INLINE void pslib_sgd(const float *numbers, int64_t dim, float *restrict w, const float *restrict g)
{
    const float rate = numbers[0];
    for (int64_t j = 0; j < dim; j++) w[j] -= rate * g[j];
}

/* a += g g;  w -= (lr g) / (sqrt(a) + eps) */
PSLIB_INLINE void pslib_adagrad(const float *numbers, int64_t dim, float *restrict w, float *restrict a,
                                 const float *restrict g)
{
    const float rate = numbers[0], epsilon = numbers[1];
    for (int64_t j = 0; j < dim; j++) {
        a[j] += g[j] * g[j];
        w[j] -= (rate * g[j]) / (sqrtf(a[j]) + epsilon);
    }
}

/* sum of g g: lanes[j % 16] += g[j] g[j] for j ascending, then folded 16 -> 8 -> 4 -> 2 -> 1 */
PSLIB_INLINE float pslib_sum_of_squares(int64_t dim, const float *restrict g)
{
    float lanes[PSLIB_LANES] = {0};
    const int64_t whole = dim - dim % PSLIB_LANES;
    for (int64_t j = 0; j < whole; j += PSLIB_LANES)
        for (int i = 0; i < PSLIB_LANES; i++) lanes[i] += g[j + i] * g[j + i];
    for (int64_t j = whole; j < dim; j++) lanes[j - whole] += g[j] * g[j];
    float eight[8], four[4];
    for (int i = 0; i < 8; i++) eight[i] = lanes[i] + lanes[i + 8];
    for (int i = 0; i < 4; i++) four[i] = eight[i] + eight[i + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

/* a += mean(g g);  w -= (lr g) / (sqrt(a) + eps) */
PSLIB_INLINE void pslib_rowwise_adagrad(const float *numbers, int64_t dim, float *restrict w, float *restrict a,
                                         const float *restrict g)
{
    const float rate = numbers[0], epsilon = numbers[1];
    a[0] += pslib_sum_of_squares(dim, g) / (float)dim;
    const float divisor = sqrtf(a[0]) + epsilon;
    for (int64_t j = 0; j < dim; j++) w[j] -= (rate * g[j]) / divisor;
}

/* The next step count of a row. It comes from memory that a checkpoint may have filled, and it indexes a
 * table: NaN and what is too large end at last_step, what is below the first step ends at 1. */
PSLIB_INLINE int64_t pslib_adam_count(float *t, int64_t last_step)
{
    float next = *t + 1.0f;
    if (!(next < (float)last_step)) next = (float)last_step;
    if (!(next >= 1.0f)) next = 1.0f;
    *t = next;
    return (int64_t)next;
}

/* t = min(t + 1, T);  m = b1 m + (1 - b1) g;  v = b2 v + ((1 - b2) g) g;
 * w -= (lr (m c1[t])) / (sqrt(v c2[t]) + eps)         state: m[dim] v[dim] t[1] */
PSLIB_INLINE void pslib_adam(const PslibOptimizer *optimizer, int64_t dim, float *restrict w,
                              float *restrict state, const float *restrict g)
{
    const float rate = optimizer->numbers[0], epsilon = optimizer->numbers[3];
    const float b1 = optimizer->numbers[1], b2 = optimizer->numbers[2];
    const float rest1 = 1.0f - b1, rest2 = 1.0f - b2;
    float *restrict m = state;
    float *restrict v = state + dim;
    const int64_t t = pslib_adam_count(state + 2 * dim, optimizer->last_step);
    const float c1 = optimizer->corrections[2 * t], c2 = optimizer->corrections[2 * t + 1];
    for (int64_t j = 0; j < dim; j++) {
        m[j] = b1 * m[j] + rest1 * g[j];
        v[j] = b2 * v[j] + (rest2 * g[j]) * g[j];
        w[j] -= (rate * (m[j] * c1)) / (sqrtf(v[j] * c2) + epsilon);
    }
}

/* One step of one part of one row. w, state: IN/OUT. g: IN. None of them overlap. */
PSLIB_INLINE void pslib_step(const PslibOptimizer *optimizer, int64_t dim, float *w, float *state, const float *g)
{
    switch (optimizer->kind) {
    case PSLIB_ADAGRAD:
        pslib_adagrad(optimizer->numbers, dim, w, state, g);
        break;
    case PSLIB_ROWWISE_ADAGRAD:
        pslib_rowwise_adagrad(optimizer->numbers, dim, w, state, g);
        break;
    case PSLIB_ADAM:
        pslib_adam(optimizer, dim, w, state, g);
        break;
    default:
        pslib_sgd(optimizer->numbers, dim, w, g);
    }
}

#endif
