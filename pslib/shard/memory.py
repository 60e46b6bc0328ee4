"""Memory limit of a shard: room for new and wider rows is found before a push changes anything.

The memory of a table is its own account (``Store.stats``): address space reserved for growth does not count,
touched pages count, whether rows fill them or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cython_ext.table.store import Store
from pslib.errors import MemoryLimitError
from pslib.shard.change_log import ChangeLogs
from pslib.table.policies import WEIGHT_BYTES, WHEN_FULL, ByBloom
from pslib.table.tables import RowLayout, TableSpec
from pslib.wire.journal import Note

KEY_BYTES = 32
"""Maximum index bytes of one new key: 16 just after an index has grown, and the old one beside it."""
LEAST_KEY_BYTES = 16
"""Minimum index bytes of one key, in an index that is full."""
SHARE = 1 / 8
"""Share of a table's rows evicted when it is full: ranking reads all rows, so smaller shares would cost more.
"""
TRIES = 4
"""Shares evicted for one push, before it is refused: 41 % of the rows."""
COMPACT_TRIES = 10
"""Shares evicted where rows may become wide, 74 %: narrow rows make room for them only once memory has been
given back, which takes half of the rows of a partition.
"""
UNIT_ROWS, UNIT_BYTES = 8, 1280
"""Allocation unit of a partition, about 1 KiB, at least 8 rows (``arena.h``): one row may cost a unit."""
TOUCHED_BYTES = 8192
"""Bytes of the directory of partitions touched by a first key (``PSLIB_TOUCHED_BYTES`` of ``table_rows.h``).
"""
GROWTH_BYTES = 2 << 20
"""Growth step of a table, which may get memory by the huge page."""

Keys = Mapping[str, NDArray[np.uint64]]
Counts = Mapping[str, NDArray[np.float32]]
Stores = Mapping[str, Store]
Specs = Mapping[str, TableSpec]
NO_KEYS: NDArray[np.uint64] = np.empty(0, np.uint64)


class _Claim(NamedTuple):
    """Maximum memory that one table is about to take."""

    keys: int
    """New keys in the index."""
    widened: int
    """Narrow rows that become wide."""
    row_bytes: int
    """Bytes of memory for rows."""


class MemoryHeadroom:
    """Memory that the tables of one shard may still take.

    Parameters
    ----------
    limit_bytes : int
        0 is no limit.
    owner : str
        Owner of the limit, for the error.
    partitions : int
        Maximum number of partitions that the shard may own.
    changes : ChangeLogs
        Gets the keys of evicted rows.
    """

    def __init__(self, limit_bytes: int, owner: str, partitions: int, changes: ChangeLogs) -> None:
        self.limit_bytes, self._owner, self._partitions = limit_bytes, owner, partitions
        self._changes = changes
        self._sure_bytes = self._full_rows = 0
        self.tell: Callable[[Note], None] | None = None
        """Receives a note of evicted rows: no request records this."""

    def forget(self) -> None:
        """Drop the cached headroom: rows have come or gone by another way."""
        self._sure_bytes = 0

    def is_sure(self, keys: Keys, specs: Specs) -> bool:
        """Return True if `make` returns at once for these keys: no search for room, no eviction."""
        return not self.limit_bytes or _most_bytes(keys, specs) <= self._sure_bytes

    def make(
        self,
        keys: Keys,
        stores: Stores,
        specs: Specs,
        shows: Counts | None = None,
        clicks: Counts | None = None,
    ) -> None:
        """Make room for a push to these keys; evict rows for it where a table's policy says so.

        Parameters
        ----------
        keys : mapping of table name to (n,) uint64
            Distinct; keys that have rows already need no room, unless their rows become wide.
        stores, specs : mapping by table name
            All tables of the shard.
        shows, clicks : mapping of table name to (n,) float32
            Shows and clicks of the push; a missing table has 1 and 0 of each.

        Raises
        ------
        MemoryLimitError
            When there is no room; no row may be created, nor become wide. Where every key has its row, and
            none becomes wide, there always is.
        """

        def claim(name: str) -> _Claim:
            spec, store = specs[name], stores[name]
            if not spec.compact:
                return _plain_claim(spec, store.missing(keys[name]), self._partitions)
            counts = [(given or {}).get(name) for given in (shows, clicks)]
            return _Claim(*store.foresee(keys[name], *counts))

        self._make(keys, claim, stores, specs)

    def make_for_rows(self, wide: Keys, narrow: Keys, stores: Stores, specs: Specs) -> None:
        """Make room for whole rows that are imported as they are; ``wide`` has every table of ``narrow``."""
        both = {name: np.concatenate([array, narrow.get(name, NO_KEYS)]) for name, array in wide.items()}

        def claim(name: str) -> _Claim:
            spec, store = specs[name], stores[name]
            if not spec.compact:
                return _plain_claim(spec, store.missing(wide[name]), self._partitions)
            rows = (store.foresee_rows(wide[name]), store.foresee_rows(narrow.get(name, NO_KEYS), True))
            return _Claim(*(one + other for one, other in zip(*rows, strict=True)))

        self._make(both, claim, stores, specs)

    def _make(self, keys: Keys, claim: Callable[[str], _Claim], stores: Stores, specs: Specs) -> None:
        if not self.limit_bytes:
            return
        if not self.is_sure(keys, specs):
            self._find([name for name, array in keys.items() if array.size], claim, stores, specs)
        self._sure_bytes = max(0, self._sure_bytes - _most_bytes(keys, specs))

    def check(
        self, rows: Mapping[str, int], others: Mapping[str, Store], specs: Mapping[str, TableSpec]
    ) -> None:
        """Refuse rows that cannot fit in any case, before tables are emptied for them; `make` does the rest.

        Parameters
        ----------
        rows : mapping of table name to int
            Maximum numbers of rows to import into these tables, which will be empty then.
        others : mapping by table name
            All other tables of the shard.
        specs : mapping by table name

        Raises
        ------
        MemoryLimitError
            When they take more than `make` would give them, whatever their layout.
        """
        used = sum(store.stats()["resident_bytes"] for store in others.values())
        need = sum(count * _least_row_bytes(specs[name]) for name, count in rows.items())
        if need and used + need > self.limit_bytes - GROWTH_BYTES:
            raise MemoryLimitError(
                f"memory limit: {sum(rows.values()):,} rows of the checkpoint are for {self._owner} and take "
                f"{need:,} bytes or more, where other tables have {used:,} of {self.limit_bytes:,}, and "
                f"{GROWTH_BYTES:,} are kept for growth; none of its rows has changed; "
                f"{_advice([specs[name] for name in rows])}"
            )

    def _find(
        self, names: Sequence[str], claim: Callable[[str], _Claim], stores: Stores, specs: Specs
    ) -> None:
        compact = any(specs[name].compact for name in names)
        for turn in range((COMPACT_TRIES if compact else TRIES) + 1):
            wanted = {name: one for name in names if any(one := claim(name))}
            stats = {name: store.stats() for name, store in stores.items()}
            used = sum(numbers["resident_bytes"] for numbers in stats.values())
            if turn == 0 and used > self.limit_bytes - GROWTH_BYTES // 2:
                self._full_rows -= int(self._full_rows * SHARE)
            once = {
                name: _Once.of(specs[name], store, stats[name], self._partitions)
                for name, store in stores.items()
            }
            needs = {name: _needed_bytes(specs[name], one, once[name]) for name, one in wanted.items()}
            need, free = sum(needs.values()), self.limit_bytes - GROWTH_BYTES - used
            if not wanted or need <= free:
                # one-time memory is no part of the cost of a row, and a table also takes memory that no row
                # explains
                self._sure_bytes = max(0, free - sum(one.bytes for one in once.values())) // 2
                self._full_rows = 0 if wanted else self._full_rows
                return
            taken = sum(_beyond_places(specs[name], one, needs[name]) for name, one in wanted.items())
            rows = sum(numbers["rows"] for numbers in stats.values())
            if self._has_places(used + taken, rows, sum(one.keys for one in wanted.values())):
                return
            yielding = [name for name in wanted if specs[name].when_full != "refuse" and stores[name].rows]
            for name in yielding:
                self._let_go(name, stores[name], WHEN_FULL.index(specs[name].when_full) - 1)
            if not yielding:
                break
        raise MemoryLimitError(self._said(wanted, specs, stats, used, need))

    def _let_go(self, name: str, store: Store, order: int) -> None:
        wanted = self.tell is not None or name in self._changes
        keys = np.empty(store.rows, np.uint64) if wanted else None
        count = store.evict_share(order, SHARE, keys)
        if keys is None:
            return
        self._changes.note(name, keys[:count])
        if self.tell is not None:
            self.tell({"note": "left", "table": name, "keys": keys[:count].tobytes()})

    def _has_places(self, used: int, rows: int, new_rows: int) -> bool:
        """Return True if new rows fit into the places of evicted rows.

        Places are scattered over partitions, so their total bytes say little about whether the next rows find
        one. Hence rows are counted: a shard that was full with so many rows stays full with a little fewer,
        and with fewer still when it has grown all the same. In compact tables a place for a narrow row is
        none for a wide one: ``used`` has what they take beyond places of their kind.
        """
        self._full_rows = self._full_rows or rows
        return used <= self.limit_bytes and rows + new_rows <= self._full_rows * (1 - SHARE)

    def _said(
        self, wanted: Mapping[str, _Claim], specs: Specs, stats: Mapping[str, Any], used: int, need: int
    ) -> str:
        rows = sum(numbers["rows"] for numbers in stats.values())
        made = sum(claim.keys for claim in wanted.values())
        widened = sum(claim.widened for claim in wanted.values())
        kinds = [(made, "new ones"), (widened, "that become wide")]
        what = " and ".join(f"{count:,} {kind}" for count, kind in kinds if count)
        return (
            f"memory limit: {self._owner} holds {used:,} of {self.limit_bytes:,} bytes in {rows:,} rows, and "
            f"{what} may take {need:,} beside {GROWTH_BYTES:,} for growth; "
            f"{_advice([specs[name] for name in wanted])}"
        )


def _advice(full: Sequence[TableSpec]) -> str:
    """Return the advice for a full shard, without what has been done already."""
    steps = "raise server_memory_bytes, lower partition_bits"
    if any(spec.when_full != "refuse" for spec in full):
        return f"{steps} or add servers: letting rows go (when_full) did not make enough room"
    unset = [name for name in ("admission", "eviction") if not all(getattr(spec, name) for spec in full)]
    settings = f"{', '.join(unset)} or when_full" if unset else "when_full"
    return f"{steps}, add servers, or set {settings} of the table"


class _Once(NamedTuple):
    """One-time memory per partition that a table may still take, in bytes."""

    units: int
    filters: int
    directory: int
    blank: int
    """Partitions without an index, in number, not bytes."""

    @staticmethod
    def of(spec: TableSpec, store: Store, stats: Mapping[str, int], partitions: int) -> _Once:
        """Compute it for a table with ``partitions`` partitions on the shard."""
        indexed, *held = (min(count, partitions) for count in store.held())
        sizes = [_wide_bytes(spec), _narrow_bytes(spec)] if spec.compact else [_wide_bytes(spec)]
        units = sum(
            (partitions - count) * _unit_bytes(size) for count, size in zip(held, sizes, strict=False)
        )
        filters = 0
        if isinstance(spec.admission, ByBloom):
            filters = max(0, partitions * spec.admission.counters - stats["filter_bytes"])
        touched = [min(count * TOUCHED_BYTES, stats["directory_bytes"]) for count in (partitions, indexed)]
        return _Once(units, filters, touched[0] - touched[1], partitions - indexed)

    @property
    def bytes(self) -> int:
        """Return the sum of all kinds: a partition's first unit is larger than its part of the directory."""
        return self.units + self.filters


def _plain_claim(spec: TableSpec, missing: int, partitions: int) -> _Claim:
    """Return the claim of new rows in a table with one kind of rows, without places of evicted rows."""
    size = _wide_bytes(spec)
    return _Claim(missing, 0, missing * size + min(missing, partitions) * _unit_bytes(size + KEY_BYTES))


def _wide_bytes(spec: TableSpec) -> int:
    return _bytes_of(spec, RowLayout.of(spec))


def _narrow_bytes(spec: TableSpec) -> int:
    return _bytes_of(spec, RowLayout.of(spec, narrow=True))


def _bytes_of(spec: TableSpec, layout: RowLayout) -> int:
    weights = -(-layout.dim * WEIGHT_BYTES[spec.storage] // 4) * 4
    return weights + layout.state_floats * 4


def _unit_bytes(row_bytes: int) -> int:
    return max(UNIT_ROWS * row_bytes, UNIT_BYTES)


def _most_bytes(keys: Keys, specs: Specs) -> int:
    """Return the cost of rows for all of these keys, if none has one, or each becomes wide."""
    return sum(array.size * new_row_bytes(specs[name]) for name, array in keys.items())


def new_row_bytes(spec: TableSpec) -> int:
    """Return the maximum cost of one new row of a table, index included: a wide row has been narrow."""
    return KEY_BYTES + _wide_bytes(spec) + (_narrow_bytes(spec) if spec.compact else 0)


def _least_row_bytes(spec: TableSpec) -> int:
    """Return the minimum cost of one row of a table, index included."""
    return LEAST_KEY_BYTES + (_narrow_bytes(spec) if spec.compact else _wide_bytes(spec))


def _beyond_places(spec: TableSpec, claim: _Claim, need_bytes: int) -> int:
    """Return the bytes that a claim takes in spite of the places of evicted rows: known of compact tables.

    Where rows are evicted for others, memory comes back by the huge page, and to keep one free would refuse
    the rows that the next share makes room for: there the limit may be passed by a MiB (1.08 of 12, 1.01 of
    64).
    """
    if not spec.compact:
        return 0
    return need_bytes + (GROWTH_BYTES if claim.row_bytes and spec.when_full == "refuse" else 0)


def _needed_bytes(spec: TableSpec, claim: _Claim, once: _Once) -> int:
    """Return the maximum bytes of a claim, with index, admission filters and directory."""
    counters = spec.admission.counters if isinstance(spec.admission, ByBloom) else 0
    directory = min(min(claim.keys, once.blank) * TOUCHED_BYTES, once.directory)
    return claim.row_bytes + claim.keys * KEY_BYTES + min(claim.keys * counters, once.filters) + directory
