"""Real processes, killed: each example counts once from the last checkpoint on, and no bit differs."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from pathlib import Path

import psutil

from pslib.checkpoint import newest
from pslib.checkpoint.diff import diff_checkpoints
from tests.support.processes.counting_runs import (
    ROWS,
    SLOWLY,
    Start,
    assert_counted_once,
    launch_counting,
    metric,
    write_counting_examples,
)


def test_after_kill_9_of_everything_each_example_counts_once_from_the_last_checkpoint_on(
    start: Start, examples: Path, tmp_path: Path
) -> None:
    """Two trainers and two servers are killed with their launcher; three servers and two trainers go on."""
    cuts = tmp_path / "cuts"
    saving = ["--cuts", str(cuts), "--cut-every-s", "0.3", "--incremental", "4", *SLOWLY]
    first = launch_counting(start, examples, tmp_path, more=saving)
    for number in ("2", "3"):
        first.wait_for(f"checkpoint-00000{number} (", 40)
    for process in first.processes():
        with suppress(psutil.NoSuchProcess):  # the others end too once their launcher is gone
            process.kill()
    first.process.wait(10)
    lines = first.lines("saved ")
    assert lines
    pauses = [float(re.search(r"pause (\d+\.\d+) s", line)[1]) for line in lines]  # type: ignore[index]
    assert max(pauses) < 5.0
    table = json.loads((Path(newest(str(cuts))) / "manifest.json").read_text())["cut"]["table"]
    done = sum(stop - first for first, stop in table["leases"]["done"])
    assert done < table["leases"]["count"]

    out = tmp_path / "again"
    out.mkdir()
    second = launch_counting(start, examples, out, servers=3, more=["--load", str(cuts), "--cuts", str(cuts)])
    assert second.finish(60) == 0, second.output
    assert_counted_once(out / "checkpoint", examples)
    assert ROWS % 512 or table["leases"]["count"] == ROWS // 512


# --- three kills --------------------------------------------------------------------------------------------


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


def test_three_kills_of_servers_change_no_bit(start: Start, tmp_path: Path) -> None:
    examples = write_counting_examples(tmp_path / "examples.parquet", EXAMPLES)
    plain = start("train", write_job(tmp_path, examples, "plain"), "--quiet")
    assert plain.finish(90) == 0, plain.output
    killed = start("train", write_job(tmp_path, examples, "killed"), "--quiet")
    killed.out = tmp_path / "killed"
    killed.wait(lambda: metric(killed, "examples") > 0, 40, "examples to be trained")
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
