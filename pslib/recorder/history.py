"""History: a bounded sequence of records, as an Arrow table."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pslib.errors import ConfigurationError
from pslib.recorder.records import COLUMNS, PROGRESS, Record, read_records
from pslib.text import html_rows

EVERY_S = 1.0
"""Interval of progress records at first: fine enough to see a stall."""
RECORDS_MAX = 4_096
"""Largest number of progress records, and of records of evaluations."""
SHOWN = 10
SCHEMA = pa.schema(
    [(name, {str: pa.string(), int: pa.int64(), float: pa.float64()}[kind]) for name, kind in COLUMNS.items()]
)


class History:
    """Records of a training in order of time; an Arrow table for pandas, Polars and DuckDB.

    Notes
    -----
    There are at most `RECORDS_MAX` progress records, and as many of evaluations. When there is one more,
    every other one of them is dropped, and from then on the interval of progress records is twice as long
    (`every_s`). The last record always stays.

    Examples
    --------
    >>> trainer.history.plot()  # doctest: +SKIP
    >>> trainer.history.to_pandas().plot("examples", "loss")  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self.every_s = EVERY_S
        """Interval of progress records now."""
        self._progress: list[Record] = []
        self._evaluations: list[Record] = []

    def add(self, record: Record, replaces: bool = False) -> None:
        """Append a record; one that ``replaces`` takes the place of the last progress record."""
        records = self._progress if record.event == PROGRESS else self._evaluations
        if replaces:
            self._progress.pop()
        records.append(record)
        if len(records) > RECORDS_MAX:
            del records[-2::-2]
            if records is self._progress:
                self.every_s *= 2

    @property
    def records(self) -> list[Record]:
        """Records in order of time; an evaluation comes after the progress of the same moment."""
        return sorted([*self._progress, *self._evaluations], key=lambda record: record.seconds)

    @property
    def table(self) -> pa.Table:
        """Records as an Arrow table with the columns of `Record`; null where a figure is undefined."""
        return pa.Table.from_pylist([record.plain() for record in self.records], schema=SCHEMA)

    def to_pandas(self) -> Any:
        """Return the records as a pandas frame, without columns that no record has.

        Whole numbers stay whole beside records without one.
        """
        table = self.table
        missing = {name: table[name].null_count for name in COLUMNS}
        known = [name for name in COLUMNS if missing[name] < len(table)] or list(COLUMNS)
        whole = {name: "Int64" for name in known if COLUMNS[name] is int and missing[name]}
        return table.select(known).to_pandas().astype(whole)

    def plot(self) -> Any:
        """Plot loss, quality and speed over seconds, as a matplotlib figure, which a notebook shows.

        Raises
        ------
        ConfigurationError
            If matplotlib is not installed.
        """
        try:
            from pslib.recorder.picture import picture

            return picture([self.records])
        except ImportError as error:
            raise ConfigurationError(
                "history.plot: matplotlib is not installed; `pip install matplotlib` brings it"
            ) from error

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        """Return a column."""
        return self.table[name]

    def __len__(self) -> int:
        return len(self._progress) + len(self._evaluations)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Name the frame, which has what frames have."""
            if hasattr(type(self), name):  # a property has failed: its own error says how
                return object.__getattribute__(self, name)
            raise AttributeError(
                f"a History has no {name!r}: its to_pandas() is a frame, its table one of Arrow"
            )

    def __repr__(self) -> str:
        return f"<History of {len(self):,} records: {', '.join(COLUMNS)}>"

    def _repr_html_(self) -> str:
        last = [record.plain() for record in self.records[-SHOWN:]]
        names = [name for name in COLUMNS if any(one[name] is not None for one in last)]
        rows = [[_cell(name, one[name]) for name in names] for one in last]
        return html_rows(f"History: the last {len(last)} of {len(self):,} records", names, rows)


def history_of(path: Path) -> History:
    """Read a ``metrics.jsonl``; empty if it can't be read."""
    history = History()
    with suppress(OSError):
        for record in read_records(path):
            history.add(record)
    return history


def _cell(name: str, value: Any) -> str:
    """Format a value: counts with separators, figures with four decimals."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.1f}" if name in ("seconds", "examples_per_s") else f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
