"""Sessions from clicks, a row each: lists of items in their order, which models of sessions read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import types

from pslib.data.atomic_files import atomic_output, refuse_existing
from pslib.data.column_types import column_problem
from pslib.data.convert.job import ROW_GROUP_ROWS
from pslib.data.data_files import Paths, data_files
from pslib.data.dataset import ParquetData, not_parquet, open_parquet
from pslib.data.parquet_files import UNREADABLE
from pslib.errors import ConfigurationError, DataError
from pslib.schema import Schema
from pslib.storage import shown
from pslib.text import as_line, counted, one_line

ITEMS, PREFIX, TARGET = "items", "prefix", "target"
"""Columns of sessions, and of tests: the items before, the one to find; rankings read these by default."""
LENGTH_MIN = 2
"""Fewest items of a session: of one alone nothing follows."""


@dataclass(frozen=True, slots=True)
class SessionsReport:
    """Result of `convert_sessions`.

    Attributes
    ----------
    out, test_out : Path or None
        The files; None: no test was asked for.
    clicks, without_value : int
        Rows read, and those of them without a session, item or time.
    sessions, test_sessions, short : int
        Sessions written for training, those to test on, and those of fewer than two clicks, left out.
    """

    out: Path
    test_out: Path | None
    clicks: int
    without_value: int
    sessions: int
    test_sessions: int
    short: int

    def lines(self) -> list[str]:
        """The report as lines."""
        said = [f"{self.out}: {counted(self.sessions, 'session')} of {counted(self.clicks, 'click')}"]
        if self.test_out is not None:
            said.append(
                f"{self.test_out}: the last {counted(self.test_sessions, 'session')}: {TARGET} is the last "
                f"item, {PREFIX} those before"
            )
        if self.short:
            said.append(f"left out: {counted(self.short, 'session')} of one click")
        if self.without_value:
            said.append(f"left out: {counted(self.without_value, 'click')} without a session, item or time")
        test = "" if self.test_out is None else f" --set data.test={quote(str(self.test_out))}"
        said.append(f"pslib describe {quote(str(self.out))} --out sessions.yaml")
        said.append(f"pslib train sessions.yaml{test}")
        return list(map(as_line, said))


def convert_sessions(
    source: Paths,
    out: str | Path,
    *,
    session: str,
    item: str,
    time: str,
    test_out: str | Path | None = None,
    test_share: float = 0.1,
    overwrite: bool = False,
) -> SessionsReport:
    """Make sessions of clicks: a row a session, with the list of its items by time.

    All clicks are in memory at once, in about 50 bytes each and the bytes of their ids.

    Parameters
    ----------
    source : path, URI, folder, glob pattern, or a sequence of them
        Parquet, CSV or JSON lines, a click a row.
    out : path
        Parquet with the list column ``items``; sessions by the time of their last click.
    session, item, time : str
        Columns: of the session, or of the user, whose whole history is one then; of the item; and of times,
        numbers that ascend with time, or texts of times. Clicks of one time keep their order.
    test_out : path, optional
        Parquet of examples to test on, which are not in ``out``: columns ``prefix`` and ``target``.
    test_share : float
        Share of the sessions to test on, those that end last.
    overwrite : bool
        True if the files may be replaced.

    Raises
    ------
    ConfigurationError
        If a file exists, or the share is no share.
    DataError
        If a column is missing or of another type, or there is no session of two clicks.
    """
    if not 0 < test_share < 1:
        raise ConfigurationError(f"test_share: expected a number above 0 and below 1, got {test_share}")
    out, test_out = Path(out), None if test_out is None else Path(test_out)
    refuse_existing(out, *(() if test_out is None else (test_out,)), overwrite=overwrite)
    clicks, rows = _clicks(source, session, item, time)
    lists, short = _lists(clicks, session, item)
    if not len(lists):
        raise DataError(
            f"column {session!r}: expected sessions of two clicks or more, got none in "
            f"{counted(rows, 'row')}; does it name sessions or users?"
        )
    tested = 0 if test_out is None else max(1, round(test_share * len(lists)))
    if tested == len(lists):
        raise DataError(f"expected sessions to train on and to test on, got {counted(tested, 'session')}")
    train = len(lists) - tested
    _write(out, pa.table({ITEMS: lists[:train]}))
    if test_out is not None:
        _write(test_out, _examples(lists[train:]))
    return SessionsReport(out, test_out, rows, rows - clicks.num_rows, train, tested, short)


def _clicks(source: Paths, session: str, item: str, time: str) -> tuple[pa.Table, int]:
    """Read the three columns of all files; return the clicks with all values, and the number of all."""
    schema = Schema(label=None, sparse=list(dict.fromkeys([session, item])))
    data = ParquetData(data_files(source).tell(), schema)
    tables = []
    for file in dict.fromkeys(group.file for group in data.row_groups):
        try:
            with open_parquet(file) as opened:
                if problem := column_problem(opened.schema_arrow, time, _time_problem, shown(file)):
                    raise DataError(problem)
                table = opened.read(list(dict.fromkeys([session, item, time])))
        except UNREADABLE as error:
            raise DataError(not_parquet(file, error)) from error
        columns = {name: data.casts.column(name, table[name].combine_chunks()) for name in (session, item)}
        columns[""] = _times(table[time], f"{shown(file)}: column {time!r}")
        tables.append(pa.table(columns))
    try:
        clicks = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(
            f"column {time!r}: expected times of one type in all files; {one_line(error)}"
        ) from error
    if types.is_timestamp(clicks[""].type):
        clicks = clicks.set_column(clicks.schema.get_field_index(""), "", clicks[""].cast(pa.int64()))
    return clicks.drop_null(), clicks.num_rows


def _time_problem(kind: pa.DataType) -> str | None:
    tests = (types.is_integer, types.is_floating, types.is_timestamp, types.is_date, types.is_string,
             types.is_large_string)  # fmt: skip
    if any(test(kind) for test in tests):
        return None
    return f"a time is a timestamp, a date, a number or a text of a time, got {kind}"


def _times(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """Return times as numbers, or as timestamps without a zone; NaN is a missing one."""
    if types.is_string(column.type) or types.is_large_string(column.type):
        try:
            column = column.cast(pa.timestamp("us", "UTC"))
        except pa.ArrowInvalid:  # texts without a zone
            try:
                column = column.cast(pa.timestamp("us"))
            except pa.ArrowInvalid as error:
                raise DataError(f"{where}: expected texts of times, got others: {one_line(error)}") from error
    if types.is_timestamp(column.type):
        return column.cast(pa.timestamp(column.type.unit))
    if types.is_date(column.type):
        return column.cast(pa.timestamp("ms"))
    return pc.if_else(pc.is_nan(column), None, column) if types.is_floating(column.type) else column


def _lists(clicks: pa.Table, session: str, item: str) -> tuple[pa.Array, int]:
    """Return the lists of items by the time of their last click, and the number of sessions left out."""
    codes = clicks.column(session).combine_chunks().dictionary_encode().indices.to_numpy()
    times = clicks.column("").combine_chunks().to_numpy(zero_copy_only=False)
    order = np.lexsort((times, codes))
    lengths = np.bincount(codes)
    ends = np.cumsum(lengths)
    kept = np.flatnonzero(lengths >= LENGTH_MIN)
    kept = kept[np.argsort(times[order[ends[kept] - 1]], kind="stable")]
    rows = _runs(ends[kept] - lengths[kept], lengths[kept])
    items = clicks.column(item).combine_chunks().take(pa.array(order[rows]))
    offsets = np.concatenate([[0], np.cumsum(lengths[kept])])
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), items), int(lengths.size - kept.size)


def _examples(lists: pa.Array) -> pa.Table:
    """Return the last item of each list, and the list of those before it."""
    offsets = lists.offsets.to_numpy()
    ends = offsets[1:] - 1
    lengths = ends - offsets[:-1]
    rows = _runs(offsets[:-1], lengths)
    prefix = lists.values.take(pa.array(rows))
    bounds = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    return pa.table(
        {PREFIX: pa.LargeListArray.from_arrays(bounds, prefix), TARGET: lists.values.take(pa.array(ends))}
    )


def _runs(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of runs, one behind the other: ``start``, ``start + 1`` ... of each."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())


def _write(out: Path, table: pa.Table) -> None:
    with atomic_output(out) as draft:
        pq.write_table(table, draft, row_group_size=ROW_GROUP_ROWS, compression="zstd")
