/* promotion.h: narrow rows that have proved themselves become wide.
 *
 * In a table with promotion new rows are narrow: they hold the first parts only (PaddlePaddle's accessor gives
 * `embedx` the same way). A row has proved itself when, after a step,
 *
 *     shows >= number      or      score = (shows - clicks) * nonclick + clicks * click >= number
 *
 * It becomes wide at the end of that push, not at once: the loop of a push knows the places of keys that it is
 * about to step, and no row may move under it.
 */
#ifndef PSLIB_PROMOTION_H
#define PSLIB_PROMOTION_H

#include "table/row_io.h"

/* (shows - clicks) * nonclick + clicks * click */
PSLIB_INLINE float pslib_score(const PslibTable *table, const float *state)
{
    const float shows = state[pslib_shows_at(table)], clicks = state[pslib_shows_at(table) + 1];
    return (shows - clicks) * table->policies.nonclick + clicks * table->policies.click;
}

/* What a row with this state has to show for itself, where rows can prove themselves. */
PSLIB_INLINE float pslib_proof(const PslibTable *table, const float *state)
{
    return table->policies.promotion.kind == PSLIB_PROMOTE_SHOWS ? state[pslib_shows_at(table)]
                                                                 : pslib_score(table, state);
}

/* Remember the key of a narrow row, with this state, that has proved itself. */
PSLIB_INLINE void pslib_note_proof(PslibTable *table, uint64_t key, const float *state)
{
    PslibPromotion *promotion = &table->policies.promotion;
    if (promotion->kind == PSLIB_PROMOTE_NEVER) return;
    if (pslib_proof(table, state) >= promotion->number) promotion->due[promotion->due_count++] = key;
}

#endif
