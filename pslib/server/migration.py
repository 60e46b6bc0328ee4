"""Migration of a server's units to others: its part of a wave, as a pure state machine.

Each unit takes these steps: `Release` on the own shard, `Adopt` sent to the new owner until it is answered,
and where that refuses it, `Keep` on the own shard, which then has the unit again with all its content. A few
units are in flight at a time. Every step may be repeated, after a restart of any process: each is named by
the wave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pslib.wire.fields import Message
from pslib.wire.messages import Adopt, Done, Failure, Hand, Image, Keep, NextHand, Release, Setup

IN_FLIGHT_MAX = 16
"""Maximum images in flight from one server. Its queues, and those of others, are full of pushes: with 4 of
them 2,080 units took 1.5 to 3 times as long, and pulls were slowed as much (`benchmarks/moves.py`).
"""
AGAIN_S = 0.5
"""Pause before a unit is sent again to a server that could not be reached."""
REFUSALS = ("memory-limit", "configuration", "forbidden")
"""Refusals after which the unit has not arrived and never will under this version."""
DENSE = ""
"""Name of the dense parameters among names of tables."""


@dataclass(frozen=True, slots=True, eq=False)
class Action:
    """Action: send ``message`` to the server at ``address``, or to the own shards where that is empty."""

    address: str
    message: Message
    unit: int = -1


@dataclass(slots=True)
class _Unit:
    """Unit of the wave: ``state`` is new, busy (a reply is awaited), released, refused, done or kept."""

    number: int
    owner: int
    state: str = "new"
    adopt: Adopt | None = None
    action: Action | None = None
    not_before_s: float = 0.0
    sent_to: str = ""


class Migration:
    """State machine of one server's part in the moves.

    Parameters
    ----------
    setup : callable
        Returns the message that creates our tables at another server.
    in_flight_max : int
        Maximum units in flight.
    """

    def __init__(self, setup: Callable[[], Setup], in_flight_max: int = IN_FLIGHT_MAX) -> None:
        self._setup, self._in_flight_max = setup, in_flight_max
        self._units: dict[int, _Unit] = {}
        self._addresses: tuple[str, ...] = ()
        self._there: dict[str, frozenset[str] | None] = {}
        """Our tables that exist at each address; None while the request for that is open."""
        self._version = 0
        self._reason = ""
        self._unsaid_bytes = 0

    def take(self, hand: Hand) -> None:
        """Take this part of a wave; a repeated one may name other addresses, and more units.

        A restarted coordinator asks for all of a wave, also for what our predecessor has done.
        """
        addresses = tuple(map(str, hand.addresses))
        if hand.version != self._version:
            self._units, self._there, self._reason = {}, {}, ""
        for unit, owner in zip(hand.units.tolist(), hand.owners.tolist(), strict=True):
            self._units.setdefault(unit, _Unit(unit, owner))
        for unit in self._units.values():
            if unit.action and unit.action.address and unit.action.address != addresses[unit.owner]:
                unit.state, unit.action = "released", None
            elif unit.state == "done" and unit.sent_to != addresses[unit.owner]:
                unit.state = "new"  # its successor may have lost it; otherwise it answers that it has it
        self._version, self._addresses = hand.version, addresses

    @property
    def over(self) -> bool:
        """Return True if each unit has arrived or is here again."""
        return all(unit.state in ("done", "kept") for unit in self._units.values())

    def report(self, rank: int, incarnation: int) -> NextHand:
        """Report the outcome of the units of this wave."""
        done = [unit.number for unit in self._units.values() if unit.state == "done"]
        kept = [unit.number for unit in self._units.values() if unit.state == "kept"]
        said, self._unsaid_bytes = self._unsaid_bytes, 0
        return NextHand(
            rank,
            incarnation,
            self._version,
            said,
            self._reason,
            np.asarray(done, np.uint32),
            np.asarray(kept, np.uint32),
            [[owner, self._addresses[owner]] for owner in {unit.owner for unit in self._units.values()}],
        )

    # --- what to do ---------------------------------------------------------------------------------------

    def actions(self, now_s: float) -> list[Action]:
        """Return the actions that are due."""
        asked: list[Action] = []
        on_their_way = sum(unit.state in ("busy", "released", "refused") for unit in self._units.values())
        for unit in self._units.values():
            waits = now_s < unit.not_before_s or not self._is_ready(now_s, unit, asked)
            if unit.state == "new" and on_their_way < self._in_flight_max and not waits:
                on_their_way += 1
                release = Release(unit.number, unit.owner, self._version)
                asked.append(self._ask(unit, Action("", release, unit.number)))
            elif unit.state == "refused" and now_s >= unit.not_before_s:
                asked.append(self._ask(unit, Action("", Keep(unit.number, self._version), unit.number)))
            elif unit.state == "released" and unit.adopt is not None and not waits:
                address = self._addresses[unit.owner]
                asked.append(self._ask(unit, Action(address, unit.adopt, unit.number)))
        return asked

    def _is_ready(self, now_s: float, unit: _Unit, asked: list[Action]) -> bool:
        """Return True if the new owner has our tables: refused clients send requests there at once.

        Tables may be set up while units move: an image with more tables than we have described goes after
        them.
        """
        address = self._addresses[unit.owner]
        if address in self._there:
            there = self._there[address]
            if there is None or _tables_of(unit.adopt) <= there:
                return there is not None
        if unit.state not in ("new", "released"):
            return False
        setup = self._setup()
        if _tables_of(unit.adopt) <= _tables_in(setup):
            self._there[address] = None
            asked.append(Action(address, setup))
        else:
            unit.not_before_s = now_s + AGAIN_S  # the shard that describes the tables has yet to create them
        return False

    @staticmethod
    def _ask(unit: _Unit, action: Action) -> Action:
        unit.state, unit.action = "busy", action
        return action

    # --- answers ------------------------------------------------------------------------------------------

    def answered(self, now_s: float, action: Action, answer: Message | None) -> None:
        """Take the reply to an action; None: there was none in time."""
        if isinstance(action.message, Setup):
            self._set_up(now_s, action, answer)
            return
        unit = self._units.get(action.unit)
        if unit is None or unit.action is not action:
            return  # of an earlier wave, or of an address that is no longer the owner's
        unit.action = None
        if isinstance(action.message, Adopt):
            self._sent(now_s, unit, answer)
        elif isinstance(answer, Image):
            unit.adopt = Adopt(answer.unit, answer.map_version, answer.marks, answer.content, answer.keys)
            unit.state = "released"
        elif isinstance(action.message, Keep) and not isinstance(answer, Done):
            unit.state, unit.not_before_s = "refused", now_s + AGAIN_S  # without owner: again
        else:  # taken back, or never released
            self._stays(unit, answer)

    def _set_up(self, now_s: float, action: Action, answer: Message | None) -> None:
        if isinstance(answer, Done):
            assert isinstance(action.message, Setup)
            self._there[action.address] = _tables_in(action.message)
            return
        self._there.pop(action.address, None)
        refused = isinstance(answer, Failure) and answer.code in REFUSALS
        for unit in self._units.values():
            if unit.state in ("new", "released") and self._addresses[unit.owner] == action.address:
                unit.not_before_s = now_s + AGAIN_S
                if refused and unit.state == "new":
                    self._stays(unit, answer)
                elif refused:
                    self._refuse(unit, answer)

    def _sent(self, now_s: float, unit: _Unit, answer: Message | None) -> None:
        if isinstance(answer, Done):
            assert unit.adopt is not None
            arrays = (*unit.adopt.content.values(), *unit.adopt.keys.values())
            self._unsaid_bytes += sum(array.nbytes for array in arrays)
            unit.state, unit.adopt, unit.sent_to = "done", None, self._addresses[unit.owner]
        elif isinstance(answer, Failure) and answer.code in REFUSALS:
            self._refuse(unit, answer)
        else:
            unit.state, unit.not_before_s = "released", now_s + AGAIN_S

    def _refuse(self, unit: _Unit, answer: Message | None) -> None:
        unit.state, unit.adopt = "refused", None
        if isinstance(answer, Failure):
            self._reason = (
                self._reason or f"server {unit.owner} does not take unit {unit.number}: {answer.text}"
            )

    def _stays(self, unit: _Unit, answer: Message | None) -> None:
        unit.state = "kept"
        if isinstance(answer, Failure):
            self._reason = self._reason or answer.text


def _tables_in(setup: Setup) -> frozenset[str]:
    """Return the tables that a set-up creates at a server."""
    names = (str(plain["name"]) for plain in setup.tables["tables"])
    return frozenset([*names, DENSE] if setup.dense_length else names)


def _tables_of(adopt: Adopt | None) -> frozenset[str]:
    """Return the tables that a server needs to adopt this image."""
    if adopt is None:
        return frozenset()
    if adopt.keys:
        return frozenset(name.partition(".")[0] for name in adopt.keys)
    return frozenset([DENSE] if adopt.content else [])
