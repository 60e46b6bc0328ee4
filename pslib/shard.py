"""What one shard thread owns: partitions of every table, dense blocks, and the marks of applied pushes.

A pure machine: messages in, messages out, no socket, no clock. A server with K shard threads has K shards;
shard ``k`` is responsible for the units ``u`` with ``u % K == k`` and owns those of them that the map gives
to this server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.distinct import group_by_owner, partitions_touched
from cython_ext.hashing import partition_of
from cython_ext.store import Store
from pslib.errors import ConfigurationError
from pslib.optimizers import optimizer_from_dict
from pslib.partition_map import mask_of_units, units_of_mask
from pslib.protocol.marks import Marks, record_salt
from pslib.protocol.messages import NOBODY, Adopt, Arrays, Erase, Image, Maintain, Pull, Push, Release, Setup
from pslib.shard_images import adopt_block, adopt_rows, image_of
from pslib.shard_memory import MemoryRoom
from pslib.stores import DenseBlocks, make_store
from pslib.tables import DenseSpec, TableSpec

__all__ = ["PullPart", "PushPart", "Shard", "ShardCounters"]

_MINE, _NOT_OWNED, _SIBLING = 0, 1, 2

FloatRows = NDArray[np.float32]


@dataclass(slots=True)
class ShardCounters:
    """What a shard has done since it started."""

    pushes_applied: int = 0
    updates_applied: int = 0
    rows_pushed: int = 0
    rows_pulled: int = 0
    maintained: int = 0


@dataclass(frozen=True, slots=True)
class PushPart:
    """Outcome of a push or erase on one shard: refused units and who owns them."""

    refused: dict[int, int]


@dataclass(frozen=True, slots=True)
class PullPart:
    """Outcome of a pull on one shard; its rows are already in the shared output arrays."""

    refused: dict[int, int]


@dataclass(slots=True)
class _Selection:
    """The keys of one request that this shard owns, by table, and what it must refuse."""

    places: dict[str, NDArray[np.int32] | None]
    keys: dict[str, NDArray[np.uint64]]
    refused: dict[int, int] = field(default_factory=dict)
    units: int = 0


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
    """

    def __init__(
        self,
        partition_bits: int,
        dense_blocks: int,
        index: int = 0,
        shards: int = 1,
        marks: Marks | None = None,
        memory_bytes: int = 0,
    ) -> None:
        self.partition_bits = partition_bits
        self.partitions = 1 << partition_bits
        self.dense_blocks = dense_blocks
        self.index, self.shards = index, shards
        self.marks = Marks() if marks is None else marks  # an empty Marks is false
        self.counters = ShardCounters()
        self.broken = ""
        self.tables: dict[str, TableSpec] = {}
        self.stores: dict[str, Store] = {}
        self.dense: DenseBlocks | None = None
        self.room = MemoryRoom(memory_bytes, f"shard thread {index} of {shards}")
        self.owned = 0
        self._owner_hint: dict[int, int] = {}
        self._released: dict[int, Image] = {}
        self._moved_at: dict[int, int] = {}
        units = np.arange(self.partitions + dense_blocks)
        self._responsible = mask_of_units(units[units % shards == index])
        self._kind_of_partition = np.full(self.partitions, _SIBLING, np.uint16)
        self._kind_of_partition[index::shards] = _NOT_OWNED

    # --- ownership ----------------------------------------------------------------------------------------

    def own(self, units: NDArray[np.integer[Any]]) -> None:
        """Own these units from the first map on, empty; units of sibling shards are passed over."""
        mask = mask_of_units(units) & self._responsible
        self.owned |= mask
        mine = units_of_mask(mask)
        self._kind_of_partition[mine[mine < self.partitions]] = _MINE

    def is_responsible(self, unit: int) -> bool:
        """Whether requests about ``unit`` are for this shard rather than a sibling."""
        return bool(self._responsible >> unit & 1)

    def release(self, message: Release) -> Image:
        """Stop owning a unit and give its image; asked again for the same move, give the same image again.

        Raises
        ------
        ConfigurationError
            When this server does not own the unit, or the unit has moved on under a later map.
        """
        unit, version = message.unit, message.map_version
        known = self._moved_at.get(unit, 0)
        if version == known and unit in self._released:
            return self._released[unit]
        if version <= known or not self.owned >> unit & 1:
            raise ConfigurationError(
                f"unit {unit} can't be released under map {version}: this server does not own it, "
                f"or took part in a later move (map {known})"
            )
        image = image_of(self, unit, version)
        self.owned &= ~(1 << unit)
        self._moved_at[unit] = version
        self._owner_hint[unit] = message.owner
        self._released[unit] = image
        self.marks.forget_unit(unit)
        if unit < self.partitions:
            self._kind_of_partition[unit] = _NOT_OWNED
            for store in self.stores.values():
                store.drop_partition(unit)
        elif self.dense:
            del self.dense.weights[unit - self.partitions], self.dense.state[unit - self.partitions]
        return image

    def adopt(self, message: Adopt) -> None:
        """Own a unit with the content of another server's image; a second copy changes nothing, however late.

        Raises
        ------
        ConfigurationError
            When the image does not fit the tables here, or the unit is owned already by another move. Then
            nothing has changed.
        MemoryLimitError
            When there is no room for its rows; nothing has changed either.
        """
        unit, version = message.unit, message.map_version
        known = self._moved_at.get(unit, 0)
        if version < known or (version == known and self.owned >> unit & 1):
            return
        if self.owned >> unit & 1:
            raise ConfigurationError(f"unit {unit} can't be adopted under map {version}: it is owned already")
        if unit < self.partitions:
            adopt_rows(self, message)
            self._kind_of_partition[unit] = _MINE
        else:
            adopt_block(self, message)
        self.owned |= 1 << unit
        self._moved_at[unit] = version
        self._released.pop(unit, None)
        self._owner_hint.pop(unit, None)
        self.marks.adopt(unit, message.marks)

    def forget_images(self, map_version: int) -> None:
        """Drop what was kept for moves up to ``map_version``: that map is published, so they are complete."""
        done = [unit for unit, image in self._released.items() if image.map_version <= map_version]
        for unit in done:
            del self._released[unit]

    def own_keys(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Places of the keys whose partition this shard owns, ascending."""
        order, starts = group_by_owner(keys, self.partition_bits, self._kind_of_partition, 3)
        return order[: starts[1]]

    # --- tables -------------------------------------------------------------------------------------------

    def setup(self, message: Setup) -> None:
        """Make tables and dense blocks; those that exist must be the same.

        Raises
        ------
        ConfigurationError
            When a table or the dense parameters exist with another description.
        """
        specs = [TableSpec.from_dict(plain) for plain in message.tables["tables"]]
        for spec in specs:
            known = self.tables.get(spec.name, spec)
            if known != spec:
                raise ConfigurationError(
                    f"table {spec.name} exists with another description; expected {known}, got {spec}; "
                    "another model needs a cluster of its own"
                )
        self._setup_dense(message)
        for spec in specs:
            if spec.name not in self.tables:
                self.stores[spec.name] = make_store(spec, self.partition_bits)
                self.tables[spec.name] = spec

    def _setup_dense(self, message: Setup) -> None:
        if not message.dense_length:
            return
        spec = DenseSpec(message.dense_length, optimizer_from_dict(dict(message.dense_optimizer)))
        if message.dense.size != spec.length:
            raise ConfigurationError(
                f"dense parameters: expected {spec.length} values, got {message.dense.size}"
            )
        if self.dense is None:
            self.dense = DenseBlocks(spec, self.dense_blocks)
            for block in self.owned_blocks():
                start, stop = self.dense.bounds(block)
                self.dense.put(block, message.dense[start:stop])
        elif self.dense.spec != spec:
            raise ConfigurationError(f"dense parameters exist as {self.dense.spec}, got {spec}")

    def owned_blocks(self) -> Iterator[int]:
        """Dense blocks that this shard owns, ascending."""
        return (int(b) for b in units_of_mask(self.owned >> self.partitions))

    # --- requests -----------------------------------------------------------------------------------------

    def pull(self, message: Pull, rows: Mapping[str, FloatRows], dense: Mapping[int, FloatRows]) -> PullPart:
        """Write this shard's rows and blocks into the shared outputs (``dense``: a view a block)."""
        selection = self._select(message.keys, message.blocks)
        for name, keys in selection.keys.items():
            places = selection.places[name]
            store, now = self.stores[name], self.tables[name].now(message.step, message.time_s)
            if places is None:
                store.pull(keys, rows[name], now)
            else:
                found = np.empty((keys.size, rows[name].shape[1]), np.float32)
                store.pull(keys, found, now)
                rows[name][places] = found
            self.counters.rows_pulled += keys.size
        if self.dense:
            for block in self._my_blocks(message.blocks):
                dense[block][:] = self.dense.weights[block]
        return PullPart(selection.refused)

    def push(self, message: Push) -> PushPart:
        """Apply what this shard owns of the push and has not applied before.

        Raises
        ------
        FencedError
            When the lease has another holder by now.
        MemoryLimitError
            When it needs new rows and there is no room for them. Nothing of the push is applied; rows that a
            table with ``when_full`` let go to make room are gone.
        """
        selection = self._select(message.keys, message.blocks)
        fresh = self._fresh(message, selection)
        if fresh:
            self._push_rows(message, selection, fresh)
            self._push_dense(message, fresh)
            self._record(message, fresh)
        return PushPart(selection.refused)

    def _push_rows(self, message: Push, selection: _Selection, fresh: int) -> None:
        kept = {
            name: (keys, self._keep(keys, selection.units, fresh)) for name, keys in selection.keys.items()
        }
        fresh_keys = {name: _take(*pair) for name, pair in kept.items()}
        self.room.make(fresh_keys, self.stores, self.tables)
        salt = record_salt(message.stream, message.number)
        for name, keys in fresh_keys.items():
            places, keep = selection.places[name], kept[name][1]
            counts = [
                _take(_take(given[name], places), keep) if name in given else None
                for given in (message.shows, message.clicks)
            ]
            gradients = _take(_take(message.gradients[name], places), keep)
            now = self.tables[name].now(message.step, message.time_s)
            self.stores[name].push(keys, gradients, salt=salt, now=now, shows=counts[0], clicks=counts[1])
            self.counters.rows_pushed += selection.keys[name].size

    def maintain(self, message: Maintain) -> PushPart:
        """Let counts of a table fade, then rows leave by its rules, once in each partition of this shard.

        Raises
        ------
        FencedError
            When the lease has another holder by now.
        """
        named = mask_of_units(message.units)
        theirs = named & self._responsible & ~self.owned
        selection = _Selection({}, {}, self._refusals(units_of_mask(theirs)), named & self.owned)
        fresh = self._fresh(message, selection)
        if fresh:
            spec, store = self.tables[message.table], self.stores[message.table]
            partitions = units_of_mask(fresh).astype(np.uint32)
            if message.decay and spec.decay_factor < 1:
                store.decay(spec.decay_factor, partitions)
            for rule in spec.eviction:
                now = spec.now(message.step, message.time_s)
                store.evict(rule.kind, rule.number, now, partitions)
            self.marks.record(message.stream, message.number, fresh)
            self.room.forget()
            self.counters.maintained += fresh >> message.home & 1
        return PushPart(selection.refused)

    def erase(self, message: Erase) -> PushPart:
        """Erase rows, once for each name, like a push."""
        selection = self._select(message.keys, np.empty(0, np.uint32))
        fresh = self._fresh(message, selection)
        if fresh:
            for name, keys in selection.keys.items():
                self.stores[name].erase(_take(keys, self._keep(keys, selection.units, fresh)))
            self._record(message, fresh)
        return PushPart(selection.refused)

    def _fresh(self, message: Push | Erase | Maintain, selection: _Selection) -> int:
        fresh = self.marks.fresh(message.stream, message.number, message.epoch, selection.units)
        self.marks.raise_floor(message.stream, message.all_acked_below)
        return fresh

    def _record(self, message: Push | Erase, fresh: int) -> None:
        self.marks.record(message.stream, message.number, fresh)
        self.counters.updates_applied += fresh.bit_count()
        self.counters.pushes_applied += fresh >> message.home & 1

    def _keep(self, keys: NDArray[np.uint64], units: int, fresh: int) -> NDArray[np.intp] | None:
        """Places of the keys whose partition is still to be applied; None for all (nearly always)."""
        if fresh == units:
            return None
        is_fresh = np.zeros(self.partitions, bool)
        fresh_units = units_of_mask(fresh)
        is_fresh[fresh_units[fresh_units < self.partitions]] = True
        return np.flatnonzero(is_fresh[partition_of(keys, self.partition_bits)])

    def _push_dense(self, message: Push, fresh: int) -> None:
        if self.dense is None:
            return
        start = 0
        for block in message.blocks.tolist():
            first, last = self.dense.bounds(block)
            if fresh >> (self.partitions + block) & 1:
                self.dense.apply(block, message.dense[start : start + last - first])
            start += last - first

    def _my_blocks(self, blocks: NDArray[np.uint32]) -> list[int]:
        owned = self.owned >> self.partitions
        return [block for block in blocks.tolist() if owned >> block & 1]

    def _refusals(self, units: NDArray[Any]) -> dict[int, int]:
        """Units that this shard must refuse, and who owns them as far as it knows."""
        return {unit: self._owner_hint.get(unit, NOBODY) for unit in units.tolist()}

    def _select(self, tables: Arrays, blocks: NDArray[np.uint32]) -> _Selection:
        """Split a request into what this shard owns and what it must refuse (siblings do their own)."""
        selection = _Selection({}, {})
        for name, keys in tables.items():
            if name not in self.stores:
                raise ConfigurationError(f"table {name!r} is unknown here; tables: {sorted(self.stores)}")
            order, starts = group_by_owner(keys, self.partition_bits, self._kind_of_partition, 3)
            if starts[1] == keys.size:
                mine, selection.places[name] = keys, None
            else:
                places = order[: starts[1]]
                mine, selection.places[name] = keys[places], places
                refused = keys[order[starts[1] : starts[2]]]
                selection.refused |= self._refusals(partitions_touched(refused, self.partition_bits))
            selection.keys[name] = mine
            selection.units |= mask_of_units(partitions_touched(mine, self.partition_bits))
        for block in blocks.tolist():
            unit = self.partitions + block
            if self.owned >> unit & 1:
                selection.units |= 1 << unit
            elif self._responsible >> unit & 1:
                selection.refused[unit] = self._owner_hint.get(unit, NOBODY)
        return selection


def _take(array: NDArray[Any], places: NDArray[Any] | None) -> NDArray[Any]:
    return array if places is None else array[places]
