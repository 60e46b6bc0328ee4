"""Coordinator journal: records of the requests that change a session. It is pure.

A coordinator session is a function of its requests and of the times of losses. So its journal holds the
requests that have changed it, each with its time, and notes of events without a request.
`pslib.coordinator.session.CoordinatorSession.replay` passes them to the handlers that processed them first.
Heartbeats are not written, except for lease positions at intervals: members report their counters again, and
a lease resumed at an earlier batch only repeats work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pslib.coordinator.jobs import JobRegistry
from pslib.coordinator.membership import Member, Membership
from pslib.wire.fields import Message
from pslib.wire.journal import Entry, Note
from pslib.wire.messages import (
    EndLease,
    Failure,
    Heartbeat,
    Lease,
    Leave,
    Missing,
    NextLease,
    OpenJob,
    Register,
    Stop,
)

POSITIONS_S = 5.0
"""Interval between records of a trainer's lease positions: the work that a successor may have to repeat."""


class CoordinatorJournal:
    """Journal writer for the changes of a session.

    Parameters
    ----------
    members : Membership
    registry : JobRegistry
        Registry of the session whose requests are journalled.

    Attributes
    ----------
    append : callable
        Takes the entries of one record, after they have changed the session and before any reply.
    replaying : bool
        True while a request or note of a predecessor's journal is applied: nothing is recorded.
    """

    def __init__(self, members: Membership, registry: JobRegistry) -> None:
        self._members, self._registry = members, registry
        self.append: Callable[[Sequence[Entry]], None] = lambda _entries: None
        self.replaying = False
        self._written_s: dict[int, float] = {}
        self._events: list[Note] = []
        self._changes = self._jobs = 0
        self._version = 0

    def before(self, message: Message) -> None:
        """Capture the state that a request may change."""
        self._changes = self._members.changes
        self._jobs = len(self._registry.jobs)
        if isinstance(message, Heartbeat):
            member = self._members.find(message.role, message.rank, message.incarnation)
            self._version = member.map_version if member else 0

    def after(self, now_s: float, message: Message, answer: Message) -> None:
        """Record a request that has changed the session."""
        kept = self._kept(now_s, message, answer)
        if kept is not None and not self.replaying:
            events = {"events": self._take_events()} if self._events else {}
            self.append([{"note": "asked", "at_s": now_s, **events}, kept])
        self.write_events(now_s)

    def note(self, now_s: float, what: str, **values: Any) -> None:
        """Record an event that no request carries."""
        if not self.replaying:
            self.append([{"note": what, "at_s": now_s, **values}])

    def happened(self, event: Note) -> None:
        """Record an event of the run soon: with the request that caused it, else with `write_events`."""
        self._events.append(event)

    def write_events(self, now_s: float) -> None:
        """Record the events that no request has caused."""
        if self._events:
            self.note(now_s, "events", events=self._take_events())

    def _take_events(self) -> list[Note]:
        events, self._events = self._events, []
        return events

    def note_member(self, now_s: float, what: str, member: Member) -> None:
        """Record an event of a member, with the member's counters."""
        about = {"role": member.role, "rank": member.rank, "incarnation": member.incarnation}
        self.note(now_s, what, **about, progress=dict(member.progress))

    def _kept(self, now_s: float, message: Message, answer: Message) -> Message | None:
        """Return the part of a request to record; None if it changed no persistent state."""
        if isinstance(answer, Failure):
            return None
        if isinstance(message, Register):
            return message if self._members.changes > self._changes else None
        if isinstance(message, OpenJob):
            again = message.job < self._jobs
            return replace(message, windows=np.empty(0, np.uint32)) if again else message
        if isinstance(message, NextLease):
            return message if isinstance(answer, Lease) and answer.state == "held" else None
        if isinstance(message, Heartbeat):
            return self._kept_heartbeat(now_s, message)
        return message if isinstance(message, EndLease | Leave | Missing | Stop) else None

    def _kept_heartbeat(self, now_s: float, message: Heartbeat) -> Heartbeat | None:
        """Return the heartbeat to record: a server's first map, which lets trainers start, or positions."""
        if message.role == "server":
            began = self._version == 0 < message.map_version
            return replace(message, progress={}) if began else None
        streams = message.progress.get("streams", ())
        written_s = self._written_s.get(message.incarnation)
        if not streams or (written_s is not None and now_s - written_s < POSITIONS_S):
            return None
        self._written_s[message.incarnation] = now_s
        return replace(message, progress={"streams": streams})
