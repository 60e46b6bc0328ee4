"""Data set of files: opens them, checks them against the schema up front, lists their row groups."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self, TypeAlias
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pslib.data.column_casts import ColumnCasts
from pslib.data.column_types import ColumnKinds, KeyKinds, column_problems, same_labels
from pslib.data.data_files import DataFiles, Paths, data_files, text_format
from pslib.data.parquet_files import UNREADABLE, about_each, footer_of, open_file, parquet_from
from pslib.data.text_cache import text_bytes
from pslib.data.value_checks import label_ends, statistics_of, statistics_problems
from pslib.errors import DataError
from pslib.schema import Schema
from pslib.storage import is_uri, parent_and_name, shown
from pslib.table.tables import text_hash
from pslib.text import listed, one_line

OTHER_TEXT = (".txt", ".libsvm", ".svm")
"""Suffixes of text that `pslib convert` reads, and nothing else."""


RowNumbers: TypeAlias = range | NDArray[np.int64]
"""Numbers of some rows in their file, ascending from 0."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Row group of a Parquet file.

    Attributes
    ----------
    file : str
        Path or URI as opened.
    row_group : int
        0-based number in the file.
    rows : int
        At least 0.
    first_row : int
        Row number in the file of its first row, 0-based.
    held_out : int
        Further rows of it that belong to the other part of a split.
    """

    file: str
    row_group: int
    rows: int
    first_row: int
    held_out: int = 0


class KeptRows:
    """Rows of each row group that belong to a part.

    Parameters
    ----------
    test_share, by : float, str or None
        Share and column of the held-out rows, as for `pslib.split`.
    tests : sequence of callable
        Of each row group: returns the mask of its rows that are held out.
    is_test : bool
        Whether those are kept, or the others.
    """

    def __init__(
        self,
        test_share: float,
        by: str | None,
        tests: Sequence[Callable[[], NDArray[np.bool_]]],
        is_test: bool,
    ) -> None:
        self.test_share, self.by, self.is_test, self._tests = test_share, by, is_test, tests
        self.counts = [int(np.count_nonzero(self.mask(group))) for group in range(len(tests))]

    @property
    def name(self) -> str:
        """Distinguishes parts of the same data."""
        return f"{self.test_share} {self.by} {self.is_test}"

    def mask(self, group: int) -> NDArray[np.bool_]:
        """Return the mask of the kept rows of a row group, by its index in the data."""
        return self._tests[group]() == self.is_test


class ParquetData:
    """All row groups of a set of files of Parquet or text, with the columns of a schema.

    Text is read from its Parquet in the cache (`pslib.data.text_cache`).

    Parameters
    ----------
    paths : path, URI, folder, glob pattern, or a sequence of them, or DataFiles
        A folder gives its files by the rule of `pslib.data.data_files`, at any depth, ordered by name; a line
        of the log names what is left out, unless the caller has listed the files. A pattern gives the
        matching files and the files of matching folders. URIs (``s3://``, ``gs://``, ``hdfs://``,
        ``file://``) go through pyarrow.fs, with settings such as ``endpoint_override`` in their query;
        patterns are for local paths.
    schema : Schema
    may_be_empty : bool
        Accept data without any row.
    key_kinds : dict, optional
        Key kinds of other data for the same table rows (training data, when this is test data): each
        vocabulary with the kind of its values and a column and a file that have it. Updated with those of
        this data.

    Raises
    ------
    DataError
        If a path is missing, a file is listed twice (a local file under any name), is not Parquet, lacks a
        column or has one of a wrong type, or there is no row. Lists all problems at once.

    Attributes
    ----------
    schema : Schema
    row_groups : tuple of RowGroup
        In file order.
    rows : int
        Rows of all row groups.
    fingerprint : int
        64-bit hash of file names (without folders), sizes and row counts. Unchanged by a move to another
        folder; changed when a file is added or renamed, or its size or row count changes. Changed values in a
        file of the same size are not detected, since that would require reading the whole file.
    names : frozenset of str
        All columns of a file, including those that the schema does not read.
    casts : ColumnCasts
        Casts of the columns that are read.
    notes : tuple of str
        Lines about labels that are all alike, as far as statistics tell.
    kept : KeptRows or None
        Rows that are read, if it is a part of a split.
    """

    kept: KeptRows | None = None
    notes: tuple[str, ...] = ()

    def __init__(
        self,
        paths: Paths | DataFiles,
        schema: Schema,
        *,
        may_be_empty: bool = False,
        key_kinds: KeyKinds | None = None,
    ) -> None:
        self.schema = schema
        found = paths if isinstance(paths, DataFiles) else data_files(paths).tell()
        problems = list(found.problems)
        groups: list[RowGroup] = []
        marks: list[str] = []
        names: set[str] = set()
        ends: dict[str, set[float]] = {}
        kinds = ColumnKinds(schema, key_kinds or {})
        look_at = partial(_look, schema, ColumnCasts(schema, kinds.of_columns()))
        for file, look in zip(found.files, about_each(found.files, look_at), strict=True):
            problems += _taken(file, look, kinds, groups, marks)
            names.update(() if look.columns is None else look.columns.names)
            for label, some in look.label_ends.items():
                ends[label] = ends.get(label, set()) | some
        problems += kinds.settle()
        if not (problems or may_be_empty or any(group.rows for group in groups)):
            problems.append(
                f"{listed(map(shown, found.files))}: expected at least one row, got none; is this the data "
                "that you mean?"
            )
        if problems:
            raise DataError(*problems)
        if key_kinds is not None:
            key_kinds |= kinds.seen
        self.casts = ColumnCasts(schema, kinds.of_columns())
        self.row_groups, self.names = tuple(groups), frozenset(names)
        self.notes = tuple(same_labels(ends))
        self.rows = sum(group.rows for group in groups)
        self._fingerprint = text_hash(*marks)

    @property
    def fingerprint(self) -> int:
        """64-bit hash, of a part also of which one it is."""
        whole = self.hash_of_whole()
        return whole if self.kept is None else text_hash(str(whole), self.kept.name)

    def hash_of_whole(self) -> int:
        """Return the fingerprint of the data that this is a part of."""
        return self._fingerprint

    def part(self, kept: KeptRows) -> Self:
        """Return these data without the rows that are not kept."""
        part = copy(self)
        part.kept, part.rows = kept, sum(kept.counts)
        part.row_groups = tuple(
            replace(group, rows=rows, held_out=group.rows - rows)
            for group, rows in zip(self.row_groups, kept.counts, strict=True)
        )
        return part

    @classmethod
    def known(
        cls, schema: Schema, row_groups: Sequence[RowGroup], fingerprint: int, key_kinds: KeyKinds
    ) -> ParquetData:
        """Build from metadata gathered by another process; opens no file before it is read."""
        data = cls.__new__(cls)
        data.casts = ColumnCasts(schema, ColumnKinds(schema, key_kinds).of_columns())
        data.schema, data.row_groups, data.names = schema, tuple(row_groups), frozenset()
        data.rows = sum(group.rows for group in row_groups)
        data._fingerprint = fingerprint
        return data


@dataclass(frozen=True, slots=True)
class _Look:
    """Footer metadata of one file: rows of its groups, columns, size in bytes, problems, ranges of labels."""

    counts: Sequence[int]
    columns: pa.Schema | None
    bytes: int
    of_columns: Sequence[str]
    of_values: Sequence[str] = ()
    label_ends: Mapping[str, set[float]] = field(default_factory=dict)


def _look(schema: Schema, casts: ColumnCasts, file: str) -> _Look:
    try:
        with open_file(file) as source:
            size, footer = text_bytes(file) or source.size(), footer_of(source)
        with parquet_from(pa.BufferReader(footer)) as opened:
            metadata = opened.metadata
            counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
            if sum(counts) != metadata.num_rows or min(counts, default=0) < 0:
                raise pa.ArrowInvalid(
                    f"its footer says {metadata.num_rows:,} rows, and its row groups {sum(counts):,}"
                )
            columns = casts.schema(opened.schema_arrow)
            problems = column_problems(columns, schema, shown(file))
            if problems:
                return _Look(counts, columns, size, problems)
            statistics = statistics_of(footer, metadata, schema)
            of_values = statistics_problems(file, statistics, schema)
            ends = label_ends(statistics, schema) if sum(counts) else {}
            return _Look(counts, columns, size, [], of_values, ends)
    except UNREADABLE as error:
        return _Look([], None, 0, [not_parquet(file, error)])


def _taken(
    file: str, look: _Look, kinds: ColumnKinds, groups: list[RowGroup], marks: list[str]
) -> Sequence[str]:
    """Append a file's row groups and fingerprint; return its problems, types before values."""
    if look.columns is None:
        return look.of_columns
    first_row = 0
    for i, rows in enumerate(look.counts):
        groups.append(RowGroup(file, i, rows, first_row))
        first_row += rows
    name = parent_and_name(file)[1]
    name = unquote(name) if is_uri(file) else name
    marks.append(f"{name} {look.bytes} {','.join(map(str, look.counts))}")
    typed = text_format(file) is None
    return look.of_columns or kinds.conflicts(look.columns, shown(file), typed=typed) or look.of_values


def not_parquet(file: str, error: Exception) -> str:
    """Error line for a file that can't be opened, with a hint."""
    if isinstance(error, DataError):  # of text
        return "; ".join(error.problems)
    if isinstance(error, PermissionError) and not is_uri(file):
        who = f"this user (uid {os.geteuid()}) may not read it"
        return f"{file}: {who}: chmod a+r it, or let its owner do so; a folder above it needs a+x"
    name = file.lower().removesuffix(".gz")
    if name.endswith((".xls", ".xlsx")):
        return f"{shown(file)}: expected Parquet, CSV or JSON lines, got an Excel file; save its sheet as CSV"
    text = f"{shown(file)}: expected a Parquet file; {one_line(error)}"
    advice = "write it anew, or take it out of the data"
    return f"{text.rstrip('.')}; {'make one with: pslib convert' if name.endswith(OTHER_TEXT) else advice}"


def open_parquet(file: str) -> pq.ParquetFile:
    """Open a path or URI; close it with ``with`` or `close`."""
    return parquet_from(open_file(file))
