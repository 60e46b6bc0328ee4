"""Jobs and scripts that are launched on this machine, with real servers and trainers: what they leave."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launch.cli.main import main
from launch.job.yaml12 import write_yaml
from launch.runs.demo import demo_job
from launch.supervisor.run_spec import Outcome
from pslib.data.synthetic.generator import GeneratorConfig, generate
from pslib.process.machine import cores
from tests.support.processes.standin_launch import (
    ROOT,
    processes_of,
)
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data that the demonstration's job file fits, and that job file."""
    folder = tmp_path_factory.mktemp("data")
    generate(folder / "data", GeneratorConfig(train_rows=60_000, test_rows=10_000))
    (folder / "job.yaml").write_text(write_yaml(demo_job("data", "run")))
    return folder


def start_training(data: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    """``pslib train`` in a process of its own; all its processes carry the mark of ``out``."""
    command = [
        sys.executable,
        "-m",
        "launch.cli.main",
        "train",
        str(data / "job.yaml"),
        "--out",
        str(out),
        "--quiet",
    ]
    return subprocess.Popen(
        [*command, *options],
        cwd=ROOT,
        env={**os.environ, "STANDIN_FOLDER": str(out)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_job_trains_on_two_servers_and_two_trainers_and_leaves_its_records(data, tmp_path):
    out = tmp_path / "run"
    training = start_training(data, out, "--tensorboard")
    said, errors = training.communicate(timeout=100)
    assert training.returncode == 0, errors
    assert errors == ""
    summary = json.loads((out / "summary.json").read_text())
    assert summary["examples"] == 60_000
    assert summary["pushes_sent"] == summary["pushes_applied"] >= 59
    assert (summary["servers"], summary["trainers"], summary["seed"], summary["exit_code"]) == (2, 2, 1, 0)
    assert summary["best_possible_auc"] > summary["auc"] > 0.6
    assert summary["staleness_mean"] <= summary["staleness_max"] <= 2
    assert 0 < summary["pushes_between_mean"] < summary["pushes_between_max"]  # of both trainers
    assert f"AUC           {summary['auc']:.4f} (best possible" in said
    assert f"checkpoint    {out}/checkpoint" in said
    assert (out / "run.png").stat().st_size > 10_000
    assert [file.stat().st_size > 1_000 for file in (out / "tensorboard").iterdir()] == [True]
    wait_until(lambda: not processes_of(out), 5, "all processes to end")
    evaluated = subprocess.run(
        [sys.executable, "-m", "launch.cli.main", "eval", out / "job.yaml", "--checkpoint", out /
        "checkpoint",
         "--servers", "3"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert f"AUC         {summary['auc']:.6f}" in evaluated.stdout


def test_a_bad_value_deep_in_the_data_is_told_in_a_line_before_where_the_records_are(data, tmp_path):
    table = pq.read_table(data / "data" / "train.parquet")
    labels = table.column("label").to_numpy().astype("f4")
    labels[50_000] = 0.5  # between 0 and 1: no statistic of the file gives it away before the run starts
    bad = table.set_column(0, "label", pa.array(labels))
    pq.write_table(bad, tmp_path / "bad.parquet", row_group_size=10_000)
    training = start_training(data, tmp_path / "run", "--set", f"data.train={tmp_path}/bad.parquet")
    _, errors = training.communicate(timeout=60)
    assert training.returncode == 64, errors
    lines = errors.splitlines()
    assert all(one.startswith("pslib: ") for one in lines)  # also what was saved, and how to go on
    line = next(one for one in lines if "a label is 0 or 1" in one)
    (records,) = [one for one in lines if one.startswith("pslib: its records: ")]
    assert lines.index(line) < lines.index(records)
    assert str(tmp_path / "run" / "metrics.jsonl") in records
    assert "bad.parquet" in line
    assert line.endswith(json.loads((tmp_path / "run" / "summary.json").read_text())["error"])


SCRIPT = """\
import os, sys
import pslib
with pslib.connect() as cluster:
    print("rank", cluster.rank, "of", cluster.trainers, sys.argv[1:], os.environ["OPENBLAS_NUM_THREADS"])
"""


def test_a_script_runs_in_every_trainer_with_its_arguments_and_share_of_the_cores(
    tmp_path, capfd, monkeypatch
):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    code = main(["launch", "--servers", "2", "--trainers", "2", "--quiet", str(script), "--its", "own"])
    said = capfd.readouterr().out.splitlines()
    assert code == 0
    share = max(1, (cores() - 1) // 2)
    assert sorted(line.partition("] ")[2] for line in said) == [
        f"rank {rank} of 2 ['--its', 'own'] {share}" for rank in (0, 1)
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--servers 2 --trainers=2 --out DIR --servers 3", "--servers, --trainers, --out"),
        ("--lr 0.1 --quiet", "--quiet"),
        ("--lr 0.1 --help -- --servers 2", ""),
        ("servers 2", ""),
    ],
)
def test_options_of_launch_behind_the_script_are_the_scripts_and_pointed_out(
    arguments, said, tmp_path, capsys, monkeypatch
):
    (tmp_path / "train.py").touch()
    given = []

    def run(launcher, plan, *_, **__):
        given.append(plan.trainer_arguments[1:])
        return Outcome(0), {}

    monkeypatch.setattr("launch.runs.script.run_recorded", run)
    assert main(["launch", "--quiet", str(tmp_path / "train.py"), *arguments.split()]) == 0
    assert given == [tuple(arguments.split())]
    line = f"pslib: {said} after train.py go to train.py; options of pslib launch stand before the script\n"
    assert capsys.readouterr().err == (line if said else "")


@pytest.mark.parametrize("code", [130, 75, 69])
@pytest.mark.parametrize("durability", ["log", "memory"])
def test_a_launched_script_with_logs_that_ended_early_tells_how_it_goes_on(
    tmp_path, monkeypatch, capsys, code, durability
):
    monkeypatch.setattr("launch.runs.script.run_recorded", lambda *_all, **_more: (Outcome(code), {}))
    (tmp_path / "script.py").touch()
    out = tmp_path / "run"
    arguments = ["launch", "--durability", durability, "--out", str(out), str(tmp_path / "script.py")]
    assert main(arguments) == code
    told = f"its logs, {out}/log; go on with the same command and --resume"
    assert (told in capsys.readouterr().err) == (durability == "log")
