/* strip_notes.h: the stage of strips.h for keys that were not found in their home line. They are looked up for good,
 * and a push makes rows, as admission lets them in: in the order of the keys, which decides row numbers and counts.
 */
#ifndef PSLIB_STRIP_NOTES_H
#define PSLIB_STRIP_NOTES_H

#include "table/admission.h"
#include "table/strips.h"

PSLIB_INLINE void pslib_strips_open(PslibStrips *strips)
{
    strips->now = strips->noted[0];
    strips->later = strips->noted[1];
    strips->later_count = 0;
}

/* Put the notes aside; there are `noted` of them. A push will ask for new rows in the arenas of their partitions. */
PSLIB_INLINE void pslib_strips_lay_by(const PslibTable *table, int for_push, PslibStrips *strips, uint32_t noted)
{
    for (uint32_t q = 0; for_push && q < noted; q++)
        PSLIB_PREFETCH(pslib_table_arenas(table, strips->mixed[strips->now[q]]));
    uint32_t *list = strips->now;
    strips->now = strips->later;
    strips->later = list;
    strips->later_count = noted;
}

PSLIB_INLINE void pslib_strips_later_pull(const PslibTable *table, const PslibRowMap *map, int level,
                                          PslibStrips *strips)
{
    for (uint32_t q = 0; q < strips->later_count; q++) {
        const uint32_t at = strips->later[q];
        if (strips->home[at]->passed == 0 && strips->key[at] != 0) continue;
        const uint64_t mixed = strips->mixed[at];
        const PslibPartition *partition = pslib_table_partition(table, mixed);
        const uint32_t place = pslib_partition_find_at(level, partition, strips->key[at], mixed).place;
        if (place == 0) continue;
        strips->weights[at] = pslib_strip_row(map, place, strips, at, map->with_state ? &strips->state[at] : NULL);
        pslib_strip_prefetch_row(map, 0, strips, at);
    }
    strips->later_count = 0;
}

/* Find the row of one key, key i of the record, or make one of row_class, unless the key is turned away. known:
 * the map of before. grown: OUT, set where its partition has a new index. */
PSLIB_INLINE PslibStatus pslib_strip_make(PslibTable *table, const PslibRowMap *known, int level, int row_class,
                                          const PslibRecord *record, int64_t i, PslibStrips *strips, uint32_t at,
                                          int *grown)
{
    const uint64_t key = strips->key[at], mixed = strips->mixed[at];
    PslibPartition *partition = pslib_table_partition(table, mixed);
    const PslibLine *lines = partition->lines;
    PslibFound found = {0, 0, 0, 0};
    PslibStatus status = PSLIB_OK;
    if (!known->policies || table->policies.admission.kind == PSLIB_ADMIT_ALL) {
        status = pslib_partition_find_or_add(level, partition, pslib_table_arenas(table, mixed), table->classes, key,
                                             mixed, row_class, &found.place, &strips->made[at]);
    } else {
        found = pslib_partition_find_at(level, partition, key, mixed);
        const int absent = found.place == 0;
        if (absent)
            status = pslib_admit(table, key, mixed, record->shows == NULL ? 1.0f : record->shows[i], record->salt,
                                 row_class, &found);
        strips->made[at] = absent && found.place != 0;
    }
    *grown |= partition->lines != lines;
    if (status != PSLIB_OK || found.place == 0) return status;
    table->rows[row_class] += strips->made[at];
    const PslibRowMap map = pslib_row_map(table, known->one16, known->storage, known->policies); /* slabs may come */
    strips->weights[at] = pslib_strip_row(&map, found.place, strips, at, &strips->state[at]);
    pslib_strip_prefetch_row(&map, 1, strips, at);
    return PSLIB_OK;
}

/* All keys put aside, in their order; key number `first` is the first that may be among them. Returns how many of
 * the n keys can be worked on: all, unless status says why not. */
PSLIB_INLINE int64_t pslib_strips_later_push(PslibTable *table, const PslibRowMap *map, int level, int row_class,
                                             const PslibRecord *record, PslibStrips *strips, int64_t first, int64_t n,
                                             PslibStatus *status, int *grown)
{
    for (uint32_t q = 0; q < strips->later_count; q++) {
        const uint32_t at = strips->later[q];
        const int64_t i = first + ((at - (uint32_t)first) & (PSLIB_STRIP_RING - 1));
        if (i >= n) break;
        const PslibStatus made = pslib_strip_make(table, map, level, row_class, record, i, strips, at, grown);
        if (made != PSLIB_OK) {
            *status = made;
            n = i;
        }
    }
    strips->later_count = 0;
    return n;
}

#endif
