"""Formats of an export: one function writes each, for ``pslib export`` and `pslib.export`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow.parquet as pq

from pslib.checkpoint import newest, newest_of_run
from pslib.checkpoint.export import ExportOptions, export_parquet
from pslib.data.atomic_files import atomic_output, refuse_existing
from pslib.errors import ConfigurationError
from pslib.scoring import LoadedModel
from pslib.storage import is_uri, place_of, shown
from pslib.text import one_line
from pslib.trainer.retrieval.towers import MatchingModel
from pslib.validation import checked
from rec_models.export.package import rows_of, write_files, write_package
from rec_models.saved import load
from rec_models.torch_model import INSTALL, TorchModel


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """Options of `export`."""

    overwrite: bool
    field: str | None
    among: Any
    state: bool
    columns: bool
    progress: Callable[[int], object]


Write: TypeAlias = Callable[[Any, str, FormatOptions], list[str]]
"""Function that writes a model, or that of a path, to a place; returns the files."""


@checked("to", "out", "overwrite", "field", "state", "columns")
def export(
    model: Any,
    to: str,
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    field: str | None = None,
    among: Any = None,
    state: bool = False,
    columns: bool = False,
    progress: Callable[[int], object] = lambda _rows: None,
) -> list[str]:
    """Write a trained model for other tools.

    Parameters
    ----------
    model : LoadedModel, path or URI
        A model as `pslib.load` returns it, or the path of a checkpoint, of numbered ones, or of a run.
    to : {"onnx", "numpy", "parquet", "torch", "faiss"}
        onnx: a folder that scores without pslib. numpy: an .npz of keys, rows and dense parameters.
        parquet: a folder of tables. torch: a folder of the state dict and the rows, and of the network by
        `torch.export` if it is a `TorchModel`. faiss: a folder of an index of vectors, and of their ids. All
        but parquet hold the rows in memory.
    out : path
        The file or folder; only parquet takes a URI.
    overwrite : bool
        True if existing files may be replaced.
    field : str or None
        Of faiss: whose vectors; None: the item's, of a model that ranks items.
    among : data or None
        Of faiss: the items, or data with the values of the field; None: those that the model was loaded with.
    state, columns : bool
        Of parquet: with the optimizers' numbers; a column a float.
    progress : callable
        Of parquet: called with the number of further rows.

    Returns
    -------
    list of str
        The files.

    Raises
    ------
    ConfigurationError
        If the format is unknown, has no such option, or needs a package that is not installed, or if
        something exists at ``out``.
    CheckpointError
        If there is no checkpoint, it is damaged, or doesn't say of which model it is.

    Examples
    --------
    >>> pslib.export("runs/clicks/checkpoint", "onnx", "model-package")                   # doctest: +SKIP
    """
    if to not in FORMATS:
        raise ConfigurationError(f"to: expected one of {', '.join(FORMATS)}, got {to!r}")
    given = {"field": field, "among": among, "state": state, "columns": columns}
    named = [name for name, value in given.items() if value is not None and value is not False]
    if wrong := [name for name in named if OF_FORMATS[name] != to]:
        lines = (f"{one}: only the format {OF_FORMATS[one]} takes it, got to {to!r}" for one in wrong)
        raise ConfigurationError(*lines)
    options = FormatOptions(overwrite, field, among, state, columns, progress)
    return FORMATS[to](model, os.fspath(out), options)


def _loaded(model: Any, among: Any = None) -> LoadedModel:
    if not isinstance(model, LoadedModel):
        return load(model, items=among)
    return model if among is None else LoadedModel(model.path, model.model, among)


def _new_folder(out: str, overwrite: bool) -> Path:
    """Return a folder to write to; refuse what is there, unless ``overwrite``."""
    folder = _local(out)
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"{out} is a file: expected the name of a folder")
    if folder.exists() and any(folder.iterdir()) and not overwrite:
        raise ConfigurationError(f"{out} exists already: remove it, or overwrite its files with --overwrite")
    return folder


def _local(out: str) -> Path:
    if is_uri(out):
        raise ConfigurationError(
            f"out: expected a local path, got {shown(out)}; only parquet writes to a URI"
        )
    return Path(out)


# --- formats


def _to_onnx(model: Any, out: str, options: FormatOptions) -> list[str]:
    folder = _new_folder(out, options.overwrite)
    return [str(one) for one in write_package(_loaded(model), folder)]


def _to_numpy(model: Any, out: str, options: FormatOptions) -> list[str]:
    file = _local(out)
    if file.suffix != ".npz":
        raise ConfigurationError(f"out: expected the name of a NumPy file, got {out}; end it in .npz")
    refuse_existing(file, overwrite=options.overwrite)
    loaded = _loaded(model)
    keys, rows = rows_of(loaded)
    arrays: dict[str, Any] = {f"dense/{name}": value for name, value in loaded.parameters.dense.items()}
    with atomic_output(file) as place, place.open("wb") as sink:
        np.savez(sink, keys=keys, rows=rows, **arrays)
    return [out]


def _to_parquet(model: Any, out: str, options: FormatOptions) -> list[str]:
    path = model.path if isinstance(model, LoadedModel) else newest(newest_of_run(place_of(model)))
    of_tables = ExportOptions(options.state, options.columns, options.overwrite)
    return [shown(one) for one in export_parquet(path, out, of_tables, options.progress)]


def _to_torch(model: Any, out: str, options: FormatOptions) -> list[str]:
    try:
        import torch
    except ImportError as error:
        raise ConfigurationError(f"to torch: it is not installed; its build for CPUs: {INSTALL}") from error
    folder = _new_folder(out, options.overwrite)
    loaded = _loaded(model)
    keys, rows = rows_of(loaded)
    writers: dict[str, Callable[[Path], object]] = {}
    if isinstance(loaded.model, TorchModel):
        network = loaded.model.trained(loaded.path).eval()
        program = _program(network, loaded.model)
        state = network.state_dict()
        writers["network.pt2"] = lambda place: _save_program(program, place)
    else:
        state = {name: torch.from_numpy(value) for name, value in loaded.parameters.dense.items()}
    writers["state.pt"] = lambda place: torch.save(state, place)
    of_rows = {"keys": torch.from_numpy(keys.view(np.int64)), "rows": torch.from_numpy(rows)}
    writers["rows.pt"] = lambda place: torch.save(of_rows, place)
    return [str(one) for one in write_files(folder, writers, {"network.pt2"})]


def _program(network: Any, model: TorchModel) -> Any:
    """Return the network by `torch.export`, of any number of examples."""
    import torch

    fields = len(model.schema.sparse) + len(model.schema.ragged)
    given = torch.zeros(2, fields, model.dim), torch.zeros(2, len(model.schema.dense))
    examples = {0: torch.export.Dim("examples")}
    try:
        return torch.export.export(network, given, dynamic_shapes=(examples, examples))
    except Exception as error:  # of any kind, since it runs the network's own code
        raise ConfigurationError(
            f"to torch: torch.export can't trace the network: {one_line(error)}"
        ) from error


def _save_program(program: Any, place: Path) -> None:
    import torch

    with place.open("wb") as sink:
        torch.export.save(program, sink)


def _to_faiss(model: Any, out: str, options: FormatOptions) -> list[str]:
    try:
        import faiss
    except ImportError as error:
        raise ConfigurationError(
            "to faiss: it is not installed; pip install 'sparse-pslib[nearest]' brings it"
        ) from error
    folder = _new_folder(out, options.overwrite)
    loaded = _loaded(model, options.among)
    field = options.field or ("item" if loaded.ranks_items else None)
    if field is None:
        raise ConfigurationError(
            "field: expected the field whose vectors are indexed, got none: --field NAME"
        )
    if field == "item" and isinstance(loaded.model, MatchingModel) and not loaded.model.by_product:
        raise ConfigurationError(
            f"to faiss: scores of {type(loaded.model).__name__} are no inner products of vectors"
        )
    table = loaded.vectors_by_name(field)
    column = table.column(table.num_columns - 1).combine_chunks()
    vectors = np.array(column.flatten().to_numpy(), np.float32).reshape(len(table), -1)
    if not loaded.ranks_items:
        faiss.normalize_L2(vectors)  # so that products are cosines, as of `nearest`
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    ids = table.drop_columns([table.column_names[-1]])
    writers: dict[str, Callable[[Path], object]] = {
        "index.faiss": lambda place: faiss.write_index(index, os.fspath(place)),
        "ids.parquet": lambda place: pq.write_table(ids, place),
    }
    return [str(one) for one in write_files(folder, writers)]


FORMATS: dict[str, Write] = {
    "onnx": _to_onnx,
    "numpy": _to_numpy,
    "parquet": _to_parquet,
    "torch": _to_torch,
    "faiss": _to_faiss,
}
"""Function that writes each format."""
OF_FORMATS = {"field": "faiss", "among": "faiss", "state": "parquet", "columns": "parquet"}
"""Options of one format alone."""
