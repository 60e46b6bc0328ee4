"""Parquet files, opened where they lie: on a disk at once, in an object store before they are wanted.

An object store answers after 20 to 100 ms, so what counts there is how many answers are waited for, one after
the other. A small file comes whole with one; the next files of a window are opened by threads meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq

from pslib.storage import is_uri, open_uri

__all__ = ["AHEAD", "READ_BYTES", "OpenedAhead", "is_far", "open_file", "parquet_from"]

READ_BYTES = 1 << 20
"""Read ahead for each column: bounds memory whatever the size of a row group."""

WHOLE_BYTES = 4 << 20
"""A file of an object store up to this size is fetched whole: its footer and columns are one answer."""

AHEAD = 16
"""Files of an object store that are opened before they are wanted: 64 MiB at most."""


def is_far(file: str) -> bool:
    """Whether each look at a file waits for an answer over the network."""
    return is_uri(file) and not file.lower().startswith("file:")


def open_file(file: str, *, whole: bool = False) -> pa.NativeFile:
    """Open a path or URI to be read.

    Read, not mapped into memory: somebody who writes a mapped file anew ends this process with SIGBUS, where
    reading gives an error that can be told. It costs no time (880,000 examples/s of CPU on the demo's data
    either way, 2026-11-21).

    Parameters
    ----------
    file : str
    whole : bool
        All of it will be read: a small file of an object store is fetched at once.
    """
    filesystem, path = open_uri(file)
    source = filesystem.open_input_file(path)
    if not whole or not is_far(file) or source.size() > WHOLE_BYTES:
        return source
    with source:
        return pa.BufferReader(source.read_buffer())


def parquet_from(source: pa.NativeFile) -> pq.ParquetFile:
    """A Parquet file in an open source, which is closed where it is none."""
    try:
        return pq.ParquetFile(source, buffer_size=READ_BYTES)
    except BaseException:
        source.close()
        raise


class OpenedAhead:
    """Opens files in the order that was told, those of an object store by threads before they are wanted.

    Parameters
    ----------
    open_one : callable
        Opens one file; called by several threads at once.
    """

    def __init__(self, open_one: Callable[[str], pq.ParquetFile]) -> None:
        self._open_one = open_one
        self._later: deque[str] = deque()
        self._waiting: deque[tuple[str, Future[pq.ParquetFile]]] = deque()
        self._threads: ThreadPoolExecutor | None = None

    def expect(self, files: Sequence[str]) -> None:
        """These files will be asked for, in this order; what was told before is forgotten."""
        self._forget()
        far = [file for file in files if is_far(file)]
        self._later = deque(far if len(far) > 1 else ())

    def open(self, file: str) -> pq.ParquetFile:
        """The file, opened; raises what opening it raised."""
        self._begin()
        if not self._waiting or self._waiting[0][0] != file:
            return self._open_one(file)
        _, opened = self._waiting.popleft()
        self._begin()
        return opened.result()

    def close(self) -> None:
        """Close what is open and was not asked for, and end the threads."""
        self._forget()
        if self._threads is not None:
            self._threads.shutdown()
        self._threads = None

    def _begin(self) -> None:
        while self._later and len(self._waiting) < AHEAD:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(AHEAD, thread_name_prefix="opens files ahead")
            file = self._later.popleft()
            self._waiting.append((file, self._threads.submit(self._open_one, file)))

    def _forget(self) -> None:
        self._later.clear()
        for _, opened in self._waiting:
            if not opened.cancel():
                with suppress(OSError, pa.ArrowException):
                    opened.result().close(force=True)
        self._waiting.clear()
