"""Examples/s of training with processes over sockets, everything in: Parquet, hashing, pull, compute, push.

``python benchmarks/train.py [--servers N] [--trainers N] [--batch-rows B] [--rows R] [--json FILE]``: 26
sparse and 13 dense fields, 10 million possible keys, Zipf(1.05), dim 16, MLP 400-400-400, DeepFM. Data is
made once, in ``runs/bench``. Beside it stands the bound that the model's matrix products alone set, measured
before and after with the same shapes and threads.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

from launch.yaml_text import write_yaml
from pslib.data.generator import GeneratorConfig, generate, generated_schema

FOLDER = Path("runs/bench")
DIM, HIDDEN = 16, (400, 400, 400)
FIELDS, KEYS = 26, 10_000_000


def data(rows: int) -> GeneratorConfig:
    """Generate the data unless it is there."""
    config = GeneratorConfig(
        train_rows=rows, test_rows=max(rows // 10, 1), vocabularies=(KEYS // FIELDS,) * FIELDS, seed=7
    )
    folder = FOLDER / f"data_{rows}"
    if not (folder / "generated.json").exists():
        generate(folder, config, overwrite=True)
    return config


def products_bound(batch_rows: int, repeats: int = 10) -> float:
    """Examples/s if a step were nothing but the three matrix products of each layer of the tower."""
    widths = (FIELDS * DIM + 13, *HIDDEN, 1)
    rng = np.random.default_rng(0)
    layers = [
        (
            rng.random((batch_rows, n), np.float32),
            rng.random((n, m), np.float32),
            rng.random((batch_rows, m), np.float32),
        )
        for n, m in pairwise(widths)
    ]
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        for x, w, g in layers:
            _ = x @ w, x.T @ g, g @ w.T
        seconds.append(time.perf_counter() - start)
    return batch_rows / statistics.median(seconds)


def train(options: argparse.Namespace, config: GeneratorConfig) -> dict[str, float]:
    """One run through the command line; gives its summary."""
    schema = generated_schema(config)
    folder = Path(f"data_{options.rows}")
    job = {
        "data": {
            "train": str(folder / "train.parquet"),
            "test": str(folder / "test.parquet"),
            "schema": {
                "label": schema.label,
                "dense": [{"name": field.name, "log1p": True} for field in schema.dense],
                "sparse": [field.name for field in schema.sparse],
            },
        },
        "model": {"name": "deepfm", "dim": DIM, "hidden": list(HIDDEN)},
        "training": {"batch_rows": options.batch_rows, "staleness": 2, "seed": 1},
        "cluster": {"servers": options.servers, "trainers": options.trainers},
        "out": "train",
    }
    file = FOLDER / "train.yaml"
    file.write_text(write_yaml(job), encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "launch.cli", "train", str(file), "--overwrite", "--quiet"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return json.loads((FOLDER / "train" / "summary.json").read_text())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--trainers", type=int, default=1)
    parser.add_argument("--batch-rows", type=int, default=4096)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--json", default=None)
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    config = data(options.rows)
    before = products_bound(options.batch_rows)
    summary = train(options, config)
    bound = (before + products_bound(options.batch_rows)) / 2
    names = ("examples_per_s", "auc", "logloss", "rows", "staleness_mean", "pushes_sent", "pushes_applied")
    figures = {name: summary[name] for name in names}
    figures |= {"products_bound_per_s": round(bound, 1), "of_bound": summary["examples_per_s"] / bound}
    report = {"cores": len(os.sched_getaffinity(0)), "options": vars(options), "figures": figures}
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1), encoding="utf-8")
    for name, value in figures.items():
        print(f"{name:24} {value:14,.4f}")


if __name__ == "__main__":
    main()
