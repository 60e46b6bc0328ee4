"""Results to files: one Parquet file a lease, in the order of the data."""

from __future__ import annotations

import os
import re
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pslib.errors import ConfigurationError
from pslib.places import below, is_uri, open_uri, place_of, shown

__all__ = ["PartFiles", "PredictionFiles"]

_PART = re.compile(r"part-(\d{6,})\.parquet", re.ASCII)


class PartFiles:
    """A folder of ``part-NNNNNN.parquet``, one a lease.

    Sorted by name, the rows of all files are the examples of the data in their order. Whoever takes over a
    lease writes the same file again.

    Parameters
    ----------
    what : str
        What it holds, for messages.
    folder : path or URI
        All trainers must reach it. Part files of an earlier call there are replaced, all else stays.

    Raises
    ------
    ConfigurationError
        When the folder can't be made.
    """

    def __init__(self, what: str, folder: str | os.PathLike[str]) -> None:
        self._what, self._place = what, place_of(folder)
        try:
            self._filesystem, self._inner = open_uri(self._place)
            self._filesystem.create_dir(self._inner, recursive=True)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"{what}: {shown(self._place)} can't be made: {_first_line(error)}; give another folder"
            ) from error

    def begin(self, leases: int) -> None:
        """Remove what an earlier call with more data has left: read by name, it would be of this one.

        Every trainer does it, whenever it comes: nobody writes these names now.

        Raises
        ------
        ConfigurationError
            When an older file can't be removed.
        """
        from pyarrow import fs

        try:
            for found in self._filesystem.get_file_info(fs.FileSelector(self._inner, allow_not_found=True)):
                part = _PART.fullmatch(found.base_name)
                if part and int(part[1]) >= leases:
                    with suppress(FileNotFoundError):  # another trainer was here first
                        self._filesystem.delete_file(found.path)
        except OSError as error:
            raise ConfigurationError(
                f"{self._what}: {shown(self._place)}: part files of an earlier call can't be removed: "
                f"{_first_line(error)}; give another folder"
            ) from error

    def write_table(self, lease: int, table: pa.Table) -> None:
        """Write the rows of one lease; a reader sees the whole file or none.

        Raises
        ------
        ConfigurationError
            When the place can't be written.
        """
        name = f"{self._inner}/part-{lease:06d}.parquet"
        half = name if is_uri(self._place) else f"{name}.half"  # object stores show nothing before the end
        try:
            pq.write_table(table, half, filesystem=self._filesystem)
            if half != name:
                self._filesystem.move(half, name)
        except OSError as error:
            place = shown(below(self._place, f"part-{lease:06d}.parquet"))
            raise ConfigurationError(
                f"{self._what}: {place} can't be written: {_first_line(error)}"
            ) from error


class PredictionFiles(PartFiles):
    """Part files of an evaluation: columns ``label``, where the data has one, and ``prediction``, float32.

    Parameters
    ----------
    folder : path or URI
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__("predictions", folder)

    def write(self, lease: int, labels: NDArray[np.float32] | None, predictions: NDArray[np.float32]) -> None:
        """Write the examples of one lease, ``(n,)`` each."""
        known = {} if labels is None else {"label": labels}
        self.write_table(lease, pa.table(known | {"prediction": predictions}))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
