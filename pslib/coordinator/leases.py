"""Leases: the assignment of pieces of the data to trainers, as a pure state machine.

A lease is also the stream of its pushes: the trainer that takes over a dead trainer's lease resumes at the
lowest batch not known to be applied everywhere, and pushes under the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

DONE_BATCH = 1 << 62
"""Upper bound on the batches of a lease."""

Holder = tuple[int, int]
"""(rank, incarnation) of a trainer."""


def stream_of(job: int, index: int) -> int:
    """Return the stream number of lease ``index`` (32 bits) of job ``job``; below `CLIENT_STREAMS`."""
    return job << 32 | index


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease granted to a trainer: fenced by ``epoch``, resumed at ``first_batch``.

    ``time_s`` is the time of the first grant; it stays the same when another trainer takes over.
    """

    index: int
    epoch: int
    first_batch: int
    time_s: float = 0.0


@dataclass(slots=True)
class _Held:
    holder: Holder
    epoch: int


class LeaseBook:
    """Lease book: all leases of one job.

    Parameters
    ----------
    windows : (leases,) uint32
        The shuffle window of each lease, in the order in which leases are granted. A trainer is kept in
        the window it has decoded, and others are given windows of their own while there are any.
    """

    def __init__(self, windows: NDArray[np.uint32]) -> None:
        self.windows = windows
        self._free: dict[int, None] = dict.fromkeys(range(windows.size))
        self._held: dict[int, _Held] = {}
        self._epochs: dict[int, int] = {}
        self._first_batch: dict[int, int] = {}
        self._first_given_s: dict[int, float] = {}
        self._done = np.zeros(windows.size, bool)
        self._done_below = 0
        self._last_window: dict[Holder, int] = {}

    @property
    def done(self) -> bool:
        """Return True if every lease is done."""
        return self.done_below == self.windows.size

    @property
    def done_below(self) -> int:
        """Lower bound of open leases: every lease with a lower index is done."""
        while self._done_below < self.windows.size and self._done[self._done_below]:
            self._done_below += 1
        return self._done_below

    @property
    def done_count(self) -> int:
        """Number of leases that are done."""
        return int(self.windows.size if self.done else self._done.sum())

    def next(self, holder: Holder, holding: Iterable[int], now_s: float = 0.0) -> Grant | None:
        """Return a lease for this trainer, or None when none is free now.

        ``holding`` are the lease indices that the trainer knows of. A lease that it holds without knowing
        (the reply was lost) is granted again rather than another one.
        """
        known = set(holding)
        for index, held in self._held.items():
            if held.holder == holder and index not in known:
                return self._grant(index, holder)
        chosen = self._choose(holder)
        if chosen is None:
            return None
        del self._free[chosen]
        self._held[chosen] = _Held(holder, self._epochs.get(chosen, 0))
        self._first_given_s.setdefault(chosen, now_s)
        self._last_window[holder] = int(self.windows[chosen])
        return self._grant(chosen, holder)

    def progress(self, holder: Holder, acked_below: Mapping[int, int]) -> None:
        """Record, per lease that a trainer holds, the batch below which everything is applied everywhere."""
        for index, batch in acked_below.items():
            held = self._held.get(index)
            if held and held.holder == holder:
                self._first_batch[index] = max(batch, self._first_batch.get(index, 0))

    def end(self, holder: Holder, index: int, epoch: int) -> bool:
        """End a lease whose batches are all applied; False when another trainer holds it (then ignore)."""
        held = self._held.get(index)
        if self._done[index]:
            return True
        if held is None or held.holder != holder or held.epoch != epoch:
            return False
        del self._held[index]
        self._done[index] = True
        self._first_batch.pop(index, None)
        self._first_given_s.pop(index, None)
        return True

    def holders(self) -> set[Holder]:
        """Return the trainers that hold a lease: those that have work."""
        return {held.holder for held in self._held.values()}

    def held_by_rank(self) -> dict[int, int]:
        """Return the number of leases that each trainer holds."""
        ranks = [held.holder[0] for held in self._held.values()]
        return {rank: ranks.count(rank) for rank in set(ranks)}

    def is_done(self, index: int) -> bool:
        """Return True if one lease is done."""
        return bool(self._done[index])

    def examples_trained(self, examples: int, lease_rows: int, batch_rows: int) -> int:
        """Return the examples, of ``examples`` in all leases, whose batches are applied everywhere.

        Each lease has ``lease_rows`` examples, except the last of each window; those share the remainder
        evenly, as their lengths are not reported. Where the opener of the job gave no such numbers (they are
        0), done leases count, all alike.
        """
        if not (lease_rows and batch_rows):
            return examples * self.done_count // max(1, self.windows.size)
        last = np.append(self.windows[1:] != self.windows[:-1], True)
        rows_of_last = max(0.0, examples - int((~last).sum()) * lease_rows) / int(last.sum())
        trained = int((self._done & ~last).sum()) * lease_rows + int((self._done & last).sum()) * rows_of_last
        for index, batch in self._first_batch.items():  # of leases that are not done
            trained += min(batch * batch_rows, rows_of_last if last[index] else lease_rows)
        return min(round(trained), examples)

    @property
    def begun(self) -> bool:
        """Return True if any trainer was ever granted a lease."""
        return bool(self._first_given_s) or self.done_count > 0

    @property
    def taken_over(self) -> bool:
        """Return True if a lost trainer's lease is not done: unreported batches of it may be applied."""
        return any(not self._done[index] for index in self._epochs)

    def set_positions(self, batches: Mapping[int, int]) -> None:
        """Set the exact number of applied batches of these leases: all trainers have stopped."""
        for index, batch in batches.items():
            if index in self._held:  # one that was resumed a moment ago may not be known to its holder yet
                self._first_batch[index] = max(batch, self._first_batch.get(index, 0))

    def table(self) -> dict[str, Any]:
        """Return the done leases, as ranges, and ``[index, first batch, time given]`` of those begun."""
        edges = np.flatnonzero(np.diff(np.concatenate([[0], self._done.astype(np.int8), [0]])))
        begun = sorted(self._first_given_s)
        return {
            "count": int(self.windows.size),
            "done": edges.reshape(-1, 2).tolist(),
            "begun": [[i, self._first_batch.get(i, 0), self._first_given_s[i]] for i in begun],
        }

    def floors(self) -> list[list[int]]:
        """Return ``[index, epoch, batch]`` of each lease ever begun, above the prefix of done leases.

        All batches below ``batch`` are applied everywhere; of a done lease, all batches.
        """
        known = self._epochs.keys() | self._first_batch.keys()
        known |= set((np.flatnonzero(self._done[self.done_below :]) + self.done_below).tolist())
        return [
            [i, self._epochs.get(i, 0), DONE_BATCH if self._done[i] else self._first_batch.get(i, 0)]
            for i in sorted(known)
            if i >= self.done_below
        ]

    def restore(self, table: Mapping[str, Any]) -> None:
        """Restore the state from a `table` of a book for the same leases.

        Raises
        ------
        ValueError
            If the table has another number of leases, or names an unknown lease.
        """
        count = self.windows.size
        if table["count"] != count:
            raise ValueError(f"expected {count} leases, the checkpoint has {table['count']}")
        for first, stop in table["done"]:
            if not 0 <= first <= stop <= count:
                raise ValueError(f"leases {first}..{stop - 1} of {count}")
            self._done[first:stop] = True
        for index, batch, given_s in table["begun"]:
            if not 0 <= index < count or self._done[index]:
                raise ValueError(f"lease {index} of {count} can't be under way")
            self._first_batch[index], self._first_given_s[index] = int(batch), float(given_s)
        self._free = {index: None for index in self._free if not self._done[index]}

    def plain(self) -> dict[str, Any]:
        """Return the whole state as plain values, for `book_of`."""
        return {
            "windows": self.windows.astype("<u4").tobytes(),
            "ranks": None,
            "done": np.packbits(self._done).tobytes(),
            "held": [[index, *held.holder, held.epoch] for index, held in self._held.items()],
            "epochs": list(map(list, self._epochs.items())),
            "first_batch": list(map(list, self._first_batch.items())),
            "given_s": list(map(list, self._first_given_s.items())),
            "last_window": [[*holder, window] for holder, window in self._last_window.items()],
        }

    def take_plain(self, plain: Mapping[str, Any]) -> None:
        """Restore the state from the `plain` of another book of the same leases."""
        done = np.unpackbits(np.frombuffer(plain["done"], np.uint8), count=self.windows.size)
        self._done = done.astype(bool)
        self._held = {index: _Held((rank, own), epoch) for index, rank, own, epoch in plain["held"]}
        self._epochs, self._first_batch = dict(plain["epochs"]), dict(plain["first_batch"])
        self._first_given_s = dict(plain["given_s"])
        self._last_window = {(rank, own): window for rank, own, window in plain["last_window"]}
        self._free = {i: None for i in self._free if not (self._done[i] or i in self._held)}

    def trainer_lost(self, holder: Holder) -> list[int]:
        """Free all leases of a trainer under the next epoch; return their indices."""
        lost = [index for index, held in self._held.items() if held.holder == holder]
        for index in lost:
            self._epochs[index] = self._held.pop(index).epoch + 1
        self._free = dict.fromkeys(sorted([*lost, *self._free]))
        self._last_window.pop(holder, None)
        return lost

    def _grant(self, index: int, holder: Holder) -> Grant:
        first_batch, given_s = self._first_batch.get(index, 0), self._first_given_s[index]
        return Grant(index, self._held[index].epoch, first_batch, given_s)

    def _choose(self, holder: Holder) -> int | None:
        """Choose the first free lease of the trainer's own window, else of an unused window, else any."""
        own = self._last_window.get(holder)
        others = {window for other, window in self._last_window.items() if other != holder}
        fallback = None
        for index in self._free:
            window = int(self.windows[index])
            if window == own:
                return index
            if fallback is None or (int(self.windows[fallback]) in others and window not in others):
                fallback = index
            if own is None and window not in others:
                return index
        return fallback


class RankedLeases(LeaseBook):
    """Leases assigned by rank: lease ``i`` to the ``i mod n``-th of ``n`` trainers, in ascending order.

    So the assignment is the same in every run, whatever the trainers' speeds. No trainer takes another's
    lease.

    Parameters
    ----------
    windows : (leases,) uint32
        As for `LeaseBook`.
    ranks : sequence of int
        The trainers, ascending.
    """

    def __init__(self, windows: NDArray[np.uint32], ranks: Sequence[int]) -> None:
        super().__init__(windows)
        self.ranks = tuple(ranks)

    def _choose(self, holder: Holder) -> int | None:
        if holder[0] not in self.ranks:
            return None
        place = self.ranks.index(holder[0])
        return next((index for index in self._free if index % len(self.ranks) == place), None)

    def plain(self) -> dict[str, Any]:
        """Return the whole state as plain values, for `book_of`."""
        return super().plain() | {"ranks": list(self.ranks)}

    def needs(self, rank: int) -> bool:
        """Return True if leases of this trainer are not done."""
        if rank not in self.ranks:
            return False
        return not bool(self._done[self.ranks.index(rank) :: len(self.ranks)].all())


class Ballots(LeaseBook):
    """Votes of trainers: a lease for each, which no other takes; without its trainer it is void, and done.

    Parameters
    ----------
    voters : sequence of int
        Ranks of the trainers.
    """

    def __init__(self, voters: Sequence[int]) -> None:
        super().__init__(np.zeros(len(voters), np.uint32))
        self.voters = tuple(voters)

    def trainer_lost(self, holder: Holder) -> list[int]:
        """Free the lease of a trainer, which voids it."""
        lost = super().trainer_lost(holder)
        if holder[0] in self.voters:
            place = self.voters.index(holder[0])
            self._free.pop(place, None)
            self._done[place] = True
        return lost

    def _choose(self, holder: Holder) -> int | None:
        place = self.voters.index(holder[0]) if holder[0] in self.voters else None
        return place if place in self._free else None

    def plain(self) -> dict[str, Any]:
        """Return the whole state as plain values, for `book_of`."""
        return super().plain() | {"voters": list(self.voters)}


def book_of(plain: Mapping[str, Any]) -> LeaseBook:
    """Build the book that returned this `LeaseBook.plain`."""
    windows = np.frombuffer(plain["windows"], "<u4").astype(np.uint32)
    book = LeaseBook(windows) if plain["ranks"] is None else RankedLeases(windows, plain["ranks"])
    if "voters" in plain:
        book = Ballots(plain["voters"])
    book.take_plain(plain)
    return book


class JobClocks:
    """Applied batches of a job per trainer; the slowest trainer with work bounds the others.

    A trainer that gets work after having none starts at the clock of the slowest one: the others need not
    wait until it has made up for its idle time.
    """

    def __init__(self) -> None:
        self._clocks: dict[Holder, int] = {}

    def begin(self, holder: Holder, working: Iterable[Holder]) -> None:
        """Start the clock of a trainer that had no work; ``working`` have some already."""
        others = [self._clocks.get(other, 0) for other in working if other != holder]
        self._clocks[holder] = max(self._clocks.get(holder, 0), min(others, default=0))

    def plain(self) -> list[list[int]]:
        """Return ``[rank, incarnation, clock]`` of each trainer."""
        return [[*holder, clock] for holder, clock in self._clocks.items()]

    @staticmethod
    def of(plain: Iterable[Sequence[int]]) -> JobClocks:
        """Build the clocks that returned this `plain`."""
        clocks = JobClocks()
        clocks._clocks = {(rank, own): clock for rank, own, clock in plain}
        return clocks

    def report(self, holder: Holder, clock: int) -> int:
        """Record a clock; return the effective one, which may be higher."""
        self._clocks[holder] = max(clock, self._clocks.get(holder, 0))
        return self._clocks[holder]

    def slowest(self, working: Iterable[Holder], otherwise: int) -> int:
        """Return the lowest clock among trainers that have work; ``otherwise`` without any."""
        return min((self._clocks.get(holder, 0) for holder in working), default=otherwise)
