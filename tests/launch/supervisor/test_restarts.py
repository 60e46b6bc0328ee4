"""Restarts of processes and their timing; the coordinator's treatment of losses and of successors."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launch.cli.main import main
from launch.job.job import read_job
from launch.job.preflight import check_log
from launch.supervisor.restarts import PAUSE_MAX_S, PAUSE_S, WELL_S, Restarts, is_mishap
from launch.supervisor.run_spec import Task
from pslib.client.client import Client
from pslib.clock import SystemClock
from pslib.cluster import connect
from pslib.config import ClusterConfig, Timing
from pslib.errors import ConfigurationError, UnavailableError
from pslib.table.tables import PartSpec, TableSpec
from pslib.transport import ZmqTransport
from pslib.wire.messages import Failure, Heartbeat, Register
from tests.support.counting import write_examples
from tests.support.processes.by_hand import processes_by_hand
from tests.support.simulated.one_coordinator import Cluster

TRAINER, SERVER = Task("trainer", 1), Task("server", 0)
TIMING = Timing(silence_s=6.0, restart_s=30.0, report_s=5.0)
CONFIG = ClusterConfig(
    servers=2, trainers=2, partition_bits=5, dense_blocks=4, restarts=3, durability="log", timing=TIMING
)


# --- the launcher's side ---


@pytest.mark.parametrize(
    ("code", "mishap"),
    [(-9, True), (137, True), (255, True), (69, True), (70, True), (1, False), (64, False), (75, False),
     (130, False)],
)  # fmt: skip
def test_what_would_be_the_same_again_is_not_tried_again(code: int, mishap: bool) -> None:
    assert is_mishap(code) == mishap


def test_each_start_waits_twice_as_long_as_the_one_before_and_there_is_a_last_one() -> None:
    restarts, now_s = Restarts(replace(CONFIG, restarts=9)), 0.0
    pauses = []
    while restarts.ended(now_s, TRAINER, -9):
        begin_s = now_s
        while not restarts.due(now_s):
            assert restarts.waiting() == [TRAINER]
            now_s += 0.25
        pauses.append(now_s - begin_s)
    assert pauses == [min(PAUSE_S * 2**number, PAUSE_MAX_S) for number in range(9)]
    assert restarts.generation(TRAINER) == 9


def test_who_has_run_for_a_while_waits_no_longer_than_the_first_time() -> None:
    restarts, now_s = Restarts(CONFIG), 0.0
    for pause_s, runs_s in ((0.5, 1.0), (1.0, WELL_S + 0.1), (0.5, 1.0)):
        assert f"in {pause_s:g} s" in restarts.ended(now_s, TRAINER, -9)
        now_s += pause_s
        assert restarts.due(now_s) == [TRAINER]
        now_s += runs_s
    assert restarts.ended(now_s, TRAINER, -9) == ""


def test_nothing_is_started_again_after_the_run_has_failed() -> None:
    restarts = Restarts(CONFIG)
    assert restarts.ended(0.0, TRAINER, -9) == "started again in 0.5 s (1 of 3)"
    restarts.give_up()
    assert (restarts.waiting(), restarts.due(100.0)) == ([], [])


def test_a_server_whose_rows_are_gone_is_not_started_again() -> None:
    assert Restarts(replace(CONFIG, durability="memory")).ended(0.0, SERVER, -9) == ""


def test_where_a_lost_server_begins_at_a_checkpoint_a_coordinator_without_a_log_does_not_come_back() -> None:
    for durability, comes_back in (("memory", False), ("log", True)):
        restarts = Restarts(replace(CONFIG, durability=durability, recovery="partial"))
        assert restarts.ended(0.0, SERVER, -9)
        assert bool(restarts.ended(0.0, Task("coordinator", 0), -9)) is comes_back


def test_a_folder_for_logs_that_nobody_writes_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user who names a folder for logs believes that nothing is lost."""
    (tmp_path / "job.yaml").write_text(
        "{data: {train: a, schema: {label: y, sparse: [u]}}, model: {name: lr}}"
    )
    (tmp_path / "script.py").write_text("")
    for command in (
        ["train", tmp_path / "job.yaml", "--set", f"cluster.log={tmp_path}"],
        ["launch", "--log", tmp_path, tmp_path / "script.py"],
    ):
        assert main([str(word) for word in command]) == 64
        assert "log: expected " in capsys.readouterr().err
    assert read_job(tmp_path / "job.yaml", ["cluster.log=logs", "cluster.durability=disk"]).cluster.log


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/logs"])
def test_a_folder_for_logs_that_can_not_be_written_is_refused_before_anything_starts(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    write_examples(tmp_path / "train.parquet", 64)
    log, out = tmp_path / place, tmp_path / "run"
    (tmp_path / "job.yaml").write_text(
        f"data: {{train: train.parquet, schema: {{label: label, sparse: [id]}}}}\nmodel: {{name: lr}}\n"
        f"cluster: {{durability: log, log: {log}}}\nout: run\n"
    )
    (tmp_path / "script.py").write_text("")
    commands = {
        "cluster.log": ["train", tmp_path / "job.yaml"],
        "--log": ["launch", "--durability", "log", "--log", log, "--out", out, tmp_path / "script.py"],
    }
    for setting, command in commands.items():
        assert main([str(word) for word in command]) == 64
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"pslib: {setting}: {log} can't be written to: ")
    with pytest.raises(ConfigurationError, match=r"^log: \S+ can't be written to: ") as error:
        connect(durability="log", log=log)
    assert len(error.value.problems) == 1
    assert not out.exists()


@pytest.mark.parametrize("process", ["coordinator", "server-1"])
def test_logs_of_an_earlier_run_are_found_before_that_run_is_replaced(
    process: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only that run goes on with them; where another began in its folder, its checkpoint was gone then."""
    write_examples(tmp_path / "train.parquet", 64)
    (tmp_path / "script.py").write_text("")
    (tmp_path / "job.yaml").write_text(
        "data: {train: train.parquet, schema: {label: label, sparse: [id]}}\nmodel: {name: lr}\n"
        "cluster: {durability: log, log: logs}\nout: run\n"
    )
    log, kept = tmp_path / "logs", tmp_path / "run" / "checkpoint" / "manifest.json"
    for folder in (log / process, kept.parent):
        folder.mkdir(parents=True)
    kept.touch()
    (log / process / "generation").touch()  # it had only begun
    check_log("--log", str(log), resume=False)
    (log / process / "about").touch()
    check_log("--log", str(log), resume=True)
    out = ["--overwrite", "--out", tmp_path / "run"]
    commands = {
        "cluster.log": ["train", *out, tmp_path / "job.yaml"],
        "--log": ["launch", *out, "--durability", "log", "--log", log, tmp_path / "script.py"],
    }
    for setting, command in commands.items():
        assert main([str(word) for word in command]) == 64
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"pslib: {setting}: {log} holds the logs of an earlier run ({process}): ")
        assert kept.exists()


def test_the_trial_of_a_folder_for_logs_leaves_nothing(tmp_path: Path) -> None:
    check_log("--log", str(tmp_path / "a" / "b"), resume=False)
    assert list(tmp_path.iterdir()) == []


# --- the coordinator's side ---


class World(Cluster):
    """A coordinator session with two servers and two trainers, each the first at its place."""

    def __init__(self, **changes: Any) -> None:
        super().__init__(config=replace(CONFIG, **changes))

    def register(self, role: str, rank: int, generation: int = 0) -> Any:
        incarnation = 100 * generation + rank + 1
        self.incarnations[role, rank] = incarnation
        address = f"tcp://{role}:{incarnation}"
        return self.ask(Register(role, address, incarnation, incarnation, "host", rank, generation))

    def late_beat(self, role: str, rank: int, incarnation: int) -> Any:
        """Send a late heartbeat of the former holder of a place."""
        return self.ask(Heartbeat(role, rank, incarnation, 1, {}))


SERVERS = (("server", 0), ("server", 1))


def test_a_trainers_successor_has_its_place_and_its_leases_under_the_next_epoch() -> None:
    world = World()
    world.open(0)
    first = world.lease(0)
    answer = world.register("trainer", 0, generation=1)
    assert (answer.rank, answer.ready) == (0, True)
    again = world.lease(0)
    assert (again.index, again.epoch) == (first.index, first.epoch + 1)
    beat = world.late_beat("trainer", 0, 1)
    assert beat.order == "fail"
    assert "trainer 0 was restarted as pid 101 on host (generation 1)" in beat.reason
    assert any("trainer 0 restarted as pid 101 on host (generation 1; was pid 1 on host)" in e for e in
               world.session.events)  # fmt: skip


def test_the_run_goes_on_when_all_trainers_die_and_come_back() -> None:
    world = World()
    world.open(0)
    world.pass_time(10.0, *SERVERS)
    assert [member.state for member in world.session.members.trainers] == ["lost", "lost"]
    assert world.session.error == ""
    assert world.beat("server", 0).order == "go"
    world.register("trainer", 0, generation=1)
    world.pass_time(60.0, *SERVERS, ("trainer", 0))
    assert world.session.error == ""


@pytest.mark.parametrize("restarts", [0, 3])
def test_the_run_ends_when_all_trainers_die_and_nobody_comes_back(restarts: int) -> None:
    world = World(restarts=restarts)
    world.open(0)
    world.pass_time(35.0 if restarts else 6.0, *SERVERS)
    assert world.session.error == ""
    world.pass_time(3.0, *SERVERS)
    assert world.session.error == "all trainers are lost before the work was done"


def world_that_leaves() -> World:
    """All work is done, a trainer has left and the other is lost: the servers have begun to leave."""
    world = World()
    world.open(0, leases=0)
    world.leave("trainer", 0)
    world.pass_time(7.0, *SERVERS)
    return world


def test_servers_do_not_wait_for_a_trainer_that_died_when_all_was_done() -> None:
    assert world_that_leaves().beat("server", 0).order == "leave"


def test_a_successor_that_comes_as_the_servers_leave_is_told_that_nothing_is_left_to_do() -> None:
    """The successor would wait for servers that are gone, and the other processes for the successor."""
    world = world_that_leaves()
    assert world.beat("server", 0).order == "leave"
    assert world.register("trainer", 1, generation=1) == Failure(
        "work-done", "all work of this cluster is done; start a new one for other work"
    )
    assert world.beat("server", 1).order == "leave"


def test_without_jobs_nobody_knows_what_a_dead_trainer_has_left_to_do() -> None:
    world = World()
    world.leave("trainer", 0)
    world.pass_time(7.0, *SERVERS)
    assert world.beat("server", 0).order == "go"
    world.register("trainer", 1, generation=1)
    world.leave("trainer", 1)
    assert world.beat("server", 0).order == "leave"


def test_a_step_of_all_trainers_waits_for_the_successor_of_one() -> None:
    world = World()
    world.open(0, by_rank=True)
    world.pass_time(20.0, *SERVERS, ("trainer", 0))
    assert world.session.error == ""
    assert any(event.startswith("waiting 10 s for trainer 1") for event in world.session.events)
    world.register("trainer", 1, generation=1)
    world.pass_time(40.0, *SERVERS, ("trainer", 0), ("trainer", 1))
    assert world.session.error == ""
    assert world.lease(1).index == 1


def test_a_server_with_a_log_is_awaited_and_then_missed_in_one_line() -> None:
    world = World()
    trainers = (("trainer", 0), ("trainer", 1))
    world.pass_time(7.0, ("server", 0), *trainers)
    assert "waiting up to 30 s for it to come back from its log" in world.session.events[-1]
    world.pass_time(29.0, ("server", 0), *trainers)
    assert world.session.error == ""
    assert [e.partition(" for")[0] for e in world.session.events if e.startswith("waiting")] == [
        f"waiting {5 * n} s" for n in range(1, 6)
    ]
    world.pass_time(2.0, ("server", 0), *trainers)
    assert world.session.error.startswith("waited 30 s for server 1 (pid 2 on host)")


def test_a_servers_successor_stands_in_the_next_map() -> None:
    world = World()
    world.pass_time(10.0, ("server", 0), ("trainer", 0), ("trainer", 1))
    answer = world.register("server", 1, generation=1)
    assert (answer.ready, answer.map_version) == (True, 2)
    beat = world.beat("trainer", 0)
    assert (beat.map_version, list(beat.addresses)) == (2, ["tcp://server:1", "tcp://server:102"])
    assert world.late_beat("server", 1, 2).order == "fail"
    world.pass_time(60.0, *SERVERS, ("trainer", 0), ("trainer", 1))
    assert world.session.error == ""


def test_without_a_log_a_silent_server_ends_the_run_at_once() -> None:
    world = World(durability="memory")
    world.pass_time(7.0, ("server", 0), ("trainer", 0), ("trainer", 1))
    assert "server 1 at tcp://server:2" in world.session.error
    assert "counts as lost" in world.session.error


# --- with real processes ---


def push_for_ever(client: Client, rows: Any) -> None:
    while True:
        client.push(rows).wait()


@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.soak)])
def test_a_server_that_nobody_starts_again_is_awaited_and_then_ends_the_run(
    tmp_path: Path, how: signal.Signals
) -> None:
    """Asked to leave, it says so, and the wait begins at once; killed, it is missed after `silence_s`."""
    config = ClusterConfig(durability="log", timing=Timing(restart_s=0.5))
    transport = ZmqTransport()
    with processes_by_hand(config, "alone", tmp_path) as started:
        client = Client(transport, started.address, "alone", SystemClock())
        try:
            client.setup([TableSpec("t", (PartSpec("v", 1),))])
            rows = {"t": (np.arange(9, dtype=np.uint64), np.ones((9, 1), np.float32))}
            client.push(rows).wait()
            started.server.send_signal(how)
            with pytest.raises(UnavailableError, match="nobody has started it again") as told:
                push_for_ever(client, rows)
        finally:
            client.close()
            transport.close()
        assert f"s for server 0 (pid {started.server.pid} on " in str(told.value)
        assert started.server.wait(60) == (75 if how == signal.SIGTERM else -how)
        assert started.coordinator.wait(60) == 69
