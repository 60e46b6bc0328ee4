"""One log: numbered records in segments that roll; opened after a crash, written behind, trimmed in front."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgpack

from pslib.errors import LogError, LogFullError
from pslib.update_log.files import NO_SPACE, LogFiles
from pslib.update_log.records import (
    HEAD_BYTES,
    HEADS_BYTES,
    Ahead,
    Buffer,
    Damage,
    Head,
    Read,
    Record,
    body_at,
    corrupt,
    record_pieces,
    segment_start,
)
from pslib.update_log.recovery_scan import SUFFIX, TRIM, Segment, Survey, heads_of

__all__ = ["RollingLog"]

SEGMENT_BYTES = 64 << 20
RECORDS_BYTES = 256 << 10
"""Read at once, where all records are read: a small one costs no call of the system."""


class RollingLog:
    """A log that is open for one writing thread; another one may call `sync`.

    Opening it looks at every record's head, cuts a torn tail off and says so in `report`.

    Parameters
    ----------
    files : LogFiles
        Its folder, closed with it, and if it can't be opened; files that do not end with ``.log`` are not
        touched.
    about : mapping of str to plain values
        Whose log it is: stands in every segment, and must be the same when it is opened again.
    disk : bool
        Whether a record counts as durable when it has been synced, or already when it has been written.
    place : str
        Name of the folder, for messages.
    segment_bytes : int
        Size from which on a new segment is begun.

    Raises
    ------
    LogCorruptError
        When a record that had been durable is damaged, or missing.
    LogForeignError
        When it is somebody else's log, or of a newer format.
    """

    def __init__(
        self,
        files: LogFiles,
        about: Mapping[str, Any],
        *,
        disk: bool = False,
        place: str = "log",
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._files, self._place = files, place
        self._about: bytes = msgpack.packb(about)
        self._disk, self._segment_bytes = disk, segment_bytes
        self._lock = threading.Lock()
        """For the lists below: one thread writes, another syncs."""
        try:
            survey = Survey(files, about, place)
        except BaseException:
            files.close()
            raise
        self._segments = survey.segments
        self._unsynced: list[Segment] = []
        self._unneeded: list[tuple[int, Segment]] = []
        self._open: Segment | None = None
        self.report = survey.report
        """What was cut when it was opened, in one line; or nothing."""
        self.kinds = survey.kinds
        """Kinds of its records, and perhaps of some that are not needed or were cut."""
        self.below = survey.below
        """No record below this number is needed."""
        self.last = self._durable = survey.last
        """Number of the newest record; 0: there has been none."""
        for segment in self._segments:  # what the last writer did not sync is read now, and must not go later
            if disk:
                files.sync(segment.name)
            files.close_file(segment.name)

    @property
    def durable(self) -> int:
        """All records up to this number are durable."""
        return self._durable if self._disk else self.last

    @property
    def size_bytes(self) -> int:
        """What its segments take."""
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> Sequence[str]:
        """Names of its files, in order."""
        return [segment.name for segment in self._segments]

    # --- reading ------------------------------------------------------------------------------------------

    def heads(self) -> Iterator[tuple[Head, Callable[[int, int], bytes]]]:
        """Heads of all records that are needed, and what reads pieces of their bodies, unchecked."""
        for segment, place, head, _read in self._walk(HEADS_BYTES):
            yield head, partial(self._piece, segment.name, place + HEAD_BYTES, head.length)

    def _piece(self, name: str, place: int, length: int, start: int, size: int) -> bytes:
        return self._files.read(name, place + start, max(0, min(size, length - start)))

    def records(self) -> Iterator[Record]:
        """All records that are needed, in order, each compared with its checksum.

        Raises
        ------
        LogCorruptError
            When one is damaged; those before it were sound.
        """
        for segment, place, head, read in self._walk(RECORDS_BYTES):
            try:
                body = body_at(read, place, head)
            except Damage as damage:
                raise corrupt(self._full(segment), place, str(damage)) from None
            yield Record(head.number, head.kind, head.subject, body)

    def _walk(self, piece_bytes: int) -> Iterator[tuple[Segment, int, Head, Read]]:
        for segment in list(self._segments):
            read = Ahead(partial(self._files.read, segment.name), piece_bytes)
            for place, head in heads_of(read, segment):
                if head.number >= self.below and head.kind != TRIM:
                    yield segment, place, head, read
            if segment is not self._open:
                self._files.close_file(segment.name)

    def _full(self, segment: Segment) -> str:
        return f"{self._place}/{segment.name}"

    # --- writing ------------------------------------------------------------------------------------------

    def append(self, kind: int, subject: int, body: Sequence[Buffer]) -> int:
        """Write one record and return its number; it is durable when `durable` has reached that.

        Parameters
        ----------
        kind : int
            1..2^32-1.
        subject : int
            What it is about, 0..2^64-1.
        body : sequence of bytes-like
            Contiguous pieces, one after the other.

        Raises
        ------
        LogFullError
            When there is no space; the log is as it was.
        LogError
            When the system refuses to write for another reason: the log can't go on.
        """
        segment = self._open
        if segment is None or segment.size >= self._segment_bytes:
            segment = self.roll()
        synced = self._durable + 1 if self._disk else self.last + 1
        pieces, size = record_pieces(self.last + 1, synced, kind, subject, body)
        self._write(segment, pieces, size)
        self.kinds.add(kind)
        self.last += 1
        return self.last

    def roll(self) -> Segment:
        """Begin a new segment; errors as for `append`."""
        synced = self._durable + 1 if self._disk else self.last + 1
        start = segment_start(self.last + 1, synced, self._about)
        segment = Segment(f"{self.last + 1:020d}{SUFFIX}", self.last + 1, len(start), 0)
        if self._open is not None and self._open.name == segment.name:
            return self._open  # it has no record yet
        self._remove_empty(segment.name)
        self._write(segment, [start], len(start))
        with self._lock:
            before, self._open = self._open, segment
            self._segments.append(segment)
            self._unsynced.append(segment)
            if not self._disk:
                self._unsynced = [segment]
                if before is not None:
                    self._files.close_file(before.name)
        return segment

    def _remove_empty(self, name: str) -> None:
        """A segment of the last writer that has no record, or not even a beginning."""
        if name in self._files.list():
            self._files.remove(name)
        self._segments = [segment for segment in self._segments if segment.name != name]

    def _write(self, segment: Segment, pieces: Sequence[Buffer], size: int) -> None:
        try:
            self._files.append(segment.name, pieces)
        except OSError as error:
            self._undo(segment)
            if error.errno in NO_SPACE:
                raise LogFullError(
                    f"{self._place}: no space for {size:,} bytes; nothing was changed: make room on its disk"
                ) from error
            raise LogError(f"{self._full(segment)}: can't be written: {error.strerror}") from error
        segment.size += size

    def _undo(self, segment: Segment) -> None:
        """Take back what an append that failed has written."""
        try:
            if segment.size:
                self._files.cut(segment.name, segment.size)
            else:
                self._remove_empty(segment.name)
        except OSError as error:
            raise LogError(f"{self._full(segment)}: can't be written: {error.strerror}") from error

    def sync(self) -> int:
        """Make durable what has been appended before this call; return the number of its last record.

        Raises
        ------
        LogError
            When the system can't: nobody knows then what is on the disk, and the log can't go on.
        """
        with self._lock:
            last, waiting, current = self.last, list(self._unsynced), self._open
        if last == self._durable:
            return last
        try:
            for segment in waiting:
                self._files.sync(segment.name)
                if segment is not current:
                    self._files.close_file(segment.name)
        except OSError as error:
            raise LogError(f"{self._place}: can't be synced: {error.strerror}") from error
        with self._lock:
            # not `self._open`: the writer may have appended to `current` and begun another one meanwhile
            self._unsynced = [one for one in self._unsynced if one not in waiting or one is current]
            self._durable = max(self._durable, last)
        self._remove_unneeded()
        return last

    def trim(self, below: int) -> None:
        """Record that nothing below a record is needed, and remove the segments that hold nothing else.

        They are removed when that record is durable. Errors as for `append`.
        """
        number = self.append(TRIM, below, [])
        self.below = max(self.below, below)
        with self._lock:
            nexts = [segment.first for segment in self._segments[1:]]
            gone = sum(first <= below for first in nexts)
            self._unneeded += [(number, segment) for segment in self._segments[:gone]]
            del self._segments[:gone]
        if not self._disk:
            self._remove_unneeded()

    def _remove_unneeded(self) -> None:
        """Remove files, oldest first, so that what is left has no gap."""
        with self._lock:
            gone = [segment for number, segment in self._unneeded if number <= self.durable]
            self._unneeded = [one for one in self._unneeded if one[0] > self.durable]
        for segment in gone:
            self._files.remove(segment.name)
            if self._disk:
                self._files.sync_names()

    def close(self) -> None:
        """Sync, where that is the promise, and let go of the files."""
        if self._disk:
            self.sync()
        self._files.close()
