"""The memory limit of a shard: room for new rows is found before a push changes anything.

What a table has taken is its own account (``Store.stats``): address space that it holds for growth counts for
nothing, pages that it has used count, whether rows fill them or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cython_ext.store import Store
from pslib.errors import MemoryLimitError
from pslib.protocol.journal import Note
from pslib.table.policies import WHEN_FULL, ByBloom
from pslib.table.row_layout import RowLayout
from pslib.table.tables import TableSpec

__all__ = ["MemoryRoom"]

WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}
KEY_BYTES = 32
"""Of the index for one new key at most: 16 just after an index has grown, and the old one beside it."""
LEAST_KEY_BYTES = 16
"""Of the index for one key at least, in an index that is full."""
SHARE = 1 / 8
"""Of a table's rows that leave when it is full: ranking reads all, so few at a time would cost more."""
TRIES = 4
"""Shares that leave for one push, before it is refused: 41 % of the rows."""
UNIT_ROWS, UNIT_BYTES = 8, 1280
"""A partition takes rows by units of about 1 KiB, at least 8 rows (``arena.h``): one row may cost a unit."""
GROWTH_BYTES = 2 << 20
"""A table may be given memory by the huge page."""


class MemoryRoom:
    """What the tables of one shard may still take.

    Parameters
    ----------
    limit_bytes : int
        0 is no limit.
    owner : str
        For the error: whose limit it is.
    """

    def __init__(self, limit_bytes: int, owner: str) -> None:
        self.limit_bytes, self._owner = limit_bytes, owner
        self._sure_bytes = self._full_rows = 0
        self.tell: Callable[[Note], None] | None = None
        """Hears which rows have left: a server's own doing, which no request says."""

    def forget(self) -> None:
        """Look again at the next push: rows have come or gone by another way."""
        self._sure_bytes = 0

    def is_sure(self, keys: Mapping[str, NDArray[np.uint64]], specs: Mapping[str, TableSpec]) -> bool:
        """Whether `make` returns at once for these keys: it need not look for room, nor let rows leave."""
        return not self.limit_bytes or _most_bytes(keys, specs) <= self._sure_bytes

    def make(
        self,
        keys: Mapping[str, NDArray[np.uint64]],
        stores: Mapping[str, Store],
        specs: Mapping[str, TableSpec],
    ) -> None:
        """Return when rows for all of these keys have room; let rows leave for them where a table says so.

        Parameters
        ----------
        keys : mapping of table name to (n,) uint64
            Distinct; those that have rows already need no room.
        stores, specs : mapping by table name
            All tables of the shard.

        Raises
        ------
        MemoryLimitError
            When there is no room; no new row may be made. Where every key has its row there always is.
        """
        if not self.limit_bytes:
            return
        if not self.is_sure(keys, specs):
            self._find(keys, stores, specs)
        self._sure_bytes = max(0, self._sure_bytes - _most_bytes(keys, specs))

    def check(
        self, rows: Mapping[str, int], others: Mapping[str, Store], specs: Mapping[str, TableSpec]
    ) -> None:
        """Refuse what can't have room in any case, before tables are emptied for it; `make` sees to the rest.

        Parameters
        ----------
        rows : mapping of table name to int
            How many are to come into these tables, which will be empty then; of some table perhaps more.
        others : mapping by table name
            All other tables of the shard.
        specs : mapping by table name

        Raises
        ------
        MemoryLimitError
            When they take more than there is, however they lie.
        """
        if not self.limit_bytes:
            return
        used = sum(store.stats()["resident_bytes"] for store in others.values())
        need = sum(count * _least_row_bytes(specs[name]) for name, count in rows.items())
        growth = 0 if self._full_rows else GROWTH_BYTES  # as in `_has_room`
        if need and used + need > self.limit_bytes - growth:
            raise MemoryLimitError(
                f"memory limit: {sum(rows.values()):,} rows of the checkpoint are for {self._owner} and take "
                f"{need:,} bytes or more, where other tables have {used:,} of {self.limit_bytes:,}; "
                f"none of its rows has changed; {_advice([specs[name] for name in rows])}"
            )

    def _find(
        self,
        keys: Mapping[str, NDArray[np.uint64]],
        stores: Mapping[str, Store],
        specs: Mapping[str, TableSpec],
    ) -> None:
        missing = {name: stores[name].missing(array) for name, array in keys.items() if array.size}
        missing = {name: count for name, count in missing.items() if count}
        for turn in range(TRIES + 1):
            used = sum(store.stats()["resident_bytes"] for store in stores.values())
            if turn == 0 and used > self.limit_bytes - GROWTH_BYTES // 2:
                self._full_rows -= int(self._full_rows * SHARE)
            rows = sum(store.rows for store in stores.values())
            need = sum(_needed_bytes(specs[name], stores[name], count) for name, count in missing.items())
            if self._has_room(used, need, rows, sum(missing.values())):
                return
            yielding = [name for name in missing if specs[name].when_full != "refuse" and stores[name].rows]
            for name in yielding:
                self._let_go(name, stores[name], WHEN_FULL.index(specs[name].when_full) - 1)
            if not yielding:
                break
        raise MemoryLimitError(
            f"memory limit: {self._owner} holds {used:,} of {self.limit_bytes:,} bytes in {rows:,} rows, and "
            f"{sum(missing.values()):,} new ones may take {need:,} beside {GROWTH_BYTES:,} for growth; "
            f"{_advice([specs[name] for name in missing])}"
        )

    def _let_go(self, name: str, store: Store, order: int) -> None:
        keys = None if self.tell is None else np.empty(store.rows, np.uint64)
        count = store.evict_share(order, SHARE, keys)
        if keys is not None and self.tell is not None:
            self.tell({"note": "left", "table": name, "keys": keys[:count].tobytes()})

    def _has_room(self, used: int, need: int, rows: int, new_rows: int) -> bool:
        """Whether new rows fit: into memory that is left, or into the places of rows that have left.

        Places are scattered over partitions, so what they take together says little about whether the next
        rows find one. Hence rows are counted: a shard that was full with so many rows stays full with a
        little fewer, and with fewer still when it has grown all the same.
        """
        free_bytes = self.limit_bytes - GROWTH_BYTES - used
        if not new_rows or need <= free_bytes:
            self._sure_bytes = max(0, free_bytes // 2)  # a table also takes memory that no row explains
            self._full_rows = self._full_rows if not new_rows else 0
            return True
        self._full_rows = self._full_rows or rows
        return used <= self.limit_bytes and rows + new_rows <= self._full_rows * (1 - SHARE)


def _advice(full: Sequence[TableSpec]) -> str:
    """What to do, without what has been done already."""
    steps = "raise server_memory_bytes, lower partition_bits"
    if any(spec.when_full != "refuse" for spec in full):
        return f"{steps} or add servers: letting rows go (when_full) did not make enough room"
    unset = [name for name in ("admission", "eviction") if not all(getattr(spec, name) for spec in full)]
    settings = f"{', '.join(unset)} or when_full" if unset else "when_full"
    return f"{steps}, add servers, or set {settings} of the table"


def _most_bytes(keys: Mapping[str, NDArray[np.uint64]], specs: Mapping[str, TableSpec]) -> int:
    """What rows for all of these keys cost, if none has one."""
    return sum(array.size * new_row_bytes(specs[name]) for name, array in keys.items())


def new_row_bytes(spec: TableSpec) -> int:
    """What one new row of a table may cost at most, index and all."""
    layout = RowLayout.of(spec)
    return KEY_BYTES + layout.dim * WEIGHT_BYTES[spec.storage] + layout.state_floats * 4


def _least_row_bytes(spec: TableSpec) -> int:
    """What one row of a table takes at least, index and all."""
    layout = RowLayout.of(spec, narrow=bool(spec.compact))
    return LEAST_KEY_BYTES + layout.dim * WEIGHT_BYTES[spec.storage] + layout.state_floats * 4


def _needed_bytes(spec: TableSpec, store: Store, count: int) -> int:
    """What so many new rows cost at most where no row has left a place, filters of admission among it."""
    filter_bytes = 0
    if isinstance(spec.admission, ByBloom):
        counters, partitions = spec.admission.counters, 1 << store.partition_bits
        filter_bytes = min(count * counters, partitions * counters - store.stats()["filter_bytes"])
    row_bytes = new_row_bytes(spec)
    units = min(count, 1 << store.partition_bits) * max(UNIT_ROWS * row_bytes, UNIT_BYTES)
    return count * row_bytes + units + max(0, filter_bytes)
