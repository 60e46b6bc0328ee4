"""What of a coordinator's talk must survive it, and how it is done again: a pure machine.

A coordinator session is a function of what it was asked and of who was lost when. So its journal holds the
requests that have changed it, each with its time, and notes of what no request says.
`CoordinatorJournal.replay` gives them to the handlers that took them first. Not written are heartbeats, but
for what they say of leases now and then: what members count they say again, and a lease that is resumed at
an earlier batch is only work done again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from pslib.coordinator.jobs import JobRegistry
from pslib.coordinator.membership import Member, Membership
from pslib.wire.journal import Entry, Note
from pslib.wire.messages import (
    EndLease,
    Failure,
    Heartbeat,
    Lease,
    Leave,
    Message,
    Missing,
    NextLease,
    OpenJob,
    Register,
    Stop,
)

__all__ = ["POSITIONS_S", "CoordinatorJournal", "Journalled"]

POSITIONS_S = 5.0
"""How often a trainer's positions in its leases are written: so much work an successor may have to do
again."""


class Journalled(Protocol):
    """What a journal reads of the coordinator, and calls in a replay.

    It is `pslib.coordinator.session.CoordinatorSession`.
    """

    members: Membership
    registry: JobRegistry

    def handle(self, now_s: float, message: Message) -> Message:
        """Answer one request."""
        ...

    def redo(self, note: Mapping[str, Any]) -> None:
        """Do again what a note says."""
        ...

    def plain(self) -> dict[str, Any]:
        """All that must survive, in plain values."""
        ...


class CoordinatorJournal:
    """Writes what changes a session, and reads it again.

    Parameters
    ----------
    session : Journalled
        Whose requests these are.
    positions_s : float
        At least so long between two records of one trainer's positions.

    Attributes
    ----------
    append : callable
        Takes the entries of one record, after they have changed the session and before anybody is answered.
    """

    def __init__(self, session: Journalled, positions_s: float = POSITIONS_S) -> None:
        self._session, self._positions_s = session, positions_s
        self.append: Callable[[Sequence[Entry]], None] = lambda _entries: None
        self._written_s: dict[int, float] = {}
        self._changes = self._jobs = 0
        self._version = 0
        self._replaying = False

    @property
    def replaying(self) -> bool:
        """Whether what is handled just now was handled before, by a predecessor."""
        return self._replaying

    # --- writing ------------------------------------------------------------------------------------------

    def before(self, message: Message) -> None:
        """Look at what a request may change."""
        self._changes = self._session.members.changes
        self._jobs = len(self._session.registry.jobs)
        if isinstance(message, Heartbeat):
            member = self._session.members.find(message.role, message.rank, message.incarnation)
            self._version = member.map_version if member else 0

    def after(self, now_s: float, message: Message, answer: Message) -> None:
        """Write down a request that has changed the session."""
        kept = self._kept(now_s, message, answer)
        if kept is not None and not self._replaying:
            self.append([{"note": "asked", "at_s": now_s}, kept])

    def note(self, now_s: float, what: str, **values: Any) -> None:
        """Write down what no request says."""
        if not self._replaying:
            self.append([{"note": what, "at_s": now_s, **values}])

    def note_member(self, now_s: float, what: str, member: Member) -> None:
        """Write down something of a member, with what it has counted."""
        about = {"role": member.role, "rank": member.rank, "incarnation": member.incarnation}
        self.note(now_s, what, **about, progress=dict(member.progress))

    def _kept(self, now_s: float, message: Message, answer: Message) -> Message | None:
        """What is to be written of a request; None: it has changed nothing that must survive."""
        if isinstance(answer, Failure):
            return None
        if isinstance(message, Register):
            return message if self._session.members.changes > self._changes else None
        if isinstance(message, OpenJob):
            again = message.job < self._jobs
            return replace(message, windows=np.empty(0, np.uint32)) if again else message
        if isinstance(message, NextLease):
            return message if isinstance(answer, Lease) and answer.state == "held" else None
        if isinstance(message, Heartbeat):
            return self._kept_heartbeat(now_s, message)
        return message if isinstance(message, EndLease | Leave | Missing | Stop) else None

    def _kept_heartbeat(self, now_s: float, message: Heartbeat) -> Heartbeat | None:
        """A server that has its first map lets trainers start; positions are written now and then."""
        if message.role == "server":
            began = self._version == 0 < message.map_version
            return replace(message, progress={}) if began else None
        streams = message.progress.get("streams", ())
        written_s = self._written_s.get(message.incarnation)
        if not streams or (written_s is not None and now_s - written_s < self._positions_s):
            return None
        self._written_s[message.incarnation] = now_s
        return replace(message, progress={"streams": streams})

    def image(self, now_s: float) -> Note:
        """A note of all that a session is, after which no earlier record is needed."""
        return {"note": "image", "at_s": now_s, "state": self._session.plain()}

    # --- reading ------------------------------------------------------------------------------------------

    def replay(self, entries: Sequence[Entry]) -> float:
        """Do again what a record says; return its time."""
        note = entries[0]
        assert isinstance(note, Mapping)
        self._replaying = True
        try:
            if len(entries) > 1:
                assert isinstance(entries[1], Message)
                self._session.handle(note["at_s"], entries[1])
            else:
                self._session.redo(note)
        finally:
            self._replaying = False
        return float(note["at_s"])
