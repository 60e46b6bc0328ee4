"""A scorer follows simulated clusters: whatever happens to processes, it has the rows of the shards."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cython_ext.common.hashing import partition_of
from pslib.client.following import Following, Update
from pslib.server.session import changed
from pslib.shard.change_log import ChangeLogs
from pslib.shard.changes import changes_steps
from pslib.shard.serving import finish
from pslib.shard.shard import Shard
from pslib.wire.dense_delta import DenseDelta
from pslib.wire.messages import Changed, Changes
from tests.simulation.cluster.history import SimulationError
from tests.simulation.cluster.server import Server
from tests.simulation.cluster.workload import DENSE_BLOCKS, DENSE_LENGTH, SETUP
from tests.simulation.cluster.world import PARTITION_BITS, World

SEEDS = 20
TABLE = SETUP.tables["tables"][0]["name"]
DIM = sum(part["dim"] for part in SETUP.tables["tables"][0]["parts"])
PARTITIONS = 1 << PARTITION_BITS


class Scorer:
    """Asks the shards of a world between its events, at moments at which servers would answer.

    A question is answered without the network, so a whole round is of one moment, and the copy must be what
    the shards hold; a round is broken off at random, as where an answer is lost.
    """

    def __init__(self, world: World, seed: int) -> None:
        self._world, self._choice = world, random.Random(seed)
        self._following = Following(TABLE, DIM, DENSE_LENGTH, PARTITIONS, DENSE_BLOCKS)
        self.rows: dict[int, bytes] = {}
        self.dense = np.zeros(DENSE_LENGTH, np.float32)
        self.versions = self.whole = self.pieces = 0

    def after_event(self) -> None:
        """Perhaps play a round, and compare."""
        if self._choice.random() > 0.05:
            return
        servers = {f"{one.name} {one.generation}": one for one in self._world.servers if _answers(one)}
        self._following.begin(sorted(servers))
        while request := self._following.next_request():
            address, message = request
            if self._choice.random() < 0.03:
                self._following.failed(address)
                return
            self._following.take(address, _answer(servers[address].shards, message))
        if self._following.is_complete:
            self._apply(self._following.take_update())
            self._compare(list(servers.values()))

    def _apply(self, update: Update) -> None:
        for piece in update.pieces:
            keys = np.array(list(self.rows), np.uint64)
            for key in keys[np.isin(partition_of(keys, PARTITION_BITS), piece.whole)].tolist():
                del self.rows[key]
            for key, row in zip(piece.keys.tolist(), piece.rows, strict=True):
                self.rows[key] = row.tobytes()
            self.whole += piece.whole.size
        self.dense = update.dense
        self.versions += 1
        self.pieces += len(update.pieces)

    def _compare(self, servers: list[Server]) -> None:
        rows: dict[int, bytes] = {}
        for shard in (shard for server in servers for shard in server.shards):
            for partition in np.flatnonzero(shard.kind_of_partition == 0).tolist():
                keys, weights, _state = shard.stores[TABLE].export_partition(partition)
                rows |= {key: row.tobytes() for key, row in zip(keys.tolist(), weights, strict=True)}
            assert shard.dense is not None
            for block in shard.owned_blocks():
                start, stop = shard.dense.bounds(block)
                if self.dense[start:stop].tolist() != shard.dense.weights[block].tolist():
                    raise SimulationError(f"block {block} of version {self.versions} is not the shard's")
        mine = {key: row for key, row in self.rows.items() if any(row)}
        theirs = {key: row for key, row in rows.items() if any(row)}
        if mine != theirs:
            differ = {key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)}
            raise SimulationError(
                f"version {self.versions}: rows of {sorted(differ)[:5]} are not the shards'"
            )


def _answers(server: Server) -> bool:
    """Return whether a server would answer now: it has its tables, and no request is half done."""
    return (
        server.alive
        and bool(server.shards)
        and not server.waits
        and not any(turns.in_request for turns in server._turns)
        and all(TABLE in shard.stores and _has_values(shard) for shard in server.shards)
    )


def _has_values(shard: Shard) -> bool:
    return shard.dense is not None and all(block in shard.dense.weights for block in shard.owned_blocks())


def _answer(shards: list[Shard], message: Changes) -> Changed:
    assert shards[0].dense is not None
    dense = DenseDelta.to(message, shards[0].dense.bounds)
    return changed([finish(changes_steps(shard, message, dense)) for shard in shards], dense)


def play(seed: int) -> Scorer:
    world = World(seed)
    scorer, step = Scorer(world, seed), world.network.step

    def step_and_follow() -> bool:
        happened = step()
        scorer.after_event()
        return happened

    world.network.step = step_and_follow  # type: ignore[method-assign]
    world.run()
    return scorer


def play_all(stop: int, first: int = 0) -> list[Scorer]:
    return [play(seed) for seed in range(first, stop)]


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_each_version_of_a_scorer_has_the_rows_of_the_shards(first: int) -> None:
    scorers = play_all(first + 10, first)
    assert sum(one.versions for one in scorers) > 300, "too few versions to tell anything"
    assert sum(one.pieces for one in scorers) > 300
    assert sum(one.whole for one in scorers) > 1000, "partitions that were read whole"


@pytest.mark.parametrize("forgotten", ["note", "mark_stale"])
def test_a_change_that_no_log_has_is_found(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChangeLogs, forgotten, lambda *_arguments: None)
    with pytest.raises(SimulationError, match="not the shards'"):
        play_all(SEEDS)
