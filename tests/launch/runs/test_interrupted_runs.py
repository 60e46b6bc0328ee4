"""Ctrl-C: what was trained is saved, and the run that goes on counts every example once."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest

from launch.cli.main import main
from launch.job.job import read_job
from tests.support.processes.command import Command
from tests.support.processes.counting_runs import (
    ROWS,
    SCRIPT,
    SLOWLY,
    Start,
    assert_counted_once,
    launch_counting,
    write_job,
)

GOES_ON = "go on with: pslib "
EPOCHS = 8


def summary_of(command: Command) -> dict[str, object]:
    return json.loads((command.out / "summary.json").read_text())


@pytest.mark.parametrize("times", [3, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_a_run_that_is_interrupted_at_any_moments_and_goes_on_ends_with_the_bits_of_one_that_was_not(
    start: Start, examples: Path, tmp_path: Path, times: int
) -> None:
    """One trainer, staleness 0: an example that is lost or counted twice would be seen in the parameters."""
    training = {"batch_rows": 128, "epochs": EPOCHS * max(1, times // 2), "staleness": 0}
    path = write_job(tmp_path, examples, training, {"servers": 2, "trainers": 1})
    whole = start("train", path, "--quiet", "--out", tmp_path / "whole")
    assert whole.finish(120) == 0, whole.output
    choice = random.Random(times)
    arguments, interrupted = ["train", str(path)], 0
    for _ in range(times):
        (tmp_path / "out" / "metrics.jsonl").unlink(missing_ok=True)  # of the launch before
        command = start(*arguments)
        command.wait_for_file("metrics.jsonl", '"phase": "training"')
        time.sleep(choice.uniform(0.0, 1.5))
        command.process.send_signal(signal.SIGINT)
        code = command.finish(40)
        if code == 0:
            break
        interrupted += 1
        assert code == 130, command.output
        assert "Traceback" not in command.output
        summary = summary_of(command)
        assert (summary["phase"], summary["error"]) == ("interrupted", None)
        assert summary["pushes_sent"] == summary["pushes_applied"]
        (line,) = command.lines(GOES_ON)
        done = summary["epochs"] == training["epochs"]  # interrupted between its last save and its end
        place = "checkpoint;" if done else "checkpoint-unfinished/checkpoint-"
        assert f"pslib: the checkpoint is {tmp_path}/out/{place}" in line
        arguments = line.split(GOES_ON)[1].split()
        assert arguments == ["train", "--resume", "out"]
    assert interrupted > 0
    last = start(*arguments, "--quiet")
    assert last.finish(120) == 0, last.output
    summary = summary_of(last)
    assert summary["examples"] == training["epochs"] * ROWS
    assert summary["epochs"] == training["epochs"]
    assert summary["pushes_sent"] == summary["pushes_applied"]
    assert (
        main(["checkpoint", "diff", *(str(tmp_path / one / "checkpoint") for one in ("whole", "out"))]) == 0
    )


@pytest.mark.parametrize("consistency", ["async", "sync"])
def test_several_trainers_that_are_interrupted_count_every_example_once(
    start: Start, examples: Path, tmp_path: Path, consistency: str
) -> None:
    training = {"batch_rows": 128, "epochs": EPOCHS, "consistency": consistency}
    path = write_job(tmp_path, examples, training, {"servers": 2, "trainers": 2})
    command = start("train", path)
    command.wait_for_file("metrics.jsonl", '"phase": "training"')
    command.process.send_signal(signal.SIGINT)
    assert command.finish(40) == 130, command.output
    assert not command.lines("asked to leave"), "that is what they were asked for"
    assert not command.lines("ended with exit code"), command.output
    trained = summary_of(command)["examples"]
    again = start(*command.lines(GOES_ON)[0].split(GOES_ON)[1].split(), "--quiet")
    assert again.finish(120) == 0, again.output
    summary = summary_of(again)
    assert (summary["examples"], summary["epochs"]) == (EPOCHS * ROWS, EPOCHS)
    assert 0 < summary["examples_before"] < EPOCHS * ROWS
    assert summary["examples_before"] == trained, "nothing is trained while the checkpoint is written"
    assert summary["pushes_sent"] == summary["pushes_applied"]


def test_a_run_that_is_interrupted_twice_ends_at_once(start: Start, examples: Path, tmp_path: Path) -> None:
    more, options = ["--pause-s", "200"], ["--drain-s", "150"]
    command = launch_counting(start, examples, tmp_path, more=more, options=options)
    command.process.send_signal(signal.SIGINT)
    command.wait_for("got SIGINT: all leave in order, trainers within 150 s; again: at once")
    command.process.send_signal(signal.SIGINT)
    assert command.finish(15) == 130
    assert "Traceback" not in command.output


def test_a_script_with_logs_goes_on_after_ctrl_c_where_it_was(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    options = ["--durability", "log"]
    command = launch_counting(start, examples, tmp_path, more=SLOWLY, options=options)
    command.process.send_signal(signal.SIGINT)
    assert command.finish(60) == 130, command.output
    assert command.lines(f"its logs, {tmp_path}/out/log; go on with the same command and --resume")
    command.hurry()
    again = start(
        "launch", "--servers", "2", "--trainers", "2", "--out", tmp_path / "out", *options, "--resume",
        SCRIPT, examples, tmp_path / "checkpoint",
    )  # fmt: skip
    assert again.finish(60) == 0, again.output
    assert_counted_once(tmp_path / "checkpoint", examples)


def test_a_run_that_is_done_leaves_no_checkpoint_of_the_unfinished_training(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    path = write_job(tmp_path, examples, {"epochs": EPOCHS}, {"servers": 1, "trainers": 1})
    command = start("train", path, "--set", "checkpoint.every_batches=20")
    assert command.finish(60) == 0, command.output
    assert command.lines(f"pslib: saved {tmp_path}/out/checkpoint-unfinished/checkpoint-0")
    assert (tmp_path / "out" / "checkpoint" / "manifest.json").exists()
    assert not (tmp_path / "out" / "checkpoint-unfinished").exists()


def test_two_runs_with_one_checkpoint_path_go_on_each_with_its_own_training(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    path = write_job(tmp_path, examples, {"batch_rows": 128, "epochs": EPOCHS}, {"servers": 1, "trainers": 1})
    shared = tmp_path / "saved" / "model"
    for folder in ("out", "out-2"):
        command = start("train", path, "--set", f"checkpoint.path={shared}")
        command.wait_for_file(f"../{folder}/metrics.jsonl", '"phase": "training"')
        command.process.send_signal(signal.SIGINT)
        assert command.finish(40) == 130, command.output
        assert command.lines(f"the checkpoint is {tmp_path}/{folder}/checkpoint-unfinished/checkpoint-0")
    again = start("train", "--resume", tmp_path / "out", "--quiet")
    assert again.finish(120) == 0, again.output
    load = read_job(tmp_path / "out" / "job.yaml").load
    assert load is not None
    assert load.path.startswith(f"{tmp_path}/out/checkpoint-unfinished/")
    assert [one.name for one in shared.parent.iterdir()] == ["model"]
    assert not (tmp_path / "out" / "checkpoint-unfinished").exists()
    assert (tmp_path / "out-2" / "checkpoint-unfinished").exists()
