"""Rows of a checkpoint by ranges of the hashed key space, for any number of servers and partitions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cython_ext.common.hashing import partition_of
from pslib.checkpoint.arrow_files import batches_of
from pslib.checkpoint.folders import Link, chain_of
from pslib.checkpoint.manifest import GONE, GONE_SCHEMA, ManifestFile
from pslib.checkpoint.rows import table_schema
from pslib.table.tables import TableSpec

GROUP_BITS_MAX = 20
"""Finest division: that of partitions."""
PIECE_BYTES = 128 << 20
"""Bytes of a checkpoint in memory at a time; sorting takes as much again."""

FloatRows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Place:
    """Record batch and the range of partitions, in 2^GROUP_BITS_MAX, of its keys.

    ``link`` is the index of its checkpoint in the chain.
    """

    link: int
    entry: ManifestFile
    batch: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows ordered by key: ``keys`` (n,) uint64 and ``table``, n rows with the columns of the files."""

    keys: NDArray[np.uint64]
    table: pa.Table


class TableOfCheckpoint:
    """Table of a checkpoint, merged with its predecessors if it is an increment.

    The constructor reads the keys of all rows, one record batch at a time.

    Parameters
    ----------
    path : str
        The checkpoint.
    spec : TableSpec
        The table, as in the manifest.

    Attributes
    ----------
    rows : int
        Rows in all files; of a chain more than the table has.
    """

    def __init__(self, path: str, spec: TableSpec) -> None:
        self._links, self.spec = chain_of(path), spec
        self._schema = table_schema(spec)
        self.rows = sum(entry.rows for link in self._links for entry in link.manifest.files_of(spec.name))
        self._places = list(self._find())
        self._gone = [self._gone_at(link) for link in self._links]

    def _find(self) -> Iterator[_Place]:
        for at, link in enumerate(self._links):
            for entry in link.manifest.files_of(self.spec.name):
                for number, batch in enumerate(batches_of(link.path, entry, self._schema, ["key"])):
                    if batch.num_rows:
                        keys = batch.column(0).to_numpy(zero_copy_only=False)
                        partitions = partition_of(keys, GROUP_BITS_MAX)
                        yield _Place(at, entry, number, int(partitions.min()), int(partitions.max()))

    def _gone_at(self, link: Link) -> NDArray[np.uint64]:
        """Keys of rows removed before this increment was made."""
        keys = [
            batch.column(0).to_numpy(zero_copy_only=False)
            for entry in link.manifest.files_of(self.spec.name, GONE)
            for batch in batches_of(link.path, entry, GONE_SCHEMA)
        ]
        return np.concatenate([np.empty(0, np.uint64), *keys])

    @property
    def group_bits(self) -> int:
        """Bits of the coarsest division whose ranges have at most `PIECE_BYTES`."""
        row_bytes = sum(field.type.list_size * 4 if field.type.num_fields else 8 for field in self._schema)
        bits = 0
        while self.rows * row_bytes >> bits > PIECE_BYTES and bits < GROUP_BITS_MAX:
            bits += 1
        return bits

    def read(self, group: int, bits: int) -> TableRows:
        """Read range ``group`` of 2^``bits`` ranges of the key space, ordered by key.

        Raises
        ------
        CheckpointCorruptError
            If a file can't be read.
        """
        shift = GROUP_BITS_MAX - bits
        low, high = group << shift, ((group + 1) << shift) - 1
        places = [place for place in self._places if place.low <= high and place.high >= low]
        of_links = []
        for at, link in enumerate(self._links):
            own = [one for one in places if one.link == at]
            of_links.append(pa.Table.from_batches(self._batches(link, own), self._schema))
        found = pa.concat_tables(of_links)
        keys = found.column("key").to_numpy()
        chosen = np.flatnonzero(partition_of(keys, bits) == group)
        links = np.repeat(np.arange(len(of_links)), [*map(len, of_links)])
        chosen = chosen[self._is_newest(keys[chosen], links[chosen])]
        order = chosen[np.argsort(keys[chosen], kind="stable")]
        return TableRows(keys[order], found.take(pa.array(order)).combine_chunks())

    def _is_newest(self, keys: NDArray[np.uint64], links: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Mask of rows that no later link of the chain replaces or removes."""
        newest = np.ones(keys.size, bool)
        for at in range(1, len(self._links)):
            newer = np.concatenate([keys[links == at], self._gone[at]])
            newest &= (links >= at) | ~np.isin(keys, newer)
        return newest

    def _batches(self, link: Link, places: list[_Place]) -> Iterator[pa.RecordBatch]:
        wanted: dict[str, list[int]] = {}
        for place in places:
            wanted.setdefault(place.entry.name, []).append(place.batch)
        for name, numbers in wanted.items():
            entry = next(place.entry for place in places if place.entry.name == name)
            yield from batches_of(link.path, entry, self._schema, numbers=numbers)


def floats_of(table: pa.Table, name: str) -> tuple[Any, NDArray[np.bool_]]:
    """Column of `TableRows.table` as (n, width) float32 with zeros for nulls, and its validity."""
    column = table.column(name)
    chunk = column.chunk(0) if column.num_chunks else column.combine_chunks()
    if pa.types.is_fixed_size_list(chunk.type):
        width = chunk.type.list_size
        values = chunk.values.to_numpy(zero_copy_only=False)
        rows = values[chunk.offset * width : (chunk.offset + len(chunk)) * width].reshape(-1, width)
    else:
        rows = chunk.fill_null(0).to_numpy(zero_copy_only=False).reshape(-1, 1)
    valid = ~chunk.is_null().to_numpy(zero_copy_only=False)
    return np.where(valid[:, None], rows, np.float32(0)), valid
