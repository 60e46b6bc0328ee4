"""Recovery scan of a log at its opening: checks every head and cuts off a torn tail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgpack

from pslib.errors import LogCorruptError, LogForeignError
from pslib.text import counted
from pslib.update_log.files import DiskFiles
from pslib.update_log.records import (
    HEADS_BYTES,
    Ahead,
    Damage,
    Head,
    Read,
    body_at,
    corrupt,
    head_at,
    latest_claim,
    start_of_segment,
)

SUFFIX = ".log"
TRIM = 0
"""Kind of the only record that a log writes itself: records below the number in ``subject`` are not needed.
"""


@dataclass(slots=True)
class Segment:
    """Segment file of a log: name, number of its first record, offset of that record, and size."""

    name: str
    first: int
    start: int
    size: int


class Survey:
    """Segments of a folder in order, after a check of all heads and of the bodies of suspect records.

    Parameters
    ----------
    files, about, place
        As for `RollingLog`.

    Raises
    ------
    LogCorruptError, LogForeignError
        As `RollingLog` says.
    """

    def __init__(self, files: DiskFiles, about: Mapping[str, Any], place: str) -> None:
        self._files, self._about, self._place = files, about, place
        self._at = 0
        self._doubtful: list[tuple[Segment, int, Head]] = []
        self.segments: list[Segment] = []
        self.last = 0
        self.below = 1
        self.report = ""
        self.kinds: set[int] = set()
        self._names = [name for name in files.list() if name.endswith(SUFFIX)]
        damage = self._walk() or None
        damage = self._torn_body() or damage
        if damage:
            self._cut(*damage)
        if self.segments and self.segments[0].first > self.below:
            self._without_beginning()

    def _walk(self) -> tuple[str, int, str] | None:
        """Scan all segments; return file, offset and reason of the first damage."""
        for name in self._names:
            try:
                self._enter(name)
            except Damage as damage:
                return name, self._at, str(damage)
        return None

    def _enter(self, name: str) -> None:
        self._at, full = 0, f"{self._place}/{name}"
        read, size = Ahead(partial(self._files.read, name), HEADS_BYTES), self._files.size(name)
        first, synced, about, start = start_of_segment(read, full)
        _check_owner(full, self._about, msgpack.unpackb(about))
        if not self.segments:
            self.last = first - 1
        if first < self.last + 1:
            raise corrupt(full, 0, f"expected record {self.last + 1} in it, got {first}")
        if first > self.last + 1:
            raise Damage(f"records {self.last + 1}..{first - 1} before it are missing")
        segment = Segment(name, first, start, size)
        self.segments.append(segment)
        self._forget_doubts(synced)
        self._at = start
        for place, head in heads_of(read, segment):
            if head.number != self.last + 1:
                raise corrupt(full, place, f"expected record {self.last + 1}, got {head.number}")
            self._forget_doubts(head.synced)
            self._doubtful.append((segment, place, head))
            self.last = head.number
            self.kinds.add(head.kind)
            if head.kind == TRIM:
                self.below = max(self.below, head.subject)
            self._at = place + head.size

    def _forget_doubts(self, synced: int) -> None:
        """Drop suspects below ``synced``: the writer knew that they were durable."""
        if self._doubtful and self._doubtful[0][2].number < synced:
            self._doubtful = [one for one in self._doubtful if one[2].number >= synced]

    def _torn_body(self) -> tuple[str, int, str] | None:
        for segment, place, head in self._doubtful:
            try:
                body_at(partial(self._files.read, segment.name), place, head)
            except Damage as damage:
                self.last = head.number - 1
                return segment.name, place, str(damage)
        return None

    def _cut(self, name: str, place: int, why: str) -> None:
        """Cut off from a damaged record on, unless a later record shows that it was durable."""
        later = self._names[self._names.index(name) + 1 :]
        size = self._files.size(name)
        claims = [latest_claim(self._files.read(name, place, size - place))]
        claims += [self._claim(one) for one in later]
        if max(claims) > self.last + 1:
            raise corrupt(f"{self._place}/{name}", place, why)
        for one in reversed(later):
            self._files.remove(one)
            self._files.sync_names()
        self.segments = [one for one in self.segments if one.name not in later]
        self._shorten(name, place)
        self.report = (
            f"{self._place}/{name}: cut at byte {place} ({size - place} bytes): {why}; record "
            f"{self.last + 1} was not durable"
        )

    def _without_beginning(self) -> None:
        """Drop all segments if the first are missing and were never durable; raise if they were durable."""
        first = self.segments[0].first
        if max(self._claim(one) for one in self._files.list() if one.endswith(SUFFIX)) > self.below:
            raise LogCorruptError(
                f"{self._place}: records {self.below}..{first - 1} are missing; restore the files, or go "
                "back to a checkpoint in another folder"
            )
        for segment in reversed(self.segments):
            self._files.remove(segment.name)
            self._files.sync_names()
        self.report = (
            f"{self._place}: cut {counted(self.last - first + 1, 'record')}: none of them was durable"
        )
        self.segments, self.last = [], 0

    def _claim(self, name: str) -> int:
        read = Ahead(partial(self._files.read, name), HEADS_BYTES)
        try:
            synced = start_of_segment(read, name)[1]
        except Damage:
            synced = 0
        return max(synced, latest_claim(self._files.read(name, 0, self._files.size(name))))

    def _shorten(self, name: str, place: int) -> None:
        segment = self.segments[-1] if self.segments and self.segments[-1].name == name else None
        if segment is None:
            self._files.remove(name)
        else:
            self._files.cut(name, place)
            segment.size = place


def heads_of(read: Read, segment: Segment) -> Iterator[tuple[int, Head]]:
    """Offsets and heads of the records of a segment; raises Damage at an invalid record."""
    place = segment.start
    while place < segment.size:
        head = head_at(read, place, segment.size)
        yield place, head
        place += head.size


def _check_owner(name: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    other = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
    if other:
        raise LogForeignError(
            f"{name}: expected a log of {other[0]} {expected.get(other[0])}, got {found.get(other[0])}; "
            "give another folder, or start what wrote it"
        )
