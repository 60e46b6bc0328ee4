"""What a trainer is given, checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral

from pslib.errors import ConfigurationError
from pslib.optimizers import Adam, Optimizer
from pslib.tables import DenseSpec, TableSpec
from pslib.trainer.model import TrainableModel
from pslib.wire_format import FLOAT32, WireFormat

__all__ = ["TrainerSettings", "table_of"]

STALENESS_MAX = 1024
"""Each batch that a trainer runs ahead holds its rows in memory, and far fewer hide any network."""
WARMUP_BATCHES_MAX = 1 << 31
"""More batches than anybody trains: the bound on staleness then never reaches its end."""
BATCH_ROWS_MAX = 1 << 24
"""Far above any published batch; the rows that one touches would not fit a message any more."""
LEASE_ROWS_MAX = 1 << 32
"""A lease may be all of the data: then one trainer has it."""
COMPUTE_THREADS_MAX = 256
"""More than one process can feed: a batch is cut into far fewer parts."""
MAINTAIN_EVERY_MAX = 1 << 31
"""More batches than anybody trains: what is to never happen is 0."""


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """How a trainer trains; `pslib.Trainer` says what each of them does.

    Raises
    ------
    ConfigurationError
        When any is out of range; all of them at once.
    """

    batch_rows: int = 4096
    staleness: int = 2
    warmup_batches: int = 500
    dense_optimizer: Optimizer = field(default_factory=Adam)
    seed: int = 0
    lease_rows: int | None = None
    maintain_every_batches: int = 0
    wire: WireFormat = FLOAT32
    compute_threads: int | None = None

    def __post_init__(self) -> None:
        ranges = [
            ("batch_rows", self.batch_rows, 1, BATCH_ROWS_MAX),
            ("staleness", self.staleness, 0, STALENESS_MAX),
            ("warmup_batches", self.warmup_batches, 0, WARMUP_BATCHES_MAX),
            ("lease_rows", 1 if self.lease_rows is None else self.lease_rows, 1, LEASE_ROWS_MAX),
            ("seed", self.seed, 0, (1 << 63) - 1),
            (
                "compute_threads",
                1 if self.compute_threads is None else self.compute_threads,
                1,
                COMPUTE_THREADS_MAX,
            ),
            ("maintain_every_batches", self.maintain_every_batches, 0, MAINTAIN_EVERY_MAX),
        ]
        problems = [
            f"{name}: expected a whole number in {low}..{high}, got {value!r}"
            for name, value, low, high in ranges
            if not isinstance(value, Integral) or not low <= int(value) <= high
        ]
        try:
            DenseSpec(0, self.dense_optimizer)
        except ConfigurationError as error:
            problems += error.problems
        if problems:
            raise ConfigurationError(*problems)


def table_of(model: TrainableModel, table: TableSpec | None) -> TableSpec:
    """The table to train; it must have the model's name and parts, whatever its policies."""
    own = model.table()
    if table is not None and (table.name, table.parts) != (own.name, own.parts):
        raise ConfigurationError(
            f"table: expected the model's, {own.name} with parts {[part.name for part in own.parts]}, and "
            f"policies; got {table.name} with parts {[part.name for part in table.parts]}: "
            "use dataclasses.replace(model.table(), ...)"
        )
    return own if table is None else table
