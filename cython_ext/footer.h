/* footer.h: whether a Parquet file's footer names codecs of the format alone: pyarrow, asked for another, ends the
 * process. */
#ifndef PSLIB_FOOTER_H
#define PSLIB_FOOTER_H

#include "page_header.h"

#define PSLIB_CODEC_LAST 7 /* LZ4_RAW */

/* In the structs that lead to it, each by the field in `path` (a struct, or each of a list of them), the number in the
 * last field is 0 to `most`. 0, or -1 where it is not, or the bytes are damaged. */
static int pslib_thrift_within(PslibThrift *from, const int64_t *path, int fields, int64_t most)
{
    int64_t field = 0, number;
    for (int type; (type = pslib_thrift_field(from, &field)) != 0;) {
        uint64_t count = 1;
        if (type < 0) return -1;
        if (field != path[0]) {
            if (pslib_thrift_skip(from, type, 0)) return -1;
        } else if (fields == 1) {
            if (type <= PSLIB_THRIFT_BYTE || type > PSLIB_THRIFT_I64) return -1;
            if (pslib_thrift_number(from, &number) || number < 0 || number > most) return -1;
        } else {
            if (type == PSLIB_THRIFT_LIST && (type = pslib_thrift_list(from, &count)) < 0) return -1;
            if (count > 0 && type != PSLIB_THRIFT_STRUCT) return -1;
            while (count-- > 0)
                if (pslib_thrift_within(from, path + 1, fields - 1, most)) return -1;
        }
    }
    return 0;
}

/* FileMetaData.row_groups, RowGroup.columns, ColumnChunk.meta_data, ColumnMetaData.codec of parquet.thrift. */
static int pslib_footer_codecs(const uint8_t *data, int64_t size)
{
    const int64_t path[] = {4, 1, 3, 4};
    PslibThrift from = {data, data + size};
    return pslib_thrift_within(&from, path, 4, PSLIB_CODEC_LAST);
}

#endif
