"""Declarations of the C headers of a table, for Cython: all names begin with ``pslib_`` or ``Pslib``."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "table/table_rows.h" nogil:
    enum:
        PSLIB_WIDE
        PSLIB_NARROW
        PSLIB_DIM_MAX
        PSLIB_HYPERPARAMETERS
        PSLIB_MODIFIERS
        PSLIB_INITIALIZER_KINDS
        PSLIB_ADAM
        PSLIB_ROWWISE_ADAGRAD
        PSLIB_OPTIMIZER_KINDS
        PSLIB_PARTITION_BITS_MAX
        PSLIB_PARTS_MAX
        PSLIB_ROW_IDS
        PSLIB_ROWS_MAX
        PSLIB_STORAGE_KINDS
        PSLIB_COUNT_LAST_SEEN
        PSLIB_COUNT_SHOWS
        PSLIB_COUNTER_KINDS
        PSLIB_ADMISSION_KINDS
        PSLIB_PROMOTION_KINDS
        PSLIB_ADMIT_ALL
        PSLIB_ADMIT_COUNT
        PSLIB_ADMIT_BLOOM
        PSLIB_ADMIT_CHANCE
        PSLIB_COUNT_MAX
        PSLIB_FILTER_COUNT_MAX
        PSLIB_FILTER_MIN
        PSLIB_FILTER_MAX
        PSLIB_EVICT_AGE
        PSLIB_EVICT_NORM
        PSLIB_EVICT_SCORE
        PSLIB_EVICT_RULES

    ctypedef enum PslibStatus:
        PSLIB_OK
        PSLIB_NO_MEMORY
        PSLIB_PARTITION_FULL
        PSLIB_TABLE_FULL

    ctypedef struct PslibOptimizer:
        int kind
        float *numbers
        const float *corrections
        int64_t last_step
        float weight_decay
        float clip_norm
        float cowclip_ratio
        float cowclip_floor
        float decay_rate

    ctypedef struct PslibInitializer:
        int kind
        float *numbers
        uint64_t seed

    ctypedef struct PslibPart:
        int64_t dim
        int64_t state_floats
        const float *initial_state
        PslibOptimizer optimizer
        PslibInitializer initializer

    ctypedef struct PslibRowClass:
        int part_count
        int64_t weight_floats
        int64_t state_floats
        size_t row_bytes

    ctypedef struct PslibArena:
        uint32_t live

    ctypedef struct PslibPartition:
        uint32_t filled

    ctypedef struct PslibArenas:
        PslibArena *of

    ctypedef struct PslibAdmission:
        int kind
        uint32_t count
        float chance
        uint32_t filter_counters
        uint8_t **filters
        int64_t turned_away
        int64_t admitted

    ctypedef struct PslibPromotion:
        int kind
        float number
        int64_t promoted

    ctypedef struct PslibPolicies:
        PslibAdmission admission
        PslibPromotion promotion
        float nonclick
        float click
        int64_t *evicted
        int64_t evicted_share

    ctypedef struct PslibRecord:
        uint64_t salt
        uint64_t rounding
        float now
        const float *shows
        const float *clicks

    ctypedef struct PslibTracking:
        int keeps
        int increment
        int broken
        uint8_t *pending
        uint64_t *gone
        int64_t gone_before

    ctypedef struct PslibTable:
        PslibTracking *tracking
        PslibPartition *partitions
        PslibArenas *arenas
        PslibPart *parts
        PslibRowClass *classes
        int64_t *rows
        int partition_bits
        int level
        int storage
        int counters
        int64_t steps_refused
        PslibPolicies policies

    ctypedef struct PslibStats:
        int64_t rows
        int64_t narrow_rows
        int64_t index_bytes
        int64_t row_bytes
        int64_t free_bytes
        int64_t directory_bytes
        int64_t spare_bytes
        int64_t filter_bytes
        int64_t resident_bytes
        int64_t counted_keys

    ctypedef struct PslibForesight:
        int64_t made
        int64_t widened
        int64_t bytes

    int PSLIB_FORESEE_PUSH

    int64_t pslib_state_floats(int kind, int64_t dim)
    int pslib_optimizer_clips(const PslibOptimizer *optimizer)
    int pslib_optimizer_catches_up(const PslibOptimizer *optimizer)
    void pslib_set_rate(PslibOptimizer *optimizer, float rate, int delta)
    int pslib_full_step(const PslibOptimizer *optimizer, int64_t dim, float *weights, float *state,
                        const float *gradient, float shows, float missed, int guarded)
    void pslib_first_values(const PslibInitializer *initializer, uint64_t key, int64_t dim, float *out)
    uint64_t pslib_mix64(uint64_t x)
    PslibStatus pslib_table_open(PslibTable *table, int partition_bits)
    void pslib_table_shape(PslibTable *table, int part_count, int narrow_parts)
    void pslib_table_close(PslibTable *table)
    int64_t pslib_table_drop(PslibTable *table, uint32_t partition)
    int64_t pslib_table_pull(const PslibTable *table, const uint64_t *keys, int64_t n, float now, float *out)
    PslibStatus pslib_table_push_at(PslibTable *table, const uint64_t *keys, int64_t n,
                                    const float *gradients, int row_class, const PslibRecord *record,
                                    float rate, int delta, int64_t *done)
    int64_t pslib_table_erase(PslibTable *table, const uint64_t *keys, int64_t n)
    PslibStatus pslib_table_assign(PslibTable *table, const uint64_t *keys, int64_t n, const float *weights,
                                   const float *state, int row_class, int64_t *done)
    int64_t pslib_first_foreign(const PslibTable *table, uint32_t partition, const uint64_t *keys, int64_t n)
    PslibStatus pslib_table_export(const PslibTable *table, uint32_t partition, int row_class, uint64_t *keys,
                                   float *weights, float *state)
    PslibStats pslib_table_stats(const PslibTable *table)
    int64_t pslib_table_first_broken(const PslibTable *table)
    int64_t pslib_table_missing(const PslibTable *table, const uint64_t *keys, int64_t n)
    PslibStatus pslib_table_foresee(const PslibTable *table, const uint64_t *keys, int64_t n, int row_class,
                                    const PslibRecord *record, PslibForesight *out)
    void pslib_table_held(const PslibTable *table, int64_t *held)
    uint32_t pslib_partition_rows(const PslibArenas *arenas)
    uint32_t pslib_partition_counted(const PslibTable *table, uint32_t partition)
    void pslib_counts_export(const PslibTable *table, uint32_t partition, uint64_t *keys, uint32_t *counts)
    PslibStatus pslib_counts_import(PslibTable *table, uint32_t partition, const uint64_t *keys,
                                    const uint32_t *counts, int64_t n, int64_t *done)
    PslibStatus pslib_filter_import(PslibTable *table, uint32_t partition, const uint8_t *other)
    PslibStatus pslib_table_evict(PslibTable *table, const uint32_t *partitions, int64_t count, int rule,
                                  float number, float now, int64_t *gone)
    PslibStatus pslib_table_evict_worst(PslibTable *table, const uint32_t *partitions, int64_t count,
                                        int rule, int64_t wanted, uint64_t *keys, int64_t *gone)
    void pslib_table_decay(PslibTable *table, const uint32_t *partitions, int64_t count, float factor)
    void pslib_tracking_close(PslibTable *table)
    PslibStatus pslib_image_begin(PslibTable *table, int increment, int keeps)
    void pslib_image_end(PslibTable *table)
    void pslib_image_settle(PslibTable *table, int committed)
    int64_t pslib_image_bound(const PslibTable *table, uint32_t first, uint32_t stop, int row_class)
    uint32_t pslib_image_stop(const PslibTable *table, uint32_t first, int64_t rows)
    PslibStatus pslib_image_rows(const PslibTable *table, uint32_t first, uint32_t stop, int row_class,
                                 uint64_t *keys, float *weights, float *state, int64_t *count)
    int64_t pslib_image_counts(const PslibTable *table, uint32_t first, uint32_t stop, uint64_t *keys,
                               uint32_t *counts)
    int64_t pslib_image_counted_bound(const PslibTable *table, uint32_t first, uint32_t stop)
    const uint8_t *pslib_image_filter(const PslibTable *table, uint32_t partition)
    void pslib_image_written(PslibTable *table, uint32_t partition)
    int64_t pslib_tracking_bytes(const PslibTable *table)
