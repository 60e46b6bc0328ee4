/* policies.h: the numbers of a table's policies and what they have done so far. All zeros: every key gets a wide
 * row at its first push and keeps it.
 */
#ifndef PSLIB_POLICIES_H
#define PSLIB_POLICIES_H

#include <stdint.h>

enum {
    PSLIB_ADMIT_ALL = 0,
    PSLIB_ADMIT_COUNT = 1,
    PSLIB_ADMIT_BLOOM = 2,
    PSLIB_ADMIT_CHANCE = 3,
    PSLIB_ADMISSION_KINDS = 4
};
enum { PSLIB_PROMOTE_NEVER = 0, PSLIB_PROMOTE_SHOWS = 1, PSLIB_PROMOTE_SCORE = 2, PSLIB_PROMOTION_KINDS = 3 };
enum { PSLIB_EVICT_AGE = 0, PSLIB_EVICT_NORM = 1, PSLIB_EVICT_SCORE = 2, PSLIB_EVICT_RULES = 3 };

/* Which keys get a row (admission.h). */
typedef struct {
    int32_t kind;
    uint32_t count;           /* exact count, Bloom filter: shows with which a key gets its row */
    float chance;             /* probability */
    uint32_t filter_counters; /* of one partition, a power of two */
    uint8_t **filters;        /* one a partition; NULL until it has turned a key away */
    int64_t filter_bytes;     /* of all filters */
    int64_t turned_away;      /* keys of pushes that got no row, each time */
    int64_t admitted;         /* rows made for keys that had to earn them */
} PslibAdmission;

/* When narrow rows become wide (promotion.h); new rows are narrow where kind is not 0. */
typedef struct {
    int32_t kind;
    float number;
    uint64_t *due; /* keys whose rows have proved themselves in the push under way */
    int64_t due_count;
    int64_t promoted; /* rows, also those that were told to */
} PslibPromotion;

typedef struct {
    PslibAdmission admission;
    PslibPromotion promotion;
    float nonclick, click;              /* score = (shows - clicks) * nonclick + clicks * click */
    int64_t evicted[PSLIB_EVICT_RULES]; /* rows, by rule */
    int64_t evicted_share;              /* rows that a memory limit took */
} PslibPolicies;

#endif
