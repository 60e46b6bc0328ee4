"""Scored file: the rows of data files with a model's predictions, as one Parquet or CSV file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, suppress
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pslib.data.atomic_files import atomic_output, refuse_existing
from pslib.data.data_files import text_format
from pslib.data.dataset import ParquetData, open_parquet
from pslib.errors import ConfigurationError, DataError
from pslib.scoring.loaded_model import LoadedModel
from pslib.storage import shown
from pslib.suggestions import nearest
from pslib.trainer.evaluation.scoring import features_of

PREDICTION = "prediction"
CSV = ".csv"
UNITS = ("s", "ms", "us", "ns")
OTHER_FORMATS = (".xlsx", ".xls", ".feather", ".arrow", ".orc", ".avro", ".npy", ".pkl", ".h5", ".txt")
"""Names of what is not written: Parquet under such a name opens in nothing."""


def refuse_format(out: str, written: str, suffix: str | None = None) -> None:
    """Raise ConfigurationError for an output file named like a format that is not written.

    Parameters
    ----------
    out : str
    written : str
        What is written, for the message.
    suffix : str or None
        The one of text that is written.
    """
    other = text_format(out) or out.lower().endswith(OTHER_FORMATS)
    if other and not (suffix and out.lower().endswith(suffix)):
        raise ConfigurationError(f"out: expected the name of {written}, got {out}; end it in .parquet")


def write_scored(
    model: LoadedModel,
    data: Sequence[str],
    out: str,
    *,
    keep: Sequence[str] | None = None,
    overwrite: bool = False,
) -> int:
    """Predict the rows of data files and write them in their order; return their number.

    The last column is ``prediction``, or one ``prediction_LABEL`` for each of several labels; a column of the
    data with that name stays, and the new one gets a ``_`` more. A column has one type for all files: text,
    if theirs have no common one; where a file lacks it, its rows have nulls.

    Parameters
    ----------
    model : LoadedModel
    data : sequence of paths
        They need no label.
    out : str
        The file: CSV where its name ends in ``.csv``, else Parquet. It appears when it is complete.
    keep : sequence of str or None
        Columns of the data that are written too; None: all.
    overwrite : bool
        True if ``out`` may be replaced.

    Raises
    ------
    ConfigurationError
        If ``out`` exists, has the suffix of other text or can't be written, a column to keep is not there, or
        the model ranks items.
    DataError
        If a file does not fit the schema, has a column twice, or was changed meanwhile; or a column has lists
        in some files alone.
    """
    refuse_format(out, "a CSV or Parquet file", CSV)
    refuse_existing(Path(out), overwrite=overwrite)
    opened = ParquetData(data, features_of(model.schema))
    columns = list(opened.names) if keep is None else list(keep)
    if missing := [name for name in columns if name not in opened.names]:
        near = nearest(missing[0], opened.names)
        hint = f"did you mean {near!r}?" if near else f"the data has {', '.join(sorted(opened.names))}"
        raise ConfigurationError(f"keep: no column {missing[0]!r}; {hint}")
    files = [file for file, _ in groupby(group.file for group in opened.row_groups)]
    schema = _common_schema(files, columns)
    is_csv = out.lower().endswith(CSV)
    if is_csv:
        _refuse_lists(schema)
        schema = _with_short_times(files, schema)
    predicted = model.predict(list(data))
    first, writer = 0, None
    with atomic_output(Path(out)) as place:
        try:
            for file in files:
                with closing(open_parquet(file)) as source:
                    wanted = [name for name in source.schema_arrow.names if name in columns]
                    for batch in _batches(source, wanted):
                        some = predicted[first : first + len(batch)]
                        found = _scored(_in_schema(batch, schema), model.schema.labels, some)
                        if writer is None:
                            writer = (pa.csv.CSVWriter if is_csv else pq.ParquetWriter)(place, found.schema)
                        writer.write_table(found)
                        first += len(batch)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise DataError(f"{shown(file)}: can't be written beside its predictions: {error}") from error
        finally:
            if writer:
                writer.close()
    return first


def _batches(source: pq.ParquetFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield record batches, none over two row groups: Arrow joins no lists of dictionaries."""
    for group in range(source.num_row_groups):
        yield from source.iter_batches(row_groups=[group], columns=columns)


def _common_schema(files: Sequence[str], columns: Collection[str]) -> pa.Schema:
    """Return names in the order of the files, each with a common type."""
    found: dict[str, pa.DataType] = {}
    schemas = []
    for file in files:
        with closing(open_parquet(file)) as source:
            schemas.append(source.schema_arrow)
        for one in schemas[-1]:
            if one.name in columns:
                if (times := schemas[-1].names.count(one.name)) > 1:
                    raise DataError(
                        f"{shown(file)}: column {one.name!r} is there {times} times; rename all but one, or "
                        "keep other columns"
                    )
                found[one.name] = _common(found.get(one.name, one.type), one, shown(file))
    alike = all(one.equals(schemas[0]) for one in schemas)
    return pa.schema(found.items(), schemas[0].metadata if alike else None)  # of pandas: index and types


def _common(before: pa.DataType, column: pa.Field, file: str) -> pa.DataType:
    if before == column.type:
        return before
    alone = [pa.schema([("", kind)]) for kind in (before, column.type)]
    try:
        return pa.unify_schemas(alone, promote_options="permissive").types[0]
    except pa.ArrowTypeError:
        if pa.types.is_nested(before) or pa.types.is_nested(column.type):
            raise DataError(
                f"{file}: column {column.name!r} is {column.type}, and {before} in a file before it: "
                "expected a common type; keep other columns"
            ) from None
        return pa.string()


def _in_schema(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the columns of a schema; those that it lacks are null."""
    known = {*batch.schema.names}
    arrays = [
        batch.column(one.name).cast(one.type) if one.name in known else pa.nulls(len(batch), one.type)
        for one in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _refuse_lists(schema: pa.Schema) -> None:
    if lists := [one.name for one in schema if pa.types.is_nested(one.type)]:
        raise ConfigurationError(
            f"out: a CSV holds no lists, and {lists[0]!r} has some; end it in .parquet, or keep other columns"
        )


def _with_short_times(files: Sequence[str], schema: pa.Schema) -> pa.Schema:
    """Return times with no more digits than a value needs: 08:00:00 was not read as 08:00:00.000000."""
    units = {one.name: UNITS.index(one.type.unit) for one in schema if pa.types.is_timestamp(one.type)}
    needed = dict.fromkeys(units, 0)
    for file in files:
        with closing(open_parquet(file)) as source:
            names = [name for name in source.schema_arrow.names if name in units]
            for batch in _batches(source, names) if names else ():
                for name in names:
                    needed[name] = _unit_of(batch.column(name), needed[name], units[name])
    kinds = {name: pa.timestamp(UNITS[unit], schema.field(name).type.tz) for name, unit in needed.items()}
    return pa.schema([one.with_type(kinds.get(one.name, one.type)) for one in schema], schema.metadata)


def _unit_of(times: pa.Array, least: int, most: int) -> int:
    """Return the first unit from one on, up to another, in which these times lose nothing."""
    for unit in range(least, most):
        with suppress(pa.ArrowInvalid):
            times.cast(pa.timestamp(UNITS[unit], getattr(times.type, "tz", None)))
            return unit
    return most


def _scored(batch: pa.RecordBatch, labels: Sequence[str], predicted: NDArray[np.float32]) -> pa.Table:
    table = pa.Table.from_batches([batch])
    many = predicted.ndim == 2
    columns = predicted.T if many else [predicted]
    for label, values in zip(labels if many else [""], columns, strict=True):
        name = _free(f"{PREDICTION}_{label}" if many else PREDICTION, table.column_names)
        table = table.append_column(name, pa.array(np.ascontiguousarray(values)))
    return table


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name
