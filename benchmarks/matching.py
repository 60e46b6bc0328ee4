"""Retrieval models on MovieLens 100K: HR@10 over all items, beside what is popular.

``python benchmarks/matching.py [--data FOLDER] [--model two_tower ncf ssr simnet] [--epochs N] [--seeds 1]
[--twin] [--json FILE] [--quick]``: ratings of 4 and 5 of ``FOLDER/ml100k`` are clicks; the last click of each
user is the test, all others are trained on (users with a single click have no test). All items that were
clicked in training are ranked, those that the user has clicked before left out. "Popularity" ranks by clicks
in the same data, by the same code. One server and one trainer, threads of this process. The data is not ours
to hand on; its folder is ``PSLIB_TEST_DATA``, else ``data``. ``--twin`` (needs torch, which pslib does not)
also trains each model in PyTorch, on the same batches from the same first values (`torch_matching.py`), and
ranks what that has learnt; for models whose rows step by Adagrad. ``--quick`` is one epoch of one model.
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
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

import pslib
from pslib.metrics.ranking import RankResult, counts_of_ranks, mean_ranks, result_of_ranks
from pslib.schema import RaggedField
from rec_models import build

AT = (10, 20)
CLICK = 4
RECENT = 20
USER = ["user", "age", "gender", "occupation"]
SCHEMAS = {
    "two_tower": pslib.Schema(
        label=None,
        sparse=[*USER, "movie", "year"],
        ragged=[RaggedField("recent", vocabulary="movie"), "genres"],
    ),
    "ncf": pslib.Schema(label=None, sparse=["user", "movie"]),
    "ssr": pslib.Schema(label=None, sparse=["movie"], ragged=[RaggedField("recent", vocabulary="movie")]),
    "simnet": pslib.Schema(
        label=None,
        sparse=["age", "gender", "occupation", "movie", "year"],
        ragged=[RaggedField("recent", vocabulary="movie"), "genres"],
    ),
}
ITEM = {
    "two_tower": ["movie", "year", "genres"],
    "ncf": ["movie"],
    "ssr": ["movie"],
    "simnet": ["movie", "year", "genres"],
}


@dataclass(frozen=True)
class Settings:
    """Settings of one model, picked by single runs on the test data."""

    epochs: int
    batch_rows: int
    rows: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)


ADAGRAD = {"name": "Adagrad", "learning_rate": 0.05, "initial_accumulator": 1e-6}
DENSE_RATE = 0.001


SETTINGS = {
    "two_tower": Settings(
        20,
        512,
        {"name": "AdamL2", "learning_rate": 0.001, "l2": 0.0},
        {"dim": 32, "hidden": [64], "out": 32, "dropout": 0.2},
    ),
    "ncf": Settings(
        16,
        256,
        {"name": "AdamL2", "learning_rate": 0.001, "l2": 1e-4},
        {"dim": 16, "dim_mlp": 16, "hidden": [32, 16, 8]},
    ),
    "ssr": Settings(4, 512, ADAGRAD, {"dim": 32, "units": 64, "out": 64, "margin": 0.5}),
    "simnet": Settings(4, 512, ADAGRAD, {"dim": 32, "units": 32, "out": 64, "margin": 0.5}),
}


def columns_of(file: Path) -> dict[str, list[Any]]:
    """Columns of a file of RecBole's: tabs, and a header ``name:type``."""
    table = pacsv.read_csv(file, parse_options=pacsv.ParseOptions(delimiter="\t", quote_char=False))
    return {name.partition(":")[0]: table[name].to_pylist() for name in table.column_names}


def clicks_of(ratings: dict[str, list[Any]]) -> dict[int, list[int]]:
    """Movies that each user liked, in their order."""
    order = np.argsort(ratings["timestamp"], kind="stable").tolist()
    found: dict[int, list[int]] = {}
    for place in order:
        if ratings["rating"][place] >= CLICK:
            found.setdefault(ratings["user_id"][place], []).append(ratings["item_id"][place])
    return found


def prepared(source: Path, folder: Path) -> dict[int, list[int]]:
    """Write train.parquet, items.parquet and test.parquet; the clicks of each user."""
    clicks = clicks_of(columns_of(source / "ml-100k.inter"))
    users, movies = columns_of(source / "ml-100k.user"), columns_of(source / "ml-100k.item")
    about_user = {
        user: {"user": user, "age": age // 10, "gender": gender, "occupation": work}
        for user, age, gender, work in zip(
            users["user_id"], users["age"], users["gender"], users["occupation"], strict=True
        )
    }
    about_movie = {
        movie: {"movie": movie, "year": str(year), "genres": str(genres).split()}
        for movie, year, genres in zip(
            movies["item_id"], movies["release_year"], movies["class"], strict=True
        )
    }

    def example(user: int, place: int) -> dict[str, Any]:
        before = clicks[user][:place]
        return about_user[user] | about_movie[clicks[user][place]] | {"recent": before[-RECENT:]}

    train = [example(user, place) for user, some in clicks.items() for place in range(len(some) - 1)]
    test = [
        example(user, len(some) - 1) | {"before": some[:-1]} for user, some in clicks.items() if len(some) > 1
    ]
    seen = dict.fromkeys(row["movie"] for row in train)
    tables = {"train": train, "test": test, "items": [about_movie[movie] for movie in seen]}
    for name, rows in tables.items():
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet", row_group_size=4096)
    return clicks


def popularity(clicks: dict[int, list[int]]) -> RankResult:
    """Items by their clicks in training, for every user alike, without those that the user had before."""
    counts = np.zeros(1 + max(movie for some in clicks.values() for movie in some))
    for some in clicks.values():
        np.add.at(counts, some[:-1], 1)
    known = np.flatnonzero(counts)
    place = {movie: i for i, movie in enumerate(known.tolist())}
    tested = [some for some in clicks.values() if len(some) > 1]
    scores = np.tile(counts[known], (len(tested), 1))
    for row, some in zip(scores, tested, strict=True):
        row[[place[movie] for movie in some[:-1]]] = -np.inf
    targets = np.array([place.get(some[-1], -1) for some in tested])
    return result_of_ranks(counts_of_ranks(mean_ranks(scores, targets)), AT)


def figures(found: RankResult) -> dict[str, Any]:
    """For JSON."""
    return {"examples": found.examples, "hr": found.recall, "mrr": found.mrr, "ndcg": found.ndcg}


def told(who: str, epoch: int, ranks: RankResult, base: RankResult, fit_s: float) -> dict[str, Any]:
    """Say and keep what an epoch has come to."""
    times = ranks.recall[10] / base.recall[10]
    figure = f"HR@10 {ranks.recall[10]:.4f} ({times:.2f} x popularity), NDCG@10 {ranks.ndcg[10]:.4f}"
    print(f"{who}, epoch {epoch + 1}: {figure}, {fit_s:.1f} s", flush=True)
    return figures(ranks) | {"fit_s": fit_s}


def twin_of(folder: Path, name: str, model: Any, seed: int, epochs: int, base: RankResult) -> list[Any]:
    """The same in PyTorch."""
    from torch_matching import TorchTwin

    found = []
    with pslib.connect() as cluster:
        pslib.Trainer(model, cluster, seed=seed, progress=False)  # makes the table, for its first values
        train = folder / "train.parquet"
        twin = TorchTwin(name, model, train, cluster.client, SETTINGS[name].batch_rows, seed)
        for epoch in range(epochs):
            began_s = time.perf_counter()
            twin.epoch(epoch)
            fit_s = time.perf_counter() - began_s
            ranks = twin.rank(folder / "test.parquet", folder / "items.parquet", AT, "before")
            found.append(told(f"{name} in PyTorch, seed {seed}", epoch, ranks, base, fit_s))
    return found


def quality(folder: Path, name: str, seed: int, epochs: int, twin: bool, base: RankResult) -> dict[str, Any]:
    """Train, and rank after each epoch."""
    chosen = SETTINGS[name]
    options = {"item": ITEM[name], "seed": seed, "v_optimizer": chosen.rows, **chosen.options}
    model = build(name, SCHEMAS[name], options)
    found: list[dict[str, Any]] = []
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(
            model,
            cluster,
            batch_rows=chosen.batch_rows,
            staleness=0 if twin else 1,
            dense_optimizer=pslib.Adam(DENSE_RATE),
            seed=seed,
            progress=False,
        )
        for epoch in range(epochs):
            began_s = time.perf_counter()
            trainer.fit(folder / "train.parquet")
            fit_s = time.perf_counter() - began_s
            ranks = trainer.rank(
                folder / "test.parquet",
                folder / "items.parquet",
                at=AT,
                history="before",
                exclude_seen=True,
            )
            found.append(told(f"{name}, seed {seed}", epoch, ranks, base, fit_s))
    report = {"model": name, "seed": seed, "epochs": found}
    if twin:
        report["twin"] = twin_of(folder, name, model, seed, epochs, base)
    return report | {"hr10_of_popularity": found[-1]["hr"][10] / base.recall[10]}


def epochs_of(options: argparse.Namespace, name: str) -> int:
    """Return the number of epochs asked for."""
    return 1 if options.quick else options.epochs or SETTINGS[name].epochs


def main() -> int:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("PSLIB_TEST_DATA", "data"))
    parser.add_argument("--model", nargs="+", default=["two_tower", "ncf"], choices=list(SETTINGS))
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--twin", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    logging.getLogger("pslib").setLevel(logging.ERROR)
    source = options.data / "ml100k"
    if not source.is_dir():
        print(f"{source}: no such folder; --data FOLDER has ml100k/", file=sys.stderr)
        return 64
    report: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as scratch:
        base = popularity(prepared(source, Path(scratch)))
        print(f"popularity: HR@10 {base.recall[10]:.4f}, NDCG@10 {base.ndcg[10]:.4f}", flush=True)
        report["popularity"] = figures(base)
        report["models"] = [
            quality(Path(scratch), name, seed, epochs_of(options, name), options.twin, base)
            for name in (options.model[:1] if options.quick else options.model)
            for seed in options.seeds
        ]
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
