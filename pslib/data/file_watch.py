"""Folder watch for streaming training: selects complete new files and detects the end of the stream.

A file counts if its name ends with a suffix of `pslib.data.dataset.SUFFIXES` and neither it nor a folder on
its path begins with ``_`` or ``.``: a writer renames the file when it is complete, within the file system
(object stores show complete files only). With a marker, say ``_SUCCESS``, a file counts if a file of that
name is in its folder. A file once counted must not change, nor reappear under another name.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

from pyarrow import fs as pafs

from pslib.data.dataset import SUFFIXES, files_below
from pslib.data.value_checks import one_line
from pslib.errors import DataError
from pslib.settings import Setting, Settings
from pslib.storage import below, escaped, is_uri, open_uri, shown

FILE_NAME = "[^/]+"


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
        If ``folder`` is not a folder.
    """

    def __init__(self, folder: str, settings: StreamSettings) -> None:
        self.folder, self._settings = folder, settings
        try:
            self._filesystem, self._inner = open_uri(folder)
            kind = self._filesystem.get_file_info(self._inner).type
        except (OSError, ValueError) as error:
            raise DataError(f"{shown(folder)}: can't be opened; {one_line(error)}") from error
        if kind != pafs.FileType.Directory:
            raise DataError(f"{shown(folder)}: expected a folder to watch; make it, or give another")

    def look(self, done: Collection[str]) -> tuple[list[str], bool]:
        """List the files of the next window, relative to the folder, and whether the stream has ended.

        Parameters
        ----------
        done : collection of str
            Names of files in earlier windows.

        Raises
        ------
        DataError
            If the folder can't be read.
        """
        try:
            stop = self._filesystem.get_file_info(f"{self._inner.rstrip('/')}/{self._settings.stop}")
            stopped = stop.type == pafs.FileType.File  # before the listing: earlier files are in it
            everything = files_below(self._filesystem, self._inner)
        except OSError as error:
            raise DataError(f"{shown(self.folder)}: can't be read any more; {one_line(error)}") from error
        root = len(self._inner.rstrip("/")) + 1
        names = [path[root:] for path in everything]
        new = sorted(name for name in self._whole(names) if name not in done)
        return new[: self._settings.window_files], stopped

    def place(self, name: str) -> str:
        """Path or URI of a file returned by `look`."""
        if is_uri(self.folder):
            return below(self.folder, escaped(name))
        return f"{self.folder.rstrip('/')}/{name}"

    def _whole(self, names: list[str]) -> list[str]:
        marker = self._settings.marker
        marked = {_parent(name) for name in names if name.rpartition("/")[2] == marker}
        return [
            name
            for name in names
            if name.lower().endswith(SUFFIXES)
            and not any(part.startswith(("_", ".")) for part in name.split("/"))
            and (marker is None or _parent(name) in marked)
        ]


def _parent(name: str) -> str:
    return name.rpartition("/")[0]
