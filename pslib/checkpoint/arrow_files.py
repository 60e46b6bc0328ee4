"""Arrow IPC files of checkpoints: written with size and CRC-32, read one batch at a time.

Three threads write a file: the caller's encodes record batches and computes sums, the second writes, the
third waits for the disk. So disk and processor never wait for each other.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import fs

from cython_ext.data.distinct import distinct
from pslib.checkpoint.admission_counts import counts_problem
from pslib.checkpoint.manifest import BLOCK_BYTES, ManifestFile, open_folder, sync
from pslib.checkpoint.sums import Sums, sums_of
from pslib.errors import CheckpointCorruptError
from pslib.process.platform import sync_data, sync_file
from pslib.storage import shown
from pslib.text import counted

PIECE_BYTES = 1 << 20
"""Bytes passed to the writing thread at a time, so that the hand-over cost is negligible."""
PIECES_WAITING = 6
"""Most pieces of a save not yet written: 6 MiB per shard thread."""
SYNC_BYTES = 1 << 24
"""Bytes between syncs while encoding and writing continue.

Otherwise the whole file waits in the page cache for one long sync at the end. Writing waits while twice as
much is unsynced.
"""
SMALL_BYTES = 1 << 15
"""Smaller writes of Arrow's (headers, padding) are joined; larger ones are passed on without a copy."""
WRITE_VECTOR = 512
"""Buffers of one system call; POSIX allows 1,024."""


class _LocalTarget:
    """Local file, written without copying, and synced by its own thread as it grows."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self._unsynced = 0
        self._syncing: threading.Thread | None = None
        self._sync_error: OSError | None = None

    def write(self, buffers: list[Any]) -> None:
        for start in range(0, len(buffers), WRITE_VECTOR):
            self._write_all([memoryview(one).cast("B") for one in buffers[start : start + WRITE_VECTOR]])
        if self._unsynced >= SYNC_BYTES:
            self._wait_for_sync()
            self._unsynced = 0
            self._syncing = threading.Thread(target=self._sync, name="pslib-checkpoint-sync", daemon=True)
            self._syncing.start()

    def _sync(self) -> None:
        try:
            sync_data(self._file)
        except OSError as error:
            self._sync_error = error

    def _wait_for_sync(self) -> None:
        if self._syncing is not None:
            self._syncing.join()
        if self._sync_error is not None:
            raise self._sync_error

    def _write_all(self, views: list[memoryview]) -> None:
        while views:
            written = os.writev(self._file, views)
            self._unsynced += written
            while views and written >= views[0].nbytes:
                written -= views.pop(0).nbytes
            if written:
                views[0] = views[0][written:]

    def close(self) -> None:
        try:
            self._wait_for_sync()
            sync_file(self._file)
        finally:
            os.close(self._file)

    def abandon(self) -> None:
        if self._syncing is not None:
            self._syncing.join()
        os.close(self._file)


class _StreamTarget:
    """Object of a store; it exists once closed."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, buffers: list[Any]) -> None:
        self._stream.write(b"".join(buffers))

    def close(self) -> None:
        self._stream.close()

    def abandon(self) -> None:
        """Abort; files that no manifest names are ignored by readers."""
        with contextlib.suppress(OSError):
            self._stream.close()


class _Writer:
    """File-like object for Arrow that passes writes to a writing thread, and re-raises its first error."""

    closed = False

    def __init__(self, target: _LocalTarget | _StreamTarget) -> None:
        self.sums = Sums()
        self._target = target
        self._buffers: list[Any] = []
        self._waiting = 0
        self._error: BaseException | None = None
        self._pieces: queue.Queue[list[Any] | None] = queue.Queue(PIECES_WAITING)
        self._thread = threading.Thread(target=self._run, name="pslib-checkpoint", daemon=True)
        self._thread.start()

    def write(self, data: Any) -> int:
        size: int = memoryview(data).nbytes
        self._buffers.append(data)
        self._waiting += size
        if self._waiting >= PIECE_BYTES:
            self._hand_over()
        return size

    def flush(self) -> None:
        """Do nothing: Arrow calls it often, but `finish` makes the file durable."""

    def close(self) -> None:
        self.closed = True

    def finish(self) -> None:
        """Write the rest and wait until it is on the disk; closes everything on error."""
        try:
            self._hand_over()
        except BaseException:
            self.abandon()
            raise
        self._end()
        if self._error:
            self._target.abandon()
            raise self._error
        self._target.close()

    def abandon(self) -> None:
        """Abort after an error elsewhere."""
        self._end()
        self._target.abandon()

    def _hand_over(self) -> None:
        if self._error:
            raise self._error
        for buffer in self._buffers:  # here, so that the writing thread only writes
            self.sums.add(buffer)
        self._pieces.put(self._buffers)
        self._buffers, self._waiting = [], 0

    def _end(self) -> None:
        self._pieces.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (buffers := self._pieces.get()) is not None:
            if self._error is None:  # after an error it only drains the queue, so that no caller blocks
                try:
                    self._target.write(buffers)
                except BaseException as error:
                    self._error = error


class ArrowFile:
    """Arrow IPC file being written.

    Parameters
    ----------
    filesystem : FileSystem
    root, name : str
        Folder and file name.
    schema : Schema
        Schema of all batches.
    """

    def __init__(self, filesystem: fs.FileSystem, root: str, name: str, schema: pa.Schema) -> None:
        path = f"{root}/{name}"
        self._filesystem, self._root, self._rows = filesystem, root, 0
        local = isinstance(filesystem, fs.LocalFileSystem)
        target = _LocalTarget(path) if local else _StreamTarget(filesystem.open_output_stream(path))
        self._writer = _Writer(target)
        self._sink = pa.BufferedOutputStream(pa.PythonFile(self._writer, "w"), SMALL_BYTES)
        self._arrow = pa.ipc.new_file(self._sink, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch; blocks while too much is unwritten."""
        self._arrow.write_batch(batch)
        self._rows += batch.num_rows

    def finish(self) -> tuple[Sums, int]:
        """Wait until the file is on the disk; return its sums and number of rows."""
        try:
            self._arrow.close()
            self._sink.flush()
        except BaseException:
            self.abandon()
            raise
        self._writer.finish()
        sync(self._filesystem, self._root)
        return self._writer.sums, self._rows

    def abandon(self) -> None:
        """Abort after an error; the partial file is ignored by readers."""
        self._writer.abandon()


def write_file(
    filesystem: fs.FileSystem, root: str, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> tuple[Sums, int]:
    """Write a file and wait until it is on the disk; return its sums and number of rows."""
    file = ArrowFile(filesystem, root, name, schema)
    try:
        for batch in batches:
            file.write(batch)
    except BaseException:
        file.abandon()
        raise
    return file.finish()


def verify(path: str, entry: ManifestFile, progress: Callable[[int], object] = lambda _bytes: None) -> None:
    """Read a file of the checkpoint at ``path`` once, piece by piece, and compare its size and checksums.

    ``progress`` is called with the number of bytes read since the last call.

    Raises
    ------
    CheckpointCorruptError
        If they differ, or the file can't be read; the message says where it is damaged.
    """
    folder = open_folder(path)
    try:
        if not folder.has(entry.name):
            problem = "is missing"
        else:
            problem = _difference(entry, sums_of(folder.filesystem, f"{folder.root}/{entry.name}", progress))
    except OSError as error:
        raise CheckpointCorruptError(f"{shown(path)}: {entry.name}: can't be read: {error}") from error
    if problem:
        raise CheckpointCorruptError(f"{shown(path)}: {entry.name}: {problem}")


def _difference(entry: ManifestFile, sums: Sums) -> str:
    """Locate the first differing block, or the end of a truncated or extended file.

    The last block of a truncated file is short, so its checksum is not comparable.
    """
    for number, (expected, found) in enumerate(zip(entry.blocks, sums.blocks, strict=False)):
        first, stop = number * BLOCK_BYTES, min((number + 1) * BLOCK_BYTES, entry.bytes)
        if expected != found and sums.bytes >= stop and not (sums.bytes > entry.bytes == stop):
            count = len(entry.blocks)
            return (
                f"bytes {first}..{stop - 1} (block {number + 1} of {count}) are damaged: expected CRC "
                f"{expected:08x}, got {found:08x}"
            )
    if sums.bytes < entry.bytes:
        return f"is cut at byte {sums.bytes}: expected {entry.bytes} bytes"
    if sums.bytes > entry.bytes:
        return f"has {sums.bytes - entry.bytes} bytes too many after byte {entry.bytes}"
    if sums.crc32 != entry.crc32:
        return (
            f"is damaged somewhere in bytes 0..{entry.bytes - 1} (formats below 3 do not say where): "
            f"expected CRC {entry.crc32:08x}, got {sums.crc32:08x}"
        )
    return ""


def check_size(path: str, entry: ManifestFile) -> None:
    """Check that a file of the checkpoint at ``path`` exists with its recorded size, without reading it."""
    try:
        filesystem, root = open_folder(path)
        found = filesystem.get_file_info(f"{root}/{entry.name}")
    except OSError as error:
        raise CheckpointCorruptError(f"{shown(path)}: can't read {entry.name}: {error}") from error
    if found.type != fs.FileType.File:
        raise CheckpointCorruptError(f"{shown(path)}: {entry.name}: is missing")
    if found.size != entry.bytes:
        raise CheckpointCorruptError(
            f"{shown(path)}: {entry.name} is damaged: expected {entry.bytes} bytes, got {found.size} bytes"
        )


def batches_of(
    path: str,
    entry: ManifestFile,
    schema: pa.Schema,
    columns: list[str] | None = None,
    numbers: Sequence[int] | None = None,
    mapped: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Record batches of a file of the checkpoint at ``path``, one in memory at a time, all or some of them.

    ``columns`` and ``numbers`` choose columns and batches. With ``mapped`` those of a local file stay in it:
    a batch that is kept takes no memory but the pages that are read.

    Checksums tell damage, not forgery: each batch is validated in full before anything is read from it.

    Raises
    ------
    CheckpointCorruptError
        If it can't be read, has other columns, or what is in it is not what a checkpoint may hold.
    """
    filesystem, root = open_folder(path)
    rows = number = 0
    options = pa.ipc.IpcReadOptions(
        included_fields=None if columns is None else [schema.get_field_index(one) for one in columns]
    )
    try:
        with (
            _opened(filesystem, f"{root}/{entry.name}", mapped) as stream,
            pa.ipc.open_file(stream, options=options) as reader,
        ):
            if columns is None and not reader.schema.equals(schema):
                came, expected = (
                    [f"{field.name}: {field.type}" for field in one] for one in (reader.schema, schema)
                )
                raise _DamageError(f"has columns {came}, expected {expected}")
            for number in range(reader.num_record_batches) if numbers is None else numbers:
                batch = reader.get_batch(number)
                batch.validate(full=True)  # offsets of lists among others
                if problem := _batch_problem(batch, schema):
                    raise _DamageError(f"record batch {number} (from 0) {problem}")
                rows += batch.num_rows
                yield batch
            if numbers is None and rows != entry.rows:
                raise _DamageError(f"holds {counted(rows, 'row')}; expected {entry.rows}")
    except (OSError, pa.ArrowException, MemoryError, UnicodeDecodeError) as error:
        problem = f"record batch {number} (from 0) can't be decoded: {error}"
        raise CheckpointCorruptError(f"{shown(path)}: {entry.name}: {problem}") from error
    except _DamageError as error:
        raise CheckpointCorruptError(f"{shown(path)}: {entry.name}: {error}") from None


def _opened(filesystem: fs.FileSystem, path: str, mapped: bool) -> pa.NativeFile:
    if mapped and isinstance(filesystem, fs.LocalFileSystem):
        return pa.memory_map(path)
    return filesystem.open_input_file(path)


class _DamageError(Exception):
    """A file's content is not what a checkpoint may hold; the message says what."""


def _batch_problem(batch: pa.RecordBatch, schema: pa.Schema) -> str | None:
    """Problem of a batch that Arrow takes for sound: nulls where none may be, or a key twice."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        nulls = 0 if schema.field(name).nullable else column.null_count
        if isinstance(column, pa.FixedSizeListArray | pa.ListArray):
            nulls += column.flatten().null_count
        if nulls:
            return f"has a null in column {name!r}"
    if problem := counts_problem(batch):
        return problem
    if schema.names[0] != "key" or len(batch.schema) < len(schema):
        return None
    keys = batch.column(0).to_numpy()
    return None if distinct(keys)[0].size == keys.size else "holds a key twice"
