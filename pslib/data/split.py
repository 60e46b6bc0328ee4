"""Split of data into rows to train on and rows to test on: a pure function of the data, no copy of it.

With ``by``, a column of times, the last rows are held out: those from a boundary on, which is chosen so that
their number is nearest to the share. Rows of one time stay together, and rows without a time are trained on.
Without it row i of a file is held out where ``mix64(base + i) < share * 2^64``, so that a frame and the file
made of it are split alike, and rows or files that are added leave the others where they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from cython_ext.common.hashing import mix64
from pslib.data.column_types import column_problem
from pslib.data.columns import numbers_of, plain_batch, storage_type, validity_of
from pslib.data.dataset import KeptRows, ParquetData, RowGroup, open_parquet
from pslib.data.parquet_files import SCAN_ROWS, group_batches
from pslib.data.text_values import TEXT_KINDS
from pslib.errors import ConfigurationError, DataError
from pslib.storage import shown
from pslib.table.tables import text_hash
from pslib.text import counted, one_line, quoted

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

BINS = 1 << 16
"""Bins of the histogram that finds a boundary: times of a year in milliseconds take three passes."""
KEPT_ROWS = 1 << 22
"""Most rows whose times are kept in memory between passes: 32 MiB."""
NO_TIME = np.iinfo(np.int64).min
_BASE = text_hash("held out")


@dataclass(frozen=True, slots=True)
class DataPart:
    """One of the two parts of some data, as `pslib.split` makes them.

    Attributes
    ----------
    data : data
        Paths, or an Arrow table.
    test_share : float
    by : str or None
        Column of times.
    is_test : bool
        The rows held out; else the others.
    """

    data: Any
    test_share: float
    by: str | None
    is_test: bool

    def __repr__(self) -> str:
        part = "rows to test on" if self.is_test else "rows to train on"
        data = self.data if isinstance(self.data, str | os.PathLike) else f"a {type(self.data).__name__}"
        return f"<{part} of {data}: {self.test_share:g} held out, {_drawn(self.by)}>"

    def of(self, whole: ParquetData, table: pa.Table | None = None) -> ParquetData:
        """Return this part of opened data; ``table`` has the column ``by`` of a table in memory.

        Raises
        ------
        DataError
            If one of the parts has no row, or a column of times is missing or holds something else.
        """
        masks = (
            _by_time(whole, self.by, self.test_share, table) if self.by else _by_hash(whole, self.test_share)
        )
        kept = KeptRows(self.test_share, self.by, masks, self.is_test)
        part = whole.part(kept)
        if part.rows in (0, whole.rows):
            raise DataError(
                f"test_share: expected rows to train on and rows to test on, got none of one of them: "
                f"{self.test_share:g} of {counted(whole.rows, 'row')}; give another share, or more data"
            )
        return part


@dataclass(frozen=True, slots=True)
class TrainedRows:
    """Rows that the last fit of a training has seen, as its checkpoints record them.

    Attributes
    ----------
    data : str
        Fingerprint of the data, held-out rows included.
    test_share : float
        Share of its rows that was held out; 0: none.
    by : str or None
        Column of times by which they were held out; None: by a hash.
    """

    data: str
    test_share: float = 0.0
    by: str | None = None

    @staticmethod
    def of(data: ParquetData) -> TrainedRows:
        """Describe the rows of some data."""
        whole, kept = f"{data.hash_of_whole():016x}", data.kept
        return (
            TrainedRows(whole)
            if kept is None or kept.is_test
            else TrainedRows(whole, kept.test_share, kept.by)
        )

    @staticmethod
    def in_manifest(about: Mapping[str, Any]) -> TrainedRows | None:
        """Read what a checkpoint records; None if it records nothing, as before any training."""
        kept = about.get("trained_rows")
        return None if kept is None else TrainedRows(kept["data"], kept["test_share"], kept["by"])

    def check_unseen(self, data: ParquetData) -> None:
        """Check that rows which a split holds out of the same data were not trained on.

        A smaller share of the same split is a part of what was held out. Data that is no part of a split is
        not checked: it was chosen by hand.

        Raises
        ------
        ConfigurationError
        """
        kept = data.kept
        if kept is None or not kept.is_test or self.data != f"{data.hash_of_whole():016x}":
            return
        if kept.by == self.by and kept.test_share <= self.test_share:
            return
        trained = f"{self.test_share:g} of them, {_drawn(self.by)}" if self.test_share else "none of them"
        raise ConfigurationError(
            f"test_share: expected rows that were not trained on, got {kept.test_share:g} of these data, "
            f"{_drawn(kept.by)}, of which the training held out {trained}; "
            f"{'test on those, or' if self.test_share else 'test'} on other data"
        )


def _drawn(by: str | None) -> str:
    return f"the last by {by}" if by else "drawn by a hash"


def _by_hash(whole: ParquetData, share: float) -> list[Callable[[], Bools]]:
    limit = np.uint64(min(int(share * 2.0**64), 2**64 - 1))

    def masks(first: int, rows: int) -> Callable[[], Bools]:
        return lambda: mix64(np.arange(first, first + rows, dtype=np.uint64) + np.uint64(_BASE)) < limit

    return [masks(group.first_row, group.rows) for group in whole.row_groups]


def _by_time(whole: ParquetData, by: str, share: float, table: pa.Table | None) -> list[Callable[[], Bools]]:
    times = _Times(whole, by, table)
    boundary = boundary_of(lambda: (values for _, values in times.parts()), share)
    if boundary is None:
        raise DataError(
            f"test_by: column {by!r} has no later rows to hold out: expected at least two times; leave "
            "test_by out, and rows are drawn by a hash"
        )
    late = [np.empty(0, np.uint8) for _ in whole.row_groups]  # a bit a row
    for index, parts in groupby(times.parts(), itemgetter(0)):
        late[index] = np.packbits(np.concatenate([values >= boundary for _, values in parts]))

    def masks(packed: NDArray[np.uint8], rows: int) -> Callable[[], Bools]:
        return lambda: np.unpackbits(packed, count=rows) != 0

    return [masks(packed, group.rows) for packed, group in zip(late, whole.row_groups, strict=True)]


def boundary_of(parts: Callable[[], Iterator[Int64s]], share: float) -> int | None:
    """Return the time from which on rows are held out; None if all have one time, or none.

    The exact quantile, in constant memory: a histogram between the least and the largest time is refined at
    the bin that holds it, until a bin is one time.

    Parameters
    ----------
    parts : callable
        Returns all times, called once a pass; `NO_TIME` counts for none.
    share : float
        Above 0, below 1.
    """
    low, high, count = None, None, 0
    for values in parts():
        known = values[values != NO_TIME]
        if known.size:
            low = int(known.min()) if low is None else min(low, int(known.min()))
            high = int(known.max()) if high is None else max(high, int(known.max()))
            count += known.size
    if low is None or high is None or low == high:
        return None
    wanted, above = max(1, round(share * count)), 0
    while True:
        width = (high - low) // BINS + 1
        found = np.zeros(BINS, np.int64)
        for values in parts():
            inside = values[(values >= low) & (values <= high)]
            offsets = inside.view(np.uint64) - np.uint64(low % 2**64)
            found += np.bincount((offsets // np.uint64(width)).astype(np.int64), minlength=BINS)
        at_least = above + np.cumsum(found[::-1])[::-1]
        place = int(np.flatnonzero(at_least >= wanted)[-1])
        above = int(at_least[place] - found[place])
        low, high = low + place * width, min(high, low + (place + 1) * width - 1)
        if width == 1:
            rows = int(at_least[place])
            fewer = above > 0 and (rows == count or wanted - above < rows - wanted)
            return low + 1 if fewer else low


class _Times:
    """Column of times of some data as integers, read once a pass if the data is large.

    Raises
    ------
    DataError
        If there is no such column, it holds no times, or whole numbers in one file and times in another.
    """

    def __init__(self, whole: ParquetData, by: str, table: pa.Table | None) -> None:
        self._whole, self._by, self._table = whole, by, table
        self._kept: list[tuple[int, Int64s]] | None = None
        self._first: tuple[str, str] | None = None  # whether times or whole numbers, and the file

    def parts(self) -> Iterator[tuple[int, Int64s]]:
        """Yield the times in order, in parts of one row group each: its index, and (n,)."""
        if self._kept is None and self._whole.rows <= KEPT_ROWS:
            self._kept = list(self._read())
        yield from self._read() if self._kept is None else self._kept

    def _read(self) -> Iterator[tuple[int, Int64s]]:
        if self._table is not None:
            yield from self._read_table(self._table)
            return
        opened, name = None, ""
        try:
            for index, group in enumerate(self._whole.row_groups):
                if opened is None or group.file != name:
                    if opened is not None:
                        opened.close(force=True)
                    opened, name = open_parquet(group.file), group.file
                    self._check(opened.schema_arrow, shown(name))
                for batch in group_batches(opened, group.row_group, [self._by], SCAN_ROWS):
                    yield index, self._integers(batch.column(self._by), group)
        except (OSError, pa.ArrowException) as error:
            raise DataError(
                f"{shown(name)}: column {self._by!r} can't be read ({one_line(error)})"
            ) from error
        finally:
            if opened is not None:
                opened.close(force=True)

    def _read_table(self, table: pa.Table) -> Iterator[tuple[int, Int64s]]:
        self._check(table.schema, self._whole.row_groups[0].file)
        for index, group in enumerate(self._whole.row_groups):
            for batch in table.select([self._by]).slice(group.first_row, group.rows).to_batches():
                yield index, self._integers(plain_batch(batch).column(0), group)

    def _check(self, columns: pa.Schema, where: str) -> None:
        if problem := column_problem(columns, self._by, time_problem, where):
            raise DataError(problem)
        kind = _value_type(columns.field(self._by).type)
        if types.is_null(kind):
            return
        found = "whole numbers" if types.is_integer(kind) else "times"
        self._first = self._first or (found, where)
        expected, file = self._first
        if found != expected:
            raise DataError(
                f"{where}: column {self._by!r}: expected {expected} to split by, as in {file}, got {found} "
                f"({kind}); write all files alike"
            )

    def _integers(self, array: pa.Array, group: RowGroup) -> Int64s:
        try:
            times = _as_times(array)
        except pa.ArrowException as error:
            where, found = f"{shown(group.file)}: column {self._by!r}", _no_time_in(array) or one_line(error)
            raise DataError(f"{where}: expected times as 2024-05-01 12:00:00, got {found}") from error
        values, valid = numbers_of(times).astype(np.int64, copy=False), validity_of(times)
        return values if valid is None else np.where(valid != 0, values, NO_TIME)


def time_problem(kind: pa.DataType) -> str | None:
    """Reason why columns of this type hold no times to split by; None if they may, or have no value."""
    tests = (types.is_timestamp, types.is_date, types.is_integer, types.is_string, types.is_large_string,
             types.is_string_view, types.is_null)  # fmt: skip
    if any(test(_value_type(kind)) for test in tests):
        return None
    return f"times to split by are timestamps, dates, whole numbers or texts of times, got {kind}"


def _value_type(kind: pa.DataType) -> pa.DataType:
    kind = storage_type(kind)
    return kind.value_type if types.is_dictionary(kind) else kind


def _no_time_in(array: pa.Array) -> str:
    """Return the first text that is no time, quoted; empty where each is one, with a zone or without."""
    texts = array.cast(pa.string()).drop_null()
    others = texts.filter(pc.invert(pc.match_substring_regex(texts, f"^{TEXT_KINDS['time']}$")))
    texts = others[:1] if len(others) else texts
    while len(texts) > 1:  # a date such as 2024-02-30 only looks like one
        first, second = texts[: len(texts) // 2], texts[len(texts) // 2 :]
        texts = second if _are_times(first) else first
    return quoted(texts[0].as_py()) if len(texts) and not _are_times(texts) else ""


def _are_times(texts: pa.Array) -> bool:
    try:
        _as_times(texts)
    except pa.ArrowInvalid:
        return False
    return True


def _as_times(array: pa.Array) -> pa.Array:
    """Return times as int64: microseconds, or the whole numbers as they are."""
    if types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if types.is_integer(array.type) or types.is_null(array.type):
        return array.cast(pa.int64(), safe=False)
    if types.is_string(array.type) or types.is_large_string(array.type):
        try:
            array = array.cast(pa.timestamp("us"))
        except pa.ArrowInvalid:  # with a time zone
            array = array.cast(pa.timestamp("us", "UTC"))
    if types.is_date32(array.type):
        array = array.cast(pa.date64())
    kind = pa.timestamp("us", getattr(array.type, "tz", None))
    return array.cast(kind, safe=False).cast(pa.int64())
