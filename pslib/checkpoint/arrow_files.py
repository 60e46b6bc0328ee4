"""Arrow IPC files as checkpoints use them: written with size and CRC-32, read a batch at a time."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyarrow import fs

from pslib.checkpoint.manifest import ManifestFile, sync
from pslib.errors import CheckpointCorruptError

__all__ = ["batches_of", "verify", "write_file"]

READ_BYTES = 1 << 23
"""Read at a time to check a file: few calls, and memory does not grow with the checkpoint."""


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


def write_file(
    filesystem: fs.FileSystem, root: str, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> tuple[int, int, int]:
    """Write a file and wait until it is on the disk; return its size, CRC-32 and number of rows."""
    rows = 0
    with filesystem.open_output_stream(f"{root}/{name}") as stream:
        sink = _CountingSink(stream)
        with pa.ipc.new_file(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
    sync(filesystem, f"{root}/{name}")
    return sink.bytes, sink.crc32, rows


def verify(filesystem: fs.FileSystem, root: str, path: str, entry: ManifestFile) -> None:
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


def batches_of(
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
