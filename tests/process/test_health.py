"""Health of a process: a loop that no longer turns is named."""

from __future__ import annotations

from pslib.process.health import TURN_S, Health
from tests.support.hand_clock import HandClock


def test_a_loop_that_has_not_turned_for_a_minute_is_stuck_and_named() -> None:
    clock = HandClock()
    health = Health(clock)
    with health.loop("server") as turned, health.loop("endpoint") as other:
        clock.sleep_s(TURN_S - 1)
        turned()
        other()
        assert health.stuck() == ""
        clock.sleep_s(TURN_S - 1)
        other()
        clock.sleep_s(2.0)
        assert health.stuck() == "the server loop has not turned for 61 s"
        turned()
        assert health.stuck() == ""


def test_a_loop_that_is_over_is_not_missed() -> None:
    clock = HandClock()
    health = Health(clock)
    with health.loop("endpoint"):
        pass
    clock.sleep_s(2 * TURN_S)
    assert health.stuck() == ""


def test_two_loops_of_one_name_are_watched_apart() -> None:
    """As the two shards' servers of a cluster in one process are."""
    clock = HandClock()
    health = Health(clock)
    with health.loop("server") as first, health.loop("server"):
        clock.sleep_s(TURN_S + 1)
        first()
        assert "server" in health.stuck()
