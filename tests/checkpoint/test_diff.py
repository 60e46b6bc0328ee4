"""Recovery is exact: a run whose servers are killed ends with the bits of one in which nobody dies."""

from __future__ import annotations

import json
import time
from pathlib import Path

from pslib.checkpoint.diff import diff_checkpoints
from tests.support.processes.command import Command
from tests.support.processes.counting_runs import Start, write_counting_examples

EXAMPLES = 96_000
"""Seven seconds at 13,000 examples/s: three kills take two from the first line of metrics on, which comes
after one, and 24,000 examples were once over before it."""


def write_job(folder: Path, examples: Path, name: str) -> Path:
    """One trainer with staleness 0 on two servers: the same bits in every run."""
    job = {
        "data": {"train": str(examples), "schema": {"label": "label", "sparse": ["id", "shared"]}},
        "model": {"name": "fm", "dim": 4},
        "optimizers": {"rows": {"name": "Adagrad", "learning_rate": 0.1}},
        "training": {"batch_rows": 32, "epochs": 1, "seed": 7, "staleness": 0},
        "cluster": {"servers": 2, "trainers": 1, "durability": "log", "restarts": 9},
        "out": str(folder / name),
    }
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(job))  # JSON is YAML
    return path


def trained(command: Command, out: Path) -> int:
    """Examples so far."""
    path = out / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return max((json.loads(line).get("examples", 0) for line in lines if line.endswith("}")), default=0)


def test_three_kills_of_servers_change_no_bit(start: Start, tmp_path: Path) -> None:
    examples = write_counting_examples(tmp_path / "examples.parquet", EXAMPLES)
    plain = start("train", write_job(tmp_path, examples, "plain"), "--quiet")
    assert plain.finish(90) == 0, plain.output
    killed = start("train", write_job(tmp_path, examples, "killed"), "--quiet")
    killed.out = tmp_path / "killed"
    killed.wait(lambda: trained(killed, killed.out) > 0, 40, "examples to be trained")
    for victim in ("server 0", "server 1", "server 0"):
        before = killed.pid_of(victim)
        killed.kill(victim)
        again = f"{victim} to be started again"
        killed.wait(lambda name=victim, old=before: killed.pid_of(name) != old, 20, again)
        time.sleep(0.5)
        assert killed.process.poll() is None, f"too fast to be killed\n{killed.output}"
    assert killed.finish(90) == 0, killed.output
    assert len(killed.lines("was killed by signal 9 (SIGKILL)")) == 3
    diff = diff_checkpoints(str(tmp_path / "plain" / "checkpoint"), str(tmp_path / "killed" / "checkpoint"))
    assert diff.equal, diff
