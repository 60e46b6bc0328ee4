"""The reference for training in step: a dict of rows and NumPy.

For each step gradients are summed in the order of ranks, then one Adagrad step is taken. Gradients are no
whole numbers, so every other order of summing shows in the bits.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pslib.shard.shard import Shard
from pslib.table.initializers import Constant
from pslib.table.optimizers import Adagrad
from pslib.table.tables import PartSpec, TableSpec
from tests.simulation.cluster.history import SimulationError
from tests.simulation.cluster.workload import DENSE_LENGTH
from tests.support.definitions.optimizers import adagrad_step
from tests.support.definitions.table import unmix64

ADAGRAD = Adagrad(0.1)
KEYS = np.array([unmix64(partition << 60 | 5) for partition in (0, 1, 2, 3, 7, 7 | 8, 9, 12)], np.uint64)
TABLE = TableSpec("summed", (PartSpec("v", 2, ADAGRAD, Constant(0.5)),))
RATES = (0.25, 0.5, 1.0)
"""Learning rates of the first steps; all later ones have the last."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Push:
    keys: NDArray[np.uint64]
    gradients: Floats
    dense: Floats


class PushPlan:
    """The pushes of each rank in each step."""

    def __init__(self, choice: random.Random) -> None:
        numbers = np.random.default_rng(choice.getrandbits(32))
        self.of_rank = [
            [self._push(choice, numbers) for _ in range(choice.randint(0, 5))]
            for _ in range(choice.randint(1, 4))
        ]

    @staticmethod
    def _push(choice: random.Random, numbers: np.random.Generator) -> Push:
        keys = np.array(choice.sample(KEYS.tolist(), choice.randint(0, 5)), np.uint64)
        gradients = numbers.standard_normal((keys.size, 2)).astype(np.float32)
        return Push(keys, gradients, numbers.standard_normal(DENSE_LENGTH).astype(np.float32))

    def contributors(self, step: int) -> tuple[int, ...]:
        return tuple(rank for rank, pushes in enumerate(self.of_rank) if step < len(pushes))


def rate_of(step: int) -> float:
    return RATES[min(step, len(RATES) - 1)]


class Reference:
    """Rows and dense parameters after each step."""

    def __init__(self, plan: PushPlan) -> None:
        self.rows = {int(key): np.full(2, 0.5, np.float32) for key in KEYS}
        self.state = {key: np.zeros(2, np.float32) for key in self.rows}
        self.dense, self._dense_state = np.zeros((2, DENSE_LENGTH), np.float32)
        self.after = [self._picture()]
        for step in range(max(map(len, plan.of_rank))):
            self._take(step, [plan.of_rank[rank][step] for rank in plan.contributors(step)])

    def _picture(self) -> tuple[bytes, bytes]:
        return np.array(list(self.rows.values())).tobytes(), self.dense.tobytes()

    def _take(self, step: int, pushes: list[Push]) -> None:
        optimizer = Adagrad(float(np.float32(ADAGRAD.learning_rate) * np.float32(rate_of(step))))
        sums: dict[int, Floats] = {}
        for push in pushes:
            for key, gradient in zip(push.keys.tolist(), push.gradients, strict=True):
                sums[key] = sums[key] + gradient if key in sums else gradient
        for key, gradient in sums.items():
            adagrad_step(optimizer, self.rows[key], self.state[key], gradient)
        dense = pushes[0].dense
        for push in pushes[1:]:
            dense = dense + push.dense
        adagrad_step(optimizer, self.dense, self._dense_state, dense)
        self.after.append(self._picture())


def check_bits(reference: Reference, shard: Shard) -> None:
    if shard.sync.held:
        raise SimulationError("pushes are held though all steps are applied")
    for partition in shard.stores["summed"].partitions().tolist():
        content = shard.stores["summed"].export_partition(partition)
        for key, row, sums in zip(content[0].tolist(), *content[1:], strict=True):
            if (
                row.tobytes() + sums.tobytes()
                != reference.rows[key].tobytes() + reference.state[key].tobytes()
            ):
                raise SimulationError(f"key {key:#x} has {row}, expected {reference.rows[key]}")
    assert shard.dense is not None
    for block, weights in shard.dense.weights.items():
        if weights.tobytes() != reference.dense[slice(*shard.dense.bounds(block))].tobytes():
            raise SimulationError(f"dense block {block} has other bits")
