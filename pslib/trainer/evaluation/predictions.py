"""Prediction files: one Parquet file a lease, in the order of the data."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pslib.data.data_files import data_files
from pslib.data.parquet_files import about_each, parquet_from
from pslib.errors import ConfigurationError
from pslib.storage import below, folders_of, open_uri, place_of, real_place, shown

if TYPE_CHECKING:
    from pyarrow import fs


_PART = re.compile(r"part-(\d{6,})\.parquet", re.ASCII)

MARK = b"pslib.part"
"""Metadata key that marks a part file as pslib's, with its rows and columns.

Libraries keep metadata when they add a column, and a part file changed by others belongs to them.
"""


class PartFiles:
    """Folder of ``part-NNNNNN.parquet`` files, one a lease.

    Sorted by name, the rows of all files are the examples of the data in their order. A trainer that takes
    over a lease writes the same file again.

    Parameters
    ----------
    what : str
        Description of the contents, for messages.
    folder : path or URI
        Folder that all trainers reach. Part files of an earlier call are replaced, other files stay.
    read : sequence of path or URI
        All data that the call reads: files, folders, patterns.

    Raises
    ------
    ConfigurationError
        If the folder can't be made, holds data that is read, or a part file that no such call wrote.
    """

    def __init__(self, what: str, folder: str | os.PathLike[str], read: Sequence[str]) -> None:
        self._what, self._place = what, place_of(folder)
        try:
            self._filesystem, self._inner = open_uri(self._place)
            self._filesystem.create_dir(self._inner, recursive=True)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"{what}: {shown(self._place)} can't be made: {_first_line(error)}; give another folder"
            ) from error
        if real_place(self._place) in folders_of(data_files(read).files):
            raise ConfigurationError(
                f"{what}: {shown(self._place)} holds data that is read: give another folder"
            )
        self._refuse_foreign([part for _, part in self._parts()])

    def begin(self, leases: int) -> None:
        """Remove part files of an earlier call with more leases: readers would take them for this call's.

        Every trainer does this, at any time: no trainer writes these names in this call.

        Raises
        ------
        ConfigurationError
            If an older file can't be removed, or was written by another program meanwhile.
        """
        older = [part for number, part in self._parts() if number >= leases]
        self._refuse_foreign(older)
        try:
            for part in older:
                with suppress(FileNotFoundError):  # another trainer has removed it
                    self._filesystem.delete_file(part.path)
        except OSError as error:
            raise ConfigurationError(
                f"{self._what}: {shown(self._place)}: part files of an earlier call can't be removed: "
                f"{_first_line(error)}; give another folder"
            ) from error

    def write_table(self, lease: int, table: pa.Table) -> None:
        """Write the rows of one lease atomically.

        Raises
        ------
        ConfigurationError
            If the folder can't be written.
        """
        name = f"{self._inner}/part-{lease:06d}.parquet"
        about = {**(table.schema.metadata or {}), MARK: _mark(table.num_rows, table.column_names)}
        local = self._filesystem.type_name == "local"
        half = f"{name}.half" if local else name  # object stores are atomic
        try:
            pq.write_table(table.replace_schema_metadata(about), half, filesystem=self._filesystem)
            if half != name:
                self._filesystem.move(half, name)
        except OSError as error:
            place = shown(below(self._place, f"part-{lease:06d}.parquet"))
            raise ConfigurationError(
                f"{self._what}: {place} can't be written: {_first_line(error)}"
            ) from error

    def _parts(self) -> list[tuple[int, fs.FileInfo]]:
        """List all files with a part file's name, with their numbers."""
        from pyarrow import fs

        try:
            found = self._filesystem.get_file_info(fs.FileSelector(self._inner, allow_not_found=True))
        except OSError as error:
            raise ConfigurationError(
                f"{self._what}: {shown(self._place)} can't be read: {_first_line(error)}; give another folder"
            ) from error
        named = ((_PART.fullmatch(one.base_name), one) for one in found)
        return [(int(part[1]), one) for part, one in named if part]

    def _refuse_foreign(self, parts: Sequence[fs.FileInfo]) -> None:
        """Refuse part files not known to be pslib's: overwriting them would lose data."""
        paths = [one.path for one in parts if one.is_file]  # opening a pipe would block
        foreign = [one.base_name for one in parts if not one.is_file]
        foreign += [
            os.path.basename(path)
            for path, own in zip(paths, about_each(paths, self._is_own), strict=True)
            if not own
        ]
        if foreign:
            raise ConfigurationError(
                f"{self._what}: {shown(self._place)} holds {min(foreign)}, which no earlier call of this "
                "version wrote: move it away, or give another folder"
            )

    def _is_own(self, path: str) -> bool:
        try:
            with self._filesystem.open_input_file(path) as source, parquet_from(source) as opened:
                known = opened.metadata.metadata or {}
                return known.get(MARK) == _mark(opened.metadata.num_rows, opened.schema_arrow.names)
        except FileNotFoundError:  # another trainer has removed it
            return True
        except (OSError, pa.ArrowException, UnicodeDecodeError):
            return False


class PredictionFiles(PartFiles):
    """Part files of an evaluation: float32 columns ``label``, if the data has it, and ``prediction``.

    Parameters
    ----------
    folder : path or URI
    read : sequence of path or URI
        As for `PartFiles`.
    """

    def __init__(self, folder: str | os.PathLike[str], read: Sequence[str]) -> None:
        super().__init__("predictions", folder, read)

    def write(self, lease: int, labels: NDArray[np.float32] | None, predictions: NDArray[np.float32]) -> None:
        """Write the examples of one lease, ``(n,)`` each."""
        known = {} if labels is None else {"label": labels}
        self.write_table(lease, pa.table(known | {"prediction": predictions}))


def _mark(rows: int, columns: Sequence[str]) -> bytes:
    return f"{rows} rows of {', '.join(columns)}".encode()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
