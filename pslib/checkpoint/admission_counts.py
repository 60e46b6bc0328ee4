"""Admission state of keys without rows: exact counts and Bloom filters, in files beside a table's rows."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cython_ext.common.hashing import partition_of
from pslib.shard.shard import Shard
from pslib.table.policies import COUNT_MAX, ByBloom, ByCount
from pslib.table.tables import TableSpec

log = logging.getLogger(__name__)
COUNTS, FILTERS = "counts", "filters"
_BITS = b"pslib.partition_bits"
_BITS_KNOWN = {str(bits).encode() for bits in range(21)}  # cython_ext.common.hashing.check_partition_bits


def kind_of_counts(spec: TableSpec) -> str:
    """Kind of file that a table needs for keys without rows; "" for none."""
    if isinstance(spec.admission, ByCount):
        return COUNTS
    return FILTERS if isinstance(spec.admission, ByBloom) else ""


def count_schema(spec: TableSpec, partition_bits: int) -> pa.Schema:
    """Schema: ``key`` and ``count`` of counted keys, or ``partition`` and ``counters`` of filters."""
    if kind_of_counts(spec) == COUNTS:
        columns = [("key", pa.uint64()), ("count", pa.uint32())]
    else:
        assert isinstance(spec.admission, ByBloom)
        columns = [("partition", pa.uint32()), ("counters", pa.list_(pa.uint8(), spec.admission.counters))]
    fields = [pa.field(name, kind, nullable=False) for name, kind in columns]
    return pa.schema(fields, metadata={_BITS: str(partition_bits)})


def counts_problem(batch: pa.RecordBatch) -> str | None:
    """Problem of a batch of counts or filters: a value that no table can hold."""
    if batch.schema.names[0] == "key":
        counts = pc.min_max(batch.column("count")) if "count" in batch.schema.names and len(batch) else None
        if counts is not None and not (counts["min"].as_py() >= 1 and counts["max"].as_py() <= COUNT_MAX):
            return f"has a count of {counts['min']} or {counts['max']}; expected 1 to {COUNT_MAX}"
        return None
    if batch.schema.names[0] != "partition":
        return None
    bits = (batch.schema.metadata or {}).get(_BITS, b"")[:20]
    if bits not in _BITS_KNOWN:
        return f"belongs to 2**{bits!r} partitions"
    last = pc.max(batch.column("partition")).as_py() or 0
    return f"has a filter of partition {last} of {1 << int(bits)}" if last >> int(bits) else None


def counts_batch(schema: pa.Schema, keys: NDArray[np.uint64], counts: NDArray[np.uint32]) -> pa.RecordBatch:
    """Record batch of counted keys."""
    return pa.record_batch([pa.array(keys), pa.array(counts)], schema=schema)


def filters_batch(
    schema: pa.Schema, partitions: NDArray[np.uint32], counters: NDArray[np.uint8]
) -> pa.RecordBatch:
    """Record batch of filters."""
    lists = pa.FixedSizeListArray.from_arrays(pa.array(counters.reshape(-1)), schema.field(1).type.list_size)
    return pa.record_batch([pa.array(partitions), lists], schema=schema)


class CountReader:
    """Load the counts of a checkpoint into one table of a shard; `finish` installs the filters.

    Filters of partitions that are merged are joined by the larger counter, and a filter of a split partition
    goes to all pieces. So a filter never undercounts, and is restored unchanged when the pieces are merged
    again.
    """

    def __init__(self, shard: Shard, table: str, saved: TableSpec) -> None:
        self._shard, self._store = shard, shard.stores[table]
        self._filters: dict[int, NDArray[np.uint8]] = {}
        mine = shard.tables[table].admission
        self.fits = type(mine) is type(saved.admission)
        if isinstance(mine, ByBloom) and isinstance(saved.admission, ByBloom):
            self.fits = mine.counters == saved.admission.counters
        if not self.fits and kind_of_counts(saved):
            log.warning("pslib: table %s: admission has changed; keys without a row are counted anew", table)

    def take(self, batch: pa.RecordBatch) -> None:
        """Load one batch of a file of the table's kind."""
        if batch.schema.names[0] == "key":
            self._take_counts(batch)
        else:
            bits = int(batch.schema.metadata[_BITS])
            flat = batch.column("counters").flatten().to_numpy(zero_copy_only=False)
            numbers = batch.column("partition").to_pylist()
            for number, counters in zip(numbers, flat.reshape(len(numbers), -1), strict=True):
                self._join(number, bits, counters)

    def _take_counts(self, batch: pa.RecordBatch) -> None:
        keys = batch.column("key").to_numpy(zero_copy_only=False)
        counts = batch.column("count").to_numpy(zero_copy_only=False)
        mine = self._shard.own_keys(keys)
        partitions = partition_of(keys[mine], self._shard.partition_bits)
        for partition in np.unique(partitions).tolist():
            some = mine[partitions == partition]
            self._store.import_counts(partition, keys[some], counts[some])

    def _join(self, number: int, bits: int, counters: NDArray[np.uint8]) -> None:
        own, owned = self._shard.partition_bits, self._shard.owned
        if own <= bits:
            places = range(number >> (bits - own), (number >> (bits - own)) + 1)
        else:
            places = range(number << (own - bits), (number + 1) << (own - bits))
        for place in places:
            if owned >> place & 1:
                known = self._filters.get(place)
                self._filters[place] = counters if known is None else np.maximum(known, counters)

    def finish(self) -> None:
        """Install the filters, after all batches."""
        for number, counters in self._filters.items():
            self._store.import_filter(number, np.ascontiguousarray(counters))
        self._filters.clear()
