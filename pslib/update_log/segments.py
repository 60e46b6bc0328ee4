"""Segmented log: numbered records in rolling segments, with crash recovery, appends and trimming."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgpack

from pslib.errors import LogError, LogFullError
from pslib.update_log.files import NO_SPACE, DiskFiles
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

SEGMENT_BYTES = 64 << 20
RECORDS_BYTES = 256 << 10
"""Bytes read at once when all records are read, so that small records need no system call each."""


class RollingLog:
    """Open log with one writing thread; another thread may call `sync`.

    Opening checks every record's head, cuts off a torn tail and describes the cut in `report`.

    Parameters
    ----------
    files : DiskFiles
        Its folder, closed with the log or on a failed open; only ``.log`` files are touched.
    about : mapping of str to plain values
        Identity of the log: stored in every segment, and must be the same when it is opened again.
    disk : bool
        True if a record counts as durable only once synced, False if once written.
    place : str
        Name of the folder, for messages.
    segment_bytes : int
        Size at which a new segment begins.

    Raises
    ------
    LogCorruptError
        If a record that was durable is damaged or missing.
    LogForeignError
        If the log has another identity, or a newer format.
    """

    def __init__(
        self,
        files: DiskFiles,
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
        """One line about what was cut off at opening; empty if nothing was."""
        self.kinds = survey.kinds
        """Kinds of its records, perhaps including records not needed or cut off."""
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
        """Bytes of its segments, which a restart reads."""
        return sum(segment.size for segment in self._segments)

    @property
    def disk_bytes(self) -> int:
        """Bytes of its segments, and of those that are to be removed."""
        with self._lock:
            return self.size_bytes + sum(segment.size for _, segment in self._unneeded)

    @property
    def segments(self) -> Sequence[str]:
        """Names of its files, in order."""
        return [segment.name for segment in self._segments]

    # --- reading ------------------------------------------------------------------------------------------

    def heads(self) -> Iterator[tuple[Head, Callable[[int, int], bytes]]]:
        """Heads of all needed records, with functions that read pieces of their bodies, unverified."""
        for segment, place, head, _read in self._walk(HEADS_BYTES):
            yield head, partial(self._piece, segment.name, place + HEAD_BYTES, head.length)

    def _piece(self, name: str, place: int, length: int, start: int, size: int) -> bytes:
        return self._files.read(name, place + start, max(0, min(size, length - start)))

    def records(self) -> Iterator[Record]:
        """All needed records in order, each verified by its checksum.

        Raises
        ------
        LogCorruptError
            If one is damaged; those before it are valid.
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
        """Write one record and return its number; it is durable once `durable` reaches the number.

        Parameters
        ----------
        kind : int
            1..2^32-1.
        subject : int
            Subject of the record, 0..2^64-1.
        body : sequence of bytes-like
            Contiguous pieces, one after the other.

        Raises
        ------
        LogFullError
            If there is no disk space; the log is unchanged.
        LogError
            If a write fails for another reason; the log can't continue.
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
        """Remove a segment of the last writer without records, or with an incomplete start."""
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
        """Remove the bytes of a failed append."""
        try:
            if segment.size:
                self._files.cut(segment.name, segment.size)
            else:
                self._remove_empty(segment.name)
        except OSError as error:
            raise LogError(f"{self._full(segment)}: can't be written: {error.strerror}") from error

    def sync(self) -> int:
        """Make earlier appends durable; return the number of the last durable record.

        Raises
        ------
        LogError
            If a sync fails: the content of the disk is unknown then, and the log can't continue.
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
            # not `self._open`: the writer may have appended to `current` and begun another segment meanwhile
            self._unsynced = [one for one in self._unsynced if one not in waiting or one is current]
            self._durable = max(self._durable, last)
        self._remove_unneeded()
        return last

    def trim(self, below: int) -> None:
        """Record that records below a number are not needed, and remove segments that hold only such records.

        The segments are removed once that record is durable. Errors as for `append`.
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
        """Remove files, oldest first, so that the rest has no gap."""
        with self._lock:
            gone = [segment for number, segment in self._unneeded if number <= self.durable]
            self._unneeded = [one for one in self._unneeded if one[0] > self.durable]
        for segment in gone:
            self._files.remove(segment.name)
            if self._disk:
                self._files.sync_names()

    def close(self) -> None:
        """Sync, if the log is synced, and close the files."""
        if self._disk:
            self.sync()
        self._files.close()
