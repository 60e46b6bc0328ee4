"""Standard output and error that survive a closed reader: the command goes on without output."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


NOBODY_READS = (errno.EPIPE, errno.EIO)
"""Errors of a write to a pipe without reader (``| head -1``) and to a closed terminal."""


class _Lasting(io.RawIOBase):
    """File that discards output once its reader has gone."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._file = io.FileIO(number, "w", closefd=False)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file.isatty()

    def write(self, data: ReadableBuffer, /) -> int | None:
        try:
            return self._file.write(data)
        except OSError as error:
            if error.errno not in NOBODY_READS:
                raise
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self.fileno())
        os.close(nothing)
        return self._file.write(data)


def keep_output() -> None:
    """Replace standard output and error by such files; unencodable characters are escaped.

    Streams that were already replaced, for example by a notebook, are left unchanged.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed before the start
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, _kept(stream))


def _kept(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    raw = _Lasting(stream.fileno())
    # Like Python: PYTHONUNBUFFERED disables the buffer.
    buffer: Any = raw if stream.write_through else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffer,
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
