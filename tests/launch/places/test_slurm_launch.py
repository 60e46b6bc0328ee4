"""Launching under Slurm: an allocation of two nodes of a real one, with a daemon each, on this machine."""

import json
import signal

import pytest

from launch.cli.main import main
from launch.places.options import HostOptions, selected_launcher
from pslib.data.synthetic.generator import GeneratorConfig, generate
from tests.support.processes.command import Command
from tests.support.processes.counting_runs import write_counting_examples
from tests.support.processes.slurm_nodes import run
from tests.support.processes.standin_launch import (
    assert_killed_trainer_is_named,
    processes_of,
    start_launcher,
)
from tests.support.waiting import wait_until


@pytest.mark.root
def test_a_run_under_slurm_gathers_results_and_names_a_killed_trainer(allocation, tmp_path):
    assert_killed_trainer_is_named(tmp_path, selected_launcher(HostOptions(on="slurm")), "n1")


@pytest.mark.root
def test_steps_end_when_their_launcher_is_killed(allocation, tmp_path):
    behaviours = {
        "coordinator": "ready;sleep",
        "server": "ready;sleep",
        "trainer": "spawn;stubborn;ready;sleep",
    }
    launcher = start_launcher(tmp_path, behaviours, "slurm")
    launcher.kill()
    launcher.communicate(timeout=60)
    wait_until(lambda: not processes_of(tmp_path), 15, "all processes to end")


@pytest.mark.root
@pytest.mark.parametrize("network", [(), ("--insecure-network",)], ids=["encrypted", "plain"])
def test_a_job_file_trains_on_all_nodes_of_an_allocation(allocation, tmp_path, capfd, network):
    generate(tmp_path / "data", GeneratorConfig(train_rows=8_000, test_rows=2_000, vocabularies=(50, 60)))
    (tmp_path / "job.yaml").write_text(
        "data: {train: data/train.parquet, schema: {label: label, sparse: [C1, C2]}}\n"
        "model: {name: lr}\ntraining: {batch_rows: 256}\ncluster: {servers: 3, trainers: 5}\nout: run\n"
    )
    each = ("--per-node", "servers=1 trainers=2")
    code = main(["train", str(tmp_path / "job.yaml"), "--on", "slurm", *each, *network, "--quiet"])
    assert code == 0, capfd.readouterr().err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["examples"], summary["servers"], summary["trainers"]) == (8_000, 2, 4)
    assert summary["pushes_sent"] == summary["pushes_applied"]
    assert summary["pushes_sent"] >= 32


@pytest.mark.root
def test_a_job_that_slurm_ends_saves_itself_and_goes_on_with_the_line_that_it_has_said(
    allocation, tmp_path, start
):
    """Slurm sends SIGTERM to all steps and, where its script says exec, to pslib, as at the time limit."""
    write_counting_examples(tmp_path / "examples.parquet", 60_000)
    (tmp_path / "job.yaml").write_text(
        "data: {train: examples.parquet, schema: {label: label, sparse: [id, shared]}}\n"
        "model: {name: fm, dim: 4}\ntraining: {batch_rows: 64, epochs: 3}\n"
        "checkpoint: {path: saved}\nout: out\n"
    )
    command: Command = start("train", tmp_path / "job.yaml", "--on", "slurm")
    command.wait_for_file("metrics.jsonl", '"phase": "training"', 60)
    run("scancel", "--signal=TERM", allocation)
    command.process.send_signal(signal.SIGTERM)
    assert command.finish(60) == 75, command.output
    assert "Traceback" not in command.output
    assert "srun: " not in command.output
    (line,) = command.lines("go on with: ")
    assert "--resume --on slurm" in line
    again: Command = start("train", tmp_path / "job.yaml", "--resume", "--on", "slurm")
    assert again.finish(120) == 0, again.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["examples"] == 180_000


@pytest.mark.root
def test_a_node_that_can_not_be_asked_is_told_in_sruns_own_words(allocation, tmp_path, capfd, monkeypatch):
    write_counting_examples(tmp_path / "examples.parquet", 100)
    (tmp_path / "job.yaml").write_text(
        "data: {train: examples.parquet, schema: {label: label, sparse: [shared]}}\n"
        "model: {name: lr}\nout: run\n"
    )
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert main(["train", str(tmp_path / "job.yaml"), "--on", "slurm"]) == 69
    said = capfd.readouterr().err
    assert "n1: srun ended with exit code 1: srun: error: " in said
    assert "try srun --overlap --jobid=4711 --nodelist=n1 --ntasks=1 true" in said
    assert not (tmp_path / "run").exists()
