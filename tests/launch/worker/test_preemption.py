"""SIGTERM: processes that are asked to leave finish what they have begun, and nothing is lost or repeated."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.cli.main import main
from launch.job.preflight import _held
from pslib.checkpoint import read_manifest
from tests.support.processes.counting_runs import (
    SCRIPT,
    SLOWLY,
    Start,
    assert_counted_once,
    launch_counting,
    train_in_step,
    write_counting_examples,
    write_job,
)

LONG = {"batch_rows": 128, "epochs": 8}
"""So many batches that a run is still training when its metrics, a line a second, have said that it does."""
ROOT = Path(__file__).resolve().parents[3]
WORK_S = 40
"""Duration of work that is not to be finished: a process that ends in half of that has not waited for it."""


# --- one process -------------------------------------------------------------------------------------------


def run_python(body: str, signals: list[float]) -> tuple[int, str, float]:
    """Run a program with its preemption installed; SIGTERM after each of these pauses, and a line of it."""
    program = f"import time\nfrom pslib.process.shutdown import preemption\npreemption.install()\n{body}"
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
    for number, pause_s in enumerate(signals):
        if number:  # it has heard the one before: two that it has not are one
            said += process.stdout.readline()
        time.sleep(pause_s)
        process.send_signal(signal.SIGTERM)
    said += process.communicate(timeout=60)[0]
    return process.returncode, said, time.monotonic() - begin_s


FINISHING = """
preemption.drain_s = {drain_s}
with preemption.finishing():
    print("ready")
    while not preemption.asked: time.sleep(0.01)
    print("asked", preemption.left_s)
    time.sleep({work_s})
    print("finished")
"""


def test_what_is_finishing_is_let_finish() -> None:
    code, said, seconds = run_python(FINISHING.format(drain_s=200, work_s=0.3), [0.0])
    ready, asked, left_s, finished = said.split()
    assert (code, ready, asked, finished) == (0, "ready", "asked", "finished")
    assert 200 - seconds < float(left_s) < 200


def test_a_second_signal_ends_at_once() -> None:
    code, said, seconds = run_python(FINISHING.format(drain_s=WORK_S, work_s=WORK_S), [0.0, 0.3])
    assert (code, "finished" in said) == (75, False)
    assert seconds < WORK_S / 2


def test_what_is_never_finished_is_ended_when_the_time_is_over() -> None:
    code, said, seconds = run_python(FINISHING.format(drain_s=0.2, work_s=WORK_S), [0.0])
    assert code == 1  # an uncaught exception: a worker makes 75 of it
    assert "not all was finished within 0.2 s" in said
    assert seconds < WORK_S / 2


def test_where_nothing_is_to_be_finished_the_signal_is_an_error() -> None:
    _, said, seconds = run_python(f"print('ready'); time.sleep({WORK_S})", [0.0])
    assert said.endswith("PreemptedError: asked to leave (SIGTERM)\n")
    assert seconds < WORK_S / 2


# --- whole runs --------------------------------------------------------------------------------------------


def test_a_trainer_that_is_asked_to_leave_gives_its_leases_back_and_every_example_counts_once(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command = launch_counting(start, examples, tmp_path, trainers=3, more=SLOWLY)
    command.kill("trainer 1", signal.SIGTERM)
    time.sleep(0.5)
    command.kill("trainer 0", signal.SIGTERM)
    command.hurry()
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
    options = ["--durability", durability]
    command = launch_counting(start, examples, tmp_path, more=SLOWLY, options=options)
    command.kill("server 1", signal.SIGTERM)
    command.wait_for("scaling to 1 server: servers [1] leave", 60)
    command.hurry()
    assert command.finish(120) == 0, command.output
    assert_counted_once(tmp_path / "checkpoint", examples)
    assert "started again" not in command.output
    assert "Traceback" not in command.output


def test_the_only_server_that_is_asked_to_leave_comes_back_from_its_log(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    options = ["--durability", "log"]
    command = launch_counting(start, examples, tmp_path, servers=1, more=SLOWLY, options=options)
    command.kill("server 0", signal.SIGTERM)
    command.wait_for("started again in 0.5 s (1 of 3)", 60)
    command.hurry()
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
    assert command.finish(20) == 75
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["pushes_sent"] == summary["pushes_applied"] > 0
    assert summary["updates_sent"] == summary["updates_applied"] > 0
    assert 0.5 < summary["fit_seconds"] < summary["seconds"]
    assert summary["examples_per_s"] == pytest.approx(summary["examples"] / summary["fit_seconds"], rel=0.01)
    for number in range(2):
        log = (tmp_path / "out" / "logs" / f"server-{number}.log").read_text()
        assert "Traceback" not in log
    assert "is lost" not in command.output
    assert "Traceback" not in command.output


def test_a_trainer_whose_pushes_nobody_acknowledges_leaves_when_its_time_is_over(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    command = start(
        "launch", "--servers", "1", "--trainers", "1", "--drain-s", "2", "--out", tmp_path / "out",
        SCRIPT, examples, tmp_path / "checkpoint", "--pause-s", "0.5",
    )  # fmt: skip
    command.wait_for("first batch")
    command.kill("server 0", signal.SIGSTOP)  # while a batch is computed: nearly all of the time it is
    time.sleep(1.0)  # its push is on its way by then, and gets no answer
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
    more, options = ["--pause-s", "200"], ["--drain-s", "150"]
    command = launch_counting(start, examples, tmp_path, more=more, options=options)
    command.process.terminate()
    command.wait_for("got SIGTERM")
    time.sleep(0.3)
    command.process.terminate()
    assert command.finish(15) == 75


def test_a_run_without_logs_that_is_asked_to_leave_between_two_epochs_is_saved_as_the_next_one_begins(
    start: Start, tmp_path: Path
) -> None:
    """Its epochs are short, and its evaluations take most of the time."""
    few = write_counting_examples(tmp_path / "few.parquet", 500)
    many = write_counting_examples(tmp_path / "many.parquet", 100_000)
    command = start("train", write_job(tmp_path, few, {"epochs": 20}, {}, valid=str(many)))
    command.wait_for_file("metrics.jsonl", '"phase": "evaluating"')
    command.process.terminate()
    assert command.finish(60) == 75, command.output
    assert command.lines("saved "), command.output
    (line,) = command.lines("go on with: pslib ")
    assert str(tmp_path / "out" / "checkpoint-unfinished" / "checkpoint-") in line
    again = start(*line.split("go on with: pslib ")[1].split(), "--quiet")
    assert again.finish(90) == 0, again.output
    assert read_manifest(str(tmp_path / "out" / "checkpoint")).about["epochs"] == 20


def test_a_run_with_logs_goes_on_with_as_many_servers_as_it_began_with_and_no_others(
    start: Start, examples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = {"servers": 2, "trainers": 1, "durability": "log"}
    path, out = write_job(tmp_path, examples, LONG, cluster), tmp_path / "out"
    cut = start("train", path)
    cut.wait_for_file("metrics.jsonl", '"phase": "training"')
    cut.process.terminate()
    assert cut.finish(30) == 75, cut.output
    before = {one: one.stat().st_mtime_ns for one in out.rglob("*")}
    for count, how in ((1, "shrink"), (3, "grow")):
        arguments = ["train", str(path), "--out", str(out), "--resume", "--servers", str(count)]
        assert main(arguments) == 64
        assert capsys.readouterr().err == (
            f"pslib: cluster.servers: this run began with 2, got {count}: resume with 2, then {how} it: "
            f"pslib scale {out} --servers {count}\n"
        )
    assert {one: one.stat().st_mtime_ns for one in out.rglob("*")} == before
    fcntl.flock(_held.pop(str(out)), fcntl.LOCK_UN)  # that of this process
    again = start("train", path, "--out", out, "--resume", "--servers", "2", "--quiet")
    assert again.finish(60) == 0, again.output
    assert read_manifest(str(out / "checkpoint")).about["epochs"] == 8


def test_a_run_does_not_go_on_without_the_log_of_one_of_its_servers(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    more, options = ["--pause-s", "0.05"], ["--durability", "log"]
    command = launch_counting(start, examples, tmp_path, more=more, options=options)
    time.sleep(0.5)
    command.process.terminate()
    assert command.finish(40) == 75, command.output
    log = tmp_path / "out" / "log" / "server-1"
    log.rename(tmp_path / "moved")
    options = ["--servers", "2", "--trainers", "2", "--out", tmp_path / "out", *options, "--resume"]
    again = start("launch", *options, SCRIPT, examples, tmp_path / "checkpoint")
    assert again.finish(60) == 69, again.output
    told = (
        "has no log of what its predecessor knew; restore LOG/server-1 in place of the new folder, or "
        "start again from the beginning"
    )
    assert again.lines(told), again.output
    assert "Traceback" not in again.output
    assert not (tmp_path / "checkpoint").exists()
    assert not (log / "about").exists(), "the next attempt would take a log that begins here for the old one"


def test_a_run_without_logs_saves_itself_when_it_is_asked_to_leave_and_resumes_to_the_same_bits(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    """One trainer, staleness 0: the checkpoint at the end is that of an uninterrupted run."""
    path = write_job(tmp_path, examples, LONG | {"staleness": 0}, {"servers": 2, "trainers": 1})
    whole = start("train", path, "--quiet", "--out", tmp_path / "whole")
    assert whole.finish(60) == 0, whole.output
    cut = start("train", path)
    cut.wait_for_file("metrics.jsonl", '"phase": "training"')
    cut.process.terminate()
    assert cut.finish(30) == 75, cut.output
    assert cut.lines("saved "), cut.output
    assert cut.lines(" s] preempted, ")
    assert not cut.lines(" s] done")
    (line,) = cut.lines("go on with: pslib ")
    assert str(tmp_path / "out" / "checkpoint-unfinished" / "checkpoint-") in line
    again = start(*line.split("go on with: pslib ")[1].split(), "--quiet")
    assert again.finish(60) == 0, again.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert 0 < summary["pushes_applied"] < 8 * 188  # the second part alone
    assert '"phase": "training"' in (tmp_path / "out" / "metrics-0.jsonl").read_text()  # the first one's
    folders = [str(tmp_path / one / "checkpoint") for one in ("whole", "out")]
    assert main(["checkpoint", "diff", *folders]) == 0
