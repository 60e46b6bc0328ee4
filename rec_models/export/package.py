"""A folder that scores without pslib: graphs, rows, a schema, and a reference scorer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pslib.data.atomic_files import atomic_output
from pslib.data.column_types import KeyKinds
from pslib.errors import ConfigurationError
from pslib.schema import DenseField, RaggedField, Schema, SparseField
from pslib.scoring import LoadedModel
from pslib.storage import shown
from pslib.table.tables import TableSpec
from rec_models.export.graph import OPSET
from rec_models.export.trace import ITEM, MODEL, QUERY, forwards_of, graphs_of
from rec_models.model import Model
from rec_models.session import SessionModel

FORMAT = 1
"""Number of the package's format, in ``schema.json``; it rises when an older scorer would read it wrongly."""
ROWS_AT_ONCE = 1 << 18
"""Rows that are read from the model together."""
SCORER = Path(__file__).with_name("scorer.py")


def write_package(model: LoadedModel, folder: Path) -> list[Path]:
    """Write ``model.onnx`` (or ``query.onnx``, ``item.onnx``), rows, schema, scorer and README.

    Parameters
    ----------
    model : LoadedModel
    folder : Path
        Made if it is missing; files in it with these names are replaced.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    ConfigurationError
        If onnx is not installed, or the model can't be a graph.
    """
    graphs = graphs_of(model.model, model.parameters.dense)
    assert isinstance(model.model, Model)
    schema = json.dumps(schema_of(model), indent=1, ensure_ascii=False)
    texts = {"schema.json": schema, "scorer.py": SCORER.read_text("utf-8"), "README.md": readme_of(model)}
    writers: dict[str, Callable[[Path], object]] = {
        f"{name}.onnx": _bytes_writer(graph.SerializeToString()) for name, graph in graphs.items()
    }
    writers["rows.arrow"] = lambda place: write_rows(model, place)
    writers |= {name: _bytes_writer(text.encode()) for name, text in texts.items()}
    return write_files(folder, writers, {f"{name}.onnx" for name in (MODEL, QUERY, ITEM)})


def write_files(
    folder: Path, writers: Mapping[str, Callable[[Path], object]], optional: Collection[str] = ()
) -> list[Path]:
    """Write files of a folder, each complete or not at all; return them.

    Parameters
    ----------
    folder : Path
    writers : mapping of str to callable
        Writes a file to a place, by its name.
    optional : collection of str
        Names that not every model has: such a file of an earlier export is removed.
    """
    for name, write in writers.items():
        with atomic_output(folder / name) as place:
            write(place)
    for name in set(optional).difference(writers):
        (folder / name).unlink(missing_ok=True)
    return [folder / name for name in writers]


def _bytes_writer(content: bytes) -> Callable[[Path], object]:
    return lambda place: place.write_bytes(content)


def rows_of(model: LoadedModel) -> tuple[Any, Any]:
    """Return the keys of all rows, ascending, and the rows, (n, D), as they are at the checkpoint's step."""
    keys = model.parameters.keys()
    rows = np.empty((keys.size, model.table.dim), np.float32)
    for start in range(0, keys.size, ROWS_AT_ONCE):
        some = slice(start, start + ROWS_AT_ONCE)
        rows[some] = model.parameters.rows(keys[some])
    return keys, rows


def write_rows(model: LoadedModel, place: Path) -> None:
    """Write keys and rows as one record batch of an Arrow file, which is read in place."""
    keys, rows = rows_of(model)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    batch = pa.record_batch([pa.array(keys), lists], names=["key", "row"])
    with pa.OSFile(os.fspath(place), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


# --- schema.json


def schema_of(model: LoadedModel) -> dict[str, Any]:
    """Return the content of ``schema.json``: the fields of each graph, and the parts of the table.

    Salts and seeds are 64-bit numbers in hexadecimal, which not every reader of JSON would keep.
    """
    own = model.model
    assert isinstance(own, Model)
    items_max = own.items_max if isinstance(own, SessionModel) else None
    graphs = {
        name: {"file": f"{name}.onnx"} | fields_of(schema, model.key_kinds, items_max)
        for name, (schema, _) in forwards_of(own).items()
    }
    return {
        "format": FORMAT,
        "model": type(own).__name__,
        "checkpoint": shown(model.path),
        "steps": model.steps,
        "labels": list(own.schema.labels),
        "opset": OPSET,
        "graphs": graphs,
        "parts": _parts_of(model.table),
        "hash": "keys of 64 bits by mix64: scorer.py, keys_of",
    }


def fields_of(schema: Schema, kinds: KeyKinds, items_max: int | None) -> dict[str, Any]:
    """Return the fields of a graph, in the order of its inputs."""
    return {
        "dense": [_dense(one) for one in schema.dense],
        "sparse": [_sparse(one, kinds) for one in schema.sparse],
        "ragged": [_ragged(one, kinds, items_max) for one in schema.ragged],
    }


def _dense(field: DenseField) -> dict[str, Any]:
    return {"name": field.name, "fill": field.fill, "log1p": field.log1p}


def _sparse(field: SparseField, kinds: KeyKinds) -> dict[str, Any]:
    vocabulary, count = field.vocabulary or field.name, len(field.columns)
    names = [f"{vocabulary}\0{i}" for i in range(count)] if count > 1 else [vocabulary]
    return {
        "name": field.name,
        "columns": list(field.columns),
        "take": field.take,
        "buckets": field.buckets,
        "salt": hex(field.salt),
        "kinds": [_kind(kinds, name) for name in names],
    }


def _ragged(field: RaggedField, kinds: KeyKinds, items_max: int | None) -> dict[str, Any]:
    return {
        "name": field.name,
        "pooling": field.pooling,
        "separator": field.separator,
        "salt": hex(field.salt),
        "kind": _kind(kinds, field.vocabulary or field.name),
        "items_max": items_max,
    }


def _kind(kinds: Mapping[str, tuple[str, ...]], vocabulary: str) -> str:
    """Return the kind of a vocabulary's keys; empty, if the training has seen none but nulls."""
    return kinds.get(vocabulary, ("",))[0]


def _parts_of(table: TableSpec) -> list[dict[str, Any]]:
    """Return the parts of a row, with the seed and the initializer of unseen keys."""
    return [
        {
            "name": part.name,
            "dim": part.dim,
            "seed": hex(table.part_seed(part)),
            "initializer": part.initializer.to_dict(),
        }
        for part in table.parts
    ]


README = """# {model}

{steps:,} steps of training, {rows:,} rows; exported by pslib from {path}.

```sh
pip install numpy pyarrow onnxruntime
python scorer.py new.parquet
```

| file | what |
|---|---|
| {graphs} | ONNX (opset {opset}), checked; inputs are rows of keys, and dense numbers |
| `rows.arrow` | Arrow file, read in place: `key` (uint64, ascending), `row` ({dim} float32) |
| `schema.json` | columns, transforms, salts and kinds of keys, pooling, rows of unseen keys |
| `scorer.py` | a reference scorer: keys of values, rows of keys, inputs of the graph |

| input | shape | what |
|---|---|---|
| `sparse` | (B, fields, {dim}) | the row of each sparse field |
| `pooled.FIELD` | (B, {dim}) | sum or mean of the rows of a list; zeros of an empty or null one |
| `elements.FIELD` | (B, T, {dim}) | rows of a list's elements, zeros behind its end |
| `lengths.FIELD` | (B,) int64 | lengths of lists |
| `keys.FIELD` | (B, T) int64 | keys of the elements: which are equal |
| `dense` | (B, fields) | numbers, filled and squeezed |
"""


def readme_of(model: LoadedModel) -> str:
    """Return the text of ``README.md``."""
    own = model.model
    if not isinstance(own, Model):
        raise ConfigurationError(f"to onnx: expected a model of rec_models, got a {type(own).__name__}")
    return README.format(
        model=type(own).__name__,
        steps=model.steps,
        rows=model.rows,
        path=shown(model.path),
        graphs=", ".join(f"`{name}.onnx`" for name in forwards_of(own)),
        opset=OPSET,
        dim=model.table.dim,
    )
