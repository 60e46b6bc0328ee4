"""Coordinator journal on disk: records in order, and the term of the writing coordinator."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path

from pslib.clock import AwakeClock, Clock
from pslib.errors import LogFullError, LogStillFullError
from pslib.update_log.contents import entries_of, pieces_of
from pslib.update_log.files import NUMBER, DiskFiles, claim
from pslib.update_log.recovery_scan import SUFFIX
from pslib.update_log.segments import RollingLog
from pslib.wire.journal import Entry, Note

log = logging.getLogger(__name__)
ASKED, IMAGE = 1, 2
"""Record kinds: a change of the coordinator, and an image of its whole state."""
JOURNAL_BYTES = 1 << 20
"""Bytes between two images; four times the size of an image if that is more."""


def has_beginning(folder: str) -> bool:
    """Return True if the journal has all records from the first; no image replaces its beginning."""
    return (Path(folder) / f"{1:020d}{SUFFIX}").exists()


def has_begun(folder: str) -> bool:
    """Return True if a coordinator has ever written a journal there."""
    return (Path(folder) / NUMBER).exists()


class CoordinatorLog:
    """Append the coordinator's changes to a log, and replay them for its successor.

    Parameters
    ----------
    files : DiskFiles
        The folder; locked by this object.
    cluster_id : str
        Cluster of the journal.
    clock : Clock
        Clock of the machine; waits are measured by an `AwakeClock`.
    disk : bool
        True if a record counts as durable only once synced.
    patience_s : float
        Longest wait for the predecessor's end.
    place : str
        Name of the folder, for messages.
    journal_bytes : int
        An image is due after this many bytes since the last one, and at least four times its size.
    space_s : float
        Limit of retries without disk space.

    Attributes
    ----------
    term : int
        Number of earlier coordinator starts with this journal.

    Raises
    ------
    UnavailableError
        If a predecessor still runs.
    LogError
        If the journal is damaged or belongs to another cluster.
    """

    def __init__(
        self,
        files: DiskFiles,
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
        """All needed records in order; the newest image first, if there is one."""
        newest = max((head.number for head, _read in self._log.heads() if head.kind == IMAGE), default=0)
        for record in self._log.records():
            if record.number < newest:  # a predecessor ended before it removed them
                continue
            yield entries_of(record.body, f"record {record.number} of the journal")

    def append(self, entries: Sequence[Entry]) -> None:
        """Queue a record for the next `flush`."""
        self._waiting.append(entries)

    def flush(self) -> bool:
        """Write queued records; return whether all are durable, so that replies may be sent.

        Without disk space the next call retries.

        Raises
        ------
        LogStillFullError
            If the disk stays full for `space_s`.
        """
        try:
            while self._waiting:
                self._log.append(ASKED, 0, pieces_of(self._waiting[0]))
                del self._waiting[0]
        except LogFullError as error:
            now_s = self._clock.now_s()
            if self._full_since_s is None:
                self._full_since_s = now_s
                log.warning("pslib: %s; no request is answered until then", error)
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
        """Return True if an image is due; after a complete flush call `write_image`."""
        return self._log.size_bytes >= self._due_bytes and not self._waiting

    def write_image(self, image: Note) -> None:
        """Write an image of the coordinator's state; remove earlier records once it is durable.

        Without disk space the journal keeps its length for a while.
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
        """Close the folder and release its lock."""
        self._log.close()
