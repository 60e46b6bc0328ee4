"""State of one shard: stores, tables, marks, owned units, counters and the journal.

The functions of `pslib.shard` take this class. `pslib.shard.shard.Shard` adds the requests to it, so
a function that gets a shard reads its attributes without a second look-up. Nothing here imports the code
that serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.table.store import Store
from cython_ext.wire.selection import group_by_owner
from pslib.shard.memory import MemoryHeadroom
from pslib.shard.stores import DenseBlocks, make_store
from pslib.table.partition_map import mask_of_units, units_of_mask
from pslib.table.tables import TableSpec
from pslib.wire.applied_pushes import Marks
from pslib.wire.journal import Entry, Journal
from pslib.wire.messages import NOBODY

__all__ = ["MINE", "NOT_OWNED", "SIBLING", "SLICE_ROWS", "ShardCounters", "ShardState"]

SLICE_ROWS = 8192
"""Rows of a long request that are served before a short one has its turn: 0.1 to 0.4 ms of a table's time.
Rows in slices of 8,192 take 1.02 to 1.05 times as long as all at once, of 2,048 1.07 to 1.11 (3 million rows,
2026-11-21)."""

MINE, NOT_OWNED, SIBLING = 0, 1, 2
"""What a partition is to a shard (`ShardState.kind_of_partition`)."""


@dataclass(slots=True)
class ShardCounters:
    """What a shard has done since it started."""

    pushes_applied: int = 0
    updates_applied: int = 0
    rows_pushed: int = 0
    rows_pulled: int = 0
    maintained: int = 0


class ShardState:
    """Data of one shard thread, and what can be asked of it without serving a request.

    Parameters
    ----------
    partition_bits, dense_blocks : int
        Numbers of the cluster.
    index, shards : int
        This shard's place among the shards of its server.
    marks : Marks
        Memory of applied pushes (tests plant broken ones here).
    memory_bytes : int
        What its tables may take; 0 is no limit.
    slice_rows : int
        Rows of a long request that are served before a short one has its turn.
    """

    def __init__(
        self,
        partition_bits: int,
        dense_blocks: int,
        index: int = 0,
        shards: int = 1,
        marks: Marks | None = None,
        memory_bytes: int = 0,
        slice_rows: int = SLICE_ROWS,
    ) -> None:
        self.slice_rows = slice_rows
        self.partition_bits = partition_bits
        self.partitions = 1 << partition_bits
        self.dense_blocks = dense_blocks
        self.index, self.shards = index, shards
        self.marks = Marks() if marks is None else marks  # an empty Marks is false
        self.counters = ShardCounters()
        self.pushes_before = 1
        """The next one: 1 and all, and erases, of which it has applied anything; no log holds it."""
        self.broken = ""
        self.journal: Journal | None = None
        """Hears of every change before it is made; None: nobody does (without a log, and in a replay)."""
        self.tables: dict[str, TableSpec] = {}
        self.models: dict[str, Mapping[str, Any]] = {}
        """Whose tables they are, where trainers have said it; see `pslib.table.descriptions`."""
        self.stores: dict[str, Store] = {}
        self.dense: DenseBlocks | None = None
        partitions = len(range(index, self.partitions, shards))
        self.room = MemoryHeadroom(memory_bytes, f"shard thread {index} of {shards}", partitions)
        self.bare = False
        """Whether it has still to begin with what a checkpoint has; see `pslib.server.rejoin`."""
        self.began_with = ""
        """The moment of the checkpoint that it has begun with, where it has lost what came after it."""
        self.owned = 0
        self.hints: dict[int, int] = {}
        """Who owns a unit that has left, as far as is known here."""
        units = np.arange(self.partitions + dense_blocks)
        self.responsible = mask_of_units(units[units % shards == index])
        self.kind_of_partition = np.full(self.partitions, SIBLING, np.uint16)
        self.kind_of_partition[index::shards] = NOT_OWNED

    # --- ownership ----------------------------------------------------------------------------------------

    def is_responsible(self, unit: int) -> bool:
        """Whether requests about ``unit`` are for this shard rather than a sibling."""
        return bool(self.responsible >> unit & 1)

    def refusals(self, units: Iterable[Any]) -> dict[int, int]:
        """Units that this shard must refuse, and who owns them as far as it knows."""
        return {int(unit): self.hints.get(int(unit), NOBODY) for unit in units}

    def own_keys(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Places of the keys whose partition this shard owns, ascending."""
        order, starts = group_by_owner(keys, self.partition_bits, self.kind_of_partition, 3)
        return order[: starts[1]]

    def owned_blocks(self) -> Iterator[int]:
        """Dense blocks that this shard owns, ascending."""
        return (int(b) for b in units_of_mask(self.owned >> self.partitions))

    # --- journal ------------------------------------------------------------------------------------------

    def trim_log(self) -> None:
        """Let the log, if there is one, forget all that was before now: images of all units follow."""
        if self.journal is not None:
            self.journal.write_images()

    def write_to(self, journal: Journal | None) -> None:
        """Say from now on to this journal what is about to change."""
        self.journal = journal
        self.room.tell = None if journal is None else journal.later

    def say(self, *entries: Entry) -> None:
        """Tell the journal, if there is one, what is about to change.

        Raises
        ------
        LogFullError
            When it has no space; nothing may change then.
        """
        if self.journal is not None:
            self.journal.append(*entries)

    def say_later(self, *entries: Entry) -> None:
        """Tell the journal what may be lost when nothing follows it."""
        if self.journal is not None:
            self.journal.later(*entries)

    # --- tables -------------------------------------------------------------------------------------------

    def make_tables(self, specs: Iterable[TableSpec]) -> None:
        """Empty tables; those that exist stay as they are."""
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
        for rule in spec.eviction:
            store.evict(rule.kind, rule.number, spec.now(step, time_s), partitions)
        self.room.forget()
