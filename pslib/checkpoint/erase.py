"""Key erasure: rewrites the files of a checkpoint without given keys, the manifest last."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pslib.checkpoint.arrow_files import verify, write_file
from pslib.checkpoint.manifest import OWN_FILE, ManifestFile, commit, open_folder, read_manifest
from pslib.errors import CheckpointCorruptError, CheckpointError
from pslib.storage import shown

Keys = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Result of an erasure in one checkpoint: rows (and counts of keys without a row), and files written."""

    path: str
    rows: int
    files: int


def forget_rows(path: str, table: str, keys: Keys) -> Forgotten:
    """Erase rows and counts of keys from a checkpoint; it stays complete at every moment.

    A file that holds any of the keys is verified and rewritten under another name. Then the manifest names
    the new files, then the old ones are removed. Bloom filters hold no keys and stay. The predecessor of an
    increment is a separate checkpoint and is not changed: erase the keys there first
    (`pslib.checkpoint.chain_of`).

    Parameters
    ----------
    path : str
        The checkpoint's folder.
    table : str
    keys : (n,) uint64

    Raises
    ------
    CheckpointError
        If it is damaged, has no such table, or can't be written.
    """
    manifest = read_manifest(path)
    names = [str(one["name"]) for one in manifest.tables]
    if table not in names:
        raise CheckpointError(f"{shown(path)}: no table {table!r}; tables: {', '.join(names)}")
    files, gone, written = [], 0, 0
    for entry in manifest.files:
        count = _held(path, entry.name, keys) if entry.table == table else 0
        if count:
            verify(path, entry)  # else a new checksum would validate damaged bytes
            written += 1
        files.append(_without(path, entry, keys) if count else entry)
        gone += count
    if written:
        commit(path, replace(manifest, files=files))
    return Forgotten(path, gone, written)


def held_rows(path: str, table: str, keys: Keys) -> int:
    """Count rows and counts of these keys in all files of a table in a folder, with or without manifest.

    Raises
    ------
    CheckpointError
        If a file can't be read, so that the count is unknown.
    """
    try:
        names = [one.base_name for one in open_folder(path).entries()]
    except OSError as error:
        raise CheckpointError(f"{shown(path)}: can't be read: {error}") from error
    ours = [name for name in names if OWN_FILE.fullmatch(name) and name.startswith(f"{table}.")]
    return sum(_held(path, name, keys) for name in ours)


def _held(path: str, name: str, keys: Keys) -> int:
    filesystem, root = open_folder(path)
    file = f"{root}/{name}"
    try:
        with filesystem.open_input_file(file) as stream, pa.ipc.open_file(stream) as reader:
            at = reader.schema.get_field_index("key")
            if at < 0:
                return 0
        options = pa.ipc.IpcReadOptions(included_fields=[at])
        with filesystem.open_input_file(file) as stream, pa.ipc.open_file(stream, options=options) as reader:
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
            return sum(int(_is_one_of(batch.column(0), keys).sum()) for batch in batches)
    except (OSError, pa.ArrowException) as error:
        raise CheckpointCorruptError(f"{shown(path)}: can't read {file}: {error}") from error


def _is_one_of(column: pa.Array, keys: Keys) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.isin(column.to_numpy(zero_copy_only=False), keys)
    return found


def _without(path: str, entry: ManifestFile, keys: Keys) -> ManifestFile:
    """Rewrite the file without these keys, under a new name; return its manifest entry."""
    filesystem, root = open_folder(path)
    table, _, rest = entry.name.partition(".")
    name = f"{table}.{secrets.token_hex(4)}{rest[8:]}"
    try:
        with filesystem.open_input_file(f"{root}/{entry.name}") as stream, pa.ipc.open_file(stream) as reader:
            sums, rows = write_file(filesystem, root, name, reader.schema, _kept(reader, keys))
    except (OSError, pa.ArrowException) as error:
        raise CheckpointError(f"{shown(path)}: {entry.name} can't be written anew: {error}") from error
    blocks = tuple(sums.blocks) if entry.blocks else ()
    return replace(entry, name=name, bytes=sums.bytes, crc32=sums.crc32, rows=rows, blocks=blocks)


def _kept(reader: Any, keys: Keys) -> Iterator[pa.RecordBatch]:
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        gone = _is_one_of(batch.column(batch.schema.get_field_index("key")), keys)
        if gone.all():
            continue
        yield batch.filter(pa.array(~gone)) if gone.any() else batch
