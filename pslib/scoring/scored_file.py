"""Scored file: the rows of data files with a model's predictions, as one Parquet or CSV file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pslib.data.atomic_files import atomic_output, refuse_existing
from pslib.data.dataset import ParquetData, open_parquet
from pslib.errors import ConfigurationError, DataError
from pslib.scoring.loaded_model import LoadedModel
from pslib.storage import shown
from pslib.trainer.evaluation.scoring import features_of

PREDICTION = "prediction"


def write_scored(
    model: LoadedModel,
    data: Sequence[str],
    out: str,
    *,
    keep: Sequence[str] | None = None,
    overwrite: bool = False,
) -> int:
    """Predict the rows of Parquet files and write them in their order; return their number.

    The last column is ``prediction``, or one ``prediction_LABEL`` for each of several labels; a column of the
    data with that name stays, and the new one gets a ``_`` more.

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
        If ``out`` exists or can't be written, a column to keep is not there, or the model ranks items.
    DataError
        If a file does not fit the schema, or was changed meanwhile.
    """
    refuse_existing(Path(out), overwrite=overwrite)
    opened = ParquetData(data, features_of(model.schema))
    columns = list(opened.names) if keep is None else list(keep)
    if missing := [name for name in columns if name not in opened.names]:
        known = ", ".join(sorted(opened.names))
        raise ConfigurationError(f"keep: no column {missing[0]!r}; the data has {known}")
    predicted = model.predict(list(data))
    files = [file for file, _ in groupby(group.file for group in opened.row_groups)]
    first, writer, is_csv = 0, None, out.lower().endswith(".csv")
    with atomic_output(Path(out)) as place:
        try:
            for file in files:
                with closing(open_parquet(file)) as source:
                    wanted = [name for name in source.schema_arrow.names if name in columns]
                    for batch in source.iter_batches(columns=wanted):
                        found = _scored(batch, model.schema.labels, predicted[first : first + len(batch)])
                        if writer is None:
                            schema = found.schema
                            writer = (_csv_writer if is_csv else pq.ParquetWriter)(place, schema)
                        writer.write_table(found.cast(schema))
                        first += len(batch)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise DataError(f"{shown(file)}: can't be written beside its predictions: {error}") from error
        finally:
            if writer:
                writer.close()
    return first


def _csv_writer(place: Path, schema: pa.Schema) -> pa.csv.CSVWriter:
    if lists := [one.name for one in schema if pa.types.is_nested(one.type)]:
        raise ConfigurationError(
            f"out: a CSV holds no lists, and {lists[0]!r} has some; end it in .parquet, or keep other columns"
        )
    return pa.csv.CSVWriter(place, schema)


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
