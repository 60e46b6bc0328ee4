"""Jobs in pods: the manifests of ``pslib k8s render``, run by the stand-in for Kubernetes."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from launch.cli.main import main
from tests.support.kubelet import kubectl_of, why_no_network
from tests.support.kubelet.job_in_pods import JobInPods, job_in_pods
from tests.support.processes.counting_runs import ROWS, write_counting_examples, write_job

pytestmark = [pytest.mark.cluster, pytest.mark.root]

COORDINATOR, SERVERS, TRAINERS = (
    "StatefulSet/clicks-coordinator",
    "StatefulSet/clicks-server",
    "Job/clicks-trainer",
)
EPOCHS = 70
BATCH_ROWS = 256
BATCHES = EPOCHS * math.ceil(ROWS / BATCH_ROWS)
"""Pushes of a training in which each counts once; a killed trainer's count of those it has sent is lost."""


@pytest.fixture(scope="module", autouse=True)
def namespaces() -> None:
    if why := why_no_network():
        pytest.skip(why)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., JobInPods]]:
    """Render a job file and apply it."""
    with ExitStack() as stack:
        yield lambda job, *options: stack.enter_context(job_in_pods(tmp_path, job, *options))


@pytest.fixture
def counting(tmp_path: Path, start: Callable[..., JobInPods]) -> JobInPods:
    """A job of some minutes, in whose records every push is counted."""
    (tmp_path / "data").mkdir()
    write_counting_examples(tmp_path / "data" / "train.parquet")
    job = write_job(
        tmp_path,
        Path("/data/train.parquet"),
        {"epochs": EPOCHS, "batch_rows": BATCH_ROWS},
        {"servers": 2, "trainers": 2, "durability": "log"},
    )
    return start(job, "--set", "checkpoint.path=/data/checkpoint", "--set", "checkpoint.keep_last=2")


def assert_every_push_counts_once(summary: Mapping[str, Any]) -> None:
    assert summary["phase"] == "done"
    assert summary["examples"] == EPOCHS * ROWS
    assert summary["pushes_missing"] == 0
    assert summary["pushes_applied"] == BATCHES


def test_every_node_may_be_drained(counting: JobInPods) -> None:
    counting.goes_on()
    for node in ("node-a", "node-b"):
        evicted = [pod for pod in counting.kubelet.pods() if pod.place.node == node]
        assert evicted
        counting.kubelet.drain(node, 60)
        assert {code for pod in evicted for code in pod.exits} == {75}, counting.kubelet.report()
        counting.kubelet.cordon(node, closed=False)
        counting.kubelet.wait(lambda: counting.kubelet.is_ready(SERVERS), 60, "all servers to be back")
    counting.finish()
    assert_every_push_counts_once(counting.summary())


def test_ten_pods_may_be_killed_at_random(counting: JobInPods) -> None:
    kubelet, choice = counting.kubelet, random.Random(3)
    counting.goes_on()
    for number in range(10):
        pod = choice.choice([pod for pod in kubelet.pods() if not pod.ended])
        print(f"kill {number + 1}: {pod.name}")
        if number % 2:
            kubelet.kill(pod.name)
        else:
            kubelet.delete_pod(pod.name, grace_s=0)
        counting.goes_on()
    counting.finish()
    assert_every_push_counts_once(counting.summary())


def test_a_server_and_the_coordinator_may_come_back_with_other_addresses(counting: JobInPods) -> None:
    kubelet = counting.kubelet
    counting.goes_on()
    for host, grace_s in (("clicks-server-1", 0), ("clicks-coordinator-0", 0), ("clicks-server-0", None)):
        kubelet.replace(host, grace_s)
        counting.goes_on()
    kubelet.dns.delay_s, kubelet.dns.stale = 0.5, True  # names lead to where the coordinator was, and late
    after = kubelet.replace("clicks-coordinator-0", grace_s=None)
    counting.wait_for(f"listening at tcp://{after.address}:7077")
    kubelet.dns.stale = False
    counting.finish()
    assert_every_push_counts_once(counting.summary())


def test_servers_and_trainers_may_become_more_and_less_by_pslib_k8s_scale(
    counting: JobInPods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    kubelet = counting.kubelet
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with kubectl_of(kubelet, tmp_path / "bin"):
        counting.goes_on()
        assert main(["k8s", "scale", "clicks", "--trainers", "1"]) == 0
        kubelet.wait(lambda: len(kubelet.pods(TRAINERS)) == 1, 60, "one trainer to leave")
        counting.goes_on()
        capfd.readouterr()
        assert main(["k8s", "scale", "clicks", "--trainers", "3", "--servers", "4"]) == 0
        assert "server 3 at tcp://" in capfd.readouterr().out
        counting.goes_on()
        assert main(["k8s", "scale", "clicks", "--servers", "2"]) == 0
        kubelet.wait(lambda: len(kubelet.pods(SERVERS)) == 2, 60, "two servers to leave")
    counting.finish()
    assert_every_push_counts_once(counting.summary())
    assert kubelet.job("clicks-trainer").succeeded == {0, 1, 2}


def test_a_job_whose_data_is_not_there_fails_at_once_and_says_so(
    tmp_path: Path, start: Callable[..., JobInPods]
) -> None:
    (tmp_path / "data").mkdir()
    cluster = {"servers": 1, "trainers": 2, "durability": "log"}
    job = start(write_job(tmp_path, Path("/data/none.parquet"), {}, cluster), "--set", "out=/data/run")
    job.kubelet.wait(job.is_trained, 60, "the job to end")
    found = job.kubelet.job("clicks-trainer")
    assert found.condition == "Failed"
    assert found.reason.startswith("PodFailurePolicy")
    assert found.reason.endswith("ended with [64]")
    said = job.kubelet.logs("clicks-trainer")
    assert "/data/none.parquet" in said
    assert "Traceback" not in said
