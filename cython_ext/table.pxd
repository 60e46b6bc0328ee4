"""What the C headers of the store offer to Cython."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "table_rows.h" nogil:
    enum:
        PSLIB_WIDE
        PSLIB_NARROW
        PSLIB_CELLS
        PSLIB_DIM_MAX
        PSLIB_HYPERPARAMETERS
        PSLIB_INITIALIZER_KINDS
        PSLIB_ADAM
        PSLIB_ROWWISE_ADAGRAD
        PSLIB_OPTIMIZER_KINDS
        PSLIB_PARTITION_BITS_MAX
        PSLIB_PARTS_MAX
        PSLIB_ROWS_MAX

    ctypedef enum PslibStatus:
        PSLIB_OK
        PSLIB_NO_MEMORY
        PSLIB_PARTITION_FULL

    ctypedef struct PslibLine:
        uint8_t *tag

    ctypedef struct PslibOptimizer:
        int kind
        float *numbers
        const float *corrections
        int64_t last_step

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
        uint32_t rows
        PslibArena *arenas

    ctypedef struct PslibTable:
        PslibPartition *partitions
        PslibPart *parts
        PslibRowClass *classes
        int64_t *rows

    ctypedef struct PslibStats:
        int64_t rows
        int64_t narrow_rows
        int64_t index_bytes
        int64_t row_bytes
        int64_t free_bytes
        int64_t directory_bytes

    int64_t pslib_state_floats(int kind, int64_t dim)
    void pslib_step(const PslibOptimizer *optimizer, int64_t dim, float *weights, float *state,
                    const float *gradient)
    void pslib_first_values(const PslibInitializer *initializer, uint64_t key, int64_t dim, float *out)
    uint32_t pslib_line_mask(const PslibLine *line, uint8_t tag)
    uint32_t pslib_line_mask_plain(const PslibLine *line, uint8_t tag)
    PslibStatus pslib_table_open(PslibTable *table, int partition_bits)
    void pslib_table_shape(PslibTable *table, int part_count, int narrow_parts)
    void pslib_table_close(PslibTable *table)
    int64_t pslib_table_drop(PslibTable *table, uint32_t partition)
    int64_t pslib_table_pull(const PslibTable *table, const uint64_t *keys, int64_t n, float *out)
    PslibStatus pslib_table_push(PslibTable *table, const uint64_t *keys, int64_t n, const float *gradients,
                                 int row_class, int64_t *done)
    int64_t pslib_table_erase(PslibTable *table, const uint64_t *keys, int64_t n)
    PslibStatus pslib_table_assign(PslibTable *table, const uint64_t *keys, int64_t n, const float *weights,
                                   const float *state, int row_class, int64_t *done)
    PslibStatus pslib_table_promote(PslibTable *table, const uint64_t *keys, int64_t n, int64_t *promoted,
                                    int64_t *done)
    int64_t pslib_first_stranger(const PslibTable *table, uint32_t partition, const uint64_t *keys, int64_t n)
    PslibStatus pslib_table_export(const PslibTable *table, uint32_t partition, int row_class, uint64_t *keys,
                                   float *weights, float *state)
    PslibStats pslib_table_stats(const PslibTable *table)
    int64_t pslib_table_first_broken(const PslibTable *table)
