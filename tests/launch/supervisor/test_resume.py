"""A run that had ended goes on in its folder: its processes, and the coordinator's view of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from launch.cli.main import main
from launch.supervisor.discovery import note_cluster
from launch.supervisor.resume import identity_of, keep_records, way_on
from launch.supervisor.run_spec import Identity
from pslib.clock import SystemClock
from pslib.config import ClusterConfig, Timing
from pslib.coordinator.leases import stream_of
from pslib.coordinator.session import CoordinatorSession
from pslib.errors import ConfigurationError
from pslib.update_log.coordinator_log import CoordinatorLog, has_beginning
from pslib.update_log.files import DiskFiles
from pslib.wire.fields import Message
from pslib.wire.messages import Heartbeat, Lease, Leave, NextLease, OpenJob, Register

LOGGED = ClusterConfig(servers=1, trainers=2, durability="log", timing=Timing(restart_s=60.0))


def test_a_launch_that_goes_on_is_the_same_cluster_with_higher_generations(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "metrics.jsonl").write_text("{}")
    note_cluster(tmp_path / "logs", "tcp://c:1", "abc", 2, "/somewhere")
    identity = identity_of(tmp_path, LOGGED, resume=True)
    assert identity == Identity("abc", 3, "/somewhere")
    assert identity.generation > Identity("abc", 2).generation + 1000
    assert (tmp_path / "metrics-2.jsonl").exists()


def test_records_of_an_earlier_launch_never_replace_those_of_a_still_earlier_one(tmp_path: Path) -> None:
    """A launch, a rollback and a resumption from a checkpoint count for themselves, all from 0."""
    for number in range(3):
        (tmp_path / "metrics.jsonl").write_text(str(number))
        keep_records(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("of launch 7")
    keep_records(tmp_path, 7)
    kept = {one.name: one.read_text() for one in tmp_path.iterdir()}
    assert kept == {f"metrics-{n}.jsonl": str(n) for n in range(3)} | {"metrics-7.jsonl": "of launch 7"}
    keep_records(tmp_path)  # a run that was lost before its first line has none
    assert len(list(tmp_path.iterdir())) == 4


def test_every_other_launch_is_a_cluster_of_its_own(tmp_path: Path) -> None:
    assert identity_of(tmp_path, LOGGED, resume=False) != identity_of(tmp_path, LOGGED, resume=False)


@pytest.mark.parametrize(
    ("no_room", "words"), [(False, "go on with: X"), (True, "go on, when there is room, with: X")]
)
def test_a_run_that_lacked_room_is_said_to_need_it_to_go_on(
    monkeypatch: pytest.MonkeyPatch, no_room: bool, words: str
) -> None:
    saved = SimpleNamespace(load=SimpleNamespace(path="/runs/a"))
    monkeypatch.setattr("launch.supervisor.resume.from_checkpoint", lambda job: saved)
    job: Any = None
    for log, place in (("/log", "its logs, /log"), (None, "the checkpoint is /runs/a")):
        line = way_on(job, log, "X", no_room=no_room) or ""
        assert f"{place}; {words}" in line


@pytest.mark.parametrize(
    ("out", "config", "words"),
    [
        (None, LOGGED, "which run"),
        (Path("nowhere"), LOGGED, "holds no run that has started"),
        (Path("nowhere"), ClusterConfig(), "needs logs"),
    ],
)
def test_what_can_not_go_on_is_told_in_one_line(out: Any, config: ClusterConfig, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as error:
        identity_of(out, config, resume=True)
    assert "\n" not in str(error.value)


def test_a_folder_that_is_not_there_is_not_made_to_go_on_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, out = tmp_path / "script.py", tmp_path / "slip" / "of"
    script.touch()
    assert main(["launch", "--resume", "--durability", "log", "--out", str(out), str(script)]) == 64
    assert f"--resume: {out}: no such folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [script]


def test_a_script_whose_run_had_no_logs_is_not_begun_anew_as_if_it_went_on(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    note_cluster(tmp_path / "logs", "tcp://c:1", "abc")
    with pytest.raises(ConfigurationError, match="had no logs to go on with"):
        identity_of(tmp_path, LOGGED, resume=True)


def begun(out: Path, config: ClusterConfig, launch: int = 0) -> Path:
    """A run's folder with a note of its launch and the first record of its journal; returns the journal."""
    (out / "logs").mkdir(parents=True, exist_ok=True)
    (out / "metrics.jsonl").write_text("{}")
    note_cluster(out / "logs", "tcp://c:1", "abc", launch, str(out / "log"), config)
    journal = out / "log" / "coordinator"
    journal.mkdir(parents=True, exist_ok=True)
    (journal / "00000000000000000001.log").touch()
    return journal


def with_numbers(**changed: int) -> ClusterConfig:
    return replace(ClusterConfig(servers=2, trainers=1, durability="log"), **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"servers": 3}, "servers: this run began with 2, got 3: resume with 2, then grow it: {} 3"),
        ({"servers": 1}, "servers: this run began with 2, got 1: resume with 2, then shrink it: {} 1"),
        ({"partition_bits": 10}, "partition_bits: this run began with 12, got 10: resume with 12"),
        ({"dense_blocks": 8}, "dense_blocks: this run began with 64, got 8: resume with 64"),
    ],
)
def test_a_run_does_not_go_on_with_other_numbers_than_its_rows_lie_by(
    tmp_path: Path, changed: dict[str, int], told: str
) -> None:
    begun(tmp_path, with_numbers())
    with pytest.raises(ConfigurationError) as error:
        identity_of(tmp_path, with_numbers(**changed), resume=True)
    assert error.value.problems == ("cluster." + told.format(f"pslib scale {tmp_path} --servers"),)
    assert (tmp_path / "metrics.jsonl").exists(), "nothing has been changed"
    assert identity_of(tmp_path, with_numbers(), resume=True).launch == 1


def test_what_a_run_began_with_is_kept_by_all_its_launches(tmp_path: Path) -> None:
    journal = begun(tmp_path, with_numbers())
    (journal / "00000000000000000001.log").rename(journal / "00000000000000000900.log")  # with an image
    assert identity_of(tmp_path, with_numbers(servers=3), resume=True).launch == 1
    begun(tmp_path, with_numbers(servers=3), launch=1)
    with pytest.raises(ConfigurationError, match="this run began with 2, got 3"):
        identity_of(tmp_path, with_numbers(servers=3), resume=True)


def test_a_run_whose_note_does_not_say_what_it_began_with_is_not_compared(tmp_path: Path) -> None:
    begun(tmp_path, with_numbers())
    note_cluster(tmp_path / "logs", "tcp://c:1", "abc", 0, str(tmp_path / "log"))  # an older one
    for launch in (1, 2):
        assert identity_of(tmp_path, with_numbers(servers=3), resume=True).launch == launch
        begun(tmp_path, with_numbers(servers=3), launch)


def test_the_first_launch_with_logs_says_what_they_began_with(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    note_cluster(tmp_path / "logs", "tcp://c:1", "abc", 0, None, ClusterConfig(servers=2))
    begun(tmp_path, with_numbers(servers=3), launch=1)
    assert identity_of(tmp_path, with_numbers(servers=3), resume=True).launch == 2


def test_a_real_journal_tells_whether_it_has_its_beginning(tmp_path: Path) -> None:
    journal = CoordinatorLog(DiskFiles(str(tmp_path / "log")), "abc", SystemClock())
    assert not has_beginning(str(tmp_path / "log"))
    journal.append([{"kind": "resumed"}])
    assert journal.flush()
    assert has_beginning(str(tmp_path / "log"))
    journal.write_image({"kind": "image"})
    journal.close()
    assert not has_beginning(str(tmp_path / "log"))


# --- the coordinator ---------------------------------------------------------------------------------------


class Journalled:
    """A coordinator session with what it writes, and its successor."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.session = CoordinatorSession(LOGGED)
        self.session.journal.append = self.records.append
        self.generation = 0

    def ask(self, now_s: float, message: Message) -> Any:
        return self.session.handle(now_s, message)

    def join(self, now_s: float) -> None:
        """One server and two trainers, of the present generation."""
        place = (0, self.generation)
        incarnation = 100 * (self.generation + 1)
        self.ask(now_s, Register("server", f"tcp://s:{self.generation}", incarnation, 1, "host", *place))
        self.ask(now_s, Heartbeat("server", 0, incarnation, 1, {}))
        for rank in range(2):
            about = (incarnation + 1 + rank, 1, "host", rank, self.generation)
            self.ask(now_s, Register("trainer", "", *about))

    def lease(self, now_s: float, rank: int) -> Any:
        incarnation = 100 * (self.generation + 1) + 1 + rank
        self.ask(now_s, OpenJob(rank, 0, "fit", 1, {"examples": 9, "epochs": 1}, np.zeros(2, np.uint32)))
        return self.ask(now_s, NextLease(rank, incarnation, 0, np.zeros(0, np.uint64)))

    def start_again(self) -> None:
        """The whole run has ended; its successor reads what it has written, and goes on."""
        records, self.records, self.generation = self.records, [], self.generation + 1
        self.session = CoordinatorSession(LOGGED, term=self.generation)
        last_s = 0.0
        for record in records:
            last_s = self.session.replay(record)
        self.session.begin_again(last_s)
        self.session.journal.append = self.records.append
        self.session.resume(last_s)
        self.records = [*records, *self.records]


def working() -> Journalled:
    cluster = Journalled()
    cluster.join(0.0)
    assert cluster.lease(0.0, 0).state == cluster.lease(0.0, 1).state == "held"
    return cluster


def test_leases_of_a_run_that_was_asked_to_leave_go_on_where_they_were() -> None:
    cluster = working()
    for rank, batch in ((0, 7), (1, 4)):
        cluster.ask(1.0, Leave("trainer", rank, 101 + rank, {"streams": [[stream_of(0, rank), batch]]}, True))
    cluster.ask(1.0, Leave("server", 0, 100, {}, True))
    for _ in range(2):  # and once more from the records of both
        cluster.start_again()
        cluster.session.tick(2.0)
        assert cluster.session.error == ""
        cluster.join(2.0)
        assert cluster.ask(2.0, Heartbeat("server", 0, 100 * (cluster.generation + 1), 1, {})).order == "go"
        leases = [cluster.lease(2.0, rank) for rank in (0, 1)]
        assert [(lease.state, lease.index, lease.first_batch) for lease in leases] == [
            ("held", 0, 7),
            ("held", 1, 4),
        ]
        cluster.session.tick(3.0)
        assert cluster.session.error == ""


def test_a_run_that_was_killed_or_has_failed_goes_on_too() -> None:
    cluster = working()
    cluster.session.fail("server 0 has not come back")
    cluster.start_again()
    cluster.session.tick(1.0)
    assert cluster.session.error == ""
    cluster.join(1.0)
    lease = cluster.lease(1.0, 1)
    assert isinstance(lease, Lease)
    assert (lease.state, lease.epoch) == ("held", 1)


def test_servers_that_came_later_are_asked_for_when_the_run_goes_on() -> None:
    cluster = working()
    about = ("tcp://s:new", 7, 1, "host", 1, 0)
    cluster.ask(1.0, Register("server", *about))
    assert cluster.session.moves.awaited_ranks() == []
    cluster.start_again()
    assert cluster.session.moves.awaited_ranks() == [0, 1]
    cluster.join(2.0)
    assert cluster.session.moves.awaited_ranks() == [1]


def test_a_run_that_nobody_joins_again_ends_when_its_time_is_over() -> None:
    cluster = working()
    cluster.start_again()
    for second in range(0, 140, 2):
        cluster.session.tick(float(second))
    assert cluster.session.error
