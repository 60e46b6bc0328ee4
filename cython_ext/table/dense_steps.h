/* dense_steps.h: guarded steps of dense vectors, compiled for each level of vectors.h: a guarded loop is vectorised well
 * where the instruction set has masks or blends. */
#ifndef PSLIB_DENSE_STEPS_H
#define PSLIB_DENSE_STEPS_H

#include "table/optimizer_steps.h"

PSLIB_INLINE int pslib_dense_step_at(int best, const PslibOptimizer *optimizer, int64_t dim, float *w, float *state,
                                     const float *g, int level)
{
    (void)best, (void)level;
    return pslib_full_step(optimizer, dim, w, state, g, 1.0f, 1.0f, 1);
}

/* One step of a vector that has missed one step, at the level `best`. w, state: INOUT. Returns 1 if an element was
 * refused. */
PSLIB_COPIES(int, pslib_dense_step, best,
             (int best, const PslibOptimizer *optimizer, int64_t dim, float *w, float *state, const float *g), best,
             optimizer, dim, w, state, g)

#endif
