"""Synchronous steps on a shard: pushes of one step are held until every contributor's is here, then summed.

A step has a fixed set of contributors: the trainers that have a batch for it. Each of them sends one push to
every server, also where it has no keys, with the units that it covers. A unit takes its step when all
contributors have covered it: their gradients are summed in the order of ranks, whatever their order of
arrival, and one optimizer step is taken. Only then are the pushes acknowledged, so an acknowledgement from
all servers means that the step is applied everywhere.

A push that covers a unit of another server is answered at once (`refused_in_step`): the client splits it
again, and each part waits at its owner. If that unit were refused only when the rest is applied, two pushes
could wait for each other's refusals for ever. For the same reason, when a unit moves away, every push that is
held for it is answered. So moves take nothing of a step along, and need no agreement. A second copy of a held
push is answered with it, and changes nothing else. No contributor can be a step ahead of another, so at most
one push of each contributor is held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cython_ext.common.hashing import partition_of
from cython_ext.data.distinct import distinct, partitions_touched
from cython_ext.model.row_places import scatter_add_rows
from pslib.errors import ConfigurationError, LogError, PslibError
from pslib.shard.log_records import block_pieces, note_of_step, seen
from pslib.shard.serving import Steps, apply_steps, fresh_units
from pslib.shard.state import ShardState
from pslib.table.partition_map import mask_of_units, units_of_mask
from pslib.wire.messages import NOBODY, Push
from pslib.wire.quantization import floats_of, gradients_of

Rows = NDArray[np.float32]


@dataclass(slots=True, eq=False)
class _Held:
    """Push that waits for the others of its step."""

    rank: int
    message: Push
    covers: int
    """Units of which it holds the contribution of its rank."""
    waits: int
    """Units whose step it waits for; more than ``covers`` when it is a second copy of a part."""
    touched: int
    waiters: list[Any]


@dataclass(slots=True)
class _Step:
    """Held pushes of one step."""

    contributors: tuple[int, ...]
    held: list[_Held] = field(default_factory=list)

    def spoken_for(self, rank: int) -> int:
        """Return the units that a contributor has covered."""
        units = 0
        for one in self.held:
            if one.rank == rank:
                units |= one.covers
        return units

    def ready(self) -> int:
        """Return the units that all contributors have covered."""
        units = -1
        for rank in self.contributors:
            units &= self.spoken_for(rank)
        return units


class SyncSteps:
    """Held pushes of the current step on one shard.

    Parameters
    ----------
    shard : ShardState
        Owner of the units.
    """

    def __init__(self, shard: ShardState) -> None:
        self._shard = shard
        self._steps: dict[int, _Step] = {}
        self._over: list[tuple[Any, dict[int, int] | Exception]] = []

    @property
    def held(self) -> int:
        """Return the number of waiting pushes."""
        return sum(len(step.held) for step in self._steps.values())

    def missing(self) -> list[list[Any]]:
        """Return ``[step, ranks]``: the ranks that the current step waits for."""
        return [
            [number, [rank for rank in step.contributors if not any(one.rank == rank for one in step.held)]]
            for number, step in self._steps.items()
        ]

    def take_over(self) -> list[tuple[Any, dict[int, int] | Exception]]:
        """Take the finished waiters, with the refused units (and their owners), or an error."""
        over, self._over = self._over, []
        return over

    def push_steps(self, message: Push, waiter: Any) -> Steps[None]:
        """Hold a push; apply the step of all units for which it was the last, in slices. See `take_over`.

        Raises
        ------
        ConfigurationError
            When it is of another step than the held ones, or disagrees with them about the contributors.
        FencedError
            When the lease has another holder by now.
        """
        covered, refused, touched = self._units_of(message)
        fresh = fresh_units(self._shard, message, covered)
        self._shard.say_later(seen(message))
        if not fresh or refused:
            self._over.append((waiter, refused))
            return
        step = self._step_of(message)
        self._hold(step, message, fresh, touched & fresh, waiter)
        ready = step.ready()
        if ready:
            yield from self._take(message.step, step, ready)

    def unit_left(self, unit: int, owner: int) -> None:
        """Refuse the pushes held for a unit that moved to ``owner``; they come again in parts."""
        for number, step in list(self._steps.items()):
            for one in step.held:
                if one.waits >> unit & 1:
                    self._over += [(waiter, {unit: owner}) for waiter in one.waiters]
                    one.waits = 0
            self._tidy(number, step)

    # --- holding ------------------------------------------------------------------------------------------

    def _units_of(self, message: Push) -> tuple[int, dict[int, int], int]:
        """Return the units of this shard that a push covers, those of other owners, those with gradients."""
        shard = self._shard
        units = mask_of_units(message.sync["units"])
        touched = mask_of_units(shard.partitions + message.blocks)
        for keys in message.keys.values():
            touched |= mask_of_units(partitions_touched(keys, shard.partition_bits))
        if touched & ~units:
            raise ConfigurationError(
                f"sync push ({message.stream}, {message.number}): it has gradients of units that it does not "
                "speak for"
            )
        theirs = units & shard.responsible & ~shard.owned
        return units & shard.owned, shard.refusals(units_of_mask(theirs)), touched

    def _step_of(self, message: Push) -> _Step:
        contributors = tuple(message.sync["contributors"].tolist())
        if message.rank not in contributors:
            raise ConfigurationError(
                f"sync step {message.step}: rank {message.rank} is none of its contributors {contributors}"
            )
        if other := [number for number in self._steps if number != message.step]:
            raise ConfigurationError(
                f"sync step {message.step} came while step {other[0]} waits for its contributors; all "
                "trainers must run the same script with consistency sync"
            )
        step = self._steps.setdefault(message.step, _Step(contributors))
        if step.contributors != contributors:
            raise ConfigurationError(
                f"sync step {message.step}: rank {message.rank} says that its contributors are "
                f"{contributors}, others say {step.contributors}"
            )
        return step

    def _hold(self, step: _Step, message: Push, fresh: int, touched: int, waiter: Any) -> None:
        """Hold the new part of a push; a copy of a held one only adds a waiter."""
        new = fresh & ~step.spoken_for(message.rank)
        for one in step.held:
            if one.rank == message.rank and one.waits == fresh and not new:
                one.waiters.append(waiter)
                return
        kept = message if new else _without_content(message)
        step.held.append(_Held(message.rank, kept, new, fresh, touched & new, [waiter]))

    # --- applying -----------------------------------------------------------------------------------------

    def _take(self, number: int, step: _Step, ready: int) -> Steps[None]:
        """Take one step of all units in ``ready``; pushes that wait for no other unit are over."""
        parts = sorted((one for one in step.held if one.covers & ready), key=lambda one: one.rank)
        shard, first = self._shard, parts[0].message
        try:
            named = [(one.message, one.covers & ready, one.touched & ready & one.covers) for one in parts]
            about = note_of_step(named, ready, first.maintain)
            yield from apply_steps(shard, merged_push(shard, parts, ready), about)
            for table in shard.tables if first.maintain else ():
                shard.maintain_units(table, ready, first.step + 1, first.time_s)
        except Exception as error:  # none of the pushes counts: all get the error, and may come again
            self._over += [(waiter, error) for one in step.held for waiter in one.waiters]
            del self._steps[number]
            if not isinstance(error, PslibError) or isinstance(error, LogError):
                raise
            return
        counters = shard.counters
        for one in parts:
            mine, message = one.covers & ready, one.message
            shard.marks.record(message.stream, message.number, mine)
            counters.updates_applied += (one.touched & mine).bit_count()
            counters.pushes_applied += (one.touched & mine) >> message.home & 1
        counters.maintained += bool(first.maintain) and ready >> first.home & 1
        for one in step.held:
            one.covers &= ~ready
            one.waits &= ~ready
            if not one.waits:
                self._over += [(waiter, {}) for waiter in one.waiters]
        self._tidy(number, step)

    def _tidy(self, number: int, step: _Step) -> None:
        """Remove the pushes that wait no longer."""
        step.held = [one for one in step.held if one.waits]
        if not step.held:
            del self._steps[number]


def refused_in_step(message: Push, refused: dict[int, int]) -> dict[int, int]:
    """Return the refusals of a push that cannot be held: owners of these units, a retry of all others."""
    return dict.fromkeys(message.sync["units"].tolist(), NOBODY) | refused


def _without_content(message: Push) -> Push:
    """Return the push with its name only: a waiting copy must not hold its arrays."""
    return Push(
        message.stream,
        message.number,
        message.epoch,
        message.all_acked_below,
        message.home,
        {},
        {},
        np.empty(0, np.uint32),
        np.empty(0, np.float32),
    )


def merged_push(shard: ShardState, parts: Sequence[_Held], ready: int) -> Push:
    """Return one push with the sums of several, of the units in ``ready`` alone.

    It has the name, the time and the learning rate of the first: the lowest rank.
    """
    first = parts[0].message
    pieces: dict[str, list[tuple[Any, ...]]] = {}
    blocks: dict[int, Rows] = {}
    for one in parts:
        mine = one.covers & ready
        for table, rows in _row_pieces(one.message, mine, shard.partition_bits):
            pieces.setdefault(table, []).append(rows)
        for block, piece in block_pieces(shard, one.message, mine):
            gradient = floats_of(piece)
            blocks[block] = blocks[block] + gradient if block in blocks else gradient
    summed = {table: sum_in_order(some) for table, some in pieces.items()}
    order = sorted(blocks)
    return Push(
        first.stream,
        first.number,
        first.epoch,
        first.all_acked_below,
        first.home,
        {table: rows[0] for table, rows in summed.items()},
        {table: rows[1] for table, rows in summed.items()},
        np.asarray(order, np.uint32),
        np.concatenate([np.empty(0, np.float32), *(blocks[block] for block in order)]),
        first.step,
        first.time_s,
        {table: rows[2] for table, rows in summed.items() if rows[2] is not None},
        {table: rows[3] for table, rows in summed.items() if rows[3] is not None},
        rate=first.rate,
        maintain=first.maintain,
    )


def _row_pieces(message: Push, units: int, partition_bits: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield keys, gradients, shows and clicks of each table, of these units."""
    chosen = np.zeros(1 << partition_bits, bool)
    numbers = units_of_mask(units)
    chosen[numbers[numbers < chosen.size]] = True
    for table, keys in message.keys.items():
        places = np.flatnonzero(chosen[partition_of(keys, partition_bits)])
        counts = [
            given[table][places] if table in given else None for given in (message.shows, message.clicks)
        ]
        if places.size:
            yield table, (keys[places], gradients_of(message, table).floats()[places], *counts)


def sum_in_order(
    pieces: list[tuple[NDArray[np.uint64], Rows, Rows | None, Rows | None]],
) -> tuple[NDArray[np.uint64], Rows, Rows | None, Rows | None]:
    """Sum gradients, shows and clicks of several pushes by distinct key.

    Parameters
    ----------
    pieces : list of (keys (n,) uint64, gradients (n, dim) float32, shows (n,), clicks (n,) float32 or None)
        In the order of summing; keys of one piece are distinct.

    Returns
    -------
    keys, gradients, shows, clicks
        Each sum is ``((0 + g0) + g1) + ...`` in float32, so that it depends on the order of pieces alone.
    """
    if len(pieces) == 1:
        return pieces[0]
    keys, places = distinct(np.concatenate([piece[0] for piece in pieces]))
    gradients = scatter_add_rows(np.concatenate([piece[1] for piece in pieces]), places, keys.size)
    shows = _sum_counts([piece[2] for piece in pieces], places, keys.size)
    clicks = _sum_counts([piece[3] for piece in pieces], places, keys.size)
    return keys, gradients, shows, clicks


def _sum_counts(counts: list[Rows | None], places: NDArray[np.int32], size: int) -> Rows | None:
    given = [one for one in counts if one is not None]
    if len(given) < len(counts):  # all trainers send them, or none does
        return None
    return scatter_add_rows(np.concatenate(given)[:, None], places, size)[:, 0]
