"""Workload and machine descriptions: input values of the planner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pslib.errors import ConfigurationError
from pslib.table.policies import WEIGHT_BYTES
from pslib.table.tables import RowLayout, TableSpec

KEY_BYTES = 8
KEYS_MAX = 2.0**64
RANKS_MAX = 4096
"""Ranks counted one by one in `distinct_share`; later ones in ranges whose ends differ by 1 %."""


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """Machine type, of which the cluster has many.

    Attributes
    ----------
    cores : int
        1 or more.
    memory_bytes : float
    network_bit_s : float
        Bandwidth each way.
    latency_us : float
        Latency of one message between two machines.
    open_files : int
        Hard limit of one process (``ulimit -Hn``); pslib raises the soft limit itself. The default is
        systemd's since version 240 (DefaultLimitNOFILE=1024:524288, systemd-system.conf(5)).
    """

    cores: int
    memory_bytes: float
    network_bit_s: float
    latency_us: float = 50.0
    open_files: int = 524_288

    def __post_init__(self) -> None:
        problems = [
            f"machine: {name}: expected more than 0, got {value:g}"
            for name in ("cores", "memory_bytes", "network_bit_s", "open_files")
            if not (value := getattr(self, name)) > 0
        ]
        if self.latency_us < 0:
            problems.append(f"machine: latency_us: expected 0 or more, got {self.latency_us:g}")
        if problems:
            raise ConfigurationError(*problems)


@dataclass(frozen=True, slots=True)
class Workload:
    """Model and training settings.

    Attributes
    ----------
    rows : float
        Rows of the full table.
    table : TableSpec
        Parts, optimizers, storage.
    keys, dense_fields : int
        Keys and numbers of one example.
    hidden : tuple of int
        Units of the tower over embeddings and numbers.
    batch_rows : int
        Examples of a batch.
    staleness : int
        Batches a trainer may run ahead.
    distinct : float
        Share of distinct keys in a batch, in (0, 1].
    wire_float_bytes : float
        Bytes of one float of rows and row gradients on the wire.
    """

    rows: float
    table: TableSpec
    keys: int = 26
    dense_fields: int = 13
    hidden: tuple[int, ...] = (400, 400, 400)
    batch_rows: int = 4096
    staleness: int = 2
    distinct: float = 0.5
    wire_float_bytes: float = 4.0

    def __post_init__(self) -> None:
        if problems := [*self._problems()]:
            raise ConfigurationError(*problems)

    def _problems(self) -> Iterator[str]:
        for name, least in (
            ("rows", 1),
            ("keys", 1),
            ("dense_fields", 0),
            ("batch_rows", 1),
            ("staleness", 0),
        ):
            if not getattr(self, name) >= least:
                yield f"{name}: expected {least} or more, got {getattr(self, name):g}"
        if self.rows > KEYS_MAX:
            yield f"rows: expected at most 2^64, one a key, got {self.rows:g}"
        if any(units < 1 for units in self.hidden):
            yield f"hidden: expected units of 1 or more, got {self.hidden}"
        if not 0 < self.distinct <= 1:
            yield f"distinct: expected a share above 0 and up to 1, got {self.distinct:g}"
        if not 0 < self.wire_float_bytes <= 4:
            yield f"wire_float_bytes: expected above 0 and up to 4, got {self.wire_float_bytes:g}"

    @property
    def floats(self) -> int:
        """Weights of a row."""
        return sum(part.dim for part in self.table.parts)

    @property
    def parameters(self) -> float:
        """Weights of all rows."""
        return self.rows * self.floats

    @property
    def payload_bytes(self) -> float:
        """Weights, state and counters of one row in memory, without its key."""
        return self.floats * WEIGHT_BYTES[self.table.storage] + 4.0 * RowLayout.of(self.table).state_floats

    @property
    def saved_row_bytes(self) -> float:
        """Bytes of one row in a checkpoint before compression: key, weights as float32, state."""
        return KEY_BYTES + 4.0 * self.floats + 4.0 * RowLayout.of(self.table).state_floats

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the tower, input first, the one logit last. The embedding is the widest part of a row."""
        return (self.keys * max(part.dim for part in self.table.parts) + self.dense_fields, *self.hidden, 1)

    @property
    def dense_floats(self) -> int:
        """Dense parameters: the tower's matrices and biases, one weight per number."""
        return sum(n * m + m for n, m in pairwise(self.widths)) + self.dense_fields if self.hidden else 1

    @property
    def multiply_adds(self) -> float:
        """Multiply-adds of one example, forward and backward: three products per layer."""
        return 3.0 * sum(n * m for n, m in pairwise(self.widths)) if self.hidden else 0.0

    @property
    def touched_floats(self) -> float:
        """Floats of one example that pass through memory: gathered rows, input and activations."""
        tower = sum(self.widths) if self.hidden else 0
        return float(self.keys * self.floats + self.dense_fields + tower)

    @property
    def batch_keys(self) -> float:
        """Distinct keys of a batch."""
        return self.batch_rows * self.keys * self.distinct


def distinct_share(batch_rows: int, vocabulary: float, zipf: float) -> float:
    """Return the expected share of distinct values among ``batch_rows`` draws of one field.

    ``sum over ranks k of 1 - (1 - p_k)^B``, divided by B, with ``p_k ~ k^-zipf``. The first 4,096 ranks are
    counted one by one, later ones in ranges of geometric widths at their middle.

    Parameters
    ----------
    batch_rows : int
        Draws B.
    vocabulary : float
        Values of the field, 1 or more.
    zipf : float
        0 is uniform.
    """
    last = max(int(vocabulary), 1)
    single = np.arange(1, min(last, RANKS_MAX) + 1, dtype=np.float64)
    middle, count = single, np.ones_like(single)
    if last > RANKS_MAX:
        steps = max(2, int(100 * np.log(last / RANKS_MAX)) + 2)
        edges = np.unique(np.rint(np.geomspace(float(RANKS_MAX + 1), float(last + 1), steps)))
        middle = np.concatenate([single, np.sqrt(edges[:-1] * (edges[1:] - 1))])
        count = np.concatenate([count, np.diff(edges)])
    weight = middle**-zipf
    chance = weight / float((weight * count).sum())
    seen = -np.expm1(batch_rows * np.log1p(-np.minimum(chance, 1 - 1e-12)))
    return float(min((seen * count).sum() / batch_rows, 1.0))
