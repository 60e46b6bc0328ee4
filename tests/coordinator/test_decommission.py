"""Servers that own nothing and go: the members that must know, and how long the servers stay after that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pslib.config import ClusterConfig, Timing
from pslib.coordinator.decommission import LEAVE_BEATS, Decommission
from pslib.coordinator.membership import Membership, Wave

BEAT_S = 1.0
STAYS_S = LEAVE_BEATS * BEAT_S
CONFIG = ClusterConfig(
    servers=3, trainers=2, partition_bits=6, dense_blocks=4, timing=Timing(heartbeat_s=BEAT_S, silence_s=6.0)
)


class Leaving:
    """Three servers, the last of which owns nothing and shall go, and two trainers."""

    def __init__(self) -> None:
        self.members = Membership(CONFIG)
        for role in ("server", "trainer"):
            for number in range(3 if role == "server" else 2):
                incarnation, address = self.incarnation(role, number), f"tcp://{role}{number}"
                self.members.register(0.0, role, incarnation, address, "here")
        assert self.members.map is not None
        owners = np.where(self.members.map.owners == 2, 0, self.members.map.owners)
        self.members.map = replace(self.members.map, owners=owners.astype(np.uint16))
        self.decommission = Decommission(self.members)
        self.all_have_heard()

    @staticmethod
    def incarnation(role: str, number: int) -> int:
        """Return the incarnation of a first process."""
        return number + (10 if role == "server" else 20)

    def look(self, now_s: float) -> list[int]:
        """Apply the records of servers that leave the map now; return their ranks."""
        records = self.decommission.look(now_s, {2})
        for record in records:
            self.decommission.replay(record["rank"], record["version"])
        return [record["rank"] for record in records]

    def has_heard(self, trainer: int) -> None:
        """A trainer knows the map as it is."""
        assert self.members.map is not None
        version = self.members.map.version
        self.members.heard(0.0, "trainer", trainer, self.incarnation("trainer", trainer), version)

    def all_have_heard(self) -> None:
        """So does each trainer."""
        for trainer in range(2):
            self.has_heard(trainer)

    def may_leave(self, now_s: float) -> bool:
        """Return True if the server may go now."""
        return self.decommission.may_leave(now_s, 2)

    def comes_back(self) -> None:
        """Another process at the place of the one that left."""
        self.members.register(5.0, "server", 99, "tcp://another", "here", rank=2, generation=1)


def _known_by_all(now_s: float) -> Leaving:
    """Return a `Leaving` whose server has left the map, which every trainer has known since ``now_s``."""
    leaving = Leaving()
    assert leaving.look(0.0) == [2]
    leaving.all_have_heard()
    assert leaving.look(now_s) == []
    return leaving


def _goes_when_its_stay_is_over(leaving: Leaving, known_s: float) -> None:
    assert not leaving.may_leave(known_s + STAYS_S)
    assert leaving.may_leave(known_s + STAYS_S + 0.1)


def test_it_leaves_the_map_once_and_its_address_with_it() -> None:
    leaving = Leaving()
    assert leaving.look(0.0) == [2]
    assert leaving.decommission.gone == {2}
    assert leaving.members.map is not None
    assert leaving.members.map.addresses[2] == ""
    assert leaving.look(1.0) == []


def test_it_stays_in_the_map_while_units_are_on_their_way() -> None:
    """They may be on their way to it, or come back to it."""
    leaving = Leaving()
    one = np.array([0])
    leaving.members.wave = Wave(1, one, np.array([0], np.uint16), np.array([1], np.uint16))
    assert leaving.look(0.0) == []
    leaving.members.wave = None
    assert leaving.look(0.0) == [2]


def test_it_stays_while_it_owns_a_unit() -> None:
    leaving = Leaving()
    assert leaving.decommission.look(0.0, {1}) == []


def test_it_may_not_go_before_each_trainer_knows_the_map_without_it() -> None:
    """A trainer with the older map would send to it, and wait for a peer that is no more."""
    leaving = Leaving()
    leaving.look(0.0)
    leaving.has_heard(0)
    leaving.look(1.0)
    assert not leaving.may_leave(100.0)
    leaving.has_heard(1)
    leaving.look(100.0)
    assert leaving.may_leave(100.0 + STAYS_S + 0.1)


def test_it_stays_two_heartbeats_longer_to_refuse_what_is_on_its_way() -> None:
    _goes_when_its_stay_is_over(_known_by_all(3.0), 3.0)


def test_that_time_runs_from_when_all_knew_not_from_the_last_look() -> None:
    leaving = _known_by_all(3.0)
    leaving.look(3.0 + STAYS_S)
    assert leaving.may_leave(3.0 + STAYS_S + 0.1)


def test_it_may_go_at_once_where_there_is_no_trainer() -> None:
    leaving = Leaving()
    for trainer in leaving.members.trainers:
        leaving.members.lose(0.0, trainer)
    leaving.look(0.0)
    leaving.look(1.0)
    assert leaving.may_leave(1.0 + STAYS_S + 0.1)


def test_one_that_came_back_to_its_place_may_not_go_for_the_reasons_of_the_one_before() -> None:
    leaving = _known_by_all(1.0)
    leaving.comes_back()
    assert not leaving.may_leave(100.0)


def test_one_that_came_back_leaves_the_map_and_waits_until_all_know_like_any_other() -> None:
    leaving = _known_by_all(1.0)
    leaving.comes_back()
    assert leaving.look(100.0) == [2]
    leaving.look(100.0)
    assert not leaving.may_leave(200.0), "no trainer has heard of the second departure"
    leaving.all_have_heard()
    leaving.look(200.0)
    _goes_when_its_stay_is_over(leaving, 200.0)


def test_records_bring_another_one_to_where_it_was() -> None:
    first, second = Leaving(), Leaving()
    first.look(0.0)
    for record in first.decommission.records():
        second.decommission.replay(record["rank"], record["version"])
    assert second.decommission.gone == {2}
    assert first.members.map is not None
    assert second.members.map is not None
    assert second.members.map.addresses == first.members.map.addresses
    assert second.look(1.0) == []
