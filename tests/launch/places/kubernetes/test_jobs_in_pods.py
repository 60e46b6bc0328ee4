"""Jobs in pods: the manifests of ``pslib k8s render``, run by the stand-in for Kubernetes."""

from __future__ import annotations

import math
import os
import random
import shlex
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
SCORERS = "Deployment/clicks-scorer"
EPOCHS = 70
BATCH_ROWS = 256
BATCHES = EPOCHS * math.ceil(ROWS / BATCH_ROWS)
"""Pushes of a training in which each counts once; a killed trainer's count of those it has sent is lost."""

ROOT = Path(__file__).parents[4]
FETCH = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())"
LOOK = """
import subprocess, sys, urllib.request
page = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True)
address = page.stdout.readline().strip()
print(urllib.request.urlopen(address).read().decode())
print(urllib.request.urlopen(address + "api/state").read().decode())
page.terminate()
"""
"""A browser behind a port-forward, which reaches the pod's loopback."""


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


def test_scorers_answer_with_the_checkpoint_of_the_job_and_a_drain_takes_one_at_a_time(
    tmp_path: Path, start: Callable[..., JobInPods]
) -> None:
    (tmp_path / "data").mkdir()
    write_counting_examples(tmp_path / "data" / "train.parquet")
    cluster = {"servers": 1, "trainers": 1, "durability": "log"}
    job = start(
        write_job(tmp_path, Path("/data/train.parquet"), {"epochs": 15}, cluster),
        *("--set", "out=/data/run", "--set", "serve.replicas=2", "--scorer-memory", "1Gi"),
    )
    kubelet = job.kubelet
    kubelet.wait(lambda: len(kubelet.pods(SCORERS)) == 2, 20, "two scorers")
    before = {pod.name for pod in kubelet.pods(SCORERS)}
    job.wait_for("waits up to 3600 s for a checkpoint", next(iter(before)))
    job.finish()
    kubelet.wait(lambda: kubelet.is_ready(SCORERS), 120, "the scorers to be ready")
    (prediction,) = job.predictions("clicks-scorer", "clicks-server-0")
    assert 0.0 < prediction < 1.0

    def has_left() -> bool:
        assert any(pod.ready for pod in kubelet.pods(SCORERS)), kubelet.report()
        return not [pod for pod in kubelet.evict_from(node) if pod.owner == SCORERS]

    for node in ("node-a", "node-b"):
        kubelet.cordon(node)
        kubelet.wait(has_left, 120, f"the scorers of {node} to leave")
        kubelet.cordon(node, closed=False)
        kubelet.wait(lambda: kubelet.is_ready(SCORERS), 120, "the scorers to be back")
    after = {pod.name for pod in kubelet.pods(SCORERS)}
    assert not before & after
    assert job.predictions("clicks-scorer", next(iter(after))) == [prediction]


def test_a_job_is_looked_at_as_the_guide_says(
    tmp_path: Path,
    start: Callable[..., JobInPods],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "data").mkdir()
    write_counting_examples(tmp_path / "data" / "train.parquet")
    cluster = {"servers": 1, "trainers": 1, "durability": "log"}
    job = write_job(tmp_path, Path("/data/train.parquet"), {"epochs": 1000}, cluster)
    kubelet = start(job, "--set", "out=/data/runs/clicks").kubelet
    kubelet.wait(lambda: "epoch 1" in kubelet.logs("clicks-coordinator-0"), 120, "training")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    capfd.readouterr()
    with kubectl_of(kubelet, tmp_path / "bin"):
        assert main(["k8s", "status", "clicks"]) == 0
    said = capfd.readouterr().out
    assert "pod/clicks-server-0 Running" in said
    assert "server 0" in said
    page = (ROOT / "docs/guide/deploy.md").read_text().partition("### Look at a job")[2]
    lines = page.partition("```sh\n")[2].partition("```")[0].splitlines()
    top, ui = (shlex.split(line)[3:] for line in lines if line.startswith("kubectl exec"))
    for pod, words in ((top[0], top[2:]), (ui[0], ["python", "-c", LOOK, *ui[2:]])):
        shown = kubelet.exec(pod, words, 120)
        assert (shown.returncode, "Traceback" in shown.stderr) == (0, False), shown.stderr
        assert "clicks" in shown.stdout
        assert "trainer" in shown.stdout
    metrics = kubelet.exec("clicks-server-0", ["python", "-c", FETCH, "http://127.0.0.1:8080/metrics"])
    assert "pslib_rows{" in metrics.stdout, metrics.stderr
