/* page_header.h: the header of one page of a Parquet column, in Thrift's compact protocol. */
#ifndef PSLIB_PAGE_HEADER_H
#define PSLIB_PAGE_HEADER_H

#include <stdint.h>

/* Numbers of parquet.thrift; -1 is what a header did not say. */
typedef struct {
    int64_t type, plain_bytes, bytes, values, encoding, level_encoding, repeat_encoding;
    int64_t level_bytes, repeat_bytes, compressed; /* of pages of version 2 */
} PslibPage;

enum { PSLIB_THRIFT_TRUE = 1, PSLIB_THRIFT_FALSE = 2, PSLIB_THRIFT_BYTE = 3, PSLIB_THRIFT_I64 = 6,
       PSLIB_THRIFT_DOUBLE = 7, PSLIB_THRIFT_BINARY = 8, PSLIB_THRIFT_LIST = 9, PSLIB_THRIFT_SET = 10,
       PSLIB_THRIFT_STRUCT = 12 };

#define PSLIB_THRIFT_DEPTH 8

typedef struct {
    const uint8_t *at, *end;
} PslibThrift;

/* Seven bits a byte, the lowest first; 0, or -1 where it is cut off or too long. */
static inline int pslib_varint(const uint8_t **at, const uint8_t *end, uint64_t *number)
{
    uint64_t some = 0;
    for (int shift = 0; shift < 64 && *at < end; shift += 7) {
        const uint8_t byte = *(*at)++;
        some |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            *number = some;
            return 0;
        }
    }
    return -1;
}

static inline int pslib_thrift_number(PslibThrift *from, int64_t *number)
{
    uint64_t zigzag;
    if (pslib_varint(&from->at, from->end, &zigzag)) return -1;
    *number = (int64_t)(zigzag >> 1) ^ -(int64_t)(zigzag & 1);
    return 0;
}

static inline int pslib_thrift_leap(PslibThrift *from, uint64_t bytes)
{
    if (bytes > (uint64_t)(from->end - from->at)) return -1;
    from->at += bytes;
    return 0;
}

/* The type of a struct's next field and its number; 0: the struct ends; -1: it is cut off. */
static inline int pslib_thrift_field(PslibThrift *from, int64_t *field)
{
    if (from->at >= from->end) return -1;
    const uint8_t byte = *from->at++;
    if ((byte & 15) == 0) return 0;
    if (byte >> 4) {
        *field += byte >> 4;
    } else if (pslib_thrift_number(from, field)) {
        return -1;
    }
    if (*field < INT16_MIN || *field > INT16_MAX) return -1; /* Thrift's field numbers have 16 bits */
    return byte & 15;
}

/* The type of a list's elements, or -1; each takes a byte at least. */
static inline int pslib_thrift_list(PslibThrift *from, uint64_t *count)
{
    if (from->at >= from->end) return -1;
    const uint8_t byte = *from->at++;
    *count = byte >> 4;
    return *count == 15 && pslib_varint(&from->at, from->end, count) ? -1 : byte & 15;
}

static int pslib_thrift_skip(PslibThrift *from, int type, int depth)
{
    uint64_t size;
    int64_t number = 0;
    if (depth > PSLIB_THRIFT_DEPTH) return -1;
    if (type == PSLIB_THRIFT_TRUE || type == PSLIB_THRIFT_FALSE) return 0;
    if (type == PSLIB_THRIFT_BYTE) return pslib_thrift_leap(from, 1);
    if (type > PSLIB_THRIFT_BYTE && type <= PSLIB_THRIFT_I64) return pslib_thrift_number(from, &number);
    if (type == PSLIB_THRIFT_DOUBLE) return pslib_thrift_leap(from, 8);
    if (type == PSLIB_THRIFT_BINARY) {
        return pslib_varint(&from->at, from->end, &size) ? -1 : pslib_thrift_leap(from, size);
    }
    if (type == PSLIB_THRIFT_LIST || type == PSLIB_THRIFT_SET) {
        int inner = pslib_thrift_list(from, &size);
        if (inner == PSLIB_THRIFT_TRUE || inner == PSLIB_THRIFT_FALSE) inner = PSLIB_THRIFT_BYTE;
        while (inner >= 0 && size > 0 && !pslib_thrift_skip(from, inner, depth + 1)) size--;
        return inner < 0 || size > 0 ? -1 : 0;
    }
    if (type != PSLIB_THRIFT_STRUCT) return -1; /* a map: Parquet has none */
    for (int inner; (inner = pslib_thrift_field(from, &number)) != 0;) {
        if (inner < 0 || pslib_thrift_skip(from, inner, depth + 1)) return -1;
    }
    return 0;
}

/* The numbers of a struct, field f to *numbers[f]; NULL there, and other types: skipped. */
static int pslib_thrift_numbers(PslibThrift *from, int64_t *const *numbers, int64_t count)
{
    int64_t field = 0;
    for (int type; (type = pslib_thrift_field(from, &field)) != 0;) {
        if (type < 0) return -1;
        int64_t *const to = field >= 0 && field < count ? numbers[field] : NULL;
        if (to && (type == PSLIB_THRIFT_TRUE || type == PSLIB_THRIFT_FALSE)) {
            *to = type == PSLIB_THRIFT_TRUE;
        } else if (to && type > PSLIB_THRIFT_BYTE && type <= PSLIB_THRIFT_I64) {
            if (pslib_thrift_number(from, to)) return -1;
        } else if (pslib_thrift_skip(from, type, 0)) {
            return -1;
        }
    }
    return 0;
}

/* Bytes of the header at `data`, or -1 where it is cut off or is none. */
static int64_t pslib_page_header(const uint8_t *data, int64_t size, PslibPage *page)
{
    PslibThrift from = {data, data + size};
    *page = (PslibPage){-1, -1, -1, -1, -1, -1, -1, -1, -1, 1};
    int64_t *const of_data[] = {NULL, &page->values, &page->encoding, &page->level_encoding, &page->repeat_encoding};
    int64_t *const of_dictionary[] = {NULL, &page->values, &page->encoding};
    int64_t *const of_second[] = {NULL, &page->values, NULL, NULL, &page->encoding, &page->level_bytes,
                                  &page->repeat_bytes, &page->compressed};
    int64_t *const plain[] = {NULL, &page->type, &page->plain_bytes, &page->bytes};
    int64_t field = 0;
    for (int type; (type = pslib_thrift_field(&from, &field)) != 0;) {
        if (type < 0) return -1;
        int wrong;
        if (field == 5 && type == PSLIB_THRIFT_STRUCT) {
            wrong = pslib_thrift_numbers(&from, of_data, 5);
        } else if (field == 7 && type == PSLIB_THRIFT_STRUCT) {
            wrong = pslib_thrift_numbers(&from, of_dictionary, 3);
        } else if (field == 8 && type == PSLIB_THRIFT_STRUCT) {
            wrong = pslib_thrift_numbers(&from, of_second, 8);
        } else if (field >= 1 && field <= 3 && type > PSLIB_THRIFT_BYTE && type <= PSLIB_THRIFT_I64) {
            wrong = pslib_thrift_number(&from, plain[field]);
        } else {
            wrong = pslib_thrift_skip(&from, type, 0);
        }
        if (wrong) return -1;
    }
    return from.at - data;
}

#endif
