"""Bugs planted in the holders of places, and in the state they return with: simulated clusters find them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pslib.client.membership import MemberHandle
from pslib.coordinator.membership import Member, Membership
from pslib.coordinator.rebalance import Rebalance, ScaleRequests
from pslib.coordinator.recovery import Recovery
from pslib.coordinator.session import CoordinatorSession
from pslib.server.rejoin import Rejoin
from pslib.shard.shard import Shard
from pslib.wire.fields import Message
from pslib.wire.journal import Entry
from pslib.wire.messages import Heartbeat, Setup
from tests.simulation.cluster.mishaps import Mishaps
from tests.simulation.cluster.runs import caught, first_error
from tests.simulation.cluster.world import Planted, World

# --- places, generations and terms ---


def test_a_generation_that_is_ignored_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late copy of a registration gives the place back to its former holder."""
    refusal = Membership._refusal

    def forgiving(
        self: Membership, role: str, address: str, rank: int, generation: int, before: Member | None
    ) -> str:
        return refusal(self, role, address, rank, generation + (1 << 20), before)

    monkeypatch.setattr(Membership, "_refusal", forgiving)
    assert caught(Planted())


class Deposed(Mishaps):
    """Coordinators that live on beside their successors."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        return [(self._depose_coordinator, 3)] if self.world.config.durability != "memory" else []


def test_a_term_that_is_ignored_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replaced coordinator answers members that have heard its successor, and is obeyed."""
    heartbeat, answered = CoordinatorSession._heartbeat, MemberHandle._answered

    def deaf(self: CoordinatorSession, now_s: float, message: Heartbeat) -> Message:
        return heartbeat(self, now_s, replace(message, term=0))

    def obeys_any(self: MemberHandle, wait: Callable[[float], Any]) -> None:
        self.term = 0
        answered(self, wait)

    monkeypatch.setattr(CoordinatorSession, "_heartbeat", deaf)
    planted = Planted(make_mishaps=Deposed)
    assert not first_error(lambda seed: World(seed, planted).run(), range(4)), "members know by themselves"
    monkeypatch.setattr(MemberHandle, "_answered", obeys_any)
    assert "obeys term" in caught(planted)


def test_a_wish_for_servers_that_is_granted_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late copy of the first wish undoes the second one."""
    monkeypatch.setattr(ScaleRequests, "answer", lambda _scale_requests, _name: None)
    assert "not over after" in caught(Planted())


class LostServers(Mishaps):
    """Servers that are silent for too long, and coordinators that die when they have seen it."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        logged = self.world.config.durability != "memory"
        return [(self._forget_a_server, 3), (self._kill_coordinator, 6)] if logged else []


def test_a_journal_that_forgets_that_a_server_was_lost_is_caught() -> None:
    def change(session: CoordinatorSession) -> None:
        append = session.journal.append

        def kept(entries: Sequence[Entry]) -> None:
            about = entries[-1]
            if isinstance(about, Message) or (about["note"], about.get("role")) != ("lost", "server"):
                append(entries)

        session.journal.append = kept

    planted = Planted(change_coordinator=change, make_mishaps=LostServers)
    assert "has counted as lost, and is told to go" in caught(planted)


class Newcomers(Mishaps):
    """Servers leave, their time over, when their first units have just come."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        return [(self._take_a_newcomer, 3)] if self.world.config.durability != "memory" else []

    def _take_a_newcomer(self) -> None:
        for server in self.world.servers:
            has_units = server.alive and any(shard.owned for shard in server.shards)
            if has_units and not server.leaving and server.rank not in self.world.map.owners:
                server.time_is_over()
                return
        self.world.network.after(0.01, self._take_a_newcomer)


def test_a_server_taken_off_the_map_with_units_on_their_way_to_it_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Membership, "is_target", lambda _members, _server: False)
    assert caught(Planted(make_mishaps=Newcomers), 100)


# --- servers that come back without what they knew ---


class LostMemory(Mishaps):
    """Servers that lose all they knew, while units move; nothing else goes wrong."""

    def _kinds(self) -> list[tuple[Callable[[], None], int]]:
        return [(self._lose_memory, 4)] if self.world.config.recovery == "partial" else []


class ServesAtOnce(Rejoin):
    """A server that has lost what it knew answers before it has what is left."""

    waits = False  # type: ignore[assignment]


class KeepsWhatWasGivenAway(Rejoin):
    """Owns units again that the server's predecessor had given to others."""

    def _bring_back(self, setup: Setup, shard: Shard) -> None:
        self._begins = {**self._begins, "released": []}
        super()._bring_back(setup, shard)


class BeginsAnywhere(Recovery):
    """Names no checkpoint to the server that begins."""

    def begins(self, server: Member) -> dict[str, Any]:
        told = super().begins(server)
        return told | {"loads": []} if told else {}


@pytest.mark.parametrize("kind", [ServesAtOnce, KeepsWhatWasGivenAway])
def test_a_bug_in_how_a_server_comes_back_is_caught(kind: type[Rejoin]) -> None:
    assert caught(Planted(make_comeback=kind, make_mishaps=LostMemory))


def test_a_server_that_comes_back_at_no_checkpoint_is_caught() -> None:
    def change(session: CoordinatorSession) -> None:
        session.recoveries.__class__ = BeginsAnywhere

    assert "is to begin at []" in caught(Planted(change_coordinator=change, make_mishaps=LostMemory))


def test_units_that_are_lost_with_their_new_owner_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rebalance, "lost_by", lambda _moves, _rank: None)
    assert caught(Planted(make_mishaps=LostMemory))
