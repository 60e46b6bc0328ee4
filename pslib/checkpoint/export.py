"""Export of a checkpoint to Parquet: one file per table and server, and one of dense parameters."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from pslib.checkpoint.arrow_files import batches_of, verify
from pslib.checkpoint.dense import dense_vector
from pslib.checkpoint.folders import chain_of
from pslib.checkpoint.key_ranges import TableOfCheckpoint
from pslib.checkpoint.manifest import ROWS, Manifest, ManifestFile, open_folder, read_manifest
from pslib.checkpoint.rows import table_schema
from pslib.errors import CheckpointError, ConfigurationError
from pslib.storage import below, shown
from pslib.table.tables import TableSpec, scale_name

GROUP_ROWS = 1 << 17
"""Rows of a row group: large enough for scans, 9 MB in memory for 16 floats."""


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of the export.

    Attributes
    ----------
    state : bool
        True to write optimizer state, and scales of int8 tables.
    columns : bool
        One column per float, ``v_0``, ``v_1``, ...; else one fixed-size list per part.
    overwrite : bool
        True if existing files may be replaced.
    """

    state: bool = False
    columns: bool = False
    overwrite: bool = False


def export_parquet(
    path: str,
    out: str,
    options: ExportOptions | None = None,
    progress: Callable[[int], object] = lambda _rows: None,
) -> list[str]:
    """Write ``TABLE-SERVER.parquet`` for each table and server with rows, and ``dense.parquet``, to ``out``.

    An increment is exported with its predecessors merged, as ``TABLE-000.parquet``.

    Every file is verified before its rows are written. ``dense.parquet`` has one row per parameter: ``name``,
    ``shape`` and ``values`` in C order. Counted keys without a row are not written.

    Returns
    -------
    list of str
        Paths of the files.

    Raises
    ------
    CheckpointError
        If the checkpoint is damaged or ``out`` can't be written.
    ConfigurationError
        If a file exists already.
    """
    options = options or ExportOptions()
    manifest = read_manifest(path)
    specs = manifest.specs
    groups = _groups(manifest)
    filesystem, root = open_folder(out)
    names = [f"{stem}.parquet" for stem in groups] + (["dense.parquet"] if manifest.dense_length else [])
    _refuse_existing(filesystem, root, out, names, options.overwrite)
    try:
        filesystem.create_dir(root, recursive=True)
        for stem, entries in groups.items():
            spec = specs[entries[0].table]
            with _whole_file(filesystem, f"{root}/{stem}.parquet") as target:
                batches = _chain_batches(path, spec) if manifest.increment else _batches(path, entries, spec)
                _write_rows(batches, spec, options, (filesystem, target), progress)
        if manifest.dense_length:
            with _whole_file(filesystem, f"{root}/dense.parquet") as target:
                pq.write_table(_dense_table(path, manifest), target, filesystem=filesystem)
    except OSError as error:
        raise CheckpointError(f"export to {shown(out)}: can't write: {error}") from error
    return [below(out, name) for name in names]


def _batches(path: str, entries: list[ManifestFile], spec: TableSpec) -> Iterator[pa.RecordBatch]:
    """Yield all rows of some files of one table, each verified before."""
    for entry in entries:
        verify(path, entry)
        yield from batches_of(path, entry, table_schema(spec))


def _chain_batches(path: str, spec: TableSpec) -> Iterator[pa.RecordBatch]:
    """Yield the merged rows of a chain of increments."""
    for link in chain_of(path):
        for entry in link.manifest.files:
            if entry.table == spec.name:
                verify(link.path, entry)
    table = TableOfCheckpoint(path, spec)
    bits = table.group_bits
    for group in range(1 << bits):
        yield from table.read(group, bits).table.to_batches(GROUP_ROWS)


def _groups(manifest: Manifest) -> dict[str, list[ManifestFile]]:
    """Group row files by table and server; a name without a server forms its own group."""
    groups: dict[str, list[ManifestFile]] = {}
    if manifest.increment:  # rows of all servers together: a row's first writer may differ from its last
        tables = {entry.table: entry for entry in manifest.files if entry.table and entry.kind == ROWS}
        return {f"{table}-000": [entry] for table, entry in tables.items()}
    for entry in manifest.files:
        if entry.table and entry.kind == ROWS and entry.rows:
            pieces = entry.name.removeprefix(f"{entry.table}.").split("-")
            server = pieces[1] if len(pieces) == 3 else Path(entry.name).stem
            groups.setdefault(f"{entry.table}-{server}", []).append(entry)
    return groups


def _refuse_existing(
    filesystem: fs.FileSystem, root: str, out: str, names: list[str], overwrite: bool
) -> None:
    try:
        infos = filesystem.get_file_info([f"{root}/{name}" for name in names])
    except OSError as error:
        raise CheckpointError(f"export to {shown(out)}: {error}") from error
    there = [info.base_name for info in infos if info.type != fs.FileType.NotFound]
    if there and not overwrite:
        raise ConfigurationError(
            *(f"{shown(below(out, name))} exists already: remove it, or give --overwrite" for name in there)
        )


@contextlib.contextmanager
def _whole_file(filesystem: fs.FileSystem, path: str) -> Iterator[str]:
    """Yield a temporary name; renamed to ``path`` on success, where the file system can rename."""
    if not isinstance(filesystem, fs.LocalFileSystem):
        yield path
        return
    folder, _, name = path.rpartition("/")
    aside = Path(f"{folder}/.{name}.tmp")
    try:
        yield str(aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _write_rows(
    batches: Iterator[pa.RecordBatch],
    spec: TableSpec,
    options: ExportOptions,
    target: tuple[fs.FileSystem, str],
    progress: Callable[[int], object],
) -> None:
    waiting, rows = [], 0
    writer: pq.ParquetWriter | None = None
    try:
        for batch in batches:
            waiting.append(_flat(batch, spec, options))
            rows += batch.num_rows
            writer = writer or pq.ParquetWriter(target[1], waiting[0].schema, filesystem=target[0])
            if rows >= GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(waiting))
                progress(rows)
                waiting, rows = [], 0
        if writer is None:  # readers of all tables then find this one too, with its columns
            empty = pa.RecordBatch.from_pylist([], table_schema(spec))
            writer = pq.ParquetWriter(target[1], _flat(empty, spec, options).schema, filesystem=target[0])
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting))
            progress(rows)
    finally:
        if writer:
            writer.close()


def _flat(batch: pa.RecordBatch, spec: TableSpec, options: ExportOptions) -> pa.RecordBatch:
    """Select and flatten the requested columns."""
    hidden = {name for part in spec.parts for name in (f"{part.name}_state", scale_name(part))}
    hidden -= {part.name for part in spec.parts}
    columns: dict[str, pa.Array] = {}
    for name in batch.schema.names:
        if name in hidden and not options.state:
            continue
        column = batch.column(name)
        if pa.types.is_fixed_size_list(column.type):
            columns |= _split(name, column) if options.columns else {name: column}
        else:
            columns[name] = column
    return pa.RecordBatch.from_pydict(columns)


def _split(name: str, column: pa.FixedSizeListArray) -> dict[str, pa.Array]:
    width, null = column.type.list_size, column.is_null().to_numpy(zero_copy_only=False)
    values = column.values.to_numpy(zero_copy_only=False)
    rows = values[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)
    mask = null if null.any() else None
    return {
        f"{name}_{place}": pa.array(np.ascontiguousarray(rows[:, place]), mask=mask) for place in range(width)
    }


def _dense_table(path: str, manifest: Manifest) -> pa.Table:
    vector = dense_vector(path, manifest)
    names, shapes, values, start = [], [], [], 0
    for one in manifest.dense.get("parameters", []):
        size = math.prod(one["shape"])
        names.append(one["name"])
        shapes.append(one["shape"])
        values.append(vector[start : start + size])
        start += size
    if start != vector.size:
        names, shapes, values = ["dense"], [[vector.size]], [vector]
    columns = [
        pa.array(names),
        pa.array(shapes, pa.list_(pa.int64())),
        pa.array(values, pa.list_(pa.float32())),
    ]
    return pa.table(columns, names=["name", "shape", "values"])
