"""What one shard thread owns: partitions of every table, dense blocks, and the marks of applied pushes.

A pure machine: messages in, messages out, no socket, no clock. A server with K shard threads has K shards;
shard ``k`` is responsible for the units ``u`` with ``u % K == k`` and owns those of them that the map gives
to this server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.selection import group_by_owner
from cython_ext.store import Store
from pslib.protocol.dense_answer import DenseAnswer
from pslib.protocol.journal import Entry, Journal
from pslib.protocol.marks import Marks
from pslib.protocol.messages import NOBODY, Adopt, Erase, Image, Keep, Maintain, Pull, Push, Release, Setup
from pslib.protocol.packed import PackedRows
from pslib.shard.cut import Cuts
from pslib.shard.key_shares import Shares
from pslib.shard.memory import MemoryRoom
from pslib.shard.moves import Moves
from pslib.shard.recording import note_of_own
from pslib.shard.serving import (
    MINE,
    NOT_OWNED,
    SIBLING,
    SLICE_ROWS,
    PullPart,
    PushPart,
    Steps,
    erase_steps,
    finish,
    fresh_units,
    pull_steps,
    push_steps,
)
from pslib.shard.stores import DenseBlocks, dense_of, make_store, specs_of
from pslib.shard.sync_steps import SyncSteps
from pslib.table.descriptions import check_tables, models_of
from pslib.table.partition_map import mask_of_units, units_of_mask
from pslib.table.tables import TableSpec

__all__ = ["PullPart", "PushPart", "Shard", "ShardCounters"]


@dataclass(slots=True)
class ShardCounters:
    """What a shard has done since it started."""

    pushes_applied: int = 0
    updates_applied: int = 0
    rows_pushed: int = 0
    rows_pulled: int = 0
    maintained: int = 0


class Shard:
    """Partitions and dense blocks of one shard thread.

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
        self.room = MemoryRoom(memory_bytes, f"shard thread {index} of {shards}", partitions)
        self.moves = Moves(self)
        self.sync = SyncSteps(self)
        self.cuts = Cuts(self)
        self.bare = False
        """Whether it has still to begin with what a checkpoint has; see `pslib.protocol.comeback`."""
        self.began_with = ""
        """The moment of the checkpoint that it has begun with, where it has lost what came after it."""
        self.owned = 0
        units = np.arange(self.partitions + dense_blocks)
        self.responsible = mask_of_units(units[units % shards == index])
        self.kind_of_partition = np.full(self.partitions, SIBLING, np.uint16)
        self.kind_of_partition[index::shards] = NOT_OWNED

    # --- ownership ----------------------------------------------------------------------------------------

    def own(self, units: NDArray[np.integer[Any]]) -> None:
        """Own these units from the first map on, empty; units of sibling shards are passed over."""
        mask = mask_of_units(units) & self.responsible
        self.say(note_of_own(mask))
        self.owned |= mask
        mine = units_of_mask(mask)
        self.kind_of_partition[mine[mine < self.partitions]] = MINE

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

    def is_responsible(self, unit: int) -> bool:
        """Whether requests about ``unit`` are for this shard rather than a sibling."""
        return bool(self.responsible >> unit & 1)

    def release(self, message: Release) -> Image:
        """Stop owning a unit and give its image; see `pslib.shard.moves.Moves.release`."""
        return self.moves.release(message)

    def adopt(self, message: Adopt) -> None:
        """Own a unit with the content of another server's image; see `pslib.shard.moves.Moves.adopt`."""
        self.moves.adopt(message)

    def keep(self, message: Keep) -> None:
        """Own a unit again that was released and refused; see `pslib.shard.moves.Moves.keep`."""
        self.moves.keep(message)

    def finish_streams(self, below: int) -> None:
        """All streams below ``below`` are over."""
        if below > self.marks.done_below:
            self.say_later({"note": "done", "below": below})
            self.marks.finish_below(below)

    def own_keys(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Places of the keys whose partition this shard owns, ascending."""
        order, starts = group_by_owner(keys, self.partition_bits, self.kind_of_partition, 3)
        return order[: starts[1]]

    # --- tables -------------------------------------------------------------------------------------------

    def setup(self, message: Setup) -> None:
        """Make tables and dense blocks; those that exist must be the same.

        Raises
        ------
        ConfigurationError
            When a table or the dense parameters exist with another description, or are another model's.
        """
        specs = specs_of(message, self.tables)
        models = models_of(self.models, message.tables.get("models", ()))
        dense = dense_of(message, self.dense, self.dense_blocks)
        given = self.owned_blocks() if dense and message.dense.size else ()
        bare = [block for block in given if dense and block not in dense.weights]
        new = models != self.models or any(spec.name not in self.tables for spec in specs)
        if dense is not self.dense or bare or new:
            self.say(message)
        self.dense, self.models = dense, models
        for block in bare:
            assert dense is not None
            start, stop = dense.bounds(block)
            dense.put(block, message.dense[start:stop])
        self.make_tables(specs)

    def check_setup(self, message: Setup) -> None:
        """Refuse what `setup` would refuse, and two descriptions of one name, before any shard has changed.

        `setup` itself takes the first of two, as logs may hold that.

        Raises
        ------
        ConfigurationError
            As `setup`; and when two tables in it have one name and differ.
        """
        check_tables(specs_of(message, self.tables))
        models_of(self.models, message.tables.get("models", ()))
        dense_of(message, self.dense, self.dense_blocks)

    def make_tables(self, specs: Iterable[TableSpec]) -> None:
        """Empty tables; those that exist stay as they are."""
        for spec in specs:
            if spec.name not in self.tables:
                self.stores[spec.name] = make_store(spec, self.partition_bits)
                self.tables[spec.name] = spec

    def setup_message(self) -> Setup:
        """What makes the same tables elsewhere, without any values."""
        dense = self.dense.spec if self.dense else None
        return Setup(
            {
                "tables": [spec.to_dict() for spec in list(self.tables.values())],
                "models": list(self.models.values()),
            },
            dense.length if dense else 0,
            dense.optimizer.to_dict() if dense else {},
            np.empty(0, np.float32),
            without_values=True,
        )

    def owned_blocks(self) -> Iterator[int]:
        """Dense blocks that this shard owns, ascending."""
        return (int(b) for b in units_of_mask(self.owned >> self.partitions))

    # --- requests -----------------------------------------------------------------------------------------

    def pull_steps(
        self,
        message: Pull,
        rows: Mapping[str, PackedRows],
        dense: DenseAnswer,
        shares: Shares | None = None,
    ) -> Steps[PullPart]:
        """Steps of a pull; see `pslib.shard.serving.pull_steps`."""
        return pull_steps(self, message, rows, dense, shares)

    def push_steps(self, message: Push, shares: Shares | None = None) -> Steps[PushPart]:
        """Steps of a push; see `pslib.shard.serving.push_steps`."""
        return push_steps(self, message, shares)

    def erase_steps(self, message: Erase, shares: Shares | None = None) -> Steps[PushPart]:
        """Steps of an erase; see `pslib.shard.serving.erase_steps`."""
        return erase_steps(self, message, shares)

    def pull(self, message: Pull, rows: Mapping[str, PackedRows], dense: DenseAnswer) -> PullPart:
        """A whole pull at once."""
        return finish(self.pull_steps(message, rows, dense))

    def push(self, message: Push) -> PushPart:
        """A whole push at once."""
        return finish(self.push_steps(message))

    def maintain(self, message: Maintain) -> PushPart:
        """Let counts of a table fade, then rows leave by its rules, once in each partition of this shard.

        Raises
        ------
        FencedError
            When the lease has another holder by now.
        """
        named = mask_of_units(message.units)
        theirs = named & self.responsible & ~self.owned
        fresh = fresh_units(self, message, named & self.owned)
        if fresh:
            self.say(replace(message, units=units_of_mask(fresh).astype(np.uint32)))
            self.maintain_units(message.table, fresh, message.step, message.time_s, message.decay)
            self.marks.record(message.stream, message.number, fresh)
            self.counters.maintained += fresh >> message.home & 1
        return PushPart(self.refusals(units_of_mask(theirs)))

    def maintain_units(self, table: str, units: int, step: int, time_s: float, decay: bool = True) -> None:
        """Maintain these units of a table; dense blocks among them have nothing to maintain."""
        spec, store = self.tables[table], self.stores[table]
        partitions = units_of_mask(units & (1 << self.partitions) - 1).astype(np.uint32)
        if decay and spec.decay_factor < 1:
            store.decay(spec.decay_factor, partitions)
        for rule in spec.eviction:
            store.evict(rule.kind, rule.number, spec.now(step, time_s), partitions)
        self.room.forget()

    def refusals(self, units: Iterable[Any]) -> dict[int, int]:
        """Units that this shard must refuse, and who owns them as far as it knows."""
        return {int(unit): self.moves.hints.get(int(unit), NOBODY) for unit in units}
