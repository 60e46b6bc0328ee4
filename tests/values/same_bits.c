/* Prints a hash of what tables hold after the same records: every machine must print the same.
 *
 * tests/values/test_same_bits.py compiles it for this machine and for 64-bit ARM and compares with a golden file.
 * One line for each (optimizer, storage, floats a row): name of the case, hash of all pulled and exported bits.
 */
#include <stdio.h>

#include "table/table_rows.h"

enum { KEYS = 700, ROUNDS = 4, STEPS = 64, DIMS = 5 };

static const int dims[DIMS] = {1, 5, 16, 33, 64};

static uint64_t hash_of(uint64_t hash, const void *bytes, size_t count)
{
    const uint8_t *at = bytes;
    for (size_t i = 0; i < count; i++) hash = (hash ^ at[i]) * UINT64_C(0x100000001B3);
    return hash;
}

/* Numbers between -2 and 2 with all sizes of exponents, the same everywhere. */
static void fill(float *out, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        const uint64_t word = pslib_mix64(seed + (uint64_t)i * PSLIB_GOLDEN);
        const float small = (float)(1 << (word & 15)) * 0x1p-15f;
        out[i] = ((float)(int32_t)(word >> 40) * 0x1p-23f - 1.0f) * small;
    }
}

static uint64_t exported(const PslibTable *table, uint64_t hash)
{
    const PslibRowClass *shape = &table->classes[PSLIB_WIDE];
    for (uint32_t number = 0; number < UINT32_C(1) << table->partition_bits; number++) {
        const size_t rows = table->arenas[number].of[PSLIB_WIDE].live;
        uint64_t *keys = calloc(rows + 1, sizeof *keys);
        float *weights = calloc(rows * (size_t)shape->weight_floats + 1, sizeof *weights);
        float *state = calloc(rows * (size_t)shape->state_floats + 1, sizeof *state);
        if (keys == NULL || weights == NULL || state == NULL) exit(1);
        if (pslib_table_export(table, number, PSLIB_WIDE, keys, weights, state) != PSLIB_OK) exit(1);
        hash = hash_of(hash, keys, rows * sizeof *keys);
        hash = hash_of(hash, weights, rows * (size_t)shape->weight_floats * sizeof *weights);
        hash = hash_of(hash, state, rows * (size_t)shape->state_floats * sizeof *state);
        free(keys);
        free(weights);
        free(state);
    }
    return hash;
}

static uint64_t play(int kind, int storage, int64_t dim)
{
    static const float numbers[PSLIB_OPTIMIZER_KINDS][PSLIB_HYPERPARAMETERS] = {
        {0.05f}, {0.05f, 1e-8f, 0.1f}, {0.05f, 1e-8f, 0.1f}, {0.01f, 0.9f, 0.99f, 1e-8f}, {0.05f, 0.9f, 1.0f},
        {0.1f, 1.0f, 0.01f, 0.1f}};
    float corrections[2 * STEPS], state[3 * 64 + 1] = {0};
    for (int i = 0; i < 2 * STEPS; i++) corrections[i] = 1.0f + 1.0f / (float)(i + 1);
    PslibTable table = {.storage = storage, .counters = PSLIB_COUNT_LAST_SEEN | PSLIB_COUNT_SHOWS};
    PslibPart *part = &table.parts[0];
    *part = (PslibPart){.dim = dim, .state_floats = pslib_state_floats(kind, dim), .initial_state = state,
                        .initializer = {PSLIB_NORMAL, {0.1f, 0.0f}, 42}};
    part->optimizer = (PslibOptimizer){.kind = kind, .corrections = corrections, .last_step = STEPS - 1,
                                       .weight_decay = 0.01f, .clip_norm = 3.0f};
    memcpy(part->optimizer.numbers, numbers[kind], sizeof part->optimizer.numbers);
    part->optimizer.decay_rate = numbers[kind][0];
    table.level = pslib_best_level();
    pslib_table_shape(&table, 1, 0);
    if (pslib_table_open(&table, 3) != PSLIB_OK) exit(1);

    static uint64_t keys[KEYS];
    static float gradients[KEYS * 64], shows[KEYS], pulled[KEYS * 64];
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    for (int i = 0; i < KEYS; i++) shows[i] = (float)(1 + i % 7);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < KEYS; i++) keys[i] = pslib_mix64((uint64_t)(i * (1 + round % 2) + round));
        fill(gradients, KEYS * dim, (uint64_t)round);
        const PslibRecord record = {.salt = (uint64_t)round, .now = (float)(3 * round), .shows = shows};
        int64_t done = 0;
        if (pslib_table_push(&table, keys, KEYS, gradients, PSLIB_WIDE, &record, &done) != PSLIB_OK) exit(1);
        pslib_table_pull(&table, keys, KEYS, (float)(3 * round + 1), pulled);
        hash = hash_of(hash, pulled, (size_t)(KEYS * dim) * sizeof *pulled);
    }
    hash = exported(&table, hash);
    pslib_table_close(&table);
    return hash;
}

int main(void)
{
    for (int kind = 0; kind < PSLIB_OPTIMIZER_KINDS; kind++)
        for (int storage = 0; storage < PSLIB_STORAGE_KINDS; storage++)
            for (int i = 0; i < DIMS; i++)
                printf("%d %d %d %016llx\n", kind, storage, dims[i], (unsigned long long)play(kind, storage, dims[i]));
    return 0;
}
