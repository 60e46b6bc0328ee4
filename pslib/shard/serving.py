"""Pulls, pushes and erases on one shard, in steps: a long request is served a slice at a time.

Each function here is a generator that yields after every slice and returns the outcome of the request. Its
caller may serve short pulls in between, and nothing else: so the rows of a pull are of one moment, and marks
that were looked up before the first slice of a push still hold after its last one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cython_ext.common.hashing import partition_of
from cython_ext.wire.selection import first_of_others, group_by_owner, partition_set
from pslib.errors import ConfigurationError, UnavailableError
from pslib.shard.key_slices import KeySlice, Shares, counts_of, cuts, joined, placed, whole
from pslib.shard.log_records import applied_erase, applied_push, seen
from pslib.shard.state import MINE, ShardState
from pslib.table.partition_map import mask_of_units, units_of_mask
from pslib.wire.applied_pushes import record_salt
from pslib.wire.dense_delta import DenseDelta
from pslib.wire.fields import Arrays
from pslib.wire.journal import Entry
from pslib.wire.messages import Erase, Pull, Push
from pslib.wire.quantization import QuantizedRows, floats_of, gradients_of

ROW_FLOATS = 16
"""Dense parameters that cost as much as a row."""
SELECT_ROWS = 16
"""Slices whose keys' owners are looked up in one step: 1 ns a key, so about the time of a slice."""

ResultT = TypeVar("ResultT")
Steps = Generator[None, None, ResultT]
"""Request in progress: each `next` serves one slice, the returned value is the outcome."""


def finish(steps: Steps[ResultT]) -> ResultT:
    """Serve the rest of a request at once."""
    while True:
        try:
            next(steps)
        except StopIteration as over:
            return over.value


@dataclass(frozen=True, slots=True)
class ShardPart:
    """Outcome of a pull, push or erase on one shard: refused units and their owners.

    The rows of a pull, of this moment, are already in the shared output arrays. ``pushes_before`` is the
    counter before it (`ShardState.pushes_before`), 0 where nothing of a push was applied.
    """

    refused: dict[int, int]
    pushes_before: int = 0


@dataclass(slots=True)
class _Selection:
    """Keys of one request that this shard owns, and its refusals."""

    shares: dict[str, KeySlice] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)
    units: int = 0


def _own(shard: ShardState, share: KeySlice, refused: dict[int, int]) -> tuple[KeySlice, KeySlice | None]:
    """Return the owned part of a share, and the part to refuse (None: nothing); siblings do their own."""
    bits, kinds = shard.partition_bits, shard.kind_of_partition
    if first_of_others(share.keys, bits, kinds, MINE) == share.keys.size:
        return share, None
    order, starts = group_by_owner(share.keys, bits, kinds, 3)
    mine, theirs = share.take(order[: starts[1]]), share.take(order[starts[1] : starts[2]])
    refused.update(shard.refusals(np.unique(partition_of(theirs.keys, bits))))
    return mine, theirs


def _checked(shard: ShardState, tables: Arrays, shares: Shares | None) -> Shares:
    for name in tables:
        if name not in shard.stores:
            raise ConfigurationError(f"table {name!r} is unknown here; tables: {sorted(shard.stores)}")
    return whole(tables) if shares is None else shares


# --- pull --------------------------------------------------------------------------------------------------


def pull_steps(
    shard: ShardState,
    message: Pull,
    rows: Mapping[str, QuantizedRows],
    dense: DenseDelta,
    shares: Shares | None = None,
) -> Steps[ShardPart]:
    """Write this shard's rows and blocks into the shared outputs; zeros where it refuses.

    Parameters
    ----------
    shard, message
    rows : mapping of table name to QuantizedRows
    dense : DenseDelta
    shares : mapping of table name to KeySlice, or None
        Keys that no sibling is responsible for, where the request has been split; None: all keys.
    """
    refused: dict[int, int] = {}
    served, pushes_before = 0, shard.pushes_before
    for name, share in _checked(shard, message.keys, shares).items():
        for start, stop in cuts(share.keys.size, shard.slice_rows):
            if served + stop - start > shard.slice_rows:
                served = 0
                yield
            served += stop - start
            part = share.cut(start, stop)
            out = rows[name].cut(start, stop) if share.places is None else rows[name]
            _pull_slice(shard, message, name, part, out, refused)
    yield from pull_dense(shard, message.blocks, dense, refused)
    return ShardPart(refused, pushes_before)


def _pull_slice(
    shard: ShardState, message: Pull, name: str, share: KeySlice, out: QuantizedRows, refused: dict[int, int]
) -> None:
    """Write rows of a share to their places in ``out``; without places, one after the other."""
    mine, theirs = _own(shard, share, refused)
    store, now = shard.stores[name], shard.tables[name].now(message.step, message.time_s)
    if mine.places is None and out.is_plain:
        store.pull(mine.keys, out.values, now)
    else:
        found = np.empty((mine.keys.size, store.dim), np.float32)
        store.pull(mine.keys, found, now)
        out.put(found, mine.places)
    if theirs is not None and theirs.places is not None:
        out.clear(theirs.places)  # otherwise the reply would expose old memory
    shard.counters.rows_pulled += mine.keys.size


def pull_dense(
    shard: ShardState, blocks: NDArray[np.uint32], dense: DenseDelta, refused: dict[int, int]
) -> Steps[None]:
    """Write this shard's blocks into the shared output; zeros where it refuses."""
    mine: list[int] = []
    if shard.dense is not None:
        shard.dense.check_values(blocks, shard.owned >> shard.partitions)
    for place, block in enumerate(blocks.tolist()):
        unit = shard.partitions + block
        if shard.owned >> unit & 1 and shard.dense:
            mine.append(place)
        elif shard.is_responsible(unit):
            refused |= shard.refusals([unit])
            dense.refuse(place)
    if shard.dense is None:
        return
    served, at_once = 0, _blocks_of_slice(shard)
    for start in range(0, len(mine), at_once):
        if served >= ROW_FLOATS * shard.slice_rows:
            served = 0
            yield
        served += dense.put(mine[start : start + at_once], shard.dense.weights, shard.dense.versions)


def _blocks_of_slice(shard: ShardState) -> int:
    """Return the number of dense blocks that cost as much as a slice of rows, at least one."""
    size = shard.dense.bounds.size if shard.dense else 0
    return max(1, ROW_FLOATS * shard.slice_rows // max(1, size))


# --- push and erase ----------------------------------------------------------------------------------------


def push_steps(shard: ShardState, message: Push, shares: Shares | None = None) -> Steps[ShardPart]:
    """Apply the part of a push that this shard owns and has not applied before; mark it at the end.

    ``shares`` as for `pull_steps`.

    Raises
    ------
    FencedError
        When the lease has another holder by now.
    MemoryLimitError
        When it needs new rows and there is no room for them. Nothing of the push is applied; rows that a
        table with ``when_full`` evicted to make room are gone.
    LogFullError
        When the log has no space for it. Nothing of it is applied.
    """
    selection = yield from _select(shard, message, shares, message.blocks)
    fresh = fresh_units(shard, message, selection.units)
    pushes_before = shard.pushes_before if fresh else 0
    if fresh:
        shares = _fresh_shares(shard, selection, fresh)
        try:
            _make_room(shard, message, shares)
            if shard.journal is not None:
                shard.journal.append(applied_push(shard, message, shares, fresh))
        except UnavailableError:
            shard.say_later(seen(message))  # a refused push updates its stream all the same
            raise
        yield from _push_rows(shard, message, shares)
        yield from _push_dense(shard, message, fresh)
        record(shard, message, fresh)
    return ShardPart(selection.refused, pushes_before)


def apply_steps(shard: ShardState, message: Push, *about: Entry) -> Steps[None]:
    """Apply all of a push of owned units, without regard to marks, and without marking.

    ``about`` stands before it in the record.

    Raises
    ------
    MemoryLimitError, LogFullError
        As for `push_steps`.
    """
    selection = yield from _select(shard, message, None, message.blocks)
    shares = _fresh_shares(shard, selection, selection.units)
    _make_room(shard, message, shares)
    shard.say(*about, message)
    yield from _push_rows(shard, message, shares)
    yield from _push_dense(shard, message, selection.units)


def replay_push(shard: ShardState, message: Push, units: int) -> bool:
    """Apply a push from the log, where this shard owns all of its ``units`` and none has it yet.

    Nearly all records of a log are such, and need no selection of keys. Otherwise return False, with nothing
    changed.
    """
    if units & ~shard.owned or fresh_units(shard, message, units) != units:
        return False
    finish(_push_rows(shard, message, _checked(shard, message.keys, None)))
    if message.blocks.size:
        finish(_push_dense(shard, message, units))
    record(shard, message, units)
    return True


def erase_steps(shard: ShardState, message: Erase, shares: Shares | None = None) -> Steps[ShardPart]:
    """Erase rows, once for each name, like a push."""
    selection = yield from _select(shard, message, shares, np.empty(0, np.uint32))
    fresh = fresh_units(shard, message, selection.units)
    if fresh:
        shares = _fresh_shares(shard, selection, fresh)
        try:
            shard.say(applied_erase(message, shares))
        except UnavailableError:
            shard.say_later(seen(message))
            raise
        for name, kept in shares.items():
            for start, stop in cuts(kept.keys.size, shard.slice_rows):
                shard.stores[name].erase(kept.keys[start:stop])
                shard.changes.note(name, kept.keys[start:stop])
                yield
        record(shard, message, fresh)
    return ShardPart(selection.refused)


def _select(
    shard: ShardState, message: Push | Erase, shares: Shares | None, blocks: NDArray[np.uint32]
) -> Steps[_Selection]:
    """Split a request into the owned part and refusals (siblings do their own)."""
    selection = _Selection()
    for name, share in _checked(shard, message.keys, shares).items():
        mine = []
        for start, stop in cuts(share.keys.size, SELECT_ROWS * shard.slice_rows):
            if start:
                yield
            part, _theirs = _own(shard, placed(share, start, stop), selection.refused)
            selection.units |= partition_set(part.keys, shard.partition_bits)
            mine.append(part)
        selection.shares[name] = joined(mine, share)
    if blocks.size:
        units = mask_of_units(shard.partitions + blocks.astype(np.int64))
        selection.units |= units & shard.owned
        if theirs := units & shard.responsible & ~shard.owned:
            selection.refused |= shard.refusals(units_of_mask(theirs))
        if shard.dense is not None:
            shard.dense.check_values(blocks, shard.owned >> shard.partitions)
    return selection


def fresh_units(shard: ShardState, message: Any, units: int) -> int:
    """Return those of ``units`` to which a named request is not applied yet; raise its stream's floor."""
    fresh = shard.marks.fresh(message.stream, message.number, message.epoch, units)
    shard.marks.raise_floor(message.stream, message.all_acked_below)
    if not fresh:
        shard.say_later(seen(message))
    return fresh


def record(shard: ShardState, message: Push | Erase, fresh: int) -> None:
    """Mark and count these units as applied."""
    shard.marks.record(message.stream, message.number, fresh)
    shard.counters.updates_applied += fresh.bit_count()
    shard.counters.pushes_applied += fresh >> message.home & 1
    shard.pushes_before += 1


def _fresh_share(shard: ShardState, share: KeySlice, units: int, fresh: int) -> KeySlice:
    """Return the keys whose partition is still to be applied; nearly always all."""
    if fresh == units:
        return share
    is_fresh = np.zeros(shard.partitions, bool)
    numbers = units_of_mask(fresh)
    is_fresh[numbers[numbers < shard.partitions]] = True
    return share.take(np.flatnonzero(is_fresh[partition_of(share.keys, shard.partition_bits)]))


def _fresh_shares(shard: ShardState, selection: _Selection, fresh: int) -> dict[str, KeySlice]:
    return {
        name: _fresh_share(shard, share, selection.units, fresh) for name, share in selection.shares.items()
    }


def _make_room(shard: ShardState, message: Push, shares: Shares) -> None:
    """Make room for new and wider rows; evicted ones go to the journal (`MemoryHeadroom.tell`)."""
    if not shard.room.limit_bytes:
        return
    keys = {name: share.keys for name, share in shares.items()}
    compact = {name: share for name, share in shares.items() if shard.tables[name].compact}
    shows, clicks = counts_of(message.shows, compact), counts_of(message.clicks, compact)
    shard.room.make(keys, shard.stores, shard.tables, shows, clicks)


def _push_rows(shard: ShardState, message: Push, shares: Mapping[str, KeySlice]) -> Steps[None]:
    salt = record_salt(message.stream, message.number)
    served = 0
    for name, share in shares.items():
        for start, stop in cuts(share.keys.size, shard.slice_rows):
            if served + stop - start > shard.slice_rows:
                served = 0
                yield
            served += stop - start
            _push_slice(shard, message, name, share, (start, stop), salt)
        shard.counters.rows_pushed += share.keys.size


def _push_slice(
    shard: ShardState, message: Push, name: str, share: KeySlice, where: tuple[int, int], salt: int
) -> None:
    """Take one optimizer step on each key of a cut of the share."""
    cut, given = share, gradients_of(message, name)
    if where != (0, share.keys.size):
        cut = share.cut(*where)
        given = given if cut.places is not None else given.cut(*where)
    gradients = (given if cut.places is None else given.take(cut.places)).floats()
    counts: list[Any] = [None, None]
    if message.shows or message.clicks:
        counts = [
            None if name not in of else of[name][slice(*where) if cut.places is None else cut.places]
            for of in (message.shows, message.clicks)
        ]
    now = shard.tables[name].now(message.step, message.time_s)
    refused = shard.stores[name].push(
        cut.keys,
        gradients,
        salt=salt,
        now=now,
        shows=counts[0],
        clicks=counts[1],
        rate=message.rate,
        delta=message.delta,
    )
    shard.changes.note(name, cut.keys)
    if refused:
        shard.tell_refused(f"table {name}")


def _push_dense(shard: ShardState, message: Push, fresh: int) -> Steps[None]:
    if shard.dense is None:
        return
    ends, numbers = shard.dense.bounds.ends(message.blocks).tolist(), message.blocks.tolist()
    begins = [0, *ends]
    mine = [place for place, block in enumerate(numbers) if fresh >> (shard.partitions + block) & 1]
    for many, run in enumerate(_runs(mine, _blocks_of_slice(shard))):
        if many:
            yield
        gradient = floats_of(message.dense[begins[run.start] : ends[run.stop - 1]])
        if shard.dense.apply_all(numbers[run], gradient, message.rate, message.delta):
            shard.tell_refused("dense parameters")


def _runs(places: list[int], longest: int) -> Iterator[slice]:
    """Yield runs of consecutive places, cut where they get longer than ``longest``."""
    start = 0
    for end in range(1, len(places) + 1):
        if end == len(places) or places[end] != places[end - 1] + 1 or end - start == longest:
            yield slice(places[start], places[end - 1] + 1)
            start = end
