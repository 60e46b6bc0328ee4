"""Calls that clients have begun, and those acknowledged to them: all rows follow from these."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.data.distinct import partitions_touched
from pslib.client.calls import PullCall
from tests.simulation.cluster.workload import DENSE_WEIGHTS, ITEM_WEIGHTS, SHARED_KEYS, Op, Script

DENSE = "dense"
PARTITIONS = 16
ABSENT = (0.0, 0.0)


class SimulationError(AssertionError):
    """A world is not as it must be."""


class History:
    """Calls that clients have begun, and those acknowledged to them: no more than that is guaranteed."""

    def __init__(self, scripts: Sequence[Script], partition_bits: int) -> None:
        self._bits = partition_bits
        self._calls_of = {script.stream: script.ops for script in scripts}
        self._lengths = {script.stream: len(script.ops) for script in scripts}
        self._acknowledged: dict[int, set[int]] = defaultdict(set)
        self._started: set[tuple[int, int]] = set()
        self.began: Counter[int | str] = Counter()
        """The number of named pushes begun, by shared key (and for the dense parameters)."""
        self.acked: Counter[int | str] = Counter()
        self.ops_of: dict[int, list[Op]] = defaultdict(list)
        """The calls begun, in order, by key that belongs to one stream."""
        self.ops: list[Op] = []
        self.failure_detector = 0
        """The number of times that a server has lost acknowledged data; see `forgive`."""
        self._order: dict[tuple[int, int], int] = {}
        self._begins: dict[int, tuple[set[tuple[float, ...]], int]] = {}
        self._sure_from: dict[int | str, int] = {}

    def add(self, script: Script) -> None:
        """One more stream."""
        self._lengths[script.stream] = len(script.ops)
        self._calls_of[script.stream] = script.ops

    def started(self, op: Op) -> None:
        """A client begins a call; the successor in a stream begins the same calls again."""
        if (op.stream, op.number) not in self._started:
            self._started.add((op.stream, op.number))
            self._order[op.stream, op.number] = len(self.ops)
            self.ops.append(op)
            self.began.update(_shared(op))
            for key in op.item_keys:
                self.ops_of[key].append(op)

    def acknowledged(self, op: Op) -> None:
        """A client is told that a call is complete."""
        if not self.is_acknowledged(op):
            self._acknowledged[op.stream].add(op.number)
            order = self._order[op.stream, op.number]
            self.acked.update(key for key in _shared(op) if order >= self._sure_from.get(key, 0))

    def forgive(self, key: int, row: tuple[float, ...] | None) -> None:
        """A server has lost what came after a checkpoint: the key has this row now; None: unknown."""
        self.failure_detector += 1
        rows = {ABSENT, ITEM_WEIGHTS} if row is None else {row}
        self._begins[key] = rows, len(self.ops_of[key])

    def is_erased_for_good(self, key: int) -> bool:
        """Return True if the last call on a key erases it, and all calls on it have been acknowledged."""
        ops = self.ops_of[key]
        last = max(op.number for op in ops)
        ends = any(op.number == last and op.erases for op in ops)
        pushes_again = any(one.after == last for one in self._calls_of[ops[0].stream])
        return ends and not pushes_again and all(map(self.is_acknowledged, ops))

    def is_forgiven(self, key: int) -> bool:
        """Return True if `forgive` was ever called for the key."""
        return key in self._begins

    def forgive_count(self, key: int | str, count: float) -> None:
        """The same of a shared key: so many pushes are in it for sure, and all that begin from now on."""
        self.failure_detector += 1
        self.acked[key] = int(count)
        self._sure_from[key] = len(self.ops)

    def is_acknowledged(self, op: Op) -> bool:
        """Return True if any client has been told that the call is complete."""
        return op.number in self._acknowledged[op.stream]

    def is_done(self, stream: int) -> bool:
        """Return True if all calls of a stream are acknowledged."""
        return len(self._acknowledged[stream]) == self._lengths[stream]

    def possible(self, key: int) -> set[tuple[float, ...]]:
        """The rows that a key of one stream may have: one row, when all calls on it are acknowledged."""
        rows, unsure = self._begins.get(key, ({ABSENT}, 0))
        for place, op in enumerate(self.ops_of[key]):
            after = {ABSENT if op.erases else _pushed(row) for row in rows}
            rows = after if place >= unsure and self.is_acknowledged(op) else rows | after
        return rows

    def units(self, op: Op) -> int:
        """Return the number of units that a call touches."""
        touched = [partitions_touched(keys, self._bits) for keys, _gradients in op.rows.values()]
        blocks = 0 if op.dense is None else 4
        return blocks + np.unique(np.concatenate(touched)).size if touched else blocks

    def expectation(
        self, choice: random.Random
    ) -> tuple[dict[str, NDArray[np.uint64]], Callable[[PullCall], None]]:
        """Keys for a pull, and the check of its answer: whatever was acknowledged before must be in it."""
        keys = choice.sample(sorted(self.ops_of), min(4, len(self.ops_of)))
        known = {key: self.possible(key) for key in keys}
        calls = {key: len(self.ops_of[key]) for key in keys}
        acked, losses = self.acked.copy(), self.failure_detector

        def check(pulled: PullCall) -> None:
            if self.failure_detector > losses:
                return
            for key, row in zip(keys, pulled.rows["item"].tolist(), strict=True):
                if len(self.ops_of[key]) == calls[key] and tuple(row) not in known[key]:
                    raise SimulationError(f"a pull of {key:#x} saw {row}, expected one of {known[key]}")
            for key, row in zip(SHARED_KEYS, pulled.rows["user"].tolist(), strict=True):
                require_between(acked[key], row[0], self.began[key], f"a pull of shared key {key:#x}")
            for count in (pulled.dense / DENSE_WEIGHTS).tolist():
                require_between(acked[DENSE], count, self.began[DENSE], "a pull of the dense parameters")

        return {"item": np.array(keys, np.uint64), "user": np.array(SHARED_KEYS, np.uint64)}, check


def _pushed(row: tuple[float, ...]) -> tuple[float, ...]:
    """A row after one more push; where an erase is lost, the push after it finds what that one left."""
    return tuple(before + more for before, more in zip(row, ITEM_WEIGHTS, strict=True))


def _shared(op: Op) -> list[int | str]:
    return [*op.shared_keys, *([] if op.dense is None else [DENSE])]


def require_between(low: float, value: float, high: float, what: str) -> None:
    """Raise unless a value is a whole number in a range."""
    if not low <= value <= high or value != int(value):
        raise SimulationError(f"{what}: expected a whole number in {low}..{high}, got {value}")


def rows_of(servers: Iterable[Any], table: str) -> dict[int, tuple[float, ...]]:
    """All rows of a table, each of which must be on the server that owns its partition, and only there."""
    rows: dict[int, tuple[float, ...]] = {}
    for server in servers:
        for shard in server.shards:
            if table not in shard.stores:
                continue
            store, found = shard.stores[table], 0
            for partition in store.partitions().tolist():
                keys, weights, _state = store.export_partition(partition)
                if keys.size and not shard.owned >> partition & 1:
                    raise SimulationError(f"server {server} keeps rows of partition {partition}")
                rows.update(zip(keys.tolist(), map(tuple, weights.tolist()), strict=True))
                found += keys.size
            if found != store.rows:
                raise SimulationError(f"server {server}: {store.rows} rows counted, {found} found")
    return rows
