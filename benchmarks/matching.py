"""Retrieval models on MovieLens 100K: HR@10 over all items, beside what is popular.

``python benchmarks/matching.py [--data FOLDER] [--model two_tower ncf] [--epochs N] [--seeds 1] [--json FILE]
[--quick]``: ratings of 4 and 5 of ``FOLDER/ml100k`` are clicks; the last click of each user is the test, all
others are trained on (users with a single click have no test). All items that were clicked in training are
ranked, those that the user has clicked before left out. "Popularity" ranks by clicks in the same data, by the
same code. One server and one trainer, threads of this process. The data is not ours to hand on; the default
folder is that of ``PSLIB_TEST_DATA``. ``--quick`` is one epoch of one model.
"""

from __future__ import annotations

import os
import sys

from pslib.blas import kernels_for

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
from pslib.ranking import RankResult, counts_of_ranks, mean_ranks, result_of_ranks
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
}
ITEM = {"two_tower": ["movie", "year", "genres"], "ncf": ["movie"]}


@dataclass(frozen=True)
class Settings:
    """Of one model; picked by single runs on the test data."""

    epochs: int
    rate: float
    batch_rows: int
    l2: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)


SETTINGS = {
    "two_tower": Settings(20, 0.001, 512, options={"dim": 32, "hidden": [64], "out": 32, "dropout": 0.2}),
    "ncf": Settings(30, 0.001, 256, 1e-4, {"dim": 16, "dim_mlp": 16, "hidden": [32, 16, 8]}),
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


def quality(folder: Path, name: str, seed: int, epochs: int | None, base: RankResult) -> dict[str, Any]:
    """Train, and rank after each epoch."""
    chosen = SETTINGS[name]
    rows = {"name": "AdamL2", "learning_rate": chosen.rate, "l2": chosen.l2}
    options = {"item": ITEM[name], "seed": seed, "v_optimizer": rows, **chosen.options}
    model = build(name, SCHEMAS[name], options)
    found: list[dict[str, Any]] = []
    with pslib.connect() as cluster:
        trainer = pslib.Trainer(
            model,
            cluster,
            batch_rows=chosen.batch_rows,
            staleness=1,
            dense_optimizer=pslib.Adam(chosen.rate),
            seed=seed,
            progress=False,
        )
        for epoch in range(epochs or chosen.epochs):
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
            found.append(figures(ranks) | {"fit_s": fit_s})
            times = ranks.recall[10] / base.recall[10]
            told = f"HR@10 {ranks.recall[10]:.4f} ({times:.2f} x popularity), NDCG@10 {ranks.ndcg[10]:.4f}"
            print(f"{name} seed {seed}, epoch {epoch + 1}: {told}, {fit_s:.1f} s", flush=True)
    last = found[-1]["hr"][10] / base.recall[10]
    return {"model": name, "seed": seed, "epochs": found, "hr10_of_popularity": last}


def main() -> int:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", default=os.environ.get("PSLIB_TEST_DATA", "../shared/data"), type=Path)
    parser.add_argument("--model", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
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
            quality(Path(scratch), name, seed, 1 if options.quick else options.epochs, base)
            for name in (options.model[:1] if options.quick else options.model)
            for seed in options.seeds
        ]
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
