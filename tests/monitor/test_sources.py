"""Sources of a run's state: a live cluster, the files of one that has ended, and what is none."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pslib
from launch.supervisor.discovery import note_cluster
from pslib.cluster import Cluster
from pslib.errors import ConfigurationError, PslibError, UnavailableError
from pslib.monitor.run_folder import MONITOR, NOTE
from pslib.monitor.run_state import FORMAT, run_state
from pslib.monitor.sources import EndedRun, LiveRun, open_run
from pslib.monitor.track import Track
from rec_models import LR
from tests.support.statuses import server, status, trainer
from tests.support.waiting import WAIT_S, wait_until

CLICKS = pa.table({"click": [0, 1] * 200, "user": list(range(400))})


def train(cluster: Cluster, out: Path | None = None) -> pslib.Trainer:
    model = LR(pslib.Schema(label="click", sparse=["user"]))
    trainer = pslib.Trainer(model, cluster, progress=False, batch_rows=50, out=out)
    trainer.fit(CLICKS)
    return trainer


class Coordinator:
    """Stands in for a watcher: gives what a test says, or does not answer."""

    def __init__(self) -> None:
        self.events_there: list[dict[str, Any]] = []
        self.asked_after: list[int] = []
        self.error: PslibError | None = None
        self.members: list[Any] = [server(0), trainer(0)]
        self.seconds = 0.0
        self.closed = threading.Event()

    def status(self, timeout_s: float = 3.0, *, details: bool = False) -> dict[str, Any]:
        if self.error:
            raise self.error
        self.seconds += 1.0
        return status(self.members, self.seconds)

    def events(self, after: int) -> dict[str, Any]:
        self.asked_after.append(after)
        last = self.events_there[-1]["number"] if self.events_there else 0
        return {"events": [one for one in self.events_there if one["number"] > after], "last": last}

    def stacks(self, role: str, rank: int, timeout_s: float = 15.0) -> str:
        return f"{role} {rank}"

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pslib.monitor.sources.POLL_S", 0.01)


def live_run(coordinator: Coordinator, closing: Callable[[Any], Any], **about: Any) -> LiveRun:
    return closing(LiveRun(coordinator, {"name": "clicks"}, "tcp://c:1", **about))  # type: ignore[no-any-return]


def test_a_live_cluster_has_a_state_samples_and_stacks() -> None:
    with pslib.connect(servers=2) as cluster:
        live = LiveRun(cluster.watcher(), {"name": "x"})
        try:
            train(cluster)
            number = 0
            while sum(one["rows"] for one in live.state()["servers"]) < 400:
                number = live.changed(number, WAIT_S)
            state = live.state()
            assert [one["role"] for one in state["processes"]] == [
                "coordinator",
                "server",
                "server",
                "trainer",
            ]
            assert [one["name"] for one in state["tables"]] == ["embedding"]
            assert [one["kind"] for one in state["events"]].count("joined") == 3
            assert live.samples()["rows"][-1][1] == 400
            assert "in _turn" in live.dump("server", 1)
            with pytest.raises(ConfigurationError, match="got server 7: there is none"):
                live.dump("server", 7)
        finally:
            live.close()


@pytest.mark.usefixtures("quick")
def test_only_new_events_are_asked_for_and_all_of_a_new_coordinator(closing: Callable[[Any], Any]) -> None:
    coordinator = Coordinator()
    coordinator.events_there = [{"number": number, "text": "old"} for number in (1, 2, 3)]
    live = live_run(coordinator, closing)
    live.changed(live.changed(1, WAIT_S), WAIT_S)
    assert (coordinator.asked_after[0], set(coordinator.asked_after[1:])) == (0, {3})
    coordinator.events_there = [{"number": 1, "text": "new"}]
    wait_until(lambda: [one["text"] for one in live.state()["events"]] == ["new"], WAIT_S, "its events")


@pytest.mark.usefixtures("quick")
def test_a_coordinator_that_does_not_answer_is_shown_as_lost(closing: Callable[[Any], Any]) -> None:
    coordinator = Coordinator()
    live = live_run(coordinator, closing)
    coordinator.error = UnavailableError("gone")
    wait_until(lambda: live.state()["processes"][0]["state"] == "lost", WAIT_S, "that")
    assert live.state()["processes"][0]["silent_s"] >= 0.0
    assert live.state()["run"]["state"] == "running"
    coordinator.error = None
    wait_until(lambda: live.state()["processes"][0]["state"] == "live", WAIT_S, "its return")


@pytest.mark.usefixtures("quick")
def test_a_run_whose_folder_tells_of_its_end_has_ended(tmp_path: Path, closing: Callable[[Any], Any]) -> None:
    coordinator = Coordinator()
    live = live_run(coordinator, closing, folder=tmp_path)
    write_end(tmp_path, 69, "server 1 is lost")
    coordinator.error = UnavailableError("gone")
    wait_until(lambda: live.state()["run"]["state"] == "failed", WAIT_S, "the end")
    assert live.state()["run"]["error"] == "server 1 is lost"


@pytest.mark.usefixtures("quick")
def test_a_status_of_which_no_state_can_be_made_is_told_once_and_asked_for_again(
    closing: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = Coordinator()
    live = live_run(coordinator, closing)
    coordinator.members = [5]
    wait_until(lambda: live.state()["processes"][0]["state"] == "lost", WAIT_S, "that")
    live.changed(live.changed(0, WAIT_S), WAIT_S)
    coordinator.members = [server(0), trainer(0)]
    wait_until(lambda: live.state()["processes"][0]["state"] == "live", WAIT_S, "its return")
    (line,) = [one.getMessage() for one in caplog.records if one.name == "pslib.monitor.sources"]
    assert line.startswith("no state of the run: TypeError: ")


def test_closing_ends_a_wait(closing: Callable[[Any], Any]) -> None:
    live = live_run(Coordinator(), closing)
    waiting = threading.Thread(target=live.changed, args=(1 << 40, 60.0))
    waiting.start()
    live.close()
    waiting.join(WAIT_S)
    assert not waiting.is_alive()


def write_end(folder: Path, exit_code: int, error: str | None) -> None:
    (folder / "logs").mkdir(exist_ok=True)
    note_cluster(folder / "logs", "tcp://127.0.0.1:5", "abc")
    os.utime(folder / "logs" / NOTE, (0, 1_000_000_000))
    (folder / "summary.json").write_text(
        json.dumps({"exit_code": exit_code, "error": error, "epochs": 1, "rows": 7})
    )


def write_track(folder: Path) -> Track:
    track = Track({"name": "clicks"})
    for seconds in range(1, 4):
        track.take(status([server(0), trainer(0)], float(seconds)), 100.0 + seconds)
    track.write(folder)
    return track


@pytest.mark.parametrize(
    ("exit_code", "error", "state"),
    [(0, None, "ended"), (69, "server 1 is lost", "failed"), (130, None, "failed")],
)
def test_an_ended_run_has_the_state_that_its_launcher_wrote(
    tmp_path: Path, exit_code: int, error: str | None, state: str
) -> None:
    track = write_track(tmp_path)
    write_end(tmp_path, exit_code, error)
    run = open_run(str(tmp_path))
    assert isinstance(run, EndedRun)
    assert run.state()["servers"] == track.state["servers"]
    assert (run.state()["run"]["state"], run.state()["run"]["error"]) == (state, error)
    assert run.samples()["rows"] == track.samples.plain()["rows"]
    assert (run.changed(0, 60.0), run.changed(1, 0.0)) == (1, 1)
    with pytest.raises(UnavailableError, match="expected a run with a coordinator to ask for stacks"):
        run.dump("server", 0)
    assert isinstance(open_run(str(tmp_path / "logs")), EndedRun)


def test_a_run_of_an_older_version_has_the_figures_of_its_summary(tmp_path: Path) -> None:
    write_end(tmp_path, 0, None)
    (tmp_path / MONITOR).write_text('{"state": {"format": 99}}')
    state = open_run(str(tmp_path)).state()
    assert set(state) == set(run_state({}))
    assert (state["run"]["name"], state["run"]["state"]) == (tmp_path.name, "ended")


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("state", "format", FORMAT + 1),
        ("state", "run", None),
        ("state", "run", {}),
        ("state", "processes", 5),
        ("state", "processes", [{"role": "server"}]),
        ("state", "traffic", {"staleness_counts": 5}),
        ("samples", "columns", [[]]),
        ("samples", "rows", 5),
    ],
)
def test_what_is_damaged_in_a_file_is_as_if_it_were_not_there(
    tmp_path: Path, part: str, name: str, value: object
) -> None:
    write_track(tmp_path)
    write_end(tmp_path, 0, None)
    plain = json.loads((tmp_path / MONITOR).read_text())
    plain[part][name] = value
    (tmp_path / MONITOR).write_text(json.dumps(plain))
    run = EndedRun(tmp_path)
    assert run.state()["run"]["state"] == "ended"
    assert (run.state()["servers"] == []) == (part == "state")
    assert all(row[0] is None for row in run.samples()["rows"]) == (part == "samples")
    (tmp_path / "summary.json").write_text('{"examples": "many"}')
    if part == "state":
        with pytest.raises(ConfigurationError, match="found neither"):
            EndedRun(tmp_path)


def test_a_file_that_is_written_again_is_a_newer_state(tmp_path: Path) -> None:
    write_track(tmp_path)
    run = EndedRun(tmp_path)
    assert run.state()["run"]["state"] == "running"
    write_track(tmp_path)
    os.utime(tmp_path / MONITOR, (0, 1_000_000_000))
    assert run.changed(1, WAIT_S) == 2


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"state": 5}', '{"state": {"format": 1}, "samples": 3}'])
def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path, broken: str) -> None:
    if broken:
        (tmp_path / MONITOR).write_text(broken)
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigurationError, match=r"expected the folder of a run") as refused:
            open_run(str(folder))
        assert "\n" not in str(refused.value)


def test_a_run_whose_coordinator_is_gone_shows_its_last_state(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    note_cluster(tmp_path / "logs", "tcp://127.0.0.1:5", "abc")
    with pytest.raises(
        UnavailableError, match=r"the coordinator at tcp://127.0.0.1:5 does not answer"
    ) as refused:
        open_run(str(tmp_path))
    assert "\n" not in str(refused.value)
    write_track(tmp_path)
    run = open_run(str(tmp_path)).state()["run"]
    assert run["state"] == "failed"
    assert "does not answer; this is its state of " in run["error"]


def test_an_address_without_a_cluster_id_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="its cluster id is missing"):
        open_run("tcp://127.0.0.1:5")


def test_a_script_writes_the_state_of_its_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pslib.connect() as cluster:
        train(cluster, out).save(tmp_path / "checkpoint")
    assert stat.S_IMODE((out / MONITOR).stat().st_mode) == 0o600
    run = open_run(str(out))
    assert (run.state()["run"]["state"], run.state()["run"]["examples"]) == ("ended", 400)
    assert run.state()["run"]["folder"] == str(out)
    assert [one["path"] for one in run.state()["checkpoints"]] == [str(tmp_path / "checkpoint")]
    assert {"joined", "epoch", "saved", "left"} <= {one["kind"] for one in run.state()["events"]}


def test_a_folder_that_can_not_be_written_ends_no_run(tmp_path: Path) -> None:
    track = write_track(tmp_path)
    before = (tmp_path / MONITOR).read_text()
    track.write(tmp_path / MONITOR / "below a file")
    assert (tmp_path / MONITOR).read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == [MONITOR]  # no draft is left
