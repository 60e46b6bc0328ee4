"""Rows and dense blocks of one shard to Arrow IPC files, and back onto any number of servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyarrow import fs

from pslib.checkpoint.arrow_files import batches_of, verify, write_file
from pslib.checkpoint.counted import CountReader, count_batches, count_schema, kind_of_counts
from pslib.checkpoint.dense import DENSE_SCHEMA, dense_batch, put_dense, read_dense
from pslib.checkpoint.manifest import ROWS, Manifest, ManifestFile, open_place, read_manifest
from pslib.checkpoint.rows import RowReader, row_batches, table_schema
from pslib.errors import CheckpointError, CheckpointIncompatibleError
from pslib.partition_map import units_of_mask
from pslib.shard import Shard
from pslib.tables import PartSpec, TableSpec

__all__ = ["load_shard", "save_shard"]


def save_shard(shard: Shard, path: str, stem: str) -> list[dict[str, Any]]:
    """Write all tables and dense blocks of a shard; return one manifest entry a file, in plain form.

    Raises
    ------
    CheckpointError
        When the place can't be written.
    """
    filesystem, root = open_place(path)
    try:
        filesystem.create_dir(root, recursive=True)
        return [entry.to_dict() for entry in _entries(shard, filesystem, root, stem)]
    except OSError as error:
        raise CheckpointError(f"checkpoint {path}: can't write: {error}") from error


def _entries(shard: Shard, filesystem: fs.FileSystem, root: str, stem: str) -> Iterator[ManifestFile]:
    def write(
        name: str, table: str, kind: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> ManifestFile:
        return ManifestFile(name, table, *write_file(filesystem, root, name, schema, batches), kind)

    for table, spec in sorted(shard.tables.items()):
        yield write(f"{table}.{stem}.arrow", table, ROWS, table_schema(spec), row_batches(shard, table))
        if kind := kind_of_counts(spec):
            schema = count_schema(spec, shard.partition_bits)
            yield write(f"{table}.{stem}.{kind}.arrow", table, kind, schema, count_batches(shard, table))
    if shard.dense:
        yield write(f"dense.{stem}.arrow", "", ROWS, DENSE_SCHEMA, [dense_batch(shard)])


def load_shard(shard: Shard, path: str) -> dict[str, int]:
    """Replace what a shard owns by what the checkpoint at ``path`` says about it.

    Every file is checked against the manifest before the first row changes.

    Returns
    -------
    dict
        ``rows`` taken by this shard.

    Raises
    ------
    CheckpointCorruptError
        When a file is missing, cut or changed.
    CheckpointIncompatibleError
        When the checkpoint holds other tables than this cluster.
    MemoryLimitError
        When there is no room for all rows.
    """
    manifest = read_manifest(path)
    saved = {spec.name: spec for spec in map(TableSpec.from_dict, manifest.tables)}
    _check_tables(shard, manifest, saved, path)
    filesystem, root = open_place(path)
    for entry in manifest.files:
        verify(filesystem, root, path, entry)
    dense_files = [entry for entry in manifest.files if not entry.table]
    pieces = (one for entry in dense_files for one in batches_of(filesystem, root, path, entry, DENSE_SCHEMA))
    dense = read_dense(shard, manifest, path, pieces)
    _empty(shard)
    rows = 0
    for table in shard.stores:
        rows += _load_table(shard, table, saved[table], manifest, path)
    if dense:
        put_dense(shard, dense)
    return {"rows": rows}


def _empty(shard: Shard) -> None:
    partitions = units_of_mask(shard.owned)
    for store in shard.stores.values():
        for partition in partitions[partitions < shard.partitions].tolist():
            store.drop_partition(partition)
    shard.room.forget()


def _load_table(shard: Shard, table: str, saved: TableSpec, manifest: Manifest, path: str) -> int:
    """Rows first, so that a key that is counted has none; return how many rows were taken."""
    filesystem, root = open_place(path)
    about = manifest.about
    spec, counts, rows = shard.tables[table], CountReader(shard, table, saved), 0
    now = spec.now(int(about.get("steps", 0)), float(about.get("seconds", 0.0)))
    reader = RowReader(shard, table, now, saved.clock == spec.clock)
    files = [entry for entry in manifest.files if entry.table == table]
    for entry in files:
        if entry.kind == ROWS:
            batches = batches_of(filesystem, root, path, entry, table_schema(saved))
            rows += sum(reader.take(batch) for batch in batches)
    for entry in files:
        if entry.kind != ROWS and counts.fits:
            for batch in batches_of(filesystem, root, path, entry, count_schema(saved, 0)):
                counts.take(batch)
    counts.finish()
    return rows


def _check_tables(shard: Shard, manifest: Manifest, saved: dict[str, TableSpec], path: str) -> None:
    for name, mine in shard.tables.items():
        if name not in saved:
            raise CheckpointIncompatibleError(f"{path}: no table {name!r} in it; it has {sorted(saved)}")
        _check_parts(mine, saved[name], path)
    length = shard.dense.spec.length if shard.dense else 0
    if manifest.dense.get("length", 0) != length:
        raise CheckpointIncompatibleError(
            f"{path}: {manifest.dense.get('length', 0)} dense parameters, expected {length}: another model"
        )


def _check_parts(mine: TableSpec, saved: TableSpec, path: str) -> None:
    for part, saved_part in zip(mine.parts, saved.parts, strict=False):
        if _shape(part) != _shape(saved_part):
            raise CheckpointIncompatibleError(
                f"{path}: table {mine.name} part {saved_part.name} has dim {saved_part.dim} and "
                f"{type(saved_part.optimizer).__name__}; expected {part.name}, dim {part.dim} and "
                f"{type(part.optimizer).__name__}"
            )
    if len(mine.parts) != len(saved.parts):
        raise CheckpointIncompatibleError(
            f"{path}: table {mine.name} has parts {[p.name for p in saved.parts]}; "
            f"expected {[p.name for p in mine.parts]}"
        )
    if saved.compact and mine.narrow_parts != saved.narrow_parts:
        raise CheckpointIncompatibleError(
            f"{path}: table {mine.name} has rows without part {saved.compact.wide_from!r}; set compact "
            "with the same wide_from"
        )


def _shape(part: PartSpec) -> tuple[str, int, int, int]:
    """What a part's floats mean: state of one optimizer is no state of another, even of equal length."""
    return part.name, part.dim, part.state_floats, part.optimizer.kind if part.state_floats else -1
