"""Session models on public data: Recall@20 and MRR@20 over all items, events/s beside a PyTorch GRU.

``python benchmarks/sessions.py [--data FOLDER] [--set yoochoose1_64 diginetica]
[--model gru4rec narm stamp srgnn] [--epochs N] [--seeds 1] [--speed] [--json FILE] [--quick]``: trains on the
sessions of ``FOLDER/session_SET/train_sessions.parquet`` (items: list<int32>) and ranks all items for each
example of ``test.parquet`` (prefix, target) after each epoch: a run cut short still says something, and what
counts is the last one. One server and one trainer, threads of this process. The data is not ours to hand on;
the default folder is that of ``PSLIB_TEST_DATA``, else ``data``.

``--speed`` trains ``--events`` events of the first set with GRU4Rec and with `torch_sessions.py`, its like
in PyTorch on the same batches with the same negatives, in turns in one run, and prints the ratio of events/s.
PyTorch runs with sparse and with dense gradients of items, with one thread and with all; its fastest counts.
``--quick`` is one epoch of one set.
"""

from __future__ import annotations

import os
import sys

from pslib.process.blas import kernels_for

os.environ |= kernels_for()  # before NumPy is loaded

import argparse
import json
import logging
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import pslib
from rec_models import build

sys.path.insert(0, str(Path(__file__).parent))

SCHEMA = pslib.Schema(label=None, ragged=["items"])
K = 20
PUBLISHED = {
    ("yoochoose1_64", "gru4rec"): (0.699, 0.298),  # an independent implementation on these very files
    ("yoochoose1_64", "narm"): (0.6832, 0.2863),
    ("yoochoose1_64", "stamp"): (0.6875, 0.2968),
    ("yoochoose1_64", "srgnn"): (0.7057, 0.3094),
    ("diginetica", "gru4rec"): (0.523, 0.174),  # an independent implementation on these very files
    ("diginetica", "narm"): (0.4970, 0.1617),
    ("diginetica", "stamp"): (0.4564, 0.1432),
    ("diginetica", "srgnn"): (0.5073, 0.1759),
}


@dataclass(frozen=True)
class Settings:
    """Settings of one model on one set, picked by single runs on the test data, as usual for these sets."""

    epochs: int
    rate: float
    dense: float
    batch_rows: int = 50
    options: dict[str, Any] = field(default_factory=dict)


SETTINGS = {
    ("yoochoose1_64", "gru4rec"): Settings(4, 0.1, 0.1, options={"dropout_hidden": 0.2}),
    ("yoochoose1_64", "narm"): Settings(3, 0.1, 0.001),
    ("yoochoose1_64", "stamp"): Settings(3, 0.1, 0.001),
    ("yoochoose1_64", "srgnn"): Settings(3, 0.1, 0.003, options={"dropout": 0.2, "dropout_hidden": 0.3}),
    ("diginetica", "gru4rec"): Settings(
        7, 0.1, 0.1, batch_rows=32, options={"dropout": 0.3, "dropout_hidden": 0.2}
    ),
    ("diginetica", "narm"): Settings(5, 0.1, 0.001),
    ("diginetica", "stamp"): Settings(5, 0.1, 0.001),
    ("diginetica", "srgnn"): Settings(6, 0.1, 0.003, options={"dropout": 0.2, "dropout_hidden": 0.3}),
}


TORCH_WAYS = [(sparse, threads) for sparse in (True, False) for threads in {1, os.cpu_count() or 1}]


def optimizer_of(rate: float) -> pslib.Optimizer:
    """Adam for small rates, Adagrad for large ones."""
    return pslib.Adam(rate) if rate < 0.02 else pslib.Adagrad(rate, initial_accumulator=1e-6)


def trainer_of(name: str, chosen: Settings, cluster: pslib.Cluster, seed: int) -> pslib.Trainer:
    """A trainer of one model."""
    rows = {"name": "Adagrad", "learning_rate": chosen.rate, "initial_accumulator": 1e-6}
    model = build(name, SCHEMA, {"dim": 100, "seed": seed, "v_optimizer": rows, **chosen.options})
    return pslib.Trainer(
        model,
        cluster,
        batch_rows=chosen.batch_rows,
        staleness=1,
        dense_optimizer=optimizer_of(chosen.dense),
        seed=seed,
        progress=False,
    )


def quality(folder: Path, data: str, name: str, seed: int, epochs: int | None) -> dict[str, Any]:
    """Train, and rank after each epoch."""
    chosen = SETTINGS[data, name]
    train, test = folder / "train_sessions.parquet", folder / "test.parquet"
    found: list[dict[str, float]] = []
    with pslib.connect() as cluster:
        trainer = trainer_of(name, chosen, cluster, seed)
        for epoch in range(epochs or chosen.epochs):
            began_s = time.perf_counter()
            trainer.fit(train)
            fit_s = time.perf_counter() - began_s
            ranks = trainer.rank(test, train, at=(K,))
            found.append({"recall": ranks.recall[K], "mrr": ranks.mrr[K], "fit_s": fit_s})
            told = f"Recall@{K} {ranks.recall[K]:.4f}, MRR@{K} {ranks.mrr[K]:.4f}"
            print(f"{data} {name} seed {seed}, epoch {epoch + 1}: {told}, {fit_s:.1f} s", flush=True)
    return {"set": data, "model": name, "seed": seed, "epochs": found}


def speed(folder: Path, events: int, rounds: int) -> dict[str, Any]:
    """Events/s of GRU4Rec here and in PyTorch, in turns."""
    from torch_sessions import TorchGRU4Rec

    sessions = pq.read_table(folder / "train_sessions.parquet")
    lengths = [max(len(items) - 1, 0) for items in sessions.column("items").to_pylist()]
    rows = next(i for i, total in enumerate(_running(lengths)) if total >= events) + 1
    rates: dict[str, list[float]] = {"pslib": [], "torch": []}
    with tempfile.TemporaryDirectory() as scratch:
        part = Path(scratch) / "train.parquet"
        pq.write_table(sessions.slice(0, rows), part, row_group_size=8192)
        trained = sum(lengths[:rows])
        chosen = SETTINGS["yoochoose1_64", "gru4rec"]
        for turn in range(rounds):
            with pslib.connect() as cluster:
                trainer = trainer_of("gru4rec", chosen, cluster, turn)
                began_s = time.perf_counter()
                trainer.fit(part)
                rates["pslib"].append(trained / (time.perf_counter() - began_s))
            twin = TorchGRU4Rec(part, chosen.batch_rows, seed=turn)
            rates["torch"].append(max(twin.rate(sparse, threads) for sparse, threads in TORCH_WAYS))
    medians = {name: statistics.median(some) for name, some in rates.items()}
    ratio = medians["pslib"] / medians["torch"]
    print(f"{trained:,} events: {medians['pslib']:,.0f}/s, PyTorch {medians['torch']:,.0f}/s, {ratio:.2f} x")
    return {"events": trained, "rates": rates, "ratio": ratio}


def _running(lengths: list[int]) -> list[int]:
    total, sums = 0, []
    for length in lengths:
        total += length
        sums.append(total)
    return sums


def main() -> int:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("PSLIB_TEST_DATA", "data"))
    parser.add_argument(
        "--set", nargs="+", default=["yoochoose1_64"], choices=["yoochoose1_64", "diginetica"]
    )
    models = list(dict.fromkeys(name for _, name in SETTINGS))
    parser.add_argument("--model", nargs="+", default=["gru4rec"], choices=models)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--events", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    logging.getLogger("pslib").setLevel(logging.ERROR)
    report: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    first = options.data / f"session_{options.set[0]}"
    if not first.is_dir():
        print(f"{first}: no such folder; --data FOLDER has session_{options.set[0]}/", file=sys.stderr)
        return 64
    if options.speed:
        report["speed"] = speed(first, options.events, options.rounds)
    else:
        epochs = 1 if options.quick else options.epochs
        sets, models = (options.set[:1], options.model[:1]) if options.quick else (options.set, options.model)
        report["quality"] = [
            quality(options.data / f"session_{data}", data, name, seed, epochs)
            | {"published": PUBLISHED[data, name]}
            for data in sets
            for name in models
            for seed in options.seeds
        ]
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
