"""Rates of whole runs: ``pslib train`` with processes, started as by a user."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.calibration.timing import over_tcp
from launch.job.job import read_job
from launch.job.yaml12 import write_yaml
from launch.places.options import RunOptions
from launch.runs.train import run_job
from launch.supervisor.run_spec import Outcome
from launch.supervisor.supervisor import end_as_asked
from pslib.data.dataset import ParquetData
from pslib.data.order import Order, default_lease_rows
from pslib.data.reader import LeaseReader
from pslib.errors import UnavailableError
from pslib.schema import Schema

__all__ = ["Run", "distinct_of", "run_rate"]


@dataclass(frozen=True, slots=True)
class Run:
    """One training of DeepFM on this machine.

    Attributes
    ----------
    servers, trainers, batch_rows, dim : int
    hidden : tuple of int
    epochs : int
        Passes over the data.
    staleness : int
    products : "float32" or "bfloat16"
        See `pslib.trainer.Trainer`.
    """

    servers: int = 1
    trainers: int = 1
    batch_rows: int = 2048
    dim: int = 16
    hidden: tuple[int, ...] = (256, 256)
    epochs: int = 1
    staleness: int = 2
    products: str = "float32"

    @property
    def name(self) -> str:
        """One-line name."""
        hidden = "-".join(map(str, self.hidden))
        return (
            f"{self.servers} server{'s' * (self.servers > 1)} x {self.trainers} trainer"
            f"{'s' * (self.trainers > 1)}, batch {self.batch_rows}, dim {self.dim}, {hidden}"
        )


def run_rate(run: Run, folder: Path, schema: Schema) -> float:
    """Measure examples/s from opening the data to the last push; ``folder`` holds ``train.parquet``.

    Raises
    ------
    UnavailableError
        When the run fails.
    KeyboardInterrupt, PreemptedError
        When the run is interrupted.
    """
    optimizer = {"name": "RowwiseAdagrad"}
    job = {
        "data": {"train": str(folder / "train.parquet"), "schema": _plain(schema)},
        "model": {"name": "deepfm", "dim": run.dim, "hidden": list(run.hidden)},
        "optimizers": {"rows": {"w": optimizer, "v": optimizer}},
        "training": {
            "batch_rows": run.batch_rows,
            "staleness": run.staleness,
            "warmup_batches": 0,
            "epochs": run.epochs,
            "products": run.products,
        },
        "cluster": {"servers": run.servers, "trainers": run.trainers},
        "out": str(folder / "run"),
    }
    file = folder / "run.yaml"
    file.write_text(write_yaml(job), encoding="utf-8")
    with over_tcp(), contextlib.redirect_stdout(io.StringIO()):
        code = run_job(read_job(file), RunOptions(overwrite=True, quiet=True))
    end_as_asked(Outcome(code))
    if code:
        raise UnavailableError(f"{run.name}: ended with exit code {code}; its logs are in {folder / 'run'}")
    summary = json.loads((folder / "run" / "summary.json").read_text(encoding="utf-8"))
    return float(summary["examples_per_s"])


def _plain(schema: Schema) -> dict[str, Any]:
    return {
        "label": schema.label,
        "dense": [{"name": field.name, "log1p": field.log1p} for field in schema.dense],
        "sparse": [field.name for field in schema.sparse],
    }


def distinct_of(folder: Path, schema: Schema, batch_rows: int) -> float:
    """Estimate the share of distinct keys in a batch from some batches of the data."""
    data = ParquetData(str(folder / "train.parquet"), schema)
    order = Order(0, [group.rows for group in data.row_groups], default_lease_rows(data.rows, batch_rows))
    reader = LeaseReader(data, schema, order, batch_rows)
    keys = examples = 0
    for batch in reader.batches(0, 0):
        keys += batch.keys.size
        examples += len(batch)
    reader.close()
    return keys / (examples * len(schema.sparse))
