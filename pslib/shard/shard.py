"""Shard of one thread: partitions of every table, dense blocks, and the marks of applied pushes.

A pure state machine: messages in, messages out, no socket, no clock. A server with K shard threads has K
shards; shard ``k`` is responsible for the units ``u`` with ``u % K == k`` and owns those of them that the map
gives to this server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslib.shard.key_slices import Shares
from pslib.shard.log_records import note_of_own
from pslib.shard.migration import Moves
from pslib.shard.serving import ShardPart, Steps, erase_steps, finish, fresh_units, pull_steps, push_steps
from pslib.shard.snapshot import Cuts
from pslib.shard.state import MINE, ShardState
from pslib.shard.stores import dense_of, specs_of
from pslib.shard.sync_steps import SyncSteps
from pslib.table.descriptions import check_tables, models_of
from pslib.table.partition_map import mask_of_units, units_of_mask
from pslib.wire.dense_delta import DenseDelta
from pslib.wire.messages import Adopt, Erase, Image, Keep, Maintain, Pull, Push, Release, Setup
from pslib.wire.quantization import QuantizedRows


class Shard(ShardState):
    """Partitions and dense blocks of one shard thread: its state, and the requests on it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sync = SyncSteps(self)
        self.cuts = Cuts(self)
        self.moves = Moves(self, self._unit_left, self.cuts.unit_came)

    # --- ownership ----------------------------------------------------------------------------------------

    def own(self, units: NDArray[np.integer[Any]]) -> None:
        """Own these units from the first map on, empty; units of sibling shards are skipped."""
        mask = mask_of_units(units) & self.responsible
        self.say(note_of_own(mask))
        self.owned |= mask
        mine = units_of_mask(mask)
        self.kind_of_partition[mine[mine < self.partitions]] = MINE

    def _unit_left(self, unit: int, owner: int) -> None:
        self.sync.unit_left(unit, owner)

    def release(self, message: Release) -> Image:
        """Stop owning a unit and return its image; see `pslib.shard.migration.Moves.release`."""
        return self.moves.release(message)

    def adopt(self, message: Adopt) -> None:
        """Own a unit with the content of another server's image; see `pslib.shard.migration.Moves.adopt`."""
        self.moves.adopt(message)

    def keep(self, message: Keep) -> None:
        """Own a unit again that was released and refused; see `pslib.shard.migration.Moves.keep`."""
        self.moves.keep(message)

    def finish_streams(self, below: int) -> None:
        """Finish all streams below ``below``."""
        if below > self.marks.done_below:
            self.say_later({"note": "done", "below": below})
            self.marks.finish_below(below)

    # --- tables -------------------------------------------------------------------------------------------

    def setup(self, message: Setup) -> None:
        """Create tables and dense blocks; existing ones must be equal.

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
        """Refuse a set-up that `setup` would refuse, or with two descriptions of one name, before any change.

        `setup` itself takes the first of two, as logs may hold that.

        Raises
        ------
        ConfigurationError
            As `setup`; and when two tables in it have one name and differ.
        """
        check_tables(specs_of(message, self.tables))
        models_of(self.models, message.tables.get("models", ()))
        dense_of(message, self.dense, self.dense_blocks)

    def setup_message(self) -> Setup:
        """Return the message that creates the same tables elsewhere, without any values."""
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

    # --- requests -----------------------------------------------------------------------------------------

    def pull_steps(
        self,
        message: Pull,
        rows: Mapping[str, QuantizedRows],
        dense: DenseDelta,
        shares: Shares | None = None,
    ) -> Steps[ShardPart]:
        """Return the steps of a pull; see `pslib.shard.serving.pull_steps`."""
        return pull_steps(self, message, rows, dense, shares)

    def push_steps(self, message: Push, shares: Shares | None = None) -> Steps[ShardPart]:
        """Return the steps of a push; see `pslib.shard.serving.push_steps`."""
        return push_steps(self, message, shares)

    def erase_steps(self, message: Erase, shares: Shares | None = None) -> Steps[ShardPart]:
        """Return the steps of an erase; see `pslib.shard.serving.erase_steps`."""
        return erase_steps(self, message, shares)

    def pull(self, message: Pull, rows: Mapping[str, QuantizedRows], dense: DenseDelta) -> ShardPart:
        """Serve a whole pull at once."""
        return finish(self.pull_steps(message, rows, dense))

    def push(self, message: Push) -> ShardPart:
        """Serve a whole push at once."""
        return finish(self.push_steps(message))

    def maintain(self, message: Maintain) -> ShardPart:
        """Decay counts of a table, then evict rows by its rules, once in each partition of this shard.

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
        return ShardPart(self.refusals(units_of_mask(theirs)))
