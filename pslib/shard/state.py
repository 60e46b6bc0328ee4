"""State of one shard: stores, tables, marks, owned units, counters and the journal.

The functions of `pslib.shard` take this class. `pslib.shard.shard.Shard` adds the requests to it, so a
function that gets a shard reads its attributes without a second look-up. Nothing here imports the code that
serves.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.table.store import Store
from cython_ext.wire.selection import group_by_owner
from pslib.shard.change_log import ChangeLogs
from pslib.shard.memory import MemoryHeadroom
from pslib.shard.stores import DenseBlocks, make_store
from pslib.table.partition_map import mask_of_units, units_of_mask
from pslib.table.tables import TableSpec
from pslib.wire.applied_pushes import Marks
from pslib.wire.journal import Entry, Journal
from pslib.wire.messages import NOBODY

log = logging.getLogger(__name__)

SLICE_ROWS = 8192
"""Rows of a long request that are served before a short one has its turn: 0.1 to 0.4 ms of a table's time.
Rows in slices of 8,192 take 1.02 to 1.05 times as long as all at once, of 2,048 1.07 to 1.11 (3 million
rows, 2026-11-21).
"""

MINE, NOT_OWNED, SIBLING = 0, 1, 2
"""Relation of a partition to a shard (`ShardState.kind_of_partition`)."""


@dataclass(slots=True)
class ShardCounters:
    """Counters of a shard since it started."""

    pushes_applied: int = 0
    updates_applied: int = 0
    rows_pushed: int = 0
    rows_pulled: int = 0
    maintained: int = 0

    def add(self, others: ShardCounters) -> None:
        """Add other counters."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(others, name))


@dataclass(eq=False, repr=False)
class ShardState:
    """Data of one shard thread, and the queries that serve no request.

    Parameters
    ----------
    partition_bits, dense_blocks : int
        Numbers of the cluster.
    index, shards : int
        This shard's index among the shards of its server.
    marks : Marks
        Record of applied pushes (tests pass broken ones here).
    memory_bytes : int
        Memory limit of its tables; 0 is no limit.
    slice_rows : int
        Rows of a long request that are served before a short one has its turn.
    told : set of str
        Tables of which `tell_refused` has told; the shards of a server share it.
    """

    partition_bits: int
    dense_blocks: int
    index: int = 0
    shards: int = 1
    marks: Marks = field(default_factory=Marks)
    memory_bytes: int = 0
    slice_rows: int = SLICE_ROWS
    told: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.partitions = 1 << self.partition_bits
        self.counters = ShardCounters()
        self.pushes_before = 1
        """Number of the next push: 1 plus all pushes and erases of which it has applied anything; not in any
        log.
        """
        self.broken = ""
        self.journal: Journal | None = None
        """Journal of every change before it is made; None without a log, and in a replay."""
        self.tables: dict[str, TableSpec] = {}
        self.models: dict[str, Mapping[str, Any]] = {}
        """Model that owns each table, where trainers have given it; see `pslib.table.descriptions`."""
        self.stores: dict[str, Store] = {}
        self.dense: DenseBlocks | None = None
        partitions = len(range(self.index, self.partitions, self.shards))
        owner = f"shard thread {self.index} of {self.shards}"
        self.changes = ChangeLogs()
        self.room = MemoryHeadroom(self.memory_bytes, owner, partitions, self.changes)
        self.bare = False
        """True if it has still to restore a checkpoint; see `pslib.server.rejoin`."""
        self.began_with = ""
        """Moment of the checkpoint that it began with, where it has lost later changes."""
        self.owned = 0
        self.hints: dict[int, int] = {}
        """Known owners of units that have left."""
        units = np.arange(self.partitions + self.dense_blocks)
        self.responsible = mask_of_units(units[units % self.shards == self.index])
        self.kind_of_partition = np.full(self.partitions, SIBLING, np.uint16)
        self.kind_of_partition[self.index :: self.shards] = NOT_OWNED

    # --- ownership ----------------------------------------------------------------------------------------

    def is_responsible(self, unit: int) -> bool:
        """Return True if requests about ``unit`` are for this shard rather than a sibling."""
        return bool(self.responsible >> unit & 1)

    def refusals(self, units: Iterable[Any]) -> dict[int, int]:
        """Return the units that this shard must refuse, and their known owners."""
        return {int(unit): self.hints.get(int(unit), NOBODY) for unit in units}

    def own_keys(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Return the places of the keys whose partition this shard owns, ascending."""
        order, starts = group_by_owner(keys, self.partition_bits, self.kind_of_partition, 3)
        return order[: starts[1]]

    def owned_blocks(self) -> Iterator[int]:
        """Yield the dense blocks that this shard owns, ascending."""
        return (int(b) for b in units_of_mask(self.owned >> self.partitions))

    # --- journal ------------------------------------------------------------------------------------------

    def trim_log(self) -> None:
        """Trim the log, if there is one, to now: images of all units follow."""
        if self.journal is not None:
            self.journal.write_images()

    def write_to(self, journal: Journal | None) -> None:
        """Record changes in this journal from now on."""
        self.journal = journal
        self.room.tell = None if journal is None else journal.later

    def say(self, *entries: Entry) -> None:
        """Record a change in the journal, if there is one, before it is made.

        Raises
        ------
        LogFullError
            When it has no space; nothing may change then.
        """
        if self.journal is not None:
            self.journal.append(*entries)

    def say_later(self, *entries: Entry) -> None:
        """Record entries in the journal that may be lost when no record follows."""
        if self.journal is not None:
            self.journal.later(*entries)

    # --- tables -------------------------------------------------------------------------------------------

    def tell_refused(self, what: str) -> None:
        """Warn once that steps of a table would have stored numbers that are not finite."""
        if what not in self.told:
            self.told.add(what)
            log.warning(
                "pslib: %s: expected finite weights after a step, got NaN or infinity; such weights stay as "
                "they are, counted in steps_refused: look at the loss, lower learning_rate, or set clip_norm",
                what,
            )

    def make_tables(self, specs: Iterable[TableSpec]) -> None:
        """Create empty tables; existing ones stay as they are."""
        for spec in specs:
            if spec.name not in self.tables:
                self.stores[spec.name] = make_store(spec, self.partition_bits)
                self.tables[spec.name] = spec

    def maintain_units(self, table: str, units: int, step: int, time_s: float, decay: bool = True) -> None:
        """Maintain these units of a table; dense blocks among them have nothing to maintain."""
        spec, store = self.tables[table], self.stores[table]
        partitions = units_of_mask(units & (1 << self.partitions) - 1).astype(np.uint32)
        if decay and spec.decay_factor < 1:
            store.decay(spec.decay_factor, partitions)
        with self.changes.noting_lost_rows(table, store, partitions):
            for rule in spec.eviction:
                store.evict(rule.kind, rule.number, spec.now(step, time_s), partitions)
        self.room.forget()
