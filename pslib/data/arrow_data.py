"""Data in memory: Arrow tables, frames, columns and records, with the interface of `ParquetData`."""

from __future__ import annotations

import os
from abc import ABC
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np
import pyarrow as pa

from pslib.data.column_casts import ColumnCasts
from pslib.data.column_types import ColumnKinds, KeyKinds, column_problems, same_labels
from pslib.data.columns import numbers_of, plain_batch
from pslib.data.dataset import ParquetData, RowGroup, RowNumbers
from pslib.data.order import GroupSlice
from pslib.data.parquet_files import SCAN_ROWS
from pslib.data.split import DataPart
from pslib.errors import ConfigurationError, DataError
from pslib.schema import Schema
from pslib.text import one_line
from pslib.validation import came, checked, kind_problem

GROUP_ROWS = 1 << 20
"""Rows of a group: as pyarrow writes to Parquet, so that a table and its file are trained in one order."""
STREAM, ARRAY = "__arrow_c_stream__", "__arrow_c_array__"
"""Methods of Arrow's C interfaces, by which libraries hand over tables."""


class Table(ABC):  # noqa: B024  (what it asks for are methods of one kind of table or another)
    """A table in memory: rows with named columns, of any library that `table_of` knows."""

    @classmethod
    def __subclasshook__(cls, kind: type) -> bool:
        """Return whether objects of a class are tables."""
        is_dataset = hasattr(kind, "to_table") or hasattr(kind, "with_format")  # of pyarrow, of Hugging Face
        return hasattr(kind, STREAM) or hasattr(kind, ARRAY) or is_dataset or issubclass(kind, Mapping)


Data: TypeAlias = (
    str
    | os.PathLike[str]
    | Sequence[str | os.PathLike[str]]
    | DataPart
    | Table
    | Sequence[Table]
    | Iterator[str | os.PathLike[str] | Table]
)
"""Input of `open_data`: paths of files, a table in memory, its record batches, or a list of records."""


class TableTypes:
    """Columns of tables of one Arrow schema: checked, with their casts; none of it depends on values.

    Parameters
    ----------
    columns : pyarrow.Schema
    schema : Schema
    key_kinds : KeyKinds
        As for `ParquetData`; not changed.
    name : str
        Name of the tables in messages.

    Raises
    ------
    DataError
        If there is no column of a field, or one of a wrong type. Lists all problems at once.
    """

    def __init__(self, columns: pa.Schema, schema: Schema, key_kinds: KeyKinds, name: str) -> None:
        kinds = ColumnKinds(schema, key_kinds)
        cast = ColumnCasts(schema, kinds.of_columns()).schema(columns)
        problems = column_problems(cast, schema, name) or kinds.conflicts(cast, name) + kinds.settle()
        if problems:
            raise DataError(*problems)
        self.columns, self.read_columns, self.seen = columns, list(schema.columns), kinds.seen
        self._name = name
        self.casts = ColumnCasts(schema, kinds.of_columns())
        self._as_is = False

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return columns of a table of these types, cast; the same batch if none needs it."""
        if self._as_is:
            return batch
        found = self.casts.batch(plain_batch(batch), self._name)
        self._as_is = found is batch
        return found


class KnownTypes:
    """Types of tables that were read before, for callers that read many small tables with a schema.

    To check the types of 39 columns takes longer than to read ten rows of them. Any thread may use it.

    Parameters
    ----------
    schema, key_kinds, name
        As for `TableTypes`.
    """

    MOST: ClassVar[int] = 8

    def __init__(self, schema: Schema, key_kinds: KeyKinds, name: str = "data") -> None:
        self._schema, self._key_kinds, self._name = schema, key_kinds, name
        self._known: list[TableTypes] = []

    def of(self, columns: pa.Schema) -> TableTypes:
        """Return the checked types of a table.

        Raises
        ------
        DataError
            As `TableTypes`.
        """
        for one in self._known:
            if one.columns.equals(columns, check_metadata=True):
                return one
        made = TableTypes(columns, self._schema, self._key_kinds, self._name)
        self._known = [made, *self._known[: self.MOST - 1]]
        return made


class ArrowData(ParquetData):
    """Rows of a table in memory, with the columns of a schema.

    Parameters
    ----------
    table : pyarrow.Table
        Its buffers are read in place.
    schema : Schema
    name : str
        Its name in messages.
    may_be_empty, key_kinds
        As for `ParquetData`.
    known : KnownTypes or None
        Of the same schema, kinds and name: types that it knows are not checked again.

    Raises
    ------
    DataError
        If it lacks a column or has one of a wrong type, or there is no row. Lists all problems at once.
    """

    def __init__(
        self,
        table: pa.Table,
        schema: Schema,
        *,
        name: str = "table",
        may_be_empty: bool = False,
        key_kinds: KeyKinds | None = None,
        known: KnownTypes | None = None,
    ) -> None:
        types = known.of(table.schema) if known else TableTypes(table.schema, schema, key_kinds or {}, name)
        if not table.num_rows and not may_be_empty:
            raise DataError(f"{name}: expected at least one row, got none")
        if key_kinds is not None:
            key_kinds |= types.seen
        self.schema, self.names, self.rows = schema, frozenset(table.column_names), table.num_rows
        self.table, self.types, self.casts = table.select(types.read_columns), types, types.casts
        self.notes = tuple(same_labels(self._label_ends()))
        starts = range(0, max(1, self.rows), GROUP_ROWS)
        self.row_groups = tuple(
            RowGroup(name, place, min(GROUP_ROWS, self.rows - start), start)
            for place, start in enumerate(starts)
        )
        self._fingerprint = 0

    def _label_ends(self) -> dict[str, set[float]]:
        """Return the smallest and the largest value of each label, of each part of the table."""
        found = {name: set[float]() for name in self.schema.labels}
        for batch in self.table.select(list(found)).to_batches() if found else ():
            labels = self.casts.batch(plain_batch(batch))
            for name, some in found.items():
                values = numbers_of(labels.column(name).drop_null())
                some.update({float(values.min()), float(values.max())} if values.size else ())
        return found

    def hash_of_whole(self) -> int:
        """Return the hash of the values and types of all columns, computed when it is first asked for."""
        if not self._fingerprint:
            found = blake2b(str(self.table.schema).encode(), digest_size=8)
            sink = pa.PythonFile(_Hashed(found), "w")
            with pa.ipc.new_stream(sink, self.table.schema) as stream:
                for batch in self.table.combine_chunks().to_batches(GROUP_ROWS):
                    stream.write_batch(batch)
            self._fingerprint = int.from_bytes(found.digest(), "little")
        return self._fingerprint


class _Hashed:
    """File that hashes what is written to it."""

    closed = False

    def __init__(self, found: Any) -> None:
        self._found = found

    def write(self, data: Any) -> int:
        self._found.update(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing."""


class TableScanner:
    """Read slices of a table, with the interface of `pslib.data.window.GroupScanner`.

    Parameters
    ----------
    data : ArrowData
    """

    def __init__(self, data: ArrowData) -> None:
        self._data = data

    def expect(self, pieces: Sequence[GroupSlice]) -> None:
        """Do nothing: all rows are at hand."""

    def rows(self, piece: GroupSlice) -> Iterator[tuple[RowNumbers, pa.RecordBatch]]:
        """Yield record batches of the slice, each with the numbers of its rows."""
        table, first = self._data.table, self._data.row_groups[piece.row_group].first_row
        rows: RowNumbers = range(first + piece.start, first + piece.stop)
        if self._data.kept is None:
            table = table.slice(rows[0], piece.rows)
        else:
            rows = first + np.flatnonzero(self._data.kept.mask(piece.row_group))[piece.start : piece.stop]
            table = table.take(pa.array(rows))
        done = 0
        for batch in table.to_batches(SCAN_ROWS):
            yield rows[done : done + len(batch)], self._data.types.read(batch)
            done += len(batch)

    def close(self) -> None:
        """Do nothing: no file is open."""


def open_data(
    data: Data,
    schema: Schema,
    *,
    may_be_empty: bool = False,
    key_kinds: KeyKinds | None = None,
    name: str = "data",
    known: KnownTypes | None = None,
) -> ParquetData:
    """Open files, or a table in memory, with the columns of a schema.

    Parameters
    ----------
    data : path, several paths, or a table
        Paths are those of Parquet, CSV or JSON lines (`pslib.data.data_files`). A table is anything with the
        Arrow C stream interface (pyarrow, pandas, Polars, DuckDB), a dataset of pyarrow or Hugging Face, a
        dict of columns, a dict with a single value (one row), a list of dicts, or an iterator of batches.
    schema, may_be_empty, key_kinds
        As for `ParquetData`.
    name : str
        Name of a table in messages: that of the argument.
    known : KnownTypes or None
        As for `ArrowData`.

    Raises
    ------
    ConfigurationError
        If it is no data.
    DataError
        If it does not fit the schema; all problems at once.
    """
    if isinstance(data, DataPart):
        whole = open_data(
            data.data, schema, may_be_empty=may_be_empty, key_kinds=key_kinds, name=name, known=known
        )
        return data.of(whole, table_of(data.data))
    data = lasting(data)
    table = table_of(data, schema.columns)
    if table is None:
        return ParquetData(paths_in(data), schema, may_be_empty=may_be_empty, key_kinds=key_kinds)
    return ArrowData(table, schema, name=name, may_be_empty=may_be_empty, key_kinds=key_kinds, known=known)


def lasting(data: Data) -> Data:
    """Return data that can be opened for every epoch, unlike the result of `Path.glob`.

    Record batches that come one by one are kept: leases and a resumed training read them in any order.
    """
    if isinstance(data, Iterator):
        return cast("Data", pa.table(data) if hasattr(data, STREAM) else list(data))
    return data


@checked("test_share", "by")
def split(data: Data, test_share: float = 0.1, *, by: str | None = None) -> tuple[DataPart, DataPart]:
    """Split data into rows to train on and rows to test on, without a copy.

    `Trainer.fit`, `Trainer.evaluate` and `pslib.load` take a part like other data. The held-out rows are
    a function of the data alone: each process, and a resumed run, holds out the same.

    Parameters
    ----------
    data : path, several paths, or a table
    test_share : float
        Share of the rows to test on, above 0 and below 1.
    by : str or None
        Column of times: its last rows are tested on. None: rows drawn by a hash of their number in a file.

    Returns
    -------
    (DataPart, DataPart)
        To train on, and to test on.

    Raises
    ------
    ConfigurationError
        If the share is out of range, or it is no data, or a part already.

    Examples
    --------
    >>> train, test = pslib.split("clicks/", 0.1, by="time")                              # doctest: +SKIP
    >>> trainer.fit(train)                                                                # doctest: +SKIP
    >>> trainer.evaluate(test)                                                            # doctest: +SKIP
    """
    if not 0 < test_share < 1:
        raise ConfigurationError(f"test_share: expected a number above 0 and below 1, got {test_share}")
    if isinstance(data, DataPart):
        raise ConfigurationError("data: expected data to split, got a part of a split; split the whole of it")
    whole = lasting(data)
    table = table_of(whole)
    source = whole if table is None else table
    return DataPart(source, test_share, by, is_test=False), DataPart(source, test_share, by, is_test=True)


def paths_in(data: Data) -> list[str]:
    """Return the paths of data, none of a table in memory."""
    if isinstance(data, DataPart):
        return paths_in(data.data)
    if isinstance(data, str | os.PathLike):
        return [os.fspath(data)]
    many = data if isinstance(data, list | tuple) else ()
    return [os.fspath(one) for one in many if isinstance(one, str | os.PathLike)]


def table_of(data: Data, columns: Sequence[str] | None = None) -> pa.Table | None:
    """Return a table in memory as an Arrow table, without a copy where Arrow needs none; None for paths.

    Parameters
    ----------
    data : object
        As for `open_data`.
    columns : sequence of str or None
        Columns that are needed, of sources that read them from files; None: all.

    Raises
    ------
    ConfigurationError
        If it is neither a path nor a table.
    DataError
        If Arrow can't hold its values.
    """
    try:
        return _table_of(data, columns)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        if "non-struct type" in str(error):  # a Series
            line = f"data: expected a table, got one column ({came(data)}): select it as a frame"
            raise DataError(f"{line}, clicks[['user']]") from error
        raise DataError(f"data: Arrow can't hold it: {one_line(error)}") from error


def _table_of(data: Any, columns: Sequence[str] | None) -> pa.Table | None:
    if isinstance(data, pa.Table):
        return data
    if hasattr(data, STREAM):
        return pa.table(data)
    if hasattr(data, ARRAY):
        return pa.table(pa.record_batch(data))
    if hasattr(data, "to_table") and hasattr(data, "schema"):  # pyarrow.dataset.Dataset
        return data.to_table(
            columns=[name for name in columns or data.schema.names if name in data.schema.names]
        )
    if hasattr(data, "with_format") and not isinstance(data, Mapping):  # datasets.Dataset
        tables = data.with_format("arrow")
        return tables[:] if hasattr(data, "__len__") else pa.concat_tables(tables.iter(SCAN_ROWS))
    return _of_python(data)


def _of_python(data: Any) -> pa.Table | None:
    """Return columns, a record, records or record batches as a table; None for paths."""
    if isinstance(data, Mapping):
        if hasattr(data, "with_format"):  # datasets.DatasetDict
            raise ConfigurationError(f"data: expected one data set, got {', '.join(data)}: give one of them")
        return _of_records([data]) if any(map(_is_single, data.values())) else _of_columns(data)
    many = data if isinstance(data, Sequence) and not isinstance(data, str) else [data]
    if all(isinstance(one, str | os.PathLike) for one in many):
        return None
    if all(isinstance(one, Mapping) for one in many):
        return _of_records(many)
    tables = [_table_of(one, None) if isinstance(one, Table) else None for one in many]
    if None not in tables:
        return pa.concat_tables(tables)
    hint = ": call its collect() first" if hasattr(data, "collect") else ""  # polars.LazyFrame
    line = kind_problem("data", data, Data) or "data: expected paths, or tables, got some of both"
    raise ConfigurationError(line + hint)


def _of_records(records: Sequence[Mapping[str, Any]]) -> pa.Table:
    names = dict.fromkeys(name for record in records for name in record)
    return _of_columns({name: [record.get(name) for record in records] for name in names})


def _of_columns(columns: Mapping[str, Any]) -> pa.Table:
    """Return Python's values as a table, in which NaN is a missing value, as it is in pandas."""
    found = {}
    for name, values in columns.items():
        try:
            found[name] = pa.array(values, from_pandas=True)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise DataError(f"column {name!r}: Arrow can't hold it: {one_line(error)}") from error
    return pa.table(found)


def _is_single(value: object) -> bool:
    """Return whether a value of a dict is that of one row, and no column."""
    return (
        value is None or isinstance(value, str | bytes | bool | int | float) or not hasattr(value, "__len__")
    )
