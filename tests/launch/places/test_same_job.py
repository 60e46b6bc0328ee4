"""The job of the demonstration in five places: this machine, hosts over ssh, Slurm, Ray, pods."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launch.cli.main import main
from launch.runs.demo import demo_job
from pslib.data.synthetic.generator import GeneratorConfig, generate
from tests.support.kubelet import why_no_network
from tests.support.kubelet.job_in_pods import job_in_pods
from tests.support.processes.ssh_hosts import write_hosts

ROWS = 120_000
Trains = Callable[[Path, Path], None]
"""Trains the job file whose data is in a folder."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "data"
    generate(folder, GeneratorConfig(train_rows=ROWS, test_rows=40_000))
    return folder


def job_in_step(data: str, out: str) -> str:
    """The demonstration's job, with steps that all trainers take together.

    Without them the AUC of so few examples depends on how far behind a trainer is: 0.754 to 0.768 were
    measured on a machine that had much else to do.
    """
    job = demo_job(data, out)
    return json.dumps(job | {"training": job["training"] | {"consistency": "sync", "staleness": 0}})


def trained(job: Path, *options: str) -> None:
    assert main(["train", str(job), "--quiet", *options]) == 0


@pytest.fixture
def local() -> Trains:
    return lambda folder, job: trained(job)


@pytest.fixture
def ssh(two_hosts: Path) -> Trains:
    def train(folder: Path, job: Path) -> None:
        hosts = ("--hosts", str(write_hosts(folder)), "--ssh-config", str(two_hosts))
        trained(job, "--on", "ssh", *hosts, "--insecure-network")

    return train


@pytest.fixture
def slurm_job(allocation: str) -> Trains:
    return lambda folder, job: trained(job, "--on", "slurm", "--insecure-network")


@pytest.fixture
def ray(nodes: Any) -> Trains:
    return lambda folder, job: trained(job, "--on", "ray", "--address", nodes.address)


@pytest.fixture
def pods() -> Trains:
    if why := why_no_network():
        pytest.skip(why)

    def train(folder: Path, job: Path) -> None:
        job.write_text(job_in_step("/data", "/data/run"))
        with job_in_pods(folder, job, "--set", "cluster.durability=log") as in_pods:
            in_pods.finish()

    return train


@pytest.fixture(scope="module")
def expected(data: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """The AUC of a run here."""
    out = tmp_path_factory.mktemp("expected")
    job = out / "job.yaml"
    job.write_text(job_in_step(str(data), str(out / "run")))
    trained(job)
    auc: float = json.loads((out / "run" / "summary.json").read_text())["auc"]
    return auc


@pytest.mark.parametrize(
    "place",
    ["local", "ray", *(pytest.param(name, marks=pytest.mark.root) for name in ("ssh", "slurm_job", "pods"))],
)
def test_the_same_job_gives_the_same_summary_in_every_place(
    place: str, data: Path, expected: float, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    train: Trains = request.getfixturevalue(place)
    shutil.copytree(data, tmp_path / "data")
    job = tmp_path / "job.yaml"
    job.write_text(job_in_step(str(tmp_path / "data"), str(tmp_path / "data" / "run")))
    train(tmp_path, job)
    found = json.loads((tmp_path / "data" / "run" / "summary.json").read_text())
    assert found["phase"] == "done"
    assert (found["servers"], found["trainers"], found["examples"]) == (2, 2, ROWS)
    assert found["pushes_sent"] == found["pushes_applied"]
    assert found["pushes_missing"] == 0
    assert found["auc"] == pytest.approx(expected, abs=0.002)
