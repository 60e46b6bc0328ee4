"""``pslib scale``: what people are told while units move, and how it ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launch.cli.cluster.scale import watch_moves
from launch.cli.main import main
from pslib.errors import UnavailableError, WaitTimeoutError
from pslib.monitor.run_folder import RunEnd

DONE = {"moving": False, "moved": 20, "units": 20, "bytes": 3_000_000, "seconds": 1.5}
MOVES = {"wanted": 4, "awaited": 0, "leaving": [], "stopped": None}


def status(states: str = "live live live live", **moves: Any) -> dict[str, Any]:
    members = [
        {"role": "server", "rank": rank, "state": state, "address": f"s{rank}", "units": 5}
        for rank, state in enumerate(states.split())
    ]
    return {"moves": {**MOVES, **DONE, **moves}, "members": members}


class Played:
    """A watcher that plays statuses, the last one for ever, and the clock that goes with it."""

    def __init__(self, *statuses: dict[str, Any]) -> None:
        self._statuses = list(statuses)
        self._now_s = 0.0

    def status(self, timeout_s: float = 3.0, *, details: bool = False) -> dict[str, Any]:
        assert details
        status = self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
        if not status:
            self._now_s += timeout_s
            raise WaitTimeoutError("waited 3 s for the coordinator: no answer; is it alive?")
        return status

    def server_stats(self, addresses: Sequence[str], timeout_s: float = 3.0) -> list[Any]:
        return [{"rows": 100} for _ in addresses]

    def now_s(self) -> float:
        return self._now_s

    def sleep_s(self, seconds: float) -> None:
        self._now_s += seconds
        assert self._now_s < 100, "it never ends"

    def lines(self, ended: RunEnd | None = None) -> list[str]:
        said: list[str] = []
        watch_moves(self, said.append, "pslib server --coordinator x", lambda: ended, self)
        return said


def test_a_line_a_second_says_how_far_it_is_and_the_end_how_even_shares_are() -> None:
    going = [status(moving=True, moved=4, bytes=600_000, seconds=0.7)] * 8
    assert Played(*going, status()).lines() == [
        "moved 4 of 20 units, 0.6 MB, 0.7 s",
        "moved 20 of 20 units, 3.0 MB, 1.5 s",
        "server 0 at s0: 5 units, 100 rows",
        "server 1 at s1: 5 units, 100 rows",
        "server 2 at s2: 5 units, 100 rows",
        "server 3 at s3: 5 units, 100 rows",
        "imbalance of rows (most / mean): 1.000",
    ]


def test_the_result_for_machines_has_the_moves_and_the_share_of_each_server() -> None:
    played = Played(status())
    result = watch_moves(played, lambda line: None, "", lambda: None, played)
    assert result["moves"]["moved"] == 20
    assert result["servers"][3] == {"rank": 3, "address": "s3", "units": 5, "rows": 100}
    ended = Played(status(leaving=[2]), {})
    assert watch_moves(ended, lambda line: None, "", lambda: ENDED, ended)["ended"]["exit_code"] == 0


def test_who_awaits_servers_that_nobody_starts_is_told_the_command() -> None:
    waiting = [status("live live", awaited=2, moved=0)] * 25
    lines = Played(*waiting, status()).lines()
    assert lines[0] == "waiting for 2 more servers to join"
    assert "2 more servers are awaited; start each of them with: pslib server --coordinator x" in lines
    assert sum("start each of them" in line for line in lines) == 1


def test_it_is_not_over_before_those_who_shall_leave_have_left() -> None:
    leaving = [status(leaving=[2, 3])] * 6
    lines = Played(*leaving, status("live live left left", leaving=[2, 3])).lines()
    assert lines[0] == "moved 20 of 20 units, 3.0 MB, 1.5 s; servers 2, 3 leave"


def test_a_coordinator_that_is_started_again_is_waited_for() -> None:
    lines = Played({}, {}, status()).lines()
    assert lines[0] == "waited 3 s for the coordinator: no answer; is it alive?; asking again"
    with pytest.raises(WaitTimeoutError):
        Played({}).lines()


ENDED = RunEnd(Path("runs/x"), "2026-11-23 10:00 UTC", 0, None, 2, 48_000)
SAID = "runs/x: that run ended at 2026-11-23 10:00 UTC, done (2 finished epochs, 48,000 examples); "


def test_a_run_that_ends_when_all_units_have_moved_is_told_and_not_waited_for() -> None:
    leaving = [status(leaving=[2, 3])] * 2
    lines = Played(*leaving, {}).lines(ENDED)
    assert lines == [SAID + "its folder holds no checkpoint; all units had moved"]


def test_a_run_that_ends_before_all_units_have_moved_is_an_error() -> None:
    with pytest.raises(UnavailableError) as caught:
        Played(status(moving=True, moved=4), {}).lines(ENDED)
    assert str(caught.value) == SAID + "its folder holds no checkpoint; it ended before all units had moved"


def test_units_that_have_to_stay_are_an_error_in_one_line() -> None:
    with pytest.raises(UnavailableError) as caught:
        Played(status(stopped="3 units stay with server 1: memory limit")).lines()
    assert str(caught.value).startswith("3 units stay with server 1: memory limit; make room there")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["scale", "--servers", "-1", "runs/x"], "--servers: expected at least 1, got -1"),
        (["scale", "--servers", "0", "runs/x"], "--servers: expected at least 1, got 0"),
        (["scale", "--servers", "3", "tcp://127.0.0.1:1"], "its cluster id is missing"),
        (["scale", "--servers", "3", "nowhere"], "expected the folder of a run that has started"),
        (["server", "--coordinator", "tcp://127.0.0.1:1"], "--cluster-id"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_64(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PSLIB_CLUSTER_ID", raising=False)
    assert main(arguments) == 64
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert text in said[0]


def test_a_server_without_a_cluster_id_is_refused_before_it_looks_for_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["server", "--coordinator", "tcp://127.0.0.1:9", "--cluster-id", ""]) == 64
    assert (
        "--cluster-id: expected that of a run, see its logs/cluster.json; got ''" in capsys.readouterr().err
    )
