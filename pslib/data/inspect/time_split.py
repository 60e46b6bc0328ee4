"""Split that is proposed for some data: by its column of times if there is one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate

from pyarrow import types

from pslib.data.dataset import ParquetData, RowGroup, open_parquet
from pslib.data.features import time_unit
from pslib.data.inspect.check import CheckReport
from pslib.data.inspect.column_scan import ColumnReport
from pslib.data.split import DataPart
from pslib.errors import DataError
from pslib.schema import Schema

TIME_WORDS = {"at", "date", "datetime", "day", "dt", "eventtime", "time", "timestamp", "ts", "when"}
"""Words in names of times of events: whole numbers are taken for times by their range and by one of these."""
OTHER_WORDS = {
    *("birth", "birthday", "born", "created", "end", "expires", "expiry", "joined", "modified", "registered"),
    *("registration", "release", "released", "signup", "start", "updated"),
}
"""Words in names of times that are not those of the row's event."""
TEST_ROWS_MIN = 10
"""Fewest rows to test on: of fewer no figure says anything."""


@dataclass(frozen=True, slots=True)
class Split:
    """Split of some data.

    Attributes
    ----------
    test_share : float
        Share of the rows to hold out; 0: none.
    test_by : str or None
        Column of times, whose last rows are held out; None: rows drawn by a hash.
    train_rows : int
        Rows to train on.
    """

    test_share: float
    test_by: str | None
    train_rows: int


def split_of(report: CheckReport, test_share: float) -> Split:
    """Return the split to propose: by a column of times, else by a hash; none for a handful of rows."""
    data = _opened(report)
    for by in [*_times(report), None] if test_share else []:
        with suppress(DataError):  # one time in all rows, or a text that is none: the next column
            rows = DataPart(None, test_share, by, is_test=False).of(data).rows
            if report.rows - rows >= TEST_ROWS_MIN:
                return Split(test_share, by, rows)
    return Split(0.0, None, report.rows)


def _opened(report: CheckReport) -> ParquetData:
    """Return the data of a report, whose files are opened when they are read."""
    groups = [
        RowGroup(file.file, index, rows, end - rows)
        for file in report.files
        for index, (rows, end) in enumerate(zip(file.group_rows, accumulate(file.group_rows), strict=True))
    ]
    return ParquetData.known(Schema(label=None, sparse=["any"]), groups, 0, {})


def _times(report: CheckReport) -> list[str]:
    """Columns that may hold the time of the row's event, the likeliest first."""
    found = [(not name_words(name) & TIME_WORDS, rank, name) for rank, name in _by_values(report)]
    return [
        name for _, _, name in sorted(found, key=lambda one: one[:2]) if not name_words(name) & OTHER_WORDS
    ]


def _by_values(report: CheckReport) -> Iterator[tuple[int, str]]:
    """Columns whose values are times, each with a rank: a timestamp is nearer to an event than a date is."""
    if report.unread:
        with open_parquet(report.files[0].file) as opened:
            columns = [one for one in opened.schema_arrow if one.name in report.unread]
        yield from ((0, one.name) for one in columns if types.is_timestamp(one.type))
        yield from ((2, one.name) for one in columns if types.is_date(one.type))
    for column in report.columns:
        if column.text_kind == "time" or (_are_seconds(column) and name_words(column.name) & TIME_WORDS):
            yield 1, column.name


def _are_seconds(column: ColumnReport) -> bool:
    """Return True for whole numbers that are times of one unit since 1970."""
    low, high = column.smallest, column.largest
    if not column.kind.startswith(("int", "uint")) or not isinstance(low, int) or not isinstance(high, int):
        return False
    return column.lengths is None and time_unit(low) == time_unit(high) is not None


def name_words(name: str) -> set[str]:
    """Words of a name in any style: ``event_time``, ``eventTime``."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
