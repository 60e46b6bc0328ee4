"""Converters from text to Parquet: Criteo's logs, CSV with a header, JSON lines, libsvm, libffm.

No value is lost or changed, with one exception: an infinite number in a dense column, which training rejects,
becomes null, and the report counts it. A missing value is null, a string is unchanged, an integer that does
not fit is a reject. A float64 column has the nearest number to a fraction. An integer that it would change,
such as 9007199254740993, is a reject there too, as is one beyond its range, such as 1e999 (but not in values
of libsvm and libffm). Records that can't be read go to ``<out>.rejects.tsv`` (line number, reason, record).
More than a given share of them stops the run, which then leaves no files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from shlex import quote

import pyarrow as pa

from pslib.data.convert.by_values import convert_by_values
from pslib.data.convert.csv_criteo import (
    CRITEO_DENSE,
    CRITEO_LABEL,
    CRITEO_SPARSE,
    OtherValues,
    criteo_schema,
    csv_parser,
    decimal_of,
    libsvm_parser,
    roles_of,
    with_fractions,
)
from pslib.data.convert.csv_header import delimiter_of, header_of
from pslib.data.convert.job import ADVICE, Conversion, ConvertReport, Progress
from pslib.data.convert.json_lines import json_columns, json_parser
from pslib.data.convert.libffm import FfmFields, ffm_notes, ffm_parser, ffm_schema, looker
from pslib.data.convert.records import Piece, Rejects, parse_piece, pieces
from pslib.errors import ConfigurationError, DataError
from pslib.schema import DenseField, RaggedField, Schema, SparseField

REJECTS_SHARE_MAX = 0.001  # a larger share means another format rather than a valid file with a few bad lines


def convert_criteo(
    source: str | Path,
    out: str | Path,
    *,
    overwrite: bool = False,
    rejects_max_share: float = REJECTS_SHARE_MAX,
    progress: Progress | None = None,
) -> ConvertReport:
    """Convert a click log of Criteo: label, 13 integers, 26 strings, tab-separated, no header.

    Parameters
    ----------
    source : str or Path
        Plain text, gzip, bzip2, xz, lzma, zstd or LZ4.
    out : str or Path
        Parquet file: label int8, I1..I13 int64, C1..C26 string; empty cells are nulls.
    overwrite : bool
        True if ``out`` may be replaced.
    rejects_max_share : float
        Largest share of bad lines, in [0, 1].
    progress : callable, optional
        Called with the number of lines read so far.

    Returns
    -------
    ConvertReport

    Raises
    ------
    ConfigurationError
        If ``out`` exists or is the source, or a value above is out of bounds.
    DataError
        If the source can't be read, holds no row, or too many lines are bad. No files are left then.
    """
    types = {CRITEO_LABEL: pa.string(), **dict.fromkeys(CRITEO_DENSE, pa.int64())}
    types |= dict.fromkeys(CRITEO_SPARSE, pa.string())
    run = Conversion(source, out, overwrite=overwrite, share_max=rejects_max_share, progress=progress)
    return run.over(pieces(run.source), csv_parser(types, CRITEO_LABEL, "\t", quotes=False), criteo_schema())


def convert_csv(
    source: str | Path,
    out: str | Path,
    *,
    label: str | None = "label",
    dense: Iterable[str] | None = None,
    sparse: Iterable[str] | None = None,
    integers: Iterable[str] = (),
    positive: Iterable[str] | None = None,
    columns: Iterable[str] | None = None,
    delimiter: str | None = None,
    overwrite: bool = False,
    rejects_max_share: float = REJECTS_SHARE_MAX,
    progress: Progress | None = None,
) -> ConvertReport:
    r"""Convert a CSV file; quotes as in RFC 4180.

    Parameters
    ----------
    source, out, overwrite, rejects_max_share, progress
        As for `convert_criteo`.
    label : str or None
        Column of 0 and 1 (also -1 and 1, true and false), becomes int8. None: all columns have the types of
        their values (`pslib.data.convert.by_values`), as where the file itself is the data of a training; but
        those of ``sparse`` stay text, as they are written.
    dense : iterable of str, optional
        Columns of numbers, become float64. Default when ``sparse`` is not given either: columns with
        numbers only, one with a fraction, in the first 4 MiB, 10,000 rows at most. (Whole numbers may be
        counts or names; as keys they lose nothing.)
    sparse : iterable of str, optional
        Columns of keys; default: all others. Where both are given, further columns are kept as strings.
    integers : iterable of str
        Sparse columns to store as int64 instead of string, also where they are written as 7.0. "7" and 7 are
        different keys, so choose the same for all files of a job.
    positive : iterable of str, optional
        Texts of the label that count as 1, as they are written (``yes``, ``2``); each other text counts as 0,
        but a missing one makes its record a reject. Default: 0 and 1, -1 and 1, true and false.
    columns : iterable of str, optional
        Names of the columns, of a file without a header. Default: its first line has them.
    delimiter : str or None
        One character, e.g. ``"\t"``; None: of comma, tab, semicolon and bar the one that the
        first line has most.

    Notes
    -----
    Where a semicolon divides the values, 0,5 is a number, as Excel writes it where the comma is decimal.

    An empty cell is a null, as is ``\\N``, the null of Hive; ``""`` in a column of strings is the empty
    string. In a column of numbers so is what `pandas.read_csv` takes for missing (nan, NA, null and the like:
    `pslib.data.text_values.MISSING`), in one of strings it is a string as any other. An infinite number is a
    number when columns are classified; in a dense column it becomes a null, which the report counts
    (``infinite``).

    Raises
    ------
    ConfigurationError, DataError
        As for `convert_criteo`; also when a named column is missing, or the header is not usable or is a
        record (`pslib.data.convert.csv_header`).
    """
    run = Conversion(source, out, overwrite=overwrite, share_max=rejects_max_share, progress=progress)
    if delimiter is not None and (len(delimiter.encode()) != 1 or delimiter in '"\n\r'):
        raise ConfigurationError(
            f"delimiter: expected one ASCII character, no quote or newline, got {delimiter!r}"
        )
    dense, sparse, integers, given = _listed(dense), _listed(sparse), [*integers], _listed(columns)
    if label is None:
        _refuse_numbers(dense, integers)
        _refuse_positive(positive)
        return convert_by_values(run, "csv", delimiter=delimiter, names=given, texts=sparse or ())
    delimiter = delimiter or delimiter_of(run.source)
    found = pieces(run.source, quoted_by=delimiter.encode())
    first = next(found, None)
    if first is None:
        raise DataError(f"{run.source}: expected a header and rows, got an empty file")
    names, body = header_of(first, delimiter, run.source, names=given)
    if len(names) < 2:
        raise DataError(f"{run.source}: only one column: is {delimiter!r} the right delimiter?")
    roles = roles_of(names, label, dense, sparse, integers, run.source)
    notes, decimal = list[str](), decimal_of(body, delimiter)
    if dense is None and sparse is None:
        roles, notes = with_fractions(roles, body, names, label, delimiter, decimal)
    kinds = {name: roles.get(name, pa.string()) for name in names}
    named = {*(dense or ()), *(sparse or ())} if dense is not None and sparse is not None else set(names)
    schema = Schema(
        label=label,
        dense=[DenseField(name) for name in names if roles.get(name) == pa.float64()],
        sparse=[SparseField(n) for n in names if n in named and n != label and roles.get(n) != pa.float64()],
    )
    parser = csv_parser(kinds, label, delimiter, quotes=True, positive=_listed(positive), decimal=decimal)
    return run.over(
        _chained(body, found), parser, schema, lines_before=first.lines - body.lines, notes=lambda: notes
    )


def convert_libsvm(
    source: str | Path,
    out: str | Path,
    *,
    overwrite: bool = False,
    rejects_max_share: float = REJECTS_SHARE_MAX,
    progress: Progress | None = None,
) -> ConvertReport:
    """Convert ``label index:value ...``, or ``label index ...`` with all values 1.

    Parameters
    ----------
    source, out, overwrite, rejects_max_share, progress
        As for `convert_criteo`. Labels are 0 and 1 or -1 and 1. ``out`` gets the columns label (int8) and
        ids (list of int64), and, when any value differs from 1, values (list of float64) of the same lengths.

    Notes
    -----
    A reader takes ``ids`` as a ragged field with sum pooling. For a linear model this is the sum of the
    weights of the ids, which is exact if all values are 1. It does not read ``values``: values other than 1
    count as 1, so dense columns suit such data better. A pair of the value 0 is left out.

    Raises
    ------
    ConfigurationError, DataError
        As for `convert_criteo`.
    """
    schema = Schema(label=CRITEO_LABEL, ragged=[RaggedField("ids", pooling="sum")])
    run = Conversion(source, out, overwrite=overwrite, share_max=rejects_max_share, progress=progress)
    kept = (
        "values other than 1 are kept in the column values, which no field reads: each id counts as 1; for "
        "numbers write a column each"
    )
    left_out = "pairs of the value 0 are left out: to have no value means the same"
    zeros = set[int]()

    def read(*, with_values: bool) -> ConvertReport:
        parse = libsvm_parser(with_values=with_values, zeros=zeros)

        def notes() -> list[str]:
            return [kept] * with_values + [left_out] * bool(zeros)

        return run.over(pieces(run.source, comment=b"#"), parse, schema, notes=notes)

    try:
        return read(with_values=False)
    except OtherValues:
        # All values before were 1, so the first pass wrote no column for them: read once more.
        return read(with_values=True)


def convert_libffm(
    source: str | Path,
    out: str | Path,
    *,
    overwrite: bool = False,
    rejects_max_share: float = REJECTS_SHARE_MAX,
    progress: Progress | None = None,
) -> ConvertReport:
    """Convert ``label field:index:value ...``, the text format of libffm.

    Parameters
    ----------
    source, out, overwrite, rejects_max_share, progress
        As for `convert_criteo`. The source is read twice: first to find the fields. ``out`` gets
        the column label (int8) and for each field ``f<number>`` with its index (int64, null where a record
        lacks it; a list of int64 where a record has several) and, when any value differs from 1,
        ``f<number>_value`` (float64).

    Notes
    -----
    A field that has one index alone, with values, is a number; all others are keys, and the value beside a
    single one is a number too. Values beside several indexes of a record are kept in the file but not read.
    An index of the value 0 is no key: to have no value means the same.

    Raises
    ------
    ConfigurationError, DataError
        As for `convert_criteo`.
    """
    run = Conversion(source, out, overwrite=overwrite, share_max=rejects_max_share, progress=progress)
    seen: list[FfmFields] = []
    look, passed_over = looker(seen), Rejects(Path(os.devnull), str(run.source), rejects_max_share, ADVICE)
    with closing(passed_over):
        for piece in pieces(run.source, comment=b"#"):
            passed_over.lines += piece.lines
            parse_piece(piece, look, passed_over)
    if not seen:
        raise DataError(f"{run.source}: expected label field:index:value ..., got no such line")
    schema, notes = ffm_schema(seen[0]), ffm_notes(seen[0])
    return run.over(pieces(run.source, comment=b"#"), ffm_parser(seen[0]), schema, notes=lambda: notes)


def convert_jsonl(
    source: str | Path,
    out: str | Path,
    *,
    label: str | None = "label",
    dense: Iterable[str] | None = None,
    sparse: Iterable[str] | None = None,
    positive: Iterable[str] | None = None,
    overwrite: bool = False,
    rejects_max_share: float = REJECTS_SHARE_MAX,
    progress: Progress | None = None,
) -> ConvertReport:
    """Convert JSON lines: one object per line.

    Parameters
    ----------
    source, out, overwrite, rejects_max_share, progress
        As for `convert_criteo`. Columns, types: those of the first 4 MiB, at most 10,000 records: int64
        (uint64 for ids above 2^63), float64, string, bool, or lists of integers or string. An absent member
        is a null; a member that none of these records has, or a value of another type, makes its record a
        reject.
    label : str or None
        Member with 0 or 1, true or false, as a number or a string; becomes int8. None: as for `convert_csv`,
        and the types are those of all records.
    dense : iterable of str, optional
        Members that are numbers to compute with, become float64. Default when ``sparse`` is not given either:
        those with a fraction somewhere.
    sparse : iterable of str, optional
        Members that are keys; default: all others. Lists are ragged fields. Whole numbers that are written
        with a point, as 7.0, become int64.
    positive : iterable of str, optional
        As for `convert_csv`.

    Raises
    ------
    ConfigurationError, DataError
        As for `convert_criteo`; also when a column is of no one type or holds objects, or the label
        holds lists.
    """
    run = Conversion(source, out, overwrite=overwrite, share_max=rejects_max_share, progress=progress)
    dense, sparse = _listed(dense), _listed(sparse)
    if label is None:
        _refuse_numbers(dense)
        _refuse_positive(positive)
        return convert_by_values(run, "jsonl", texts=sparse or ())
    found = pieces(run.source)
    first = next(found, None)
    if first is None:
        raise DataError(f"{run.source}: expected a JSON object a line, got an empty file")
    columns, wholes = json_columns((text for _, text in first.split()), run.source)
    roles_of(list(columns), label, dense, sparse, (), run.source)
    if pa.types.is_list(columns[label]):
        raise DataError(f"{run.source}: column {label!r}: expected 0 or 1, got lists; choose another label")
    columns |= {name: pa.float64() for name in dense or ()}
    numbers = {name for name, kind in columns.items() if kind == pa.float64()} if dense is None else {*dense}
    pointed = sorted(wholes & {*(sparse or ())})
    numbers -= {*pointed}
    if wrong := sorted(numbers & {*(sparse or ())}):
        raise DataError(f"{run.source}: column {wrong[0]!r} has fractions and can't be sparse")
    named = {*dense, *sparse} if dense is not None and sparse is not None else set(columns)
    keyed = [
        name for name in columns
        if name in named - numbers - {label} and (columns[name] != pa.float64() or name in pointed)
    ]  # fmt: skip
    schema = Schema(
        label=label,
        dense=[DenseField(name) for name in columns if name in numbers and name != label],
        sparse=[SparseField(name) for name in keyed if not pa.types.is_list(columns[name])],
        ragged=[RaggedField(name) for name in keyed if pa.types.is_list(columns[name])],
    )
    unsure = [name for name in columns if dense is None and name in (wholes & numbers) - {label}]
    said = "whole numbers with a point, taken as numbers; if they are ids: --sparse"
    notes = [f"column {name!r}: {said} {quote(name)}" for name in unsure]
    parser = json_parser(columns, label, pointed, positive=_listed(positive))
    return run.over(_chained(first, found), parser, schema, notes=lambda: notes)


def _listed(names: Iterable[str] | None) -> list[str] | None:
    """Names as a list, since a generator can be iterated only once."""
    return None if names is None else list(names)


def _refuse_numbers(*columns: Sequence[str] | None) -> None:
    if any(columns):
        raise ConfigurationError(
            "without a label all columns are typed by their values: name only sparse ones, which stay text"
        )


def _refuse_positive(positive: Iterable[str] | None) -> None:
    if positive is not None:
        raise ConfigurationError("positive: expected a label with it, got none; name the label's column")


def _chained(first: Piece, others: Iterable[Piece]) -> Iterable[Piece]:
    if first.lines:
        yield first
    yield from others
