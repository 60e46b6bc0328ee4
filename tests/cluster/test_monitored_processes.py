"""The state of a run of processes: a killed server is seen at once, and the end stands in its folder."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from pslib.monitor.run_folder import MONITOR
from pslib.monitor.sources import EndedRun, LiveRun, open_run
from tests.support.processes.counting_runs import SLOWLY, Start, assert_ends_well, launch_counting
from tests.support.waiting import PATIENCE, WAIT_S, wait_until

LOGGED = ("--durability", "log", "--restarts", "3")
SEEN_S = 5.0
"""Time from the end of a server to its event."""


def server_events(live: LiveRun | EndedRun) -> list[dict[str, Any]]:
    return [one for one in live.state()["events"] if (one["role"], one["rank"]) == ("server", 1)]


def test_a_killed_server_is_an_event_and_so_is_its_return(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command = launch_counting(start, examples, tmp_path, more=SLOWLY, options=LOGGED)
    live = open_run(str(tmp_path / "out"))
    try:
        assert isinstance(live, LiveRun)
        before = live.state()
        coordinator = before["processes"][0]
        assert str(command.pid_of("coordinator")) in coordinator["where"]
        assert coordinator["rss_bytes"] > 0
        assert [one["kind"] for one in server_events(live)] == ["joined"]
        command.kill("server 1")
        wait_until(
            lambda: "back" in {one["kind"] for one in server_events(live)},
            40,
            lambda: f"the return of server 1: {server_events(live)}",
        )
        joined, gone, *_others, back = server_events(live)
        assert (gone["kind"] in ("silent", "lost"), back["kind"]) == (True, "back")
        assert joined["at_s"] < gone["at_s"] <= back["at_s"]
        assert gone["at_s"] - before["now_s"] < PATIENCE * SEEN_S
        lines = {one["rank"]: one for one in live.state()["processes"] if one["role"] == "server"}
        earlier = {one["rank"]: one for one in before["processes"] if one["role"] == "server"}
        assert lines[1]["where"] != earlier[1]["where"]
        assert lines[0]["where"] == earlier[0]["where"]
        assert "thread MainThread:" in live.dump("trainer", 0)
        assert "thread MainThread:" in live.dump("coordinator", 0)
        assert_ends_well(command, examples)
    finally:
        live.close()
    assert (tmp_path / "out" / MONITOR).exists()
    ended = open_run(str(tmp_path / "out"))
    assert isinstance(ended, EndedRun)
    run = ended.state()["run"]
    assert (run["state"], run["error"]) == ("ended", None)
    assert {"back", "left"} <= {one["kind"] for one in server_events(ended)}
    assert ended.samples()["rows"][-1][1] == run["examples"]


def test_a_stopped_server_is_an_event_within_five_seconds(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    """Without a log nothing takes its place: its silence is seen before the run ends because of it."""
    command = launch_counting(start, examples, tmp_path, more=SLOWLY)
    live = open_run(str(tmp_path / "out"))
    try:
        number, sent_s = live.changed(0, WAIT_S), live.state()["now_s"]
        command.kill("server 1", signal.SIGSTOP)
        while not any(one["kind"] == "silent" for one in server_events(live)):
            number = live.changed(number, WAIT_S)
        (silent,) = [one for one in server_events(live) if one["kind"] == "silent"]
        assert silent["at_s"] - sent_s < PATIENCE * SEEN_S
        command.kill("server 1", signal.SIGCONT)
        while not any(one["kind"] == "heard" for one in server_events(live)):
            number = live.changed(number, WAIT_S)
        assert_ends_well(command, examples)
    finally:
        live.close()
