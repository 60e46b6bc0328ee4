"""Runs of `tests.support.processes.counting_script` with real processes: started, and counted afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cython_ext.common.hashing import hash_ints
from tests.support.processes.command import Command
from tests.support.processes.counting_script import DENSE, PART, SCHEMA, TABLE
from tests.support.waiting import wait_until

SCRIPT = Path(__file__).with_name("counting_script.py")
ROWS, SHARED = 24_000, 13
SLOWLY = ("--pause-s", "0.1")
"""A trainer alone is busy for 38 s with an epoch, or until `Command.hurry`; so a test may take its time."""

Start = Callable[..., Command]


def write_counting_examples(path: Path, rows: int = ROWS) -> Path:
    """Every example has an ``id`` of its own and one of a few ``shared`` values; returns the path."""
    ids = np.arange(rows)
    table = pa.table(
        {
            "label": pa.array(ids % 2, pa.int8()),
            "id": pa.array(ids * 7 + 1),
            "shared": pa.array(ids // 5 % SHARED),
        }
    )
    pq.write_table(table, path, row_group_size=5000)
    return path


def launch_counting(
    start: Start,
    examples: Path,
    tmp_path: Path,
    *,
    servers: int = 2,
    trainers: int = 2,
    more: Sequence[str] = (),
    options: Sequence[str] = (),
) -> Command:
    """The counting script in a cluster, once every trainer is in its first batch."""
    command = start(
        "launch", "--servers", str(servers), "--trainers", str(trainers), "--out", tmp_path / "out",
        *options, SCRIPT, examples, tmp_path / "checkpoint", *more,
    )  # fmt: skip
    wait_until(
        lambda: len(command.lines("first batch")) == trainers or command.process.poll() is not None,
        40,
        lambda: f"all trainers to train:\n{command.output}",
    )
    return command


def write_job(
    folder: Path, examples: Path, training: Mapping[str, Any], cluster: Mapping[str, Any], **data: str
) -> Path:
    """A job file for ``pslib train`` of a factorization machine on the examples."""
    job = {
        "data": {"train": str(examples), "schema": {"label": "label", "sparse": ["id", "shared"]}, **data},
        "model": {"name": "fm", "dim": 4},
        "training": {"batch_rows": 256, "seed": 7, **training},
        "cluster": cluster,
        "out": str(folder / "out"),
    }
    (folder / "job.yaml").write_text(json.dumps(job))  # JSON is YAML
    return folder / "job.yaml"


def train_in_step(start: Start, examples: Path, tmp_path: Path, **cluster: str) -> Command:
    """``pslib train`` of a model with ``consistency: sync`` that goes on for long, once steps are made."""
    training = {"epochs": 1000, "consistency": "sync", "staleness": 0}
    job = write_job(tmp_path, examples, training, {"servers": 2, "trainers": 2, **cluster})
    command = start("train", job, "--quiet")
    wait_for_steps(command)
    return command


def wait_for_steps(command: Command) -> None:
    """Wait until the metrics of ``pslib train`` tell of a step; they are written once a second."""
    command.wait(lambda: metric(command, "pushes_applied") > 0, 40, "steps")


def metric(command: Command, name: str) -> int:
    """Return the largest value of a metric that ``pslib train`` or ``launch`` has written so far."""
    path = command.out / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return max((json.loads(line).get(name, 0) for line in lines if line.endswith("}")), default=0)


def counted(checkpoint: Path) -> tuple[dict[int, float], list[float]]:
    """Return the row values of a checkpoint by key, and its dense parameters, read with pyarrow alone."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    rows: dict[int, float] = {}
    dense: dict[int, list[float]] = {}
    for file in manifest["files"]:
        table = pa.ipc.open_file(checkpoint / file["name"]).read_all()
        if file["table"] == TABLE:
            values = table.column(PART).combine_chunks().flatten().to_pylist()
            keys = table.column("key").to_pylist()
            assert not rows.keys() & set(keys)
            rows.update(zip(keys, values, strict=True))
        else:
            for first, weights in zip(
                table.column("first").to_pylist(), table.column("weights").to_pylist(), strict=True
            ):
                if weights:
                    dense[first] = weights
    return rows, [value for first in sorted(dense) for value in dense[first]]


def counts_of(field: str, checkpoint: Path, examples: Path) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    """Distinct keys of a column of the data, and what their rows hold; 0 where there is none."""
    rows, _dense = counted(checkpoint)
    values = np.unique(pq.read_table(examples).column(field).to_numpy())
    salt = next(one.salt for one in SCHEMA.sparse if one.name == field)
    keys = hash_ints(np.ascontiguousarray(values, np.int64), salt)
    return keys, np.array([rows.get(key, 0.0) for key in keys.tolist()])


def assert_counted_once(checkpoint: Path, examples: Path, epochs: int = 1) -> None:
    """Each key's row holds how often the key stands in the data: nothing was lost, nothing counts twice."""
    rows, dense = counted(checkpoint)
    table = pq.read_table(examples)
    expected: dict[int, float] = {}
    for field in SCHEMA.sparse:
        values, counts = np.unique(table.column(field.name).to_numpy(), return_counts=True)
        keys = hash_ints(np.ascontiguousarray(values, np.int64), field.salt)
        expected.update(zip(keys.tolist(), (epochs * counts).astype(float).tolist(), strict=True))
    wrong = {key: (rows.get(key), count) for key, count in expected.items() if rows.get(key) != count}
    assert not wrong, f"{len(wrong)} of {len(expected)} keys, for example {list(wrong.items())[:5]}"
    assert rows.keys() == expected.keys()
    assert dense == [float(epochs * table.num_rows)] * DENSE


def assert_ends_well(command: Command, examples: Path) -> None:
    """Let a run of `launch_counting` go on without pauses to its end, with each example counted once."""
    command.hurry()
    assert command.finish(60) == 0, command.output
    assert "Traceback" not in command.output
    assert_counted_once(command.out.parent / "checkpoint", examples)


def wait_for_successors(command: Command, before: Mapping[str, int], seconds: float = 20.0) -> None:
    """Wait until each process that had one of these ids has been started again."""
    for victim, pid in before.items():
        wait_until(
            lambda name=victim, old=pid: command.pid_of(name) != old,
            seconds,
            lambda name=victim: f"{name} to be started again:\n{command.output}",
        )
