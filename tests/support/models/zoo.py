"""Every model of the zoo, small, on made-up examples, and one that a cluster has trained."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import pslib
from pslib.schema import RaggedField, Schema
from rec_models import build
from rec_models.by_name import EVERY, MATCHING_MODELS, SESSION_MODELS, TASK_MODELS

LISTS = [RaggedField("liked", vocabulary="movie"), "genres"]
CLICKS = Schema(label="click", dense=["age"], sparse=["user", "movie"], ragged=LISTS)
TASKS = Schema(label="click", more_labels=["buy"], dense=["age"], sparse=["user", "movie"], ragged=LISTS)
SESSIONS = Schema(label=None, ragged=["session"])
QUERIES = Schema(label=None, sparse=["user", "movie", "year"], ragged=["genres"])
PAIRS = Schema(label=None, sparse=["user", "movie"])
READ = Schema(label="click", sparse=["movie"], ragged=[RaggedField("liked", vocabulary="movie")])
TEXT = Schema(label=None, sparse=["movie"], ragged=["liked"])
SMALL = {"dim": 4, "hidden": [8], "out": 4, "units": 3, "dim_mlp": 3, "negatives": 4, "item": ["movie"]}
SCHEMAS = {
    "two_tower": QUERIES,
    "ncf": PAIRS,
    "ssr": READ,
    "simnet": QUERIES,
    "tagspace": TEXT,
    "word2vec": Schema(label=None, ragged=["session"]),
}
CLICK_MODELS = [name for name in EVERY if name not in (*SESSION_MODELS, *MATCHING_MODELS)]
RANKERS = [*SESSION_MODELS, *MATCHING_MODELS]


def examples(rows: int, seed: int, keys: int) -> pa.Table:
    """Return examples with nulls, empty and null lists; of more ``keys`` some are unseen."""
    rng = np.random.default_rng(seed)

    def lists(count: int) -> list[Any]:
        sizes = rng.integers(1, 5, count - 2)
        return [None, [], *([f"m{i}" for i in rng.integers(0, keys, size)] for size in sizes)]

    age = rng.random(rows).astype(np.float32)
    return pa.table(
        {
            "click": rng.integers(0, 2, rows),
            "buy": rng.integers(0, 2, rows),
            "age": pa.array(age, mask=age < 0.1),
            "user": pa.array(rng.integers(0, keys, rows), mask=age > 0.9),
            "movie": [f"m{i}" for i in rng.integers(0, keys, rows)],
            "word": [f"m{i}" for i in rng.integers(0, keys, rows)],
            "year": rng.integers(1990, 1990 + keys, rows),
            "genres": lists(rows),
            "liked": lists(rows),
            "session": [[f"m{i}" for i in rng.integers(0, keys, 4)] for _ in range(rows)],
            "prefix": [[f"m{i}" for i in rng.integers(0, keys, 3)] for _ in range(rows)],
            "target": [f"m{i}" for i in rng.integers(0, keys, rows)],
        }
    )


def model_named(name: str) -> Any:
    kind = EVERY[name]
    schema = (
        TASKS if name in TASK_MODELS else SESSIONS if name in SESSION_MODELS else SCHEMAS.get(name, CLICKS)
    )
    options = {option: SMALL[option] for option in (field.name for field in fields(kind)) if option in SMALL}
    return build(name, schema, options)


class Trained:
    """A model after an epoch, with what its cluster answered and its checkpoint."""

    def __init__(self, folder: Path, model: Any, change: Any = lambda table: table) -> None:
        self.folder, self.model = folder, model
        self.train, self.test = folder / "train.parquet", folder / "test.parquet"
        pq.write_table(change(examples(400, 1, 30)), self.train)
        pq.write_table(change(examples(90, 2, 40)), self.test)
        self.checkpoint = str(folder / "checkpoint")

    def run(self, ask: Any = lambda trainer: None, **settings: Any) -> Any:
        with pslib.connect() as cluster:
            trainer = pslib.Trainer(self.model, cluster, batch_rows=32, progress=False, **settings)
            trainer.fit(self.train)
            answer = ask(trainer)
            trainer.save(self.checkpoint)
        return answer
