"""A training cluster over ZeroMQ in this process, and a server of models that follows it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import pslib
from pslib.clock import SystemClock
from pslib.scoring import LoadedModel
from pslib.serving.follower import Follower
from pslib.serving.repository import Follow
from pslib.serving.settings import ServeSettings
from pslib.transport import ZmqTransport
from rec_models import DeepFM
from rec_models.saved import model_of
from tests.support.clusters import Trainers, cluster_of
from tests.support.model_server import Client, served

SCHEMA = pslib.Schema(label="click", sparse=["user", "item"])
ROWS = 2000


def clicks(seed: int = 0) -> pa.Table:
    choice = np.random.default_rng(seed)
    user, item = choice.integers(0, 200, ROWS), choice.integers(0, 50, ROWS)
    return pa.table({"user": user, "item": item, "click": ((user + item) % 2).astype(np.int8)})


def note_cluster(folder: Path, address: str, cluster_id: str) -> None:
    """Write where the cluster of a run is, as a launcher does."""
    (folder / "logs").mkdir(exist_ok=True)
    place = {"coordinator": address, "cluster_id": cluster_id}
    (folder / "logs" / "cluster.json").write_text(json.dumps(place))


def opener(lines: list[str]) -> Callable[[ServeSettings], Follow]:
    """Return the opener of models of `pslib serve --follow`; its messages go to ``lines``."""

    def with_settings(settings: ServeSettings) -> Follow:
        def follow(source: str, path: str) -> tuple[LoadedModel, Follower]:
            follower = Follower(source, None, settings, SystemClock(), lines.append)
            return LoadedModel(path, model_of(path), parameters=follower.open), follower

        return follow

    return with_settings


class FollowedTraining:
    """A trained model whose cluster lives, and its folder."""

    def __init__(self, running: Trainers, folder: Path) -> None:
        self.running, self.folder, self.lines = running, folder, list[str]()
        self.cluster = running.join()
        model = DeepFM(SCHEMA, dim=4, hidden=(8,))
        self.trainer = pslib.Trainer(model, self.cluster, batch_rows=100, seed=3)
        self.trainer.fit(clicks())
        self.trainer.save(folder / "checkpoint")
        note_cluster(folder, running.embedded.address, running.embedded.cluster_id)

    @contextmanager
    def served(self, **settings: Any) -> Iterator[Client]:
        """A server that follows it."""
        options = {"follow_s": 0.05, **settings}
        with served({"clicks": str(self.folder)}, follow=opener(self.lines), **options) as client:
            yield client

    def expected(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows and dense parameters of the cluster."""
        found = self.cluster.client.pull({"embedding": keys}, dense=True).wait()
        return found.rows["embedding"], found.dense

    def push(self, keys: np.ndarray, value: float) -> None:
        """Change some rows and all dense parameters, and wait until that is acknowledged."""
        rows, dense = self.expected(keys)
        self.cluster.client.push(
            {"embedding": (keys, np.full_like(rows, value))}, np.full_like(dense, value)
        ).wait()


@contextmanager
def followed_training(folder: Path, servers: int = 2, **settings: Any) -> Iterator[FollowedTraining]:
    """A trained model whose cluster lives while the block runs."""
    with cluster_of(servers, transport=ZmqTransport(), listen="tcp://127.0.0.1:0", **settings) as running:
        yield FollowedTraining(running, folder)
