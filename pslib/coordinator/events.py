"""Events of a run, as the coordinator sees them: who joined, was lost or moved, what was saved. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Protocol

EVENTS_KEPT = 500
"""Events kept, some 100 KB in a message; the start of a cluster of 200 processes is 200 of them."""
CHECKPOINTS_KEPT = 50
"""Checkpoints kept beside them."""
CHARS_MAX = 400
"""Longest text: the whole list has to fit a message."""
LINES_TOLD = 100
"""Lines for people that a status has; it must fit a message."""

Event = dict[str, Any]
"""``number`` (from 1), ``at_s`` (Unix time), ``kind``, ``role`` and ``rank`` (None: no process), ``text``."""


class Tell(Protocol):
    """Call that adds an event, whose text is also a line for people."""

    def __call__(
        self, text: str, kind: str = "note", role: str | None = None, rank: int | None = None, /
    ) -> None:
        """Add an event."""
        ...


class Events:
    """Last events of a run.

    Attributes
    ----------
    unix_s : callable
        Returns the Unix time, for events that happen; the coordinator's process sets it.
    on_event : callable
        Called with each event before it counts; a journal keeps them for `replay`.
    replaying : callable
        Returns True while a journal is replayed: its own records bring the events back.
    """

    def __init__(self) -> None:
        self.unix_s: Callable[[], float] = lambda: 0.0
        self.on_event: Callable[[Event], None] = lambda _event: None
        self.replaying: Callable[[], bool] = lambda: False
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._lines: deque[str] = deque(maxlen=LINES_TOLD)
        self._checkpoints: deque[dict[str, Any]] = deque(maxlen=CHECKPOINTS_KEPT)
        self._last = 0

    @property
    def lines(self) -> list[str]:
        """Lines for people, the oldest first."""
        return list(self._lines)

    @property
    def checkpoints(self) -> list[dict[str, Any]]:
        """Checkpoints of this run, the newest last: ``at_s``, and what `saved` was given."""
        return list(self._checkpoints)

    def tell(self, text: str, kind: str = "note", role: str | None = None, rank: int | None = None) -> None:
        """Add an event whose text is also a line for people; see `Tell`."""
        self._add(text, kind, role, rank, {"line": text})

    def note(self, text: str, kind: str, role: str | None = None, rank: int | None = None) -> None:
        """Add an event that people are not told of while all goes well."""
        self._add(text, kind, role, rank, {})

    def saved(self, text: str, about: Mapping[str, Any], told: bool = True) -> None:
        """Add a checkpoint: ``path``, ``kind``, ``bytes``, ``took_s`` and ``pause_s``."""
        self._add(text, "saved", None, None, {"checkpoint": dict(about)} | ({"line": text} if told else {}))

    def after(self, number: int) -> list[Event]:
        """Return the events after that of a number, the oldest first."""
        fresh = min(max(0, self._last - number), len(self._events))
        return list(islice(self._events, len(self._events) - fresh, None))

    @property
    def last(self) -> int:
        """Number of the last event."""
        return self._last

    def _add(self, text: str, kind: str, role: str | None, rank: int | None, more: Mapping[str, Any]) -> None:
        if self.replaying():
            return
        about = {"number": self._last + 1, "at_s": self.unix_s(), "kind": kind, "role": role, "rank": rank}
        event = about | {"text": text[:CHARS_MAX], **more}
        self.on_event(event)
        self.replay(event)

    def replay(self, event: Mapping[str, Any]) -> None:
        """Apply an event from a journal."""
        event = dict(event)
        if line := event.pop("line", ""):
            self._lines.append(line)
        if checkpoint := event.pop("checkpoint", None):
            self._checkpoints.append({"at_s": event["at_s"], **checkpoint})
        self._events.append(event)
        self._last = int(event["number"])

    def plain(self) -> dict[str, Any]:
        """Return the whole state as plain values, for `restore`."""
        return {
            "events": list(self._events),
            "lines": list(self._lines),
            "checkpoints": list(self._checkpoints),
            "last": self._last,
        }

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Restore the state from another's `plain`."""
        self._events.extend(plain["events"])
        self._lines.extend(plain["lines"])
        self._checkpoints.extend(plain["checkpoints"])
        self._last = plain["last"]
