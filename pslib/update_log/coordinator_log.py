"""The coordinator's journal on a disk: its records in order, and the term of who writes them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from pslib.clock import Clock
from pslib.errors import LogFullError
from pslib.protocol.journal import Entry
from pslib.update_log.claim import claim
from pslib.update_log.contents import entries_of, pieces_of
from pslib.update_log.files import LogFiles
from pslib.update_log.rolling import RollingLog

__all__ = ["CoordinatorLog"]

log = logging.getLogger("pslib")
ASKED = 1
"""Kind of all its records."""


class CoordinatorLog:
    """Takes records of what has changed the coordinator, and gives them to its successor.

    Parameters
    ----------
    files : LogFiles
        The folder, locked by this from now on.
    cluster_id : str
        Whose journal it is.
    clock : Clock
    disk : bool
        Whether a record is safe only when it has been synced.
    patience_s : float
        How long to wait for a predecessor's end.
    place : str
        Name of the folder, for messages.

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
    ) -> None:
        self.term = claim(files, clock, patience_s, place)
        self._log = RollingLog(files, {"coordinator": cluster_id}, disk=disk, place=place)
        self._disk = disk
        self._waiting: list[Sequence[Entry]] = []
        self._is_full = False
        if self._log.report:
            log.warning("pslib coordinator: %s", self._log.report)

    def records(self) -> Iterator[list[Entry]]:
        """All records, in order."""
        for record in self._log.records():
            yield entries_of(record.body, f"record {record.number} of the journal")

    def append(self, entries: Sequence[Entry]) -> None:
        """Keep a record to be written by the next `flush`."""
        self._waiting.append(entries)

    def flush(self) -> bool:
        """Write what has been appended; whether all of it is safe, so that others may hear of it.

        Without space it is tried again the next time.
        """
        try:
            while self._waiting:
                self._log.append(ASKED, 0, pieces_of(self._waiting[0]))
                del self._waiting[0]
        except LogFullError as error:
            if not self._is_full:
                log.warning("pslib coordinator: %s; nobody is answered before", error)
            self._is_full = True
            return False
        self._is_full = False
        if self._disk:
            self._log.sync()
        return True

    def close(self) -> None:
        """Let go of the folder."""
        self._log.close()
