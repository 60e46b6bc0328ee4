"""Helpers shared by the tests of the trainer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np

import pslib
from cython_ext.common.hashing import hash_ints
from pslib.cluster import Cluster
from pslib.config import Timing
from tests.support.clusters import cluster_of
from tests.support.counting import SCHEMA, STEP, CountingModel
from tests.support.waiting import PATIENCE, PATIENCE_S

UNHURRIED = Timing(heartbeat_s=0.2, silence_s=2.0, retry_s=0.5, request_s=20.0, start_s=20.0)
"""A trainer that is only slow, on a busy machine, must not count as lost."""


def trainer_on(
    cluster: Cluster, model: CountingModel | None = None, batch_rows: int = 5, **settings: object
) -> pslib.Trainer:
    chosen = {"dense_optimizer": STEP, "progress": False, "lease_rows": 20, "warmup_batches": 0} | settings
    return pslib.Trainer(model or CountingModel(), cluster, batch_rows=batch_rows, **chosen)


@contextmanager
def one_trainer(
    model: CountingModel | None = None, *, servers: int = 1, **settings: Any
) -> Iterator[pslib.Trainer]:
    """The only trainer of a cluster of its own, ``trainer.cluster``; ``settings`` as for `trainer_on`."""
    with cluster_of(servers) as running:
        yield trainer_on(running.join(), model, **settings)


def at_step(number: int, act: Callable[[], object], pause_s: float = 0.0) -> Callable[[object, object], None]:
    """For a model: it does something in its batch of this number, from 1 on, and pauses in each."""
    steps = count(1)

    def look(_batch: object, _rows: object) -> None:
        time.sleep(pause_s)
        if next(steps) == number:
            act()

    return look


def held_until(happened: threading.Event, pause_s: float = 0.002) -> Callable[[object, object], None]:
    """For a model: it computes no batch before something has happened; work is left for others till then."""

    def look(_batch: object, _rows: object) -> None:
        assert happened.wait(PATIENCE_S)
        time.sleep(pause_s)

    return look


def counts_of(cluster: Cluster, ids: np.ndarray) -> np.ndarray:
    """Return the number of times that each example was trained on."""
    keys = hash_ints(ids.astype(np.int64), SCHEMA.sparse[0].salt, None)
    return cluster.client.pull({"counts": keys}).wait().rows["counts"][:, 0]


def examples_counted(cluster: Cluster) -> int:
    return int(cluster.client.pull({}, dense=True).wait().dense[0])


def within(seconds: float, work: Callable[[], object]) -> BaseException:
    """The error with which ``work`` ends, soon: within ``seconds`` on an idle machine."""
    started = time.monotonic()
    caught: BaseException | None = None
    try:
        work()
    except BaseException as error:
        caught = error
    assert caught is not None
    assert time.monotonic() - started < PATIENCE * seconds
    return caught
