"""The coordinator's journal on a disk: its records in order, and the term of who writes them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path

from pslib.clock import AwakeClock, Clock
from pslib.errors import LogFullError, LogStillFullError
from pslib.update_log.contents import entries_of, pieces_of
from pslib.update_log.files import LogFiles
from pslib.update_log.lock import NUMBER, claim
from pslib.update_log.recovery_scan import SUFFIX
from pslib.update_log.segments import RollingLog
from pslib.wire.journal import Entry, Note

__all__ = ["CoordinatorLog", "has_beginning", "has_begun"]

log = logging.getLogger("pslib")
ASKED, IMAGE = 1, 2
"""Kinds of its records: what has changed the coordinator, and all that it is."""
JOURNAL_BYTES = 1 << 20
"""So many, or four times an image where that is more, are written between two images."""


def has_beginning(folder: str) -> bool:
    """Whether a journal tells all from the first record on: no image stands in place of its beginning."""
    return (Path(folder) / f"{1:020d}{SUFFIX}").exists()


def has_begun(folder: str) -> bool:
    """Whether a coordinator has ever kept its journal there."""
    return (Path(folder) / NUMBER).exists()


class CoordinatorLog:
    """Takes records of what has changed the coordinator, and gives them to its successor.

    Parameters
    ----------
    files : LogFiles
        The folder, locked by this from now on.
    cluster_id : str
        Whose journal it is.
    clock : Clock
        The machine's; its waits are counted by an `AwakeClock`.
    disk : bool
        Whether a record is safe only when it has been synced.
    patience_s : float
        How long to wait for a predecessor's end.
    place : str
        Name of the folder, for messages.
    journal_bytes : int
        An image is due when so much has been written since the last one, and at least four times its size.
    space_s : float
        How long to try again where there is no space.

    Attributes
    ----------
    term : int
        How often a coordinator has been started with this journal before.

    Raises
    ------
    UnavailableError
        When a predecessor still runs.
    LogError
        When the journal is damaged or belongs to another cluster.
    """

    def __init__(
        self,
        files: LogFiles,
        cluster_id: str,
        clock: Clock,
        *,
        disk: bool = False,
        patience_s: float = 10.0,
        place: str = "journal",
        journal_bytes: int = JOURNAL_BYTES,
        space_s: float = inf,
    ) -> None:
        self.term = claim(files, clock, patience_s, place)
        self._log = RollingLog(files, {"coordinator": cluster_id}, disk=disk, place=place)
        self._disk = disk
        self._waiting: list[Sequence[Entry]] = []
        self._clock, self._space_s = AwakeClock(clock), space_s
        self._full_since_s: float | None = None
        self._journal_bytes = journal_bytes
        self._due_bytes = journal_bytes
        if self._log.report:
            log.warning("pslib coordinator: %s", self._log.report)

    def records(self) -> Iterator[list[Entry]]:
        """All records that are needed, in order: the newest image comes first, where there is one."""
        newest = max((head.number for head, _read in self._log.heads() if head.kind == IMAGE), default=0)
        for record in self._log.records():
            if record.number < newest:  # a predecessor has ended before it had removed them
                continue
            yield entries_of(record.body, f"record {record.number} of the journal")

    def append(self, entries: Sequence[Entry]) -> None:
        """Keep a record to be written by the next `flush`."""
        self._waiting.append(entries)

    def flush(self) -> bool:
        """Write what has been appended; whether all of it is safe, so that others may hear of it.

        Without space it is tried again the next time.

        Raises
        ------
        LogStillFullError
            When nobody has made room for `space_s`.
        """
        try:
            while self._waiting:
                self._log.append(ASKED, 0, pieces_of(self._waiting[0]))
                del self._waiting[0]
        except LogFullError as error:
            now_s = self._clock.now_s()
            if self._full_since_s is None:
                self._full_since_s = now_s
                log.warning("pslib: %s; nobody is answered before", error)
            tried_s = now_s - self._full_since_s
            if tried_s > self._space_s:
                raise LogStillFullError(f"{error}; tried for {tried_s:.0f} s") from error
            return False
        self._full_since_s = None
        if self._disk:
            self._log.sync()
        return True

    @property
    def is_long(self) -> bool:
        """Whether an image is due; then, when all is flushed, `write_image`."""
        return self._log.size_bytes >= self._due_bytes and not self._waiting

    def write_image(self, image: Note) -> None:
        """Write all that the coordinator is; what was written before goes when that is safe.

        Without space the journal stays as long as it is for a while.
        """
        pieces = pieces_of([image])
        size = sum(len(piece) for piece in pieces)
        try:
            self._log.roll()
            self._log.trim(self._log.append(IMAGE, 0, pieces))
        except LogFullError as error:
            log.warning("pslib coordinator: %s; the journal stays as long as it is", error)
            size = self._log.size_bytes
        self._due_bytes = size + max(self._journal_bytes, 4 * size)

    def close(self) -> None:
        """Let go of the folder."""
        self._log.close()
