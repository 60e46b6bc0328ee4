"""Lease reader: batches of a lease, bit-identical for the same (seed, epoch, lease, batch rows)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cython_ext.data.batch_keys import batch_keys, take_rows
from pslib.batch import Batch, Ragged
from pslib.data.dataset import ParquetData
from pslib.data.item_catalog import NegativeSampler
from pslib.data.order import LeasePiece, Order
from pslib.data.window import DecodedWindow, WindowDecoder
from pslib.errors import ConfigurationError
from pslib.schema import Schema

NO_KEYS = np.empty(0, np.uint64)


class LeaseReader:
    """Read leases of an order as keyed batches; cache one decoded window for the leases that share it.

    Not thread-safe.

    Parameters
    ----------
    data : ParquetData
    schema : Schema
        The schema that ``data`` was opened with.
    order : Order
        Over the row groups of ``data``.
    batch_rows : int
        Examples of a batch; the last batch of a lease may be shorter.
    sampler : NegativeSampler or None
        Draws items for each batch.

    Raises
    ------
    ConfigurationError
        If schema or order belong to other data, or ``batch_rows`` is below 1; lists all problems at once.

    Examples
    --------
    >>> data = ParquetData("train/", schema)                                              # doctest: +SKIP
    >>> order = Order(7, [g.rows for g in data.row_groups], default_lease_rows(data.rows, 4096))
    >>> reader = LeaseReader(data, schema, order, batch_rows=4096)
    >>> for batch in reader.batches(epoch=0, lease_index=3, first_batch=2):
    ...     train(batch)
    """

    def __init__(
        self,
        data: ParquetData,
        schema: Schema,
        order: Order,
        batch_rows: int,
        sampler: NegativeSampler | None = None,
    ) -> None:
        problems = []
        if batch_rows < 1:
            problems.append(f"reader: batch_rows must be at least 1, got {batch_rows}")
        if schema != data.schema:
            problems.append(
                "reader: the schema is not the one that the data was opened with; open it with this one"
            )
        if order.row_counts != tuple(group.rows for group in data.row_groups):
            problems.append(
                "reader: the order is over other row groups than the data has; make it from data.row_groups"
            )
        if problems:
            raise ConfigurationError(*problems)
        self.data, self._schema, self._order, self._batch_rows = data, schema, order, batch_rows
        self._sampler = sampler
        self._decoder = WindowDecoder(data)
        self._cached: tuple[int, int] | None = None
        self._window: DecodedWindow | None = None
        self._window_order = np.empty(0, np.int64)

    @property
    def leases(self) -> int:
        """Number of leases of the first epoch."""
        return self._order.leases(0)

    def batch_count(self, epoch: int, lease_index: int) -> int:
        """Number of batches of a lease.

        Raises
        ------
        IndexError
            If the epoch has no such lease.
        """
        return -(-self._order.lease(epoch, lease_index).rows // self._batch_rows)

    def batches(self, epoch: int, lease_index: int, first_batch: int = 0) -> Iterator[Batch]:
        """Return the batches of a lease from ``first_batch`` on; earlier ones are not built.

        Parameters
        ----------
        epoch : int
        lease_index : int
        first_batch : int
            0 to `batch_count`, which yields no batch.

        Raises
        ------
        IndexError
            At once, if there is no such lease or batch.
        DataError
            With the first batch, if the lease's window has a bad value; names file, row and column.
        """
        count = self.batch_count(epoch, lease_index)
        if not 0 <= first_batch <= count:
            raise IndexError(f"first_batch must be in 0..{count} for lease {lease_index}, got {first_batch}")
        return self._cut(epoch, lease_index, self._order.lease(epoch, lease_index), first_batch)

    def close(self) -> None:
        """Drop the window and close the open file; the next read opens it again."""
        self._decoder.close()
        self._cached, self._window = None, None

    def _cut(self, epoch: int, lease_index: int, lease: LeasePiece, first_batch: int) -> Iterator[Batch]:
        count = self.batch_count(epoch, lease_index)
        for number in range(first_batch, count):
            start = lease.start + number * self._batch_rows
            window, order = self._decoded(epoch, lease.window)
            rows = order[start : min(start + self._batch_rows, lease.stop)]
            drawn = self._sampler.draw(epoch, lease_index, number, rows.size) if self._sampler else NO_KEYS
            yield self._batch(window, rows, drawn)

    def _batch(self, window: DecodedWindow, rows: NDArray[np.int64], drawn: NDArray[np.uint64]) -> Batch:
        """Build a batch from some rows of a window; deduplicate their keys and the ``drawn`` ones."""
        keys, inverse, starts = batch_keys(window.sparse_keys, window.lists, rows, drawn)
        stop = rows.size * window.sparse_keys.shape[1]
        places, ragged = inverse[:stop].reshape(rows.size, window.sparse_keys.shape[1]), {}
        for field, offsets in zip(self._schema.ragged, starts, strict=True):
            ragged[field.name] = Ragged.sound(inverse[stop : stop + offsets[-1]], offsets)
            stop += int(offsets[-1])
        labels = take_rows(window.labels, rows) if self._schema.labels else np.zeros(rows.size, np.float32)
        dense = take_rows(window.dense, rows) if self._schema.dense else np.empty((rows.size, 0), np.float32)
        more_labels = None if window.more_labels is None else take_rows(window.more_labels, rows)
        weights = None if window.weights is None else take_rows(window.weights, rows)
        batch = Batch(labels, dense, keys, places, ragged, more_labels=more_labels, weights=weights)
        if self._sampler is None:
            return batch
        return replace(batch, negatives=inverse[stop:], log_q=self._sampler.log_q(keys))

    def _decoded(self, epoch: int, index: int) -> tuple[DecodedWindow, NDArray[np.int64]]:
        if self._window is None or self._cached != (epoch, index):
            self._cached = None  # a window that fails halfway must not pass for a complete one
            self._window = self._decoder.decode(self._order.windows(epoch)[index])
            self._window_order = self._order.window_order(epoch, index)
            self._cached = (epoch, index)
        return self._window, self._window_order
