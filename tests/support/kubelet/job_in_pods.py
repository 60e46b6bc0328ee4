"""A job in pods of the stand-in: its manifests are rendered and applied, its records are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launch.cli.main import main
from tests.support.kubelet.image import Image
from tests.support.kubelet.kubelet import Kubelet
from tests.support.processes.counting_runs import ROWS

ASK = """
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], b'{"id": 8, "shared": 3}').read().decode())
"""
ROOT = Path(__file__).parents[3]
SIZES = ("--server-memory", "1Gi", "--trainer-memory", "1Gi", "--trainer-cpu", "1")


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

    def predictions(self, service: str, pod: str) -> list[float]:
        """Predictions of an example, as a pod asks those behind a service."""
        program = ["python", "-c", ASK, f"http://{service}:8080/predict"]
        asked = self.kubelet.exec(pod, program)
        assert asked.returncode == 0, asked.stderr
        found: list[float] = json.loads(asked.stdout)["predictions"]
        return found

    def is_trained(self) -> bool:
        return bool(self.kubelet.job("clicks-trainer").condition)

    def finish(self, limit_s: float = 120.0) -> None:
        """Wait for the end of the job, which must be a good one."""
        self.kubelet.wait(self.is_trained, limit_s, "the job to end")
        job = self.kubelet.job("clicks-trainer")
        assert job.condition == "Complete", f"{job.reason}\n{self.kubelet.report()}"
        self.wait_for("all work is done")


@contextmanager
def job_in_pods(folder: Path, job: Path, *options: str) -> Iterator[JobInPods]:
    """Render a job file and apply it; ``data`` in the folder is /data in the pods."""
    out = folder / "k8s"
    words = ["--image", "pslib:1", "--name", "clicks", "--mount", "clicks:/data", "--out", str(out)]
    assert main(["k8s", "render", str(job), *words, *SIZES, *options]) == 0
    image = Image.of_this_interpreter(ROOT)
    with Kubelet(folder / "kubelet", {"pslib:1": image}, claims={"clicks": folder / "data"}) as kubelet:
        kubelet.apply(out / "base")
        try:
            yield JobInPods(folder, kubelet)
        finally:
            print(kubelet.report())  # shown where a test has failed
