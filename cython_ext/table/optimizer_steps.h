/* optimizer_steps.h: one optimizer step of one part of one row.
 *
 * Every step is float32 with one rounding an operation, in the order of the formula above each loop (-ffp-contract=off:
 * no fused multiply-add), so that SSE2, AVX-512, NEON and the NumPy definition in
 * tests/support/definitions/optimizers.py give the same bits. No loop carries a value from element to element except in
 * sums of squares, which have a fixed shape of 16 lanes; any vector width up to 16 keeps their bits.
 *
 * A step stores finite numbers only. An element whose new weight or new state would be NaN or infinite is refused: it
 * keeps its weight, after decay, and its state. All elements of a row are refused where the sum of the row would not be
 * finite. Adam's step count goes on. Steps do so where `guarded`, a constant for the compiler, is 1; the others are the
 * same loops without a look at the result, for numbers that cannot grow that far (pslib_optimizer_is_tame). Each
 * returns 1 if it has refused an element.
 */
#ifndef PSLIB_OPTIMIZER_STEPS_H
#define PSLIB_OPTIMIZER_STEPS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/floats.h"
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

/* 2^20 and 2^50, as bits: see pslib_optimizer_is_tame. */
enum { PSLIB_GRADIENT_TAME = 0x49800000, PSLIB_STATE_TAME = 0x58800000 };

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
PSLIB_INLINE int pslib_sgd(const float *numbers, int64_t dim, float *restrict w, const float *restrict g, int guarded)
{
    const float rate = numbers[0];
    int refused = 0;
    for (int64_t j = 0; j < dim; j++) {
        const float next = w[j] - rate * g[j];
        const int sound = !guarded || pslib_zero_if_finite(next) == 0.0f;
        w[j] = sound ? next : w[j];
        refused |= !sound;
    }
    return refused;
}

/* a += g g;  w -= (lr g) / (sqrt(a) + eps) */
PSLIB_INLINE int pslib_adagrad(const float *numbers, int64_t dim, float *restrict w, float *restrict a,
                               const float *restrict g, int guarded)
{
    const float rate = numbers[0], epsilon = numbers[1];
    int refused = 0;
    for (int64_t j = 0; j < dim; j++) {
        const float sum = a[j] + g[j] * g[j];
        const float next = w[j] - (rate * g[j]) / (sqrtf(sum) + epsilon);
        const int sound = !guarded || pslib_zero_if_finite(sum) + pslib_zero_if_finite(next) == 0.0f;
        a[j] = sound ? sum : a[j];
        w[j] = sound ? next : w[j];
        refused |= !sound;
    }
    return refused;
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

/* Return a + mean(g g). */
PSLIB_INLINE float pslib_rowwise_sum(int64_t dim, float a, const float *g)
{
    return a + pslib_sum_of_squares(dim, g) / (float)dim;
}

/* As below, guarded. */
PSLIB_NOINLINE int pslib_rowwise_guarded(const float *numbers, int64_t dim, float *restrict w, float *restrict a,
                                         const float *restrict g)
{
    const float rate = numbers[0], sum = pslib_rowwise_sum(dim, a[0], g), divisor = sqrtf(sum) + numbers[1];
    int refused = 0;
    if (pslib_zero_if_finite(divisor) != 0.0f) return 1;
    a[0] = sum;
    for (int64_t j = 0; j < dim; j++) {
        const float next = w[j] - (rate * g[j]) / divisor;
        const int sound = pslib_zero_if_finite(next) == 0.0f;
        w[j] = sound ? next : w[j];
        refused |= !sound;
    }
    return refused;
}

/* a += mean(g g);  w -= (lr g) / (sqrt(a) + eps). A sum that is tame needs no other guard. */
PSLIB_INLINE int pslib_rowwise_adagrad(const float *numbers, int64_t dim, float *restrict w, float *restrict a,
                                       const float *restrict g, int guarded)
{
    const float rate = numbers[0], sum = pslib_rowwise_sum(dim, a[0], g), divisor = sqrtf(sum) + numbers[1];
    const int64_t whole = dim - dim % PSLIB_LANES;
    if (guarded || __builtin_expect(pslib_bits_of(sum) > PSLIB_STATE_TAME, 0))
        return pslib_rowwise_guarded(numbers, dim, w, a, g);
    a[0] = sum;
    for (int64_t j = 0; j < whole; j += PSLIB_LANES) {
        PslibSixteen row, more;
        memcpy(&row, w + j, sizeof row);
        memcpy(&more, g + j, sizeof more);
        row -= (rate * more) / divisor;
        memcpy(w + j, &row, sizeof row);
    }
    for (int64_t j = whole; j < dim; j++) w[j] -= (rate * g[j]) / divisor;
    return 0;
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
 * w -= (lr (m c1[t])) / (sqrt(v c2[t]) + eps)         state: m[dim] v[dim] t[1]
 *
 * with_l2, a constant for the compiler: g + l2 w in place of g, where g is NULL for a step that the row has missed. */
PSLIB_INLINE int pslib_adam(const PslibOptimizer *optimizer, int64_t dim, float *restrict w, float *restrict state,
                            const float *restrict g, int with_l2, int guarded)
{
    int refused = 0;
    const float rate = optimizer->numbers[0], epsilon = optimizer->numbers[3], l2 = optimizer->numbers[4];
    const float b1 = optimizer->numbers[1], b2 = optimizer->numbers[2];
    const float rest1 = 1.0f - b1, rest2 = 1.0f - b2;
    float *restrict m = state;
    float *restrict v = state + dim;
    const int64_t t = pslib_adam_count(state + 2 * dim, optimizer->last_step);
    const float c1 = optimizer->corrections[2 * t], c2 = optimizer->corrections[2 * t + 1];
    for (int64_t j = 0; j < dim; j++) {
        const float whole = !with_l2 ? g[j] : g == NULL ? l2 * w[j] : g[j] + l2 * w[j];
        const float first = b1 * m[j] + rest1 * whole, second = b2 * v[j] + (rest2 * whole) * whole;
        const float next = w[j] - (rate * (first * c1)) / (sqrtf(second * c2) + epsilon);
        const float any = pslib_zero_if_finite(first) + pslib_zero_if_finite(second) + pslib_zero_if_finite(next);
        const int sound = !guarded || any == 0.0f;
        m[j] = sound ? first : m[j];
        v[j] = sound ? second : v[j];
        w[j] = sound ? next : w[j];
        refused |= !sound;
    }
    return refused;
}

/* Take the last PSLIB_CATCH_UP_MAX of the steps that a row has missed, then this one, as Adam does that steps every row
 * at every step. missed: counts this step too, rounded down; NaN is none. Guarded. */
PSLIB_INLINE int pslib_adam_l2(const PslibOptimizer *optimizer, int64_t dim, float *w, float *state, const float *g,
                               float missed)
{
    int steps = 1, refused = 0;
    if (missed > 1.0f) steps = missed < (float)PSLIB_CATCH_UP_MAX ? (int)missed : PSLIB_CATCH_UP_MAX;
    for (; steps > 1; steps--) refused |= pslib_adam(optimizer, dim, w, state, NULL, 1, 1);
    return refused | pslib_adam(optimizer, dim, w, state, g, 1, 1);
}

/* b = m b + g;  w -= lr b, or with nesterov  w -= lr (g + m b) */
PSLIB_INLINE int pslib_momentum(const float *numbers, int64_t dim, float *restrict w, float *restrict b,
                                const float *restrict g, int guarded)
{
    int refused = 0;
    const float rate = numbers[0], momentum = numbers[1];
    const int nesterov = numbers[2] != 0.0f;
    for (int64_t j = 0; j < dim; j++) {
        const float velocity = momentum * b[j] + g[j];
        const float next = w[j] - rate * (nesterov ? g[j] + momentum * velocity : velocity);
        const int sound = !guarded || pslib_zero_if_finite(velocity) + pslib_zero_if_finite(next) == 0.0f;
        b[j] = sound ? velocity : b[j];
        w[j] = sound ? next : w[j];
        refused |= !sound;
    }
    return refused;
}

/* z = (n == 0 ? -(beta / alpha) w : z) + g - ((sqrt(n + g g) - sqrt(n)) / alpha) w;  n += g g;
 * w = |z| <= l1 ? 0 : (sign(z) l1 - z) / ((beta + sqrt(n)) / alpha + l2),  left as it is while n == 0
 *                                                                          state: z[dim] n[dim]
 * Guarded. */
PSLIB_INLINE int pslib_ftrl(const float *numbers, int64_t dim, float *restrict w, float *restrict state,
                            const float *restrict g)
{
    int refused = 0;
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
        const float weight = sum == 0.0f ? w[j] : kept;
        const float any = pslib_zero_if_finite(sum) + pslib_zero_if_finite(next) + pslib_zero_if_finite(weight);
        const int sound = any == 0.0f;
        w[j] = sound ? weight : w[j];
        z[j] = sound ? next : z[j];
        n[j] = sound ? sum : n[j];
        refused |= !sound;
    }
    return refused;
}

/* --- finite numbers
 *
 * Return 1 if steps keep finite numbers finite: with gradients up to PSLIB_GRADIENT_TAME and states up to
 * PSLIB_STATE_TAME that are their own or steps have led to.
 *
 * Adding less than 2^103, half the distance of the largest floats, makes no finite number infinite. Sums of squares
 * grow by 2^40 at most. A weight moves by less than 2^102:
 *     SGD       rate g <= 2^30
 *     Adagrad   at most 64 rates: |g| of an element to the root of a mean over 4096 (of rows the sum is looked at, not
 *               the gradient); or, where g g underflows, rate 2^-63 / eps
 *     Momentum  rate 2^51, as b <= 2^50: m b + g <= b there for every m < 1 in float32
 *     Adam      rate m c1 / eps <= 2^101, with c1 <= 2^14 and m <= 2^50
 * FTRL and L2 feed weights back into sums, which no such argument bounds: their loops are always guarded. */
static inline int pslib_optimizer_is_tame(const PslibOptimizer *optimizer)
{
    const float rate = fabsf(optimizer->numbers[0]);
    const float epsilon = optimizer->numbers[optimizer->kind == PSLIB_ADAM ? 3 : 1];
    if (!(rate <= 0x1p10f)) return 0;
    switch (optimizer->kind) {
    case PSLIB_SGD:
    case PSLIB_MOMENTUM:
    case PSLIB_FTRL: return 1;
    case PSLIB_ADAGRAD:
    case PSLIB_ROWWISE_ADAGRAD:
    case PSLIB_ADAM: return rate <= 0x1p37f * epsilon;
    default: return 0;
    }
}

/* Return 1 if no number exceeds PSLIB_STATE_TAME and no sum of squares is below 0. FTRL needs no look: z has either
 * sign, and the loop is guarded. */
static inline int pslib_state_is_tame(const PslibOptimizer *optimizer, int64_t dim, const float *state)
{
    const int64_t count = optimizer->kind == PSLIB_FTRL ? 0 : pslib_state_floats(optimizer->kind, dim);
    const int64_t sums = optimizer->kind == PSLIB_ADAM ? dim : optimizer->kind == PSLIB_MOMENTUM ? count : 0;
    uint32_t tame = ~UINT32_C(0); /* by the bits, as in the loops of steps: a sign bit is above them all */
    for (int64_t j = 0; j < sums; j++) tame &= 0 - (uint32_t)((pslib_bits_of(state[j]) & 0x7FFFFFFF) <= PSLIB_STATE_TAME);
    for (int64_t j = sums; j < count; j++) tame &= 0 - (uint32_t)(pslib_bits_of(state[j]) <= PSLIB_STATE_TAME);
    return tame != 0;
}

/* Return 1 if a number is 2 or more, NaN or infinite: bit 30 of its bits. One instruction a vector. */
PSLIB_INLINE int pslib_any_from_two(int64_t count, const float *g)
{
    uint32_t any = 0;
    for (int64_t j = 0; j < count; j++) any |= pslib_bits_of(g[j]);
    return (any & 0x40000000) != 0;
}

#if PSLIB_HAS_LEVELS
PSLIB_FOR_AVX2 static inline int pslib_any_from_two_avx2(int64_t count, const float *g)
{
    const int64_t whole = count - count % 8;
    __m256i any = _mm256_setzero_si256();
    for (int64_t j = 0; j < whole; j += 8) any = _mm256_or_si256(any, _mm256_loadu_si256((const void *)(g + j)));
    if (whole == count) return !_mm256_testz_si256(any, _mm256_set1_epi32(0x40000000));
    return !_mm256_testz_si256(any, _mm256_set1_epi32(0x40000000)) || pslib_any_from_two(count - whole, g + whole);
}

PSLIB_FOR_AVX512 static inline int pslib_any_from_two_avx512(int64_t count, const float *g)
{
    const int64_t whole = count - count % 16;
    __m512i any = _mm512_setzero_si512();
    for (int64_t j = 0; j < whole; j += 16) any = _mm512_or_si512(any, _mm512_loadu_si512(g + j));
    if (whole != count)
        any = _mm512_or_si512(any, _mm512_maskz_loadu_epi32((__mmask16)((1u << (count - whole)) - 1), g + whole));
    return _mm512_test_epi32_mask(any, _mm512_set1_epi32(0x40000000)) != 0;
}
#endif

PSLIB_INLINE int pslib_any_from_two_at(int level, int64_t count, const float *g)
{
    if (count == 1) return (pslib_bits_of(g[0]) & 0x40000000) != 0;
#if PSLIB_HAS_LEVELS
    if (level == PSLIB_AVX512 && count != 8) return pslib_any_from_two_avx512(count, g);
    if (level != PSLIB_PLAIN) return pslib_any_from_two_avx2(count, g);
#endif
    (void)level;
    return pslib_any_from_two(count, g);
}

/* Return 1 if no gradient exceeds PSLIB_GRADIENT_TAME. */
PSLIB_NOINLINE int pslib_gradients_are_tame(int64_t count, const float *g)
{
    int32_t most = 0;
    for (int64_t j = 0; j < count; j++) {
        const int32_t magnitude = (int32_t)(pslib_bits_of(g[j]) & 0x7FFFFFFF);
        most = most > magnitude ? most : magnitude;
    }
    return most <= PSLIB_GRADIENT_TAME;
}

/* --- all kinds
 *
 * One step of one part of one row. w, state: INOUT. g: IN. None of them overlap. */
PSLIB_INLINE int pslib_step(const PslibOptimizer *optimizer, int64_t dim, float *w, float *state, const float *g,
                            int guarded)
{
    switch (optimizer->kind) {
    case PSLIB_ADAGRAD: return pslib_adagrad(optimizer->numbers, dim, w, state, g, guarded);
    case PSLIB_ROWWISE_ADAGRAD: return pslib_rowwise_adagrad(optimizer->numbers, dim, w, state, g, guarded);
    case PSLIB_ADAM: return pslib_adam(optimizer, dim, w, state, g, 0, guarded);
    case PSLIB_MOMENTUM: return pslib_momentum(optimizer->numbers, dim, w, state, g, guarded);
    case PSLIB_FTRL: return pslib_ftrl(optimizer->numbers, dim, w, state, g);
    default: return pslib_sgd(optimizer->numbers, dim, w, g, guarded);
    }
}

/* pslib_step with the most common lengths as constants for the compiler, not guarded. */
PSLIB_INLINE int pslib_known_step(const PslibOptimizer *optimizer, int64_t dim, float *w, float *state, const float *g)
{
    switch (dim) {
    case 1: return pslib_step(optimizer, 1, w, state, g, 0);
    case 4: return pslib_step(optimizer, 4, w, state, g, 0);
    case 8: return pslib_step(optimizer, 8, w, state, g, 0);
    case 16: return pslib_step(optimizer, 16, w, state, g, 0);
    default: return pslib_step(optimizer, dim, w, state, g, 0);
    }
}

/* pslib_step, after the missed steps where they are taken one by one. */
PSLIB_INLINE int pslib_step_all(const PslibOptimizer *optimizer, int64_t dim, float *w, float *state, const float *g,
                                float missed, int guarded)
{
    if (pslib_optimizer_l2(optimizer) != 0.0f) return pslib_adam_l2(optimizer, dim, w, state, g, missed);
    return pslib_step(optimizer, dim, w, state, g, guarded);
}

/* --- decay and clipping */

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
PSLIB_INLINE int pslib_full_step(const PslibOptimizer *optimizer, int64_t dim, float *w, float *state, const float *g,
                                 float shows, float missed, int guarded)
{
    const float factor = pslib_decay_factor(optimizer, missed);
    if (factor != 1.0f)
        for (int64_t j = 0; j < dim; j++) w[j] *= factor;
    if (!pslib_optimizer_clips(optimizer)) return pslib_step_all(optimizer, dim, w, state, g, missed, guarded);
    float clipped[PSLIB_DIM_MAX];
    pslib_clipped(optimizer, dim, w, g, shows, clipped);
    return pslib_step_all(optimizer, dim, w, state, clipped, missed, guarded);
}

/* --- dense vectors: compiled for each level, as a guarded loop is vectorised well where the instruction set has masks
 * or blends */

PSLIB_INLINE int pslib_dense_step_at(int best, const PslibOptimizer *optimizer, int64_t dim, float *w, float *state,
                                     const float *g, int level)
{
    (void)best, (void)level;
    return pslib_full_step(optimizer, dim, w, state, g, 1.0f, 1.0f, 1);
}

/* One guarded step of a vector that has missed one step, at the level `best`. w, state: INOUT. Returns 1 if an element
 * was refused. */
PSLIB_COPIES(int, pslib_dense_step, best,
             (int best, const PslibOptimizer *optimizer, int64_t dim, float *w, float *state, const float *g), best,
             optimizer, dim, w, state, g)

#endif
