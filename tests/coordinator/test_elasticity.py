"""Servers that join and stay get rows by rule, and trainers join up to a limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launch.job.settings_reference import job_schema
from pslib.config import ClusterConfig
from pslib.coordinator.elasticity import HOLD_S, Elasticity
from pslib.errors import ConfigurationError
from tests.support.simulated.move_world import CONFIG
from tests.support.simulated.move_world import World as MoveWorld
from tests.support.simulated.one_coordinator import Cluster


class World(MoveWorld):
    """A cluster of two servers that takes up to four by rule."""

    def __init__(self, most: int = 4) -> None:
        super().__init__(config=replace(CONFIG, servers_max=most))
        self.rule = Elasticity(self.members, self.moves, self.say)

    def tick(self, seconds: float = 0.5, busy: bool = False) -> None:
        self.now_s += seconds
        self.rule.tick(self.now_s, busy)
        self.moves.tick(self.now_s, busy)

    def stay(self, seconds: float, busy: bool = False) -> None:
        """Let time pass in which all members are heard."""
        for _ in range(int(2 * seconds)):
            self.beat()
            self.tick(busy=busy)


def test_a_server_that_joins_and_stays_gets_its_share() -> None:
    world = World()
    world.join()
    world.stay(HOLD_S - 1)
    assert world.moves.wanted == 2
    world.stay(2)
    assert world.moves.wanted == 3
    world.hand_over_all()
    assert world.units() == [86, 85, 85]
    assert world.lines[:2] == [
        "server 2 has joined: rows move to it when it has stayed for 30 s",
        "server 2 has stayed: rows move to 3 servers",
    ]
    assert "shares are even" in world.lines[-1]


def test_a_server_that_comes_and_goes_within_the_time_moves_nothing() -> None:
    world = World()
    for _ in range(5):
        world.join()
        world.stay(HOLD_S / 2)
        world.members.lose(world.now_s, world.members.servers[-1])
        world.stay(HOLD_S)
    assert world.moves.wanted == 2
    assert world.units()[:2] == [128, 128]


def test_servers_that_join_one_after_the_other_get_their_shares_together() -> None:
    world = World()
    world.join()
    world.stay(HOLD_S / 2)
    world.join()
    world.stay(HOLD_S - 1)
    assert world.moves.wanted == 2
    world.stay(2)
    world.hand_over_all()
    assert world.units() == [64, 64, 64, 64]


def test_one_beyond_the_limit_gets_nothing() -> None:
    world = World(most=3)
    for _ in range(3):
        world.join()
    world.stay(HOLD_S + 1)
    world.hand_over_all()
    world.stay(2 * HOLD_S)
    assert world.units() == [86, 85, 85, 0, 0]


def test_a_save_under_way_puts_the_moves_off_and_not_the_time() -> None:
    world = World()
    world.join()
    world.stay(HOLD_S + 5, busy=True)
    assert world.moves.wave is None
    world.stay(1)
    assert world.moves.wave is not None


def test_a_server_that_was_drained_on_request_is_not_taken_back() -> None:
    world = World()
    world.scale(0, (1,))
    world.settle()
    world.hand_over_all()
    world.stay(2 * HOLD_S)
    assert world.units() == [256, 0]


def test_without_a_limit_only_a_request_gives_rows() -> None:
    world = World(most=0)
    world.join()
    world.stay(3 * HOLD_S)
    assert world.units() == [128, 128, 0]
    assert world.lines == []


# --- trainers


def refusal_of_a_third(**changes: Any) -> Any:
    world = Cluster(config=ClusterConfig(servers=2, trainers=2, **changes))
    world.open(0)
    return world.register("trainer", 2)


def test_trainers_join_up_to_the_limit_and_that_is_an_event() -> None:
    assert refusal_of_a_third(trainers_max=3).ready
    assert refusal_of_a_third().ready
    refused = refusal_of_a_third(trainers_max=2)
    assert refused.code == "unavailable"  # with "configuration" one pod too many would fail a whole Job
    assert refused.text == "2 trainers train, the most: see cluster.trainers_max"
    world = Cluster(config=ClusterConfig(servers=2, trainers=2))
    world.open(0)
    for _ in range(3):
        world.register("trainer", 2)
    assert world.session.events == ["trainer 2 (pid 7 on host) has joined"]


def test_a_limit_below_the_beginning_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="servers_max: expected 0 or at least servers, 4, got 2"):
        ClusterConfig(servers=4, servers_max=2)


def test_an_editor_knows_both_forms_of_a_number() -> None:
    setting = job_schema()["$defs"]["ClusterSection"]["properties"]["servers"]
    assert [one["type"] for one in setting["anyOf"]] == ["integer", "object"]
    assert setting["default"] == 1
