"""Folder watch for streaming training: selects complete new files and detects the end of the stream.

A file of Parquet counts by the rule of `pslib.data.data_files`, text does not (a stream of it would be
converted file by file, while trainers wait): a writer gives it a hidden name until it is complete,
and renames it within the file system (object stores show complete files only). With a marker, say
``_SUCCESS``, a file counts if a file of that name is in its folder. A file once counted must not change, nor
reappear under another name. A file that does not count is logged once, when
a second look finds it: it is not being written then.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

from pyarrow import fs as pafs

from pslib.data.data_files import PARQUET_TOLD, DataFiles, files_in
from pslib.errors import DataError
from pslib.settings import Setting, Settings
from pslib.storage import below, escaped, is_uri, open_uri, shown
from pslib.text import one_line

FILE_NAME = "[^/]+"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamSettings(Settings):
    """Settings of a folder watch."""

    AT = "stream: "

    window_files: Annotated[
        int,
        Setting(
            "So many files, the first ones by name, are predicted and then trained on together; fewer when "
            "there are no more.",
            ge=1,
            le=100_000,
            unit="files",
        ),
    ] = 1
    stop: Annotated[
        str,
        Setting(
            "Name of a file in the folder that says that no more will come: the stream ends when all that "
            "was there has been trained on.",
            pattern=FILE_NAME,
            texts="the name of a file",
        ),
    ] = "_STOP"
    marker: Annotated[
        str | None,
        Setting(
            "Name of a file that says that those beside it are whole; none: they are, by their names.",
            pattern=FILE_NAME,
            texts="the name of a file",
        ),
    ] = None
    idle_s: Annotated[
        float,
        Setting(
            "The stream ends after so many seconds without a new file; infinite: never.",
            gt=0,
            unit="seconds",
            finite=False,
        ),
    ] = math.inf
    poll_s: Annotated[float, Setting("From one look to the next.", ge=0.01, le=3600, unit="seconds")] = 1.0


class FileWatch:
    """Folder watch: lists new complete files.

    Parameters
    ----------
    folder : path or URI
    settings : StreamSettings

    Raises
    ------
    DataError
        If ``folder`` is not a folder, or has files that can't be told apart or are dead (`files_in`).
    """

    def __init__(self, folder: str, settings: StreamSettings) -> None:
        self.folder, self._settings = folder, settings
        self._left_out: frozenset[str] = frozenset()
        self._told: set[str] = set()
        try:
            self._filesystem, self._inner = open_uri(folder)
            kind = self._filesystem.get_file_info(self._inner).type
        except (OSError, ValueError) as error:
            raise DataError(f"{shown(folder)}: can't be opened; {one_line(error)}") from error
        if kind != pafs.FileType.Directory:
            raise DataError(f"{shown(folder)}: expected a folder to watch; make it, or give another")
        self._list()

    def look(self, done: Collection[str]) -> tuple[list[str], bool]:
        """List the files of the next window, relative to the folder, and whether the stream has ended.

        Parameters
        ----------
        done : collection of str
            Names of files in earlier windows.

        Raises
        ------
        DataError
            If the folder can't be read, or has files that can't be told apart or are dead.
        """
        try:
            stop = self._filesystem.get_file_info(f"{self._inner.rstrip('/')}/{self._settings.stop}")
        except OSError as error:
            raise self._unreadable(error) from error
        stopped = stop.type == pafs.FileType.File  # before the listing: earlier files are in it
        found = self._list()
        self._tell(found.left_out, stopped)
        new = [name for name in self._whole(found) if name not in done]
        return new[: self._settings.window_files], stopped

    def place(self, name: str) -> str:
        """Path or URI of a file returned by `look`."""
        if is_uri(self.folder):
            return below(self.folder, escaped(name))
        return f"{self.folder.rstrip('/')}/{name}"

    def _list(self) -> DataFiles:
        try:
            found = files_in(self._filesystem, self._inner, self.folder, parquet_only=True)
        except OSError as error:
            raise self._unreadable(error) from error
        if found.problems:
            raise DataError(*found.problems)
        return found

    def _unreadable(self, error: OSError) -> DataError:
        return DataError(f"{shown(self.folder)}: can't be read any more; {one_line(error)}")

    def _tell(self, left_out: Collection[str], stopped: bool) -> None:
        """Log the files that do not count, once each; those that are new may be renamed yet."""
        settled = self._left_out if not stopped else left_out
        new = [name for name in left_out if name in settled and name not in self._told]
        self._left_out = frozenset(left_out)
        self._told.update(new)
        own = (self._settings.stop, self._settings.marker)
        note = DataFiles((), tuple(name for name in new if name not in own), told=PARQUET_TOLD).note()
        if note is not None:
            log.warning("pslib: %s: %s", shown(self.folder), note)

    def _whole(self, found: DataFiles) -> list[str]:
        marker = self._settings.marker
        if marker is None:
            return list(found.files)
        marked = {_parent(name) for name in found.left_out if name.rpartition("/")[2] == marker}
        return [name for name in found.files if _parent(name) in marked]


def _parent(name: str) -> str:
    return name.rpartition("/")[0]
