"""SIGTERM: processes that are asked to leave finish what they have begun, and nothing is lost or repeated."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from launch.cli import main
from launch.draining import Draining
from launch.process import Task
from launch.verdict import Verdict
from pslib.checkpoint import read_manifest
from pslib.config import ClusterConfig
from pslib.protocol.coordinator_session import CoordinatorSession
from pslib.protocol.leases import stream_of
from pslib.protocol.messages import Heartbeat, Lease, Leave, NextLease, OpenJob, Register, Scale
from pslib.protocol.move_session import MoveSession
from tests.counting_runs import (
    SCRIPT,
    Start,
    assert_counted_once,
    launch_counting,
    train_in_step,
    write_counting_examples,
)

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_counting_examples(tmp_path_factory.mktemp("counting") / "examples.parquet")


# --- whose turn it is, without processes -------------------------------------------------------------------


class Asked:
    """Stands for a `launch.process.Running`."""

    def __init__(self) -> None:
        self.times = 0

    def leave(self) -> None:
        self.times += 1


COORDINATOR, SERVER, TRAINERS = (
    Task("coordinator", 0),
    Task("server", 0),
    (Task("trainer", 0), Task("trainer", 1)),
)
EVERYBODY = (COORDINATOR, SERVER, *TRAINERS)


def exits(coordinator=None, server=None, trainers=(None, None)):
    return dict(zip(EVERYBODY, (coordinator, server, *trainers), strict=True))


def test_servers_are_asked_when_all_trainers_have_left_and_nobody_is_asked_twice() -> None:
    running = {task: Asked() for task in EVERYBODY}
    draining = Draining(running, 20.0, lambda what, limit_s: False)
    for ended in ((None, None), (75, None), (75, None)):
        assert draining.turn(exits(trainers=ended)) is None
        assert running[SERVER].times == 0
    assert draining.turn(exits(trainers=(75, 75))) is None
    assert draining.turn(exits(trainers=(75, 75))) is None
    assert [running[task].times for task in EVERYBODY] == [0, 1, 1, 1]
    assert draining.turn(exits(server=75, trainers=(75, 75))) is None
    assert draining.turn(exits(0, 75, (75, 75))) == Verdict(75)


def test_each_step_of_leaving_has_a_limit() -> None:
    waits = []

    def waited(what: str, limit_s: float) -> bool:
        waits.append((what, limit_s))
        return True

    draining = Draining({task: Asked() for task in EVERYBODY}, 20.0, waited)
    for code in (exits(), exits(trainers=(0, 75)), exits(None, 75, (0, 75))):
        assert draining.turn(code) == Verdict(75)
    assert waits == [
        ("the trainers to leave", 25.0),
        ("the servers to leave", 10.0),
        ("the coordinator to leave", 4.0),
    ]


def test_a_server_that_dies_while_trainers_leave_is_named() -> None:
    draining = Draining({task: Asked() for task in EVERYBODY}, 20.0, lambda what, limit_s: False)
    assert draining.turn(exits(server=-9)) == Verdict(69, SERVER)


# --- what the coordinator makes of it ----------------------------------------------------------------------


def working_cluster(by_rank: bool = False, servers: int = 1) -> CoordinatorSession:
    """Servers, and two trainers that hold a lease each."""
    session = CoordinatorSession(ClusterConfig(servers=servers, trainers=2))
    for rank in range(servers):
        session.handle(
            0.0, Register("server", "tcp://s" if servers == 1 else f"tcp://s{rank}", rank + 1, 1, "host")
        )
    for rank in range(servers):
        session.handle(0.0, Heartbeat("server", rank, rank + 1, 1, {}))
    for rank in range(2):
        session.handle(0.0, Register("trainer", "", 10 + rank, 1, "host"))
    for rank in range(2):
        about = (rank, 0, "fit", 1, {"examples": 9, "epochs": 1}, np.zeros(3, np.uint32), by_rank)
        session.handle(0.0, OpenJob(*about))
        session.handle(0.0, NextLease(rank, 10 + rank, 0, np.zeros(0, np.uint64)))
    return session


def leave(session: CoordinatorSession, role: str, rank: int, incarnation: int, **progress: object) -> None:
    session.handle(1.0, Leave(role, rank, incarnation, progress, preempted=True))
    session.tick(1.0)


def test_the_lease_of_a_trainer_that_was_asked_to_leave_goes_on_at_its_next_batch() -> None:
    session = working_cluster()
    leave(session, "trainer", 0, 10, streams=[[stream_of(0, 0), 7]])
    assert session.error == ""
    lease = session.handle(1.0, NextLease(1, 11, 0, np.array([stream_of(0, 1)], np.uint64)))
    assert lease == Lease("held", stream_of(0, 0), 0, 1, 7)


def test_a_cluster_whose_trainers_were_all_asked_to_leave_has_not_failed_and_its_servers_may_go() -> None:
    session = working_cluster()
    leave(session, "trainer", 0, 10)
    leave(session, "trainer", 1, 11)
    assert session.error == ""
    assert session.handle(1.0, Heartbeat("server", 0, 1, 1, {})).order == "leave"


def test_a_trainer_of_a_job_in_step_that_was_asked_to_leave_ends_the_run_in_words() -> None:
    session = working_cluster(by_rank=True)
    leave(session, "trainer", 0, 10)
    assert "trainer 0 (pid 1 on host) has left before the job was done" in session.error
    assert "every step waits for every trainer" in session.error


def test_work_that_was_left_to_a_trainer_which_is_then_lost_is_lost_in_words() -> None:
    session = working_cluster()
    leave(session, "trainer", 0, 10)
    session.handle(2.0, NextLease(1, 11, 0, np.array([stream_of(0, 1)], np.uint64)))
    session.handle(2.0, Heartbeat("server", 0, 1, 1, {}))
    session.tick(2.0)
    assert session.error == ""
    for second in range(3, 100):
        session.handle(float(second), Heartbeat("server", 0, 1, 1, {}))
        session.tick(float(second))
    assert session.error == "all trainers are lost before the work was done"


def test_a_server_whose_units_nobody_can_take_leaves_with_them_and_hears_why() -> None:
    beat = working_cluster().handle(1.0, Heartbeat("server", 0, 1, 1, {"leaving": True}))
    assert beat.order == "leave"
    assert "no server would be left" in beat.reason


@pytest.mark.parametrize("wish", [0, 4])
def test_servers_that_are_all_asked_to_leave_keep_their_units_for_the_run_that_goes_on(wish: int) -> None:
    """The launcher asks them although a trainer, which has died, is still awaited."""
    session = working_cluster(servers=2)
    leave(session, "trainer", 0, 10)
    if wish:
        session.handle(1.0, Scale(wish, [], 7))
    before = session.moves.wanted, session.moves.awaited_ranks()
    asked = [Heartbeat("server", rank, rank + 1, 1, {"leaving": True}) for rank in range(2)]
    assert session.handle(2.0, asked[0]).order == "go"
    assert session.moves.leaving == {0}
    assert session.handle(2.0, asked[1]).order == "leave"
    assert session.handle(2.2, asked[0]).order == "leave"
    goes_on = MoveSession(session.members, print)
    for record in session.moves.records():
        goes_on.replay(record)
    assert goes_on.leaving == set()
    assert (goes_on.wanted, goes_on.awaited_ranks()) == before


def test_a_wish_for_fewer_servers_counts_although_one_that_goes_was_asked_to_leave_before() -> None:
    session = working_cluster(servers=2)
    leave(session, "trainer", 0, 10)
    session.handle(2.0, Heartbeat("server", 1, 2, 1, {"leaving": True}))
    session.handle(2.1, Scale(1, [], 7))
    assert session.handle(2.2, Heartbeat("server", 0, 1, 1, {"leaving": True})).order == "leave"
    assert (session.moves.wanted, session.moves.leaving) == (1, {1})


def test_a_server_that_is_asked_to_leave_long_before_the_others_stays_away() -> None:
    session = working_cluster(servers=3)
    session.handle(1.0, Scale(0, [2], 7))
    leave(session, "trainer", 0, 10)
    for rank in range(2):
        session.handle(2.0, Heartbeat("server", rank, rank + 1, 1, {"leaving": True}))
    assert session.moves.leaving == {0, 1, 2} - {1}
    last = session.handle(2.1, Heartbeat("server", 2, 3, 1, {"leaving": True}))
    assert (last.order, session.moves.leaving) == ("leave", {2})


def test_a_server_that_is_asked_to_leave_alone_ends_the_run_in_words() -> None:
    session = working_cluster()
    leave(session, "server", 0, 1, rows=5, updates_applied=6)
    assert session.error == (
        "server 0 at tcp://s (pid 1 on host) was asked to leave (SIGTERM), with about 5 rows and 6 updates; "
        "there is no checkpoint"
    )


# --- one process -------------------------------------------------------------------------------------------


def run_python(body: str, signals: list[float]) -> tuple[int, str, float]:
    """Run a program that has installed its preemption, and send it SIGTERM after these pauses."""
    program = f"import time\nfrom pslib.preemption import preemption\npreemption.install()\n{body}"
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", program],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    begin_s = time.monotonic()
    for pause_s in signals:
        time.sleep(pause_s)
        process.send_signal(signal.SIGTERM)
    said += process.communicate(timeout=60)[0]
    return process.returncode, said, time.monotonic() - begin_s


FINISHING = """
preemption.drain_s = {drain_s}
with preemption.finishing():
    print("ready")
    while not preemption.asked: time.sleep(0.01)
    print("asked", round(preemption.left_s))
    time.sleep({work_s})
    print("finished")
"""


def test_what_is_finishing_is_let_finish() -> None:
    code, said, _ = run_python(FINISHING.format(drain_s=20, work_s=0.3), [0.0])
    assert (code, said.split()) == (0, ["ready", "asked", "20", "finished"])


def test_a_second_signal_ends_at_once() -> None:
    code, said, seconds = run_python(FINISHING.format(drain_s=20, work_s=15), [0.0, 0.3])
    assert (code, "finished" in said) == (75, False)
    assert seconds < 3


def test_what_is_never_finished_is_ended_when_the_time_is_over() -> None:
    code, said, seconds = run_python(FINISHING.format(drain_s=0.2, work_s=15), [0.0])
    assert code == 1  # an exception that nobody has caught: a worker makes 75 of it
    assert "not all was finished within 0.2 s" in said
    assert seconds < 5


def test_where_nothing_is_to_be_finished_the_signal_is_an_error() -> None:
    _, said, seconds = run_python("print('ready'); time.sleep(15)", [0.0])
    assert said.endswith("PreemptedError: asked to leave (SIGTERM)\n")
    assert seconds < 3


# --- whole runs --------------------------------------------------------------------------------------------


def test_a_trainer_that_is_asked_to_leave_gives_its_leases_back_and_every_example_counts_once(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command = launch_counting(start, examples, tmp_path, trainers=3, more=["--pause-s", "0.01"])
    command.kill("trainer 1", signal.SIGTERM)
    time.sleep(0.5)
    command.kill("trainer 0", signal.SIGTERM)
    assert command.finish(60) == 0, command.output
    assert_counted_once(tmp_path / "checkpoint", examples)
    (line,) = command.lines("asked to leave (SIGTERM)")
    assert "all pushes are acknowledged, and its leases go back" in line
    assert "is lost" not in command.output
    assert "Traceback" not in command.output


@pytest.mark.parametrize("durability", ["memory", "log"])
def test_a_server_that_is_asked_to_leave_gives_its_units_to_the_others_and_nothing_is_lost(
    start: Start, examples: Path, tmp_path: Path, durability: str
) -> None:
    more, options = ["--pause-s", "0.03"], ["--durability", durability]
    command = launch_counting(start, examples, tmp_path, more=more, options=options)
    command.kill("server 1", signal.SIGTERM)
    command.wait_for("1 server shall own all units: servers [1] leave", 60)
    assert command.finish(120) == 0, command.output
    assert_counted_once(tmp_path / "checkpoint", examples)
    assert "started again" not in command.output
    assert "Traceback" not in command.output


def test_the_only_server_that_is_asked_to_leave_comes_back_from_its_log(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    more, options = ["--pause-s", "0.01"], ["--durability", "log"]
    command = launch_counting(start, examples, tmp_path, servers=1, more=more, options=options)
    command.kill("server 0", signal.SIGTERM)
    assert command.finish(120) == 0, command.output
    assert_counted_once(tmp_path / "checkpoint", examples)
    assert len(command.lines("started again in 0.5 s (1 of 3)")) == 1
    assert "Traceback" not in command.output


def test_a_run_that_is_asked_to_leave_flushes_all_it_has_pushed_and_ends_with_75(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command = launch_counting(start, examples, tmp_path, more=["--pause-s", "0.01", "--epochs", "50"])
    time.sleep(0.5)
    command.process.terminate()
    asked_s = time.monotonic()
    assert command.finish(20) == 75
    assert time.monotonic() - asked_s < 30
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["pushes_sent"] == summary["pushes_applied"] > 0
    assert summary["updates_sent"] == summary["updates_applied"] > 0
    for number in range(2):
        log = (tmp_path / "out" / "logs" / f"server-{number}.log").read_text()
        assert "Traceback" not in log
    assert "is lost" not in command.output
    assert "Traceback" not in command.output


def test_a_trainer_whose_pushes_nobody_acknowledges_leaves_when_its_time_is_over(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command = start(
        "launch", "--servers", "1", "--trainers", "1", "--drain-s", "1", "--out", tmp_path / "out",
        SCRIPT, examples, tmp_path / "checkpoint", "--pause-s", "0.5",
    )  # fmt: skip
    command.wait_for("first batch")
    command.kill("server 0", signal.SIGSTOP)  # while a batch is computed: nearly all of the time it is
    time.sleep(1.0)  # its push is on its way by then, and nobody answers
    command.process.terminate()
    command.wait_for("not acknowledged, and its leases go back", 10)
    command.process.terminate()
    assert command.finish(15) == 75
    assert "Traceback" not in command.output


def test_a_run_in_step_ends_with_75_when_one_of_its_trainers_is_asked_to_leave(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command = train_in_step(start, examples, tmp_path)
    command.kill("trainer 1", signal.SIGTERM)
    assert command.finish(40) == 75, command.output
    assert command.lines("all pushes are acknowledged, and its leases go back")
    (line,) = command.lines("with consistency sync every step waits for every trainer")
    assert "trainer 1 (pid " in line
    assert "start again from the beginning: there is no checkpoint" in line
    assert "Traceback" not in command.output


def test_a_second_sigterm_ends_a_run_at_once(start: Start, examples: Path, tmp_path: Path) -> None:
    command = launch_counting(start, examples, tmp_path, more=["--pause-s", "30"])
    command.process.terminate()
    command.wait_for("got SIGTERM")
    time.sleep(0.3)
    again_s = time.monotonic()
    command.process.terminate()
    assert command.finish(15) == 75
    assert time.monotonic() - again_s < 30  # a picture of the run is drawn, on a machine that may be busy


def test_a_run_without_logs_that_is_asked_to_leave_between_two_epochs_is_saved_as_the_next_one_begins(
    start: Start, tmp_path: Path
) -> None:
    """Its epochs are short, and its evaluations take most of the time."""
    few, many = tmp_path / "few.parquet", tmp_path / "many.parquet"
    data = {
        "train": str(write_counting_examples(few, 500)),
        "valid": str(write_counting_examples(many, 100_000)),
    }
    job = {
        "data": data | {"schema": {"label": "label", "sparse": ["id", "shared"]}},
        "model": {"name": "fm", "dim": 4},
        "training": {"batch_rows": 256, "epochs": 12, "seed": 7},
    }
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(job))  # JSON is YAML
    command = start("train", path, "--out", tmp_path / "out")
    command.wait_for_file("metrics.jsonl", '"phase": "evaluating"')
    command.process.terminate()
    assert command.finish(60) == 75, command.output
    assert command.lines("saved "), command.output
    (line,) = command.lines("go on with: pslib ")
    assert str(tmp_path / "out" / "checkpoint-preempted" / "checkpoint-") in line
    again = start(*line.split("go on with: pslib ")[1].split(), "--quiet")
    assert again.finish(90) == 0, again.output
    assert read_manifest(str(tmp_path / "out" / "checkpoint")).about["epochs"] == 12


def test_a_run_without_logs_saves_itself_when_it_is_asked_to_leave_and_resumes_to_the_same_bits(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    """One trainer, staleness 0: the checkpoint at the end is that of a run that nobody has interrupted."""
    job = {
        "data": {"train": str(examples), "schema": {"label": "label", "sparse": ["id", "shared"]}},
        "model": {"name": "fm", "dim": 4},
        "training": {"batch_rows": 256, "epochs": 8, "seed": 7, "staleness": 0},
        "cluster": {"servers": 2, "trainers": 1},
    }
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(job))  # JSON is YAML
    whole = start("train", path, "--quiet", "--out", tmp_path / "whole")
    assert whole.finish(60) == 0, whole.output
    cut = start("train", path, "--out", tmp_path / "out")
    cut.wait_for_file("metrics.jsonl", '"phase": "training"')
    cut.process.terminate()
    assert cut.finish(30) == 75, cut.output
    assert cut.lines("saved "), cut.output
    assert cut.lines(" s] preempted, ")
    assert not cut.lines(" s] done")
    (line,) = cut.lines("go on with: pslib ")
    assert str(tmp_path / "out" / "checkpoint-preempted" / "checkpoint-") in line
    again = start(*line.split("go on with: pslib ")[1].split(), "--quiet")
    assert again.finish(60) == 0, again.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert 0 < summary["pushes_applied"] < 8 * 94  # the second part alone
    assert '"phase": "training"' in (tmp_path / "out" / "metrics-0.jsonl").read_text()  # the first one's
    folders = [str(tmp_path / one / "checkpoint") for one in ("whole", "out")]
    assert main(["checkpoint", "diff", *folders]) == 0
