"""Rows and dense blocks of one shard to Arrow IPC files, and back onto any number of servers."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import fs

from pslib.checkpoint.manifest import Manifest, ManifestFile, open_place, read_manifest, sync
from pslib.errors import CheckpointCorruptError, CheckpointError, CheckpointIncompatibleError
from pslib.optimizers import Adam, optimizer_from_dict
from pslib.partition_map import units_of_mask
from pslib.shard import Shard
from pslib.tables import PartSpec, TableSpec

__all__ = ["load_shard", "save_shard", "table_schema"]

FloatRows = NDArray[np.float32]
READ_BYTES = 1 << 23
"""Read at a time to check a file: few calls, and memory does not grow with the checkpoint."""
DENSE_SCHEMA = pa.schema(
    [
        pa.field("first", pa.int64(), nullable=False),
        pa.field("weights", pa.list_(pa.float32()), nullable=False),
        pa.field("state", pa.list_(pa.float32()), nullable=False),
    ]
)


class _CountingSink:
    """A file-like wrapper that keeps size and CRC-32 of what passes through."""

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.bytes = 0
        self.crc32 = 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._stream.write(view)
        self.bytes += view.nbytes
        self.crc32 = zlib.crc32(view, self.crc32)
        return view.nbytes

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self.closed = True


def table_schema(spec: TableSpec) -> pa.Schema:
    """Columns of a table's file: ``key``, then for each part its weights and ``<part>_state``."""
    columns = [pa.field("key", pa.uint64(), nullable=False)]
    for part in spec.parts:
        columns.append(pa.field(part.name, pa.list_(pa.float32(), part.dim), nullable=False))
        if part.state_floats:
            columns.append(
                pa.field(f"{part.name}_state", pa.list_(pa.float32(), part.state_floats), nullable=False)
            )
    return pa.schema(columns, metadata={"pslib.table": json.dumps(spec.to_dict())})


def _list_column(rows: FloatRows) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])


def _batch(
    spec: TableSpec, schema: pa.Schema, keys: NDArray[np.uint64], weights: FloatRows, state: FloatRows
) -> pa.RecordBatch:
    columns = [pa.array(keys)]
    at = state_at = 0
    for part in spec.parts:
        columns.append(_list_column(weights[:, at : at + part.dim]))
        at += part.dim
        if part.state_floats:
            columns.append(_list_column(state[:, state_at : state_at + part.state_floats]))
            state_at += part.state_floats
    return pa.record_batch(columns, schema=schema)


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
        entries = [_save_table(filesystem, root, shard, name, stem) for name in sorted(shard.tables)]
        if shard.dense:
            entries.append(_save_dense(filesystem, root, shard, stem))
    except OSError as error:
        raise CheckpointError(f"checkpoint {path}: can't write: {error}") from error
    return [_plain(entry) for entry in entries]


def _plain(entry: ManifestFile) -> dict[str, Any]:
    return {
        "name": entry.name,
        "table": entry.table,
        "bytes": entry.bytes,
        "crc32": entry.crc32,
        "rows": entry.rows,
    }


def _save_table(filesystem: fs.FileSystem, root: str, shard: Shard, table: str, stem: str) -> ManifestFile:
    spec, store = shard.tables[table], shard.stores[table]
    schema, name, rows = table_schema(spec), f"{table}.{stem}.arrow", 0
    with filesystem.open_output_stream(f"{root}/{name}") as stream:
        sink = _CountingSink(stream)
        with pa.ipc.new_file(sink, schema) as writer:
            for partition in store.partitions().tolist():
                keys, weights, state = store.export_partition(partition)
                writer.write_batch(_batch(spec, schema, keys, weights, state))
                rows += keys.size
    sync(filesystem, f"{root}/{name}")
    return ManifestFile(name, table, sink.bytes, sink.crc32, rows)


def _save_dense(filesystem: fs.FileSystem, root: str, shard: Shard, stem: str) -> ManifestFile:
    assert shard.dense is not None
    blocks = list(shard.owned_blocks())
    name = f"dense.{stem}.arrow"
    floats = pa.list_(pa.float32())
    columns = [
        pa.array([shard.dense.bounds(block)[0] for block in blocks], pa.int64()),
        pa.array([shard.dense.weights[b] for b in blocks], floats),
        pa.array([shard.dense.state[b] for b in blocks], floats),
    ]
    with filesystem.open_output_stream(f"{root}/{name}") as stream:
        sink = _CountingSink(stream)
        with pa.ipc.new_file(sink, DENSE_SCHEMA) as writer:
            writer.write_batch(pa.record_batch(columns, schema=DENSE_SCHEMA))
    sync(filesystem, f"{root}/{name}")
    return ManifestFile(name, "", sink.bytes, sink.crc32, len(blocks))


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
    """
    manifest = read_manifest(path)
    _check_tables(shard, manifest, path)
    filesystem, root = open_place(path)
    for entry in manifest.files:
        _verify(filesystem, root, path, entry)
    dense = _read_dense(shard, manifest, filesystem, root, path)
    partitions = units_of_mask(shard.owned)
    for store in shard.stores.values():
        for partition in partitions[partitions < shard.partitions].tolist():
            store.drop_partition(partition)
    rows = 0
    for entry in manifest.files:
        if entry.table in shard.stores:
            batches = _batches(filesystem, root, path, entry, table_schema(shard.tables[entry.table]))
            rows += sum(_load_batch(shard, entry.table, batch) for batch in batches)
    if dense:
        _put_dense(shard, dense)
    return {"rows": rows}


def _check_tables(shard: Shard, manifest: Manifest, path: str) -> None:
    specs = {spec.name: spec for spec in map(TableSpec.from_dict, manifest.tables)}
    for name, mine in shard.tables.items():
        saved = specs.get(name)
        if saved is None:
            raise CheckpointIncompatibleError(f"{path}: no table {name!r} in it; it has {sorted(specs)}")
        for part, saved_part in zip(mine.parts, saved.parts, strict=False):
            if _layout(part) != _layout(saved_part):
                raise CheckpointIncompatibleError(
                    f"{path}: table {name} part {saved_part.name} has dim {saved_part.dim} and "
                    f"{type(saved_part.optimizer).__name__}; expected {part.name}, dim {part.dim} and "
                    f"{type(part.optimizer).__name__}"
                )
        if len(mine.parts) != len(saved.parts):
            raise CheckpointIncompatibleError(
                f"{path}: table {name} has parts {[p.name for p in saved.parts]}; "
                f"expected {[p.name for p in mine.parts]}"
            )
    length = shard.dense.spec.length if shard.dense else 0
    if manifest.dense.get("length", 0) != length:
        raise CheckpointIncompatibleError(
            f"{path}: {manifest.dense.get('length', 0)} dense parameters, expected {length}: another model"
        )


def _layout(part: PartSpec) -> tuple[str, int, int, int]:
    """What a part's floats mean: state of one optimizer is no state of another, even of equal length."""
    return part.name, part.dim, part.state_floats, part.optimizer.kind if part.state_floats else -1


def _verify(filesystem: fs.FileSystem, root: str, path: str, entry: ManifestFile) -> None:
    """Read a file once, a piece at a time, and compare size and CRC."""
    size = crc32 = 0
    try:
        with filesystem.open_input_file(f"{root}/{entry.name}") as stream:
            while piece := stream.read(READ_BYTES):
                size += len(piece)
                crc32 = zlib.crc32(piece, crc32)
    except OSError as error:
        raise CheckpointCorruptError(f"{path}: can't read {entry.name}: {error}") from error
    if (size, crc32) != (entry.bytes, entry.crc32):
        raise CheckpointCorruptError(
            f"{path}: {entry.name} is damaged: expected {entry.bytes} bytes with CRC {entry.crc32:08x}, got "
            f"{size} bytes with CRC {crc32:08x}"
        )


def _batches(
    filesystem: fs.FileSystem, root: str, path: str, entry: ManifestFile, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Record batches of a file, one in memory at a time."""
    try:
        with (
            filesystem.open_input_file(f"{root}/{entry.name}") as stream,
            pa.ipc.open_file(stream) as reader,
        ):
            if not reader.schema.equals(schema):
                raise CheckpointCorruptError(
                    f"{path}: {entry.name} has columns {reader.schema.names}, expected {schema.names}"
                )
            for index in range(reader.num_record_batches):
                yield reader.get_batch(index)
    except (OSError, pa.ArrowException) as error:
        raise CheckpointCorruptError(f"{path}: can't read {entry.name}: {error}") from error


def _load_batch(shard: Shard, table: str, batch: pa.RecordBatch) -> int:
    keys = batch.column("key").to_numpy(zero_copy_only=False)
    mine = shard.own_keys(keys)
    if mine.size == 0:
        return 0
    weights, states = [], []
    for part in shard.tables[table].parts:
        weights.append(_rows_of(batch, part.name, part.dim, mine))
        if part.state_floats:
            states.append(_rows_of(batch, f"{part.name}_state", part.state_floats, mine))
    state = np.concatenate(states, axis=1) if states else np.empty((mine.size, 0), np.float32)
    shard.stores[table].assign(keys[mine], np.concatenate(weights, axis=1), state)
    return mine.size


def _rows_of(batch: pa.RecordBatch, name: str, width: int, places: NDArray[np.int32]) -> FloatRows:
    rows = batch.column(name).flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
    return np.ascontiguousarray(rows[places])


@dataclass(frozen=True, slots=True)
class _Dense:
    """All dense parameters of a checkpoint, whatever blocks they were saved in.

    ``weights`` (length,); ``states`` (elements, length); ``counts`` (length,) step counts, or None for
    optimizers that do not count.
    """

    weights: FloatRows
    states: FloatRows
    counts: FloatRows | None


def _read_dense(
    shard: Shard, manifest: Manifest, filesystem: fs.FileSystem, root: str, path: str
) -> _Dense | None:
    if shard.dense is None:
        return None
    expected, optimizer = shard.dense.spec.optimizer, optimizer_from_dict(manifest.dense["optimizer"])
    if optimizer.kind != expected.kind:
        raise CheckpointIncompatibleError(
            f"{path}: dense optimizer: expected {type(expected).__name__}, "
            f"the checkpoint has {type(optimizer).__name__}"
        )
    length, counted = shard.dense.spec.length, isinstance(expected, Adam)
    elements = expected.state_floats(1) - counted
    found = _Dense(
        np.empty(length, np.float32),
        np.empty((elements, length), np.float32),
        np.empty(length, np.float32) if counted else None,
    )
    seen = np.zeros(length, bool)
    for entry in manifest.files:
        if entry.table:
            continue
        for batch in _batches(filesystem, root, path, entry, DENSE_SCHEMA):
            _take_blocks(batch, found, seen)
    if not seen.all():
        raise CheckpointCorruptError(
            f"{path}: {np.count_nonzero(~seen)} of {length} dense parameters missing"
        )
    return found


def _take_blocks(batch: pa.RecordBatch, found: _Dense, seen: NDArray[np.bool_]) -> None:
    elements = found.states.shape[0]
    columns = (batch.column("first").to_pylist(), batch.column("weights"), batch.column("state"))
    for first, weights, state in zip(*columns, strict=True):
        block = weights.values.to_numpy(zero_copy_only=False)
        numbers = state.values.to_numpy(zero_copy_only=False)
        part = slice(first, first + block.size)
        seen[part] = True
        found.weights[part] = block
        found.states[:, part] = numbers[: elements * block.size].reshape(elements, block.size)
        if found.counts is not None and block.size:
            found.counts[part] = numbers[-1]


def _put_dense(shard: Shard, found: _Dense) -> None:
    assert shard.dense is not None
    for block in shard.owned_blocks():
        start, stop = shard.dense.bounds(block)
        state = found.states[:, start:stop].reshape(-1)
        if found.counts is not None:
            state = np.append(state, found.counts[start] if stop > start else np.float32(0))
        shard.dense.put(block, found.weights[start:stop], state)
