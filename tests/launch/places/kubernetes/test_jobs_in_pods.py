"""Jobs in pods: the manifests of ``pslib k8s render``, run by the stand-in for Kubernetes."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from launch.cli.main import main
from launch.runs.demo import demo_job
from tests.support.kubelet import Image, Kubelet, kubectl_of, why_no_network
from tests.support.processes.counting_runs import ROWS, write_counting_examples, write_job

pytestmark = [pytest.mark.cluster, pytest.mark.root]

ROOT = Path(__file__).parents[4]
COORDINATOR, SERVERS, TRAINERS = (
    "StatefulSet/clicks-coordinator",
    "StatefulSet/clicks-server",
    "Job/clicks-trainer",
)
EPOCHS = 70
SIZES = ("--server-memory", "1Gi", "--trainer-memory", "1Gi", "--trainer-cpu", "1")
BATCH_ROWS = 256
BATCHES = EPOCHS * math.ceil(ROWS / BATCH_ROWS)
"""Pushes of a training in which each counts once; a killed trainer's count of those it has sent is lost."""


@pytest.fixture(scope="module", autouse=True)
def namespaces() -> None:
    if why := why_no_network():
        pytest.skip(why)


class JobInPods:
    """A job named clicks, applied to a stand-in of its own.

    Parameters
    ----------
    folder : Path
    kubelet : Kubelet
    """

    def __init__(self, folder: Path, kubelet: Kubelet) -> None:
        self.folder, self.kubelet = folder, kubelet

    @property
    def run(self) -> Path:
        """Folder of the run's records, on the coordinator's volume."""
        return self.folder / "kubelet" / "claims" / "state-clicks-coordinator-0" / "run"

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "summary.json").read_text())
        return found

    def wait_for(self, text: str, pod: str = "clicks-coordinator-0", limit_s: float = 60.0) -> None:
        self.kubelet.wait(lambda: text in self.kubelet.logs(pod), limit_s, f"{pod} to say {text!r}")

    def examples(self) -> int:
        """Examples that the records have counted so far."""
        path = self.run / "metrics.jsonl"  # a new coordinator begins another one
        lines = path.read_text().splitlines() if path.exists() else []
        return max((json.loads(line).get("examples", 0) for line in lines if line.endswith("}")), default=0)

    def goes_on(self) -> None:
        """Wait until one more epoch is trained, of a job that is not done by then."""
        before = self.examples()
        self.kubelet.wait(lambda: self.examples() >= before + ROWS, 60, "training to go on")
        assert not self.is_trained()

    def is_trained(self) -> bool:
        return bool(self.kubelet.job("clicks-trainer").condition)

    def finish(self, limit_s: float = 120.0) -> None:
        """Wait for the end of the job, which must be a good one."""
        self.kubelet.wait(self.is_trained, limit_s, "the job to end")
        job = self.kubelet.job("clicks-trainer")
        assert job.condition == "Complete", f"{job.reason}\n{self.kubelet.report()}"
        self.wait_for("all work is done")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., JobInPods]]:
    """Render a job file and apply it."""
    running: list[Kubelet] = []

    def started(job: Path, *options: str) -> JobInPods:
        out = tmp_path / "k8s"
        words = ["--image", "pslib:1", "--name", "clicks", "--mount", "clicks:/data", "--out", str(out)]
        assert main(["k8s", "render", str(job), *words, *SIZES, *options]) == 0
        image = Image.of_this_interpreter(ROOT)
        kubelet = Kubelet(tmp_path / "kubelet", {"pslib:1": image}, claims={"clicks": tmp_path / "data"})
        running.append(kubelet.__enter__())
        kubelet.apply(out / "base")
        return JobInPods(tmp_path, kubelet)

    yield started
    for kubelet in running:
        print(kubelet.report())  # shown where a test has failed
        kubelet.__exit__(None, None, None)


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


def test_a_job_trains_in_pods_to_the_auc_that_it_has_elsewhere(
    tmp_path: Path, start: Callable[..., JobInPods]
) -> None:
    assert main(["data", "generate", str(tmp_path / "data"), "--rows", "120000", "--test-rows", "40000"]) == 0
    alone = ("--servers", "1", "--trainers", "1", "--set", "training.staleness=0")
    here = tmp_path / "here.yaml"
    here.write_text(json.dumps(demo_job(str(tmp_path / "data"), str(tmp_path / "elsewhere"))))
    assert main(["train", str(here), *alone, "--quiet"]) == 0
    expected = json.loads((tmp_path / "elsewhere" / "summary.json").read_text())

    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(demo_job("/data", "/data/run")))
    in_pods = start(
        job, "--trainers", "1", "--set", "training.staleness=0", "--set", "cluster.durability=log"
    )
    in_pods.finish()
    found = json.loads((tmp_path / "data" / "run" / "summary.json").read_text())
    assert found["servers"] == 2
    assert found["examples"] == expected["examples"] == 120_000
    assert found["auc"] == pytest.approx(expected["auc"], abs=1e-6)
    assert (tmp_path / "data" / "run" / "checkpoint" / "manifest.json").exists()


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
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
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
