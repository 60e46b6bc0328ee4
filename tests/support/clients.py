"""Clients for tests of what they do: their clusters, tables, keys, gradients and rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pslib.client.client import Client
from pslib.table.initializers import Constant, Uniform
from pslib.table.optimizers import SGD, Adagrad, Adam
from pslib.table.tables import DenseSpec, PartSpec, TableSpec
from tests.support.clusters import Trainers, cluster_of

SPEC = TableSpec("item", (PartSpec("w", 1, Adagrad(0.1)), PartSpec("v", 3, Adam(0.01), Uniform(0.5))), seed=4)
PLAIN = TableSpec("plain", (PartSpec("x", 2, SGD(1.0), Constant(0.0)),))


def keys_of(*keys: int) -> np.ndarray:
    return np.array(keys, np.uint64)


def ones(rows: int, dim: int = 4) -> np.ndarray:
    return np.ones((rows, dim), np.float32)


KEYS = keys_of(1, 2)


@contextmanager
def client_of(servers: int = 2, **about: Any) -> Iterator[tuple[Client, Trainers]]:
    with cluster_of(servers, **about) as running:
        client = running.client()
        try:
            yield client, running
        finally:
            client.close()


@contextmanager
def client_with(*specs: TableSpec, servers: int = 1, **about: Any) -> Iterator[Client]:
    """A client of a cluster that has these tables."""
    with client_of(servers, **about) as (client, _running):
        client.setup(list(specs))
        yield client


def set_up_client() -> Iterator[Client]:
    """Has both tables and dense parameters on two servers; tests make a fixture of it."""
    with client_of(2, shard_threads=2) as (client, _running):
        client.setup([SPEC, PLAIN], DenseSpec(10, SGD(1.0)), np.arange(10, dtype=np.float32))
        yield client


def rows_of(client: Client, *keys: int, table: str = "plain") -> list[list[float]]:
    return client.pull({table: keys_of(*keys)}).wait().rows[table].tolist()
