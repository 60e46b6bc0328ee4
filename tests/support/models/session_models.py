"""Session models in tests: one line each in `SESSIONS`, and batches of sessions."""

from __future__ import annotations

import numpy as np

from pslib.batch import Batch, Ragged
from pslib.schema import Schema

__all__ = ["SCHEMA", "SESSIONS", "VARIANTS", "lists_of", "session_batch"]

SCHEMA = Schema(label=None, ragged=["items"])
SESSIONS: dict[str, dict[str, object]] = {
    "gru4rec": {"dim": 3, "negatives": 4, "dropout": 0.2, "dropout_hidden": 0.2},
    "narm": {"dim": 3, "negatives": 4, "dropout": 0.2, "dropout_hidden": 0.2},
    "stamp": {"dim": 3, "negatives": 4, "dropout": 0.2},
    "srgnn": {"dim": 3, "negatives": 4, "dropout": 0.2, "dropout_hidden": 0.2, "graph_steps": 2},
    "sasrec": {"dim": 4, "negatives": 4, "dropout": 0.2, "heads": 2, "length_max": 5},
}
"""A line a model of sessions."""

VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    **{name: (name, options) for name, options in SESSIONS.items()},
    "gru4rec by bpr-max": (
        "gru4rec",
        SESSIONS["gru4rec"] | {"rank_loss": "bpr-max", "bpreg": 0.7, "logq": False},
    ),
}
"""All models, and those whose options choose other mathematics."""


def lists_of(lengths: list[int], distinct: int = 6, seed: int = 0) -> Ragged[np.int32]:
    """Lists of so many elements, drawn from ``distinct`` ones."""
    values = np.random.default_rng(seed).integers(0, distinct, sum(lengths)).astype(np.int32)
    return Ragged(values, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def session_batch(lengths: list[int], negatives: int = 4, distinct: int = 6) -> Batch:
    """Sessions of so many items; with more of them than ``distinct``, items repeat."""
    rng = np.random.default_rng(1)
    return Batch(
        labels=np.zeros(len(lengths), np.float32),
        dense=np.zeros((len(lengths), 0), np.float32),
        keys=np.arange(distinct, dtype=np.uint64),
        sparse=np.zeros((len(lengths), 0), np.int32),
        ragged={"items": lists_of(lengths, distinct)},
        negatives=rng.integers(0, distinct, negatives).astype(np.int32),
        log_q=np.log(rng.random(distinct)).astype(np.float32),
    )
