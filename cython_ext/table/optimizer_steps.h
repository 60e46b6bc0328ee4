/* optimizer_steps.h: one optimizer step of one part of one row.
 *
 * Every step is float32 with one rounding an operation, in the order of the formula above each loop (-ffp-contract=off:
 * no fused multiply-add), so that SSE2, AVX-512, NEON and the NumPy definition in
 * tests/support/definitions/optimizers.py give the same bits. No loop carries a value from element to element except in
 * sums of squares, which have a fixed shape of 16 lanes; any vector width up to 16 keeps their bits.
 *
 * A gradient that is NaN or infinite is not filtered: it goes through the formula, and its row (that row only, until it
 * is erased) holds NaN from then on. Callers check gradients before, where the whole batch is at hand.
 */
#ifndef PSLIB_OPTIMIZER_STEPS_H
#define PSLIB_OPTIMIZER_STEPS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/vectors.h"

enum {
    PSLIB_SGD = 0,
    PSLIB_ADAGRAD = 1,
    PSLIB_ROWWISE_ADAGRAD = 2,
    PSLIB_ADAM = 3,
    PSLIB_MOMENTUM = 4,
    PSLIB_FTRL = 5,
    PSLIB_OPTIMIZER_KINDS = 6
};

/* Limit of missed steps that are taken one by one: with a gradient of L2 alone Adam moves each weight by about its rate
 * a step, so after these few weights are not near 0. */
enum { PSLIB_CATCH_UP_MAX = 256 };

enum { PSLIB_HYPERPARAMETERS = 8, PSLIB_MODIFIERS = 4, PSLIB_LANES = 16, PSLIB_DIM_MAX = 4096 };

typedef struct {
    int32_t kind;
    float numbers[PSLIB_HYPERPARAMETERS]; /* the fields of the dataclass in pslib/table/optimizers.py, in order */
    const float *corrections;             /* Adam: (last_step + 1, 2) pairs c1, c2; borrowed */
    int64_t last_step;                    /* Adam: counts stop here, where both corrections are 1 */
    float weight_decay, clip_norm, cowclip_ratio, cowclip_floor; /* 0: off */
    float decay_rate; /* the learning rate of weight decay: numbers[0] of the table, also with a rate of a push */
} PslibOptimizer;

PSLIB_INLINE int pslib_optimizer_cowclips(const PslibOptimizer *optimizer)
{
    return optimizer->cowclip_ratio != 0.0f || optimizer->cowclip_floor != 0.0f;
}

/* Return 1 if steps depend on norms of the row or its gradient, so that elements are not independent. */
PSLIB_INLINE int pslib_optimizer_clips(const PslibOptimizer *optimizer)
{
    return optimizer->clip_norm != 0.0f || pslib_optimizer_cowclips(optimizer);
}

/* Return the factor of L2 that goes through Adam's moments; 0: off. */
PSLIB_INLINE float pslib_optimizer_l2(const PslibOptimizer *optimizer)
{
    return optimizer->kind == PSLIB_ADAM ? optimizer->numbers[4] : 0.0f;
}

/* Return 1 if a step is pslib_step alone. */
PSLIB_INLINE int pslib_optimizer_is_plain(const PslibOptimizer *optimizer)
{
    return optimizer->weight_decay == 0.0f && pslib_optimizer_l2(optimizer) == 0.0f && !pslib_optimizer_clips(optimizer);
}

/* Return 1 if a step depends on the number of steps that the row has missed. */
PSLIB_INLINE int pslib_optimizer_catches_up(const PslibOptimizer *optimizer)
{
    return optimizer->weight_decay != 0.0f || pslib_optimizer_l2(optimizer) != 0.0f;
}

/* Return the floats of state of dim weights; -1 for an unknown kind. */
static inline int64_t pslib_state_floats(int kind, int64_t dim)
{
    switch (kind) {
    case PSLIB_SGD: return 0;
    case PSLIB_ADAGRAD: return dim;
    case PSLIB_ROWWISE_ADAGRAD: return 1;
    case PSLIB_ADAM: return 2 * dim + 1;
    case PSLIB_MOMENTUM: return dim;
    case PSLIB_FTRL: return 2 * dim;
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

typedef float PslibFour __attribute__((vector_size(16)));
typedef float PslibSixteen __attribute__((vector_size(64))); /* the compiler cuts it into the vectors of the level */

/* lanes[j % 16] += g[j] g[j] for the 16 floats at g.  lanes: INOUT. */
PSLIB_INLINE void pslib_add_squares(PslibFour *restrict lanes, const float *restrict g)
{
    for (int i = 0; i < PSLIB_LANES / 4; i++) {
        PslibFour some;
        memcpy(&some, g + 4 * i, sizeof some);
        lanes[i] += some * some;
    }
}

/* sum of g g: lanes[j % 16] += g[j] g[j] for j ascending, then folded 16 -> 8 -> 4 -> 2 -> 1. In vectors of four,
 * which every machine has: left to itself the compiler takes the fold apart into single floats. */
PSLIB_INLINE float pslib_sum_of_squares(int64_t dim, const float *restrict g)
{
    PslibFour lanes[PSLIB_LANES / 4] = {{0}};
    const int64_t whole = dim - dim % PSLIB_LANES;
    if (dim == 1) return g[0] * g[0];
    for (int64_t j = 0; j < whole; j += PSLIB_LANES) pslib_add_squares(lanes, g + j);
    /* The rest is built in registers: a vector read of floats that were stored one by one waits for the stores, 15 ns a
     * row. Squares of zeros change no sum. */
    const float *rest = g + whole;
    for (int i = 0; i < PSLIB_LANES / 4; i++, rest += 4) {
        const int64_t left = dim - whole - 4 * i;
        if (left <= 0) break;
        PslibFour some = {rest[0], left > 1 ? rest[1] : 0, left > 2 ? rest[2] : 0, 0};
        if (left > 3) memcpy(&some, rest, sizeof some);
        lanes[i] += some * some;
    }
    const PslibFour four = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

/* a += mean(g g). Returns sqrt(a) + eps. */
PSLIB_INLINE float pslib_rowwise_divisor(const float *numbers, int64_t dim, float *a, const float *g)
{
    a[0] += pslib_sum_of_squares(dim, g) / (float)dim;
    return sqrtf(a[0]) + numbers[1];
}

/* a += mean(g g);  w -= (lr g) / (sqrt(a) + eps) */
PSLIB_INLINE void pslib_rowwise_adagrad(const float *numbers, int64_t dim, float *restrict w, float *restrict a,
                                         const float *restrict g)
{
    const float rate = numbers[0], divisor = pslib_rowwise_divisor(numbers, dim, a, g);
    const int64_t whole = dim - dim % PSLIB_LANES;
    for (int64_t j = 0; j < whole; j += PSLIB_LANES) {
        PslibSixteen row, more;
        memcpy(&row, w + j, sizeof row);
        memcpy(&more, g + j, sizeof more);
        row -= (rate * more) / divisor;
        memcpy(w + j, &row, sizeof row);
    }
    for (int64_t j = whole; j < dim; j++) w[j] -= (rate * g[j]) / divisor;
}

/* Return the next step count of a row. The count may come from a checkpoint, and it indexes a table: NaN and large
 * numbers become last_step, numbers below the first step become 1. t: INOUT. */
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

/* One step of Adam with the gradient g + l2 w. g: NULL for a step that the row has missed. */
PSLIB_INLINE void pslib_adam_l2_step(const PslibOptimizer *optimizer, int64_t dim, float *restrict w,
                                     float *restrict state, const float *restrict g)
{
    const float rate = optimizer->numbers[0], epsilon = optimizer->numbers[3], l2 = optimizer->numbers[4];
    const float b1 = optimizer->numbers[1], b2 = optimizer->numbers[2];
    const float rest1 = 1.0f - b1, rest2 = 1.0f - b2;
    float *restrict m = state;
    float *restrict v = state + dim;
    const int64_t t = pslib_adam_count(state + 2 * dim, optimizer->last_step);
    const float c1 = optimizer->corrections[2 * t], c2 = optimizer->corrections[2 * t + 1];
    for (int64_t j = 0; j < dim; j++) {
        const float whole = g == NULL ? l2 * w[j] : g[j] + l2 * w[j];
        m[j] = b1 * m[j] + rest1 * whole;
        v[j] = b2 * v[j] + (rest2 * whole) * whole;
        w[j] -= (rate * (m[j] * c1)) / (sqrtf(v[j] * c2) + epsilon);
    }
}

/* Take the last PSLIB_CATCH_UP_MAX of the steps that a row has missed, then this one, as Adam does that steps every row
 * at every step. missed: counts this step too, rounded down; NaN is none. */
PSLIB_INLINE void pslib_adam_l2(const PslibOptimizer *optimizer, int64_t dim, float *w, float *state, const float *g,
                                float missed)
{
    int steps = 1;
    if (missed > 1.0f) steps = missed < (float)PSLIB_CATCH_UP_MAX ? (int)missed : PSLIB_CATCH_UP_MAX;
    for (; steps > 1; steps--) pslib_adam_l2_step(optimizer, dim, w, state, NULL);
    pslib_adam_l2_step(optimizer, dim, w, state, g);
}

/* b = m b + g;  w -= lr b, or with nesterov  w -= lr (g + m b) */
PSLIB_INLINE void pslib_momentum(const float *numbers, int64_t dim, float *restrict w, float *restrict b,
                                 const float *restrict g)
{
    const float rate = numbers[0], momentum = numbers[1];
    const int nesterov = numbers[2] != 0.0f;
    for (int64_t j = 0; j < dim; j++) {
        b[j] = momentum * b[j] + g[j];
        w[j] -= rate * (nesterov ? g[j] + momentum * b[j] : b[j]);
    }
}

/* z = (n == 0 ? -(beta / alpha) w : z) + g - ((sqrt(n + g g) - sqrt(n)) / alpha) w;  n += g g;
 * w = |z| <= l1 ? 0 : (sign(z) l1 - z) / ((beta + sqrt(n)) / alpha + l2),  left as it is while n == 0
 *                                                                          state: z[dim] n[dim] */
PSLIB_INLINE void pslib_ftrl(const float *numbers, int64_t dim, float *restrict w, float *restrict state,
                             const float *restrict g)
{
    const float alpha = numbers[0], beta = numbers[1], l1 = numbers[2], l2 = numbers[3];
    const float pull = beta / alpha;
    float *restrict z = state;
    float *restrict n = state + dim;
    for (int64_t j = 0; j < dim; j++) {
        const float sum = n[j] + g[j] * g[j], root = sqrtf(sum);
        const float sigma = (root - sqrtf(n[j])) / alpha;
        const float begun = n[j] == 0.0f ? -(pull * w[j]) : z[j];
        const float next = (begun + g[j]) - sigma * w[j];
        const float moved = (copysignf(l1, next) - next) / ((beta + root) / alpha + l2);
        const float kept = fabsf(next) <= l1 ? 0.0f : moved;
        w[j] = sum == 0.0f ? w[j] : kept;
        z[j] = next;
        n[j] = sum;
    }
}

/* One step of one part of one row. w, state: INOUT. g: IN. None of them overlap. */
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
    case PSLIB_MOMENTUM:
        pslib_momentum(optimizer->numbers, dim, w, state, g);
        break;
    case PSLIB_FTRL:
        pslib_ftrl(optimizer->numbers, dim, w, state, g);
        break;
    default:
        pslib_sgd(optimizer->numbers, dim, w, g);
    }
}

/* pslib_step with the most common lengths as constants for the compiler. */
PSLIB_INLINE void pslib_known_step(const PslibOptimizer *optimizer, int64_t dim, float *w, float *state, const float *g)
{
    switch (dim) {
    case 1: pslib_step(optimizer, 1, w, state, g); break;
    case 4: pslib_step(optimizer, 4, w, state, g); break;
    case 8: pslib_step(optimizer, 8, w, state, g); break;
    case 16: pslib_step(optimizer, 16, w, state, g); break;
    default: pslib_step(optimizer, dim, w, state, g);
    }
}

/* pslib_step, after the missed steps where they are taken one by one. */
PSLIB_INLINE void pslib_step_all(const PslibOptimizer *optimizer, int64_t dim, float *w, float *state, const float *g,
                                 float missed)
{
    if (pslib_optimizer_l2(optimizer) != 0.0f) pslib_adam_l2(optimizer, dim, w, state, g, missed);
    else pslib_step(optimizer, dim, w, state, g);
}

/* Return the factor of `missed` steps of weight decay: (1 - lr decay)^missed, 1 where decay is off.
 *
 * missed is rounded down; NaN and negative numbers are no step; it is limited to 2^62, so there are at most 63
 * squarings. In double, rounded once at the end: in float32 1 - lr decay loses one percent of a decay of 1e-6, a fifth
 * of 1e-7, and a power increases the error. */
PSLIB_INLINE float pslib_decay_factor(const PslibOptimizer *optimizer, float missed)
{
    if (optimizer->weight_decay == 0.0f || !(missed >= 1.0f)) return 1.0f;
    double base = 1.0 - (double)optimizer->decay_rate * (double)optimizer->weight_decay, power = 1.0;
    uint64_t steps = missed < 0x1p62f ? (uint64_t)missed : UINT64_C(1) << 62;
    for (; steps > 0; steps >>= 1) {
        if (steps & 1) power *= base;
        base *= base;
    }
    return (float)power;
}

/* g *= bound / |g| where |g| > bound. A norm that overflows makes finite elements 0; NaN clips nothing. */
PSLIB_INLINE void pslib_clip(int64_t dim, float *g, float bound)
{
    const float norm = sqrtf(pslib_sum_of_squares(dim, g));
    if (!(norm > bound)) return;
    const float scale = bound / norm;
    for (int64_t j = 0; j < dim; j++) g[j] *= scale;
}

/* g clipped to clip_norm, then to shows max(ratio |w|, floor).  out: OUT, (dim,). */
PSLIB_INLINE void pslib_clipped(const PslibOptimizer *optimizer, int64_t dim, const float *w, const float *g,
                                float shows, float *out)
{
    memcpy(out, g, sizeof(float) * (size_t)dim);
    if (optimizer->clip_norm != 0.0f) pslib_clip(dim, out, optimizer->clip_norm);
    if (!pslib_optimizer_cowclips(optimizer)) return;
    const float bound = optimizer->cowclip_ratio * sqrtf(pslib_sum_of_squares(dim, w));
    pslib_clip(dim, out, shows * (bound > optimizer->cowclip_floor ? bound : optimizer->cowclip_floor));
}

/* Change an optimizer for one push: its learning rate times `rate`, rounded once, or, with `delta`, w += g without
 * clipping. Weight decay keeps its rate: the missed steps of a row have no single rate. */
PSLIB_INLINE void pslib_set_rate(PslibOptimizer *optimizer, float rate, int delta)
{
    optimizer->numbers[0] *= rate;
    if (!delta) return;
    optimizer->kind = PSLIB_SGD;
    optimizer->numbers[0] = -1.0f; /* w -= -1 g is w + g, exactly */
    optimizer->clip_norm = optimizer->cowclip_ratio = optimizer->cowclip_floor = 0.0f;
}

/* One step with decay and clipping: w decays for the steps that the row has missed, the gradient is clipped, then
 * pslib_step. shows: examples of the batch with the key. With clipping dim is at most PSLIB_DIM_MAX. w, state: INOUT.
 * g: IN. None of them overlap. */
PSLIB_INLINE void pslib_full_step(const PslibOptimizer *optimizer, int64_t dim, float *w, float *state, const float *g,
                                  float shows, float missed)
{
    const float factor = pslib_decay_factor(optimizer, missed);
    if (factor != 1.0f)
        for (int64_t j = 0; j < dim; j++) w[j] *= factor;
    if (!pslib_optimizer_clips(optimizer)) {
        pslib_step_all(optimizer, dim, w, state, g, missed);
        return;
    }
    float clipped[PSLIB_DIM_MAX];
    pslib_clipped(optimizer, dim, w, g, shows, clipped);
    pslib_step_all(optimizer, dim, w, state, clipped, missed);
}

#endif
