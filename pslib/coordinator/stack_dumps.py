"""Stack dumps of processes on request, as a pure state machine: asked for with the answer of a heartbeat.

Trainers do not listen. So the coordinator tells a process with the answer of its next heartbeat that its
stacks are wanted, and the heartbeat after that has them. A reader asks again until they are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pslib.coordinator.membership import Member, Membership
from pslib.process.stacks import STACKS_CHARS_MAX
from pslib.wire.fields import Message
from pslib.wire.messages import DumpStacks, Failure, Result

WANTED_S = 30.0
"""Time after the last request in which stacks are wanted, and after their arrival in which they are kept."""


class StackDumps:
    """Stacks that are wanted, and those that have come.

    Parameters
    ----------
    members : Membership

    Attributes
    ----------
    own : callable
        Returns the stacks of the coordinator's process, which sets it.
    """

    def __init__(self, members: Membership) -> None:
        self._members = members
        self.own: Callable[[], str] = str
        self._wanted_s: dict[int, float] = {}
        """Time at which the stacks of an incarnation were asked for."""
        self._found: dict[int, tuple[float, str]] = {}

    def ask(self, now_s: float, message: DumpStacks) -> Message:
        """Return the stacks of a process if they are there, once; else ask for them."""
        self._forget(now_s)
        if message.role == "coordinator":
            return Result({"stacks": self.own()})
        known = message.role in ("server", "trainer")
        member = self._members.at(message.role, message.rank) if known else None
        if member is None or member.state != "live":
            state = "there is none" if member is None else f"it is {member.state}"
            who = f"{message.role[:20]} {message.rank}"
            return Failure("configuration", f"stacks: expected a live process, got {who}: {state}")
        if found := self._found.pop(member.incarnation, None):
            return Result({"stacks": found[1]})
        self._wanted_s[member.incarnation] = now_s
        return Result({"stacks": None})

    def is_wanted(self, now_s: float, member: Member) -> bool:
        """Return True if a process is to send its stacks with its next heartbeat."""
        asked_s = self._wanted_s.get(member.incarnation)
        return asked_s is not None and now_s - asked_s <= WANTED_S

    def heard(self, now_s: float, member: Member, progress: Mapping[str, Any]) -> None:
        """Take the stacks from a heartbeat, if they were wanted."""
        stacks = progress.get("stacks")
        if isinstance(stacks, str) and self._wanted_s.pop(member.incarnation, None) is not None:
            self._found[member.incarnation] = (now_s, stacks[:STACKS_CHARS_MAX])

    def _forget(self, now_s: float) -> None:
        self._wanted_s = {who: at_s for who, at_s in self._wanted_s.items() if now_s - at_s <= WANTED_S}
        self._found = {who: one for who, one in self._found.items() if now_s - one[0] <= WANTED_S}
